"""From the files that a crash left to a store that goes on exactly where acknowledgements ended."""

from __future__ import annotations

import json
import logging

from google.protobuf.message import DecodeError

from gpusonde.collector.storage.local.catalog import SegmentCatalog
from gpusonde.collector.storage.local.facts import LocalFacts
from gpusonde.collector.storage.local.leftovers import adopt_spools, find_leftovers, tidy
from gpusonde.collector.storage.local.log import PartEnd, log_parts, read_part
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
    not acknowledged, sent again) count once; a part ends where its bytes stop being entries.

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
        end = PartEnd()
        try:
            for entry in read_part(path, end):
                replay.take(entry)
        except _FOREIGN as error:
            raise StoreError(
                f"{path}: an entry at byte {end.good_bytes} is from another version of the collector ({error}); start"
                " that version once, so that it turns its log into segments"
            ) from error
        if end.torn_bytes:
            _LOG.warning(
                "%s: the last %d bytes are not whole entries and are left out; what was not acknowledged is sent again",
                path,
                end.torn_bytes,
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
        self._gaps: dict[Position, int] = {}

    def take(self, entry: LogEntry) -> None:
        memory = self._memory
        key = (entry.agent_id, entry.spool_id)
        before = memory.durable.get(key, 0)
        if entry.sequence <= before:
            return
        spool = memory.spools.get(key)
        if spool is None:
            spool = memory.spools[key] = self._facts.spool_number(*key)
        position = Position(spool, entry.sequence)
        decoded = self._decode(entry, position)
        if entry.sequence > before + 1:
            self._gaps[Position(spool, before + 1)] = entry.sequence - 1
        if not isinstance(decoded, BatchRecord):
            self._records.append((position, entry.agent_id, decoded, entry.payload))
        memory.active.add(position, decoded)
        memory.durable[key] = entry.sequence

    def save_facts(self) -> None:
        """Write facts again: the crash may have come between the log and the catalogue."""
        if self._records or self._gaps:
            self._facts.save(self._records, self._gaps)

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
