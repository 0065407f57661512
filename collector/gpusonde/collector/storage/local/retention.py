"""``Maintenance``: compaction and retention of one store, in the thread that calls it.

``Retention`` deletes the oldest files of a tier by age, by size and for free space, and keeps a record of it. Age is
the time since the records arrived, on the collector's clock: hosts' clocks may be wrong by decades. Runs, epochs and
everything else in the catalogue stay for ever.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Executor

from gpusonde.collector.config import StoreConfig
from gpusonde.collector.storage.local.catalog import Deletion, Deletions, SegmentCatalog, SegmentFile
from gpusonde.collector.storage.local.compaction import Compactor, CpuShare, step_back
from gpusonde.collector.storage.local.segments import SegmentKind, StoreLayout, store_errors
from gpusonde.collector.storage.store import StoreCounters
from gpusonde.errors import StoreError
from gpusonde.service.durable_files import FileLayer

_LOG = logging.getLogger(__name__)
# What tracking would have to read again after it lost its state is kept longer, but not for ever.
_HELD_FACTOR = 2.0
_PAUSE_S = 20.0
TIERS = {"raw": (SegmentKind.MINUTE, SegmentKind.HOUR), "second": (SegmentKind.SECOND,)}


class Retention:
    """Deletes what is over the limits. One thread, the one that compacts.

    Args:
        segments: The catalogue of segments.
        deletions: Records what is deleted.
        layout: Where the segments lie.
        files: The file layer.
        config: How much is kept.
        counters: Counts deleted bytes.
        wall_clock_ns: Unix time in nanoseconds.
        hold_untracked: Whether ticks that tracking would have to read again are kept for twice the time.
    """

    def __init__(
        self,
        segments: SegmentCatalog,
        deletions: Deletions,
        layout: StoreLayout,
        files: FileLayer,
        config: StoreConfig,
        counters: StoreCounters,
        wall_clock_ns: Callable[[], int],
        *,
        hold_untracked: bool = True,
    ) -> None:
        self._segments = segments
        self._deletions = deletions
        self._layout = layout
        self._files = files
        self._config = config
        self._hold_untracked = hold_untracked
        self._counters = counters
        self._wall_clock_ns = wall_clock_ns

    def configure(self, config: StoreConfig) -> None:
        """Keep more or less from the next time on; callable from any thread."""
        self._config = config

    def apply(self) -> int:
        """Delete what is over the limits and return how many files that were.

        Raises:
            StoreError: A file cannot be deleted, or the catalogue cannot be written.
        """
        config = self._config
        count = self._delete_old("raw", config.raw_retention_s) + self._delete_beyond("raw", config.raw_max_bytes)
        count += self._delete_old("second", config.second_retention_s)
        count += self._delete_beyond("second", config.second_max_bytes)
        if config.raw_retention_s:
            self._deletions.delete_activity(self._wall_clock_ns() - round(config.raw_retention_s * 1e9))
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
        while self._config.keep_free_bytes:
            with store_errors(self._layout.directory):
                free = self._files.free_bytes(self._layout.directory)
            if free >= self._config.keep_free_bytes:
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
        if segment.kind is SegmentKind.SECOND or not self._hold_untracked:
            return False
        return self._deletions.untracked_gpus(segment.segment) > 0

    def _delete(self, tier: str, segment: SegmentFile, reason: str) -> None:
        deletion = self._deletions.delete(segment, reason, self._wall_clock_ns())
        path = self._layout.path(segment.kind, segment.file_name)
        with store_errors(path):
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


class Maintenance:
    """Compacts what is due and deletes what is over the limits. Called by one thread at a time.

    Args:
        compactor: Compacts.
        retention: Deletes.
        config: Whether segments are compacted at all, and the share of a core that it takes.
    """

    def __init__(self, compactor: Compactor, retention: Retention, config: StoreConfig) -> None:
        self._compactor = compactor
        self._retention = retention
        self._config = config

    def configure(self, config: StoreConfig) -> None:
        """Do it otherwise from the next file on; callable from any thread."""
        self._config = config
        self._compactor.configure(config)
        self._retention.configure(config)

    def run(self, stop: threading.Event | None = None) -> None:
        """Do all that is due, gently.

        Args:
            stop: Ends it early; what is half done is thrown away.

        Raises:
            StoreFullError: No room for a compacted file; retention was applied all the same.
            StoreError: Any other failure.
        """
        step_back()
        pace = CpuShare(self._config.compact_share, stop)
        # First what is deleted anyway: it need not be compacted, and makes room.
        self._retention.apply()
        try:
            while self._config.compact and self._compactor.step(pace):
                self._retention.apply()
        except CancelledError:
            return

    def delete_old(self) -> int:
        """Delete what is over the limits and return how many files that were.

        Raises:
            StoreError: A file cannot be deleted, or the catalogue cannot be written.
        """
        return self._retention.apply()

    def compact_all(self) -> int:
        """Compact everything, the current hour too, as fast as it goes; return the number of files written.

        Raises:
            StoreError: It did not succeed; what was done so far stays.
        """
        count = 0
        while self._compactor.step(CpuShare(1.0), everything=True):
            count += 1
        return count


async def maintain(maintenance: Maintenance, executor: Executor, pause_s: float = _PAUSE_S) -> None:
    """Have maintenance done until cancelled; what it is at then is given up soon, and done again after the next start.

    Args:
        maintenance: The work; it blocks.
        executor: A thread for nothing else.
        pause_s: Time between two checks of what is due.
    """
    stop = threading.Event()
    try:
        while True:
            await asyncio.sleep(pause_s)
            try:
                await asyncio.shield(asyncio.get_running_loop().run_in_executor(executor, maintenance.run, stop))
            except StoreError as error:
                # Samples stay where they are; the next check tries again.
                _LOG.error("segments cannot be compacted or deleted now: %s", error)
            except Exception:  # a fault here must not end the collector, which loses nothing by it
                _LOG.exception("segments are not compacted or deleted")
    finally:
        stop.set()
