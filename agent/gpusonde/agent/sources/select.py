"""From the configuration to a source."""

from __future__ import annotations

from gpusonde.agent.config import SourceConfig
from gpusonde.agent.sources.base import GpuSource, SourceUnavailableError
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
    raise SourceUnavailableError(f"source {config.kind!r} needs the NVML source; replay a trace instead")
