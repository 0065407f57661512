"""The plan that violates the limits of a problem least, for problems that have none."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from gpusonde.optimizer.evaluate import SLACK, violation
from gpusonde.optimizer.problem import Problem, default_batch_sizes
from gpusonde.optimizer.search.exact import ExactSearch
from gpusonde.optimizer.search.goal import Best, LeastViolation, kept_times
from gpusonde.optimizer.search.space import make_space
from gpusonde.optimizer.solution import Nearest, PlanEstimate
from gpusonde.optimizer.steps import StepTimes
from gpusonde.optimizer.words import seconds, usd

# Global batches are looked for up to this many units of samples; it bounds the work.
_MOST_UNITS = 4_000_000


def find_nearest(problem: Problem, steps: StepTimes, out_of_time: Callable[[], bool]) -> Nearest | None:
    """Return the plan that breaks deadline and budget least, for the nearest global batch that can be split at all.

    Args:
        problem: A problem without a plan.
        steps: How long iterations take.
        out_of_time: Asked now and then; the search ends once it says so.

    Returns:
        The plan; None when the offers cannot run any global batch.
    """
    for batch in _global_batches(problem):
        asked = _for_batch(problem, batch)
        space = make_space(asked, steps)
        if space is None:
            continue
        limited = asked.deadline_s is not None or asked.budget_usd is not None
        goal = (LeastViolation if limited else Best)(asked, kept_times(asked, steps))
        found = ExactSearch(asked, space, steps, goal, out_of_time=out_of_time).run()
        if found.plan is not None and found.estimate is not None:
            return Nearest(found.plan, found.estimate, batch, _words(problem, found.estimate, batch))
        if out_of_time():
            return None
    return None


def _for_batch(problem: Problem, batch: int) -> Problem:
    """The problem for another global batch, with the batches per GPU of its own."""
    if batch == problem.global_batch:
        return problem
    sizes = sorted({size for offer in problem.offers for size in _candidates(problem, offer.name)})
    return dataclasses.replace(problem, global_batch=batch, batch_sizes=tuple(sizes))


def _candidates(problem: Problem, name: str) -> list[int]:
    """Batches per GPU of an offer, whatever the global batch."""
    offer = problem.offer(name)
    doubled = dataclasses.replace(
        problem,
        global_batch=problem.global_batch * offer.devices,
        batch_sizes=problem.batch_sizes or default_batch_sizes(problem.global_batch),
    )
    return list(doubled.candidates(offer)) or [offer.smallest_batch]


def _global_batches(problem: Problem) -> list[int]:
    """The global batch itself, if it can be split, or the nearest ones that can, the nearest first."""
    reachable, samples = 1, problem.global_batch
    if 2 * samples > _MOST_UNITS:
        return [samples]
    most = 2 * samples + 1
    for offer in problem.offers:
        if offer.largest_batch is not None and offer.largest_batch < offer.smallest_batch:
            continue
        with_offer = reachable
        for batch in _candidates(problem, offer.name):
            step = batch * offer.devices
            reached, left, machines = reachable, min(offer.quota, most // step), 1
            while left > 0:
                taken = min(machines, left)
                reached |= (reached << (taken * step)) & ((1 << (most + 1)) - 1)
                left -= taken
                machines *= 2
            with_offer |= reached
        reachable = with_offer
    found = []
    for distance in range(samples + 2):
        for batch in {samples - distance, samples + distance}:
            if batch > 0 and reachable >> batch & 1:
                found.append(batch)
        if len(found) >= 2:
            break
    return found


def _words(problem: Problem, estimate: PlanEstimate, batch: int) -> str:
    said = []
    if batch != problem.global_batch:
        said.append(f"it runs {batch} samples per iteration, not {problem.global_batch}")
    if violation(problem, estimate) > 1 + SLACK:
        if problem.deadline_s is not None and estimate.time_at_confidence_s > problem.deadline_s * (1 + SLACK):
            over_s = estimate.time_at_confidence_s - problem.deadline_s
            said.append(
                f"it ends {seconds(over_s)} after the deadline ({over_s / problem.deadline_s:.1%}), "
                f"with a confidence of {problem.confidence:.0%}"
            )
        if problem.budget_usd is not None and estimate.cost_usd > problem.budget_usd * (1 + SLACK):
            over_usd = estimate.cost_usd - problem.budget_usd
            said.append(f"it costs {usd(over_usd)} more than the budget ({over_usd / problem.budget_usd:.1%})")
    return "; ".join(said) or "it keeps all limits"
