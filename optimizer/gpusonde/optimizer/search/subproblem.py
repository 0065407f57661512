"""``Subproblem``: the cheapest way to reach exactly so many GPUs and so many samples, the innermost search; its bounds.

An ``Anchor`` holds all plans of one network class and one slowest latency, by world size: a subproblem each. Srifty
anchors its search at a slowest latency as well, but then fixes the batch of every offer and asks for few machines; here
an anchor only says what may be taken.

Lower bounds of the price (``Kinds``) for all world sizes at once: machines are taken as divisible, and the GPUs of an
offer may have any mean batch between its smallest and largest one. What remains is a linear programme in the GPUs taken
of each offer: their sum is the world size, their batches cover the global batch. Its dual has one price ``per sample``;
for a fixed one, GPUs are filled up from the cheapest. The dual's optimum lies where two offers swap places or at zero,
so trying these gives the exact value of the programme, and any of them a valid bound.

The search meets in the middle. Dual prices of a GPU and of a sample turn the price of every option into an excess
over the best its offer can do, so that the price of a plan is a known bound plus the excesses of its options. Plans
up to a ceiling are then those whose excesses stay below ceiling - bound. Half of the offers are added one after the
other, and so is the other half; of all partial plans with the same GPUs and samples only the one with the least
excess is kept. Partial plans of both halves that complete each other are whole plans. The ceiling is approached from
below: most searches end with the few partial plans that are nearly as good as the bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from gpusonde.optimizer.search.objectives import SAME, SearchObjective
from gpusonde.optimizer.search.space import Options, Space, reachable_worlds
from gpusonde.optimizer.step_times import StepTimes, load

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

# First excess that is looked at, relative to the bound, and how it grows.
_FIRST_EXCESS = 0.01
_GROWTH = 4.0
# So many empty rounds raise the doubt whether a subproblem holds any plan.
ROUNDS_BEFORE_DOUBT = 2
# Load of a plan, one up to rounding.
MOST_LOAD = 1.0 + 1e-9


# Partial plans that are made at a time, and that are kept at most of one half of the offers, 40 bytes each.
_MOST_AT_A_TIME = 2_000_000
_MOST_PARTIAL = 10_000_000
# Numbers of devices and samples that are told apart by a table, if there are no more, in all and per partial plan.
_MOST_SLOTS, _MOST_SLOTS_EACH = 4_000_000, 8


class TooManyPlansError(Exception):
    """A subproblem holds more plans than can be looked at.

    Attributes:
        usd_per_hour: Plans up to this price have been looked at.
    """

    def __init__(self, usd_per_hour: float) -> None:
        super().__init__(f"plans above {usd_per_hour} USD per hour are too many")
        self.usd_per_hour = usd_per_hour


@dataclass(frozen=True)
class DualPrices:
    """What a GPU, a sample and the load that a plan may have are worth, USD per hour; together they bound prices."""

    per_device: float
    per_sample: float
    per_load: float


@dataclass(frozen=True)
class OfferOptions:
    """Options of one offer within the excess, by excess; the first one of an offer is to leave it out."""

    offer: int
    devices: IntArray
    samples: IntArray
    excess: FloatArray
    load: FloatArray
    place: IntArray  # in the offer's options, -1 for none of it


@dataclass(frozen=True)
class _Partial:
    """Partial plans after some offers, each with its last choice and the partial plan before it."""

    devices: IntArray
    samples: IntArray
    excess: FloatArray
    before: IntArray
    chosen: IntArray


@dataclass(frozen=True)
class Subproblem:
    """Plans with one world size out of the options up to one latency.

    Attributes:
        options: Of every offer that may take part.
        counts: How many of them, from the first on, are not too slow.
        devices: The world size.
        samples: The global batch, in units.
        prices: Dual prices.
        hourly: Share of a toll that falls on an hour; with it tolls are part of all prices here.
        most_s: Latency at which loads are asked.
    """

    options: Sequence[Options]
    counts: Sequence[int]
    devices: int
    samples: int
    prices: DualPrices
    hourly: float = 0.0
    most_s: float = math.inf

    def cheapest(
        self, ceiling: float, may_exist: Callable[[], bool], check_time: Callable[[], None]
    ) -> tuple[list[tuple[int, int]], float] | None:
        """Return the options, (offer, place) each, of the cheapest plan below ``ceiling`` and its price.

        What it is loaded beyond the most counts as price, so that no plan that is of use has a lower one.

        Args:
            ceiling: USD per hour.
            may_exist: Asked when no plan is anywhere near the bound; the search ends when it says no.
            check_time: Called now and then.

        Raises:
            TooManyPlansError: There are too many partial plans.
            TimeoutError: From ``check_time``.
        """
        for number, (limit, choices) in enumerate(self.rounds(ceiling)):
            if number == ROUNDS_BEFORE_DOUBT and not may_exist():
                return None
            halves = [self._stages(half, limit, check_time) for half in split_halves(choices)]
            check_time()
            joined = self._join(halves[0][-1], halves[1][-1], limit)
            if joined is not None:
                *indices, excess = joined
                found = [
                    pick
                    for half, stages, index in zip(split_halves(choices), halves, indices, strict=True)
                    for pick in _path(half, stages, index)
                ]
                return found, self.bound + excess
        return None

    @property
    def bound(self) -> float:
        """Lower bound of the price, USD per hour: what plans without any excess cost."""
        least = sum(min(0.0, float(self._reduced(offer).min(initial=0.0))) for offer in range(len(self.options)))
        worth = self.prices.per_device * self.devices + self.prices.per_sample * self.samples
        return worth - self.prices.per_load + least

    def _reduced(self, offer: int) -> FloatArray:
        """Price of an offer's options less the worth of their GPUs and samples."""
        options, count = self.options[offer], self.counts[offer]
        found = (
            (options.usd_per_hour + self.hourly * options.toll_usd)[:count]
            - self.prices.per_device * options.devices[:count]
            - self.prices.per_sample * options.samples[:count]
        )
        if self.prices.per_load:
            found += self.prices.per_load * self._load(offer)
        return np.asarray(found)

    def _load(self, offer: int) -> FloatArray:
        """Load of an offer's options."""
        options, count = self.options[offer], self.counts[offer]
        each = load(self.most_s, options.gpu_s[:count], options.gpu_spread[:count])
        return np.asarray(options.devices[:count] * each)

    def rounds(self, ceiling: float, growth: float = _GROWTH) -> Iterator[tuple[float, list[OfferOptions]]]:
        """Yield growing excesses with the choices within them, the last one with the ceiling's.

        Args:
            ceiling: USD per hour.
            growth: Of the excess from one round to the next.
        """
        everything, bound = [], self.bound
        for offer in range(len(self.options)):
            reduced = self._reduced(offer)
            least = min(0.0, float(reduced.min(initial=0.0)))
            everything.append((offer, reduced - least, -least))
        most = ceiling - bound
        scale = max(abs(bound), 1e-12)
        if most < -1e-12 * scale:
            return
        complete = float(sum(max(float(excess.max(initial=0.0)), none) for _, excess, none in everything))
        limit = _FIRST_EXCESS * scale
        while True:
            limit = min(limit, most, complete) + 1e-12 * scale
            yield limit, [self._choices(offer, excess, none, limit) for offer, excess, none in everything]
            if limit >= min(most, complete):
                return
            limit *= growth

    def _choices(self, offer: int, excess: FloatArray, none: float, limit: float) -> OfferOptions:
        options = self.options[offer]
        own_load = self._load(offer)
        kept = np.flatnonzero(
            (excess <= limit)
            & (own_load <= MOST_LOAD)
            & (options.devices[: excess.size] <= self.devices)
            & (options.samples[: excess.size] <= self.samples)
            & (options.least_devices[: excess.size] <= self.devices)
        )
        place = np.concatenate([[-1], kept]) if none <= limit else kept
        devices, samples = np.zeros(place.size, dtype=np.int64), np.zeros(place.size, dtype=np.int64)
        costs, loads = np.full(place.size, none), np.zeros(place.size)
        taken = place >= 0
        devices[taken], samples[taken], costs[taken] = options.devices[kept], options.samples[kept], excess[kept]
        loads[taken] = own_load[kept]
        order = np.argsort(costs, kind="stable")
        return OfferOptions(offer, devices[order], samples[order], costs[order], loads[order], place[order])

    def _stages(self, choices: Sequence[OfferOptions], limit: float, check_time: Callable[[], None]) -> list[_Partial]:
        """Partial plans after none, one, two ... of some offers, by devices and samples."""
        zero = np.zeros(1, dtype=np.int64)
        stages = [_Partial(zero, zero, np.zeros(1), zero, zero)]
        left = _MOST_PARTIAL
        for each in choices:
            stages.append(self._extend(stages[-1], each, limit, left, check_time))
            left -= stages[-1].excess.size
        return stages

    def _extend(
        self, partial: _Partial, choices: OfferOptions, limit: float, most: int, check_time: Callable[[], None]
    ) -> _Partial:
        """Add one offer; more than ``most`` partial plans are too many."""
        counts = np.searchsorted(choices.excess, limit - partial.excess, side="right")
        ends = np.cumsum(counts)
        extended = None
        begin = 0
        while begin < counts.size:
            check_time()
            # As many partial plans at a time as memory bears.
            done = int(ends[begin - 1]) if begin else 0
            end = max(begin + 1, int(np.searchsorted(ends, done + _MOST_AT_A_TIME, side="right")))
            part = self._extend_some(partial, choices, begin, counts[begin:end])
            extended = part if extended is None else self._merged(extended, part)
            if extended.excess.size > most:
                raise TooManyPlansError(self.bound)
            begin = end
        return partial if extended is None else extended

    def _extend_some(self, partial: _Partial, choices: OfferOptions, begin: int, counts: IntArray) -> _Partial:
        """Add the first ``counts`` choices to each of the partial plans from ``begin`` on."""
        before = begin + np.repeat(np.arange(counts.size), counts)
        chosen = np.arange(before.size) - np.repeat(np.cumsum(counts) - counts, counts)
        devices = partial.devices[before] + choices.devices[chosen]
        samples = partial.samples[before] + choices.samples[chosen]
        kept = np.flatnonzero((devices <= self.devices) & (samples <= self.samples))
        before, chosen, devices, samples = before[kept], chosen[kept], devices[kept], samples[kept]
        excess = partial.excess[before] + choices.excess[chosen]
        return self._cheapest_each(_Partial(devices, samples, excess, before, chosen))

    def _merged(self, first: _Partial, second: _Partial) -> _Partial:
        pairs = ((getattr(first, name), getattr(second, name)) for name in _Partial.__dataclass_fields__)
        return self._cheapest_each(_Partial(*(np.concatenate(pair) for pair in pairs)))

    def _cheapest_each(self, partial: _Partial) -> _Partial:
        """The cheapest partial plan of each number of devices and samples, in the order of both."""
        key = self.key(partial.devices, partial.samples)
        slots = (self.devices + 1) * (self.samples + 1)
        if slots <= min(_MOST_SLOTS, _MOST_SLOTS_EACH * key.size):
            least = np.full(slots, math.inf)
            np.minimum.at(least, key, partial.excess)
            cheapest = np.flatnonzero(partial.excess == least[key])
            place = np.full(slots, -1)
            place[key[cheapest]] = cheapest
            order = place[place >= 0]
        else:
            order = np.lexsort((partial.excess, key))
            order = order[np.flatnonzero(np.diff(key[order], prepend=-1))]
        return _Partial(*(getattr(partial, name)[order] for name in _Partial.__dataclass_fields__))

    def _join(self, first: _Partial, second: _Partial, limit: float) -> tuple[int, int, float] | None:
        """Return the two partial plans that together make the cheapest whole one, and its excess; None without."""
        keys = self.key(first.devices, first.samples)
        wanted = self.key(self.devices - second.devices, self.samples - second.samples)
        places = np.searchsorted(keys, wanted)
        matching = np.flatnonzero(np.append(keys, -1)[places] == wanted)
        if not matching.size:
            return None
        total = first.excess[places[matching]] + second.excess[matching]
        best = int(total.argmin())
        if total[best] > limit:
            return None
        return int(places[matching[best]]), int(matching[best]), float(total[best])

    def key(self, devices: IntArray, samples: IntArray) -> IntArray:
        """Return one number per pair of devices and samples."""
        return devices * (self.samples + 1) + samples


def split_halves(choices: Sequence[OfferOptions]) -> tuple[list[OfferOptions], list[OfferOptions]]:
    """Divide the offers so that both halves have about as many partial plans."""
    halves: tuple[list[OfferOptions], list[OfferOptions]] = ([], [])
    sizes = [1, 1]
    for each in sorted(choices, key=lambda each: each.place.size, reverse=True):
        smaller = 0 if sizes[0] <= sizes[1] else 1
        halves[smaller].append(each)
        sizes[smaller] *= each.place.size
    return halves


def _path(choices: Sequence[OfferOptions], stages: Sequence[_Partial], index: int) -> Iterator[tuple[int, int]]:
    """Yield the options, (offer, place) each, of one of the last partial plans."""
    for each, stage in zip(choices[::-1], stages[:0:-1], strict=True):
        place = int(each.place[stage.chosen[index]])
        index = int(stage.before[index])
        if place >= 0:
            yield each.offer, place


# Dual prices of a sample that are tried for all world sizes at once, from pairs of so many kinds at most, and steps
# towards the best ones for one world size.
_MOST_PRICES_PER_SAMPLE, _MOST_PAIRED, _MOST_STEPS = 48, 128, 40
# GPUs that nobody has cost so many times a plan of the dearest; prices closer together, relative, are the same.
_DEAR, _SAME_PRICE, _SMALL = 100.0, 1e-9, 1e-12


@dataclass(frozen=True)
class Kinds:
    """GPUs that may take part; an offer has an entry for each batch with which it runs more of them.

    Attributes:
        devices: Shape (k,), most GPUs.
        usd_per_device_hour: Shape (k,).
        toll_usd_per_device: Shape (k,), what a GPU costs besides, however long it runs.
        smallest: Shape (k,), smallest batch per GPU.
        largest: Shape (k,), samples that a GPU adds at most, which falls from one entry of an offer to the next.
    """

    devices: IntArray
    usd_per_device_hour: FloatArray
    toll_usd_per_device: FloatArray
    smallest: FloatArray
    largest: FloatArray

    def with_tolls(self, hourly: float) -> Kinds:
        """Return the same with such a share of the tolls in the prices."""
        return replace(self, usd_per_device_hour=self.usd_per_device_hour + hourly * self.toll_usd_per_device)

    def reachable(self, world_sizes: IntArray, samples: float) -> npt.NDArray[np.bool_]:
        """Return for which world sizes the global batch lies between what they can run at least and at most."""
        least = self._sums(world_sizes, self.smallest)
        most = -self._sums(world_sizes, -self.largest)
        enough = world_sizes <= self.devices.sum()
        return np.asarray(enough & (least <= samples + 1e-6) & (most >= samples - 1e-6))

    def quick_bound(self, world_sizes: IntArray, samples: float) -> FloatArray:
        """Return a lower bound of the price that takes little time, USD per hour, shape of ``world_sizes``."""
        # Cover the samples from the cheapest per sample on; take the GPUs from the cheapest on.
        adding = self.largest > 0
        largest = self.largest[adding]
        per_sample = self.usd_per_device_hour[adding] / largest
        order = np.argsort(per_sample)
        covered = np.minimum(np.cumsum(self.devices[adding][order] * largest[order]), samples)
        cover = float(covered[0] * per_sample[order[0]] + (covered[1:] - covered[:-1]) @ per_sample[order[1:]])
        return np.asarray(np.maximum(self._sums(world_sizes, self.usd_per_device_hour), cover))

    def bound(self, world_sizes: IntArray, samples: float) -> PriceBound:
        """Return the best of some bounds of the linear programme for world sizes, shape (n,)."""
        per_sample = self._prices_per_sample()
        values = np.stack([each * samples + self._sums(world_sizes, self._reduced(each)) for each in per_sample])
        best = values.argmax(axis=0)
        return PriceBound(values[best, np.arange(world_sizes.size)], per_sample[best])

    def _sums(self, world_sizes: IntArray, each: FloatArray) -> FloatArray:
        """Least sum of a figure of so many GPUs, shape of ``world_sizes``."""
        order = np.argsort(each)
        devices = np.concatenate([[0], np.cumsum(self.devices[order])])
        sums = np.concatenate([[0.0], np.cumsum(self.devices[order] * each[order])])
        return np.asarray(np.interp(world_sizes, devices, sums))

    def _reduced(self, per_sample: float) -> FloatArray:
        """Price of a GPU less the worth of its samples, shape (k,)."""
        return np.asarray(self.usd_per_device_hour - per_sample * (self.largest if per_sample >= 0 else self.smallest))

    def _prices_per_sample(self) -> FloatArray:
        """Where two kinds swap places, shape (m,), zero among them."""
        some = np.linspace(0, self.devices.size - 1, min(self.devices.size, _MOST_PAIRED)).round().astype(int)
        first, second = (some[each] for each in np.triu_indices(some.size, 1))
        price = self.usd_per_device_hour[first] - self.usd_per_device_hour[second]
        found = [np.zeros(1)]
        for batch, sign in ((self.largest, 1.0), (self.smallest, -1.0)):
            step = batch[first] - batch[second]
            with np.errstate(divide="ignore", invalid="ignore"):
                swap = price / step
            found.append(swap[np.isfinite(swap) & (swap * sign > 0)])
        every = np.unique(np.concatenate(found))
        if every.size > _MOST_PRICES_PER_SAMPLE:
            every = every[np.linspace(0, every.size - 1, _MOST_PRICES_PER_SAMPLE).round().astype(int)]
        return np.asarray(every)


@dataclass(frozen=True)
class PriceBound:
    """Bounds for some world sizes.

    Attributes:
        usd_per_hour: Shape (n,), no plan is cheaper.
        usd_per_sample_hour: Shape (n,), the dual price of a sample that shows it.
    """

    usd_per_hour: FloatArray
    usd_per_sample_hour: FloatArray


@dataclass(frozen=True)
class Lots:
    """GPUs that may take part, by offer and batch; of an offer all run with one batch.

    Attributes:
        devices: Shape (k, b), most GPUs.
        usd_per_device_hour: Shape (k,).
        batches: Shape (k, b), samples per GPU.
        loads: Shape (k, b), of one GPU.
    """

    devices: IntArray
    usd_per_device_hour: FloatArray
    batches: FloatArray
    loads: FloatArray

    def bounds(self, world_size: int, samples: float, near: DualPrices) -> Iterator[tuple[float, DualPrices]]:
        """Yield bounds of the linear programme for a world size, less what GPUs are worth, and their dual prices.

        The best choice of every offer at some dual prices is a column of the programme (Dantzig and Wolfe); a mixture
        of four reaches GPUs, samples and load, and its dual prices give the next one.

        Args:
            world_size: The world size.
            samples: The global batch.
            near: Dual prices that are good already.
        """
        scale = np.array([world_size, samples, 1.0])
        dear = _DEAR * world_size * float(self.usd_per_device_hour.max())
        # GPUs and samples that nobody has, load that is left, and no GPU at all.
        basis, costs = np.eye(4), np.array([dear, dear, 0.0, 0.0])
        prices = np.array([near.per_device, near.per_sample, -near.per_load]) * scale
        for _ in range(_MOST_STEPS):
            per_device, per_sample, per_load = (prices / scale).tolist()
            reduced = self.usd_per_device_hour[:, None] - per_device - per_sample * self.batches
            values = self.devices * (reduced - per_load * self.loads)
            rows, best = np.arange(len(values)), values.argmin(axis=1)
            useful = values[rows, best] < 0
            rows, best = rows[useful], best[useful]
            found = float(prices[1:].sum() + values[rows, best].sum())
            # Where prices are large, rounding is, too.
            yield found - _SMALL * float(np.abs(prices).sum()), DualPrices(per_device, per_sample, -per_load)
            taken = self.devices[rows, best]
            amounts = [taken.sum(), taken @ self.batches[rows, best], taken @ self.loads[rows, best]]
            column, cost = np.append(amounts / scale, 1.0), float(taken @ self.usd_per_device_hour[rows])
            solved = np.linalg.solve(basis.T, costs)
            is_better = cost - solved @ column < -_SAME_PRICE * abs(solved.sum())
            if is_better:
                solved = _entered(basis, costs, column, cost)
            if solved[2] > _SAME_PRICE * dear:
                solved = _entered(basis, costs, np.array([0.0, 0.0, 1.0, 0.0]), 0.0)
            following = np.append(solved[:2], min(solved[2], 0.0))
            if not is_better and np.array_equal(following, prices):
                return
            prices = following


def _entered(basis: FloatArray, costs: FloatArray, column: FloatArray, cost: float) -> FloatArray:
    """Put a column in the place of the one that it drives out first; return the dual prices."""
    weights, change = np.linalg.solve(basis, np.stack([np.ones(4), column], axis=1)).T
    with np.errstate(divide="ignore", invalid="ignore"):
        place = int(np.where(change > _SMALL, weights / change, np.inf).argmin())
    basis[:, place], costs[place] = column, cost
    return np.asarray(np.linalg.solve(basis.T, costs))


# Latencies that depend on the number of machines are many; those within this share of each other are one, and an
# anchor holds those within the larger one until it is its turn.
_SAME_LATENCY, _ALIKE_LATENCY = 0.002, 0.02
# Runs whose logarithms of time lie in one interval of this length share their bounds of prices with tolls.
_SAME_HOURS = 0.05


@dataclass
class Anchor:
    """The subproblems of one network class and some slowest latencies close together, one per world size.

    Bounds are made sharper only when the search gets there: most anchors never need it.

    Attributes:
        network: Class of the slowest network.
        options: Of every offer with that network or a faster one.
        limits: Of these, up to each latency.
        begin: The first of its latencies, there.
        end: One beyond the last.
        kinds: The GPUs that are not too slow.
        world_sizes: Shape (n,), those with which the global batch may be reached.
        step_s: Shape (n,), lower bound of an iteration.
        usd_per_hour: Shape (n,), lower bound of the price.
        open: Shape (n,), false for subproblems that hold nothing better than what is known.
        priced: Shape (n,), true where ``usd_per_hour`` is the price of the cheapest plan.
        timed: True once ``step_s`` includes the exchange of gradients.
        usd_per_sample_hour: Shape (n,), dual price of a sample; None until ``usd_per_hour`` is the good bound.
        kept_s: Shape (n,), lower bound of an iteration at the problem's confidence; None until somebody asked.
        reached: Shape (n,), world sizes that reach the global batch exactly; None until somebody asked.
        tight: Dual prices of world sizes, by place, whose ``usd_per_hour`` is the best that divisible machines tell.
    """

    network: float
    options: Sequence[Options]
    limits: _Limits
    begin: int
    end: int
    kinds: Kinds
    world_sizes: IntArray
    step_s: FloatArray
    usd_per_hour: FloatArray
    open: npt.NDArray[np.bool_]
    priced: npt.NDArray[np.bool_]
    timed: bool = False
    usd_per_sample_hour: FloatArray | None = None
    kept_s: FloatArray | None = None
    reached: npt.NDArray[np.bool_] | None = None
    tight: dict[int, DualPrices] = field(default_factory=dict)

    @property
    def latency_s(self) -> float:
        """Least latency of the slowest GPU."""
        return float(self.limits.latencies_s[self.begin])

    @property
    def counts(self) -> list[int]:
        """How many options of each offer, from the first on, are not too slow."""
        found: list[int] = self.limits.counts[:, self.end - 1].tolist()
        return found

    def halves(self, samples: int) -> Iterator[Anchor]:
        """Yield two anchors with half of its latencies each; none where it has one."""
        middle = (self.begin + self.end) // 2
        for begin, end in ((self.begin, middle), (middle, self.end)) if self.end - self.begin > 1 else ():
            kinds = self.limits.kinds(end - 1)
            places = np.flatnonzero(self.open)
            places = places[kinds.reachable(self.world_sizes[places], samples)]
            yield Anchor(
                network=self.network,
                options=self.options,
                limits=self.limits,
                begin=begin,
                end=end,
                kinds=kinds,
                world_sizes=self.world_sizes[places],
                step_s=self.step_s[places],
                usd_per_hour=self.usd_per_hour[places],
                open=np.ones(places.size, dtype=np.bool_),
                priced=np.zeros(places.size, dtype=np.bool_),
            )

    def close(self, objective: SearchObjective, best: tuple[float, float] | None) -> float | None:
        """Close subproblems with nothing better than ``best``; return the lowest bound of the others, None without."""
        self.open &= self.usd_per_hour <= objective.ceiling(self.step_s, best, self.kept_s)
        if not self.open.any():
            return None
        return float(objective.bound(self.step_s[self.open], self.usd_per_hour[self.open]).min())

    def sharpen(self, steps: StepTimes, space: Space) -> bool:
        """Make the bounds sharper by one step; return False when they are as sharp as they get."""
        if not self.timed:
            places = np.flatnonzero(self.open)
            self.step_s[places] = steps.bound_s(self.latency_s, self.world_sizes[places], self.network)
            self.timed = True
            return True
        if self.usd_per_sample_hour is None:
            self.usd_per_sample_hour = np.zeros(self.world_sizes.size)
            for some, kinds in self._kinds_alike(space):
                found = kinds.bound(self.world_sizes[some], space.samples)
                self.usd_per_hour[some] = np.maximum(self.usd_per_hour[some], found.usd_per_hour)
                self.usd_per_sample_hour[some] = found.usd_per_sample_hour
            return True
        if self.kept_s is None and space.kept_s is not None:
            places = np.flatnonzero(self.open)
            self.kept_s = np.zeros(self.step_s.shape)
            self.kept_s[places] = space.kept_s(self.latency_s, self.world_sizes[places], self.network)
            return True
        return False

    def _kinds_alike(self, space: Space) -> Iterator[tuple[IntArray, Kinds]]:
        """Yield world sizes, by place, whose runs take nearly as long, and prices with the least of their tolls."""
        if not self.kinds.toll_usd_per_device.any():
            yield np.arange(self.world_sizes.size), self.kinds
            return
        places = np.flatnonzero(self.open)
        hourly = space.hourly(self.step_s[places])
        alike = np.floor(np.log(hourly) / _SAME_HOURS).astype(np.int64)
        for each in np.unique(alike):
            some = places[alike == each]
            yield some, self.kinds.with_tolls(float(hourly[alike == each].min()))

    def is_reached(self, place: int, samples: int, check_time: Callable[[], None]) -> bool:
        """Return whether a subproblem holds any plan; closes all open ones that do not.

        The tables for it cost as much as some subproblems, so this is asked only when a subproblem looks empty.
        """
        if self.reached is None:
            places = np.flatnonzero(self.open)
            worlds = self.world_sizes[places]
            self.reached = np.ones(self.world_sizes.shape, dtype=np.bool_)
            self.reached[places] = reachable_worlds(self.options, self.counts, worlds, samples, check_time)
            self.open &= self.reached
        return bool(self.reached[place])

    def best_place(self, objective: SearchObjective) -> int:
        """Return the open subproblem with the lowest bound, among equal ones the one with the lowest price."""
        places = np.flatnonzero(self.open)
        bounds = objective.bound(self.step_s[places], self.usd_per_hour[places])
        places = places[bounds <= bounds.min() * (1 + SAME)]
        return int(places[self.usd_per_hour[places].argmin()])

    def tighten(self, place: int, space: Space, most_s: float, alike: IntArray) -> bool:
        """Make the bound of a subproblem's price as sharp as divisible machines allow; return whether it was not.

        Args:
            place: Of its world size.
            space: What can be chosen.
            most_s: Mean of the slowest GPU beyond which plans are of no use.
            alike: Places of other world sizes of which this holds, too.
        """
        if place in self.tight or self.usd_per_sample_hour is None:
            return False
        world_size, per_sample = int(self.world_sizes[place]), float(self.usd_per_sample_hour[place])
        near = DualPrices((float(self.usd_per_hour[place]) - per_sample * space.samples) / world_size, per_sample, 0.0)
        lots = self.limits.lots(self.end - 1, most_s, self._hourly(place, space))
        before, best = self.usd_per_hour[place], -math.inf
        for found, prices in lots.bounds(world_size, space.samples, near):
            # Elsewhere another share of the tolls counts.
            if not self.kinds.toll_usd_per_device.any():
                others = (found + prices.per_device * self.world_sizes[alike]) * (1 - SAME)
                self.usd_per_hour[alike] = np.maximum(self.usd_per_hour[alike], others)
            usd = found + prices.per_device * world_size
            if usd > best:
                best, self.tight[place] = usd, prices
        self.usd_per_hour[place] = max(self.usd_per_hour[place], best * (1 - SAME))
        return bool(self.usd_per_hour[place] > before)

    def _hourly(self, place: int, space: Space) -> float:
        """Share of a toll that falls on an hour; zero without tolls."""
        return float(space.hourly(self.step_s[place : place + 1])[0]) if self.kinds.toll_usd_per_device.any() else 0.0

    def latencies(self) -> FloatArray:
        """Return the latencies of its options from its own on, ascending."""
        own = [each.latency_s[:count] for each, count in zip(self.options, self.counts, strict=True)]
        every = np.unique(np.concatenate(own))
        return every[every >= self.latency_s]

    def subproblem(self, place: int, space: Space, most_s: float) -> Subproblem:
        """Return a subproblem with options up to a latency, once the bounds are sharp."""
        most = min(most_s, float(self.limits.most_s[self.end - 1]))
        return Subproblem(
            options=self.options,
            counts=[int(np.searchsorted(each.latency_s, most, side="right")) for each in self.options],
            devices=int(self.world_sizes[place]),
            samples=space.samples,
            prices=self.tight[place],
            hourly=self._hourly(place, space),
            most_s=most_s,
        )


def make_anchors(
    space: Space, steps: StepTimes, ceiling: Callable[[FloatArray], FloatArray]
) -> Iterator[tuple[int, Iterator[Anchor]]]:
    """Yield how many subproblems there are of each network class, and its anchors that promise something.

    Args:
        space: What can be chosen.
        steps: Durations of iterations.
        ceiling: Of iterations, the price from which on plans are of no use.
    """
    for network in sorted({options.network for options in space.options}, reverse=True):
        options = [each for each in space.options if each.network >= network and each.machines.size]
        own = [float(each.latency_s[0]) for each in options if each.network == network]
        if not own:
            continue
        latencies = np.unique(np.concatenate([each.latency_s for each in options]))
        # Without an option on this network, the plans are those of a faster one.
        ranges = [each for each in _ranges(latencies, 0.0 if steps.exact else _SAME_LATENCY) if each[1] >= min(own)]
        limits = _Limits.of(options, ranges, space)
        worlds = limits.world_sizes[limits.kinds(-1).reachable(limits.world_sizes, space.samples)]
        anchors = _anchors(network, options, limits, ceiling(limits.latencies_s), space, 0, len(ranges))
        yield len(ranges) * worlds.size, anchors


def _anchors(
    network: float,
    options: Sequence[Options],
    limits: _Limits,
    ceilings: FloatArray,
    space: Space,
    begin: int,
    end: int,
) -> Iterator[Anchor]:
    """Yield the anchors of some latencies; many are dismissed at once, by the least price of all."""
    kinds = limits.kinds(end - 1)
    worlds = limits.world_sizes[kinds.reachable(limits.world_sizes, space.samples)]
    usd_per_hour = kinds.quick_bound(worlds, space.samples)
    if not worlds.size or usd_per_hour.min() > ceilings[begin:end].max():
        return
    least, most = limits.latencies_s[begin], limits.latencies_s[end - 1]
    if end - begin > 1 and (space.exact or most > least * (1.0 + _ALIKE_LATENCY)):
        middle = (begin + end) // 2
        yield from _anchors(network, options, limits, ceilings, space, begin, middle)
        yield from _anchors(network, options, limits, ceilings, space, middle, end)
        return
    yield Anchor(
        network=network,
        options=options,
        limits=limits,
        begin=begin,
        end=end,
        kinds=kinds,
        world_sizes=worlds,
        step_s=np.full(worlds.size, least),
        usd_per_hour=usd_per_hour,
        open=np.ones(worlds.size, dtype=np.bool_),
        priced=np.zeros(worlds.size, dtype=np.bool_),
    )


def _ranges(latencies: FloatArray, share: float) -> Iterator[tuple[float, float]]:
    """Yield the least and the largest of each run of ascending latencies within a share of its least one."""
    begin = 0
    while begin < latencies.size:
        end = int(np.searchsorted(latencies, latencies[begin] * (1.0 + share), side="right"))
        yield float(latencies[begin]), float(latencies[end - 1])
        begin = end


@dataclass(frozen=True)
class _Limits:
    """Limits of k offers over their options up to each of m latencies.

    Attributes:
        latencies_s: Shape (m,), ascending.
        most_s: Shape (m,), the largest latency that counts as each.
        counts: Shape (k, m), how many options are not too slow.
        usd_per_device_hour: Shape (k,).
        toll_usd_per_device: Shape (k,).
        batches: Shape (k, b), batches per GPU in descending order, zero where there are fewer.
        option_s: Latencies of all options of all offers, by offer and batch.
        option_devices: GPUs of these.
        gpu_s: Shape (k, b), latency of one GPU with each batch.
        gpu_spread: Shape (k, b), its relative standard deviation.
        begins: Shape (r,), the first of each offer and batch there.
        cells: Shape (r,), which of ``batches``, flat, each is.
        world_sizes: Those that there are.
    """

    latencies_s: FloatArray
    most_s: FloatArray
    counts: IntArray
    usd_per_device_hour: FloatArray
    toll_usd_per_device: FloatArray
    batches: FloatArray
    option_s: FloatArray
    option_devices: IntArray
    gpu_s: FloatArray
    gpu_spread: FloatArray
    begins: IntArray
    cells: IntArray
    world_sizes: IntArray

    @classmethod
    def of(cls, options: Sequence[Options], ranges: Sequence[tuple[float, float]], space: Space) -> _Limits:
        """Return them up to the end of each range of latencies, which goes by its beginning."""
        least, most_s = np.array(ranges).T
        per_device = [each.samples / each.devices for each in options]
        most = min(
            sum(int(each.devices.max()) for each in options),
            math.floor(space.samples / min(float(batch.min()) for batch in per_device) + 1e-6),
        )
        step = math.gcd(*(each.offer.devices for each in options))
        falling = [np.unique(batch)[::-1] for batch in per_device]
        batches = np.zeros((len(options), max(each.size for each in falling)))
        for row, each in zip(batches, falling, strict=True):
            row[: each.size] = each
        sizes = [each.size for each in per_device]
        offers, batch = np.repeat(np.arange(len(options)), sizes), np.concatenate(per_device)
        order = np.lexsort((-batch, offers))
        offers, batch = offers[order], batch[order]
        begins = np.flatnonzero((np.diff(offers, prepend=-1) != 0) | (np.diff(batch, prepend=-1.0) != 0))
        # Which of the batches of its own offer each is.
        first = np.searchsorted(offers[begins], offers[begins])
        cells = offers[begins] * batches.shape[1] + np.arange(begins.size) - first
        gpu_s, gpu_spread = np.zeros((2, *batches.shape))
        gpu_s.flat[cells] = np.concatenate([each.gpu_s for each in options])[order][begins]
        gpu_spread.flat[cells] = np.concatenate([each.gpu_spread for each in options])[order][begins]
        return cls(
            least,
            most_s,
            np.stack([np.searchsorted(each.latency_s, most_s, side="right") for each in options]),
            np.array([each.offer.usd_per_hour / each.offer.devices for each in options]),
            np.array([each.toll_usd[0] / each.devices[0] for each in options]),
            batches,
            np.concatenate([each.latency_s for each in options])[order],
            np.concatenate([each.devices for each in options])[order],
            gpu_s,
            gpu_spread,
            begins,
            cells,
            np.arange(step, most + 1, step, dtype=np.int64),
        )

    def kinds(self, place: int) -> Kinds:
        """Return what options up to a latency allow."""
        most = self._devices(float(self.most_s[place]))
        smallest = np.where(most > 0, self.batches, np.inf).min(axis=1)
        # The most samples by GPUs, as a chain of straight lines over the largest batch with which so many run.
        at, samples, found = np.zeros(len(most), dtype=np.int64), np.zeros(len(most)), []
        offers = np.flatnonzero(np.isfinite(smallest))
        while offers.size:
            more = most[offers] - at[offers, None]
            with np.errstate(divide="ignore", invalid="ignore"):
                adds = (most[offers] * self.batches[offers] - samples[offers, None]) / more
            taken = np.where(more > 0, adds, -np.inf).argmax(axis=1)
            rows = np.arange(offers.size)
            found.append((offers, more[rows, taken], adds[rows, taken]))
            at[offers] = most[offers, taken]
            samples[offers] = at[offers] * self.batches[offers, taken]
            offers = offers[at[offers] < most[offers].max(axis=1)]
        if not found:
            return Kinds(*np.zeros((5, 0)))
        offers, more, adds = (np.concatenate(each) for each in zip(*found, strict=True))
        return Kinds(more, self.usd_per_device_hour[offers], self.toll_usd_per_device[offers], smallest[offers], adds)

    def lots(self, place: int, most_s: float, hourly: float) -> Lots:
        """Return what options up to a latency allow, and their loads where the slowest GPU takes ``most_s`` at most."""
        devices = self._devices(min(most_s, float(self.most_s[place])))
        usd = self.usd_per_device_hour + hourly * self.toll_usd_per_device
        loads = np.where(devices > 0, load(most_s, self.gpu_s, self.gpu_spread), 0.0)
        return Lots(devices, usd, self.batches, loads)

    def _devices(self, most_s: float) -> IntArray:
        """Return how many GPUs run with each batch in options up to a latency, shape (k, b)."""
        devices = np.zeros(self.batches.size, dtype=np.int64)
        fast = np.where(self.option_s <= most_s, self.option_devices, 0)
        devices[self.cells] = np.maximum.reduceat(fast, self.begins)
        return devices.reshape(self.batches.shape)
