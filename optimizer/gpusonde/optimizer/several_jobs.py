"""``solve_jobs``: plans of several jobs that share quotas and a budget, and how far they may be from the best ones.

All jobs start now and hold their machines until they end, so that a quota must hold the machines of all at once.
Every job takes one of its plans, and only the limits that the plans may exceed together tie the jobs to each other.
With a toll on every machine of a limit the jobs are on their own again: each one's cheapest plan, tolls included, less
what the limits take in tolls, is a lower bound of what all plans cost together (Lagrange). Tolls come from the linear
programme over the plans that are known, in which a job may mix some; the plans that are cheapest under these tolls are
added, until the programme reaches the bound (column generation). An integer programme then picks a plan per job.
Where it costs more than the bound, a better choice has only plans that are dearer than their job's cheapest one, tolls
included, by that difference at most: these are listed, and the choice among them is the best one. Where they are too
many, the difference is told.

The least latest end is searched between bounds: for an end, there is a choice that keeps it within limits and budget or
not. Its cost is of no interest, so tolls begin where they outweigh all prices: they show at once by how much the limits
have to be exceeded at least. The choice that exceeds them least is mended job by job: with what the others leave.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from gpusonde.errors import ProblemError
from gpusonde.formatting import dollars, duration, join_names, percent
from gpusonde.optimizer.explain import NO_PLAIN_PLAN, describe_gap, useful_spare_modes
from gpusonde.optimizer.known_plans import (
    KnownPlan,
    KnownPlans,
    Limit,
    TolledCost,
    find_limits,
    make_table,
    most_usd_of,
    tolled,
    undominated,
)
from gpusonde.optimizer.problem import MachineOffer, Objective, Plan, Problem, SharedQuota
from gpusonde.optimizer.search.exact import ExactSearch, SearchResult
from gpusonde.optimizer.search.objectives import SAME, find_time_factor
from gpusonde.optimizer.search.space import count_combinations, every_plan, make_space, with_spare_modes
from gpusonde.optimizer.solution import SLACK, PlanEstimate, Proof, Solution, Status, estimate_plan, satisfies
from gpusonde.optimizer.solve import DEFAULT_TIME_LIMIT_S, solve
from gpusonde.optimizer.step_times import StepTimes

FloatArray = npt.NDArray[np.float64]

MOST_JOBS = 64
# What jobs must say alike of an offer, because it is one pool.
_POOL_KEYS = ("device", "devices", "quota", "usd_per_hour", "billing", "preemptions_per_hour", "region")
_MOST_ROUNDS = 60
# Plans of a job that are estimated when all within a difference are listed.
_MOST_LISTED = 20_000
# Share of the time for tolls; the rest is for listing and picking. Where any choice will do, little is listed.
_TOLLS_SHARE, _TOLLS_SHARE_OF_ANY = 0.5, 0.75
# Jobs with fewer combinations of machines and batches are small: all their plans are listed at once.
_FEW_COMBINATIONS = 1_000_000
# How far above the bound choices are first looked for among all plans, relative; it doubles.
_FIRST_AIM = 0.005
# Share of the time that is left for every end that is tried: for what is at hand, and for a bound.
_SEEK_SHARE, _END_SHARE = 0.1, 0.4
# Ends at which a bound is sought lie at least so near to the last one, relative.
_END_STEP = 0.9
# In the linear programme limits may be exceeded at this price per unit, relative to what a job costs. It grows.
_FIRST_PENALTY, _LAST_PENALTY, _PENALTY_GROWTH = 0.25, 1e5, 8.0
# Better ends are not sought nearer than this, and bounds compared one by one, not halved, once they are this near.
_SOUGHT_ENDS, _NEAR_ENDS = 1.01, 1.001
_MILP_INFEASIBLE = 2
# Of a job whose plan only has to exist: how much better others may be.
_ANY_PLAN = 0.999
_MOST_RELAXED = 3
_LEAST_GAIN = 1e-6


@dataclass(frozen=True)
class SharingJob:
    """One of several jobs.

    Attributes:
        name: What it is called, for people.
        problem: What it needs, and what may be rented for it. Offers of one name are the same pool in all jobs.
        steps: How long its iterations take.
    """

    name: str
    problem: Problem
    steps: StepTimes


@dataclass(frozen=True)
class JobPlan:
    """What a job is to run on.

    Attributes:
        name: The job.
        plan: Its plan.
        estimate: What that takes and costs.
    """

    name: str
    plan: Plan
    estimate: PlanEstimate


@dataclass(frozen=True)
class JointSolution:
    """Answer to the problems of several jobs.

    Attributes:
        status: ``optimal``: proven; ``feasible``: keeps every limit; ``infeasible``: no plans do; ``unknown``: the
            search ended at its limit.
        jobs: Plans, one for every job in their order; empty when there are none.
        cost_usd: Mean cost of all; None when there are no plans.
        end_s: Mean time of the job that ends last; None likewise.
        proof: What was searched.
        why: Why these plans, or why none, for people.
        binding: Limits without which the objective would be lower: ``quota of NAME``, ``budget``,
            ``accumulation_steps``.
        relaxations: What giving way at these buys, for people.
        nearest_jobs: When there are no plans: those that exceed the shared limits least, of all that were looked at.
    """

    status: Status
    jobs: tuple[JobPlan, ...]
    cost_usd: float | None
    end_s: float | None
    proof: Proof
    why: str
    binding: tuple[str, ...] = ()
    relaxations: tuple[str, ...] = ()
    nearest_jobs: tuple[JobPlan, ...] = ()


def solve_jobs(
    jobs: Sequence[SharingJob],
    *,
    objective: Objective = Objective.COST,
    budget_usd: float | None = None,
    time_limit_s: float = DEFAULT_TIME_LIMIT_S,
    explain: bool = True,
    clock: Callable[[], float] = time.monotonic,
) -> JointSolution:
    """Return the plans with which all jobs keep their limits, and that together cost least or end first.

    Args:
        jobs: The jobs, each with its own deadline and budget; their objectives do not count.
        objective: ``COST`` of all together, or ``TIME`` until the last one ends.
        budget_usd: Most that all may cost together on average; None for no limit.
        time_limit_s: After this time the best plans so far are returned. Explanations get as much again at most, and so
            do the search for jobs without a plan of their own and every search with their spare modes.
        explain: Say what giving way at the limits buys, which takes some more searches.
        clock: Seconds, never going back.

    Raises:
        ProblemError: No jobs or too many, jobs that disagree about what they share, or an argument out of range.
    """
    if not jobs:
        raise ProblemError("there are no jobs: give one or more")
    if len(jobs) > MOST_JOBS:
        raise ProblemError(f"{len(jobs)} jobs are too many; {MOST_JOBS} is the limit")
    if not time_limit_s > 0:
        raise ProblemError(f"time_limit_s {time_limit_s} must be above zero")
    if budget_usd is not None and not 0 < budget_usd < math.inf:
        raise ProblemError(f"budget_usd {budget_usd} must be above zero, or none for no limit")
    shared = _with_shared_quotas(jobs)
    budget = math.inf if budget_usd is None else budget_usd
    ends_s = clock() + time_limit_s
    lacking = []
    for number, job in enumerate(shared):
        most_s = time_limit_s / len(jobs)
        alone = solve(job.problem, job.steps, explain=False, tolerance=_ANY_PLAN, time_limit_s=most_s, clock=clock)
        if alone.status is Status.INFEASIBLE:
            return _no_plans_alone(job, alone)
        # As of one job, modes that are meant for want of another plan count only then.
        if alone.plan is not None and alone.plan.mode not in job.problem.modes:
            shared[number] = replace(job, problem=with_spare_modes(job.problem))
            lacking.append(job.name)
    found = _Jobs(shared, clock, max(ends_s, clock() + time_limit_s / 2)).solve(objective, budget)
    if found.status is Status.INFEASIBLE and any(job.problem.spare_modes for job in shared):
        shared = [replace(job, problem=with_spare_modes(job.problem)) for job in shared]
        found = _Jobs(shared, clock, clock() + time_limit_s).solve(objective, budget)
        lacking = [job.name for job in jobs]
    if found.jobs and lacking:
        of_whom = "" if len(lacking) == len(jobs) else f" for {join_names(lacking, 'job')}"
        found = replace(found, why=f"{found.why} {NO_PLAIN_PLAN[:-1]}{of_whom}.")
    if not explain or not found.jobs:
        return found
    return _explained(shared, found, objective, budget, clock, clock() + time_limit_s)


def _with_shared_quotas(jobs: Sequence[SharingJob]) -> list[SharingJob]:
    """Return jobs that all know all quotas of all.

    Raises:
        ProblemError: They disagree about an offer or a quota.
    """
    pools: dict[str, tuple[SharingJob, MachineOffer]] = {}
    quotas: dict[SharedQuota, tuple[SharingJob, SharedQuota]] = {}
    for job in jobs:
        for offer in job.problem.offers:
            other, known = pools.setdefault(offer.name, (job, offer))
            for key in _POOL_KEYS:
                one, two = (getattr(each, key) for each in (known, offer))
                if one != two:
                    raise ProblemError(
                        f"offer {offer.name} is one pool for all jobs, but its {key} is {_shown(one)} in {other.name} "
                        f"and {_shown(two)} in {job.name}: write the same, or give it another name"
                    )
        for quota in job.problem.quotas:
            other, same = quotas.setdefault(replace(quota, gpus=0), (job, quota))
            if same != quota:
                raise ProblemError(
                    f"all jobs share the {same} of {other.name}, but {job.name} has a {quota}: write the same in both"
                )
    found = []
    for job in jobs:
        own = [quota for _, quota in quotas.values() if any(map(quota.limits, job.problem.offers))]
        found.append(replace(job, problem=replace(job.problem, quotas=tuple(own))))
    return found


def _shown(value: Any) -> str:
    return f"{getattr(value, 'value', value)}" or "not given"


@dataclass(frozen=True)
class _Bound:
    """No choice costs less: tolls that show it, shape (limits,), and what every job costs with them, shape (jobs,)."""

    usd: float
    tolls: FloatArray
    of_jobs: FloatArray


@dataclass(frozen=True)
class _Choice:
    """A plan for every job."""

    columns: tuple[KnownPlan, ...]
    over: tuple[int, ...] = ()  # by how much limits are exceeded

    @property
    def cost_usd(self) -> float:
        return math.fsum(column.cost_usd for column in self.columns)

    @property
    def end_s(self) -> float:
        return max(column.time_s for column in self.columns)


class _Jobs:
    """Jobs that share limits, and what is known of their plans."""

    def __init__(self, jobs: Sequence[SharingJob], clock: Callable[[], float], ends_s: float) -> None:
        self._jobs = jobs
        self._clock = clock
        self._ends_s = ends_s
        self._limits = find_limits([job.problem for job in jobs])
        # Equal jobs have the same plans.
        same: dict[tuple[Problem, int], KnownPlans] = {}
        self._columns = [same.setdefault((job.problem, id(job.steps)), KnownPlans(self._limits)) for job in jobs]
        self._most = np.array([limit.most for limit in self._limits], dtype=np.float64)
        self._estimated = 0
        # The best ones of the last question, good to begin the next one with.
        self._tolls = np.zeros(len(self._limits))
        # What the jobs would cost if each had the limits to itself, at least.
        self._alone_usd: float | None = None

    def solve(self, objective: Objective, budget: float) -> JointSolution:
        self._list_small_jobs()
        is_timed = objective is Objective.TIME
        most_usd = budget if is_timed else math.inf
        choice, bound, searched = self._cheapest(math.inf, most_usd, self._ends_s, any_will_do=is_timed)
        if choice is None or choice.cost_usd > budget * (1 + SLACK):
            return self._without_choice(choice, bound, searched, budget)
        low = bound
        if objective is Objective.TIME:
            choice, low = self._first_to_end(choice, budget)
        return self._solution(objective, choice, low)

    def _list_small_jobs(self) -> None:
        """List all plans of jobs that have few: no question about these needs a search then."""
        for number, (job, columns) in enumerate(zip(self._jobs, self._columns, strict=True)):
            parts = job.problem.parts()
            if columns.listed_to_usd(math.inf) or sum(map(count_combinations, parts)) > _FEW_COMBINATIONS:
                continue
            ends_s = self._share_of_job(number, self._ends_s)
            for plan in itertools.chain.from_iterable(map(every_plan, parts)):
                found = estimate_plan(job.problem, plan, job.steps)
                self._estimated += 1
                if satisfies(job.problem, found):
                    columns.take(plan, found.time_s, found.cost_usd)
                if self._clock() >= ends_s:
                    break
            else:
                columns.note_listed(math.inf, math.inf)

    def _first_to_end(self, choice: _Choice, budget: float) -> tuple[_Choice, float]:
        """Return the choice that ends first, and a bound of its end."""
        low = 0.0
        for number, job in enumerate(self._jobs):
            ends_s = self._share_of_job(number, self._clock() + _END_SHARE / 2 * self._left_s())
            asked = replace(job.problem, objective=Objective.TIME)
            alone = solve(
                asked, job.steps, explain=False, time_limit_s=max(ends_s - self._clock(), 1e-3), clock=self._clock
            )
            low = max(low, alone.proof.bound or 0.0)
        # A better choice is sought among what is at hand, at ends from ``tried`` on; then a better bound, at ends up to
        # ``open_s``, which brings other plans to hand.
        tried, open_s = low, math.inf
        aim = low
        seeking = True
        while low < choice.end_s * (1 - SLACK) and not self._is_late():
            latest_s = aim * (1 + SAME)
            ends_s = self._clock() + (_SEEK_SHARE if seeking else _END_SHARE) * self._left_s()
            if seeking:
                found, usd, is_searched = self._any(latest_s, budget, ends_s), 0.0, False
            else:
                found, usd, is_searched = self._cheapest(latest_s, budget, ends_s, any_will_do=True)
            if found is not None and found.cost_usd <= budget * (1 + SLACK):
                choice = found
            elif is_searched or usd > budget * (1 + SLACK):
                low, tried = max(low, aim), max(tried, aim)
            elif seeking:
                tried = aim
            else:
                tried = open_s = min(open_s, aim)
            seeking = tried * _SOUGHT_ENDS < choice.end_s
            most = min(open_s, choice.end_s)
            if seeking:
                aim = math.sqrt(tried * choice.end_s)
            elif most > low * _NEAR_ENDS:
                aim = max(math.sqrt(low * most), _END_STEP * most)
            elif most == choice.end_s:
                aim = most * (1 - SLACK)
            else:
                break
        cheaper, _, _ = self._cheapest(choice.end_s * (1 + SAME), budget, self._ends_s)
        return cheaper if cheaper is not None and cheaper.cost_usd <= choice.cost_usd else choice, min(
            low, choice.end_s
        )

    def _cheapest(
        self, latest_s: float, most_usd: float, ends_s: float, *, any_will_do: bool = False
    ) -> tuple[_Choice | None, float, bool]:
        """Return the cheapest choice that ends until then, a bound of its cost, and whether it or its lack is proven.

        A choice that costs more than ``most_usd`` need not be the cheapest; one below need not be if any will do.
        """
        if any_will_do and (choice := self._any(latest_s, most_usd, ends_s)) is not None:
            return choice, 0.0, False
        if all(math.isinf(columns.listed_to_usd(latest_s)) for columns in self._columns):
            choice, is_best = self._pick(latest_s)
            if self._alone_usd is None and choice is not None:
                self._alone_usd = sum(columns.within(latest_s)[0].cost_usd for columns in self._columns)
            if is_best:
                return choice, math.inf if choice is None else choice.cost_usd, True
        low = self._find_tolls(latest_s, most_usd, ends_s, any_will_do=any_will_do)
        if math.isinf(low.usd):
            return None, math.inf, True
        choice, is_best = self._pick(latest_s)
        if choice is None and any_will_do:
            choice = self._any(latest_s, math.inf, ends_s)
        if low.usd > min(most_usd, sum(most_usd_of(job.problem, latest_s) for job in self._jobs)) * (1 + SLACK):
            return choice, low.usd, True
        bound, share = low.usd, _FIRST_AIM
        while choice is None or bound < choice.cost_usd * (1 - SLACK):
            if choice is not None and any_will_do and choice.cost_usd <= most_usd:
                return choice, bound, False
            # Near the bound there are few plans, of which better choices may come, so that fewer are to be listed.
            most = most_usd if choice is None else choice.cost_usd
            aim = min(most, low.usd * (1 + share)) if share <= 1 else most
            listed = self._list(low, latest_s, aim, ends_s)
            choice, is_best = self._pick(latest_s)
            if not (listed and is_best):
                return choice, bound, False
            if choice is None and aim >= most:
                return None, math.inf, True
            bound = aim if choice is None else min(aim, choice.cost_usd)
            share *= 2.0
        return choice, choice.cost_usd, True

    def _find_tolls(self, latest_s: float, most_usd: float, ends_s: float, *, any_will_do: bool) -> _Bound:
        """Return the best bound that tolls show; where any choice will do, of what it has to exceed the limits by."""
        tolls = self._tolls
        best = _Bound(-math.inf, tolls, np.zeros(len(self._jobs)))
        most_usd = min(most_usd, sum(most_usd_of(job.problem, latest_s) for job in self._jobs))
        ends_s -= (1.0 - (_TOLLS_SHARE_OF_ANY if any_will_do else _TOLLS_SHARE)) * max(ends_s - self._clock(), 0.0)
        penalty, mixed_usd, over = _LAST_PENALTY if any_will_do else _FIRST_PENALTY, math.inf, False
        for _ in range(_MOST_ROUNDS):
            of_jobs = self._cheapest_of_jobs(tolls, latest_s, ends_s)
            usd = float(of_jobs.sum() - tolls @ self._most)
            if usd > best.usd:
                best = _Bound(usd, tolls, of_jobs)
            if self._alone_usd is None:
                self._alone_usd = usd
            if mixed_usd <= best.usd * (1 + SLACK):
                if not over or penalty >= _LAST_PENALTY:
                    break
                penalty *= _PENALTY_GROWTH
            known = [columns.within(latest_s) for columns in self._columns]
            if math.isinf(usd) or best.usd > most_usd * (1 + SLACK) or self._clock() >= ends_s or not all(known):
                break
            mixed_usd, over, tolls = self._mix(known, penalty * sum(each[0].cost_usd for each in known) / len(known))
        self._tolls = best.tolls
        return best

    def _any(self, latest_s: float, most_usd: float, ends_s: float) -> _Choice | None:
        """Return a choice that ends until then and costs no more, if one is at hand: job by job one is mended."""
        choice, _ = self._pick(latest_s)
        if choice is not None:
            return choice if choice.cost_usd <= most_usd else None
        if not all(columns.within(latest_s) for columns in self._columns):
            self._cheapest_of_jobs(self._tolls, latest_s, ends_s)
        nearest, _ = self._pick(latest_s, exceeding=True)
        if nearest is None:
            return None
        use = np.array([column.use for column in nearest.columns])
        toll_usd = _LAST_PENALTY * nearest.cost_usd / len(use)
        while (over := np.maximum(use.sum(axis=0) - self._most, 0)).any():
            for number in np.argsort(-(use @ (over > 0)), kind="stable").tolist():
                if not use[number] @ over or self._clock() >= ends_s:
                    return None
                # What the others leave may be below zero: as few as there are, then.
                left = self._most - use.sum(axis=0) + use[number]
                job = self._within(self._jobs[number], np.maximum(left, use[number]))
                tolls = np.where(left < use[number], toll_usd, 0.0)
                plan = self._search(job, self._columns[number], tolls, latest_s, math.inf, ends_s).plan
                other = use.copy()
                if plan is not None:
                    other[number] = [limit.used(plan) for limit in self._limits]
                if np.maximum(other.sum(axis=0) - self._most, 0).sum() < over.sum():
                    use = other
                    break
            else:
                return None
        choice, _ = self._pick(latest_s)
        return choice if choice is not None and choice.cost_usd <= most_usd else None

    def _within(self, job: SharingJob, most: FloatArray) -> SharingJob:
        """Return a job that may have so much of every limit only."""
        quotas = {offer.name: offer.quota for offer in job.problem.offers}
        for limit, count in zip(self._limits, most.tolist(), strict=True):
            for name in quotas.keys() & limit.units.keys():
                quotas[name] = min(quotas[name], int(count) // limit.units[name])
        offers = tuple(replace(offer, quota=quotas[offer.name]) for offer in job.problem.offers)
        return replace(job, problem=replace(job.problem, offers=offers))

    def _cheapest_of_jobs(self, tolls: FloatArray, latest_s: float, ends_s: float) -> FloatArray:
        """Return a lower bound of what every job costs with tolls, infinite where it has no plan, shape (jobs,)."""
        found: dict[int, float] = {}
        for job, columns in zip(self._jobs, self._columns, strict=True):
            if id(columns) not in found:
                known = min((tolled(each, tolls) for each in columns.within(latest_s)), default=(math.inf, math.inf))
                found[id(columns)] = known[0]
                if known[0] > columns.listed_to_usd(latest_s):
                    found[id(columns)] = self._search(job, columns, tolls, latest_s, known[0], ends_s).bound
        return np.array([found[id(columns)] for columns in self._columns])

    def _list(self, low: _Bound, latest_s: float, aim: float, ends_s: float) -> bool:
        """List all plans of which a choice that costs no more than ``aim`` can be made; return whether it got done."""
        is_done = True
        done: set[int] = set()
        for number, (job, columns) in enumerate(zip(self._jobs, self._columns, strict=True)):
            most_usd = (low.of_jobs[number] + (aim - low.usd)) * (1 + SLACK)
            if most_usd <= columns.listed_to_usd(latest_s) or id(columns) in done:
                continue
            done.add(id(columns))
            tolls = low.tolls if math.isfinite(most_usd) else np.zeros(len(self._limits))
            job_ends_s = self._share_of_job(number, ends_s)
            found = self._search(job, columns, tolls, latest_s, most_usd, job_ends_s, lists=True)
            if math.isinf(most_usd):
                columns.note_listed(latest_s, math.inf if found.complete else found.bound)
            is_done = is_done and found.complete
        return is_done

    def _share_of_job(self, number: int, ends_s: float) -> float:
        """Return until when a job may be looked at so that something is left for those after it."""
        now_s = self._clock()
        return now_s + max(ends_s - now_s, 1e-3) / (len(self._jobs) - number)

    def _search(
        self,
        job: SharingJob,
        columns: KnownPlans,
        tolls: FloatArray,
        latest_s: float,
        most_usd: float,
        ends_s: float,
        *,
        lists: bool = False,
    ) -> SearchResult:
        """Search a job's plans below a cost, tolls included: the cheapest one, or all of them."""
        problem = job.problem
        of_offer = {
            offer.name: sum(
                toll * limit.units.get(offer.name, 0) for toll, limit in zip(tolls, self._limits, strict=True)
            )
            for offer in problem.offers
        }
        objective = TolledCost(
            problem, find_time_factor(problem, job.steps), of_offer, latest_s, most_usd * (1 + SLACK), columns.take,
            lists,
        )  # fmt: skip
        best = SearchResult(bound=math.inf, complete=True)
        for part in problem.parts():
            space = make_space(part, job.steps, of_offer)
            if space is None:
                continue
            if lists:
                space = replace(space, exact=False)
            search = ExactSearch(
                part, space, job.steps, objective,
                out_of_time=lambda: self._clock() >= ends_s or (lists and objective.estimated >= _MOST_LISTED),
            )  # fmt: skip
            found = search.run(before=best)
            best = replace(found, bound=min(best.bound, found.bound), complete=best.complete and found.complete)
        self._estimated += objective.estimated
        # Of plans above what is known already, nothing was asked.
        return replace(best, bound=min(best.bound, most_usd))

    def _mix(self, columns: Sequence[Sequence[KnownPlan]], penalty_usd: float) -> tuple[float, bool, FloatArray]:
        """Return what plans cost when jobs may mix them, whether limits are exceeded then, and the tolls.

        To exceed a limit by one costs a penalty, so that there is always an answer.
        """
        from scipy.optimize import linprog  # noqa: PLC0415 - slow to import, and one job alone needs it not

        table = make_table(columns, len(self._limits))
        limits = len(self._limits)
        found = linprog(
            np.concatenate([table.cost_usd, np.full(limits, penalty_usd)]) / penalty_usd,
            A_ub=np.hstack([table.use.toarray(), -np.eye(limits)]),
            b_ub=self._most,
            A_eq=np.hstack([table.one.toarray(), np.zeros((len(columns), limits))]),
            b_eq=np.ones(len(columns)),
            method="highs",
        )
        assert found.x is not None  # noqa: S101 - exceeding the limits is always possible
        tolls = -np.asarray(found.ineqlin.marginals) * penalty_usd
        exceeded = found.x[table.cost_usd.size :]
        return float(found.fun or 0.0) * penalty_usd, bool((exceeded > 1e-7).any()), np.maximum(tolls, 0.0)

    def _pick(self, latest_s: float, *, exceeding: bool = False) -> tuple[_Choice | None, bool]:
        """Return the cheapest choice of known plans, and whether it, or its lack, is proven.

        Args:
            latest_s: All end until then.
            exceeding: Exceed the limits, as little as possible.
        """
        from scipy.optimize import Bounds, LinearConstraint, milp  # noqa: PLC0415

        columns = [undominated(known.within(latest_s)) for known in self._columns]
        if not all(columns):
            return None, True
        table = make_table(columns, len(self._limits))
        counts, limits = table.cost_usd.size, len(self._limits)
        # Costs near 1e4: what the solver takes for equal is far below a cent then.
        scale = 1e4 / max(1e-12, sum(min(each.cost_usd for each in of_job) for of_job in columns))
        cost, bounds = table.cost_usd * scale, np.ones(counts)
        rows = [LinearConstraint(table.one, 1, 1)]
        use, integral = table.use, np.ones(counts, dtype=np.int64)
        if exceeding:
            cost = np.concatenate([cost * 1e-6, np.ones(limits)])
            bounds = np.concatenate([bounds, np.full(limits, math.inf)])
            integral = np.ones(counts + limits, dtype=np.int64)
            use = sparse.hstack([use, sparse.csr_array(-np.eye(limits))])
            rows = [LinearConstraint(sparse.hstack([table.one, sparse.csr_array((len(columns), limits))]), 1, 1)]
        if limits:
            rows.append(LinearConstraint(use, -math.inf, self._most))
        found = milp(
            cost,
            integrality=integral,
            bounds=Bounds(0, bounds),
            constraints=rows,
            options={"mip_rel_gap": 0.0, "time_limit": max(0.1, self._left_s())},
        )
        if found.x is None:
            return None, found.status == _MILP_INFEASIBLE
        picked = np.flatnonzero(found.x[:counts] > 0.5)
        every = [column for of_job in columns for column in of_job]
        over = tuple(round(each) for each in found.x[counts:])
        return _Choice(tuple(every[place] for place in picked.tolist()), over), found.status == 0

    def _left_s(self) -> float:
        return max(self._ends_s - self._clock(), 1e-3)

    def _is_late(self) -> bool:
        return self._clock() >= self._ends_s

    def _plans(self, choice: _Choice) -> tuple[JobPlan, ...]:
        return tuple(
            JobPlan(job.name, column.plan, estimate_plan(job.problem, column.plan, job.steps))
            for job, column in zip(self._jobs, choice.columns, strict=True)
        )

    def _solution(self, objective: Objective, choice: _Choice, low: float) -> JointSolution:
        value = choice.end_s if objective is Objective.TIME else choice.cost_usd
        is_best = low >= value * (1 - SLACK)
        gap = 0.0 if is_best else 1.0 - max(low, 0.0) / value
        what = "faster" if objective is Objective.TIME else "cheaper"
        searched = f"{self._estimated:,} plans of {len(self._jobs)} jobs were estimated"
        if is_best:
            words = f"{searched}; bounds of what the shared limits are worth exclude all other choices."
            proven = f"no choice of plans is {what}"
        else:
            proven = describe_gap(gap)
            words = f"{searched}; the choice is {proven}."
        why = f"All {len(self._jobs)} jobs cost {dollars(choice.cost_usd)} and end after {duration(choice.end_s)}"
        if objective is Objective.COST and self._alone_usd:
            more = choice.cost_usd / self._alone_usd - 1.0
            if more > _LEAST_GAIN:
                why += f", {percent(more, 1)} more than if each had the quotas to itself"
        return JointSolution(
            status=Status.OPTIMAL if is_best else Status.FEASIBLE,
            jobs=self._plans(choice),
            cost_usd=choice.cost_usd,
            end_s=choice.end_s,
            proof=Proof("jobs", is_best, value if is_best else low, gap, words),
            why=f"{why}; {proven}.",
        )

    def _without_choice(self, choice: _Choice | None, low: float, searched: bool, budget: float) -> JointSolution:
        """Return why there is no choice, and the nearest one."""
        words = f"{self._estimated:,} plans of {len(self._jobs)} jobs were estimated"
        nearest = choice
        is_proven = low > budget * (1 + SLACK) or (searched and choice is None)
        for job, columns in zip(self._jobs, self._columns, strict=True):
            if not columns.within(math.inf):
                alone = solve(job.problem, job.steps, explain=False, time_limit_s=self._left_s(), clock=self._clock)
                if alone.plan is None:
                    return _no_plans_alone(job, alone)
        if choice is not None:
            lead, usd = ("All jobs cost at least", low) if is_proven else ("The plans found cost", choice.cost_usd)
            why = f"{lead} {dollars(usd)}, {dollars(usd - budget)} more than the budget of {dollars(budget)}."
        else:
            nearest, _ = self._pick(math.inf, exceeding=True)
            lead = "No choice of plans keeps the shared quotas." if is_proven else "No choice of plans was found."
            why = f"{lead} Nearest: {self._exceeded(nearest)}." if nearest is not None else lead
        status = Status.INFEASIBLE if is_proven else Status.UNKNOWN
        return _no_plans(status, why, words, () if nearest is None else self._plans(nearest))

    def _exceeded(self, nearest: _Choice) -> str:
        return ", ".join(
            f"{limit.name} would have to be {limit.most + over}, not {limit.most}"
            if len(limit.units) == 1
            else f"{limit.name}: {limit.most + over} would be enough"
            for limit, over in zip(self._limits, nearest.over, strict=True)
            if over
        )


def _no_plans_alone(job: SharingJob, alone: Solution) -> JointSolution:
    why = f"{job.name} has no plan even alone: {alone.why}"
    return _no_plans(alone.status, why, f"{alone.explored:,} plans of {job.name} were estimated", ())


def _no_plans(status: Status, why: str, words: str, nearest: tuple[JobPlan, ...]) -> JointSolution:
    proof = Proof("jobs", status is Status.INFEASIBLE, None, None, f"{words}.")
    return JointSolution(status, (), None, None, proof, why, nearest_jobs=nearest)


def _explained(
    jobs: Sequence[SharingJob],
    found: JointSolution,
    objective: Objective,
    budget: float,
    clock: Callable[[], float],
    ends_s: float,
) -> JointSolution:
    """Add what binds the jobs, and what giving way there buys."""
    before = _value(found, objective)
    binding, relaxations = [], []
    changes = list(_changes(jobs, found, budget))
    for number, (name, change, asked, most_usd) in enumerate(changes):
        now_s = clock()
        if now_s >= ends_s:
            break
        other = _Jobs(asked, clock, now_s + (ends_s - now_s) / (len(changes) - number)).solve(objective, most_usd)
        if not other.jobs or _value(other, objective) >= before * (1 - _LEAST_GAIN):
            continue
        gain = percent(1 - _value(other, objective) / before, 1)
        what = "faster" if objective is Objective.TIME else "cheaper"
        binding.append(name)
        relaxations.append(
            f"{name} {change}: {gain} {what}, {dollars(other.cost_usd)} and {duration(other.end_s or 0.0)} in all"
        )
    return replace(found, binding=tuple(binding), relaxations=tuple(relaxations))


def _value(found: JointSolution, objective: Objective) -> float:
    value = found.end_s if objective is Objective.TIME else found.cost_usd
    return math.inf if value is None else value


def _changes(
    jobs: Sequence[SharingJob], found: JointSolution, budget: float
) -> Iterable[tuple[str, str, Sequence[SharingJob], float]]:
    """Yield limits that the plans reach together, what is changed, and the jobs and the budget then."""
    if math.isfinite(budget):
        yield "budget", "+10 %", jobs, 1.1 * budget
    spare = [useful_spare_modes(job.problem) for job in jobs]
    if any(spare):
        most = max(mode.accumulation_steps for modes in spare for mode in modes)
        problems = [
            with_spare_modes(replace(job.problem, spare_modes=modes)) for job, modes in zip(jobs, spare, strict=True)
        ]
        asked = [replace(job, problem=problem) for job, problem in zip(jobs, problems, strict=True)]
        yield "accumulation_steps", f"up to {most}", asked, budget
    reached = []
    for limit in find_limits([job.problem for job in jobs]):
        used = sum(
            group.machines * limit.units.get(group.offer, 0) for each in found.jobs for group in each.plan.groups
        )
        if used + min(limit.units.values()) > limit.most:
            reached.append(limit)
    for limit in reached[:_MOST_RELAXED]:
        yield limit.name, "x 2", [replace(job, problem=_doubled(job.problem, limit)) for job in jobs], budget


def _doubled(problem: Problem, limit: Limit) -> Problem:
    """Return a problem with twice as much of a limit."""
    offers = tuple(
        replace(offer, quota=2 * offer.quota) if limit.name == f"quota of {offer.name}" else offer
        for offer in problem.offers
    )
    quotas = tuple(
        replace(quota, gpus=2 * quota.gpus)
        if any(str(replace(quota, region=region)) == limit.name for region in {o.region for o in problem.offers})
        else quota
        for quota in problem.quotas
    )
    return replace(problem, offers=offers, quotas=quotas)
