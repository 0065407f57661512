"""What preemptions cost, against simulation and the published formulas."""

from __future__ import annotations

import math
import random

import pytest

from gpusonde.optimizer.continual import PreemptionRates, checkpoint_interval_s, expected_run


def simulate(work_s: float, per_hour: float, restart_s: float, save_s: float, interval_s: float, seed: int) -> float:
    """One run with preemptions drawn at random."""
    draw = random.Random(seed)
    total_s, left = 0.0, round(work_s / interval_s)
    while left:
        failure_s = draw.expovariate(per_hour / 3600.0)
        segment_s = interval_s + save_s
        if failure_s < segment_s:
            total_s += failure_s + restart_s
        else:
            total_s += segment_s
            left -= 1
    return total_s


@pytest.mark.parametrize(
    ("per_hour", "restart_s", "save_s"), [(0.5, 200.0, 10.0), (2.0, 300.0, 20.0), (6.0, 120.0, 5.0)]
)
def test_the_expected_time_is_that_of_simulated_runs(per_hour: float, restart_s: float, save_s: float) -> None:
    work_s, interval_s = 36_000.0, 600.0
    runs = [simulate(work_s, per_hour, restart_s, save_s, interval_s, seed) for seed in range(3000)]
    expected = expected_run(work_s, per_hour, restart_s, save_s, interval_s)
    assert expected.seconds == pytest.approx(sum(runs) / len(runs), rel=0.01)


def test_the_checkpoint_interval_is_where_the_expected_time_is_least() -> None:
    for per_hour, save_s in ((0.05, 30.0), (0.5, 10.0), (2.0, 60.0)):
        best_s = checkpoint_interval_s(save_s, per_hour)
        least = min(
            expected_run(360_000.0, per_hour, 200.0, save_s, best_s * factor).seconds
            for factor in (0.25, 0.5, 0.8, 1.0, 1.25, 2.0, 4.0)
        )
        assert expected_run(360_000.0, per_hour, 200.0, save_s, best_s).seconds <= least * 1.0005


def test_for_rare_preemptions_the_interval_is_youngs() -> None:
    assert checkpoint_interval_s(10.0, 0.01) == pytest.approx(math.sqrt(2 * 10.0 * 360_000.0), rel=0.01)


def test_nothing_that_fails_means_nothing_to_save() -> None:
    assert checkpoint_interval_s(10.0, 0.0) == math.inf
    run = expected_run(3600.0, 0.0, 200.0, 10.0)
    assert (run.seconds, run.preemptions) == (3600.0, 0.0)


def test_more_preemptions_never_shorten_a_run() -> None:
    seconds = [expected_run(36_000.0, rate, 200.0, 5.0).seconds for rate in (0.0, 0.1, 0.5, 1.0, 5.0, 50.0, 1e6)]
    assert seconds == sorted(seconds)
    assert expected_run(36_000.0, 1e9, 200.0, 5.0).seconds == math.inf


@pytest.mark.parametrize("bad", [-1.0, math.nan])
def test_what_is_no_duration_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="zero or more"):
        expected_run(bad, 1.0, 1.0)
    with pytest.raises(ValueError, match="zero or more"):
        expected_run(1.0, bad, 1.0)
    with pytest.raises(ValueError, match="apart"):
        expected_run(1.0, 1.0, 1.0, 1.0, bad)


def test_rates_are_learned_from_what_happens() -> None:
    rates = PreemptionRates(default_per_hour=0.1, weight_hours=10.0)
    assert rates.per_hour("a") == pytest.approx(0.1)
    assert rates.per_hour("a", 0.4) == pytest.approx(0.4)
    for _ in range(50):
        rates.ran("a", 10.0)
        rates.preempted("a")
        rates.preempted("a")
    assert rates.per_hour("a") == pytest.approx(0.2, rel=0.05)
    assert rates.per_hour("b") == pytest.approx(0.1), "offers are apart"
