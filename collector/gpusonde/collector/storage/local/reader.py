"""``LocalReader``: samples from segments and memory together, each tick once whatever is being flushed meanwhile."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpusonde.collector.storage.local.catalog import PartRow, SegmentCatalog
from gpusonde.collector.storage.local.facts import LocalFacts
from gpusonde.collector.storage.local.segments import SegmentFiles, SegmentKind, StoreLayout
from gpusonde.collector.storage.memtable import Memtable, Memtables
from gpusonde.collector.storage.model import Position
from gpusonde.collector.storage.samples import (
    RESOLUTION_S,
    ActivityEntry,
    BindingEntry,
    Column,
    FeedEntry,
    Marker,
    Samples,
    SourceEndEntry,
    StoredBlock,
    column_type,
    concatenate,
    count_column,
    empty_samples,
    join_blocks,
    merge_feed,
    merge_rollups,
    sort_by_time,
)
from gpusonde.errors import StoreCorruptError
from gpusonde.service.wire import Block, Int64Array
from gpusonde.telemetry import METRIC_BY_NAME, MetricKind

_KEYS = ("time_unix_nano", "spool", "sequence", "missed_ticks")

Array = npt.NDArray[Any]


def read_ticks(
    files: SegmentFiles, layout: StoreLayout, row: PartRow, metrics: Sequence[str], *, keep: bool = False
) -> Samples:
    """Read the rows of one part in order of arrival; a metric that the segment does not have is left out.

    Args:
        files: Reads segments.
        layout: Where they lie.
        row: The part.
        metrics: Columns.
        keep: Whether the same columns are likely to be read again soon.

    Raises:
        StoreCorruptError: The file is not there, or does not hold what was written.
    """
    path = layout.path(row.kind, row.file_name)
    found = files.read(path, row.segment, row.part, [*_KEYS, *metrics], keep=keep)
    return _samples(path, found, metrics, RESOLUTION_S if row.kind is SegmentKind.SECOND else 0.0)


def read_rollups(files: SegmentFiles, layout: StoreLayout, rows: Sequence[PartRow], metrics: Sequence[str]) -> Samples:
    """Read averages over seconds of one GPU, each second once.

    Raises:
        StoreCorruptError: A file is not there, or does not hold what was written.
    """
    gauges = [name for name in metrics if METRIC_BY_NAME[name].kind is MetricKind.GAUGE]
    pieces: list[Samples] = []
    counts: dict[str, list[Array]] = {name: [] for name in gauges}
    for row in rows:
        path = layout.path(row.kind, row.file_name)
        found = files.read(path, row.segment, row.part, [*_KEYS, *metrics, *map(count_column, gauges)], keep=True)
        pieces.append(_samples(path, found, metrics, RESOLUTION_S))
        for name in gauges:
            counts[name].append(found.get(count_column(name), np.zeros(row.part.row_count, dtype=np.int64)))
    return merge_rollups(concatenate(pieces, metrics), {name: np.concatenate(counts[name]) for name in gauges})


def _samples(path: Path, found: dict[str, Array], metrics: Sequence[str], resolution_s: float) -> Samples:
    if any(key not in found for key in _KEYS):
        raise StoreCorruptError(path, f"lacks one of the columns {', '.join(_KEYS)}")
    time, spool, sequence, missed = (found[key].astype(np.int64, copy=False) for key in _KEYS)
    columns: dict[str, Column] = {
        name: found[name].astype(column_type(name), copy=False) for name in metrics if name in found
    }
    return Samples(time, spool, sequence, missed, columns, resolution_s)


_LOG = logging.getLogger(__name__)
_END_OF_TIME = 1 << 62


class LocalReader:
    """Implements ``SampleReader`` over segments and memory.

    Compaction and retention may remove a segment between the look into the catalogue and the reading. Then the
    catalogue knows better meanwhile and is asked again.

    Args:
        memory: What is not in segments.
        facts: What is said of GPUs beside their ticks.
        segments: What is in segments.
        layout: Where the segments lie.
        segment_files: Reads them.
    """

    def __init__(
        self,
        memory: Memtables,
        facts: LocalFacts,
        segments: SegmentCatalog,
        layout: StoreLayout,
        segment_files: SegmentFiles,
    ) -> None:
        self._memory = memory
        self._facts = facts
        self._segments = segments
        self._layout = layout
        self._segment_files = segment_files

    def read(
        self,
        gpu_uuid: str,
        start_unix_nano: int,
        end_unix_nano: int,
        metrics: Sequence[str] | None = None,
        *,
        first: Position | None = None,
        last: Position | None = None,
    ) -> Samples:
        """Return the ticks of a GPU in ``[start, end)`` in order of time, each once; see ``SampleReader``."""
        wanted = self._facts.metrics(gpu_uuid) if metrics is None else list(metrics)
        while True:
            with self._memory.lock:
                spools = self._spools_beside(first)
                rows: Sequence[PartRow] = ()
                memtables = self._memory.latest_memtables()
                if first is None or spools is None or self._are_flushed(spools, first):
                    rows = self._segments.parts_between(gpu_uuid, start_unix_nano, end_unix_nano)
                    memtables = self._memory.memtables()
                if first is None or spools is None:
                    blocks = _blocks_between(memtables, gpu_uuid, start_unix_nano, end_unix_nano)
                else:
                    before = Position(first.spool, first.sequence - 1)
                    blocks = [block for each in memtables for block in each.blocks_after(gpu_uuid, spools, before)]
            rows = [row for row in rows if spools is None or row.part.spool in spools]
            try:
                pieces = self._read_rollups([row for row in rows if row.kind is SegmentKind.SECOND], wanted)
                pieces += [
                    self._read_part(row, wanted, keep=True) for row in rows if row.kind is not SegmentKind.SECOND
                ]
                break
            except StoreCorruptError as error:
                if self._segments.is_registered(error.path.name):
                    raise
        pieces.append(join_blocks(blocks, wanted))
        pieces = [piece.between(start_unix_nano, end_unix_nano) for piece in pieces]
        samples = concatenate([piece for piece in pieces if len(piece)] or [empty_samples(wanted)], wanted)
        if first:
            samples = samples.after(Position(first.spool, first.sequence - 1))
        if last:
            samples = samples.through(last)
        return sort_by_time(samples)

    def has_rollups(self, gpu_uuid: str, start_unix_nano: int, end_unix_nano: int) -> bool:
        """Return whether some of the ticks of a GPU in ``[start, end)`` are kept as averages only."""
        rows = self._segments.parts_between(gpu_uuid, start_unix_nano, end_unix_nano)
        return any(row.kind is SegmentKind.SECOND for row in rows)

    def _are_flushed(self, spools: Iterable[int], first: Position) -> bool:
        """Say whether records from a position on are in segments only; the latest ones are in memory as well."""
        return any((spool, self._memory.flushed_sequence(spool)) >= first for spool in spools)

    def _spools_beside(self, position: Position | None) -> frozenset[int] | None:
        """Return the spools of the agent that owns a position's spool."""
        if position is None:
            return None
        owners = {number: agent_id for (agent_id, _), number in self._memory.spools.items()}
        return frozenset(n for n, agent_id in owners.items() if agent_id == owners.get(position.spool))

    def _read_part(self, row: PartRow, metrics: Sequence[str], *, keep: bool = False) -> Samples:
        return read_ticks(self._segment_files, self._layout, row, metrics, keep=keep)

    def _read_rollups(self, rows: Sequence[PartRow], metrics: Sequence[str]) -> list[Samples]:
        return [read_rollups(self._segment_files, self._layout, rows, metrics)] if rows else []

    def next_tick(self, gpu_uuid: str, start_unix_nano: int) -> int | None:
        """Return the time of a GPU's first tick that is not before a time, or None if there is no such tick."""
        while True:
            with self._memory.lock:
                rows = self._segments.parts_between(gpu_uuid, start_unix_nano, _END_OF_TIME)
                memtables = self._memory.memtables()
                blocks = [s.block for s in _blocks_between(memtables, gpu_uuid, start_unix_nano, _END_OF_TIME)]
            try:
                return self._earliest(rows, blocks, start_unix_nano)
            except StoreCorruptError as error:
                if self._segments.is_registered(error.path.name):
                    raise

    def _earliest(self, rows: Sequence[PartRow], blocks: Sequence[Block], start_unix_nano: int) -> int | None:
        ticks = [_first_from(block.time_unix_nano, start_unix_nano) for block in blocks]
        best = min((tick for tick in ticks if tick is not None), default=None)
        for row in sorted(rows, key=lambda row: row.part.start_unix_nano):
            if best is not None and row.part.start_unix_nano >= best:
                break
            tick = row.part.start_unix_nano
            if tick < start_unix_nano:
                found = _first_from(self._read_part(row, (), keep=True).time_unix_nano, start_unix_nano)
                tick = _END_OF_TIME if found is None else found
            best = tick if best is None else min(best, tick)
        return None if best == _END_OF_TIME else best

    def read_feed(self, agent_id: str, gpu_uuid: str, after: Position) -> Iterator[FeedEntry]:
        """Yield what an agent said about a GPU behind a position, in order of arrival; see ``SampleStore``."""
        with self._memory.lock:
            spools = [number for (agent, _), number in self._memory.spools.items() if agent == agent_id]
            blocks: list[StoredBlock] = []
            recent: list[Marker] = []
            for memtable in self._memory.latest_memtables():
                blocks += memtable.blocks_after(gpu_uuid, spools, after)
                recent += memtable.markers_after(gpu_uuid, spools, after)
            markers: Iterable[Marker] = recent
            parts: list[PartRow] = []
            stored: dict[int, int] = {}
            # Whoever keeps up never needs the disk.
            if self._are_flushed(spools, Position(after.spool, after.sequence + 1)):
                parts = self._segments.parts_after(gpu_uuid, spools, after)
                stored = {spool: self._memory.stored.get(spool, 0) for spool in spools}
                blocks = [block for block in blocks if block.position.sequence > stored[block.position.spool]]
                markers = self._stored_markers(agent_id, gpu_uuid, after)
        return merge_feed(chain(self._flushed_samples(gpu_uuid, parts, stored, after), _by_spool(blocks)), markers)

    def _flushed_samples(
        self, gpu_uuid: str, rows: Sequence[PartRow], stored: Mapping[int, int], after: Position
    ) -> Iterator[Samples]:
        """Yield what was in segments when ``stored`` was taken, however long the caller takes over it."""
        metrics = self._facts.metrics(gpu_uuid) if rows else []
        while rows:
            left: Sequence[PartRow] = ()
            for row in rows:
                try:
                    piece = self._read_part(row, metrics).after(after)
                except StoreCorruptError as error:
                    if self._segments.is_registered(row.file_name):
                        _LOG.error("samples of %s are left out of tracking: %s", gpu_uuid, error)
                        continue
                    left = self._segments.parts_after(gpu_uuid, list(stored), after)
                    break
                # What was flushed since then is among the caller's blocks.
                if row.part.last_sequence > stored[row.part.spool]:
                    piece = piece.take(piece.sequence <= stored[row.part.spool])
                if len(piece):
                    after = piece.last_position
                    yield piece
            rows = left

    def _stored_markers(self, agent_id: str, gpu_uuid: str, after: Position) -> Iterator[Marker]:
        """Yield what is stored at this moment, whenever it is asked for."""
        durable = {spool: self._memory.durable.get(key, 0) for key, spool in self._memory.spools.items()}
        markers: list[Marker] = [
            BindingEntry(position, binding)
            for position, binding in self._facts.bindings(agent_id, gpu_uuid)
            if position > after
        ]
        markers += [SourceEndEntry(position) for position in self._facts.source_ends_after(agent_id, gpu_uuid, after)]
        markers.sort(key=lambda mark: mark.position)
        # Far more than the others, and read piece by piece.
        activity = (ActivityEntry(position, job) for position, job in self._facts.activity(agent_id, gpu_uuid, after))
        merged: Iterator[Marker] = heapq.merge(markers, activity, key=lambda mark: mark.position)
        return (mark for mark in merged if mark.position.sequence <= durable.get(mark.position.spool, 0))


def _blocks_between(
    memtables: Iterable[Memtable], gpu_uuid: str, start_unix_nano: int, end_unix_nano: int
) -> list[StoredBlock]:
    """Return a GPU's blocks with ticks in ``[start, end)``, in order of arrival."""
    return [
        stored for memtable in memtables for stored in memtable.blocks_between(gpu_uuid, start_unix_nano, end_unix_nano)
    ]


def _by_spool(blocks: Sequence[StoredBlock]) -> Iterator[Samples]:
    """Join blocks in order of arrival, one piece per spool."""
    for _, same in groupby(blocks, key=lambda stored: stored.position.spool):
        yield join_blocks(list(same))


def _first_from(time_unix_nano: Int64Array, start_unix_nano: int) -> int | None:
    """Return the earliest of the times that is not before a time."""
    after = time_unix_nano[time_unix_nano >= start_unix_nano]
    return int(after.min()) if after.size else None
