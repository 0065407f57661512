"""Iterations that were timed on several GPUs alike: what a GPU computes in them, and what their exchange takes.

Who cannot run a job on one GPU can time it where it runs. With the exchange ``x`` as the links' ratings have it, times
a factor ``c`` that all iterations share, an iteration of ``k`` micro-batches lasts as its longest chain does::

    t = k L                                   where the backward pass hides the exchange
    t = (k - 1 + s + (1 - s) ready_j) L + c x_j    behind bucket j

with ``L`` the passes of one micro-batch on the slowest GPU, ``s`` the forward pass's share and ``x_j`` the exchange
from bucket ``j`` on. ``L`` is a straight line over the batch size; it and ``c`` are those by which all iterations agree
best, within what jobs and links of a class scatter: where iterations tell nothing, what is usual holds.

``SmoothCorrection`` says how far all that is off at batch sizes and placements near those that were timed: memory,
loading and power are shared, which no exchange tells.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol

import numpy as np
import numpy.typing as npt

from gpusonde.catalog import GpuSpec
from gpusonde.documents import Number, Whole
from gpusonde.errors import ProblemError
from gpusonde.simulator.compute.fitting import (
    BATCH_POWER,
    USUAL_FORWARD_SHARE,
    USUAL_SPREAD,
    BatchSize,
    ComputeProbe,
    Seconds,
)
from gpusonde.simulator.gradients import FloatArray, GradientTrace, ring_traffic_bytes
from gpusonde.simulator.iteration import MOST_ACCUMULATION_STEPS, mean_slowest
from gpusonde.simulator.links import RatedNetwork, inner_link, outer_link

# Standard deviations, in natural logarithms: of a timed iteration around line and ratings; of ratings, where a factor
# of two is nothing rare; of the passes around the whole iteration, of which anything may be exchange.
_TIMED_SPREAD, _FACTOR_SPREAD, _PASSES_SPREAD = 0.05, 0.7, 3.0
# How far line and ratings may be off that were found so: neither is quite true, however many iterations agree.
_MISFIT = 0.25
# Of the share of the passes that grows with the batch, as the logarithm of its odds.
_USUAL_ODDS, _ODDS_SPREAD = float(np.log((1.0 - BATCH_POWER) / BATCH_POWER)), 1.0
# Natural logarithms: from which the best factor is sought, and where iterations cannot hold their exchange.
_FIRST_FACTORS, _LEAST_FACTOR = (-1.5, 0.0, 1.0), -2.5
_SAMPLES = 256
# A Gaussian process of more takes too long; so many tell as much.
_MOST_CORRECTED = 300
_MOST_GPUS = 100_000


Placement = tuple[int, ...]


@dataclass(frozen=True)
class TimedIteration:
    """Iterations that were timed on GPUs of one model.

    Attributes:
        batch_size: Samples per GPU and micro-batch.
        seconds: Of an iteration, the median where there were several.
        gpus: How many.
        machines: On so many machines, as many on each.
        network_bytes_per_second: Rating of a machine's network; only of several machines.
        accumulation_steps: Micro-batches per iteration.

    Raises:
        ProblemError: GPUs that do not share out evenly, or several machines without a network.
    """

    batch_size: BatchSize
    seconds: Seconds
    gpus: Annotated[int, Whole(most=_MOST_GPUS)] = 1
    machines: Annotated[int, Whole(most=_MOST_GPUS)] = 1
    network_bytes_per_second: Annotated[float, Number(most=1e15)] | None = None
    accumulation_steps: Annotated[int, Whole(most=MOST_ACCUMULATION_STEPS)] = 1

    def __post_init__(self) -> None:
        if self.gpus % self.machines:
            raise ProblemError(f"{self.gpus} gpus on {self.machines} machines: give iterations with as many on each")
        if self.machines > 1 and self.network_bytes_per_second is None:
            raise ProblemError("network_bytes_per_second is missing: of several machines give the network's rating")

    @property
    def placement(self) -> Placement:
        """GPUs on each machine."""
        return (self.gpus // self.machines,) * self.machines

    def exchange_s(self, trace: GradientTrace, gpu: GpuSpec | None) -> FloatArray:
        """Return the seconds in which each bucket and those behind it are exchanged, by ratings, shape (buckets,)."""
        if self.gpus == 1:
            return np.zeros(trace.bucket_bytes.size)
        rate = self.network_bytes_per_second
        between = None if self.machines == 1 or rate is None else outer_link(rate)
        network = RatedNetwork(inner_link(gpu), self.gpus // self.machines, between)
        reached = network.bus_bandwidth(trace.bucket_bytes, self.gpus).bytes_per_second
        each = ring_traffic_bytes(trace.bucket_bytes, self.gpus) / reached
        return np.asarray(np.cumsum(each[::-1])[::-1])


@dataclass(frozen=True)
class IterationCalibration:
    """What timed iterations say.

    Attributes:
        probes: Passes of one micro-batch on one GPU, one for each batch size.
        exchange_factor: Times the exchange that ratings say.
        factor_spread: Standard deviation of its natural logarithm.
        correction: What such iterations take beyond all that.
    """

    probes: tuple[ComputeProbe, ...]
    exchange_factor: float
    factor_spread: float
    correction: SmoothCorrection


def calibrate(
    iterations: Sequence[TimedIteration], trace: GradientTrace, gpu: GpuSpec | None, *, optimizer_s: float = 0.0
) -> IterationCalibration:
    """Return what computes and what exchanges in iterations of a job.

    Args:
        iterations: On GPUs of one model.
        trace: The job's gradients.
        gpu: The model; None for one that no data sheet knows, which is taken to have PCI Express.
        optimizer_s: Seconds of the optimizer's step, which is in the iterations.

    Raises:
        ProblemError: No iterations, or some shorter than the optimizer's step or than what they exchange.
    """
    # Slow to import; a collector starts without it.
    from scipy.optimize import least_squares  # noqa: PLC0415

    if not iterations:
        raise ProblemError("there are no iterations to calibrate with: give some")
    for row in iterations:
        if row.seconds <= optimizer_s:
            raise ProblemError(f"an iteration of {row.seconds:g} s is shorter than its optimizer_s {optimizer_s:g}")
    chains = _Chains.of(iterations, trace, gpu)
    batch = np.array([row.batch_size for row in iterations])
    timed = np.log([row.seconds - optimizer_s for row in iterations])
    middle = float(np.exp(np.log(batch).mean()))
    alone = float(np.median(timed - np.log(chains.slopes[:, 0]) - np.log(batch / middle)))
    usual = np.array([alone, _USUAL_ODDS, 0.0])
    spread = np.array([_PASSES_SPREAD, _ODDS_SPREAD, _FACTOR_SPREAD])

    def passes_s(at: FloatArray, found: FloatArray) -> FloatArray:
        return np.asarray(np.exp(found[0]) * (1.0 + _share(found[1]) * (at / middle - 1.0)))

    def off(found: FloatArray) -> FloatArray:
        said = chains.iteration_s(passes_s(batch, found), float(np.exp(found[2])))
        return np.concatenate([(np.log(said) - timed) / _TIMED_SPREAD, (found - usual) / spread])

    tried = [least_squares(off, [alone, _USUAL_ODDS, factor]) for factor in _FIRST_FACTORS]
    best = min(tried, key=lambda each: float(each.cost))
    if best.x[2] < _LEAST_FACTOR:
        raise ProblemError("these iterations are shorter than what they exchange: check gradients and gpus")
    tells = np.asarray(best.jac)[: len(iterations)] * _TIMED_SPREAD / _MISFIT
    doubt = np.linalg.inv(tells.T @ tells + np.diag(spread**-2))
    asked = np.unique(batch)
    found_s, share = passes_s(asked, best.x), _share(best.x[1])
    by_odds = share * (1.0 - share) * (asked / middle - 1.0) * np.exp(best.x[0]) / found_s
    sd = np.sqrt(doubt[0, 0] + 2.0 * doubt[0, 1] * by_odds + doubt[1, 1] * by_odds**2)
    probes = zip(asked.tolist(), found_s.tolist(), sd.tolist(), strict=True)
    every = -(-len(iterations) // _MOST_CORRECTED)
    return IterationCalibration(
        tuple(ComputeProbe(at, both_s, uncertainty=off_by) for at, both_s, off_by in probes),
        float(np.exp(best.x[2])),
        float(np.sqrt(doubt[2, 2])),
        SmoothCorrection(iterations[::every], -_TIMED_SPREAD * off(best.x)[: len(iterations) : every]),
    )


def _share(odds: float) -> float:
    return float(1.0 / (1.0 + np.exp(-odds)))


@dataclass(frozen=True)
class _Chains:
    """Chains that iterations may last as, ``slopes * passes + factor * exchange_s``, shape (n, chains) each."""

    slopes: FloatArray
    exchange_s: FloatArray

    @classmethod
    def of(cls, rows: Sequence[TimedIteration], trace: GradientTrace, gpu: GpuSpec | None) -> _Chains:
        steps = np.array([row.accumulation_steps for row in rows], dtype=np.float64)[:, None]
        behind = steps - 1 + USUAL_FORWARD_SHARE + (1.0 - USUAL_FORWARD_SHARE) * trace.ready_fractions
        slowest = np.array([mean_slowest(USUAL_SPREAD, row.gpus, _SAMPLES) for row in rows])
        exchange_s = np.stack([row.exchange_s(trace, gpu) for row in rows])
        return cls(slowest[:, None] * np.hstack([steps, behind]), np.hstack([np.zeros((len(rows), 1)), exchange_s]))

    def iteration_s(self, passes_s: FloatArray, factor: float) -> FloatArray:
        """Return iterations, shape (n,), from passes of a micro-batch, shape (n,)."""
        return np.asarray((self.slopes * passes_s[:, None] + factor * self.exchange_s).max(axis=1))


class PlacedIteration(Protocol):
    """An iteration that was timed."""

    @property
    def placement(self) -> Placement:
        """Devices on each machine."""

    @property
    def batch_size(self) -> float:
        """Samples per device and micro-batch."""


# Of natural logarithms of seconds: what all placements share and what is one's own, and the noise of a measurement.
_SHARED_CORRECTIONS = (0.03, 0.1, 0.3)
_OWN_CORRECTIONS = (0.03, 0.1)
_CORRECTION_NOISES = (0.03, 0.06, 0.12)
_CORRECTION_ROUNDS = 2
_BATCH_LENGTH, _PLACEMENT_LENGTH = 1.0, 0.7  # in natural logarithms
_FAR_OFF = 1.5  # in standard deviations; what is further counts less (Huber)


class SmoothCorrection:
    """What timed iterations take beyond what is predicted: a Gaussian process over batch sizes and placements.

    Args:
        measured: Iterations, at least one.
        beyond: Shape (n,), natural logarithm of each over what is predicted of it.
    """

    def __init__(self, measured: Sequence[PlacedIteration], beyond: FloatArray) -> None:
        self._batches = np.log([each.batch_size for each in measured])
        self._placements = [each.placement for each in measured]
        self._logarithms = np.array([placement_logarithms(each) for each in self._placements])
        settings = itertools.product(_SHARED_CORRECTIONS, _OWN_CORRECTIONS, _CORRECTION_NOISES)
        self._shared, self._own, self._noise = np.array(list(settings)).T[:, :, None]
        smooth = np.concatenate([self._across(each.placement, np.log([each.batch_size])) for each in measured], axis=1)
        diagonal = np.arange(len(measured))
        trust = np.ones(self._noise.shape)
        for _ in range(_CORRECTION_ROUNDS):
            covariance = smooth.copy()
            covariance[:, diagonal, diagonal] += self._noise**2 / trust
            self._precision = np.linalg.inv(covariance)
            self._weights = self._precision @ beyond
            trust = 1.0 / np.maximum(1.0, self._noise * np.abs(self._weights) / trust / _FAR_OFF)
        self._shares = shares_of(-0.5 * (self._weights @ beyond + np.linalg.slogdet(covariance)[1]))

    def predict(self, placement: Placement, batch_sizes: npt.ArrayLike) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return natural logarithms of factors, shape (n,), the share of doubt that is left, and noise.

        The share of doubt is 1 where nothing like it was measured. The noise is the standard deviation of one
        measurement, in natural logarithms.
        """
        across = self._across(placement, np.log(batch_sizes))
        before = self._shared**2 * 2.0 + self._own**2
        explained = ((across @ self._precision) * across).sum(axis=-1)
        left = self._shares @ np.clip(1.0 - explained / before, 0.0, 1.0)
        noise = np.sqrt(self._shares @ self._noise**2)
        return self._shares @ (across @ self._weights[:, :, None])[:, :, 0], left, noise

    def _across(self, placement: Placement, batches: FloatArray) -> FloatArray:
        """Covariance of one placement's batch sizes, logarithms of shape (m,), with the measured: (settings, m, n)."""
        by_batch = np.exp(-0.5 * ((batches[:, None] - self._batches) / _BATCH_LENGTH) ** 2)
        far = ((placement_logarithms(placement) - self._logarithms) ** 2).sum(axis=-1)
        near = 1.0 + np.exp(-0.5 * far / _PLACEMENT_LENGTH**2)
        same = np.array([each == placement for each in self._placements])
        return np.asarray(by_batch * (self._shared**2 * near + self._own**2 * same)[:, None, :])


def placement_logarithms(placement: Placement) -> FloatArray:
    """Return what makes placements alike: natural logarithms of devices, machines, and devices of machines."""
    return np.log([sum(placement), len(placement), max(placement), min(placement)])


def shares_of(log_evidence: FloatArray) -> FloatArray:
    """Return how much each setting counts, by how well it explains what was measured."""
    weights = np.exp(log_evidence - log_evidence.max())
    return np.asarray(weights / weights.sum())
