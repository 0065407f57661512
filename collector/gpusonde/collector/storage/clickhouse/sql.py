"""``ClickHouseSql``: the database as the store uses it, and records as rows of its tables, column by column.

Values reach the database as bound parameters (``{name:Type}``, bound by the server) or as rows in JSON or Arrow, never
as text of a statement; names of tables and columns come from the schema and the metric catalogue alone.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa

from gpusonde.collector.config import ClickHouseConfig
from gpusonde.collector.storage.clickhouse.server import FORMAT_SETTINGS, ClickHouseServer, Parameters
from gpusonde.collector.storage.model import PendingRecord, Position, RejectedRecord
from gpusonde.collector.storage.samples import StoredBlock, join_blocks, round_values
from gpusonde.errors import StoreError, StoreFullError
from gpusonde.service.wire import (
    ActivityRecord,
    BatchRecord,
    BindingsRecord,
    EventsRecord,
    InventoryRecord,
    LossRecord,
    SourceEndedRecord,
)

_SECOND_NS = 1_000_000_000
# An answer of fewer bytes is not worth the time of several threads.
_LARGE_BYTES = 1 << 18


@dataclass
class RecordRows:
    """What a group of records adds to the tables.

    Attributes:
        facts: Table -> its rows.
        blocks: Blocks of samples, and when each was received, in Unix nanoseconds.
        reached: Spool -> highest sequence.
    """

    facts: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    blocks: list[tuple[StoredBlock, int]] = field(default_factory=list)
    reached: dict[int, int] = field(default_factory=dict)

    def add(self, position: Position, incoming: PendingRecord) -> None:
        """Take in one record."""
        entry, record = incoming.entry, incoming.decoded
        key = position._asdict()
        self.reached[position.spool] = position.sequence
        if isinstance(record, BatchRecord):
            # A record may hold several blocks of one GPU: the key of a row is GPU, metric, reason and record.
            blanks: Counter[tuple[str, str, int]] = Counter()
            for block in record.blocks:
                self.blocks.append((StoredBlock(position, block), entry.received_unix_nano))
                for blank in block.blanks:
                    blanks[block.gpu_uuid, blank.metric, blank.reason] += blank.count
            received = entry.received_unix_nano // _SECOND_NS
            self.facts["blanks"] += [
                {"gpu_uuid": gpu, "metric": name, "reason": reason, **key, "count": count, "received": received}
                for (gpu, name, reason), count in blanks.items()
            ]
        elif isinstance(record, InventoryRecord):
            self.facts["inventories"].append({**key, "message": entry.payload})
            self.facts["gpus"] += [
                {
                    "gpu_uuid": gpu.gpu_uuid,
                    "agent_id": entry.agent_id,
                    **key,
                    "message": gpu.message,
                    "metrics": [name for name in record.layout.metrics if name not in gpu.missing_metrics],
                }
                for gpu in record.gpus
            ]
        elif isinstance(record, BindingsRecord):
            self.facts["job_bindings"] += [
                {
                    "gpu_uuid": binding.gpu_uuid,
                    **key,
                    "item": item,
                    "job_id": binding.job_id,
                    "scheduler": binding.scheduler,
                    "start_unix_nano": binding.start_unix_nano,
                    "end_unix_nano": binding.end_unix_nano,
                    "labels": json.dumps(dict(binding.labels)),
                }
                for item, binding in enumerate(record.bindings)
            ]
        elif isinstance(record, SourceEndedRecord):
            self.facts["source_ends"] += [{"gpu_uuid": gpu_uuid, **key} for gpu_uuid in record.gpu_uuids]
        elif isinstance(record, EventsRecord):
            self.facts["gpu_events"] += [
                {
                    "gpu_uuid": event.gpu_uuid,
                    "time_unix_nano": event.time_unix_nano,
                    **key,
                    "item": item,
                    "kind": event.kind,
                    "value": event.value,
                }
                for item, event in enumerate(record.events)
            ]
        elif isinstance(record, ActivityRecord):
            self.facts["job_activity"] += [
                {
                    **key,
                    "item": item,
                    "start_unix_nano": int(job.time_unix_nano[0]),
                    "end_unix_nano": int(job.time_unix_nano[-1]),
                    "message": job.message,
                    "received": entry.received_unix_nano // _SECOND_NS,
                }
                for item, job in enumerate(record.jobs)
                if job.time_unix_nano.size
            ]
        elif isinstance(record, LossRecord):
            self.facts["losses"].append({**key, **vars(record)})
        elif isinstance(record, RejectedRecord):
            self.facts["rejections"].append({**key, **vars(record)})

    def gap(self, spool: int, first_sequence: int, last_sequence: int) -> None:
        """Note that records of a spool never came."""
        self.facts["gaps"].append({"spool": spool, "first_sequence": first_sequence, "last_sequence": last_sequence})


def sample_table(blocks: Sequence[tuple[StoredBlock, int]], *, lossless: bool) -> pa.Table:
    """Return the ticks of blocks of any GPUs as rows of the table of samples, rounded unless lossless."""
    # Blocks of one layout are joined at once; those of a fleet have few layouts.
    ordered = sorted(blocks, key=lambda pair: pair[0].block.layout.metrics)
    stored = [block for block, _ in ordered]
    samples = join_blocks(stored)
    columns = samples.columns
    if not lossless:
        columns = {name: round_values(name, column) for name, column in columns.items()}
    ticks = [block.block.time_unix_nano.size for block in stored]
    names = list(dict.fromkeys(block.block.gpu_uuid for block in stored))
    index = {name: i for i, name in enumerate(names)}
    gpus = np.repeat(np.array([index[block.block.gpu_uuid] for block in stored], dtype=np.int32), ticks)
    received = np.repeat(np.array([at // _SECOND_NS for _, at in ordered], dtype=np.int64), ticks)
    return pa.table(
        {
            "gpu_uuid": pa.DictionaryArray.from_arrays(pa.array(gpus), pa.array(names, pa.string())),
            "time_unix_nano": samples.time_unix_nano,
            "spool": samples.spool,
            "sequence": samples.sequence,
            "missed_ticks": samples.missed_ticks.astype(np.uint32),
            "received": pa.array(received).cast(pa.timestamp("s", "UTC")),
            # NaN is a value of its own here; pyarrow would make it null if it took these for pandas' columns.
            **{name: pa.array(column, from_pandas=False) for name, column in columns.items()},
        }
    )


def progress_rows(reached: Mapping[int, int]) -> list[dict[str, int]]:
    """Return how far spools are as rows of the table of progress."""
    return [{"spool": spool, "sequence": sequence} for spool, sequence in reached.items()]


# An acknowledgement means most replicas. A read shows what was inserted through any of them, which the server only
# promises where quorum inserts into a table come one after another.
_REPLICATED_SETTINGS: Mapping[str, str | int] = {
    "insert_quorum": "auto",
    "insert_quorum_parallel": 0,
    "select_sequential_consistency": 1,
}
# UNSATISFIED_QUORUM_FOR_PREVIOUS_WRITE: another collector's insert into the table is under way.
_BUSY = 286
_LONGEST_BUSY_S = 20.0
# NOT_ENOUGH_SPACE and CANNOT_WRITE_TO_FILE_DESCRIPTOR, which is what a full disk looks like in the middle of a part.
_FULL = (243, 75)
# An insert returns when its part is written, not when it waits in a buffer of the server.
_SETTINGS = {"async_insert": 0}


class ClickHouseSql:
    """The database: a server over HTTP, or the engine in this process (chdb).

    Args:
        config: Where the database is and how to get in; it is made if it is not there and the schema is ours to make.

    Raises:
        StoreError: The password cannot be read, the server cannot be reached, does not let us in or is too old, or
            the engine is not installed.
    """

    def __init__(self, config: ClickHouseConfig) -> None:
        self.config = config
        with _naming_failures(config.url):
            self._engine = _EmbeddedEngine(config) if self.embedded else ClickHouseServer(config, _SETTINGS)
            if config.create_schema:
                self._engine.run(f"CREATE DATABASE IF NOT EXISTS {config.database}")
            self._engine.use({}, config.database)

    @property
    def embedded(self) -> bool:
        """Whether the engine runs in this process and its data belong to it alone."""
        return urlsplit(self.config.url).scheme == "chdb"

    def table(self, statement: str, parameters: Parameters | None = None) -> pa.Table:
        """Return the answer to a query, column by column."""
        with _naming_failures(self.config.url):
            answer = self._engine.query(statement, parameters or {}, "Arrow")
            options = pa.ipc.IpcReadOptions(use_threads=len(answer) > _LARGE_BYTES)
            return pa.ipc.RecordBatchFileReader(pa.py_buffer(answer), options=options).read_all()

    def rows(self, statement: str, parameters: Parameters | None = None) -> list[tuple[Any, ...]]:
        """Return the answer to a query, row by row; text must be UTF-8."""
        table = self.table(statement, parameters)
        return list(zip(*(column.to_pylist() for column in table.columns), strict=True))

    def few_rows(self, statement: str, parameters: Parameters) -> list[list[Any]]:
        """Return a short answer of text and whole numbers, row by row: as Arrow it costs twice as much."""
        with _naming_failures(self.config.url):
            answer = self._engine.query(statement, parameters, "JSONCompactEachRow")
            return [json.loads(line) for line in answer.splitlines()]

    def insert(self, table: str, rows: pa.Table | Sequence[Mapping[str, Any]]) -> None:
        """Insert rows; when it returns, the server has them in a part, or most replicas have.

        Args:
            table: Where to.
            rows: Many, column by column, or at least one, which all have the columns of the first: of a few, Arrow
                costs eight times as much.
        """
        if isinstance(rows, pa.Table):
            columns, content, form = rows.column_names, _arrow_file(rows), "Arrow"
        else:
            columns, content, form = list(rows[0]), _json_lines(rows), "JSONCompactEachRow"
        last_try_s = time.monotonic() + _LONGEST_BUSY_S
        while True:
            with _naming_failures(self.config.url):
                try:
                    self._engine.insert(table, columns, content, form)
                except Exception as error:
                    if getattr(error, "code", None) != _BUSY or time.monotonic() > last_try_s:
                        raise
                else:
                    return
            time.sleep(random.uniform(0.02, 0.1))  # noqa: S311 - only spreads collectors

    def use_replicas(self) -> None:
        """Have inserts wait for most replicas, and reads show all that was inserted through any of them."""
        with _naming_failures(self.config.url):
            self._engine.use(_REPLICATED_SETTINGS)

    def run(self, statement: str) -> None:
        """Run a statement that answers nothing."""
        with _naming_failures(self.config.url):
            self._engine.run(statement)

    def close(self) -> None:
        """Disconnect."""
        self._engine.close()


def _json_lines(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return rows as arrays; bytes that are no text stay as they are, which the database takes."""
    lines = [
        [value.decode(errors="surrogateescape") if isinstance(value, bytes) else value for value in row.values()]
        for row in rows
    ]
    return "\n".join(json.dumps(line, ensure_ascii=False) for line in lines).encode(errors="surrogateescape")


def _arrow_file(rows: pa.Table) -> pa.Buffer:
    large = rows.nbytes > _LARGE_BYTES
    options = pa.ipc.IpcWriteOptions(compression="lz4" if large else None, use_threads=large)
    sink = pa.BufferOutputStream()
    with pa.ipc.RecordBatchFileWriter(sink, rows.schema, options=options) as writer:
        writer.write(rows)
    return sink.getvalue()


def binary_column(table: pa.Table, name: str) -> list[bytes]:
    """Return a column of type String as the bytes that were put into it."""
    values: list[bytes] = table.column(name).cast(pa.binary()).to_pylist()
    return values


class _EmbeddedEngine:
    """The engine in this process, through ClickHouse's client; the same face as ``ClickHouseServer``."""

    def __init__(self, config: ClickHouseConfig) -> None:
        try:
            import clickhouse_connect  # noqa: PLC0415 - an extra that only this engine needs
        except ImportError as error:
            raise StoreError("the engine in this process needs: pip install 'gpusonde[clickhouse]' chdb") from error
        self._client: Any = clickhouse_connect.get_client(
            interface="chdb",
            path=urlsplit(config.url).path,
            settings={**_SETTINGS, **FORMAT_SETTINGS},
        )

    def use(self, settings: Mapping[str, str | int], database: str | None = None) -> None:
        """Say more settings with every statement, and, where given, the database that it is about."""
        for name, value in settings.items():
            self._client.set_client_setting(name, value)
        if database is not None:
            self._client.database = database

    def query(self, statement: str, parameters: Parameters, form: str) -> bytes:
        """Return the answer to a query in one of ClickHouse's formats."""
        answer: bytes = self._client.raw_query(statement, dict(parameters), fmt=form)
        return answer

    def insert(self, table: str, columns: Sequence[str], rows: bytes | pa.Buffer, form: str) -> None:
        """Insert rows that are in one of ClickHouse's formats."""
        self._client.raw_insert(table, list(columns), bytes(rows), fmt=form)

    def run(self, statement: str) -> None:
        """Run a statement that answers nothing."""
        self._client.command(statement)

    def close(self) -> None:
        """Disconnect."""
        self._client.close()


@contextmanager
def _naming_failures(url: str) -> Iterator[None]:
    try:
        yield
    except StoreError:
        raise
    except Exception as error:  # the client's, its HTTP library's and Arrow's have no root in common
        text = f"ClickHouse at {url}: {error}"
        if getattr(error, "code", None) in _FULL:
            raise StoreFullError(text) from error
        raise StoreError(text) from error
