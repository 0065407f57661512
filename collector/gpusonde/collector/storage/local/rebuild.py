"""``rebuild_catalog``: makes ``catalog.sqlite`` anew from what the segments say of themselves.

Rows name their GPU, spool number, sequence and time, footers whose spools these are and their inventories. Everything
else, such as jobs, events and runs, is taken over from the catalogue before as far as it can be read. Records that are
in two files, as after agents have sent again what was set aside, are kept once; what is missing becomes a gap
on record.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gpusonde.collector.storage.local.catalog import NewSegment, SegmentCatalog
from gpusonde.collector.storage.local.compaction import SegmentOutput
from gpusonde.collector.storage.local.database import Database
from gpusonde.collector.storage.local.facts import LocalFacts
from gpusonde.collector.storage.local.fsck import StoreFinding, StoreFindingKind, missing_records
from gpusonde.collector.storage.local.leftovers import UNREADABLE, SequenceRanges, runs_of_rows, set_aside
from gpusonde.collector.storage.local.segments import (
    SegmentKind,
    SegmentPart,
    SpoolNote,
    StoreLayout,
    read_notes,
    store_errors,
)
from gpusonde.collector.storage.local.store import LocalStore
from gpusonde.collector.storage.model import Position, decode_inventory
from gpusonde.errors import DirectoryLockedError, StoreError
from gpusonde.service.durable_files import DirectoryLock, FileLayer, OsFiles

_LOG = logging.getLogger(__name__)
_SALVAGED = (
    "agents", "spools", "inventories", "gpus", "deletions", "job_bindings", "source_ends", "gpu_events", "losses",
    "gaps", "rejections", "empty_records", "job_activity", "blank_counts", "runs", "epochs", "trees",
    "job_states", "job_alerts", "tracker_positions",
)  # fmt: skip
_SAID_BY_SEGMENTS = ("spools", "inventories", "tracker_positions")
_NAME = re.compile(r"(?:\d+-)?((\d{20})-(\d{8,20})(?:\.hour|\.second)?\.parquet)")
_MOST_GAPS_LISTED = 20


def rebuild_catalog(
    directory: Path, *, files: FileLayer | None = None, on_progress: Callable[[float], None] = lambda _share: None
) -> list[StoreFinding]:
    """Make the catalogue of a data directory anew, ``lost+found/`` included, and return what was found and done.

    Until the new catalogue is in its place the one before holds; it stays in ``lost+found/``.

    Args:
        directory: The data directory.
        files: The file layer.
        on_progress: Called with the share of the segments that has been read.

    Raises:
        StoreError: It is no data directory, or cannot be written.
        DirectoryLockedError: A collector is using it.
    """
    files, layout = files or OsFiles(), StoreLayout(directory)
    if not any(folder.is_dir() for folder in layout.segment_folders):
        raise StoreError(f"{directory} is no data directory of a collector: it holds no segments")
    _settle(directory, files)
    with DirectoryLock(directory, "collector"), store_errors(directory):
        return _Rebuild(layout, files).run(on_progress)


def _settle(directory: Path, files: FileLayer) -> None:
    """Have the log in segments, where the catalogue still allows that; otherwise the next start reads it."""
    if not StoreLayout(directory).catalog.exists():
        return
    store = LocalStore(directory, files=files)
    try:
        store.open()
        store.flush()
    except DirectoryLockedError:
        raise
    except Exception as error:
        _LOG.warning("the log stays for the next start, since the catalogue before does not open: %s", error)
    finally:
        store.close()


def _is_sound(database: sqlite3.Connection) -> bool:
    try:
        return bool(database.execute("PRAGMA quick_check(1)").fetchone() == ("ok",))
    except (sqlite3.DatabaseError, UnicodeDecodeError):
        return False


class _Held:
    """The records that are in segments: (GPU, spool) -> sequences."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, int], SequenceRanges] = {}

    def contains(self, gpu_uuid: str, spool: int, sequences: np.ndarray) -> np.ndarray:
        """Return for each sequence whether it is there."""
        runs = list(self._held.get((gpu_uuid, spool), SequenceRanges()).runs())
        if not runs:
            return np.zeros(len(sequences), dtype=bool)
        firsts, lasts = np.array(runs).T
        place = np.searchsorted(firsts, sequences, side="right") - 1
        found: np.ndarray = (place >= 0) & (sequences <= lasts[np.maximum(place, 0)])
        return found

    def add(self, gpu_uuid: str, spool: int, sequences: np.ndarray) -> None:
        self._held.setdefault((gpu_uuid, spool), SequenceRanges()).add_all(sequences)

    def by_spool(self) -> dict[int, SequenceRanges]:
        found: dict[int, SequenceRanges] = {}
        for (_, spool), ranges in self._held.items():
            found.setdefault(spool, SequenceRanges()).add_from(ranges)
        return found


class _UnusableError(Exception):
    """A file that cannot be part of the store, and why."""


class _Rebuild:
    def __init__(self, layout: StoreLayout, files: FileLayer) -> None:
        self._layout = layout
        self._files = files
        self._new = Database(layout.directory / "catalog.rebuilt.sqlite")
        self._segments = SegmentCatalog(self._new)
        self._facts = LocalFacts(self._new)
        self._ticks, self._seconds = _Held(), _Held()
        self._registered: dict[str, int] = {}
        self._inventories: dict[tuple[int, int], SpoolNote] = {}
        self._superseded: list[Path] = []
        self._unusable: list[Path] = []
        self._findings: list[StoreFinding] = []
        self._row_count = self._taken_back = 0

    def run(self, on_progress: Callable[[float], None]) -> list[StoreFinding]:
        self._remove_catalog(self._new.path)
        self._new.open()
        try:
            self._salvage()
            sources = list(self._sources())
            for i, (kind, path) in enumerate(sources):
                self._take(kind, path)
                on_progress((i + 1) / len(sources))
            self._complete()
        finally:
            self._new.close()
        self._swap()
        for path in self._superseded:
            self._files.remove(path)
        for path in self._unusable:
            if path.parent.parent == self._layout.directory:
                set_aside(path, self._layout, self._files)
        self._say(StoreFindingKind.CATALOG, "catalog.sqlite", self._summary(), repaired=True)
        return self._findings[-1:] + self._findings[:-1]

    def _summary(self) -> str:
        count = len(self._registered)
        back = f", {self._taken_back} of them from {self._layout.lost_found.name}/" if self._taken_back else ""
        return f"was made anew from {count} segments with {self._row_count} rows{back}"

    def _say(self, kind: StoreFindingKind, path: str, problem: str, *, repaired: bool = False) -> None:
        self._findings.append(StoreFinding(kind, path, problem, repaired))

    # What was known before --------------------------------------------------------------------------------------

    def _salvage(self) -> None:
        """Take over what the segments cannot say, row by row until the catalogue before ends or breaks."""
        gone: list[str] = []
        if is_there := self._layout.catalog.exists():
            with contextlib.closing(sqlite3.connect(self._layout.catalog)) as old:
                # What the segments say themselves is not taken from where bytes may be other ones.
                skipped = () if _is_sound(old) else _SAID_BY_SEGMENTS
                gone = [table for table in _SALVAGED if table not in skipped and not self._copy(old, table)]
                gone += skipped
        if gone or not is_there:
            what = f"could not be read whole ({', '.join(gone)})" if is_there else "was not there"
            self._say(
                StoreFindingKind.CATALOG,
                "catalog.sqlite",
                f"the one before {what}; what only it knew is gone: jobs, events, losses, runs and epochs of before."
                " Runs are found again in the ticks that are left",
            )

    def _copy(self, old: sqlite3.Connection, table: str) -> bool:
        with self._new.transaction() as connection:
            names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            columns, marks = ", ".join(names), ", ".join("?" * len(names))
            try:
                rows = old.execute(f"SELECT {columns} FROM {table}")  # noqa: S608 - own text
                connection.executemany(f"INSERT OR IGNORE INTO {table} ({columns}) VALUES ({marks})", rows)  # noqa: S608
            except (sqlite3.DatabaseError, UnicodeDecodeError):
                return False
        return True

    # Segments ----------------------------------------------------------------------------------------------------

    def _sources(self) -> Iterator[tuple[SegmentKind, Path]]:
        """Yield ticks before averages, what is in its place before what was set aside."""
        for kind in (SegmentKind.HOUR, SegmentKind.MINUTE, SegmentKind.SECOND):
            own = self._layout.folder(kind)
            for folder in (own, self._layout.lost_found / own.name):
                for path in sorted(folder.glob("*.parquet")):
                    yield kind, path

    def _take(self, kind: SegmentKind, path: Path) -> None:
        try:
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                self._take_open(kind, path, file)
        except _UnusableError as error:
            self._leave(path, str(error))
        except UNREADABLE as error:
            self._leave(path, f"cannot be read ({error})")

    def _leave(self, path: Path, why: str) -> None:
        self._unusable.append(path)
        name = str(path.relative_to(self._layout.directory))
        self._say(StoreFindingKind.DAMAGED, name, f"{why}; it is set aside, its records are a gap on record")

    def _take_open(self, kind: SegmentKind, path: Path, file: pq.ParquetFile) -> None:
        notes = read_notes(file.metadata)
        numbers = self._numbers(notes, is_first_format=not notes)
        match = _NAME.fullmatch(path.name)
        created = int(match[2]) if match else path.stat().st_mtime_ns
        newest = int(match[3]) if match and kind is not SegmentKind.MINUTE else created
        name = match[1] if match else path.name
        target = self._layout.path(kind, name)
        raw = self._registered.get(name.replace(".second.", ".hour.")) if kind is SegmentKind.SECOND else None
        parts: list[SegmentPart] = []
        found: list[tuple[str, int, np.ndarray]] = []
        is_whole = path == target or not target.exists()
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, use_threads=False)  # all columns: their pages' checksums are looked at
            for gpu_uuid, begin, end in runs_of_rows(table):
                rows = table.slice(begin, end - begin)
                number = rows.column("spool")[0].as_py()
                if number not in numbers:
                    raise _UnusableError("says nothing of whose spools it holds, nor did the catalogue before")
                sequences, time = rows.column("sequence").to_numpy(), rows.column("time_unix_nano").to_numpy()
                spool = numbers[number]
                is_whole &= spool == number and not self._is_held(kind, gpu_uuid, spool, sequences, raw).any()
                found.append((gpu_uuid, spool, sequences))
                bounds = (int(sequences.min()), int(sequences.max()), int(time.min()), int(time.max()))
                parts.append(SegmentPart(gpu_uuid, spool, group, begin, end - begin, *bounds))
        is_whole &= len({(part.gpu_uuid, part.spool, part.row_group) for part in parts}) == len(parts)
        if not is_whole:
            self._write_rest(kind, path, file, numbers, raw, (created, newest))
            return
        segment = NewSegment(name, path.stat().st_size, file.metadata.num_rows, created, parts, kind, newest)
        if path != target:
            self._files.rename(path, target)
            self._files.sync_directory(target.parent)
            self._taken_back += 1
        self._register(segment, found, raw)
        self._note_inventories(notes, numbers)

    def _register(self, segment: NewSegment, found: list[tuple[str, int, np.ndarray]], raw: int | None) -> None:
        self._registered[segment.file_name] = self._segments.take_back(segment, raw)
        held = self._seconds if segment.kind is SegmentKind.SECOND else self._ticks
        for gpu_uuid, spool, sequences in found:
            held.add(gpu_uuid, spool, sequences)
        self._row_count += segment.row_count

    def _is_held(
        self, kind: SegmentKind, gpu_uuid: str, spool: int, sequences: np.ndarray, raw: int | None
    ) -> np.ndarray:
        if kind is not SegmentKind.SECOND:
            return self._ticks.contains(gpu_uuid, spool, sequences)
        held = self._seconds.contains(gpu_uuid, spool, sequences)
        # Averages of ticks that are there are read beside them only if the catalogue knows of which.
        return held if raw is not None else held | self._ticks.contains(gpu_uuid, spool, sequences)

    def _write_rest(
        self,
        kind: SegmentKind,
        path: Path,
        file: pq.ParquetFile,
        numbers: Mapping[int, int],
        raw: int | None,
        flushed: tuple[int, int],
    ) -> None:
        """Write what no other segment holds, with the numbers that spools have now; the file itself is done with."""
        self._superseded.append(path)
        schema, created = file.schema_arrow, flushed[0]
        while True:
            minute = f"{created:020d}-{0:08d}.parquet"
            name = f"{created:020d}-{flushed[1]:020d}.second.parquet" if kind is SegmentKind.SECOND else minute
            target = self._layout.path(SegmentKind.SECOND if kind is SegmentKind.SECOND else SegmentKind.MINUTE, name)
            if not target.exists():
                break
            created += 1
        output = SegmentOutput(self._files, target, schema, ())
        found = []
        try:
            for group in range(file.num_row_groups):
                table = file.read_row_group(group, use_threads=False)
                for gpu_uuid, begin, end in runs_of_rows(table):
                    rows = table.slice(begin, end - begin)
                    spool = numbers[rows.column("spool")[0].as_py()]
                    sequences = rows.column("sequence").to_numpy()
                    rows = rows.filter(pa.array(~self._is_held(kind, gpu_uuid, spool, sequences, raw)))
                    if not rows.num_rows:
                        continue
                    place = schema.get_field_index("spool")
                    rows = rows.set_column(place, schema.field(place), pa.array(np.full(rows.num_rows, spool)))
                    sequences, time = rows.column("sequence").to_numpy(), rows.column("time_unix_nano").to_numpy()
                    found.append((gpu_uuid, spool, sequences))
                    bounds = (int(sequences.min()), int(sequences.max()), int(time.min()), int(time.max()))
                    output.write(rows, [SegmentPart(gpu_uuid, spool, 0, 0, rows.num_rows, *bounds)])
            if not found:
                output.abandon()
                return
            notes = [
                replace(note, spool=numbers[note.spool]) for note in read_notes(file.metadata) if note.spool in numbers
            ]
            output.finish(notes)
        except BaseException:
            output.abandon()
            raise
        written = SegmentKind.SECOND if kind is SegmentKind.SECOND else SegmentKind.MINUTE
        segment = NewSegment(
            target.name, output.size_bytes, output.row_count, created, output.parts, written,
            flushed[1] if written is SegmentKind.SECOND else created,
        )  # fmt: skip
        self._register(segment, found, raw)
        self._note_inventories(read_notes(file.metadata), numbers)

    # Spools ------------------------------------------------------------------------------------------------------

    def _numbers(self, notes: list[SpoolNote], *, is_first_format: bool) -> dict[int, int]:
        """Return the number in a file -> the number of the same spool in the new catalogue."""
        self._segments.adopt_spools(notes)
        known = self._segments.identities()
        if is_first_format:
            return {number: number for number in known}
        return {note.spool: self._facts.spool_number(note.agent_id, note.spool_id) for note in notes}

    def _note_inventories(self, notes: list[SpoolNote], numbers: Mapping[int, int]) -> None:
        for note in notes:
            if note.inventory_sequence:
                self._inventories[numbers[note.spool], note.inventory_sequence] = note

    def _keep_inventories(self) -> None:
        known = set(self._new.rows("SELECT spool, sequence FROM inventories"))
        for key, note in sorted(self._inventories.items(), key=lambda item: item[0]):
            inventory = decode_inventory(note.inventory)
            if inventory and key not in known:
                self._facts.save([(Position(*key), note.agent_id, inventory, note.inventory)], {})

    def _complete(self) -> None:
        """Put the sequences that are reached and the gaps into the catalogue."""
        self._keep_inventories()
        held = self._ticks.by_spool()
        with self._new.transaction() as connection:
            for spool, ranges in held.items():
                last = max(last for _, last in ranges.runs())
                connection.execute(
                    "UPDATE spools SET stored_sequence = MAX(stored_sequence, ?) WHERE spool = ?", (last, spool)
                )
            connection.execute(
                "DELETE FROM gaps WHERE first_sequence <= (SELECT stored_sequence FROM spools"
                " WHERE spools.spool = gaps.spool)"
            )
        gaps = list(missing_records(self._new, held, {}))
        with self._new.transaction() as connection:
            connection.executemany(
                "INSERT INTO gaps VALUES (?, ?, ?)", [(spool, begin, end) for spool, _, _, begin, end in gaps]
            )
        for _, agent_id, spool_id, begin, end in gaps[:_MOST_GAPS_LISTED]:
            problem = f"records {begin} to {end} of spool {spool_id} of agent {agent_id} are in no segment"
            self._say(StoreFindingKind.HOLE, "catalog.sqlite", f"{problem}; they are a gap on record")
        if len(gaps) > _MOST_GAPS_LISTED:
            self._say(
                StoreFindingKind.HOLE, "catalog.sqlite", f"{len(gaps) - _MOST_GAPS_LISTED} more gaps are on record"
            )

    # Files -------------------------------------------------------------------------------------------------------

    def _swap(self) -> None:
        """Keep the catalogue before, and put the new one in its place."""
        catalog, kept = self._layout.catalog, self._layout.lost_found
        if catalog.exists():
            kept.mkdir(exist_ok=True)
            number = 1
            while (copy := kept / f"{catalog.name}.{number}").exists():
                number += 1
            try:
                os.link(catalog, copy)
            except OSError:
                shutil.copy2(catalog, copy)
            for beside in ("-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    catalog.with_name(catalog.name + beside).replace(copy.with_name(copy.name + beside))
        self._files.rename(self._new.path, catalog)
        self._files.sync_directory(self._layout.directory)

    def _remove_catalog(self, path: Path) -> None:
        for beside in ("", "-wal", "-shm"):
            self._files.remove(path.with_name(path.name + beside))
