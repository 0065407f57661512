"""The pace of sampling on a simulated clock: slower while nothing works or reading is dear, and quickly back."""

import dataclasses
import itertools
import logging

import numpy as np
import pytest

from gpusonde.agent.config import SourceConfig
from gpusonde.agent.metrics import SelfCounters
from gpusonde.agent.pace import AdaptivePace
from gpusonde.agent.sampler import Sampler
from gpusonde.agent.sources.base import (
    Clocks,
    GpuDescription,
    GpuTicks,
    Reading,
    SourceInventory,
    SourceStatistics,
)
from gpusonde.telemetry import metric

METRICS = tuple(metric(name) for name in ("sm_active", "encoder_utilization", "power_watts", "framebuffer_used_bytes"))


class Host:
    """Two GPUs on a clock that moves only when something takes time.

    ``activity(gpu, second)``, ``memory(gpu, second)`` say what the GPUs do; a reading costs ``processor_s`` of
    processor time and ``elapsed_s`` of time at that second.
    """

    name = "simulated"

    def __init__(
        self, seconds, *, interval_s=0.1, idle_interval_s=1.0, idle_after_s=20.0, read_budget=0.25, rate="fixed"
    ):
        self.statistics = SourceStatistics()
        self.now_s, self.processor_now_s, self.end_s = 0.0, 0.0, seconds
        self.activity = lambda gpu, second: 0.9
        self.memory = lambda gpu, second: 1e9
        self.processor_s = lambda second: 0.001
        self.elapsed_s = lambda second: 0.002
        self.read_at = []
        self.missed = []
        self.inventory = SourceInventory("simulated", (GpuDescription("a"), GpuDescription("b")), METRICS, interval_s)
        self.counters = SelfCounters()
        settings = SourceConfig(
            interval_s=interval_s,
            rate=rate,
            idle_interval_s=idle_interval_s,
            idle_after_s=idle_after_s,
            read_budget=read_budget,
        )
        self.pace = AdaptivePace(settings, METRICS, 2, self.counters)

    def run(self):
        clocks = Clocks(lambda: self.now_s, lambda: round(self.now_s * 1e9), lambda: self.processor_now_s)
        Sampler(self, self.inventory, self.pace, self, self.counters, clocks=clocks, wait=self.wait).run()
        return self

    def wait(self, seconds):
        self.now_s += seconds
        return False

    def read(self, deadline_s):
        if self.now_s >= self.end_s:
            return None
        second = self.now_s
        self.read_at.append(second)
        self.now_s += self.elapsed_s(second)
        self.processor_now_s += self.processor_s(second)
        ticks = []
        for gpu in (0, 1):
            activity = self.activity(gpu, second)
            if activity is not None:
                values = np.array([[activity], [0.5], [70.0], [self.memory(gpu, second)]])
                ticks.append(GpuTicks(gpu, np.array([round(second * 1e9)]), values))
        return Reading(tuple(ticks))

    def progress(self):
        return None

    def has_room(self):
        return True

    def put(self, reading):
        self.missed.append(reading.missed_ticks)
        return True

    def intervals(self, begin_s, end_s):
        """Distances of the readings in a span of time."""
        times = np.array(self.read_at)
        return np.diff(times[(times >= begin_s) & (times <= end_s)])


def test_a_working_host_is_read_at_full_rate():
    host = Host(100.0).run()
    assert len(host.read_at) == 1000
    assert host.counters.slowdowns == {}
    assert host.counters.sampling_interval_s == 0.1


def test_an_idle_host_is_read_slowly_and_no_tick_of_it_counts_as_missed(caplog):
    caplog.set_level(logging.INFO)
    host = Host(100.0)
    host.activity = lambda gpu, second: 0.9 if second < 30 else 0.0
    host.run()
    np.testing.assert_allclose(host.intervals(0, 49.9), 0.1, atol=1e-6)
    np.testing.assert_allclose(host.intervals(50.1, 100), 1.0, atol=1e-6)
    assert host.counters.missed_ticks == 0
    assert host.counters.slowdowns == {"idle": 1}
    assert host.counters.sampling_interval_s == 1.0
    assert "no GPU has worked for 20 s: sampling every 1 s until one does" in caplog.text


@pytest.mark.parametrize("at_s", [60.0, 60.001, 60.3, 60.5, 60.98])
def test_the_first_work_of_any_gpu_brings_the_full_rate_back_within_a_second(at_s):
    host = Host(100.0)
    host.activity = lambda gpu, second: 0.9 if gpu == 1 and second >= at_s else 0.0
    host.run()
    assert host.intervals(40, 59.9) == pytest.approx(1.0)
    first = next(t for t in host.read_at if t >= at_s)
    assert first <= at_s + 1.0
    np.testing.assert_allclose(host.intervals(first, 80), 0.1, atol=1e-6)
    assert host.counters.missed_ticks == 0


def test_memory_that_a_job_takes_wakes_the_agent_before_its_first_kernel():
    host = Host(100.0)
    host.activity = lambda gpu, second: 0.9 if second >= 65 else 0.0
    host.memory = lambda gpu, second: 1e9 + (400e6 if second >= 61.5 else 0.0)
    host.run()
    np.testing.assert_allclose(host.intervals(62, 80), 0.1, atol=1e-6)


@pytest.mark.parametrize("unknown", [np.nan, None])
def test_a_gpu_of_which_nothing_is_known_is_not_idle_and_one_that_is_lost_is(unknown):
    host = Host(60.0)
    host.activity = lambda gpu, second: unknown if gpu == 0 else 0.0
    host.run()
    assert bool(host.counters.slowdowns) is (unknown is None)


def test_a_changed_inventory_is_read_with_its_own_columns():
    host = Host(100.0)
    host.activity = lambda gpu, second: 0.9 if second >= 60 else 0.0
    all_columns = host.read
    fewer = SourceInventory("simulated", (GpuDescription("a"),), (METRICS[2], METRICS[3], METRICS[0]), 0.1)
    told = []

    def read(deadline_s):
        begins = host.now_s >= 50
        reading = all_columns(deadline_s)
        if not begins or reading is None:
            return reading
        told.append(begins)
        ticks = (GpuTicks(0, reading.ticks[0].time_unix_nano, reading.ticks[0].values[[2, 3, 0]]),)
        return Reading(ticks, inventory=fewer if len(told) == 1 else None)

    host.read = read
    host.run()
    assert host.intervals(30, 50) == pytest.approx(1.0)
    assert host.intervals(62, 80) == pytest.approx(0.1)


def test_video_engines_and_memory_that_only_flickers_are_no_work():
    host = Host(60.0)
    host.activity = lambda gpu, second: 0.004
    host.memory = lambda gpu, second: 1e9 + 2e6 * (round(second * 10) % 2)
    assert host.run().counters.slowdowns == {"idle": 1}


def test_an_idle_interval_that_is_not_longer_means_full_rate_always():
    host = Host(60.0, idle_interval_s=0.1)
    host.activity = lambda gpu, second: 0.0
    host.run()
    assert host.counters.slowdowns == {}
    assert len(host.read_at) == 600


def test_readings_beyond_their_budget_become_rarer_in_steps_and_the_log_says_so(caplog):
    host = Host(60.0)
    host.processor_s = host.elapsed_s = lambda second: 0.06
    host.run()
    # 60 ms of 100 ms, then of 200 ms, then of 500 ms: 12 % is within the budget.
    assert host.intervals(0, 4.9) == pytest.approx(0.1)
    assert host.intervals(5.2, 10) == pytest.approx(0.2)
    assert host.intervals(11, 60) == pytest.approx(0.5)
    assert host.counters.slowdowns == {"read_budget": 2}
    assert host.counters.missed_ticks == 0
    assert caplog.text.count("a reading takes 60 ms, 60 ms of them on a core (source.read_budget 0.25)") == 2


def test_what_the_readings_of_one_deadline_cost_counts_together():
    host = Host(60.0)
    host.processor_s = host.elapsed_s = lambda second: 0.015
    one, parts = host.read, itertools.count(1)

    def read(deadline_s):
        reading = one(deadline_s)
        return reading and dataclasses.replace(reading, more=next(parts) % 3 != 0)

    host.read = read
    host.run()
    # Three readings of 15 ms each: 45 ms of 100 ms are too much, of 200 ms they are not.
    assert host.counters.slowdowns == {"read_budget": 1}
    assert host.counters.sampling_interval_s == pytest.approx(0.2)


def test_a_driver_that_only_blocks_is_read_as_often_as_it_can_be():
    host = Host(60.0)
    host.processor_s, host.elapsed_s = lambda second: 0.002, lambda second: 0.15
    host.run()
    assert host.intervals(20, 60) == pytest.approx(0.2)
    # At 100 ms each reading took the next deadline with it; those were missed, and are counted.
    assert 0 < host.counters.missed_ticks < 60
    assert sum(host.missed) == host.counters.missed_ticks


def test_one_slow_reading_or_a_slow_first_one_changes_nothing():
    host = Host(60.0)
    host.processor_s = host.elapsed_s = lambda second: 0.5 if second < 0.05 or 30 <= second < 30.05 else 0.002
    assert host.run().counters.slowdowns == {}
    assert host.counters.missed_ticks > 0


def test_the_full_rate_comes_back_when_reading_is_cheap_again_and_does_not_swing():
    host = Host(400.0)
    host.processor_s = host.elapsed_s = lambda second: 0.06 if second < 60 else 0.002
    host.run()
    assert host.intervals(200, 400) == pytest.approx(0.1)
    # Just affordable at 200 ms, not at 100 ms: it stays where it is.
    border = Host(600.0)
    border.processor_s = border.elapsed_s = lambda second: 0.03 if second < 20 else 0.022
    border.run()
    assert border.counters.slowdowns == {"read_budget": 1}
    assert border.intervals(30, 600) == pytest.approx(0.2)


def test_the_slowest_step_is_ten_times_the_interval():
    host = Host(120.0)
    host.processor_s = host.elapsed_s = lambda second: 0.9
    host.run()
    assert host.intervals(60, 120) == pytest.approx(1.0)


def test_an_idle_host_whose_readings_are_dear_is_read_at_the_slower_of_both():
    host = Host(200.0, idle_interval_s=0.4)
    host.activity = lambda gpu, second: 0.0
    host.processor_s = host.elapsed_s = lambda second: 0.2
    host.run()
    assert host.intervals(60, 200) == pytest.approx(1.0)


def test_what_is_allowed_can_change_while_ticks_are_taken():
    host = Host(30.0)
    tenth, second = (
        SourceConfig(interval_s=0.1, idle_interval_s=1.0, idle_after_s=20.0, read_budget=0.25),
        SourceConfig(interval_s=1.0, idle_interval_s=1.0, idle_after_s=20.0, read_budget=0.25),
    )

    def activity(gpu, moment):
        host.pace.configure(second if 10.0 <= moment < 20.0 else tenth)
        return 0.9

    host.activity = activity
    host.run()
    between = np.diff(host.read_at)
    # A reading at 10.0 s is the first that is followed by a long interval, one at 20 s the last.
    assert (between > 0.5).sum() == pytest.approx(10, abs=1)
    assert host.missed == [0] * len(host.missed)
    assert host.counters.missed_ticks == 0


def job(second, period_s=60.0):
    return 0.9 if second % period_s < 0.8 * period_s else 0.4


def test_the_adaptive_rate_reads_a_known_job_rarely_and_no_tick_of_it_counts_as_missed():
    host = Host(600.0, rate="adaptive")
    host.activity = lambda gpu, second: job(second)
    host.run()
    np.testing.assert_allclose(host.intervals(0, 9.9), 0.1, atol=1e-6)
    assert host.intervals(400, 600) == pytest.approx(2.8)
    assert host.counters.missed_ticks == 0
    assert host.counters.sampling_interval_s == pytest.approx(2.8)


def test_the_gpu_that_needs_readings_most_often_sets_the_adaptive_rate_and_a_lost_one_has_no_say():
    host = Host(600.0, rate="adaptive")
    host.activity = lambda gpu, second: job(second) if gpu == 0 else job(second, 6.0) if second < 300 else None
    host.run()
    assert host.intervals(200, 300) == pytest.approx(0.5)
    assert host.intervals(400, 600) == pytest.approx(2.8)


def test_a_job_that_begins_on_an_idle_host_is_read_at_full_rate_whatever_ran_before():
    host = Host(900.0, rate="adaptive")
    host.activity = lambda gpu, second: job(second) if second < 500 or second >= 700 else 0.0
    host.run()
    assert host.intervals(600, 699) == pytest.approx(1.0)
    np.testing.assert_allclose(host.intervals(701.3, 706), 0.1, atol=1e-6)
