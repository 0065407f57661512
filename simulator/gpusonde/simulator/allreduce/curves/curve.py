"""``SizeCurve``: duration of an allreduce over its size, all else alike."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
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
        inner = PchipInterpolator(knots, values, extrapolate=False) if knots.size > 1 else None
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
