"""The tree of cycles: levels of constructed jobs, what a user tells of them, several GPUs, and input that is no use."""

import numpy as np
import pytest
from support.epoch_traces import trace_of, training_trace

from gpusonde.epoch_detect import Cycle, CycleRole, EpochDetection, RunState, Told, detect
from gpusonde.epoch_detect.cycles.roles import JUDGED_ROLES, ROLE_FEATURES, NamedLevel, name_levels, settle
from gpusonde.telemetry import Trace


def nest(epochs: int = 6, per_epoch: int = 4) -> tuple[Trace, np.ndarray]:
    """Epochs of so many evaluations each, and a checkpoint at their end."""
    part = [(12.0, 0.8), (2.0, 0.35)]
    return trace_of([part * per_epoch + [(4.0, 0.02)] for _ in range(epochs)])


def near(found: EpochDetection, period_s: float) -> Cycle:
    return min(found.cycles, key=lambda c: abs(np.log(c.period_s / period_s)))


def test_both_levels_of_a_nest_are_told_shortest_first_with_the_parent() -> None:
    trace, starts = nest()
    found = detect(trace)
    periods = [c.period_s for c in found.cycles]
    assert periods == sorted(periods)
    assert len(periods) <= 5
    evaluation, epoch = near(found, 14.0), near(found, 60.0)
    assert evaluation.period_s == pytest.approx(14.0, rel=0.03)
    assert epoch.period_s == pytest.approx(60.0, rel=0.03)
    assert evaluation.confidence > 0.5
    assert epoch.confidence > 0.5
    assert evaluation.parent is not None
    assert found.cycles[evaluation.parent].period_s > evaluation.period_s
    assert epoch.count == pytest.approx(len(starts), abs=1)
    assert evaluation.count == pytest.approx(4 * len(starts), abs=2)
    assert epoch.period_low_s < epoch.period_s < epoch.period_high_s
    assert np.all(np.diff(epoch.starts_s) > 0)


def test_the_level_that_the_epochs_tell_is_named() -> None:
    trace, _ = training_trace()
    found = detect(trace)
    assert found.level is not None
    assert found.cycles[found.level].period_s == pytest.approx(found.period_s, rel=0.1)


def test_the_number_of_epochs_chooses_the_level() -> None:
    trace, starts = nest()
    found = detect(trace, told=Told(total_epochs=len(starts)))
    assert found.period_s == pytest.approx(60.0, rel=0.03)
    assert found.level is not None
    assert found.cycles[found.level].role == CycleRole.EPOCH
    found = detect(trace, told=Told(total_epochs=4 * len(starts)))
    assert found.period_s == pytest.approx(14.0, rel=0.1)


def test_what_a_cycle_is_can_be_told() -> None:
    trace, _ = nest()
    found = detect(trace, told=Told(roles=((14.0, CycleRole.EVALUATION), (60.0, CycleRole.EPOCH))))
    assert near(found, 14.0).role == CycleRole.EVALUATION
    assert near(found, 14.0).role_confidence == 1.0
    assert found.period_s == pytest.approx(60.0, rel=0.03)
    assert "500 s" in " ".join(detect(trace, told=Told(roles=((500.0, CycleRole.TRIAL),))).warnings)


def level(period_s: float, count: int, guess: float = 0.5) -> NamedLevel:
    cycle = Cycle(period_s, period_s, period_s, count, period_s * np.arange(count + 1), 0.9)
    return NamedLevel(cycle, np.full(len(JUDGED_ROLES), 0.4), guess)


def test_a_level_that_exceeds_the_number_of_epochs_is_refuted() -> None:
    settled = settle([level(5.0, 80), level(40.0, 10)], Told(total_epochs=10), ended=True, span_s=400.0)
    assert settled.epoch == 1
    assert settled.refuted == {0}


def test_an_epoch_of_so_many_steps_is_chosen() -> None:
    settled = settle(
        [level(0.5, 800), level(5.0, 80), level(50.0, 8)], Told(steps_per_epoch=100), ended=True, span_s=400.0
    )
    assert settled.epoch == 2
    assert settled.levels[0].cycle.role == CycleRole.STEP


def test_a_ramp_and_holes_may_hide_some_of_the_epochs_told() -> None:
    settled = settle([level(5.0, 29), level(20.0, 7)], Told(total_epochs=35), ended=True, span_s=150.0)
    assert settled.epoch == 0
    assert settle([level(5.0, 20), level(20.0, 5)], Told(total_epochs=35), ended=True, span_s=105.0).epoch is None


def test_of_two_levels_the_one_that_fills_the_run_is_as_many_epochs_as_told() -> None:
    half, whole = level(47.0, 6, guess=0.3), level(94.0, 3, guess=0.3)
    assert settle([half, whole], Told(total_epochs=5), ended=True, span_s=468.0).epoch == 1
    assert settle([half, whole], Told(total_epochs=5), ended=True, span_s=240.0).epoch == 0


def test_an_epoch_told_has_more_steps_than_a_few() -> None:
    found = level(20.0, 15)
    sure = NamedLevel(found.cycle, np.where([r == CycleRole.STEP for r in JUDGED_ROLES], 0.6, 0.3), 0.5)
    assert settle([sure], Told(), ended=True, span_s=310.0).levels[0].cycle.role == CycleRole.STEP
    assert settle([sure], Told(total_epochs=1), ended=True, span_s=310.0).levels[0].cycle.role != CycleRole.STEP


def test_a_level_is_no_likelier_to_be_the_epoch_than_to_be_the_best_guess() -> None:
    roles = np.where([role == CycleRole.EPOCH for role in JUDGED_ROLES], 0.75, 0.05)
    for guess, stated in ((0.18, 0.2), (0.9, 0.75)):
        found = NamedLevel(level(20.0, 9).cycle, roles, guess)
        (named,) = settle([found], Told(), ended=False, span_s=200.0).levels
        assert (named.cycle.role, named.cycle.role_confidence) == (CycleRole.EPOCH, pytest.approx(stated))


@pytest.mark.parametrize(("high", "state"), [(0.0, RunState.IDLE), (0.9, RunState.TRAINING)])
def test_the_run_as_a_whole_is_named(high: float, state: RunState) -> None:
    trace, _ = nest()
    found = detect(Trace(trace.time_s, {name: high * values for name, values in trace.values.items()}))
    assert found.run_state == state
    assert 0.5 < found.run_state_confidence < 1


def test_what_is_hardly_a_training_has_no_epochs() -> None:
    cycle = level(20.0, 15).cycle
    features = np.full((1, len(ROLE_FEATURES)), np.nan)
    for training in (0.1, 0.9):
        roles = name_levels(features, [cycle], training=training)[0].roles
        assert (roles[JUDGED_ROLES.index(CycleRole.EPOCH)] > 0) == (training > 0.5)


def test_marks_that_a_single_metric_shows_at_work_are_no_checkpoint() -> None:
    cycles, features = [level(20.0, 15).cycle], np.full((1, len(ROLE_FEATURES)), np.nan)
    checkpoint, evaluation = JUDGED_ROLES.index(CycleRole.CHECKPOINT), JUDGED_ROLES.index(CycleRole.EVALUATION)
    seen = {}
    for metrics, idle_s in ((1, 0.0), (1, 3.0), (4, 0.0)):
        features[0, ROLE_FEATURES.index("metrics")] = metrics
        features[0, ROLE_FEATURES.index("idle_s")] = idle_s
        seen[metrics, idle_s] = name_levels(features, cycles, training=0.9)[0].roles
    assert seen[1, 0.0][checkpoint] == 0
    assert seen[1, 3.0][checkpoint] > 0
    assert seen[4, 0.0][checkpoint] > 0
    assert seen[1, 0.0][evaluation] > 0


def test_a_child_whose_count_the_total_divides_makes_the_epoch() -> None:
    settled = settle([level(5.0, 80)], Told(total_epochs=20), ended=True, span_s=400.0)
    assert settled.epoch == 1
    assert settled.levels[1].cycle.period_s == pytest.approx(20.0)
    assert settled.levels[1].cycle.count == 20


def test_several_gpus_of_a_job_give_one_answer_and_the_one_that_deviates_is_named() -> None:
    traces = [training_trace(seed=seed)[0] for seed in range(4)]
    late = Trace(traces[3].time_s, {name: np.roll(column, 40) for name, column in traces[3].values.items()})
    names = ["a", "b", "c", "d"]
    job = [Trace(t.time_s, dict(t.values), gpu_uuid=n) for t, n in zip([*traces[:3], late], names, strict=True)]
    found = detect(job)
    assert found.period_s == pytest.approx(20.0, rel=0.01)
    assert [(d.gpu, d.kind) for d in found.deviations] == [("d", "lag")]
    assert found.deviations[0].amount == pytest.approx(4.0, abs=0.3)
    assert detect(job[:3]).deviations == ()


def test_an_idle_gpu_of_a_job_is_named() -> None:
    traces = [training_trace(seed=seed)[0] for seed in range(3)]
    idle = Trace(traces[0].time_s, {name: np.zeros(len(traces[0])) for name in traces[0].values}, gpu_uuid="idle")
    found = detect([*(Trace(t.time_s, dict(t.values), gpu_uuid=str(i)) for i, t in enumerate(traces)), idle])
    assert found.period_s == pytest.approx(20.0, rel=0.01)
    assert [(d.gpu, d.kind) for d in found.deviations] == [("idle", "idle")]


@pytest.mark.parametrize("unknown", [("sm_active",), ("sm_active", "power_watts")])
def test_a_gpu_of_a_job_whose_use_is_not_known_is_not_said_to_be_idle(unknown: tuple[str, ...]) -> None:
    job = []
    for number in range(3):
        trace = training_trace(seed=number)[0]
        values = {"sm_active": trace.values["dram_active"], "power_watts": trace.values["power_watts"]}
        missing = dict.fromkeys(unknown if number == 1 else (), np.full(len(trace), np.nan))
        job.append(Trace(trace.time_s, values | missing, gpu_uuid=str(number)))
    found = detect(job)
    assert found.period_s == pytest.approx(20.0, rel=0.01)
    assert found.deviations == ()


@pytest.mark.parametrize(
    "values",
    [
        np.full(600, 0.5),
        np.full(600, np.nan),
        np.zeros(600),
        np.r_[np.full(300, np.nan), np.ones(300)],
        np.full(3, 0.7),
        np.empty(0),
        np.random.default_rng(1).random(600),
        np.r_[np.zeros(280), np.ones(40), np.zeros(280)],
    ],
)
def test_input_of_no_use_gives_fewer_levels_and_a_reason(values: np.ndarray) -> None:
    found = detect(Trace(np.arange(values.size) * 0.1, {"sm_active": values}))
    assert found.reason
    assert all(c.confidence < 0.9 for c in found.cycles)
    assert not any(c.role == CycleRole.EPOCH for c in found.cycles)


def test_holes_and_missing_values_leave_the_levels() -> None:
    trace, _ = nest()
    rng = np.random.default_rng(2)
    keep = rng.random(len(trace)) > 0.05
    keep[900:1000] = False
    dram = np.where(rng.random(len(trace)) < 0.05, np.nan, trace.values["dram_active"])
    found = detect(Trace(trace.time_s[keep], {"dram_active": dram[keep]}))
    assert near(found, 14.0).period_s == pytest.approx(14.0, rel=0.03)
