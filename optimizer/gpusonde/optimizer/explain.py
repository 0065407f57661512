"""Explanations of what a search found: the proof in words, the limits that bind and what giving way at them buys.

For a problem that has no plan: the plan that violates its limits least.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from gpusonde.errors import ProblemError
from gpusonde.formatting import count, dollars, duration, few_names, percent
from gpusonde.optimizer.problem import Objective, Plan, Problem, default_batch_sizes
from gpusonde.optimizer.search.exact import ExactSearch, SearchResult, search_parts
from gpusonde.optimizer.search.objectives import LeastViolation, ProblemObjective, find_time_factor
from gpusonde.optimizer.search.space import make_space, with_spare_modes
from gpusonde.optimizer.solution import SLACK, Nearest, PlanEstimate, Proof, Relaxation, objective_value, violation
from gpusonde.optimizer.step_times import StepTimes
from gpusonde.simulator.iteration import Sharding, StepMode

# What is said of plans whose micro-batches are not asked for.
NO_PLAIN_PLAN = "Without gradient accumulation there is none."
# From this gap on a bound says nothing.
_NOTHING_KNOWN = 0.9999
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
        found = search_parts(asked, lambda part: _search_nearest(part, steps, out_of_time))
        if found.plan is not None and found.estimate is not None:
            return Nearest(found.plan, found.estimate, batch, _words(problem, found.estimate, batch))
        if out_of_time():
            return None
    return None


def _search_nearest(part: Problem, steps: StepTimes, out_of_time: Callable[[], bool]) -> ExactSearch | None:
    limited = part.deadline_s is not None or part.budget_usd is not None
    objective = (LeastViolation if limited else ProblemObjective)(part, find_time_factor(part, steps))
    space = make_space(part, steps)
    return None if space is None else ExactSearch(part, space, steps, objective, out_of_time=out_of_time)


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
        global_batch=problem.global_batch * offer.devices * problem.mode.accumulation_steps,
        batch_sizes=problem.batch_sizes or default_batch_sizes(problem.global_batch),
    )
    return list(doubled.candidates(offer)) or [offer.smallest_batch]


def _reachable(problem: Problem, most: int) -> int:
    """The global batches up to ``most`` that offers can share out, as bits."""
    reachable = 1
    for offer in problem.offers:
        if offer.largest_batch is not None and offer.largest_batch < offer.smallest_batch:
            continue
        with_offer = reachable
        for batch in _candidates(problem, offer.name):
            step = batch * offer.devices * problem.mode.accumulation_steps
            reached, left, machines = reachable, min(offer.quota, most // step), 1
            while left > 0:
                taken = min(machines, left)
                reached |= (reached << (taken * step)) & ((1 << (most + 1)) - 1)
                left -= taken
                machines *= 2
            with_offer |= reached
        reachable = with_offer
    return reachable


def _global_batches(problem: Problem) -> list[int]:
    """The global batch itself, if it can be split, or the nearest ones that can, the nearest first."""
    samples = problem.global_batch
    if 2 * samples > _MOST_UNITS:
        return [samples]
    reachable = 0
    for part in problem.parts():
        reachable |= _reachable(part, 2 * samples + 1)
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
                f"it ends {duration(over_s)} after the deadline ({percent(over_s / problem.deadline_s, 1)}), "
                f"with a confidence of {percent(problem.confidence, None)}"
            )
        if problem.budget_usd is not None and estimate.cost_usd > problem.budget_usd * (1 + SLACK):
            over_usd = estimate.cost_usd - problem.budget_usd
            said.append(
                f"it costs {dollars(over_usd)} more than the budget ({percent(over_usd / problem.budget_usd, 1)})"
            )
    return "; ".join(said) or "it keeps all limits"


# Gains below this, relative, are not worth a sentence.
_LEAST_GAIN = 1e-6
_MOST_QUOTAS = 3

SolveAgain = Callable[[Problem, Plan], SearchResult]


def describe_gap(gap: float) -> str:
    """Return how far an answer that was not proven may be from the best one."""
    if gap > _NOTHING_KNOWN:
        return "at an unknown distance from the best possible"
    return f"within {percent(gap, 2)} of the best possible"


def describe_proof(problem: Problem, found: SearchResult, tolerance: float) -> Proof:
    """Return what a search has shown."""
    searched = (
        f"{found.subproblems:,} of {found.cells_in_all:,} combinations of network, slowest latency and number of GPUs "
        f"were searched, {count(found.estimated, 'plan')} {'was' if found.estimated == 1 else 'were'} estimated"
    )
    if found.value is None:
        words = f"{searched}; " + ("no plan is left." if found.complete else "the time limit ended the search.")
        return Proof("exact", found.complete, None, None, words)
    gap = max(0.0, 1.0 - found.bound / found.value[0])
    if not found.complete:
        words = f"{searched}; the search ended before the others were excluded: the plan is {describe_gap(gap)}."
    elif tolerance:
        words = f"{searched}; all others are better by {percent(tolerance, 2)} at most, or not at all."
    else:
        words = f"{searched}; all others are excluded by bounds of their time and price."
    return Proof("exact", found.complete, found.bound, gap, words)


def describe_optimum(problem: Problem, found: SearchResult, tolerance: float) -> str:
    """Return why a plan was chosen."""
    plan, estimate = found.plan, found.estimate
    if plan is None or estimate is None:
        return ""
    devices = plan.devices(problem.offers)
    what = "faster" if problem.objective is Objective.TIME else "cheaper"
    limits = [
        text
        for text, given in (("the deadline", problem.deadline_s), ("the budget", problem.budget_usd))
        if given is not None
    ]
    kept = f" that keeps {' and '.join(limits)}" if limits else ""
    if not found.complete:
        proven = f"it is the best plan{kept} that was found in time"
    elif tolerance:
        proven = f"no plan{kept} is {what} by more than {percent(tolerance, 2)}"
    else:
        proven = f"no plan{kept} is {what}"
    kept_s = estimate.time_at_confidence_s
    scatter = f" ({duration(kept_s)} with {percent(problem.confidence, None)})" if kept_s > estimate.time_s else ""
    return (
        f"{plan}: {devices} GPU{'s' if devices > 1 else ''}, {duration(estimate.time_s)}{scatter}, "
        f"{dollars(estimate.cost_usd)}; {proven}."
    )


def describe_infeasible(problem: Problem, nearest: Nearest | None, *, proven: bool) -> str:
    """Return why there is no plan."""
    limits = [name for name, given in (("deadline", problem.deadline_s), ("budget", problem.budget_usd)) if given]
    nearest_batch = nearest.global_batch if nearest is not None else 0
    if nearest is None and limits:
        # Perhaps only for want of time.
        nearest_batch = next(iter(_global_batches(problem)), 0)
    if not proven:
        why = "The time limit ended the search before it found a plan or that there is none."
    elif (reason := _no_offer_words(problem)) is not None:
        why = reason
    elif nearest_batch != problem.global_batch:
        why = (
            f"The offers cannot share out a global batch of {problem.global_batch}: with their quotas, limits and "
            "batches per GPU no sum of whole machines reaches it."
        )
    else:
        why = f"No plan keeps the {' and the '.join(limits)}." if limits else "No plan has a known duration."
    if nearest is not None:
        why += f" Nearest: {nearest.plan}; {nearest.words}."
    return why


def _no_offer_words(problem: Problem) -> str | None:
    """Why no offer can take part at all; None when one can."""
    offers = tuple({offer.name: offer for part in problem.parts() for offer in part.offers}.values())
    if any(part.candidates(offer) and offer.quota for part in problem.parts() for offer in part.offers):
        return None
    if all(offer.largest_batch == 0 for offer in offers):
        return "The model fits into no GPU on offer: not even a batch of 1."
    if all(offer.quota == 0 for offer in offers):
        shared = [quota for quota in problem.quotas if any(quota.gpus < each.devices for each in problem.offers)]
        if shared:
            return f"Every offer is sold out, by the {shared[0]}: give its gpus in quotas what may be rented."
        return "Every offer is sold out: all quotas are 0; give the quota of one that may be rented."
    why: dict[str, list[str]] = {}
    for offer in offers:
        if offer.quota == 0:
            reason = "sold out: {}"
        elif offer.largest_batch == 0:
            reason = "the model does not fit into {}"
        elif offer.smallest_batch * offer.devices > problem.global_batch:
            least, most = offer.smallest_batch * offer.devices, problem.global_batch
            reason = f"{{}}: {least} samples at least on a machine, more than the global batch of {most}"
        elif problem.memory is not None and not any(
            part.least_devices(offer, offer.smallest_batch) for part in problem.parts()
        ):
            zero3 = any(mode.sharding is Sharding.ZERO3 for mode in problem.modes)
            parts = ": unit_bytes, its weights that are gathered at a time, may be less" * zero3
            reason = f"what the job holds does not fit into {{}}, however many GPUs share it{parts}"
        else:
            reason = "no batch lies within the limits of {}"
        why.setdefault(reason, []).append(offer.name)
    words = [reason.format(few_names(names)) for reason, names in why.items()]
    return f"No offer can take part: {'; '.join(words)}."


def find_reached_limits(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """Return the quotas and the limits of batches that a plan has reached."""
    reached = []
    part = dataclasses.replace(problem, modes=(plan.mode,))
    for group in plan.groups:
        offer = part.offer(group.offer)
        if group.machines == offer.quota:
            reached.append(f"quota of {offer.name}")
        candidates = part.candidates(offer)
        largest = part.largest_batch(offer)
        if largest is None and part.memory is not None:
            largest = candidates[-1]
        if (
            largest is not None
            and group.batch_size == candidates[-1]
            and largest < part.samples // (group.machines * offer.devices)
        ):
            reached.append(f"memory of {offer.name}")
        if group.batch_size == candidates[0] and offer.smallest_batch > 1:
            reached.append(f"smallest batch of {offer.name}")
    for quota in problem.quotas:
        least = min((offer.devices for offer in problem.offers if quota.limits(offer)), default=0)
        if any(used + least > quota.gpus for used in problem.used(quota, plan).values()):
            reached.append(str(quota))
    return tuple(reached)


def find_relaxations(
    problem: Problem, plan: Plan, estimate: PlanEstimate, solve_again: SolveAgain
) -> tuple[tuple[str, ...], tuple[Relaxation, ...]]:
    """Return the limits that bind, and what giving way at them buys.

    A deadline, a budget or a quota binds when the objective is lower without it, which is tried: of quotas those that
    the plan has reached, and those for which better machines are not taken at all. The limits of batches cannot be
    tried, for nothing is known beyond them; they count when the plan has reached them.

    Args:
        problem: The problem.
        plan: Its best plan.
        estimate: What that takes and costs.
        solve_again: Solves a problem, given a plan that is known to satisfy it.
    """
    binding: list[str] = []
    relaxations: list[Relaxation] = []
    before = objective_value(problem, estimate)
    for limit, changes in _changes(problem, plan, solve_again):
        # The largest change first: when that buys nothing, less of it does not either.
        for change, asked in changes:
            found = solve_again(asked, plan)
            if found.plan is None or found.estimate is None:
                break
            if objective_value(problem, found.estimate) >= before * (1.0 - _LEAST_GAIN):
                if limit not in binding:
                    break
                continue
            if limit not in binding:
                binding.append(limit)
            relaxations.append(_relaxation(problem, limit, change, before, found.plan, found.estimate))
    reached = [limit for limit in find_reached_limits(problem, plan) if not limit.startswith("quota")]
    return (*binding, *reached), tuple(relaxations)


def _changes(problem: Problem, plan: Plan, solve_again: SolveAgain) -> Iterator[tuple[str, list[tuple[str, Problem]]]]:
    replace = dataclasses.replace
    if problem.deadline_s is not None:
        more = replace(problem, deadline_s=1.1 * problem.deadline_s)
        yield "deadline_s", [("no limit", replace(problem, deadline_s=None)), ("+10 %", more)]
    if problem.budget_usd is not None:
        more = replace(problem, budget_usd=1.1 * problem.budget_usd)
        yield "budget_usd", [("no limit", replace(problem, budget_usd=None)), ("+10 %", more)]
    reached = find_reached_limits(problem, plan)
    own = {f"quota of {offer.name}" for offer in problem.offers}
    tried = [str(quota) for quota in problem.quotas if str(quota) in reached]
    tried += [limit for limit in reached if limit in own][:_MOST_QUOTAS]
    for limit in tried:
        yield limit, [("x 2", _double(problem, {limit}))]
    spare = useful_spare_modes(problem)
    if spare:
        most = max(mode.accumulation_steps for mode in spare)
        yield "accumulation_steps", [(f"up to {most}", with_spare_modes(replace(problem, spare_modes=spare)))]
    try:
        found = solve_again(_double(problem, own.union(map(str, problem.quotas))), plan)
    except ProblemError:  # too many ways to choose for a search
        return
    if found.plan is not None:
        for limit in [limit for limit in _exceeded(problem, found.plan) if limit not in tried][:_MOST_QUOTAS]:
            yield limit, [("x 2", _double(problem, {limit}))]


def useful_spare_modes(problem: Problem) -> tuple[StepMode, ...]:
    """The spare modes but for those with more micro-batches than any lone machine needs for the whole batch."""
    if problem.memory is not None:
        return problem.spare_modes
    fits = [offer.devices * (offer.largest_batch or problem.global_batch) for offer in problem.offers]
    needed = -(-problem.global_batch // min(fits))
    enough = min((m.accumulation_steps for m in problem.spare_modes if m.accumulation_steps >= needed), default=needed)
    return tuple(m for m in problem.spare_modes if needed > 1 and m.accumulation_steps <= enough)


def _double(problem: Problem, limits: set[str]) -> Problem:
    """The problem with twice some quotas, its own and shared ones."""
    replace = dataclasses.replace
    offers = tuple(
        replace(offer, quota=2 * offer.quota) if f"quota of {offer.name}" in limits else offer
        for offer in problem.offers
    )
    quotas = tuple(replace(each, gpus=2 * each.gpus) if str(each) in limits else each for each in problem.quotas)
    return replace(problem, offers=offers, quotas=quotas)


def _exceeded(problem: Problem, plan: Plan) -> list[str]:
    """The quotas that a plan does not keep, in words."""
    shared = [
        str(quota) for quota in problem.quotas if any(used > quota.gpus for used in problem.used(quota, plan).values())
    ]
    return shared + [
        f"quota of {group.offer}" for group in plan.groups if group.machines > problem.offer(group.offer).quota
    ]


def _relaxation(
    problem: Problem, limit: str, change: str, before: float, plan: Plan, estimate: PlanEstimate
) -> Relaxation:
    gain = 1.0 - objective_value(problem, estimate) / before
    what = "faster" if problem.objective is Objective.TIME else "cheaper"
    price = f"{duration(estimate.time_s)} and {dollars(estimate.cost_usd)}"
    words = f"{limit} {change}: {percent(gain, 1)} {what} with {plan}, {price}"
    return Relaxation(limit, change, plan, estimate.time_s, estimate.cost_usd, words)
