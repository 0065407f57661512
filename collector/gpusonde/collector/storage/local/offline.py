"""Compaction of a data directory that no collector is using."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpusonde.collector.storage.disk.layout import SegmentKind
from gpusonde.collector.storage.local.snapshot import StoreSnapshot
from gpusonde.collector.storage.local.store import LocalStore, StoreOptions
from gpusonde.collector.storage.tables.segment_catalog import SegmentCatalog


@dataclass(frozen=True)
class CompactReport:
    """What compaction did.

    Attributes:
        files_written: New files of ticks.
        segments_left: Segments that could not be read and were left alone.
        size_before_bytes: All ticks, before.
        size_after_bytes: All ticks, now.
        averages_bytes: Averages over seconds, now.
    """

    files_written: int
    segments_left: int
    size_before_bytes: int
    size_after_bytes: int
    averages_bytes: int


def compact_store(directory: Path) -> CompactReport:
    """Turn the log into a segment and all segments into compact files, those of the current hour too.

    Raises:
        StoreLockedError: A collector is using the directory.
        StoreError: It is no data directory, or the disk refuses; what was done so far stays.
    """
    with StoreSnapshot(directory):
        pass  # says what is wrong with a directory that is none, before a store would make one of it
    store = LocalStore(directory, StoreOptions(reserve_bytes=0))
    store.open()
    try:
        store.seal()
        before = store.usage().tier_bytes["raw"]
        written = store.maintenance.compact_all()
        sizes = store.usage().tier_bytes
        left = len(SegmentCatalog(store.database).files(SegmentKind.MINUTE))
        return CompactReport(written, left, before, sizes["raw"], sizes["second"])
    finally:
        store.close()
