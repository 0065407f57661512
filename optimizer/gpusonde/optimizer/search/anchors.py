"""``Anchor``: all plans of one network class and one slowest latency, by world size.

Srifty anchors its search at a slowest latency as well, but then fixes the batch of every offer and asks for few
machines.
Here an anchor only says what may be taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpusonde.optimizer.search.cell import Cell
from gpusonde.optimizer.search.goal import SAME, Goal
from gpusonde.optimizer.search.reachable import reachable_worlds
from gpusonde.optimizer.search.relaxation import Kinds
from gpusonde.optimizer.search.space import Options, Space
from gpusonde.optimizer.steps import StepTimes

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

# Latencies that depend on the number of machines are many; those within this share of each other are one anchor.
_SAME_LATENCY = 0.01


@dataclass
class Anchor:
    """The cells of one network class and one slowest latency, one per world size.

    Bounds are made sharper only when the search gets there: most anchors never need it.

    Attributes:
        network: Class of the slowest network.
        latency_s: Least latency of the slowest GPU.
        options: Of every offer with that network or a faster one.
        counts: How many of them, from the first on, are not too slow.
        kinds: The GPUs that these are.
        world_sizes: Shape (n,), those with which the global batch may be reached.
        step_s: Shape (n,), lower bound of an iteration.
        usd_per_hour: Shape (n,), lower bound of the price.
        open: Shape (n,), false for cells that hold nothing better than what is known.
        timed: True once ``step_s`` includes the exchange of gradients.
        usd_per_sample_hour: Shape (n,), dual price of a sample; None until ``usd_per_hour`` is the good bound.
        reached: Shape (n,), world sizes that reach the global batch exactly; None until somebody asked.
    """

    network: float
    latency_s: float
    options: Sequence[Options]
    counts: list[int]
    kinds: Kinds
    world_sizes: IntArray
    step_s: FloatArray
    usd_per_hour: FloatArray
    open: npt.NDArray[np.bool_]
    timed: bool = False
    usd_per_sample_hour: FloatArray | None = None
    reached: npt.NDArray[np.bool_] | None = None

    def close(self, goal: Goal, best: tuple[float, float] | None) -> float | None:
        """Close cells that hold nothing better than ``best``; return the lowest bound of the others, None without."""
        self.open &= self.usd_per_hour <= goal.ceiling(self.step_s, best)
        if not self.open.any():
            return None
        return float(goal.bound(self.step_s[self.open], self.usd_per_hour[self.open]).min())

    def sharpen(self, steps: StepTimes, samples: int) -> bool:
        """Make the bounds sharper by one step; return False when they are as sharp as they get."""
        if not self.timed:
            places = np.flatnonzero(self.open)
            self.step_s[places] = steps.bound_s(self.latency_s, self.world_sizes[places], self.network)
            self.timed = True
            return True
        if self.usd_per_sample_hour is None:
            found = self.kinds.bound(self.world_sizes, samples)
            self.usd_per_hour = np.maximum(self.usd_per_hour, found.usd_per_hour)
            self.usd_per_sample_hour = found.usd_per_sample_hour
            return True
        return False

    def is_reached(self, place: int, samples: int, check_time: Callable[[], None]) -> bool:
        """Return whether a cell holds any plan; closes all open ones that do not.

        The tables for it cost as much as some cells, so this is asked only when a cell looks empty.
        """
        if self.reached is None:
            places = np.flatnonzero(self.open)
            worlds = self.world_sizes[places]
            self.reached = np.ones(self.world_sizes.shape, dtype=np.bool_)
            self.reached[places] = reachable_worlds(self.options, self.counts, worlds, samples, check_time)
            self.open &= self.reached
        return bool(self.reached[place])

    def best_place(self, goal: Goal) -> int:
        """Return the open cell with the lowest bound, among equal ones the one with the lowest price."""
        places = np.flatnonzero(self.open)
        bounds = goal.bound(self.step_s[places], self.usd_per_hour[places])
        places = places[bounds <= bounds.min() * (1 + SAME)]
        return int(places[self.usd_per_hour[places].argmin()])

    def cell(self, place: int, samples: int) -> Cell:
        """Return a cell, once the bounds are sharp."""
        world_size = int(self.world_sizes[place])
        per_sample = 0.0 if self.usd_per_sample_hour is None else float(self.usd_per_sample_hour[place])
        per_device = self.kinds.price_per_device(world_size, per_sample)
        return Cell(self.options, self.counts, world_size, samples, per_device, per_sample)


def make_anchors(space: Space, steps: StepTimes) -> Iterator[Anchor]:
    """Yield the anchors that may hold a plan."""
    for network in sorted({options.network for options in space.options}, reverse=True):
        options = [each for each in space.options if each.network >= network and each.machines.size]
        own = [each.latency_s for each in options if each.network == network]
        if not own:
            continue
        first = min(float(latency[0]) for latency in own)
        limits = _Limits.of(options, space)
        latencies = np.unique(np.concatenate([each.latency_s for each in options]))
        for least, most in _ranges(latencies, 0.0 if steps.exact else _SAME_LATENCY):
            # Without an option on this network, the plans are those of a faster one.
            if most < first:
                continue
            counts = [int(np.searchsorted(each.latency_s, most, side="right")) for each in options]
            kinds = limits.kinds(counts)
            worlds = limits.world_sizes[kinds.reachable(limits.world_sizes, space.samples)]
            if worlds.size:
                yield Anchor(
                    network=network,
                    latency_s=least,
                    options=options,
                    counts=counts,
                    kinds=kinds,
                    world_sizes=worlds,
                    step_s=np.full(worlds.size, least),
                    usd_per_hour=kinds.quick_bound(worlds, space.samples),
                    open=np.ones(worlds.size, dtype=np.bool_),
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
    """Limits of every offer over the first of its options."""

    usd_per_device_hour: FloatArray
    devices: list[IntArray]
    smallest: list[FloatArray]
    largest: list[FloatArray]
    world_sizes: IntArray

    @classmethod
    def of(cls, options: Sequence[Options], space: Space) -> _Limits:
        per_device = [each.samples / each.devices for each in options]
        most = min(
            sum(int(each.devices.max()) for each in options),
            math.floor(space.samples / min(float(batch.min()) for batch in per_device) + 1e-6),
        )
        step = math.gcd(*(each.offer.devices for each in options))
        return cls(
            np.array([each.offer.usd_per_hour / each.offer.devices for each in options]),
            [np.maximum.accumulate(each.devices) for each in options],
            [np.minimum.accumulate(batch) for batch in per_device],
            [np.maximum.accumulate(batch) for batch in per_device],
            np.arange(step, most + 1, step, dtype=np.int64),
        )

    def kinds(self, counts: Sequence[int]) -> Kinds:
        """Return what the first options of every offer allow."""
        taken = [(offer, count - 1) for offer, count in enumerate(counts) if count]
        return Kinds(
            np.array([self.devices[offer][last] for offer, last in taken]),
            self.usd_per_device_hour[[offer for offer, _ in taken]],
            np.array([self.smallest[offer][last] for offer, last in taken]),
            np.array([self.largest[offer][last] for offer, last in taken]),
        )
