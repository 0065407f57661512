"""``StepTimes``: what the optimizer knows about the duration of an iteration.

The search needs two things: a lower bound that depends on nothing but the slowest latency, the number of GPUs and the
slowest network of a plan, because whole sets of plans can be dismissed with it; and an estimate of single plans.
Where the bound is the estimate (``exact``), the search never asks for estimates of plans on several machines.
Both hold for one way to run an iteration (``StepMode``); ``in_mode`` returns those of another.
``TableSteps`` come from a table, ``simulated_steps.SimulatedSteps`` from the iteration simulator.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from gpusonde.errors import ProblemError
from gpusonde.optimizer.problem import MachineOffer, Plan
from gpusonde.simulator.iteration import (
    INTERVAL_END,
    PLAIN_STEPS,
    StepMode,
)

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class StepEstimate:
    """Duration of an iteration of a plan.

    Attributes:
        mean_s: Mean.
        sd_s: Standard deviation of single iterations.
        p95_s: 95th percentile of single iterations.
        shared_sd_s: The part of ``sd_s`` that all iterations of a run have in common; None for all of it. It comes from
            where the machines were placed or from the model's own error, and does not average out over a run.
        doubt: Of curves that are known to a factor only, the standard deviation of the logarithm of the iteration; it
            is a part of ``shared_sd_s``.
    """

    mean_s: float
    sd_s: float
    p95_s: float
    shared_sd_s: float | None = None
    doubt: float = 0.0

    def run_sd_s(self, iterations: int) -> float:
        """Return the standard deviation of the time of all iterations together, seconds."""
        shared_s = self.sd_s if self.shared_sd_s is None else self.shared_sd_s
        own_variance = max(self.sd_s**2 - shared_s**2, 0.0)
        return math.sqrt((iterations * shared_s) ** 2 + iterations * own_variance)


class StepTimes(Protocol):
    """Says how long iterations take.

    An attribute ``least_spread`` may say what relative standard deviation, shared by the iterations of a run, every
    plan has at least (0 without it). It lets the search dismiss plans whose mean only just meets a deadline. So does a
    method ``kept_s`` with the arguments of ``bound_s``, a confidence, and ``most_s``, which the slowest GPU stays
    below: a lower bound of what an iteration takes at that confidence, per iteration of a run. A method ``slowest_s``
    may say of plans what ``latency_s`` says of a group, and the relative standard deviation of that, which makes
    ``kept_s`` sharper; ``bound_s`` and ``kept_s`` then take latencies and spreads of shape (n,), too, one for each
    world size. A method ``gpu_s`` may say the mean and the relative standard deviation of one GPU's computation, from
    which follows what several groups take together (``LatencyLimit.load``).
    """

    @property
    def exact(self) -> bool:
        """True when ``bound_s`` is the mean of every plan on several machines, and runs scatter by ``least_spread``."""
        ...

    def latency_s(self, offer: MachineOffer, batch_size: int, machines: int = 1) -> float:
        """Return the mean computation of the slowest GPU among ``machines`` of an offer, or a lower bound of it.

        It never decreases with ``batch_size`` or ``machines``; when ``exact`` it is the same for all ``machines``.
        """
        ...

    def network(self, offer: MachineOffer) -> float:
        """Return the class of an offer's network: larger is faster. The slowest of a plan decides."""
        ...

    def bound_s(self, latency_s: float, world_sizes: npt.NDArray[np.int64], network: float) -> FloatArray:
        """Return a lower bound of the mean iteration for plans on several machines, shape of ``world_sizes``.

        Args:
            latency_s: The slowest ``latency_s`` of the plan; the bound never decreases with it.
            world_sizes: Shape (n,), numbers of GPUs.
            network: Class of the slowest network; when ``exact`` the bound never increases with it.
        """
        ...

    def estimate(self, plan: Plan) -> StepEstimate:
        """Return the duration of an iteration of a plan."""
        ...


def steps_in_mode(steps: StepTimes, mode: StepMode) -> StepTimes:
    """Return the step times of a job that runs its iterations another way; ``steps`` themselves for the plain one.

    Raises:
        ProblemError: Nobody knows.
    """
    if mode == PLAIN_STEPS:
        return steps
    in_mode = getattr(steps, "in_mode", None)
    if in_mode is None:
        raise ProblemError(f"these step times know nothing of iterations with {mode}")
    found: StepTimes = in_mode(mode)
    return found


StepFunction = Callable[[float, npt.NDArray[np.int64], float], FloatArray]


def no_exchange(latency_s: float, world_sizes: npt.NDArray[np.int64], network: float) -> FloatArray:
    """Return ``latency_s`` for every world size: iterations without any communication."""
    return np.full(np.shape(world_sizes), latency_s)


class TableSteps:
    """Step times from a table of latencies and a function of latency, GPUs and network.

    Args:
        offers: The offers.
        latencies_s: Seconds of computation by name of the offer and batch per GPU.
        step_s: Mean iteration as ``StepTimes.bound_s``; None when the table holds whole iterations.
        networks: Class of the network by name of the offer; None for one class.
        spread: Relative standard deviation of the run's mean iteration, shared by its iterations.

    Raises:
        ProblemError: A spread below zero.
    """

    def __init__(
        self,
        offers: Sequence[MachineOffer],
        latencies_s: Mapping[tuple[str, int], float],
        step_s: StepFunction | None = None,
        networks: Mapping[str, float] | None = None,
        *,
        spread: float = 0.0,
    ) -> None:
        if not 0 <= spread < math.inf:
            raise ProblemError(f"spread {spread} must be 0 or more")
        self._offers = {offer.name: offer for offer in offers}
        self._latencies_s = dict(latencies_s)
        self._step_s = step_s or no_exchange
        self._networks = networks
        self._spread = spread
        self._accumulation_steps = 1

    def in_mode(self, mode: StepMode) -> TableSteps:
        """Return the same for iterations of several micro-batches.

        Raises:
            ProblemError: The table cannot say what sharding or checkpointing takes.
        """
        if mode != StepMode(mode.accumulation_steps):
            raise ProblemError("a table of latencies knows accumulation, but neither sharding nor checkpointing")
        found = copy.copy(self)
        found._accumulation_steps = mode.accumulation_steps
        return found

    @property
    def exact(self) -> bool:
        """True: all plans scatter alike."""
        return True

    @property
    def least_spread(self) -> float:
        """Relative standard deviation of every run."""
        return self._spread

    def latency_s(self, offer: MachineOffer, batch_size: int, machines: int = 1) -> float:
        """Return the entry of the table; infinite when there is none, which keeps the batch out of every plan."""
        return self._latencies_s.get((offer.name, batch_size), math.inf)

    def network(self, offer: MachineOffer) -> float:
        """Return the class of an offer's network."""
        return 0.0 if self._networks is None else self._networks[offer.name]

    def bound_s(self, latency_s: float, world_sizes: npt.NDArray[np.int64], network: float) -> FloatArray:
        """Return the mean iteration, shape of ``world_sizes``."""
        before_s = (self._accumulation_steps - 1) * latency_s
        return before_s + np.asarray(self._step_s(latency_s, world_sizes, network), dtype=np.float64)

    def estimate(self, plan: Plan) -> StepEstimate:
        """Return the duration of an iteration of a plan."""
        if plan.mode.accumulation_steps != self._accumulation_steps:
            return self.in_mode(plan.mode).estimate(plan)
        offers = [self._offers[group.offer] for group in plan.groups]
        latency_s = max(
            self.latency_s(offer, group.batch_size) for offer, group in zip(offers, plan.groups, strict=True)
        )
        world_size = np.array([plan.devices(offers)], dtype=np.int64)
        mean_s = float(self.bound_s(latency_s, world_size, min(map(self.network, offers)))[0])
        sd_s = self._spread * mean_s
        return StepEstimate(mean_s, sd_s, mean_s + INTERVAL_END * sd_s, sd_s)


# Relative standard deviations of runs are below this.
_MOST_SPREAD = 1.5


def least_quantile(spread: FloatArray, confidence: float) -> FloatArray:
    """Return how many times its mean a lognormal time with such a relative spread or a larger one is, at least.

    Args:
        spread: Relative standard deviation.
        confidence: The probability with which the time is kept, 0.5 or more.
    """
    # It grows with the spread and falls again: the least one lies at an end.
    ends = np.log1p(np.square([spread, np.maximum(spread, _MOST_SPREAD)]))
    return np.asarray(np.exp(ndtri(confidence) * np.sqrt(ends) - 0.5 * ends).min(axis=0).clip(1.0))
