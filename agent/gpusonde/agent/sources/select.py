"""From the configuration to a source."""

from __future__ import annotations

import math

from gpusonde.agent.config import SourceConfig
from gpusonde.agent.sources.auto import AutoSource
from gpusonde.agent.sources.base import GpuSource, ProcessReader
from gpusonde.agent.sources.dcgm.source import DcgmSource
from gpusonde.agent.sources.nvml.processes import NvmlProcesses
from gpusonde.agent.sources.nvml.source import NvmlSource
from gpusonde.agent.sources.replay import ReplaySource
from gpusonde.telemetry import read_traces

# With another source to fall back to at the next start, an engine is not waited for longer.
_AUTO_PATIENCE_S = 60.0


def make_source(config: SourceConfig) -> GpuSource:
    """Return the configured source, not yet open.

    ``auto`` means DCGM, then NVML, which uses GPM metrics where the GPU has them.

    Raises:
        gpusonde.telemetry.TraceError: The trace to replay cannot be read.
    """
    if config.kind == "replay":
        return ReplaySource(read_traces(config.trace), speed=config.speed, keep_time=config.keep_time)
    if config.kind == "nvml":
        return make_nvml(config)
    if config.kind == "dcgm":
        return make_dcgm(config)
    return AutoSource([make_dcgm(config, patience_s=_AUTO_PATIENCE_S), make_nvml(config)])


def make_dcgm(config: SourceConfig, patience_s: float = math.inf) -> DcgmSource:
    """Return the DCGM source, not yet open.

    Args:
        config: How to reach the engine.
        patience_s: Seconds without an engine after which the source fails.
    """
    return DcgmSource(
        address=config.dcgm_address,
        embedded=config.dcgm_embedded,
        bindings_folder=config.dcgm_bindings,
        pause_file=config.profiler_pause_file,
        slow_interval_s=config.slow_interval_s,
        interval_s=config.interval_s,
        patience_s=patience_s,
    )


def make_nvml(config: SourceConfig) -> NvmlSource:
    """Return the NVML source, not yet open."""
    return NvmlSource(slow_interval_s=config.slow_interval_s, interval_s=config.interval_s)


def make_process_reader(config: SourceConfig) -> ProcessReader | None:
    """Return what tells the processes of the sampled GPUs; None for a replay, whose GPUs are not here."""
    return None if config.kind == "replay" else NvmlProcesses()
