"""``ExchangeCalibration``: a job's iterations measured on a few placements, and what they say about all others.

Where a job can be run on some placements for a moment, no allreduce needs to be probed: its own iterations tell how
long its exchange takes there. The exchange of a placement does not depend on the batch size, so that one batch size
suffices; that of a placement that was not measured follows from those that were.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from gpusonde.simulator.calibration.overlap import Overlap, even_trace
from gpusonde.simulator.calibration.placements import LinearPlacements, Placement, SmoothPlacements
from gpusonde.simulator.compute import ComputeCurve, ComputeLatency, ComputeProbe, fit_compute_curve
from gpusonde.simulator.gradients import FloatArray, GradientTrace

CalibrationKind = Literal["default", "paper"]

# Without recorded gradients nobody knows how many buckets there are: these are averaged.
_ASSUMED_BUCKETS = (2, 4, 8)
_PAPER_BUCKETS = (8,)
# Medians of iteration times of one configuration differ by so much from one launch to the next.
_USUAL_NOISE = 0.05
# How much several devices stray from what one alone does, per root of the distance (in natural logarithms) between a
# batch size and the nearest one at which several were measured: memory, loading and power are shared.
_USUAL_STRAY = 0.055
# Placements whose exchange takes next to nothing.
_QUICKEST = 0.1
_LEAST_SCALE = 0.01  # of an iteration, where no exchange shows


class CalibrationError(ValueError):
    """Measured iterations from which nothing can be calibrated; the message says why."""


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
            raise CalibrationError(f"placement {self.placement}: one device exchanges nothing; it is a compute probe")
        for name in ("batch_size", "seconds"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise CalibrationError(f"{name} {getattr(self, name)} must be finite and above zero")


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
        measured: Iterations on two devices or more, at least one.
        traces: The job's gradients; several when it is open which, their predictions are averaged. Left out: assumed.
        kind: ``default``; ``paper`` takes the piecewise linear curve and every measurement as they are.

    Raises:
        CalibrationError: No iteration was measured.
        ProbeError: The probes make no curve.
    """

    def __init__(
        self,
        probes: Sequence[ComputeProbe],
        measured: Sequence[MeasuredIteration],
        traces: Sequence[GradientTrace] | None = None,
        kind: CalibrationKind = "default",
    ) -> None:
        if not measured:
            raise CalibrationError("a calibration needs a measured iteration on two devices or more")
        if kind not in ("default", "paper"):
            raise CalibrationError(f"there is no kind of calibration {kind!r}; use default or paper")
        if traces is None:
            traces = [even_trace(count) for count in (_PAPER_BUCKETS if kind == "paper" else _ASSUMED_BUCKETS)]
        if not traces:
            raise CalibrationError("a calibration needs a trace of gradients, or none given at all")
        self._alone: ComputeCurve = fit_compute_curve(probes, kind)
        self._curve = _among_others(self._alone, probes, measured) if kind == "default" else self._alone
        self._measured = {each.placement for each in measured}
        self._measured_at = np.unique([each.batch_size for each in measured])
        self._overlaps = [Overlap(trace) for trace in traces]
        self._models = [self._placements(overlap, measured, kind) for overlap in self._overlaps]

    def predict(self, placement: Iterable[int], batch_sizes: npt.ArrayLike) -> IterationPrediction:
        """Return iterations at batch sizes, a number or shape (n,).

        Raises:
            CalibrationError: No device, or a machine without one.
            ValueError: A batch size that is not above zero.
        """
        asked = _in_order(placement)
        if asked == (1,):
            compute = self._alone.predict(batch_sizes)
            sd_s = np.hypot(compute.uncertainty, _USUAL_NOISE) * compute.total_s
            return IterationPrediction(compute.total_s, sd_s, False, compute.extrapolated)
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
        CalibrationError: No device, or a machine without one.
    """
    ordered = tuple(sorted((int(count) for count in placement), reverse=True))
    if not ordered or ordered[-1] < 1:
        raise CalibrationError(f"placement {ordered}: every machine has one device or more")
    return ordered
