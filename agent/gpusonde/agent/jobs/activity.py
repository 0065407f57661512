"""What the processes of a job do beside its GPUs, about once a second: forks, ends, bytes read and written, time.

Counts only, and of the job as a whole: no names, arguments, paths or contents. They settle what the samples of a GPU
cannot tell: workers of a data loader live as long as an epoch, those of an evaluation as long as it, a checkpoint is
written.

The processes are those on the GPUs (``ProcessReader``) and what these fork. A look costs a few reads of procfs, however
many processes the host has: the kernel says which process id it gave last (``/proc/loadavg``), so that only ids given
since the look before are looked up, at most :data:`MOST_NEW_IDS` of them; and of many processes a few are read in turn.

``/proc/PID/io`` opens to the same user and to root only. Where it does not, ``io.stat`` of the job's cgroup is read,
which counts what reaches a device: later than it was written, and without what the page cache had.

Where the job of a scheduler or a container has a cgroup of version 2, its ``cpu.stat`` counts the time of all its
processes, and these are looked at when none is on the GPUs: a job that prepares data is told from one that rests.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import select
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpusonde.agent.jobs.ownership import Owner, Owners, Scheduler
from gpusonde.agent.jobs.processes import ProcessIds, job_path
from gpusonde.agent.jobs.procfs import READ_BYTES, ProcessStat, WatchedCgroup, WatchedProcess
from gpusonde.agent.metrics import SelfCounters
from gpusonde.ingest.v1 import ingest_pb2

log = logging.getLogger(__name__)

LOOK_INTERVAL_S = 1.0
_SAME_POLL_S = 0.05
MOST_NEW_IDS = 256
MOST_PROCESSES = 256
_LOOKS_IN_RECORD = 30
_MOST_HOLDERS_READ = 16
_MOST_TIMES_READ = 1
_MOST_OTHERS_READ = 2
_MOST_SEARCHED = 2048
_MOST_ASKED = 4  # processes of a job, for its cgroup
_LOWEST_NEW_PID = 300  # where the kernel goes on after the highest
_MOST_UINT32 = (1 << 32) - 1
# A user's or a unit's processes may be several jobs.
_JOBS = (Scheduler.SLURM, Scheduler.KUBERNETES, Scheduler.CONTAINER)
_SLURM_CGROUPS = "system.slice/*slurmstepd.scope"


class SharedProcessIds:
    """Asks the driver for the processes on the GPUs once where two ask at the same time.

    Args:
        ask: Asks it; see :class:`gpusonde.agent.sources.base.ProcessReader`.
        monotonic: Seconds.
    """

    def __init__(self, ask: ProcessIds, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._monotonic = monotonic
        self._asked_s = float("-inf")
        self._latest: Mapping[str, Sequence[int]] = {}

    def __call__(self) -> Mapping[str, Sequence[int]]:
        """Return GPU key -> process ids, of this poll."""
        if self._monotonic() - self._asked_s >= _SAME_POLL_S:
            self._latest = self._ask()
            self._asked_s = self._monotonic()
        return self._latest


@dataclass
class _Group:
    """The processes of one job, and what they have done in the looks since the last record."""

    gpus: tuple[str, ...]
    holders: dict[int, WatchedProcess] = field(default_factory=dict)
    others: dict[int, WatchedProcess] = field(default_factory=dict)
    cgroup: WatchedCgroup | None = None
    forks: list[int] = field(default_factory=list)
    exits: list[int] = field(default_factory=list)
    lifetime_ms: list[int] = field(default_factory=list)
    read_bytes: list[int] = field(default_factory=list)
    written_bytes: list[int] = field(default_factory=list)
    processor_ms: list[float] = field(default_factory=list)
    processes: int = 0
    unseen_holders: int = 0  # past what is looked at, or hidden from this user
    most_holders: int = 0

    def columns(self) -> tuple[list[int] | list[float], ...]:
        """Return what has a value per look."""
        return self.forks, self.exits, self.lifetime_ms, self.read_bytes, self.written_bytes, self.processor_ms

    @property
    def has_emptied(self) -> bool:
        """Whether it is a whole job, had processes since the last record, and has none any more."""
        return self.is_whole and self.processes > 0 and not (self.holders or self.others or self.unseen_holders)

    @property
    def is_whole(self) -> bool:
        """Whether it is a job with a cgroup of its own, of which all processes count, on its GPUs or not."""
        return self.cgroup is not None and self.cgroup.counts_time

    @property
    def counts_io(self) -> bool:
        """Whether its cgroup says what it reads and writes, and has to."""
        return self.cgroup is not None and self.cgroup.counts_bytes and not self._reads_processes

    @property
    def reads_io(self) -> bool:
        """Whether the bytes that it reads and writes are known: a job without any process moves none."""
        is_empty = not self.processes and not self.most_holders
        return self._reads_processes or self.counts_io or (self.is_whole and is_empty)

    @property
    def _reads_processes(self) -> bool:
        # Those on the GPUs, where there are any: what is left of a child that has ended opens to nobody.
        looked_at = self.holders or self.others
        return bool(looked_at) and all(p.reads_io for p in looked_at.values())


class _Ends:
    """Tells which processes have ended, whoever's they are, without asking for each of them."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watched: dict[int, tuple[int, tuple[_Group, WatchedProcess]]] = {}
        self._pids: dict[int, int] = {}

    def watch(self, pid: int, who: tuple[_Group, WatchedProcess]) -> None:
        """Wait for the end of a process.

        Raises:
            OSError: It has ended, or the kernel has no descriptor for it.
        """
        descriptor = os.pidfd_open(pid)
        self._epoll.register(descriptor, select.EPOLLIN)
        self._watched[pid] = descriptor, who
        self._pids[descriptor] = pid

    def ended(self) -> list[tuple[_Group, WatchedProcess]]:
        """Return those that have ended."""
        return [self._watched[self._pids[descriptor]][1] for descriptor, _ in self._epoll.poll(0)]

    def forget(self, pid: int) -> None:
        """Wait for it no longer."""
        if pid in self._watched:
            descriptor, _ = self._watched.pop(pid)
            del self._pids[descriptor]
            os.close(descriptor)  # which takes it out of the others, too

    def close(self) -> None:
        """Give back what is open."""
        for pid in list(self._watched):
            self.forget(pid)
        self._epoll.close()


class ActivityReader:
    """Looks at the processes of the jobs. Used by one thread.

    Args:
        counters: Filled with records, and processes that could not be looked at.
        proc: Where procfs is mounted.
        cgroups: Where cgroups of version 2 are mounted.
        ticks_per_second: Unit of processor time.
        boottime_s: Seconds since the host was started, sleep included.
    """

    def __init__(
        self,
        counters: SelfCounters,
        proc: Path = Path("/proc"),
        cgroups: Path = Path("/sys/fs/cgroup"),
        ticks_per_second: int = os.sysconf("SC_CLK_TCK"),
        boottime_s: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> None:
        self._boottime_s = boottime_s
        self._ends = _Ends()
        self._counters = counters
        self._proc = str(proc)
        self._cgroups = cgroups
        self._ms_per_tick = 1000.0 / ticks_per_second
        self._groups: dict[object, _Group] = {}
        self._newest: int | None = None
        self._begin_unix_nano = 0
        self._offsets_ms: list[int] = []
        self._turn = 0
        self._told: set[str] = set()
        self._loadavg = -1
        self._held: list[tuple[_Group, WatchedProcess]] = []
        self._others: list[tuple[_Group, WatchedProcess]] = []
        self._by_pid: dict[int, _Group] | None = None
        self._tells_end = False

    @property
    def follows_any(self) -> bool:
        """Whether there are processes to look at."""
        return bool(self._groups)

    def follow(self, held: Mapping[str, Sequence[int]], owners: Owners) -> list[ingest_pb2.Record]:
        """Look at other processes from now on.

        Args:
            held: GPU key -> the processes on it.
            owners: GPU key -> what is known of its owners; the GPUs of a scheduler's job are one.

        Returns:
            What was seen of those before, if they change.
        """
        wanted: dict[object, tuple[list[str], dict[int, ProcessStat], set[int]]] = {}
        cgroups: dict[object, WatchedCgroup | None] = {}
        count = 0
        # The open files of a process are never those of another one that gets its id.
        known = {pid: p.stat for group in self._groups.values() for pid, p in group.holders.items() if p.is_alive}
        for gpu in sorted({*held, *owners}):
            found = {}
            for pid in held.get(gpu, ())[: MOST_PROCESSES - count]:
                if (stat := known.get(pid) or self._stat(pid)) is not None:
                    found[pid] = stat
            job = next((owner for owner in owners.get(gpu, ()) if owner.scheduler in _JOBS), None)
            if not found and job is None:
                continue
            count += len(found)
            key: object = (job.scheduler, job.job_id) if job else next(iter(found.values())).group
            if job is not None and cgroups.get(key) is None:
                cgroups[key] = self._job_cgroup(key, job, found)
            # Of a GPU that nobody is on, a job says only what its cgroup counts.
            if found or cgroups[key] is not None:
                gpus, pids, holders = wanted.setdefault(key, ([], {}, set()))
                gpus.append(gpu)
                pids.update(found)
                holders.update(held.get(gpu, ()))
        ended = []
        if {k: tuple(g) for k, (g, *_) in wanted.items()} != {k: g.gpus for k, g in self._groups.items()}:
            ended = self.take()
        for key in self._groups.keys() - wanted.keys():
            self._drop(self._groups.pop(key))
        if self._newest is None and wanted:
            self._newest = self._newest_pid()
        for key, (gpus, pids, holders) in wanted.items():
            group = self._groups.setdefault(key, _Group(tuple(gpus)))
            group.gpus = tuple(gpus)
            if group.cgroup is None or not group.is_whole:
                group.cgroup = cgroups.get(key) or group.cgroup
            group.unseen_holders = len(holders - pids.keys())
            self._hold(group, pids)
            if group.cgroup is not None and not pids:
                self._look_beside(group, group.cgroup)
        if not self._groups:
            self._newest = None
        return ended

    def _hold(self, group: _Group, pids: Mapping[int, ProcessStat]) -> None:
        """Read these processes of a group at every look."""
        for pid in list(group.holders):
            if pid not in pids or pids[pid].start != group.holders[pid].start:
                group.holders.pop(pid).close()
                self._by_pid = None
        for pid in pids.keys() - group.holders.keys():
            known = group.others.pop(pid, None)
            if known is not None:
                self._ends.forget(pid)
            process = WatchedProcess(pid, f"{self._proc}/{pid}", pids[pid], is_new=False, is_kept_open=True)
            process.read_bytes()
            group.holders[pid] = process
            self._by_pid = None
            if known is None:
                self._search_children(group, pid)
            if not process.reads_io and group.cgroup is None and (folder := self._cgroup_folder(pid)) is not None:
                group.cgroup = WatchedCgroup(self._cgroups / folder, is_job=False)
        group.most_holders = max(group.most_holders, len(group.holders) + group.unseen_holders)
        if group.holders and not group.reads_io:
            self._tell_once(
                "io",
                "the bytes that jobs read and write are not known: /proc/PID/io of their processes opens to their own "
                "user and to root (CAP_SYS_PTRACE) only, and their cgroup has no io.stat",
            )

    def _look_beside(self, group: _Group, cgroup: WatchedCgroup) -> None:
        """Look at the processes of a job that are on none of its GPUs."""
        for pid in cgroup.process_ids():
            if pid not in group.others and (stat := self._stat(pid)) is not None:
                self._add(group, pid, stat, is_new=False)

    def look(self, now_unix_nano: int) -> list[ingest_pb2.Record]:
        """Look once; return what is complete to be recorded.

        Args:
            now_unix_nano: Unix time in nanoseconds; where it goes back, another record begins.
        """
        if not self._groups:
            return []
        ready = []
        offset_ms = (now_unix_nano - self._begin_unix_nano) // 1_000_000
        if self._offsets_ms and not self._offsets_ms[-1] < offset_ms <= _MOST_UINT32:
            ready = self.take()
        if not self._offsets_ms:
            self._begin_unix_nano, offset_ms = now_unix_nano, 0
        self._offsets_ms.append(offset_ms)
        for group in self._groups.values():
            for column in group.columns():
                column.append(0)
        self._find_forks()
        self._find_exits()
        self._read_processes()
        for group in self._groups.values():
            group.processes = max(group.processes, len(group.holders) + len(group.others))
        for group in self._groups.values():
            if group.has_emptied and group.cgroup is not None:
                self._look_beside(group, group.cgroup)
        # A record counts the most that there were: that none is left is told by the next, which waits for nothing.
        has_emptied = any(group.has_emptied for group in self._groups.values())
        if has_emptied or self._tells_end or len(self._offsets_ms) >= _LOOKS_IN_RECORD:
            ready += self.take()
        self._tells_end = has_emptied
        return ready

    def take(self) -> list[ingest_pb2.Record]:
        """Return what was seen since the last record, as a record; none where nothing was."""
        offsets, self._offsets_ms = self._offsets_ms, []
        if not offsets:
            return []
        activity = ingest_pb2.JobActivity(start_time_unix_nano=self._begin_unix_nano, offsets_ms=offsets)
        for group in self._groups.values():
            if group.processes or group.is_whole:
                activity.groups.append(
                    ingest_pb2.ProcessGroupActivity(
                        gpu_uuids=group.gpus,
                        forks=group.forks,
                        exits=group.exits,
                        lifetime_ms=group.lifetime_ms,
                        read_bytes=group.read_bytes if group.reads_io else (),
                        written_bytes=group.written_bytes if group.reads_io else (),
                        processor_ms=[min(_MOST_UINT32, round(each)) for each in group.processor_ms],
                        processes=group.processes,
                        holders=group.most_holders,
                    )
                )
            for column in group.columns():
                column.clear()
            group.processes, group.most_holders = 0, len(group.holders) + group.unseen_holders
        if not activity.groups:
            return []
        self._counters.job_activity_records += 1
        return [ingest_pb2.Record(job_activity=activity)]

    def close(self) -> None:
        """Give back what is open."""
        for group in self._groups.values():
            self._drop(group)
        self._groups.clear()
        self._ends.close()
        if self._loadavg >= 0:
            os.close(self._loadavg)
            self._loadavg = -1

    def _drop(self, group: _Group) -> None:
        self._by_pid = None
        for process in (*group.holders.values(), *group.others.values()):
            self._ends.forget(process.pid)
            process.close()

    def _find_forks(self) -> None:
        """Count the processes that the groups have made since the look before, and look at them from now on."""
        newest = self._newest_pid()
        before, self._newest = self._newest, newest
        if newest is None or before is None or newest == before:
            return
        ids = range(before + 1, newest + 1) if newest > before else range(_LOWEST_NEW_PID, newest + 1)
        if len(ids) > MOST_NEW_IDS:
            self._counters.job_processes_unseen += len(ids) - MOST_NEW_IDS
            ids = ids[-MOST_NEW_IDS:]
        for pid in ids:
            stat = self._stat(pid)
            if stat is None or (group := self._known().get(stat.parent)) is None or not self._is_process(pid):
                continue
            group.forks[-1] += 1
            self._add(group, pid, stat, is_new=True)

    def _find_exits(self) -> None:
        """Count the processes that have ended since the look before."""
        for group, process in self._ends.ended():
            self._end(group, process)

    def _end(self, group: _Group, process: WatchedProcess) -> None:
        if group.others.pop(process.pid, None) is None:
            return
        self._by_pid = None
        self._ends.forget(process.pid)
        process.close()
        group.exits[-1] += 1
        lived_ms = self._boottime_s() * 1000.0 - process.start * self._ms_per_tick
        group.lifetime_ms[-1] += max(0, round(lived_ms))

    def _add(self, group: _Group, pid: int, stat: ProcessStat, *, is_new: bool) -> None:
        if sum(len(g.holders) + len(g.others) for g in self._groups.values()) >= MOST_PROCESSES:
            self._counters.job_processes_unseen += 1
            return
        process = WatchedProcess(pid, f"{self._proc}/{pid}", stat, is_new=is_new, is_kept_open=False)
        group.others[pid] = process
        self._by_pid = None
        with contextlib.suppress(OSError):  # it has ended, or too many files are open: its end is noticed at its turn
            self._ends.watch(pid, (group, process))

    def _search_children(self, group: _Group, parent: int) -> None:
        """Find what a process had forked before it was looked at: among the ids given next after its own."""
        try:
            ids = sorted(int(name) for name in os.listdir(self._proc) if name.isdigit() and int(name) > parent)
        except OSError:
            return
        for pid in ids[:_MOST_SEARCHED]:
            stat = self._stat(pid)
            if stat is not None and (stat.parent == parent or stat.parent in group.others) and pid not in group.holders:
                self._add(group, pid, stat, is_new=False)

    def _read_processes(self) -> None:
        """Read all holders' bytes, a few's processor time, and a few of the other processes in turn."""
        self._turn += 1
        self._known()
        for group, process in self._in_turn(self._held, _MOST_HOLDERS_READ):
            self._count(group, process, bytes_too=True, ticks_too=False)
        for group, process in self._in_turn(self._held, _MOST_TIMES_READ):
            self._count(group, process, bytes_too=False, ticks_too=True)
        for group, process in self._in_turn(self._others, _MOST_OTHERS_READ):
            self._count(group, process, bytes_too=True, ticks_too=True)
        for group in self._groups.values():
            if group.cgroup is not None:
                group.processor_ms[-1] += group.cgroup.read_time_ms()
                if group.counts_io:
                    read, written = group.cgroup.read_bytes()
                    group.read_bytes[-1] += read
                    group.written_bytes[-1] += written
        for group, process in self._held:
            if not process.is_alive and process.pid in group.holders:
                group.holders.pop(process.pid).close()
                self._by_pid = None
        for group, process in self._others:
            if not process.is_alive:
                self._end(group, process)

    def _known(self) -> dict[int, _Group]:
        """Return the group of every process, and list the processes anew if they have changed."""
        if self._by_pid is None:
            groups = self._groups.values()
            self._held = [(group, p) for group in groups for p in group.holders.values()]
            self._others = [(group, p) for group in groups for p in group.others.values()]
            self._by_pid = {p.pid: group for group, p in (*self._held, *self._others)}
        return self._by_pid

    def _count(self, group: _Group, process: WatchedProcess, *, bytes_too: bool, ticks_too: bool) -> None:
        if bytes_too:
            read, written = process.read_bytes()
            group.read_bytes[-1] += 0 if group.counts_io else read
            group.written_bytes[-1] += 0 if group.counts_io else written
        # What a cgroup counts is not counted again; the reading notices who has another one's id.
        if ticks_too and (ticks := process.read_ticks()) and not group.is_whole:
            group.processor_ms[-1] += ticks * self._ms_per_tick

    def _in_turn(
        self, processes: list[tuple[_Group, WatchedProcess]], most: int
    ) -> list[tuple[_Group, WatchedProcess]]:
        if len(processes) <= most:
            return processes
        begin = self._turn * most % len(processes)
        return (processes[begin : begin + most] + processes[:most])[:most]

    def _newest_pid(self) -> int | None:
        try:
            if self._loadavg < 0:
                self._loadavg = os.open(f"{self._proc}/loadavg", os.O_RDONLY | os.O_CLOEXEC)
            return int(os.pread(self._loadavg, READ_BYTES, 0).rsplit(None, 1)[-1])
        except (OSError, ValueError, IndexError):
            self._tell_once("loadavg", f"forks of jobs are not counted: {self._proc}/loadavg cannot be read")
            return None

    def _stat(self, pid: int) -> ProcessStat | None:
        """Return what is known of a process or thread; None where it is gone or hidden from this user."""
        try:
            return ProcessStat.parse(self._text(f"{pid}/stat"))
        except OSError:
            return None

    def _is_process(self, pid: int) -> bool:
        """Whether an id is a process's, and not one of its threads'."""
        try:
            status = self._text(f"{pid}/status")
        except OSError:
            return False
        return f"\nTgid:\t{pid}\n".encode() in status

    def _job_cgroup(self, key: object, job: Owner, pids: Mapping[int, ProcessStat]) -> WatchedCgroup | None:
        """Return the cgroup of a whole job, as it is known, as its processes say, or as Slurm names it."""
        group = self._groups.get(key)
        if group is not None and group.is_whole:
            return group.cgroup
        folders: list[str | Path] = []
        if job.scheduler is Scheduler.SLURM and job.job_id.isdigit():
            folders += self._cgroups.glob(f"{_SLURM_CGROUPS}/job_{job.job_id}")
        known = (self._cgroup_folder(pid) for pid in itertools.islice(pids, _MOST_ASKED))
        folders += [job_path(folder, job.scheduler) for folder in known if folder is not None]
        for cgroup in (WatchedCgroup(self._cgroups / folder, is_job=True) for folder in folders if folder):
            if cgroup.counts_time:
                return cgroup
        return None

    def _cgroup_folder(self, pid: int) -> str | None:
        """Return the cgroup of a process below where they are mounted, where it has one of its own in version 2."""
        with contextlib.suppress(OSError):
            for line in self._text(f"{pid}/cgroup").decode(errors="replace").splitlines():
                path = line.removeprefix("0::/")
                if path not in (line, "") and ".." not in path:
                    return path
        return None

    def _text(self, name: str) -> bytes:
        descriptor = os.open(f"{self._proc}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(descriptor, READ_BYTES)
        finally:
            os.close(descriptor)

    def _tell_once(self, what: str, message: str) -> None:
        if what not in self._told:
            self._told.add(what)
            log.warning("%s", message)
