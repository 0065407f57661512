"""Try what an agent would use on this host: ``examine`` its sources of readings, ``examine_jobs`` its sources of jobs.

Every source is opened as the agent would, sampled briefly, and asked what it says; nothing is sent anywhere.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gpusonde.agent.config import JobsConfig, SourceConfig
from gpusonde.agent.doctor.findings import (
    Diagnosis,
    GpuFinding,
    MetricFinding,
    SamplingCost,
    SourceFinding,
    SystemFacts,
    advise,
    read_system,
)
from gpusonde.agent.jobs.kubelet import KubeletPods
from gpusonde.agent.jobs.ownership import Owners
from gpusonde.agent.jobs.processes import ProcessOwners, ProcFolder
from gpusonde.agent.jobs.sources import DRIVER_FOLDER, DeviceNames, JobSource, MappingFiles, read_minors
from gpusonde.agent.sources.base import GpuDescription, GpuSource, ProcessReader, RawTicks, Reading, SourceInventory
from gpusonde.agent.sources.dcgm.fields import AVERAGE_POWER_FIELD, INSTANT_POWER_FIELD
from gpusonde.agent.sources.dcgm.source import DcgmSource
from gpusonde.agent.sources.select import make_dcgm, make_nvml, make_process_reader, make_source, profiles
from gpusonde.errors import SourceError
from gpusonde.telemetry import METRICS, Metric, MissingReason, SamplingClass, TraceError

# Processes count from their second sighting, and are called hidden at the third without any.
_LOOKS = 3


@dataclass(frozen=True)
class JobSourceFinding:
    """One source of jobs.

    Attributes:
        name: Its name: "slurm", "kubernetes" or "processes".
        usable: It answers.
        reason: Why it does not, and what to do; empty when it does.
        owners: The GPUs that have an owner now, and which.
    """

    name: str
    usable: bool
    reason: str = ""
    owners: Owners = field(default_factory=dict)


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
    except SourceError as error:
        return JobSourceFinding(source.name, usable=False, reason=str(error))
    return JobSourceFinding(source.name, usable=True, owners=owners)


# Long enough for a tick that waits for late values; short enough to wait for at a terminal.
_SAMPLING_S = 2.0


@dataclass(frozen=True)
class _Sampled:
    """What came in a short sampling: times of ticks, columns that held a number and why others did not, by GPU."""

    times_s: dict[int, list[float]]
    measured: dict[int, set[int]]
    blanks: dict[int, dict[int, MissingReason]]
    read_s: float

    def rate_hz(self, gpu: int) -> float:
        """Return the ticks per second by their own stamps: a first reading may bring older ones."""
        times_s = self.times_s.get(gpu, [])
        if len(times_s) < 2:
            return 0.0
        return (len(times_s) - 1) / max(times_s[-1] - times_s[0], 1e-6)


def examine(
    config: SourceConfig,
    *,
    sources: Sequence[GpuSource] | None = None,
    processes: ProcessReader | None = None,
    read_facts: Callable[[], SystemFacts] = read_system,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    cost_s: float = 0.0,
) -> Diagnosis:
    """Try every source of this host for two seconds each.

    Args:
        config: How the agent would sample.
        sources: What to try, not yet open; None for what the configuration and this host may have.
        processes: Tells what computes on the GPUs; None for what this host has.
        read_facts: Asks the operating system.
        monotonic: Seconds, never set back.
        sleep: Waits for seconds.
        cost_s: For how many seconds more what sampling costs is measured; 0 for not at all.
    """
    findings = []
    candidates: Sequence[GpuSource]
    try:
        candidates = sources if sources is not None else _candidates(config)
    except (TraceError, OSError) as error:
        candidates = []
        findings.append(SourceFinding(config.kind, usable=False, reason=str(error)))
    running = _processes(processes or make_process_reader(config))
    findings += [_try(source, config, running, monotonic, sleep, cost_s) for source in candidates]
    system = read_facts()
    chosen = _choose(findings, config.kind)
    paused = bool(config.profiler_pause_file) and os.path.exists(config.profiler_pause_file)
    return Diagnosis(system, tuple(findings), chosen, tuple(advise(system, findings, chosen, config, paused)))


def _candidates(config: SourceConfig) -> list[GpuSource]:
    return [make_source(config)] if config.kind == "replay" else [make_nvml(config), make_dcgm(config)]


def _choose(findings: Sequence[SourceFinding], kind: str) -> SourceFinding | None:
    """Choose as the agent would: the named source, or the first that profiles, or the first that works."""
    usable = [f for f in findings if f.usable and kind in ("auto", f.name)]
    return next((f for f in usable if f.profiles), usable[0] if usable else None)


def _processes(reader: ProcessReader | None) -> dict[str, tuple[int, ...]]:
    if reader is None:
        return {}
    try:
        return reader.compute_processes()
    finally:
        reader.close()


def _try(
    source: GpuSource,
    config: SourceConfig,
    running: Mapping[str, tuple[int, ...]],
    monotonic: Callable[[], float],
    sleep: Callable[[float], None],
    cost_s: float,
) -> SourceFinding:
    try:
        inventory = source.open()
        try:
            facts = _dcgm_facts(source)
            sampled = _sample(source, inventory, config.interval_s, monotonic, sleep)
            cost = _measure_cost(source, config.interval_s, cost_s, monotonic, sleep) if cost_s else None
        finally:
            source.close()
    except SourceError as error:
        return SourceFinding(source.name, usable=False, reason=str(error), **_dcgm_facts(source))
    facts |= {"cost": cost, "read_s": sampled.read_s, "lag_s": source.statistics.lag_s}
    gpus = tuple(_gpu(inventory, index, sampled, config, running) for index in range(len(inventory.gpus)))
    if not any(gpu.tick_rate_hz for gpu in gpus):
        reason = f"it opened, but no GPU gave a tick in {_SAMPLING_S:g} s"
        return SourceFinding(source.name, usable=False, reason=reason, gpus=gpus, **facts)
    return SourceFinding(source.name, usable=True, gpus=gpus, profiles=profiles(inventory), **facts)


def _dcgm_facts(source: GpuSource) -> dict[str, Any]:
    if not isinstance(source, DcgmSource):
        return {}
    return {
        "bindings_folder": source.bindings_found,
        "library_version": source.library_version,
        "engine_address": source.engine_address,
        "refusals": tuple(source.refusals),
    }


def _sample(
    source: GpuSource,
    inventory: SourceInventory,
    interval_s: float,
    monotonic: Callable[[], float],
    sleep: Callable[[float], None],
) -> _Sampled:
    took_s: list[float] = []
    times_s: dict[int, list[float]] = {}
    measured: dict[int, set[int]] = {}
    blanks: dict[int, dict[int, MissingReason]] = {}
    for reading, read_s in _readings(source, interval_s, max(2, round(_SAMPLING_S / interval_s)), monotonic, sleep):
        took_s.append(read_s)
        for part in reading.ticks:
            times_s.setdefault(part.gpu, []).extend((part.time_unix_nano / 1e9).tolist())
            blanks.setdefault(part.gpu, {}).update(part.blanks)
            columns = np.flatnonzero(~np.isnan(part.values).all(axis=1)).tolist()
            measured.setdefault(part.gpu, set()).update(columns)
    return _Sampled(times_s, measured, blanks, sum(took_s) / max(1, len(took_s)))


def _readings(
    source: GpuSource,
    interval_s: float,
    count: int,
    monotonic: Callable[[], float],
    sleep: Callable[[float], None],
) -> Iterator[tuple[Reading, float]]:
    """Read as the agent does, at absolute deadlines; yield each reading and the seconds it took."""
    start_s = monotonic()
    for number in range(count):
        deadline_s = start_s + number * interval_s
        if (wait_s := deadline_s - monotonic()) > 0:
            sleep(wait_s)
        begin_s = time.perf_counter()
        if (reading := source.read(deadline_s)) is None:
            return
        yield reading, time.perf_counter() - begin_s


def _measure_cost(
    source: GpuSource,
    interval_s: float,
    seconds: float,
    monotonic: Callable[[], float],
    sleep: Callable[[float], None],
) -> SamplingCost | None:
    spent_s = time.process_time()
    took_s: list[float] = []
    raw: list[RawTicks] = []
    for reading, read_s in _readings(source, interval_s, max(1, round(seconds / interval_s)), monotonic, sleep):
        took_s.append(read_s)
        if isinstance(reading.ticks, RawTicks):
            raw.append(reading.ticks)
        # As the agent does: what a second brought becomes numbers together.
        if raw and len(raw) * interval_s >= 1.0:
            raw[0].join(raw[1:])
            raw.clear()
    if raw:
        raw[0].join(raw[1:])
    if not took_s:
        return None
    readings = len(took_s)
    return SamplingCost(readings, interval_s, sum(took_s) / readings, (time.process_time() - spent_s) / readings)


def _gpu(
    inventory: SourceInventory,
    index: int,
    sampled: _Sampled,
    config: SourceConfig,
    running: Mapping[str, tuple[int, ...]],
) -> GpuFinding:
    gpu = inventory.gpus[index]
    column = {m.name: i for i, m in enumerate(inventory.metrics)}
    measured = sampled.measured.get(index, set())
    metrics = []
    for metric in METRICS:
        missing = gpu.missing_metrics.get(metric.name)
        if missing is None and metric.name not in column:
            missing = MissingReason.NOT_FOUND
        elif missing is None and column[metric.name] not in measured and index in sampled.times_s:
            missing = sampled.blanks[index].get(column[metric.name], MissingReason.NO_DATA)
        metrics.append(
            MetricFinding(
                name=metric.name,
                origin=_origin(metric, inventory.source),
                interval_s=config.slow_interval_s
                if metric.sampling_class is SamplingClass.SLOW
                else inventory.interval_s,
                multiplexed=metric.name in inventory.multiplexed,
                has_value=missing is None and column[metric.name] in measured,
                missing_reason=missing,
            )
        )
    return GpuFinding(
        gpu_uuid=gpu.gpu_uuid,
        mig_uuid=gpu.mig_uuid,
        gpu_index=gpu.gpu_index,
        product_name=gpu.product_name,
        driver_version=gpu.driver_version,
        tick_rate_hz=sampled.rate_hz(index),
        processes=len(running[gpu.key]) if gpu.key in running else None,
        metrics=tuple(metrics),
    )


def _origin(metric: Metric, source: str) -> str:
    if source == "dcgm" and metric.name == "power_watts":
        return f"dcgm {INSTANT_POWER_FIELD}, else {AVERAGE_POWER_FIELD}"
    if source == "dcgm" and metric.dcgm_field_id is not None:
        return f"dcgm {metric.dcgm_field_id}"
    if source == "gpm":
        return f"gpm {metric.gpm_metric_id}" if metric.gpm_metric_id is not None else "nvml"
    return source
