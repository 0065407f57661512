"""``examine_jobs``: asks every source of jobs once, and keeps what it said."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from gpusonde.agent.config import JobsConfig
from gpusonde.agent.jobs.devices import DRIVER_FOLDER, DeviceNames, read_minors
from gpusonde.agent.jobs.kubelet import KubeletPods
from gpusonde.agent.jobs.mapping_files import MappingFiles
from gpusonde.agent.jobs.owners import JobSource, JobSourceError
from gpusonde.agent.jobs.processes import ProcessOwners, ProcFolder
from gpusonde.agent.sources.base import GpuDescription, ProcessReader

# Processes count from their second sighting, and are called hidden at the third without any.
_LOOKS = 3


@dataclass(frozen=True)
class JobOwnerFinding:
    """A job on a GPU.

    Attributes:
        gpu_uuid: The GPU or MIG instance.
        scheduler: Who gave it the GPU.
        job_id: Its name there.
    """

    gpu_uuid: str
    scheduler: str
    job_id: str


@dataclass(frozen=True)
class JobSourceFinding:
    """One source of jobs.

    Attributes:
        name: Its name: "slurm", "kubernetes" or "processes".
        usable: It answers.
        reason: Why it does not, and what to do; empty when it does.
        owners: The jobs it names now.
    """

    name: str
    usable: bool
    reason: str = ""
    owners: tuple[JobOwnerFinding, ...] = ()


def examine_jobs(
    config: JobsConfig,
    gpus: Iterable[GpuDescription],
    processes: ProcessReader | None,
    *,
    driver: Path = DRIVER_FOLDER,
    proc: Path = Path("/proc"),
    now_ns: Callable[[], int] = time.time_ns,
) -> tuple[JobSourceFinding, ...]:
    """Ask the sources of jobs as an agent with this configuration would.

    Args:
        config: Where jobs are looked for.
        gpus: The GPUs that would be sampled.
        processes: Tells the processes on the GPUs; None for a replay, which has no jobs.
        driver: The kernel module's folder.
        proc: Where procfs is mounted.
        now_ns: Unix time in nanoseconds.
    """
    if processes is None:
        return ()
    devices = DeviceNames(gpus, read_minors(driver))
    try:
        return (
            _slurm(config, devices, now_ns),
            _kubernetes(config, devices, now_ns),
            _job_processes(config, processes, ProcFolder(proc), now_ns),
        )
    finally:
        processes.close()


def _slurm(config: JobsConfig, devices: DeviceNames, now_ns: Callable[[], int]) -> JobSourceFinding:
    folder = Path(config.slurm_mapping_dir)
    if not config.slurm_mapping_dir:
        return JobSourceFinding("slurm", usable=False, reason="jobs.slurm_mapping_dir is empty")
    if not folder.exists():
        reason = f"{folder} is not there; the Slurm prolog of deploy/slurm makes it when the first job starts"
        return JobSourceFinding("slurm", usable=False, reason=reason)
    return _ask(MappingFiles(folder, devices, index_order=config.slurm_index), now_ns)


def _kubernetes(config: JobsConfig, devices: DeviceNames, now_ns: Callable[[], int]) -> JobSourceFinding:
    if not config.kubelet_socket:
        return JobSourceFinding("kubernetes", usable=False, reason="jobs.kubelet_socket is empty")
    source = KubeletPods(Path(config.kubelet_socket), devices, now_ns())
    if not source.is_there():
        reason = f"{config.kubelet_socket} is not there; in a pod mount the folder of this socket from the host"
        return JobSourceFinding("kubernetes", usable=False, reason=reason)
    return _ask(source, now_ns)


def _job_processes(
    config: JobsConfig, processes: ProcessReader, folder: ProcFolder, now_ns: Callable[[], int]
) -> JobSourceFinding:
    if not config.cgroups:
        return JobSourceFinding("processes", usable=False, reason="jobs.cgroups is off")
    if not processes.compute_processes():
        reason = "the driver names no GPU, or this user may not see what runs on it"
        return JobSourceFinding("processes", usable=False, reason=reason)
    return _ask(ProcessOwners(processes.compute_processes, folder), now_ns)


def _ask(source: JobSource, now_ns: Callable[[], int]) -> JobSourceFinding:
    try:
        for _ in range(_LOOKS):
            owners = source.owners(now_ns())
    except JobSourceError as error:
        return JobSourceFinding(source.name, usable=False, reason=str(error))
    found = tuple(
        JobOwnerFinding(gpu, owner.scheduler.value, owner.job_id) for gpu in sorted(owners) for owner in owners[gpu]
    )
    return JobSourceFinding(source.name, usable=True, owners=found)
