"""Where a compute curve can come from: timed steps, a network's graph, or epoch latencies predicted from metrics.

All three give probes, and ``compute_curve`` makes the curve. Estimates and predictions come with an interval; it is the
uncertainty of the whole curve (devices do not differ by it, and steps do not either), never the spread of steps.

A job that has never run has no timed steps and no metrics. Its graph says what it computes, and a model fitted on other
networks' measured iterations says how long that takes (``GraphEstimator``). Such an iteration is a whole one: forward
and backward pass, update of the weights, and the copy of the batch to the device. Gradients and the batch that memory
takes follow from the graph as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Annotated, Protocol

import numpy as np

from gpusonde.catalog import Precision
from gpusonde.documents import Number
from gpusonde.errors import ProblemError
from gpusonde.predictor.workload.engine import Cluster, WorkloadPrediction, WorkloadRequest
from gpusonde.predictor.workload.graph import BYTES_PER_NUMBER, WorkloadGraph, graph_cost
from gpusonde.simulator.compute.fitting import (
    BatchSize,
    ComputeCurve,
    ComputeProbe,
    CurveKind,
    CurveOrigin,
    Seconds,
    fit_compute_curve,
)

if TYPE_CHECKING:
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
            ProblemError: A figure that no step can have.
        """
        ...


@dataclass(frozen=True)
class MeasuredSteps:
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
        total_s: Seconds of forward and backward pass.
        total_low_s: Lower end of the interval; without one ``total_s`` itself.
        total_high_s: Upper end, likewise.
        interval_coverage: Share of such intervals that should hold the true latency, above 0 and below 1.

    Raises:
        ProblemError: The interval is none, or does not hold the estimate.
    """

    batch_size: BatchSize
    total_s: Seconds
    total_low_s: Seconds | None = None
    total_high_s: Seconds | None = None
    interval_coverage: Annotated[float, Number(most=1.0)] = 0.9

    def __post_init__(self) -> None:
        low_s, high_s = self.interval_s
        if not 0 < self.interval_coverage < 1:
            raise ProblemError(f"{self}: the coverage must lie between 0 and 1")
        if not 0 < low_s <= self.total_s <= high_s < math.inf:
            raise ProblemError(f"{self}: the interval must be above zero, finite, and hold the estimate")

    @property
    def interval_s(self) -> tuple[float, float]:
        """Ends of the interval."""
        low_s = self.total_s if self.total_low_s is None else self.total_low_s
        return low_s, self.total_s if self.total_high_s is None else self.total_high_s

    @property
    def uncertainty(self) -> float:
        """Relative standard deviation behind the interval, which is about normal in the logarithm."""
        low_s, high_s = self.interval_s
        return math.log(high_s / low_s) / (2.0 * NormalDist().inv_cdf(0.5 + self.interval_coverage / 2.0))


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
    def from_estimator(cls, estimator: WorkloadEstimator, device: str, batch_sizes: Sequence[int]) -> GrayBoxEstimates:
        """Return what an estimator says about a device at these batch sizes."""
        return cls([estimator.estimate_step(device, batch_size) for batch_size in batch_sizes])

    def probes(self) -> list[ComputeProbe]:
        """Return one probe per estimate.

        Raises:
            ProblemError: A figure that no step can have, or an interval that is none.
        """
        return [ComputeProbe(each.batch_size, each.total_s, uncertainty=each.uncertainty) for each in self.estimates]


@dataclass(frozen=True)
class EpochLatency:
    """Latency of an epoch on one device of the target's kind.

    Attributes:
        batch_size: Samples per step.
        samples_per_epoch: Samples that an epoch trains on.
        epoch_latency_s: Seconds of an epoch. Whatever else an epoch does, such as a validation, counts as computation.
        epoch_latency_low_s: Lower end of its interval; without one ``epoch_latency_s`` itself.
        epoch_latency_high_s: Upper end, likewise.
        interval_coverage: Share of such intervals that should hold the true latency, above 0 and below 1.

    Raises:
        ProblemError: Figures that no epoch can have, or an interval that is none.
    """

    batch_size: BatchSize
    samples_per_epoch: Annotated[float, Number(most=1e15)]
    epoch_latency_s: Seconds
    epoch_latency_low_s: Seconds | None = None
    epoch_latency_high_s: Seconds | None = None
    interval_coverage: Annotated[float, Number(most=1.0)] = 0.9

    def __post_init__(self) -> None:
        self.per_step()

    @classmethod
    def from_prediction(
        cls, prediction: LatencyPrediction, batch_size: float, samples_per_epoch: float
    ) -> EpochLatency:
        """Return what the predictor said of a run with this batch size.

        Raises:
            ProblemError: It could not say anything of the target.
        """
        if not math.isfinite(prediction.epoch_latency_s):
            raise ProblemError(f"{prediction.target_gpu}: no epoch latency was predicted ({prediction.reason})")
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
            ProblemError: An epoch without samples, or batches without any.
        """
        if not (self.batch_size > 0 and math.isfinite(self.samples_per_epoch) and self.samples_per_epoch > 0):
            raise ProblemError(f"{self}: batch_size and samples_per_epoch must be above zero")
        steps = math.ceil(self.samples_per_epoch / self.batch_size)
        low_s, high_s = (
            None if end_s is None else end_s / steps for end_s in (self.epoch_latency_low_s, self.epoch_latency_high_s)
        )
        step_s = self.epoch_latency_s / steps
        return LatencyEstimate(self.batch_size, step_s, low_s, high_s, self.interval_coverage)


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
            ProblemError: A figure that no epoch can have, or an interval that is none.
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
        ProblemError: Fewer than two batch sizes and no shape, or a figure that is none.
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


# Weight, gradient and the two moments of Adam.
_BYTES_PER_PARAMETER = 4 * BYTES_PER_NUMBER
# What the driver, the framework's context and the allocator's holes take of a device.
_USABLE_MEMORY = 0.9


class WorkloadPredictor(Protocol):
    """What predicts iterations from graphs; ``WorkloadModel`` does."""

    def predict(self, requests: Sequence[WorkloadRequest]) -> list[WorkloadPrediction]:
        """Return one prediction per request."""
        ...


@dataclass(frozen=True)
class GraphEstimator:
    """Estimates steps of one network on single devices; a ``WorkloadEstimator``.

    Attributes:
        model: Fitted on measured iterations of other networks.
        graph: The network.
        precision: What its matrix products are computed in.
        environment: A place of measurement that the model knows; None is any other.
    """

    model: WorkloadPredictor
    graph: WorkloadGraph
    precision: Precision = Precision.FP32
    environment: str | None = None

    def estimate_step(self, device: str, batch_size: int) -> LatencyEstimate:
        """Return the latency of a step on a device of the catalogue.

        Raises:
            gpusonde.predictor.workload.engine.ModelError: The model cannot say anything of it.
        """
        return latency_estimate(batch_size, self.predictions([device], [batch_size])[device][0])

    def predictions(self, devices: Sequence[str], batch_sizes: Sequence[int]) -> dict[str, list[WorkloadPrediction]]:
        """Return, for each device, one prediction per batch size; the model is asked once for all of them.

        Raises:
            gpusonde.predictor.workload.engine.ModelError: The model cannot say anything of one of them.
        """
        answers = iter(self.model.predict([self._request(each, batch) for each in devices for batch in batch_sizes]))
        return {device: [next(answers) for _ in batch_sizes] for device in devices}

    def _request(self, device: str, batch_size: int) -> WorkloadRequest:
        cluster = Cluster(device, precision=self.precision, environment=self.environment)
        return WorkloadRequest(self.graph, batch_size, cluster)


def gradient_bytes(graph: WorkloadGraph) -> int:
    """Return the bytes of all gradients, which have single precision also where products do not."""
    return BYTES_PER_NUMBER * graph.parameter_count


def largest_batch_estimate(graph: WorkloadGraph, memory_bytes: float) -> int:
    """Return the largest batch size that a device's memory should take, 0 where not even the parameters fit.

    Everything that an operation writes for the batch is counted as kept until the backward pass, in single precision,
    beside weights, gradients and the two moments of Adam. Frameworks keep less (activations in place) and more
    (workspaces); only a try on the device says which batch fits.
    """
    per_sample = graph_cost(graph).per_sample.output_bytes
    free = _USABLE_MEMORY * memory_bytes - _BYTES_PER_PARAMETER * graph.parameter_count
    return max(0, int(free // max(per_sample, 1)))


def latency_estimate(batch_size: int, found: WorkloadPrediction) -> LatencyEstimate:
    """Return a prediction as what a compute curve can be made from."""
    return LatencyEstimate(batch_size, found.seconds, found.low_s, found.high_s, found.coverage)
