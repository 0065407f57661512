"""What a job does: its state from the load of its GPUs, their pauses, and what its processes do."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from gpusonde.epoch_detect import Cycle, CycleRole, EpochDetection, RunState, Verdict
from gpusonde.epoch_detect.progress import JobState, StateWatch
from gpusonde.epoch_detect.progress.pauses import PauseMemory
from gpusonde.epoch_detect.progress.seconds import JobSecond

GPUS = 8
IDLE, WAITS, WORKS = (70.0, 0.0), (150.0, 1.0), (550.0, 0.95)  # watts, utilisation
Second = Sequence[tuple[float, float]]


def show(
    watch: StateWatch,
    begin_s: float,
    seconds: int,
    gpus: Second | tuple[float, float],
    marks: Callable[[float], None] = lambda now_s: None,
    **more: float,
) -> float:
    """Show ``seconds`` of 10 Hz to a watch, one state for all GPUs or one each; returns the time after them."""
    rng = np.random.default_rng(int(begin_s))
    each = [gpus] * watch.gpus if isinstance(gpus[0], float) else list(gpus)
    for second in range(seconds):
        time_s = begin_s + second + np.arange(10) / 10
        levels = np.array(each)
        power = levels[:, :1] * np.exp(rng.normal(0, 0.01, (watch.gpus, 10)))
        values = {"power_watts": power, "gpu_utilization": np.repeat(levels[:, 1:], 10, axis=1)}
        values |= {name: np.full((watch.gpus, 10), value) for name, value in more.items()}
        marks(float(time_s[-1]))
        watch.update(time_s, values)
    return begin_s + seconds


def working(seconds: int = 200, gpus: int = GPUS) -> tuple[StateWatch, float]:
    """A job that has begun, and trained for so long."""
    watch = StateWatch(gpus)
    now_s = show(watch, 0.0, 30, IDLE)
    return watch, show(watch, now_s, seconds, WORKS)


def test_a_job_starts_trains_and_the_report_says_why() -> None:
    watch = StateWatch(GPUS)
    assert watch.report.state == JobState.UNKNOWN
    now_s = show(watch, 0.0, 30, IDLE)
    assert watch.report.state == JobState.STARTING
    show(watch, now_s, 100, WORKS)
    report = watch.report
    assert report.state == JobState.TRAINING
    assert report.start_s == pytest.approx(30, abs=2)
    # There may be one that is listed beside it.
    assert report.reason == "works at the level of its training; no cycle is sure yet"


@pytest.mark.parametrize("level", [IDLE, WAITS, (120.0, 1.0), (330.0, 1.0)])
def test_a_hang_is_named_within_a_minute(level: tuple[float, float]) -> None:
    watch, now_s = working()
    show(watch, now_s, 60, level)
    assert watch.report.state in (JobState.STALLED, JobState.HUNG)
    assert watch.report.start_s == pytest.approx(now_s, abs=4)


def test_a_silent_hang_that_nothing_tells_from_a_checkpoint_is_stalled() -> None:
    watch, now_s = working()
    show(watch, now_s, 100, IDLE)
    assert watch.report.state == JobState.STALLED
    assert "no bytes written" in watch.report.reason


def test_one_dead_rank_among_those_that_wait_is_stalled_too_because_rank_0_looks_so_when_it_saves() -> None:
    watch, now_s = working()
    show(watch, now_s, 100, [IDLE, *[WAITS] * (GPUS - 1)])
    assert watch.report.state == JobState.STALLED


def test_where_nothing_is_written_and_no_processor_works_it_is_hung() -> None:
    watch, now_s = working()
    stopped = now_s

    def marks(at_s: float) -> None:
        watch.note_marks(at_s, written_bytes_per_s=0.0, processors=8.0 if at_s < stopped else 0.01, processes=8)

    watch = StateWatch(GPUS)
    show(watch, 0.0, 30, IDLE, marks)
    show(watch, 30.0, 200, WORKS, marks)
    show(watch, stopped, 60, IDLE, marks)
    assert watch.report.state == JobState.HUNG
    assert "nothing written" in watch.report.reason


def test_all_gpus_in_a_kernel_at_low_power_are_hung_for_none_of_them_can_be_saving() -> None:
    watch, now_s = working()
    show(watch, now_s, 60, WAITS)
    assert watch.report.state == JobState.HUNG
    assert "100 %" in watch.report.reason


def test_a_checkpoint_that_writes_is_one_however_long_it_takes() -> None:
    watch, now_s = working()
    saving = [IDLE, *[WAITS] * (GPUS - 1)]
    show(watch, now_s, 400, saving, lambda at_s: watch.note_marks(at_s, written_bytes_per_s=5e8, processors=1.0))
    assert watch.report.state == JobState.CHECKPOINTING


def test_traffic_over_pcie_is_work() -> None:
    watch, now_s = working()
    show(watch, now_s, 200, IDLE, pcie_tx_bytes_per_second=2e9, pcie_rx_bytes_per_second=0.0)
    assert watch.report.state not in (JobState.STALLED, JobState.HUNG)


def test_one_process_of_eight_that_is_gone_is_a_hang_at_once() -> None:
    watch, now_s = working()
    stopped = now_s
    spinning = [IDLE, *[WAITS] * (GPUS - 1)]
    show(watch, now_s - 5, 5, WORKS, lambda at_s: watch.note_marks(at_s, processes=8))
    show(watch, stopped, 15, spinning, lambda at_s: watch.note_marks(at_s, processes=7))
    assert watch.report.state == JobState.HUNG
    assert "1 of 8 processes" in watch.report.reason


def test_a_process_beside_those_that_the_job_needs_may_end_and_so_may_one_of_a_job_that_does_not_train() -> None:
    watch, now_s = working()
    spinning = [IDLE, *[WAITS] * (GPUS - 1)]
    show(watch, now_s - 10, 5, WORKS, lambda at_s: watch.note_marks(at_s, processes=8))
    show(watch, now_s - 5, 5, WORKS, lambda at_s: watch.note_marks(at_s, processes=16))
    show(watch, now_s, 15, spinning, lambda at_s: watch.note_marks(at_s, processes=8))
    assert watch.report.state == JobState.CHECKPOINTING


def test_what_its_processes_did_counts_when_it_is_told_half_a_minute_late() -> None:
    watch, now_s = working()
    saving = [IDLE, *[WAITS] * (GPUS - 1)]
    for _ in range(8):
        show(watch, now_s, 30, saving)
        for second in range(30):
            watch.note_marks(now_s + second, written_bytes_per_s=5e8, processors=1.0)
        now_s += 30
        assert watch.report.state == JobState.CHECKPOINTING
    rests = watch.spans[-1].start_s
    watch, now_s = working()
    show(watch, now_s, 20, IDLE)
    assert watch.report.state == JobState.IDLE
    show(watch, now_s + 20, 20, WORKS)
    for second in range(30):
        watch.note_marks(now_s + second, written_bytes_per_s=5e8 if 5 <= second < 15 else 0.0, processors=1.0)
    saved = [span for span in watch.spans if span.state == JobState.CHECKPOINTING]
    assert [(span.start_s - now_s, span.end_s - now_s) for span in saved] == [pytest.approx((4, 20), abs=3)]
    assert rests == pytest.approx(now_s, abs=4)


def test_processes_that_were_there_before_the_end_do_not_begin_the_job_anew() -> None:
    watch = StateWatch(GPUS)
    show(watch, 0.0, 30, IDLE, framebuffer_used_bytes=1e9)
    show(watch, 30.0, 100, WORKS, framebuffer_used_bytes=40e9)
    show(watch, 130.0, 20, IDLE, framebuffer_used_bytes=1e9)
    assert watch.report.state == JobState.ENDED
    watch.note_marks(110.0, processes=8)
    assert watch.report.state == JobState.ENDED
    watch.note_marks(145.0, processes=8)
    show(watch, 150.0, 10, IDLE, framebuffer_used_bytes=1e9)
    assert watch.report.state != JobState.ENDED


def test_pauses_that_came_back_are_waited_out_and_those_that_grow_are_expected() -> None:
    watch, now_s = working()
    for length_s in (30, 40, 52, 66, 82, 98):
        now_s = show(watch, now_s, length_s, [IDLE, *[WAITS] * (GPUS - 1)])
        assert watch.report.state not in (JobState.STALLED, JobState.HUNG), length_s
        now_s = show(watch, now_s, 60, WORKS)
    show(watch, now_s, 250, [IDLE, *[WAITS] * (GPUS - 1)])
    assert watch.report.state == JobState.STALLED


@pytest.mark.parametrize(
    ("load", "run_state", "is_named"),
    [
        (WAITS, RunState.TRAINING, True),
        (IDLE, RunState.TRAINING, True),
        ((250.0, 1.0), RunState.TRAINING, False),  # where it evaluates
        (WAITS, RunState.OTHER, False),
    ],
)
def test_a_training_is_not_given_the_time_of_its_pauses_at_a_load_at_which_none_of_them_was(
    load: tuple[float, float], run_state: RunState, is_named: bool
) -> None:
    watch, now_s = working()
    for _ in range(4):
        now_s = show(watch, now_s, 44, (250.0, 1.0))
        now_s = show(watch, now_s, 60, WORKS)
    watch.note_detection(EpochDetection(Verdict.NONE, "", run_state=run_state, run_state_confidence=0.6))
    watch = StateWatch.from_state(watch.state())
    show(watch, now_s, 55, load)
    assert (watch.report.state in (JobState.STALLED, JobState.HUNG)) == is_named


def test_a_pause_may_fall_from_the_load_of_other_pauses_to_one_of_its_own() -> None:
    watch, now_s = working()
    for pause_s in (40, 44):
        now_s = show(watch, now_s, pause_s, (112.0, 1.0))
        now_s = show(watch, now_s, 60, WORKS)
    watch.note_detection(cycles_until(now_s))
    now_s = show(watch, now_s, 40, (112.0, 1.0))
    now_s = show(watch, now_s, 20, (75.0, 1.0))
    assert watch.report.state == JobState.UNKNOWN
    show(watch, now_s, 35, (75.0, 1.0))
    assert watch.report.state == JobState.HUNG


def test_short_regular_pauses_make_it_impatient() -> None:
    watch, now_s = working()
    for _ in range(5):
        now_s = show(watch, now_s, 4, IDLE)
        now_s = show(watch, now_s, 10, WORKS)
    show(watch, now_s, 42, IDLE)
    assert watch.report.state == JobState.STALLED


def test_a_pause_that_ends_is_no_alarm_any_more() -> None:
    watch, now_s = working()
    now_s = show(watch, now_s, 80, IDLE)
    assert watch.report.state == JobState.STALLED
    show(watch, now_s, 20, WORKS)
    assert watch.report.state == JobState.TRAINING
    assert JobState.STALLED in [span.state for span in watch.spans]


def test_a_job_without_processes_has_ended_and_is_never_stalled() -> None:
    watch, now_s = working()
    watch.note_marks(now_s, processes=8)
    now_s = show(watch, now_s, 5, IDLE)
    watch.note_marks(now_s, processes=0)
    show(watch, now_s, 300, IDLE)
    assert watch.report.state == JobState.ENDED
    assert watch.report.start_s == pytest.approx(230, abs=4)


@pytest.mark.parametrize(("gpus", "state"), [(WAITS, JobState.HUNG), ([IDLE] * GPUS, JobState.IDLE)])
def test_the_end_does_not_take_back_what_a_job_did_before_it(gpus: Second | tuple[float, float], state: str) -> None:
    # A watchdog ends a job that hangs; one that has nothing to do keeps its GPUs for an hour.
    watch = StateWatch(GPUS)
    now_s = show(watch, 0.0, 30, IDLE, framebuffer_used_bytes=1e9)
    for work_s in (20, 9, 200, 3):  # as somebody at a notebook does, whose pauses are none
        now_s = show(watch, now_s, work_s, WORKS, framebuffer_used_bytes=40e9)
        now_s = show(watch, now_s, 5 * work_s if state == JobState.IDLE else 1, IDLE, framebuffer_used_bytes=40e9)
    now_s = show(watch, now_s, 400, gpus, framebuffer_used_bytes=40e9)
    assert watch.report.state == state
    show(watch, now_s, 20, IDLE, framebuffer_used_bytes=1e8)
    before, ended = watch.spans[-2:]
    assert (before.state, ended.state) == (state, JobState.ENDED)
    assert ended.start_s == pytest.approx(now_s, abs=3)


def test_memory_that_is_let_go_of_is_an_end_and_memory_taken_again_a_start() -> None:
    watch = StateWatch(GPUS)
    show(watch, 0.0, 30, IDLE, framebuffer_used_bytes=1e9)
    show(watch, 30.0, 100, WORKS, framebuffer_used_bytes=40e9)
    show(watch, 130.0, 100, IDLE, framebuffer_used_bytes=1e8)
    assert watch.report.state == JobState.ENDED
    show(watch, 230.0, 20, IDLE, framebuffer_used_bytes=20e9)
    assert watch.report.state == JobState.STARTING
    show(watch, 250.0, 40, WORKS, framebuffer_used_bytes=40e9)
    assert watch.report.state == JobState.TRAINING


@pytest.mark.parametrize(
    ("run_state", "between_s", "is_named"),
    [(RunState.TRAINING, 10, True), (RunState.TRAINING, 100, False), (RunState.OTHER, 10, False)],
)
def test_of_a_trial_upon_which_the_next_one_follows_it_stays_known_that_it_trained(
    run_state: RunState, between_s: int, *, is_named: bool
) -> None:
    watch = StateWatch(GPUS)
    now_s = show(watch, 0.0, 30, IDLE, framebuffer_used_bytes=1e9)
    for _ in range(5):
        now_s = show(watch, now_s, 30, WORKS, framebuffer_used_bytes=40e9)
        now_s = show(watch, now_s, 6, IDLE, framebuffer_used_bytes=40e9)
    watch.note_detection(EpochDetection(Verdict.NONE, "", run_state=run_state, run_state_confidence=0.8))
    now_s = show(watch, now_s, between_s, IDLE, framebuffer_used_bytes=1e9)
    assert watch.report.state == JobState.ENDED
    now_s = show(watch, now_s, 4, IDLE, framebuffer_used_bytes=20e9)
    assert watch.report.state == JobState.STARTING
    watch = StateWatch.from_state(watch.state())
    now_s = show(watch, now_s, 10, WORKS, framebuffer_used_bytes=20e9)
    show(watch, now_s, 60, IDLE, framebuffer_used_bytes=20e9)
    assert (watch.report.state == JobState.STALLED) == is_named


def test_of_a_training_that_ended_an_hour_ago_nothing_is_known_though_no_ticks_came_since() -> None:
    def since(gap_s: int) -> float:
        watch, now_s = working(100)
        watch.note_marks(now_s, processors=8.0, processes=8)
        watch.note_detection(EpochDetection(Verdict.NONE, "", run_state=RunState.TRAINING, run_state_confidence=0.8))
        now_s = show(watch, now_s, 2, IDLE)
        watch.note_marks(now_s, processors=0.0, processes=0)
        watch.note_marks(now_s + gap_s, processors=8.0, processes=8)
        return watch._work.seconds

    assert since(10) > 90
    assert since(3600) == 0


def test_a_trial_that_has_hardly_worked_loads_its_data_whatever_those_before_it_did() -> None:
    watch = StateWatch(GPUS)
    now_s = show(watch, 0.0, 30, IDLE, framebuffer_used_bytes=1e9)
    for _ in range(5):
        now_s = show(watch, now_s, 30, WORKS, framebuffer_used_bytes=40e9)
        now_s = show(watch, now_s, 6, IDLE, framebuffer_used_bytes=40e9)
    watch.note_detection(EpochDetection(Verdict.NONE, "", run_state=RunState.TRAINING, run_state_confidence=0.95))
    now_s = show(watch, now_s, 10, IDLE, framebuffer_used_bytes=1e9)
    now_s = show(watch, now_s, 4, WORKS, framebuffer_used_bytes=20e9)
    now_s = show(watch, now_s, 12, (300.0, 0.5), framebuffer_used_bytes=20e9)
    assert watch.report.state == JobState.STARTING
    show(watch, now_s, 80, IDLE, framebuffer_used_bytes=20e9)
    assert watch.report.state == JobState.IDLE


def test_a_dip_below_the_level_of_training_is_an_evaluation() -> None:
    watch, now_s = working()
    begin_s = now_s
    for _ in range(3):
        begin_s = now_s
        now_s = show(watch, now_s, 20, (450.0, 0.9))
        assert watch.report.state == JobState.EVALUATING
        assert watch.report.start_s == pytest.approx(begin_s, abs=2)
        now_s = show(watch, now_s, 60, WORKS)
        assert watch.report.state == JobState.TRAINING


def test_cycles_that_go_on_at_a_lower_level_are_work() -> None:
    watch, now_s = working()
    cycle = Cycle(10.0, 9.9, 10.1, 30, np.arange(0.0, now_s + 100, 10.0), 0.95, CycleRole.EPOCH, 0.9, confirmed=True)
    now_s = show(watch, now_s, 30, (250.0, 0.9))
    watch.note_detection(
        EpochDetection(
            Verdict.EPOCHS, "", 10.0, 9.9, 10.1, 0.95, cycles=(cycle,), level=0, run_state=RunState.TRAINING,
            run_state_confidence=0.9,
        )
    )  # fmt: skip
    show(watch, now_s, 200, (250.0, 0.9))
    assert watch.report.state == JobState.TRAINING
    assert "10 s (epoch)" in watch.report.reason


def cycles_until(now_s: float, state: RunState = RunState.TRAINING) -> EpochDetection:
    starts_s = np.arange(0.0, now_s, 10.0)
    cycle = Cycle(10.0, 9.9, 10.1, 30, starts_s, 0.95, CycleRole.EPOCH, 0.9, confirmed=True)
    return EpochDetection(Verdict.NONE, "", cycles=(cycle,), run_state=state, run_state_confidence=0.9)


def test_an_alarm_that_cycles_prove_wrong_is_not_raised_after_the_same_time_again() -> None:
    watch, now_s = working()
    for _ in range(2):
        alarms = [span for span in watch.spans if span.state in (JobState.STALLED, JobState.HUNG)]
        now_s = show(watch, now_s, 65, (250.0, 1.0))
        now_s = show(watch, now_s, 5, (265.0, 1.0))
        watch.note_detection(cycles_until(now_s))
        now_s = show(watch, now_s, 5, (250.0, 1.0))
        now_s = show(watch, now_s, 60, WORKS)
    assert len([span for span in watch.spans if span.state in (JobState.STALLED, JobState.HUNG)]) == 1
    assert len(alarms) == 1


@pytest.mark.parametrize("level", [IDLE, WAITS, (250.0, 1.0)])
def test_cycles_that_are_found_in_the_noise_of_a_hang_do_not_end_it(level: tuple[float, float]) -> None:
    watch, now_s = working()
    begin_s = now_s
    for _ in range(10):
        now_s = show(watch, now_s, 60, level)
        watch.note_detection(cycles_until(now_s))
    assert watch.report.state in (JobState.STALLED, JobState.HUNG)
    assert watch.report.start_s == pytest.approx(begin_s, abs=2)


def seems_to_train(confidence: float) -> EpochDetection:
    return EpochDetection(Verdict.NONE, "", run_state=RunState.TRAINING, run_state_confidence=confidence)


def cycles_of(period_s: float, now_s: float) -> EpochDetection:
    cycle = Cycle(
        period_s, period_s, period_s, 30, np.arange(0.0, now_s, period_s), 0.95, CycleRole.STEP, 0.9, confirmed=True
    )
    return EpochDetection(Verdict.NONE, "", cycles=(cycle,), run_state=RunState.TRAINING, run_state_confidence=0.9)


@pytest.mark.parametrize("period_s", [2.0, 12.0, 60.0])
@pytest.mark.parametrize("level", [IDLE, WAITS, (250.0, 1.0)])
@pytest.mark.parametrize("before", [[(9, (330.0, 0.5)), (2, (90.0, 0.02))], [(5, (330.0, 0.5))], [(1, WORKS)]])
def test_a_hang_behind_an_evaluation_is_one_though_the_load_fell_in_steps_and_cycles_are_found_in_its_noise(
    before: list[tuple[int, tuple[float, float]]], level: tuple[float, float], period_s: float
) -> None:
    watch, now_s = working()
    for _ in range(2):
        for seconds, load in [*before, (100, WORKS)]:
            now_s = show(watch, now_s, seconds, load)
    watch.note_detection(cycles_of(period_s, now_s))
    for seconds, load in before:
        now_s = show(watch, now_s, seconds, load)
    for _ in range(20):
        now_s = show(watch, now_s, 10, level)
        watch.note_detection(cycles_of(period_s, now_s))
        assert watch.report.state in (JobState.STALLED, JobState.HUNG) or now_s < 660
    assert watch.report.state in (JobState.STALLED, JobState.HUNG)


@pytest.mark.parametrize(("seconds", "high", "low"), [(1, 330.0, 250.0), (6, 330.0, 250.0)])
def test_steps_that_go_on_at_a_lower_load_are_no_hang(seconds: int, high: float, low: float) -> None:
    watch, now_s = working()
    for _ in range(100):
        now_s = show(watch, now_s, seconds, (high, 1.0))
        now_s = show(watch, now_s, seconds, (low, 1.0))
        watch.note_detection(cycles_of(2.0 * seconds, now_s))
    assert {span.state for span in watch.spans}.isdisjoint({JobState.STALLED, JobState.HUNG})


def test_steps_shorter_than_a_second_that_go_on_at_a_lower_load_are_no_hang() -> None:
    watch, now_s = working()
    for tick in range(1000):
        time_s = now_s + np.arange(10) / 10
        power = np.tile([330.0, 330.0, 330.0, 330.0, 200.0], (watch.gpus, 2))
        watch.update(time_s, {"power_watts": power, "gpu_utilization": np.ones((watch.gpus, 10))})
        now_s += 1.0
        if tick % 10 == 0:
            watch.note_detection(cycles_of(0.5, now_s))
    assert {span.state for span in watch.spans}.isdisjoint({JobState.STALLED, JobState.HUNG})
    assert watch.report.state == JobState.TRAINING


def test_gpus_in_a_kernel_all_the_time_are_not_said_to_do_nothing() -> None:
    watch, now_s = working(20)
    show(watch, now_s, 200, (75.0, 1.0))
    assert watch.report.state == JobState.UNKNOWN
    assert "a kernel is on all 8 GPUs all the time" in watch.report.reason


@pytest.mark.parametrize("worked", range(1, 10))
def test_a_second_between_work_and_rest_is_no_state_of_its_own(worked: int) -> None:
    watch, now_s = working(60)
    rng = np.random.default_rng(worked)
    for _ in range(12):
        for second in range(30):
            is_work = np.full(10, 3 < second < 28)
            if second in (3, 28):
                is_work = (np.arange(10) < worked) != (second == 3)
            watts = np.where(is_work, WORKS[0], IDLE[0]) * np.exp(rng.normal(0, 0.01, (watch.gpus, 10)))
            use = np.tile(np.where(is_work, 1.0, 0.0), (watch.gpus, 1))
            watch.update(now_s + np.arange(10) / 10, {"power_watts": watts, "gpu_utilization": use})
            now_s += 1.0
    assert {span.state for span in watch.spans if span.start_s > 60} == {JobState.TRAINING, JobState.IDLE}


def epochs_of(period_s: float, now_s: float, role: CycleRole = CycleRole.EVALUATION) -> EpochDetection:
    starts_s = np.arange(now_s % period_s, now_s, period_s)
    cycle = Cycle(period_s, period_s, period_s, 5, starts_s, 0.95, role, 0.9, confirmed=True)
    return EpochDetection(Verdict.NONE, "", cycles=(cycle,), run_state=RunState.TRAINING, run_state_confidence=0.9)


def evaluated(watch: StateWatch, since_s: float) -> float:
    spans = [span for span in watch.spans if span.state == JobState.EVALUATING and span.end_s > since_s]
    return sum(span.end_s - max(span.start_s, since_s) for span in spans)


EPOCH: list[tuple[int, float]] = [(30, 550.0), (6, 400.0)]


@pytest.mark.parametrize("capped", [0.88, 0.93])
@pytest.mark.parametrize("told_slower", [False, True])
def test_gpus_that_draw_less_from_some_time_on_train_at_that_level_and_do_not_evaluate_for_good(
    capped: float, told_slower: bool
) -> None:
    watch, now_s = working(60)
    for _ in range(6):
        for seconds, watts in EPOCH:
            now_s = show(watch, now_s, seconds, (watts, 0.95))
    if not told_slower:
        watch.note_detection(epochs_of(36.0, now_s))
    since_s = now_s
    for number in range(8):
        if told_slower and number == 2:
            watch.note_slower("its cycles take 39 s, 8 % longer than the 36 s before", since_s)
        for seconds, watts in EPOCH:
            now_s = show(watch, now_s, seconds, (capped * watts, 0.95))
    # Six seconds of each epoch; until the level is known for another one all of it, which is slower once that is known.
    assert (6 if told_slower else 8) * 5 <= evaluated(watch, since_s) <= 8 * 8 + 80
    assert evaluated(watch, since_s + 90) <= 6 * 8


def test_steps_of_some_seconds_are_no_evaluations() -> None:
    watch, now_s = working(30)
    since_s = now_s
    for second in range(300):
        # A step takes three seconds, and its exchange the last 0.6 of them, at two ticks a second.
        time_s = now_s + np.array([0.0, 0.5])
        waits = (time_s + 0.13 * second / 3) % 3 >= 2.4
        watts = np.tile(np.where(waits, 250.0, 550.0), (GPUS, 1))
        watch.update(time_s, {"power_watts": watts, "gpu_utilization": np.ones((GPUS, 2))})
        now_s += 1.0
    assert evaluated(watch, since_s) <= 15


def test_what_a_run_was_taken_for_before_it_began_is_not_said_of_it_for_good() -> None:
    watch = StateWatch(GPUS)
    before = EpochDetection(Verdict.NONE, "", run_state=RunState.IDLE, run_state_confidence=0.9)
    now_s = show(watch, 0.0, 60, IDLE)
    now_s = show(watch, now_s, 5, WORKS)
    for _ in range(60):
        watch.note_detection(before)
        now_s = show(watch, now_s, 1, WORKS)
    assert watch.report.state == JobState.TRAINING
    assert watch.report.start_s == pytest.approx(75, abs=15)


def test_a_job_that_begins_again_starts_whatever_is_known_of_the_cycles_before() -> None:
    watch = StateWatch(GPUS)
    now_s = show(watch, 0.0, 30, IDLE, framebuffer_used_bytes=1e9)
    now_s = show(watch, now_s, 200, WORKS, framebuffer_used_bytes=40e9)
    found = epochs_of(36.0, now_s)
    watch.note_detection(found)
    now_s = show(watch, now_s, 60, IDLE, framebuffer_used_bytes=1e9)
    assert watch.report.state == JobState.ENDED
    for _ in range(4):
        watch.note_detection(epochs_of(36.0, 230.0))
        now_s = show(watch, now_s, 10, (75.0, 0.02), framebuffer_used_bytes=20e9)
    assert watch.report.state == JobState.STARTING
    now_s = show(watch, now_s, 60, WORKS, framebuffer_used_bytes=40e9)
    watch.note_detection(epochs_of(36.0, now_s))
    show(watch, now_s, 10, WORKS, framebuffer_used_bytes=40e9)
    assert watch.report.state == JobState.TRAINING
    assert "36 s" in watch.report.reason
    # It is another one, and no slower than itself.
    watch.note_slower("its cycles take 36 s, 20 % longer than the 30 s before", now_s - 50)
    show(watch, now_s, 10, WORKS, framebuffer_used_bytes=40e9)
    assert watch.report.state == JobState.TRAINING


def test_idle_gpus_that_still_draw_much_are_said_to_be_hardly_in_use() -> None:
    watch, now_s = working()
    show(watch, now_s, 8, (280.0, 0.0))
    assert watch.report.state == JobState.IDLE
    assert watch.report.reason.startswith("its GPUs are hardly in use; the load is at ")


def test_a_second_of_use_in_a_pause_of_gpus_that_draw_much_is_no_evaluation() -> None:
    watch, now_s = working()
    begin_s = now_s
    for _ in range(6):
        now_s = show(watch, now_s, 4, (280.0, 0.0))
        now_s = show(watch, now_s, 1, (280.0, 0.3))
    assert [span.state for span in watch.spans if span.end_s > begin_s + 1] == [JobState.IDLE]


@pytest.mark.parametrize("confidence", [0.52, 0.9])
def test_what_serves_is_serving_and_waits_for_requests_in_peace(confidence: float) -> None:
    watch, now_s = working(60)
    serves = EpochDetection(Verdict.NONE, "", run_state=RunState.SERVING, run_state_confidence=confidence)
    watch.note_detection(serves)
    now_s = show(watch, now_s, 10, WORKS)
    assert watch.report.state == JobState.SERVING
    now_s = show(watch, now_s, 300, IDLE)
    assert watch.report.state == JobState.SERVING


def test_somebody_who_thinks_between_commands_does_not_hang() -> None:
    watch = StateWatch(1)
    now_s = show(watch, 0.0, 30, IDLE)
    rng = np.random.default_rng(3)
    for _ in range(40):
        now_s = show(watch, now_s, int(rng.integers(1, 12)), WORKS)
        for _ in range(int(np.exp(rng.uniform(np.log(3), np.log(200))))):
            now_s = show(watch, now_s, 1, IDLE)
            assert watch.report.state not in (JobState.STALLED, JobState.HUNG)


def test_a_pause_in_which_the_processes_rested_too_and_somebody_came_back_makes_it_patient() -> None:
    watch = StateWatch(1)

    def marks(processors: float) -> Callable[[float], None]:
        return lambda at_s: watch.note_marks(at_s, written_bytes_per_s=0.0, processors=processors, processes=1)

    show(watch, 0.0, 30, IDLE, marks(1.0))
    show(watch, 30.0, 60, WORKS, marks(1.0))
    show(watch, 90.0, 20, IDLE, marks(0.01))
    show(watch, 110.0, 60, WORKS, marks(1.0))
    show(watch, 170.0, 300, IDLE, marks(0.01))
    assert watch.report.state == JobState.IDLE


def test_a_meter_that_reads_next_to_nothing_says_nothing() -> None:
    watch = StateWatch(4, idle_watts=2100.0)
    for second in range(300):
        power = np.full((4, 1), 6300.0 if second > 30 else 2100.0)
        if second > 150:
            power[:3] = 5.0
        watch.update(np.array([float(second)]), {"power_watts": power})
    assert watch.report.state == JobState.TRAINING


def test_without_ticks_nothing_is_known_and_nobody_is_idle() -> None:
    watch, now_s = working()
    assert watch.report_at(now_s + 5).state == JobState.TRAINING
    assert watch.report_at(now_s + 60).state == JobState.UNKNOWN
    missing = np.full((GPUS, 10), np.nan)
    watch.update(now_s + np.arange(10) / 10, {"power_watts": missing, "gpu_utilization": missing})
    assert watch.report.state == JobState.UNKNOWN


@pytest.mark.parametrize("tick_s", [15.0, 60.0])
def test_ticks_that_come_every_quarter_of_a_minute_are_no_silence(tick_s: float) -> None:
    watch = StateWatch(GPUS)
    now_s = 0.0

    def scrape(count: int, gpus: tuple[float, float]) -> None:
        nonlocal now_s
        for _ in range(count):
            watch.update(np.array([now_s]), {
                "power_watts": np.full((GPUS, 1), gpus[0]), "gpu_utilization": np.full((GPUS, 1), gpus[1]),
            })  # fmt: skip
            now_s += tick_s

    scrape(8, IDLE)
    scrape(60, WORKS)
    assert [span.state for span in watch.spans] == [JobState.STARTING, JobState.TRAINING]
    assert watch.report_at(now_s + 1.5 * tick_s).state == JobState.TRAINING
    assert watch.report_at(now_s + 5 * tick_s).state == JobState.UNKNOWN
    now_s += 40 * tick_s
    scrape(10, WORKS)
    assert [span.state for span in watch.spans][-2:] == [JobState.UNKNOWN, JobState.TRAINING]
    begin_s = now_s
    scrape(12, WAITS)
    assert watch.report.state == JobState.HUNG
    assert watch.report.start_s == pytest.approx(begin_s, abs=2 * tick_s)


def test_half_of_the_gpus_without_values_do_not_change_the_answer() -> None:
    watch, now_s = working()
    power = np.full((GPUS, 1), WORKS[0])
    power[::2] = np.nan
    for second in range(100):
        watch.update(np.array([now_s + second]), {"power_watts": power, "gpu_utilization": np.ones((GPUS, 1))})
    assert watch.report.state == JobState.TRAINING


def test_a_short_rest_behind_an_evaluation_is_told_where_it_is_and_with_its_own_load() -> None:
    watch, now_s = working(300)
    for _ in range(3):
        now_s = show(watch, now_s, 8, (330.0, 1.0))
        rest_s = now_s
        now_s = show(watch, now_s, 2, IDLE)
        now_s = show(watch, now_s, 40, WORKS)
        rest = next(span for span in watch.spans if span.state == JobState.IDLE and span.end_s > rest_s)
        evaluation = next(span for span in watch.spans if span.state == JobState.EVALUATING and span.end_s > rest_s - 6)
        assert rest.start_s == pytest.approx(rest_s, abs=1.2)
        assert rest.end_s == pytest.approx(rest_s + 2, abs=1.2)
        assert evaluation.start_s == pytest.approx(rest_s - 8, abs=1.2)
        assert rest.reason == "the load is at 0 % of its range"


@pytest.mark.parametrize("known", ["cycles", "that it trains"])
def test_pauses_in_every_step_are_no_states_of_their_own(known: str) -> None:
    """Steps of 10 s of which the GPUs wait for data for 4 s: a loader that became slow."""
    watch, now_s = working(300)
    trains = EpochDetection(Verdict.NONE, "", run_state=RunState.TRAINING, run_state_confidence=0.7)
    watch.note_detection(cycles_of(6.0, now_s) if known == "cycles" else trains)
    seen = []
    for step in range(30):
        now_s = show(watch, now_s, 6, WORKS)
        now_s = show(watch, now_s, 4, IDLE)
        seen += [watch.report.state] if step > 9 else []
    assert set(seen) == {JobState.TRAINING}
    assert "pauses in them: once in 10" in watch.report.reason
    # One that does not end is an alarm as ever.
    now_s = show(watch, now_s, 60, IDLE)
    assert watch.report.state in (JobState.STALLED, JobState.HUNG)


def test_slower_is_said_in_the_place_of_training() -> None:
    watch, now_s = working()
    watch.note_slower("cycles take 44 s since 12:00, 40 s before")
    now_s = show(watch, now_s, 10, WORKS)
    assert watch.report.state == JobState.SLOWER
    watch.note_slower("")
    show(watch, now_s, 10, WORKS)
    assert watch.report.state == JobState.TRAINING


def test_what_was_called_training_since_the_cycles_take_longer_is_slower_once_that_is_known() -> None:
    watch, now_s = working()
    now_s = show(watch, now_s, 40, WORKS)
    watch.note_slower("cycles take 44 s, 40 s before", now_s - 25.5)
    show(watch, now_s, 10, WORKS)
    trained, slower = watch.spans[-2:]
    assert (trained.state, slower.state) == (JobState.TRAINING, JobState.SLOWER)
    assert trained.end_s == slower.start_s == now_s - 25.5
    assert slower.reason == "cycles take 44 s, 40 s before"


# An exchange takes a fifth of a step; waiting for data a third, or half.
@pytest.mark.parametrize(
    ("step_s", "gap", "watts_in_it"),
    [(1.2, 0.2, 230.0), (1.33, 0.2, 230.0), (2.3, 0.2, 230.0), (1.1, 0.55, 90.0), (1.9, 0.3, 230.0), (3.3, 0.3, 90.0)],
)
def test_steps_that_beat_with_the_seconds_are_no_evaluations(step_s: float, gap: float, watts_in_it: float) -> None:
    watch, now_s = StateWatch(GPUS), 0.0
    now_s = show(watch, now_s, 30, IDLE)
    rng = np.random.default_rng(4)
    time_s = now_s + np.sort(np.arange(4000) / 10 + rng.uniform(0, 0.06, 4000))
    lengths_s = step_s * np.exp(rng.normal(0, 0.015, 400))
    place = np.interp(time_s, now_s + np.concatenate([[0.0], np.cumsum(lengths_s)]), np.arange(401)) % 1
    watts = np.tile(np.where(place < gap, watts_in_it, 620.0), (GPUS, 1)) * np.exp(rng.normal(0, 0.01, (GPUS, 4000)))
    edges = np.searchsorted(time_s, np.arange(now_s, time_s[-1] + 1))
    for begin, stop in pairwise(edges):
        watch.update(time_s[begin:stop], {"power_watts": watts[:, begin:stop]})
    assert evaluated(watch, now_s) <= 4
    assert all(span.end_s - span.start_s > 0.5 for span in watch.spans)


# The wait for data after each step of half a second.
@pytest.mark.parametrize("wait_s", [0.08, 0.1, 0.15, 0.6])
def test_a_loader_that_becomes_slow_is_no_evaluation(wait_s: float) -> None:
    rng = np.random.default_rng(6)
    watch, now_s = working(120)
    time_s = now_s + np.arange(2000) / 10
    ends_s = now_s + np.cumsum((0.5 + wait_s) * np.exp(rng.normal(0, 0.03, 500)))
    share = np.interp(time_s[:, None] + np.arange(8) / 80, ends_s, np.arange(500)) % 1 * (0.5 + wait_s) < 0.5
    watts = 120.0 + (WORKS[0] - 120.0) * share.mean(axis=1) * np.exp(rng.normal(0, 0.005, (GPUS, 2000)))
    for begin in range(0, 2000, 10):
        watch.update(time_s[begin : begin + 10], {"power_watts": watts[:, begin : begin + 10]})
    assert evaluated(watch, now_s) <= 4


def test_no_second_between_two_states_is_without_one() -> None:
    watch = StateWatch(GPUS)
    now_s = show(watch, 0.0, 30, IDLE, framebuffer_used_bytes=1e9)
    now_s = show(watch, now_s, 100, WORKS, framebuffer_used_bytes=40e9)
    show(watch, now_s, 20, IDLE, framebuffer_used_bytes=0.5e9)
    assert watch.report.state == JobState.ENDED
    for one, other in pairwise(watch.spans):
        assert one.end_s == other.start_s


def test_a_lower_load_from_where_cycles_take_longer_on_is_no_evaluation_once_that_is_known() -> None:
    watch, now_s = working(120)
    since_s, now_s = now_s, show(watch, now_s, 40, (450.0, 0.95))
    assert watch.report.state == JobState.EVALUATING
    watch.note_slower("its cycles take 10.8 s, 8 % longer than the 10 s before", since_s + 8)
    show(watch, now_s, 10, (450.0, 0.95))
    assert watch.report.state == JobState.SLOWER
    assert evaluated(watch, 0.0) == 0
    assert watch.report.start_s == pytest.approx(since_s, abs=4)


def test_an_evaluation_that_began_after_the_cycles_took_longer_stays_one() -> None:
    watch, now_s = working(180)
    watch.note_detection(epochs_of(36.0, now_s))
    begin_s, now_s = now_s, show(watch, now_s, 12, (450.0, 0.95))
    watch.note_slower("its cycles take 39 s, 8 % longer than the 36 s before", begin_s - 78)
    show(watch, now_s, 6, (450.0, 0.95))
    assert evaluated(watch, begin_s - 5) > 12
    assert [span.state for span in watch.spans][-2:] == [JobState.SLOWER, JobState.EVALUATING]


def test_a_restart_changes_nothing() -> None:
    rng = np.random.default_rng(5)
    watch, now_s = working()
    other = watch
    for _ in range(12):
        level = (IDLE, WAITS, WORKS, (450.0, 0.9))[int(rng.integers(4))]
        length = int(rng.integers(5, 70))
        show(watch, now_s, length, level)
        other = StateWatch.from_state(other.state())
        now_s = show(other, now_s, length, level)
        assert other.spans == watch.spans
        assert len(other.state()) < 40_000
    with pytest.raises(ValueError, match="no state of a job"):
        StateWatch.from_state(b'{"version": 3}')
    with pytest.raises(ValueError, match="version 0"):
        StateWatch.from_state(b'{"version": 0}')


def test_ticks_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="shape"):
        StateWatch(2).update(np.arange(3.0), {"power_watts": np.ones((3, 3))})


def test_the_answer_does_not_depend_on_how_seconds_are_cut_into_calls() -> None:
    rng = np.random.default_rng(0)
    time_s = np.arange(0.0, 300.0)
    power = np.repeat(np.where((time_s > 30) & (time_s < 200), 500.0, 70.0)[None], 2, axis=0) + rng.normal(
        0, 2, (2, 300)
    )
    one, many = StateWatch(2), StateWatch(2)
    one.update(time_s, {"power_watts": power})
    for second in range(300):
        many.update(time_s[second : second + 1], {"power_watts": power[:, second : second + 1]})
    assert one.spans == many.spans


def test_pauses_expected_by_growth() -> None:
    memory = PauseMemory()
    for index, length_s in enumerate((10.0, 20.0, 30.0, 40.0)):
        memory.add(100.0 * index, length_s, rested=False)
    assert memory.expected_s == pytest.approx(50.0)
    assert memory.cycle_s == pytest.approx(100.0)
    patience = {"period_s": 60.0, "may_think": False}
    assert PauseMemory.of_fields(memory.fields()).patience_s(**patience) == memory.patience_s(**patience)


def test_one_gpu_that_rests_with_its_processes_may_be_somebody_who_thinks_and_is_given_ten_minutes() -> None:
    def marks(at_s: float) -> None:
        watch.note_marks(at_s, written_bytes_per_s=0.0, processors=1.0 if at_s < 200 else 0.01, processes=1)

    watch = StateWatch(1)
    show(watch, 0.0, 30, IDLE, marks)
    show(watch, 30.0, 170, WORKS, marks)
    show(watch, 200.0, 500, IDLE, marks)
    assert watch.report.state == JobState.IDLE
    show(watch, 700.0, 200, IDLE, marks)
    assert watch.report.state == JobState.HUNG


# A first epoch on a cold cache waits for its data in each step, as work that is no training does.
@pytest.mark.parametrize(
    ("before", "period_s", "state"), [(1.2, 1.25, "training"), (1.2, 2.4, "unknown"), (None, 1.2, "unknown")]
)
def test_steps_of_a_training_that_go_on_are_a_trainings_whatever_a_look_says_of_the_run(
    before: float | None, period_s: float, state: str
) -> None:
    watch, now_s = working()
    if before is not None:
        steps = replace(epochs_of(before, now_s, CycleRole.STEP).cycles[0], confidence=0.75)
        watch.note_detection(EpochDetection(Verdict.NONE, "", cycles=(steps,), run_state=RunState.TRAINING))
        now_s = show(watch, now_s, 20, WORKS)
    for _ in range(2):
        cycle = epochs_of(period_s, now_s, CycleRole.UNKNOWN).cycles[0]
        told = EpochDetection(Verdict.NONE, "", cycles=(cycle,), run_state=RunState.OTHER, run_state_confidence=0.7)
        watch.note_detection(told)
        now_s = show(watch, now_s, 20, WORKS)
        assert watch.report.state == state


@pytest.mark.parametrize("by_power", [False, True])
@pytest.mark.parametrize(
    ("resting", "period_s", "state"), [(4, 10.0, "training"), (4, 20.0, "unknown"), (0, 10.0, "unknown")]
)
def test_cycles_of_a_training_go_on_being_ones_where_some_gpus_rest_and_the_mean_of_all_looks_like_none(
    resting: int, period_s: float, state: str, *, by_power: bool
) -> None:
    watch = StateWatch(GPUS)
    rest, work = ((watts, math.nan if by_power else use) for watts, use in (IDLE, WORKS))
    now_s = show(watch, 0.0, 30, rest)
    some = [rest] * resting + [work] * (GPUS - resting)
    now_s = show(watch, now_s, 60, some)
    watch.note_detection(cycles_until(now_s))
    now_s = show(watch, now_s, 60, some)
    cycle = replace(epochs_of(period_s, now_s, CycleRole.UNKNOWN).cycles[0], confidence=1.0)
    told = EpochDetection(Verdict.NONE, "", cycles=(cycle,), run_state=RunState.OTHER, run_state_confidence=0.9)
    watch.note_detection(told)
    watch = StateWatch.from_state(watch.state())
    now_s = show(watch, now_s, 20, some)
    assert watch.report.state == state
    watch.note_detection(replace(told))
    show(watch, now_s, 100, work)
    assert watch.report.state == state


@pytest.mark.parametrize(("pauses_s", "state"), [((2, 2, 1, 2), JobState.STALLED), ((30, 2, 200, 5), JobState.IDLE)])
def test_one_gpu_that_seems_to_train_and_has_paused_as_a_program_does_is_not_given_ten_minutes(
    pauses_s: Sequence[int], state: JobState
) -> None:
    watch = StateWatch(1)
    now_s = show(watch, 0.0, 30, IDLE)
    for pause_s in pauses_s:
        now_s = show(watch, now_s, 60, WORKS)
        now_s = show(watch, now_s, pause_s + 1, IDLE)
    watch.note_detection(EpochDetection(Verdict.NONE, "", run_state=RunState.TRAINING, run_state_confidence=0.6))
    now_s = show(watch, now_s, 60, WORKS)
    now_s = show(watch, now_s, 20, IDLE)
    # A look that sees the hang, too.
    watch.note_detection(EpochDetection(Verdict.NONE, "", run_state=RunState.OTHER, run_state_confidence=0.6))
    show(watch, now_s, 40, IDLE)
    assert watch.report.state == state


@pytest.mark.parametrize(
    ("paused_s", "work_s", "confidence", "pause_s", "state"),
    [
        ([6], 90, 0.7, 0, JobState.STALLED), ([6], 40, 0.7, 0, JobState.IDLE), ([6], 90, 0.6, 0, JobState.IDLE),
        ([6, 6], 30, 0.7, 0, JobState.STALLED),
        ([6], 90, 0.7, 20, JobState.IDLE),  # so it seems of the pause alone
        ([0], 90, 0.7, 0, JobState.IDLE),  # somebody's first try may last as long
    ],
)  # fmt: skip
def test_one_gpu_that_has_paused_and_trained_for_more_than_a_minute_is_not_given_ten(
    paused_s: list[int], work_s: int, confidence: float, pause_s: int, state: JobState
) -> None:
    watch = StateWatch(1)
    now_s = show(watch, 0.0, 30, IDLE)
    for each_s in paused_s:
        now_s = show(watch, now_s, 10, WORKS)
        now_s = show(watch, now_s, each_s, IDLE)
    now_s = show(watch, now_s, work_s, WORKS)
    now_s = show(watch, now_s, pause_s, IDLE)
    watch.note_detection(seems_to_train(confidence))
    now_s = show(watch, now_s, 20, IDLE)
    watch.note_detection(seems_to_train(0.5))  # a look that sees the hang, too
    show(watch, now_s, 40, IDLE)
    assert watch.report.state == state


def test_a_look_into_an_evaluation_tells_of_the_rest_behind_it_that_it_is_no_thought() -> None:
    watch = StateWatch(1)
    now_s = show(watch, 0.0, 30, IDLE)
    for _ in range(4):
        now_s = show(watch, now_s, 10, WORKS)
        now_s = show(watch, now_s, 3, IDLE)
    now_s = show(watch, now_s, 10, WORKS)
    now_s = show(watch, now_s, 10, (250.0, 0.4))
    watch.note_detection(seems_to_train(0.9))
    now_s = show(watch, now_s, 10, (250.0, 0.4))
    watch.note_detection(EpochDetection(Verdict.NONE, "", run_state=RunState.OTHER, run_state_confidence=0.6))
    now_s = show(watch, now_s, 3, (250.0, 0.4))
    show(watch, now_s, 60, IDLE)
    assert watch.report.state == JobState.STALLED


@pytest.mark.parametrize(("confidence", "state"), [(0.7, JobState.HUNG), (0.5, JobState.EVALUATING)])
def test_a_run_that_most_likely_trains_need_not_do_so_evenly_to_be_asked(confidence: float, state: JobState) -> None:
    watch = StateWatch(GPUS)
    now_s = show(watch, 0.0, 30, IDLE)
    for _ in range(15):
        now_s = show(watch, show(watch, now_s, 1, WORKS), 1, (400.0, 0.9))
    watch.note_detection(seems_to_train(confidence))
    show(watch, now_s, 60, WAITS)
    assert watch.report.state == state


@pytest.mark.parametrize(
    ("load", "state"), [(WAITS, JobState.HUNG), (IDLE, JobState.IDLE), ((150.0, 0.0), JobState.IDLE)]
)
def test_nobody_thinks_while_the_gpus_of_a_training_draw_more_than_idle_ones(
    load: tuple[float, float], state: JobState
) -> None:
    watch, now_s = working()
    for pause_s in (4, 4, 4, 40, 40):
        now_s = show(watch, show(watch, now_s, pause_s, IDLE), 40, WORKS)
    watch.note_detection(seems_to_train(0.6))
    show(watch, now_s, 75, load)
    assert watch.report.state == state


@pytest.mark.parametrize(("usual_s", "scatter", "hangs"), [(15, 0.2, True), (15, 1.0, False), (2, 0.2, True)])
@pytest.mark.parametrize("processors_at_rest", [np.nan, 0.01])
def test_one_gpu_whose_pauses_are_alike_hangs_in_a_longer_one_whatever_it_does(
    usual_s: float, scatter: float, processors_at_rest: float, hangs: bool
) -> None:
    watch, now_s = StateWatch(1), 30.0
    show(watch, 0.0, 30, IDLE)

    def rest(seconds: int) -> bool:
        show(watch, now_s, seconds, IDLE, lambda at_s: watch.note_marks(at_s, processors=processors_at_rest))
        return watch.report.state in (JobState.STALLED, JobState.HUNG)

    for pause_s in usual_s * np.exp(np.random.default_rng(4).normal(0, scatter, 26)):
        now_s = show(watch, now_s, 40, WORKS, lambda at_s: watch.note_marks(at_s, processors=1.0))
        watch.note_detection(EpochDetection(Verdict.NONE, "", run_state=RunState.OTHER, run_state_confidence=0.8))
        assert not rest(max(1, round(pause_s)))
        now_s += max(1, round(pause_s))
    now_s = show(watch, now_s, 40, WORKS)
    assert rest(60) is hangs


@pytest.mark.parametrize(("confidence", "state"), [(0.7, JobState.STALLED), (0.0, JobState.STARTING)])
def test_a_node_that_draws_a_quarter_more_has_begun_where_it_is_known_to_train(
    confidence: float, state: JobState
) -> None:
    watch = StateWatch(1)
    load = np.repeat([600.0, 750.0, 610.0], [60, 300, 60]) * np.exp(np.random.default_rng(1).normal(0, 0.005, 420))
    detection = EpochDetection(
        Verdict.NONE, "", run_state=RunState.TRAINING if confidence else None, run_state_confidence=confidence
    )
    for second, watts in enumerate(load):
        if second % 60 == 0:
            watch.note_detection(detection)
        watch.update(np.array([float(second)]), {"power_watts": np.array([[watts]])})
    assert watch.report.state == state


def test_short_pauses_are_the_programs_own_however_unlike_they_are() -> None:
    memory = PauseMemory()
    for index, length_s in enumerate((0.5, 1.0, 14.0, 2.0, 14.0)):
        memory.add(60.0 * index, length_s, rested=False)
    assert memory.are_even
    memory.add(400.0, 200.0, rested=False)
    assert not memory.are_even


def test_a_pause_is_as_long_as_the_cycle_of_the_job_lets_expect() -> None:
    memory = PauseMemory()
    patience = {period_s: memory.patience_s(period_s=period_s, may_think=False) for period_s in (10.0, 1000.0)}
    assert patience[10.0] == 48.0
    assert patience[1000.0] == 150.0


COMPUTES = {"sm_active": 0.8, "tensor_active": 0.3, "dram_active": 0.4}
SPINS = {"sm_active": 0.1, "tensor_active": 0.0, "dram_active": 0.01}


@pytest.mark.parametrize(
    ("before", "after", "hangs"),
    [
        (COMPUTES, SPINS, True),
        (COMPUTES, {**SPINS, "dram_active": 0.3}, False),
        (COMPUTES, {**SPINS, "sm_active": 0.8}, False),
        (COMPUTES, {**SPINS, "dram_active": np.nan}, False),
        (SPINS, SPINS, False),  # so small its kernels are
    ],
)
@pytest.mark.parametrize("run_state", [RunState.TRAINING, RunState.OTHER])
def test_kernels_that_compute_nothing_are_no_work_whatever_they_draw_in_a_job_that_computes(
    before: dict[str, float], after: dict[str, float], hangs: bool, run_state: RunState
) -> None:
    watch = StateWatch(2)
    now_s = show(watch, 0.0, 30, IDLE, sm_active=0.0, tensor_active=0.0, dram_active=0.0)
    now_s = show(watch, now_s, 16, (550.0, 1.0), **before)
    watch.note_detection(EpochDetection(Verdict.NONE, "", run_state=run_state, run_state_confidence=0.8))
    now_s = show(watch, now_s, 20, (545.0, 1.0), **after)
    assert watch.report.state == JobState.UNKNOWN or not hangs
    show(watch, now_s, 40, (545.0, 1.0), **after)
    assert (watch.report.state == JobState.HUNG) is hangs
    assert evaluated(watch, 0.0) == 0


def test_a_trial_that_has_hardly_worked_does_not_load_its_data_in_kernels_that_compute_nothing() -> None:
    watch = StateWatch(2)
    metrics = {"sm_active": 0.9, "tensor_active": 0.4, "dram_active": 0.5}
    now_s = show(watch, 0.0, 30, IDLE, framebuffer_used_bytes=1e9, **dict.fromkeys(metrics, 0.0))
    now_s = show(watch, now_s, 100, WORKS, framebuffer_used_bytes=40e9, **metrics)
    watch.note_detection(seems_to_train(0.8))
    now_s = show(watch, now_s, 10, IDLE, framebuffer_used_bytes=1e9, **dict.fromkeys(metrics, 0.0))
    now_s = show(watch, now_s, 4, WORKS, framebuffer_used_bytes=40e9, **metrics)
    show(watch, now_s, 60, (300.0, 1.0), framebuffer_used_bytes=40e9, **SPINS)
    assert watch.report.state == JobState.HUNG


def test_one_gpu_that_computes_is_work_however_many_wait_for_it() -> None:
    metrics = ["gpu_utilization", *SPINS]
    values = np.repeat(np.array([[1.0], *([share] for share in SPINS.values())]), 8, axis=1)[..., None]
    for dram, waits in ((0.01, True), (0.3, False)):
        values[-1, 3] = dram
        (second,) = JobSecond.measure([0.0], [0, 1], metrics, values)
        assert (second.waits, second.computes) == (waits, not waits)


def test_an_evaluation_that_generates_is_no_hang_though_its_power_stands_still() -> None:
    watch = StateWatch(GPUS)
    now_s = show(watch, 0.0, 30, IDLE)
    scatter = np.exp(np.random.default_rng(0).normal(0, 0.05, 600))
    for watts in 550.0 * scatter:
        now_s = show(watch, now_s, 1, (float(watts), 0.97))
    show(watch, now_s, 180, (400.0, 1.0))
    assert watch.report.state == JobState.EVALUATING


def draw(
    watch: StateWatch, begin_s: int, seconds: int, watts: float, scatter: float = 0.015, processes: int = 1
) -> int:
    """Show seconds of a node to a watch, of which power is all that is metered; its processes work as it does."""
    rng = np.random.default_rng(begin_s)
    for now_s in range(begin_s, begin_s + seconds):
        watch.note_marks(float(now_s), written_bytes_per_s=0.0, processors=float(watts > 100), processes=processes)
        watch.update(np.array([float(now_s)]), {"power_watts": watts * np.exp(rng.normal(0, scatter, (1, 1)))})
    return begin_s + seconds


def test_processors_that_spin_beside_a_node_whose_power_scatters_do_not_work_on() -> None:
    """A node draws so much at rest that its scatter is a part of the range, as is what a kernel that waits draws."""
    watch, idle, busy = StateWatch(1), 1400.0, 2150.0
    hung_s = draw(watch, draw(watch, 0, 60, idle, 0.0), 300, busy)
    draw(watch, hung_s, 60, idle + 0.17 * (busy - idle))
    assert watch.report.state == JobState.HUNG
    assert watch.report.start_s == pytest.approx(hung_s, abs=4)


def test_another_level_of_one_of_many_programs_is_no_hang_where_only_power_is_known() -> None:
    """Programs of a queue do different work one after the other; each has processes of its own."""
    watch, idle, busy = StateWatch(1), 60.0, 400.0

    def program(begin_s: int) -> int:
        return draw(watch, draw(watch, begin_s, 20, idle), 100, busy)

    part = idle + 0.45 * (busy - idle)
    draw(watch, program(0), 60, part)
    assert watch.report.state == JobState.HUNG
    watch = StateWatch(1)
    now_s = 0
    for _ in range(2):
        now_s = draw(watch, program(now_s), 20, idle, processes=0)
    now_s = draw(watch, program(now_s), 60, part)
    assert watch.report.state == JobState.EVALUATING
    draw(watch, draw(watch, now_s, 60, busy), 100, idle)
    assert watch.report.state == JobState.HUNG
