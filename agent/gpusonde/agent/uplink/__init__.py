"""The uplink: sends the spool to a collector and frees what the collector has made durable."""

from gpusonde.agent.uplink.session import AgentFacts, StreamLimits
from gpusonde.agent.uplink.uplink import Backoff, Uplink

__all__ = ["AgentFacts", "Backoff", "StreamLimits", "Uplink"]
