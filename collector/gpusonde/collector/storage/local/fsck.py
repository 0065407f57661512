"""``check_store``: reads everything in a data directory and compares it with what is said of it elsewhere.

Every segment is held against the catalogue, page by page with its checksum and part by part with its rows; sequences of
segments, log and catalogue put together say whether every record is there once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import groupby
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gpusonde.collector.storage.local.catalog import PartRow, SegmentCatalog, SegmentFile
from gpusonde.collector.storage.local.database import Database
from gpusonde.collector.storage.local.facts import LocalFacts
from gpusonde.collector.storage.local.leftovers import SequenceRanges, find_leftovers
from gpusonde.collector.storage.local.log import PartReport, log_parts, read_part
from gpusonde.collector.storage.local.segments import (
    SCHEMA_VERSION,
    VERSION_KEY,
    SegmentKind,
    StoreLayout,
)
from gpusonde.collector.storage.local.store import LocalStore
from gpusonde.errors import DirectoryLockedError
from gpusonde.service.durable_files import DirectoryLock, FileLayer


class StoreFindingKind(Enum):
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
class StoreFinding:
    """One thing that is wrong.

    Attributes:
        kind: What.
        path: The file, relative to the data directory.
        problem: In words, with what to do.
        repaired: Whether it was put right.
    """

    kind: StoreFindingKind
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
    findings: list[StoreFinding] = field(default_factory=list)

    def add(self, kind: StoreFindingKind, path: str, problem: str, *, repaired: bool = False) -> None:
        """Note one thing."""
        self.findings.append(StoreFinding(kind, path, problem, repaired))


_RESTORE = "restore the file from a backup"
_Problem: TypeAlias = tuple[StoreFindingKind, str]


def check_segment(
    path: Path, segment: SegmentFile, parts: Sequence[PartRow], held: dict[int, SequenceRanges] | None
) -> _Problem | None:
    """Read a segment to its end and return what is wrong with it, or None.

    Args:
        path: The file.
        segment: What the catalogue says of it.
        parts: The parts that are read from it.
        held: Spool -> sequences in the store, which those of the segment are added to.
    """
    problem: _Problem | None
    try:
        size = path.stat().st_size
        if size != segment.size_bytes:
            problem = StoreFindingKind.DAMAGED, f"has {size} bytes instead of {segment.size_bytes}; {_RESTORE}"
        else:
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                problem = _check_open(file, segment, parts, held)
    except FileNotFoundError:
        problem = StoreFindingKind.MISSING, f"is in the catalogue and not there; {_RESTORE}"
    except (OSError, pa.ArrowException) as error:
        problem = StoreFindingKind.DAMAGED, f"cannot be read ({error}); {_RESTORE}"
    if problem and held is not None:
        # The catalogue's word for what a damaged file holds: it is found once, not again as a hole.
        for row in parts:
            held.setdefault(row.part.spool, SequenceRanges()).add(row.part.first_sequence, row.part.last_sequence)
    return problem


def _check_open(
    file: pq.ParquetFile, segment: SegmentFile, parts: Sequence[PartRow], held: dict[int, SequenceRanges] | None
) -> _Problem | None:
    metadata: Mapping[bytes, bytes] = file.schema_arrow.metadata or {}
    if metadata.get(VERSION_KEY) != str(SCHEMA_VERSION).encode():
        return StoreFindingKind.MISMATCH, "is not of this version of the schema; was it replaced?"
    if file.metadata.num_rows != segment.row_count:
        problem = f"has {file.metadata.num_rows} rows instead of {segment.row_count}; {_RESTORE}"
        return StoreFindingKind.MISMATCH, problem
    by_group: dict[int, list[PartRow]] = {}
    for row in parts:
        by_group.setdefault(row.part.row_group, []).append(row)
    for group in range(file.num_row_groups):
        # All columns: the checksum of a page is looked at when it is read.
        table = file.read_row_group(group, use_threads=False)
        for row in by_group.pop(group, []):
            if problem := _check_part(table.slice(row.part.first_row, row.part.row_count), row, held):
                return StoreFindingKind.MISMATCH, f"row group {group}{problem}; {_RESTORE}"
    if by_group:
        return StoreFindingKind.MISMATCH, f"has no row group {min(by_group)}; {_RESTORE}"
    return None


def _check_part(table: pa.Table, row: PartRow, held: dict[int, SequenceRanges] | None) -> str:
    """Return what is wrong with a part, as what follows the number of its row group; empty where it is sound."""
    part = row.part
    if table.num_rows != part.row_count:
        return " has too few rows"
    time, spool, sequence = (table.column(name).to_numpy() for name in ("time_unix_nano", "spool", "sequence"))
    described = (part.first_sequence, part.last_sequence, part.start_unix_nano, part.end_unix_nano)
    found = (int(sequence.min()), int(sequence.max()), int(time.min()), int(time.max()))
    if table.column("gpu_uuid").unique().to_pylist() != [part.gpu_uuid] or not np.all(spool == part.spool):
        return f" holds rows of others than {part.gpu_uuid}"
    if described != found:
        return f": sequences and times of {part.gpu_uuid} are not those of the catalogue"
    if held is not None:
        held.setdefault(part.spool, SequenceRanges()).add_all(sequence)
    return ""


_MOST_HOLES = 20

_OVERLAPS = """
SELECT gpu_uuid, agent_id, first_sequence, before, file_name, kind FROM (
    SELECT gpu_uuid, spool, segment, first_sequence,
        LAG(last_sequence) OVER (PARTITION BY gpu_uuid, spool ORDER BY first_sequence, segment, row_group) AS before,
        LAG(segment) OVER (PARTITION BY gpu_uuid, spool ORDER BY first_sequence, segment, row_group) AS segment_before
    FROM segment_parts WHERE segment IN (SELECT segment FROM segments WHERE kind != 'second')
) JOIN segments USING (segment) JOIN spools USING (spool)
WHERE segment != segment_before AND first_sequence <= before LIMIT 20
"""


def overlaps(database: Database) -> Iterator[tuple[str, str]]:
    """Yield file and problem where two segments claim the same records of a GPU."""
    for gpu, agent, first, before, name, _ in database.rows(_OVERLAPS):
        yield name, f"records {first} to {before} of GPU {gpu} of agent {agent} are in another segment too"


def check_sequences(
    database: Database, held: Mapping[int, SequenceRanges], logged: Mapping[tuple[str, str], SequenceRanges]
) -> Iterator[tuple[str, str]]:
    """Yield file and problem where records that were acknowledged are nowhere, and no loss is on record."""
    for (_, agent_id, spool_id), holes in groupby(missing_records(database, held, logged), lambda hole: hole[:3]):
        for count, (*_, begin, end) in enumerate(holes):
            if count == _MOST_HOLES:
                yield "catalog.sqlite", f"spool {spool_id} of agent {agent_id} has more holes than are listed here"
                break
            problem = f"records {begin} to {end} of spool {spool_id} of agent {agent_id} are in no segment"
            yield "catalog.sqlite", f"{problem}, and no loss is on record; was a file removed by hand?"


def missing_records(
    database: Database, held: Mapping[int, SequenceRanges], logged: Mapping[tuple[str, str], SequenceRanges]
) -> Iterator[tuple[int, str, str, int, int]]:
    """Yield spool, agent, spool id, first and last sequence of what was stored, is nowhere, and is no known loss.

    Args:
        database: The catalogue.
        held: Spool -> sequences in segments.
        logged: (agent, spool id) -> sequences in the log.
    """
    facts = LocalFacts(database)
    deleted = bool(database.rows("SELECT 1 FROM deletions WHERE kind != 'second' LIMIT 1"))
    spools = database.rows("SELECT agent_id, spool_id, spool, stored_sequence FROM spools ORDER BY agent_id, spool")
    for agent_id, spool_id, spool, stored in spools:
        known = held.get(spool)
        # Retention deletes from the front; where nothing is left there is nothing to compare with.
        first = known.first if known else None
        if not deleted:
            # A spool begins with its inventory, and one that goes on under a new name does not begin with 1.
            ((first,),) = database.rows("SELECT COALESCE(MIN(sequence), 1) FROM inventories WHERE spool = ?", (spool,))
        if first is None or not stored:
            continue
        everything = SequenceRanges()
        for part in (known, logged.get((agent_id, spool_id))):
            if part:
                everything.add_from(part)
        for first_missing, last_missing in _known_losses(database, spool):
            everything.add(first_missing, last_missing)
        for sequence in facts.sequences(spool, first, stored):
            everything.add(sequence, sequence)
        for begin, end in everything.missing(first, stored):
            yield spool, agent_id, spool_id, begin, end


def _known_losses(database: Database, spool: int) -> Iterator[tuple[int, int]]:
    for table in ("gaps", "losses"):
        statement = f"SELECT first_sequence, last_sequence FROM {table} WHERE spool = ? AND first_sequence > 0"  # noqa: S608
        yield from ((first, last) for first, last in database.rows(statement, (spool,)))


def check_store(
    directory: Path,
    *,
    repair: bool = False,
    files: FileLayer | None = None,
    on_progress: Callable[[float], None] = lambda _share: None,
) -> CheckReport:
    """Check a data directory, also one that a collector is using.

    Args:
        directory: The data directory.
        repair: Do with files that are not part of the store what the next start would: remove those whose records are
            elsewhere, set the others aside.
        files: The file layer.
        on_progress: Called with the share of the segments that has been read.

    Raises:
        StoreError: It is no data directory, or one of another version.
        StoreCorruptError: The catalogue is not readable at all.
        DirectoryLockedError: ``repair``, and a collector is using it.
    """
    layout = StoreLayout(directory)
    database = Database(layout.catalog)
    database.open_read_only()
    try:
        with _claimed(directory) as is_ours:
            if repair and not is_ours:
                raise DirectoryLockedError(f"{directory} is in use by a collector; stop it before repairing", directory)
            report = _Check(layout, database, live=not is_ours, repair=repair).run(on_progress)
    finally:
        database.close()
    if repair:
        store = LocalStore(directory, files=files)
        store.open()
        store.close()
    return report


@contextlib.contextmanager
def _claimed(directory: Path) -> Iterator[bool]:
    """Keep collectors out meanwhile; False where one is in already."""
    lock = DirectoryLock(directory, "collector")
    try:
        lock.acquire()
    except DirectoryLockedError:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


class _Check:
    def __init__(self, layout: StoreLayout, database: Database, *, live: bool, repair: bool) -> None:
        self._layout = layout
        self._database = database
        self._segments = SegmentCatalog(database)
        self._repair = repair
        self._report = CheckReport(live=live)
        self._held: dict[int, SequenceRanges] = {}

    def run(self, on_progress: Callable[[float], None]) -> CheckReport:
        self._check_catalog()
        logged = self._check_log()
        registered = self._segments.files()
        for i, segment in enumerate(registered):
            path = self._layout.path(segment.kind, segment.file_name)
            ticks = None if segment.kind is SegmentKind.SECOND else self._held
            found = check_segment(path, segment, self._segments.parts_in([segment.segment]), ticks)
            if found is None:
                self._report.rows += segment.row_count
                self._report.segments += 1
                self._report.size_bytes += segment.size_bytes
            # A collector at work replaces segments.
            elif not self._report.live or self._segments.is_registered(segment.file_name):
                kind, problem = found
                self._report.add(kind, self._name(path), problem)
            on_progress((i + 1) / len(registered))
        for name, problem in overlaps(self._database):
            self._report.add(StoreFindingKind.OVERLAP, name, problem)
        for name, problem in check_sequences(self._database, self._held, logged):
            self._report.add(StoreFindingKind.HOLE, name, problem)
        self._check_orphans()
        self._report.gaps = self._count("SELECT (SELECT COUNT(*) FROM gaps) + (SELECT COUNT(*) FROM losses)")
        self._report.deletions = self._count("SELECT COUNT(*) FROM deletions")
        return self._report

    def _check_catalog(self) -> None:
        for (line,) in self._database.rows("PRAGMA quick_check(20)"):
            if line != "ok":
                self._report.add(StoreFindingKind.CATALOG, self._name(self._layout.catalog), str(line))

    def _check_log(self) -> dict[tuple[str, str], SequenceRanges]:
        logged: dict[tuple[str, str], SequenceRanges] = {}
        parts = log_parts(self._layout.log)
        for number, path in parts:
            part = PartReport()
            try:
                for entry in read_part(path, part):
                    logged.setdefault((entry.agent_id, entry.spool_id), SequenceRanges()).add(
                        entry.sequence, entry.sequence
                    )
                    self._report.log_entries += 1
            except FileNotFoundError:
                if not self._report.live:
                    raise
            being_written = self._report.live and number == parts[-1][0]
            if part.damaged_bytes:
                self._report.add(
                    StoreFindingKind.DAMAGED,
                    self._name(path),
                    f"{part.damaged_bytes} bytes between its entries are no entries; records that they held are a gap"
                    " on record after the next start, or sent again",
                )
            if part.torn_bytes and not being_written:
                self._report.add(
                    StoreFindingKind.LOG_TAIL,
                    self._name(path),
                    f"the last {part.torn_bytes} bytes are no whole entries; a crash leaves that, and what was not"
                    " acknowledged is sent again: nothing is to be done",
                )
        return logged

    def _check_orphans(self) -> None:
        # What a collector at work is just writing looks the same.
        for path in [] if self._report.live else find_leftovers(self._layout, self._segments):
            problem = (
                "is not part of the store; a start of the collector removes it if its records are elsewhere, and else"
                f" sets it aside in {self._layout.lost_found.name}/"
            )
            done = ": done" if self._repair else ""
            self._report.add(StoreFindingKind.ORPHAN, self._name(path), problem + done, repaired=self._repair)
        for path in sorted(self._layout.lost_found.glob("*/*")):
            self._report.add(
                StoreFindingKind.ORPHAN,
                self._name(path),
                "was set aside because the catalogue does not know it; stop the collector and let 'gpusonde store fsck"
                f" --rebuild {self._layout.directory}' take back what it holds, or remove it",
            )

    def _count(self, statement: str) -> int:
        return int(self._database.rows(statement)[0][0])

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self._layout.directory))
