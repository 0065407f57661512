"""``StoreCounters``: what the store has done, for the collector's metrics."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

# Called with seconds, once for each piece of work.
Observer = Callable[[float], None]


class StoreCounters:
    """Counts since the start of the process; may be used from any thread.

    Attributes:
        compactions: Files that compaction has written.
        compaction_failures: Times that it could not.
        on_compaction: Called with the seconds that each file took.
        on_segment: Called with the seconds that each sealed segment took.
        on_log_sync: Called with the seconds that each write to the log took, its sync included.
    """

    def __init__(self) -> None:
        self.compactions = 0
        self.compaction_failures = 0
        self.on_compaction: Observer = _ignore
        self.on_segment: Observer = _ignore
        self.on_log_sync: Observer = _ignore
        self._deleted_bytes: Counter[str] = Counter()
        self._lock = threading.Lock()

    def compacted(self, seconds: float) -> None:
        """Note one compacted file."""
        with self._lock:
            self.compactions += 1
        self.on_compaction(seconds)

    def compaction_failed(self) -> None:
        """Note one compaction that did not succeed."""
        with self._lock:
            self.compaction_failures += 1

    def deleted(self, tier: str, size_bytes: int) -> None:
        """Note that retention has deleted a file of a tier: ``raw`` or ``second``."""
        with self._lock:
            self._deleted_bytes[tier] += size_bytes

    def deleted_bytes(self) -> dict[str, int]:
        """Return the bytes that retention has deleted, by tier."""
        with self._lock:
            return {tier: self._deleted_bytes[tier] for tier in ("raw", "second")}


def _ignore(_seconds: float) -> None:
    """Nobody observes."""
