"""Epochs of runs: the same as offline, however the ticks arrive and however often the collector starts."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import numpy as np
import pytest
from support.trace_records import incoming, trace_records
from support.wire_agent import wait_until

from gpusonde.collector.config import RunsConfig
from gpusonde.collector.storage.local.results import LocalResults
from gpusonde.collector.tracking.follower import GpuFollower
from gpusonde.epoch_detect import EpochTracker, detect, tracker
from gpusonde.errors import ChildLostError, StoreError, StoreFullError

START_NS = 1_700_000_000_000_000_000


def kept_epochs(setup, run):
    return [epoch for epoch in setup.results.epochs(run.run_id) if epoch.status != "withdrawn"]


def assert_same_as_offline(setup, trace):
    offline = detect(trace)
    (run,) = setup.runs()
    assert run.ended
    assert run.verdict == offline.verdict == "epochs"
    assert run.reason == offline.reason
    assert (run.period_s, run.period_low_s, run.period_high_s) == pytest.approx(
        (offline.period_s, offline.period_low_s, offline.period_high_s), abs=1e-9
    )
    epochs = kept_epochs(setup, run)
    origin = START_NS + round(trace.time_s[0] * 1e6) * 1000
    starts = [(epoch.start_unix_nano - origin) / 1e9 for epoch in epochs]
    ends = [(epoch.end_unix_nano - origin) / 1e9 for epoch in epochs]
    assert starts == pytest.approx((offline.epoch_starts_s - trace.time_s[0]).tolist(), abs=1e-6)
    assert ends == pytest.approx((offline.epoch_ends_s - trace.time_s[0]).tolist(), abs=1e-6)
    assert run.epoch_count == len(epochs)
    assert {epoch.status for epoch in epochs} == {"confirmed"}


@pytest.mark.parametrize("group", [7, 1000])
def test_the_epochs_of_a_run_are_those_of_the_trace(setup, trace, records, group):
    subject = setup()
    subject.feed(records, group)
    assert_same_as_offline(subject, trace)


@pytest.fixture
def second_look_after_72_s(monkeypatch):
    """When the run of these tests has four epochs."""
    monkeypatch.setattr(tracker, "_FIRST_ANALYSIS_S", 30.0)


@pytest.mark.usefixtures("second_look_after_72_s")
def test_epochs_of_a_young_run_are_there_and_provisional(setup, records):
    subject = setup()
    subject.feed(records[:105], 10)
    (run,) = subject.runs()
    assert not run.ended
    assert (run.verdict, run.epoch_count) == ("none", 0)
    assert {epoch.status for epoch in kept_epochs(subject, run)} == {"provisional"}


@pytest.mark.parametrize("stops", [(60,), (3, 50, 90)])
@pytest.mark.parametrize("flushed", [False, True], ids=["from the log", "from segments"])
def test_a_restart_in_the_middle_of_a_run_changes_nothing(setup, trace, records, stops, flushed):
    subject = setup()
    first = 0
    for stop in stops:
        subject.feed(records[first:stop], 20)
        if flushed:
            subject.store.flush()
        subject.restart()
        first = stop
    subject.feed(records[first:], 20)
    assert_same_as_offline(subject, trace)


def test_records_that_came_while_tracking_was_away_are_caught_up_with(setup, trace, records):
    subject = setup()
    subject.store.samples.append(records)
    subject.store.flush()
    subject.restart()
    subject.pipeline.round()
    assert_same_as_offline(subject, trace)


class SlowClock:
    """Goes on at every look."""

    def __init__(self, step_s=1.0):
        self.now, self.step_s = 0.0, step_s

    def __call__(self):
        self.now += self.step_s
        return self.now


@pytest.mark.parametrize("within_s", [0.0, 2.0, 5.0])
def test_tracking_that_is_cut_short_goes_on_at_the_next_start(setup, trace, records, within_s):
    subject = setup()
    for i in range(0, len(records), 10):
        subject.store.samples.append(records[i : i + 10])
        if i % 100 == 0:
            subject.store.flush()
    subject.pipeline._clock = SlowClock()
    subject.pipeline.set_deadline(within_s)
    subject.pipeline.finish()
    assert not any(run.ended for run in subject.runs())
    subject.restart()
    subject.pipeline.round()
    assert_same_as_offline(subject, trace)


class CountingTracker(EpochTracker):
    """Notes how it is asked."""

    thorough: ClassVar[list] = []

    def update(self, time_s, values, *, exhaustive=True):
        self.thorough.append(exhaustive)
        return super().update(time_s, values, exhaustive=exhaustive)


def test_after_a_long_round_runs_are_looked_at_once_until_a_round_is_short_again(setup, records, trace):
    CountingTracker.thorough.clear()
    subject = setup(make_tracker=CountingTracker)
    subject.feed(records[:50], 10)
    assert all(CountingTracker.thorough)
    subject.pipeline._clock = SlowClock(3.0)
    subject.feed(records[50:60], 10)  # a round of many seconds
    subject.pipeline._clock = lambda: subject.now
    CountingTracker.thorough.clear()
    subject.feed(records[60:90], 30)
    assert not any(CountingTracker.thorough)
    CountingTracker.thorough.clear()
    subject.feed(records[90:], 10)
    assert all(CountingTracker.thorough)
    assert_same_as_offline(subject, trace)


class LateTracker(EpochTracker):
    """Answers like a tracker in another process: what ticks have led to is told at a later call."""

    def __init__(self, metrics):
        super().__init__(metrics)
        self._told = None
        self._under_way = []

    @property
    def detection(self):
        return self._told

    def update(self, time_s, values, *, exhaustive=True):
        events, self._under_way = self._under_way, super().update(time_s, values, exhaustive=exhaustive)
        self._told = super().detection if not len(time_s) else self._told
        return events


@pytest.mark.usefixtures("second_look_after_72_s")
def test_what_another_process_has_found_is_stored_before_the_next_ticks_come(setup, records):
    subject = setup(make_tracker=LateTracker)
    subject.pipeline._clock = SlowClock(3.0)
    subject.feed(records[:105], 105)
    (run,) = subject.runs()
    assert len(kept_epochs(subject, run)) >= 3


class FailingTracker:
    def __init__(self, metrics):
        raise MemoryError("no tracker for you")


def test_a_tracker_that_fails_costs_its_run_the_epochs_and_nothing_else(setup, records):
    subject = setup(make_tracker=FailingTracker)
    subject.feed(records, 20)
    (run,) = subject.runs()
    assert run.ended
    assert run.tick_count > 800
    assert run.verdict == "none"
    assert "no tracker for you" in run.reason


class FailingResults(LocalResults):
    failing = False

    def save(self, updates, resumes):
        if self.failing:
            raise StoreFullError("no room")
        super().save(updates, resumes)


def test_results_that_do_not_fit_are_stored_when_there_is_room(setup, trace, records):
    subject = setup(results=FailingResults)
    subject.results.failing = True
    subject.feed(records, 10)
    assert subject.runs() == []
    subject.results.failing = False
    subject.pipeline.round()
    assert_same_as_offline(subject, trace)


def test_what_could_not_be_read_is_read_though_no_more_records_come(setup, trace, records):
    subject = setup()
    subject.feed(records[:100], 10)
    subject.restart()
    metrics = subject.store.facts.metrics

    def fail(_):
        raise StoreError("the database is away")

    subject.store.facts.metrics = fail
    subject.feed(records[100:], 1000)
    subject.pipeline.round()
    assert not subject.runs()[0].ended
    subject.store.facts.metrics = metrics
    subject.now += 5.0
    subject.pipeline.round()
    assert_same_as_offline(subject, trace)


def test_the_look_at_a_run_that_falls_silent_is_finished(setup, records):
    subject = setup()
    under_way = next(n for n in range(20, 60) if _is_looking(subject, records, n))
    assert subject.runs()[0].verdict == ""
    subject.now += 3.0
    subject.pipeline.round()
    assert subject.runs()[0].verdict == ""
    subject.now += 3.0
    subject.pipeline.round()
    (run,) = subject.runs()
    assert (run.verdict, run.ended) == ("none", False)
    subject.feed(records[under_way:], 10)
    assert subject.runs()[0].ended


def _is_looking(subject, records, n):
    """Feed one more record; return whether a look at the run goes on after it."""
    subject.feed(records[n - 1 : n] if n > 20 else records[:n], 100)
    (follower,) = subject.pipeline._followers.values()
    return follower._epochs is not None and follower._epochs._tracker._running is not None


def test_a_run_whose_agent_is_silent_for_a_day_is_over(setup, records):
    subject = setup()
    subject.feed(records[:100], 10)
    subject.now += 86_000
    subject.pipeline.round()
    assert not subject.runs()[0].ended
    subject.now += 400
    subject.pipeline.round()
    (run,) = subject.runs()
    assert run.ended
    assert run.end_reason == "no records for 86400 s"
    subject.restart()
    subject.pipeline.round()
    assert [run.ended for run in subject.runs()] == [True]


def test_a_tracker_process_that_dies_over_a_silent_run_costs_another_day_and_nothing_else(setup, records, caplog):
    class DiesOnce(EpochTracker):
        died = False

        def finish(self):
            if not DiesOnce.died:
                DiesOnce.died = True
                raise ChildLostError("the process that answered died")
            return super().finish()

    subject = setup(make_tracker=DiesOnce)
    subject.feed(records[:100], 10)
    subject.now += 86_500
    subject.pipeline.round()
    assert "cannot be tracked now: the process that answered died" in caplog.text
    assert not subject.runs()[0].ended
    subject.pipeline.round()
    subject.now += 86_500
    subject.pipeline.round()
    (run,) = subject.runs()
    assert run.end_reason == "no records for 86400 s"


def test_one_gpu_with_a_fault_in_its_tracking_leaves_the_others_alone(setup, records, trace):
    def make_follower(agent, gpu, resume, state):
        if gpu == "GPU-bad":
            raise RuntimeError("a fault of ours")
        return GpuFollower(agent, gpu, subject.store, RunsConfig(), subject.jobs, resume, state)

    subject = setup()
    subject.pipeline._make_follower = make_follower
    bad = incoming(trace_records(trace, gpu_uuid="GPU-bad"), agent_id="agent-2")
    subject.store.samples.append(bad)
    subject.feed(records, 100)
    assert_same_as_offline(subject, trace)


def test_two_agents_that_see_the_same_gpu_have_runs_of_their_own(setup, records, trace):
    subject = setup()
    other = incoming(trace_records(trace, start_ns=START_NS + 50_000_000), agent_id="agent-2")
    for one, two in zip(records, other, strict=True):
        subject.store.samples.append([one, two])
    subject.pipeline.round()
    assert [run.agent_id for run in subject.runs()] == ["agent-2", "agent-1"]
    assert {run.epoch_count for run in subject.runs()} == {len(detect(trace).epoch_starts_s)}


def test_the_running_pipeline_follows_what_becomes_durable_and_stops_cleanly(setup, records, trace):
    subject = setup()
    with ThreadPoolExecutor(1) as executor:
        subject.pipeline._executor = executor
        subject.pipeline.configure(RunsConfig(track_interval_s=0.01))

        async def scene():
            task = asyncio.ensure_future(subject.pipeline.run())
            feeder = threading.Thread(target=lambda: [subject.store.samples.append([record]) for record in records])
            feeder.start()
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(
                None, lambda: wait_until(lambda: subject.runs() and subject.runs()[0].ended, what="end of the run")
            )
            task.cancel()
            await asyncio.wait([task])
            feeder.join()

        asyncio.run(scene())
    assert_same_as_offline(subject, trace)
    assert np.isfinite(subject.runs()[0].period_s)
