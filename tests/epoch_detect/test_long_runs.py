"""Runs of half a day: hundreds of even cycles are told as what they are."""

from dataclasses import replace

import numpy as np
import pytest

from gpusonde.epoch_detect import EpochTracker, detect
from gpusonde.telemetry import FloatArray, Trace


def ends_of(cycle_s: float, hours: float, rng: np.random.Generator) -> FloatArray:
    """Where cycles begin that scatter by half a per cent."""
    count = int(1.1 * 3600 * hours / cycle_s)
    return np.concatenate([[0.0], np.cumsum(cycle_s * np.exp(rng.normal(0, 0.005, count)))])


def run_of(cycle_s: float, hours: float, step_s: float = 0.1, seed: int = 0) -> Trace:
    """Power of cycles of work, an evaluation and a pause."""
    rng = np.random.default_rng(seed)
    ends_s = ends_of(cycle_s, hours, rng)
    time_s = np.arange(0, 3600 * hours, step_s)
    place = np.interp(time_s, ends_s, np.arange(ends_s.size)) % 1
    power = np.where(place < 0.75, 500.0, np.where(place < 0.95, 300.0, 80.0))
    values = {"power_watts": power * np.exp(rng.normal(0, 0.02, power.size)), "gpu_utilization": (place < 0.95) * 1.0}
    return Trace(time_s, values)


@pytest.mark.parametrize("cycle_s", [97.3, 200.7])
def test_cycles_of_half_a_day_are_told_and_not_their_beat_with_what_is_remembered(cycle_s: float) -> None:
    found = detect([run_of(cycle_s, 12)])
    assert found.period_s == pytest.approx(cycle_s, rel=0.01)
    assert found.epoch_starts_s.size == pytest.approx(12 * 3600 / cycle_s, abs=2)
    assert all(cycle.period_s < 1.1 * cycle_s for cycle in found.cycles)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_cycles_that_are_told_of_a_running_job_keep_up_while_what_is_remembered_gets_coarser(seed: int) -> None:
    trace = run_of(97.0, 12, step_s=1.0, seed=seed)
    tracker = EpochTracker(trace.metrics, capacity=4096)
    values = np.array([trace.values[name] for name in trace.metrics])
    told = []
    for i in range(0, len(trace), 300):
        tracker.update(trace.time_s[i : i + 300], values[:, i : i + 300])
        ends_s = [e.end_s for e in tracker.epochs if e.status == "confirmed"]
        if ends_s:
            told.append((max(ends_s) + 1.5 * 97.0) / min(i + 300.0, len(trace)))
    assert len(told) > 100
    assert min(told) > 0.8


@pytest.mark.parametrize("gpus", [1, 2])
def test_short_cycles_that_were_followed_stay_at_the_end_and_a_file_tells_them_too(gpus: int) -> None:
    trace = run_of(61.0, 28, step_s=1.0)
    tracker = EpochTracker(trace.metrics)
    for i in range(0, len(trace), 600):
        tracker.update(trace.time_s[i : i + 600], np.array(list(trace.values.values()))[:, i : i + 600])
    # Its cells are as wide as seven of a cycle by then.
    tracker.finish()
    found = detect([replace(trace, gpu_uuid=str(gpu)) for gpu in range(gpus)])
    for starts_s in (np.array([e.start_s for e in tracker.epochs if e.stands]), found.epoch_starts_s):
        assert starts_s.size > 0.9 * 28 * 3600 / 61
        off_s = np.abs(starts_s[:, None] - ends_of(61.0, 28, np.random.default_rng(0))).min(axis=1)
        assert np.mean(off_s < 6) > 0.95
    assert found.verdict == "epochs"


def test_a_cycle_of_many_ticks_that_are_merged_by_now_is_no_short_one() -> None:
    found = detect([run_of(97.0, 25)])
    assert found.verdict == "epochs"
    assert found.period_s == pytest.approx(97.0, rel=0.01)
