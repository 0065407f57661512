"""The sampler on a simulated clock: absolute deadlines, missed ticks, jumps of the wall clock."""

import dataclasses
import threading

import numpy as np
import pytest

from gpusonde.agent.metrics import SelfCounters
from gpusonde.agent.sampler import Sampler
from gpusonde.agent.sources.base import (
    Clocks,
    GpuDescription,
    GpuEventKind,
    GpuTicks,
    OwnLook,
    Reading,
    SourceInventory,
    SourceStatistics,
)
from gpusonde.errors import SourceError
from gpusonde.service.health import Heartbeat
from gpusonde.telemetry import metric

INTERVAL_S = 0.1


class World:
    """A monotonic and a wall clock that move only when something takes time, and a source that takes some."""

    name = "simulated"

    def __init__(self, read_s=lambda tick: 0.0, ticks=50, more=lambda tick: False, can_wait=False):
        self.statistics = SourceStatistics()
        self.now_s = 1000.0
        self.wall_offset_s = 1.7e9
        self.read_s = read_s
        self.ticks = ticks
        self.more = more
        self.tick = 0
        self.read_at = []
        self.shift_s = {}
        self.delivered = []
        self.room = lambda: True
        self.accept = lambda: True
        self.inventory = SourceInventory(
            "simulated",
            (GpuDescription("a"), GpuDescription("b")),
            (metric("sm_active"),),
            INTERVAL_S,
            can_wait=can_wait,
        )
        self.counters = SelfCounters()
        self.sampler = Sampler(
            self, self.inventory, INTERVAL_S, self, self.counters,
            clocks=Clocks(lambda: self.now_s, self.wall_ns), wait=self.wait,
        )  # fmt: skip

    def wall_ns(self):
        return round((self.now_s + self.wall_offset_s) * 1e9)

    def wait(self, seconds):
        self.now_s += seconds
        return False

    def read(self, deadline_s):
        if self.tick == self.ticks:
            return None
        self.read_at.append(round(self.now_s - 1000.0, 6))
        stamp = self.wall_ns()
        self.now_s += self.read_s(self.tick)
        self.tick += 1
        ticks = tuple(GpuTicks(g, np.array([stamp]), np.zeros((1, 1))) for g in (0, 1))
        return Reading(ticks, more=self.more(self.tick), shift_s=self.shift_s.get(self.tick - 1, 0.0))

    def progress(self):
        return None

    def has_room(self):
        return self.room()

    def put(self, reading):
        if not self.accept():
            return False
        self.delivered.append(reading)
        return True

    @property
    def events(self):
        return [event for reading in self.delivered for event in reading.events]


def test_deadlines_do_not_drift_however_long_a_reading_takes():
    world = World(read_s=lambda tick: 0.03)
    assert world.sampler.run()
    assert world.read_at == [round(i * INTERVAL_S, 6) for i in range(50)]
    assert world.counters.missed_ticks == 0
    assert world.counters.ticks == 100
    assert world.counters.read_s_max == pytest.approx(0.03)


def test_a_source_that_wants_to_be_read_later_or_earlier_moves_the_deadlines():
    world = World(ticks=6)
    world.shift_s = {1: 0.04, 4: -0.05}
    world.sampler.run()
    assert world.read_at == [0.0, 0.1, 0.24, 0.34, 0.44, 0.49]
    assert world.counters.missed_ticks == 0
    assert world.counters.lateness_s_max == pytest.approx(0.0)


def test_a_long_reading_costs_the_deadlines_it_covered_and_they_are_counted():
    world = World(read_s=lambda tick: 0.47 if tick == 5 else 0.0, ticks=10)
    world.sampler.run()
    # 0.5 + 0.47 = 0.97: the deadlines 0.6 to 0.9 are gone, 1.0 is kept.
    assert world.read_at == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 1.0, 1.1, 1.2, 1.3]
    assert world.counters.missed_ticks == 4
    assert [r.missed_ticks for r in world.delivered] == [0, 0, 0, 0, 0, 0, 4, 0, 0, 0]


def test_a_reading_late_by_less_than_half_an_interval_is_taken():
    world = World(read_s=lambda tick: 0.14 if tick == 1 else 0.0, ticks=4)
    world.sampler.run()
    assert world.read_at == [0.0, 0.1, 0.24, 0.3]
    assert world.counters.missed_ticks == 0
    assert world.counters.lateness_s_max == pytest.approx(0.04)


@pytest.mark.parametrize("step_s", [3600.0, -3600.0, 0.25, -0.25])
def test_a_step_of_the_wall_clock_is_one_event_per_gpu_with_its_size(step_s):
    world = World(ticks=20)
    steps = {10: step_s}

    def read_s(tick):
        world.wall_offset_s += steps.pop(tick, 0.0)
        return 0.001

    world.read_s = read_s
    world.sampler.run()
    assert [(e.gpu, e.kind) for e in world.events] == [(0, GpuEventKind.CLOCK_STEP), (1, GpuEventKind.CLOCK_STEP)]
    assert world.events[0].value == pytest.approx(step_s * 1e6, abs=2)
    assert len(world.read_at) == 20
    assert world.counters.missed_ticks == 0


def test_slewing_is_no_step():
    world = World(ticks=1000)

    def read_s(tick):
        world.wall_offset_s += 500e-6 * INTERVAL_S
        return 0.001

    world.read_s = read_s
    world.sampler.run()
    assert world.events == []


def test_a_machine_that_slept_is_a_step_forward_and_no_missed_tick():
    world = World(ticks=20)

    def read_s(tick):
        world.wall_offset_s += 8 * 3600 if tick == 10 else 0
        return 0.001

    world.read_s = read_s
    world.sampler.run()
    assert world.events[0].value == pytest.approx(8 * 3600e6, abs=2)
    assert world.counters.missed_ticks == 0


def test_readings_that_find_no_place_count_as_missed_and_are_told_with_the_next():
    world = World(ticks=10)
    world.accept = lambda: not 3 < world.tick <= 6
    world.sampler.run()
    assert world.counters.missed_ticks == 3
    assert [r.missed_ticks for r in world.delivered] == [0, 0, 0, 3, 0, 0, 0]
    assert world.counters.ticks == 14


def test_a_recorded_trace_waits_for_room_and_hardware_does_not():
    for can_wait in (True, False):
        world = World(ticks=10, can_wait=can_wait)
        world.room = lambda world=world: world.now_s > 1002.0
        world.sampler.run()
        assert (world.read_at[0] >= 2.0) is can_wait
        assert world.counters.missed_ticks == 0
        assert world.counters.ticks == 20


def test_what_is_already_due_is_read_without_waiting():
    world = World(ticks=10, more=lambda tick: tick < 5, can_wait=True)
    world.sampler.run()
    assert world.read_at[:6] == [0.0] * 5 + [0.1]


def test_stop_ends_the_run_after_the_reading_in_progress():
    world = World(ticks=10)
    world.accept = lambda: world.sampler.stop() or True
    assert world.sampler.run() is False
    assert len(world.delivered) == 1


def test_a_source_that_fails_as_a_whole_ends_the_run():
    world = World()

    def fail(deadline_s):
        raise SourceError("gone")

    world.read = fail
    with pytest.raises(SourceError):
        world.sampler.run()


def test_stop_interrupts_the_wait_for_the_next_deadline():
    world = World()
    sampler = Sampler(world, world.inventory, 3600.0, world, world.counters)
    thread = threading.Thread(target=sampler.run)
    thread.start()
    while not world.delivered:
        pass
    sampler.stop()
    thread.join(timeout=200)
    assert not thread.is_alive()


def test_a_clock_step_is_told_of_gpus_that_came_later_too():
    grown = SourceInventory("simulated", tuple(GpuDescription(n) for n in "abc"), (metric("sm_active"),), INTERVAL_S)

    class Growing(World):
        def read(self, deadline_s):
            reading = super().read(deadline_s)
            if self.tick == 20:
                self.wall_offset_s += 3600.0
            if reading is None:
                return None
            return Reading(reading.ticks, inventory=grown if self.tick == 10 else None)

    world = Growing()
    world.sampler.run()
    assert [event.gpu for event in world.events] == [0, 1, 2]
    assert [r.inventory for r in world.delivered if r.inventory] == [grown]


def test_a_replay_at_full_speed_is_alive_all_the_time():
    now_s, looks = [0.0], []
    heart = Heartbeat("the sampler", 1.0, clock=lambda: now_s[0])

    class Endless:
        statistics = SourceStatistics()

        def read(self, deadline_s):
            looks.append(heart.check())
            now_s[0] += 0.9
            if len(looks) == 20:
                return None
            return Reading(more=True)

        def progress(self):
            return None

    class Sink:
        def has_room(self):
            return True

        def put(self, reading):
            return True

    inventory = SourceInventory("replay", (GpuDescription("a"),), (), 0.1, can_wait=True)
    assert Sampler(Endless(), inventory, 0.1, Sink(), SelfCounters(), heartbeat=heart).run()
    assert looks == [None] * 20


def test_what_brings_no_tick_is_no_reading_to_the_pace():
    spent = []

    class Judge:
        interval_s, look_due_s = INTERVAL_S, 0.0

        def see(self, reading, now_s):
            return

        def spend(self, now_s, processor_s, elapsed_s, deadlines):
            spent.append(elapsed_s)

    world = World(read_s=lambda tick: 4.0 if tick == 5 else 0.001, ticks=10)
    read = world.read

    def read_nothing_once(deadline_s):
        reading = read(deadline_s)
        return dataclasses.replace(reading, ticks=()) if world.now_s - deadline_s > 1.0 else reading

    world.read = read_nothing_once
    Sampler(
        world, world.inventory, Judge(), world, world.counters, clocks=Clocks(lambda: world.now_s, world.wall_ns),
        wait=world.wait,
    ).run()  # fmt: skip
    assert len(spent) > 1
    assert max(spent) < 0.01


class Looking(World):
    """A source that looks by itself at the deadlines that are left to it, but for those that it misses."""

    def __init__(self, most=4, misses=(), **options):
        super().__init__(**options)
        self.most, self.misses = most, misses
        self.offered, self.planned = [], []
        self.sampler = Sampler(
            self, self.inventory, INTERVAL_S, self, self.counters,
            clocks=Clocks(lambda: self.now_s, self.wall_ns), wait=self.wait, ahead_s=lambda: 1.0,
        )  # fmt: skip

    def look_ahead(self, next_s, interval_s, until_s):
        self.offered.append(round(until_s - next_s, 6))
        self.planned = [next_s + number * interval_s for number in range(self.most)]
        return self.most

    def read(self, deadline_s):
        planned, self.planned = self.planned, []
        # As far as they were due, a millisecond late each.
        due = [at_s for at_s in planned if at_s <= self.now_s and round(at_s - 1000.0, 6) not in self.misses]
        if due:
            walls = [round((at_s + self.offset_s(at_s)) * 1e9) for at_s in due]
            looks = [OwnLook(at_s, at_s + 0.001, at_s + 0.003, wall) for at_s, wall in zip(due, walls, strict=True)]
            ticks = tuple(GpuTicks(g, np.array(walls), np.zeros((1, len(walls)))) for g in (0, 1))
            return Reading(ticks, more=True, looks=looks)
        reading = super().read(deadline_s)
        if reading is not None:
            reading.look_ahead = self.look_ahead
        return reading

    def offset_s(self, at_s):
        return self.wall_offset_s + 0.003


def test_deadlines_left_to_the_source_are_not_woken_up_for_and_count_like_others():
    world = Looking(ticks=3)
    world.sampler.run()
    assert world.read_at == [0.0, 0.5, 1.0]
    assert world.offered == [0.9, 0.9, 0.9]
    assert [len(reading.looks) for reading in world.delivered] == [0, 4, 0, 4, 0, 4]
    assert world.counters.ticks == 2 * (3 + 12)
    assert world.counters.deadlines == 3 + 12
    assert world.counters.lateness_s_max == pytest.approx(0.001)
    assert world.counters.read_s_max == pytest.approx(0.002)
    assert world.counters.missed_ticks == 0


def test_looks_that_a_source_missed_are_missed_ticks():
    world = Looking(ticks=3, misses=(0.2, 0.3))
    world.sampler.run()
    assert world.counters.missed_ticks == 2
    assert [reading.missed_ticks for reading in world.delivered] == [0, 0, 0, 2, 0, 0]


def test_what_a_source_saw_before_a_stop_is_taken():
    world = Looking(ticks=9)

    def stop_early(seconds):
        world.now_s += min(seconds, 0.25)
        world.sampler.stop()
        return True

    world.wait, world.sampler._wait = stop_early, stop_early
    assert not world.sampler.run()
    assert [len(reading.looks) for reading in world.delivered] == [0, 2, 0]
    assert world.counters.missed_ticks == 0


def test_a_step_of_the_clock_between_two_looks_precedes_the_ticks_that_carry_it():
    world = Looking(ticks=3)
    # From 0.55 on: known first by the looks at 0.6 and later.
    world.offset_s = lambda at_s: world.wall_offset_s + 0.003 + (60.0 if at_s > 1000.55 else 0.0)
    world.wall_ns = lambda: round((world.now_s + world.wall_offset_s + (60.0 if world.now_s > 1000.55 else 0.0)) * 1e9)
    world.sampler._wall_ns = world.wall_ns
    world.sampler.run()
    stepped = [number for number, reading in enumerate(world.delivered) if reading.events]
    assert stepped == [3]
    assert [event.kind for event in world.events] == [GpuEventKind.CLOCK_STEP] * 2
    assert world.events[0].value == pytest.approx(60e6, abs=1e4)


def test_without_leave_the_source_is_read_at_every_deadline():
    world = Looking(ticks=3)
    world.sampler = Sampler(
        world, world.inventory, INTERVAL_S, world, world.counters,
        clocks=Clocks(lambda: world.now_s, world.wall_ns), wait=world.wait,
    )  # fmt: skip
    world.look_ahead = lambda next_s, interval_s, until_s: 0 if until_s <= next_s else pytest.fail("looked ahead")
    world.sampler.run()
    assert world.read_at == [0.0, 0.1, 0.2]
