"""Options of the local store."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpusonde.collector.storage.compaction.maintenance import MaintenanceOptions

_MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class StoreOptions:
    """How the local store spends disk and memory.

    Attributes:
        segment_interval_s: Age at which what is in memory becomes a segment.
        segment_bytes: Size at which it does so earlier.
        memory_bytes: Beyond this much in memory nothing is taken any more: segments cannot be written.
        reserve_bytes: Free space that is left on the disk, for the catalogue and for segments.
        cache_bytes: Memory for columns that were read last.
        maintenance: How segments are compacted and how long they are kept.
    """

    segment_interval_s: float = 60.0
    segment_bytes: int = 128 * _MEBIBYTE
    memory_bytes: int = 512 * _MEBIBYTE
    reserve_bytes: int = 64 * _MEBIBYTE
    cache_bytes: int = 64 * _MEBIBYTE
    maintenance: MaintenanceOptions = field(default_factory=MaintenanceOptions)
