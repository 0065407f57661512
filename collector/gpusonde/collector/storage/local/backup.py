"""``backup_store``: a copy of a data directory from which a collector can go on, made beside a running one.

The log is copied before the catalogue and the catalogue before the segments that it names. So whatever was acknowledged
when the backup began is in the copy: it was in the log then, or is in a segment by the time of the catalogue. Segments
never change: they are hard links where both directories are on one file system, and those that are there already stay.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpusonde.collector.storage.local.catalog import SegmentCatalog, SegmentFile
from gpusonde.collector.storage.local.database import Database
from gpusonde.collector.storage.local.leftovers import find_leftovers, tidy
from gpusonde.collector.storage.local.log import log_parts
from gpusonde.collector.storage.local.segments import StoreLayout, store_errors
from gpusonde.collector.storage.memtable import Memtables
from gpusonde.errors import StoreCorruptError, StoreError
from gpusonde.service.durable_files import DirectoryLock, FileLayer, OsFiles, write_durably

_CHUNK_BYTES = 1 << 20
# Every round copies what compaction has written during the one before.
_MOST_ROUNDS = 10


@dataclass
class BackupReport:
    """What a backup holds and what was done.

    Attributes:
        segments: Segments in the backup.
        size_bytes: Their size.
        files_copied: Files that were not there before, the log's included.
        bytes_copied: Bytes that were written for them; a link takes none.
        missing: Segments that the store itself has lost, relative to its directory.
    """

    segments: int = 0
    size_bytes: int = 0
    files_copied: int = 0
    bytes_copied: int = 0
    missing: list[str] = field(default_factory=list)


def backup_store(
    directory: Path,
    target: Path,
    *,
    files: FileLayer | None = None,
    on_progress: Callable[[float], None] = lambda _share: None,
) -> BackupReport:
    """Bring a backup up to date, or make it; one that was interrupted goes on where it was.

    Args:
        directory: The data directory; a collector may use it.
        target: Where the backup is; made if it is not there.
        files: The file layer.
        on_progress: Called with the share of the segments that are there.

    Raises:
        StoreError: ``directory`` is no data directory, ``target`` lies in it or around it or is something else, or
            there is no room.
        StoreCorruptError: The catalogue cannot be read whole; the backup stays as it was.
        DirectoryLockedError: Somebody uses ``target``.
    """
    source, copy = StoreLayout(directory.resolve()), StoreLayout(target.resolve())
    database = Database(source.catalog)
    database.open_read_only()
    try:
        if source.directory == copy.directory or {source.directory, copy.directory} & {
            *source.directory.parents,
            *copy.directory.parents,
        }:
            raise StoreError(f"{target} and {directory} lie in one another; name a directory elsewhere")
        with store_errors(copy.directory):
            _claim(source, copy)
            with DirectoryLock(copy.directory, "backup or collector"):
                return _Backup(source, copy, SegmentCatalog(database), files or OsFiles()).run(on_progress)
    finally:
        database.close()


def _claim(source: StoreLayout, copy: StoreLayout) -> None:
    """Mark a directory as a backup of another one, and refuse whatever else it is: files in it may be removed.

    Raises:
        StoreError: It is not empty and no backup of this directory.
    """
    mark = {"backup_of": str(source.directory)}
    if not copy.directory.exists() or not any(copy.directory.iterdir()):
        copy.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_durably(copy.backup_mark, json.dumps(mark).encode(), mode=0o600)
        return
    try:
        found = json.loads(copy.backup_mark.read_bytes())
    except (FileNotFoundError, ValueError):
        found = None
    if found != mark:
        raise StoreError(f"{copy.directory} is not empty and no backup of {source.directory}; name another directory")


class _Backup:
    def __init__(self, source: StoreLayout, copy: StoreLayout, segments: SegmentCatalog, files: FileLayer) -> None:
        self._source = source
        self._copy = copy
        self._segments = segments
        self._files = files
        self._report = BackupReport()
        self._new_log = copy.directory / "log.new"
        self._new_catalog = copy.directory / "catalog.new.sqlite"

    def run(self, on_progress: Callable[[float], None]) -> BackupReport:
        for folder in (*self._copy.segment_folders, self._copy.log, self._copy.quarantine, self._new_log):
            folder.mkdir(exist_ok=True)
        self._copy_log()
        for _ in range(_MOST_ROUNDS):
            registered = self._copy_catalog()
            gone = self._copy_segments(registered, on_progress)
            # Those that compaction has replaced meanwhile are not in the next catalogue.
            self._report.missing = [name for name in gone if self._segments.is_registered(Path(name).name)]
            if len(gone) == len(self._report.missing):
                break
        else:
            raise StoreError(f"{self._source.directory} changes faster than it can be copied; try again")
        self._take_folder(self._source.quarantine, self._copy.quarantine)
        self._swap()
        self._report.segments = len(registered) - len(self._report.missing)
        self._report.size_bytes = sum(segment.size_bytes for segment in registered)
        return self._report

    def _copy_log(self) -> None:
        for path in self._new_log.iterdir():
            self._files.remove(path)
        for _, path in log_parts(self._source.log):
            # Its entries have become a segment, which the catalogue of later names.
            with contextlib.suppress(FileNotFoundError):
                self._copy_file(path, self._new_log / path.name)
        self._files.sync_directory(self._new_log)

    def _copy_catalog(self) -> list[SegmentFile]:
        _remove_database(self._new_catalog, self._files)
        uri = f"{self._source.catalog.as_uri()}?mode=ro"
        with (
            contextlib.closing(sqlite3.connect(uri, uri=True, timeout=10.0)) as source,
            contextlib.closing(sqlite3.connect(self._new_catalog)) as copy,
        ):
            try:
                source.backup(copy)
                (state,) = copy.execute("PRAGMA quick_check(1)").fetchone()
            except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
                if isinstance(error, sqlite3.OperationalError):
                    raise
                state = str(error)
        if state != "ok":
            raise StoreCorruptError(
                self._source.catalog, state, f"'gpusonde store fsck --rebuild {self._source.directory}' makes it anew"
            )
        database = Database(self._new_catalog)
        database.open_read_only()
        try:
            return SegmentCatalog(database).files()
        finally:
            database.close()

    def _copy_segments(self, registered: Sequence[SegmentFile], on_progress: Callable[[float], None]) -> list[str]:
        """Return the files that are not there any more."""
        gone = []
        for i, segment in enumerate(registered):
            path = self._source.path(segment.kind, segment.file_name)
            target = self._copy.path(segment.kind, segment.file_name)
            try:
                if not target.exists() or target.stat().st_size != path.stat().st_size:
                    self._link_or_copy(path, target)
            except FileNotFoundError:
                if not target.exists():
                    gone.append(str(path.relative_to(self._source.directory)))
            on_progress((i + 1) / len(registered))
        for folder in self._copy.segment_folders:
            self._files.sync_directory(folder)
        return gone

    def _take_folder(self, source: Path, target: Path) -> None:
        for path in sorted(source.iterdir()) if source.is_dir() else ():
            if path.is_file() and path.suffix != ".tmp" and not (target / path.name).exists():
                self._link_or_copy(path, target / path.name)
        self._files.sync_directory(target)

    def _link_or_copy(self, path: Path, target: Path) -> None:
        self._files.remove(target)
        try:
            os.link(path, target, follow_symlinks=False)
        except FileNotFoundError:
            raise
        except OSError:
            self._copy_file(path, target)
            return
        self._report.files_copied += 1

    def _copy_file(self, path: Path, target: Path) -> None:
        temporary = target.with_name(f".{target.name}.tmp")
        with path.open("rb") as source:
            self._files.remove(temporary)
            file, size = self._files.create(temporary, 0o600), 0
            try:
                while data := source.read(_CHUNK_BYTES):
                    file.write(data, size)
                    size += len(data)
                file.sync()
            finally:
                file.close()
        self._files.rename(temporary, target)
        self._report.files_copied += 1
        self._report.bytes_copied += size

    def _swap(self) -> None:
        """Put catalogue and log in their places, then do away with what the new catalogue does not need."""
        files, log = self._files, self._copy.log
        # What is left of a reader of the catalogue before must not be taken for changes of the new one.
        for beside in ("-wal", "-shm"):
            files.remove(self._copy.catalog.with_name(self._copy.catalog.name + beside))
        files.rename(self._new_catalog, self._copy.catalog)
        files.sync_directory(self._copy.directory)
        new = sorted(self._new_log.iterdir())
        for path in new:
            files.rename(path, log / path.name)
        files.sync_directory(log)
        for path in sorted(log.iterdir()):
            if path.name not in {part.name for part in new}:
                files.remove(path)
        self._new_log.rmdir()
        database = Database(self._copy.catalog)
        database.open_read_only()
        try:
            segments = SegmentCatalog(database)
            for folder in self._copy.segment_folders:
                for path in folder.glob(".*.parquet.tmp"):
                    files.remove(path)
            tidy(find_leftovers(self._copy, segments), self._copy, segments, Memtables(), files)
        finally:
            database.close()
        _remove_database(self._new_catalog, files)


def _remove_database(path: Path, files: FileLayer) -> None:
    for beside in ("", "-wal", "-shm", "-journal"):
        files.remove(path.with_name(path.name + beside))
