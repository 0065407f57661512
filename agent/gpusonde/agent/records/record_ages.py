"""``RecordAges``: for how long the oldest record of the spool has waited for its acknowledgement.

It remembers about one record per second and fewer the more there are, so that a day without a collector costs no
memory worth mentioning, and no question touches the disk.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable

_RESOLUTION_S = 1.0
_MOST_REMEMBERED = 1024


class RecordAges:
    """Notes when records were written. One thread notes, another may ask.

    Args:
        wall_s: Unix time in seconds.
    """

    def __init__(self, *, wall_s: Callable[[], float] = time.time) -> None:
        self._wall_s = wall_s
        self._notes: list[tuple[int, float]] = []
        self._resolution_s = _RESOLUTION_S
        self._lock = threading.Lock()

    def restore(self, known: Iterable[tuple[int, float]]) -> None:
        """Take first sequences and Unix times, in order, of what an earlier process wrote."""
        with self._lock:
            self._notes = [*known, *self._notes]

    def note(self, sequence: int) -> None:
        """Note that everything up to ``sequence`` is written now."""
        now_s = self._wall_s()
        with self._lock:
            if self._notes:
                last, last_s = self._notes[-1]
                # A clock that was set back makes the difference negative: begin anew there.
                if sequence <= last or 0.0 <= now_s - last_s < self._resolution_s:
                    return
            self._notes.append((sequence, now_s))
            if len(self._notes) > _MOST_REMEMBERED:
                del self._notes[1::2]
                self._resolution_s *= 2

    def oldest_s(self, acked: int, last: int) -> float:
        """Return the age of the oldest record after ``acked`` in seconds, too high by at most the resolution.

        Args:
            acked: Highest sequence that needs no waiting any more.
            last: Highest sequence in the spool.
        """
        with self._lock:
            known = bisect_right(self._notes, acked + 1, key=lambda note: note[0])
            del self._notes[: max(0, known - 1)]
            if last <= acked or not self._notes:
                return 0.0
            return max(0.0, self._wall_s() - self._notes[0][1])
