"""Stretches without ticks: no epoch is claimed for them, and they do not hide the epochs around them."""

import numpy as np
import pytest
from support.epoch_traces import training_trace

from gpusonde.epoch_detect import EpochTracker, detect
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
