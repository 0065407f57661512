"""Where a compute curve can come from: timed steps, an estimate, or epoch latencies predicted from hardware metrics.

All three give probes, and ``compute_curve`` makes the curve. Estimates and predictions come with an interval; it is the
uncertainty of the whole curve (devices do not differ by it, and steps do not either), never the spread of steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Protocol

import numpy as np

from gpusonde.simulator.compute.curve import ComputeCurve, CurveOrigin
from gpusonde.simulator.compute.fitting import ComputeProbe, CurveKind, ProbeError, fit_compute_curve

if TYPE_CHECKING:
    # The predictor's models are slow to import, and only predictions are needed here.
    from gpusonde.predictor.crossgpu import LatencyPrediction


class CurveSource(Protocol):
    """What a curve can be made from."""

    @property
    def origin(self) -> CurveOrigin:
        """Which of the three it is."""
        ...

    def probes(self) -> list[ComputeProbe]:
        """Return latencies at batch sizes.

        Raises:
            ProbeError: A figure that no step can have.
        """
        ...


@dataclass(frozen=True)
class TimedSteps:
    """Steps that were timed on the device.

    Attributes:
        timed: One per batch size or more.
    """

    timed: Sequence[ComputeProbe]
    origin: CurveOrigin = CurveOrigin.PROBES

    def probes(self) -> list[ComputeProbe]:
        """Return them as they are."""
        return list(self.timed)


@dataclass(frozen=True)
class LatencyEstimate:
    """Estimated latency of a step on a device, with its interval.

    Attributes:
        batch_size: Samples per step.
        seconds: Of forward and backward pass.
        low_s: Lower end of the interval.
        high_s: Upper end.
        coverage: Share of such intervals that should hold the true latency, above 0 and below 1.
    """

    batch_size: float
    seconds: float
    low_s: float
    high_s: float
    coverage: float = 0.9


class WorkloadEstimator(Protocol):
    """Estimates steps of one workload from its graph of operations and a device's data sheet."""

    def estimate_step(self, device: str, batch_size: int) -> LatencyEstimate:
        """Return the latency of a step on a device of the catalogue."""
        ...


@dataclass(frozen=True)
class GrayBoxEstimates:
    """Latencies estimated from a workload's graph.

    Attributes:
        estimates: At two batch sizes or more.
    """

    estimates: Sequence[LatencyEstimate]
    origin: CurveOrigin = CurveOrigin.GRAY_BOX

    @classmethod
    def ask(cls, estimator: WorkloadEstimator, device: str, batch_sizes: Sequence[int]) -> GrayBoxEstimates:
        """Return what an estimator says about a device at these batch sizes."""
        return cls([estimator.estimate_step(device, batch_size) for batch_size in batch_sizes])

    def probes(self) -> list[ComputeProbe]:
        """Return one probe per estimate.

        Raises:
            ProbeError: A figure that no step can have, or an interval that is none.
        """
        return [ComputeProbe(each.batch_size, each.seconds, uncertainty=_uncertainty(each)) for each in self.estimates]


@dataclass(frozen=True)
class EpochLatency:
    """Latency of an epoch on one device of the target's kind.

    Attributes:
        batch_size: Samples per step.
        samples_per_epoch: Samples that an epoch trains on.
        epoch_s: Seconds of an epoch. Whatever else an epoch does, such as a validation, counts as computation.
        low_s: Lower end of its interval.
        high_s: Upper end.
        coverage: Share of such intervals that should hold the true latency, above 0 and below 1.
    """

    batch_size: float
    samples_per_epoch: float
    epoch_s: float
    low_s: float
    high_s: float
    coverage: float = 0.9

    @classmethod
    def of(cls, prediction: LatencyPrediction, batch_size: float, samples_per_epoch: float) -> EpochLatency:
        """Return what the predictor said of a run with this batch size.

        Raises:
            ProbeError: It could not say anything of the target.
        """
        if not math.isfinite(prediction.epoch_latency_s):
            raise ProbeError(f"{prediction.target_gpu}: no epoch latency was predicted ({prediction.reason})")
        return cls(
            batch_size,
            samples_per_epoch,
            prediction.epoch_latency_s,
            prediction.epoch_latency_low_s,
            prediction.epoch_latency_high_s,
            prediction.interval_coverage,
        )

    def per_step(self) -> LatencyEstimate:
        """Return the latency of a step: an epoch has as many as batches are begun.

        Raises:
            ProbeError: An epoch without samples, or batches without any.
        """
        if not (self.batch_size > 0 and math.isfinite(self.samples_per_epoch) and self.samples_per_epoch > 0):
            raise ProbeError(f"{self}: batch_size and samples_per_epoch must be above zero")
        steps = math.ceil(self.samples_per_epoch / self.batch_size)
        low_s, high_s = self.low_s / steps, self.high_s / steps
        return LatencyEstimate(self.batch_size, self.epoch_s / steps, low_s, high_s, self.coverage)


@dataclass(frozen=True)
class EpochLatencies:
    """Epoch latencies of runs of one workload that differ in their batch size, without a look into the job.

    Attributes:
        epochs: One per run.
    """

    epochs: Sequence[EpochLatency]
    origin: CurveOrigin = CurveOrigin.CROSS_GPU

    def probes(self) -> list[ComputeProbe]:
        """Return one probe per run.

        Raises:
            ProbeError: A figure that no epoch can have, or an interval that is none.
        """
        return GrayBoxEstimates([each.per_step() for each in self.epochs]).probes()


def compute_curve(
    source: CurveSource,
    kind: CurveKind = "default",
    *,
    shape: ComputeCurve | None = None,
    largest_batch: int | None = None,
) -> ComputeCurve:
    """Return the curve of a source.

    Args:
        source: Where it comes from.
        kind: As ``fit_compute_curve``.
        shape: The job's curve on another device. A source that knows one batch size only, as telemetry of a single run
            does, takes its shape from there.
        largest_batch: Largest batch size that fits into the device's memory.

    Raises:
        ProbeError: Fewer than two batch sizes and no shape, or a figure that is none.
    """
    probes = source.probes()
    if shape is not None and len({each.batch_size for each in probes}) == 1:
        return replace(_scaled(shape, probes), origin=source.origin, largest_batch=largest_batch)
    return fit_compute_curve(probes, kind, origin=source.origin, largest_batch=largest_batch)


def _scaled(shape: ComputeCurve, probes: Sequence[ComputeProbe]) -> ComputeCurve:
    for probe in probes:
        probe.check()
    batch_size = probes[0].batch_size
    factor = float(np.median([probe.total_s for probe in probes]) / shape.predict(batch_size).total_s[0])
    uncertainties = [probe.uncertainty for probe in probes if probe.uncertainty is not None]
    return replace(
        shape,
        total_s=shape.total_s * factor,
        uncertainty=np.hypot(shape.uncertainty, float(np.median(uncertainties)) if uncertainties else 0.0),
        known_from=batch_size,
        known_to=batch_size,
    )


def _uncertainty(estimate: LatencyEstimate) -> float:
    """Relative standard deviation behind an interval, which is about normal in the logarithm.

    Raises:
        ProbeError: The interval is none, or does not hold the estimate.
    """
    if not 0 < estimate.coverage < 1:
        raise ProbeError(f"{estimate}: the coverage must lie between 0 and 1")
    if not 0 < estimate.low_s <= estimate.seconds <= estimate.high_s < math.inf:
        raise ProbeError(f"{estimate}: the interval must be above zero, finite, and hold the estimate")
    return math.log(estimate.high_s / estimate.low_s) / (2.0 * NormalDist().inv_cdf(0.5 + estimate.coverage / 2.0))
