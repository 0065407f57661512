"""``Subproblem``: the cheapest way to reach exactly so many GPUs and so many samples, the innermost search.

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
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpusonde.optimizer.search.price_bounds import DualPrices, LatencyLimit
from gpusonde.optimizer.search.space import Options

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

# First excess that is looked at, relative to the bound, and how it grows.
_FIRST_EXCESS = 0.01
_GROWTH = 4.0
_FEW_WAYS = 10_000
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
        limit: Mean of the slowest GPU beyond which plans are of no use.
    """

    options: Sequence[Options]
    counts: Sequence[int]
    devices: int
    samples: int
    prices: DualPrices
    hourly: float
    limit: LatencyLimit

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
        each = self.limit.load(options.gpu_s[:count], options.gpu_spread[:count])
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
        ways = math.prod(excess.size + 1 for _, excess, _ in everything)
        # Of few ways to choose all are looked at at once: that costs no more than a round.
        limit = complete if ways <= _FEW_WAYS else _FIRST_EXCESS * scale
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
    """Divide the offers so that both halves have about as many partial plans; those with few choices come first."""
    halves: tuple[list[OfferOptions], list[OfferOptions]] = ([], [])
    sizes = [1, 1]
    for each in sorted(choices, key=lambda each: each.place.size, reverse=True):
        smaller = 0 if sizes[0] <= sizes[1] else 1
        halves[smaller].append(each)
        sizes[smaller] *= each.place.size
    return halves[0][::-1], halves[1][::-1]


def _path(choices: Sequence[OfferOptions], stages: Sequence[_Partial], index: int) -> Iterator[tuple[int, int]]:
    """Yield the options, (offer, place) each, of one of the last partial plans."""
    for each, stage in zip(choices[::-1], stages[:0:-1], strict=True):
        place = int(each.place[stage.chosen[index]])
        index = int(stage.before[index])
        if place >= 0:
            yield each.offer, place
