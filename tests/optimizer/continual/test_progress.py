"""Progress of a job: from reported iterations and from detected epochs."""

from __future__ import annotations

import math
import random

import pytest

from gpusonde.optimizer.continual import ProgressWindow, project


def test_a_steady_job_has_its_rate_and_a_narrow_interval() -> None:
    window = ProgressWindow(300.0)
    for second in range(0, 601, 10):
        window.observe(second, 2.0 * second)
    throughput = window.throughput()
    assert throughput is not None
    assert throughput.mean == pytest.approx(2.0)
    assert throughput.low > 1.98
    assert throughput.high < 2.02
    assert throughput.span_s == pytest.approx(300, abs=10), "older observations have left the window"


def test_the_interval_holds_the_true_rate_as_often_as_it_says() -> None:
    held = 0
    for seed in range(400):
        draw = random.Random(seed)
        window = ProgressWindow(300.0)
        done = 0.0
        for second in range(0, 301, 15):
            window.observe(second, done)
            done += 15 * max(0.0, draw.gauss(1.0, 0.3))
        throughput = window.throughput()
        assert throughput is not None
        held += throughput.low <= 1.0 <= throughput.high
    assert 0.92 <= held / 400 <= 0.98


def test_rates_of_long_intervals_weigh_more() -> None:
    window = ProgressWindow(1000.0)
    for time_s, done in ((0, 0), (1, 100), (901, 1000)):
        window.observe(time_s, done)
    throughput = window.throughput()
    assert throughput is not None
    assert throughput.mean == pytest.approx(1000 / 901)


def test_epochs_longer_than_the_window_still_give_a_rate() -> None:
    window = ProgressWindow(300.0)
    for epoch in range(10):
        window.observe(3600.0 * epoch, 500.0 * epoch)
    throughput = window.throughput()
    assert throughput is not None
    assert throughput.mean == pytest.approx(500 / 3600)
    assert throughput.intervals == 3


@pytest.mark.parametrize(
    ("time_s", "completed"),
    [(math.nan, 5.0), (5.0, math.nan), (math.inf, 5.0), (5.0, math.inf), (5.0, -1.0), (1.0, 5.0), (0.5, 5.0)],
)
def test_an_observation_that_cannot_be_is_left_out(time_s: float, completed: float) -> None:
    window = ProgressWindow()
    window.observe(0.0, 0.0)
    window.observe(1.0, 1.0)
    assert not window.observe(time_s, completed)
    assert window.completed == 1.0


def test_progress_that_goes_back_is_a_restart_from_a_checkpoint() -> None:
    window = ProgressWindow()
    for second in range(10):
        window.observe(second, 10.0 * second)
    assert window.observe(20.0, 50.0)
    assert window.restarts == 1
    assert window.completed == 50.0
    assert window.throughput() is None, "the rate is that of the new start"
    window.observe(30.0, 60.0)
    throughput = window.throughput()
    assert throughput is not None
    assert throughput.mean == pytest.approx(1.0)


def test_a_flood_of_observations_does_not_grow_the_window() -> None:
    window = ProgressWindow(300.0, capacity=64)
    for number in range(100_000):
        window.observe(number * 1e-3, number * 1e-3)
    assert len(window) <= 64
    throughput = window.throughput()
    assert throughput is not None
    assert throughput.mean == pytest.approx(1.0)


def test_a_job_that_stands_still_never_ends() -> None:
    window = ProgressWindow()
    for second in range(5):
        window.observe(second, 7.0)
    throughput = window.throughput()
    assert throughput is not None
    assert project(5.0, 100.0, throughput).end_s == math.inf
    assert project(5.0, 0.0, throughput).end_s == 5.0


def test_a_projection_has_its_optimistic_end_first() -> None:
    window = ProgressWindow()
    for second, done in enumerate((0.0, 1.0, 2.5, 3.0, 4.5, 5.0)):
        window.observe(second, done)
    throughput = window.throughput()
    assert throughput is not None
    projection = project(5.0, 10.0, throughput)
    assert projection.low_s < projection.end_s < projection.high_s
    assert projection.end_s == pytest.approx(15.0)
