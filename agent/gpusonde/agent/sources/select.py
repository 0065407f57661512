"""From the configuration to a source."""

from __future__ import annotations

from gpusonde.agent.config import SourceConfig
from gpusonde.agent.sources.base import GpuSource
from gpusonde.agent.sources.nvml.source import NvmlSource
from gpusonde.agent.sources.replay import ReplaySource
from gpusonde.telemetry import read_traces


def make_source(config: SourceConfig) -> GpuSource:
    """Return the configured source, not yet open.

    ``auto`` means NVML, which uses GPM metrics where the GPU has them.

    Raises:
        gpusonde.telemetry.TraceError: The trace to replay cannot be read.
    """
    if config.kind == "replay":
        return ReplaySource(read_traces(config.trace), speed=config.speed, keep_time=config.keep_time)
    return NvmlSource(slow_interval_s=config.slow_interval_s, interval_s=config.interval_s)
