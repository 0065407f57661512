"""Pauses of any kind do not hide the epochs around them, and belong to the epoch they interrupt."""

import numpy as np
import pytest
from support.epoch_traces import trace_of, training_trace

from gpusonde.epoch_detect import detect
from gpusonde.epoch_detect.cycles.idle_gaps import preprocess, remove_gaps
from gpusonde.epoch_detect.detect import round_to_wire_times
from gpusonde.epoch_detect.ticks import Ticks, active_range
from gpusonde.telemetry import Trace

_TRAIN, _VALIDATE = (16.0, 0.8), (4.0, 0.4)


def _active(trace: Trace) -> Ticks:
    ticks = Ticks(
        round_to_wire_times(trace.time_s), np.array(list(trace.values.values()), dtype=np.float32), trace.metrics
    )
    first, stop = active_range(ticks)
    active = ticks.slice(first, stop)
    return Ticks(active.time_us - active.time_us[0], active.values, active.names)


@pytest.mark.parametrize("every", [2, 3, 4])
def test_a_checkpoint_after_every_few_epochs_is_not_the_epoch(every: int) -> None:
    epochs = [[_TRAIN, _VALIDATE, *([(5.0, 0.01)] if i % every == every - 1 else [])] for i in range(16)]
    trace, starts = trace_of(epochs)
    found = detect(trace)
    assert found.period_s == pytest.approx(20.0 + 5.0 / every, rel=0.03)
    np.testing.assert_allclose(found.epoch_starts_s, starts, atol=0.3)


def test_the_job_dies_and_comes_back() -> None:
    epochs = [[_TRAIN, _VALIDATE] for _ in range(12)]
    epochs[5] = [(9.0, 0.8), (70.0, 0.0), _TRAIN, _VALIDATE]
    trace, starts = trace_of(epochs)
    found = detect(trace)
    assert found.period_s == pytest.approx(20.0, rel=0.02)
    whole = np.delete(starts, 5)
    nearest = np.abs(whole[:, None] - found.epoch_starts_s).min(axis=1)
    assert (nearest < 0.3).all()


def test_stalls_lengthen_the_epochs_in_which_they_occur() -> None:
    rng = np.random.default_rng(2)
    epochs = []
    for i in range(20):
        first = rng.uniform(2, 14)
        stall = [(rng.uniform(4, 15), 0.02)] if i % 4 == 1 else []
        epochs.append([(first, 0.8), *stall, (16 - first, 0.8), _VALIDATE])
    trace, starts = trace_of(epochs)
    found = detect(trace)
    assert found.period_s == pytest.approx(float(np.diff(starts).mean()), rel=0.04)
    np.testing.assert_allclose(found.epoch_starts_s, starts, atol=0.3)


def test_a_run_without_pauses_has_one_strand() -> None:
    trace, _ = training_trace(20.0, 6)
    assert [s.gap_removal for s in preprocess(_active(trace))] == [0]


def test_a_strand_leads_back_to_the_time_of_the_activity() -> None:
    trace, _ = trace_of([[(10.0, 0.8), (4.0, 0.5)], [(10.0, 0.8), (4.0, 0.5), (30.0, 0.0)], [(10.0, 0.8), (4.0, 0.5)]])
    active = _active(trace)
    without = remove_gaps(active, 2)
    assert without is not None
    assert without.removed == pytest.approx(30 / 72, abs=0.01)
    np.testing.assert_allclose(without.lengths_s, [30.0], atol=0.15)
    # Before the pause nothing moves; its place is its end; after it everything is later by its length.
    np.testing.assert_allclose(
        without.to_activity_time(np.array([5.0, 27.5, 28.0, 35.0])), [5.0, 27.5, 58.0, 65.0], atol=0.15
    )
    assert np.all(np.diff(without.ticks.time_us) > 0)


def test_only_pauses_longer_than_the_usual_are_shortened() -> None:
    epochs = [[(10.0, 0.8), (1.0, 0.0)] for _ in range(8)]
    epochs[3][1] = (21.0, 0.0)
    shortened = remove_gaps(_active(trace_of(epochs)[0]), 1)
    assert shortened is not None
    np.testing.assert_allclose(shortened.lengths_s, [20.0], atol=0.3)
