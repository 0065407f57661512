"""``ComputeCurve``: latency of one training step's computation over the batch size of one device."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


class CurveOrigin(Enum):
    """Where a curve comes from."""

    PROBES = "probes"  # steps that were timed
    GRAY_BOX = "gray_box"  # estimated from the network's graph
    CROSS_GPU = "cross_gpu"  # epoch latencies predicted from hardware metrics


@dataclass(frozen=True)
class ComputeLatency:
    """Latency of the computation at some batch sizes.

    Attributes:
        forward_s: Shape (n,), seconds of the forward pass.
        backward_s: Shape (n,), seconds of the backward pass.
        spread: Shape (n,), relative standard deviation of a step's computation, 0.05 is 5 %.
        extrapolated: Shape (n,), true outside of the batch sizes that the curve was made from.
        uncertainty: Shape (n,), relative standard deviation of the curve itself.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    spread: FloatArray
    extrapolated: npt.NDArray[np.bool_]
    uncertainty: FloatArray

    @property
    def total_s(self) -> FloatArray:
        """Forward and backward pass together, shape (n,), seconds."""
        return self.forward_s + self.backward_s


@dataclass(frozen=True)
class ComputeCurve:
    """Piecewise linear latency over the batch size, never decreasing.

    Between two knots the latency runs straight; before the first and behind the last one it goes on with the slope of
    the outermost piece, below the first never under half of its latency.

    Attributes:
        batch_sizes: Shape (k,), the knots, k >= 2, increasing, samples per device and step.
        total_s: Shape (k,), seconds of forward and backward pass, not decreasing.
        spread: Shape (k,), relative standard deviation.
        forward_share: Share of the forward pass in ``total_s``, above 0 and below 1.
        origin: Where the curve comes from.
        known_from: Smallest batch size that it was made from.
        known_to: Largest one.
        largest_batch: Largest batch size that fits into the device's memory; None when unknown.
        uncertainty: Shape (k,), relative standard deviation of the curve itself: between and beyond its probes, and of
            estimates that it was made from. Unlike ``spread``, all devices and all steps have it in common. Zero where
            nobody says.

    Raises:
        ValueError: The arrays do not satisfy the above.
    """

    batch_sizes: FloatArray
    total_s: FloatArray
    spread: FloatArray
    forward_share: float
    origin: CurveOrigin
    known_from: float
    known_to: float
    largest_batch: int | None = None
    uncertainty: FloatArray = field(default_factory=lambda: np.zeros(1))

    def __post_init__(self) -> None:
        for name in ("batch_sizes", "total_s", "spread"):
            array = np.ascontiguousarray(getattr(self, name), dtype=np.float64)
            if array.ndim != 1 or array.size != np.size(self.batch_sizes) or not np.isfinite(array).all():
                raise ValueError(f"{name} needs one finite number per knot, shape (k,)")
            object.__setattr__(self, name, array)
        if self.batch_sizes.size < 2 or self.batch_sizes[0] <= 0 or (np.diff(self.batch_sizes) <= 0).any():
            raise ValueError("batch_sizes needs two knots or more, above zero and increasing")
        if self.total_s[0] <= 0 or (np.diff(self.total_s) < 0).any():
            raise ValueError("total_s must be above zero and not decrease: more samples do not take less time")
        if (self.spread < 0).any():
            raise ValueError("spread must not be negative")
        if not 0 < self.forward_share < 1:
            raise ValueError(f"forward_share {self.forward_share:g} must lie between 0 and 1")
        uncertainty = np.asarray(self.uncertainty, dtype=np.float64)
        if (
            uncertainty.size not in (1, self.batch_sizes.size)
            or not (np.isfinite(uncertainty) & (uncertainty >= 0)).all()
        ):
            raise ValueError("uncertainty needs one finite number per knot, shape (k,), not negative")
        object.__setattr__(self, "uncertainty", np.broadcast_to(uncertainty, self.batch_sizes.shape))
        if self.largest_batch is not None and self.largest_batch < 1:
            raise ValueError(f"largest_batch {self.largest_batch} must be 1 or more")

    def predict(self, batch_sizes: npt.ArrayLike) -> ComputeLatency:
        """Return the latency at batch sizes, a number or shape (n,).

        Raises:
            ValueError: A batch size that is not above zero.
        """
        asked = np.atleast_1d(np.asarray(batch_sizes, dtype=np.float64))
        if not (asked > 0).all():
            raise ValueError("batch sizes must be above zero")
        knots, values = self.batch_sizes, self.total_s
        total = np.interp(asked, knots, values)
        before, behind = asked < knots[0], asked > knots[-1]
        first_slope = (values[1] - values[0]) / (knots[1] - knots[0])
        last_slope = (values[-1] - values[-2]) / (knots[-1] - knots[-2])
        total[before] = np.maximum(values[0] + (asked[before] - knots[0]) * first_slope, 0.5 * values[0])
        total[behind] = values[-1] + (asked[behind] - knots[-1]) * last_slope
        return ComputeLatency(
            forward_s=total * self.forward_share,
            backward_s=total * (1.0 - self.forward_share),
            spread=np.interp(asked, knots, self.spread),
            extrapolated=(asked < self.known_from) | (asked > self.known_to),
            uncertainty=np.interp(asked, knots, self.uncertainty),
        )
