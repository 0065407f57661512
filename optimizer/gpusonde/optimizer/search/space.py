"""``Space``: everything that can be chosen, as arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpusonde.optimizer.plan import Group, Plan
from gpusonde.optimizer.problem import Offer, Problem, ProblemError
from gpusonde.optimizer.steps import StepTimes

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_MOST_OPTIONS = 2_000_000
# Numbers of machines whose latencies are asked for have this many significant bits.
_LEADING_BITS = 4


@dataclass(frozen=True)
class Options:
    """What can be taken of one offer: some machines with one batch size, by latency.

    Attributes:
        offer: The offer.
        network: Class of its network.
        machines: Shape (n,).
        batch_sizes: Shape (n,), samples per GPU.
        devices: Shape (n,), GPUs of all machines.
        samples: Shape (n,), samples of all machines per iteration, in units of the space.
        usd_per_hour: Shape (n,), of all machines.
        latency_s: Shape (n,), of the slowest GPU, ascending.
    """

    offer: Offer
    network: float
    machines: IntArray
    batch_sizes: IntArray
    devices: IntArray
    samples: IntArray
    usd_per_hour: FloatArray
    latency_s: FloatArray

    def group(self, place: int) -> Group:
        """Return one option as a group."""
        return Group(self.offer.name, int(self.machines[place]), int(self.batch_sizes[place]))


@dataclass(frozen=True)
class Space:
    """All options of a problem for one global batch.

    Attributes:
        options: One entry per offer that can take part.
        unit: Samples that all options and, where a plan exists, the global batch are multiples of.
        samples: The global batch in units.
        single: Plans on one machine only. They are no options: their network is the machine's own, so they are
            estimated one by one.
    """

    options: tuple[Options, ...]
    unit: int
    samples: int
    single: tuple[Plan, ...]


def make_space(problem: Problem, steps: StepTimes) -> Space | None:
    """Return what can be chosen; None when no offer can take part.

    Raises:
        ProblemError: There are too many options.
    """
    groups = []
    single = []
    for offer in problem.offers:
        counted: list[tuple[int, int]] = []
        for batch in problem.candidates(offer):
            most = min(offer.quota, problem.global_batch // (batch * offer.devices))
            if most and math.isfinite(steps.latency_s(offer, batch)):
                counted.append((batch, most))
                if batch * offer.devices == problem.global_batch:
                    single.append(Plan((Group(offer.name, 1, batch),)))
        if counted:
            groups.append((offer, counted))
    if not groups:
        return None
    if sum(most for _, counted in groups for _, most in counted) > _MOST_OPTIONS:
        raise ProblemError("there are too many ways to choose: give fewer batch_sizes, or quotas that are needed")
    unit = math.gcd(*(batch * offer.devices for offer, counted in groups for batch, _ in counted))
    if problem.global_batch % unit:
        return None
    found = tuple(_options(problem, offer, counted, unit, steps) for offer, counted in groups)
    return Space(found, unit, problem.global_batch // unit, tuple(single))


def _options(problem: Problem, offer: Offer, counted: list[tuple[int, int]], unit: int, steps: StepTimes) -> Options:
    machines = np.concatenate([np.arange(1, most + 1) for _, most in counted])
    batches = np.repeat([batch for batch, _ in counted], [most for _, most in counted])
    if steps.exact:
        of_batch = {batch: steps.latency_s(offer, batch) for batch, _ in counted}
        latency = np.array([of_batch[batch] for batch in batches.tolist()])
    else:
        # The slowest of somewhat fewer machines is a bound as good, and there are far fewer such numbers.
        dropped = np.maximum(np.floor(np.log2(machines)).astype(np.int64) - _LEADING_BITS + 1, 0)
        pairs, which = np.unique(np.stack([batches, machines >> dropped << dropped]), axis=1, return_inverse=True)
        each = [steps.latency_s(offer, batch, count) for batch, count in pairs.T.tolist()]
        latency = np.array(each)[which.ravel()]
    # A single machine with the whole batch is a plan of its own, and cannot be part of another one.
    kept = (machines > 1) | (batches * offer.devices < problem.global_batch)
    order = np.flatnonzero(kept)[np.argsort(latency[kept], kind="stable")]
    machines, batches = machines[order], batches[order]
    devices = machines * offer.devices
    return Options(
        offer=offer,
        network=steps.network(offer),
        machines=machines,
        batch_sizes=batches,
        devices=devices,
        samples=devices * batches // unit,
        usd_per_hour=machines * offer.usd_per_hour,
        latency_s=latency[order],
    )
