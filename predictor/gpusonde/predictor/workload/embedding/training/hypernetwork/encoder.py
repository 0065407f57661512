"""The encoder in torch: the same equations as ``embedding.encoder``, with gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from gpusonde.predictor.workload.embedding.encoder import LAYER_NORM_EPSILON
from gpusonde.predictor.workload.embedding.structure import GraphBatch, GraphStructure, Messages, Step
from gpusonde.predictor.workload.embedding.weights import EncoderDescription, EncoderWeights, VirtualEdgeRule
from gpusonde.predictor.workload.graph.ir import Primitive, WorkloadGraph


@dataclass(frozen=True)
class _Heard:
    senders: torch.Tensor
    receivers: torch.Tensor
    scales: torch.Tensor | None


@dataclass(frozen=True)
class _Visit:
    nodes: torch.Tensor
    direct: _Heard | None
    virtual: _Heard | None


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
        visits = [[self._visit(step) for step in steps] for steps in (batch.forward, batch.backward)]
        # What every node says along edges, and beside it what it says along virtual edges.
        said = states.new_zeros(len(states), 2, self.description.hidden_size)
        for _ in range(self.description.passes):
            for direction in visits:
                for visit in direction:
                    states, said = self._renewed(visit, states, said)
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

    def _renewed(self, visit: _Visit, states: torch.Tensor, said: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        message = states.new_zeros(len(visit.nodes), states.shape[1])
        for column, heard in enumerate((visit.direct, visit.virtual)):
            if heard is not None:
                words = said[:, column].index_select(0, heard.senders)
                if heard.scales is not None:
                    words = words * heard.scales
                message = message.index_add(0, heard.receivers, words)
        arrays = self.arrays
        renewed = torch.gru_cell(
            message,
            states.index_select(0, visit.nodes),
            arrays["gru_input_weight"],
            arrays["gru_state_weight"],
            arrays["gru_input_bias"],
            arrays["gru_state_bias"],
        )
        words = torch.stack([self._perceptron("message", renewed), self._perceptron("virtual", renewed)], 1)
        return states.index_copy(0, visit.nodes, renewed), said.index_copy(0, visit.nodes, words)

    def _linear(self, name: str, values: torch.Tensor) -> torch.Tensor:
        return functional.linear(values, self.arrays[_key(f"{name}.weight")], self.arrays[_key(f"{name}.bias")])

    def _perceptron(self, name: str, states: torch.Tensor) -> torch.Tensor:
        hidden = functional.relu(self._linear(f"{name}.hidden", states))
        return functional.relu(self._linear(f"{name}.output", hidden))

    def _visit(self, step: Step) -> _Visit:
        return _Visit(
            torch.from_numpy(step.nodes),
            self._heard(step.direct, scaled=False),
            self._heard(step.virtual, scaled=True),
        )

    def _heard(self, messages: Messages, *, scaled: bool) -> _Heard | None:
        if not len(messages.senders):
            return None
        kind = self.arrays["norm_weight"]
        scales = torch.from_numpy(messages.scales).to(kind).unsqueeze(1) if scaled else None
        return _Heard(torch.from_numpy(messages.senders), torch.from_numpy(messages.receivers), scales)


def _key(name: str) -> str:
    return name.replace(".", "_")
