"""``solve``: the best plan for a problem, and why it is that."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

from gpusonde.optimizer.evaluate import check_plan
from gpusonde.optimizer.explain import infeasible_words, optimal_words, proof_of, reached_limits, relaxations_of
from gpusonde.optimizer.nearest import find_nearest
from gpusonde.optimizer.paper.search import paper_search
from gpusonde.optimizer.plan import Plan
from gpusonde.optimizer.problem import Problem, ProblemError
from gpusonde.optimizer.search.brute_force import brute_force
from gpusonde.optimizer.search.exact import ExactSearch, Found
from gpusonde.optimizer.search.goal import Best, kept_times
from gpusonde.optimizer.search.space import make_space
from gpusonde.optimizer.solution import Proof, Relaxation, Solution, Status
from gpusonde.optimizer.steps import StepTimes

DEFAULT_TIME_LIMIT_S = 30.0

Method = Literal["exact", "paper", "brute_force"]


def solve(
    problem: Problem,
    steps: StepTimes,
    *,
    method: Method = "exact",
    tolerance: float = 0.0,
    time_limit_s: float = DEFAULT_TIME_LIMIT_S,
    explain: bool = True,
    start: Plan | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Solution:
    """Return the best plan.

    Args:
        problem: What is asked for.
        steps: How long iterations take.
        method: ``exact`` proves its plan; ``paper`` is Srifty's search; ``brute_force`` looks at every plan.
        tolerance: Of ``exact``: plans that are better by less than this, relative, need not be found.
        time_limit_s: Of ``exact`` and ``paper``: after this time they return the best plan so far, ``exact`` also how
            far it may be from the optimum. Explanations get as much again at most.
        explain: Of ``exact``: say what giving way at the limits buys, which takes some more searches.
        start: Of ``exact``: a plan that is known already, such as the one that runs now.
        clock: Seconds, never going back.

    Raises:
        ProblemError: An argument out of range, or a problem that is too large for the method.
    """
    if not time_limit_s > 0:
        raise ProblemError(f"time_limit_s {time_limit_s} must be above zero")
    if method == "paper":
        paper_ends_s = clock() + time_limit_s
        return paper_search(problem, steps, out_of_time=lambda: clock() >= paper_ends_s)
    if method == "brute_force":
        return brute_force(problem, steps)
    if method != "exact":
        raise ProblemError(f"there is no method {method!r}: take exact, paper or brute_force")
    if not 0 <= tolerance < 1:
        raise ProblemError(f"tolerance {tolerance} must be 0 or more and below 1")
    if start is not None:
        check_plan(problem, start)

    def best_of(asked: Problem, known: Plan | None, ends_s: float) -> Found:
        space = make_space(asked, steps)
        if space is None:
            return Found(complete=True)
        goal = Best(asked, kept_times(asked, steps))
        search = ExactSearch(asked, space, steps, goal, out_of_time=lambda: clock() >= ends_s, tolerance=tolerance)
        return search.run(known)

    ends_s = clock() + time_limit_s
    found = best_of(problem, start, ends_s)
    explain_ends_s = clock() + time_limit_s
    proof = proof_of(problem, found, tolerance)
    if found.plan is None or found.estimate is None:
        return _without_plan(problem, steps, found, proof, lambda: clock() >= explain_ends_s)
    binding = reached_limits(problem, found.plan)
    relaxations: tuple[Relaxation, ...] = ()
    if explain:
        binding, relaxations = relaxations_of(
            problem, found.plan, found.estimate, lambda asked, known: best_of(asked, known, explain_ends_s)
        )
    return Solution(
        status=Status.OPTIMAL if found.complete else Status.FEASIBLE,
        plan=found.plan,
        estimate=found.estimate,
        proof=proof,
        why=optimal_words(problem, found, tolerance),
        binding=binding,
        relaxations=relaxations,
        explored=found.estimated,
    )


def _without_plan(
    problem: Problem, steps: StepTimes, found: Found, proof: Proof, out_of_time: Callable[[], bool]
) -> Solution:
    nearest = find_nearest(problem, steps, out_of_time)
    return Solution(
        status=Status.INFEASIBLE if found.complete else Status.UNKNOWN,
        plan=None,
        estimate=None,
        proof=proof,
        why=infeasible_words(problem, nearest, proven=found.complete),
        nearest=nearest,
        explored=found.estimated,
    )
