"""Agents, spools, inventories and everything else a record says besides samples.

Every row of a record is keyed by (spool, sequence, item), so writing it again after a crash changes nothing.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from gpusonde.collector.storage.local.database import Database
from gpusonde.collector.storage.model import (
    AgentRow,
    GpuRow,
    LossRow,
    Position,
    RejectedRecord,
    RejectionRow,
    StoredRecord,
    decode_inventory,
    read_activity,
)
from gpusonde.service.wire import (
    ActivityRecord,
    Binding,
    BindingsRecord,
    EventsRecord,
    GpuEvent,
    InventoryGpu,
    InventoryRecord,
    JobActivity,
    Layout,
    LossRecord,
    SourceEndedRecord,
)

# Records without samples are rows of these, keyed by their sequence.
_BY_SEQUENCE = ("inventories", "job_bindings", "source_ends", "gpu_events", "losses", "rejections", "empty_records")
_LAST_ITEM = 1 << 62
_ACTIVITY_AT_ONCE = 256


# By which an agent's clock may be ahead of the collector's.
_CLOCKS_APART_NS = 300_000_000_000


class LocalFacts:
    """Implements ``FactStore`` over the catalogue, and writes what records say.

    Args:
        database: Where they are.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def save_agents(self, agents: Sequence[AgentRow]) -> list[int]:
        """Store what agents said of themselves and return the numbers of their spools, new ones if need be."""
        with self._database.transaction() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO agents VALUES (?, ?, ?, ?, ?, ?, ?)",
                [
                    (
                        agent.agent_id,
                        agent.spool_id,
                        agent.instance_id,
                        agent.start_unix_nano,
                        agent.host_name,
                        agent.agent_version,
                        agent.host,
                    )
                    for agent in agents
                ],
            )
            return [_spool_number(connection, agent.agent_id, agent.spool_id, agent.first_sequence) for agent in agents]

    def spool_number(self, agent_id: str, spool_id: str) -> int:
        """Return the number of a spool, a new one if need be."""
        with self._database.transaction() as connection:
            return _spool_number(connection, agent_id, spool_id)

    def agents(self) -> list[AgentRow]:
        """Return every agent ever seen."""
        rows = self._database.rows(
            "SELECT agent_id, spool_id, instance_id, start_unix_nano, host_name, agent_version, host FROM agents"
        )
        return [AgentRow(*row) for row in rows]

    def spools(self) -> dict[tuple[str, str], Position]:
        """Return the number of every spool and the sequence up to which it is in segments."""
        rows = self._database.rows("SELECT agent_id, spool_id, spool, stored_sequence FROM spools")
        return {(agent, spool_id): Position(spool, sequence) for agent, spool_id, spool, sequence in rows}

    def inventory(self, agent_id: str, spool_id: str) -> InventoryRecord | None:
        """Return the latest durable inventory of a spool."""
        rows = self._database.rows(
            "SELECT message FROM inventories JOIN spools USING (spool) WHERE agent_id = ? AND spool_id = ?"
            " ORDER BY sequence DESC LIMIT 1",
            (agent_id, spool_id),
        )
        return decode_inventory(rows[0][0]) if rows else None

    def inventory_at(self, position: Position) -> InventoryRecord | None:
        """Return the inventory that holds for a record."""
        rows = self._database.rows(
            "SELECT message FROM inventories WHERE spool = ? AND sequence <= ? ORDER BY sequence DESC LIMIT 1",
            tuple(position),
        )
        return decode_inventory(rows[0][0]) if rows else None

    def save(
        self,
        records: Iterable[tuple[Position, str, StoredRecord, bytes]],
        gaps: Mapping[Position, int],
    ) -> None:
        """Write what records say besides samples, in one transaction.

        Args:
            records: Position, agent, decoded record, and its serialised payload where it is an inventory.
            gaps: First missing position -> last missing sequence.
        """
        with self._database.transaction() as connection:
            for first, last in gaps.items():
                connection.execute("INSERT OR IGNORE INTO gaps VALUES (?, ?, ?)", (*first, last))
            for position, agent_id, record, message in records:
                _save_record(connection, position, agent_id, record, message)

    def gpus(self, gpu_uuids: Collection[str] | None = None) -> list[GpuRow]:
        """Return every GPU ever described, or those of the given UUIDs."""
        marks = "" if gpu_uuids is None else ", ".join("?" for _ in gpu_uuids)
        rows = self._database.rows(
            "SELECT gpu_uuid, agent_id, COALESCE(host_name, ''), message, metrics"  # noqa: S608 - own text only
            " FROM gpus LEFT JOIN agents USING (agent_id)"
            + ("" if gpu_uuids is None else f" WHERE gpu_uuid IN ({marks})")
            + " ORDER BY gpu_uuid, agent_id",
            tuple(gpu_uuids or ()),
        )
        return [
            GpuRow(gpu, agent, host, message, tuple(json.loads(names))) for gpu, agent, host, message, names in rows
        ]

    def metrics(self, gpu_uuid: str) -> list[str]:
        """Return the metrics that any agent ever offered for a GPU."""
        rows = self._database.rows("SELECT metrics FROM gpus WHERE gpu_uuid = ?", (gpu_uuid,))
        return list(dict.fromkeys(name for (names,) in rows for name in json.loads(names)))

    def bindings(self, agent_id: str, gpu_uuid: str) -> list[tuple[Position, Binding]]:
        """Return an agent's job bindings of one GPU in order of arrival."""
        rows = self._database.rows(
            "SELECT spool, sequence, job_id, scheduler, start_unix_nano, end_unix_nano, labels FROM job_bindings"
            " JOIN spools USING (spool)"
            " WHERE gpu_uuid = ? AND agent_id = ? ORDER BY spool, sequence, item",
            (gpu_uuid, agent_id),
        )
        return [
            (Position(spool, sequence), Binding(gpu_uuid, job, scheduler, start, end, json.loads(labels)))
            for spool, sequence, job, scheduler, start, end, labels in rows
        ]

    def job_bindings(self, agent_id: str, job_id: str) -> list[tuple[str, Position, Binding]]:
        """Return the bindings of an agent's GPUs to a job, with the GPU, in order of arrival."""
        rows = self._database.rows(
            "SELECT gpu_uuid, spool, sequence, scheduler, start_unix_nano, end_unix_nano, labels FROM job_bindings"
            " JOIN spools USING (spool) WHERE job_id = ? AND agent_id = ? ORDER BY spool, sequence, item",
            (job_id, agent_id),
        )
        return [
            (gpu, Position(spool, sequence), Binding(gpu, job_id, scheduler, start, end, json.loads(labels)))
            for gpu, spool, sequence, scheduler, start, end, labels in rows
        ]

    def open_bindings(self) -> list[tuple[str, Binding]]:
        """Return the job bindings that have not ended, with their agents, in order of their start."""
        rows = self._database.rows(
            "SELECT agent_id, gpu_uuid, job_id, scheduler, start_unix_nano, labels FROM"
            " (SELECT *, ROW_NUMBER() OVER (PARTITION BY agent_id, gpu_uuid, job_id, start_unix_nano"
            " ORDER BY spool DESC, sequence DESC, item DESC) AS place FROM job_bindings JOIN spools USING (spool))"
            " WHERE place = 1 AND end_unix_nano = 0 ORDER BY start_unix_nano, agent_id, gpu_uuid"
        )
        return [
            (agent_id, Binding(gpu, job_id, scheduler, start, 0, json.loads(labels)))
            for agent_id, gpu, job_id, scheduler, start, labels in rows
        ]

    def source_ends_after(self, agent_id: str, gpu_uuid: str, after: Position) -> list[Position]:
        """Return where an agent said, after a position, that a GPU's source has ended."""
        rows = self._database.rows(
            "SELECT spool, sequence FROM source_ends JOIN spools USING (spool)"
            " WHERE gpu_uuid = ? AND agent_id = ? AND (spool, sequence) > (?, ?) ORDER BY spool, sequence",
            (gpu_uuid, agent_id, *after),
        )
        return [Position(*row) for row in rows]

    def events(self, gpu_uuid: str) -> list[GpuEvent]:
        """Return the events of one GPU in order of time."""
        rows = self._database.rows(
            "SELECT gpu_uuid, time_unix_nano, kind, value FROM gpu_events WHERE gpu_uuid = ?"
            " ORDER BY time_unix_nano, spool, sequence, item",
            (gpu_uuid,),
        )
        return [GpuEvent(*row) for row in rows]

    def activity(self, agent_id: str, gpu_uuid: str, after: Position) -> Iterator[tuple[Position, JobActivity]]:
        """Yield what the processes of the job on a GPU did, behind a position, in order of arrival."""
        place = (*after, _LAST_ITEM)
        while rows := self._database.rows(
            "SELECT spool, sequence, item, message FROM job_activity JOIN spools USING (spool)"
            " WHERE agent_id = ? AND (spool, sequence, item) > (?, ?, ?) ORDER BY spool, sequence, item LIMIT ?",
            (agent_id, *place, _ACTIVITY_AT_ONCE),
        ):
            for spool, sequence, _, message in rows:
                if job := read_activity(message, gpu_uuid):
                    yield Position(spool, sequence), job
            place = rows[-1][:3]

    def recent_activity(self, agent_id: str, gpu_uuids: Collection[str], since_unix_nano: int) -> list[JobActivity]:
        """Return what the processes on some GPUs did, as far as it ends after a time, in order of arrival."""
        rows = self._database.rows(
            # By the index on when it came, which is no earlier than what it says.
            "SELECT message FROM job_activity JOIN spools USING (spool)"
            " WHERE received_unix_s >= ? AND end_unix_nano > ? AND agent_id = ? ORDER BY spool, sequence, item",
            ((since_unix_nano - _CLOCKS_APART_NS) // 1_000_000_000, since_unix_nano, agent_id),
        )
        return [job for (message,) in rows if (job := read_activity(message, *gpu_uuids))]

    def losses(self) -> list[LossRow]:
        """Return every reported loss and every gap that was seen."""
        rows = self._database.rows(
            "SELECT agent_id, spool_id, first_sequence, last_sequence, reason, lost_ticks, 1 FROM losses"
            " JOIN spools USING (spool) UNION ALL"
            " SELECT agent_id, spool_id, first_sequence, last_sequence, 0, 0, 0 FROM gaps JOIN spools USING (spool)"
            " ORDER BY 1, 2, 3"
        )
        return [
            LossRow(agent, spool, first, last, reason, ticks, reported=bool(reported))
            for agent, spool, first, last, reason, ticks, reported in rows
        ]

    def rejections(self) -> list[RejectionRow]:
        """Return the records that were refused for good."""
        rows = self._database.rows(
            "SELECT agent_id, spool_id, sequence, field, problem, size_bytes, file_name FROM rejections"
            " JOIN spools USING (spool) ORDER BY agent_id, spool, sequence"
        )
        return [RejectionRow(*row) for row in rows]

    def sequences(self, spool: int, first: int, last: int) -> list[int]:
        """Return the sequences of a spool in ``[first, last]`` whose records are rows here."""
        found: set[int] = set()
        for table in _BY_SEQUENCE:
            statement = f"SELECT DISTINCT sequence FROM {table} WHERE spool = ? AND sequence BETWEEN ? AND ?"  # noqa: S608
            found.update(sequence for (sequence,) in self._database.rows(statement, (spool, first, last)))
        return sorted(found)

    def blank_counts(self, gpu_uuid: str) -> dict[tuple[str, int], int]:
        """Return (metric, reason) -> number of NaNs in the segments of one GPU."""
        rows = self._database.rows("SELECT metric, reason, count FROM blank_counts WHERE gpu_uuid = ?", (gpu_uuid,))
        return {(metric, reason): count for metric, reason, count in rows}


def _spool_number(connection: sqlite3.Connection, agent_id: str, spool_id: str, first_sequence: int = 1) -> int:
    connection.execute(
        "INSERT OR IGNORE INTO spools (agent_id, spool_id, stored_sequence) VALUES (?, ?, ?)",
        (agent_id, spool_id, first_sequence - 1),
    )
    (number,) = connection.execute(
        "SELECT spool FROM spools WHERE agent_id = ? AND spool_id = ?", (agent_id, spool_id)
    ).fetchone()
    return int(number)


def _save_record(
    connection: sqlite3.Connection, position: Position, agent_id: str, record: StoredRecord, message: bytes
) -> None:
    if _is_empty(record):
        connection.execute("INSERT OR IGNORE INTO empty_records VALUES (?, ?)", position)
    elif isinstance(record, InventoryRecord):
        connection.execute("INSERT OR IGNORE INTO inventories VALUES (?, ?, ?)", (*position, message))
        for gpu in record.gpus:
            _save_gpu(connection, agent_id, gpu, record.layout)
    elif isinstance(record, BindingsRecord):
        for i, binding in enumerate(record.bindings):
            connection.execute(
                "INSERT OR IGNORE INTO job_bindings VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    *position,
                    i,
                    binding.gpu_uuid,
                    binding.job_id,
                    binding.scheduler,
                    binding.start_unix_nano,
                    binding.end_unix_nano,
                    json.dumps(dict(binding.labels)),
                ),
            )
    elif isinstance(record, SourceEndedRecord):
        connection.executemany(
            "INSERT OR IGNORE INTO source_ends VALUES (?, ?, ?)", [(*position, gpu) for gpu in record.gpu_uuids]
        )
    elif isinstance(record, EventsRecord):
        connection.executemany(
            "INSERT OR IGNORE INTO gpu_events VALUES (?, ?, ?, ?, ?, ?, ?)",
            [(*position, i, e.gpu_uuid, e.time_unix_nano, e.kind, e.value) for i, e in enumerate(record.events)],
        )
    elif isinstance(record, ActivityRecord):
        # Retention takes these rows, and the sequence is to be no hole then.
        connection.execute("INSERT OR IGNORE INTO empty_records VALUES (?, ?)", position)
        for i, job in enumerate(record.jobs):
            if not job.time_unix_nano.size:
                continue
            start, end = int(job.time_unix_nano[0]), int(job.time_unix_nano[-1])
            connection.execute(
                "INSERT OR IGNORE INTO job_activity (spool, sequence, item, gpu_uuids, start_unix_nano, end_unix_nano,"
                " message) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (*position, i, json.dumps(job.gpu_uuids), start, end, job.message),
            )
    elif isinstance(record, LossRecord):
        connection.execute(
            "INSERT OR IGNORE INTO losses VALUES (?, ?, ?, ?, ?, ?)",
            (*position, record.first_sequence, record.last_sequence, record.reason, record.lost_ticks),
        )
    elif isinstance(record, RejectedRecord):
        connection.execute(
            "INSERT OR IGNORE INTO rejections VALUES (?, ?, ?, ?, ?, ?)",
            (*position, record.field, record.problem, record.size_bytes, record.file_name),
        )


def _is_empty(record: StoredRecord) -> bool:
    """Return whether no row would say that the record was there."""
    if isinstance(record, BindingsRecord):
        return not record.bindings
    if isinstance(record, EventsRecord):
        return not record.events
    return isinstance(record, SourceEndedRecord) and not record.gpu_uuids


def _save_gpu(connection: sqlite3.Connection, agent_id: str, gpu: InventoryGpu, layout: Layout) -> None:
    offered = [name for name in layout.metrics if name not in gpu.missing_metrics]
    known = connection.execute(
        "SELECT metrics FROM gpus WHERE gpu_uuid = ? AND agent_id = ?", (gpu.gpu_uuid, agent_id)
    ).fetchone()
    # A metric that is gone from the inventory still has its past.
    names = list(dict.fromkeys([*offered, *(json.loads(known[0]) if known else ())]))
    connection.execute(
        "INSERT OR REPLACE INTO gpus VALUES (?, ?, ?, ?)", (gpu.gpu_uuid, agent_id, gpu.message, json.dumps(names))
    )
