"""``SearchObjective``: what a search makes as small as possible, from an iteration's time and the machines' price.

Every objective grows with both, so that a lower bound of time and price gives one of the objective.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gpusonde.optimizer.problem import Objective, Plan, Problem
from gpusonde.optimizer.solution import SLACK, PlanEstimate, rank, satisfies, violation
from gpusonde.optimizer.step_times import StepTimes, least_quantile

FloatArray = npt.NDArray[np.float64]

# Values closer together than this, relative, are the same up to rounding.
SAME = 1e-12


def find_time_factor(problem: Problem, steps: StepTimes) -> float:
    """Return how many times its mean the time of a run is, at least, with which a deadline is compared."""
    return float(least_quantile(np.array(getattr(steps, "least_spread", 0.0)), problem.confidence))


def is_late(problem: Problem, kept_s: FloatArray) -> npt.NDArray[np.bool_]:
    """Return where iterations that take so long at the problem's confidence miss the deadline, shape of ``kept_s``."""
    deadline_s = math.inf if problem.deadline_s is None else problem.deadline_s * (1 + SLACK)
    return np.asarray(problem.overhead_s + problem.iterations * kept_s > deadline_s)


class SearchObjective(Protocol):
    """What a search wants."""

    def bound(self, step_s: FloatArray, usd_per_hour: FloatArray) -> FloatArray:
        """Return a lower bound of the objective's value, from lower bounds of an iteration and of the price."""
        ...

    def ceiling(
        self, step_s: FloatArray, best: tuple[float, float] | None, kept_s: FloatArray | None = None
    ) -> FloatArray:
        """Return the price from which on plans with such iterations are of no use; minus infinity when none is.

        Args:
            step_s: Lower bound of an iteration.
            best: Value of the best plan so far.
            kept_s: Lower bound of an iteration at the problem's confidence; None where only the mean is known.
        """
        ...

    def value(self, plan: Plan, estimate: PlanEstimate) -> tuple[float, float] | None:
        """Return the value of a plan, and what decides between equal ones; None when it is not allowed."""
        ...


@dataclass(frozen=True)
class ProblemObjective:
    """The problem's own objective under its limits.

    Attributes:
        problem: The problem.
        kept: How many times its mean the time of a run is, at least, with which the deadline is compared.
    """

    problem: Problem
    kept: float = 1.0

    def bound(self, step_s: FloatArray, usd_per_hour: FloatArray) -> FloatArray:
        """Return a lower bound of the objective, seconds or USD."""
        time_s = self.problem.overhead_s + self.problem.iterations * step_s
        if self.problem.objective is Objective.TIME:
            return time_s
        return np.asarray(time_s * usd_per_hour / 3600.0)

    def ceiling(
        self, step_s: FloatArray, best: tuple[float, float] | None, kept_s: FloatArray | None = None
    ) -> FloatArray:
        """Return the price above which a limit is broken or the best plan is better."""
        problem = self.problem
        time_s = problem.overhead_s + problem.iterations * step_s
        most_usd = np.full(time_s.shape, math.inf if problem.budget_usd is None else problem.budget_usd * (1 + SLACK))
        most_usd[is_late(problem, self.kept * step_s if kept_s is None else kept_s)] = -math.inf
        if best is not None and problem.objective is Objective.TIME:
            most_usd[time_s > best[0] * (1 + SAME)] = -math.inf
            tied = time_s >= best[0] * (1 - SAME)
            most_usd[tied] = np.minimum(most_usd[tied], best[1] * (1 - SAME))
        elif best is not None:
            most_usd = np.minimum(most_usd, best[0] * (1 - SAME))
        most_usd[~np.isfinite(time_s)] = -math.inf
        return np.asarray(most_usd * 3600.0 / np.where(np.isfinite(time_s), time_s, 1.0))

    def value(self, plan: Plan, estimate: PlanEstimate) -> tuple[float, float] | None:
        """Return objective and tie-break of a plan that keeps all limits."""
        return rank(self.problem, estimate) if satisfies(self.problem, estimate) else None


@dataclass(frozen=True)
class LeastViolation:
    """Deadline and budget broken as little as possible: the larger of the two overruns counts.

    Attributes:
        problem: The problem, with a deadline or a budget.
        kept: How many times its mean the time of a run is, at least, with which the deadline is compared.
    """

    problem: Problem
    kept: float = 1.0

    def bound(self, step_s: FloatArray, usd_per_hour: FloatArray) -> FloatArray:
        """Return a lower bound of how many times over the worse limit a plan is."""
        time_s = self.problem.overhead_s + self.problem.iterations * step_s
        over = np.zeros(time_s.shape)
        if self.problem.deadline_s is not None:
            kept_s = self.problem.overhead_s + self.kept * self.problem.iterations * step_s
            over = np.maximum(over, kept_s / self.problem.deadline_s)
        if self.problem.budget_usd is not None:
            over = np.maximum(over, time_s * usd_per_hour / 3600.0 / self.problem.budget_usd)
        return over

    def ceiling(
        self, step_s: FloatArray, best: tuple[float, float] | None, kept_s: FloatArray | None = None
    ) -> FloatArray:
        """Return the price above which the best plan breaks the limits less."""
        kept_s = self.kept * step_s if kept_s is None else kept_s
        problem = self.problem
        time_s = problem.overhead_s + problem.iterations * step_s
        most_over = math.inf if best is None else best[0] * (1 - SAME)
        most_usd = np.full(time_s.shape, math.inf if problem.budget_usd is None else most_over * problem.budget_usd)
        if problem.deadline_s is not None:
            end_s = problem.overhead_s + problem.iterations * kept_s
            most_usd[end_s > most_over * problem.deadline_s] = -math.inf
        most_usd[~np.isfinite(time_s)] = -math.inf
        return np.asarray(most_usd * 3600.0 / np.where(np.isfinite(time_s), time_s, 1.0))

    def value(self, plan: Plan, estimate: PlanEstimate) -> tuple[float, float] | None:
        """Return how many times over the worse limit a plan is, and the objective."""
        if not math.isfinite(estimate.time_s):
            return None
        return violation(self.problem, estimate), rank(self.problem, estimate)[0]
