"""``Retention``: deletes the oldest files of a tier by age, by size and for free space, and keeps a record of it.

Age is the time since the records arrived, on the collector's clock: hosts' clocks may be wrong by decades. Runs, epochs
and everything else in the catalogue stay for ever.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from gpusonde.collector.storage.counters import StoreCounters
from gpusonde.collector.storage.disk.files import FileLayer
from gpusonde.collector.storage.disk.layout import SegmentKind, StoreLayout
from gpusonde.collector.storage.errors import naming_full_disks
from gpusonde.collector.storage.tables.deletions import Deletion, Deletions
from gpusonde.collector.storage.tables.segment_catalog import SegmentCatalog, SegmentFile

_LOG = logging.getLogger(__name__)
# What tracking would have to read again after it lost its state is kept longer, but not for ever.
_HELD_FACTOR = 2.0
TIERS = {"raw": (SegmentKind.MINUTE, SegmentKind.HOUR), "second": (SegmentKind.SECOND,)}


@dataclass(frozen=True)
class TierLimits:
    """How much of one tier is kept.

    Attributes:
        age_s: Time since arrival; 0 keeps for ever.
        size_bytes: Size of all files; 0 means any.
    """

    age_s: float = 0.0
    size_bytes: int = 0


@dataclass(frozen=True)
class RetentionOptions:
    """How much is kept.

    Attributes:
        raw: Of ticks.
        second: Of averages over seconds.
        free_bytes: Space on the disk for which the oldest ticks make room; 0 never.
        hold_untracked: Whether ticks that tracking would have to read again are kept for twice the time.
    """

    raw: TierLimits = TierLimits(age_s=14 * 86_400.0)
    second: TierLimits = TierLimits(age_s=90 * 86_400.0)
    free_bytes: int = 0
    hold_untracked: bool = True


class Retention:
    """Deletes what is over the limits. One thread, the one that compacts.

    Args:
        segments: The catalogue of segments.
        deletions: Records what is deleted.
        layout: Where the segments lie.
        files: The file layer.
        options: How much is kept.
        counters: Counts deleted bytes.
        wall_clock_ns: Unix time in nanoseconds.
    """

    def __init__(
        self,
        segments: SegmentCatalog,
        deletions: Deletions,
        layout: StoreLayout,
        files: FileLayer,
        options: RetentionOptions,
        counters: StoreCounters,
        wall_clock_ns: Callable[[], int],
    ) -> None:
        self._segments = segments
        self._deletions = deletions
        self._layout = layout
        self._files = files
        self._options = options
        self._counters = counters
        self._wall_clock_ns = wall_clock_ns

    def configure(self, options: RetentionOptions) -> None:
        """Keep more or less from the next time on; callable from any thread."""
        self._options = options

    def apply(self) -> int:
        """Delete what is over the limits and return how many files that were.

        Raises:
            StoreError: A file cannot be deleted, or the catalogue cannot be written.
        """
        count = 0
        for tier, limits in (("raw", self._options.raw), ("second", self._options.second)):
            count += self._delete_old(tier, limits.age_s) + self._delete_beyond(tier, limits.size_bytes)
        return count + self._make_room()

    def _delete_old(self, tier: str, age_s: float) -> int:
        if not age_s:
            return 0
        now = self._wall_clock_ns()
        too_old = now - round(_HELD_FACTOR * age_s * 1e9)
        count = 0
        for segment in self._segments.files(*TIERS[tier], arrived_before_unix_nano=now - round(age_s * 1e9)):
            if segment.newest_unix_nano < too_old or not self._is_held(segment):
                self._delete(tier, segment, "age")
                count += 1
        return count

    def _delete_beyond(self, tier: str, size_bytes: int) -> int:
        count = 0
        while size_bytes and self._size(tier) > size_bytes:
            self._delete(tier, self._segments.files(*TIERS[tier], limit=1)[0], "size")
            count += 1
        return count

    def _size(self, tier: str) -> int:
        sizes = self._segments.sizes()
        return sum(sizes[kind] for kind in TIERS[tier])

    def _make_room(self) -> int:
        count = 0
        while self._options.free_bytes:
            with naming_full_disks(self._layout.directory):
                free = self._files.free_bytes(self._layout.directory)
            if free >= self._options.free_bytes:
                break
            # Ticks first; averages are small and go only when there are no ticks left.
            oldest = [
                (tier, found[0]) for tier, kinds in TIERS.items() if (found := self._segments.files(*kinds, limit=1))
            ]
            if not oldest:
                break
            self._delete(*oldest[0], "free space")
            count += 1
        return count

    def _is_held(self, segment: SegmentFile) -> bool:
        if segment.kind is SegmentKind.SECOND or not self._options.hold_untracked:
            return False
        return self._deletions.untracked_gpus(segment.segment) > 0

    def _delete(self, tier: str, segment: SegmentFile, reason: str) -> None:
        deletion = self._deletions.delete(segment, reason, self._wall_clock_ns())
        path = self._layout.path(segment.kind, segment.file_name)
        with naming_full_disks(path):
            self._files.remove(path)
        self._counters.deleted(tier, segment.size_bytes)
        self._report(path.name, deletion)

    def _report(self, name: str, deletion: Deletion) -> None:
        _LOG.info("deleted %s for its %s: %d bytes", name, deletion.reason, deletion.size_bytes)
        if deletion.untracked_gpus:
            _LOG.warning(
                "%s held ticks of open or untracked runs of %d GPUs; those runs go on, but cannot be read again from"
                " their start should tracking lose its state",
                name,
                deletion.untracked_gpus,
            )
