"""``JobWatcher``: asks every configured source of jobs at a slow pace, and records what changed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpusonde.agent.config import JobsConfig
from gpusonde.agent.jobs.activity import LOOK_INTERVAL_S, ActivityReader, SharedProcessIds
from gpusonde.agent.jobs.kubelet import KubeletPods
from gpusonde.agent.jobs.ownership import (
    FILE_NAME,
    GpuOwnership,
    Owner,
    Owners,
    OwnershipFile,
    OwnershipHistory,
    Scheduler,
)
from gpusonde.agent.jobs.processes import ProcessIds, ProcessOwners, ProcFolder
from gpusonde.agent.jobs.sources import DRIVER_FOLDER, DeviceNames, JobSource, MappingFiles, read_minors
from gpusonde.agent.metrics import SelfCounters
from gpusonde.agent.sources.base import GpuDescription, ProcessReader, SourceInventory
from gpusonde.common.v1 import job_pb2
from gpusonde.errors import SourceError
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.service.durable_files import FileLayer, OsFiles

log = logging.getLogger(__name__)

_SCHEDULERS = {
    Scheduler.SLURM: job_pb2.SCHEDULER_SLURM,
    Scheduler.KUBERNETES: job_pb2.SCHEDULER_KUBERNETES,
    Scheduler.CONTAINER: job_pb2.SCHEDULER_CONTAINER,
    Scheduler.SYSTEMD: job_pb2.SCHEDULER_SYSTEMD,
    Scheduler.USER: job_pb2.SCHEDULER_USER,
}
# Well under what a collector takes in one record.
_MOST_BINDINGS = 1024
_MOST_POLLS_SKIPPED = 60
# A collector gives a run to a job that is bound within a minute of its first activity.
POLL_INTERVAL_S = 5.0


class _Asked:
    """One source with its latest answer. While it fails, that answer stays in force and it is asked less often."""

    def __init__(self, source: JobSource, on_failure: Callable[[str], None]) -> None:
        self._source = source
        self._on_failure = on_failure
        self._failures = 0
        self._skip = 0
        self.owners: Owners = {}

    @property
    def name(self) -> str:
        return self._source.name

    @property
    def fails(self) -> bool:
        return self._failures > 0

    def ask(self, now_unix_nano: int) -> None:
        if self._skip > 0:
            self._skip -= 1
            return
        try:
            self.owners = self._source.owners(now_unix_nano)
        except Exception as error:  # a source that breaks must not take the others, or the agent, with it
            self._failures += 1
            self._skip = min(2**self._failures - 2, _MOST_POLLS_SKIPPED)
            self._on_failure(self.name)
            if self._failures == 1:
                expected = isinstance(error, SourceError)
                log.warning("jobs from %s: %s", self.name, error, exc_info=None if expected else error)
            return
        if self._failures:
            log.info("jobs from %s: it answers again", self.name)
        self._failures = 0


@dataclass(frozen=True)
class ProcessLooks:
    """Looks at the processes on the GPUs between two polls.

    Attributes:
        process_ids: GPU key -> processes.
        reader: Looks at them.
    """

    process_ids: SharedProcessIds
    reader: ActivityReader


class JobWatcher:
    """Turns the answers of the sources into JobBindings records, and looks at what the processes of the jobs do.

    Per GPU the first source that names an owner is believed: a scheduler's word goes before what processes look like.

    Args:
        sources: In order of precedence.
        devices: The GPUs that may have an owner.
        state: Where open ownerships are kept over restarts.
        emit: Takes each record.
        counters: Filled with bindings and failures; after lost records, which they tell, all is recorded again.
        looks: Looks at the processes; None for never.
        on_end: Called in the watcher's thread when it ends, to give back what the sources hold.
        wall_ns: Unix time in nanoseconds.
        wait: Sleeps for the given seconds or until the watcher is stopped, and returns whether it was.
    """

    def __init__(
        self,
        sources: Sequence[JobSource],
        devices: DeviceNames,
        state: OwnershipFile,
        emit: Callable[[ingest_pb2.Record], None],
        counters: SelfCounters,
        *,
        looks: ProcessLooks | None = None,
        on_end: Callable[[], None] = lambda: None,
        wall_ns: Callable[[], int] = time.time_ns,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        self._asked = [_Asked(source, counters.count_job_source_failure) for source in sources]
        self._devices = devices
        self._state = state
        self._emit = emit
        self._counters = counters
        self._looks = looks
        self._on_end = on_end
        self._wall_ns = wall_ns
        self._stopping = threading.Event()
        self._wait = wait or self._stopping.wait
        self._history = OwnershipHistory()
        self._restate = True
        self._losses_told = 0

    def stop(self) -> None:
        """Make :meth:`run` return; callable from any thread."""
        self._stopping.set()

    def inventory_changed(self, gpus: Iterable[GpuDescription]) -> None:
        """Take the GPUs of a new inventory, and say at the next poll again what holds; callable from any thread."""
        self._devices.take(gpus)
        self._restate = True

    def run(self) -> None:
        """Watch until :meth:`stop`. Ownerships that are open then stay open: the jobs go on."""
        try:
            self.begin()
            while not self._stopping.is_set():
                try:
                    self.poll()
                except Exception:  # samples are worth having without their jobs
                    log.exception("jobs could not be recorded; telling them again at the next poll")
                    self._losses_told = -1
                if self._wait_for_poll():
                    return
        finally:
            if self._looks is not None:
                self._emit_all(self._looks.reader.take())
                self._looks.reader.close()
            self._on_end()

    def _wait_for_poll(self) -> bool:
        """Look at the processes until the next poll is due; return whether the watcher is to end."""
        # Only a poll finds the first processes: until then nobody need wake up.
        if self._looks is None or not self._looks.reader.follows_any:
            return self._wait(POLL_INTERVAL_S)
        looks = max(1, round(POLL_INTERVAL_S / LOOK_INTERVAL_S))
        for _ in range(looks):
            if self._wait(POLL_INTERVAL_S / looks):
                return True
            try:
                self._emit_all(self._looks.reader.look(self._wall_ns()))
            except Exception:  # jobs and samples are worth having without it
                log.exception("what the processes of jobs do is no longer looked at")
                self._looks = None
                return False
        return False

    def _emit_all(self, records: Iterable[ingest_pb2.Record]) -> None:
        for record in records:
            self._emit(record)

    def begin(self) -> None:
        """Take up what a former process left."""
        self._history = OwnershipHistory(self._state.load())
        self._losses_told = self._lost_records()

    def poll(self) -> None:
        """Ask the sources once and record what changed."""
        now = self._wall_ns()
        for asked in self._asked:
            asked.ask(now)
        owners = self._combined()
        if self._looks is not None:
            self._emit_all(self._looks.reader.follow(self._looks.process_ids(), owners))
        changed = self._history.observe(now, owners)
        if changed:
            self._state.save(self._history.open)
            _log_changes(changed)
        restate, self._restate = self._restate, False
        losses = self._lost_records()
        if losses != self._losses_told:
            self._losses_told = losses
            self._record([*self._history.ended, *self._history.open])
        elif restate:
            ends = [owned for owned in changed if owned.end_unix_nano]
            self._record([*ends, *self._history.open])
        else:
            self._record(changed)

    def _combined(self) -> dict[str, tuple[Owner, ...]]:
        found: dict[str, tuple[Owner, ...]] = {}
        keys = self._devices.keys
        kubelet_is_silent = any(asked.name == "kubernetes" and asked.fails for asked in self._asked)
        for asked in self._asked:
            for gpu, owners in asked.owners.items():
                if gpu not in keys or gpu in found:
                    continue
                if asked.name == "processes" and kubelet_is_silent:
                    # The same pod under its uid would be another job than under the name that the kubelet gives it.
                    owners = tuple(owner for owner in owners if owner.scheduler is not Scheduler.KUBERNETES)  # noqa: PLW2901
                if owners:
                    found[gpu] = owners
        return found

    def _lost_records(self) -> int:
        return sum(self._counters.dropped_records.values())

    def _record(self, ownerships: Sequence[GpuOwnership]) -> None:
        self._counters.job_bindings += len(ownerships)
        for begin in range(0, len(ownerships), _MOST_BINDINGS):
            self._emit(bindings_record(ownerships[begin : begin + _MOST_BINDINGS]))


def bindings_record(ownerships: Iterable[GpuOwnership]) -> ingest_pb2.Record:
    """Return the record that tells a collector ownerships, as bindings."""
    return ingest_pb2.Record(
        job_bindings=ingest_pb2.JobBindings(
            bindings=[
                job_pb2.JobBinding(
                    gpu_uuid=owned.gpu,
                    job_id=owned.job_id,
                    scheduler=_SCHEDULERS[owned.scheduler],
                    start_time_unix_nano=owned.start_unix_nano,
                    end_time_unix_nano=owned.end_unix_nano,
                    labels=_texts(owned.labels),
                )
                for owned in ownerships
            ]
        )
    )


def _texts(labels: Mapping[str, str]) -> dict[str, str]:
    return dict(sorted(labels.items()))


def _log_changes(changed: Sequence[GpuOwnership]) -> None:
    for owned in changed:
        what = "left" if owned.end_unix_nano else "holds"
        log.info("job %s (%s) %s GPU %s", owned.job_id, owned.scheduler.value, what, owned.gpu)


@dataclass(frozen=True)
class JobParts:
    """What the watcher needs of the rest of the agent and of the host.

    Attributes:
        inventory: The sampled GPUs.
        spool_directory: Where open ownerships are kept over restarts.
        emit: Takes each JobBindings record.
        counters: Filled with records and failures.
        processes: Tells the processes on the GPUs; None where nothing does.
        files: The file operations.
        proc: Where procfs is mounted.
        driver: The kernel module's folder.
    """

    inventory: SourceInventory
    spool_directory: Path
    emit: Callable[[ingest_pb2.Record], None]
    counters: SelfCounters
    processes: ProcessReader | None = None
    files: FileLayer | None = None
    proc: Path = Path("/proc")
    driver: Path = DRIVER_FOLDER


def make_sources(
    config: JobsConfig, devices: DeviceNames, process_ids: ProcessIds | None, proc: Path = Path("/proc")
) -> list[JobSource]:
    """Return the configured sources in order of precedence."""
    sources: list[JobSource] = []
    if config.slurm_mapping_dir:
        sources.append(MappingFiles(Path(config.slurm_mapping_dir), devices, index_order=config.slurm_index))
    if config.kubelet_socket:
        sources.append(KubeletPods(Path(config.kubelet_socket), devices, time.time_ns()))
    if config.cgroups and process_ids is not None:
        sources.append(ProcessOwners(process_ids, ProcFolder(proc)))
    return sources


def make_watcher(config: JobsConfig, parts: JobParts) -> JobWatcher | None:
    """Return what watches the jobs of the sampled GPUs; None when there is nothing to ask, or all GPUs are replayed."""
    devices = DeviceNames(parts.inventory.gpus, read_minors(parts.driver))
    process_ids = SharedProcessIds(parts.processes.compute_processes) if parts.processes is not None else None
    sources = make_sources(config, devices, process_ids, parts.proc)
    looks = None
    if config.cgroups and config.activity and process_ids is not None:
        looks = ProcessLooks(process_ids, ActivityReader(parts.counters, parts.proc))
    if not sources:
        return None
    if all(gpu.replayed for gpu in parts.inventory.gpus):
        log.info("the GPUs are replayed: jobs of this host are not theirs, and each run is a job of its own")
        return None
    return JobWatcher(
        sources,
        devices,
        OwnershipFile(parts.spool_directory / FILE_NAME, parts.files or OsFiles()),
        parts.emit,
        parts.counters,
        looks=looks,
        on_end=parts.processes.close if parts.processes is not None else lambda: None,
    )
