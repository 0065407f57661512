"""Files in the folders of segments that the catalogue does not know: what a crash leaves, or another catalogue's.

A file goes only where it is proven that nothing goes with it: half-made ones by their names, those that retention has
deleted by their record, whole ones because every record of theirs is in registered segments or in the log. Everything
else, as after the catalogue was restored from a backup, is set aside in ``lost+found/``, whence
``gpusonde store fsck --rebuild`` takes it back.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gpusonde.collector.storage.local.catalog import SegmentCatalog
from gpusonde.collector.storage.local.facts import LocalFacts
from gpusonde.collector.storage.local.segments import SpoolNote, StoreLayout, read_notes, store_errors
from gpusonde.collector.storage.memtable import Memtables
from gpusonde.collector.storage.model import Position, decode_inventory
from gpusonde.errors import StoreCorruptError
from gpusonde.service.durable_files import FileLayer
from gpusonde.service.wire import Int64Array

_LOG = logging.getLogger(__name__)
# Names under which segments are written before they get their own.
_HALF_MADE = re.compile(r"\.?\d{20}-\d{8,20}(\.hour|\.second)?\.parquet(\.[0-9a-f]{8})?\.tmp")
# What reading a file that is no segment, or a damaged one, ends in.
UNREADABLE = (OSError, ValueError, LookupError, pa.ArrowException)

Interval = tuple[int, int]


class SequenceRanges:
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

    def add_from(self, other: SequenceRanges) -> None:
        """Add the numbers of another set."""
        self._found += merged(other._found)

    @property
    def first(self) -> int | None:
        """The lowest number."""
        return min((first for first, _ in self._found), default=None)

    def runs(self) -> Iterator[Interval]:
        """Yield the numbers as runs in order that do not touch."""
        return merged(self._found)

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


def find_leftovers(layout: StoreLayout, segments: SegmentCatalog) -> list[Path]:
    """Return the files in the folders of segments that the catalogue does not know."""
    registered = {layout.path(segment.kind, segment.file_name) for segment in segments.files()}
    return [
        path
        for folder in layout.segment_folders
        for path in (sorted(folder.iterdir()) if folder.is_dir() else ())
        if path.suffix in (".tmp", ".parquet") and path not in registered
    ]


def adopt_spools(leftovers: Iterable[Path], segments: SegmentCatalog, facts: LocalFacts) -> None:
    """Keep the spools that leftovers tell of, with their numbers and inventories: the log may hold more of them."""
    for path in leftovers:
        notes = _notes(path)
        segments.adopt_spools(notes)
        known = segments.identities()
        for note in notes:
            inventory = decode_inventory(note.inventory) if note.inventory_sequence else None
            if inventory and known.get(note.spool) == (note.agent_id, note.spool_id):
                position = Position(note.spool, note.inventory_sequence)
                facts.save([(position, note.agent_id, inventory, note.inventory)], {})


def tidy(
    leftovers: Iterable[Path], layout: StoreLayout, segments: SegmentCatalog, memory: Memtables, files: FileLayer
) -> None:
    """Remove leftovers whose records are elsewhere, and set the others aside."""
    for path in leftovers:
        with store_errors(path):
            size = path.stat().st_size
            if _HALF_MADE.fullmatch(path.name):
                why = "was being written when the collector ended"
            elif segments.was_deleted(path.name, size):
                why = "was deleted by retention"
            elif _is_elsewhere(path, layout, segments, memory):
                why = "holds what is in the log or in other segments"
            else:
                target = set_aside(path, layout, files)
                _LOG.error(
                    "%s (%d bytes) is not in the catalogue and is now %s; was catalog.sqlite replaced by an older one?"
                    " 'gpusonde store fsck --rebuild %s' takes its samples back",
                    path,
                    size,
                    target,
                    layout.directory,
                )
                continue
            files.remove(path)
            _LOG.info("removed %s (%d bytes), which %s", path, size, why)


def set_aside(path: Path, layout: StoreLayout, files: FileLayer) -> Path:
    """Move a file into ``lost+found/`` under a name that is not in use; return where it is.

    Raises:
        OSError: It cannot be moved.
    """
    folder = layout.lost_found / path.parent.relative_to(layout.directory)
    folder.mkdir(parents=True, exist_ok=True)
    target, number = folder / path.name, 1
    while target.exists():
        target, number = folder / f"{number}-{path.name}", number + 1
    files.rename(path, target)
    files.sync_directory(folder)
    return target


def read_sequences(
    path: Path, rows: Sequence[tuple[int, int, int]] | None = None
) -> Iterator[tuple[str, int, Int64Array]]:
    """Yield GPU, spool and sequences of runs of rows of one GPU and spool.

    Args:
        path: The file.
        rows: Row group, first row and number of rows of what to read; None for all.

    Raises:
        OSError: It cannot be read; so do ``ValueError``, ``LookupError`` and Arrow's exceptions.
    """
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        wanted = (
            rows
            if rows is not None
            else [(g, 0, file.metadata.row_group(g).num_rows) for g in range(file.num_row_groups)]
        )
        for group, first, count in wanted:
            table = file.read_row_group(group, ["gpu_uuid", "spool", "sequence"], use_threads=False)
            for gpu_uuid, begin, end in runs_of_rows(table.slice(first, count)):
                part = table.slice(first + begin, end - begin)
                yield gpu_uuid, part.column("spool")[0].as_py(), part.column("sequence").to_numpy()


def runs_of_rows(table: pa.Table) -> Iterator[tuple[str, int, int]]:
    """Yield the GPU, first row and the row behind the last of runs of rows of one GPU and spool."""
    gpu = table.column("gpu_uuid").combine_chunks().dictionary_encode()
    gpu = gpu if isinstance(gpu, pa.DictionaryArray) else gpu.combine_chunks()
    codes, spools = gpu.indices.to_numpy(), table.column("spool").to_numpy()
    changes = np.flatnonzero((np.diff(codes) != 0) | (np.diff(spools) != 0)) + 1
    borders = [0, *changes.tolist(), table.num_rows] if table.num_rows else []
    for begin, end in pairwise(borders):
        yield gpu.dictionary[int(codes[begin])].as_py(), begin, end


def _notes(path: Path) -> list[SpoolNote]:
    try:
        return read_notes(pq.read_metadata(path)) if path.suffix == ".parquet" else []
    except UNREADABLE:
        return []


def _is_elsewhere(path: Path, layout: StoreLayout, segments: SegmentCatalog, memory: Memtables) -> bool:
    notes, known = _notes(path), segments.identities()
    # Of another catalogue the same number may mean another spool.
    sure = {note.spool for note in notes if known.get(note.spool) == (note.agent_id, note.spool_id)}
    try:
        for gpu_uuid, spool, sequences in read_sequences(path):
            if spool not in sure:
                return False
            first, last = int(sequences.min()), int(sequences.max())
            held = SequenceRanges()
            for memtable in memory.memtables():
                for stored in memtable.blocks.get(gpu_uuid, ()):
                    if stored.position.spool == spool:
                        held.add(stored.position.sequence, stored.position.sequence)
            for row in segments.tick_parts_of(gpu_uuid, spool, first, last):
                place = [(row.part.row_group, row.part.first_row, row.part.row_count)]
                for _, _, found in read_sequences(layout.path(row.kind, row.file_name), place):
                    held.add_all(found)
            wanted = SequenceRanges()
            wanted.add_all(sequences)
            if any(any(held.missing(*interval)) for interval in wanted.runs()):
                return False
    except (*UNREADABLE, StoreCorruptError):
        return False
    return True
