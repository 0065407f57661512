"""Where runs begin and end, and that the same records always give the same runs."""

import dataclasses
import json
import random

import pytest
from support.gpu_story import seconds, story

from gpusonde.collector.config import RunsConfig
from gpusonde.collector.storage.model import Position
from gpusonde.collector.tracking.run_state import RunTrackerState
from gpusonde.collector.tracking.runs import RunEnded, RunStarted, RunTicks, RunTracker
from gpusonde.service.wire import Binding

GIB = float(1 << 30)


def tracker(**more):
    return RunTracker("agent-1", "GPU-a", RunsConfig(), **more)


def runs_of(samples, chunk=10, subject=None):
    """Feed samples in chunks; return (start, end, reason) in seconds of the story, the open run with reason ''."""
    subject = subject or tracker()
    found = []
    for i in range(0, len(samples), chunk):
        for event in subject.ticks(samples.take(slice(i, i + chunk))):
            if isinstance(event, RunEnded):
                run = event.run
                found.append((seconds(run.start_unix_nano), seconds(run.end_unix_nano), run.end_reason))
    if subject.run:
        found.append((seconds(subject.run.start_unix_nano), seconds(subject.run.end_unix_nano), ""))
    return found


def test_a_run_lasts_from_first_to_last_activity():
    samples = story(("idle", 20), ("busy", 60), ("idle", 400))
    assert runs_of(samples) == [(20.0, 79.9, "idle for 300 s")]


def test_a_stall_of_two_minutes_does_not_end_a_run():
    samples = story(("busy", 60), ("idle", 120), ("busy", 60), ("idle", 301))
    assert runs_of(samples) == [(0.0, 239.9, "idle for 300 s")]


def test_a_blip_is_no_run():
    assert runs_of(story(("idle", 20), ("busy", 0.5), ("idle", 60), ("busy", 0.5), ("idle", 60))) == []


def test_activity_in_short_pieces_adds_up_to_a_run_that_begins_with_the_first():
    pieces = [("busy", 0.4), ("idle", 0.6)] * 10
    assert runs_of(story(("idle", 20), *pieces))[0][0] == 20.0


def test_a_job_that_holds_its_memory_gets_more_time():
    memory = {"idle": 8 * GIB, "busy": 8 * GIB}
    samples = story(("busy", 60), ("idle", 1000), ("busy", 60), memory=memory)
    assert runs_of(samples) == [(0.0, 1119.9, "")]
    endless = story(("busy", 60), ("idle", 2000), memory=memory)
    assert runs_of(endless) == [(0.0, 59.9, "idle for 1800 s while holding device memory")]


def test_memory_that_was_in_use_before_the_job_does_not_hold_its_run():
    samples = story(("idle", 20), ("busy", 60), ("idle", 400), memory={"idle": 2 * GIB, "busy": 8 * GIB})
    assert runs_of(samples) == [(20.0, 79.9, "idle for 300 s")]


def test_time_without_ticks_ends_a_run_only_when_it_is_long():
    assert runs_of(story(("busy", 60), ("gap", 500), ("busy", 60))) == [(0.0, 619.9, "")]
    found = runs_of(story(("busy", 60), ("gap", 700), ("busy", 60)))
    assert found == [(0.0, 59.9, "no ticks for 700 s"), (760.0, 819.9, "")]


def test_a_clock_set_back_ends_the_run_and_begins_another():
    found = runs_of(story(("busy", 60), ("back", 3600), ("busy", 60)))
    assert found == [(0.0, 59.9, "the host's clock was set back by 3599.9 s"), (-3540.0, -3480.1, "")]


def test_a_small_step_back_is_not_the_end():
    assert runs_of(story(("busy", 60), ("back", 1), ("busy", 60))) == [(0.0, 118.9, "")]


def test_ticks_without_any_value_are_idle():
    assert runs_of(story(("busy", 60), ("blank", 400))) == [(0.0, 59.9, "idle for 300 s")]


def test_a_gpu_without_activity_ratios_is_active_whenever_it_has_ticks():
    assert runs_of(story(("blank", 60)), subject=tracker(has_activity=False)) == [(0.0, 59.9, "")]


def test_slow_ticks_work_too():
    samples = story(("idle", 100), ("busy", 300), ("idle", 600), interval_s=5.0)
    assert runs_of(samples) == [(100.0, 395.0, "idle for 300 s")]


def test_the_run_knows_its_ticks_its_records_and_its_missed_ticks():
    samples = story(("idle", 5), ("busy", 20), ("idle", 301))
    samples.missed_ticks[[10, 60, 100]] = [7, 2, 3]
    subject = tracker()
    (run,) = [event.run for event in subject.ticks(samples) if isinstance(event, RunEnded)]
    assert run.tick_count == 200
    assert run.missed_ticks == 5
    assert (run.first, run.last) == (Position(1, 6), Position(1, 25))


def test_the_epoch_tracker_sees_a_little_idle_first():
    subject = tracker()
    events = subject.ticks(story(("idle", 60), ("busy", 20)))
    assert isinstance(events[0], RunStarted)
    assert isinstance(events[1], RunTicks)
    assert seconds(events[1].samples.time_unix_nano[0]) == 50.0


def test_the_end_of_the_source_ends_the_run_at_once():
    subject = tracker()
    subject.ticks(story(("busy", 30)))
    (event,) = subject.source_ended(Position(1, 31))
    assert event.run.end_reason == "the source has ended"
    assert subject.run is None


def binding(job, start, end=0):
    origin = story(("busy", 1)).time_unix_nano[0]
    return Binding("GPU-a", job, 1, int(origin + start * 1e9), int(origin + end * 1e9) if end else 0, {})


def test_a_run_carries_the_job_that_was_bound_before_it():
    subject = tracker(bindings=[binding("old", -100, -50), binding("job-1", -10)])
    subject.ticks(story(("busy", 10)))
    assert (subject.run.job_id, subject.run.scheduler) == ("job-1", 1)


def test_a_job_bound_a_little_late_still_owns_the_run():
    subject = tracker()
    subject.ticks(story(("busy", 30)))
    assert subject.binding(Position(1, 31), binding("job-1", 20)) == []
    assert subject.run.job_id == "job-1"


def test_another_job_ends_the_run():
    subject = tracker(bindings=[binding("job-1", -10)])
    subject.ticks(story(("busy", 30)))
    (event,) = subject.binding(Position(1, 31), binding("job-2", 29))
    assert (event.run.job_id, event.run.end_reason) == ("job-1", "job job-2 took the GPU")


def test_a_job_that_leaves_ends_its_run():
    subject = tracker(bindings=[binding("job-1", -10)])
    subject.ticks(story(("busy", 30)))
    (event,) = subject.binding(Position(1, 31), binding("job-1", -10, 31))
    assert event.run.end_reason == "job job-1 left the GPU"


def test_news_of_a_job_that_was_over_before_changes_nothing():
    subject = tracker(bindings=[binding("job-1", -10)])
    subject.ticks(story(("busy", 30)))
    assert subject.binding(Position(1, 31), binding("job-0", -100, -20)) == []
    assert subject.run.job_id == "job-1"


STORIES = [
    story(("idle", 20), ("busy", 60), ("idle", 400), ("busy", 30), ("idle", 310), ("busy", 20)),
    story(("busy", 60), ("gap", 700), ("busy", 60), ("back", 900), ("busy", 30), ("idle", 5)),
    story(("busy", 60.4), ("gap", 700), ("busy", 30.3), ("back", 60), ("busy", 0.3), ("idle", 15), ("busy", 9.1)),
    story(("busy", 61.5), ("gap", 700), ("busy", 60.9), ("gap", 700), ("busy", 31.3), ticks_per_record=30),
    story(("idle", 8), *[("busy", 0.4), ("idle", 2.0)] * 20, ("idle", 350), ("busy", 4)),
]


@pytest.mark.parametrize("samples", STORIES)
def test_runs_do_not_depend_on_how_the_ticks_are_cut(samples):
    whole = runs_of(samples, chunk=len(samples))
    for chunk in (1, 7, 10, 333):
        assert runs_of(samples, chunk=chunk) == whole


def ids_and_rows(events):
    # As tuples: from Python 3.13 on, a dataclass with a NaN does not equal itself.
    return [dataclasses.astuple(event.run) for event in events if isinstance(event, RunEnded)]


@pytest.mark.parametrize("samples", STORIES)
@pytest.mark.parametrize("seed", range(8))
def test_a_tracker_that_begins_where_another_one_stood_comes_to_the_same_runs(samples, seed):
    chance = random.Random(seed)
    steady = tracker()
    expected = ids_and_rows(steady.ticks(samples))
    found = []
    subject, reached = tracker(), Position(0, 0)
    while True:
        rest = samples.after(reached)
        if not len(rest):
            break
        piece = rest.through(Position(1, reached.sequence + chance.randint(1, 30)))
        found += ids_and_rows(subject.ticks(piece))
        reached = piece.last_position
        if chance.random() < 0.1:
            resume = subject.resume
            subject, reached = tracker(resume=resume), resume.position
    assert found == expected
    assert (subject.run is None) == (steady.run is None)
    if subject.run and steady.run:
        assert dataclasses.astuple(subject.run) == dataclasses.astuple(steady.run)


@pytest.mark.parametrize("samples", STORIES)
@pytest.mark.parametrize("seed", range(8))
def test_a_tracker_made_of_the_state_of_another_one_goes_on_as_that_would_have(samples, seed):
    chance = random.Random(seed)
    steady, subject = tracker(), tracker()
    expected, found = [], []
    while len(samples):
        last = Position(1, int(samples.sequence[0]) + chance.randint(0, 30))
        piece, samples = samples.through(last), samples.after(last)
        expected += events_as_text(steady.ticks(piece))
        found += events_as_text(subject.ticks(piece))
        assert (subject.state() is None) == (subject.run is None)
        if state := subject.state():
            subject = tracker(state=RunTrackerState.from_json(json.loads(json.dumps(state.to_json()))))
            assert repr(subject.state()) == repr(state)
            assert subject.resume == steady.resume
    assert found == expected


def events_as_text(events):
    return [repr(event.run) for event in events if not isinstance(event, RunTicks)]


def test_the_job_of_the_run_is_part_of_the_state():
    subject = tracker(bindings=[binding("job-1", -10)])
    subject.ticks(story(("busy", 30)))
    state = RunTrackerState.from_json(json.loads(json.dumps(subject.state().to_json())))
    again = tracker(bindings=[binding("job-1", -10)], state=state)
    (event,) = again.binding(Position(1, 31), binding("job-2", 29))
    assert (event.run.job_id, event.run.end_reason) == ("job-1", "job job-2 took the GPU")


def shared(binding_):
    return dataclasses.replace(binding_, labels={"shared": "true"})


def test_a_job_that_shares_the_gpu_neither_takes_it_nor_ends_the_run_when_it_leaves():
    subject = tracker(bindings=[binding("job-1", -10)])
    subject.ticks(story(("busy", 30)))
    assert subject.binding(Position(1, 31), shared(binding("job-2", 29))) == []
    assert subject.binding(Position(1, 32), shared(binding("job-2", 29, 31))) == []
    assert subject.run.job_id == "job-1"
    subject.binding(Position(1, 33), shared(binding("job-3", 20)))
    (event,) = subject.binding(Position(1, 34), binding("job-1", -10, 33))
    assert event.run.end_reason == "job job-1 left the GPU"


def test_of_several_jobs_on_a_gpu_the_one_that_does_not_share_it_owns_the_run():
    subject = tracker(bindings=[binding("job-1", -10), shared(binding("job-2", -5))])
    subject.ticks(story(("busy", 30)))
    assert subject.run.job_id == "job-1"
