"""The seed's hybrid search: exhaustive for small problems, Banchor with an integer programme for large ones."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from gpusonde.errors import ProblemError
from gpusonde.optimizer.paper import count_plans, paper_search
from gpusonde.optimizer.paper.space import anchored_plan, find_anchors
from gpusonde.optimizer.problem import MachineOffer, Objective, Problem
from gpusonde.optimizer.solution import Status
from gpusonde.optimizer.step_times import StepEstimate, TableSteps

OFFERS = (
    MachineOffer("t4", "T4", 1, 64, 0.72, largest_batch=128),
    MachineOffer("m60", "M60", 2, 64, 0.69, largest_batch=64),
    MachineOffer("v100", "V100", 4, 64, 3.68, largest_batch=512),
)
_PER_SAMPLE_S = {"t4": 0.004, "m60": 0.008, "v100": 0.001}


def table(offers: tuple[MachineOffer, ...] = OFFERS) -> TableSteps:
    """Latency of 20 ms and some per sample; an exchange that grows with the number of GPUs."""
    latencies = {
        (offer.name, 2**power): 0.02 + _PER_SAMPLE_S[offer.name] * 2**power for offer in offers for power in range(11)
    }
    return TableSteps(offers, latencies, lambda latency_s, worlds, _: latency_s + 0.002 * np.asarray(worlds))


class Counting:
    """Steps that count how often the simulator is asked."""

    def __init__(self, steps: TableSteps) -> None:
        self.steps, self.asked = steps, 0
        self.exact, self.network, self.bound_s = steps.exact, steps.network, steps.bound_s
        self.latency_s = steps.latency_s

    def estimate(self, plan: object) -> StepEstimate:
        self.asked += 1
        return self.steps.estimate(plan)  # type: ignore[arg-type]


def test_a_small_problem_is_searched_exhaustively_and_a_large_one_is_not():
    small, large = Problem(256, 100, OFFERS[:2]), Problem(2048, 100, OFFERS)
    assert count_plans(small) < 10_000 <= count_plans(large)
    counting = Counting(table())
    assert paper_search(small, counting).explored == counting.asked == count_plans(small)
    counting = Counting(table())
    solution = paper_search(large, counting)
    assert counting.asked == solution.explored <= len(find_anchors(large, table()))
    assert solution.status is Status.FEASIBLE


def test_exhaustive_search_is_never_worse_than_banchor():
    for objective in Objective:
        problem = Problem(256, 100, OFFERS, objective)
        best = paper_search(problem, table(), strategy="exhaustive")
        proxy = paper_search(problem, table(), strategy="banchor")
        assert best.estimate is not None
        assert proxy.estimate is not None
        if objective is Objective.TIME:
            assert best.estimate.time_s <= proxy.estimate.time_s
        else:
            assert best.estimate.cost_usd <= proxy.estimate.cost_usd


def test_an_anchored_plan_has_the_fewest_machines_none_of_them_slower_than_the_anchor():
    problem = Problem(2048, 100, OFFERS)
    steps = table()
    plan = anchored_plan(problem, steps, steps.latency_s(OFFERS[0], 64))
    assert plan is not None
    # 64 samples of a T4 last as long as 256 of a V100: two machines with four of these take everything.
    assert str(plan) == "2 x v100 @ 256"


def test_quotas_hold_and_the_rest_goes_to_other_machines():
    offers = (*OFFERS[:2], dataclasses.replace(OFFERS[2], quota=1))
    problem = Problem(2048, 100, offers)
    plan = anchored_plan(problem, table(offers), table(offers).latency_s(OFFERS[0], 64))
    assert plan is not None
    assert str(plan) == "16 x t4 @ 64 + 1 x v100 @ 256"


def test_deadline_and_budget_hold_for_what_is_answered():
    free = paper_search(Problem(2048, 1000, OFFERS), table())
    assert free.estimate is not None
    budget = Problem(2048, 1000, OFFERS, budget_usd=0.9 * free.estimate.cost_usd)
    cheaper = paper_search(budget, table())
    assert cheaper.estimate is not None
    assert cheaper.estimate.cost_usd <= 0.9 * free.estimate.cost_usd
    assert cheaper.estimate.time_s > free.estimate.time_s


def test_what_cannot_be_met_has_no_plan_and_a_nearest_one():
    problem = Problem(2048, 1000, OFFERS, deadline_s=30.0)
    solution = paper_search(problem, table())
    # Nothing is proven: only anchored plans were looked at.
    assert solution.status is Status.UNKNOWN
    assert solution.plan is None
    problem = Problem(256, 1000, OFFERS[:1], deadline_s=30.0, batch_sizes=(16, 32, 64))
    solution = paper_search(problem, table())
    assert solution.status is Status.INFEASIBLE
    assert solution.nearest is not None
    assert solution.nearest.estimate.time_s > 30.0
    assert "too much" in solution.nearest.words


def test_the_proxy_may_miss_a_plan_that_exists():
    # Both are as fast. Four large machines are the fewest, and at the anchor's latency the budget allows them; with the
    # exchange they exceed it, and plans with small ones were never looked at.
    small = MachineOffer("t4", "T4", 1, 64, 0.2, largest_batch=16)
    large = MachineOffer("v100", "V100", 2, 64, 0.5, largest_batch=16)
    steps = TableSteps((small, large), {("t4", 16): 1.0, ("v100", 16): 1.0}, lambda latency_s, worlds, _: (
        latency_s + 0.01 * np.asarray(worlds)
    ))  # fmt: skip
    problem = Problem(128, 3600, (small, large), budget_usd=2.1, batch_sizes=(16,))
    assert paper_search(problem, steps, strategy="banchor").plan is None
    found = paper_search(problem, steps, strategy="exhaustive")
    assert found.estimate is not None
    assert found.estimate.cost_usd <= 2.1


@pytest.mark.parametrize("batch_sizes", [(3,), (100,)])
def test_a_batch_that_cannot_be_split_has_no_plan(batch_sizes: tuple[int, ...]):
    solution = paper_search(Problem(128, 10, OFFERS, batch_sizes=batch_sizes), table())
    assert solution.plan is None
    assert solution.explored == 0


def test_a_search_that_is_out_of_time_says_so_and_proves_nothing():
    left = iter([False, False, True])
    solution = paper_search(Problem(256, 100, OFFERS[:2]), table(), out_of_time=lambda: next(left))
    assert solution.explored == 2
    assert solution.status is Status.FEASIBLE
    assert "before time was up" in solution.why


def test_a_huge_problem_goes_to_the_anchored_search_at_once():
    offers = tuple(dataclasses.replace(offer, quota=100_000, largest_batch=None) for offer in OFFERS)
    problem = Problem(2**30, 100, offers, batch_sizes=(1, 512, 1024))
    assert count_plans(problem) == math.inf
    with pytest.raises(ProblemError, match="too large to look at every plan"):
        paper_search(problem, table(offers), strategy="exhaustive")
    solution = paper_search(Problem(2**20, 100, offers), table(offers))
    assert solution.plan is not None
    assert solution.plan.global_batch(offers) == 2**20


def test_batches_that_share_no_sum_with_the_global_batch_give_no_plan_at_once():
    offers = (MachineOffer("m60", "M60", 2, 64, 0.69), MachineOffer("v100", "V100", 4, 64, 3.68))
    assert count_plans(Problem(2**20 + 1, 1, offers)) == 0
    assert paper_search(Problem(2**20 + 1, 1, offers), table(offers)).plan is None
