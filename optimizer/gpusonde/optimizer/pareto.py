"""``pareto``: all sensible compromises between time and cost."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gpusonde.optimizer.evaluate import SLACK, satisfies
from gpusonde.optimizer.plan import Plan
from gpusonde.optimizer.problem import Problem, ProblemError
from gpusonde.optimizer.search.exact import ExactSearch
from gpusonde.optimizer.search.goal import SAME, kept_times
from gpusonde.optimizer.search.space import make_space
from gpusonde.optimizer.solution import PlanEstimate
from gpusonde.optimizer.steps import StepTimes

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
    space = make_space(problem, steps)
    if space is None:
        return ParetoFront((), True, resolution)
    front = _Front(problem, kept_times(problem, steps), resolution)
    ends_s = clock() + time_limit_s
    found = ExactSearch(problem, space, steps, front, out_of_time=lambda: clock() >= ends_s).run()
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
    """The goal of a search in the order of time: whatever is cheaper than all that is as fast."""

    problem: Problem
    kept: float
    resolution: float
    points: list[ParetoPoint] = field(default_factory=list)

    def bound(self, step_s: FloatArray, usd_per_hour: FloatArray) -> FloatArray:
        return self.problem.overhead_s + self.problem.iterations * step_s

    def ceiling(self, step_s: FloatArray, best: tuple[float, float] | None) -> FloatArray:
        problem = self.problem
        time_s = problem.overhead_s + problem.iterations * step_s
        most_usd = np.full(time_s.shape, math.inf if problem.budget_usd is None else problem.budget_usd * (1 + SLACK))
        if problem.deadline_s is not None:
            kept_s = problem.overhead_s + self.kept * problem.iterations * step_s
            most_usd[kept_s > problem.deadline_s * (1 + SLACK)] = -math.inf
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
