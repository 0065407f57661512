"""How fast a GPU computes: which of its peak rates a training step can come near to.

Training mixes matrix products, which use tensor cores where the GPU has them for the precision at hand, with
everything else, which the ordinary cores do; where nothing tells how much is which, both count the same, as a geometric
mean. Nothing here is fitted.
"""

from __future__ import annotations

import math

from gpusonde.catalog import GpuSpec
from gpusonde.predictor.crossgpu.measurement import Precision

DEFAULT_TENSOR_WEIGHT = 0.5

# Since Volta a scheduler issues one instruction per clock (V100 architecture white paper): the 16 lanes that each of an
# SM's four schedulers had then leave every second slot for loads, stores and integers. With 32 lanes (GA102, Ada,
# Hopper) FP32 would have to fill all of them.
_LANES_SINGLE_ISSUE = 64
# Before, schedulers could issue two: Kepler's four feed 128 of its 192 lanes without that (Kepler tuning guide, 1.4.2).
_LANES_DUAL_ISSUE = 128
_FIRST_SINGLE_ISSUE = 7.0


def log_compute_rate(gpu: GpuSpec, precision: Precision, tensor_weight: float) -> float:
    """Natural logarithm of the rate in TFLOP/s.

    Args:
        gpu: The GPU.
        precision: Of the matrix products.
        tensor_weight: Share of the work that tensor cores can do, 0..1.

    Raises:
        ValueError: The GPU has no known rate.
    """
    if not gpu.fp32_tflops or gpu.fp32_tflops <= 0:
        raise ValueError(f"{gpu.name} has no known fp32_tflops")
    cores = gpu.fp32_tflops * _issued_share(gpu)
    if precision is Precision.FP64:
        return math.log(gpu.fp64_tflops or cores)
    if precision is Precision.MIXED:
        matrix = gpu.tensor_fp16_tflops or max(gpu.fp16_tflops or 0.0, gpu.fp32_tflops)
    else:
        # Frameworks let FP32 matrix products use TF32 where there is such a thing.
        matrix = gpu.tensor_tf32_tflops or gpu.fp32_tflops
    return (1 - tensor_weight) * math.log(cores) + tensor_weight * math.log(matrix)


def _issued_share(gpu: GpuSpec) -> float:
    lanes = _LANES_SINGLE_ISSUE if gpu.compute_capability >= _FIRST_SINGLE_ISSUE else _LANES_DUAL_ISSUE
    return min(1.0, lanes / gpu.cores_per_sm) if gpu.cores_per_sm else 1.0
