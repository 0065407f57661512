"""From a network's graph to what the simulator needs: steps, gradients and the batch that memory takes, all estimated.

A job that has never run has no timed steps and no metrics. Its graph says what it computes, and a model fitted on other
networks' measured iterations says how long that takes. Such an iteration is a whole one: forward and backward pass,
update of the weights, and the copy of the batch to the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gpusonde.predictor.workload.engine import Cluster, Precision, WorkloadPrediction, WorkloadRequest
from gpusonde.predictor.workload.graph.cost import BYTES_PER_NUMBER, graph_cost
from gpusonde.predictor.workload.graph.ir import WorkloadGraph
from gpusonde.simulator.compute.origins import LatencyEstimate

# Weight, gradient and the two moments of Adam.
_BYTES_PER_PARAMETER = 4 * BYTES_PER_NUMBER
# What the driver, the framework's context and the allocator's holes take of a device.
_USABLE_MEMORY = 0.9


class WorkloadPredictor(Protocol):
    """What predicts iterations from graphs; ``WorkloadModel`` does."""

    def predict(self, requests: Sequence[WorkloadRequest]) -> list[WorkloadPrediction]:
        """Return one prediction per request."""
        ...


@dataclass(frozen=True)
class GraphEstimator:
    """Estimates steps of one network on single devices; a ``WorkloadEstimator``.

    Attributes:
        model: Fitted on measured iterations of other networks.
        graph: The network.
        precision: What its matrix products are computed in.
        environment: A place of measurement that the model knows; None is any other.
    """

    model: WorkloadPredictor
    graph: WorkloadGraph
    precision: Precision = Precision.FP32
    environment: str | None = None

    def estimate_step(self, device: str, batch_size: int) -> LatencyEstimate:
        """Return the latency of a step on a device of the catalogue.

        Raises:
            gpusonde.predictor.workload.engine.EngineError: The model cannot say anything of it.
        """
        return latency_estimate(batch_size, self.predictions([device], [batch_size])[device][0])

    def predictions(self, devices: Sequence[str], batch_sizes: Sequence[int]) -> dict[str, list[WorkloadPrediction]]:
        """Return, for each device, one prediction per batch size; the model is asked once for all of them.

        Raises:
            gpusonde.predictor.workload.engine.EngineError: The model cannot say anything of one of them.
        """
        answers = iter(self.model.predict([self._request(each, batch) for each in devices for batch in batch_sizes]))
        return {device: [next(answers) for _ in batch_sizes] for device in devices}

    def _request(self, device: str, batch_size: int) -> WorkloadRequest:
        cluster = Cluster(device, precision=self.precision, environment=self.environment)
        return WorkloadRequest(self.graph, batch_size, cluster)


def gradient_bytes(graph: WorkloadGraph) -> int:
    """Return the bytes of all gradients, which have single precision also where products do not."""
    return BYTES_PER_NUMBER * graph.parameter_count


def largest_batch_estimate(graph: WorkloadGraph, memory_bytes: float) -> int:
    """Return the largest batch size that a device's memory should take, 0 where not even the parameters fit.

    Everything that an operation writes for the batch is counted as kept until the backward pass, in single precision,
    beside weights, gradients and the two moments of Adam. Frameworks keep less (activations in place) and more
    (workspaces); only a try on the device says which batch fits.
    """
    per_sample = graph_cost(graph).per_sample.output_bytes
    free = _USABLE_MEMORY * memory_bytes - _BYTES_PER_PARAMETER * graph.parameter_count
    return max(0, int(free // max(per_sample, 1)))


def latency_estimate(batch_size: int, found: WorkloadPrediction) -> LatencyEstimate:
    """Return a prediction as what a compute curve can be made from."""
    return LatencyEstimate(batch_size, found.seconds, found.low_s, found.high_s, found.coverage)
