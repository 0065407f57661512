"""Plans on spot machines: preemptions are counted, by simulation, by brute force and by what must never happen."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from gpusonde.optimizer import Billing, Group, MachineOffer, Objective, Plan, Problem, TableSteps, pareto, solve
from gpusonde.optimizer.preemptions import expected_run
from gpusonde.optimizer.solution import estimate_plan

HOUR = 3600.0
SPOT = MachineOffer("spot", "A", 1, 4, 0.3, Billing.SPOT, largest_batch=64)
SURE = MachineOffer("sure", "A", 1, 4, 1.0, largest_batch=64)
LATENCIES = {(name, batch): s for name in ("spot", "sure") for batch, s in ((64, 1.0), (32, 0.55), (16, 0.3))}


def job(rate: float, **limits: object) -> Problem:
    given: dict[str, object] = {"objective": Objective.COST, "batch_sizes": (16, 32, 64)} | limits
    return Problem(64, 36_000, (replace(SPOT, preemptions_per_hour=rate), SURE), **given)  # type: ignore[arg-type]


def steps_of(problem: Problem, spread: float = 0.0) -> TableSteps:
    return TableSteps(problem.offers, LATENCIES, spread=spread)


def simulated_s(work_s: float, per_hour: float, restart_s: float, save_s: float, interval_s: float) -> list[float]:
    """Times of 4,000 runs whose machines are taken away at random."""
    draw, found = random.Random(7), []
    for _ in range(4000):
        total_s, segments = 0.0, round(work_s / interval_s)
        while segments:
            failure_s = draw.expovariate(per_hour / HOUR)
            done = failure_s >= interval_s + save_s
            total_s += interval_s + save_s if done else failure_s + restart_s
            segments -= done
        found.append(total_s)
    return found


@pytest.mark.parametrize(
    ("per_hour", "restart_s", "save_s"), [(0.5, 200.0, 10.0), (6.0, 120.0, 5.0), (20.0, 60.0, 5.0)]
)
def test_mean_and_scatter_are_those_of_simulated_runs(per_hour: float, restart_s: float, save_s: float) -> None:
    runs = np.array(simulated_s(18_000.0, per_hour, restart_s, save_s, 300.0))
    expected = expected_run(18_000.0, per_hour, restart_s, save_s, 300.0)
    assert expected.seconds == pytest.approx(runs.mean(), rel=0.01)
    assert expected.sd_s == pytest.approx(runs.std(), rel=0.05)


def test_the_time_that_is_kept_is_kept_by_simulated_runs() -> None:
    problem = job(1.0, confidence=0.9)
    estimate = estimate_plan(problem, Plan((Group("spot", 2, 32),)), steps_of(problem))
    runs = simulated_s(19_800.0, 2.0, problem.restart_s, problem.save_s, estimate.checkpoint_interval_s)
    assert estimate.time_s == pytest.approx(np.mean(runs), rel=0.01)
    assert np.mean(np.array(runs) <= estimate.time_at_confidence_s) == pytest.approx(0.9, abs=0.02)


def test_without_preemptions_a_spot_plan_is_what_its_machines_take() -> None:
    plan = Plan((Group("spot", 1, 64),))
    estimate = estimate_plan(job(0.0), plan, steps_of(job(0.0)))
    assert (estimate.time_s, estimate.preemptions, estimate.checkpoint_interval_s) == (36_000.0, 0.0, math.inf)
    assert estimate.cost_usd == pytest.approx(3.0)


@pytest.mark.parametrize("objective", list(Objective))
def test_more_preemptions_are_never_faster_or_cheaper(objective: Objective) -> None:
    values = []
    for rate in (0.0, 0.01, 0.1, 1.0, 5.0, 20.0, 100.0, 3600.0):
        problem = job(rate, objective=objective)
        found = solve(problem, steps_of(problem), explain=False).estimate
        assert found is not None
        values.append(found.time_s if objective is Objective.TIME else found.cost_usd)
    assert values == sorted(values)
    assert values[-1] > values[0] or objective is Objective.TIME


def test_twenty_preemptions_an_hour_are_not_the_plan_of_none() -> None:
    calm, rough = (solve(p, steps_of(p), explain=False) for p in (job(0.0), job(100.0)))
    assert str(calm.plan) == "1 x spot @ 64"
    assert str(rough.plan) == "1 x sure @ 64"
    near = {"deadline_s": 11.0 * HOUR}
    calm, rough = (solve(p, steps_of(p, 0.02), explain=False) for p in (job(0.0, **near), job(2.0, **near)))
    assert calm.estimate is not None
    assert rough.estimate is not None
    assert str(calm.plan) == "1 x spot @ 64"
    assert rough.plan != calm.plan
    assert rough.estimate.time_at_confidence_s <= 11.0 * HOUR


def test_the_search_finds_what_brute_force_finds() -> None:
    draw = random.Random(19)
    for _ in range(60):
        offers = tuple(
            MachineOffer(
                f"offer {n}", "A", draw.choice((1, 2)), draw.randint(0, 4), draw.uniform(0.2, 3.0),
                draw.choice(list(Billing)), largest_batch=64, preemptions_per_hour=draw.choice((0.0, 0.05, 1.0, 8.0)),
            )
            for n in range(3)
        )  # fmt: skip
        latencies = {
            (o.name, batch): pace * (0.1 + batch / 64) for o in offers for pace in (draw.uniform(0.5, 2.0),)
            for batch in (8, 16, 32, 64)
        }  # fmt: skip
        problem = Problem(
            64, draw.choice((600, 20_000)), offers, draw.choice(list(Objective)), batch_sizes=(8, 16, 32, 64),
            deadline_s=draw.choice((None, 9000.0, 30_000.0)), budget_usd=draw.choice((None, 8.0)),
            confidence=draw.choice((0.5, 0.95)), overhead_s=draw.choice((0.0, 180.0)),
        )  # fmt: skip
        steps = TableSteps(offers, latencies, spread=draw.choice((0.0, 0.1)))
        best = solve(problem, steps, method="brute_force")
        found = solve(problem, steps, explain=False)
        assert found.status is best.status
        if best.estimate is not None and found.estimate is not None:
            key = "time_s" if problem.objective is Objective.TIME else "cost_usd"
            assert getattr(found.estimate, key) == pytest.approx(getattr(best.estimate, key), rel=1e-9)


def test_the_front_counts_preemptions() -> None:
    problem = job(8.0)
    points = pareto(problem, steps_of(problem)).points
    assert points
    for point in points:
        assert point.estimate == estimate_plan(problem, point.plan, steps_of(problem))
        assert point.estimate.preemptions > 0 or "spot" not in str(point.plan)
