"""The predictors that Srifty is compared with: APM and Paleo, as its sections 3 and 5.1 describe them.

APM puts three published models together: a straight line for computation (Nexus), the rated bandwidth for the
allreduce (Daydream, NVIDIA's formula for rings) and full overlap (Cynthia). Paleo knows a network's operations and a
device's data sheet, estimates one allreduce algorithm at a time at the rated bandwidth, and overlaps nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpusonde.simulator.compute import ComputeLatency, ComputeProbe, fit_compute_curve
from gpusonde.simulator.gradients import FloatArray


def full_overlap_s(compute: ComputeLatency, exchange_s: FloatArray) -> FloatArray:
    """Return iterations whose exchange runs all the time beside the backward pass, shape (n,), seconds."""
    return np.asarray(compute.forward_s + np.maximum(compute.backward_s, exchange_s))


def fully_overlapped_exchange_s(compute: ComputeLatency, iteration_s: FloatArray) -> FloatArray:
    """Return the exchange behind measured iterations if it overlapped fully, shape (n,); 0 where it does not show."""
    return np.asarray(np.where(iteration_s > compute.total_s, iteration_s - compute.forward_s, 0.0))


@dataclass(frozen=True)
class ApmGroup:
    """Devices of one kind with one batch size.

    Attributes:
        probes: Timed steps at two batch sizes or more, for the straight line.
        devices: How many.
        batch_size: Samples per device and iteration.
        rated_bytes_per_second: Network that the provider states for a device.
    """

    probes: Sequence[ComputeProbe]
    devices: int
    batch_size: float
    rated_bytes_per_second: float


def apm_iteration_s(groups: Sequence[ApmGroup], parameter_bytes: float) -> float:
    """Return APM's seconds of an iteration: the slowest device, the slowest network, nothing varies.

    Raises:
        ValueError: No groups, or a figure that is not above zero.
        ProblemError: The probes of a group make no line.
    """
    if not groups:
        raise ValueError("an iteration needs a device")
    world_size = sum(group.devices for group in groups)
    _above_zero(parameter_bytes=parameter_bytes)
    for group in groups:
        _above_zero(devices=group.devices, rated_bytes_per_second=group.rated_bytes_per_second)
    slowest = max(
        (fit_compute_curve(group.probes, "linear").predict(group.batch_size) for group in groups),
        key=lambda latency: float(latency.total_s[0]),
    )
    rated = min(group.rated_bytes_per_second for group in groups)
    exchange_s = 2.0 * (world_size - 1) / world_size * parameter_bytes / rated
    return float(full_overlap_s(slowest, np.array([exchange_s]))[0])


@dataclass(frozen=True)
class PaleoDevice:
    """A device's data sheet.

    Attributes:
        flops_per_second: Peak.
        memory_bytes_per_second: Peak of its memory.
        share_of_peak: What the framework reaches of both; Paleo's programme takes 1 unless told.
    """

    flops_per_second: float
    memory_bytes_per_second: float
    share_of_peak: float = 1.0


@dataclass(frozen=True)
class PaleoNetwork:
    """What a step does.

    Attributes:
        flops_per_sample: Operations of forward and backward pass.
        bytes_per_sample: Bytes that both read and write of the device's memory.
        parameter_bytes: Bytes of the parameters.
    """

    flops_per_sample: float
    bytes_per_sample: float
    parameter_bytes: float


def paleo_iteration_s(
    network: PaleoNetwork, device: PaleoDevice, devices: int, batch_size: float, rated_bytes_per_second: float
) -> float:
    """Return Paleo's seconds of an iteration on equal devices, over the mean of its allreduce algorithms.

    Computation and memory traffic add up, and so do computation and exchange. The algorithms are those of its
    programme that exchange all gradients: all to one and back, a tree up and down, a butterfly.

    Raises:
        ValueError: A figure that is not above zero.
    """
    _above_zero(
        flops_per_sample=network.flops_per_sample, bytes_per_sample=network.bytes_per_sample,
        parameter_bytes=network.parameter_bytes, flops_per_second=device.flops_per_second,
        memory_bytes_per_second=device.memory_bytes_per_second, share_of_peak=device.share_of_peak, devices=devices,
        batch_size=batch_size, rated_bytes_per_second=rated_bytes_per_second,
    )  # fmt: skip
    operations_s = network.flops_per_sample / device.flops_per_second
    memory_s = network.bytes_per_sample / device.memory_bytes_per_second
    compute_s = batch_size * (operations_s + memory_s) / device.share_of_peak
    height = math.ceil(math.log2(devices))
    transfers = (2.0 * (devices - 1), 2.0 * height, height)
    exchange_s = sum(transfers) / len(transfers) * network.parameter_bytes / rated_bytes_per_second
    return compute_s + exchange_s


def _above_zero(**figures: float) -> None:
    for name, figure in figures.items():
        if not (math.isfinite(figure) and figure > 0):
            raise ValueError(f"{name} {figure} must be finite and above zero")
