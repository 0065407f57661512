"""The tables, how they come to be, and how those of an older collector become today's.

Every row is keyed by what it is about, and the engine keeps one row per key: writing it again, as after a crash between
an insert and its acknowledgement, changes nothing. What may change carries a version, and the highest one counts.

Tables of samples are cut by the day on which the collector received them, not by the time in them: one insert is one
part whatever an agent's clock says, and retention removes whole parts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from gpusonde.collector.config import StoreConfig
from gpusonde.collector.storage.clickhouse.sql import ClickHouseSql
from gpusonde.collector.storage.samples import (
    SECOND_NS,
    TICK_COUNT,
    count_column,
    max_column,
    min_column,
    rollup_columns,
)
from gpusonde.errors import StoreError
from gpusonde.telemetry import METRICS, Metric, MetricKind

_LOG = logging.getLogger(__name__)
VERSION = 1

# A part counts as written when it survives a power loss, as an acknowledgement promises.
_DURABLE = "fsync_after_insert = 1, fsync_part_directory = 1"
# Codecs: for values Gorilla and FPC were larger than ZSTD(1), and ZSTD(3) 0 to 3 % smaller at more CPU.
_KEY = "spool Int64 CODEC(Delta, ZSTD(1)), sequence Int64 CODEC(Delta, ZSTD(1))"
_RECEIVED = "received DateTime('UTC') CODEC(Delta, ZSTD(1))"


@dataclass(frozen=True)
class _Table:
    """One table.

    Attributes:
        name: Its name.
        columns: What stands between the parentheses.
        engine: How rows with one key become one.
        order_by: The key.
        partition_by: What is dropped together; empty for tables that are kept for ever.
        lifetime: Field of ``StoreConfig``; empty for ever.
        expires: When rows go of which no setting says it.
    """

    name: str
    columns: str
    order_by: str
    engine: str = "ReplacingMergeTree"
    partition_by: str = ""
    lifetime: str = ""
    expires: str = ""

    def statement(self, config: StoreConfig) -> str:
        """Return the statement that makes the table if it is not there."""
        settings = _DURABLE
        parts = [f"CREATE TABLE IF NOT EXISTS {self.name} (\n    {self.columns}\n)", f"ENGINE = {self.engine}"]
        if self.partition_by:
            parts.append(f"PARTITION BY {self.partition_by}")
        parts.append(f"ORDER BY ({self.order_by})")
        if self.lifetime or self.expires:
            settings += ", ttl_only_drop_parts = 1"
            if clause := self.lifetime_clause(config):
                parts.append(clause)
        parts.append(f"SETTINGS {settings}")
        return "\n".join(parts)

    def lifetime_clause(self, config: StoreConfig) -> str:
        """Return the clause that says when rows go; empty for never."""
        if self.expires:
            return f"TTL {self.expires}"
        seconds = round(getattr(config, self.lifetime))
        return f"TTL received + toIntervalSecond({seconds})" if seconds else ""


def _type(metric: Metric) -> str:
    # Like column_type: float32 does not hold a 64-bit counter.
    return "Float64" if metric.kind is MetricKind.COUNTER else "Float32"


def _raw_columns(metric: Metric) -> list[tuple[str, str]]:
    return [(metric.name, f"{_type(metric)} DEFAULT nan CODEC(ZSTD(1))")]


def _second_columns(metric: Metric) -> list[tuple[str, str]]:
    """Return the columns that rollups have in every engine."""
    value, count = f"{_type(metric)} DEFAULT nan CODEC(ZSTD(1))", "UInt32 CODEC(ZSTD(1))"
    return [(name, count if name == count_column(metric.name) else value) for name in rollup_columns(metric.name)]


def _joined(*columns: str) -> str:
    return ",\n    ".join(columns)


def _metric_columns(of: list[list[tuple[str, str]]]) -> list[str]:
    return [f"{name} {kind}" for columns in of for name, kind in columns]


_SAMPLES = _Table(
    "samples",
    _joined(
        "gpu_uuid LowCardinality(String)",
        "time_unix_nano Int64 CODEC(GCD, Delta, T64, ZSTD(1))",
        "time DateTime64(9, 'UTC') ALIAS fromUnixTimestamp64Nano(time_unix_nano)",
        _KEY,
        "missed_ticks UInt32 CODEC(ZSTD(1))",
        _RECEIVED,
        *_metric_columns([_raw_columns(metric) for metric in METRICS]),
        "INDEX by_position (spool, sequence) TYPE minmax GRANULARITY 1",
    ),
    "gpu_uuid, time_unix_nano, spool, sequence",
    partition_by="toDate(received)",
    lifetime="raw_retention_s",
)
_SECONDS = _Table(
    "samples_1s",
    _joined(
        "gpu_uuid LowCardinality(String)",
        "time_unix_nano Int64 CODEC(GCD, Delta, T64, ZSTD(1))",
        "time DateTime64(9, 'UTC') ALIAS fromUnixTimestamp64Nano(time_unix_nano)",
        _KEY,
        f"{TICK_COUNT} UInt32 CODEC(ZSTD(1))",
        "missed_ticks UInt32 CODEC(ZSTD(1))",
        _RECEIVED,
        *_metric_columns([_second_columns(metric) for metric in METRICS]),
    ),
    "gpu_uuid, time_unix_nano, spool, sequence",
    partition_by="toDate(received)",
    lifetime="second_retention_s",
)

_TABLES = (
    _Table("schema_version", "version UInt32, applied DateTime('UTC') DEFAULT now()", "version"),
    _SAMPLES,
    _SECONDS,
    # Who an agent is and which collector it greeted last.
    _Table(
        "agents",
        _joined(
            "agent_id String",
            "spool_id String",
            "instance_id String",
            "start_unix_nano Int64",
            "host_name String",
            "agent_version String",
            "host String",
            "collector String",
            "term Int64",
            "version Int64",
        ),
        "agent_id",
        "ReplacingMergeTree(version)",
    ),
    # Whom agents greeted first after another collector: what collectors read to learn whom they have lost.
    _Table(
        "agent_moves",
        "moved DateTime('UTC') DEFAULT now(), agent_id String, collector String, term Int64, version Int64",
        "moved, agent_id, version",
        partition_by="toDate(moved)",
        expires="moved + toIntervalDay(1)",
    ),
    # Of several numbers for one spool the lowest counts.
    _Table("spools", "agent_id String, spool_id String, spool Int64", "agent_id, spool_id, spool"),
    _Table(
        "progress",
        "spool Int64, sequence SimpleAggregateFunction(max, Int64)",
        "spool",
        "AggregatingMergeTree",
    ),
    _Table("inventories", "spool Int64, sequence Int64, message String CODEC(ZSTD(3))", "spool, sequence"),
    _Table(
        "gpus",
        "gpu_uuid String, agent_id String, spool Int64, sequence Int64, message String CODEC(ZSTD(3)),"
        " metrics Array(LowCardinality(String))",
        "gpu_uuid, agent_id, spool, sequence",
    ),
    _Table(
        "job_bindings",
        "gpu_uuid String, spool Int64, sequence Int64, item Int64, job_id String, scheduler Int64,"
        " start_unix_nano Int64, end_unix_nano Int64, labels String",
        "gpu_uuid, spool, sequence, item",
    ),
    _Table("source_ends", "gpu_uuid String, spool Int64, sequence Int64", "gpu_uuid, spool, sequence"),
    _Table(
        "gpu_events",
        "gpu_uuid String, time_unix_nano Int64, spool Int64, sequence Int64, item Int64, kind Int64, value Int64",
        "gpu_uuid, time_unix_nano, spool, sequence, item",
    ),
    # Only ever read by agent and time; what it is about is in the message.
    _Table(
        "job_activity",
        "spool Int64, sequence Int64, item Int64, start_unix_nano Int64, end_unix_nano Int64,"
        f" message String CODEC(ZSTD(3)), {_RECEIVED}",
        "spool, end_unix_nano, sequence, item",
        partition_by="toDate(received)",
        lifetime="raw_retention_s",
    ),
    _Table(
        "losses",
        "spool Int64, sequence Int64, first_sequence Int64, last_sequence Int64, reason Int64, lost_ticks Int64",
        "spool, sequence",
    ),
    _Table("gaps", "spool Int64, first_sequence Int64, last_sequence Int64", "spool, first_sequence"),
    _Table(
        "rejections",
        "spool Int64, sequence Int64, field String, problem String, size_bytes Int64, file_name String",
        "spool, sequence",
    ),
    _Table(
        "quarantine", "name String, data String CODEC(ZSTD(3)), version Int64", "name", "ReplacingMergeTree(version)"
    ),
    _Table(
        "blanks",
        f"gpu_uuid LowCardinality(String), metric LowCardinality(String), reason Int32, {_KEY}, count Int64,"
        f" {_RECEIVED}",
        "gpu_uuid, metric, reason, spool, sequence",
        partition_by="toDate(received)",
        lifetime="raw_retention_s",
    ),
    _Table(
        "runs",
        _joined(
            "run_id String",
            "agent_id String",
            "gpu_uuid String",
            "job_id String",
            "scheduler Int64",
            "ended Bool",
            "end_reason String",
            "start_unix_nano Int64",
            "end_unix_nano Int64",
            "first_spool Int64",
            "first_sequence Int64",
            "last_spool Int64",
            "last_sequence Int64",
            "tick_count Int64",
            "missed_ticks Int64",
            "verdict String",
            "reason String",
            "period_s Float64",
            "period_low_s Float64",
            "period_high_s Float64",
            "confidence Float64",
            "epoch_count Int64",
            "idle_share Float64",
            "stalled_share Float64",
            "version Int64",
        ),
        "run_id",
        "ReplacingMergeTree(version)",
    ),
    _Table(
        "epochs",
        "run_id String, epoch_index Int64, start_unix_nano Int64, end_unix_nano Int64, confidence Float64,"
        " status LowCardinality(String), revision Int64, removed UInt8, version Int64",
        "run_id, epoch_index",
        "ReplacingMergeTree(version)",
    ),
    # Keyed by the bounds of the epoch: once they move, the summary is no longer that of the epoch.
    _Table(
        "summaries",
        "run_id String, epoch_index Int64, start_unix_nano Int64, end_unix_nano Int64, summary String CODEC(ZSTD(3))",
        "run_id, epoch_index, start_unix_nano, end_unix_nano",
    ),
    _Table(
        "job_states",
        "run_id String, start_unix_nano Int64, state LowCardinality(String), reason String, confidence Float64,"
        " version Int64",
        "run_id, start_unix_nano",
        "ReplacingMergeTree(version)",
    ),
    _Table(
        "job_alerts",
        "scheduler Int64, job_id String, rule LowCardinality(String), start_unix_nano Int64, end_unix_nano Int64,"
        " reason String, agent_id String, untold UInt8, version Int64",
        "job_id, scheduler, rule, start_unix_nano",
        "ReplacingMergeTree(version)",
    ),
    # Levels of the cycles of a run's job, as JSON.
    _Table(
        "trees",
        "run_id String, tree String CODEC(ZSTD(3)), version Int64",
        "run_id",
        "ReplacingMergeTree(version)",
    ),
    _Table(
        "tracker_positions",
        "agent_id String, gpu_uuid String, spool Int64, sequence Int64, not_before_unix_nano Int64, version Int64",
        "agent_id, gpu_uuid",
        "ReplacingMergeTree(version)",
    ),
    _Table(
        "tracking_states",
        "agent_id String, gpu_uuid String, format UInt32, content String CODEC(ZSTD(3)), version Int64",
        "agent_id, gpu_uuid",
        "ReplacingMergeTree(version)",
    ),
    _Table("probes", "collector String, version Int64, data String", "collector", "ReplacingMergeTree(version)"),
)

_SECONDS_VIEW = "samples_1s_of_samples"


def _seconds_query() -> str:
    """Return the query of one row per GPU, second and record: a record inserted again gives the same rows."""
    columns = [
        "gpu_uuid",
        f"intDiv(samples.time_unix_nano, {SECOND_NS}) * {SECOND_NS} AS time_unix_nano",
        "spool",
        "sequence",
        f"toUInt32(count()) AS {TICK_COUNT}",
        "toUInt32(sum(samples.missed_ticks)) AS missed_ticks",
        "max(samples.received) AS received",
    ]
    for metric in METRICS:
        name = metric.name
        value, valid = f"samples.{name}", f"NOT isNaN(samples.{name})"
        expressions = {
            name: f"ifNull(argMaxOrNullIf({value}, samples.time_unix_nano, {valid}), nan)"
            if metric.kind is MetricKind.COUNTER
            else f"avgIf({value}, {valid})",
            count_column(name): f"toUInt32(countIf({valid}))",
            min_column(name): f"ifNull(minOrNullIf({value}, {valid}), nan)",
            max_column(name): f"ifNull(maxOrNullIf({value}, {valid}), nan)",
        }
        columns += [f"{expressions[column]} AS {column}" for column in rollup_columns(name)]
    listed = ",\n    ".join(columns)
    return f"SELECT\n    {listed}\nFROM samples\nGROUP BY gpu_uuid, time_unix_nano, spool, sequence"


def statements(config: StoreConfig) -> Iterator[str]:
    """Yield what makes the whole schema in an empty database."""
    for table in _TABLES:
        yield table.statement(config)
    yield f"CREATE MATERIALIZED VIEW IF NOT EXISTS {_SECONDS_VIEW} TO samples_1s AS\n{_seconds_query()}"
    yield f"INSERT INTO schema_version (version) VALUES ({VERSION})"  # noqa: S608 - our own number


def script(config: StoreConfig) -> str:
    """Return the whole schema as a file of statements, for those who make databases themselves."""
    return "".join(f"{statement};\n\n" for statement in statements(config))


def prepare(sql: ClickHouseSql, database: str, config: StoreConfig, *, may_change: bool) -> None:
    """Make the schema, or bring that of an older collector up to date.

    Args:
        sql: The database.
        database: Its name.
        config: For how long samples are kept.
        may_change: Whether the schema is the collector's to make; else it is only checked. Tables that replicas share
            are not: which replicas, only their operator knows.

    Raises:
        StoreError: It belongs to a newer collector, something is missing and is not ours to make, or some tables are
            replicated and others are not.
    """
    known = _columns(sql, database)
    if "schema_version" not in known:
        if not may_change:
            raise StoreError(
                f"database {database} holds no schema of a collector: apply deploy/clickhouse/schema.sql, or set"
                " clickhouse.create_schema"
            )
        for statement in statements(config):
            sql.run(statement)
        return
    ((version,),) = sql.rows("SELECT max(version) FROM schema_version")
    if version > VERSION:
        raise StoreError(f"database {database} has schema version {version}, this collector knows {VERSION}; update it")
    replicated = _check_replicas(sql, database)
    changes = list(_changes(sql, database, known, config))
    if changes and (replicated or not may_change):
        how = "on all replicas" if replicated else "or set clickhouse.create_schema"
        raise StoreError(
            f"the schema of database {database} is not that of this collector; apply these, {how}: {'; '.join(changes)}"
        )
    for change in changes:
        sql.run(change)
        _LOG.info("database %s: %s", database, change.partition("\n")[0])


def _check_replicas(sql: ClickHouseSql, database: str) -> bool:
    """Return whether replicas share the tables, and keep to most of them from now on if they do."""
    engines = dict(
        sql.rows("SELECT name, engine FROM system.tables WHERE database = {database:String}", {"database": database})
    )
    found = {table.name for table in _TABLES} & engines.keys()
    replicated = {name for name in found if engines[name].startswith("Replicated")}
    if replicated and replicated != found:
        raise StoreError(
            f"tables of database {database} are replicated and others are not, so that replicas would disagree; make"
            f" these Replicated too: {', '.join(sorted(found - replicated))}"
        )
    if replicated:
        sql.use_replicas()
        _LOG.info("database %s: tables are replicated, inserts wait for most replicas", database)
    return bool(replicated)


def _columns(sql: ClickHouseSql, database: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for table, name in sql.rows(
        "SELECT table, name FROM system.columns WHERE database = {database:String}", {"database": database}
    ):
        found.setdefault(table, set()).add(name)
    return found


def _changes(sql: ClickHouseSql, database: str, known: dict[str, set[str]], config: StoreConfig) -> Iterator[str]:
    """Yield what an existing schema lacks: tables, columns of metrics that a newer catalogue has, other retention."""
    for table in _TABLES:
        if table.name not in known:
            yield table.statement(config)
    grown = False
    for table, typed_columns in ((_SAMPLES, _raw_columns), (_SECONDS, _second_columns)):
        for metric in METRICS:
            for name, kind in typed_columns(metric):
                if name not in known.get(table.name, set()) and table.name in known:
                    grown = True
                    yield f"ALTER TABLE {table.name} ADD COLUMN IF NOT EXISTS {name} {kind}"
    if _SECONDS_VIEW not in known:
        yield f"CREATE MATERIALIZED VIEW IF NOT EXISTS {_SECONDS_VIEW} TO samples_1s AS\n{_seconds_query()}"
    elif grown:
        yield f"ALTER TABLE {_SECONDS_VIEW} MODIFY QUERY\n{_seconds_query()}"
    engines = dict(
        sql.rows(
            "SELECT name, engine_full FROM system.tables WHERE database = {database:String}", {"database": database}
        )
    )
    for table in _TABLES:
        if table.lifetime and table.name in engines:
            clause = table.lifetime_clause(config)
            if clause and clause not in engines[table.name]:
                yield f"ALTER TABLE {table.name} MODIFY {clause}"
            elif not clause and " TTL " in engines[table.name]:
                yield f"ALTER TABLE {table.name} REMOVE TTL"
