"""The per-host agent: samples GPU metrics, keeps them on disk and streams them to a collector."""

from gpusonde.agent.config import AgentConfig
from gpusonde.agent.daemon import AgentReport, run_agent
from gpusonde.agent.metrics import SelfCounters
from gpusonde.agent.recorder import RecordReport, record
from gpusonde.agent.sampler import Sampler
from gpusonde.agent.sources.base import GpuSource, SourceInventory
from gpusonde.agent.sources.replay import ReplaySource
from gpusonde.agent.sources.select import make_source
from gpusonde.agent.spool import Spool
from gpusonde.agent.uplink import Uplink
from gpusonde.errors import ConfigError, SourceError, SourceUnavailableError, SpoolError

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
    "SourceInventory",
    "SourceUnavailableError",
    "Spool",
    "SpoolError",
    "Uplink",
    "make_source",
    "record",
    "run_agent",
]
