"""Stretches without ticks: no epoch is claimed for them, and they do not hide the epochs around them."""

import numpy as np
import pytest
from support.epoch_traces import trace_of, training_trace

from gpusonde.epoch_detect import EpochTracker, detect
from gpusonde.epoch_detect.progress import Shares
from gpusonde.epoch_detect.progress.table import time_shares
from gpusonde.epoch_detect.ticks import holes
from gpusonde.telemetry import Trace


def _without(trace: Trace, begin_s: float, end_s: float) -> Trace:
    keep = (trace.time_s < begin_s) | (trace.time_s >= end_s)
    return Trace(trace.time_s[keep], {name: values[keep] for name, values in trace.values.items()})


def _paused(trace: Trace, at_s: float, seconds: float) -> Trace:
    return Trace(trace.time_s + np.where(trace.time_s >= at_s, seconds, 0.0), dict(trace.values))


def test_epochs_that_nobody_saw_are_not_reported() -> None:
    trace, starts = training_trace(20.0, 12)
    begin, end = starts[4] + 3.0, starts[8] + 5.0
    found = detect(_without(trace, begin, end))
    assert found.period_s == pytest.approx(20.0, rel=0.01)
    np.testing.assert_allclose(found.epoch_starts_s, [*starts[:4], *starts[9:]], atol=0.2)
    assert any("no ticks for" in warning for warning in found.warnings)


def test_an_epoch_with_a_short_hole_in_it_is_reported() -> None:
    trace, starts = training_trace(20.0, 8)
    found = detect(_without(trace, starts[3] + 4.0, starts[3] + 9.0))
    np.testing.assert_allclose(found.epoch_starts_s, starts, atol=0.2)


@pytest.mark.parametrize("hole_s", [100.0, 3600.0, 86_400.0])
def test_a_hole_longer_than_the_run_does_not_hide_the_epochs_on_both_sides(hole_s: float) -> None:
    trace, starts = training_trace(20.0, 12)
    found = detect(_paused(trace, starts[6], hole_s))
    assert found.period_s == pytest.approx(20.0, rel=0.02)
    after = np.array(starts[6:]) + hole_s
    np.testing.assert_allclose(found.epoch_starts_s[:5], starts[:5], atol=0.2)
    np.testing.assert_allclose(found.epoch_starts_s[-5:], after[-5:], atol=0.2)
    inside = (found.epoch_starts_s > starts[6] + 1) & (found.epoch_ends_s < starts[6] + hole_s - 1)
    assert not inside.any()


def test_the_tracker_says_the_same_of_a_run_with_a_hole() -> None:
    trace, starts = training_trace(20.0, 10)
    broken = _paused(trace, starts[5], 300.0)
    tracker = EpochTracker(broken.metrics)
    tracker.update(broken.time_s, np.array([broken.values[name] for name in broken.metrics]))
    tracker.finish()
    alive = [e.start_s for e in tracker.epochs if e.status != "withdrawn"]
    np.testing.assert_allclose(alive, detect(broken).epoch_starts_s, atol=1e-5)


def _slower(trace: Trace, begin_s: float, end_s: float, every: int) -> Trace:
    """Only every so many ticks are kept in a stretch of time."""
    inside = (trace.time_s >= begin_s) & (trace.time_s < end_s)
    keep = ~inside | (np.arange(len(trace)) % every == 0)
    return Trace(trace.time_s[keep], {name: values[keep] for name, values in trace.values.items()})


def test_a_slower_rate_while_the_gpu_idles_is_no_hole_and_changes_nothing() -> None:
    epoch = [(14.0, 0.8), (4.0, 0.3)]
    trace, starts = trace_of([*[epoch] * 5, [*epoch, (120.0, 0.0)], *[epoch] * 5])
    stall = (starts[6] - 115.0, starts[6] - 1.0)
    slower = _slower(trace, *stall, every=10)
    assert np.diff(slower.time_s).max() == pytest.approx(1.0)
    full, found = detect(trace), detect(slower)
    assert found.warnings == ()
    assert found.verdict == full.verdict
    assert found.period_s == pytest.approx(full.period_s, rel=0.01)
    np.testing.assert_allclose(found.epoch_starts_s, full.epoch_starts_s, atol=0.2)

    def shares(of: Trace) -> Shares:
        return time_shares(of.time_s, of.values, full.epoch_starts_s, full.epoch_ends_s)

    assert shares(slower).idle == pytest.approx(shares(trace).idle, abs=0.01)
    assert shares(slower).stalled == pytest.approx(shares(trace).stalled, abs=0.01)


@pytest.mark.parametrize("every", [2, 5, 10])
def test_epochs_are_found_where_reading_became_dear_in_the_middle_of_training(every: int) -> None:
    trace, starts = training_trace(20.0, 12)
    slower = _slower(trace, starts[5] + 3.0, starts[8] + 5.0, every)
    found = detect(slower)
    assert found.period_s == pytest.approx(20.0, rel=0.01)
    np.testing.assert_allclose(found.epoch_starts_s, starts, atol=0.6 if every == 10 else 0.3)


def test_a_stretch_without_ticks_between_slow_ticks_is_still_a_hole() -> None:
    steps = np.concatenate([np.full(40, 0.1), np.full(20, 1.0), [30.0], np.full(20, 1.0), [0.1, 8.0], np.full(40, 0.1)])
    assert np.flatnonzero(holes(steps)).tolist() == [60, 82]
    assert not holes(np.array([0.1, 0.1, 0.1])).any()
