"""Samples out of the database."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np
import pyarrow as pa

from gpusonde.collector.records.model import Int64Array, Position
from gpusonde.collector.storage.clickhouse.facts import Facts
from gpusonde.collector.storage.clickhouse.sql import Sql
from gpusonde.collector.storage.clickhouse.tail import Tail
from gpusonde.collector.storage.samples import (
    RESOLUTION_S,
    SECOND_NS,
    Arrival,
    BindingArrived,
    Column,
    Mark,
    Samples,
    SourceEndArrived,
    StoredBlock,
    column_type,
    concatenate,
    count_of,
    empty_samples,
    in_order_of_arrival,
    in_order_of_time,
    joined,
    samples_of,
)

_KEY = "time_unix_nano, spool, sequence, missed_ticks"
# Read at a time: records are of a second, so this is a quarter of an hour.
_RECORDS_AT_ONCE = 900


class Reader:
    """Reads samples; see ``Store`` for what its methods promise.

    Args:
        sql: The database.
        facts: What is there besides samples.
        tail: What was stored last.
        known_durable: Tells how far a spool is durable at least, as far as this process knows.
        raw_since_unix_nano: Tells from when on every tick is still there.
    """

    def __init__(
        self,
        sql: Sql,
        facts: Facts,
        tail: Tail,
        known_durable: Callable[[int], int],
        raw_since_unix_nano: Callable[[], int],
    ) -> None:
        self._raw_since_unix_nano = raw_since_unix_nano
        self._sql = sql
        self._facts = facts
        self._tail = tail
        self._known_durable = known_durable

    def read(
        self,
        gpu_uuid: str,
        start_unix_nano: int,
        end_unix_nano: int,
        metrics: Sequence[str] | None,
        first: Position | None,
        last: Position | None,
    ) -> Samples:
        """See ``Store.read``."""
        wanted = self._facts.metrics_of(gpu_uuid) if metrics is None else list(dict.fromkeys(metrics))
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
        samples = in_order_of_time(self._acknowledged(_samples(table, wanted)))
        if start_unix_nano >= self._raw_since_unix_nano():
            return samples
        averages = self._averages(wanted, condition, values)
        return in_order_of_time(concatenate([averages, samples], wanted)) if len(averages) else samples

    def _averages(self, metrics: Sequence[str], condition: str, values: Mapping[str, int | str]) -> Samples:
        """Return the averages over seconds of records whose ticks are gone."""
        counts = [count_of(name) for name in metrics if column_type(name) is np.float32]
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
        ticks = {name: _whole(table, count_of(name))[once] for name in metrics if count_of(name) in counts}
        return joined(replace(samples.take(once), resolution_s=RESOLUTION_S), ticks)

    def _acknowledged(self, samples: Samples) -> Samples:
        """Leave out ticks of records that are not durable: of those, only some rows may be there."""
        for spool in np.unique(samples.spool).tolist():
            last = int(samples.sequence[samples.spool == spool].max())
            if last > self._known_durable(spool) and last > (durable := self._facts.durable(spool)):
                samples = samples.take((samples.spool != spool) | (samples.sequence <= durable))
        return samples

    def next_tick(self, gpu_uuid: str, start_unix_nano: int) -> int | None:
        """See ``Store.next_tick``."""
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

    def arrivals(self, agent_id: str, gpu_uuid: str, after: Position, durable: Mapping[int, int]) -> Iterator[Arrival]:
        """See ``Store.arrivals``.

        Args:
            agent_id: The agent.
            gpu_uuid: The GPU.
            after: Where to begin.
            durable: The agent's spools and how far they are durable: beyond, what is in the database is not whole.
        """
        recent = self._tail.behind(gpu_uuid, durable, after)
        if recent is not None:
            blocks, marks = recent
            return in_order_of_arrival(_by_spool(blocks), marks)
        marks = self._marks(agent_id, gpu_uuid, after, durable)
        return in_order_of_arrival(self._stored(gpu_uuid, after, durable), marks)

    def _marks(self, agent_id: str, gpu_uuid: str, after: Position, durable: Mapping[int, int]) -> list[Mark]:
        marks: list[Mark] = [
            BindingArrived(position, binding) for position, binding in self._facts.bindings(agent_id, gpu_uuid)
        ]
        marks += [SourceEndArrived(position) for position in self._facts.source_ends(agent_id, gpu_uuid)]
        return sorted(
            (m for m in marks if m.position > after and m.position.sequence <= durable.get(m.position.spool, 0)),
            key=lambda mark: mark.position,
        )

    def _stored(self, gpu_uuid: str, after: Position, durable: Mapping[int, int]) -> Iterator[Samples]:
        metrics = self._facts.metrics_of(gpu_uuid)
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
        yield samples_of(list(same))
