"""``solve``: the best plan for a problem, and why it is that; ``pareto``: all sensible compromises of time and cost."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from gpusonde.errors import ProblemError
from gpusonde.optimizer.explain import (
    NO_PLAIN_PLAN,
    describe_infeasible,
    describe_optimum,
    describe_proof,
    find_nearest,
    find_reached_limits,
    find_relaxations,
)
from gpusonde.optimizer.paper.search import paper_search
from gpusonde.optimizer.problem import Plan, Problem
from gpusonde.optimizer.search.exact import ExactSearch, SearchResult, search_parts
from gpusonde.optimizer.search.objectives import SAME, ProblemObjective, find_time_factor, is_late
from gpusonde.optimizer.search.space import brute_force, make_space, with_spare_modes
from gpusonde.optimizer.solution import (
    SLACK,
    Nearest,
    PlanEstimate,
    Proof,
    Relaxation,
    Solution,
    Status,
    check_plan,
    rank,
    satisfies,
    violation,
)
from gpusonde.optimizer.step_times import StepTimes
from gpusonde.simulator.iteration import PLAIN_STEPS

FloatArray = npt.NDArray[np.float64]

DEFAULT_RESOLUTION = 1e-3
DEFAULT_TIME_LIMIT_S = 30.0


@dataclass(frozen=True)
class ParetoPoint:
    """A compromise: no plan is both faster and cheaper.

    Attributes:
        plan: The plan.
        estimate: What it takes and costs.
    """

    plan: Plan
    estimate: PlanEstimate


@dataclass(frozen=True)
class ParetoFront:
    """All compromises.

    Attributes:
        points: By time, the fastest one first and the cheapest one last.
        complete: False when the time limit ended the search: then points may be missing.
        resolution: Points differ by more than this in time and in cost, relative.
    """

    points: tuple[ParetoPoint, ...]
    complete: bool
    resolution: float


def pareto(
    problem: Problem,
    steps: StepTimes,
    *,
    resolution: float = DEFAULT_RESOLUTION,
    time_limit_s: float = DEFAULT_TIME_LIMIT_S,
    clock: Callable[[], float] = time.monotonic,
) -> ParetoFront:
    """Return the plans that keep all limits and that no other one beats in time and in cost.

    Args:
        problem: What is asked for; its objective does not count.
        steps: How long iterations take.
        resolution: List a slower plan only when it is cheaper, and a dearer one only when it is faster, by more than
            this, relative.
        time_limit_s: After this time the search ends.
        clock: Seconds, never going back.

    Raises:
        ProblemError: An argument out of range, or a problem with too many options.
    """
    if not 0 <= resolution < 1:
        raise ProblemError(f"resolution {resolution} must be 0 or more and below 1")
    if not time_limit_s > 0:
        raise ProblemError(f"time_limit_s {time_limit_s} must be above zero")
    front = _Front(problem, find_time_factor(problem, steps), resolution)
    ends_s = clock() + time_limit_s

    def make(part: Problem) -> ExactSearch | None:
        space = make_space(part, steps)
        if space is None:
            return None
        return ExactSearch(part, space, steps, front, out_of_time=lambda: clock() >= ends_s)

    found = search_parts(problem, make)
    if not front.points and found.complete and problem.spare_modes:
        problem = with_spare_modes(problem)
        return pareto(problem, steps, resolution=resolution, time_limit_s=time_limit_s, clock=clock)
    return ParetoFront(_apart(front.points, resolution), found.complete, resolution)


def _apart(points: list[ParetoPoint], resolution: float) -> tuple[ParetoPoint, ...]:
    """Leave out points that are hardly faster than the next cheaper one."""
    kept: list[ParetoPoint] = []
    for point in reversed(points):
        if not kept or point.estimate.time_s * (1.0 + resolution) < kept[-1].estimate.time_s:
            kept.append(point)
    return tuple(reversed(kept))


@dataclass
class _Front:
    """The objective of a search in the order of time: whatever is cheaper than all that is as fast."""

    problem: Problem
    kept: float
    resolution: float
    points: list[ParetoPoint] = field(default_factory=list)

    def bound(self, step_s: FloatArray, usd_per_hour: FloatArray) -> FloatArray:
        return self.problem.overhead_s + self.problem.iterations * step_s

    def ceiling(
        self, step_s: FloatArray, best: tuple[float, float] | None, kept_s: FloatArray | None = None
    ) -> FloatArray:
        problem = self.problem
        time_s = problem.overhead_s + problem.iterations * step_s
        most_usd = np.full(time_s.shape, math.inf if problem.budget_usd is None else problem.budget_usd * (1 + SLACK))
        most_usd[is_late(problem, self.kept * step_s if kept_s is None else kept_s)] = -math.inf
        # Cost of the cheapest plan that is as fast; the points are a staircase, slower is cheaper.
        times = [point.estimate.time_s for point in self.points]
        costs = np.array([math.inf, *(point.estimate.cost_usd for point in self.points)])
        as_fast = np.searchsorted(times, time_s * (1.0 + SAME), side="right")
        most_usd = np.minimum(most_usd, costs[as_fast] * (1.0 - max(self.resolution, SAME)))
        most_usd[~np.isfinite(time_s)] = -math.inf
        return np.asarray(most_usd * 3600.0 / np.where(np.isfinite(time_s), time_s, 1.0))

    def value(self, plan: Plan, estimate: PlanEstimate) -> tuple[float, float] | None:
        """Take a plan into the front. It is never "the best", so the search goes on."""
        if not satisfies(self.problem, estimate):
            return None
        point = ParetoPoint(plan, estimate)
        faster = [each for each in self.points if each.estimate.time_s <= estimate.time_s]
        if any(each.estimate.cost_usd <= estimate.cost_usd * (1.0 + self.resolution) for each in faster):
            return None
        # It beats those that are slower and no cheaper.
        self.points = [
            *(each for each in self.points if each.estimate.time_s < estimate.time_s),
            point,
            *(
                each
                for each in self.points
                if each.estimate.time_s >= estimate.time_s and each.estimate.cost_usd < estimate.cost_usd
            ),
        ]
        return None


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
        # It knows nothing of accumulation and sharding.
        parts = replace(problem, modes=(PLAIN_STEPS,)).parts()
        found_of = [paper_search(part, steps, out_of_time=lambda: clock() >= paper_ends_s) for part in parts]
        return min(found_of, key=lambda each: rank(problem, each.estimate) if each.estimate else (math.inf, math.inf))
    if method == "brute_force":
        return brute_force(problem, steps)
    if method != "exact":
        raise ProblemError(f"there is no method {method!r}: take exact, paper or brute_force")
    if not 0 <= tolerance < 1:
        raise ProblemError(f"tolerance {tolerance} must be 0 or more and below 1")
    if start is not None:
        check_plan(problem, start)

    def search(asked: Problem, known: Plan | None, ends_s: float) -> SearchResult:
        def make(part: Problem) -> ExactSearch | None:
            objective = ProblemObjective(part, find_time_factor(part, steps))
            space = make_space(part, steps)
            if space is None:
                return None
            return ExactSearch(
                part, space, steps, objective, out_of_time=lambda: clock() >= ends_s, tolerance=tolerance
            )

        return search_parts(asked, make, known)

    ends_s = clock() + time_limit_s
    found = search(problem, start, ends_s)
    explain_ends_s = clock() + time_limit_s
    proof = describe_proof(problem, found, tolerance)
    if found.plan is None and found.complete and problem.spare_modes:
        again = solve(
            with_spare_modes(problem),
            steps,
            tolerance=tolerance,
            time_limit_s=time_limit_s,
            explain=explain,
            clock=clock,
        )
        if again.plan is not None or again.status is Status.UNKNOWN:
            return replace(again, why=f"{again.why} {NO_PLAIN_PLAN}")
        plain = _without_plan(problem, steps, found, proof, lambda: clock() >= explain_ends_s)
        return min(plain, again, key=lambda each: _distance(problem, each.nearest))
    if found.plan is None or found.estimate is None:
        return _without_plan(problem, steps, found, proof, lambda: clock() >= explain_ends_s)
    binding = find_reached_limits(problem, found.plan)
    relaxations: tuple[Relaxation, ...] = ()
    if explain:
        binding, relaxations = find_relaxations(
            problem, found.plan, found.estimate, lambda asked, known: search(asked, known, explain_ends_s)
        )
    return Solution(
        status=Status.OPTIMAL if found.complete else Status.FEASIBLE,
        plan=found.plan,
        estimate=found.estimate,
        proof=proof,
        why=describe_optimum(problem, found, tolerance),
        binding=binding,
        relaxations=relaxations,
        explored=found.estimated,
    )


def _distance(problem: Problem, nearest: Nearest | None) -> tuple[int, float]:
    """Return how far the nearest plan is from what is asked: in samples, then by how much it breaks the limits."""
    if nearest is None:
        return problem.global_batch, math.inf
    return abs(nearest.global_batch - problem.global_batch), violation(problem, nearest.estimate)


def _without_plan(
    problem: Problem, steps: StepTimes, found: SearchResult, proof: Proof, out_of_time: Callable[[], bool]
) -> Solution:
    nearest = find_nearest(problem, steps, out_of_time)
    if nearest is not None and nearest.global_batch == problem.global_batch and satisfies(problem, nearest.estimate):
        # The search by price had no time left to get to the plans that are fast enough.
        found = replace(found, plan=nearest.plan, estimate=nearest.estimate, value=rank(problem, nearest.estimate))
        return Solution(
            status=Status.FEASIBLE,
            plan=nearest.plan,
            estimate=nearest.estimate,
            proof=describe_proof(problem, found, 0.0),
            why=describe_optimum(problem, found, 0.0),
            explored=found.estimated,
        )
    return Solution(
        status=Status.INFEASIBLE if found.complete else Status.UNKNOWN,
        plan=None,
        estimate=None,
        proof=proof,
        why=describe_infeasible(problem, nearest, proven=found.complete),
        nearest=nearest,
        explored=found.estimated,
    )
