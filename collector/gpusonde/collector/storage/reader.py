"""Reading from segments and memory together, so that every tick is seen once whatever is being sealed meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from pathlib import Path

from gpusonde.collector.records.model import Int64Array, Position
from gpusonde.collector.storage.arrivals import Arrival, BindingArrived, Mark, SourceEndArrived, in_order_of_arrival
from gpusonde.collector.storage.disk.segments import read_segment_part
from gpusonde.collector.storage.errors import StoreCorruptError
from gpusonde.collector.storage.memory import Memory
from gpusonde.collector.storage.samples import (
    Samples,
    StoredBlock,
    concatenate,
    empty_samples,
    in_order_of_time,
    samples_of,
)
from gpusonde.collector.storage.tables.facts import Facts
from gpusonde.collector.storage.tables.segment_catalog import PartRow, SegmentCatalog

_LOG = logging.getLogger(__name__)
_END_OF_TIME = 1 << 62


class Reader:
    """Reads samples; see ``Store`` for what its methods promise.

    Args:
        memory: What is not in segments.
        facts: Bindings and source ends.
        segments: What is in segments.
        directory: Where the segments lie.
    """

    def __init__(self, memory: Memory, facts: Facts, segments: SegmentCatalog, directory: Path) -> None:
        self._memory = memory
        self._facts = facts
        self._segments = segments
        self._directory = directory

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
        """See ``Store.read``."""
        wanted = self._facts.metrics_of(gpu_uuid) if metrics is None else list(metrics)
        with self._memory.lock:
            parts = self._segments.parts_between(gpu_uuid, start_unix_nano, end_unix_nano)
            blocks = [
                stored
                for generation in self._memory.generations()
                for stored in generation.blocks_between(gpu_uuid, start_unix_nano, end_unix_nano)
            ]
            spools = self._spools_beside(first)
        pieces = [
            self._read_part(row, wanted).between(start_unix_nano, end_unix_nano)
            for row in parts
            if spools is None or row.part.spool in spools
        ]
        blocks = [stored for stored in blocks if spools is None or stored.position.spool in spools]
        pieces.append(samples_of(blocks, wanted).between(start_unix_nano, end_unix_nano))
        samples = concatenate([piece for piece in pieces if len(piece)] or [empty_samples(wanted)], wanted)
        if first:
            samples = samples.after(Position(first.spool, first.sequence - 1))
        if last:
            samples = samples.through(last)
        return in_order_of_time(samples)

    def _spools_beside(self, position: Position | None) -> frozenset[int] | None:
        """Return the spools of the agent that owns a position's spool."""
        if position is None:
            return None
        owners = {number: agent_id for (agent_id, _), number in self._memory.spools.items()}
        return frozenset(n for n, agent_id in owners.items() if agent_id == owners.get(position.spool))

    def _read_part(self, row: PartRow, metrics: Sequence[str]) -> Samples:
        return read_segment_part(self._directory / row.file_name, row.part, metrics)

    def next_tick(self, gpu_uuid: str, start_unix_nano: int) -> int | None:
        """See ``Store.next_tick``."""
        with self._memory.lock:
            parts = self._segments.parts_between(gpu_uuid, start_unix_nano, _END_OF_TIME)
            blocks = [
                stored.block
                for generation in self._memory.generations()
                for stored in generation.blocks_between(gpu_uuid, start_unix_nano, _END_OF_TIME)
            ]
        ticks = [_first_from(block.time_unix_nano, start_unix_nano) for block in blocks]
        best = min((tick for tick in ticks if tick is not None), default=None)
        for row in sorted(parts, key=lambda row: row.part.start_unix_nano):
            if best is not None and row.part.start_unix_nano >= best:
                break
            tick = row.part.start_unix_nano
            if tick < start_unix_nano:
                found = _first_from(self._read_part(row, ()).time_unix_nano, start_unix_nano)
                tick = _END_OF_TIME if found is None else found
            best = tick if best is None else min(best, tick)
        return best

    def arrivals(self, agent_id: str, gpu_uuid: str, after: Position) -> Iterator[Arrival]:
        """See ``Store.arrivals``."""
        with self._memory.lock:
            spools = [number for (agent, _), number in self._memory.spools.items() if agent == agent_id]
            blocks: list[StoredBlock] = []
            marks: list[Mark] = []
            for generation in self._memory.latest_generations():
                blocks += generation.blocks_after(gpu_uuid, spools, after)
                marks += generation.marks_after(gpu_uuid, spools, after)
            parts: list[PartRow] = []
            # Whoever keeps up never needs the disk.
            if any((spool, self._memory.only_stored(spool)) > after for spool in spools):
                parts = self._segments.parts_after(gpu_uuid, spools, after)
                blocks = [
                    block
                    for block in blocks
                    if block.position.sequence > self._memory.stored.get(block.position.spool, 0)
                ]
                marks = self._stored_marks(agent_id, gpu_uuid, after)
        metrics = self._facts.metrics_of(gpu_uuid) if parts else []
        sealed = (piece for row in parts for piece in self._readable_part(row, metrics, after))
        return in_order_of_arrival(chain(sealed, _by_spool(blocks)), marks)

    def _stored_marks(self, agent_id: str, gpu_uuid: str, after: Position) -> list[Mark]:
        marks: list[Mark] = [
            BindingArrived(position, binding)
            for position, binding in self._facts.bindings(agent_id, gpu_uuid)
            if position > after
        ]
        marks += [SourceEndArrived(position) for position in self._facts.source_ends_after(agent_id, gpu_uuid, after)]
        durable = {spool: self._memory.durable.get(key, 0) for key, spool in self._memory.spools.items()}
        return sorted(
            (mark for mark in marks if mark.position.sequence <= durable.get(mark.position.spool, 0)),
            key=lambda mark: mark.position,
        )

    def _readable_part(self, row: PartRow, metrics: Sequence[str], after: Position) -> Iterator[Samples]:
        try:
            yield self._read_part(row, metrics).after(after)
        except StoreCorruptError as error:
            _LOG.error("samples of %s are left out of tracking: %s", row.part.gpu_uuid, error)


def _by_spool(blocks: Sequence[StoredBlock]) -> Iterator[Samples]:
    """Join blocks in order of arrival, one piece per spool."""
    for _, same in groupby(blocks, key=lambda stored: stored.position.spool):
        yield samples_of(list(same))


def _first_from(time_unix_nano: Int64Array, start_unix_nano: int) -> int | None:
    """Return the earliest of the times that is not before a time."""
    after = time_unix_nano[time_unix_nano >= start_unix_nano]
    return int(after.min()) if after.size else None
