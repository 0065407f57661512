"""What the examination of a host found."""

from __future__ import annotations

from dataclasses import dataclass

from gpusonde.agent.doctor.system import SystemFacts
from gpusonde.telemetry import BlankReason


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
    missing_reason: BlankReason | None


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
