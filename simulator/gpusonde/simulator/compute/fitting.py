"""``ComputeCurve``: latency of a training step's computation over the batch size of one device, from a few timed steps.

``default``: a straight line, corrected by a smooth function of the logarithm of the batch size. Small batches are bound
by launches, large ones by throughput, and where one turns into the other differs: the correction is a Gaussian process
on log latency, averaged over lines, amplitudes, length scales and noise levels by how well each explains the probes. It
bends where the probes demand it and stays with the line where they only scatter.

``paper`` is the seed's piecewise linear curve through the probes (Srifty, section 4.1); ``linear`` the straight line of
Nexus, which the seed compares with (APM).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt

from gpusonde.documents import NOT_A_KEY, Number
from gpusonde.errors import ProblemError

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

    def checkpointed(self) -> ComputeCurve:
        """Return the curve of steps whose backward pass repeats the forward pass."""
        share = self.forward_share
        return replace(self, total_s=self.total_s * (1.0 + share), forward_share=share / (1.0 + share))


CurveKind = Literal["default", "paper", "linear"]

# Where nobody timed the passes apart: a backward pass computes two gradients where the forward pass computes one
# product.
USUAL_FORWARD_SHARE = 1.0 / 3.0
# Step times of one configuration on one GPU scatter by some per cent (Srifty, section 2.2: a factor of 1.1 in all).
USUAL_SPREAD = 0.04
# By how much a sample takes longer in half the batch on one GPU, as a power: profet's timings (MIT), median.
BATCH_POWER = 0.2
_AMPLITUDES = (0.05, 0.1, 0.2, 0.4)  # relative to the line
_LENGTH_SCALES = (0.6, 1.2, 2.4)  # in natural logarithms of the batch size
_NOISE_LEVELS = (0.02, 0.04, 0.08)  # relative
_LINE_FREEDOM = 0.3  # relative uncertainty of the line itself
_GRID_POINTS = 65
_GRID_MARGIN = 4.0  # how far beyond the probes the correction is followed, as a factor


# Beyond these a figure is a mistake in its unit, or meant to break somebody's arithmetic.
LARGEST_BATCH = 1 << 24
LONGEST_S = 366 * 86_400.0
BatchSize = Annotated[float, Number(most=LARGEST_BATCH)]
Seconds = Annotated[float, Number(least=1e-9, most=LONGEST_S)]


@dataclass(frozen=True)
class ComputeProbe:
    """Timed steps at one batch size on one device.

    Attributes:
        batch_size: Samples per step.
        total_s: Seconds of forward and backward pass, the median where there were several steps.
        forward_s: Seconds of the forward pass alone; None when the passes were not timed apart.
        spread: Relative standard deviation of the steps; None when there was one only.
        uncertainty: Relative standard deviation of ``total_s`` itself where it is estimated and not timed.
    """

    batch_size: BatchSize
    total_s: Seconds
    forward_s: Seconds | None = None
    spread: Annotated[float, Number(least=0.0, most=10.0)] | None = None
    uncertainty: Annotated[float | None, NOT_A_KEY] = None

    def check(self) -> None:
        """Check that a step can have these figures.

        Raises:
            ProblemError: It cannot.
        """
        figures = [self.batch_size, self.total_s, *([] if self.forward_s is None else [self.forward_s])]
        if not all(np.isfinite(figure) and figure > 0 for figure in figures):
            raise ProblemError(f"{self}: batch size and seconds must be finite and above zero")
        if self.forward_s is not None and self.forward_s >= self.total_s:
            raise ProblemError(f"{self}: the forward pass cannot take as long as both passes together")
        for name in ("spread", "uncertainty"):
            value = getattr(self, name)
            if value is not None and not (np.isfinite(value) and value >= 0):
                raise ProblemError(f"{self}: {name} must be finite and not negative")


def fit_compute_curve(
    probes: Sequence[ComputeProbe],
    kind: CurveKind = "default",
    *,
    origin: CurveOrigin = CurveOrigin.PROBES,
    largest_batch: int | None = None,
) -> ComputeCurve:
    """Fit a curve to probes, in any order; several at one batch size count as their median.

    Raises:
        ProblemError: Fewer than two different batch sizes, or a figure that is not above zero and finite.
    """
    batch, seconds = _medians(probes)
    fits: dict[CurveKind, Callable[[FloatArray, FloatArray], _Fit]] = {
        "default": _smooth,
        "paper": _through_probes,
        "linear": _straight,
    }
    if kind not in fits:
        raise ProblemError(f"there is no kind of curve {kind!r}; use {', '.join(fits)}")
    fit = fits[kind](batch, seconds)
    spreads = [probe.spread for probe in probes if probe.spread is not None]
    spread = float(np.median(spreads)) if spreads else USUAL_SPREAD
    uncertainties = [probe.uncertainty for probe in probes if probe.uncertainty is not None]
    shares = [probe.forward_s / probe.total_s for probe in probes if probe.forward_s is not None]
    return ComputeCurve(
        batch_sizes=fit.knots,
        total_s=np.maximum.accumulate(fit.total_s),
        spread=np.full(fit.knots.size, spread),
        forward_share=float(np.median(shares)) if shares else USUAL_FORWARD_SHARE,
        origin=origin,
        known_from=float(batch[0]),
        known_to=float(batch[-1]),
        largest_batch=largest_batch,
        uncertainty=np.hypot(fit.uncertainty, float(np.median(uncertainties)) if uncertainties else 0.0),
    )


def _medians(probes: Sequence[ComputeProbe]) -> tuple[FloatArray, FloatArray]:
    for probe in probes:
        probe.check()
    batch = np.unique([probe.batch_size for probe in probes]).astype(np.float64)
    if batch.size < 2:
        raise ProblemError(
            f"a curve needs probes at two batch sizes or more, got {batch.size}; time another batch size, four spread "
            "evenly over their logarithms are best"
        )
    seconds = [float(np.median([probe.total_s for probe in probes if probe.batch_size == each])) for each in batch]
    return batch, np.array(seconds)


@dataclass(frozen=True)
class _Fit:
    """Knots, seconds there, and how uncertain those are as a share of them, each of shape (k,)."""

    knots: FloatArray
    total_s: FloatArray
    uncertainty: FloatArray


def _through_probes(batch: FloatArray, seconds: FloatArray) -> _Fit:
    return _Fit(batch, seconds, np.zeros_like(seconds))


def _straight(batch: FloatArray, seconds: FloatArray) -> _Fit:
    slope, level = np.polyfit(batch, seconds, 1)
    # Scattered probes can give a falling line, or one below zero.
    slope = max(0.0, float(slope))
    level = max(float(level) if slope else float(np.mean(seconds)), 0.05 * float(seconds.min()) - slope * batch[0])
    return _Fit(batch[[0, -1]], level + slope * batch[[0, -1]], np.zeros(2))


def _smooth(batch: FloatArray, seconds: FloatArray) -> _Fit:
    grid = np.geomspace(batch[0] / _GRID_MARGIN, batch[-1] * _GRID_MARGIN, _GRID_POINTS)
    knots = np.union1d(grid, batch)
    found: list[_Hypothesis] = []
    # The line nearest in seconds follows the large batches, the one nearest in per cent all of them; where a probe far
    # off bends one of them, the other one explains the probes better.
    for weight in (np.ones_like(batch), 1.0 / seconds):
        line = _Line.nearest(batch, seconds, weight)
        found += _hypotheses(batch, seconds, knots, line)
    evidence = np.array([each.log_evidence for each in found])
    share = np.exp(evidence - evidence.max())
    share /= share.sum()
    logarithms = np.array([each.log_s for each in found])
    mean = share @ logarithms
    variance = share @ (np.array([each.variance for each in found]) + (logarithms - mean) ** 2)
    return _Fit(knots, np.exp(mean), np.sqrt(variance))


@dataclass(frozen=True)
class _Line:
    """A straight line whose fixed cost is not negative."""

    slope: float
    level: float

    @classmethod
    def nearest(cls, batch: FloatArray, seconds: FloatArray, weight: FloatArray) -> _Line:
        """Return the line with the least weighted squared distances."""
        # Slow to import; a collector starts without it.
        from scipy.optimize import nnls  # noqa: PLC0415

        (slope, level), _ = nnls(np.column_stack([batch, np.ones_like(batch)]) * weight[:, None], seconds * weight)
        return cls(float(slope), float(level))

    def at(self, batch: FloatArray) -> FloatArray:
        """Seconds at batch sizes."""
        return self.level + self.slope * batch


@dataclass(frozen=True)
class _Hypothesis:
    """One line, amplitude, length and noise: the log latency at the knots, shape (k,), and what speaks for it."""

    log_evidence: float
    log_s: FloatArray
    variance: FloatArray


def _hypotheses(batch: FloatArray, seconds: FloatArray, knots: FloatArray, line: _Line) -> Iterator[_Hypothesis]:
    """Yield what each Gaussian process over the log of the batch size makes of the probes, beside a line."""
    residual = np.log(seconds / line.at(batch))
    scale = float(np.mean(line.at(batch)))

    def directions(at: FloatArray) -> FloatArray:
        """How log latency answers to a shift and to another slope of the line, shape (m, 2)."""
        return _LINE_FREEDOM * np.column_stack([scale / line.at(at), scale * at / batch.mean() / line.at(at)])

    log_batch, log_knots = np.log(batch), np.log(knots)
    near = -0.5 * (log_batch[:, None] - log_batch[None, :]) ** 2
    far = -0.5 * (log_knots[:, None] - log_batch[None, :]) ** 2
    free, free_across = directions(batch) @ directions(batch).T, directions(knots) @ directions(batch).T
    free_at_knots = (directions(knots) ** 2).sum(axis=1)
    for amplitude, length, noise in itertools.product(_AMPLITUDES, _LENGTH_SCALES, _NOISE_LEVELS):
        covariance = amplitude**2 * np.exp(near / length**2) + noise**2 * np.eye(batch.size) + free
        across = amplitude**2 * np.exp(far / length**2) + free_across
        inverse = np.linalg.inv(covariance)
        weights = inverse @ residual
        _, log_determinant = np.linalg.slogdet(covariance)
        explained = np.einsum("ij,jk,ik->i", across, inverse, across)
        yield _Hypothesis(
            log_evidence=float(-0.5 * (residual @ weights + log_determinant)),
            log_s=np.log(line.at(knots)) + across @ weights,
            variance=np.maximum(amplitude**2 + free_at_knots - explained, 0.0),
        )
