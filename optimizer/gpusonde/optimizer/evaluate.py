"""What a plan takes and costs, and whether that satisfies a problem.

The chance constraint. The iterations of a run scatter in two ways: each for itself, which averages out over a long run,
and all together, because a run stays where its machines were placed and because the model may be off for this job. So
the standard deviation of the whole time is ``sqrt((n * shared) ** 2 + n * own ** 2)`` for ``n`` iterations. Times are
above zero and skewed to the right, hence the whole time is taken as lognormal with that mean and standard deviation,
and its quantile at the problem's confidence must not exceed the deadline. The quantile is never below the mean.
"""

from __future__ import annotations

import math

from scipy.special import ndtri

from gpusonde.optimizer.plan import Plan
from gpusonde.optimizer.problem import Objective, Problem, ProblemError
from gpusonde.optimizer.solution import PlanEstimate
from gpusonde.optimizer.steps import StepEstimate, StepTimes

# Limits hold to rounding: sums of prices in another order differ in the last bits.
SLACK = 1e-9


def quantile_s(mean_s: float, sd_s: float, confidence: float) -> float:
    """Return the time that is kept with a probability, seconds; ``mean_s`` at least.

    Args:
        mean_s: Mean, above zero.
        sd_s: Standard deviation.
        confidence: The probability, 0.5 or more.
    """
    if sd_s == 0:
        return mean_s
    sigma = math.sqrt(math.log1p((sd_s / mean_s) ** 2))
    return mean_s * max(1.0, math.exp(float(ndtri(confidence)) * sigma - 0.5 * sigma**2))


def check_plan(problem: Problem, plan: Plan) -> None:
    """Check that a plan keeps quotas, memory limits, batch limits and the global batch.

    Raises:
        ProblemError: It does not; the message says where.
    """
    for group in plan.groups:
        try:
            offer = problem.offer(group.offer)
        except KeyError:
            raise ProblemError(f"there is no offer named {group.offer}") from None
        if group.machines > offer.quota:
            raise ProblemError(f"{group.machines} machines of {offer.name} exceed its quota of {offer.quota}")
        if group.batch_size < offer.smallest_batch:
            raise ProblemError(
                f"batch {group.batch_size} is below the smallest of {offer.name}, {offer.smallest_batch}"
            )
        if offer.largest_batch is not None and group.batch_size > offer.largest_batch:
            raise ProblemError(
                f"batch {group.batch_size} does not fit into {offer.name}: {offer.largest_batch} is most"
            )
    batch = plan.global_batch(problem.offers)
    if batch != problem.global_batch:
        raise ProblemError(f"the plan runs {batch} samples per iteration, not {problem.global_batch}")


def estimate_plan(problem: Problem, plan: Plan, steps: StepTimes) -> PlanEstimate:
    """Return what a plan takes and costs until the job is done."""
    return estimate_run(problem, plan.usd_per_hour(problem.offers), steps.estimate(plan))


def estimate_run(problem: Problem, usd_per_hour: float, step: StepEstimate) -> PlanEstimate:
    """Return what machines at that price take and cost with iterations like ``step``."""
    run_s = problem.iterations * step.mean_s
    time_s = problem.overhead_s + run_s
    kept_s = problem.overhead_s + quantile_s(run_s, step.run_sd_s(problem.iterations), problem.confidence)
    return PlanEstimate(
        time_s=time_s,
        time_at_confidence_s=kept_s,
        cost_usd=time_s * usd_per_hour / 3600.0,
        cost_at_confidence_usd=kept_s * usd_per_hour / 3600.0,
        usd_per_hour=usd_per_hour,
        step=step,
    )


def objective_value(problem: Problem, estimate: PlanEstimate) -> float:
    """Return what is to be as small as possible: seconds or USD."""
    return estimate.time_s if problem.objective is Objective.TIME else estimate.cost_usd


def rank(problem: Problem, estimate: PlanEstimate) -> tuple[float, float]:
    """Return the objective and, for plans that are equal in it, the other of time and cost; the smaller the better."""
    if problem.objective is Objective.TIME:
        return estimate.time_s, estimate.cost_usd
    return estimate.cost_usd, estimate.time_s


def violation(problem: Problem, estimate: PlanEstimate) -> float:
    """Return how many times over the limit it is at worst: 1 or less when deadline and budget are kept, 0 without."""
    over = 0.0
    if problem.deadline_s is not None:
        over = max(over, estimate.time_at_confidence_s / problem.deadline_s)
    if problem.budget_usd is not None:
        over = max(over, estimate.cost_usd / problem.budget_usd)
    return over


def satisfies(problem: Problem, estimate: PlanEstimate) -> bool:
    """Return whether deadline and budget are kept, in a time that is known at all."""
    return math.isfinite(estimate.time_s) and violation(problem, estimate) <= 1.0 + SLACK
