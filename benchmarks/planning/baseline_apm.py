"""``ApmSteps``: step times as APM sees them, for the optimizer's own search (Srifty, section 5.1).

APM is a model of the iteration and not a search; the seed compares models by putting each into the same optimizer, and
so do we.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from baseline_bayesian import explore
from baseline_greedy import MAGIC_BATCH, cheapest_first, fastest_first
from baseline_oracle import oracle_bayes
from simulator_baselines import ApmGroup, apm_iteration_s

from gpusonde.errors import ProblemError
from gpusonde.optimizer.problem import MachineOffer, Plan
from gpusonde.optimizer.step_times import FloatArray, StepEstimate
from gpusonde.simulator.compute import ComputeProbe, fit_compute_curve

__all__ = ["MAGIC_BATCH", "ApmSteps", "cheapest_first", "explore", "fastest_first", "oracle_bayes"]


class ApmSteps:
    """A straight line for computation, rated bandwidths, full overlap; nothing varies (implements ``StepTimes``).

    Args:
        offers: The offers, each with its rated ``network_bytes_per_second``.
        probes: Timed steps at two batch sizes or more, by name of the offer.
        parameter_bytes: Bytes of all gradients.

    Raises:
        ProblemError: An offer without probes or without a rated network.
        ProblemError: Probes that make no line.
    """

    def __init__(
        self, offers: Sequence[MachineOffer], probes: Mapping[str, Sequence[ComputeProbe]], parameter_bytes: float
    ) -> None:
        for offer in offers:
            if offer.name not in probes:
                raise ProblemError(f"offer {offer.name} has no compute probes: time some steps on its GPU first")
            if offer.network_bytes_per_second is None:
                raise ProblemError(f"offer {offer.name} needs network_bytes_per_second: APM knows rated networks only")
        if not (math.isfinite(parameter_bytes) and parameter_bytes > 0):
            raise ProblemError(f"parameter_bytes {parameter_bytes} must be finite and above zero")
        self._offers = {offer.name: offer for offer in offers}
        self._probes = {offer.name: tuple(probes[offer.name]) for offer in offers}
        self._lines = {name: fit_compute_curve(each, "linear") for name, each in self._probes.items()}
        self._parameter_bytes = parameter_bytes

    @property
    def exact(self) -> bool:
        """True when the forward pass has the same share of the computation everywhere."""
        return len({line.forward_share for line in self._lines.values()}) == 1

    def latency_s(self, offer: MachineOffer, batch_size: int, machines: int = 1) -> float:
        """Return the computation on the straight line."""
        return float(self._lines[offer.name].predict(batch_size).total_s[0])

    def network(self, offer: MachineOffer) -> float:
        """Return the rated bandwidth."""
        return self._rated(self._offers[offer.name])

    def bound_s(self, latency_s: float, world_sizes: npt.NDArray[np.int64], network: float) -> FloatArray:
        """Return iterations with the least forward share of any offer, shape of ``world_sizes``."""
        forward_s = latency_s * min(line.forward_share for line in self._lines.values())
        worlds = np.asarray(world_sizes, dtype=np.float64)
        exchange_s = 2.0 * (worlds - 1.0) / worlds * self._parameter_bytes / network
        return np.asarray(forward_s + np.maximum(latency_s - forward_s, exchange_s))

    def estimate(self, plan: Plan) -> StepEstimate:
        """Return APM's iteration; it knows no scatter."""
        groups = []
        for group in plan.groups:
            offer = self._offers[group.offer]
            devices = group.machines * offer.devices
            groups.append(ApmGroup(self._probes[group.offer], devices, group.batch_size, self._rated(offer)))
        mean_s = apm_iteration_s(groups, self._parameter_bytes)
        return StepEstimate(mean_s, 0.0, mean_s)

    @staticmethod
    def _rated(offer: MachineOffer) -> float:
        # Checked by the constructor.
        return float(offer.network_bytes_per_second or 0.0)
