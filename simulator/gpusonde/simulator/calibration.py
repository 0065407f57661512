"""Iterations that were timed on several GPUs alike: what a GPU computes in them, and what their exchange takes.

Who cannot run a job on one GPU can time it where it runs. With the exchange ``x`` as the links' ratings have it, times
a factor ``c`` that all iterations share, an iteration of ``k`` micro-batches lasts as its longest chain does::

    t = k L                                   where the backward pass hides the exchange
    t = (k - 1 + s + (1 - s) ready_j) L + c x_j    behind bucket j

with ``L`` the passes of one micro-batch, ``s`` the forward pass's share and ``x_j`` the exchange from bucket ``j`` on.
For a given ``c`` the ``L`` of every iteration follows without a search; ``c`` is the one by which iterations of a batch
size agree best, within what links of a class scatter. Iterations of one batch size with different numbers of
micro-batches or GPUs tell both apart; where nothing does, the rating holds.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from gpusonde.catalog import GpuSpec
from gpusonde.documents import Number, Whole
from gpusonde.errors import ProblemError
from gpusonde.simulator.compute.fitting import BatchSize, ComputeProbe, Seconds
from gpusonde.simulator.gradients import FloatArray, GradientTrace, ring_traffic_bytes
from gpusonde.simulator.iteration import MOST_ACCUMULATION_STEPS
from gpusonde.simulator.links import RatedNetwork, inner_link, outer_link

# Relative standard deviation of a timed iteration, and what ratings are off by: a factor of e^0.7 = 2 is nothing rare.
_TIMED_SPREAD, _FACTOR_SPREAD = 0.03, 0.7
_FACTORS = np.exp(np.linspace(-2.5, 2.5, 101))
_FORWARD_SHARE = 1.0 / 3.0
_MOST_GPUS = 100_000


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
    """

    probes: tuple[ComputeProbe, ...]
    exchange_factor: float


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
        ProblemError: No iterations, or one shorter than the optimizer's step.
    """
    if not iterations:
        raise ProblemError("there are no iterations to calibrate with: give some")
    for row in iterations:
        if row.seconds <= optimizer_s:
            raise ProblemError(f"an iteration of {row.seconds:g} s is shorter than its optimizer_s {optimizer_s:g}")
    chains = [_Chains.of(row, trace, gpu, optimizer_s) for row in iterations]
    by_batch: dict[float, list[_Chains]] = defaultdict(list)
    for row, chain in zip(iterations, chains, strict=True):
        by_batch[row.batch_size].append(chain)
    cost = (np.log(_FACTORS) / _FACTOR_SPREAD) ** 2
    passes_s = {}
    for batch_size, rows in by_batch.items():
        found = np.stack([row.passes_s() for row in rows])
        # Where the exchange alone lasts longer than the iteration, the factor is too large.
        possible = (found > 0).all(axis=0)
        middle = np.exp(np.log(np.maximum(found, 1e-12)).mean(axis=0))
        off = sum((np.log(row.iteration_s(middle) / row.seconds) / _TIMED_SPREAD) ** 2 for row in rows)
        cost = cost + np.where(possible, off, math.inf)
        passes_s[batch_size] = middle
    if not np.isfinite(cost).any():
        raise ProblemError("these iterations are shorter than what they exchange: check gradients and gpus")
    best = int(np.argmin(cost))
    probes = tuple(ComputeProbe(batch, float(passes_s[batch][best])) for batch in sorted(passes_s))
    return IterationCalibration(probes, float(_FACTORS[best]))


@dataclass(frozen=True)
class _Chains:
    """The chains that an iteration may last as, ``slopes * passes + factor * exchange_s``, shape (chains,) each."""

    seconds: float
    slopes: FloatArray
    exchange_s: FloatArray

    @classmethod
    def of(cls, row: TimedIteration, trace: GradientTrace, gpu: GpuSpec | None, optimizer_s: float) -> _Chains:
        steps = row.accumulation_steps
        behind = steps - 1 + _FORWARD_SHARE + (1.0 - _FORWARD_SHARE) * trace.ready_fractions
        slopes = np.concatenate([[float(steps)], behind])
        return cls(row.seconds - optimizer_s, slopes, np.concatenate([[0.0], row.exchange_s(trace, gpu)]))

    def passes_s(self) -> FloatArray:
        """Return both passes of a micro-batch as the iteration has them, by factor."""
        left = self.seconds - _FACTORS[:, None] * self.exchange_s
        return np.asarray((left / self.slopes).min(axis=1))

    def iteration_s(self, passes_s: FloatArray) -> FloatArray:
        """Return the iteration, by factor, of passes by factor."""
        return np.asarray((self.slopes * passes_s[:, None] + _FACTORS[:, None] * self.exchange_s).max(axis=1))
