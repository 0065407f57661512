"""What the marks of a job's processes say of its cycles: of real jobs, of made ones, and of marks that are no good."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gpusonde.epoch_detect import CycleRole, Marks, Told, detect
from gpusonde.epoch_detect.cycles.marks import COLUMNS, Evidence
from gpusonde.telemetry import Trace

ROOT = Path(__file__).parents[2]
REAL_JOBS = ROOT / "tests" / "data" / "marks"
KINDS = (
    "epochs", "epochs, workers kept, evaluated", "epochs, evaluated, saved", "evaluated every quarter",
    "saved every k steps", "folds", "folds, workers kept", "search of rates", "stream, evaluated", "stream, saved",
)  # fmt: skip
UNNAMED = "epochs, workers kept, evaluated"  # its processes are born once, and write nothing


@pytest.fixture(scope="module")
def real_jobs():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks" / "marks"))
        import real_jobs

        yield real_jobs


@pytest.fixture(scope="module")
def recordings(real_jobs):
    return {
        (name, recording.kind): recording
        for name in ("jobs", "longer_jobs")
        for recording in real_jobs.load_recordings(REAL_JOBS / f"{name}.json.gz")
    }


def looks(seconds=120, start=0.0):
    return Marks(start + np.arange(float(seconds)), np.zeros((len(COLUMNS), seconds)), np.empty(0), np.empty(0))


def put(marks, name, times, value):
    marks.values[COLUMNS.index(name), np.round(np.asarray(times) - marks.time_s[0]).astype(int)] += value


def workers(marks, born, ended, count=2):
    put(marks, "forks", [born], count)
    put(marks, "exits", [ended], count)
    put(marks, "lifetime_s", [ended], count * (ended - born))


def trace(period_s=10.0, seconds=120.0, start=0.0):
    time_s = np.arange(0.0, seconds, 0.1)
    active = 0.8 + 0.02 * np.random.default_rng(1).standard_normal(time_s.size)
    active[time_s % period_s < 1.0] = 0.1
    return Trace(start + time_s, {"graphics_active": np.clip(active, 0, 1)})


def roles(detection):
    return {round(cycle.period_s): cycle.role for cycle in detection.cycles if cycle.role != CycleRole.UNKNOWN}


@pytest.mark.parametrize("name", ["jobs", "longer_jobs"])
@pytest.mark.parametrize("kind", KINDS)
def test_roles_of_a_real_job_are_right_with_its_marks(real_jobs, recordings, name, kind):
    found = real_jobs.score(recordings[name, kind], "with marks")
    assert found.wrong == 0
    assert found.right == (0 if kind == UNNAMED else found.true)


def test_without_marks_or_with_those_that_say_nothing_the_answer_is_the_same():
    plain = detect(trace())
    for marks in (None, looks(), looks(0), looks(0).with_memory(np.arange(100.0), np.full(100, 5e9))):
        found = detect(trace(), marks=marks)
        assert repr(replace(found, cycles=())) == repr(replace(plain, cycles=()))
        assert repr(found.cycles) == repr(plain.cycles)


def test_workers_that_live_from_birth_to_birth_make_a_cycle_the_epoch():
    marks = looks()
    for begin in range(0, 110, 10):
        workers(marks, begin, begin + 10)
    found = detect(trace(), marks=marks)
    assert roles(found) == {10: CycleRole.EPOCH}
    assert found.cycles[found.level].role == CycleRole.EPOCH
    assert found.confidence >= 0.9


def test_workers_that_live_for_a_part_of_a_cycle_make_it_an_evaluation_and_the_longer_ones_the_epoch():
    marks = looks()
    for begin in range(0, 110, 10):
        workers(marks, begin, begin + 2, count=1)
    for begin in range(0, 100, 30):
        workers(marks, begin, min(begin + 30, 119))
    assert roles(detect(trace(), marks=marks)) == {10: CycleRole.EVALUATION, 30: CycleRole.EPOCH}


def test_what_is_written_where_no_worker_is_born_is_a_checkpoint():
    marks = looks()
    put(marks, "written_bytes", range(0, 120, 10), 5e8)
    assert roles(detect(trace(), marks=marks)) == {10: CycleRole.CHECKPOINT}


def test_memory_that_falls_and_comes_back_makes_a_cycle_a_trial():
    marks = looks(180)
    for begin in range(0, 170, 10):
        workers(marks, begin, begin + 10)
    job = trace(seconds=180.0)
    memory = np.where((job.time_s % 30 < 1.0) & (job.time_s > 1), 1e9, 8e9)
    assert roles(detect(job, marks=marks.with_memory(job.time_s, memory))) == {10: CycleRole.EPOCH, 30: CycleRole.TRIAL}
    with_memory = Trace(job.time_s, dict(job.values) | {"framebuffer_used_bytes": memory})
    assert roles(detect(with_memory, marks=marks)) == {10: CycleRole.EPOCH, 30: CycleRole.TRIAL}


def test_workers_kept_through_a_fold_make_it_a_trial_and_what_repeats_in_it_the_epoch():
    marks = looks()
    for begin in range(0, 110, 30):
        end = min(begin + 30, 119)
        workers(marks, begin, end)
        put(marks, "forks", [begin + 9], 1)
        put(marks, "exits", [end], 1)
        put(marks, "lifetime_s", [end], end - begin - 9)
    assert roles(detect(trace(), marks=marks)) == {10: CycleRole.EPOCH, 30: CycleRole.TRIAL}


def test_a_series_of_marks_that_the_samples_do_not_show_is_a_level_of_its_own():
    flat = Trace(np.arange(0.0, 120.0, 0.1), {"graphics_active": np.full(1200, 0.8)})
    marks = looks()
    put(marks, "written_bytes", range(5, 120, 12), 5e8)
    (cycle,) = detect(flat, marks=marks).cycles
    assert (cycle.role, cycle.count) == (CycleRole.CHECKPOINT, 9)
    assert cycle.period_s == pytest.approx(12.0)
    assert cycle.starts_s[0] == pytest.approx(5.0)


def test_what_a_user_tells_goes_before_marks():
    marks = looks()
    for begin in range(0, 110, 10):
        workers(marks, begin, begin + 10)
    found = detect(trace(), marks=marks, told=Told(roles=((10.0, CycleRole.EVALUATION),)))
    assert roles(found) == {10: CycleRole.EVALUATION}


def test_marks_are_on_the_axis_of_the_trace_whatever_its_origin():
    marks = looks(start=1.7e9)
    for begin in range(0, 110, 10):
        workers(marks, 1.7e9 + begin, 1.7e9 + begin + 10)
    put(marks, "written_bytes", 1.7e9 + np.arange(5, 120, 25), 5e8)
    found = detect(trace(start=1.7e9), marks=marks)
    assert roles(found) == {10: CycleRole.EPOCH, 25: CycleRole.CHECKPOINT}
    added = next(cycle for cycle in found.cycles if cycle.role == CycleRole.CHECKPOINT)
    assert added.starts_s[0] == pytest.approx(1.7e9 + 5, abs=0.01)


def test_very_many_marks_are_looked_at_in_part():
    count = 200_000
    marks = Marks(np.arange(float(count)), np.full((len(COLUMNS), count), 3.0), np.empty(0), np.empty(0))
    assert Evidence.find(marks).roles() == []


def test_workers_of_which_only_the_sum_of_the_lives_is_known_are_told_apart():
    marks = looks(200)
    for begin in range(0, 170, 30):
        workers(marks, begin, begin + 30)
        for at in (6, 13, 20, 28):  # the last evaluation ends with the epoch's workers
            workers(marks, begin + at, begin + at + 2, count=1)
    evidence = Evidence.find(marks)
    assert evidence.renewed.interval_s == pytest.approx(30.0)
    assert evidence.evaluations.interval_s == pytest.approx(7.5, abs=0.5)
    assert not evidence.folds


def test_uneven_or_few_marks_name_nothing():
    marks = looks()
    put(marks, "written_bytes", [3, 5, 30, 33, 80], 5e8)
    workers(marks, 10, 20)
    workers(marks, 20, 90)
    assert Evidence.find(marks).roles() == []


def test_marks_that_cannot_be_do_no_harm():
    rng = np.random.default_rng(2)
    plain = detect(trace())
    sure = {round(cycle.period_s, 6) for cycle in plain.cycles if cycle.confidence > 0.9}
    count = 5000
    wild = 10.0 ** rng.uniform(-3, 15, (len(COLUMNS), count)) * rng.choice([1, -1, np.nan, np.inf, 0], (6, count))
    times = rng.uniform(-100, 300, count)
    times[::7] = np.nan
    for values in (wild, np.full((6, count), np.nan), np.full((6, count), 1e300)):
        found = detect(trace(), marks=Marks(times, values, times[::-1], values[0]))
        assert sure <= {round(cycle.period_s, 6) for cycle in found.cycles}
    short = Marks(np.arange(50.0), np.zeros((6, 20)), np.arange(3.0), np.full(3, np.nan))
    assert repr(detect(trace(), marks=short).cycles) == repr(plain.cycles)
