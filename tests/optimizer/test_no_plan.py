"""Problems that make no sense, and problems without a plan."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from support.planning_problems import table_problem

from gpusonde.errors import ProblemError
from gpusonde.optimizer import Group, MachineOffer, Objective, Plan, Problem, Status, TableSteps, solve
from gpusonde.optimizer.search.space import every_plan
from gpusonde.optimizer.solution import estimate_plan, violation

OFFERS = (MachineOffer("a", "x", 1, 4, 1.0), MachineOffer("b", "y", 2, 4, 3.0))


class LineSteps(TableSteps):
    """A latency for every batch, so that other global batches can be asked about too."""

    def latency_s(self, offer: MachineOffer, batch_size: int, machines: int = 1) -> float:
        return (0.01 + 0.001 * batch_size) / (1.0 if offer.name == "a" else 2.0)


STEPS = LineSteps(OFFERS, {})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"usd_per_hour": None}, "offer a: usd_per_hour is missing"),
        ({"usd_per_hour": 0.0}, "offer a: usd_per_hour 0.0 must be above zero"),
        ({"usd_per_hour": -1.0}, "must be above zero"),
        ({"usd_per_hour": float("nan")}, "must be above zero"),
        ({"usd_per_hour": "3"}, "must be above zero"),
        ({"quota": None}, "offer a: quota is missing"),
        ({"quota": -1}, "offer a: quota -1 must be a whole number from 0"),
        ({"devices": 0}, "devices 0 must be a whole number from 1"),
        ({"devices": 1.5}, "must be a whole number"),
        ({"smallest_batch": 0}, "smallest_batch 0"),
        ({"largest_batch": -1}, "largest_batch -1"),
        ({"preemptions_per_hour": -0.1}, "must be 0 or more"),
        ({"network_bytes_per_second": 0.0}, "network_bytes_per_second 0.0 must be above zero"),
        ({"name": ""}, "needs a name"),
    ],
)
def test_an_offer_that_makes_no_sense_is_refused_and_named(change: dict[str, Any], words: str):
    with pytest.raises(ProblemError, match=words):
        dataclasses.replace(OFFERS[0], **change)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"deadline_s": 0.0}, "one in the past cannot be met"),
        ({"deadline_s": -5.0}, "one in the past cannot be met"),
        ({"deadline_s": 100.0, "overhead_s": 100.0}, "leaves no time to train"),
        ({"budget_usd": 0.0}, "budget_usd 0.0 must be above zero"),
        ({"global_batch": 0}, "global_batch 0"),
        ({"global_batch": 3.5}, "global_batch 3.5 must be a whole number"),
        ({"iterations": 0}, "iterations 0"),
        ({"offers": ()}, "there are no offers"),
        ({"offers": (OFFERS[0], OFFERS[0])}, "two offers named a"),
        ({"confidence": 0.4}, "confidence 0.4"),
        ({"confidence": 1.0}, "confidence 1.0"),
        ({"batch_sizes": ()}, "batch_sizes is empty"),
        ({"batch_sizes": (0,)}, "batch_sizes 0"),
        ({"objective": "time"}, "objective 'time'"),
        ({"overhead_s": -1.0}, "overhead_s"),
    ],
)
def test_a_problem_that_makes_no_sense_is_refused(change: dict[str, Any], words: str):
    with pytest.raises(ProblemError, match=words):
        dataclasses.replace(Problem(64, 100, OFFERS), **change)


def test_a_model_larger_than_every_gpu_has_no_plan():
    offers = tuple(dataclasses.replace(offer, largest_batch=0) for offer in OFFERS)
    solution = solve(Problem(64, 100, offers), STEPS)
    assert solution.status is Status.INFEASIBLE
    assert solution.why == "The model fits into no GPU on offer: not even a batch of 1."
    assert solution.nearest is None


def test_sold_out_offers_have_no_plan():
    offers = tuple(dataclasses.replace(offer, quota=0) for offer in OFFERS)
    solution = solve(Problem(64, 100, offers), STEPS)
    assert solution.status is Status.INFEASIBLE
    assert "sold out" in solution.why
    assert "give the quota of one that may be rented" in solution.why


def test_a_batch_that_cannot_be_split_gets_the_plan_of_the_nearest_one_that_can():
    offers = (dataclasses.replace(OFFERS[1], smallest_batch=8, largest_batch=8),)
    solution = solve(Problem(50, 100, offers), STEPS)
    assert solution.status is Status.INFEASIBLE
    assert "cannot share out a global batch of 50" in solution.why
    assert solution.nearest is not None
    assert solution.nearest.global_batch == 48
    assert solution.nearest.plan == Plan((Group("b", 3, 8),))
    assert "48 samples per iteration, not 50" in solution.nearest.words


def test_a_batch_below_the_smallest_machine_gets_the_smallest_that_it_runs():
    offers = (dataclasses.replace(OFFERS[1], smallest_batch=8, largest_batch=8),)
    solution = solve(Problem(9, 100, offers), STEPS)
    assert solution.status is Status.INFEASIBLE
    assert solution.nearest is not None
    assert solution.nearest.global_batch == 16


def test_a_deadline_and_a_budget_that_nobody_keeps_get_the_plan_that_breaks_them_least():
    problem = Problem(64, 10_000, OFFERS, Objective.TIME)
    fastest = solve(problem, STEPS)
    assert fastest.estimate is not None
    asked = dataclasses.replace(problem, deadline_s=fastest.estimate.time_s / 2)
    solution = solve(asked, STEPS)
    assert solution.status is Status.INFEASIBLE
    assert solution.nearest is not None
    assert solution.nearest.estimate.time_s == pytest.approx(fastest.estimate.time_s)
    assert "after the deadline (100.0 %)" in solution.nearest.words

    cheapest = solve(dataclasses.replace(problem, objective=Objective.COST), STEPS)
    assert cheapest.estimate is not None
    poor = solve(dataclasses.replace(problem, budget_usd=cheapest.estimate.cost_usd / 1.25), STEPS)
    assert poor.nearest is not None
    assert poor.nearest.plan == cheapest.plan
    assert "more than the budget (25.0 %)" in poor.nearest.words


def test_the_nearest_plan_breaks_the_limits_least_of_all_plans():
    for seed in range(60):
        problem, steps = table_problem(seed)
        solution = solve(problem, steps)
        every = [violation(problem, estimate_plan(problem, plan, steps)) for plan in every_plan(problem)]
        if solution.status is not Status.INFEASIBLE or not every:
            continue
        assert solution.nearest is not None
        assert solution.nearest.global_batch == problem.global_batch
        assert violation(problem, solution.nearest.estimate) == pytest.approx(min(every))


def test_what_a_little_more_money_buys_is_said():
    problem = Problem(64, 10_000, OFFERS, Objective.TIME)
    fastest = solve(problem, STEPS)
    assert fastest.estimate is not None
    tight = solve(dataclasses.replace(problem, budget_usd=fastest.estimate.cost_usd / 1.05), STEPS)
    assert tight.status is Status.OPTIMAL
    assert "budget_usd" in tight.binding
    bought = {(each.limit, each.change): each for each in tight.relaxations}
    more = bought["budget_usd", "+10 %"]
    assert more.plan == fastest.plan
    assert more.time_s == pytest.approx(fastest.estimate.time_s)
    assert "faster with" in more.words


def test_what_more_machines_buy_is_said():
    problem = Problem(64, 100, (OFFERS[0],), Objective.TIME)
    solution = solve(problem, STEPS)
    assert solution.plan == Plan((Group("a", 4, 16),))
    assert "quota of a" in solution.binding
    assert [str(each.plan) for each in solution.relaxations] == ["8 x a @ 8"]


def test_offers_beyond_counting_are_refused_and_not_searched_for_ever():
    offers = tuple(dataclasses.replace(offer, quota=100_000) for offer in OFFERS)
    many = tuple(dataclasses.replace(offers[0], name=str(number)) for number in range(30))
    with pytest.raises(ProblemError, match="too many ways"):
        solve(Problem(2**20, 1, many), LineSteps(many, {}))


def test_an_iteration_that_takes_for_ever_is_no_plan():
    steps = TableSteps(OFFERS, {("a", 16): 1.0}, lambda latency, worlds, network: np.full(worlds.shape, np.inf))
    solution = solve(Problem(64, 1, OFFERS), steps)
    assert solution.status is Status.INFEASIBLE


def test_arguments_out_of_range_are_refused():
    problem = Problem(64, 1, OFFERS)
    for arguments in ({"tolerance": 1.0}, {"time_limit_s": 0.0}, {"method": "guess"}):
        with pytest.raises(ProblemError):
            solve(problem, STEPS, **arguments)  # type: ignore[arg-type]


def test_no_time_for_the_nearest_plan_is_not_taken_for_a_batch_that_cannot_be_split():
    # Only together do they reach the batch, so that no plan of one offer is tried first.
    few = dataclasses.replace(OFFERS[0], quota=2, smallest_batch=8, largest_batch=8)
    other = dataclasses.replace(OFFERS[1], quota=3, smallest_batch=8, largest_batch=8)
    asked = Problem(64, 10_000, (few, other), deadline_s=1.0)
    said = []
    for looks in range(1, 40):
        # A clock that jumps when it was looked at so often.
        looked = itertools.count()
        solution = solve(
            asked, STEPS, time_limit_s=30.0, clock=lambda looked=looked, looks=looks: 1e6 * (next(looked) >= looks)
        )
        if solution.status is Status.INFEASIBLE and solution.nearest is None:
            said.append(solution.why)
    assert set(said) == {"No plan keeps the deadline."}
