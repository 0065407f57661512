"""The disk spool: records wait here until a collector has made them durable."""

from gpusonde.agent.spool.spool import Spool
from gpusonde.errors import SpoolError

__all__ = ["Spool", "SpoolError"]
