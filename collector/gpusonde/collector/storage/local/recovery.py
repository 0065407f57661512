"""From the files that a crash left to a store that goes on exactly where acknowledgements ended."""

from __future__ import annotations

import json
import logging

from google.protobuf.message import DecodeError

from gpusonde.collector.storage.local.catalog import SegmentCatalog
from gpusonde.collector.storage.local.facts import LocalFacts
from gpusonde.collector.storage.local.leftovers import SequenceRanges, adopt_spools, find_leftovers, tidy
from gpusonde.collector.storage.local.log import PartReport, log_parts, read_part
from gpusonde.collector.storage.local.segments import StoreLayout
from gpusonde.collector.storage.memtable import ImmutableMemtable, Memtable, Memtables
from gpusonde.collector.storage.model import (
    STORED_LIMITS,
    EntryKind,
    LogEntry,
    Position,
    RejectedRecord,
    StoredRecord,
)
from gpusonde.errors import StoreError, WireError
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.service.durable_files import FileLayer
from gpusonde.service.wire import BatchRecord, InventoryRecord, decode_record

_LOG = logging.getLogger(__name__)
# What reading an entry ends in whose checksum is right, but which this version did not write.
_FOREIGN = (
    WireError, DecodeError, ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError,
)  # fmt: skip


def recover(
    layout: StoreLayout, facts: LocalFacts, segments: SegmentCatalog, files: FileLayer
) -> tuple[Memtables, int]:
    """Replay the log over the catalogue; return what is not in segments, and the number of the next log part.

    Entries at or below a spool's stored sequence are in a segment and are skipped; entries that occur twice (written,
    not acknowledged, sent again) count once. Damaged bytes cost the entries that they hold: those are a gap on record
    as soon as a later entry of their spool is known, unless they may never have been acknowledged.

    Raises:
        StoreError: The log was written by a newer collector.
    """
    leftovers = find_leftovers(layout, segments)
    adopt_spools(leftovers, segments, facts)
    parts = log_parts(layout.log)
    next_part = parts[-1][0] + 1 if parts else 1
    memory = Memtables()
    for key, position in facts.spools().items():
        memory.spools[key] = position.spool
        memory.stored[position.spool] = memory.durable[key] = position.sequence
    replay = _Replay(memory, facts)
    for _, path in parts:
        report, known_gaps = PartReport(), set(replay.gaps)
        try:
            for entry in read_part(path, report):
                replay.take(entry, is_unsure=report.is_unsure)
        except _FOREIGN as error:
            raise StoreError(
                f"{path}: an entry at byte {report.good_bytes} is from another version of the collector ({error});"
                " start that version once, so that it turns its log into segments"
            ) from error
        if report.torn_bytes:
            _LOG.warning(
                "%s: the last %d bytes are not whole entries and are left out; what was not acknowledged is sent again",
                path,
                report.torn_bytes,
            )
        if report.damaged_bytes:
            lost = [replay.describe(first) for first in sorted(set(replay.gaps) - known_gaps)]
            _LOG.error(
                "%s: %d bytes between its entries are damaged; lost and on record: %s",
                path,
                report.damaged_bytes,
                "; ".join(lost) or "nothing yet, agents are asked for what is missing",
            )
    if replay.undecodable:
        _LOG.error(
            "%d records in the log cannot be read without the inventory of their spool, which the catalogue lacks;"
            " agents are asked for them again",
            replay.undecodable,
        )
    replay.save_facts()
    tidy(leftovers, layout, segments, memory, files)
    _name_damaged(layout, segments)
    if memory.active.reached:
        memory.frozen.append(ImmutableMemtable(memory.active, next_part - 1))
        memory.active = Memtable()
    return memory, next_part


def _name_damaged(layout: StoreLayout, segments: SegmentCatalog) -> None:
    for segment in segments.files():
        path = layout.path(segment.kind, segment.file_name)
        if not path.exists() or path.stat().st_size != segment.size_bytes:
            _LOG.error("%s is missing or has changed its size; reads of its time range will fail", path)


class _Replay:
    def __init__(self, memory: Memtables, facts: LocalFacts) -> None:
        self._memory = memory
        self._facts = facts
        self._inventories: dict[int, InventoryRecord | None] = {}
        self._records: list[tuple[Position, str, StoredRecord, bytes]] = []
        self.gaps: dict[Position, int] = {}
        self.undecodable = 0

    def take(self, entry: LogEntry, *, is_unsure: bool) -> None:
        memory = self._memory
        key = (entry.agent_id, entry.spool_id)
        before = memory.durable.get(key, 0)
        if entry.sequence <= before:
            return
        if is_unsure and entry.sequence > before + 1:
            return  # what is missing may still be with the agent, which sends both again
        spool = memory.spools.get(key)
        if spool is None:
            spool = memory.spools[key] = self._facts.spool_number(*key)
        position = Position(spool, entry.sequence)
        if entry.sequence > before + 1:
            self._inventories.pop(spool, None)  # a newer one may be among what is missing; the catalogue has it
        try:
            decoded = self._decode(entry, position)
        except WireError:
            if self._inventory(position):
                raise
            self.undecodable += 1
            return
        if entry.sequence > before + 1:
            held = SequenceRanges()
            for sequence in self._facts.sequences(spool, before + 1, entry.sequence - 1):
                held.add(sequence, sequence)
            for first, last in held.missing(before + 1, entry.sequence - 1):
                self.gaps[Position(spool, first)] = last
        if not isinstance(decoded, BatchRecord):
            self._records.append((position, entry.agent_id, decoded, entry.payload))
        memory.active.add(position, decoded)
        memory.durable[key] = entry.sequence

    def save_facts(self) -> None:
        """Write facts again: the crash may have come between the log and the catalogue."""
        if self._records or self.gaps:
            self._facts.save(self._records, self.gaps)

    def describe(self, first: Position) -> str:
        """Return a gap in words."""
        agent_id, spool_id = next(key for key, spool in self._memory.spools.items() if spool == first.spool)
        return f"records {first.sequence} to {self.gaps[first]} of spool {spool_id} of agent {agent_id}"

    def _decode(self, entry: LogEntry, position: Position) -> StoredRecord:
        if entry.kind is EntryKind.REJECTION:
            return RejectedRecord(**json.loads(entry.payload))
        decoded = decode_record(ingest_pb2.Record.FromString(entry.payload), self._inventory(position), STORED_LIMITS)
        if isinstance(decoded, InventoryRecord):
            self._inventories[position.spool] = decoded
        return decoded

    def _inventory(self, position: Position) -> InventoryRecord | None:
        if position.spool not in self._inventories:
            self._inventories[position.spool] = self._facts.inventory_at(position)
        return self._inventories[position.spool]
