"""The graph hypernetwork: predicts all weights of networks that it never saw from their graphs.

A trained one's encoder is what ``embedding.encoder`` embeds graphs with. To train it, run the networks with the
weights that it predicts and let the gradient of their loss flow through those weights into the hypernetwork.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from gpusonde.predictor.workload.embedding.structure import GraphStructure
from gpusonde.predictor.workload.embedding.training.hypernetwork.decoder import (
    DecoderSettings,
    ParameterDecoder,
    PlannedTensor,
    plan_tensors,
)
from gpusonde.predictor.workload.embedding.training.hypernetwork.encoder import TorchEncoder
from gpusonde.predictor.workload.embedding.weights import EncoderWeights
from gpusonde.predictor.workload.graph.ir import WorkloadGraph


@dataclass(frozen=True)
class PreparedGraph:
    """What a hypernetwork needs of a graph; made once per graph and kept."""

    structure: GraphStructure
    tensors: tuple[PlannedTensor, ...]


class GraphHyperNetwork(nn.Module):
    """GHN-2.

    Args:
        weights: What its encoder starts from, such as ``EncoderWeights.random(seed)``. The decoder's first weights
            come from torch's random numbers.
        classes: Outputs of the networks that it predicts weights of.
        settings: Size of the decoder.
    """

    def __init__(self, weights: EncoderWeights, classes: int, settings: DecoderSettings | None = None) -> None:
        super().__init__()
        self.classes = classes
        self.encoder = TorchEncoder(weights)
        self.decoder = ParameterDecoder(weights.description.hidden_size, classes, settings)

    def prepare(self, graph: WorkloadGraph) -> PreparedGraph:
        """Prepare a graph whose operations name their parameters.

        Raises:
            GraphLimitError: It is too large.
        """
        return PreparedGraph(self.encoder.structure(graph), plan_tensors(graph, self.classes))

    def forward(self, graphs: Sequence[PreparedGraph]) -> list[dict[str, torch.Tensor]]:
        """Predict the weights of networks.

        Args:
            graphs: Their graphs.

        Returns:
            Of each network its tensors by name, for ``torch.func.functional_call``. Networks with batch norms must use
            the statistics of the batch at hand: running ones belong to no predicted weights.
        """
        states = self.encoder([graph.structure for graph in graphs])
        planned: list[PlannedTensor] = []
        first = 0
        for graph in graphs:
            planned.extend(replace(each, node=each.node + first) for each in graph.tensors)
            first += graph.structure.node_count
        tensors = iter(self.decoder(states, planned))
        return [{each.name: next(tensors) for each in graph.tensors} for graph in graphs]

    def encoder_weights(self, dataset_type: str, training_steps: int) -> EncoderWeights:
        """What it has learned about graphs, for inference without torch.

        Raises:
            EncoderWeightsError: Training diverged: not all weights are finite.
        """
        return self.encoder.export(dataset_type, training_steps)
