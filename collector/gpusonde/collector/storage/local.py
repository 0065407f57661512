"""``LocalStore``: the store on one machine's disk."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from pathlib import Path

from gpusonde.collector.records.decode import decode_record
from gpusonde.collector.records.limits import STORED_LIMITS
from gpusonde.collector.records.model import BatchRecord, Binding, GpuEvent, InventoryRecord, Position
from gpusonde.collector.storage.arrivals import Arrival, BindingArrived, Mark, SourceEndArrived, in_order_of_arrival
from gpusonde.collector.storage.catalog import NewSegment, PartRow, SegmentCatalog
from gpusonde.collector.storage.database import Database
from gpusonde.collector.storage.errors import StoreCorruptError, StoreFullError, naming_full_disks
from gpusonde.collector.storage.facts import AgentRow, Facts, GpuRow, LossRow, RejectionRow
from gpusonde.collector.storage.files import FileLayer, OsFiles, write_durably
from gpusonde.collector.storage.lock import DirectoryLock
from gpusonde.collector.storage.log import Log
from gpusonde.collector.storage.recovery import recover
from gpusonde.collector.storage.samples import (
    Samples,
    StoredBlock,
    concatenate,
    empty_samples,
    in_order_of_time,
    samples_of,
)
from gpusonde.collector.storage.segments import encode_segment, read_segment_part
from gpusonde.collector.storage.store import Incoming, Listener
from gpusonde.collector.storage.tail import Generation
from gpusonde.ingest.v1 import ingest_pb2

_LOG = logging.getLogger(__name__)
_MEBIBYTE = 1 << 20
# More than the records of one commit of a busy collector.
_PROBE_BYTES = _MEBIBYTE


@dataclass(frozen=True)
class StoreOptions:
    """How the local store spends disk and memory.

    Attributes:
        segment_interval_s: Age at which what is in memory becomes a segment.
        segment_bytes: Size at which it does so earlier.
        memory_bytes: Beyond this much in memory nothing is taken any more: segments cannot be written.
        reserve_bytes: Free space that is left on the disk, for the catalogue and for segments.
    """

    segment_interval_s: float = 60.0
    segment_bytes: int = 128 * _MEBIBYTE
    memory_bytes: int = 512 * _MEBIBYTE
    reserve_bytes: int = 64 * _MEBIBYTE


@dataclass
class _Frozen:
    """A generation on its way into a segment, and the log parts that hold it until then."""

    generation: Generation
    last_part: int


@dataclass
class _Memory:
    """The part of the store that changes, read and written under one lock."""

    active: Generation = field(default_factory=Generation)
    frozen: list[_Frozen] = field(default_factory=list)
    durable: dict[tuple[str, str], int] = field(default_factory=dict)
    spools: dict[tuple[str, str], int] = field(default_factory=dict)
    stored: dict[int, int] = field(default_factory=dict)

    def generations(self) -> list[Generation]:
        return [*(frozen.generation for frozen in self.frozen), self.active]


class LocalStore:
    """Log, memory tail, Parquet segments and SQLite catalogue in one directory.

    Args:
        directory: The data directory; made if it is not there.
        options: Sizes and intervals.
        files: The file layer.
        wall_clock_ns: Unix time in nanoseconds.
        monotonic_clock: Seconds, for the age of what is in memory.
    """

    def __init__(
        self,
        directory: Path,
        options: StoreOptions | None = None,
        *,
        files: FileLayer | None = None,
        wall_clock_ns: Callable[[], int] = time.time_ns,
        monotonic_clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.directory = directory
        self.database = Database(directory / "catalog.sqlite")
        self._options = options or StoreOptions()
        self._files = files or OsFiles()
        self._wall_clock_ns = wall_clock_ns
        self._monotonic_clock = monotonic_clock
        self._directory_lock = DirectoryLock(directory)
        self._facts = Facts(self.database)
        self._segments = SegmentCatalog(self.database)
        self._segment_directory = directory / "segments"
        self._log_directory = directory / "log"
        self._log = Log(self._log_directory, self._files, next_part=1)
        self._memory = _Memory()
        self._append_lock = threading.Lock()
        self._seal_lock = threading.Lock()
        self._memory_lock = threading.Lock()
        self._sealed_at = 0.0
        self._listeners: list[Listener] = []

    def open(self) -> None:
        """Take the directory, replay the log, remove what a crash left half-made.

        Raises:
            StoreLockedError: Another collector has it.
            StoreCorruptError: The catalogue is not readable.
            StoreError: The directory cannot be used.
        """
        with naming_full_disks(self.directory):
            for directory in (self.directory, self._segment_directory, self._log_directory, self.quarantine_directory):
                directory.mkdir(parents=True, exist_ok=True)
            self._directory_lock.acquire()
            self.database.open()
            recovered = recover(self._log_directory, self._segment_directory, self._facts, self._segments, self._files)
        self._log = Log(self._log_directory, self._files, recovered.next_part)
        memory = _Memory(durable=recovered.durable, spools=recovered.spools, stored=recovered.stored)
        if recovered.generation.reached:
            memory.frozen.append(_Frozen(recovered.generation, recovered.next_part - 1))
        self._memory = memory
        self._sealed_at = self._monotonic_clock()

    def close(self) -> None:
        """Close the files; everything appended is durable already."""
        with self._seal_lock, self._append_lock:
            self._log.rotate()
            self.database.close()
            self._directory_lock.release()

    @property
    def quarantine_directory(self) -> Path:
        """Where the bytes of refused records lie."""
        return self.directory / "quarantine"

    # Writing -----------------------------------------------------------------------------------------------------

    def append(self, records: Sequence[Incoming]) -> int:
        """See ``Store.append``."""
        with self._append_lock:
            fresh, gaps = self._news(records)
            if not fresh:
                return len(records)
            self._check_room()
            with naming_full_disks(self._log_directory):
                self._log.append([incoming.entry for _, incoming in fresh])
            facts = [
                (position, incoming.entry.agent_id, incoming.decoded, incoming.entry.payload)
                for position, incoming in fresh
                if not isinstance(incoming.decoded, BatchRecord)
            ]
            if facts or gaps:
                self._facts.save(facts, gaps)
            touched: set[tuple[str, str]] = set()
            with self._memory_lock:
                for position, incoming in fresh:
                    entry = incoming.entry
                    gpus = self._memory.active.add(position, incoming.decoded)
                    touched.update((entry.agent_id, gpu_uuid) for gpu_uuid in gpus)
                    self._memory.durable[entry.agent_id, entry.spool_id] = entry.sequence
        if touched:
            for listener in self._listeners:
                listener(frozenset(touched))
        return len(records) - len(fresh)

    def _news(self, records: Sequence[Incoming]) -> tuple[list[tuple[Position, Incoming]], dict[Position, int]]:
        """Drop repetitions, number the spools, find the gaps."""
        fresh: list[tuple[Position, Incoming]] = []
        gaps: dict[Position, int] = {}
        reached: dict[tuple[str, str], int] = {}
        for incoming in records:
            entry = incoming.entry
            key = (entry.agent_id, entry.spool_id)
            before = reached.get(key, self._memory.durable.get(key, 0))
            if entry.sequence <= before:
                continue
            spool = self._spool(*key)
            if entry.sequence > before + 1:
                gaps[Position(spool, before + 1)] = entry.sequence - 1
            reached[key] = entry.sequence
            fresh.append((Position(spool, entry.sequence), incoming))
        return fresh, gaps

    def _spool(self, agent_id: str, spool_id: str) -> int:
        number = self._memory.spools.get((agent_id, spool_id))
        if number is None:
            number = self._facts.spool_number(agent_id, spool_id)
            with self._memory_lock:
                self._memory.spools[agent_id, spool_id] = number
        return number

    def _check_room(self) -> None:
        in_memory = sum(generation.nbytes for generation in self._memory.generations())
        if in_memory > self._options.memory_bytes:
            raise StoreFullError(
                f"{in_memory} bytes wait in memory because no segment can be written to {self._segment_directory};"
                " see the collector's log for the reason"
            )
        self.check_space()

    def check_space(self) -> None:
        """Raise unless the disk has room.

        Raises:
            StoreFullError: Less than the reserve is free.
        """
        with naming_full_disks(self.directory):
            free = self._files.free_bytes(self.directory)
        if free < self._options.reserve_bytes:
            raise StoreFullError(
                f"{self.directory} has {free} bytes left and {self._options.reserve_bytes} are kept in reserve; free"
                " some, the collector goes on by itself"
            )

    def check_writable(self) -> None:
        """See ``Store.check_writable``."""
        self.check_space()
        probe = self.directory / "probe"
        with naming_full_disks(probe):
            write_durably(self._files, probe, bytes(_PROBE_BYTES))
            self._files.remove(probe)

    def introduce(self, agent: AgentRow) -> int:
        """See ``Store.introduce``."""
        spool = self._facts.save_agent(agent)
        with self._memory_lock:
            self._memory.spools[agent.agent_id, agent.spool_id] = spool
            return self._memory.durable.get((agent.agent_id, agent.spool_id), 0)

    def quarantine(self, name: str, data: bytes) -> None:
        """Keep the bytes of a record that is refused for good.

        Raises:
            StoreFullError: There is no room.
        """
        with naming_full_disks(self.quarantine_directory):
            write_durably(self._files, self.quarantine_directory / name, data)

    def subscribe(self, listener: Listener) -> None:
        """See ``Store.subscribe``."""
        self._listeners.append(listener)

    # Sealing -----------------------------------------------------------------------------------------------------

    def seal_if_due(self) -> bool:
        """Seal when what is in memory is old or large enough; return whether it was."""
        memory = self._memory
        age = self._monotonic_clock() - self._sealed_at
        if age < self._options.segment_interval_s and memory.active.nbytes < self._options.segment_bytes:
            return False
        self.seal()
        return True

    def seal(self) -> None:
        """Turn what is in memory into segments and remove the log behind it.

        Raises:
            StoreFullError: No room; nothing changes, and the next call tries again.
            StoreError: Any other failure, likewise.
        """
        with self._seal_lock:
            with self._append_lock:
                last_part = self._log.rotate()
                with self._memory_lock:
                    if self._memory.active.reached:
                        self._memory.frozen.append(_Frozen(self._memory.active, last_part))
                        self._memory.active = Generation()
            self._sealed_at = self._monotonic_clock()
            while self._memory.frozen:
                self._seal_one(self._memory.frozen[0])

    def _seal_one(self, frozen: _Frozen) -> None:
        generation = frozen.generation
        segment = None
        if generation.blocks:
            data, parts = encode_segment(generation.blocks)
            now = self._wall_clock_ns()
            name = f"{now:020d}-{frozen.last_part:08d}.parquet"
            path = self._segment_directory / name
            with naming_full_disks(path):
                write_durably(self._files, path, data)
            segment = NewSegment(name, len(data), sum(part.row_count for part in parts), now, parts)
        stored = [Position(spool, sequence) for spool, sequence in generation.reached.items()]
        with self._memory_lock:
            self._segments.register(segment, stored, generation.blanks)
            self._memory.frozen.remove(frozen)
            self._memory.stored.update(generation.reached)
        with naming_full_disks(self._log_directory):
            self._log.remove_through(frozen.last_part)

    # Reading -----------------------------------------------------------------------------------------------------

    def inventory(self, agent_id: str, spool_id: str) -> InventoryRecord | None:
        """See ``Store.inventory``."""
        key = (agent_id, spool_id)
        spool, sequence = self._memory.spools.get(key), self._memory.durable.get(key, 0)
        message = None if spool is None else self._facts.inventory_message(spool, sequence)
        if message is None:
            return None
        decoded = decode_record(ingest_pb2.Record.FromString(message), None, STORED_LIMITS)
        return decoded if isinstance(decoded, InventoryRecord) else None

    def agents(self) -> list[AgentRow]:
        """See ``Store.agents``."""
        return self._facts.agents()

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
        wanted = self.metrics_of(gpu_uuid) if metrics is None else list(metrics)
        with self._memory_lock:
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
        return read_segment_part(self._segment_directory / row.file_name, row.part, metrics)

    def extent(self, gpu_uuid: str) -> tuple[int, int] | None:
        """See ``Store.extent``."""
        with self._memory_lock:
            sealed = self._segments.extent(gpu_uuid)
            blocks = [s.block for generation in self._memory.generations() for s in generation.blocks.get(gpu_uuid, ())]
        firsts = [int(block.time_unix_nano[0]) for block in blocks] + ([sealed[0]] if sealed else [])
        lasts = [int(block.time_unix_nano[-1]) for block in blocks] + ([sealed[1]] if sealed else [])
        return (min(firsts), max(lasts)) if firsts else None

    def metrics_of(self, gpu_uuid: str) -> list[str]:
        """Return the metrics that any agent ever offered for a GPU."""
        return self._facts.metrics_of(gpu_uuid)

    def arrivals(self, agent_id: str, gpu_uuid: str, after: Position) -> Iterator[Arrival]:
        """See ``Store.arrivals``."""
        with self._memory_lock:
            spools = [number for (agent, _), number in self._memory.spools.items() if agent == agent_id]
            blocks: list[StoredBlock] = []
            marks: list[Mark] = []
            for generation in self._memory.generations():
                blocks += generation.blocks_after(gpu_uuid, spools, after)
                marks += generation.marks_after(gpu_uuid, spools, after)
            parts: list[PartRow] = []
            # Whoever keeps up never needs the disk.
            if any((spool, self._memory.stored.get(spool, 0)) > after for spool in spools):
                parts = self._segments.parts_after(gpu_uuid, spools, after)
                marks = self._stored_marks(agent_id, gpu_uuid, after)
        metrics = self.metrics_of(gpu_uuid) if parts else []
        sealed = (piece for row in parts for piece in self._readable_part(row, metrics, after))
        return in_order_of_arrival(chain(sealed, _by_spool(blocks)), marks)

    def bindings(self, agent_id: str, gpu_uuid: str, through: Position) -> list[Binding]:
        """See ``Store.bindings``."""
        return [b for position, b in self._facts.bindings(agent_id, gpu_uuid) if position <= through]

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

    def gpus(self) -> list[GpuRow]:
        """See ``Store.gpus``."""
        return self._facts.gpus()

    def events(self, gpu_uuid: str) -> list[GpuEvent]:
        """See ``Store.events``."""
        return self._facts.events(gpu_uuid)

    def losses(self) -> list[LossRow]:
        """See ``Store.losses``."""
        return self._facts.losses()

    def rejections(self) -> list[RejectionRow]:
        """See ``Store.rejections``."""
        return self._facts.rejections()


def _by_spool(blocks: Sequence[StoredBlock]) -> Iterator[Samples]:
    """Join blocks in order of arrival, one piece per spool."""
    for _, same in groupby(blocks, key=lambda stored: stored.position.spool):
        yield samples_of(list(same))
