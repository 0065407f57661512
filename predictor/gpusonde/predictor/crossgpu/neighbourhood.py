"""How far a run and a GPU lie from those that a model was fitted on, and how wide intervals are for it.

Intervals are split conformal: quantiles of the errors made on runs that the model had not seen, per regime.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from gpusonde.catalog import GpuSpec, load_gpus
from gpusonde.predictor.crossgpu.regression import square_distances, square_norms

FloatArray = npt.NDArray[np.float64]


class Regime(Enum):
    """How well a query is covered by what the model was fitted on; each has intervals of its own."""

    SEEN_GPUS = "seen GPUs, unseen workload"
    ONE_UNSEEN_GPU = "one unseen GPU"
    PRIOR_ONLY = "both GPUs unseen, or not all metrics: prior from utilisation"
    STATIC_ONLY = "no dynamic metrics: prior from static figures"


@dataclass(frozen=True)
class Calibration:
    """Half width of the interval in log space: ``quantile * scale`` of the query.

    Attributes:
        quantile: Conformal quantile of ``|log error| / scale``.
        count: Number of errors it comes from.
    """

    quantile: float
    count: int


@dataclass(frozen=True)
class LeftOut:
    """Errors of models on what each of them was not fitted on.

    Attributes:
        log_errors: Predicted minus true log ratio, shape (n,).
        scales: Positive scale of each error, shape (n,): the interval of a query is as wide as its own scale makes it.
    """

    log_errors: FloatArray
    scales: FloatArray

    @classmethod
    def join(cls, parts: Sequence[LeftOut]) -> LeftOut:
        """Pool the errors of several folds."""
        return cls(
            np.concatenate([np.zeros(0), *(part.log_errors for part in parts)]),
            np.concatenate([np.zeros(0), *(part.scales for part in parts)]),
        )


def calibrate(errors: LeftOut, coverage: float) -> Calibration:
    """Take the conformal quantile of normalised absolute errors.

    Args:
        errors: At least one.
        coverage: Share of intervals that should hold the truth.

    Returns:
        The ceil((n + 1) * coverage)-th smallest score (Vovk et al., "Algorithmic Learning in a Random World"); the
        largest one when there are too few.
    """
    scores = np.sort(np.abs(errors.log_errors) / errors.scales)
    rank = min(len(scores), math.ceil((len(scores) + 1) * coverage))
    return Calibration(float(scores[rank - 1]), len(scores))


def calibrate_worst(parts: Sequence[LeftOut], coverage: float) -> Calibration:
    """Take the widest of several calibrations.

    For what comes in few kinds: four GPUs left out in turn are four observations of "an unseen GPU", however many pairs
    each gives, so the next unseen GPU is given the quantile of the worst of them, not that of all pairs pooled.
    """
    return max((calibrate(part, coverage) for part in parts), key=lambda calibration: calibration.quantile)


# The same chip under another name: V100 SXM2 with 32 GB behaves as the one with 16 GB.
_SAME_CHIP = 0.03
# Inflation where a single fitted GPU shows nothing about others, and the most that is ever applied: beyond it an
# interval says no more than that nothing is known.
_SINGLE_GPU = 2.0
# Of the T4, the widest among the measured GPUs.
_UNKNOWN_CLOCK_RANGE = 2.7
# Standard deviation of the log error that workloads have on GPUs which hold their boost clock.
_WORKLOAD_SPREAD = 0.13
_LARGEST = 4.0
# Compute capabilities 10 to 12 are one generation.
_BLACKWELL = 10


@dataclass(frozen=True)
class RunNeighbourhood:
    """The runs a model was fitted on, as points.

    Attributes:
        center: Feature means, shape (features,).
        spread: Feature standard deviations, shape (features,).
        points: Standardised source features of the runs, shape (runs, features).
        usual_distance: Distance to the nearest run of another workload that 99 % of the runs keep below.
    """

    center: FloatArray
    spread: FloatArray
    points: FloatArray
    usual_distance: float

    @classmethod
    def fit(cls, x: FloatArray, workloads: Sequence[object]) -> RunNeighbourhood:
        """Fit to the runs' source features.

        Args:
            x: Shape (runs, features).
            workloads: Which workload each run is of; runs of the same one do not count as neighbours.
        """
        center, spread = x.mean(axis=0), x.std(axis=0)
        spread = np.where(spread > 1e-9, spread, 1.0)
        points = ((x - center) / spread).astype(np.float32).astype(np.float64)
        labels = np.unique([str(workload) for workload in workloads], return_inverse=True)[1]
        distances = root_mean_square_distances(points, points)
        distances[labels[:, None] == labels[None, :]] = np.inf
        nearest = distances.min(axis=1)
        finite = nearest[np.isfinite(nearest)]
        usual = float(np.quantile(finite, 0.99)) if finite.size else 1.0
        return cls(center, spread, points, usual)

    def relative_distance(self, source_features: FloatArray) -> float:
        """Return the distance to the nearest run, 1 being as far as a new workload usually is.

        Args:
            source_features: Shape (features,).
        """
        point = (source_features - self.center) / self.spread
        nearest = square_distances(point[None, :], self.points, self._norms).min() / point.size
        return math.sqrt(nearest) / self.usual_distance

    @cached_property
    def _norms(self) -> FloatArray:
        return square_norms(self.points)


@dataclass(frozen=True)
class TrainedGpu:
    """A GPU a model was fitted on, as far as telling other GPUs from it needs.

    Attributes:
        name: Canonical name.
        compute_capability: CUDA compute capability.
        sm_count: Streaming multiprocessors.
        fp32_tflops: Peak FP32.
        memory_bandwidth_bytes_per_second: Peak of the memory bus.
        power_limit_watts: Board power limit, 0 where it is not known. The same chip on a card for less power is slower.
        clock_range: Boost clock / base clock, at least 1. Where it is large, the power limit decides on the clock.
    """

    name: str
    compute_capability: float
    sm_count: int
    fp32_tflops: float
    memory_bandwidth_bytes_per_second: float
    power_limit_watts: float
    clock_range: float

    @classmethod
    def from_spec(cls, gpu: GpuSpec) -> TrainedGpu:
        """Take the figures from a data sheet."""
        return cls(
            name=gpu.name,
            compute_capability=gpu.compute_capability,
            sm_count=gpu.sm_count,
            fp32_tflops=gpu.fp32_tflops,
            memory_bandwidth_bytes_per_second=gpu.memory_bandwidth_bytes_per_second,
            power_limit_watts=gpu.power_limit_watts or 0.0,
            clock_range=max(1.0, gpu.boost_clock_mhz / gpu.base_clock_mhz)
            if gpu.boost_clock_mhz and gpu.base_clock_mhz
            else _UNKNOWN_CLOCK_RANGE,
        )

    def distance(self, gpu: GpuSpec | TrainedGpu) -> float:
        """Return the Euclidean distance of the logarithms of FP32 rate and memory bandwidth."""
        return math.hypot(
            math.log(self.fp32_tflops / gpu.fp32_tflops),
            math.log(self.memory_bandwidth_bytes_per_second / gpu.memory_bandwidth_bytes_per_second),
        )

    def is_same_chip(self, gpu: GpuSpec) -> bool:
        """Say whether ``gpu`` is the same chip at practically the same rates."""
        if gpu.sm_count != self.sm_count:
            return False
        rates = (
            (self.fp32_tflops, gpu.fp32_tflops),
            (self.memory_bandwidth_bytes_per_second, gpu.memory_bandwidth_bytes_per_second),
            (self.power_limit_watts, gpu.power_limit_watts or 0.0),
        )
        return all(abs(own - other) <= _SAME_CHIP * own for own, other in rates)


def dominates(gpu: GpuSpec, other: GpuSpec) -> bool:
    """Tell whether a GPU has nothing less than another one: no rate of products, no bandwidth, no memory, no SMs."""
    return (
        gpu.fp32_tflops >= other.fp32_tflops
        and gpu.memory_bandwidth_bytes_per_second >= other.memory_bandwidth_bytes_per_second
        and gpu.memory_bytes >= other.memory_bytes
        and gpu.sm_count >= other.sm_count
        and (gpu.tensor_tf32_tflops or 0.0) >= (other.tensor_tf32_tflops or 0.0)
        and (gpu.tensor_fp16_tflops or 0.0) >= (other.tensor_fp16_tflops or 0.0)
    )


def interpolate_rising(prior: FloatArray, answers: FloatArray, at: FloatArray) -> FloatArray:
    """Return the answers at places between known ones, by a function that rises; outside of them its slope is 1.

    Args:
        prior: Places of the known answers, log ratios by the prior, shape (known,).
        answers: Known log ratios, shape (known,); where they fall as the prior rises they are pooled: the mean of the
            largest so far and of the smallest to come changes nothing that rises.
        at: The places, shape (n,).

    Returns:
        Shape (n,).
    """
    order = np.argsort(prior, kind="stable")
    prior, answers = prior[order], answers[order]
    rising = (np.maximum.accumulate(answers) + np.minimum.accumulate(answers[::-1])[::-1]) / 2
    found: FloatArray = np.interp(at, prior, rising) + at - np.clip(at, prior[0], prior[-1])
    return found


def rate_uncertainty(*unseen: TrainedGpu) -> float:
    """Return the scale of the log error of a prediction that knows these GPUs by their data sheets only.

    A sustained clock lies anywhere between base and boost, and half of the work follows it, the rest the memory: a
    uniform logarithm of that range, halved, beside what workloads differ by on any GPU.
    """
    clocks = (math.log(gpu.clock_range) / 2 / math.sqrt(12) for gpu in unseen)
    return math.hypot(_WORKLOAD_SPREAD, *clocks)


@dataclass(frozen=True)
class GpuNeighbourhood:
    """The GPUs a model was fitted on."""

    gpus: tuple[TrainedGpu, ...]

    def seen(self, gpu: GpuSpec) -> bool:
        """Say whether the model was fitted on this chip."""
        return any(known.is_same_chip(gpu) for known in self.gpus)

    @cached_property
    def data_sheets(self) -> tuple[GpuSpec, ...]:
        """The catalogue's data sheets of these chips; of one that it does not hold none."""
        catalog = {spec.name: spec for spec in load_gpus().specs}
        named = ((known, catalog.get(known.name)) for known in self.gpus)
        return tuple(spec for known, spec in named if spec is not None and known.is_same_chip(spec))

    def interval_inflation(self, gpu: GpuSpec) -> float:
        """Return the factor, at least 1, by which intervals calibrated on left-out GPUs are too narrow for this one.

        Leaving one GPU out shows errors at the distances, in peak rates and in architecture generations, between the
        fitted ones. A GPU further from all of them than any is from its nearest gets its interval inflated in
        proportion to each.
        """
        if len(self.gpus) < 2:
            return _SINGLE_GPU
        usual_distance, usual_generations = self._usual
        distance = min(known.distance(gpu) for known in self.gpus)
        by_distance = max(1.0, distance / max(usual_distance, _SAME_CHIP))
        by_generation = max(1.0, _count_generations(gpu, self.gpus) / max(usual_generations, 1))
        return min(_LARGEST, by_distance * by_generation)

    @cached_property
    def _usual(self) -> tuple[float, int]:
        """Return the largest distance, in rates and in generations, of a fitted GPU from the others."""
        rest = [(known, [other for other in self.gpus if other is not known]) for known in self.gpus]
        return (
            max(min(known.distance(other) for other in others) for known, others in rest),
            max(_count_generations(known, others) for known, others in rest),
        )


def _count_generations(gpu: GpuSpec | TrainedGpu, others: Sequence[TrainedGpu]) -> int:
    """Return by how many generations, told by major compute capabilities, the GPU lies outside of the others' range."""
    generations = [min(int(other.compute_capability), _BLACKWELL) for other in others]
    own = min(int(gpu.compute_capability), _BLACKWELL)
    return max(min(generations) - own, own - max(generations), 0)


def root_mean_square_distances(a: FloatArray, b: FloatArray) -> FloatArray:
    """Return root mean square differences per feature of all points, shape (len(a), len(b))."""
    distances: FloatArray = np.sqrt(square_distances(a, b) / a.shape[1])
    return distances
