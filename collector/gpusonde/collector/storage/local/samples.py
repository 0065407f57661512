"""``LocalSamples``: records into the log and the memtable, the memtable into segments."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from gpusonde.collector.config import StoreConfig
from gpusonde.collector.storage.local.catalog import NewSegment, SegmentCatalog
from gpusonde.collector.storage.local.facts import LocalFacts
from gpusonde.collector.storage.local.log import Log
from gpusonde.collector.storage.local.reader import LocalReader
from gpusonde.collector.storage.local.recovery import recover
from gpusonde.collector.storage.local.segments import (
    SegmentFiles,
    SegmentKind,
    StoreLayout,
    encode_segment,
    store_errors,
)
from gpusonde.collector.storage.memtable import ImmutableMemtable, Memtable, Memtables
from gpusonde.collector.storage.model import AgentRow, PendingRecord, Position, SpoolStanding
from gpusonde.collector.storage.store import Listener, StoreCounters
from gpusonde.errors import StoreFullError
from gpusonde.service.durable_files import FileLayer, write_durably
from gpusonde.service.wire import BatchRecord

# More than the records of one commit of a busy collector.
_PROBE_BYTES = 1 << 20


class LocalSamples(LocalReader):
    """Implements ``SampleStore`` with a log, memtables and Parquet segments.

    Args:
        layout: Where everything lies.
        files: The file layer.
        facts: Where what records say besides samples goes.
        segments: The catalogue of segments.
        config: Sizes and intervals.
        counters: Told what is done.
        wall_clock_ns: Unix time in nanoseconds.
        monotonic_clock: Seconds, for the age of what is in memory.
    """

    def __init__(
        self,
        layout: StoreLayout,
        files: FileLayer,
        facts: LocalFacts,
        segments: SegmentCatalog,
        config: StoreConfig,
        counters: StoreCounters,
        *,
        wall_clock_ns: Callable[[], int] = time.time_ns,
        monotonic_clock: Callable[[], float] = time.monotonic,
    ) -> None:
        cache = SegmentFiles(config.cache_bytes)
        super().__init__(Memtables(), facts, segments, layout, cache)
        self._files = files
        self._config = config
        self._counters = counters
        self._wall_clock_ns = wall_clock_ns
        self._monotonic_clock = monotonic_clock
        self._log = Log(layout.log, files, next_part=1)
        self._append_lock = threading.Lock()
        self._flush_lock = threading.Lock()
        self._flushed_at = 0.0
        self._listeners: list[Listener] = []

    def recover(self) -> None:
        """Replay the log, remove what a crash left half-made.

        Raises:
            StoreError: The log was written by a newer collector.
        """
        self._memory, next_part = recover(self._layout, self._facts, self._segments, self._files)
        self._log = Log(self._layout.log, self._files, next_part)
        self._flushed_at = self._monotonic_clock()

    def close(self, release: Callable[[], None]) -> None:
        """Close the log and have ``release`` called while nothing is appended or flushed."""
        with self._flush_lock, self._append_lock:
            self._log.rotate()
            release()

    def configure(self, config: StoreConfig) -> None:
        """Take over other sizes and intervals; the size of the cache stays."""
        self._config = config

    # Writing -----------------------------------------------------------------------------------------------------

    def register_agents(self, agents: Sequence[AgentRow]) -> list[SpoolStanding]:
        """Store what agents said of themselves and return where their spools stand."""
        spools = self._facts.save_agents(agents)
        with self._memory.lock:
            keys = [(agent.agent_id, agent.spool_id) for agent in agents]
            self._memory.spools.update(zip(keys, spools, strict=True))
            for agent, key in zip(agents, keys, strict=True):
                self._memory.durable.setdefault(key, agent.first_sequence - 1)
            durable = [self._memory.durable[key] for key in keys]
        inventories = [self._facts.inventory(*key) for key in keys]
        return [SpoolStanding(*standing) for standing in zip(durable, inventories, strict=True)]

    def append(self, records: Sequence[PendingRecord]) -> int:
        """Write records to the log and sync it, then to catalogue and memtable; return how many were repetitions.

        Raises:
            StoreFullError: There is no room; none of the records counts as stored.
            StoreError: Any other failure, likewise.
        """
        with self._append_lock:
            fresh, gaps = self._select_pending(records)
            if not fresh:
                return len(records)
            self._check_room()
            began = self._monotonic_clock()
            with store_errors(self._layout.log):
                self._log.append([incoming.entry for _, incoming in fresh])
            self._counters.on_log_sync(self._monotonic_clock() - began)
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

    def _select_pending(
        self, records: Sequence[PendingRecord]
    ) -> tuple[list[tuple[Position, PendingRecord]], dict[Position, int]]:
        """Drop repetitions, number the spools, find the gaps."""
        fresh: list[tuple[Position, PendingRecord]] = []
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

    def _check_room(self) -> None:
        in_memory = sum(memtable.nbytes for memtable in self._memory.memtables())
        if in_memory > self._config.memory_bytes:
            directory = self._layout.folder(SegmentKind.MINUTE)
            raise StoreFullError(
                f"{in_memory} bytes wait in memory because no segment can be written to {directory};"
                " see the collector's log for the reason"
            )
        self.check_space()

    def check_space(self) -> None:
        """Raise unless the disk has room.

        Raises:
            StoreFullError: Less than the reserve is free.
        """
        directory = self._layout.directory
        with store_errors(directory):
            free = self._files.free_bytes(directory)
        if free < self._config.reserve_bytes:
            raise StoreFullError(
                f"{directory} has {free:,} bytes left and {self._config.reserve_bytes:,} are kept in reserve; free some"
            )

    def check_writable(self) -> None:
        """Write as much as one commit of a busy collector.

        Raises:
            StoreFullError: There is no room.
            StoreError: Any other reason why nothing can be stored.
        """
        self.check_space()
        probe = self._layout.directory / "probe"
        with store_errors(probe):
            write_durably(probe, bytes(_PROBE_BYTES), files=self._files, mode=0o640)
            self._files.remove(probe)

    def quarantine(self, name: str, data: bytes) -> None:
        """Keep the bytes of a record that is refused for good.

        Raises:
            StoreFullError: There is no room.
        """
        self.check_space()
        with store_errors(self._layout.quarantine):
            write_durably(self._layout.quarantine / name, data, files=self._files, mode=0o640)

    def subscribe(self, listener: Listener) -> None:
        """Have ``listener`` called, on the thread that appends, after records became durable."""
        self._listeners.append(listener)

    def contains(self, agent_id: str, position: Position) -> bool:
        """Return whether a record at a position is one of an agent's that are durable."""
        with self._memory.lock:
            spools = {
                n: self._memory.durable.get(key, 0) for key, n in self._memory.spools.items() if key[0] == agent_id
            }
        return 0 < position.sequence <= spools.get(position.spool, 0)

    def holds_tick(self, agent_id: str, sequence: int, gpu_uuid: str, time_unix_nano: int) -> bool:
        """Return whether a durable record of an agent has a tick of a GPU at a time; see ``SampleStore``."""
        found = self.read(gpu_uuid, time_unix_nano, time_unix_nano + 1, ())
        spools = found.spool[found.sequence == sequence].tolist()
        return any(self.contains(agent_id, Position(spool, sequence)) for spool in spools)

    def memory_share(self) -> float:
        """Share of the memory for samples that is in use; at 1 nothing is taken any more."""
        return sum(memtable.nbytes for memtable in self._memory.memtables()) / self._config.memory_bytes

    # Flushing ----------------------------------------------------------------------------------------------------

    def flush_if_due(self) -> bool:
        """Flush when what is in memory is old or large enough; return whether it was."""
        memory = self._memory
        age = self._monotonic_clock() - self._flushed_at
        if age < self._config.segment_interval_s and memory.active.nbytes < self._config.segment_bytes:
            return False
        self.flush()
        return True

    def flush(self) -> None:
        """Turn what is in memory into segments and remove the log behind it.

        Raises:
            StoreFullError: No room; nothing changes, and the next call tries again.
            StoreError: Any other failure, likewise.
        """
        with self._flush_lock:
            with self._append_lock:
                last_part = self._log.rotate()
                with self._memory.lock:
                    if self._memory.active.reached:
                        self._memory.frozen.append(ImmutableMemtable(self._memory.active, last_part))
                        self._memory.active = Memtable()
            self._flushed_at = self._monotonic_clock()
            while self._memory.frozen:
                self._flush_one(self._memory.frozen[0])

    def _flush_one(self, frozen: ImmutableMemtable) -> None:
        memtable = frozen.memtable
        segment = None
        if memtable.blocks:
            began = self._monotonic_clock()
            last_sequences: dict[int, int] = {}
            for stored_block in (item for items in memtable.blocks.values() for item in items):
                last_sequences[stored_block.position.spool] = memtable.reached[stored_block.position.spool]
            data, parts = encode_segment(memtable.blocks, self._segments.spool_notes(last_sequences))
            now = self._wall_clock_ns()
            path = self._layout.unused_segment(now, frozen.last_part)
            name = path.name
            with store_errors(path):
                write_durably(path, data, files=self._files, mode=0o640)
            self._counters.on_segment(self._monotonic_clock() - began)
            segment = NewSegment(name, len(data), sum(part.row_count for part in parts), now, parts)
        stored = [Position(spool, sequence) for spool, sequence in memtable.reached.items()]
        with self._memory.lock:
            self._segments.register(segment, stored, memtable.blanks)
            self._memory.mark_flushed(frozen)
        with store_errors(self._layout.log):
            self._log.remove_through(frozen.last_part)
