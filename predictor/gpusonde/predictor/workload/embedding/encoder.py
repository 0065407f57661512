"""GHN-2's encoder: a graph of operations becomes a vector that stands for the network.

Message passing is that of the paper's Eq. 3, with the virtual edges of Eq. 4:

    m_v = sum over neighbours u of MLP(h_u) + sum over u with 1 < s_vu <= s_max of MLP_sp(h_u) / s_vu
    h_v = GRU(h_v, m_v)

for every node v in the order of the traversal, forward (neighbours are those whose output v reads) and then backward
(those that read v's). A node hears states that the same traversal has already renewed. The embedding is the mean of
the node states after a layer normalisation. GHN-2's published code begins the second sum at s = 1 (an option of the
encoder's file, ``virtual_edges: published_code``) and looks extents up in a table, where unseen widths stay random (not
reproduced).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from gpusonde.predictor.workload.embedding.structure import (
    EmbeddingLimits,
    Floats,
    GraphBatch,
    GraphStructure,
    Messages,
    Positions,
)
from gpusonde.predictor.workload.embedding.weights import EncoderWeights, VirtualEdgeRule
from gpusonde.predictor.workload.graph.ir import Primitive, WorkloadGraph

LAYER_NORM_EPSILON = 1e-5

# What the graphs of one batch may hold together.
_BATCH_NODES = 1 << 14
_BATCH_VIRTUAL_EDGES = 1 << 20


class Encoder:
    """Embeds graphs with given weights, in double precision: the same on every machine but for the last digits.

    Args:
        weights: The weights.
        limits: How large a graph may be.
    """

    def __init__(self, weights: EncoderWeights, limits: EmbeddingLimits | None = None) -> None:
        self.weights = weights
        self.limits = limits or EmbeddingLimits()
        self._arrays = {name: array.astype(np.float64) for name, array in weights.arrays.items()}
        rows = {name: row for row, name in enumerate(weights.description.primitives)}
        # Kinds that came after this encoder was trained are "other" to it.
        self._rows = np.array([rows.get(each.value, rows[Primitive.OTHER.value]) for each in Primitive])

    @property
    def size(self) -> int:
        """Length of an embedding."""
        return self.weights.description.hidden_size

    def embed(self, graphs: Iterable[WorkloadGraph]) -> Floats:
        """Embed graphs: all nodes of one depth, of several graphs, at once.

        Args:
            graphs: The graphs.

        Returns:
            A row for each.

        Raises:
            GraphLimitError: One is larger than the limits; ``embed`` the others without it.
        """
        parts = [self._average_nodes(batch, self.node_states(batch)) for batch in self._split_into_batches(graphs)]
        return np.concatenate(parts) if parts else np.empty((0, self.size))

    def structure(self, graph: WorkloadGraph) -> GraphStructure:
        """Prepare a graph for this encoder.

        Raises:
            GraphLimitError: It is larger than the limits.
        """
        description = self.weights.description
        return GraphStructure.of(
            graph,
            description.maximum_steps,
            from_one_step=description.virtual_edges is VirtualEdgeRule.PUBLISHED_CODE,
            limits=self.limits,
        )

    def first_states(self, primitives: Positions, shapes: Floats) -> Floats:
        """Return the states before any message (H_1): the primitive's embedding and that of the weight's shape."""
        hidden = np.maximum(self._linear("shape.hidden", shapes), 0)
        states: Floats = self._arrays["primitive"][self._rows[primitives]] + self._linear("shape.output", hidden)
        return states

    def node_states(self, batch: GraphBatch) -> Floats:
        """Return the states of all nodes after message passing and layer normalisation."""
        states = self.first_states(batch.primitives, batch.shapes)
        near, far = np.empty_like(states), np.empty_like(states)
        for _ in range(self.weights.description.passes):
            for steps in (batch.forward, batch.backward):
                for step in steps:
                    message = np.zeros((len(step.nodes), self.size))
                    _hear(message, near, step.direct)
                    _hear(message, far, step.virtual)
                    renewed = self._gru(message, states[step.nodes])
                    states[step.nodes] = renewed
                    # What a node says is the same to all that hear it, so it is worked out once.
                    near[step.nodes] = self._perceptron("message", renewed)
                    far[step.nodes] = self._perceptron("virtual", renewed)
        return self._layer_norm(states)

    def _split_into_batches(self, graphs: Iterable[WorkloadGraph]) -> Iterator[GraphBatch]:
        waiting: list[GraphStructure] = []
        nodes = virtual = 0
        for graph in graphs:
            structure = self.structure(graph)
            more_virtual = len(structure.virtual.steps)
            if waiting and (
                nodes + structure.node_count > _BATCH_NODES or virtual + more_virtual > _BATCH_VIRTUAL_EDGES
            ):
                yield GraphBatch.of(waiting)
                waiting, nodes, virtual = [], 0, 0
            waiting.append(structure)
            nodes += structure.node_count
            virtual += more_virtual
        if waiting:
            yield GraphBatch.of(waiting)

    def _average_nodes(self, batch: GraphBatch, states: Floats) -> Floats:
        means: Floats = np.add.reduceat(states, batch.starts[:-1]) / np.diff(batch.starts)[:, None]
        return means

    def _linear(self, name: str, values: Floats) -> Floats:
        product: Floats = values @ self._arrays[f"{name}.weight"].T + self._arrays[f"{name}.bias"]
        return product

    def _perceptron(self, name: str, states: Floats) -> Floats:
        hidden = np.maximum(self._linear(f"{name}.hidden", states), 0)
        return np.maximum(self._linear(f"{name}.output", hidden), 0)

    def _gru(self, message: Floats, state: Floats) -> Floats:
        size = self.size
        heard, held = self._linear("gru.input", message), self._linear("gru.state", state)
        gates = _sigmoid(heard[..., : 2 * size] + held[..., : 2 * size])
        reset, update = gates[..., :size], gates[..., size:]
        candidate = np.tanh(heard[..., 2 * size :] + reset * held[..., 2 * size :])
        renewed: Floats = (1 - update) * candidate + update * state
        return renewed

    def _layer_norm(self, states: Floats) -> Floats:
        centred = states - states.mean(axis=-1, keepdims=True)
        scale = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + LAYER_NORM_EPSILON)
        normal: Floats = centred / scale * self._arrays["norm.weight"] + self._arrays["norm.bias"]
        return normal


def _hear(message: Floats, said: Floats, messages: Messages) -> None:
    """Add to each node of a step what it hears."""
    if len(messages.senders):
        heard = said[messages.senders] * messages.scales[:, None]
        message[messages.receivers[messages.starts]] += np.add.reduceat(heard, messages.starts)


def _sigmoid(values: Floats) -> Floats:
    # By tanh: an exponential overflows for what random weights and thousands of messages can reach.
    half: Floats = 0.5 * (1 + np.tanh(0.5 * values))
    return half
