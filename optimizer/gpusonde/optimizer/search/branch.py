"""Every plan of a cell, for iterations that are not a function of latency, world size and network alone.

With scatter the slowest GPU depends on how many of each kind there are. The cells' bounds stay bounds, but the cheapest
plan of a cell need not be its best one. So all plans of a cell below its ceiling are listed in rounds of growing price,
each with the bound of its own latency, and estimated as long as that bound promises something better than the best one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpusonde.optimizer.search.cell import Cell, Choices, TooManyPlansError, halves_of

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_MOST_PARTIAL = 400_000
# Growth of the excess from one round to the next; finer than for single plans, because a round may be too large.
_GROWTH = 2.0


@dataclass(frozen=True)
class Listed:
    """Plans of a cell.

    Attributes:
        places: Shape (m, k), the option taken of every offer, -1 for none.
        latency_s: Shape (m,), of the slowest GPU.
        network: Shape (m,), class of the slowest network.
        usd_per_hour: Shape (m,).
        listed_to: USD per hour; the rounds to come cost more.
    """

    places: IntArray
    latency_s: FloatArray
    network: FloatArray
    usd_per_hour: FloatArray
    listed_to: float


@dataclass(frozen=True)
class _Part:
    devices: IntArray
    samples: IntArray
    excess: FloatArray
    places: IntArray


def list_plans(cell: Cell, ceiling: float, check_time: Callable[[], None]) -> Iterator[Listed]:
    """Yield the plans of a cell up to a price, in rounds: what a round yields costs more than all before it.

    Raises:
        TooManyPlansError: A round holds more plans than can be listed.
        OutOfTimeError: From ``check_time``, which is called now and then.
    """
    before, bound = -np.inf, cell.bound
    for limit, choices in cell.rounds(ceiling, _GROWTH):
        listed_to = bound + max(before, 0.0)
        first, second = (_parts(cell, half, limit, listed_to, check_time) for half in halves_of(choices))
        order = np.argsort(cell.key(first.devices, first.samples), kind="stable")
        keys = cell.key(first.devices, first.samples)[order]
        wanted = cell.key(cell.devices - second.devices, cell.samples - second.samples)
        begin = np.searchsorted(keys, wanted)
        counts = np.searchsorted(keys, wanted, side="right") - begin
        if counts.sum() > _MOST_PARTIAL:
            raise TooManyPlansError(listed_to)
        other = np.repeat(np.arange(counts.size), counts)
        own = order[np.repeat(begin, counts) + _ramps(counts)]
        total = first.excess[own] + second.excess[other]
        kept = np.flatnonzero((total <= limit) & (total > before))
        before = limit
        # An offer is in one half only; in the other one its column is -1.
        places = np.maximum(first.places[own[kept]], second.places[other[kept]])
        yield _listed(cell, places, bound + limit)


def _parts(
    cell: Cell, choices: Sequence[Choices], limit: float, listed_to: float, check_time: Callable[[], None]
) -> _Part:
    """All partial plans of some offers within an excess."""
    zero = np.zeros(1, dtype=np.int64)
    part = _Part(zero, zero, np.zeros(1), np.full((1, len(cell.options)), -1, dtype=np.int64))
    for each in choices:
        check_time()
        counts = np.searchsorted(each.excess, limit - part.excess, side="right")
        if counts.sum() > _MOST_PARTIAL:
            raise TooManyPlansError(listed_to)
        before, chosen = np.repeat(np.arange(counts.size), counts), _ramps(counts)
        devices = part.devices[before] + each.devices[chosen]
        samples = part.samples[before] + each.samples[chosen]
        kept = np.flatnonzero((devices <= cell.devices) & (samples <= cell.samples))
        before, chosen = before[kept], chosen[kept]
        places = part.places[before]
        places[:, each.offer] = each.place[chosen]
        part = _Part(devices[kept], samples[kept], part.excess[before] + each.excess[chosen], places)
    return part


def _listed(cell: Cell, places: IntArray, listed_to: float) -> Listed:
    latency, network = np.zeros(len(places)), np.full(len(places), np.inf)
    price = np.zeros(len(places))
    for offer, options in enumerate(cell.options):
        taken = np.flatnonzero(places[:, offer] >= 0)
        place = places[taken, offer]
        latency[taken] = np.maximum(latency[taken], options.latency_s[place])
        network[taken] = np.minimum(network[taken], options.network)
        price[taken] += options.usd_per_hour[place]
    return Listed(places, latency, network, price, listed_to)


def _ramps(counts: IntArray) -> IntArray:
    """0, 1, 2 ... up to each count, one after the other."""
    return np.asarray(np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts))
