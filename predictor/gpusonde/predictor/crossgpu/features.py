"""Features of the default model: one vector per (measurement, target GPU), plain numpy, well under a millisecond.

No feature names the workload, the machine or the clock on the wall, and none knows how long an epoch takes: only the
ratio is asked for, and an epoch of a thousand times as many steps has the same. Left out because they give the true run
length away (docs/latency_prediction.md): throttle sample counts, absolute memory use (a framework takes all memory at
once, so its mean encodes the run's length), identifiers, time stamps. ``tests/predictor`` pins the list.

``log_compute_rate`` says which of a GPU's peak rates a training step can come near to. Training mixes matrix products,
which use tensor cores where the GPU has them for the precision at hand, with everything else, which the ordinary cores
do; where nothing tells how much is which, both count the same, as a geometric mean. Nothing in it is fitted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gpusonde.catalog import GpuSpec, Precision
from gpusonde.errors import MeasurementError
from gpusonde.predictor.crossgpu.measurement import SourceMeasurement

DEFAULT_TENSOR_WEIGHT = 0.5

# Since Volta a scheduler issues one instruction per clock (V100 architecture white paper): the 16 lanes that each of an
# SM's four schedulers had then leave every second slot for loads, stores and integers. With 32 lanes (GA102, Ada,
# Hopper) FP32 would have to fill all of them.
_LANES_SINGLE_ISSUE = 64
# Before, schedulers could issue two: Kepler's four feed 128 of its 192 lanes without that (Kepler tuning guide, 1.4.2).
_LANES_DUAL_ISSUE = 128
_FIRST_SINGLE_ISSUE = 7.0


def log_compute_rate(gpu: GpuSpec, precision: Precision, tensor_weight: float) -> float:
    """Return the natural logarithm of the rate in TFLOP/s.

    Args:
        gpu: The GPU.
        precision: Of the matrix products.
        tensor_weight: Share of the work that tensor cores can do, 0..1.

    Raises:
        ValueError: The GPU has no known rate.
    """
    if not gpu.fp32_tflops or gpu.fp32_tflops <= 0:
        raise ValueError(f"{gpu.name} has no known fp32_tflops")
    cores = gpu.fp32_tflops * _estimate_issued_share(gpu)
    matrix = gpu.matrix_tflops(precision)
    if precision is Precision.FP64:
        return math.log(matrix or cores)
    return (1 - tensor_weight) * math.log(cores) + tensor_weight * math.log(matrix or gpu.fp32_tflops)


def _estimate_issued_share(gpu: GpuSpec) -> float:
    lanes = _LANES_SINGLE_ISSUE if gpu.compute_capability >= _FIRST_SINGLE_ISSUE else _LANES_DUAL_ISSUE
    return min(1.0, lanes / gpu.cores_per_sm) if gpu.cores_per_sm else 1.0


FloatArray = npt.NDArray[np.float64]

#: Metrics that the default model cannot do without.
REQUIRED_METRICS = ("gpu_utilization", "memory_utilization", "power_watts", "sm_clock_mhz")

_RATIO_ATTRIBUTES = (
    "sm_count",
    "cuda_cores",
    "cores_per_sm",
    "boost_clock_mhz",
    "memory_bandwidth_bytes_per_second",
    "l2_cache_bytes",
    "fp32_tflops",
    "power_limit_watts",
    "max_threads_per_sm",
    "shared_memory_bytes_per_sm",
)

_SOURCE_FEATURES = (
    "gpu_utilization_mean",
    "gpu_utilization_quartile_1",
    "gpu_utilization_median",
    "gpu_utilization_quartile_3",
    "gpu_utilization_maximum",
    "gpu_utilization_standard_deviation",
    "memory_utilization_mean",
    "memory_utilization_median",
    "memory_utilization_quartile_3",
    "memory_utilization_maximum",
    "memory_utilization_standard_deviation",
    "power_share_mean",
    "power_share_median",
    "power_share_maximum",
    "power_share_standard_deviation",
    "sm_clock_share_mean",
    "sm_clock_share_minimum",
    "memory_share_of_busy",
    "power_share_per_busy",
    "log_achieved_bandwidth",
    "power_share_minimum",
    "power_share_quartile_1",
    "power_share_quartile_3",
    "power_share_quartile_range",
    "gpu_utilization_variation",
    "memory_utilization_variation",
    "logit_gpu_utilization",
    "log_memory_utilization",
    "log_memory_utilization_peak",
)
_PAIR_FEATURES = (
    *(f"log_ratio_{attribute}" for attribute in _RATIO_ATTRIBUTES),
    "difference_compute_capability",
    "busy_times_compute_ratio",
    "busy_times_bandwidth_ratio",
    "memory_share_times_bandwidth_ratio",
    "compute_share_times_compute_ratio",
    "prior_geometric",
    "prior_compute",
    "prior_bandwidth",
    "prior_linear",
    "prior_memory_utilization",
    "prior_quartile_3",
)

#: The first this many features depend on the source alone.
SOURCE_FEATURE_COUNT = len(_SOURCE_FEATURES)
#: Names of the features, in order. Ratios are source / target; logarithms are natural.
FEATURES: tuple[str, ...] = _SOURCE_FEATURES + _PAIR_FEATURES

# Floors keep logarithms and quotients of an idle GPU finite; they lie below anything seen while training.
_BUSY_FLOOR = 0.02
_MEMORY_FLOOR = 0.003


def feature_matrix(source: SourceMeasurement, targets: Sequence[GpuSpec]) -> FloatArray:
    """Return the features of one measurement against several target GPUs.

    Returns:
        Shape (targets, features), finite.

    Raises:
        MeasurementError: A required metric, or a figure of the source GPU or of a target, is not known.
    """
    own, figures = _describe_source(source)
    known = dict(zip(_SOURCE_FEATURES, own, strict=True))
    busy, memory_share = known["gpu_utilization_mean"], known["memory_share_of_busy"]
    busy_quartile_3, memory = known["gpu_utilization_quartile_3"], known["memory_utilization_mean"]
    rows = []
    for target in targets:
        ratios = [math.log(figures[name] / _read_figure(target, name)) for name in _RATIO_ATTRIBUTES]
        bandwidth, compute = ratios[4], ratios[6]
        rows.append(
            own
            + ratios
            + [source.gpu.compute_capability - target.compute_capability]
            + [busy * compute, busy * bandwidth, memory_share * bandwidth, (1 - memory_share) * compute]
            + _compute_priors(busy, busy_quartile_3, memory, min(1.0, memory_share), compute, bandwidth)
        )
    return np.array(rows, dtype=np.float64).reshape(-1, len(FEATURES))


def has_figures(target: GpuSpec) -> bool:
    """Tell whether everything that features need of a target GPU is known."""
    return all((getattr(target, name) or 0) > 0 for name in _RATIO_ATTRIBUTES)


def _describe_source(source: SourceMeasurement) -> tuple[list[float], dict[str, float]]:
    missing = [name for name in REQUIRED_METRICS if name not in source.metrics]
    if missing:
        raise MeasurementError(f"the measurement lacks {', '.join(missing)}, which the learned model needs")
    figures = {}
    for name in _RATIO_ATTRIBUTES:
        value = source.figure(name)
        if value is None or value <= 0:
            raise MeasurementError(f"{source.gpu.name} has no known {name}")
        figures[name] = value
    busy, memory = source.metrics["gpu_utilization"], source.metrics["memory_utilization"]
    power, clock = source.metrics["power_watts"], source.metrics["sm_clock_mhz"]
    limit, top_clock = figures["power_limit_watts"], figures["boost_clock_mhz"]
    bandwidth = figures["memory_bandwidth_bytes_per_second"]
    own = [
        busy.mean, busy.quartile_1, busy.median, busy.quartile_3, busy.maximum, busy.standard_deviation,
        memory.mean, memory.median, memory.quartile_3, memory.maximum, memory.standard_deviation,
        power.mean / limit, power.median / limit, power.maximum / limit, power.standard_deviation / limit,
        clock.mean / top_clock, clock.minimum / top_clock,
        memory.mean / max(busy.mean, _BUSY_FLOOR),
        power.mean / limit / max(busy.mean, _BUSY_FLOOR),
        math.log(max(memory.mean, _MEMORY_FLOOR) * bandwidth),
        power.minimum / limit, power.quartile_1 / limit, power.quartile_3 / limit,
        (power.quartile_3 - power.quartile_1) / limit,
        busy.standard_deviation / max(busy.mean, _BUSY_FLOOR),
        memory.standard_deviation / max(memory.mean, _MEMORY_FLOOR),
        math.log(max(busy.mean, _BUSY_FLOOR) / (1 + _BUSY_FLOOR - min(busy.mean, 1.0))),
        math.log(max(memory.mean, _MEMORY_FLOOR)),
        math.log(max(memory.maximum, _MEMORY_FLOOR) / max(memory.mean, _MEMORY_FLOOR)),
    ]  # fmt: skip
    return own, figures


def _compute_priors(
    busy: float, busy_quartile_3: float, memory: float, memory_share: float, compute: float, bandwidth: float
) -> list[float]:
    """Return six rooflines; the model sees where they disagree. ``compute`` and ``bandwidth`` are log ratios."""
    compute_ratio, bandwidth_ratio = math.exp(compute), math.exp(bandwidth)
    geometric = math.sqrt(compute_ratio * bandwidth_ratio)
    mixed = memory_share * bandwidth_ratio + (1 - memory_share) * compute_ratio
    return [
        math.log(1 - busy + busy * geometric),
        math.log(1 - busy + busy * compute_ratio),
        math.log(1 - busy + busy * bandwidth_ratio),
        math.log(1 - busy + busy * mixed),
        math.log(1 - busy + memory * bandwidth_ratio + max(busy - memory, 0.0) * compute_ratio),
        math.log(1 - busy_quartile_3 + busy_quartile_3 * geometric),
    ]


def _read_figure(target: GpuSpec, name: str) -> float:
    value = getattr(target, name)
    if value is None or value <= 0:
        raise MeasurementError(f"{target.name} has no known {name}")
    return float(value)
