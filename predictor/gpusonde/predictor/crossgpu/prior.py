"""The physical prior: how much faster a job gets on another GPU, from utilisation and peak rates, nothing fitted.

While the GPU works, time scales with the geometric mean of its compute rate and its memory bandwidth; the rest of the
time (input pipeline, launch gaps) does not change::

    t_target / t_source = (1 - u) + u * compute_ratio ** (1 - w) * bandwidth_ratio ** w    ratios are source / target

``u`` is the share of time the GPU worked. ``w``, the weight of the memory bandwidth, is 1/2 where nothing tells how
the work was split; with nvidia-smi's memory utilisation it moves a little to either side, with DCGM's activity metrics
fully. ``features.log_compute_rate`` says what a compute rate is. Measured errors: docs/latency_prediction.md.

The working part goes with that ratio to a power, 1 unless a model says otherwise: it fits one for GPUs that it has not
seen (``Pairs.working_exponent``).

Laws of eight coefficients, fitted in turn without each GPU, reach 29.9 % (mean) and 18.3 % (median) on the timings of
38 GPUs with all rows, 32.6 % / 19.3 % with those whose licence permits fitting; this form, fitted to nothing,
27.9 % / 18.5 %.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from gpusonde.catalog import GpuSpec, Precision
from gpusonde.predictor.crossgpu.features import DEFAULT_TENSOR_WEIGHT, log_compute_rate
from gpusonde.predictor.crossgpu.measurement import SourceMeasurement

DEFAULT_BANDWIDTH_WEIGHT = 0.5
# Memory utilisation is the share of time in which memory was accessed at all, not at its peak rate: an indication
# only. Trusting it fully (a slope of 1) is worse than not at all on the measured runs, 0.1 to 0.3 are all better.
_MEMORY_SHARE_SLOPE = 0.2
# Without dynamic metrics the variance of the log error grows with the distance of the two GPUs: it is this share of
# |log ratio| on the runs the shipped model is fitted on (docs/latency_prediction.md).
_STATIC_VARIANCE = 0.13


class MetricLevel(Enum):
    """Which metrics a prediction rests on, best known error first."""

    NVIDIA_SMI = "nvidia-smi"  # utilisation, memory utilisation, power and clock: what the models are fitted on
    UTILIZATION = "gpu_utilization"  # not all of the above: an indication only
    DCGM = "dcgm (unvalidated)"  # activity metrics: no cross-GPU measurements with them exist to check against
    STATIC = "static"  # no dynamic metrics at all


@dataclass(frozen=True)
class Roofline:
    """How the source spent an epoch.

    Attributes:
        busy: Share of time in which the GPU worked, 0..1.
        bandwidth_weight: Exponent of the memory bandwidth, 0..1; the compute rate has the rest.
        tensor_weight: Share of the compute part that ran on tensor cores, 0..1.
        precision: Of that work, as far as metrics tell; what the run says of itself goes before.
        exponent: Power of the ratio of rates that the working time goes with.
    """

    busy: float
    bandwidth_weight: float = DEFAULT_BANDWIDTH_WEIGHT
    tensor_weight: float = DEFAULT_TENSOR_WEIGHT
    precision: Precision | None = None
    exponent: float = 1.0


def metric_level(source: SourceMeasurement, required: tuple[str, ...]) -> MetricLevel:
    """Return the best level that the source's metrics allow.

    Args:
        source: The measurement.
        required: Metrics that the learned model needs.
    """
    if all(name in source.metrics for name in required):
        return MetricLevel.NVIDIA_SMI
    if has_activity(source):
        return MetricLevel.DCGM
    if "gpu_utilization" in source.metrics:
        return MetricLevel.UTILIZATION
    return MetricLevel.STATIC


def has_activity(source: SourceMeasurement) -> bool:
    """Tell whether the source has the DCGM activity metrics that split its time between memory and compute."""
    metrics = source.metrics
    return "dram_active" in metrics and ("sm_active" in metrics or "graphics_active" in metrics)


def roofline(source: SourceMeasurement, level: MetricLevel) -> Roofline:
    """Return the weights of the prior at a level.

    At the DCGM level the share of working time is that of the graphics engine (or, without it, of the SMs), the
    bandwidth's weight is DRAM activity against the busier of the compute pipes, and the tensor pipe's share of the
    compute activity decides which peak rate counts. Activity ratios are shares of cycles, so they are comparable.

    Utilisation alone does not tell whether the idle part stays on another GPU: all of it does on the fitted runs, none
    on timings of 24 other GPUs. So it changes the interval (:func:`log_idle_effect`), not the answer.
    """
    metrics = source.metrics
    if level in (MetricLevel.STATIC, MetricLevel.UTILIZATION):
        return Roofline(busy=1.0)
    if level is not MetricLevel.DCGM:
        busy = min(1.0, metrics["gpu_utilization"].mean)
        if busy <= 0:
            return Roofline(busy)
        share = min(1.0, metrics["memory_utilization"].mean / busy)
        return Roofline(busy, DEFAULT_BANDWIDTH_WEIGHT + _MEMORY_SHARE_SLOPE * (share - 0.5))
    mean = {name: min(1.0, distribution.mean) for name, distribution in metrics.items()}
    busy = max(mean.get("graphics_active", 0.0), mean.get("sm_active", 0.0), mean["dram_active"])
    tensor = mean.get("tensor_active", 0.0)
    pipes = max(mean.get("fp32_active", 0.0), mean.get("fp16_active", 0.0))
    compute = max(tensor, pipes) if tensor + pipes > 0 else mean.get("sm_active", mean["dram_active"])
    memory = mean["dram_active"]
    weight = memory / (memory + compute) if memory + compute > 0 else DEFAULT_BANDWIDTH_WEIGHT
    if tensor + pipes <= 0:
        return Roofline(busy, weight)
    # What the tensor pipe works on is 16 bits wide nearly always.
    return Roofline(busy, weight, tensor / (tensor + pipes), Precision.MIXED if tensor > 0 else None)


def log_latency_ratio(
    source: SourceMeasurement, target: GpuSpec, line: Roofline, precision: Precision | None = None
) -> float:
    """Return the natural logarithm of (epoch latency on the target / epoch latency on the source) by the prior.

    Args:
        source: The measurement.
        target: The GPU that is asked about.
        line: How the source spent an epoch.
        precision: Of the run's products, whatever the measurement says; as it says when left out.

    Raises:
        ValueError: A peak rate of one of the GPUs is not known.
    """
    own, theirs = source.figure("memory_bandwidth_bytes_per_second"), target.memory_bandwidth_bytes_per_second
    if not own or not theirs:
        raise ValueError(
            f"{source.gpu.name if not own else target.name} has no known memory_bandwidth_bytes_per_second"
        )
    precision = precision or source.precision or line.precision or Precision.TF32
    compute = log_compute_rate(source.gpu, precision, line.tensor_weight) - log_compute_rate(
        target, precision, line.tensor_weight
    )
    rates = (1 - line.bandwidth_weight) * compute + line.bandwidth_weight * math.log(own / theirs)
    working = math.exp(line.exponent * rates)
    return math.log((1 - line.busy) + line.busy * working)


def log_idle_effect(source: SourceMeasurement, target: GpuSpec, line: Roofline) -> float:
    """Return by how much the log ratio changes if the source's idle time stays as it is, 0 without utilisation.

    Raises:
        ValueError: A peak rate of one of the GPUs is not known.
    """
    if "gpu_utilization" not in source.metrics:
        return 0.0
    busy = min(1.0, source.metrics["gpu_utilization"].mean)
    working = math.exp(log_latency_ratio(source, target, line))
    return math.log((1 - busy) + busy * working) - math.log(working)


def log_peak_ratio(source: SourceMeasurement, target: GpuSpec) -> float:
    """Predict by the simplest prior, the baseline of every evaluation: utilisation, peak FP32 rate, memory bandwidth.

    Raises:
        ValueError: A peak rate of one of the GPUs is not known.
    """
    busy = min(1.0, source.metrics["gpu_utilization"].mean) if "gpu_utilization" in source.metrics else 1.0
    ratios = []
    for name in ("fp32_tflops", "memory_bandwidth_bytes_per_second"):
        own, theirs = source.figure(name), getattr(target, name)
        if not own or not theirs:
            raise ValueError(f"{target.name if own else source.gpu.name} has no known {name}")
        ratios.append(own / theirs)
    return math.log((1 - busy) + busy * math.sqrt(math.prod(ratios)))


def log_cautious_ratio(source: SourceMeasurement, target: GpuSpec, line: Roofline | None = None) -> float:
    """Predict with few or no dynamic metrics: by the prior, less the variance of its log error.

    A relative error weighs too long a prediction more than too short a one. Of a log-normal quantity the value with the
    least expected relative error lies the variance of its logarithm below the median, which matters here because the
    variance is large; where the GPUs are alike it is nothing.

    Args:
        source: The measurement.
        target: The GPU that is asked about.
        line: How the source spent an epoch; of a GPU that always works when left out.

    Raises:
        ValueError: A peak rate of one of the GPUs is not known.
    """
    ratio = log_latency_ratio(source, target, line or Roofline(busy=1.0))
    return ratio - _STATIC_VARIANCE * abs(ratio)
