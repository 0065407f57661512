"""Where a compute curve can come from: timed steps, a network's graph, or epoch latencies predicted from metrics.

``compute_curve`` makes the curve of each. Estimates and predictions come with an interval; it is the
uncertainty of the whole curve (devices do not differ by it, and steps do not either), never the spread of steps.

A job that has never run has no timed steps and no metrics. Its graph says what it computes, and a model fitted on other
networks' measured iterations says how long that takes (``predict_steps``). Such an iteration is a whole one: forward
and backward pass, update of the weights, and the copy of the batch to the device. Gradients and the batch that memory
takes follow from the graph as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Annotated, Protocol, TypeAlias

import numpy as np

from gpusonde.catalog import Precision
from gpusonde.documents import Number
from gpusonde.errors import ProblemError
from gpusonde.predictor.workload.engine import Cluster, WorkloadPrediction, WorkloadRequest
from gpusonde.predictor.workload.graph import BYTES_PER_NUMBER, WorkloadGraph
from gpusonde.simulator.compute.fitting import (
    BATCH_POWER,
    USUAL_FORWARD_SHARE,
    USUAL_SPREAD,
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


MOST_SAMPLES = 1e15


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
    samples_per_epoch: Annotated[float, Number(most=MOST_SAMPLES)]
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


# What a curve can be made from: timed steps, estimates from a graph, or epochs of runs with different batch sizes.
Latencies: TypeAlias = Sequence[ComputeProbe] | Sequence[LatencyEstimate] | Sequence[EpochLatency]
_ORIGINS: Mapping[type, CurveOrigin] = {
    ComputeProbe: CurveOrigin.PROBES,
    LatencyEstimate: CurveOrigin.GRAY_BOX,
    EpochLatency: CurveOrigin.CROSS_GPU,
}


def compute_curve(
    latencies: Latencies,
    kind: CurveKind = "default",
    *,
    shape: ComputeCurve | None = None,
    largest_batch: int | None = None,
) -> ComputeCurve:
    """Return the curve of latencies of one kind.

    Args:
        latencies: What it is made from.
        kind: As ``fit_compute_curve``.
        shape: The job's curve on another device. Latencies at one batch size only, as telemetry of a single run gives
            them, take their shape from there; epoch latencies, and probes with an uncertainty, without one take that
            of most jobs.
        largest_batch: Largest batch size that fits into the device's memory.

    Raises:
        ProblemError: Fewer than two batch sizes of steps and no shape, or a figure that is none.
    """
    probes = [_probe(each) for each in latencies]
    origin = _ORIGINS[type(latencies[0])] if latencies else CurveOrigin.PROBES
    if len({each.batch_size for each in probes}) == 1:
        # Probes of one's own time have no uncertainty; those of iterations on several GPUs have.
        if shape is None and (
            origin is CurveOrigin.CROSS_GPU
            or (origin is CurveOrigin.PROBES and all(each.uncertainty is not None for each in probes))
        ):
            shape = _usual_shape(probes[0].batch_size)
        if shape is not None:
            return replace(_scaled(shape, probes), origin=origin, largest_batch=largest_batch)
    return fit_compute_curve(probes, kind, origin=origin, largest_batch=largest_batch)


def _probe(latency: ComputeProbe | LatencyEstimate | EpochLatency) -> ComputeProbe:
    if isinstance(latency, EpochLatency):
        latency = latency.per_step()
    if isinstance(latency, LatencyEstimate):
        return ComputeProbe(latency.batch_size, latency.total_s, uncertainty=latency.uncertainty)
    return latency


# Nine tenths of halvings, quarterings and eighths of a batch in profet's timings (MIT) lie within 0.5 of BATCH_POWER,
# in the logarithm of seconds per unit of the logarithm of the batch size.
_POWER_SPREAD = 0.3
_SHAPE_OCTAVES = range(-20, 9)


def _usual_shape(batch_size: float) -> ComputeCurve:
    """Return the curve of most jobs, of which one batch size is known; its uncertainty grows with the distance."""
    factors = 2.0 ** np.array(_SHAPE_OCTAVES)
    return ComputeCurve(
        batch_sizes=batch_size * factors,
        total_s=factors ** (1.0 - BATCH_POWER),
        spread=np.full(factors.size, USUAL_SPREAD),
        forward_share=USUAL_FORWARD_SHARE,
        origin=CurveOrigin.CROSS_GPU,
        known_from=batch_size,
        known_to=batch_size,
        uncertainty=_POWER_SPREAD * np.abs(np.log(factors)),
    )


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


class WorkloadPredictor(Protocol):
    """What predicts iterations from graphs; ``WorkloadModel`` does."""

    def predict(self, requests: Sequence[WorkloadRequest]) -> list[WorkloadPrediction]:
        """Return one prediction per request."""
        ...


def predict_steps(
    model: WorkloadPredictor,
    graph: WorkloadGraph,
    devices: Sequence[str],
    batch_sizes: Sequence[int],
    precision: Precision = Precision.FP32,
) -> dict[str, list[WorkloadPrediction]]:
    """Return steps of a network on single devices: for each device, one prediction per batch size.

    Args:
        model: Fitted on measured iterations of other networks; it is asked once for all of them.
        graph: The network.
        devices: Of the catalogue.
        batch_sizes: Samples per step.
        precision: What its matrix products are computed in.

    Raises:
        gpusonde.predictor.workload.engine.ModelError: The model cannot say anything of one of them.
    """
    questions = [
        WorkloadRequest(graph, batch, Cluster(device, precision=precision))
        for device in devices
        for batch in batch_sizes
    ]
    answers = iter(model.predict(questions))
    return {device: [next(answers) for _ in batch_sizes] for device in devices}


def gradient_bytes(graph: WorkloadGraph) -> int:
    """Return the bytes of all gradients, which have single precision also where products do not."""
    return BYTES_PER_NUMBER * graph.parameter_count


def latency_estimate(batch_size: int, found: WorkloadPrediction) -> LatencyEstimate:
    """Return a prediction as what a compute curve can be made from."""
    return LatencyEstimate(batch_size, found.seconds, found.low_s, found.high_s, found.coverage)
