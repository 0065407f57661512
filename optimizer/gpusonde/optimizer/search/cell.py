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


# Partial plans that are held at a time: some hundred megabytes.
_MOST_PARTIAL = 4_000_000


class TooManyPlansError(Exception):
    """A cell holds more plans than can be listed."""


class OutOfTimeError(Exception):
    """The search has used up its time."""


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

    def cheapest(self, ceiling: float, check_time: Callable[[], None]) -> tuple[float, list[tuple[int, int]]] | None:
        """Return the price and the options, (offer, place) each, of the cheapest plan below ``ceiling``; or None.

        Raises:
            TooManyPlansError: There are more partial plans than can be held.
            OutOfTimeError: From ``check_time``, which is called now and then.
        """
        for limit, choices in self.rounds(ceiling):
            halves = [self._stages(half, limit, check_time) for half in halves_of(choices)]
            check_time()
            joined = self._join(halves[0][-1], halves[1][-1], limit)
            if joined is not None:
                picks = [
                    pick
                    for half, stages, index in zip(halves_of(choices), halves, joined, strict=True)
                    for pick in _path(half, stages, index)
                ]
                return sum(float(self.options[offer].usd_per_hour[place]) for offer, place in picks), picks
        return None

    def rounds(self, ceiling: float) -> Iterator[tuple[float, list[Choices]]]:
        """Yield growing excesses with the choices within them, the last one with the ceiling's."""
        everything, bound = [], self.usd_per_device_hour * self.devices + self.usd_per_sample_hour * self.samples
        for offer, (options, count) in enumerate(zip(self.options, self.counts, strict=True)):
            reduced = (
                options.usd_per_hour[:count]
                - self.usd_per_device_hour * options.devices[:count]
                - self.usd_per_sample_hour * options.samples[:count]
            )
            least = min(0.0, float(reduced.min(initial=0.0)))
            bound += least
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
            limit *= _GROWTH

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
            check_time()
            stages.append(self._extend(stages[-1], each, limit))
        return stages

    def _extend(self, partial: _Partial, choices: Choices, limit: float) -> _Partial:
        """Add one offer."""
        counts = np.searchsorted(choices.excess, limit - partial.excess, side="right")
        if counts.sum() > _MOST_PARTIAL:
            raise TooManyPlansError
        before = np.repeat(np.arange(partial.excess.size), counts)
        chosen = np.arange(before.size) - np.repeat(np.cumsum(counts) - counts, counts)
        devices = partial.devices[before] + choices.devices[chosen]
        samples = partial.samples[before] + choices.samples[chosen]
        kept = np.flatnonzero((devices <= self.devices) & (samples <= self.samples))
        before, chosen, devices, samples = before[kept], chosen[kept], devices[kept], samples[kept]
        excess = partial.excess[before] + choices.excess[chosen]
        key = self.key(devices, samples)
        order = np.lexsort((excess, key))
        key = key[order]
        order = order[np.flatnonzero(np.diff(key, prepend=-1))]
        return _Partial(devices[order], samples[order], excess[order], before[order], chosen[order])

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
