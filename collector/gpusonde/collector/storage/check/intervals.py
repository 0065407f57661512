"""``Intervals``: a set of whole numbers that come in runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from gpusonde.collector.records.model import Int64Array

Interval = tuple[int, int]


class Intervals:
    """Collects numbers and says which are missing between the first and the last."""

    def __init__(self) -> None:
        self._found: list[Interval] = []

    def add(self, first: int, last: int) -> None:
        """Add the numbers from ``first`` to ``last``."""
        self._found.append((first, last))

    def add_all(self, numbers: Int64Array) -> None:
        """Add numbers in any order, repetitions included."""
        if not numbers.size:
            return
        unique = np.unique(numbers)
        breaks = np.flatnonzero(np.diff(unique) > 1)
        firsts = unique[np.concatenate(([0], breaks + 1))]
        lasts = unique[np.concatenate((breaks, [unique.size - 1]))]
        self._found += zip(firsts.tolist(), lasts.tolist(), strict=True)
        if len(self._found) > 1000:
            self._found = list(merged(self._found))

    def add_from(self, other: Intervals) -> None:
        """Add the numbers of another set."""
        self._found += merged(other._found)

    @property
    def first(self) -> int | None:
        """The lowest number."""
        return min((first for first, _ in self._found), default=None)

    def missing(self, first: int, last: int) -> Iterator[Interval]:
        """Yield the runs of numbers from ``first`` to ``last`` that were not added."""
        for begin, end in merged(self._found):
            if begin > last:
                break
            if begin > first:
                yield first, begin - 1
            first = max(first, end + 1)
        if first <= last:
            yield first, last


def merged(intervals: Iterable[Interval]) -> Iterator[Interval]:
    """Yield the same numbers as runs in order that do not touch."""
    current: Interval | None = None
    for first, last in sorted(intervals):
        if current is None:
            current = (first, last)
        elif first <= current[1] + 1:
            current = (current[0], max(current[1], last))
        else:
            yield current
            current = (first, last)
    if current is not None:
        yield current
