"""The disk spool: records wait here until a collector has made them durable."""

from gpusonde.agent.spool.segment import (
    SpoolCorruptError,
    SpoolDirectoryError,
    SpoolError,
    SpoolGapError,
)
from gpusonde.agent.spool.spool import Spool

__all__ = [
    "Spool",
    "SpoolCorruptError",
    "SpoolDirectoryError",
    "SpoolError",
    "SpoolGapError",
]
