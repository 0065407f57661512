"""The per-host agent: samples GPU metrics, keeps them on disk and streams them to a collector."""

from gpusonde.agent.config import AgentConfig, ConfigError
from gpusonde.agent.counters import SelfCounters
from gpusonde.agent.daemon import run_agent
from gpusonde.agent.recorder import RecordReport, record
from gpusonde.agent.report import AgentReport
from gpusonde.agent.sampling.sampler import Sampler
from gpusonde.agent.sources.base import (
    GpuSource,
    SourceError,
    SourceFailedError,
    SourceInventory,
    SourceUnavailableError,
)
from gpusonde.agent.sources.replay import ReplaySource
from gpusonde.agent.sources.select import make_source
from gpusonde.agent.spool import Spool, SpoolError
from gpusonde.agent.uplink import Uplink

__all__ = [
    "AgentConfig",
    "AgentReport",
    "ConfigError",
    "GpuSource",
    "RecordReport",
    "ReplaySource",
    "Sampler",
    "SelfCounters",
    "SourceError",
    "SourceFailedError",
    "SourceInventory",
    "SourceUnavailableError",
    "Spool",
    "SpoolError",
    "Uplink",
    "make_source",
    "record",
    "run_agent",
]
