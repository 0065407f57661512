"""Plans as rows of numbers: those of a subproblem in rounds of growing price, or all that there are of a few.

The plans of a subproblem are made in two halves that complete each other, as the cheapest one is; but all partial plans
that may be completed within a round's price are kept, not only the cheapest of each kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpusonde.optimizer.search.objectives import SAME
from gpusonde.optimizer.search.space import Options, Space
from gpusonde.optimizer.search.subproblem import (
    MOST_LOAD,
    ROUNDS_BEFORE_DOUBT,
    OfferOptions,
    Subproblem,
    split_halves,
)

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

# Partial plans, or whole ones, that are made at a time.
_MOST_PARTIAL = 400_000
# Choices times samples with which the least that completes a partial plan takes less time than it saves.
_MOST_LEAST = 1_000_000
# Growth of the excess from one round to the next; finer than for single plans, because a round may be too large.
_GROWTH = 2.0
# Options times samples, and plans times options, with which plans are counted and listed.
_MOST_CHOICES = 10_000_000


@dataclass(frozen=True)
class Listed:
    """Plans of a subproblem.

    Attributes:
        places: Shape (m, k), the option taken of every offer, -1 for none.
        devices: Shape (m,), GPUs.
        latency_s: Shape (m,), of the slowest GPU.
        network: Shape (m,), class of the slowest network.
        usd_per_hour: Shape (m,), without tolls.
        toll_usd: Shape (m,).
        listed_to: USD per hour, with tolls; the rounds to come cost more.
    """

    places: IntArray
    devices: IntArray
    latency_s: FloatArray
    network: FloatArray
    usd_per_hour: FloatArray
    toll_usd: FloatArray
    listed_to: float


@dataclass(frozen=True)
class _Part:
    """Partial plans, each with its last choice and the partial plan before it; the first one has none."""

    devices: IntArray
    samples: IntArray
    excess: FloatArray
    load: FloatArray
    choices: OfferOptions | None = None
    chosen: IntArray | None = None
    shorter: _Part | None = None
    before: IntArray | None = None

    def write_places(self, which: IntArray, places: IntArray) -> None:
        """Write the options of some of them, one column per offer."""
        part: _Part = self
        while part.choices is not None and part.chosen is not None and part.before is not None and part.shorter:
            places[:, part.choices.offer] = part.choices.place[part.chosen[which]]
            which, part = part.before[which], part.shorter


def list_plans(
    subproblem: Subproblem, ceiling: float, may_exist: Callable[[], bool], check_time: Callable[[], None]
) -> Iterator[Listed]:
    """Yield the plans of a subproblem up to a price, in rounds: what a round yields costs more than all before it.

    Args:
        subproblem: The subproblem.
        ceiling: USD per hour.
        may_exist: Asked when no plan is anywhere near the bound; the list ends when it says no.
        check_time: Called now and then.

    Raises:
        TimeoutError: From ``check_time``.
    """
    before, bound, found = -np.inf, subproblem.bound, False
    for number, (limit, choices) in enumerate(subproblem.rounds(ceiling, _GROWTH)):
        if number == ROUNDS_BEFORE_DOUBT and not found and not may_exist():
            return
        # Until the last of a round, those to come cost more than the rounds before.
        listed_to = bound + max(before, 0.0)
        for places in _pairs(subproblem, choices, before, limit, ceiling * (1 + SAME) - bound, check_time):
            found = found or bool(places.size)
            yield _listed(subproblem.options, places, listed_to)
        before = limit
        yield _listed(subproblem.options, np.empty((0, len(subproblem.options)), dtype=np.int64), bound + limit)


def _pairs(
    subproblem: Subproblem,
    choices: Sequence[OfferOptions],
    before: float,
    limit: float,
    most: float,
    check_time: Callable[[], None],
) -> Iterator[IntArray]:
    """Yield the options taken by plans between two excesses, some plans at a time, if only none.

    What is left of a plan's load adds to its price, which is at most so much above the bound: a second limit.
    """
    one, other = split_halves(choices)
    per_load = subproblem.prices.per_load
    limits = (limit, most - per_load)
    nothing = np.zeros(1, dtype=np.int64)
    nobody = _Part(nothing, nothing, np.zeros(1), np.zeros(1))
    least = _least_after(subproblem, [*one, *other], nobody)
    for first in _parts(subproblem, one, least, limits, check_time, nobody):
        keys = subproblem.key(first.devices, first.samples)
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        least = _least_after(subproblem, other, first)
        for second in _parts(subproblem, other, least, limits, check_time, nobody):
            wanted = subproblem.key(subproblem.devices - second.devices, subproblem.samples - second.samples)
            begin = np.searchsorted(keys, wanted)
            counts = np.searchsorted(keys, wanted, side="right") - begin
            for some in _slices(counts):
                check_time()
                matched = np.repeat(np.arange(some.start, some.stop), counts[some])
                own = order[begin[matched] + _ramps(counts[some])]
                total = first.excess[own] + second.excess[matched]
                load = first.load[own] + second.load[matched]
                kept = (total <= limit) & (total > before) & (load <= MOST_LOAD)
                kept = np.flatnonzero(kept & (total - per_load * load <= limits[1]))
                places = np.full((kept.size, len(subproblem.options)), -1, dtype=np.int64)
                first.write_places(own[kept], places)
                second.write_places(matched[kept], places)
                yield places


def _parts(
    subproblem: Subproblem,
    choices: Sequence[OfferOptions],
    least: Sequence[FloatArray],
    limits: tuple[float, float],
    check_time: Callable[[], None],
    part: _Part,
) -> Iterator[_Part]:
    """Yield all partial plans of some offers that may be completed within limits, as many at a time as memory bears."""
    if not choices:
        yield part
        return
    each, (least_excess, least_unloaded) = choices[0], least[0]
    counts = np.searchsorted(each.excess, limits[0] - part.excess, side="right")
    for some in _slices(counts):
        check_time()
        before, chosen = np.repeat(np.arange(some.start, some.stop), counts[some]), _ramps(counts[some])
        left = subproblem.samples - part.samples[before] - each.samples[chosen]
        excess = part.excess[before] + each.excess[chosen]
        kept = np.flatnonzero((left >= 0) & (excess + least_excess[left] <= limits[0]))
        before, chosen, left, excess = before[kept], chosen[kept], left[kept], excess[kept]
        devices = part.devices[before] + each.devices[chosen]
        load = part.load[before] + each.load[chosen]
        kept = (devices <= subproblem.devices) & (load <= MOST_LOAD)
        kept &= excess - subproblem.prices.per_load * load + least_unloaded[left] <= limits[1]
        which = np.flatnonzero(kept)
        extended = _Part(
            devices[which],
            subproblem.samples - left[which],
            excess[which],
            load[which],
            each,
            chosen[which],
            part,
            before[which],
        )
        yield from _parts(subproblem, choices[1:], least[1:], limits, check_time, extended)


def _least_after(subproblem: Subproblem, choices: Sequence[OfferOptions], end: _Part) -> list[FloatArray]:
    """Return what completes a partial plan at least, after each choice, by the samples that are left.

    Args:
        subproblem: The subproblem.
        choices: Of the offers that are added one after the other.
        end: Partial plans, with one of which all of them end.

    Returns:
        Excesses, and these without what loads are worth, shape (2, samples + 1); infinite where nothing does.
    """
    per_load, samples = subproblem.prices.per_load, subproblem.samples
    least = np.full((2, samples + 1), math.inf)
    np.minimum.at(least[0], end.samples, end.excess)
    np.minimum.at(least[1], end.samples, end.excess - per_load * end.load)
    found = [least]
    for each in choices[:0:-1]:
        if each.samples.size * samples > _MOST_LEAST:
            least = np.full((2, samples + 1), -math.inf)
        else:
            costs = np.stack([each.excess, each.excess - per_load * each.load])
            before = np.concatenate([np.full((2, samples), math.inf), least], axis=1)
            moved = np.lib.stride_tricks.sliding_window_view(before, samples + 1, axis=1)[:, samples - each.samples]
            least = np.asarray((moved + costs[:, :, None]).min(axis=1, initial=math.inf))
        found.append(least)
    return found[::-1]


def _slices(counts: IntArray) -> Iterator[slice]:
    """Cut rows into runs with no more than ``_MOST_PARTIAL`` entries in all, a row at least."""
    ends = np.cumsum(counts)
    begin = 0
    while begin < counts.size:
        done = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, done + _MOST_PARTIAL, side="right")))
        yield slice(begin, end)
        begin = end


def _listed(options_of: Sequence[Options], places: IntArray, listed_to: float) -> Listed:
    devices, latency = np.zeros(len(places), dtype=np.int64), np.zeros(len(places))
    network = np.full(len(places), np.inf)
    price, toll = np.zeros(len(places)), np.zeros(len(places))
    for offer, options in enumerate(options_of):
        taken = np.flatnonzero(places[:, offer] >= 0)
        place = places[taken, offer]
        devices[taken] += options.devices[place]
        latency[taken] = np.maximum(latency[taken], options.latency_s[place])
        network[taken] = np.minimum(network[taken], options.network)
        price[taken] += options.usd_per_hour[place]
        toll[taken] += options.toll_usd[place]
    return Listed(places, devices, latency, network, price, toll, listed_to)


def count_plans(space: Space) -> float:
    """Return how many plans of several machines there are, at most; infinity where they are too many to list."""
    options = [each.machines.size for each in space.options]
    if sum(options) * space.samples > _MOST_CHOICES:
        return math.inf
    found = float(_ways(space)[0][space.samples])
    # A row of a plan has a place for each offer.
    return found if found * max(*options, len(options)) <= _MOST_CHOICES else math.inf


def _ways(space: Space) -> list[FloatArray]:
    """In how many ways the offers from each on make up samples, shape (samples + 1,), and last no offer does."""
    ways = [np.zeros(space.samples + 1)]
    ways[0][0] = 1.0
    for options in reversed(space.options):
        found = ways[-1].copy()
        for samples, number in zip(*np.unique(options.samples, return_counts=True), strict=True):
            found[samples:] += number * ways[-1][: space.samples + 1 - samples]
        ways.append(found)
    return ways[::-1]


def list_every_plan(space: Space) -> Listed:
    """Return all plans of a space but for those of one machine."""
    ways = _ways(space)
    places, left = np.empty((1, 0), dtype=np.int64), np.array([space.samples])
    for options, after in zip(space.options, ways[1:], strict=True):
        rest = left[:, None] - np.concatenate([[0], options.samples])
        before, chosen = np.nonzero((rest >= 0) & (after[np.maximum(rest, 0)] > 0))
        places, left = np.column_stack([places[before], chosen - 1]), rest[before, chosen]
    listed = _listed(space.options, places, math.inf)
    fits = np.ones(len(places), dtype=bool)
    for offer, options in enumerate(space.options):
        taken = np.flatnonzero(places[:, offer] >= 0)
        fits[taken] &= options.least_devices[places[taken, offer]] <= listed.devices[taken]
    return _listed(space.options, places[fits], math.inf)


def _ramps(counts: IntArray) -> IntArray:
    """0, 1, 2 ... up to each count, one after the other."""
    return np.asarray(np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts))
