"""``paper_search``: the seed's hybrid strategy as it stands in its text, to be compared with (Srifty, section 4.4)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Literal

from gpusonde.formatting import dollars, duration, percent
from gpusonde.optimizer.paper.space import banchor_plans, count_plans, list_plans, paper_batches
from gpusonde.optimizer.problem import Objective, Plan, Problem
from gpusonde.optimizer.solution import (
    SLACK,
    Nearest,
    PlanEstimate,
    Proof,
    Solution,
    Status,
    estimate_plan,
    objective_value,
    rank,
)
from gpusonde.optimizer.step_times import StepTimes

# "Empirically, < 10k invocations to the SIM routine" are searched exhaustively.
MOST_SIMULATIONS = 10_000


def paper_search(
    problem: Problem,
    steps: StepTimes,
    *,
    strategy: Literal["hybrid", "exhaustive", "banchor"] = "hybrid",
    most_simulations: int = MOST_SIMULATIONS,
    out_of_time: Callable[[], bool] = lambda: False,
) -> Solution:
    """Return the plan that the seed would choose.

    Deadline and budget are asked of the mean, as in the seed; ``Problem.confidence`` does not count. That no plan was
    found is a proof only when every plan was looked at.

    Args:
        problem: What is asked for.
        steps: How long iterations take.
        strategy: ``hybrid`` takes ``exhaustive`` below ``most_simulations`` plans and ``banchor`` from there on.
        most_simulations: See there.
        out_of_time: Asked now and then; the search ends with what it has once it says so.

    Raises:
        ProblemError: ``exhaustive``, and there are too many plans to begin.
    """
    exhaustive = strategy == "exhaustive" or (strategy == "hybrid" and count_plans(problem) < most_simulations)
    candidates: Iterable[Plan | None] = list_plans(problem) if exhaustive else banchor_plans(problem, steps)
    found = _best(problem, steps, candidates, out_of_time)
    # The rule of powers of two may have excluded plans of the problem.
    whole = all(paper_batches(problem, offer) == problem.candidates(offer) for offer in problem.offers)
    complete = exhaustive and whole and not found.cut_short
    return _solution(problem, found, exhaustive=exhaustive, complete=complete)


class _Found:
    """The best plan so far, and the one that violates the limits least."""

    def __init__(self) -> None:
        self.explored = 0
        self.cut_short = False
        self.best: tuple[Plan, PlanEstimate] | None = None
        self.nearest: tuple[float, Plan, PlanEstimate] | None = None


def _best(
    problem: Problem, steps: StepTimes, candidates: Iterable[Plan | None], out_of_time: Callable[[], bool]
) -> _Found:
    found = _Found()
    for plan in candidates:
        if out_of_time():
            found.cut_short = True
            break
        if plan is None:
            continue
        found.explored += 1
        estimate = estimate_plan(problem, plan, steps)
        if not math.isfinite(estimate.time_s):
            continue
        excess = _excess(problem, estimate)
        if excess > 1.0 + SLACK:
            if found.nearest is None or excess < found.nearest[0]:
                found.nearest = excess, plan, estimate
            continue
        if found.best is None or rank(problem, estimate) < rank(problem, found.best[1]):
            found.best = plan, estimate
    return found


def _excess(problem: Problem, estimate: PlanEstimate) -> float:
    """Mean time over deadline or cost over budget, the larger of them; 0 without limits."""
    excess = 0.0
    if problem.deadline_s is not None:
        excess = max(excess, estimate.time_s / problem.deadline_s)
    if problem.budget_usd is not None:
        excess = max(excess, estimate.cost_usd / problem.budget_usd)
    return excess


def _solution(problem: Problem, found: _Found, *, exhaustive: bool, complete: bool) -> Solution:
    looked = f"{found.explored} plans of equal batches per offer" if exhaustive else f"{found.explored} anchored plans"
    if found.cut_short:
        looked += ", before time was up"
    if found.best is None:
        nearest = None
        why = f"none of {looked} satisfies deadline and budget"
        if found.nearest is not None:
            excess, plan, estimate = found.nearest
            takes = f"{plan} takes {duration(estimate.time_s)} and {dollars(estimate.cost_usd)}"
            words = f"{takes}: {percent(excess - 1, 1)} too much"
            nearest = Nearest(plan, estimate, plan.global_batch(problem.offers), words)
        proof = Proof("paper", complete, None, None, "every plan was looked at" if complete else "nothing is proven")
        status = Status.INFEASIBLE if complete else Status.UNKNOWN
        return Solution(status, None, None, proof, why, nearest=nearest, explored=found.explored)
    plan, estimate = found.best
    why = f"the {'fastest' if problem.objective is Objective.TIME else 'cheapest'} of {looked}"
    if problem.deadline_s is not None and estimate.time_at_confidence_s > problem.deadline_s * (1.0 + SLACK):
        why += "; it keeps the deadline on average only"
    words = "every plan was looked at" if complete else "better plans may exist outside of what was looked at"
    bound, gap = (objective_value(problem, estimate), 0.0) if complete else (None, None)
    proof = Proof("paper", complete, bound, gap, words)
    status = Status.OPTIMAL if complete else Status.FEASIBLE
    return Solution(status, plan, estimate, proof, why, explored=found.explored)
