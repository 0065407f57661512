"""Several jobs under one quota and budget: every combination of plans against ``solve_jobs``, and twenty jobs at once.

Two to four problems of ``oracle.py`` share machines, shared quotas and, in half of the instances, a budget. Plans are
listed by ``oracle.py``; all combinations are weighed by dynamic programming over the machines that are taken, which
leaves out none of them.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import oracle
from instances import LARGE, Size, instance
from page import bar, table

from gpusonde.optimizer import MachineOffer, Objective, Status
from gpusonde.optimizer.several_jobs import JointSolution, SharingJob, solve_jobs
from gpusonde.optimizer.solution import SLACK, check_plan, estimate_plan, satisfies
from gpusonde.optimizer.solve import solve

_INSTANCES, _QUICK_INSTANCES = 60, 3
_LARGE, _QUICK_LARGE = 10, 1
_LARGE_JOBS, _LARGE_LIMIT_S = 20, 30.0
_MOST_GAP = {Objective.COST: 0.03, Objective.TIME: 0.1}
# Seeds that nobody looked at before the figures were taken.
_FIRST_SEED = 81_000
_ATTEMPTS = 8
_SAME = 1e-9


# A plan that a job could take alone: machines by offer, time and cost.
Row = tuple[dict[str, int], float, float]


@dataclass(frozen=True)
class Fleet:
    """Jobs that share machines, with all plans of each."""

    jobs: tuple[SharingJob, ...]
    objective: Objective
    budget_usd: float | None
    plans: tuple[list[Row], ...]


def fleet(seed: int) -> Fleet:
    """Return a few small jobs: always the same for a seed. One in ten may have no plan even alone."""
    random = np.random.default_rng(seed)
    most = int(random.choice([1, 2, 4]))
    pools = [replace(offer, quota=min(offer.quota, most)) for offer in oracle.instance(1000 * seed + 999)[0].offers]
    jobs: list[SharingJob] = []
    plans: list[list[Row]] = []
    wanted = int(random.integers(2, 5))
    for number in range(wanted):
        for attempt in range(1 if random.random() < 0.1 / wanted else _ATTEMPTS):
            problem, steps = oracle.instance(1000 * seed + _ATTEMPTS * number + attempt, pools)
            if jobs:
                problem = replace(problem, quotas=jobs[0].problem.quotas)
            job = SharingJob(f"job {number}", problem, steps)
            if rows := list(rows_of(job)):
                break
        pools += problem.offers[len(pools) :]
        jobs.append(job)
        plans.append(rows)
    budget_usd = None
    if random.random() < 0.5 and all(plans):
        budget_usd = sum(rows[random.integers(len(rows))][2] for rows in plans) * float(random.uniform(0.4, 1.2))
    objective = Objective.TIME if random.random() < 0.4 else Objective.COST
    return Fleet(tuple(jobs), objective, budget_usd, tuple(plans))


def rows_of(job: SharingJob) -> Iterator[Row]:
    """Yield all plans that a job could take alone."""
    for plan in oracle.every_plan(job.problem):
        found = estimate_plan(job.problem, plan, job.steps)
        if satisfies(job.problem, found):
            yield {group.offer: group.machines for group in plan.groups}, found.time_s, found.cost_usd


def every_combination(asked: Fleet) -> float | None:
    """Return the objective of the best combination of plans; None where none keeps all limits."""
    offers = {offer.name: offer for job in asked.jobs for offer in job.problem.offers}
    names = list(offers)
    shape = tuple(offers[name].quota + 1 for name in names)
    allowed = _allowed(asked, [offers[name] for name in names], shape)
    if not all(asked.plans):
        return None
    lists = [
        [(tuple(taken.get(name, 0) for name in names), time_s, cost_usd) for taken, time_s, cost_usd in rows]
        for rows in asked.plans
    ]
    budget = math.inf if asked.budget_usd is None else asked.budget_usd * (1 + SLACK)
    if asked.objective is Objective.COST:
        cost = _cheapest(lists, shape, allowed, math.inf)
        return cost if cost <= budget and math.isfinite(cost) else None
    ends = sorted({time_s for rows in lists for _, time_s, _ in rows})
    low, high = 0, len(ends)
    while low < high:
        middle = (low + high) // 2
        cost = _cheapest(lists, shape, allowed, ends[middle])
        low, high = (low, middle) if cost <= budget and math.isfinite(cost) else (middle + 1, high)
    return ends[low] if low < len(ends) else None


def _allowed(asked: Fleet, offers: Sequence[MachineOffer], shape: tuple[int, ...]) -> np.ndarray:
    """Return which numbers of machines of every offer keep the shared quotas, shape ``shape``."""
    allowed = np.ones(shape, dtype=bool)
    machines = np.indices(shape)
    for quota in {quota for job in asked.jobs for quota in job.problem.quotas}:
        for region in {offer.region for offer in offers} if not quota.region else {quota.region}:
            used = np.zeros(shape)
            for offer, count in zip(offers, machines, strict=True):
                if offer.region == region and quota.billing in (None, offer.billing):
                    used = used + offer.devices * count
            allowed &= used <= quota.gpus
    return allowed


def _cheapest(
    lists: Sequence[Sequence[tuple[tuple[int, ...], float, float]]],
    shape: tuple[int, ...],
    allowed: np.ndarray,
    latest_s: float,
) -> float:
    """Return the least cost of one plan of every job that ends in time; infinite where there is none."""
    least = np.full(shape, math.inf)
    least[(0,) * len(shape)] = 0.0
    for rows in lists:
        best: dict[tuple[int, ...], float] = {}
        for taken, time_s, cost_usd in rows:
            if time_s <= latest_s:
                best[taken] = min(best.get(taken, math.inf), cost_usd)
        after = np.full(shape, math.inf)
        for taken, cost_usd in best.items():
            to = tuple(slice(count, None) for count in taken)
            of = tuple(slice(None, size - count) for count, size in zip(taken, shape, strict=True))
            after[to] = np.minimum(after[to], least[of] + cost_usd)
        least = np.where(allowed, after, math.inf)
    return float(least.min())


def table_fleet(seed: int, count: int, size: Size) -> list[SharingJob]:
    """Return jobs whose step times are tables, all for the same machines, each with a deadline: the same for a seed."""
    random = np.random.default_rng(seed)
    pools = instance(seed, size)[0].offers
    jobs: list[SharingJob] = []
    for number in itertools.count(1000 * seed + 1):
        problem, steps = instance(number, size, pools)
        problem = replace(problem, deadline_s=None, budget_usd=None, objective=Objective.TIME)
        fastest = solve(problem, steps, explain=False).estimate
        if fastest is not None and len(problem.offers) <= len(pools):
            deadline_s = fastest.time_at_confidence_s * float(random.uniform(2.0, 8.0))
            jobs.append(SharingJob(f"job {number}", replace(problem, deadline_s=deadline_s), steps))
        if len(jobs) == count:
            break
    return jobs


def broken_limits(jobs: Sequence[SharingJob], found: JointSolution) -> int:
    """Return how many pools, shared quotas and limits of jobs an answer breaks."""
    offers = {offer.name: offer for job in jobs for offer in job.problem.offers}
    taken: Counter[str] = Counter()
    for each in found.jobs:
        taken.update({group.offer: group.machines for group in each.plan.groups})
    broken = sum(count > offers[name].quota for name, count in taken.items())
    for quota in {quota for job in jobs for quota in job.problem.quotas}:
        used: Counter[str] = Counter()
        for name, count in taken.items():
            if quota.limits(offers[name]):
                used[offers[name].region] += count * offers[name].devices
        broken += sum(count > quota.gpus for count in used.values())
    for job, each in zip(jobs, found.jobs, strict=True):
        check_plan(job.problem, each.plan)
        broken += not satisfies(job.problem, estimate_plan(job.problem, each.plan, job.steps))
    return broken


def section(args: argparse.Namespace) -> list[str]:
    """Return the section's lines."""
    lines = ["## Several jobs under one quota and budget", ""]
    wanted = _QUICK_INSTANCES if args.quick else _INSTANCES
    answers: Counter[str] = Counter()
    worst, false_none, broken, took = 0.0, 0, 0, []
    for seed in range(_FIRST_SEED, _FIRST_SEED + wanted):
        asked = fleet(seed)
        truth = every_combination(asked)
        began = time.perf_counter()
        found = solve_jobs(asked.jobs, objective=asked.objective, budget_usd=asked.budget_usd, explain=False)
        took.append(time.perf_counter() - began)
        answers[found.status.value] += 1
        answers["with a budget"] += asked.budget_usd is not None
        answers["least end"] += asked.objective is Objective.TIME
        answers["dearer for sharing"] += "more than if each" in found.why
        value = found.end_s if asked.objective is Objective.TIME else found.cost_usd
        if truth is None or value is None:
            false_none += truth is not None
            broken += value is not None
            continue
        broken += broken_limits(asked.jobs, found)
        worst = max(worst, abs(value / truth - 1.0))
    unproven = answers["feasible"] + answers["unknown"]
    bar(
        args,
        f"two to four jobs with spot, regions, shared quotas, {wanted} instances, every combination tried",
        'all optimal to 1e-9, 0 false "no plan"',
        f'largest difference {worst:.1e}, {false_none} false "no plan", {unproven} not proven, {broken} limits broken',
        met=worst <= _SAME and not (false_none or unproven or broken),
    )
    words = (
        f"Seeds {_FIRST_SEED:,} to {_FIRST_SEED + wanted - 1:,} of `fleet.py`: {answers['optimal']} have plans, "
        f"{answers['infeasible']} have none; {answers['least end']} ask for the least latest end, "
        f"{answers['with a budget']} have one budget; in {answers['dearer for sharing']} sharing makes the cheapest "
        f"plans dearer. An answer took {np.median(took):.2f} s in the median, {max(took):.1f} s at most. Below, "
        f"{_LARGE_JOBS} jobs of tables (`instances.py`, *large*), deadlines of two to eight times the fastest plan; "
        "seconds of CPU, as the machine is shared."
    )
    return [*lines, words, "", *_large(args)]


def _large(args: argparse.Namespace) -> list[str]:
    rows = []
    gaps: dict[Objective, list[float]] = {Objective.COST: [], Objective.TIME: []}
    broken = 0
    for seed in range(_FIRST_SEED, _FIRST_SEED + (_QUICK_LARGE if args.quick else _LARGE)):
        jobs = table_fleet(seed, _LARGE_JOBS, LARGE)
        for objective, some in gaps.items():
            began = time.process_time()
            found = solve_jobs(
                jobs, objective=objective, time_limit_s=_LARGE_LIMIT_S, explain=False, clock=time.process_time
            )
            gap = math.inf if found.proof.gap is None else found.proof.gap
            if found.status is not Status.INFEASIBLE:
                some.append(gap)
            broken += broken_limits(jobs, found) if found.jobs else 0
            told = f"{gap:.2%}"
            if math.isinf(gap):
                told = "no plans, proven" if found.status is Status.INFEASIBLE else "no plans found"
            machines = sum(offer.quota for offer in jobs[0].problem.offers)
            rows.append([f"{seed}", f"{machines}", objective.value, told, f"{time.process_time() - began:.0f} s"])
    for objective, some in gaps.items():
        what = "least cost" if objective is Objective.COST else "least latest end"
        proven, lost = sum(gap == 0.0 for gap in some), sum(map(math.isinf, some))
        largest = max((gap for gap in some if math.isfinite(gap)), default=0.0)
        bar(
            args,
            f"{_LARGE_JOBS} jobs on three to five pools, {what}, {_LARGE_LIMIT_S:.0f} s of CPU",
            f"gap told, at most {_MOST_GAP[objective]:.0%}",
            f"0 in {proven} of {len(some)}, at most {largest:.1%}, {lost} not solved, {broken} limits broken",
            met=largest <= _MOST_GAP[objective] and not lost and not broken,
        )
    return [*table(("seed", "machines", "objective", "gap", "took"), rows), ""]
