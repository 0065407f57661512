"""``LinkCurves``: bus bandwidth of one link over size, world size and concurrent transfers, by interpolation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gpusonde.simulator.allreduce.curves.curve import FloatArray, SizeCurve
from gpusonde.simulator.allreduce.topology import LinkTopology

# Measured across machines only: devices of one machine are no slower, by how much nobody knows.
_OTHER_REGIME_SPREAD = 0.3
# Nothing but one world size is known: what another one may cost beyond that, per factor e.
_BEYOND_WORLDS_SPREAD = 0.2
# Between two measured world sizes, where leaving one out cannot be tried.
_UNCHECKED_WORLDS_SPREAD = 0.15
_OF_MEAN_ABSOLUTE = 1.2533
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
