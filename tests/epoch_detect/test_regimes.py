"""Runs whose epochs take longer, or shorter, from some point on."""

import functools

import numpy as np
import pytest
from support.epoch_traces import trace_of

from gpusonde.epoch_detect import EpochDetection, EpochTracker, detect
from gpusonde.epoch_detect.cycles.boundaries import Epochs
from gpusonde.epoch_detect.cycles.detector import mean_period
from gpusonde.epoch_detect.progress import duration_trend
from gpusonde.telemetry import Trace


@functools.cache
def _two_regimes(factor: float) -> tuple[Trace, np.ndarray]:
    scatter = np.random.default_rng(3).normal(1, 0.01, 18)
    lengths = scatter * np.repeat([12.0, 12.0 * factor], 9)
    return trace_of([[(0.8 * s, 0.8), (0.2 * s, 0.35)] for s in lengths])


@functools.cache
def _detected(factor: float) -> EpochDetection:
    return detect(_two_regimes(factor)[0])


@pytest.mark.parametrize("factor", [0.5, 0.6, 0.7, 1.5, 2.0])
def test_the_period_is_that_of_one_of_the_regimes(factor: float) -> None:
    assert min(abs(_detected(factor).period_s / p - 1) for p in (12.0, 12.0 * factor)) < 0.02


@pytest.mark.parametrize("factor", [0.6, 0.7, 1.5, 2.0])
def test_the_epochs_of_both_regimes_are_found(factor: float) -> None:
    starts, found = _two_regimes(factor)[1], _detected(factor)
    nearest = np.abs(starts[:, None] - found.epoch_starts_s).min(axis=1)
    assert (nearest < 0.3).sum() >= starts.size - 1
    (point,) = duration_trend((found.epoch_ends_s - found.epoch_starts_s)[1:]).change_points
    assert point.change == pytest.approx(factor - 1, abs=0.05)


def test_the_tracker_ends_with_the_same_epochs() -> None:
    trace, _ = _two_regimes(1.5)
    tracker = EpochTracker(trace.metrics)
    values = np.array([trace.values[name] for name in trace.metrics])
    for first in range(0, len(trace), 50):
        tracker.update(trace.time_s[first : first + 50], values[:, first : first + 50])
        tracker = EpochTracker.restore(tracker.state())
    tracker.finish()
    alive = [e.start_s for e in tracker.epochs if e.stands]
    np.testing.assert_allclose(alive, _detected(1.5).epoch_starts_s, atol=1e-5)


def test_the_tracker_looks_again_where_cycles_go_on_otherwise_and_tells_the_tempo_of_today() -> None:
    lengths = np.random.default_rng(3).normal(1, 0.01, 45) * np.repeat([12.0, 25.0], [18, 27])
    trace, starts = trace_of([[(0.8 * s, 0.8), (0.2 * s, 0.35)] for s in lengths])
    tracker, values = EpochTracker(trace.metrics), np.array([trace.values[name] for name in trace.metrics])
    told = []
    for first in range(0, len(trace), 50):
        tracker.update(trace.time_s[first : first + 50], values[:, first : first + 50])
        if tracker.detection is not None:
            told.append((float(trace.time_s[first]), tracker.detection.period_s))
    assert told[-1][1] == pytest.approx(25.0, rel=0.02)
    assert next(at for at, period_s in told if period_s > 24.0) < 3.5 * starts[18]


def test_the_period_is_that_of_the_longer_stretch_and_not_a_mean_of_both() -> None:
    lengths = np.array([40.0, 40.5, 39.8, 40.2, 79.0, 79.5, 80.0, 79.2, 79.6])
    ends = np.cumsum(lengths)
    period, low, high = mean_period(Epochs(ends - lengths, ends, np.ones(9, dtype=bool)), 0.1)
    assert period == pytest.approx(79.46)
    assert low < period < high


def test_epochs_of_scattered_length_are_one_regime() -> None:
    lengths = np.array([10.0, 14.0, 10.0, 15.0, 10.0, 14.5, 10.0, 10.0])
    ends = np.cumsum(lengths)
    assert mean_period(Epochs(ends - lengths, ends, np.ones(8, dtype=bool)), 0.1)[0] == pytest.approx(lengths.mean())
