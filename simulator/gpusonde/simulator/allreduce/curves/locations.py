"""``LocatedCurves``: few measurements at one location, completed by what the same fabric shows elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpusonde.simulator.allreduce.curves.curve import FloatArray
from gpusonde.simulator.allreduce.curves.interpolation import LinkCurves, LogBandwidth, log_bus

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
