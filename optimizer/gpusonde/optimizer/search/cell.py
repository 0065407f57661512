"""The cheapest ways to reach exactly so many GPUs and so many samples with given options: the innermost search.

Dual prices of a GPU and of a sample turn the price of every option into an excess over the best its offer can do, so
that the price of a plan is a known bound plus the excesses of its options. Plans up to a ceiling are then those whose
excesses stay below ceiling - bound. Half of the offers are added one after the other, and so is the other half; of all
partial plans with the same GPUs and samples only the one with the least excess is kept. Partial plans of both halves
that complete each other are whole plans. The ceiling is approached from below: most searches end with the few partial
plans that are nearly as good as the bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpusonde.optimizer.search.space import Options

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

# First excess that is looked at, relative to the bound, and how it grows.
_FIRST_EXCESS = 0.01
_GROWTH = 4.0
# So many empty rounds raise the doubt whether a cell holds any plan.
_ROUNDS_BEFORE_DOUBT = 2


# Partial plans that are made at a time, and that are kept at most.
_MOST_AT_A_TIME = 2_000_000
_MOST_PARTIAL = 20_000_000


class OutOfTimeError(Exception):
    """The search has used up its time."""


class TooManyPlansError(Exception):
    """A cell holds more plans than can be looked at.

    Attributes:
        usd_per_hour: Plans up to this price have been looked at.
    """

    def __init__(self, usd_per_hour: float) -> None:
        super().__init__(f"plans above {usd_per_hour} USD per hour are too many")
        self.usd_per_hour = usd_per_hour


@dataclass(frozen=True)
class Choices:
    """Options of one offer within the excess, by excess; the first one of an offer is to leave it out."""

    offer: int
    devices: IntArray
    samples: IntArray
    excess: FloatArray
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
class Cell:
    """Plans with one world size out of the options up to one latency.

    Attributes:
        options: Of every offer that may take part.
        counts: How many of them, from the first on, are not too slow.
        devices: The world size.
        samples: The global batch, in units.
        usd_per_device_hour: Dual price of a GPU.
        usd_per_sample_hour: Dual price of a unit of samples.
    """

    options: Sequence[Options]
    counts: Sequence[int]
    devices: int
    samples: int
    usd_per_device_hour: float
    usd_per_sample_hour: float

    def cheapest(
        self, ceiling: float, may_exist: Callable[[], bool], check_time: Callable[[], None]
    ) -> list[tuple[int, int]] | None:
        """Return the options, (offer, place) each, of the cheapest plan below ``ceiling``; None when there is none.

        Args:
            ceiling: USD per hour.
            may_exist: Asked when no plan is anywhere near the bound; the search ends when it says no.
            check_time: Called now and then.

        Raises:
            TooManyPlansError: There are too many partial plans.
            OutOfTimeError: From ``check_time``.
        """
        for number, (limit, choices) in enumerate(self.rounds(ceiling)):
            if number == _ROUNDS_BEFORE_DOUBT and not may_exist():
                return None
            halves = [self._stages(half, limit, check_time) for half in halves_of(choices)]
            check_time()
            joined = self._join(halves[0][-1], halves[1][-1], limit)
            if joined is not None:
                return [
                    pick
                    for half, stages, index in zip(halves_of(choices), halves, joined, strict=True)
                    for pick in _path(half, stages, index)
                ]
        return None

    @property
    def bound(self) -> float:
        """Lower bound of the price, USD per hour: what plans without any excess cost."""
        least = sum(min(0.0, float(self._reduced(offer).min(initial=0.0))) for offer in range(len(self.options)))
        return self.usd_per_device_hour * self.devices + self.usd_per_sample_hour * self.samples + least

    def _reduced(self, offer: int) -> FloatArray:
        """Price of an offer's options less the worth of their GPUs and samples."""
        options, count = self.options[offer], self.counts[offer]
        return np.asarray(
            options.usd_per_hour[:count]
            - self.usd_per_device_hour * options.devices[:count]
            - self.usd_per_sample_hour * options.samples[:count]
        )

    def rounds(self, ceiling: float, growth: float = _GROWTH) -> Iterator[tuple[float, list[Choices]]]:
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

    def _choices(self, offer: int, excess: FloatArray, none: float, limit: float) -> Choices:
        options = self.options[offer]
        kept = np.flatnonzero(
            (excess <= limit)
            & (options.devices[: excess.size] <= self.devices)
            & (options.samples[: excess.size] <= self.samples)
        )
        place = np.concatenate([[-1], kept]) if none <= limit else kept
        devices, samples = np.zeros(place.size, dtype=np.int64), np.zeros(place.size, dtype=np.int64)
        costs = np.full(place.size, none)
        taken = place >= 0
        devices[taken], samples[taken], costs[taken] = options.devices[kept], options.samples[kept], excess[kept]
        order = np.argsort(costs, kind="stable")
        return Choices(offer, devices[order], samples[order], costs[order], place[order])

    def _stages(self, choices: Sequence[Choices], limit: float, check_time: Callable[[], None]) -> list[_Partial]:
        """Partial plans after none, one, two ... of some offers, by devices and samples."""
        zero = np.zeros(1, dtype=np.int64)
        stages = [_Partial(zero, zero, np.zeros(1), zero, zero)]
        for each in choices:
            stages.append(self._extend(stages[-1], each, limit, check_time))
        return stages

    def _extend(self, partial: _Partial, choices: Choices, limit: float, check_time: Callable[[], None]) -> _Partial:
        """Add one offer."""
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
            if extended.excess.size > _MOST_PARTIAL:
                raise TooManyPlansError(self.bound)
            begin = end
        return partial if extended is None else extended

    def _extend_some(self, partial: _Partial, choices: Choices, begin: int, counts: IntArray) -> _Partial:
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
        order = np.lexsort((partial.excess, key))
        order = order[np.flatnonzero(np.diff(key[order], prepend=-1))]
        return _Partial(*(getattr(partial, name)[order] for name in _Partial.__dataclass_fields__))

    def _join(self, first: _Partial, second: _Partial, limit: float) -> tuple[int, int] | None:
        """Return the two partial plans that together make the cheapest whole one; None when there is none."""
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
        return int(places[matching[best]]), int(matching[best])

    def key(self, devices: IntArray, samples: IntArray) -> IntArray:
        """Return one number per pair of devices and samples."""
        return devices * (self.samples + 1) + samples


def halves_of(choices: Sequence[Choices]) -> tuple[list[Choices], list[Choices]]:
    """Divide the offers so that both halves have about as many partial plans."""
    halves: tuple[list[Choices], list[Choices]] = ([], [])
    sizes = [1, 1]
    for each in sorted(choices, key=lambda each: each.place.size, reverse=True):
        smaller = 0 if sizes[0] <= sizes[1] else 1
        halves[smaller].append(each)
        sizes[smaller] *= each.place.size
    return halves


def _path(choices: Sequence[Choices], stages: Sequence[_Partial], index: int) -> Iterator[tuple[int, int]]:
    """Yield the options, (offer, place) each, of one of the last partial plans."""
    for each, stage in zip(choices[::-1], stages[:0:-1], strict=True):
        place = int(each.place[stage.chosen[index]])
        index = int(stage.before[index])
        if place >= 0:
            yield each.offer, place
