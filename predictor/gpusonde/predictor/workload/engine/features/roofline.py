"""Roofline times: what the parts of a training step would take at the peak rates of a device's data sheet.

Each operation takes the longer of its arithmetic and its memory traffic. Beside the device's own work stand what the
host does for it, as it launches the kernels, and what crosses links: inputs, and weights or gradients between devices.
All figures come from the catalogue; ``regression/calibration.py`` learns what share of the peaks is reached.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from gpusonde.catalog import GpuSpec
from gpusonde.predictor.crossgpu.measurement import Precision as MatrixPrecision
from gpusonde.predictor.crossgpu.rates import log_compute_rate
from gpusonde.predictor.workload.engine.features.counts import GraphCounts, OperationClass
from gpusonde.predictor.workload.engine.request import Cluster, Parallelism, Precision

FloatArray = npt.NDArray[np.float64]


class Part(IntEnum):
    """Parts of a training step."""

    DENSE = 0  # convolutions of stride 1 with 3 x 3 kernels
    MATRIX = 1  # other convolutions, products of matrices
    GROUPED = 2  # grouped and depthwise convolutions
    NORMALISATION = 3
    MEMORY = 4  # everything else that operations do
    KERNELS = 5  # weights of convolutions, of which little else may be left where images are small
    UPDATE = 6  # zeroing gradients, updating weights
    LAUNCH = 7  # the host's work to start kernels
    REPLICAS = 8  # the same for further devices of one process
    EXCHANGE = 9  # weights and gradients between devices
    INPUT = 10  # the batch to the devices
    FIXED = 11  # what each step takes, whatever the network


DEVICE_PARTS = (Part.DENSE, Part.MATRIX, Part.GROUPED, Part.NORMALISATION, Part.MEMORY, Part.KERNELS, Part.UPDATE)
HOST_PARTS = (Part.LAUNCH, Part.REPLICAS)
OTHER_PARTS = (Part.EXCHANGE, Part.INPUT, Part.FIXED)

# Before measurements correct them: a framework starts a kernel in 10 microseconds, a step has a millisecond to itself,
# and hosts are linked by 10 Gbit/s.
_LAUNCH_SECONDS = 1e-5
_FIXED_SECONDS = 1e-3
_NETWORK_BYTES_PER_SECOND = 1.25e9
_LANE_BYTES_PER_SECOND = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.97e9, 5: 3.94e9, 6: 7.56e9}
_UNKNOWN_LINK_BYTES_PER_SECOND = 16e9
_UPDATE_PASSES = 3
# A part that a step does not have still needs a logarithm.
_NOTHING = 1e-9

_BYTES = {Precision.FP16: 2, Precision.FP32: 4, Precision.FP64: 8}
_MATRIX_PRECISION = {
    Precision.FP16: MatrixPrecision.MIXED,
    Precision.FP32: MatrixPrecision.FP32,
    Precision.FP64: MatrixPrecision.FP64,
}


@dataclass(frozen=True)
class DeviceRates:
    """Peak rates of a device at one precision.

    Attributes:
        matrix_flops: Of matrix products, tensor cores included where a framework uses them, per second.
        vector_flops: Of everything else, per second.
        memory_bytes: Of its memory, per second.
        link_bytes: To other devices of its host, one direction, per second.
        host_bytes: To its host, one direction, per second.
    """

    matrix_flops: float
    vector_flops: float
    memory_bytes: float
    link_bytes: float
    host_bytes: float

    @classmethod
    def of(cls, gpu: GpuSpec, precision: Precision) -> DeviceRates:
        """Take the figures from a data sheet."""
        kind = _MATRIX_PRECISION[precision]
        lane = _LANE_BYTES_PER_SECOND.get(gpu.pcie_generation or 0)
        host = lane * gpu.pcie_lanes if lane and gpu.pcie_lanes else _UNKNOWN_LINK_BYTES_PER_SECOND
        # Sockets wire all devices of a host; cards have at best a bridge to one neighbour.
        socket = "SXM" in gpu.name or gpu.name.startswith(("B200", "GH200"))
        nvlink = (gpu.nvlink_bytes_per_second or 0.0) / 2
        vector = log_compute_rate(gpu, MatrixPrecision.FP64 if precision is Precision.FP64 else MatrixPrecision.FP32, 0)
        return cls(
            matrix_flops=1e12 * math.exp(log_compute_rate(gpu, kind, 1.0)),
            vector_flops=1e12 * math.exp(vector),
            memory_bytes=gpu.memory_bandwidth_bytes_per_second,
            link_bytes=max(host, nvlink) if socket else host,
            host_bytes=host,
        )


def roofline_parts(counts: GraphCounts, batch_size: int, cluster: Cluster, rates: DeviceRates) -> FloatArray:
    """Seconds of each part of a training step at peak rates.

    Args:
        counts: Of the network.
        batch_size: Samples per device.
        cluster: What it runs on.
        rates: Of its device, at its precision.

    Returns:
        Shape (parts,), all positive.
    """
    width = _BYTES[cluster.precision] / 4
    flops, moved = counts.flops(batch_size), width * counts.bytes(batch_size)
    depthwise = counts.classes == OperationClass.DEPTHWISE
    matrix = counts.classes <= OperationClass.GROUPED
    arithmetic = flops / np.where(matrix, rates.matrix_flops, rates.vector_flops)
    seconds = np.maximum(arithmetic, moved / rates.memory_bytes)
    grouped = depthwise | (counts.classes == OperationClass.GROUPED)
    parts = np.zeros(len(Part))
    parts[Part.DENSE] = seconds[counts.dense_kernel].sum()
    parts[Part.MATRIX] = seconds[matrix & ~grouped & ~counts.dense_kernel].sum()
    parts[Part.GROUPED] = seconds[grouped].sum()
    normalisation = counts.classes == OperationClass.NORMALISATION
    parts[Part.NORMALISATION] = seconds[normalisation].sum()
    parts[Part.MEMORY] = seconds[~matrix & ~grouped & ~normalisation].sum()
    convolution = counts.classes == OperationClass.CONVOLUTION
    parts[Part.KERNELS] = width * counts.fixed_bytes[convolution].sum() / rates.memory_bytes
    weights = width * counts.weight_bytes
    devices, nodes = cluster.device_count, cluster.node_count
    parts[Part.UPDATE] = _UPDATE_PASSES * weights / rates.memory_bytes
    parts[Part.LAUNCH] = counts.launches * _LAUNCH_SECONDS
    if cluster.parallelism is Parallelism.DATA_PARALLEL:
        parts[Part.REPLICAS] = (devices - 1) * counts.launches * _LAUNCH_SECONDS
    if devices > 1:
        # Weights out and gradients back, or a ring's two passes: nearly the same traffic on the busiest link.
        link = min(rates.link_bytes, _NETWORK_BYTES_PER_SECOND) if nodes > 1 else rates.link_bytes
        parts[Part.EXCHANGE] = 2 * (devices - 1) / devices * weights / link
    # One process feeds all devices over its own links, one after the other.
    feeding = devices if cluster.parallelism is Parallelism.DATA_PARALLEL else 1
    parts[Part.INPUT] = feeding * batch_size * width * counts.input_bytes / rates.host_bytes
    parts[Part.FIXED] = _FIXED_SECONDS
    return np.maximum(parts, _NOTHING)
