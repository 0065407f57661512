"""The exact search over heterogeneous offers.

What an iteration takes depends on the slowest latency of a plan, its world size and its slowest network. So the plans
fall into subproblems, one per network class, latency that may not be exceeded, and world size; in a subproblem all that
counts is the price. Bounds of time and price order the subproblems; the most promising one is searched exactly, and the
search ends when no subproblem that is left can hold anything better. (A table over GPUs and samples for every network
and latency costs seconds at a batch of 4,096.) Where iterations depend on more than that, the same subproblems are the
nodes of a branch and bound, and their plans are listed and estimated one by one: with scatter the slowest GPU depends
on how many of each kind there are, and a node holds the plans whose slowest GPU of all takes between two latencies, no
longer than a load allows (``LatencyLimit``) and no shorter than an iteration follows. The subproblems' bounds stay
bounds, but the cheapest plan of a subproblem need not be its best one: its price is a bound of the others. Where that
still promises something better, all plans of the subproblem below its ceiling are listed in rounds of growing price,
each with the bound of its own latency, and estimated as long as that bound promises something better than the best one.
A subproblem with very many plans waits until the others are done. Once more was searched than all plans are worth, the
rest of them are looked at one by one.
"""

from __future__ import annotations

import contextlib
import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpusonde.optimizer.problem import Group, Plan, Problem
from gpusonde.optimizer.search.anchors import SURELY, Anchor, make_anchors
from gpusonde.optimizer.search.objectives import SAME, SearchObjective
from gpusonde.optimizer.search.plan_lists import count_plans, list_every_plan, list_plans
from gpusonde.optimizer.search.price_bounds import LatencyLimit
from gpusonde.optimizer.search.space import Options, Space
from gpusonde.optimizer.search.subproblem import Subproblem, TooManyPlansError
from gpusonde.optimizer.solution import PlanEstimate, estimate_plan, satisfies
from gpusonde.optimizer.step_times import StepTimes, steps_in_mode

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

# Plans of one subproblem before others have their turn.
_MOST_AT_ONCE = 64
# So many plans are estimated in the time in which some are made, or so many are dismissed.
_PLANS_PER_LISTING, _DISMISSED_PER_LISTING = 8, 1000
# Plans whose slowest GPU is drawn before the best of them are estimated.
_DRAWN_AT_ONCE = 256
# How far the slowest GPU scatters where it is steady, as a share of the most, and where the limit is tried.
_STEADY, _SHARES_OF_SPREAD = 0.25, (0.5, 0.75)
# Latencies that are tried, as multiples of the least of a subproblem.
_SLOWER = 1.00001 ** np.arange(-2560.0, 17920.0)
_TRIED_AT_ONCE = 28
# Where the cheapest plan is late, faster ones are sought at these shares of the limit.
_SHARES_OF_LIMIT = (0.998, 0.996, 0.994, 0.992, 0.99, 0.98)
# Plans that are estimated even when there is no time for any.
_MOST_LATE = 500


@dataclass
class SearchResult:
    """What a search found.

    Attributes:
        plan: Best plan; None when there is none.
        estimate: What it takes and costs.
        value: Its value, and what decides between equal ones.
        bound: No plan has a lower value; infinite when there is no plan at all.
        complete: True when every plan was looked at or excluded.
        estimated: Plans that were estimated.
        subproblems: Cells searched.
        cells_in_all: Cells that could hold a plan.
    """

    plan: Plan | None = None
    estimate: PlanEstimate | None = None
    value: tuple[float, float] | None = None
    bound: float = 0.0
    complete: bool = False
    estimated: int = 0
    subproblems: int = 0
    cells_in_all: int = 0


def search_parts(
    problem: Problem, make: Callable[[Problem], ExactSearch | None], start: Plan | None = None
) -> SearchResult:
    """Search every set of offers that may work together, each knowing the best of the others; return all of it.

    Args:
        problem: The problem.
        make: Makes the search of a part (``Problem.parts``), None where it holds no plan.
        start: A plan that is known already.
    """
    best = SearchResult()
    searches = []
    for part in problem.parts():
        search = make(part)
        if search is None:
            continue
        names = {offer.name for offer in part.offers}
        is_own = start is not None and start.mode == part.mode and all(group.offer in names for group in start.groups)
        # What one part has for little spares others the search for what costs more.
        best = search.begin(start if is_own else None, best)
        searches.append(search)
    results = []
    for search in searches:
        best = search.run(before=best)
        results.append(best)
    return SearchResult(
        plan=best.plan,
        estimate=best.estimate,
        value=best.value,
        bound=min((each.bound for each in results), default=math.inf),
        complete=all(each.complete for each in results),
        estimated=sum(each.estimated for each in results),
        subproblems=sum(each.subproblems for each in results),
        cells_in_all=sum(each.cells_in_all for each in results),
    )


class ExactSearch:
    """Finds the best plan for an objective.

    Args:
        problem: The problem, a part of one (``Problem.parts``).
        space: Its options.
        steps: Durations of iterations.
        objective: What to look for.
        out_of_time: Asked now and then; the search ends once it says so.
        tolerance: A plan this much better, relative, is not looked for; 0 to prove the optimum.
    """

    def __init__(
        self,
        problem: Problem,
        space: Space,
        steps: StepTimes,
        objective: SearchObjective,
        *,
        out_of_time: Callable[[], bool],
        tolerance: float = 0.0,
    ) -> None:
        self._problem = problem
        self._space = space
        self._steps = steps_in_mode(steps, problem.mode)
        self._objective = objective
        self._out_of_time = out_of_time
        self._tolerance = tolerance
        self._bound_s: Callable[..., FloatArray] = self._steps.bound_s
        self._slowest_s: Callable[[Sequence[Group], IntArray], tuple[FloatArray, FloatArray]] | None = getattr(
            self._steps, "slowest_s", None
        )
        self._found = SearchResult()
        self._has_begun = False
        self._pushed = 0
        self._searched = 0
        self._plans = count_plans(space)
        # Lowest bound of what had to be left out.
        self._left_out = math.inf
        # Subproblems with many plans, each with its bound. They are listed again when it is their turn: lists that are
        # kept half-way hold hundreds of megabytes each.
        self._later: list[tuple[float, Anchor, int]] = []

    def begin(self, start: Plan | None = None, before: SearchResult | None = None) -> SearchResult:
        """Take the plans that are few and good to be beaten: of one offer, and on one machine.

        Args:
            start: One that is known already; good ones make the search shorter.
            before: The best of other offers; it is returned unless a better one is found.
        """
        self._has_begun = True
        self._note(before)
        for plan in self._space.single if start is None else (start, *self._space.single):
            self._take(plan)
        self._found.cells_in_all += len(self._space.single)
        self._found.subproblems += len(self._space.single)
        with contextlib.suppress(TimeoutError):
            self._take_uniform_plans()
        return self._found

    def _note(self, before: SearchResult | None) -> None:
        found = self._found
        if before is not None and before.value is not None and (found.value is None or before.value < found.value):
            found.plan, found.estimate, found.value = before.plan, before.estimate, before.value

    def run(self, before: SearchResult | None = None) -> SearchResult:
        """Return the best plan, or that of other offers unless there is a better one."""
        found = self._found
        if not self._has_begun:
            self.begin()
        self._note(before)
        heap: list[tuple[float, int, Anchor]] = []
        try:
            self._check_time()
            for cells, anchors in make_anchors(self._space, self._steps, self._ceilings):
                self._check_time()
                found.cells_in_all += cells
                for anchor in anchors:
                    self._push(heap, anchor)
            while heap:
                if self._searched * _PLANS_PER_LISTING > self._plans:
                    self._take_every_plan()
                    heap.clear()
                    break
                found.bound, _, anchor = heap[0]
                aim = self._aim()
                if aim is not None and found.bound > aim[0] * (1 + SAME):
                    break
                self._check_time()
                left = [anchor]
                if not anchor.sharpen(self._steps, self._space):
                    left = [*anchor.halves(self._space.samples)] or left
                    if left[0] is anchor:
                        self._search_cell(anchor)
                heapq.heappop(heap)
                for each in left:
                    self._push(heap, each)
            while self._later:
                self._later.sort(key=lambda each: each[0], reverse=True)
                for late in self._every(*self._later[-1][1:]):
                    self._check_time()
                    if late is not None:
                        self._take(late)
                self._later.pop()
        except TimeoutError:
            found.bound = min(found.bound, self._left_out, *(bound for bound, _, _ in self._later))
            return found
        aim = self._aim()
        found.bound = min(self._left_out, math.inf if aim is None else aim[0])
        found.complete = math.isinf(self._left_out) or (aim is not None and self._left_out >= aim[0])
        return found

    def _aim(self) -> tuple[float, float] | None:
        """Value that a plan must beat to be worth looking for."""
        value = self._found.value
        return None if value is None else (value[0] * (1.0 - self._tolerance), value[1])

    def _check_time(self) -> None:
        if self._out_of_time():
            raise TimeoutError

    def _take(self, plan: Plan) -> bool:
        """Estimate a plan and keep it where it is the best one; return whether it is none for breaking a limit."""
        found = self._found
        if self._problem.broken_quota(plan) is not None:
            return False
        found.estimated += 1
        estimate = estimate_plan(self._problem, plan, self._steps)
        value = self._objective.value(plan, estimate)
        if value is not None and (found.value is None or value < found.value):
            found.plan, found.estimate, found.value = plan, estimate, value
        return value is None and not satisfies(self._problem, estimate)

    def _take_uniform_plans(self) -> None:
        """Begin with the plans of one offer, the most promising ones first: they are few, and good to be beaten."""
        uniform = []
        for options in self._space.options:
            fits = options.least_devices <= options.devices
            for place in np.flatnonzero(fits & (options.samples == self._space.samples)).tolist():
                worlds = options.devices[place : place + 1]
                step_s = self._steps.bound_s(float(options.latency_s[place]), worlds, options.network)
                price = (options.usd_per_hour + self._space.hourly(step_s) * options.toll_usd)[place : place + 1]
                bound = float(self._objective.bound(step_s, price)[0])
                uniform.append((bound, float(price[0]), float(step_s[0]), self._plan((options.group(place),))))
        for _, usd_per_hour, mean_s, plan in sorted(uniform, key=lambda each: each[:2]):
            if usd_per_hour <= self._ceiling(mean_s):
                # Any plan is better than none, even late.
                if self._found.plan is not None or self._found.estimated > _MOST_LATE:
                    self._check_time()
                self._take(plan)

    def _push(self, heap: list[tuple[float, int, Anchor]], anchor: Anchor) -> None:
        bound = anchor.close(self._objective, self._aim())
        if bound is not None:
            # Of equal bounds the first one that came.
            self._pushed += 1
            heapq.heappush(heap, (bound, self._pushed, anchor))

    def _take_every_plan(self) -> None:
        """Take all plans there are, the most promising ones first: bounds are of no use where so few are looked for."""
        listed = list_every_plan(self._space)
        step_s = np.zeros(len(listed.places))
        for network in np.unique(listed.network):
            for latency_s in np.unique(listed.latency_s[listed.network == network]):
                alike = np.flatnonzero((listed.network == network) & (listed.latency_s == latency_s))
                step_s[alike] = self._steps.bound_s(float(latency_s), listed.devices[alike], float(network))
        price = listed.usd_per_hour + self._space.hourly(step_s) * listed.toll_usd
        for index in np.lexsort((price, self._objective.bound(step_s, price))).tolist():
            if price[index] <= self._ceiling(float(step_s[index])):
                self._check_time()
                self._take(self._plan_of(self._space.options, listed.places[index]))
        self._later.clear()
        self._left_out = math.inf

    def _search_cell(self, anchor: Anchor) -> None:
        self._searched += 1
        place = anchor.best_place(self._objective)
        if place not in anchor.tight:
            limit = self._limit(anchor, place)
            alike = anchor.open
            if limit.steady_s < anchor.end_s:
                for latency_s, spread in ((limit.most_s, None), (limit.steady_s, _STEADY * limit.spread)):
                    most_usd = self._most_usds(anchor, slice(None), latency_s * SURELY, spread)
                    alike = alike & (most_usd < anchor.usd_per_hour)
            if anchor.tighten(place, self._space, limit, np.flatnonzero(alike)):
                return
        try:
            if self._space.exact or not anchor.priced[place]:
                limit = self._limit(anchor, place)
                cheapest = self._cheapest(anchor, place, anchor.subproblem(place, self._space, limit))
                if cheapest is not None and self._take(cheapest[0]):
                    self._take_faster(anchor, place, limit)
                if cheapest is not None and not self._space.exact:
                    # Others of it may be better, but none is cheaper: its turn may come later.
                    anchor.priced[place] = True
                    anchor.usd_per_hour[place] = max(anchor.usd_per_hour[place], cheapest[1] * (1 - SAME))
                    return
        except TooManyPlansError as error:
            anchor.priced[place] = not self._space.exact
            if anchor.priced[place]:
                return
            price = np.maximum(anchor.usd_per_hour[place : place + 1], error.usd_per_hour)
            if price[0] <= self._ceiling(float(anchor.step_s[place])):
                bound = self._objective.bound(anchor.step_s[place : place + 1], price)
                self._left_out = min(self._left_out, float(bound[0]))
        else:
            if not self._space.exact and anchor.priced[place]:
                self._search_plans(anchor, place)
        anchor.open[place] = False
        self._found.subproblems += 1

    def _take_faster(self, anchor: Anchor, place: int, limit: LatencyLimit) -> None:
        """Where the cheapest plan of a subproblem breaks a limit, take the cheapest ones that are ever faster."""
        for share in _SHARES_OF_LIMIT if self._space.kept_s is not None else ():
            nearer = LatencyLimit(share * limit.most_s, share * limit.steady_s, limit.spread)
            cheapest = self._cheapest(anchor, place, anchor.subproblem(place, self._space, nearer, is_own=False))
            if cheapest is None or not self._take(cheapest[0]):
                return

    def _search_plans(self, anchor: Anchor, place: int) -> None:
        spent = 0
        for plan in self._every(anchor, place):
            spent += 1 if plan is not None else _PLANS_PER_LISTING
            if plan is not None:
                self._take(plan)
            if spent >= _MOST_AT_ONCE:
                self._later.append((self._found.bound, anchor, place))
                return

    def _ceilings(self, step_s: FloatArray) -> FloatArray:
        return self._objective.ceiling(step_s, self._aim())

    def _ceiling(self, step_s: float) -> float:
        return float(self._ceilings(np.array([step_s]))[0])

    def _cheapest(self, anchor: Anchor, place: int, subproblem: Subproblem) -> tuple[Plan, float] | None:
        """The cheapest plan of a subproblem below the ceiling, and its price with tolls."""
        cheapest = subproblem.cheapest(
            self._ceiling(float(anchor.step_s[place])),
            lambda: anchor.is_reached(place, self._space.samples, self._check_time),
            self._check_time,
        )
        if cheapest is None:
            return None
        options, usd_per_hour = cheapest
        return self._plan(anchor.options[offer].group(index) for offer, index in options), usd_per_hour

    def _limit(self, anchor: Anchor, place: int) -> LatencyLimit:
        """Return the mean of the slowest GPU beyond which plans are late, too dear or another anchor's."""
        spread, end_s = anchor.limits.most_spread, anchor.end_s
        own = LatencyLimit(end_s, end_s)
        if not self._space.exact and not self._is_useless(anchor, place, end_s * SURELY, _STEADY * spread):
            return own
        most_s = self._most_s(anchor, place)
        if self._space.kept_s is None or math.isinf(most_s):
            return LatencyLimit(most_s, most_s)
        steady_s = min(most_s, self._most_s(anchor, place, _STEADY * spread))
        for share in _SHARES_OF_SPREAD:
            limit_s = float(LatencyLimit(most_s, steady_s, spread).at(share * spread))
            if not self._is_useless(anchor, place, limit_s * SURELY, share * spread):
                most_s = max(most_s, steady_s + (self._most_s(anchor, place, share * spread) - steady_s) / share**2)
        found = LatencyLimit(most_s, steady_s, spread)
        # Both hold; the nearer one of the two is taken where the slowest scatters as it mostly does.
        return own if end_s < found.at(_STEADY * spread) else found

    def _most_s(self, anchor: Anchor, place: int, spread: float | None = None) -> float:
        exact = self._space.exact
        latencies = anchor.latencies() if exact else anchor.latency_s * _SLOWER
        # Where iterations follow latencies of many plans, many are tried at once.
        most = 1 if self._slowest_s is None else _TRIED_AT_ONCE
        used, useless = 0, latencies.size
        while useless - used > 1:
            tried = np.unique(np.linspace(used, useless, min(most, useless - used - 1) + 2).astype(np.int64)[1:-1])
            tried_s = latencies[tried] if most > 1 else float(latencies[tried[0]])
            most_usd = self._most_usds(anchor, np.full(tried.size, place), tried_s, spread)
            first = int(np.searchsorted(most_usd < anchor.usd_per_hour[place], True))
            useless = int(tried[first]) if first < tried.size else useless
            used = int(tried[first - 1]) if first else used
        # Between two that are tried the mean may be anything.
        return float(latencies[used] if exact else np.append(latencies / SURELY, np.inf)[useless])

    def _is_useless(self, anchor: Anchor, place: int, latency_s: float, spread: float | None) -> bool:
        return self._most_usd(anchor, place, latency_s, spread) < float(anchor.usd_per_hour[place])

    def _most_usd(self, anchor: Anchor, place: int, latency_s: float, spread: float | None = None) -> float:
        return float(self._most_usds(anchor, slice(place, place + 1), latency_s, spread)[0])

    def _most_usds(
        self,
        anchor: Anchor,
        places: slice | IntArray,
        latency_s: float | FloatArray,
        spread: float | FloatArray | None = None,
    ) -> FloatArray:
        """Return the price, USD per hour, above which subproblems' plans with such a latency are of no use."""
        if np.isinf(latency_s).any():
            return np.full(anchor.world_sizes[places].shape, -math.inf)
        step_s = self._bound_s(latency_s, anchor.world_sizes[places], anchor.network)
        kept_s = None
        if self._space.kept_s is not None:
            spread = anchor.limits.most_spread if spread is None else spread
            kept_s = self._space.kept_s(
                latency_s, anchor.world_sizes[places], anchor.network, spread=spread, most_s=anchor.end_s
            )
        return self._objective.ceiling(step_s, self._aim(), kept_s)

    def _plan(self, groups: Iterable[Group]) -> Plan:
        return Plan(tuple(groups), self._problem.mode)

    def _plan_of(self, options: Sequence[Options], places: IntArray) -> Plan:
        taken = zip(options, places.tolist(), strict=True)
        return self._plan(each.group(place) for each, place in taken if place >= 0)

    def _every(self, anchor: Anchor, place: int) -> Iterator[Plan | None]:
        """All plans of a subproblem that may be better, the most promising ones first; None where some had to be made.

        A subproblem may hold millions of plans, so that one turns to others before all of them are made.
        """
        limit = self._limit(anchor, place)
        subproblem = anchor.subproblem(place, self._space, limit)
        world_size = anchor.world_sizes[place : place + 1]
        cell_step_s, dismissed = float(anchor.step_s[place]), 0
        for listed in list_plans(
            subproblem,
            self._ceiling(cell_step_s),
            lambda: anchor.is_reached(place, self._space.samples, self._check_time),
            self._check_time,
        ):
            # Plans that are faster or on a faster network belong to other anchors.
            is_own = listed.network == anchor.network
            if self._slowest_s is None:
                is_own &= listed.latency_s >= anchor.latency_s
            own = np.flatnonzero(is_own)
            latencies, which = np.unique(listed.latency_s[own], return_inverse=True)
            bounds = [float(self._steps.bound_s(each, world_size, anchor.network)[0]) for each in latencies.tolist()]
            step_s = np.maximum(np.array(bounds)[which], cell_step_s)
            price = listed.usd_per_hour[own] + self._space.hourly(step_s) * listed.toll_usd[own]
            useful = np.flatnonzero(price <= self._ceilings(step_s))
            order = np.lexsort((price[useful], self._objective.bound(step_s[useful], price[useful])))
            useful = useful[order]
            for next_ones in np.split(useful, range(_DRAWN_AT_ONCE, useful.size, _DRAWN_AT_ONCE)):
                # Cheaper plans may have been found meanwhile.
                some = next_ones[price[next_ones] <= self._ceilings(step_s[next_ones])]
                kept = self._kept(anchor, place, limit, listed.places[own[some]], price[some])
                dismissed += some.size - kept.size
                for index in some[kept].tolist():
                    if price[index] <= self._ceiling(float(step_s[index])):
                        self._check_time()
                        yield self._plan_of(anchor.options, listed.places[own[index]])
                while dismissed >= _DISMISSED_PER_LISTING:
                    dismissed -= _DISMISSED_PER_LISTING
                    yield None
            if listed.listed_to > self._ceiling(cell_step_s):
                return
            yield None

    def _kept(
        self, anchor: Anchor, place: int, limit: LatencyLimit, places: IntArray, usd_per_hour: FloatArray
    ) -> IntArray:
        """Return which of some plans are of use, by the slowest GPU of all their groups.

        Of groups that are nearly alike it takes longer than that of each.
        """
        self._check_time()
        if self._slowest_s is None or not places.size:
            return np.arange(len(places))
        latency_s, spread = self._slowest_s(*groups_of(anchor.options, places))
        kept = np.flatnonzero(anchor.holds(latency_s) & (latency_s <= limit.at(spread)))
        cells = np.full(kept.size, place)
        most_usd = self._most_usds(anchor, cells, latency_s[kept] * SURELY, spread[kept])
        return kept[usd_per_hour[kept] <= most_usd]


def groups_of(options: Sequence[Options], places: IntArray) -> tuple[list[Group], IntArray]:
    """Return the groups of plans, and which of these each has, by name of the offer, -1 where it has fewer."""
    by_name = sorted(range(len(options)), key=lambda offer: options[offer].offer.name)
    first = np.cumsum([0, *(each.machines.size for each in options)])
    numbers = np.where(places >= 0, places + first[:-1], -1)[:, by_name]
    numbers = np.take_along_axis(numbers, np.argsort(numbers < 0, axis=1, kind="stable"), axis=1)
    numbers = numbers[:, : int((numbers >= 0).sum(axis=1).max())]
    distinct, which = np.unique(numbers, return_inverse=True)
    offers = np.searchsorted(first, distinct, side="right") - 1
    pairs = zip(offers.tolist(), distinct.tolist(), strict=True)
    groups = [options[offer].group(number - int(first[offer])) for offer, number in pairs if number >= 0]
    return groups, which.reshape(numbers.shape) - int(distinct[0] < 0)
