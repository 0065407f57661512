"""``LocalStore``: the store on one machine's disk.

Options of the local store.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpusonde.collector.records.decode import decode_record
from gpusonde.collector.records.model import STORED_LIMITS, BatchRecord, Binding, GpuEvent, InventoryRecord, Position
from gpusonde.collector.storage.errors import StoreFullError, naming_full_disks
from gpusonde.collector.storage.local.catalog import Database, NewSegment, SegmentCatalog
from gpusonde.collector.storage.local.facts import AgentRow, Facts, GpuRow, LossRow, RejectionRow
from gpusonde.collector.storage.local.log import Log
from gpusonde.collector.storage.local.memory import Frozen, Memory
from gpusonde.collector.storage.local.reader import Reader
from gpusonde.collector.storage.local.recovery import Recovered, recover
from gpusonde.collector.storage.local.retention import Maintenance, MaintenanceOptions
from gpusonde.collector.storage.local.segments import (
    CacheOptions,
    SegmentFiles,
    SegmentKind,
    StoreLayout,
    encode_segment,
)
from gpusonde.collector.storage.local.states import StateFiles
from gpusonde.collector.storage.samples import Arrival, Samples
from gpusonde.collector.storage.store import Incoming, Listener, StoreCounters, StoreUsage
from gpusonde.collector.storage.tail import Generation
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.service.durable_files import DirectoryLock, FileLayer, OsFiles, write_durably

__all__ = ["LocalStore", "StoreOptions"]
_MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class StoreOptions:
    """How the local store spends disk and memory.

    Attributes:
        segment_interval_s: Age at which what is in memory becomes a segment.
        segment_bytes: Size at which it does so earlier.
        memory_bytes: Beyond this much in memory nothing is taken any more: segments cannot be written.
        reserve_bytes: Free space that is left on the disk, for the catalogue and for segments.
        cache_bytes: Memory for columns that were read last.
        maintenance: How segments are compacted and how long they are kept.
    """

    segment_interval_s: float = 60.0
    segment_bytes: int = 128 * _MEBIBYTE
    memory_bytes: int = 512 * _MEBIBYTE
    reserve_bytes: int = 64 * _MEBIBYTE
    cache_bytes: int = 64 * _MEBIBYTE
    maintenance: MaintenanceOptions = field(default_factory=MaintenanceOptions)


# More than the records of one commit of a busy collector.
_PROBE_BYTES = 1 << 20


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
        self.layout = StoreLayout(directory)
        self.database = Database(self.layout.catalog)
        self._options = options or StoreOptions()
        self._files = files or OsFiles()
        self._wall_clock_ns = wall_clock_ns
        self._monotonic_clock = monotonic_clock
        self._directory_lock = DirectoryLock(directory, "collector")
        self._facts = Facts(self.database)
        self._segments = SegmentCatalog(self.database)
        self._segment_files = SegmentFiles(CacheOptions(column_bytes=self._options.cache_bytes))
        self._segment_directory = self.layout.folder(SegmentKind.MINUTE)
        self._log_directory = self.layout.log
        self._log = Log(self._log_directory, self._files, next_part=1)
        self._memory = Memory()
        self._append_lock = threading.Lock()
        self._seal_lock = threading.Lock()
        self._sealed_at = 0.0
        self._listeners: list[Listener] = []
        self.tracking_states = StateFiles(directory / "tracking", self._files, self.check_space)
        self.counters = StoreCounters()
        self.maintenance = Maintenance(
            self.database,
            self.layout,
            self._files,
            self._options.maintenance,
            self.check_space,
            self.counters,
            wall_clock_ns,
        )

    def open(self) -> None:
        """Take the directory, replay the log, remove what a crash left half-made.

        Raises:
            DirectoryLockedError: Another collector has it.
            StoreCorruptError: The catalogue is not readable.
            StoreError: The directory cannot be used.
        """
        with naming_full_disks(self.directory):
            for folder in (*self.layout.segment_folders, self._log_directory, self.quarantine_directory):
                folder.mkdir(parents=True, exist_ok=True)
            self._directory_lock.acquire()
            try:
                recovered = self._recover()
            except Exception:
                self.database.close()
                self._directory_lock.release()
                raise
        self._log = Log(self._log_directory, self._files, recovered.next_part)
        memory = Memory(durable=recovered.durable, spools=recovered.spools, stored=recovered.stored)
        if recovered.generation.reached:
            memory.frozen.append(Frozen(recovered.generation, recovered.next_part - 1))
        self._memory = memory
        self._sealed_at = self._monotonic_clock()

    def _recover(self) -> Recovered:
        self.database.open()
        return recover(self.layout, self._facts, self._segments, self._files)

    def close(self) -> None:
        """Close the files; everything appended is durable already."""
        with self._seal_lock, self._append_lock:
            self._log.rotate()
            self.database.close()
            self._directory_lock.release()

    @property
    def quarantine_directory(self) -> Path:
        """Where the bytes of refused records lie."""
        return self.layout.quarantine

    # Writing -----------------------------------------------------------------------------------------------------

    def append(self, records: Sequence[Incoming]) -> int:
        """See ``Store.append``."""
        with self._append_lock:
            fresh, gaps = self._news(records)
            if not fresh:
                return len(records)
            self._check_room()
            began = self._monotonic_clock()
            with naming_full_disks(self._log_directory):
                self._log.append([incoming.entry for _, incoming in fresh])
            self.counters.on_log_sync(self._monotonic_clock() - began)
            facts = [
                (position, incoming.entry.agent_id, incoming.decoded, incoming.entry.payload)
                for position, incoming in fresh
                if not isinstance(incoming.decoded, BatchRecord)
            ]
            if facts or gaps:
                self._facts.save(facts, gaps)
            touched: set[tuple[str, str]] = set()
            with self._memory.lock:
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
            with self._memory.lock:
                self._memory.spools[agent_id, spool_id] = number
        return number

    def memory_share(self) -> float:
        """Share of the memory for samples that is in use; at 1 nothing is taken any more."""
        return sum(generation.nbytes for generation in self._memory.generations()) / self._options.memory_bytes

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
                f"{self.directory} has {free:,} bytes left and {self._options.reserve_bytes:,} are kept in reserve;"
                " free some"
            )

    def usage(self) -> StoreUsage:
        """Return how much is kept, and how much more could be.

        Raises:
            StoreError: It cannot be found out.
        """
        segments = self._segments.sizes()
        with naming_full_disks(self.directory):
            return StoreUsage(
                {
                    "raw": segments[SegmentKind.MINUTE] + segments[SegmentKind.HOUR],
                    "second": segments[SegmentKind.SECOND],
                    "log": _size(self._log_directory.glob("*.log")),
                    "catalog": _size(self.directory.glob(f"{self.layout.catalog.name}*")),
                },
                self._files.free_bytes(self.directory),
            )

    def configure(self, options: StoreOptions) -> None:
        """Take over other options; the size of the cache stays. What is under way goes on as it began."""
        self._options = options
        self.maintenance.configure(options.maintenance)

    def check_writable(self) -> None:
        """See ``Store.check_writable``."""
        self.check_space()
        probe = self.directory / "probe"
        with naming_full_disks(probe):
            write_durably(probe, bytes(_PROBE_BYTES), files=self._files, mode=0o640)
            self._files.remove(probe)

    def introduce(self, agent: AgentRow) -> int:
        """See ``Store.introduce``."""
        spool = self._facts.save_agent(agent)
        with self._memory.lock:
            self._memory.spools[agent.agent_id, agent.spool_id] = spool
            return self._memory.durable.get((agent.agent_id, agent.spool_id), 0)

    def quarantine(self, name: str, data: bytes) -> None:
        """Keep the bytes of a record that is refused for good.

        Raises:
            StoreFullError: There is no room.
        """
        self.check_space()
        with naming_full_disks(self.quarantine_directory):
            write_durably(self.quarantine_directory / name, data, files=self._files, mode=0o640)

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
                with self._memory.lock:
                    if self._memory.active.reached:
                        self._memory.frozen.append(Frozen(self._memory.active, last_part))
                        self._memory.active = Generation()
            self._sealed_at = self._monotonic_clock()
            while self._memory.frozen:
                self._seal_one(self._memory.frozen[0])

    def _seal_one(self, frozen: Frozen) -> None:
        generation = frozen.generation
        segment = None
        if generation.blocks:
            began = self._monotonic_clock()
            data, parts = encode_segment(generation.blocks)
            now = self._wall_clock_ns()
            path = self.layout.unused_segment(now, frozen.last_part)
            name = path.name
            with naming_full_disks(path):
                write_durably(path, data, files=self._files, mode=0o640)
            self.counters.on_segment(self._monotonic_clock() - began)
            segment = NewSegment(name, len(data), sum(part.row_count for part in parts), now, parts)
        stored = [Position(spool, sequence) for spool, sequence in generation.reached.items()]
        with self._memory.lock:
            self._segments.register(segment, stored, generation.blanks)
            self._memory.seal_done(frozen)
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
        return self._reader().read(gpu_uuid, start_unix_nano, end_unix_nano, metrics, first=first, last=last)

    def next_tick(self, gpu_uuid: str, start_unix_nano: int) -> int | None:
        """See ``Store.next_tick``."""
        return self._reader().next_tick(gpu_uuid, start_unix_nano)

    def has_averages(self, gpu_uuid: str, start_unix_nano: int, end_unix_nano: int) -> bool:
        """Return whether some of the ticks of a GPU in ``[start, end)`` are kept as averages only."""
        return self._reader().has_averages(gpu_uuid, start_unix_nano, end_unix_nano)

    def arrivals(self, agent_id: str, gpu_uuid: str, after: Position) -> Iterator[Arrival]:
        """See ``Store.arrivals``."""
        return self._reader().arrivals(agent_id, gpu_uuid, after)

    def metrics_of(self, gpu_uuid: str) -> list[str]:
        """See ``Store.metrics_of``."""
        return self._facts.metrics_of(gpu_uuid)

    def holds(self, agent_id: str, position: Position) -> bool:
        """See ``Store.holds``."""
        with self._memory.lock:
            spools = {
                n: self._memory.durable.get(key, 0) for key, n in self._memory.spools.items() if key[0] == agent_id
            }
        return 0 < position.sequence <= spools.get(position.spool, 0)

    def bindings(self, agent_id: str, gpu_uuid: str, through: Position) -> list[Binding]:
        """See ``Store.bindings``."""
        return [b for position, b in self._facts.bindings(agent_id, gpu_uuid) if position <= through]

    def _reader(self) -> Reader:
        return Reader(self._memory, self._facts, self._segments, self.layout, self._segment_files)

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

    def blank_counts(self, gpu_uuid: str) -> dict[tuple[str, int], int]:
        """See ``Store.blank_counts``."""
        return self._facts.blank_counts(gpu_uuid)


def _size(paths: Iterable[Path]) -> int:
    """Add up files, which may go away meanwhile."""
    total = 0
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total
