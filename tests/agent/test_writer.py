"""SpoolWriter: batches by time and size, events between the ticks they part, a stalled disk."""

import dataclasses
import threading

import numpy as np
import pytest
from support.decoded_blocks import decode
from support.faulty_files import FaultyFiles, copy_directory
from support.wire_agent import wait_until

from gpusonde.agent.batch import inventory_record
from gpusonde.agent.config import SpoolConfig, UplinkConfig
from gpusonde.agent.metrics import SelfCounters
from gpusonde.agent.sources.base import (
    GpuDescription,
    GpuEventKind,
    GpuTicks,
    OwnLook,
    Reading,
    SourceEvent,
    SourceInventory,
)
from gpusonde.agent.spool import Spool
from gpusonde.agent.writer import SpoolWriter
from gpusonde.telemetry import MissingReason, metric

INVENTORY = SourceInventory("test", (GpuDescription("a"), GpuDescription("b")), (metric("sm_active"),), 0.1)


def reading(second, events=(), count=1):
    times = np.array([round(second * 1e9) + i * 1000 for i in range(count)], dtype=np.int64)
    return Reading((GpuTicks(0, times, np.zeros((1, count))),), tuple(events))


class Rig:
    def __init__(self, directory, pace_s=1.0, files=None):
        self.counters = SelfCounters()
        self.spool = Spool(directory, max_bytes=1 << 20, counters=self.counters, files=files)
        self.spool.open()
        self.commits = 0
        self.spool_config = SpoolConfig(commit_interval_s=0.02)
        self.writer = SpoolWriter(
            self.spool, INVENTORY, self.counters, self.spool_config, UplinkConfig(batch_interval_s=pace_s),
            on_commit=self.committed,
        )  # fmt: skip

    def committed(self):
        self.commits += 1

    def records(self):
        return [self.spool.read(s) for s in range(1, self.spool.committed_sequence + 1)]


@pytest.fixture
def rig(tmp_path):
    rig = Rig(tmp_path / "spool", pace_s=60.0)
    yield rig
    rig.spool.close()


def test_everything_queued_is_written_and_committed_at_the_end(rig):
    for i in range(10):
        rig.writer.put(reading(i))
    rig.writer.finish()
    rig.writer.run()
    (record,) = rig.records()
    assert record.batch.blocks[0].tick_count == 10
    assert rig.counters.batches == 1
    rig.writer.end_source()
    assert list(rig.records()[-1].source_ended.gpus) == [0, 1]


def test_events_stand_between_the_ticks_before_and_after_them(rig):
    rig.writer.put(reading(1))
    rig.writer.put(reading(2))
    step = [SourceEvent(g, 3, GpuEventKind.CLOCK_STEP, -5) for g in (0, 1)]
    rig.writer.put(reading(3, step))
    rig.writer.finish()
    rig.writer.run()
    before, events, after = rig.records()
    assert before.batch.blocks[0].tick_count == 2
    assert [(e.gpu, e.value) for e in events.gpu_events.events] == [(0, -5), (1, -5)]
    assert after.batch.blocks[0].tick_count == 1
    assert rig.counters.events == 2


def test_ticks_before_those_of_the_batch_begin_another_one(rig):
    # A clock that was set back, noticed by nobody yet; and ticks of one reading between which it was.
    for second in (3600, 3601, 1, 2):
        rig.writer.put(reading(second))
    times = np.array([3_000_000_000, 1_000_000_000, 2_000_000_000])
    rig.writer.put(Reading((GpuTicks(0, times, np.array([[0.25, 0.5, 0.75]])),)))
    rig.writer.finish()
    rig.writer.run()
    decoded = [decode(record.batch, INVENTORY.metrics) for record in rig.records()]
    assert [len(blocks) for blocks in decoded] == [1, 1, 1]
    assert [(block.time_unix_nano // 10**9).tolist() for (block,) in decoded] == [[3600, 3601], [1, 2, 3], [1, 2]]
    assert decoded[2][0].values.tolist() == [[0.5, 0.75]]


def test_missed_ticks_are_told_for_every_gpu(rig):
    rig.writer.put(dataclasses.replace(reading(1), missed_ticks=4))
    rig.writer.finish()
    rig.writer.run()
    assert rig.records()[0].batch.blocks[0].missed_ticks == 4


def test_a_large_reading_does_not_wait_for_the_batch_interval(rig):
    for i in range(3):
        rig.writer.put(reading(i, count=70_000))
    rig.writer.finish()
    rig.writer.run()
    assert rig.counters.batches == 3


@pytest.mark.parametrize(
    ("lost_in", "told_after"),
    [(None, [1, 5, 9, 10]), (3, [1, 3, 7, 10])],
    ids=["batches alone", "with an event in the third"],
)
def test_batches_of_a_live_source_are_sent_four_at_a_time_and_with_anything_else_at_once(tmp_path, lost_in, told_after):
    rig = Rig(tmp_path / "spool")
    told = []

    class TimeAndReadings:
        """Time goes on by what the writer waits for; each such time brings a reading, ten in all."""

        now_s, count = 0.0, 0

        def beat(self, pause_s):
            self.now_s += pause_s
            if not pause_s:
                return
            self.count += 1
            lost = [SourceEvent(0, 1, GpuEventKind.LOST)] if self.count == lost_in else ()
            writer.put(reading(self.count, lost))
            if self.count == 10:
                writer.finish()

    world = TimeAndReadings()
    writer = SpoolWriter(
        rig.spool, INVENTORY, rig.counters, SpoolConfig(commit_interval_s=0.01), UplinkConfig(batch_interval_s=0.02),
        on_commit=lambda: told.append(rig.counters.batches), monotonic=lambda: world.now_s, heartbeat=world,
    )  # fmt: skip
    writer.run()
    rig.spool.close()
    assert told == told_after


def test_samples_that_wait_for_others_are_sent_when_none_come(tmp_path):
    rig = Rig(tmp_path / "spool", pace_s=0.02)
    thread = threading.Thread(target=rig.writer.run)
    thread.start()
    for number in (1, 2):
        rig.writer.put(reading(number))
        wait_until(lambda number=number: rig.counters.batches == number)
    wait_until(lambda: rig.commits == 2)
    rig.writer.finish()
    thread.join()
    rig.spool.close()


def test_a_batch_is_written_when_its_interval_is_over(tmp_path):
    rig = Rig(tmp_path / "spool", pace_s=0.05)
    thread = threading.Thread(target=rig.writer.run)
    thread.start()
    rig.writer.put(reading(1))
    deadline = threading.Event()
    while rig.spool.committed_sequence == 0 and not deadline.wait(0.01):
        pass
    rig.writer.finish()
    thread.join()
    assert rig.counters.batches == 1
    assert rig.commits >= 1
    rig.spool.close()


def test_a_collector_may_ask_for_longer_batches_but_not_for_shorter_ones(tmp_path):
    writer = Rig(tmp_path / "spool", pace_s=1.0).writer
    writer.request_batch_interval(5.0)
    assert writer.batch_interval_s == 5.0
    writer.configure(SpoolConfig(), UplinkConfig(batch_interval_s=2.0))
    assert writer.batch_interval_s == 5.0
    writer.request_batch_interval(0.1)
    assert writer.batch_interval_s == 2.0
    writer.request_batch_interval(None)
    assert writer.batch_interval_s == 2.0


def test_a_disk_that_stalls_for_a_minute_costs_ticks_but_no_event(rig):
    event = SourceEvent(0, 1, GpuEventKind.LOST)
    taken = [rig.writer.put(reading(i, [event] if i == 605 else ())) for i in range(610)]
    assert taken == [True] * 600 + [False] * 10
    assert not rig.writer.has_room()
    rig.writer.finish()
    rig.writer.run()
    assert rig.counters.events == 1
    assert sum(b.tick_count for r in rig.records() for b in r.batch.blocks) == 600
    assert rig.writer.has_room()


def test_a_source_that_can_wait_waits_for_a_full_disk_to_get_room(tmp_path):
    files = FaultyFiles()
    rig = Rig(tmp_path / "spool", files=files)
    files.full = True
    rig.writer.put(reading(1))
    rig.writer.finish()
    rig.writer.run()
    assert not rig.writer.has_room()
    files.full = False
    rig.spool.commit()
    assert rig.writer.has_room()
    assert rig.records()[0].loss_report.lost_ticks == 1
    rig.spool.close()


def test_blanks_are_counted_by_reason(rig):
    ticks = GpuTicks(0, np.array([1000]), np.full((1, 1), np.nan), {0: MissingReason.GPU_LOST})
    rig.writer.put(Reading((ticks,)))
    rig.writer.finish()
    rig.writer.run()
    assert rig.counters.blanks == {MissingReason.GPU_LOST: 1}
    assert rig.counters.as_json()["blank_values"] == {"gpu_lost": 1}


def test_ticks_of_new_columns_come_after_the_inventory_that_names_them(rig):
    energy, active = metric("energy_joules"), metric("sm_active")
    grown = SourceInventory("test", (*INVENTORY.gpus, GpuDescription("c")), (active, energy), 0.1)
    rig.writer.put(reading(1))
    lost = SourceEvent(2, 2_000_000_000, GpuEventKind.LOST)
    ticks = GpuTicks(2, np.array([2_000_000_000], dtype=np.int64), np.array([[0.5], [1e12]]))
    rig.writer.put(Reading((ticks,), (lost,), inventory=grown))
    rig.writer.finish()
    rig.writer.run()
    before, named, happened, after = rig.records()
    assert [block.gpu for block in before.batch.blocks] == [0]
    assert [gpu.gpu_uuid for gpu in named.inventory.gpus] == ["a", "b", "c"]
    assert happened.gpu_events.events[0].gpu == 2
    assert list(after.batch.blocks[0].counter_bases) == [1e12]


def test_an_inventory_is_not_dropped_when_the_queue_is_full(rig):
    for i in range(700):
        rig.writer.put(Reading(reading(i).ticks, inventory=INVENTORY if i == 699 else None))
    rig.writer.finish()
    rig.writer.run()
    assert sum(record.HasField("inventory") for record in rig.records()) == 1


def test_a_collector_that_asks_for_longer_batches_costs_a_killed_agent_no_more_ticks(tmp_path, monkeypatch):
    rig = Rig(tmp_path / "spool", pace_s=0.05)
    rig.writer.put_record(inventory_record(INVENTORY))
    rig.writer.put(reading(1))
    append = rig.spool.append

    def append_and_ask(record):
        # The interval from before ends with the first batch; the next one takes an hour.
        rig.writer.request_batch_interval(3600.0)
        return append(record)

    monkeypatch.setattr(rig.spool, "append", append_and_ask)
    thread = threading.Thread(target=rig.writer.run, daemon=True)
    thread.start()
    wait_until(lambda: rig.counters.batches == 1, 120, "the first batch")
    for i in range(2, 31):
        rig.writer.put(dataclasses.replace(reading(i), missed_ticks=i == 7))
        if i % 10 == 0:
            wait_until(lambda i=i: rig.spool._journal.ticks == i - 1, 120, "the ticks in the journal")
    wait_until(lambda: rig.spool._journal.ticks == 29, 120, "the ticks in the journal")
    assert rig.counters.batches == 1
    copy_directory(tmp_path / "spool", tmp_path / "killed")
    rig.writer.finish()
    thread.join()
    rig.spool.close()
    for directory, batches in ((tmp_path / "spool", 2), (tmp_path / "killed", 4)):
        spool = Spool(directory, max_bytes=1 << 20)
        spool.open()
        found = [spool.read(s) for s in range(2, spool.committed_sequence + 1)]
        blocks = [block for record in found for block in decode(record.batch, INVENTORY.metrics)]
        assert np.concatenate([b.time_unix_nano for b in blocks]).tolist() == [i * 10**9 for i in range(1, 31)]
        assert sum(b.missed_ticks for record in found for b in record.batch.blocks) == 1
        assert len(found) >= batches
        spool.close()


def looks(second, count=9):
    """A reading with what a source saw by itself."""
    brought = reading(second, count=count)
    brought.looks = tuple(OwnLook(second, second, second, 0) for _ in range(count))
    return brought


def test_ticks_that_come_several_at_once_are_a_batch_as_soon_as_they_are_there(tmp_path):
    rig = Rig(tmp_path / "spool", pace_s=0.1)
    thread = threading.Thread(target=rig.writer.run)
    thread.start()
    for number in range(1, 5):
        rig.writer.put(looks(number))
        rig.writer.put(reading(number + 0.9))
        wait_until(lambda number=number: rig.counters.batches == number)
    rig.writer.finish()
    thread.join()
    batches = [decode(record.batch, INVENTORY.metrics) for record in rig.records()]
    sizes = [block.values.shape[1] for batch in batches for block in batch]
    assert sizes == [10] * 4
    rig.spool.close()


def test_ticks_that_come_several_at_once_make_batches_no_shorter_than_configured(tmp_path):
    rig = Rig(tmp_path / "spool", pace_s=60.0)
    thread = threading.Thread(target=rig.writer.run)
    thread.start()
    for number in range(1, 5):
        rig.writer.put(looks(number))
        rig.writer.put(reading(number + 0.9))
        threading.Event().wait(0.02)
    rig.writer.finish()
    thread.join()
    assert rig.counters.batches == 1
    rig.spool.close()


def test_a_disk_that_stalls_holds_no_more_ticks_where_several_come_at_once(rig):
    taken = [rig.writer.put(looks(number)) for number in range(80)]
    assert taken == [True] * 67 + [False] * 13
