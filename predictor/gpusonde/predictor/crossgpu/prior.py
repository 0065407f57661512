"""The physical prior: how much faster a job gets on another GPU, from utilisation and peak rates, nothing fitted.

While the GPU works, time scales with the geometric mean of FP32 rate and memory bandwidth; the rest of the time (input
pipeline, launch gaps) does not change::

    t_target / t_source = (1 - u) + u * FP32_ratio ** (1 - w) * bandwidth_ratio ** w        ratios are source / target

``u`` is the share of time the GPU worked. ``w``, the weight of the memory bandwidth, is 1/2 where nothing tells how
the work was split; with nvidia-smi's memory utilisation it moves a little to either side, with DCGM's activity metrics
fully. Measured errors: docs/latency_prediction.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from gpusonde.catalog import GpuSpec
from gpusonde.predictor.crossgpu.measurement import SourceMeasurement

DEFAULT_BANDWIDTH_WEIGHT = 0.5
# Memory utilisation is the share of time in which memory was accessed at all, not at its peak rate: an indication
# only. Trusting it fully (a slope of 1) is worse than not at all on the measured runs, 0.2 to 0.6 are all better.
_MEMORY_SHARE_SLOPE = 0.4


class MetricLevel(Enum):
    """Which metrics a prediction rests on, best known error first."""

    NVIDIA_SMI = "nvidia-smi"  # utilisation, memory utilisation, power and clock: what the models are fitted on
    UTILIZATION = "gpu_utilization"  # not all of the above: the prior alone
    DCGM = "dcgm (unvalidated)"  # activity metrics: no cross-GPU measurements with them exist to check against
    STATIC = "static"  # no dynamic metrics at all


@dataclass(frozen=True)
class Roofline:
    """How the source spent an epoch.

    Attributes:
        busy: Share of time in which the GPU worked, 0..1.
        bandwidth_weight: Exponent of the memory bandwidth, 0..1; the FP32 (or tensor) rate has the rest.
        tensor_weight: Share of the compute part that ran on tensor cores, 0..1.
    """

    busy: float
    bandwidth_weight: float = DEFAULT_BANDWIDTH_WEIGHT
    tensor_weight: float = 0.0


def metric_level(source: SourceMeasurement, required: tuple[str, ...]) -> MetricLevel:
    """The best level that the source's metrics allow.

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
    """Whether the source has the DCGM activity metrics that split its time between memory and compute."""
    metrics = source.metrics
    return "dram_active" in metrics and ("sm_active" in metrics or "graphics_active" in metrics)


def roofline(source: SourceMeasurement, level: MetricLevel) -> Roofline:
    """Weights of the prior at a level.

    At the DCGM level the share of working time is that of the graphics engine (or, without it, of the SMs), the
    bandwidth's weight is DRAM activity against the busier of the compute pipes, and the tensor pipe's share of the
    compute activity decides which peak rate counts. Activity ratios are shares of cycles, so they are comparable.
    """
    metrics = source.metrics
    if level is MetricLevel.STATIC:
        return Roofline(busy=1.0)
    if level is not MetricLevel.DCGM:
        busy = min(1.0, metrics["gpu_utilization"].mean)
        if level is MetricLevel.UTILIZATION or busy <= 0:
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
    return Roofline(busy, weight, tensor / (tensor + pipes) if tensor + pipes > 0 else 0.0)


def log_latency_ratio(source: SourceMeasurement, target: GpuSpec, line: Roofline) -> float:
    """Natural logarithm of (epoch latency on the target / epoch latency on the source) by the prior.

    Raises:
        ValueError: A peak rate of one of the GPUs is not known.
    """
    bandwidth = _log_ratio(source, target, "memory_bandwidth_bytes_per_second")
    compute = _log_ratio(source, target, "fp32_tflops")
    if line.tensor_weight > 0 and (source.gpu.tensor_fp16_tflops or 0) > 0 and (target.tensor_fp16_tflops or 0) > 0:
        tensor = _log_ratio(source, target, "tensor_fp16_tflops")
        compute = (1 - line.tensor_weight) * compute + line.tensor_weight * tensor
    working = math.exp((1 - line.bandwidth_weight) * compute + line.bandwidth_weight * bandwidth)
    return math.log((1 - line.busy) + line.busy * working)


def _log_ratio(source: SourceMeasurement, target: GpuSpec, attribute: str) -> float:
    numerator, denominator = source.figure(attribute), getattr(target, attribute)
    if not numerator or not denominator:
        missing = source.gpu.name if not numerator else target.name
        raise ValueError(f"{missing} has no known {attribute}")
    return math.log(numerator / denominator)
