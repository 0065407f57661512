"""What a check finds."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


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
