"""Jobs from the processes on the GPUs: PID -> cgroup -> job, container, unit or user.

Of a process only three things are read, all open to every user: its cgroup, its start and its owner. Environment and
command line are not.

Layouts of ``/proc/PID/cgroup``, in cgroup version 1 (one line per controller) and version 2 (one line, ``0::PATH``):

* Slurm: ``.../slurm/uid_1000/job_123/step_0/...``, ``/system.slice/slurmstepd.scope/job_123/step_0/user/task_0``;
* kubelet with the cgroupfs driver: ``/kubepods/burstable/podUID/CONTAINER``;
* kubelet with the systemd driver: ``/kubepods.slice/...-podUID_WITH_UNDERSCORES.slice/cri-containerd-CONTAINER.scope``
  (``crio-``, ``docker-``), and containerd's mixture of both, ``...-podUID.slice:cri-containerd:CONTAINER``;
* containers without Kubernetes: ``/docker/CONTAINER``, ``/system.slice/docker-CONTAINER.scope``, ``libpod-...``;
* all of these as seen out of a container with a cgroup namespace of its own: ``/../../podUID/CONTAINER``, where the
  beginning that both have in common is missing;
* the rest: the innermost systemd unit, or the user whose session it is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpusonde.agent.jobs.ownership import Owner, Owners, Scheduler
from gpusonde.agent.jobs.sources import bounded
from gpusonde.errors import SourceError

_MOST_LINES = 64
_SHORT_CONTAINER_ID = 12
_FROM_A_CONTAINER = "/../"

_SLURM_JOB = re.compile(r"/[^/]*slurm[^/]*/(?:[^/]+/)*?job_(\d+)(?:/step_([\w-]+))?(?=/|$)")
_POD = re.compile(r"[/-]pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?=[./:]|$)")
_CONTAINER = re.compile(r"(?:^|[/:-])([0-9a-f]{64})(?=\.scope|[/:]|$)")
_USER = re.compile(r"/user-(\d+)\.slice(?=/|$)")
_UNIT = re.compile(r"[^/]+\.(?:service|scope)")


def owner_of(cgroup: str, uid: int) -> Owner:
    """Return what a process belongs to.

    Args:
        cgroup: Text of its ``/proc/PID/cgroup``.
        uid: Its user, for processes in no job, container or unit, and as a label.
    """
    paths = _paths(cgroup)
    for recognise in (_slurm, _pod, _container, _user, _unit):
        for path in paths:
            found = recognise(path)
            if found is not None:
                return _with_uid(found, uid)
    return _with_uid(Owner(Scheduler.USER, f"uid-{uid}"), uid)


def job_path(path: str, scheduler: Scheduler) -> str:
    """Return the part of a path of cgroup version 2 that is all of a job, its steps or containers being below it.

    Args:
        path: Of a process, without the slash in front.
        scheduler: Whose job it is; where the path is none of its jobs, there is no such part, and it is empty.
    """
    whole, parts = owner_of(f"0::/{path}", 0), path.split("/")
    for begin in ("/".join(parts[:count]) for count in range(1, len(parts) + 1)):
        owner = owner_of(f"0::/{begin}", 0)
        if owner.scheduler is scheduler and owner.job_id == whole.job_id:
            return begin
    return ""


def _paths(cgroup: str) -> list[str]:
    """Return the distinct paths, that of version 2 and of systemd's own hierarchy first: they are the finest."""
    lines = [line.split(":", 2) for line in cgroup.splitlines()[:_MOST_LINES]]
    found = [(controllers, path) for _, controllers, path in (line for line in lines if len(line) == 3)]
    found.sort(key=lambda pair: pair[0] not in ("", "name=systemd"))
    return list(dict.fromkeys(path for _, path in found))


def _slurm(path: str) -> Owner | None:
    match = _SLURM_JOB.search(path)
    return Owner(Scheduler.SLURM, bounded(match.group(1))) if match else None


def _pod(path: str) -> Owner | None:
    match = _POD.search(path) if "kubepods" in path or path.startswith(_FROM_A_CONTAINER) else None
    if match is None:
        return None
    pod = match.group(1).replace("_", "-")
    container = _CONTAINER.search(path)
    labels = {"pod_uid": pod} | ({"container_id": container.group(1)} if container else {})
    return Owner(Scheduler.KUBERNETES, pod, labels=labels)


def _container(path: str) -> Owner | None:
    found = _CONTAINER.findall(path)
    if not found:
        return None
    return Owner(Scheduler.CONTAINER, found[-1][:_SHORT_CONTAINER_ID], labels={"container_id": found[-1]})


def _user(path: str) -> Owner | None:
    match = _USER.search(path)
    if match is None:
        return None
    units = _UNIT.findall(path[match.end() :])
    return Owner(Scheduler.USER, bounded(f"uid-{match.group(1)}"), labels={"unit": bounded(units[-1])} if units else {})


def _unit(path: str) -> Owner | None:
    units = _UNIT.findall(path)
    return Owner(Scheduler.SYSTEMD, bounded(units[-1])) if units else None


def _with_uid(owner: Owner, uid: int) -> Owner:
    return Owner(owner.scheduler, owner.job_id, labels={**owner.labels, "uid": str(uid)})


_LARGEST_FILE_BYTES = 64 << 10
_MOST_PROCESSES = 256
# A framework that restarts its workers is one job; the gap between them is shorter than this.
_GRACE_NS = 30_000_000_000
# A process may end between the driver's answer and the look at it; when none is ever found, they are hidden from us.
_HIDDEN_POLLS = 3

ProcessIds = Callable[[], Mapping[str, Sequence[int]]]


@dataclass(frozen=True)
class ProcessFacts:
    """What is known of a process.

    Attributes:
        owner: What it belongs to.
        start_unix_nano: When it was started, 0 when that cannot be read.
    """

    owner: Owner
    start_unix_nano: int


class ProcFolder:
    """Reads processes from procfs.

    Args:
        proc: Where it is mounted.
        ticks_per_second: Unit of the start times.
    """

    def __init__(self, proc: Path = Path("/proc"), ticks_per_second: int = os.sysconf("SC_CLK_TCK")) -> None:
        self._proc = proc
        self._ticks_per_second = ticks_per_second

    def boot_unix_s(self) -> int:
        """Return when the host was started, 0 when that cannot be read."""
        try:
            lines = _text(self._proc / "stat").splitlines()
        except OSError:
            return 0
        return next((int(line.split()[1]) for line in lines if line.startswith("btime ")), 0)

    def facts(self, pid: int, boot_unix_s: int | None = None) -> ProcessFacts | None:
        """Return what is known of a process; None when it is gone or hidden from this user.

        Args:
            pid: The process.
            boot_unix_s: What :meth:`boot_unix_s` said for the first of many processes; None to ask it now.
        """
        folder = self._proc / str(pid)
        try:
            uid = folder.stat().st_uid
            cgroup = _text(folder / "cgroup")
            stat = _text(folder / "stat")
        except OSError:
            return None
        boot = self.boot_unix_s() if boot_unix_s is None else boot_unix_s
        return ProcessFacts(owner_of(cgroup, uid), self._start(stat, boot))

    def _start(self, stat: str, boot: int) -> int:
        """Return the start from ``/proc/PID/stat``; the name in its parentheses may hold anything."""
        fields = stat[stat.rfind(")") + 1 :].split()
        if len(fields) < 20 or not fields[19].isdecimal() or not boot:
            return 0
        return round((boot + int(fields[19]) / self._ticks_per_second) * 1e9)


def _text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_LARGEST_FILE_BYTES).decode(errors="replace")


@dataclass(frozen=True)
class _Sighting:
    owner: Owner
    times: int


class ProcessOwners:
    """Tells what the processes on each GPU belong to.

    An owner is believed at its second sighting in a row, so that a tool that asks for the GPU's name does not cut a run
    in two, and is missed for half a minute before it is gone.

    Args:
        process_ids: Asks the driver: GPU key -> PIDs, in this process's PID namespace.
        processes: Looks a process up.
    """

    name = "processes"

    def __init__(self, process_ids: ProcessIds, processes: ProcFolder) -> None:
        self._process_ids = process_ids
        self._processes = processes
        self._sightings: dict[tuple[str, Scheduler, str], _Sighting] = {}
        self._blind_polls = 0

    def owners(self, now_unix_nano: int) -> Owners:
        """See :class:`gpusonde.agent.jobs.sources.JobSource`."""
        present = self._present(now_unix_nano)
        sightings: dict[tuple[str, Scheduler, str], _Sighting] = {}
        for key, owner in present.items():
            before = self._sightings.get(key)
            sightings[key] = _Sighting(owner, 1 if before is None else min(before.times + 1, 2))
        for key, before in self._sightings.items():
            if (
                key not in present
                and before.times >= 2
                and 0 <= now_unix_nano - before.owner.seen_unix_nano <= _GRACE_NS
            ):
                sightings[key] = before
        self._sightings = sightings
        found: dict[str, tuple[Owner, ...]] = {}
        for (gpu, _, _), sighting in sightings.items():
            if sighting.times >= 2:
                found[gpu] = (*found.get(gpu, ()), sighting.owner)
        return found

    def _present(self, now_unix_nano: int) -> dict[tuple[str, Scheduler, str], Owner]:
        present: dict[tuple[str, Scheduler, str], Owner] = {}
        hidden = asked = 0
        boot_unix_s = self._processes.boot_unix_s()
        for gpu, pids in self._process_ids().items():
            for pid in sorted(pids):
                asked += 1
                if asked > _MOST_PROCESSES:
                    break
                facts = self._processes.facts(pid, boot_unix_s)
                if facts is None:
                    hidden += 1
                    continue
                key = (gpu, facts.owner.scheduler, facts.owner.job_id)
                start = min(facts.start_unix_nano, now_unix_nano)
                known = present.get(key)
                if known is None:
                    present[key] = replace(facts.owner, start_unix_nano=start, seen_unix_nano=now_unix_nano)
                elif 0 < start < known.start_unix_nano:
                    present[key] = replace(known, start_unix_nano=start)
        self._blind_polls = self._blind_polls + 1 if hidden and hidden == asked else 0
        if self._blind_polls >= _HIDDEN_POLLS:
            raise SourceError(
                f"none of the {hidden} processes on the GPUs can be looked up in /proc: they belong to another PID "
                "namespace (in Kubernetes set hostPID) or are hidden (hidepid, or ProtectProc= in the unit)"
            )
        return present
