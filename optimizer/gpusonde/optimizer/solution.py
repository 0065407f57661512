"""``Solution``: the plan that was chosen and why; ``PlanEstimate``: what a plan takes and costs.

A deadline is a chance constraint. The iterations of a run scatter in two ways: each for itself, which averages out over
a long run, and all together, because a run stays where its machines were placed and because the model may be off for
this job. So the standard deviation of the whole time is ``sqrt((n * shared) ** 2 + n * own ** 2)`` for ``n``
iterations. Times are above zero and skewed to the right, hence the whole time is taken as lognormal with that mean and
standard deviation, and its quantile at the problem's confidence must not exceed the deadline. The quantile is never
below the mean. Of speeds that are known to a factor only the estimate is the middle, and that factor's quantile is
asked besides. Preemptions add work that is done again, restarts, and scatter of their own (``expected_run``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import Enum

from scipy.special import ndtri

from gpusonde.errors import ProblemError
from gpusonde.optimizer.preemptions import expected_run
from gpusonde.optimizer.problem import Objective, Plan, Problem
from gpusonde.optimizer.step_times import StepEstimate, StepTimes


class Status(Enum):
    """What a search found out."""

    OPTIMAL = "optimal"  # no plan is better, and that is proven
    FEASIBLE = "feasible"  # the plan satisfies everything; a better one may exist
    INFEASIBLE = "infeasible"  # no plan satisfies everything
    UNKNOWN = "unknown"  # the search ended at its limit before it found a plan, or that none exists


@dataclass(frozen=True)
class PlanEstimate:
    """What a plan takes and costs until the job is done.

    Attributes:
        time_s: Mean time, overhead and preemptions included.
        time_at_confidence_s: Time that is kept with the problem's confidence.
        cost_usd: Mean cost.
        cost_at_confidence_usd: Cost when it takes ``time_at_confidence_s``.
        usd_per_hour: Price of its machines.
        step: One iteration.
        preemptions: How many are expected.
        checkpoint_interval_s: Seconds of work between two checkpoints at which it takes least; infinite for none.
        data_usd: What of the mean cost is to copy data to other regions and to keep them there.
    """

    time_s: float
    time_at_confidence_s: float
    cost_usd: float
    cost_at_confidence_usd: float
    usd_per_hour: float
    step: StepEstimate
    preemptions: float = 0.0
    checkpoint_interval_s: float = math.inf
    data_usd: float = 0.0


@dataclass(frozen=True)
class Proof:
    """What was searched.

    Attributes:
        method: ``exact``, ``paper`` or ``brute_force``; ``jobs`` of several; ``given`` for a plan only estimated.
        complete: True when every plan was looked at or excluded by a bound.
        bound: No plan that satisfies everything has a lower objective, seconds or USD; None when there is no such plan
            or the method proves nothing.
        gap: How far the plan may be from the optimum, relative; 0 when it is one; None likewise.
        words: The same for people.
    """

    method: str
    complete: bool
    bound: float | None
    gap: float | None
    words: str


@dataclass(frozen=True)
class Relaxation:
    """What giving way at one limit buys.

    Attributes:
        limit: ``budget_usd``, ``deadline_s``, ``accumulation_steps`` or ``quota of NAME``.
        change: In words, such as "+10 %".
        plan: Best plan then; None when there is still none.
        time_s: Its mean time; None likewise.
        cost_usd: Its mean cost; None likewise.
        words: The same for people.
    """

    limit: str
    change: str
    plan: Plan | None
    time_s: float | None
    cost_usd: float | None
    words: str


@dataclass(frozen=True)
class Nearest:
    """The plan that violates the limits least, when none satisfies them.

    Attributes:
        plan: The plan.
        estimate: What it takes and costs.
        global_batch: Its samples per iteration; another one than asked for when that one cannot be split.
        words: What it violates, and by how much.
    """

    plan: Plan
    estimate: PlanEstimate
    global_batch: int
    words: str


@dataclass(frozen=True)
class Solution:
    """Answer to a problem.

    Attributes:
        status: ``optimal``: proven; ``feasible``: keeps every limit; ``infeasible``: no plan does, or the given one
            does not; ``unknown``: the search ended at its limit.
        plan: The plan; None when there is none.
        estimate: What it takes and costs; None likewise.
        proof: What was searched.
        why: Why this plan, or why none, for people.
        binding: Limits that keep the objective from being lower: ``deadline_s``, ``budget_usd``,
            ``accumulation_steps``, ``quota of NAME``, ``memory of NAME``, ``smallest batch of NAME``.
        relaxations: What giving way at these buys.
        nearest: When there is no plan: the one that violates least; None when there is not even such a one.
        explored: Plans or states that were looked at.
    """

    status: Status
    plan: Plan | None
    estimate: PlanEstimate | None
    proof: Proof
    why: str
    binding: tuple[str, ...] = ()
    relaxations: tuple[Relaxation, ...] = field(default=())
    nearest: Nearest | None = None
    explored: int = 0


# Limits hold to rounding: sums of prices in another order differ in the last bits.
SLACK = 1e-9


def quantile_s(mean_s: float, sd_s: float, confidence: float, doubt: float = 0.0) -> float:
    """Return the time that is kept with a probability, seconds; ``mean_s`` at least.

    Args:
        mean_s: Mean, above zero.
        sd_s: Standard deviation.
        confidence: The probability, 0.5 or more.
        doubt: The part of it, as a ratio to the mean, that is of a factor which is as often above as below 1.
    """
    deviations = float(ndtri(confidence))
    own = math.log1p(max((sd_s / mean_s) ** 2 - doubt**2, 0.0))
    margin = max(0.0, deviations * math.sqrt(own) - 0.5 * own)
    return mean_s * math.exp(math.hypot(margin, deviations * doubt))


def check_plan(problem: Problem, plan: Plan) -> None:
    """Check that a plan keeps quotas, memory limits, batch limits, regions and the global batch.

    Raises:
        ProblemError: It does not; the message says where.
    """
    in_mode = replace(problem, modes=(plan.mode,))
    if plan.mode not in problem.modes and plan.mode not in problem.spare_modes:
        raise ProblemError(f"the job does not run iterations with {plan.mode or 'plain steps'}")
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
        most = in_mode.largest_batch(offer)
        if most is not None and group.batch_size > most:
            raise ProblemError(f"batch {group.batch_size} does not fit into {offer.name}: {most} is most")
    devices = plan.devices(problem.offers)
    for group in plan.groups:
        least = in_mode.least_devices(problem.offer(group.offer), group.batch_size)
        if not 0 < least <= devices:
            needed = f"{least} GPUs that share the state" if least else "another mode"
            raise ProblemError(f"batch {group.batch_size} does not fit into {group.offer} ({plan}): it needs {needed}")
    broken = problem.broken_quota(plan)
    if broken is not None:
        raise ProblemError(f"the plan has {max(problem.used(broken, plan).values())} GPUs, more than the {broken}")
    lone = [group.offer for group in plan.groups if problem.offer(group.offer).is_lone]
    if lone and len(plan.groups) > 1:
        raise ProblemError(f"nobody knows the network of {lone[0]} to other machines: give network_bytes_per_second")
    regions = sorted({problem.offer(group.offer).region or "no region" for group in plan.groups})
    if len(regions) > 1 and not problem.across_regions:
        raise ProblemError(f"the plan spans {' and '.join(regions)}: across_regions = true allows that")
    batch = plan.global_batch(problem.offers)
    if batch != problem.global_batch:
        raise ProblemError(f"the plan runs {batch} samples per iteration, not {problem.global_batch}")


def estimate_plan(problem: Problem, plan: Plan, steps: StepTimes) -> PlanEstimate:
    """Return what a plan takes and costs until the job is done."""
    per_hour = problem.preemptions_per_hour(plan)
    found = estimate_run(problem, plan.usd_per_hour(problem.offers), steps.estimate(plan), per_hour)
    if problem.data is None:
        return found
    once, usd_per_hour = problem.data.fees(problem.offer(group.offer).region for group in plan.groups)
    data_usd = once + found.time_s * usd_per_hour / 3600.0
    kept_usd = once + found.time_at_confidence_s * usd_per_hour / 3600.0
    return replace(
        found,
        cost_usd=found.cost_usd + data_usd,
        cost_at_confidence_usd=found.cost_at_confidence_usd + kept_usd,
        data_usd=data_usd,
    )


def estimate_run(
    problem: Problem, usd_per_hour: float, step: StepEstimate, preemptions_per_hour: float = 0.0
) -> PlanEstimate:
    """Return what machines at that price take and cost with iterations like ``step``.

    Machines are paid for while one that was taken away is replaced: others wait for it, and it restores its state.
    """
    work_s = problem.iterations * step.mean_s
    run_s, sd_s = work_s, step.run_sd_s(problem.iterations)
    preemptions, interval_s = 0.0, math.inf
    if preemptions_per_hour > 0 and math.isfinite(work_s):
        run = expected_run(work_s, preemptions_per_hour, problem.restart_s, problem.save_s)
        run_s, preemptions, interval_s = run.seconds, run.preemptions, run.interval_s
        sd_s = math.hypot(sd_s * run_s / work_s, run.sd_s)
    time_s = problem.overhead_s + run_s
    kept_s = problem.overhead_s + (
        quantile_s(run_s, sd_s, problem.confidence, step.doubt) if math.isfinite(run_s) else run_s
    )
    return PlanEstimate(
        time_s=time_s,
        time_at_confidence_s=kept_s,
        cost_usd=time_s * usd_per_hour / 3600.0,
        cost_at_confidence_usd=kept_s * usd_per_hour / 3600.0,
        usd_per_hour=usd_per_hour,
        step=step,
        preemptions=preemptions,
        checkpoint_interval_s=interval_s,
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
