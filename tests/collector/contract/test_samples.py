"""What every engine of the store promises of samples: there once, in order, whatever is sent again or fails."""

import random
import threading

import numpy as np
import pytest
from support.store_records import EVER, Feed, inventory_of
from support.wire_agent import START_NS, TICK_NS, batch, block, inventory

from gpusonde.collector.storage.model import Position
from gpusonde.collector.storage.samples import TicksEntry
from gpusonde.errors import StoreError
from gpusonde.telemetry import UnknownMetricError

BEGINNING = Position(0, 0)


def tick_numbers(samples):
    return ((samples.time_unix_nano - START_NS) // TICK_NS).tolist()


def ticks_of(store, gpu_uuid="GPU-a", agent_id="agent-1"):
    """Numbers of the stored ticks, and a check that every value is the one of its tick and nothing is there twice."""
    samples = store.samples.read(gpu_uuid, *EVER)
    ticks = np.array(tick_numbers(samples), dtype=np.int64)
    expected = ((ticks % 100) / 100).astype(np.float32)
    assert (samples.columns["sm_active"] == expected).all() if len(ticks) else True
    assert (samples.sequence == ticks // 10 + 2).all()
    arrived = [a.samples for a in store.samples.read_feed(agent_id, gpu_uuid, BEGINNING) if isinstance(a, TicksEntry)]
    assert [tick for piece in arrived for tick in tick_numbers(piece)] == ticks.tolist()
    return ticks.tolist()


@pytest.mark.parametrize("settled", [False, True], ids=["fresh", "settled"])
@pytest.mark.parametrize("restarted", [False, True], ids=["same process", "after a restart"])
def test_what_is_appended_is_read_once(engine, settled, restarted):
    store = engine.open()
    store.samples.append(Feed().batches(1, 6))
    if settled:
        engine.settle()
        store.samples.append(Feed().batches(7, 8))
    if restarted:
        store = engine.open()
    assert ticks_of(store) == list(range(70 if settled else 50))


def test_repetitions_are_dropped_and_counted(engine):
    store = engine.open()
    assert store.samples.append(Feed().batches(1, 5)) == 0
    assert store.samples.append(Feed().batches(3, 7)) == 3
    assert store.samples.append(Feed().batches(1, 7)) == 7
    assert ticks_of(store) == list(range(60))


@pytest.mark.parametrize("settled", [False, True], ids=["unmerged", "merged"])
@pytest.mark.parametrize("restarted", [False, True], ids=["same process", "after a crash"])
def test_records_sent_again_after_a_failure_before_the_acknowledgement_are_there_once(engine, restarted, settled):
    store = engine.open()
    store.samples.append(Feed().batches(1, 3))
    engine.break_before_acknowledging()
    with pytest.raises(StoreError):
        store.samples.append(Feed().batches(4, 6))
    engine.repair()
    if restarted:
        store = engine.open()
    # Sent again in other groups than before, and further.
    store.samples.append(Feed().batches(4, 4))
    store.samples.append(Feed().batches(5, 8))
    if settled:
        engine.settle()
    assert ticks_of(store) == list(range(70))
    assert ticks_of(engine.open()) == list(range(70))
    assert engine.store.facts.losses() == []


def test_what_failed_does_not_count_as_durable(engine):
    store = engine.open()
    store.samples.append(Feed().batches(1, 3))
    engine.break_before_acknowledging()
    with pytest.raises(StoreError):
        store.samples.append(Feed().batches(4, 6))
    engine.repair()
    (first, *_) = _positions(store)
    assert store.samples.contains("agent-1", Position(first.spool, 3))
    assert not store.samples.contains("agent-1", Position(first.spool, 4))
    arrived = [a.samples for a in store.samples.read_feed("agent-1", "GPU-a", BEGINNING)]
    assert [tick for piece in arrived for tick in tick_numbers(piece)] == list(range(20))


def _positions(store, gpu_uuid="GPU-a", agent_id="agent-1"):
    pieces = [a.samples for a in store.samples.read_feed(agent_id, gpu_uuid, BEGINNING) if isinstance(a, TicksEntry)]
    pairs = {(int(p), int(s)) for piece in pieces for p, s in zip(piece.spool, piece.sequence, strict=True)}
    return [Position(*pair) for pair in sorted(pairs)]


@pytest.mark.parametrize("settled", [False, True], ids=["fresh", "settled"])
def test_a_record_is_told_from_others_of_its_number_by_the_time_of_a_tick(engine, settled):
    store = engine.open()
    store.samples.append([*Feed().batches(1, 6), *Feed(spool_id="spool-2").batches(1, 3)])
    if settled:
        engine.settle()
    fifth = START_NS + 35 * TICK_NS  # of records of ten ticks, of which the second is the first with any
    asked = [(5, fifth), (6, fifth), (3, fifth), (5, fifth + 1)]
    assert [store.samples.holds_tick("agent-1", n, "GPU-a", at) for n, at in asked] == [True, False, False, False]
    assert not store.samples.holds_tick("agent-1", 5, "GPU-b", fifth)
    assert not store.samples.holds_tick("agent-2", 5, "GPU-a", fifth)


def test_reading_takes_a_range_of_time_and_columns(engine):
    store = engine.open()
    store.samples.append(Feed().batches(1, 3))
    engine.settle()
    store.samples.append(Feed().batches(4, 6))
    samples = store.samples.read("GPU-a", START_NS + 15 * TICK_NS, START_NS + 25 * TICK_NS, ["power_watts"])
    assert tick_numbers(samples) == list(range(15, 25))
    assert list(samples.columns) == ["power_watts"]
    assert samples.columns["power_watts"].dtype == np.float32
    assert samples.time_unix_nano.dtype == np.int64
    nothing = store.samples.read("GPU-nobody", *EVER, ["power_watts"])
    assert len(nothing) == 0
    assert list(nothing.columns) == ["power_watts"]
    assert len(store.samples.read("GPU-a", START_NS + 5, START_NS + 5)) == 0


def test_columns_come_in_the_order_of_the_question(engine):
    store = engine.open()
    store.samples.append(Feed().batches(1, 3))
    assert list(store.samples.read("GPU-a", *EVER, ["power_watts", "sm_active"]).columns) == [
        "power_watts",
        "sm_active",
    ]
    assert sorted(store.samples.read("GPU-a", *EVER).columns) == sorted(store.facts.metrics("GPU-a"))


def test_the_next_tick_is_found_over_any_distance(engine):
    store = engine.open()
    feed = Feed()
    nineteen_seventy = batch(2, block(start_ns=TICK_NS))
    store.samples.append([feed.incoming(feed.first), feed.incoming(nineteen_seventy), feed.incoming(batch(3))])
    for _ in range(2):
        assert store.samples.next_tick("GPU-a", 0) == TICK_NS
        assert store.samples.next_tick("GPU-a", TICK_NS + 1) == 2 * TICK_NS
        assert store.samples.next_tick("GPU-a", 11 * TICK_NS) == START_NS + 10 * TICK_NS
        assert store.samples.next_tick("GPU-a", START_NS + 19 * TICK_NS) == START_NS + 19 * TICK_NS
        assert store.samples.next_tick("GPU-a", START_NS + 20 * TICK_NS) is None
        assert store.samples.next_tick("GPU-nobody", 0) is None
        engine.settle()


def test_a_gpu_without_a_metric_reads_nan_beside_one_with_it(engine):
    store = engine.open()
    store.samples.append(Feed().batches(1, 2))
    other = Feed("agent-2", metrics=("dram_active",), gpus=("GPU-b",))
    values = [[0.5] * 4 + [np.nan] + [0.25] * 5]
    store.samples.append(
        [other.incoming(other.first), other.incoming(batch(2, block(values=values, metrics=("dram_active",))))]
    )
    for _ in range(2):
        assert store.facts.metrics("GPU-b") == ["dram_active"]
        assert store.facts.metrics("GPU-nobody") == []
        assert np.isnan(store.samples.read("GPU-b", *EVER, ["sm_active"]).columns["sm_active"]).all()
        np.testing.assert_array_equal(
            store.samples.read("GPU-b", *EVER).columns["dram_active"], np.array(values[0], dtype=np.float32)
        )
        engine.settle()


def test_a_metric_that_an_agent_adds_later_is_nan_before(engine):
    store = engine.open()
    narrow, wide = Feed(metrics=("sm_active",)), Feed()
    wider = wide.incoming(inventory(3))
    store.samples.append([narrow.incoming(narrow.first), narrow.incoming(batch(2, block(metrics=("sm_active",))))])
    store.samples.append([wider, wide.incoming(batch(4, block(first_tick=20)))])
    engine.settle()
    samples = engine.open().samples.read("GPU-a", *EVER)
    assert np.isnan(samples.columns["power_watts"]).tolist() == [True] * 10 + [False] * 10
    assert inventory_of(engine.store, "agent-1", "spool-1").layout.metrics[1] == "power_watts"


def test_an_inventory_that_was_written_and_not_acknowledged_is_not_yet_an_agents(engine):
    store = engine.open()
    narrow, wide = Feed(metrics=("sm_active",)), Feed()
    assert inventory_of(store, "agent-1", "spool-1") is None
    store.samples.append([narrow.incoming(narrow.first)])
    engine.break_before_acknowledging()
    with pytest.raises(StoreError):
        store.samples.append([wide.incoming(inventory(2))])
    engine.repair()
    assert inventory_of(store, "agent-1", "spool-1").layout.metrics == ("sm_active",)
    assert inventory_of(store, "agent-1", "spool-2") is None
    store.samples.append([wide.incoming(inventory(2))])
    assert inventory_of(store, "agent-1", "spool-1") == wide.inventory


def test_counters_keep_their_64_bits(engine):
    store = engine.open()
    feed = Feed(metrics=("energy_joules",))
    wire = block(ticks=3, metrics=("energy_joules",), values=[[0.0, 0.5, np.nan]], bases=[123_456_789_012.25])
    store.samples.append([feed.incoming(feed.first), feed.incoming(batch(2, wire))])
    for _ in range(2):
        column = store.samples.read("GPU-a", *EVER).columns["energy_joules"]
        assert column.dtype == np.float64
        np.testing.assert_array_equal(column, [123_456_789_012.25, 123_456_789_012.75, np.nan])
        engine.settle()


def test_missed_ticks_stand_before_the_first_tick_of_a_block(engine):
    store = engine.open()
    feed = Feed()
    store.samples.append([feed.incoming(feed.first), feed.incoming(batch(2, block(ticks=3, missed=7), block(3, 2)))])
    for _ in range(2):
        assert store.samples.read("GPU-a", *EVER).missed_ticks.tolist() == [7, 0, 0, 0, 0]
        engine.settle()


def test_a_clock_set_back_leaves_every_tick_in_the_store_and_reads_in_order_of_time(engine):
    store = engine.open()
    feed = Feed()
    store.samples.append([feed.incoming(feed.first), feed.incoming(batch(2, block(first_tick=100)))])
    store.samples.append(
        [feed.incoming(batch(3, block(first_tick=50))), feed.incoming(batch(4, block(first_tick=105)))]
    )
    for _ in range(2):
        samples = store.samples.read("GPU-a", *EVER)
        assert tick_numbers(samples) == [*range(50, 60), *range(100, 115)]
        # Of two ticks at the same instant the first to arrive is read.
        assert samples.sequence.tolist() == [3] * 10 + [2] * 10 + [4] * 5
        arrived = [a.samples for a in store.samples.read_feed("agent-1", "GPU-a", BEGINNING)]
        in_order = [tick for piece in arrived for tick in tick_numbers(piece)]
        assert in_order == [*range(100, 110), *range(50, 60), *range(105, 115)]
        store = engine.open()
        engine.settle()


def test_records_that_come_days_late_are_read_in_their_place(engine):
    store = engine.open()
    days = 3 * 86_400 * 10
    one, late = Feed(), Feed("agent-1", "spool-0")
    store.samples.append([one.incoming(one.first), one.incoming(batch(2, block(first_tick=days)))])
    store.samples.append([late.incoming(late.first), late.incoming(batch(2, block(first_tick=0)))])
    assert tick_numbers(store.samples.read("GPU-a", *EVER)) == [*range(10), *range(days, days + 10)]


def test_reading_a_run_keeps_to_its_records_and_its_agent(engine):
    store = engine.open()
    one, two = Feed(), Feed("agent-2", "spool-2")
    store.samples.append(one.batches(1, 5))
    store.samples.append([two.incoming(two.first), two.incoming(batch(2, block(first_tick=12, ticks=3)))])
    spool = _positions(store)[0].spool
    samples = store.samples.read("GPU-a", *EVER, first=Position(spool, 3), last=Position(spool, 4))
    assert tick_numbers(samples) == list(range(10, 30))
    assert set(samples.spool.tolist()) == {spool}
    # Two agents of one GPU: of two ticks at the same instant one is read.
    assert tick_numbers(store.samples.read("GPU-a", *EVER)) == list(range(40))
    assert len(_positions(store, agent_id="agent-2")) == 1


def test_a_long_backlog_with_a_hole_arrives_whole(engine):
    store = engine.open()
    store.samples.append(Feed().batches(1, 1200))
    store.samples.append(Feed().batches(9_001, 9_100))
    expected = [*range(2, 1201), *range(9_001, 9_101)]
    assert [p.sequence for p in _positions(store)] == expected
    store = engine.open()
    engine.settle()
    assert [p.sequence for p in _positions(store)] == expected
    spool = _positions(store)[0].spool
    rest = [a.samples for a in store.samples.read_feed("agent-1", "GPU-a", Position(spool, 1199))]
    assert sorted({s for piece in rest for s in piece.sequence.tolist()}) == [1200, *range(9_001, 9_101)]


def test_readers_beside_the_writer_see_whole_records_in_order(engine):
    store = engine.open()
    store.samples.append(Feed().batches(1, 2))
    wrong, done = [], threading.Event()

    def watch():
        seen = 0
        while not done.is_set():
            ticks = tick_numbers(store.samples.read("GPU-a", *EVER, ["sm_active"]))
            if ticks != list(range(len(ticks))) or len(ticks) % 10 or len(ticks) < seen:
                wrong.append(ticks)
            seen = len(ticks)

    readers = [threading.Thread(target=watch) for _ in range(3)]
    for reader in readers:
        reader.start()
    for first in range(3, 63, 3):
        store.samples.append(Feed().batches(first, first + 2))
        if first % 15 == 0:
            engine.settle()
    done.set()
    for reader in readers:
        reader.join()
    assert wrong == []
    assert ticks_of(store) == list(range(610))


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_sent_again_breaks_and_restarts_every_record_is_there_once(engine, seed):
    chance = random.Random(seed)
    store = engine.open()
    acknowledged = 0
    for _ in range(12):
        first = chance.randint(max(1, acknowledged - 4), acknowledged + 1)
        last = max(acknowledged, first) + chance.randint(0, 5)
        breaks = chance.random() < 0.3
        if breaks:
            engine.break_before_acknowledging()
        try:
            store.samples.append(Feed().batches(first, last))
            acknowledged = max(acknowledged, last)
        except StoreError:
            assert breaks
        engine.repair()
        if chance.random() < 0.3:
            engine.settle()
        if chance.random() < 0.3:
            store = engine.open()
    assert store.samples.append(Feed().batches(1, acknowledged)) == acknowledged
    assert ticks_of(store) == list(range(10 * (acknowledged - 1)))
    assert store.facts.losses() == []


@pytest.mark.parametrize("name", ["sm_active FROM samples --", "time_unix_nano", "*", "sm_active, 1", "", "`x`"])
def test_what_is_no_metric_is_not_read(engine, name):
    store = engine.open()
    store.samples.append(Feed().batches(1, 2))
    with pytest.raises(UnknownMetricError):
        store.samples.read("GPU-a", *EVER, [name])
