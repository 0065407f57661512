"""Compaction: an hour of segments becomes one file, and reading shows no difference, whatever happens meanwhile."""

import random
import shutil
import threading
from concurrent.futures import CancelledError
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.faulty_files import FaultyFiles, PowerLost, flip_byte
from support.store_records import EVER, Feed
from support.wire_agent import START_NS, TICK_NS, batch, block, inventory, source_ended

from gpusonde.collector import LocalStore
from gpusonde.collector.config import StoreConfig
from gpusonde.collector.storage.local.compaction import CompactionSizes, CpuShare
from gpusonde.collector.storage.local.segments import quantised_by_size
from gpusonde.collector.storage.model import Position
from gpusonde.collector.storage.samples import TicksEntry
from gpusonde.errors import StoreCorruptError, StoreFullError

HOUR_NS = 3600 * 10**9
CONFIG = StoreConfig(reserve_bytes=0, compact_share=1.0, raw_retention_s=0, second_retention_s=0)


class Clock:
    """The collector's wall clock, moved by hand."""

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

    def open_one(**more):
        while opened:
            opened.pop().close()
        store = LocalStore(tmp_path / "data", **({"config": CONFIG, "wall_clock_ns": clock} | more))
        store.open()
        opened.append(store)
        return store

    yield open_one
    while opened:
        opened.pop().close()


def names(tmp_path, folder):
    return sorted(path.name for path in (tmp_path / "data" / folder).iterdir())


def ticks_of(store, gpu_uuid="GPU-a", agent="agent-1"):
    """Numbers of the ticks by time, after a look at the order of arrival and at every value."""
    samples = store.samples.read(gpu_uuid, *EVER)
    arrived = [a.samples for a in store.samples.read_feed(agent, gpu_uuid, Position(0, 0)) if isinstance(a, TicksEntry)]
    ticks = (samples.time_unix_nano - START_NS) // TICK_NS
    in_arrival = np.concatenate([piece.time_unix_nano for piece in arrived] or [np.empty(0, np.int64)])
    assert len(in_arrival) == len(ticks)
    positions = [p for piece in arrived for p in zip(piece.spool.tolist(), piece.sequence.tolist(), strict=True)]
    assert positions == sorted(positions)
    if len(ticks):
        assert (samples.columns["sm_active"] == ((ticks % 100) / 100).astype(np.float32)).all()
        assert samples.resolution_s == 0.0
    return ticks.tolist()


def fill(store, first, last, flushes=3):
    """Append records and flush them in several segments."""
    step = max(1, (last - first + 1) // flushes)
    for k in range(first, last + 1, step):
        store.samples.append(Feed().batches(k, min(k + step - 1, last)))
        store.flush()


def test_an_hour_becomes_one_file_with_row_groups_of_one_gpu(open_store, tmp_path, clock):
    store = open_store(config=replace(CONFIG, lossless=True))
    both = Feed("agent-2", "spool-2", gpus=("GPU-b", "GPU-c"))
    store.samples.append([both.incoming(both.first)])
    for k in range(2, 8):
        store.samples.append(Feed().batches(1 if k == 2 else k, k))
        store.samples.append(
            [both.incoming(batch(k, block(gpu_index=0, first_tick=10 * k), block(gpu_index=1, first_tick=10 * k)))]
        )
        store.flush()
        clock.now_ns += 60 * 10**9
    before = {gpu: store.samples.read(gpu, *EVER) for gpu in ("GPU-a", "GPU-b", "GPU-c")}
    store.maintenance.run()
    assert len(names(tmp_path, "segments")) == 6
    clock.now_ns += HOUR_NS
    store.maintenance.run()
    assert names(tmp_path, "segments") == []
    (hour,) = names(tmp_path, "hours")
    file = pq.ParquetFile(tmp_path / "data" / "hours" / hour)
    owners = [set(file.read_row_group(i, ["gpu_uuid"])["gpu_uuid"].to_pylist()) for i in range(file.num_row_groups)]
    assert owners == [{"GPU-a"}, {"GPU-b"}, {"GPU-c"}]
    for gpu, samples in before.items():
        after = store.samples.read(gpu, *EVER)
        assert (after.time_unix_nano == samples.time_unix_nano).all()
        assert (after.sequence == samples.sequence).all()
        assert (after.missed_ticks == samples.missed_ticks).all()
        for name, column in samples.columns.items():
            assert np.array_equal(after.columns[name], column, equal_nan=True)
    assert ticks_of(open_store()) == list(range(60))


NOISY = ("sm_active", "gpu_utilization", "power_watts", "nvlink_tx_bytes_per_second", "sm_clock_mhz", "energy_joules")


def noisy_record(sequence=2, ticks=4000, **more):
    """A record with noise in all bits of every column but the whole percents of ``gpu_utilization``."""
    noise = 1 + 0.05 * np.random.default_rng(sequence).standard_normal((len(NOISY), ticks))
    values = np.array([[0.4], [0.57], [350.0], [3.1e10], [1410.0], [1e4]]) * noise
    values[1] = np.round(values[1], 2)
    values[5] = np.cumsum(35 * noise[5])
    values[:, 7] = np.nan
    return batch(sequence, block(ticks=ticks, metrics=NOISY, values=values.tolist(), bases=[123_456_789.25], **more))


def noisy_store(open_store, **settings):
    store = open_store(config=replace(CONFIG, **settings))
    feed = Feed(metrics=NOISY)
    store.samples.append([feed.incoming(feed.first), feed.incoming(noisy_record())])
    store.flush()
    return store


def test_compaction_rounds_noise_away_and_nothing_else(open_store):
    store = noisy_store(open_store)
    before = store.samples.read("GPU-a", *EVER)
    assert store.maintenance.compact_all() == 1
    after = store.samples.read("GPU-a", *EVER)
    assert after.resolution_s == 0.0
    for name, column in before.columns.items():
        assert after.columns[name].dtype == column.dtype
        assert np.array_equal(np.isnan(after.columns[name]), np.isnan(column))
    error = {name: np.abs(after.columns[name].astype(float) - column) for name, column in before.columns.items()}
    assert 0 < np.nanmax(error["sm_active"]) <= 0.5 / 8192
    for name in ("power_watts", "nvlink_tx_bytes_per_second"):
        assert 0 < np.nanmax(error[name] / before.columns[name]) <= 0.5 / 4096
    assert 0 < np.nanmax(error["energy_joules"]) <= 0.5 / 1024
    for name in ("gpu_utilization", "sm_clock_mhz"):
        assert np.array_equal(after.columns[name], before.columns[name], equal_nan=True)
    for read in ("time_unix_nano", "spool", "sequence", "missed_ticks"):
        assert np.array_equal(getattr(after, read), getattr(before, read))


def test_a_lossless_store_keeps_every_bit_and_another_is_smaller(open_store, tmp_path):
    sizes = {}
    for lossless in (True, False):
        store = noisy_store(open_store, lossless=lossless)
        before = store.samples.read("GPU-a", *EVER)
        store.maintenance.compact_all()
        after = store.samples.read("GPU-a", *EVER)
        same = all(np.array_equal(after.columns[m], before.columns[m], equal_nan=True) for m in NOISY)
        assert same is lossless
        (hour,) = (tmp_path / "data" / "hours").iterdir()
        file = pq.ParquetFile(hour).metadata.row_group(0)
        columns = [file.column(i) for i in range(file.num_columns)]
        sizes[lossless] = {c.path_in_schema: c.total_compressed_size / 4000 for c in columns}
        store.close()
        shutil.rmtree(tmp_path / "data")
    for name in ("sm_active", "nvlink_tx_bytes_per_second"):
        assert sizes[False][name] < 0.7 * sizes[True][name]


def test_the_current_hour_waits_and_is_compacted_on_demand(open_store, tmp_path):
    store = open_store()
    fill(store, 1, 10)
    store.maintenance.run()
    assert names(tmp_path, "hours") == []
    assert store.maintenance.compact_all() == 1
    assert store.maintenance.compact_all() == 0
    assert ticks_of(store) == list(range(90))


def test_records_that_come_late_for_a_compacted_hour_are_read_with_it(open_store, clock):
    store = open_store()
    store.samples.append(Feed().batches(1, 1) + Feed().batches(2, 4))
    store.samples.append([Feed().incoming(batch(5, block(first_tick=100)))])
    store.flush()
    clock.now_ns += 2 * HOUR_NS
    store.maintenance.run()
    store.samples.append([Feed().incoming(batch(6, block(first_tick=30, ticks=20)))])
    store.flush()
    clock.now_ns += 2 * HOUR_NS
    store.maintenance.run()
    samples = store.samples.read("GPU-a", *EVER)
    assert ((samples.time_unix_nano - START_NS) // TICK_NS).tolist() == [*range(50), *range(100, 110)]


def test_a_large_backlog_of_one_gpu_is_cut_into_row_groups_between_records(open_store, clock):
    small = CompactionSizes(group_rows=25, step_rows=120)
    store = open_store(compaction=small)
    fill(store, 1, 40, flushes=8)
    clock.now_ns += 2 * HOUR_NS
    store.maintenance.run()
    assert ticks_of(store) == list(range(390))
    for reached in range(1, 40, 7):
        rest = store.samples.read_feed("agent-1", "GPU-a", Position(1, reached))
        found = [s for a in rest for s in a.samples.sequence.tolist()]
        assert sorted(set(found)) == list(range(max(2, reached + 1), 41))
        assert len(found) == 10 * len(set(found))
    assert len(store.samples.read("GPU-a", START_NS + 100 * TICK_NS, START_NS + 133 * TICK_NS)) == 33


def test_a_metric_that_only_some_gpus_or_times_have_stays_so(open_store, clock):
    store = open_store()
    store.samples.append(Feed().batches(1, 3))
    store.flush()
    wider = Feed(metrics=("sm_active", "dram_active"))
    store.samples.append([wider.incoming(inventory(4, metrics=("sm_active", "dram_active")))])
    store.samples.append([wider.incoming(batch(5, block(first_tick=20, metrics=("sm_active", "dram_active"))))])
    store.flush()
    other = Feed("agent-2", "spool-2", gpus=("GPU-b",), metrics=("power_watts",))
    store.samples.append([other.incoming(other.first), other.incoming(batch(2, block(metrics=("power_watts",))))])
    store.flush()
    clock.now_ns += 2 * HOUR_NS
    store.maintenance.run()
    samples = store.samples.read("GPU-a", *EVER)
    assert np.isnan(samples.columns["dram_active"]).tolist() == [True] * 20 + [False] * 10
    assert np.isnan(store.samples.read("GPU-b", *EVER, ["sm_active"]).columns["sm_active"]).all()
    arrived = [a.samples for a in store.samples.read_feed("agent-2", "GPU-b", Position(0, 0))]
    assert set(arrived[0].columns) == {"power_watts"}


@pytest.mark.parametrize("damage", ["flipped byte", "gone", "no parquet"])
def test_a_damaged_segment_is_left_alone_and_the_others_are_compacted(open_store, tmp_path, clock, caplog, damage):
    store = open_store()
    fill(store, 1, 30)
    first, second, _third = sorted((tmp_path / "data" / "segments").iterdir())
    if damage == "flipped byte":
        flip_byte(second, 200)
    elif damage == "gone":
        second.unlink()
    else:
        second.write_bytes(b"x" * second.stat().st_size)
    kept = second.read_bytes() if second.exists() else None
    clock.now_ns += 2 * HOUR_NS
    store.maintenance.run()
    assert second.name in caplog.text
    assert store.counters.compaction_failures == 1
    assert not first.exists()
    assert (second.read_bytes() if second.exists() else None) == kept
    assert len(names(tmp_path, "hours")) == 1
    left = [a.samples for a in store.samples.read_feed("agent-1", "GPU-a", Position(0, 0)) if isinstance(a, TicksEntry)]
    assert sum(map(len, left)) == 190
    with pytest.raises(StoreCorruptError, match=second.name):
        store.samples.read("GPU-a", *EVER)


def test_a_full_disk_leaves_everything_as_it_was(open_store, tmp_path, clock):
    files = FaultyFiles()
    store = open_store(files=files)
    fill(store, 1, 30)
    clock.now_ns += 2 * HOUR_NS
    for room in (0, 100, 3000):
        files.room = room
        with pytest.raises(StoreFullError):
            store.maintenance.run()
        files.room = None
        assert len(names(tmp_path, "segments")) == 3
        assert names(tmp_path, "hours") == names(tmp_path, "seconds") == []
        assert ticks_of(store) == list(range(290))
    store.maintenance.run()
    assert len(names(tmp_path, "hours")) == 1
    assert ticks_of(store) == list(range(290))


def test_compaction_stops_when_it_is_told_to_and_leaves_nothing_half_done(open_store, tmp_path, clock):
    store = open_store()
    fill(store, 1, 30)
    clock.now_ns += 2 * HOUR_NS
    stop = threading.Event()
    stop.set()
    store.maintenance.run(stop)
    assert len(names(tmp_path, "segments")) == 3
    assert names(tmp_path, "hours") == names(tmp_path, "seconds") == []
    assert store.counters.compaction_failures == 0


def test_segments_whose_rows_nobody_knows_are_left_alone(open_store, tmp_path, clock, caplog):
    store = open_store()
    fill(store, 1, 30)
    with store.database.transaction() as catalog:
        catalog.execute("DELETE FROM segment_parts")
    clock.now_ns += 2 * HOUR_NS
    store.maintenance.run()
    assert len(names(tmp_path, "segments")) == 3
    assert names(tmp_path, "hours") == []
    assert "nothing is known of the rows" in caplog.text


def test_the_pace_rests_in_proportion_to_the_work():
    now = [0.0]
    waited = []

    class Stop(threading.Event):
        def wait(self, timeout=None):
            waited.append(timeout)
            return len(waited) == 3

    pace = CpuShare(0.2, Stop(), lambda: now[0])
    for worked in (1.0, 0.5):
        now[0] += worked
        pace.rest()
    assert waited == pytest.approx([4.0, 2.0])
    with pytest.raises(CancelledError):
        pace.rest()


def test_a_reader_that_began_before_compaction_ends_with_every_tick_once(open_store, clock):
    store = open_store()
    fill(store, 1, 30)
    store.samples.append(Feed().batches(31, 35))
    arrivals = store.samples.read_feed("agent-1", "GPU-a", Position(0, 0))
    found = [next(arrivals).samples]
    store.flush()
    store.samples.append([*Feed().batches(36, 36), Feed().incoming(source_ended(37))])
    store.flush()
    clock.now_ns += 2 * HOUR_NS
    store.maintenance.run()
    found += [a.samples for a in arrivals if isinstance(a, TicksEntry)]
    assert [s for piece in found for s in sorted(set(piece.sequence.tolist()))] == list(range(2, 36))
    assert sum(map(len, found)) == 340


def test_reading_while_everything_is_compacted_sees_every_tick_once(open_store, clock):
    store = open_store(compaction=CompactionSizes(batch_gpus=1, file_bytes=1))
    gpus = tuple(f"GPU-{i}" for i in range(6))
    feed = Feed(gpus=gpus)
    store.samples.append([feed.incoming(feed.first)])
    for k in range(2, 22):
        store.samples.append(
            [feed.incoming(batch(k, *(block(gpu_index=i, first_tick=10 * (k - 2)) for i in range(6))))]
        )
        store.flush()
    clock.now_ns += 2 * HOUR_NS
    worker = threading.Thread(target=store.maintenance.run)
    worker.start()
    rounds = 0
    while worker.is_alive() or not rounds:
        for gpu in gpus:
            assert ticks_of(store, gpu) == list(range(200))
            assert store.samples.next_tick(gpu, START_NS + 15 * TICK_NS) == START_NS + 15 * TICK_NS
        rounds += 1
    worker.join()
    assert store.counters.compactions == 6
    for gpu in gpus:
        assert ticks_of(store, gpu) == list(range(200))


@pytest.mark.parametrize("seed", range(16))
def test_power_loss_at_any_moment_of_compaction_loses_and_repeats_nothing(tmp_path, seed):
    """Random appends, flushes, compactions and power losses against a plain model: the set of acknowledged records."""
    chance = random.Random(seed)
    clock = Clock()
    files = FaultyFiles(seed)
    small = CompactionSizes(group_rows=50, file_bytes=3000, batch_gpus=1)
    acknowledged = sent = 0
    for _ in range(10):
        files.power_lost_in = chance.randint(10, 90)
        store = LocalStore(tmp_path / "data", CONFIG, compaction=small, files=files, wall_clock_ns=clock)
        try:
            store.open()
            held = ticks_of(store)
            assert held == list(range(len(held)))
            assert len(held) >= 10 * max(acknowledged - 1, 0)
            sent = acknowledged = len(held) // 10 + 1 if held else acknowledged
            while True:
                sent += chance.randint(1, 4)
                store.samples.append(Feed().batches(max(1, acknowledged - 1), sent))
                acknowledged = sent
                if chance.random() < 0.4:
                    store.flush()
                    clock.now_ns += chance.choice([60, 1800]) * 10**9
                if chance.random() < 0.3:
                    store.maintenance.run()
                    assert ticks_of(store) == list(range(10 * (acknowledged - 1)))
        except PowerLost:
            store.close()
            files.lose_power()
    store = LocalStore(tmp_path / "data", CONFIG, compaction=small, wall_clock_ns=clock)
    store.open()
    store.samples.append(Feed().batches(1, sent + 1))
    store.flush()
    store.maintenance.compact_all()
    assert ticks_of(store) == list(range(10 * sent))
    assert store.facts.losses() == []
    assert names(tmp_path, "segments") == []
    store.close()


def test_the_store_says_what_it_did_and_how_large_it_is(open_store, clock):
    store = open_store()
    seen = {"log": [], "segment": [], "compaction": []}
    store.counters.on_log_sync = seen["log"].append
    store.counters.on_segment = seen["segment"].append
    store.counters.on_compaction = seen["compaction"].append
    fill(store, 1, 30)
    clock.now_ns += 2 * HOUR_NS
    store.maintenance.run()
    assert {name: len(taken) for name, taken in seen.items()} == {"log": 3, "segment": 3, "compaction": 1}
    sizes = store.usage().tier_bytes
    assert sizes["log"] == 0
    assert min(sizes["raw"], sizes["second"], sizes["catalog"]) > 0


def test_encodings_are_chosen_by_what_comes_out_smaller():
    chance = np.random.default_rng(0)
    noise = chance.random(20_000).astype(np.float32)
    steps = np.round(chance.random(20_000) * 1000).astype(np.float32) / 1000
    table = pa.table({"time_unix_nano": np.arange(20_000), "noise": noise, "steps": steps, "still": noise * 0})
    quiet = pa.table({"time_unix_nano": np.arange(20_000), "noise": noise * 0, "steps": noise * 0, "still": noise * 0})
    assert "noise" not in quantised_by_size([quiet, table], ["noise", "steps", "still"])
    assert "steps" in quantised_by_size([quiet, table], ["noise", "steps", "still"])
