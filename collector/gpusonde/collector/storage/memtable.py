"""``Memtable``: records that are durable and not yet in a segment; ``Memtables``: those of the local store."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from gpusonde.collector.storage.model import Position, StoredRecord
from gpusonde.collector.storage.samples import ActivityEntry, BindingEntry, Marker, SourceEndEntry, StoredBlock
from gpusonde.service.wire import ActivityRecord, BatchRecord, BindingsRecord, SourceEndedRecord


@dataclass
class Memtable:
    """The records between two flushes.

    Attributes:
        blocks: GPU -> its blocks in order of arrival.
        markers: GPU -> what is said of it beside its ticks, in order of arrival.
        blanks: (GPU, metric, reason) -> NaNs.
        reached: Spool -> highest sequence.
        nbytes: Bytes of the arrays.
    """

    blocks: dict[str, list[StoredBlock]] = field(default_factory=dict)
    markers: dict[str, list[Marker]] = field(default_factory=dict)
    blanks: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    reached: dict[int, int] = field(default_factory=dict)
    nbytes: int = 0

    def add(self, position: Position, record: StoredRecord) -> list[str]:
        """Take in one record and return the GPUs it is about."""
        self.reached[position.spool] = position.sequence
        if isinstance(record, BatchRecord):
            for block in record.blocks:
                self.blocks.setdefault(block.gpu_uuid, []).append(StoredBlock(position, block))
                self.nbytes += block.nbytes
                for blank in block.blanks:
                    self.blanks[block.gpu_uuid, blank.metric, blank.reason] += blank.count
            return [block.gpu_uuid for block in record.blocks]
        if isinstance(record, BindingsRecord):
            for binding in record.bindings:
                self.markers.setdefault(binding.gpu_uuid, []).append(BindingEntry(position, binding))
            return [binding.gpu_uuid for binding in record.bindings]
        if isinstance(record, SourceEndedRecord):
            for gpu_uuid in record.gpu_uuids:
                self.markers.setdefault(gpu_uuid, []).append(SourceEndEntry(position))
            return list(record.gpu_uuids)
        if isinstance(record, ActivityRecord):
            for job in record.jobs:
                self.nbytes += job.values.nbytes + len(job.message)
                for gpu_uuid in job.gpu_uuids:
                    self.markers.setdefault(gpu_uuid, []).append(ActivityEntry(position, job))
        # Nobody is woken up for what processes did: it is read with the ticks that come a moment later.
        return []

    def blocks_between(self, gpu_uuid: str, start_unix_nano: int, end_unix_nano: int) -> list[StoredBlock]:
        """Return a GPU's blocks with ticks in ``[start, end)``."""
        return [
            stored
            for stored in self.blocks.get(gpu_uuid, ())
            if stored.block.time_unix_nano[-1] >= start_unix_nano and stored.block.time_unix_nano[0] < end_unix_nano
        ]

    def blocks_after(self, gpu_uuid: str, spools: Iterable[int], after: Position) -> list[StoredBlock]:
        """Return a GPU's blocks of these spools behind a position."""
        return _newest(self.blocks.get(gpu_uuid, []), frozenset(spools), after)

    def markers_after(self, gpu_uuid: str, spools: Iterable[int], after: Position) -> list[Marker]:
        """Return what is said of a GPU beside its ticks, in these spools behind a position."""
        return [m for m in self.markers.get(gpu_uuid, ()) if m.position > after and m.position.spool in spools]


def _newest(blocks: list[StoredBlock], spools: frozenset[int], after: Position) -> list[StoredBlock]:
    """Return the blocks of some spools of one agent behind a position.

    A reader that keeps up finds its place at the end, so look from there: spools of one agent only ever grow. Blocks of
    another agent that sees the same GPU may lie between.
    """
    i = len(blocks)
    while i and (blocks[i - 1].position > after or blocks[i - 1].position.spool not in spools):
        i -= 1
    return [stored for stored in blocks[i:] if stored.position.spool in spools]


@dataclass
class ImmutableMemtable:
    """A memtable on its way into a segment, and the last log part that holds it until then."""

    memtable: Memtable
    last_part: int


@dataclass
class Memtables:
    """What is not in segments yet, and how far everything is.

    Attributes:
        lock: Held while any of it is changed, and while a consistent view of it and the segment catalogue is taken.
        active: What has arrived since the last flush.
        frozen: What waits to become segments, oldest first.
        durable: (agent, spool id) -> durable sequence.
        spools: (agent, spool id) -> number of the spool.
        stored: Number of a spool -> sequence up to which it is in segments.
        recent: The latest memtable that became a segment: trackers that are a second behind need not read it back.
        stored_before: ``stored`` as it was before that.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    active: Memtable = field(default_factory=Memtable)
    frozen: list[ImmutableMemtable] = field(default_factory=list)
    durable: dict[tuple[str, str], int] = field(default_factory=dict)
    spools: dict[tuple[str, str], int] = field(default_factory=dict)
    stored: dict[int, int] = field(default_factory=dict)
    recent: Memtable = field(default_factory=Memtable)
    stored_before: dict[int, int] = field(default_factory=dict)

    def memtables(self) -> list[Memtable]:
        """Return everything that is not in segments, in order of arrival."""
        return [*(frozen.memtable for frozen in self.frozen), self.active]

    def latest_memtables(self) -> list[Memtable]:
        """Return what is not in segments, and before it what has become one last."""
        return [self.recent, *self.memtables()]

    def flushed_sequence(self, spool: int) -> int:
        """Return the sequence up to which a spool is in segments and not in ``latest_memtables``."""
        before = self.stored_before if spool in self.recent.reached else self.stored
        return before.get(spool, 0)

    def mark_flushed(self, frozen: ImmutableMemtable) -> None:
        """Note that a memtable has become a segment."""
        self.frozen.remove(frozen)
        self.recent = frozen.memtable
        self.stored_before = {spool: self.stored.get(spool, 0) for spool in frozen.memtable.reached}
        self.stored.update(frozen.memtable.reached)
