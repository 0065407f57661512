"""``Anchor``: all plans of one network class whose slowest GPU takes alike, by world size.

Each world size is a subproblem. Srifty anchors its search at a slowest latency as well, but then fixes the batch of
every offer and asks for few machines; here an anchor only says what may be taken.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gpusonde.optimizer.search.objectives import SAME, SearchObjective
from gpusonde.optimizer.search.price_bounds import DualPrices, Kinds, LatencyLimit, Lots
from gpusonde.optimizer.search.space import Options, Space, reachable_worlds
from gpusonde.optimizer.search.subproblem import Subproblem
from gpusonde.optimizer.step_times import StepTimes

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

# Latencies that depend on the number of machines are many; those within this share of each other are one, and an
# anchor holds those within the larger one until it is its turn.
_SAME_LATENCY, _ALIKE_LATENCY = 0.002, 0.02
# Draws of latencies and of placements meet evenly, but for so much.
SURELY = 0.9997
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
        """Least latency of the slowest GPU that an iteration follows."""
        return float(self.limits.latencies_s[self.begin])

    @property
    def end_s(self) -> float:
        """Latency of the slowest GPU from which on plans are another anchor's."""
        return float(self.limits.edges_s[self.end])

    def holds(self, latency_s: FloatArray) -> npt.NDArray[np.bool_]:
        """Return whether plans with such latencies of the slowest GPU are its own, up to rounding, shape (n,)."""
        begin_s = self.limits.edges_s[self.begin]
        return np.asarray((begin_s <= latency_s * (1 + SAME)) & (latency_s < self.end_s))

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
            worlds = self.world_sizes[places]
            self.kept_s[places] = space.kept_s(self.latency_s, worlds, self.network, most_s=self.end_s)
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
            # One whose plans are listed later is no longer open.
            places = np.union1d(np.flatnonzero(self.open), place)
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

    def tighten(self, place: int, space: Space, limit: LatencyLimit, alike: IntArray) -> bool:
        """Make the bound of a subproblem's price as sharp as divisible machines allow; return whether it was not.

        Args:
            place: Of its world size.
            space: What can be chosen.
            limit: Mean of the slowest GPU beyond which plans are of no use.
            alike: Places of other world sizes of which this holds, too.
        """
        if place in self.tight:
            return False
        world_size = int(self.world_sizes[place])
        before, best = self.usd_per_hour[place], -math.inf
        for found, prices in self._bounds(place, space, limit):
            # Elsewhere another share of the tolls counts.
            if not self.kinds.toll_usd_per_device.any():
                others = (found + prices.per_device * self.world_sizes[alike]) * (1 - SAME)
                self.usd_per_hour[alike] = np.maximum(self.usd_per_hour[alike], others)
            usd = found + prices.per_device * world_size
            if usd > best:
                best, self.tight[place] = usd, prices
        self.usd_per_hour[place] = max(self.usd_per_hour[place], best * (1 - SAME))
        return bool(self.usd_per_hour[place] > before)

    def _bounds(self, place: int, space: Space, limit: LatencyLimit) -> Iterator[tuple[float, DualPrices]]:
        """Yield bounds of a subproblem's price, less what its GPUs are worth, and their dual prices."""
        if self.usd_per_sample_hour is None:
            return
        world_size, per_sample = int(self.world_sizes[place]), float(self.usd_per_sample_hour[place])
        near = DualPrices((float(self.usd_per_hour[place]) - per_sample * space.samples) / world_size, per_sample, 0.0)
        lots = self.limits.lots(self.end - 1, limit, self._hourly(place, space))
        yield from lots.bounds(world_size, space.samples, near)

    def _hourly(self, place: int, space: Space) -> float:
        """Share of a toll that falls on an hour; zero without tolls."""
        return float(space.hourly(self.step_s[place : place + 1])[0]) if self.kinds.toll_usd_per_device.any() else 0.0

    def latencies(self) -> FloatArray:
        """Return the latencies of its options from its own on, ascending."""
        own = [each.latency_s[:count] for each, count in zip(self.options, self.counts, strict=True)]
        every = np.unique(np.concatenate(own))
        return every[every >= self.latency_s]

    def subproblem(self, place: int, space: Space, limit: LatencyLimit, *, is_own: bool = True) -> Subproblem:
        """Return a subproblem with options up to a latency, once the bounds are sharp.

        Args:
            place: Of its world size.
            space: What can be chosen.
            limit: Mean of the slowest GPU beyond which plans are of no use.
            is_own: Whether that is the limit of ``tighten``, whose dual prices hold.
        """
        prices = self.tight[place]
        if not is_own:
            world_size = int(self.world_sizes[place])
            bounds = self._bounds(place, space, limit)
            _, prices = max(bounds, key=lambda each: each[0] + each[1].per_device * world_size)
        most = min(limit.most_s, float(self.limits.most_s[self.end - 1]))
        return Subproblem(
            options=self.options,
            counts=[int(np.searchsorted(each.latency_s, most, side="right")) for each in self.options],
            devices=int(self.world_sizes[place]),
            samples=space.samples,
            prices=prices,
            hourly=self._hourly(place, space),
            limit=limit,
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
        limits = _Limits.of(options, ranges, space, SURELY if hasattr(steps, "slowest_s") else 1.0)
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
        edges_s: Shape (m + 1,), from which on the slowest GPU of a plan counts as each, infinite at the end.
        latencies_s: Shape (m,), that an iteration follows at least, ascending.
        most_s: Shape (m,), the largest latency of an option that counts as each.
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

    edges_s: FloatArray
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
    def of(
        cls, options: Sequence[Options], ranges: Sequence[tuple[float, float]], space: Space, surely: float
    ) -> _Limits:
        """Return them up to the end of each range of latencies, of which iterations follow such a share at least."""
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
            np.append(least, np.inf),
            least * surely,
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

    @functools.cached_property
    def most_spread(self) -> float:
        """Relative standard deviation of the GPU that scatters most; 1 where none is known to."""
        return float(self.gpu_spread.max()) or 1.0

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

    def lots(self, place: int, limit: LatencyLimit, hourly: float) -> Lots:
        """Return what options up to a latency allow, and their loads under a limit."""
        devices = self._devices(min(limit.most_s, float(self.most_s[place])))
        usd = self.usd_per_device_hour + hourly * self.toll_usd_per_device
        loads = np.where(devices > 0, limit.load(self.gpu_s, self.gpu_spread), 0.0)
        return Lots(devices, usd, self.batches, loads)

    def _devices(self, most_s: float) -> IntArray:
        """Return how many GPUs run with each batch in options up to a latency, shape (k, b)."""
        devices = np.zeros(self.batches.size, dtype=np.int64)
        fast = np.where(self.option_s <= most_s, self.option_devices, 0)
        devices[self.cells] = np.maximum.reduceat(fast, self.begins)
        return devices.reshape(self.batches.shape)
