"""``check_store``: reads everything in a data directory and compares it with what is said of it elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from gpusonde.collector.storage.check.findings import CheckReport, FindingKind
from gpusonde.collector.storage.check.intervals import Intervals
from gpusonde.collector.storage.check.segment import SegmentProblem, check_segment
from gpusonde.collector.storage.check.sequences import check_sequences, overlaps
from gpusonde.collector.storage.disk.files import FileLayer, OsFiles
from gpusonde.collector.storage.disk.layout import SegmentKind, StoreLayout
from gpusonde.collector.storage.disk.lock import DirectoryLock
from gpusonde.collector.storage.disk.log import PartEnd, log_parts, read_part
from gpusonde.collector.storage.errors import StoreLockedError, naming_full_disks
from gpusonde.collector.storage.tables.database import Database
from gpusonde.collector.storage.tables.segment_catalog import SegmentCatalog


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
        repair: Remove what is safe to remove: files that never became part of the store, or no longer are.
        files: The file layer.
        on_progress: Called with the share of the segments that has been read.

    Raises:
        StoreError: It is no data directory, or one of another version.
        StoreCorruptError: The catalogue is not readable at all.
        StoreLockedError: ``repair``, and a collector is using it.
    """
    layout = StoreLayout(directory)
    database = Database(layout.catalog)
    database.open_read_only()
    try:
        with _claimed(directory) as is_ours:
            if repair and not is_ours:
                raise StoreLockedError(f"{directory} is in use by a collector; stop it before repairing")
            return _Check(layout, database, files or OsFiles(), live=not is_ours, repair=repair).run(on_progress)
    finally:
        database.close()


@contextlib.contextmanager
def _claimed(directory: Path) -> Iterator[bool]:
    """Keep collectors out meanwhile; False where one is in already."""
    lock = DirectoryLock(directory)
    try:
        lock.acquire()
    except StoreLockedError:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


class _Check:
    def __init__(self, layout: StoreLayout, database: Database, files: FileLayer, *, live: bool, repair: bool) -> None:
        self._layout = layout
        self._database = database
        self._segments = SegmentCatalog(database)
        self._files = files
        self._repair = repair
        self._report = CheckReport(live=live)
        self._held: dict[int, Intervals] = {}

    def run(self, on_progress: Callable[[float], None]) -> CheckReport:
        self._check_catalog()
        logged = self._check_log()
        registered = self._segments.files()
        for i, segment in enumerate(registered):
            path = self._layout.path(segment.kind, segment.file_name)
            ticks = None if segment.kind is SegmentKind.SECOND else self._held
            try:
                self._report.rows += check_segment(path, segment, self._segments.parts_in([segment.segment]), ticks)
                self._report.segments += 1
                self._report.size_bytes += segment.size_bytes
            except SegmentProblem as found:
                # A collector at work replaces segments.
                if not self._report.live or self._segments.is_registered(segment.file_name):
                    self._report.add(found.kind, self._name(path), found.problem)
            on_progress((i + 1) / len(registered))
        for name, problem in overlaps(self._database):
            self._report.add(FindingKind.OVERLAP, name, problem)
        for name, problem in check_sequences(self._database, self._held, logged):
            self._report.add(FindingKind.HOLE, name, problem)
        self._check_orphans()
        self._report.gaps = self._count("SELECT (SELECT COUNT(*) FROM gaps) + (SELECT COUNT(*) FROM losses)")
        self._report.deletions = self._count("SELECT COUNT(*) FROM deletions")
        return self._report

    def _check_catalog(self) -> None:
        for (line,) in self._database.rows("PRAGMA quick_check(20)"):
            if line != "ok":
                self._report.add(FindingKind.CATALOG, self._name(self._layout.catalog), str(line))

    def _check_log(self) -> dict[tuple[str, str], Intervals]:
        logged: dict[tuple[str, str], Intervals] = {}
        parts = log_parts(self._layout.log)
        for number, path in parts:
            end = PartEnd()
            try:
                for entry in read_part(path, end):
                    logged.setdefault((entry.agent_id, entry.spool_id), Intervals()).add(entry.sequence, entry.sequence)
                    self._report.log_entries += 1
            except FileNotFoundError:
                if not self._report.live:
                    raise
            being_written = self._report.live and number == parts[-1][0]
            if end.torn_bytes and not being_written:
                self._report.add(
                    FindingKind.LOG_TAIL,
                    self._name(path),
                    f"the last {end.torn_bytes} bytes are no whole entries; a crash leaves that, and what was not"
                    " acknowledged is sent again: nothing is to be done",
                )
        return logged

    def _check_orphans(self) -> None:
        if self._report.live:
            return  # what a collector at work is just writing looks the same
        registered = {self._layout.path(s.kind, s.file_name) for s in self._segments.files()}
        for folder in self._layout.segment_folders:
            for path in sorted(folder.iterdir()) if folder.is_dir() else ():
                if path in registered or path.suffix not in (".tmp", ".parquet"):
                    continue
                problem = (
                    "is not part of the store: a crash left it half made, or before it was removed; every start of"
                )
                if self._repair:
                    with naming_full_disks(path):
                        self._files.remove(path)
                self._report.add(
                    FindingKind.ORPHAN,
                    self._name(path),
                    f"{problem} the collector removes such files" + (": removed" if self._repair else ""),
                    repaired=self._repair,
                )

    def _count(self, statement: str) -> int:
        return int(self._database.rows(statement)[0][0])

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self._layout.directory))
