"""``IterationSimulator``: how long one iteration of synchronous data-parallel training takes on a set of devices.

``t = forward + max(backward, exchange) + optimizer step`` (Srifty, section 4.3, which leaves the last term out).
Forward and backward pass last as long as on the slowest device, whose latency is a random maximum: every device
scatters around its curve. The exchange begins with the backward pass and moves each bucket as soon as the slowest
device has it.

A ``StepMode`` says what else a job does in an iteration. Gradients of several micro-batches are added up before one
exchange. Sharded data parallel (ZeRO, Rajbhandari et al. 2020; torch's FSDP) sends an allreduce as its two halves: with
gradients sharded a reduce-scatter behind each backward pass and an all-gather of the new weights; with weights sharded
too, an all-gather ahead of the forward pass and another with a reduce-scatter beside the backward pass, half as much
again as an allreduce, for every micro-batch.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr, ndtri, ndtri_exp

from gpusonde.documents import Whole
from gpusonde.simulator.communication import BandwidthSharing, simulate_communications
from gpusonde.simulator.compute import ComputeCurve, ComputeLatency
from gpusonde.simulator.gradients import FloatArray, GradientTrace, ring_traffic_bytes

IntArray = npt.NDArray[np.int64]

# A step never takes less than this share of its usual latency, however far a normal distribution reaches.
_LEAST_SHARE = 0.5
# Their roots are irrational and unrelated: of the network, and of the slowest device.
_PRIMES = (2, 3)
# Beyond so many deviations a device takes no part in what the slowest takes; Newton's steps, and where they end.
_SURE_DEVIATIONS, _MOST_STEPS, _SAME = 8.0, 50, 1e-13
# Latencies of groups are compared to so many digits, so that both passes are drawn at once.
_DIGITS = 13
# The tails that mean and deviation of the slowest leave out, and the points at which its distribution is taken.
_RARE, _POINTS = 1e-6, 24


# More micro-batches than this per iteration are a mistake.
MOST_ACCUMULATION_STEPS = 1024
# 95th percentile of a standard normal distribution: where an interval that holds 90 % ends.
INTERVAL_END = 1.6448536269514722


class Sharding(Enum):
    """What the devices of a data-parallel job share out among them instead of holding it each."""

    NONE = "none"
    ZERO2 = "zero2"  # gradients and the optimizer's state; FSDP's SHARD_GRAD_OP
    ZERO3 = "zero3"  # the weights too; FSDP's FULL_SHARD


@dataclass(frozen=True)
class StepMode:
    """How a job runs its iterations.

    Attributes:
        accumulation_steps: Micro-batches of an iteration, whose gradients add up before the weights change.
        sharding: What the devices share out among them.
        checkpointing: Activations are computed again in the backward pass instead of being kept.
    """

    accumulation_steps: Annotated[int, Whole(most=MOST_ACCUMULATION_STEPS)] = 1
    sharding: Sharding = Sharding.NONE
    checkpointing: bool = False

    @property
    def exchanged_share(self) -> float:
        """What moves beside a backward pass, as a share of an allreduce."""
        return 0.5 if self.sharding is Sharding.ZERO2 else 1.0

    def iteration_s(self, forward: FloatArray, backward: FloatArray, moved: Moved) -> FloatArray:
        """Return iterations without the optimizer's step, shape (n,), from passes of one micro-batch."""
        steps = self.accumulation_steps
        end = np.maximum(backward, moved.exchange_s)
        if self.sharding is Sharding.ZERO3:
            return np.asarray(steps * (np.maximum(moved.first_s + forward, moved.gather_s) + end))
        if self.sharding is Sharding.ZERO2:
            return np.asarray(steps * (forward + end) + moved.gather_s)
        return np.asarray((steps - 1) * (forward + backward) + forward + end)

    def __str__(self) -> str:
        words = [f"{self.accumulation_steps} micro-batches"] if self.accumulation_steps > 1 else []
        words += [self.sharding.value] if self.sharding is not Sharding.NONE else []
        words += ["checkpointed"] if self.checkpointing else []
        return ", ".join(words)


PLAIN_STEPS = StepMode()


@dataclass(frozen=True)
class Moved:
    """What a micro-batch communicates, seconds of shape (n,).

    Attributes:
        exchange_s: End of what moves beside the backward pass, from its start.
        gather_s: To gather all weights.
        first_s: To gather those that the forward pass begins with.
    """

    exchange_s: FloatArray
    gather_s: FloatArray
    first_s: FloatArray


@dataclass(frozen=True)
class BusBandwidth:
    """Bus bandwidth of allreduces.

    Attributes:
        bytes_per_second: Shape (n,), typical.
        log_spread: Shape (n,), standard deviation of its natural logarithm over placements and time.
    """

    bytes_per_second: FloatArray
    log_spread: FloatArray


class NetworkModel(Protocol):
    """Says what an allreduce reaches between the devices of a plan."""

    def bus_bandwidth(self, transfer_bytes: FloatArray, world_size: int) -> BusBandwidth:
        """Return the bus bandwidth of single transfers, sizes of shape (n,), among ``world_size`` devices."""
        ...


@dataclass(frozen=True)
class DeviceGroup:
    """Devices of one kind with one batch size.

    Attributes:
        curve: Their compute curve.
        devices: How many, 1 or more.
        batch_size: Samples per device and iteration.
    """

    curve: ComputeCurve
    devices: int
    batch_size: float

    def __post_init__(self) -> None:
        if self.devices < 1:
            raise ValueError(f"a group has one device or more, not {self.devices}")
        if not self.batch_size > 0:
            raise ValueError(f"a batch size is above zero, not {self.batch_size}")

    @functools.cached_property
    def latency(self) -> ComputeLatency:
        """Of one device."""
        return self.curve.predict(self.batch_size)


@dataclass(frozen=True)
class IterationEstimate:
    """What an iteration takes, all in seconds.

    Attributes:
        mean_s: Mean.
        p50_s: Median.
        p95_s: 95th percentile.
        sd_s: Standard deviation.
        forward_s: Mean of the forward pass of the slowest device, over all micro-batches.
        backward_s: Mean of its backward pass, likewise.
        exchange_s: Mean end of the exchange, from the start of a backward pass.
        exposed_communication_s: Mean time in which devices only wait for the exchange.
        optimizer_s: Optimizer step.
        extrapolated: True when a batch size lies outside of what a curve was made from.
        steady_sd_s: Standard deviation where every transfer reaches what it typically does.
        uncertainty_s: By how much a typical iteration is longer where every curve lies at the upper end of its 90 %
            interval. The other figures know nothing of it.
    """

    mean_s: float
    p50_s: float
    p95_s: float
    sd_s: float
    forward_s: float
    backward_s: float
    exchange_s: float
    exposed_communication_s: float
    optimizer_s: float
    extrapolated: bool
    steady_sd_s: float
    uncertainty_s: float


class IterationSimulator:
    """Simulates iterations of one job.

    Args:
        trace: Its gradients.
        network: What allreduces reach.
        sharing: How concurrent transfers share a link.
        optimizer_s: Seconds of the optimizer step, 0 when it is in the curves already.
        mode: How iterations are run; curves of checkpointed steps are ``ComputeCurve.checkpointed``.
        samples: Iterations to draw; they are spread evenly over the distribution, so that some hundred suffice.
        seed: Where the sequence of draws begins.

    Raises:
        ValueError: A negative optimizer step, or fewer than one sample.
    """

    def __init__(
        self,
        trace: GradientTrace,
        network: NetworkModel,
        sharing: BandwidthSharing | None = None,
        *,
        optimizer_s: float = 0.0,
        mode: StepMode = PLAIN_STEPS,
        samples: int = 256,
        seed: int = 0,
    ) -> None:
        if not optimizer_s >= 0:
            raise ValueError(f"optimizer_s must not be negative, not {optimizer_s}")
        if samples < 1:
            raise ValueError(f"samples must be 1 or more, not {samples}")
        self._trace = trace
        self._network = network
        self._sharing = sharing or BandwidthSharing()
        self._optimizer_s = optimizer_s
        self._mode = mode
        self._samples = samples
        self._seed = seed
        # By world size.
        self._bandwidths: dict[int, BusBandwidth] = {}

    def estimate(self, groups: Sequence[DeviceGroup]) -> IterationEstimate:
        """Return what an iteration takes on these devices.

        Raises:
            ValueError: No groups.
        """
        samples, world_size = self._samples, _world_size(groups)
        forward, backward = draw_slowest(groups, samples, self._seed)
        usual = _pass_usual_and_uncertain(groups)
        # At once what is drawn, the same on typical placements, and the two without scatter.
        passes = np.concatenate([np.tile([forward, backward], 2), usual], axis=1)
        places = np.zeros(passes.shape[1])
        places[:samples] = ndtri(even_levels(samples, 0, self._seed))
        moved = self._communicate(passes[1], world_size, places)
        iterations = self._mode.iteration_s(passes[0], passes[1], moved)
        total, steady = (self._optimizer_s + iterations[:-2]).reshape(2, samples)
        steps = self._mode.accumulation_steps
        exposed = total - self._optimizer_s - steps * (forward + backward)
        p50, p95 = np.quantile(total, [0.5, 0.95])
        return IterationEstimate(
            mean_s=float(total.mean()),
            p50_s=float(p50),
            p95_s=float(p95),
            sd_s=float(total.std()),
            forward_s=steps * float(forward.mean()),
            backward_s=steps * float(backward.mean()),
            exchange_s=float(moved.exchange_s[:samples].mean()),
            exposed_communication_s=max(0.0, float(exposed.mean())),
            optimizer_s=self._optimizer_s,
            extrapolated=any(bool(group.latency.extrapolated[0]) for group in groups),
            steady_sd_s=float(steady.std()),
            uncertainty_s=float(iterations[-1] - iterations[-2]),
        )

    def _communicate(self, backward: FloatArray, world_size: int, draws: FloatArray) -> Moved:
        """Return what a micro-batch communicates.

        Args:
            backward: Shape (n,), backward pass of the slowest device.
            world_size: Number of devices.
            draws: Shape (n,), standard normal numbers that say how well the placement is connected.
        """
        nothing = np.zeros_like(backward)
        if world_size == 1:
            return Moved(nothing, nothing, nothing)
        if world_size not in self._bandwidths:
            self._bandwidths[world_size] = self._network.bus_bandwidth(self._trace.bucket_bytes, world_size)
        bandwidth = self._bandwidths[world_size]
        # A slow placement is slow for all buckets of a job.
        reached = bandwidth.bytes_per_second * np.exp(draws[:, None] * bandwidth.log_spread)
        traffic = np.broadcast_to(ring_traffic_bytes(self._trace.bucket_bytes, world_size), reached.shape)
        ready = backward[:, None] * self._trace.ready_fractions
        finish = simulate_communications(
            ready,
            self._mode.exchanged_share * traffic,
            reached,
            capacity_bytes_per_second=self._sharing.capacity_bytes_per_second,
            max_in_flight=self._sharing.max_in_flight,
            share=self._sharing.share,
        )
        gathered = gather_s(traffic, reached, self._sharing)
        return Moved(np.asarray(finish.max(axis=1)), *gathered)


def gather_s(traffic: FloatArray, reached: FloatArray, sharing: BandwidthSharing) -> tuple[FloatArray, FloatArray]:
    """Return the seconds to gather all weights, and those of the forward pass's first bucket, shape (...) each.

    Weights are gathered one bucket after the other, each as long as half of its gradients' allreduce.

    Args:
        traffic: Shape (..., buckets), bytes of an allreduce of each.
        reached: Shape (..., buckets), bus bandwidth.
        sharing: How much a link carries at most.
    """
    each = 0.5 * traffic / np.minimum(reached, sharing.capacity_bytes_per_second)
    return np.asarray(each.sum(axis=-1)), np.asarray(each[..., -1])


def draw_slowest(groups: Sequence[DeviceGroup], samples: int, seed: int = 0) -> tuple[FloatArray, FloatArray]:
    """Draw forward and backward pass of the slowest device, each of shape (samples,), seconds.

    The maximum of independent devices is drawn directly, from its own distribution: of ``n`` alike its quantile at
    ``u`` is that of one device at the n-th root of ``u``. The levels ``u``, the same for both passes, are spread
    evenly, so that mean and quantiles converge with one over the number of samples instead of its root, and the cost
    does not grow with the number of devices.

    Args:
        groups: The devices.
        samples: How many iterations.
        seed: Where the sequence of draws begins.
    """
    drawn = []
    for usual_s in (
        [float(group.latency.forward_s[0]) for group in groups],
        [float(group.latency.backward_s[0]) for group in groups],
    ):
        most_s = max(usual_s)
        # Devices alike are one group, so that plans of the same devices are equal to the last digit.
        alike: dict[tuple[float, float], int] = {}
        for each_s, group in zip(usual_s, groups, strict=True):
            key = round(each_s / most_s, _DIGITS), float(group.latency.spread[0])
            alike[key] = alike.get(key, 0) + group.devices
        drawn.append(most_s * _slowest_of_groups(tuple(sorted(alike.items())), samples, seed))
    return drawn[0], drawn[1]


def _pass_usual_and_uncertain(groups: Sequence[DeviceGroup]) -> FloatArray:
    """Return both passes of the slowest device, as usual and if every curve lies at the upper end of its interval.

    Shape (2, 2), without scatter.
    """
    latencies = [group.latency for group in groups]
    factors = np.array([(1.0, math.exp(INTERVAL_END * float(each.uncertainty[0]))) for each in latencies])
    passes = np.array([(float(each.forward_s[0]), float(each.backward_s[0])) for each in latencies])
    return np.asarray((passes[:, :, None] * factors[:, None, :]).max(axis=0))


# An estimate asks twice in a row.
@functools.lru_cache(maxsize=8)
def _slowest_of_groups(groups: tuple[tuple[tuple[float, float], int], ...], samples: int, seed: int) -> FloatArray:
    """Draw the slowest of all devices of some groups, shape (samples,), per the longest latency; not to be written to.

    Args:
        groups: Latency of one device of each, per the longest, its relative standard deviation, and how many.
        samples: Draws.
        seed: Where the sequence of draws begins.
    """
    levels = even_levels(samples, 1, seed)
    own = [usual * _slowest_factor(spread, count, levels) for (usual, spread), count in groups]
    slowest: FloatArray = np.max(own, axis=0)
    slowest.flags.writeable = False
    # Those that are sure to be faster, or do not scatter, count no more.
    counting = [
        (usual, spread, count)
        for (usual, spread), count in groups
        if spread and usual * (1.0 + _SURE_DEVIATIONS * spread) > slowest.min()
    ]
    if len(counting) < 2:
        return slowest
    means, scatters, counts = np.array(counting).T[:, :, None]
    # The logarithm of a normal distribution function is concave: from below, Newton's steps never go too far.
    for _ in range(_MOST_STEPS):
        deviations = (slowest / means - 1.0) / scatters
        below = log_ndtr(deviations)
        hazard = np.exp(-0.5 * deviations**2 - below) / math.sqrt(2.0 * math.pi)
        missing = np.log(levels) - (counts * below).sum(axis=0)
        step = np.maximum(missing / (counts * hazard / (means * scatters)).sum(axis=0), 0.0)
        slowest = slowest + step
        if (step < _SAME * slowest).all():
            break
    slowest.flags.writeable = False
    return slowest


def _slowest_factor(spread: float, devices: int, levels: FloatArray) -> FloatArray:
    """Return quantiles of the slowest of devices alike, per latency of one."""
    return np.maximum(1.0 + spread * ndtri(levels ** (1.0 / devices)), _LEAST_SHARE)


@functools.lru_cache(maxsize=4096)
def mean_slowest(spread: float, devices: int, samples: int) -> float:
    """Return the mean latency of the slowest of some devices alike, as ``draw_slowest`` has it, per that of one.

    Args:
        spread: Relative standard deviation of one.
        devices: How many.
        samples: Draws.
    """
    return float(_slowest_factor(spread, devices, even_levels(samples, 1, 0)).mean())


def expect_slowest(usual_s: FloatArray, spreads: FloatArray, devices: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return mean and relative standard deviation of the slowest device of many plans, shape (n,) each, undrawn.

    Args:
        usual_s: Shape (n, k), of one device of each group, seconds, 0 where a plan has fewer groups.
        spreads: Shape (n, k), its relative standard deviation.
        devices: Shape (n, k), how many.
    """
    spreads, several = np.maximum(spreads, _SAME), np.maximum(devices, 1.0)
    low_s = (usual_s * (1.0 + spreads * ndtri_exp(math.log(_RARE) / several))).max(axis=1)
    high_s = (usual_s * (1.0 - spreads * ndtri_exp(math.log(_RARE) - np.log(several)))).max(axis=1)
    points, weights = _points()
    at_s = low_s[:, None] + (high_s - low_s)[:, None] * points
    log_below = np.zeros(at_s.shape)
    for usual, spread, count in zip(usual_s.T, spreads.T, devices.T, strict=True):
        deviations = (at_s / np.maximum(usual, _SAME)[:, None] - 1.0) / spread[:, None]
        log_below += count[:, None] * log_ndtr(deviations)
    above_s = -np.expm1(log_below) * weights * (high_s - low_s)[:, None]
    mean_s = low_s + above_s.sum(axis=1)
    variance = low_s**2 + 2.0 * (at_s * above_s).sum(axis=1) - mean_s**2
    return mean_s, np.sqrt(np.maximum(variance, 0.0)) / mean_s


@functools.cache
def _points() -> tuple[FloatArray, FloatArray]:
    """Points and weights of an integral from 0 to 1 (Gauss and Legendre)."""
    points, weights = np.polynomial.legendre.leggauss(_POINTS)
    return (points + 1.0) / 2.0, weights / 2.0


@functools.lru_cache(maxsize=256)
def even_levels(samples: int, dimension: int, seed: int = 0) -> FloatArray:
    """Levels between 0 and 1, evenly spread, in an order in which those of both dimensions meet evenly (Kronecker).

    Args:
        samples: How many.
        dimension: Number of the independent draw, 0 for the network, 1 for the devices.
        seed: Where the sequence begins.
    """
    order = (np.arange(samples) + samples * seed) * math.sqrt(_PRIMES[dimension]) % 1.0
    places = np.argsort(np.argsort(order, kind="stable"), kind="stable")
    levels = np.asarray((places + 0.5) / samples)
    levels.flags.writeable = False
    return levels


def _world_size(groups: Sequence[DeviceGroup]) -> int:
    if not groups:
        raise ValueError("an iteration needs a device")
    return sum(group.devices for group in groups)
