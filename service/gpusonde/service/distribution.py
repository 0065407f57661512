"""``Distribution``: how long something takes, as a Prometheus histogram, at a cost that a hot path can pay."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence

# From a tick's lateness to a slow disk's sync.
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Distribution:
    """Counts values by size. One thread observes; any may read.

    Args:
        bounds: Upper bounds of the buckets, increasing; one more bucket takes what exceeds the last.
    """

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Add one value."""
        self._counts[bisect.bisect_left(self._bounds, value)] += 1
        self._sum += value

    @property
    def count(self) -> int:
        """Number of values so far."""
        return sum(self._counts)

    @property
    def total(self) -> float:
        """Sum of the values so far."""
        return self._sum

    def cumulative(self) -> list[tuple[float, int]]:
        """Return each upper bound, the last one infinite, with the number of values up to it."""
        reached, rows = 0, []
        for bound, count in zip((*self._bounds, math.inf), tuple(self._counts), strict=True):
            reached += count
            rows.append((bound, reached))
        return rows
