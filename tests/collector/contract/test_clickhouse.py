"""What only the engine on ClickHouse has: its schema and how it grows, averages, retention, failures."""

import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.store_engines import BreakingSql
from support.store_records import EVER, Feed
from support.wire_agent import START_NS, TICK_NS, batch, block

from gpusonde.collector.config import ClickHouseConfig, CollectorConfig, StoreConfig
from gpusonde.collector.storage.clickhouse import schema
from gpusonde.collector.storage.clickhouse.facts import Ownership
from gpusonde.collector.storage.clickhouse.sql import ClickHouseSql
from gpusonde.collector.storage.clickhouse.store import ClickHouseStore
from gpusonde.collector.storage.model import CycleRow, CycleTree, DeviationRow, Position, RunRow, RunUpdate
from gpusonde.errors import ConfigError, StoreError, StoreFullError

SCHEMA_FILE = Path(__file__).parents[3] / "deploy" / "clickhouse" / "schema.sql"
DAY_S = 86_400
CLICKHOUSE = StoreConfig(engine="clickhouse")


@pytest.fixture
def open_with(clickhouse):
    """Opens stores with options of their own on one database."""
    opened = []

    def open_one(create_schema=True, **options):
        sql = BreakingSql(replace(clickhouse.config, create_schema=create_schema))
        opened.append(sql)
        more = {"wall_clock_ns": options.pop("wall_clock_ns")} if "wall_clock_ns" in options else {}
        store = ClickHouseStore(sql, Ownership("collector-1"), StoreConfig(**options), **more)
        store.open()
        return sql, store

    yield open_one
    for sql in opened:
        sql.close()


def test_averages_over_seconds_count_every_tick_once_however_often_it_was_sent(clickhouse):
    store = clickhouse.open()
    feed = Feed(metrics=("sm_active", "power_watts", "energy_joules", "gpu_temperature_celsius"))
    names = feed.inventory.layout.metrics
    values = np.array([[0.1, 0.3, np.nan, 0.5], [np.nan] * 4, [0.0, 1.0, 2.0, np.nan], [40.0, 41.0, 42.0, 43.0]])
    # Ticks 8 to 11 lie in two seconds.
    wire = block(8, 4, values=values, metrics=names, bases=[100.0], missed=2)
    records = [feed.incoming(feed.first), feed.incoming(batch(2, wire))]
    clickhouse.break_before_acknowledging()
    with pytest.raises(StoreError):
        store.samples.append(records)
    clickhouse.repair()
    store.samples.append(records)
    rows = clickhouse.sql.rows(
        "SELECT DISTINCT time_unix_nano, tick_count, missed_ticks, sm_active, sm_active_ticks, sm_active_min,"
        " sm_active_max, power_watts_ticks, energy_joules, gpu_temperature_celsius FROM samples_1s"
        " WHERE gpu_uuid = 'GPU-a' ORDER BY time_unix_nano"
    )
    first, second = np.array(rows, dtype=np.float64)
    assert rows[0][0] == START_NS
    assert rows[1][0] == START_NS + 10 * TICK_NS
    np.testing.assert_allclose(first[1:], [2, 2, 0.2, 2, 0.1, 0.3, 0, 101.0, 40.5], rtol=1e-6)
    np.testing.assert_allclose(second[1:], [2, 0, 0.5, 1, 0.5, 0.5, 0, 102.0, 42.5], rtol=1e-6)


@pytest.mark.parametrize("lossless", [False, True])
def test_noise_is_rounded_away_unless_the_store_is_to_be_lossless(open_with, lossless):
    metrics = ("sm_active", "gpu_utilization", "power_watts", "sm_clock_mhz")
    sent = np.array([[0.4], [0.57], [350.0], [1410.0]]) * (1 + 0.05 * np.random.default_rng(1).standard_normal((4, 50)))
    sent[1] = np.round(sent[1], 2)
    feed = Feed(metrics=metrics)
    _, store = open_with(lossless=lossless)
    record = feed.incoming(batch(2, block(ticks=50, metrics=metrics, values=sent)))
    store.samples.append([feed.incoming(feed.first), record])
    found = store.samples.read("GPU-a", *EVER).matrix(metrics)
    same = [np.array_equal(column, values.astype(np.float32)) for column, values in zip(found, sent, strict=True)]
    assert same == ([True] * 4 if lossless else [False, True, False, True])
    np.testing.assert_allclose(found[0], sent[0], atol=0.6 / 8192)
    np.testing.assert_allclose(found[2], sent[2], rtol=1 / 8192)


def test_where_ticks_are_gone_averages_are_read_and_a_second_in_two_records_is_one(open_with):
    now = [time.time_ns()]
    sql, store = open_with(raw_retention_s=DAY_S, second_retention_s=0, wall_clock_ns=lambda: now[0])
    feed = Feed()
    early = [batch(2, block(0, 8)), batch(3, block(8, 7)), batch(4, block(15, 5))]
    store.samples.append([feed.incoming(feed.first), *map(feed.incoming, early)])
    store.samples.append([feed.incoming(batch(5, block(20, 5)))])
    sql.run("ALTER TABLE samples DELETE WHERE sequence <= 4 SETTINGS mutations_sync = 2")
    samples = store.samples.read("GPU-a", *EVER)
    ticks = ((samples.time_unix_nano - START_NS) // TICK_NS).tolist()
    assert ticks == [0, 10, 20, 21, 22, 23, 24]
    assert samples.resolution_s == 1.0
    np.testing.assert_allclose(samples.columns["sm_active"][:2], [np.mean(np.arange(10)) / 100, 0.145], rtol=1e-5)
    assert store.samples.next_tick("GPU-a", 0) == START_NS
    assert store.samples.next_tick("GPU-a", START_NS + 1) == START_NS + 10 * TICK_NS
    assert store.samples.next_tick("GPU-a", START_NS + 21 * TICK_NS) == START_NS + 21 * TICK_NS
    recent = store.samples.read("GPU-a", START_NS + 20 * TICK_NS, EVER[1], ["sm_active"])
    assert len(recent) == 5
    assert recent.resolution_s == 0.0
    spool = int(samples.spool[0])
    # One that has none of it in memory.
    _, other = open_with(raw_retention_s=DAY_S, second_retention_s=0, wall_clock_ns=lambda: now[0])
    within = other.samples.read("GPU-a", *EVER, first=Position(spool, 4), last=Position(spool, 5))
    assert ((within.time_unix_nano - START_NS) // TICK_NS).tolist() == [10, 20, 21, 22, 23, 24]


def test_records_that_came_last_are_read_from_memory(open_with, monkeypatch):
    _, store = open_with()
    store.samples.append(Feed().batches(1, 5))
    whole = store.samples.read("GPU-a", *EVER)
    first, last = Position(int(whole.spool[0]), 3), Position(int(whole.spool[0]), 4)
    asked = store.samples.read("GPU-a", *EVER, last=last).take(slice(10, None))
    monkeypatch.setattr(store.samples, "_select", None)
    known = store.samples.read("GPU-a", *EVER, ["sm_active"], first=first, last=last)
    assert known.time_unix_nano.tolist() == asked.time_unix_nano.tolist()
    assert known.sequence.tolist() == asked.sequence.tolist() == [3] * 10 + [4] * 10
    np.testing.assert_allclose(known.columns["sm_active"], asked.columns["sm_active"], atol=0.6 / 8192)


def test_what_was_received_too_long_ago_goes(open_with):
    sql, store = open_with(raw_retention_s=DAY_S, second_retention_s=3 * DAY_S)
    feed = Feed()
    feed.received_unix_nano = time.time_ns() - 2 * DAY_S * 1_000_000_000
    store.samples.append([feed.incoming(feed.first), feed.incoming(batch(2))])
    feed.received_unix_nano = None
    store.samples.append([feed.incoming(batch(3))])
    for table in ("samples", "samples_1s"):
        sql.run(f"OPTIMIZE TABLE {table} FINAL")
    samples = store.samples.read("GPU-a", *EVER)
    assert ((samples.time_unix_nano - START_NS) // TICK_NS).tolist() == [0, *range(10, 20)]


def lifetimes(sql, database):
    rows = sql.rows(
        "SELECT name, extract(engine_full, 'TTL received \\\\+ toIntervalSecond\\\\((\\\\d+)\\\\)') FROM system.tables"
        " WHERE database = {database:String} AND name LIKE 'samples%' AND engine LIKE '%MergeTree' ORDER BY name",
        {"database": database},
    )
    return dict(rows)


def test_another_retention_is_applied_at_the_next_start(open_with, clickhouse):
    database = clickhouse.config.database
    sql, _ = open_with(raw_retention_s=5, second_retention_s=6)
    assert lifetimes(sql, database) == {"samples": "5", "samples_1s": "6"}
    open_with(raw_retention_s=7, second_retention_s=0)
    assert lifetimes(sql, database) == {"samples": "7", "samples_1s": ""}
    open_with(raw_retention_s=0, second_retention_s=9)
    assert lifetimes(sql, database) == {"samples": "", "samples_1s": "9"}


def test_a_metric_that_is_new_in_the_catalogue_gets_its_columns(open_with):
    sql, store = open_with()
    store.samples.append(Feed().batches(1, 2))
    # As it was before the catalogue knew the metric.
    sql.run("DROP VIEW samples_1s_of_samples")
    for table, columns in (("samples", ["power_watts"]), ("samples_1s", ["power_watts", "power_watts_ticks"])):
        for column in columns:
            sql.run(f"ALTER TABLE {table} DROP COLUMN {column}")
    with pytest.raises(StoreError, match="ADD COLUMN IF NOT EXISTS power_watts Float32"):
        open_with(create_schema=False)
    sql, store = open_with()
    store.samples.append(Feed().batches(3, 4))
    values = store.samples.read("GPU-a", *EVER, ["power_watts"]).columns["power_watts"]
    assert np.isnan(values).tolist() == [True] * 10 + [False] * 20
    assert sql.rows("SELECT DISTINCT time_unix_nano, power_watts_ticks FROM samples_1s ORDER BY ALL") == [
        (START_NS, 0),
        (START_NS + 10 * TICK_NS, 10),
        (START_NS + 20 * TICK_NS, 10),
    ]
    open_with(create_schema=False)


def test_the_view_of_averages_grows_with_the_catalogue(open_with):
    sql, _ = open_with()
    # As it was before the catalogue knew the metric.
    older = "SELECT gpu_uuid, time_unix_nano, spool, sequence FROM samples"
    sql.run(f"ALTER TABLE samples_1s_of_samples MODIFY QUERY {older}")
    sql.run("ALTER TABLE samples DROP COLUMN bar1_free_bytes")
    sql.run("ALTER TABLE samples_1s DROP COLUMN bar1_free_bytes")
    _, store = open_with()
    store.samples.append(Feed(metrics=("bar1_free_bytes",)).batches(1, 1))
    feed = Feed(metrics=("bar1_free_bytes",))
    store.samples.append([feed.incoming(batch(2, block(metrics=("bar1_free_bytes",), values=[[7.0] * 10])))])
    assert sql.rows("SELECT DISTINCT bar1_free_bytes, bar1_free_bytes_ticks FROM samples_1s") == [(7.0, 10)]


def test_a_database_of_a_newer_collector_is_left_alone(open_with):
    sql, _ = open_with()
    sql.run(f"INSERT INTO schema_version (version) VALUES ({schema.VERSION + 1})")
    with pytest.raises(StoreError, match=r"schema version 2, this collector knows 1; update it"):
        open_with()


def test_a_schema_that_is_not_ours_to_make_has_to_be_there(open_with, clickhouse):
    sql = ClickHouseSql(clickhouse.config)
    with pytest.raises(StoreError, match=r"apply deploy/clickhouse/schema\.sql"):
        open_with(create_schema=False)
    for statement in SCHEMA_FILE.read_text().split(";\n"):
        if statement.strip():
            sql.run(statement)
    sql.close()
    _, store = open_with(create_schema=False)
    store.samples.append(Feed().batches(1, 3))
    assert len(store.samples.read("GPU-a", *EVER)) == 20


def test_the_shipped_schema_is_that_of_the_code():
    assert SCHEMA_FILE.read_text() == schema.script(StoreConfig())


def test_a_server_that_is_not_there_is_named():
    with pytest.raises(StoreError, match=r"ClickHouse at http://127\.0\.0\.1:1: "):
        ClickHouseSql(ClickHouseConfig("http://127.0.0.1:1", connect_timeout_s=0.5))


def test_a_server_without_room_is_a_full_store_and_anything_else_is_not(open_with):
    sql, store = open_with()
    for code, error in ((243, StoreFullError), (252, StoreError)):

        def refuse(*_, code=code):
            failure = RuntimeError("refused")
            failure.code = code
            raise failure

        sql._engine.insert = refuse
        with pytest.raises(error) as caught:
            store.samples.append(Feed().batches(1, 2))
        assert type(caught.value) is error
        with pytest.raises(error):
            store.samples.check_writable()
    del sql._engine.insert
    store.samples.check_writable()


@pytest.mark.parametrize("url", ["clickhouse:9000", "tcp://host:9000", ""])
def test_an_address_that_cannot_be_is_refused(url):
    with pytest.raises(ConfigError, match="write https://host:8443"):
        CollectorConfig(store=CLICKHOUSE, clickhouse=ClickHouseConfig(url)).check()


@pytest.mark.parametrize("name", ["a b", "x; DROP DATABASE y", "", "ü", "a" * 64, "1a"])
def test_a_name_that_cannot_be_one_of_a_database_is_refused(name):
    with pytest.raises(ConfigError, match="is no name") as caught:
        CollectorConfig(
            store=StoreConfig(engine="clickhouse"), clickhouse=ClickHouseConfig("http://host", name)
        ).check()
    assert caught.value.field == "clickhouse.database"


def test_the_board_of_jobs_lists_the_levels_and_the_gpus_that_do_otherwise(open_with):
    sql, store = open_with()
    run = RunRow("run-1", "agent-1", "GPU-a", "job-1", 1, False, "", 5_000_000, 9_000_000, 1, 1, 1, 1, 10, 0)
    levels = [
        CycleRow(p, p - 0.1, p + 0.1, 9, 0.9, role, 0.7, None, (7,)) for p, role in ((2.0, "step"), (50.0, "epoch"))
    ]
    levels.append(replace(levels[0], period_s=300.0, confirmed=False))
    tree = CycleTree(tuple(levels), 1, (DeviationRow("GPU-b", "lag", 1.5),))
    other = replace(run, run_id="run-2", gpu_uuid="GPU-b", start_unix_nano=6_000_000)
    late = replace(run, run_id="run-3", job_id="job-2", start_unix_nano=10**18, end_unix_nano=10**18)
    store.results.save([RunUpdate(each, [], tree) for each in (run, other, late)], {})
    board = json.loads((SCHEMA_FILE.parents[1] / "grafana" / "clickhouse" / "jobs.json").read_text())
    queries = [target["rawSql"] for panel in board["panels"] for target in panel["targets"]]
    found, deviations = (sql.rows(query.replace("${__from}", "0").replace("${__to}", "1000")) for query in queries)
    assert [(row[0], row[1], row[2], row[3], row[4], row[9], bool(row[11])) for row in found] == [
        ("job-1", 2, 1, 1, 2.0, "step", False),
        ("job-1", 2, 1, 2, 50.0, "epoch", True),
    ]
    assert [tuple(row) for row in deviations] == [("job-1", "agent-1", "GPU-b", "lag", 1.5)]
