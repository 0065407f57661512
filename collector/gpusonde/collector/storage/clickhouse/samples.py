"""``ClickHouseSamples``: records into the database, samples out of it, and the last of them in memory."""

from __future__ import annotations

import hashlib
import heapq
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np
import pyarrow as pa

from gpusonde.collector.config import StoreConfig
from gpusonde.collector.storage.clickhouse.facts import ClickHouseFacts, GreetedAgent, KnownAgents, Ownership
from gpusonde.collector.storage.clickhouse.sql import (
    ClickHouseSql,
    RecordRows,
    progress_rows,
    sample_table,
)
from gpusonde.collector.storage.memtable import Memtable
from gpusonde.collector.storage.model import AgentRow, PendingRecord, Position, SpoolStanding, StoredRecord
from gpusonde.collector.storage.samples import (
    RESOLUTION_S,
    SECOND_NS,
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
from gpusonde.collector.storage.store import Listener, StoreCounters
from gpusonde.service.wire import Int64Array

_KEY = "time_unix_nano, spool, sequence, missed_ticks"
# Read at a time: records are of a second, so this is a quarter of an hour.
_RECORDS_AT_ONCE = 900
_NS_PER_US = 1_000
# Spools are numbered by the microsecond in which they began, and by a digest where several began together.
_SPOOL_DIGEST_BITS = 10
# More than the records of one commit of a busy collector.
_PROBE = bytes(1 << 20)
_NEVER = 1 << 63


class ClickHouseSamples:
    """Implements ``SampleStore`` over the database; nothing is on this machine.

    Args:
        sql: The database.
        facts: What is there besides samples.
        ownership: Which agents are this collector's.
        config: For how long samples are kept, and records in memory for tracking.
        counters: Told what is done.
        wall_clock_ns: Unix time in nanoseconds.
        monotonic_clock: Seconds, for the age of what is in memory and the length of inserts.
    """

    def __init__(
        self,
        sql: ClickHouseSql,
        facts: ClickHouseFacts,
        ownership: Ownership,
        config: StoreConfig,
        counters: StoreCounters,
        *,
        wall_clock_ns: Callable[[], int] = time.time_ns,
        monotonic_clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sql = sql
        self._facts = facts
        self._ownership = ownership
        self._config = config
        self._counters = counters
        self._wall_clock_ns = wall_clock_ns
        self._monotonic_clock = monotonic_clock
        self._tail = Tail(config.tail_s, config.tail_bytes, monotonic_clock)
        self._append_lock = threading.Lock()
        self._lock = threading.Lock()
        # (agent, spool id) -> number and durable sequence, of the spools that this process appends to.
        self._spools: dict[tuple[str, str], int] = {}
        self._durable: dict[int, int] = {}
        self._listeners: list[Listener] = []

    def close(self) -> None:
        """Disconnect when nothing is appended."""
        with self._append_lock:
            self._sql.close()

    # Writing -----------------------------------------------------------------------------------------------------

    def register_agents(self, agents: Sequence[AgentRow]) -> list[SpoolStanding]:
        """Store what agents said of themselves, own them, and return where their spools stand.

        All of them together cost about what one alone does: statements and parts, not rows, are what is dear. Who says
        what it said before costs one statement.
        """
        with self._append_lock:
            began = {(agent.agent_id, agent.spool_id): agent.start_unix_nano for agent in agents}
            found = self._ask(began)
            before = {agent.agent_id: found.owner(agent.agent_id) for agent in agents}
            owners = {agent_id: self._ownership.next_owner(owner) for agent_id, owner in before.items()}
            if come := {agent_id: owner for agent_id, owner in owners.items() if owner != before[agent_id]}:
                owners |= self._facts.claim(come, self._ownership.version)
            greeted = []
            for agent in agents:
                says = replace(agent, first_sequence=1), owners[agent.agent_id]
                if found.agents.get(agent.agent_id) != says:
                    found.agents[agent.agent_id] = says
                    version = self._ownership.version(agent.agent_id, says[1].term)
                    greeted.append(GreetedAgent(agent, says[1], version))
            if greeted:
                self._facts.save_agents(greeted)
            # Asked anew at every greeting: another collector may have taken records meanwhile.
            self._begin_spools(
                began, found, {(agent.agent_id, agent.spool_id): agent.first_sequence for agent in agents}
            )
            # Last: who is told begins at once to read what is there.
            self._ownership.take(owners)
            spools = [self._spools[agent.agent_id, agent.spool_id] for agent in agents]
            return [SpoolStanding(self._durable[spool], found.inventory(spool)) for spool in spools]

    def append(self, records: Sequence[PendingRecord]) -> int:
        """Insert records and then how far their spools are durable; return how many were repetitions.

        The samples come before the durable sequence that covers them. What a crash or a failure leaves between the two
        is sent again, and rows with the same key are one row: no transaction is needed.

        Raises:
            StoreError: The database does not take them; none of the records counts as stored.
        """
        with self._append_lock:
            fresh, rows = self._select_pending(records)
            if not fresh:
                return len(records)
            began_at = self._monotonic_clock()
            for table, facts in rows.facts.items():
                if facts:
                    self._sql.insert(table, facts)
            if rows.blocks:
                self._sql.insert("samples", sample_table(rows.blocks, lossless=self._config.lossless))
            self._sql.insert("progress", progress_rows(rows.reached))
            self._counters.on_log_sync(self._monotonic_clock() - began_at)
            gpus = self._tail.add([(position, incoming.decoded) for position, incoming in fresh])
            with self._lock:
                self._durable.update(rows.reached)
        touched = frozenset(
            (incoming.entry.agent_id, gpu) for (_, incoming), about in zip(fresh, gpus, strict=True) for gpu in about
        )
        if touched:
            for listener in self._listeners:
                listener(touched)
        return len(records) - len(fresh)

    def _select_pending(
        self, records: Sequence[PendingRecord]
    ) -> tuple[list[tuple[Position, PendingRecord]], RecordRows]:
        """Drop repetitions, find the gaps, make rows of the rest."""
        fresh: list[tuple[Position, PendingRecord]] = []
        rows = RecordRows()
        for incoming in records:
            entry = incoming.entry
            spool = self._spool(entry.agent_id, entry.spool_id)
            before = rows.reached.get(spool, self._durable[spool])
            if entry.sequence <= before:
                continue
            if entry.sequence > before + 1:
                rows.gap(spool, before + 1, entry.sequence - 1)
            position = Position(spool, entry.sequence)
            rows.add(position, incoming)
            fresh.append((position, incoming))
        return fresh, rows

    def _spool(self, agent_id: str, spool_id: str) -> int:
        """Return the number of a spool and see to it that how far it is durable is known."""
        key = (agent_id, spool_id)
        number = self._spools.get(key)
        if number is None or number not in self._durable:
            began = {key: self._wall_clock_ns()}
            self._begin_spools(began, self._ask(began), {})
            number = self._spools[key]
        return number

    def _ask(self, began_unix_nano: Mapping[tuple[str, str], int]) -> KnownAgents:
        """Return what is known of agents and their spools, and of the numbers that those would have as new ones."""
        numbers = _distinct({key: _first_number(key, began) for key, began in began_unix_nano.items()}, {})
        return self._facts.known_agents(began_unix_nano, numbers)

    def _begin_spools(
        self,
        began_unix_nano: Mapping[tuple[str, str], int],
        found: KnownAgents,
        first_sequences: Mapping[tuple[str, str], int],
    ) -> None:
        """Take in spools, new ones with a number; before the first sequence of a new one is no gap.

        Numbers of one agent rise in order of first arrival, and two collectors that see a spool first at the same time,
        from the same greeting, give it the same number.
        """
        known = dict(found.spools)
        new: dict[tuple[str, str], int] = {}
        highest: dict[str, int] = {}
        for (agent_id, _), (number, _) in known.items():
            highest[agent_id] = max(number, highest.get(agent_id, 0))
        for key, began in began_unix_nano.items():
            if key not in known:
                new[key] = max(_first_number(key, began), highest.get(key[0], 0) + 1)
                highest[key[0]] = new[key]
        if new:
            new = self._number(new, found.holders)
        durable = {key: first_sequences.get(key, 1) - 1 for key in new}
        if reached := {new[key]: sequence for key, sequence in durable.items() if sequence}:
            self._sql.insert("progress", progress_rows(reached))
        known.update({key: (number, durable[key]) for key, number in new.items()})
        with self._lock:
            self._spools.update({key: number for key, (number, _) in known.items()})
            # Of all spools: another collector may have taken more of the older ones, too.
            self._durable.update(known.values())
        for key in began_unix_nano:
            self._tail.begin(*known[key])

    def _number(self, spools: Mapping[tuple[str, str], int], holders: dict[int, str]) -> dict[tuple[str, str], int]:
        """Give spools their numbers, or the next ones that no other agent has; ``holders`` has those asked about."""
        while True:
            given = _distinct(spools, holders)
            if given.keys() <= holders.keys():
                break
            holders = holders | dict.fromkeys(given, "") | self._facts.spool_holders(given)
        numbers = {key: number for number, key in given.items()}
        self._facts.save_spools(numbers)
        return numbers

    def check_writable(self) -> None:
        """Insert as much as one commit of a busy collector."""
        collector = self._ownership.collector
        row = {"collector": collector, "version": self._wall_clock_ns(), "data": _PROBE}
        self._sql.insert("probes", [row])

    def quarantine(self, name: str, data: bytes) -> None:
        """Keep the bytes of a record that is refused for good."""
        self._sql.insert("quarantine", [{"name": name, "data": data, "version": self._wall_clock_ns()}])

    def subscribe(self, listener: Listener) -> None:
        """Have ``listener`` called, on the thread that appends, after records became durable."""
        self._listeners.append(listener)

    def contains(self, agent_id: str, position: Position) -> bool:
        """Return whether a record at a position is one of an agent's that are durable."""
        return 0 < position.sequence <= self._durable_sequences(agent_id).get(position.spool, 0)

    def holds_tick(self, agent_id: str, sequence: int, gpu_uuid: str, time_unix_nano: int) -> bool:
        """Return whether a durable record of an agent has a tick of a GPU at a time; see ``SampleStore``."""
        found = self.read(gpu_uuid, time_unix_nano, time_unix_nano + 1, ())
        spools = found.spool[found.sequence == sequence].tolist()
        return any(self.contains(agent_id, Position(spool, sequence)) for spool in spools)

    def _durable_sequences(self, agent_id: str) -> dict[int, int]:
        """Return the spools of an agent and how far they are durable, without a question where this process knows."""
        with self._lock:
            spools = [number for (agent, _), number in self._spools.items() if agent == agent_id]
            known = {number: self._durable[number] for number in spools if number in self._durable}
        if not spools or not self._ownership.owns(agent_id):
            return dict(self._facts.spool_progress([agent_id]).values())
        asked = {number: self._facts.durable(number) for number in spools if number not in known}
        with self._lock:
            for number, durable in asked.items():
                self._durable.setdefault(number, durable)
        return known | asked

    # Reading -----------------------------------------------------------------------------------------------------

    def _raw_since_unix_nano(self) -> int:
        kept_s = round(self._config.raw_retention_s)
        return self._wall_clock_ns() - kept_s * SECOND_NS if kept_s else 0

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
        wanted = self._facts.metrics(gpu_uuid) if metrics is None else list(dict.fromkeys(metrics))
        if first and (recent := self._recent_blocks(gpu_uuid, first)) is not None:
            samples = join_blocks(recent, wanted).between(start_unix_nano, end_unix_nano)
            return sort_by_time(samples.through(last) if last else samples)
        conditions = [
            "gpu_uuid = {gpu:String} AND time_unix_nano >= {start:Int64} AND time_unix_nano < {end:Int64}",
        ]
        values: dict[str, int | str] = {"gpu": gpu_uuid, "start": start_unix_nano, "end": end_unix_nano}
        if first:
            conditions.append(
                "spool IN (SELECT spool FROM spools WHERE agent_id IN"
                " (SELECT agent_id FROM spools WHERE spool = {first_spool:Int64}))"
                " AND (spool, sequence) >= ({first_spool:Int64}, {first_sequence:Int64})"
            )
            values |= {"first_spool": first.spool, "first_sequence": first.sequence}
        if last:
            conditions.append("(spool, sequence) <= ({last_spool:Int64}, {last_sequence:Int64})")
            values |= {"last_spool": last.spool, "last_sequence": last.sequence}
        condition = " AND ".join(conditions)
        table = self._select(wanted, condition, "time_unix_nano, spool, sequence", values)
        # Rows that were inserted twice and are not merged yet are ticks at the same instant.
        samples = sort_by_time(self._acknowledged(_samples(table, wanted)))
        if start_unix_nano >= self._raw_since_unix_nano():
            return samples
        averages = self._averages(wanted, condition, values)
        return sort_by_time(concatenate([averages, samples], wanted)) if len(averages) else samples

    def _recent_blocks(self, gpu_uuid: str, first: Position) -> list[StoredBlock] | None:
        """Return a GPU's blocks from a record on, None where not all of them are in memory."""
        with self._lock:
            agent_id = next((agent for (agent, _), number in self._spools.items() if number == first.spool), None)
        if agent_id is None:
            return None
        before = Position(first.spool, first.sequence - 1)
        recent = self._tail.behind(gpu_uuid, self._durable_sequences(agent_id), before)
        return None if recent is None else recent[0]

    def _averages(self, metrics: Sequence[str], condition: str, values: Mapping[str, int | str]) -> Samples:
        """Return the averages over seconds of records whose ticks are gone."""
        counts = [count_column(name) for name in metrics if column_type(name) is np.float32]
        columns = ", ".join([_KEY, *metrics, *counts])
        table = self._sql.table(
            f"SELECT {columns} FROM samples_1s WHERE {condition}"  # noqa: S608 - own text, catalogue
            f" AND (intDiv(time_unix_nano, {SECOND_NS}), spool, sequence) NOT IN ("
            f" SELECT intDiv(time_unix_nano, {SECOND_NS}), spool, sequence FROM samples"
            " WHERE gpu_uuid = {gpu:String} AND time_unix_nano >= {start:Int64} - 1000000000"
            " AND time_unix_nano < {end:Int64} + 1000000000)"
            " ORDER BY time_unix_nano, spool, sequence",
            values,
        )
        samples = _samples(table, metrics)
        if not len(samples):
            return samples
        again = (
            (np.diff(samples.time_unix_nano) == 0) & (np.diff(samples.spool) == 0) & (np.diff(samples.sequence) == 0)
        )
        once = np.concatenate(([True], ~again))
        ticks = {name: _whole(table, count_column(name))[once] for name in metrics if count_column(name) in counts}
        return merge_rollups(replace(samples.take(once), resolution_s=RESOLUTION_S), ticks)

    def _acknowledged(self, samples: Samples) -> Samples:
        """Leave out ticks of records that are not durable: of those, only some rows may be there."""
        for spool in np.unique(samples.spool).tolist():
            last = int(samples.sequence[samples.spool == spool].max())
            if last > self._durable.get(spool, 0) and last > (durable := self._facts.durable(spool)):
                samples = samples.take((samples.spool != spool) | (samples.sequence <= durable))
        return samples

    def next_tick(self, gpu_uuid: str, start_unix_nano: int) -> int | None:
        """Return the time of a GPU's first tick that is not before a time, or None if there is no such tick."""
        tick = self._first_from("samples", gpu_uuid, start_unix_nano)
        if start_unix_nano >= self._raw_since_unix_nano():
            return tick
        average = self._first_from("samples_1s", gpu_uuid, start_unix_nano)
        # The average over a second begins before its ticks, which count as long as they are there.
        if average is None or (tick is not None and tick < average + SECOND_NS):
            return tick
        return average

    def _first_from(self, table: str, gpu_uuid: str, start_unix_nano: int) -> int | None:
        rows = self._sql.rows(
            f"SELECT time_unix_nano FROM {table}"  # noqa: S608 - own names
            " WHERE gpu_uuid = {gpu:String} AND time_unix_nano >= {start:Int64} ORDER BY time_unix_nano LIMIT 1",
            {"gpu": gpu_uuid, "start": start_unix_nano},
        )
        return int(rows[0][0]) if rows else None

    def read_feed(self, agent_id: str, gpu_uuid: str, after: Position) -> Iterator[FeedEntry]:
        """Yield what an agent said about a GPU behind a position, in order of arrival; see ``SampleStore``."""
        # Beyond, what is in the database is not whole.
        durable = self._durable_sequences(agent_id)
        recent = self._tail.behind(gpu_uuid, durable, after)
        if recent is not None:
            blocks, latest = recent
            return merge_feed(_by_spool(blocks), latest)
        markers = self._stored_markers(agent_id, gpu_uuid, after, durable)
        return merge_feed(self._stored(gpu_uuid, after, durable), markers)

    def _stored_markers(
        self, agent_id: str, gpu_uuid: str, after: Position, durable: Mapping[int, int]
    ) -> Iterator[Marker]:
        markers: list[Marker] = [
            BindingEntry(position, binding) for position, binding in self._facts.bindings(agent_id, gpu_uuid)
        ]
        markers += [SourceEndEntry(position) for position in self._facts.source_ends(agent_id, gpu_uuid)]
        markers = sorted((mark for mark in markers if mark.position > after), key=lambda mark: mark.position)
        # Far more than the others, and read piece by piece.
        activity = (ActivityEntry(position, job) for position, job in self._facts.activity(agent_id, gpu_uuid, after))
        merged: Iterator[Marker] = heapq.merge(markers, activity, key=lambda mark: mark.position)
        return (mark for mark in merged if mark.position.sequence <= durable.get(mark.position.spool, 0))

    def _stored(self, gpu_uuid: str, after: Position, durable: Mapping[int, int]) -> Iterator[Samples]:
        metrics = self._facts.metrics(gpu_uuid)
        for spool, through in sorted(durable.items()):
            if spool < after.spool:
                continue
            reached = after.sequence if spool == after.spool else 0
            while reached < through:
                upto = min(reached + _RECORDS_AT_ONCE, through)
                table = self._select(
                    metrics,
                    "gpu_uuid = {gpu:String} AND spool = {spool:Int64}"
                    " AND sequence > {after:Int64} AND sequence <= {upto:Int64}",
                    "sequence, time_unix_nano",
                    {"gpu": gpu_uuid, "spool": spool, "after": reached, "upto": upto},
                )
                if table.num_rows:
                    yield _once(_samples(table, metrics))
                    reached = upto
                else:
                    # Over any gap at once: other GPUs of the host, or a spool that was full for days.
                    reached = self._next_record(gpu_uuid, spool, upto, through) - 1

    def _next_record(self, gpu_uuid: str, spool: int, after: int, through: int) -> int:
        rows = self._sql.rows(
            "SELECT minOrNull(sequence) FROM samples WHERE gpu_uuid = {gpu:String} AND spool = {spool:Int64}"
            " AND sequence > {after:Int64}",
            {"gpu": gpu_uuid, "spool": spool, "after": after},
        )
        found = rows[0][0]
        return through + 1 if found is None else int(found)

    def _select(self, metrics: Sequence[str], condition: str, order: str, values: Mapping[str, int | str]) -> pa.Table:
        for name in metrics:
            column_type(name)  # raises for what is no metric of the catalogue
        columns = ", ".join([_KEY, *metrics])
        return self._sql.table(
            f"SELECT {columns} FROM samples WHERE {condition} ORDER BY {order}",  # noqa: S608 - own text, catalogue
            values,
        )


def _first_number(key: tuple[str, str], began_unix_nano: int) -> int:
    """Return the number that a spool has if nobody else has it: of the time at which it began, and its name."""
    digest = hashlib.sha256("\n".join(key).encode()).digest()
    low = int.from_bytes(digest[:4], "little") % (1 << _SPOOL_DIGEST_BITS)
    return began_unix_nano // _NS_PER_US << _SPOOL_DIGEST_BITS | low


def _distinct(numbers: Mapping[tuple[str, str], int], holders: Mapping[int, str]) -> dict[int, tuple[str, str]]:
    """Return number -> spool: the next number where it is another one's, or another agent's."""
    given: dict[int, tuple[str, str]] = {}
    for key, wanted in numbers.items():
        number = wanted
        while number in given or (holders.get(number) or key[0]) != key[0]:
            number += 1
        given[number] = key
    return given


def _samples(table: pa.Table, metrics: Sequence[str]) -> Samples:
    if not table.num_rows:
        return empty_samples(metrics)
    columns: dict[str, Column] = {
        name: table.column(name).to_numpy().astype(column_type(name), copy=False) for name in metrics
    }
    time, spool, sequence, missed = (_whole(table, name) for name in _KEY.split(", "))
    return Samples(time, spool, sequence, missed, columns)


def _whole(table: pa.Table, name: str) -> Int64Array:
    numbers: Int64Array = table.column(name).to_numpy().astype(np.int64, copy=False)
    return numbers


def _once(samples: Samples) -> Samples:
    """Drop repetitions of ticks that are in order of sequence and time."""
    again = (np.diff(samples.sequence) == 0) & (np.diff(samples.time_unix_nano) == 0)
    return samples.take(np.concatenate(([True], ~again))) if again.any() else samples


def _by_spool(blocks: Sequence[StoredBlock]) -> Iterator[Samples]:
    for _, same in groupby(blocks, key=lambda stored: stored.position.spool):
        yield join_blocks(list(same))


class Tail:
    """What was stored last, and from where on it is complete.

    Args:
        keep_s: For how long records stay at least.
        keep_bytes: Size beyond which they go earlier.
        clock: Monotonic seconds.
    """

    def __init__(self, keep_s: float, keep_bytes: int, clock: Callable[[], float]) -> None:
        self._keep_s = keep_s
        self._keep_bytes = keep_bytes
        self._clock = clock
        self._lock = threading.Lock()
        self._older = Memtable()
        self._newer = Memtable()
        self._began_at = clock()
        # Spool -> everything behind this sequence is here.
        self._complete_after: dict[int, int] = {}

    def begin(self, spool: int, durable_sequence: int) -> None:
        """Note that a spool goes on behind a sequence; what it held between its last record here and that is not."""
        with self._lock:
            known = max(self._newer.reached.get(spool, -1), self._older.reached.get(spool, -1))
            if spool not in self._complete_after or durable_sequence != known:
                self._complete_after[spool] = durable_sequence

    def add(self, records: Sequence[tuple[Position, StoredRecord]]) -> list[list[str]]:
        """Take records that are durable; returns the GPUs that each is about."""
        with self._lock:
            self._make_room()
            return [self._newer.add(position, record) for position, record in records]

    def _make_room(self) -> None:
        old = self._clock() - self._began_at >= self._keep_s
        if not old and self._newer.nbytes < self._keep_bytes // 2:
            return
        for spool, sequence in self._older.reached.items():
            self._complete_after[spool] = max(self._complete_after.get(spool, 0), sequence)
        self._older, self._newer = self._newer, Memtable()
        self._began_at = self._clock()

    def behind(
        self, gpu_uuid: str, durable: Mapping[int, int], after: Position
    ) -> tuple[list[StoredBlock], list[Marker]] | None:
        """Return a GPU's blocks and markers behind a position, or None if not all of them are here.

        Args:
            gpu_uuid: The GPU.
            durable: The spools that count, and how far they are durable.
            after: The position.
        """
        with self._lock:
            for spool, through in durable.items():
                needed = after.sequence if spool == after.spool else 0
                if spool >= after.spool and not self._is_complete(spool, needed, through):
                    return None
            blocks: list[StoredBlock] = []
            markers: list[Marker] = []
            for memtable in (self._older, self._newer):
                blocks += memtable.blocks_after(gpu_uuid, durable, after)
                markers += memtable.markers_after(gpu_uuid, durable, after)
        return blocks, markers

    def _is_complete(self, spool: int, after: int, through: int) -> bool:
        begins = self._complete_after.get(spool, _NEVER)
        ends = self._newer.reached.get(spool, self._older.reached.get(spool, begins))
        return begins <= after and ends >= through
