"""``LinkCurves``: bus bandwidth of one link over size, world size and concurrent transfers, by interpolation.

A ``SizeCurve`` is the duration of an allreduce over its size, all else alike; curves whose measurements scatter more
than an interpolation through all of them can follow are smoothed. ``LocatedCurves`` complete few measurements at one
location by what the same fabric shows elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from gpusonde.simulator.allreduce.measurements import LinkTopology

if TYPE_CHECKING:
    from scipy.interpolate import PchipInterpolator

FloatArray = npt.NDArray[np.float64]

# Scatter between allocations where nothing was repeated. Srifty's floor of 8.2 to 9.6 % mean absolute error is 0.12.
UNREPEATED_SPREAD = 0.12
# A normal distribution's mean absolute deviation times this is its standard deviation.
_OF_MEAN_ABSOLUTE = 1.2533
# With fewer knots nothing can be left out: what such gaps cost on average, per factor 4 of size.
_UNCHECKED_GAP_SPREAD = 0.15
# Beyond what was measured the spread grows by this, per factor e of size.
_BEYOND_SPREAD = 0.12
# Below the sizes measured a transfer is not taken to be shorter: starting a collective alone takes as long.
_LEAST_SECONDS = 10e-6


@dataclass(frozen=True)
class SizeCurve:
    """Duration over size, both in logarithms: monotone cubic (PCHIP) between the knots.

    Below the first knot a transfer takes what latency leaves of it, never more than at the knot; above the last one the
    bandwidth stays. So the bandwidth is above zero everywhere.

    Attributes:
        log_bytes: Shape (k,), natural logarithm of the sizes, increasing, k >= 1.
        log_seconds: Shape (k,).
        scatter: Standard deviation of the logarithm between repeats and allocations.
        weight: Of all its measurements.
        gap_spread: Standard deviation of what interpolation misses between two knots; follows from the knots.
    """

    log_bytes: FloatArray
    log_seconds: FloatArray
    scatter: float
    weight: float
    gap_spread: float = field(init=False)
    _inner: PchipInterpolator | None = field(init=False, repr=False, compare=False)
    _first_slope: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        knots, values = self.log_bytes, self.log_seconds
        if knots.size == 0 or knots.shape != values.shape or (np.diff(knots) <= 0).any():
            raise ValueError("a curve needs one duration per size, and sizes that increase")
        inner = _interpolate(knots, values) if knots.size > 1 else None
        object.__setattr__(self, "_inner", inner)
        object.__setattr__(self, "gap_spread", _gap_spread(knots, values))
        first = (values[1] - values[0]) / (knots[1] - knots[0]) if knots.size > 1 else 1.0
        object.__setattr__(self, "_first_slope", float(np.clip(first, 0.0, 1.0)))

    def seconds(self, log_bytes: FloatArray) -> FloatArray:
        """Return the logarithm of the duration at logarithms of sizes, shape (n,)."""
        knots, values = self.log_bytes, self.log_seconds
        inside = np.clip(log_bytes, knots[0], knots[-1])
        found = np.full(inside.shape, values[0]) if self._inner is None else np.asarray(self._inner(inside))
        below, above = np.minimum(log_bytes - knots[0], 0.0), np.maximum(log_bytes - knots[-1], 0.0)
        least = min(float(values[0]), float(np.log(_LEAST_SECONDS)))
        return np.asarray(np.where(below < 0, np.maximum(found + self._first_slope * below, least), found + above))

    def spread(self, log_bytes: FloatArray) -> FloatArray:
        """Return the standard deviation of the logarithm there, shape (n,)."""
        knots = self.log_bytes
        place = np.searchsorted(knots, log_bytes)
        low, high = knots[np.maximum(place - 1, 0)], knots[np.minimum(place, knots.size - 1)]
        gap = high - low
        share = np.divide(log_bytes - low, gap, out=np.zeros_like(log_bytes), where=gap > 0)
        between = self.gap_spread * 4.0 * share * (1.0 - share)
        beyond = np.maximum(knots[0] - log_bytes, 0.0) + np.maximum(log_bytes - knots[-1], 0.0)
        return np.asarray(np.sqrt(self.scatter**2 + np.maximum(between, 0.0) ** 2 + (_BEYOND_SPREAD * beyond) ** 2))

    def covers(self, log_bytes: FloatArray) -> npt.NDArray[np.bool_]:
        """Return where the sizes lie within those measured, shape (n,)."""
        return np.asarray((log_bytes >= self.log_bytes[0] - 1e-9) & (log_bytes <= self.log_bytes[-1] + 1e-9))


def _gap_spread(knots: FloatArray, values: FloatArray) -> float:
    """What interpolation misses between two knots: from leaving every inner knot out."""
    if knots.size < 2:
        return 0.0
    if knots.size < 4:
        return _UNCHECKED_GAP_SPREAD * float(np.diff(knots).max() / np.log(4.0))
    share = (knots[1:-1] - knots[:-2]) / (knots[2:] - knots[:-2])
    missed = values[1:-1] - ((1.0 - share) * values[:-2] + share * values[2:])
    # The gap is twice as wide as the real ones, but where scatter decides and not the width that makes no difference.
    return float(_OF_MEAN_ABSOLUTE * np.abs(missed).mean())


# Measured across machines only: devices of one machine are no slower, by how much nobody knows.
_OTHER_REGIME_SPREAD = 0.3
# Nothing but one world size is known: what another one may cost beyond that, per factor e.
_BEYOND_WORLDS_SPREAD = 0.2
# Between two measured world sizes, where leaving one out cannot be tried.
_UNCHECKED_WORLDS_SPREAD = 0.15
# Latency of a transfer grows with the devices: between their logarithm (trees) and their number (rings).
_LATENCY_GROWTH = 0.5
# A size up to which a duration is latency.
_LATENCY_BYTES = 65_536
# Concurrent transfers that were never measured share what one alone reaches at best.
_UNMEASURED_SHARING_SPREAD = 0.3
_SIZES_OF_CHECK = 24


@dataclass(frozen=True)
class LogBandwidth:
    """Natural logarithm of bus bandwidths in bytes per second.

    Attributes:
        mean: Shape (n,).
        spread: Shape (n,), standard deviation.
    """

    mean: FloatArray
    spread: FloatArray


@dataclass(frozen=True)
class LinkCurves:
    """What was measured on one link.

    Attributes:
        curves: World size and number of concurrent transfers -> curve over size.
        topology: Direct links inside of a machine; None when all devices see each other alike, or unknown.
        devices_per_machine: 0 when unknown.
    """

    curves: Mapping[tuple[int, int], SizeCurve]
    topology: LinkTopology | None = None
    devices_per_machine: int = 0

    def worlds(self, concurrent: int) -> tuple[int, ...]:
        """World sizes that were measured with so many transfers at a time, increasing."""
        return tuple(sorted(world for world, count in self.curves if count == concurrent))

    def crosses_unmeasured(self, world_size: int) -> bool:
        """Whether a world needs several machines, and nothing was measured across machines."""
        inside = self.devices_per_machine
        return bool(inside) and world_size > inside >= max(world for world, _ in self.curves)

    @property
    def concurrencies(self) -> tuple[int, ...]:
        """Numbers of concurrent transfers that were measured, increasing."""
        return tuple(sorted({count for _, count in self.curves}))

    def predict(
        self, log_bytes: FloatArray, world_size: int, concurrent: int = 1, *, check: bool = True
    ) -> LogBandwidth:
        """Return the bus bandwidth of every single transfer, at logarithms of sizes of shape (n,).

        Without ``check`` the spread lacks what interpolation between world sizes misses, which takes a while to find.
        """
        if (world_size, concurrent) in self.curves:
            return self._measured(log_bytes, world_size, concurrent)
        counts = self.concurrencies
        base = min(counts, key=lambda count: (-len(self.worlds(count)), count))
        alone = self._over_worlds(log_bytes, world_size, base, check)
        if concurrent == base:
            return alone
        effect, spread = self._sharing(log_bytes, world_size, base, concurrent)
        return LogBandwidth(alone.mean + effect, np.hypot(alone.spread, spread))

    def rings(self, world_size: int) -> int:
        """Rings that the direct links allow; 1 where no topology is known."""
        if self.topology is None or world_size > self.topology.devices:
            return 1
        return self.topology.rings(world_size)

    @cached_property
    def world_spreads(self) -> Mapping[int, float]:
        """Number of transfers -> spread of the logarithm that leaving out each inner world size shows.

        Without those numbers that have fewer than three world sizes.
        """
        found = {count: self._check_worlds(count) for count in self.concurrencies}
        return {count: spread for count, spread in found.items() if spread is not None}

    def _check_worlds(self, concurrent: int) -> float | None:
        worlds = self.worlds(concurrent)
        missed = []
        for left_out in worlds[1:-1]:
            rest = {key: curve for key, curve in self.curves.items() if key[1] == concurrent and key[0] != left_out}
            curve = self.curves[left_out, concurrent]
            sizes = curve.log_bytes[:: max(1, curve.log_bytes.size // _SIZES_OF_CHECK)]
            others = LinkCurves(rest, self.topology, self.devices_per_machine)
            truth = log_bus(sizes, curve.seconds(sizes), left_out)
            missed.append(
                float(np.abs(others._over_worlds(sizes, left_out, concurrent, check=False).mean - truth).mean())
            )
        return _OF_MEAN_ABSOLUTE * float(np.mean(missed)) if missed else None

    def _measured(self, log_bytes: FloatArray, world_size: int, concurrent: int) -> LogBandwidth:
        """At a measured world size; sizes outside of its own follow the shape of the nearest world that has them."""
        curve = self.curves[world_size, concurrent]
        mean = log_bus(log_bytes, curve.seconds(log_bytes), world_size)
        covered = curve.covers(log_bytes)
        if not covered.all():
            edge = np.clip(log_bytes, curve.log_bytes[0], curve.log_bytes[-1])
            for other in sorted(self.worlds(concurrent), key=lambda world: abs(np.log(world / world_size))):
                shape = self.curves[other, concurrent]
                borrowed = ~covered & shape.covers(log_bytes) & shape.covers(edge)
                if other != world_size and borrowed.any() and self._same_regime(other, world_size):
                    step = shape.seconds(log_bytes) - shape.seconds(edge)
                    mean = np.where(borrowed, log_bus(log_bytes, curve.seconds(edge) + step, world_size), mean)
                    covered = covered | borrowed
        return LogBandwidth(mean, curve.spread(log_bytes))

    def _over_worlds(self, log_bytes: FloatArray, world_size: int, concurrent: int, check: bool = True) -> LogBandwidth:
        """Logarithm of the bandwidth per ring, interpolated over the logarithm of the world size."""
        if (world_size, concurrent) in self.curves:
            return self._measured(log_bytes, world_size, concurrent)
        worlds = [world for world in self.worlds(concurrent) if self._same_regime(world, world_size)]
        extra = 0.0
        if not worlds:
            worlds, extra = list(self.worlds(concurrent)), _OTHER_REGIME_SPREAD
        rings = float(np.log(self.rings(world_size)))
        place = int(np.searchsorted(worlds, world_size))
        if 0 < place < len(worlds):
            below, above = worlds[place - 1], worlds[place]
            share = float(np.log(world_size / below) / np.log(above / below))
            low, high = (self._per_ring(log_bytes, world, concurrent) for world in (below, above))
            mean = (1.0 - share) * low.mean + share * high.mean
            missed = self.world_spreads.get(concurrent, _UNCHECKED_WORLDS_SPREAD) if check else 0.0
            spread = np.sqrt(np.maximum(low.spread, high.spread) ** 2 + missed**2 + extra**2)
            return LogBandwidth(mean + rings, spread)
        nearest = worlds[0 if place == 0 else -1]
        distance = float(np.log(world_size / nearest))
        found = self._per_ring(log_bytes, nearest, concurrent)
        slope = self._growth(log_bytes, worlds, concurrent)
        beyond = _UNCHECKED_WORLDS_SPREAD + _BEYOND_WORLDS_SPREAD * abs(distance)
        spread = np.sqrt(found.spread**2 + beyond**2 + extra**2)
        return LogBandwidth(found.mean + slope * distance + rings, spread)

    def _per_ring(self, log_bytes: FloatArray, world_size: int, concurrent: int) -> LogBandwidth:
        """At a measured world size, of a single ring."""
        found = self._measured(log_bytes, world_size, concurrent)
        return LogBandwidth(found.mean - np.log(self.rings(world_size)), found.spread)

    def _growth(self, log_bytes: FloatArray, worlds: list[int], concurrent: int) -> FloatArray:
        """How the logarithm of the bandwidth changes with that of the world size beyond those measured.

        Between 0, where the link decides, and -1, where the latency of a ring does: a larger world is never faster.
        """
        if len(worlds) > 1:
            logs = np.log(worlds) - np.log(worlds).mean()
            per_ring = np.array([self._per_ring(log_bytes, world, concurrent).mean for world in worlds])
            return np.asarray(np.clip(logs @ per_ring / (logs @ logs), -1.0, 0.0))
        curve = self.curves[worlds[0], concurrent]
        if curve.log_bytes[0] > np.log(_LATENCY_BYTES):
            return np.zeros_like(log_bytes)
        return np.asarray(-_LATENCY_GROWTH * np.exp(np.minimum(curve.log_seconds[0] - curve.seconds(log_bytes), 0.0)))

    def _sharing(
        self, log_bytes: FloatArray, world_size: int, base: int, concurrent: int
    ) -> tuple[FloatArray, FloatArray]:
        """Change of one transfer's log bandwidth, and its spread, when ``concurrent`` run instead of ``base``."""
        effects, spreads = [np.zeros_like(log_bytes)], [0.0]
        counts = [base]
        for count in self.concurrencies:
            if count != base and (found := self._sharing_measured(log_bytes, world_size, base, count)) is not None:
                counts.append(count)
                effects.append(found[0])
                spreads.append(found[1])
        if len(counts) == 1:
            return self._sharing_assumed(log_bytes, world_size, base, concurrent)
        order = np.argsort(counts)
        logs = np.log(np.array(counts)[order])
        # What all of them reach together changes little with their number: that is what is interpolated.
        together = np.array(effects)[order] + logs[:, None]
        asked = float(np.log(concurrent))
        place = int(np.clip(np.searchsorted(logs, asked), 1, len(logs) - 1))
        share = float(np.clip((asked - logs[place - 1]) / (logs[place] - logs[place - 1]), 0.0, 1.0))
        effect = (1.0 - share) * together[place - 1] + share * together[place] - asked
        beyond = max(0.0, asked - logs[-1], logs[0] - asked)
        away = min(1.0, float(np.abs(logs - asked).min()))
        # How rough the curves are at all: no number of transfers is closer to its neighbours than that.
        rough = float(np.mean([curve.gap_spread for curve in self.curves.values()]))
        unknown = _UNMEASURED_SHARING_SPREAD * (beyond + 0.5 * away) + (rough if away > 0 else 0.0)
        spread = np.hypot(max(spreads), unknown)
        return effect, np.full(log_bytes.shape, float(spread))

    def _sharing_measured(
        self, log_bytes: FloatArray, world_size: int, base: int, count: int
    ) -> tuple[FloatArray, float] | None:
        """The change at the world sizes that have both, interpolated over the logarithm of the world size."""
        both = [world for world in self.worlds(count) if (world, base) in self.curves]
        if not both:
            return None
        changes = np.array(
            [
                self._measured(log_bytes, world, count).mean - self._measured(log_bytes, world, base).mean
                for world in both
            ]
        )
        logs, asked = np.log(both), float(np.log(world_size))
        place = int(np.clip(np.searchsorted(logs, asked), 1, max(1, len(logs) - 1)))
        if len(both) == 1:
            return changes[0], 0.1
        share = float(np.clip((asked - logs[place - 1]) / (logs[place] - logs[place - 1]), 0.0, 1.0))
        spread = 0.0 if world_size in both else float(np.abs(changes[place] - changes[place - 1]).mean() / 2.0)
        return (1.0 - share) * changes[place - 1] + share * changes[place], spread

    def _sharing_assumed(
        self, log_bytes: FloatArray, world_size: int, base: int, concurrent: int
    ) -> tuple[FloatArray, FloatArray]:
        """Nothing was measured with another number: they share what one alone reaches at its best size."""
        sizes = np.concatenate([curve.log_bytes for (_, count), curve in self.curves.items() if count == base])
        grid = np.linspace(sizes.min(), sizes.max(), 64)
        best = float(self._over_worlds(grid, world_size, base, check=False).mean.max())
        alone = self._over_worlds(log_bytes, world_size, base, check=False).mean
        each = np.minimum(alone, max(best, float(alone.max())) + np.log(base / concurrent))
        each = np.maximum(each, alone + min(0.0, float(np.log(base / concurrent))))
        return each - alone, np.full(log_bytes.shape, _UNMEASURED_SHARING_SPREAD)

    def _same_regime(self, one: int, other: int) -> bool:
        """Whether both world sizes stay inside of a machine, or both do not."""
        return not self.devices_per_machine or (one <= self.devices_per_machine) == (other <= self.devices_per_machine)


def log_bus(log_bytes: FloatArray, log_seconds: FloatArray, world_size: int) -> FloatArray:
    """Logarithm of the bus bandwidth of durations."""
    return np.asarray(log_bytes - log_seconds + np.log(2.0 * (world_size - 1) / world_size))


# How far a location's deviation from the others reaches: in factors of e of size, and of the world size.
_SIZE_REACH, _WORLD_REACH, _CONCURRENT_REACH = 1.5, 1.0, 1.0
# Far from everything measured the deviation is the mean one; this keeps the weights above zero.
_FAR_WEIGHT = 1e-3
# What a deviation may differ by at sizes and worlds where it was not measured.
_DEVIATION_SPREAD = 0.15
_KNOTS_PER_CURVE = 32
# Other locations that are asked at most, those first that measured most.
MOST_OTHERS = 8


@dataclass(frozen=True)
class LocatedCurves(LinkCurves):
    """What was measured at one location of several.

    Attributes:
        others: The same fabric and device at other locations.
    """

    others: tuple[LinkCurves, ...] = ()

    def crosses_unmeasured(self, world_size: int) -> bool:
        """Whether a world needs several machines, and nowhere anything was measured across machines."""
        return super().crosses_unmeasured(world_size) and all(
            other.crosses_unmeasured(world_size) for other in self.others
        )

    def predict(
        self, log_bytes: FloatArray, world_size: int, concurrent: int = 1, *, check: bool = True
    ) -> LogBandwidth:
        """Return the bus bandwidth of every single transfer, at logarithms of sizes of shape (n,).

        Where other locations have measured and this one has not, theirs counts, shifted as far as this location lies
        off theirs at the sizes and worlds most like it.
        """
        own = super().predict(log_bytes, world_size, concurrent, check=check)
        key = world_size, concurrent
        unknown = np.ones(log_bytes.shape, dtype=np.bool_)
        if key in self.curves:
            unknown = ~self.curves[key].covers(log_bytes)
        others = [other for other in self.others if key in other.curves] if unknown.any() else []
        if not others:
            return own
        told = [self._shifted(log_bytes, world_size, concurrent, other) for other in others]
        known = np.array([unknown & other.curves[key].covers(log_bytes) for other in others], dtype=np.float64)
        is_told = known.sum(axis=0) > 0
        shares = known / np.maximum(known.sum(axis=0), 1.0)
        means, spreads = np.array([one.mean for one in told]), np.array([one.spread for one in told])
        mean = (shares * means).sum(axis=0)
        spread = np.sqrt((shares * (spreads**2 + (means - mean) ** 2)).sum(axis=0))
        return LogBandwidth(np.where(is_told, mean, own.mean), np.where(is_told, spread, own.spread))

    def _shifted(self, log_bytes: FloatArray, world_size: int, concurrent: int, other: LinkCurves) -> LogBandwidth:
        """What another location reaches, shifted as far as this one lies off it."""
        found, weights = [], []
        for (world, count), curve in self.curves.items():
            sizes = curve.log_bytes[:: max(1, curve.log_bytes.size // _KNOTS_PER_CURVE)]
            there = other.predict(sizes, world, count, check=False).mean
            found.append(log_bus(sizes, curve.seconds(sizes), world) - there)
            unlike = (np.log(world / world_size) / _WORLD_REACH) ** 2
            unlike += (np.log(count / concurrent) / _CONCURRENT_REACH) ** 2
            near = ((log_bytes[:, None] - sizes[None, :]) / _SIZE_REACH) ** 2
            weights.append(np.exp(-0.5 * (near + unlike)) + _FAR_WEIGHT)
        deviations, shares = np.concatenate(found), np.concatenate(weights, axis=1)
        shares /= shares.sum(axis=1, keepdims=True)
        shift = shares @ deviations
        uneven = np.maximum(shares @ deviations**2 - shift**2, 0.0)
        same = other.predict(log_bytes, world_size, concurrent, check=False)
        return LogBandwidth(same.mean + shift, np.sqrt(same.spread**2 + uneven + _DEVIATION_SPREAD**2))


_Key = TypeVar("_Key")

# A Gaussian process around latency plus link: how far a duration strays from that, over which factor of e of size.
_AMPLITUDE, _LENGTH = 0.5, 2.0
_NOISES = (0.1, 0.2, 0.4)
# The same process through all measurements: what is gained over it is due to scatter, and not to a better shape.
_NO_NOISE = 0.02
# Measured durations are believed unless smoothing predicts left-out ones better by this.
_BETTER = 0.95
# A curve alone has too few sizes to tell scatter from a library that changes its algorithm.
_LEAST_CURVES = 3
_LEAST_KNOTS, _MOST_KNOTS = 6, 128
# So many curves of a link decide for all of them.
_MOST_TRIED = 48


def smooth_curves(curves: Mapping[_Key, SizeCurve]) -> dict[_Key, SizeCurve]:
    """Return the curves of one link, all of them smoothed if that predicts left-out sizes better than interpolation."""
    able = {key: curve for key, curve in curves.items() if _LEAST_KNOTS <= curve.log_bytes.size <= _MOST_KNOTS}
    if len(able) < _LEAST_CURVES:
        return dict(curves)
    tried = list(able.values())[:: -(-len(able) // _MOST_TRIED)]
    raw = float(np.abs(np.concatenate([_left_out(curve) for curve in tried])).mean())
    found = {
        noise: float(np.abs(np.concatenate([_process(curve, noise)[1][1:-1] for curve in tried])).mean())
        for noise in (_NO_NOISE, *_NOISES)
    }
    noise = min(_NOISES, key=lambda each: found[each])
    if found[noise] > _BETTER * min(raw, found[_NO_NOISE]):
        return dict(curves)
    # What interpolation misses between the knots is found anew, from smooth ones: the scatter is what they hide.
    rough = float(np.mean([curve.gap_spread for curve in tried]))
    smooth = {
        key: replace(curve, log_seconds=_process(curve, noise)[0], scatter=float(np.hypot(curve.scatter, rough)))
        for key, curve in able.items()
    }
    return {**curves, **smooth}


def _interpolate(knots: FloatArray, values: FloatArray) -> PchipInterpolator:
    """A monotone curve through the knots, undefined beyond them."""
    # Slow to import; a collector starts without it.
    from scipy.interpolate import PchipInterpolator  # noqa: PLC0415

    return PchipInterpolator(knots, values, extrapolate=False)


def _left_out(curve: SizeCurve) -> FloatArray:
    """How far interpolation misses every inner knot that is left out."""
    knots, values = curve.log_bytes, curve.log_seconds
    missed = np.empty(knots.size - 2)
    for place in range(1, knots.size - 1):
        rest = np.arange(knots.size) != place
        missed[place - 1] = _interpolate(knots[rest], values[rest])(knots[place]) - values[place]
    return missed


def _process(curve: SizeCurve, noise: float) -> tuple[FloatArray, FloatArray]:
    """The process at the knots, and how far it misses each when that one is left out."""
    knots, values = curve.log_bytes, curve.log_seconds
    start = np.array([values.min(), values[-1] - knots[-1]])

    def missed(both: FloatArray) -> FloatArray:
        return np.asarray(np.logaddexp(both[0], both[1] + knots) - values)

    # Slow to import; a collector starts without it.
    from scipy.optimize import least_squares  # noqa: PLC0415

    found = least_squares(missed, start, loss="soft_l1")
    middle = np.logaddexp(found.x[0], found.x[1] + knots)
    alike = _AMPLITUDE**2 * np.exp(-0.5 * ((knots[:, None] - knots[None, :]) / _LENGTH) ** 2)
    inverse = np.linalg.inv(alike + noise**2 * np.eye(knots.size))
    weights = inverse @ (values - middle)
    return np.asarray(middle + alike @ weights), np.asarray(weights / np.diag(inverse))
