"""``detect``: the epochs of a trace, whatever surrounds them, and no exception for whatever is handed in."""

import numpy as np
import pytest
from support.epoch_traces import training_trace

from gpusonde.epoch_detect import detect
from gpusonde.telemetry import Trace, TraceError, UnknownMetricError


def test_epochs_of_a_plain_training_run_are_found_with_their_places() -> None:
    trace, starts = training_trace()
    found = detect(trace)
    assert found.verdict == "epochs"
    assert found.period_s == pytest.approx(20.0, rel=0.005)
    assert found.period_low_s < 20.0 < found.period_high_s
    np.testing.assert_allclose(found.epoch_starts_s, starts, atol=0.11)
    assert found.end_s == pytest.approx(starts[-1] + 20.0, abs=0.2)
    np.testing.assert_allclose(found.epoch_ends_s[:-1], found.epoch_starts_s[1:])
    assert found.confidence > 0.8
    assert found.hypotheses[0].period_s == pytest.approx(20.0, rel=0.03)


@pytest.mark.parametrize("interval_s", [0.1, 0.25, 1.0])
def test_sampling_rate_does_not_matter(interval_s: float) -> None:
    trace, _ = training_trace(40.0, 6, interval_s=interval_s)
    assert detect(trace).period_s == pytest.approx(40.0, rel=0.02)


def read_ever_more_rarely(trace: Trace, *, young_s: float, factor: int) -> Trace:
    """The trace as an agent at the adaptive rate reads it: at full rate first, then averages over ``factor`` ticks."""
    young = int(np.searchsorted(trace.time_s, young_s))
    ends = np.arange(young, len(trace) - factor, factor) + factor
    times = np.concatenate([trace.time_s[:young], trace.time_s[ends - 1]])
    values = {
        name: np.concatenate([column[:young], column[young : ends[-1]].reshape(-1, factor).mean(axis=1)])
        for name, column in trace.values.items()
    }
    return Trace(times, values)


@pytest.mark.parametrize(("young_s", "factor"), [(60.0, 5), (60.0, 20), (30.0, 20)])
def test_epochs_of_a_job_that_is_read_ever_more_rarely_are_those_of_full_rate(young_s: float, factor: int) -> None:
    trace, starts = training_trace(30.0, 16)
    thinned = read_ever_more_rarely(trace, young_s=young_s, factor=factor)
    found = detect(thinned)
    # Fifteen readings of two seconds: what it does within an epoch was seen at full rate before.
    assert found.verdict == "epochs"
    assert found.period_s == pytest.approx(30.0, rel=0.005)
    np.testing.assert_allclose(found.epoch_starts_s, starts, atol=0.4 + 0.05 * factor)


def test_a_cycle_of_few_ticks_remains_a_short_cycle_where_all_ticks_are_rare() -> None:
    trace, _ = training_trace(30.0, 16)
    assert detect(read_ever_more_rarely(trace, young_s=0.0, factor=20)).verdict == "short_cycle"


@pytest.mark.parametrize(("head_s", "tail_s"), [(0.0, 14.0), (14.0, 0.0), (3.3, 7.7), (15.0, 15.0)])
def test_idle_around_the_activity_does_not_change_the_epochs(head_s: float, tail_s: float) -> None:
    trace, _ = training_trace()
    whole = detect(trace)
    cut = detect(trace.window(trace.time_s[0] + head_s, trace.time_s[-1] - tail_s))
    np.testing.assert_allclose(cut.epoch_starts_s, whole.epoch_starts_s, atol=1e-6)
    assert cut.period_s == pytest.approx(whole.period_s, abs=1e-6)


def test_float32_values_and_wall_clock_times_give_the_same_epochs() -> None:
    trace, _ = training_trace()
    there = Trace(trace.time_s + 1.7e9, {k: v.astype(np.float32).astype(float) for k, v in trace.values.items()})
    one, other = detect(trace), detect(there)
    np.testing.assert_allclose(other.epoch_starts_s - 1.7e9, one.epoch_starts_s, atol=2e-6)
    assert other.period_s == pytest.approx(one.period_s, abs=1e-6)


def test_holes_and_missing_values_are_survived() -> None:
    trace, _ = training_trace()
    keep = np.random.default_rng(0).random(len(trace)) > 0.05
    keep[700:760] = False
    values = {k: v.copy() for k, v in trace.values.items()}
    values["power_watts"][::2] = np.nan
    holey = Trace(trace.time_s[keep], {k: v[keep] for k, v in values.items()})
    assert detect(holey).period_s == pytest.approx(20.0, rel=0.01)


def test_a_cycle_of_under_twenty_ticks_is_a_short_cycle() -> None:
    trace, _ = training_trace(1.2, 120)
    found = detect(trace)
    assert found.verdict == "short_cycle"
    assert found.period_s == pytest.approx(1.2, rel=0.02)
    assert "iteration or epoch" in found.reason


def _trace(columns: dict[str, np.ndarray]) -> Trace:
    n = len(next(iter(columns.values())))
    return Trace(np.arange(n) * 0.1, columns)


@pytest.mark.parametrize(
    ("trace", "reason"),
    [
        (Trace(np.empty(0), {"dram_active": np.empty(0)}), "0 ticks"),
        (Trace(np.array([1.0]), {"dram_active": np.array([0.5])}), "1 ticks"),
        (_trace({"dram_active": np.linspace(0, 1, 31)}), "31 ticks; at least 32"),
        (_trace({"dram_active": np.full(500, np.nan)}), "no metric has a value"),
        (_trace({"dram_active": np.zeros(500)}), "works for 0 ticks only"),
        (_trace({"dram_active": np.full(500, 0.7)}), "constant"),
        (Trace(np.arange(100.0), {}), "no metric has a value"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_hopeless_traces_get_none_with_the_reason(trace: Trace, reason: str) -> None:
    found = detect(trace)
    assert found.verdict == "none"
    assert reason in found.reason
    assert np.isnan(found.period_s)
    assert found.confidence == 0
    assert found.epoch_starts_s.size == 0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("mode", ["default", "paper", "notebook"])
@pytest.mark.parametrize("seed", range(3))
def test_no_trace_makes_a_detector_raise_or_warn(mode: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for n in (32, 47, 300, 2100)[: 3 + (seed == 0)]:
        for column in (
            rng.normal(size=n),
            rng.random(n) * (rng.random(n) < 0.1),
            np.where(rng.random(n) < 0.9, np.nan, 1.0),
            np.repeat(rng.random(n // 8 + 1), 8)[:n],
            np.full(n, 1e30) * rng.random(n),
            np.cumsum(rng.normal(size=n)),
        ):
            time = np.cumsum(rng.choice([0.1, 0.1, 1.0, 30.0], n))
            detect(Trace(time, {"gpu_utilization": column, "dram_active": column[::-1].copy()}), mode=mode)


def test_a_metric_that_the_trace_does_not_hold_is_an_error_that_says_what_it_holds() -> None:
    trace, _ = training_trace(epochs=4)
    with pytest.raises(TraceError, match="no metric 'sm_active'; it has dram_active"):
        detect(trace, metrics=["sm_active"])
    with pytest.raises(UnknownMetricError):
        detect(trace, metrics=["sm_activ"])
    with pytest.raises(TraceError, match="no metric was chosen"):
        detect(trace, metrics=[])


def test_unknown_mode_or_engine_is_an_error() -> None:
    trace, _ = training_trace(epochs=4)
    with pytest.raises(ValueError, match="unknown mode 'papr'"):
        detect(trace, mode="papr")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown engine 'lumino'"):
        detect(trace, engine="lumino")  # type: ignore[arg-type]


def test_one_chosen_metric_suffices() -> None:
    trace, _ = training_trace()
    for name in trace.metrics:
        found = detect(trace, metrics=[name])
        assert found.metrics == (name,)
        assert found.period_s == pytest.approx(20.0, rel=0.01)


def test_a_long_stretch_without_ticks_is_named_because_epochs_in_it_are_guesses() -> None:
    trace, _ = training_trace()
    time_s = trace.time_s.copy()
    time_s[600:] += 3600.0
    (warning,) = detect(Trace(time_s, trace.values)).warnings
    assert "no ticks for 3,600.1 s after" in warning
    assert "clock jumped" in warning
    assert detect(trace).warnings == ()


@pytest.mark.parametrize("first_tick_s", np.arange(0.0, 2.4, 0.1))
def test_a_short_look_at_a_ramp_gives_its_period_wherever_it_begins(first_tick_s: float) -> None:
    time_s = np.arange(130) * 0.1 + np.random.default_rng(7).normal(0, 5e-4, 130)
    level = 0.2 + 0.6 * (((time_s + first_tick_s) % 2.4) / 2.4)
    found = detect(Trace(time_s, {"sm_active": level, "power_watts": 100 + 400 * level}))
    assert found.period_s == pytest.approx(2.4, rel=0.02)
