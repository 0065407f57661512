"""Retention and averages over seconds: what is deleted, what is left of it, and what is recorded."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.faulty_files import FaultyFiles
from support.running_collector import ThreadCollector
from support.store_records import EVER, Feed
from support.wire_agent import START_NS, TICK_NS, batch, block

from gpusonde.collector import LocalStore
from gpusonde.collector.client import Client
from gpusonde.collector.config import StoreConfig
from gpusonde.collector.query.samples import stream_samples
from gpusonde.collector.storage.local.catalog import Deletions
from gpusonde.collector.storage.local.retention import maintain
from gpusonde.collector.storage.model import Position
from gpusonde.collector.storage.samples import Samples, count_column, max_column, merge_rollups, min_column, roll_up
from gpusonde.errors import StoreFullError
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.query.v1 import query_pb2

HOUR_S, DAY_S = 3600.0, 86_400.0
HOUR_NS = 3600 * 10**9


class Clock:
    def __init__(self):
        self.now_ns = 1_000 * HOUR_NS

    def __call__(self):
        return self.now_ns


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def open_store(tmp_path, clock):
    opened = []

    def open_one(limits, **more):
        while opened:
            opened.pop().close()
        kept = {"raw_retention_s": 0, "second_retention_s": 0} | limits
        config = StoreConfig(reserve_bytes=0, compact_share=1.0, **kept)
        store = LocalStore(tmp_path / "data", config, wall_clock_ns=clock, **more)
        store.open()
        opened.append(store)
        return store

    yield open_one
    while opened:
        opened.pop().close()


def hours_of_records(store, clock, hours, per_hour=6):
    """An hour of collector time for each group of records; returns the next sequence."""
    for hour in range(hours):
        first = 1 + hour * per_hour
        store.samples.append(Feed().batches(first, first + per_hour - 1))
        store.flush()
        clock.now_ns += HOUR_NS
    return 1 + hours * per_hour


def tracked(store, through=10**6):
    """Say that tracking has left everything behind."""
    store.results.save([], {("agent-1", "GPU-a"): (Position(1, through), 0)})


def names(tmp_path, folder):
    return sorted(path.name for path in (tmp_path / "data" / folder).iterdir())


def test_ticks_go_by_their_age_and_averages_of_them_are_read_instead(open_store, clock, tmp_path):
    store = open_store({"raw_retention_s": DAY_S, "second_retention_s": 10 * DAY_S})
    hours_of_records(store, clock, 3)
    clock.now_ns += HOUR_NS
    store.maintenance.run()
    tracked(store)
    before = store.samples.read("GPU-a", *EVER)
    assert before.resolution_s == 0.0
    clock.now_ns += 22 * HOUR_NS
    store.maintenance.run()
    assert len(names(tmp_path, "hours")) == 1
    assert len(names(tmp_path, "seconds")) == 3
    after = store.samples.read("GPU-a", *EVER)
    assert after.resolution_s == 1.0
    # The ticks of the last hour are as they were; before them a row for each second.
    raw = before.between(START_NS + 110 * TICK_NS, EVER[1])
    assert len(after) == 11 + len(raw)
    assert (after.time_unix_nano[11:] == raw.time_unix_nano).all()
    assert (after.time_unix_nano[:11] % 10**9 == 0).all()
    expected = before.columns["power_watts"][:110].astype(float).reshape(11, 10).mean(axis=1)
    assert after.columns["power_watts"][:11] == pytest.approx(expected, rel=1 / 8192)
    assert store.samples.next_tick("GPU-a", 0) == START_NS
    assert store.samples.next_tick("GPU-a", START_NS + 5 * 10**9 + 1) == START_NS + 6 * 10**9
    assert next(store.samples.read_feed("agent-1", "GPU-a", Position(1, 0))).samples.sequence[0] == 13
    only_raw = store.samples.read("GPU-a", START_NS + 110 * TICK_NS, EVER[1])
    assert (only_raw.resolution_s, len(only_raw)) == (0.0, len(raw))
    clock.now_ns += 10 * 24 * HOUR_NS
    store.maintenance.run()
    assert names(tmp_path, "hours") == names(tmp_path, "seconds") == []
    assert len(store.samples.read("GPU-a", *EVER)) == 0


def test_a_second_that_lies_in_two_files_is_read_once_with_the_mean_of_all_its_ticks(open_store, clock):
    store = open_store({"raw_retention_s": DAY_S})
    store.samples.append([Feed().incoming(Feed().first), Feed().incoming(batch(2, block(ticks=7)))])
    store.flush()
    clock.now_ns += 2 * HOUR_NS
    store.samples.append([Feed().incoming(batch(3, block(first_tick=7, ticks=13)))])
    store.flush()
    clock.now_ns += 2 * HOUR_NS
    store.maintenance.run()
    tracked(store)
    ticks = store.samples.read("GPU-a", *EVER)
    clock.now_ns += 48 * HOUR_NS
    store.maintenance.run()
    seconds = store.samples.read("GPU-a", *EVER, ["sm_active"])
    assert seconds.time_unix_nano.tolist() == [START_NS, START_NS + 10**9]
    assert seconds.columns["sm_active"] == pytest.approx(
        ticks.columns["sm_active"].reshape(2, 10).mean(axis=1), abs=1 / 8192
    )


def test_averages_know_their_ticks_extremes_and_last_counts():
    nan = np.nan
    samples = Samples(
        np.array([0, 4, 9, 12, 15, 31]) * 10**8,
        np.ones(6, np.int64),
        np.array([1, 1, 1, 2, 2, 3]),
        np.array([0, 0, 2, 0, 1, 0]),
        {
            "sm_active": np.array([0.5, nan, 0.7, 0.1, 0.2, nan], np.float32),
            "energy_joules": np.array([1.0, 2.0, nan, 4.0, nan, nan]),
            "gpu_temperature_celsius": np.array([40, nan, nan, nan, nan, nan], np.float32),
        },
    )
    rows, beside = roll_up(samples)
    assert rows.time_unix_nano.tolist() == [0, 10**9, 3 * 10**9]
    assert rows.missed_ticks.tolist() == [2, 1, 0]
    assert rows.columns["sm_active"] == pytest.approx([0.6, 0.15, nan], abs=1 / 8192, nan_ok=True)
    assert rows.columns["energy_joules"].tolist()[:2] == [2.0, 4.0]
    assert np.isnan(rows.columns["energy_joules"][2])
    assert beside[count_column("sm_active")].tolist() == [2, 2, 0]
    assert beside[min_column("sm_active")] == pytest.approx([0.5, 0.1, nan], abs=1 / 8192, nan_ok=True)
    assert beside[max_column("sm_active")] == pytest.approx([0.7, 0.2, nan], abs=1 / 8192, nan_ok=True)
    assert min_column("gpu_temperature_celsius") not in beside
    again = merge_rollups(
        rows.take(np.array([2, 0, 1, 0])), {"sm_active": beside[count_column("sm_active")][[2, 0, 1, 0]]}
    )
    assert again.time_unix_nano.tolist() == rows.time_unix_nano.tolist()
    assert again.columns["sm_active"] == pytest.approx(rows.columns["sm_active"], nan_ok=True)


def test_the_oldest_files_go_when_a_tier_is_too_large(open_store, clock, tmp_path):
    store = open_store({})
    hours_of_records(store, clock, 4)
    clock.now_ns += HOUR_NS
    store.maintenance.run()
    sizes = [(tmp_path / "data" / "hours" / name).stat().st_size for name in names(tmp_path, "hours")]
    limit = sum(sizes[2:])
    store = open_store({"raw_max_bytes": limit, "second_max_bytes": 1})
    kept = names(tmp_path, "hours")[2:]
    store.maintenance.run()
    assert names(tmp_path, "hours") == kept
    assert names(tmp_path, "seconds") == []
    assert store.counters.deleted_bytes()["raw"] == sum(sizes[:2])
    assert store.counters.deleted_bytes()["second"] > 0
    found = Deletions(store.database).all()
    assert [(d.kind, d.reason) for d in found] == [("hour", "size")] * 2 + [("second", "size")] * 4
    assert (found[0].gpu_count, found[0].row_count, found[0].start_unix_nano) == (1, 50, START_NS)


def test_what_tracking_would_read_again_is_kept_for_twice_the_time_and_its_deletion_recorded(
    open_store, clock, tmp_path, caplog
):
    store = open_store({"raw_retention_s": DAY_S})
    hours_of_records(store, clock, 2)
    clock.now_ns += HOUR_NS
    store.maintenance.run()
    tracked(store, through=7)
    clock.now_ns += 26 * HOUR_NS
    store.maintenance.run()
    assert len(names(tmp_path, "hours")) == 1
    clock.now_ns += 24 * HOUR_NS
    store.maintenance.run()
    assert names(tmp_path, "hours") == []
    assert [d.untracked_gpus for d in Deletions(store.database).all()] == [0, 1]
    assert "cannot be read again" in caplog.text


def test_where_nothing_is_tracked_nothing_is_kept_for_tracking(open_store, clock, tmp_path):
    store = open_store({"raw_retention_s": DAY_S}, hold_untracked=False)
    hours_of_records(store, clock, 2)
    clock.now_ns += 26 * HOUR_NS
    store.maintenance.run()
    assert names(tmp_path, "segments") == names(tmp_path, "hours") == []


def test_the_oldest_ticks_make_room_on_a_disk_that_fills_up(open_store, clock, tmp_path):
    files = FaultyFiles()
    store = open_store({"keep_free_bytes": 5000}, files=files)
    hours_of_records(store, clock, 3)
    clock.now_ns += HOUR_NS
    store.maintenance.run()
    assert len(names(tmp_path, "hours")) == 3
    files.room = 5001
    store.maintenance.run()
    assert len(names(tmp_path, "hours")) == 3
    removed = []
    real_remove = files.remove

    def remove(path):
        removed.append(path.name)
        real_remove(path)
        files.room += 600

    files.remove = remove
    files.room = 4000
    store.maintenance.run()
    assert len(removed) == 2
    assert len(names(tmp_path, "hours")) == 1
    assert {d.reason for d in Deletions(store.database).all()} == {"free space"}


def test_runs_epochs_and_facts_outlive_their_ticks(open_store, clock):
    store = open_store({"raw_retention_s": HOUR_S, "second_retention_s": HOUR_S})
    hours_of_records(store, clock, 1)
    tracked(store)
    clock.now_ns += 48 * HOUR_NS
    store.maintenance.run()
    assert len(store.samples.read("GPU-a", *EVER)) == 0
    assert [gpu.gpu_uuid for gpu in store.facts.gpus()] == ["GPU-a"]
    assert store.samples.contains("agent-1", Position(1, 6))
    assert store.samples.append(Feed().batches(4, 8)) == 3
    assert len(store.samples.read("GPU-a", *EVER)) == 20


def test_the_collector_goes_on_when_maintenance_fails_and_stops_it_at_its_end(caplog):
    class Failing:
        def __init__(self):
            self.calls = 0
            self.stop = None

        def run(self, stop):
            self.calls += 1
            self.stop = stop
            if self.calls == 1:
                raise StoreFullError("no space left")
            if self.calls == 2:
                raise ZeroDivisionError
            stop.wait(60)

    maintenance = Failing()

    async def scenario():
        with ThreadPoolExecutor(1) as executor:
            task = asyncio.ensure_future(maintain(maintenance, executor, pause_s=0.001))
            while maintenance.calls < 3:
                await asyncio.sleep(0.001)
            task.cancel()
            await asyncio.wait([task])

    asyncio.run(scenario())
    assert isinstance(maintenance.stop, threading.Event)
    assert maintenance.stop.is_set()
    assert "no space left" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_the_answer_to_a_question_says_where_only_averages_are_left(open_store, clock):
    store = open_store({"raw_retention_s": DAY_S})
    hours_of_records(store, clock, 3)
    clock.now_ns += HOUR_NS
    store.maintenance.run()
    tracked(store)
    clock.now_ns += 22 * HOUR_NS
    store.maintenance.run()
    request = query_pb2.ReadSamplesRequest(gpu_uuid="GPU-a", metrics=["sm_active"])
    assert max(resolution_s for _, resolution_s in stream_samples(store, request)) == 1.0
    request.start_time.FromNanoseconds(START_NS + 110 * TICK_NS)
    assert {resolution_s for _, resolution_s in stream_samples(store, request)} == {0.0}


def test_a_client_tells_averages_from_ticks(tmp_path, clock, open_store):
    store = open_store({"raw_retention_s": DAY_S})
    hours_of_records(store, clock, 1)
    clock.now_ns += HOUR_NS
    store.maintenance.run()
    tracked(store)
    clock.now_ns += 40 * HOUR_NS
    store.maintenance.run()
    store.samples.append(Feed().batches(7, 9))
    store.close()
    with ThreadCollector(tmp_path / "data", runs__track="false") as collector, Client(collector.target) as client:
        mixed = client.read_samples("GPU-a")
        late = client.read_samples("GPU-a", start_unix_nano=START_NS + 50 * TICK_NS)
    assert (mixed.attributes["resolution_s"], len(mixed)) == ("1", 5 + 30)
    assert "averages over 1 s are left" in mixed.warnings[0]
    assert (dict(late.attributes), late.warnings, len(late)) == ({}, (), 30)


def test_what_processes_did_goes_with_the_ticks_and_leaves_no_hole(open_store, clock):
    clock.now_ns = time.time_ns()
    store = open_store({"raw_retention_s": DAY_S})
    feed = Feed()
    group = ingest_pb2.ProcessGroupActivity(gpu_uuids=["GPU-a"], forks=[1])
    message = ingest_pb2.JobActivity(start_time_unix_nano=START_NS, offsets_ms=[0], groups=[group])
    records = [feed.first, ingest_pb2.Record(sequence=2, job_activity=message), batch(3)]
    store.samples.append([feed.incoming(record) for record in records])
    store.maintenance.run()
    assert len(list(store.facts.activity("agent-1", "GPU-a", Position(0, 0)))) == 1
    clock.now_ns += 25 * HOUR_NS
    store.maintenance.run()
    assert list(store.facts.activity("agent-1", "GPU-a", Position(0, 0))) == []
    assert store.facts.sequences(1, 2, 2) == [2]
