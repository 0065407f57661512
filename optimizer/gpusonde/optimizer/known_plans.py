"""``KnownPlans``: the known plans of one of several jobs, with what each uses of the limits that the jobs share.

Column generation picks from them; ``TolledCost`` is what a search for more of them makes as small as possible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy import sparse

from gpusonde.optimizer.problem import Plan, Problem
from gpusonde.optimizer.search.objectives import SAME, is_late
from gpusonde.optimizer.solution import SLACK, PlanEstimate, satisfies

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Limit:
    """The most that all jobs together may have of something: machines of an offer, or GPUs of several ones."""

    name: str
    most: int
    units: Mapping[str, int]  # by name of the offer, of a machine

    def used(self, plan: Plan) -> int:
        """Return how much of it a plan uses."""
        return sum(group.machines * self.units.get(group.offer, 0) for group in plan.groups)


def find_limits(problems: Sequence[Problem]) -> list[Limit]:
    """Return the limits that jobs may exceed together."""
    offers = {offer.name: offer for problem in problems for offer in problem.offers}
    found = [Limit(f"quota of {offer.name}", offer.quota, {offer.name: 1}) for offer in offers.values()]
    for quota in dict.fromkeys(quota for problem in problems for quota in problem.quotas):
        limited = [offer for offer in offers.values() if quota.limits(offer)]
        for region in dict.fromkeys(offer.region for offer in limited):
            units = {offer.name: offer.devices for offer in limited if offer.region == region}
            found.append(Limit(str(replace(quota, region=region)), quota.gpus, units))
    return [limit for limit in found if sum(_reach(problem, limit) for problem in problems) > limit.most]


def _reach(problem: Problem, limit: Limit) -> int:
    """Return the most of a limit that a job can use."""
    reach = 0
    for offer in problem.offers:
        if offer.name in limit.units:
            reach += limit.units[offer.name] * min(offer.quota, problem.global_batch // offer.devices)
    return min(reach, limit.most)


@dataclass(frozen=True)
class KnownPlan:
    """A plan of a job, and how much of every limit it uses."""

    plan: Plan
    time_s: float
    cost_usd: float
    use: tuple[int, ...]


class KnownPlans:
    """The known plans of a job: of those that use the limits alike, the ones that no other beats in time and cost."""

    def __init__(self, limits: Sequence[Limit]) -> None:
        self._limits = limits
        self._by_use: dict[tuple[int, ...], list[KnownPlan]] = {}
        # All plans are known that end until then and cost less.
        self._listed: list[tuple[float, float]] = []

    def take(self, plan: Plan, time_s: float, cost_usd: float) -> None:
        """Note a plan with its time and cost, unless one is known that is no worse and uses as much."""
        use = tuple(limit.used(plan) for limit in self._limits)
        known = self._by_use.setdefault(use, [])
        if not any(each.time_s <= time_s and each.cost_usd <= cost_usd for each in known):
            known[:] = [each for each in known if each.time_s < time_s or each.cost_usd < cost_usd]
            known.append(KnownPlan(plan, time_s, cost_usd, use))

    def note_listed(self, latest_s: float, usd: float) -> None:
        """Remember that all plans that end until then and cost less are known."""
        self._listed.append((latest_s, usd))

    def listed_to_usd(self, latest_s: float) -> float:
        """Return the cost below which all plans that end until then are known."""
        return max((usd for end_s, usd in self._listed if latest_s <= end_s), default=0.0)

    def within(self, latest_s: float) -> list[KnownPlan]:
        """Return the cheapest plan of every use that ends until then, by cost."""
        found = []
        for known in self._by_use.values():
            early = [each for each in known if each.time_s <= latest_s]
            if early:
                found.append(min(early, key=lambda each: (each.cost_usd, each.time_s)))
        return sorted(found, key=lambda each: (each.cost_usd, each.time_s))


def undominated(columns: Sequence[KnownPlan]) -> list[KnownPlan]:
    """Leave out, of columns by cost, those that use no less of any limit than a cheaper one."""
    kept: list[KnownPlan] = []
    uses = np.array([column.use for column in columns], dtype=np.int32)
    of_kept = np.zeros_like(uses)
    for column, use in zip(columns, uses, strict=True):
        if not (of_kept[: len(kept)] <= use).all(axis=1).any():
            of_kept[len(kept)] = use
            kept.append(column)
    return kept


@dataclass
class TolledCost:
    """The objective of one job's search: its cost, and a toll for every machine, which the search has in its prices.

    Attributes:
        problem: The problem.
        kept: How many times its mean the time of a run is, at least, with which the deadline is compared.
        tolls: USD per machine, by name of the offer.
        latest_s: End that must be kept, on average.
        most_usd: Plans above it, tolls included, are of no use.
        take: Called with every plan that is allowed, its time and its cost without tolls.
        lists: Whether all plans up to ``most_usd`` are to be found, not the best one.
        estimated: Plans that were estimated so far.
    """

    problem: Problem
    kept: float
    tolls: Mapping[str, float]
    latest_s: float
    most_usd: float
    take: Callable[[Plan, float, float], None]
    lists: bool
    estimated: int = 0

    def bound(self, step_s: FloatArray, usd_per_hour: FloatArray) -> FloatArray:
        """Return a lower bound of the cost, USD with tolls."""
        return np.asarray((self.problem.overhead_s + self.problem.iterations * step_s) * usd_per_hour / 3600.0)

    def ceiling(
        self, step_s: FloatArray, best: tuple[float, float] | None, kept_s: FloatArray | None = None
    ) -> FloatArray:
        """Return the price, with tolls, above which a limit is broken or the best plan is better."""
        problem = self.problem
        time_s = problem.overhead_s + problem.iterations * step_s
        most_usd = self.most_usd if best is None else min(self.most_usd, best[0] * (1 - SAME))
        ceiling = np.full(time_s.shape, most_usd)
        ceiling[~np.isfinite(time_s) | (time_s > self.latest_s * (1 + SAME))] = -math.inf
        ceiling[is_late(problem, self.kept * step_s if kept_s is None else kept_s)] = -math.inf
        return np.asarray(ceiling * 3600.0 / np.where(np.isfinite(time_s), time_s, 1.0))

    def value(self, plan: Plan, estimate: PlanEstimate) -> tuple[float, float] | None:
        """Take a plan that keeps the job's limits; return its cost with tolls, and its time, where one is asked for."""
        self.estimated += 1
        if not satisfies(self.problem, estimate):
            return None
        self.take(plan, estimate.time_s, estimate.cost_usd)
        if self.lists or estimate.time_s > self.latest_s:
            return None
        toll = sum(group.machines * self.tolls[group.offer] for group in plan.groups) if self.tolls else 0.0
        return estimate.cost_usd + toll, estimate.time_s


def most_usd_of(problem: Problem, latest_s: float) -> float:
    """Return what no plan of a job that keeps its limits and ends until then can cost more than."""
    most_usd = math.inf if problem.budget_usd is None else problem.budget_usd * (1 + SLACK)
    longest_s = min(latest_s, problem.deadline_s or math.inf)
    if problem.data is None and math.isfinite(longest_s):
        most_usd = min(most_usd, longest_s / 3600.0 * sum(each.quota * each.usd_per_hour for each in problem.offers))
    return most_usd


def tolled(column: KnownPlan, tolls: FloatArray) -> tuple[float, float]:
    """Return what a plan costs with tolls of shape (limits,), and its time."""
    return column.cost_usd + float(np.dot(tolls, column.use)), column.time_s


@dataclass(frozen=True)
class PlanTable:
    """Plans of all jobs, one after the other, shape (n,): costs, use of limits (limits, n) and whose they are."""

    cost_usd: FloatArray
    use: sparse.csr_array
    one: sparse.csr_array


def make_table(columns: Sequence[Sequence[KnownPlan]], limits: int) -> PlanTable:
    """Return the known plans of all jobs as one table."""
    every = [column for of_job in columns for column in of_job]
    use = np.array([column.use for column in every], dtype=np.float64).reshape(len(every), limits)
    of_job = np.repeat(np.arange(len(columns)), [len(each) for each in columns])
    one = sparse.csr_array((np.ones(len(every)), (of_job, np.arange(len(every)))), shape=(len(columns), len(every)))
    return PlanTable(np.array([column.cost_usd for column in every]), sparse.csr_array(use.T), one)
