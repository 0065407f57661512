"""The encoder in torch: the same equations as ``embedding.encoder``, with gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from gpusonde.predictor.workload.embedding.encoder import LAYER_NORM_EPSILON
from gpusonde.predictor.workload.embedding.structure import GraphBatch, GraphStructure, Step
from gpusonde.predictor.workload.embedding.weights import EncoderDescription, EncoderWeights, VirtualEdgeRule
from gpusonde.predictor.workload.graph.ir import Primitive, WorkloadGraph


@dataclass(frozen=True)
class _Visit:
    """A step of the traversal.

    Attributes:
        nodes: Who is visited.
        senders: Of each message a row of what was said: of node n, row 2n along edges, 2n + 1 along virtual edges.
        receivers: Of each message the position in ``nodes`` of who hears it.
        scales: Of each message its factor.
    """

    nodes: torch.Tensor
    senders: torch.Tensor
    receivers: torch.Tensor
    scales: torch.Tensor


class TorchEncoder(nn.Module):
    """Message passing of Eq. 3 and 4 over several graphs at once.

    Args:
        weights: What to start from; their primitives must be all that there are, in their order.
    """

    def __init__(self, weights: EncoderWeights) -> None:
        super().__init__()
        if weights.description.primitives != tuple(each.value for each in Primitive):
            raise ValueError("an encoder of another vocabulary can be used, but not trained further")
        self.description: EncoderDescription = weights.description
        # Names of parameters may hold no dots.
        self.arrays = nn.ParameterDict(
            {_key(name): nn.Parameter(torch.from_numpy(array.copy())) for name, array in weights.arrays.items()}
        )

    def structure(self, graph: WorkloadGraph) -> GraphStructure:
        """Prepare a graph; worth keeping, as training sees each many times.

        Raises:
            GraphLimitError: It is too large.
        """
        return GraphStructure.of(
            graph,
            self.description.maximum_steps,
            from_one_step=self.description.virtual_edges is VirtualEdgeRule.PUBLISHED_CODE,
        )

    def forward(self, structures: Sequence[GraphStructure]) -> torch.Tensor:
        """States of all nodes of graphs, one graph after the other, after layer normalisation."""
        batch = GraphBatch.of(structures)
        kind = self.arrays["norm_weight"]
        hidden = functional.relu(self._linear("shape.hidden", torch.from_numpy(batch.shapes).to(kind)))
        primitives = torch.from_numpy(batch.primitives).to(kind.device)
        states = self.arrays["primitive"][primitives] + self._linear("shape.output", hidden)
        for _ in range(self.description.passes):
            for steps in (batch.forward, batch.backward):
                states = self._traversed(states, [self._visit(step) for step in steps])
        weight, bias = self.arrays["norm_weight"], self.arrays["norm_bias"]
        return functional.layer_norm(states, states.shape[-1:], weight, bias, LAYER_NORM_EPSILON)

    def export(self, dataset_type: str, training_steps: int) -> EncoderWeights:
        """The weights as they are now, for the encoder that needs no torch.

        Args:
            dataset_type: Kind of data that they were trained on.
            training_steps: Steps of training.

        Raises:
            EncoderWeightsError: They are not finite.
        """
        arrays = {
            name: self.arrays[_key(name)].detach().cpu().numpy().astype(np.float32, copy=True)
            for name in self.description.shapes()
        }
        return EncoderWeights(
            replace(self.description, dataset_type=dataset_type, training_steps=training_steps), arrays
        )

    def _traversed(self, states: torch.Tensor, visits: Sequence[_Visit]) -> torch.Tensor:
        """States after one traversal. Few operations per visit: there are many visits, and each is small."""
        count, size = states.shape
        order = torch.cat([visit.nodes for visit in visits])
        sizes = [len(visit.nodes) for visit in visits]
        # A traversal renews every node once, so its own state before that is known from the start.
        before = states.index_select(0, order)
        held = self._linear("gru.state", before)
        hidden, output = self._both_perceptrons()
        said = states.new_zeros(count, 2 * size)
        renewed = []
        for visit, state, own in zip(visits, before.split(sizes), held.split(sizes), strict=True):
            words = said.view(2 * count, size).index_select(0, visit.senders) * visit.scales
            message = states.new_zeros(len(state), size).index_add(0, visit.receivers, words)
            heard = self._linear("gru.input", message)
            gates = torch.sigmoid(heard[:, : 2 * size] + own[:, : 2 * size])
            candidate = torch.tanh(heard[:, 2 * size :] + gates[:, :size] * own[:, 2 * size :])
            renewed.append(torch.lerp(candidate, state, gates[:, size:]))
            words = functional.relu(functional.linear(renewed[-1], *hidden))
            said.index_copy_(0, visit.nodes, functional.relu(functional.linear(words, *output)))
        return torch.cat(renewed).index_select(0, torch.argsort(order))

    def _both_perceptrons(self) -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
        """Hidden and output layer of MLP and MLP_sp side by side, as one perceptron."""
        arrays = self.arrays
        hidden = torch.cat([arrays["message_hidden_weight"], arrays["virtual_hidden_weight"]])
        output = torch.block_diag(arrays["message_output_weight"], arrays["virtual_output_weight"])
        return (
            (hidden, torch.cat([arrays["message_hidden_bias"], arrays["virtual_hidden_bias"]])),
            (output, torch.cat([arrays["message_output_bias"], arrays["virtual_output_bias"]])),
        )

    def _linear(self, name: str, values: torch.Tensor) -> torch.Tensor:
        return functional.linear(values, self.arrays[_key(f"{name}.weight")], self.arrays[_key(f"{name}.bias")])

    def _visit(self, step: Step) -> _Visit:
        kind = self.arrays["norm_weight"]
        senders = np.concatenate([2 * step.direct.senders, 2 * step.virtual.senders + 1])
        receivers = np.concatenate([step.direct.receivers, step.virtual.receivers])
        scales = np.concatenate([step.direct.scales, step.virtual.scales])
        return _Visit(
            torch.from_numpy(step.nodes).to(kind.device),
            torch.from_numpy(senders).to(kind.device),
            torch.from_numpy(receivers).to(kind.device),
            torch.from_numpy(scales).to(kind).unsqueeze(1),
        )


def _key(name: str) -> str:
    return name.replace(".", "_")
