"""``Maintenance``: compaction and retention of one store, in the thread that calls it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from gpusonde.collector.storage.compaction.compactor import CompactionOptions, Compactor
from gpusonde.collector.storage.compaction.pace import Pace, StoppedError, step_back
from gpusonde.collector.storage.compaction.retention import Retention, RetentionOptions
from gpusonde.collector.storage.counters import StoreCounters
from gpusonde.collector.storage.disk.files import FileLayer
from gpusonde.collector.storage.disk.layout import StoreLayout
from gpusonde.collector.storage.tables.database import Database
from gpusonde.collector.storage.tables.deletions import Deletions
from gpusonde.collector.storage.tables.segment_catalog import SegmentCatalog


@dataclass(frozen=True)
class MaintenanceOptions:
    """How segments are looked after.

    Attributes:
        enabled: Whether segments are compacted at all; retention goes on either way.
        share: Share of a core that compaction takes while it works.
        compaction: Sizes and delay.
        retention: How much is kept.
    """

    enabled: bool = True
    share: float = 0.25
    compaction: CompactionOptions = field(default_factory=CompactionOptions)
    retention: RetentionOptions = field(default_factory=RetentionOptions)


class Maintenance:
    """Compacts what is due and deletes what is over the limits. Called by one thread at a time.

    Args:
        database: The catalogue.
        layout: Where everything lies.
        files: The file layer.
        options: What is to be done.
        check_space: Raises ``StoreFullError`` when the disk has no room beyond its reserve.
        counters: Counts both.
        wall_clock_ns: Unix time in nanoseconds.
    """

    def __init__(
        self,
        database: Database,
        layout: StoreLayout,
        files: FileLayer,
        options: MaintenanceOptions,
        check_space: Callable[[], None],
        counters: StoreCounters,
        wall_clock_ns: Callable[[], int],
    ) -> None:
        segments = SegmentCatalog(database)
        self._options = options
        self._compactor = Compactor(segments, layout, files, options.compaction, check_space, counters, wall_clock_ns)
        self._retention = Retention(
            segments, Deletions(database), layout, files, options.retention, counters, wall_clock_ns
        )

    def configure(self, options: MaintenanceOptions) -> None:
        """Do it otherwise from the next file on; callable from any thread."""
        self._options = options
        self._compactor.configure(options.compaction)
        self._retention.configure(options.retention)

    def run(self, stop: threading.Event | None = None) -> None:
        """Do all that is due, gently.

        Args:
            stop: Ends it early; what is half done is thrown away.

        Raises:
            StoreFullError: No room for a compacted file; retention was applied all the same.
            StoreError: Any other failure.
        """
        step_back()
        pace = Pace(self._options.share, stop)
        # First what is deleted anyway: it need not be compacted, and makes room.
        self._retention.apply()
        try:
            while self._options.enabled and self._compactor.step(pace):
                self._retention.apply()
        except StoppedError:
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
        while self._compactor.step(Pace(1.0), everything=True):
            count += 1
        return count
