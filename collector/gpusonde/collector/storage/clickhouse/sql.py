"""``ClickHouseSql``: the database as the store uses it, and records as rows of its tables, column by column.

Values reach the database as bound parameters (``{name:Type}``, bound by the server) or as Arrow columns, never as text
of a statement; names of tables and columns come from the schema and the metric catalogue alone.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa

from gpusonde.collector.config import ClickHouseConfig
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

# Columns of the tables of facts, as far as Arrow would guess another type or none at all.
_TYPES: Mapping[str, pa.DataType] = {
    "metrics": pa.list_(pa.string()),
    "message": pa.binary(),
    "host": pa.binary(),
    "data": pa.binary(),
    "content": pa.binary(),
    "received": pa.timestamp("s", "UTC"),
}


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


def fact_table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return rows, which all have the columns of the first, as columns."""
    return pa.table(
        {name: pa.array([row[name] for row in rows], _TYPES.get(name)) for name in rows[0]},
    )


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


def progress_table(reached: Mapping[int, int]) -> pa.Table:
    """Return how far spools are."""
    return pa.table(
        {"spool": np.array([*reached], dtype=np.int64), "sequence": np.array([*reached.values()], dtype=np.int64)}
    )


Parameters = Mapping[str, int | str | Sequence[int] | Sequence[str]]

# The first with codec GCD (September 2023).
_LEAST_VERSION = (23, 9)
# An acknowledgement means most replicas. A read shows what was inserted through any of them, which the server only
# promises where quorum inserts into a table come one after another.
_REPLICATED_SETTINGS = {"insert_quorum": "auto", "insert_quorum_parallel": 0, "select_sequential_consistency": 1}
# UNSATISFIED_QUORUM_FOR_PREVIOUS_WRITE: another collector's insert into the table is under way.
_BUSY = 286
_LONGEST_BUSY_S = 20.0
# NOT_ENOUGH_SPACE and CANNOT_WRITE_TO_FILE_DESCRIPTOR, which is what a full disk looks like in the middle of a part.
_FULL = (243, 75)
_SETTINGS = {
    # An insert returns when its part is written, not when it waits in a buffer of the server.
    "async_insert": 0,
    # One process is one session's worth of state; there is none to be shared.
    "output_format_arrow_compression_method": "none",
}


class ClickHouseSql:
    """``Sql`` over ClickHouse's own client: HTTP to a server, or the engine in this process (chdb).

    Args:
        config: Where the database is and how to get in; it is made if it is not there and the schema is ours to make.

    Raises:
        StoreError: The client is not installed, the password cannot be read, the server cannot be reached, does not
            let us in or is too old.
    """

    def __init__(self, config: ClickHouseConfig) -> None:
        self.config = config
        with _naming_failures(config.url):
            self._client = _connect(config)
            _check_version(config.url, self._client.server_version)
            if config.create_schema:
                self._client.command(f"CREATE DATABASE IF NOT EXISTS {config.database}")
            self._client.database = config.database

    @property
    def embedded(self) -> bool:
        """Whether the engine runs in this process and its data belong to it alone."""
        return urlsplit(self.config.url).scheme == "chdb"

    def table(self, statement: str, parameters: Parameters | None = None) -> pa.Table:
        """Return the answer to a query, column by column."""
        with _naming_failures(self.config.url):
            return self._client.query_arrow(statement, parameters=dict(parameters or {}))

    def rows(self, statement: str, parameters: Parameters | None = None) -> list[tuple[Any, ...]]:
        """Return the answer to a query, row by row; text must be UTF-8."""
        table = self.table(statement, parameters)
        return list(zip(*(column.to_pylist() for column in table.columns), strict=True))

    def insert(self, table: str, rows: pa.Table) -> None:
        """Insert rows; when it returns, the server has them in a part, or most replicas have."""
        last_try_s = time.monotonic() + _LONGEST_BUSY_S
        while True:
            with _naming_failures(self.config.url):
                try:
                    self._client.insert_arrow(table, rows)
                except Exception as error:
                    if getattr(error, "code", None) != _BUSY or time.monotonic() > last_try_s:
                        raise
                else:
                    return
            time.sleep(random.uniform(0.02, 0.1))  # noqa: S311 - only spreads collectors

    def use_replicas(self) -> None:
        """Have inserts wait for most replicas, and reads show all that was inserted through any of them."""
        with _naming_failures(self.config.url):
            for name, value in _REPLICATED_SETTINGS.items():
                self._client.set_client_setting(name, value)

    def run(self, statement: str) -> None:
        """Run a statement that answers nothing."""
        with _naming_failures(self.config.url):
            self._client.command(statement)

    def close(self) -> None:
        """Disconnect."""
        self._client.close()


def binary_column(table: pa.Table, name: str) -> list[bytes]:
    """Return a column of type String as the bytes that were put into it."""
    values: list[bytes] = table.column(name).cast(pa.binary()).to_pylist()
    return values


def _connect(config: ClickHouseConfig) -> Any:
    try:
        import clickhouse_connect  # noqa: PLC0415 - an extra that only this engine needs
    except ImportError as error:
        raise StoreError(
            "the ClickHouse engine needs its client: pip install 'gpusonde[collector,clickhouse]'"
        ) from error
    address = urlsplit(config.url)
    if address.scheme == "chdb":
        return clickhouse_connect.get_client(interface="chdb", path=address.path, settings=dict(_SETTINGS))
    password = _read_password(config.password_file)
    try:
        return _connect_http(config, password)
    except Exception:
        # The client cannot greet servers that are much older, and does not say that they are.
        _check_version(config.url, _ask_version(config, password))
        raise


def _connect_http(config: ClickHouseConfig, password: str) -> Any:
    import clickhouse_connect  # noqa: PLC0415 - an extra that only this engine needs

    address = urlsplit(config.url)
    return clickhouse_connect.get_client(
        host=address.hostname or "localhost",
        port=address.port or (8443 if address.scheme == "https" else 8123),
        interface=address.scheme,
        username=config.user,
        password=password,
        connect_timeout=config.connect_timeout_s,
        send_receive_timeout=config.timeout_s,
        ca_cert=config.tls_ca or None,
        client_cert=config.tls_certificate or None,
        client_cert_key=config.tls_key or None,
        # With a session of its own a client may run one statement at a time; ours is used by several threads.
        autogenerate_session_id=False,
        settings=dict(_SETTINGS),
    )


def _ask_version(config: ClickHouseConfig, password: str) -> str:
    """Return the version of a server, without the client; empty where it does not answer."""
    from clickhouse_connect.driver.httputil import get_pool_manager  # noqa: PLC0415 - as above

    pool = get_pool_manager(
        ca_cert=config.tls_ca or None,
        client_cert=config.tls_certificate or None,
        client_cert_key=config.tls_key or None,
    )
    try:
        answer = pool.request(
            "POST",
            config.url,
            body=b"SELECT version()",
            headers={"X-ClickHouse-User": config.user, "X-ClickHouse-Key": password},
            timeout=config.connect_timeout_s,
            retries=False,
        )
    except Exception:
        return ""
    finally:
        pool.clear()
    return answer.data.decode(errors="replace").strip() if answer.status == HTTPStatus.OK else ""


def _check_version(url: str, version: str) -> None:
    found = re.match(r"(\d+)\.(\d+)", version)
    if found and (int(found[1]), int(found[2])) < _LEAST_VERSION:
        least = ".".join(map(str, _LEAST_VERSION))
        raise StoreError(f"ClickHouse at {url} is version {version}, the collector needs {least} or newer: update it")


def _read_password(path: str) -> str:
    try:
        return Path(path).read_text().rstrip("\n") if path else ""
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"the password of ClickHouse cannot be read from {path}: {error}") from error


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
