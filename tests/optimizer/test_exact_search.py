"""The exact search against every plan there is."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from support.planning_problems import simulated_problem, table_problem

from gpusonde.errors import ProblemError
from gpusonde.optimizer import (
    Group,
    MachineOffer,
    Objective,
    Plan,
    Problem,
    Status,
    StepTimes,
    TableSteps,
    pareto,
    solve,
)
from gpusonde.optimizer.search.space import brute_force, every_plan
from gpusonde.optimizer.solution import check_plan, estimate_plan, objective_value, satisfies, violation

BLOCKS, PER_BLOCK = 10, 32


def compare(problem: Problem, steps: StepTimes) -> Status:
    """Both searches on one problem; the exact one's value must be the brute one's."""
    wanted, found = brute_force(problem, steps), solve(problem, steps, explain=False)
    assert found.status is wanted.status
    if wanted.estimate is not None:
        assert found.plan is not None
        assert found.estimate is not None
        check_plan(problem, found.plan)
        assert satisfies(problem, estimate_plan(problem, found.plan, steps))
        assert objective_value(problem, found.estimate) == pytest.approx(
            objective_value(problem, wanted.estimate), rel=1e-9
        )
        assert found.proof.gap == pytest.approx(0.0, abs=1e-9)
    return found.status


@pytest.fixture(params=["few plans are listed", "none are"])
def _listing(request, monkeypatch):
    """A search of few plans lists them in the end; the bounds hold without that, too."""
    if request.param == "none are":
        monkeypatch.setattr("gpusonde.optimizer.search.plan_lists._MOST_CHOICES", 0)
        monkeypatch.setattr("gpusonde.optimizer.search.subproblem._FEW_WAYS", 0)


@pytest.mark.usefixtures("_listing")
@pytest.mark.parametrize("block", range(BLOCKS))
def test_it_finds_what_brute_force_finds_and_no_plan_where_there_is_none(block: int):
    statuses = [compare(*table_problem(seed)) for seed in range(block * PER_BLOCK, (block + 1) * PER_BLOCK)]
    assert set(statuses) == {Status.OPTIMAL, Status.INFEASIBLE}


def test_where_no_plan_keeps_the_deadline_few_plans_are_not_looked_at_again_and_again():
    problem, steps = simulated_problem(0)
    solution = solve(problem, steps)
    assert solution.status is Status.INFEASIBLE
    assert solution.explored < 3 * len(list(every_plan(problem)))
    assert solution.nearest is not None
    least = min(violation(problem, estimate_plan(problem, plan, steps)) for plan in every_plan(problem))
    assert violation(problem, solution.nearest.estimate) == pytest.approx(least, rel=1e-12)


@pytest.mark.usefixtures("_listing")
@pytest.mark.parametrize("block", range(4))
def test_where_iterations_scatter_it_still_finds_what_brute_force_finds(block: int):
    statuses = [compare(*simulated_problem(seed)) for seed in range(block * 12, (block + 1) * 12)]
    assert Status.OPTIMAL in statuses


@pytest.mark.usefixtures("_listing")
@pytest.mark.parametrize("seed", range(12))
def test_the_front_is_that_of_all_plans(seed: int):
    problem, steps = table_problem(seed)
    every = [estimate_plan(problem, plan, steps) for plan in every_plan(problem)]
    allowed = sorted(
        (each.time_s, each.cost_usd) for each in every if satisfies(problem, each) and math.isfinite(each.time_s)
    )
    wanted: list[tuple[float, float]] = []
    for time_s, cost_usd in allowed:
        if not wanted or cost_usd < wanted[-1][1] * (1 - 1e-9):
            wanted.append((time_s, cost_usd))
    front = pareto(problem, steps, resolution=0.0)
    assert front.complete
    found = [(point.estimate.time_s, point.estimate.cost_usd) for point in front.points]
    assert np.allclose(found, wanted, rtol=1e-9)


def six_offers(global_batch: int, objective: Objective) -> tuple[Problem, TableSteps]:
    """Six kinds of machines, up to 64 of each."""
    kinds = [
        ("one slow", 1, 0.72, 128, 0.030, 0.0042, 6e8), ("two slow", 2, 0.69, 64, 0.040, 0.0075, 1.5e8),
        ("four fast", 4, 3.68, 512, 0.018, 0.0011, 1.5e8), ("one new", 1, 0.98, 256, 0.020, 0.0017, 4e8),
        ("one newer", 1, 0.85, 256, 0.022, 0.0021, 4e8), ("eight fast", 8, 12.3, 1024, 0.014, 0.00045, 6e9),
    ]  # fmt: skip
    offers = tuple(
        MachineOffer(name, name, devices, 64, usd, smallest_batch=8, largest_batch=largest)
        for name, devices, usd, largest, _, _, _ in kinds
    )
    problem = Problem(global_batch, 1000, offers, objective)
    latencies = {
        (name, 2**power): fixed_s + sample_s * 2**power
        for name, _, _, _, fixed_s, sample_s, _ in kinds
        for power in range(13)
    }

    def step_s(latency_s: float, world_sizes: np.ndarray, network: float) -> np.ndarray:
        exchange_s = 2e8 * (world_sizes - 1) / world_sizes / network + 2.4e-4 * world_sizes
        return latency_s / 3 + np.maximum(latency_s * 2 / 3, latency_s / 15 + exchange_s)

    return problem, TableSteps(offers, latencies, step_s, {kind[0]: kind[6] for kind in kinds})


@pytest.mark.parametrize("objective", Objective)
@pytest.mark.parametrize("global_batch", [1024, 4096])
def test_64_machines_of_six_offers_are_searched_by_looking_at_few_plans(global_batch: int, objective: Objective):
    problem, steps = six_offers(global_batch, objective)
    solution = solve(problem, steps)
    assert solution.status is Status.OPTIMAL
    # The time that takes is measured in benchmarks/planning; here only that it cannot be long.
    assert solution.explored < 100


def test_machines_of_different_kinds_are_mixed_where_no_kind_suffices():
    offers = (MachineOffer("a", "x", 1, 3, 1.0), MachineOffer("b", "y", 1, 8, 3.0))
    latencies = {(name, size): seconds * size for name, seconds in (("a", 0.02), ("b", 0.01)) for size in (1, 2, 4, 8)}
    problem = Problem(28, 10, offers, batch_sizes=(1, 2, 4, 8))
    solution = solve(problem, TableSteps(offers, latencies))
    assert solution.plan == Plan((Group("a", 2, 2), Group("b", 6, 4)))


def test_equally_fast_plans_go_by_price():
    offers = (MachineOffer("cheap", "x", 1, 4, 1.0), MachineOffer("dear", "x", 1, 4, 2.0))
    latencies = {(offer.name, size): 0.1 for offer in offers for size in (4, 8, 16)}
    solution = solve(Problem(16, 10, offers, batch_sizes=(4, 8, 16)), TableSteps(offers, latencies))
    assert solution.plan == Plan((Group("cheap", 1, 16),))


def test_the_deadline_is_kept_with_the_confidence_and_not_only_on_average():
    offers = (MachineOffer("slow", "x", 1, 1, 1.0), MachineOffer("fast", "y", 1, 1, 10.0))
    steps = TableSteps(offers, {("slow", 8): 1.0, ("fast", 8): 0.5}, spread=0.1)
    problem = Problem(8, 100, offers, Objective.COST, deadline_s=110.0, batch_sizes=(8,))
    solution = solve(problem, steps)
    assert str(solution.plan) == "1 x fast @ 8"
    assert solution.binding == ("deadline_s",)
    on_average = solve(dataclasses.replace(problem, confidence=0.5), steps)
    assert str(on_average.plan) == "1 x slow @ 8"


def test_the_time_limit_ends_the_search_and_says_how_good_the_plan_is():
    problem, steps = six_offers(1024, Objective.TIME)
    ticks = iter(range(10**9))
    solution = solve(problem, steps, time_limit_s=8.0, clock=lambda: float(next(ticks)), explain=False)
    assert solution.status is Status.FEASIBLE
    assert solution.plan is not None
    assert solution.proof.gap is not None
    best = solve(problem, steps)
    assert solution.estimate is not None
    assert best.estimate is not None
    assert best.estimate.time_s >= solution.estimate.time_s * (1 - solution.proof.gap)


def test_a_search_without_time_for_any_plan_says_that_it_does_not_know():
    problem, steps = table_problem(0)
    ticks = iter(range(10**9))
    solution = solve(
        dataclasses.replace(problem, deadline_s=1e-3), steps, time_limit_s=0.5, clock=lambda: float(next(ticks))
    )
    assert solution.status is Status.UNKNOWN
    assert not solution.proof.complete


def test_a_plan_that_is_known_already_is_checked_and_kept_when_nothing_is_better():
    problem, steps = six_offers(1024, Objective.COST)
    best = solve(problem, steps)
    assert best.plan is not None
    assert solve(problem, steps, start=best.plan).plan == best.plan
    with pytest.raises(ProblemError, match="samples per iteration"):
        solve(problem, steps, start=Plan((Group("one slow", 1, 8),)))


def test_a_tolerance_ends_the_search_earlier_and_is_kept():
    problem, steps = simulated_problem(5)
    exact = solve(problem, steps)
    near = solve(problem, steps, tolerance=0.1)
    assert exact.estimate is not None
    assert near.estimate is not None
    assert objective_value(problem, near.estimate) <= objective_value(problem, exact.estimate) / 0.9
    assert near.explored <= exact.explored


@pytest.mark.parametrize("global_batch", [4095, 4099])
def test_global_batches_that_few_combinations_reach_do_not_keep_it_busy(global_batch: int):
    problem, _ = six_offers(4096, Objective.COST)
    offers = tuple(dataclasses.replace(offer, smallest_batch=1) for offer in problem.offers)
    asked = dataclasses.replace(problem, offers=offers, global_batch=global_batch)
    latencies = {
        (offer.name, size): 0.02 + 0.001 * size / offer.usd_per_hour
        for offer in offers
        for size in asked.candidates(offer)
    }
    solution = solve(asked, TableSteps(offers, latencies), explain=False)
    assert solution.status is Status.OPTIMAL
