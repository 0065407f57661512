"""What a check finds.

``Intervals``: a set of whole numbers that come in runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from gpusonde.service.wire import Int64Array

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


class FindingKind(Enum):
    """What can be wrong with a data directory; the members' values are part of the command's output."""

    CATALOG = "catalog"  # the catalogue is damaged
    LOG_TAIL = "log_tail"  # bytes of a log part that are no whole entries
    MISSING = "missing"  # a registered segment that is not there
    DAMAGED = "damaged"  # a segment that cannot be read, or whose pages fail their checksums
    MISMATCH = "mismatch"  # a segment whose rows are not those of the catalogue
    OVERLAP = "overlap"  # the same records in two segments
    HOLE = "hole"  # records that are neither in a segment nor in the log, and of which no loss is on record
    ORPHAN = "orphan"  # a file that is not part of the store


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        kind: What.
        path: The file, relative to the data directory.
        problem: In words, with what to do.
        repaired: Whether it was put right.
    """

    kind: FindingKind
    path: str
    problem: str
    repaired: bool = False


@dataclass
class CheckReport:
    """What was looked at and what was found.

    Attributes:
        live: Whether a collector was using the directory meanwhile.
        segments: Segment files read to the end.
        rows: Their rows.
        size_bytes: Their size.
        log_entries: Entries of the log with a good checksum.
        gaps: Gaps and losses on record.
        deletions: Files that retention has deleted.
        findings: What is wrong.
    """

    live: bool = False
    segments: int = 0
    rows: int = 0
    size_bytes: int = 0
    log_entries: int = 0
    gaps: int = 0
    deletions: int = 0
    findings: list[Finding] = field(default_factory=list)

    def add(self, kind: FindingKind, path: str, problem: str, *, repaired: bool = False) -> None:
        """Note one thing."""
        self.findings.append(Finding(kind, path, problem, repaired))
