"""``ExchangeCalibration``: a job's iterations measured on a few placements, and what they say about all others.

Where a job can be run on some placements for a moment, no allreduce needs to be probed: its own iterations tell how
long its exchange takes there. The exchange of a placement does not depend on the batch size, so that one batch size
suffices; that of a placement that was not measured follows from those that were.

``Overlap`` says how much of an exchange hides behind the backward pass, and back from iteration times to the exchange.
Buckets move one after another, each no earlier than it is ready. If all of them take ``x`` seconds together, the last
one is through at ``max over k of (ready k + x * share of the bytes from bucket k on)``: a straight line in ``x`` per
bucket, so that the exchange behind a measured iteration follows without a search.

``SmoothPlacements`` say of exchange times what measured placements tell about each other and about all others. A
placement is the number of devices on each machine. Its exchange time is taken as a linear function of the world
size, the share that a ring moves and the devices that share a machine's link, plus a smooth correction (a Gaussian
process over the logarithms of devices, machines and devices per machine), plus what is this placement's own and nobody
can explain. How much each counts is averaged over amplitudes and lengths by how well they explain the measurements; a
measurement far off counts less (iteratively reweighted, as in Huber's estimator).

Where placements were measured at several batch sizes, the product's ``SmoothCorrection`` says how far that is off.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from gpusonde.errors import ProblemError
from gpusonde.simulator.calibration import Placement, SmoothCorrection, placement_logarithms, shares_of
from gpusonde.simulator.compute import ComputeCurve, ComputeLatency, ComputeProbe, fit_compute_curve
from gpusonde.simulator.gradients import FloatArray, GradientTrace


def even_trace(buckets: int) -> GradientTrace:
    """Return the trace of equal buckets that become ready evenly over the backward pass, marked as assumed.

    Raises:
        ProblemError: Fewer than one bucket.
    """
    if buckets < 1:
        raise ProblemError("the gradients of a step are one bucket or more")
    return GradientTrace(np.arange(1, buckets + 1) / buckets, np.full(buckets, 1.0 / buckets), assumed=True)


@dataclass(frozen=True)
class Overlap:
    """The overlap that a trace of gradients allows.

    Attributes:
        trace: The gradients.
    """

    trace: GradientTrace

    def iteration_s(self, compute: ComputeLatency, exchange_s: FloatArray) -> FloatArray:
        """Return seconds of iterations, shape (n,).

        Args:
            compute: Forward and backward pass of the slowest device, n of each.
            exchange_s: Shape (n,), what all transfers of the iteration take together, one after another.
        """
        ready = compute.backward_s[:, None] * self.trace.ready_fractions
        through = (ready + exchange_s[:, None] * self._remaining()).max(axis=1)
        return np.asarray(compute.forward_s + np.where(exchange_s > 0, np.maximum(compute.backward_s, through),
                                                       compute.backward_s))  # fmt: skip

    def exchange_s(self, compute: ComputeLatency, iteration_s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the exchange behind measured iterations, and how many seconds of it a second of theirs stands for.

        Both of shape (n,). An iteration that is no longer than its computation has an exchange of 0: it hid behind the
        backward pass, however long it took.

        Args:
            compute: Forward and backward pass of the slowest device, n of each.
            iteration_s: Shape (n,), what was measured.
        """
        ready = compute.backward_s[:, None] * self.trace.ready_fractions
        each = (iteration_s[:, None] - compute.forward_s[:, None] - ready) / self._remaining()
        binding = np.argmin(each, axis=1)
        found = np.take_along_axis(each, binding[:, None], axis=1)[:, 0]
        return np.maximum(found, 0.0), 1.0 / self._remaining()[binding]

    def _remaining(self) -> FloatArray:
        """Share of the bytes from each bucket on, shape (buckets,)."""
        return np.asarray(np.cumsum(self.trace.bucket_bytes[::-1])[::-1] / self.trace.total_bytes)


# All relative to the median exchange time of the measured placements.
_LINEAR_FREEDOM = 0.5  # by how much a feature that lies one standard deviation off may change it
# What to expect before anything is measured: links inside a machine carry several times what its network does.
_WITHIN_ONE_MACHINE = 0.25
_AMPLITUDES = (0.1, 0.2, 0.4)
_LENGTH_SCALES = (0.5, 1.0, 2.0)  # in natural logarithms of counts
_OWN = (0.03, 0.06, 0.12, 0.24)
_ROUNDS = 6
_FAR_OFF = 1.5  # in standard deviations
_RIDGE = 1e-2


@dataclass(frozen=True)
class ExchangeTimes:
    """Exchange times of placements.

    Attributes:
        seconds: Shape (n,).
        sd_s: Shape (n,), their standard deviation.
    """

    seconds: FloatArray
    sd_s: FloatArray


class SmoothPlacements:
    """The default model.

    Args:
        placements: Measured placements, each once, at least one.
        seconds: Shape (n,), exchange time of each.
        sd_s: Shape (n,), standard deviation of the measurement.
        scale_s: What the amplitudes are relative to, above zero.
    """

    def __init__(self, placements: Sequence[Placement], seconds: FloatArray, sd_s: FloatArray, scale_s: float) -> None:
        self._index = {placement: index for index, placement in enumerate(placements)}
        self._scale_s = scale_s
        features = np.array([_linear(placement) for placement in placements])
        self._middle, spread = features.mean(axis=0), features.std(axis=0)
        # The constant stays one, and a feature in which nothing differs says nothing.
        self._middle[0] = 0.0
        self._spread = np.where(spread > 0, spread, 1.0)
        self._features = self._standardised(placements)
        self._logarithms = np.array([placement_logarithms(placement) for placement in placements])
        # Every setting of the process at once, shape (settings,).
        settings = itertools.product(_LENGTH_SCALES, _AMPLITUDES, _OWN)
        self._lengths, self._amplitudes, self._own = np.array(list(settings)).T
        beyond, variance = seconds / scale_s - _expected(placements), (sd_s / scale_s) ** 2
        smooth = self._smooth(self._features, self._logarithms)
        diagonal = np.arange(len(placements))
        self._trust = np.ones(len(placements))
        for _ in range(_ROUNDS):
            covariance = smooth.copy()
            covariance[:, diagonal, diagonal] += (self._own[:, None] ** 2 + variance) / self._trust + 1e-9
            self._precision = np.linalg.inv(covariance)
            self._weights = self._precision @ beyond
            log_evidence = -0.5 * (self._weights @ beyond + np.linalg.slogdet(covariance)[1])
            self._shares = shares_of(log_evidence)
            own = float(self._shares @ self._own**2)
            off = np.abs(beyond - self._shares @ _each(smooth, self._weights)) / np.sqrt(own + variance)
            self._trust = 1.0 / np.maximum(1.0, off / _FAR_OFF)

    def predict(self, placements: Sequence[Placement]) -> ExchangeTimes:
        """Return exchange times; a measured placement keeps what is its own."""
        features, logarithms = (
            self._standardised(placements),
            np.array([placement_logarithms(each) for each in placements]),
        )
        across = self._smooth(features, logarithms)
        trust = np.ones(len(placements))
        for row, placement in enumerate(placements):
            if placement in self._index:
                column = self._index[placement]
                trust[row] = self._trust[column]
                across[:, row, column] += self._own**2 / trust[row]
        beyond = _each(across, self._weights)
        mean = self._shares @ beyond
        before = self._amplitudes[:, None] ** 2 + _LINEAR_FREEDOM**2 * (features**2).sum(axis=1)
        before += self._own[:, None] ** 2 / trust
        explained = ((across @ self._precision) * across).sum(axis=-1)
        variance = self._shares @ (np.maximum(before - explained, 0.0) + (beyond - mean) ** 2)
        return ExchangeTimes(
            np.maximum(_expected(placements) + mean, 0.0) * self._scale_s, np.sqrt(variance) * self._scale_s
        )

    def _smooth(self, features: FloatArray, logarithms: FloatArray) -> FloatArray:
        """Covariance of placements with the measured ones, less what is their own, shape (settings, m, n)."""
        far = ((logarithms[:, None, :] - self._logarithms[None, :, :]) ** 2).sum(axis=-1)
        near = np.exp(-0.5 * far / self._lengths[:, None, None] ** 2)
        linear = _LINEAR_FREEDOM**2 * features @ self._features.T
        return np.asarray(self._amplitudes[:, None, None] ** 2 * near + linear)

    def _standardised(self, placements: Sequence[Placement]) -> FloatArray:
        features = np.array([_linear(placement) for placement in placements])
        return np.asarray((features - self._middle) / self._spread)


class LinearPlacements:
    """Each measured placement as measured, others by least squares: for the figures of the published recipe.

    Args:
        placements: Measured placements, each once, at least one.
        seconds: Shape (n,), exchange time of each.
        sd_s: Shape (n,), standard deviation of the measurement.
    """

    def __init__(self, placements: Sequence[Placement], seconds: FloatArray, sd_s: FloatArray) -> None:
        self._measured = dict(zip(placements, zip(seconds, sd_s, strict=True), strict=True))
        features = np.array([_linear(placement) for placement in placements])
        count = features.shape[1]
        self._slopes = np.linalg.lstsq(
            np.vstack([features, _RIDGE * np.eye(count)]), np.concatenate([seconds, np.zeros(count)]), rcond=None
        )[0]
        self._sd_s = float(np.std(seconds - features @ self._slopes))

    def predict(self, placements: Sequence[Placement]) -> ExchangeTimes:
        """Return exchange times."""
        found = [
            self._measured.get(each, (max(0.0, float(_linear(each) @ self._slopes)), self._sd_s)) for each in placements
        ]
        return ExchangeTimes(*np.array(found).T)


def _linear(placement: Placement) -> FloatArray:
    """Features whose weights are times."""
    world, several = float(sum(placement)), float(len(placement) > 1)
    return np.array([1.0, several, world, (world - 1.0) / world, max(placement) * several])


def _expected(placements: Sequence[Placement]) -> FloatArray:
    """Exchange times over the scale before anything was measured, shape (n,)."""
    return np.array([1.0 if len(placement) > 1 else _WITHIN_ONE_MACHINE for placement in placements])


def _each(across: FloatArray, weights: FloatArray) -> FloatArray:
    """What each setting says, shape (settings, m)."""
    return np.asarray((across @ weights[:, :, None])[:, :, 0])


CalibrationKind = Literal["default", "paper"]

# Without recorded gradients nobody knows how many buckets there are: these are averaged.
_ASSUMED_BUCKETS = (2, 4, 8)
_PAPER_BUCKETS = (8,)
# Medians of iteration times of one configuration differ by so much from one launch to the next.
_USUAL_NOISE = 0.05
# How much several devices stray from what one alone does, per root of the distance (in natural logarithms) between a
# batch size and the nearest one at which several were measured: memory, loading and power are shared.
# Tried and worse: straggling by a constant per GPU, contention by a constant per GPU of a machine, more general priors.
_USUAL_STRAY = 0.055
# Placements whose exchange takes next to nothing.
_QUICKEST = 0.1
_LEAST_SCALE = 0.01  # of an iteration, where no exchange shows


@dataclass(frozen=True)
class MeasuredIteration:
    """A measured configuration of two devices or more.

    Attributes:
        placement: Devices on each machine, in any order: (4, 2) are six devices on two machines.
        batch_size: Samples per device and iteration.
        seconds: Of an iteration, the median where there were several.
    """

    placement: Placement
    batch_size: float
    seconds: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "placement", _in_order(self.placement))
        if sum(self.placement) < 2:
            raise ProblemError(f"placement {self.placement}: one device exchanges nothing; it is a compute probe")
        for name in ("batch_size", "seconds"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ProblemError(f"{name} {getattr(self, name)} must be finite and above zero")


@dataclass(frozen=True)
class IterationPrediction:
    """Iterations at some batch sizes on one placement.

    Attributes:
        seconds: Shape (n,).
        sd_s: Shape (n,), standard deviation of what would be measured.
        measured: True when the placement was among the measured ones.
        extrapolated: Shape (n,), true where no compute probe covers the batch size.
    """

    seconds: FloatArray
    sd_s: FloatArray
    measured: bool
    extrapolated: npt.NDArray[np.bool_]


class ExchangeCalibration:
    """Predicts iterations of one job on one kind of device.

    Args:
        probes: Timed steps of a single device, at two batch sizes or more.
        measured: Iterations on two devices or more, at least one. The smallest batch size of each placement tells the
            exchange, others correct what follows from it.
        traces: The job's gradients; several when it is open which, their predictions are averaged. Left out: assumed.
        kind: ``default``; ``paper`` takes the piecewise linear curve and every measurement as they are.

    Raises:
        ProblemError: No iteration was measured.
        ProblemError: The probes make no curve.
    """

    def __init__(
        self,
        probes: Sequence[ComputeProbe],
        measured: Sequence[MeasuredIteration],
        traces: Sequence[GradientTrace] | None = None,
        kind: CalibrationKind = "default",
    ) -> None:
        if not measured:
            raise ProblemError("a calibration needs a measured iteration on two devices or more")
        if kind not in ("default", "paper"):
            raise ProblemError(f"there is no kind of calibration {kind!r}; use default or paper")
        if traces is None:
            traces = [even_trace(count) for count in (_PAPER_BUCKETS if kind == "paper" else _ASSUMED_BUCKETS)]
        if not traces:
            raise ProblemError("a calibration needs a trace of gradients, or none given at all")
        self._alone: ComputeCurve = fit_compute_curve(probes, kind)
        self._measured = {each.placement for each in measured}
        first = _smallest_batches(measured) if kind == "default" else measured
        self._curve = _among_others(self._alone, probes, first) if kind == "default" else self._alone
        self._measured_at = np.unique([each.batch_size for each in first])
        self._overlaps = [Overlap(trace) for trace in traces]
        self._models = [self._placements(overlap, first, kind) for overlap in self._overlaps]
        self._correction: SmoothCorrection | None = None
        if len(first) < len(measured):
            predicted = [self._uncorrected(each.placement, each.batch_size).seconds[0] for each in measured]
            self._correction = SmoothCorrection(
                measured, np.log([each.seconds for each in measured]) - np.log(predicted)
            )

    def predict(self, placement: Iterable[int], batch_sizes: npt.ArrayLike) -> IterationPrediction:
        """Return iterations at batch sizes, a number or shape (n,).

        Raises:
            ProblemError: No device, or a machine without one.
            ValueError: A batch size that is not above zero.
        """
        asked = _in_order(placement)
        if asked == (1,):
            compute = self._alone.predict(batch_sizes)
            sd_s = np.hypot(compute.uncertainty, _USUAL_NOISE) * compute.total_s
            return IterationPrediction(compute.total_s, sd_s, False, compute.extrapolated)
        found = self._uncorrected(asked, batch_sizes)
        if self._correction is None:
            return found
        beyond, left, noise = self._correction.predict(asked, np.atleast_1d(np.asarray(batch_sizes, dtype=np.float64)))
        factor = np.exp(beyond)
        sd_s = factor * np.hypot(np.sqrt(left) * found.sd_s, noise * found.seconds)
        return replace(found, seconds=factor * found.seconds, sd_s=sd_s)

    def _uncorrected(self, asked: Placement, batch_sizes: npt.ArrayLike) -> IterationPrediction:
        compute = self._curve.predict(batch_sizes)
        slower = _slower(compute)
        seconds, variances = [], []
        for overlap, model in zip(self._overlaps, self._models, strict=True):
            exchange = model.predict([asked])
            exchange_s, above_s = (
                np.full(compute.total_s.shape, each)
                for each in (exchange.seconds[0], exchange.seconds[0] + exchange.sd_s[0])
            )
            at = overlap.iteration_s(compute, exchange_s)
            seconds.append(at)
            variances.append(
                (overlap.iteration_s(compute, above_s) - at) ** 2 + (overlap.iteration_s(slower, exchange_s) - at) ** 2
            )
        mean = np.mean(seconds, axis=0)
        away = np.abs(np.log(np.atleast_1d(batch_sizes)[:, None] / self._measured_at)).min(axis=1)
        scatter = _USUAL_NOISE**2 + _USUAL_STRAY**2 * away
        variance = np.mean(variances, axis=0) + np.var(seconds, axis=0) + scatter * mean**2
        return IterationPrediction(mean, np.sqrt(variance), asked in self._measured, compute.extrapolated)

    def _placements(
        self, overlap: Overlap, measured: Sequence[MeasuredIteration], kind: CalibrationKind
    ) -> SmoothPlacements | LinearPlacements:
        compute = self._curve.predict([each.batch_size for each in measured])
        iteration_s = np.array([each.seconds for each in measured])
        exchange_s, leverage = overlap.exchange_s(compute, iteration_s)
        precision = 1.0 / (_USUAL_NOISE * iteration_s * leverage) ** 2
        by_placement = defaultdict(list)
        for index, each in enumerate(measured):
            by_placement[each.placement].append(index)
        placements, groups = list(by_placement), list(by_placement.values())
        mean_s = np.array([np.average(exchange_s[rows], weights=precision[rows]) for rows in groups])
        sd_s = np.array([precision[rows].sum() ** -0.5 for rows in groups])
        if kind == "paper":
            return LinearPlacements(placements, mean_s, sd_s)
        scale_s = max(float(np.median(mean_s)), _LEAST_SCALE * float(np.median(iteration_s)))
        return SmoothPlacements(placements, mean_s, sd_s, scale_s)


def _smallest_batches(measured: Sequence[MeasuredIteration]) -> list[MeasuredIteration]:
    """Return each placement's iterations of its smallest batch size."""
    smallest: dict[Placement, float] = {}
    for each in measured:
        smallest[each.placement] = min(each.batch_size, smallest.get(each.placement, math.inf))
    return [each for each in measured if each.batch_size == smallest[each.placement]]


def _slower(compute: ComputeLatency) -> ComputeLatency:
    """The computation if its curve lay one standard deviation higher."""
    factor = 1.0 + compute.uncertainty
    return replace(compute, forward_s=factor * compute.forward_s, backward_s=factor * compute.backward_s)


def _among_others(
    alone: ComputeCurve, probes: Sequence[ComputeProbe], measured: Sequence[MeasuredIteration]
) -> ComputeCurve:
    """Return the curve of a device that works beside others, from that of one alone.

    No iteration takes less than its computation. Where the quickest placements do, the device was slower when it was
    probed, and as much so at all batch sizes; iterations that are quicker still count as probes.
    """
    latency = alone.predict([each.batch_size for each in measured]).total_s
    ratios = defaultdict(list)
    for each, compute_s in zip(measured, latency, strict=True):
        ratios[each.placement].append(each.seconds / compute_s)
    faster = float(np.quantile([np.median(each) for each in ratios.values()], _QUICKEST))
    if faster >= 1.0:
        return alone
    beside = [
        replace(each, total_s=faster * each.total_s, forward_s=each.forward_s and faster * each.forward_s)
        for each in probes
    ]
    below = [
        ComputeProbe(each.batch_size, each.seconds)
        for each, compute_s in zip(measured, latency, strict=True)
        if each.seconds < faster * compute_s
    ]
    return fit_compute_curve([*beside, *below])


def _in_order(placement: Iterable[int]) -> Placement:
    """The placement, fullest machine first: machines are alike.

    Raises:
        ProblemError: No device, or a machine without one.
    """
    ordered = tuple(sorted((int(count) for count in placement), reverse=True))
    if not ordered or ordered[-1] < 1:
        raise ProblemError(f"placement {ordered}: every machine has one device or more")
    return ordered
