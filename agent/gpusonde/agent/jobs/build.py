"""From ``[jobs]`` to a :class:`JobWatcher`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpusonde.agent.config import JobsConfig
from gpusonde.agent.counters import SelfCounters
from gpusonde.agent.jobs.devices import DRIVER_FOLDER, DeviceNames, read_minors
from gpusonde.agent.jobs.kubelet import KubeletPods
from gpusonde.agent.jobs.mapping_files import MappingFiles
from gpusonde.agent.jobs.owners import JobSource
from gpusonde.agent.jobs.processes import ProcessOwners, ProcFolder
from gpusonde.agent.jobs.state_file import FILE_NAME, StateFile
from gpusonde.agent.jobs.watcher import JobWatcher
from gpusonde.agent.sources.base import ProcessReader, SourceInventory
from gpusonde.agent.spool.files import Files, OsFiles
from gpusonde.ingest.v1 import ingest_pb2


@dataclass(frozen=True)
class JobParts:
    """What the watcher needs of the rest of the agent and of the host.

    Attributes:
        inventory: The sampled GPUs.
        spool_directory: Where open bindings are kept over restarts.
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
    files: Files | None = None
    proc: Path = Path("/proc")
    driver: Path = DRIVER_FOLDER


def make_sources(
    config: JobsConfig, devices: DeviceNames, processes: ProcessReader | None, proc: Path = Path("/proc")
) -> list[JobSource]:
    """Return the configured sources in order of precedence."""
    sources: list[JobSource] = []
    if config.slurm_mapping_dir:
        sources.append(MappingFiles(Path(config.slurm_mapping_dir), devices, index_order=config.slurm_index))
    if config.kubelet_socket:
        sources.append(KubeletPods(Path(config.kubelet_socket), devices, time.time_ns()))
    if config.cgroups and processes is not None:
        sources.append(ProcessOwners(processes.compute_processes, ProcFolder(proc)))
    return sources


def make_watcher(config: JobsConfig, parts: JobParts) -> JobWatcher | None:
    """Return what watches the jobs of the sampled GPUs; None when there is nothing to ask, or all GPUs are replayed."""
    devices = DeviceNames(parts.inventory.gpus, read_minors(parts.driver))
    sources = make_sources(config, devices, parts.processes, parts.proc)
    if not sources or all(gpu.replayed for gpu in parts.inventory.gpus):
        return None
    counters = parts.counters

    def emit(record: ingest_pb2.Record) -> None:
        counters.job_bindings += len(record.job_bindings.bindings)
        parts.emit(record)

    return JobWatcher(
        sources,
        devices,
        StateFile(parts.spool_directory / FILE_NAME, parts.files or OsFiles()),
        emit,
        poll_interval_s=config.poll_interval_s,
        on_failure=counters.count_job_source_failure,
        losses=lambda: sum(counters.dropped_records.values()),
        on_end=parts.processes.close if parts.processes is not None else lambda: None,
    )
