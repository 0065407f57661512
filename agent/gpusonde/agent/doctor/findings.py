"""What the examination of a host found, and what to do next about it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpusonde.agent.config import SourceConfig
from gpusonde.agent.rhythm import SLOWEST_S
from gpusonde.telemetry import MissingReason

_VERSION = re.compile(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s")
_NODES = re.compile(r"nvidia(\d+|ctl)")


@dataclass(frozen=True)
class DeviceNode:
    """One of the driver's device files.

    Attributes:
        path: The file.
        accessible: Whether this user may read and write it.
    """

    path: str
    accessible: bool


@dataclass(frozen=True)
class SystemFacts:
    """The driver and this user's rights to it.

    Attributes:
        driver_version: Of the loaded kernel module; empty when none is loaded.
        profiling_admin_only: Whether the driver reserves profiling for root; None when it does not say.
        is_root: Whether this process runs as root.
        device_nodes: The driver's device files.
    """

    driver_version: str
    profiling_admin_only: bool | None
    is_root: bool
    device_nodes: tuple[DeviceNode, ...]


def read_system(proc: Path = Path("/proc/driver/nvidia"), dev: Path = Path("/dev")) -> SystemFacts:
    """Read the facts; what cannot be read stays empty.

    Args:
        proc: The driver's folder in procfs.
        dev: The folder of device files.
    """
    version = _VERSION.search(_text(proc / "version"))
    restricted = re.search(r"^RmProfilingAdminOnly:\s*(\d+)", _text(proc / "params"), re.MULTILINE)
    try:
        nodes = sorted(entry for entry in dev.iterdir() if _NODES.fullmatch(entry.name))
    except OSError:
        nodes = []
    return SystemFacts(
        driver_version=version.group(1) if version else "",
        profiling_admin_only=bool(int(restricted.group(1))) if restricted else None,
        is_root=os.geteuid() == 0,
        device_nodes=tuple(DeviceNode(str(node), os.access(node, os.R_OK | os.W_OK)) for node in nodes),
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


@dataclass(frozen=True)
class MetricFinding:
    """One metric of the catalogue on one GPU.

    Attributes:
        name: Its name.
        origin: What it is read from, for example "dcgm 1002", "gpm 2" or "nvml".
        interval_s: Seconds between measurements.
        multiplexed: Measured only part of the time.
        has_value: There was a number while the doctor looked.
        missing_reason: Why the GPU cannot give it; None when it can.
    """

    name: str
    origin: str
    interval_s: float
    multiplexed: bool
    has_value: bool
    missing_reason: MissingReason | None


@dataclass(frozen=True)
class GpuFinding:
    """One GPU as a source shows it.

    Attributes:
        gpu_uuid: Its UUID; for a MIG instance that of its GPU.
        mig_uuid: UUID of the MIG instance; empty for a whole GPU.
        gpu_index: Its index on the host.
        product_name: Its model.
        driver_version: Version of its driver; empty when unknown.
        tick_rate_hz: Ticks per second while the doctor looked.
        processes: How many processes compute on it; None when that is not told: no driver here, no permission, or a
            GPU whose MIG instances have them.
        metrics: Every metric of the catalogue.
    """

    gpu_uuid: str
    mig_uuid: str
    gpu_index: int
    product_name: str
    driver_version: str
    tick_rate_hz: float
    processes: int | None
    metrics: tuple[MetricFinding, ...]

    @property
    def key(self) -> str:
        """The name by which fleet and jobs know it."""
        return self.mig_uuid or self.gpu_uuid


@dataclass(frozen=True)
class SamplingCost:
    """What reading all GPUs costs this host; spool and uplink come on top.

    Attributes:
        readings: How many were timed.
        interval_s: Seconds between them.
        read_s: Mean seconds that one took.
        processor_s: Mean seconds of processor time for one, all threads of the process.
    """

    readings: int
    interval_s: float
    read_s: float
    processor_s: float

    @property
    def core_share(self) -> float:
        """Share of one core at this interval."""
        return self.processor_s / self.interval_s

    @property
    def adaptive_core_share(self) -> float:
        """The same at the longest interval of the adaptive rate."""
        return self.processor_s / max(self.interval_s, SLOWEST_S)


@dataclass(frozen=True)
class SourceFinding:
    """One source that was tried.

    Attributes:
        name: Its name.
        usable: It opened and gave ticks.
        reason: Why it is not usable, and what to do; empty when it is.
        profiles: It gives profiling metrics.
        gpus: What it shows.
        bindings_folder: DCGM: where the bindings were found; empty otherwise.
        library_version: DCGM: version of its library; empty otherwise.
        engine_address: DCGM: the engine that answered; empty otherwise.
        refusals: DCGM: what the engine refused to watch.
        read_s: Mean seconds that one reading of all GPUs took; 0 when there was none.
        lag_s: Seconds from a measurement to its arrival; 0 for a source that measures itself.
        cost: What sampling with it costs; None when that was not asked for.
    """

    name: str
    usable: bool
    reason: str = ""
    profiles: bool = False
    gpus: tuple[GpuFinding, ...] = ()
    bindings_folder: str = ""
    library_version: str = ""
    engine_address: str = ""
    refusals: tuple[str, ...] = ()
    read_s: float = 0.0
    lag_s: float = 0.0
    cost: SamplingCost | None = None


@dataclass(frozen=True)
class Diagnosis:
    """The whole picture.

    Attributes:
        system: Driver and rights.
        sources: What was tried, in the agent's order.
        chosen: What an agent with this configuration would sample with; None for nothing.
        advice: What to do, the most important first.
    """

    system: SystemFacts
    sources: tuple[SourceFinding, ...]
    chosen: SourceFinding | None
    advice: tuple[str, ...]

    @property
    def driver_version(self) -> str:
        """Version of the driver, from the kernel or from a source; empty when there is none."""
        told = (gpu.driver_version for finding in self.sources for gpu in finding.gpus)
        return self.system.driver_version or next(filter(None, told), "")


# The engine of a healthy host answers within some 0.3 s (NVIDIA/DCGM issue 170).
_LONG_LAG_S = 2.0


def advise(
    system: SystemFacts,
    findings: Sequence[SourceFinding],
    chosen: SourceFinding | None,
    config: SourceConfig,
    paused: bool,
) -> Iterator[str]:
    """Yield what to do, the most important first.

    Args:
        system: Driver and rights.
        findings: What was tried.
        chosen: What an agent would sample with.
        config: How it would sample.
        paused: Whether profiling is paused by the file.
    """
    if chosen is None:
        yield from _nothing_works(system, findings, config)
    if config.kind == "replay":
        return
    closed = [node.path for node in system.device_nodes if not node.accessible]
    if closed:
        yield f"this user may not open {', '.join(closed)}: add it to the groups video and render, or run as root"
    if paused:
        yield f"{config.profiler_pause_file} exists, so profiling through DCGM is paused: remove it to resume"
    for finding in findings:
        yield from finding.refusals
    if chosen is None:
        return
    if not chosen.profiles:
        yield (
            "no source gives activity ratios, only utilisation, power, memory and clocks: before Hopper they need a "
            "DCGM host engine with its profiling module, from Hopper on a driver with GPM"
        )
    refused = {m.missing_reason for gpu in chosen.gpus for m in gpu.metrics}
    if MissingReason.NO_PERMISSION in refused and not system.profiling_admin_only and chosen.name == "nvml":
        yield (
            "the driver refuses some metrics to this user (no_permission): run the agent as root, or sample through a "
            "DCGM host engine that does"
        )
    if MissingReason.NO_PERMISSION in refused and system.profiling_admin_only:
        yield (
            "the driver reserves profiling for root: run the DCGM host engine as root, or load the driver with "
            "NVreg_RestrictProfilingToAdminUsers=0"
        )
    split = {gpu.gpu_uuid for gpu in chosen.gpus if gpu.mig_uuid}
    hidden = [gpu.key for gpu in chosen.gpus if gpu.processes is None and gpu.key not in split]
    if hidden:
        yield (
            f"the processes on {', '.join(hidden)} are not told, so jobs are found through their scheduler only: NVML "
            "must work for this user on this host, and a container needs the host's PID namespace"
        )
    if chosen.lag_s > _LONG_LAG_S:
        yield f"values arrive {chosen.lag_s:.1f} s after they were measured: the host engine is overloaded, restart it"
    if chosen.read_s > config.interval_s:
        yield (
            f"one reading takes {chosen.read_s:.2g} s, longer than the {config.interval_s:g} s between two: the agent "
            "will sample less often; set source.interval to what this host can do"
        )
    silent = [gpu.gpu_uuid for gpu in chosen.gpus if not gpu.tick_rate_hz]
    if silent:
        yield f"no tick came from {', '.join(silent)}: see 'nvidia-smi' and the kernel's log for XID errors"


def _nothing_works(system: SystemFacts, findings: Sequence[SourceFinding], config: SourceConfig) -> Iterator[str]:
    if config.kind == "replay":
        yield "give a trace file that can be read as source.trace"
        return
    if not system.driver_version and not any(finding.gpus for finding in findings):
        yield (
            "no NVIDIA kernel module is loaded: install the driver (in a container pass the GPUs through), or replay a "
            "recorded trace with 'gpusonde agent --replay FILE'"
        )
    others = [f.name for f in findings if f.usable]
    if others:
        yield f"source.kind {config.kind} cannot be used, but {', '.join(others)} can: set source.kind to auto"
