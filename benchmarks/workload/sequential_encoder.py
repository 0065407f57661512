"""GHN-2's encoder as its equations are written, node by node: what the product's batched one is checked against."""

from __future__ import annotations

import numpy as np

from gpusonde.predictor.workload.embedding import Encoder
from gpusonde.predictor.workload.embedding.encoder import LAYER_NORM_EPSILON
from gpusonde.predictor.workload.embedding.structure import Floats
from gpusonde.predictor.workload.graph import WorkloadGraph


def embed_in_sequence(encoder: Encoder, graph: WorkloadGraph) -> Floats:
    """Embed one graph with the weights of an encoder.

    Raises:
        GraphLimitError: It is larger than the encoder's limits.
    """
    arrays = {name: array.astype(np.float64) for name, array in encoder.weights.arrays.items()}
    structure = encoder.structure(graph)
    states = encoder.first_states(structure.primitives, structure.shapes)
    far = structure.virtual
    for _ in range(encoder.weights.description.passes):
        for order, near, hears, says in (
            (range(len(states)), graph.predecessors, far.readers, far.writers),
            (range(len(states) - 1, -1, -1), graph.successors, far.writers, far.readers),
        ):
            for node in order:
                message = np.zeros(encoder.size)
                if near[node]:
                    message += _perceptron(arrays, "message", states[list(near[node])]).sum(axis=0)
                virtual = hears == node
                if virtual.any():
                    heard = _perceptron(arrays, "virtual", states[says[virtual]])
                    message += (heard / far.steps[virtual][:, None]).sum(axis=0)
                states[node] = _gru(arrays, message, states[node])
    centred = states - states.mean(axis=1, keepdims=True)
    normal = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + LAYER_NORM_EPSILON)
    mean: Floats = (normal * arrays["norm.weight"] + arrays["norm.bias"]).mean(axis=0)
    return mean


def _linear(arrays: dict[str, Floats], name: str, values: Floats) -> Floats:
    product: Floats = values @ arrays[f"{name}.weight"].T + arrays[f"{name}.bias"]
    return product


def _perceptron(arrays: dict[str, Floats], name: str, states: Floats) -> Floats:
    hidden = np.maximum(_linear(arrays, f"{name}.hidden", states), 0)
    return np.maximum(_linear(arrays, f"{name}.output", hidden), 0)


def _gru(arrays: dict[str, Floats], message: Floats, state: Floats) -> Floats:
    heard = np.split(_linear(arrays, "gru.input", message), 3)
    held = np.split(_linear(arrays, "gru.state", state), 3)
    # By tanh: an exponential overflows for what random weights can reach.
    reset, update = (
        0.5 * (1 + np.tanh(0.5 * (ours + theirs))) for ours, theirs in zip(heard[:2], held[:2], strict=True)
    )
    candidate = np.tanh(heard[2] + reset * held[2])
    renewed: Floats = (1 - update) * candidate + update * state
    return renewed
