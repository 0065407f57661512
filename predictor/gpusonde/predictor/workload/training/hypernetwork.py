"""The graph hypernetwork: predicts all weights of networks that it never saw from their graphs.

Its encoder has the same equations as ``embedding.encoder``, in torch and with gradients: a trained one's is what graphs
are embedded with. To train it, run the networks with the weights that it predicts and let the gradient of their loss
flow through those weights into the hypernetwork.

Its decoder exists to train the encoder: predicting takes the states of nodes alone. It makes one tile of weights per
tensor, repeats and cuts that to the tensor's shape, and scales it by what the operation is (GHN-2's operation-dependent
normalisation), so that a network of any depth starts with activations of the order of one:

    convolutions, linear layers   sqrt(beta / fan-in), beta = 2 where a ReLU (or what replaces it) follows, else 1
    weights of norms              2 sigmoid(p / 2)
    biases                        tanh(p / 5)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from gpusonde.predictor.workload.embedding.encoder import LAYER_NORM_EPSILON
from gpusonde.predictor.workload.embedding.structure import GraphBatch, GraphStructure, Step
from gpusonde.predictor.workload.embedding.weights import EncoderDescription, EncoderWeights, VirtualEdgeRule
from gpusonde.predictor.workload.graph.ir import LAYERS, Operation, Primitive, Shape, WorkloadGraph


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
            {_make_key(name): nn.Parameter(torch.from_numpy(array.copy())) for name, array in weights.arrays.items()}
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
        """Return the states of all nodes of graphs, one graph after the other, after layer normalisation."""
        batch = GraphBatch.of(structures)
        kind = self.arrays["norm_weight"]
        hidden = functional.relu(self._linear("shape.hidden", torch.from_numpy(batch.shapes).to(kind)))
        primitives = torch.from_numpy(batch.primitives).to(kind.device)
        states = self.arrays["primitive"][primitives] + self._linear("shape.output", hidden)
        for _ in range(self.description.passes):
            for steps in (batch.forward, batch.backward):
                states = self._traverse(states, [self._visit(step) for step in steps])
        weight, bias = self.arrays["norm_weight"], self.arrays["norm_bias"]
        return functional.layer_norm(states, states.shape[-1:], weight, bias, LAYER_NORM_EPSILON)

    def export(self, dataset_type: str, training_steps: int) -> EncoderWeights:
        """Return the weights as they are now, for the encoder that needs no torch.

        Args:
            dataset_type: Kind of data that they were trained on.
            training_steps: Steps of training.

        Raises:
            EncoderError: They are not finite.
        """
        arrays = {
            name: self.arrays[_make_key(name)].detach().cpu().numpy().astype(np.float32, copy=True)
            for name in self.description.shapes()
        }
        return EncoderWeights(
            replace(self.description, dataset_type=dataset_type, training_steps=training_steps), arrays
        )

    def _traverse(self, states: torch.Tensor, visits: Sequence[_Visit]) -> torch.Tensor:
        """Return the states after one traversal. Few operations per visit: there are many visits, and each is small."""
        count, size = states.shape
        order = torch.cat([visit.nodes for visit in visits])
        sizes = [len(visit.nodes) for visit in visits]
        # A traversal renews every node once, so its own state before that is known from the start.
        before = states.index_select(0, order)
        held = self._linear("gru.state", before)
        hidden, output = self._join_perceptrons()
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

    def _join_perceptrons(self) -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
        """Put the hidden and output layers of MLP and MLP_sp side by side, as one perceptron."""
        arrays = self.arrays
        hidden = torch.cat([arrays["message_hidden_weight"], arrays["virtual_hidden_weight"]])
        output = torch.block_diag(arrays["message_output_weight"], arrays["virtual_output_weight"])
        return (
            (hidden, torch.cat([arrays["message_hidden_bias"], arrays["virtual_hidden_bias"]])),
            (output, torch.cat([arrays["message_output_bias"], arrays["virtual_output_bias"]])),
        )

    def _linear(self, name: str, values: torch.Tensor) -> torch.Tensor:
        return functional.linear(
            values, self.arrays[_make_key(f"{name}.weight")], self.arrays[_make_key(f"{name}.bias")]
        )

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


def _make_key(name: str) -> str:
    return name.replace(".", "_")


class TensorKind(str, Enum):
    """How a tensor is made."""

    WEIGHT = "weight"
    CLASSIFIER_WEIGHT = "classifier_weight"
    NORM_WEIGHT = "norm_weight"
    BIAS = "bias"
    CLASSIFIER_BIAS = "classifier_bias"


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor to predict.

    Attributes:
        node: Position of its operation in the graph.
        name: As the network calls it.
        shape: Its extents.
        kind: How it is made.
        beta: Factor of the variance of a weight.
    """

    node: int
    name: str
    shape: Shape
    kind: TensorKind
    beta: float = 1.0

    @property
    def scale(self) -> float:
        """Factor of a weight: the square root of beta / fan-in."""
        return math.sqrt(self.beta / max(1, math.prod(self.shape[1:])))


def plan_tensors(graph: WorkloadGraph, classes: int) -> tuple[PlannedTensor, ...]:
    """Return which tensors the network of a graph has, and how each is made.

    Args:
        graph: The graph.
        classes: Outputs of the network: the last layer that has as many is its classifier.
    """
    classifier = max(
        (
            position
            for position, each in enumerate(graph.operations)
            if each.primitive in LAYERS and each.weight[:1] == (classes,)
        ),
        default=-1,
    )
    planned = []
    for position, operation in enumerate(graph.operations):
        beta = 2.0 if _is_activated(graph, position) else 1.0
        for parameter in operation.parameters:
            kind = _choose_kind(parameter.name, parameter.shape, is_classifier=position == classifier)
            planned.append(PlannedTensor(position, parameter.name, parameter.shape, kind, beta))
    return tuple(planned)


def _choose_kind(name: str, shape: Shape, *, is_classifier: bool) -> TensorKind:
    if len(shape) >= 2:
        return TensorKind.CLASSIFIER_WEIGHT if is_classifier else TensorKind.WEIGHT
    if "bias" in name.rpartition(".")[2]:
        return TensorKind.CLASSIFIER_BIAS if is_classifier else TensorKind.BIAS
    return TensorKind.NORM_WEIGHT


# What a classifier's first weights are multiplied with.
_FIRST_CLASSIFIER = 0.1

_NORMS = frozenset({Primitive.BATCH_NORM, Primitive.LAYER_NORM, Primitive.OTHER_NORM})


def _is_activated(graph: WorkloadGraph, position: int) -> bool:
    """Tell whether what an operation writes goes through a non-linearity that halves its power, maybe after a norm."""
    readers = [
        further
        for reader in graph.successors[position]
        for further in (graph.successors[reader] if graph.operations[reader].primitive in _NORMS else (reader,))
    ]
    return any(_is_rectifier(graph.operations[reader]) for reader in readers)


def _is_rectifier(operation: Operation) -> bool:
    source = operation.source.lower()
    saturating = "sigmoid" in source or ("tanh" in source and "hardtanh" not in source)
    return operation.primitive is Primitive.ACTIVATION and not saturating


@dataclass(frozen=True)
class DecoderSettings:
    """The size of a decoder.

    Attributes:
        tile: Channels of a tile of weights, in and out; wider tensors repeat it.
        extent: Extents of the kernel of the largest tile; larger kernels repeat it.
    """

    tile: int = 32
    extent: int = 5


class ParameterDecoder(nn.Module):
    """Makes the tensors of networks from the states of the nodes of their graphs.

    Args:
        hidden_size: Length of a state.
        classes: Outputs of the networks.
        settings: Its size.
    """

    def __init__(self, hidden_size: int, classes: int, settings: DecoderSettings | None = None) -> None:
        super().__init__()
        self.settings = settings or DecoderSettings()
        tile, extent = self.settings.tile, self.settings.extent
        self.spread = nn.Linear(hidden_size, extent * extent * 4 * hidden_size)
        self.widen = nn.Linear(4 * hidden_size, 8 * hidden_size)
        self.fill = nn.Linear(8 * hidden_size, tile * tile)
        self.classify = nn.Linear(tile, classes)
        with torch.no_grad():
            # At first every network is to say that all classes are as likely.
            self.classify.weight.mul_(_FIRST_CLASSIFIER)
            self.classify.bias.zero_()
        self.vectors = nn.Sequential(
            nn.Linear(hidden_size, 2 * hidden_size), nn.ReLU(), nn.Linear(2 * hidden_size, 2 * tile)
        )
        self.classify_bias = nn.Sequential(nn.ReLU(), nn.Linear(tile, classes))

    def forward(self, states: torch.Tensor, planned: Sequence[PlannedTensor]) -> list[torch.Tensor]:
        """Make tensors.

        Args:
            states: Of all nodes.
            planned: The tensors; ``node`` is a row of ``states``.

        Returns:
            The tensors, in the order of ``planned``.
        """
        made: dict[int, torch.Tensor] = {}
        for (extent, of_classifier), places in self._group_tensors(planned).items():
            group = [planned[place] for place in places]
            rows = torch.tensor([each.node for each in group], device=states.device)
            chosen = states.index_select(0, rows)
            tensors = (
                self._make_vectors(chosen, group)
                if extent == 0
                else self._make_weights(chosen, group, extent, of_classifier)
            )
            made.update(zip(places, tensors, strict=True))
        return [made[place] for place in range(len(planned))]

    def _group_tensors(self, planned: Sequence[PlannedTensor]) -> dict[tuple[int, bool], list[int]]:
        """Return the positions of tensors that are made together, by the extent of their tile (0: vectors)."""
        groups: dict[tuple[int, bool], list[int]] = {}
        for place, each in enumerate(planned):
            if each.kind in {TensorKind.WEIGHT, TensorKind.CLASSIFIER_WEIGHT}:
                extent = min(self.settings.extent, max(each.shape[2:], default=1))
                key = (max(1, extent), each.kind is TensorKind.CLASSIFIER_WEIGHT)
            else:
                key = (0, False)
            groups.setdefault(key, []).append(place)
        return groups

    def _make_weights(
        self, states: torch.Tensor, group: Sequence[PlannedTensor], extent: int, of_classifier: bool
    ) -> Iterable[torch.Tensor]:
        tile, largest = self.settings.tile, self.settings.extent
        count, size = states.shape
        # Smaller kernels are the middle of the largest: only that is worked out.
        first = (largest - extent) // 2
        middle = slice(first, first + extent)
        weight = self.spread.weight.view(largest, largest, -1, size)[middle, middle].reshape(-1, size)
        bias = self.spread.bias.view(largest, largest, -1)[middle, middle].reshape(-1)
        spread = functional.relu(functional.linear(states, weight, bias)).view(count, extent, extent, -1)
        tiles = self.fill(functional.relu(self.widen(spread))).view(count, extent, extent, tile, tile)
        if of_classifier:
            # From outputs of a layer to classes.
            tiles = self.classify(tiles.transpose(3, 4)).transpose(3, 4)
        tiles = tiles.permute(0, 3, 4, 1, 2)
        return [_fit_tile(made, each.shape) * each.scale for made, each in zip(tiles, group, strict=True)]

    def _make_vectors(self, states: torch.Tensor, group: Sequence[PlannedTensor]) -> Iterable[torch.Tensor]:
        tile = self.settings.tile
        weights, biases = self.vectors(states).view(-1, 2, tile).unbind(1)
        weights, tanh_biases = 2 * torch.sigmoid(0.5 * weights), torch.tanh(0.2 * biases)
        class_biases = torch.tanh(0.2 * self.classify_bias(biases))
        sources = {
            TensorKind.NORM_WEIGHT: weights,
            TensorKind.BIAS: tanh_biases,
            TensorKind.CLASSIFIER_BIAS: class_biases,
        }
        return [_fit_tile(sources[each.kind][row], each.shape) for row, each in enumerate(group)]


def _fit_tile(tile: torch.Tensor, shape: Shape) -> torch.Tensor:
    """Repeat and cut a tile to a shape; extents beyond the tile's are laid out along its last one."""
    extents = list(shape) + [1] * (tile.dim() - len(shape))
    extents = [*extents[: tile.dim() - 1], math.prod(extents[tile.dim() - 1 :])]
    repeats = [-(-extent // has) for extent, has in zip(extents, tile.shape, strict=True)]
    if any(repeat > 1 for repeat in repeats):
        tile = tile.repeat(repeats)
    return tile[tuple(slice(extent) for extent in extents)].reshape(shape)


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
        """Return what it has learned about graphs, for inference without torch.

        Raises:
            EncoderError: Training diverged: not all weights are finite.
        """
        return self.encoder.export(dataset_type, training_steps)
