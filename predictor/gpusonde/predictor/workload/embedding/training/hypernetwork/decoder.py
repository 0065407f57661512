"""From states of nodes to weights of the network that the graph describes.

The decoder exists to train the encoder: predicting takes the states alone. It makes one tile of weights per tensor,
repeats and cuts that to the tensor's shape, and scales it by what the operation is (GHN-2's operation-dependent
normalisation), so that a network of any depth starts with activations of the order of one:

    convolutions, linear layers   sqrt(beta / fan-in), beta = 2 where a ReLU (or what replaces it) follows, else 1
    weights of norms              2 sigmoid(p / 2)
    biases                        tanh(p / 5)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from torch import nn
from torch.nn import functional

from gpusonde.predictor.workload.graph.ir import LAYERS, Operation, Primitive, Shape, WorkloadGraph


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
    """Which tensors the network of a graph has, and how each is made.

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
        beta = 2.0 if _activated(graph, position) else 1.0
        for parameter in operation.parameters:
            kind = _kind(parameter.name, parameter.shape, is_classifier=position == classifier)
            planned.append(PlannedTensor(position, parameter.name, parameter.shape, kind, beta))
    return tuple(planned)


def _kind(name: str, shape: Shape, *, is_classifier: bool) -> TensorKind:
    if len(shape) >= 2:
        return TensorKind.CLASSIFIER_WEIGHT if is_classifier else TensorKind.WEIGHT
    if "bias" in name.rpartition(".")[2]:
        return TensorKind.CLASSIFIER_BIAS if is_classifier else TensorKind.BIAS
    return TensorKind.NORM_WEIGHT


# What a classifier's first weights are multiplied with.
_FIRST_CLASSIFIER = 0.1

_NORMS = frozenset({Primitive.BATCH_NORM, Primitive.LAYER_NORM, Primitive.OTHER_NORM})


def _activated(graph: WorkloadGraph, position: int) -> bool:
    """Whether what an operation writes goes through a non-linearity that halves its power, maybe after a norm."""
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
        for (extent, of_classifier), places in self._groups(planned).items():
            group = [planned[place] for place in places]
            rows = torch.tensor([each.node for each in group], device=states.device)
            chosen = states.index_select(0, rows)
            tensors = (
                self._vectors(chosen, group) if extent == 0 else self._weights(chosen, group, extent, of_classifier)
            )
            made.update(zip(places, tensors, strict=True))
        return [made[place] for place in range(len(planned))]

    def _groups(self, planned: Sequence[PlannedTensor]) -> dict[tuple[int, bool], list[int]]:
        """Positions of tensors that are made together, by the extent of their tile (0: vectors)."""
        groups: dict[tuple[int, bool], list[int]] = {}
        for place, each in enumerate(planned):
            if each.kind in {TensorKind.WEIGHT, TensorKind.CLASSIFIER_WEIGHT}:
                extent = min(self.settings.extent, max(each.shape[2:], default=1))
                key = (max(1, extent), each.kind is TensorKind.CLASSIFIER_WEIGHT)
            else:
                key = (0, False)
            groups.setdefault(key, []).append(place)
        return groups

    def _weights(
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
        return [_fitted(made, each.shape) * each.scale for made, each in zip(tiles, group, strict=True)]

    def _vectors(self, states: torch.Tensor, group: Sequence[PlannedTensor]) -> Iterable[torch.Tensor]:
        tile = self.settings.tile
        weights, biases = self.vectors(states).view(-1, 2, tile).unbind(1)
        weights, tanh_biases = 2 * torch.sigmoid(0.5 * weights), torch.tanh(0.2 * biases)
        class_biases = torch.tanh(0.2 * self.classify_bias(biases))
        sources = {
            TensorKind.NORM_WEIGHT: weights,
            TensorKind.BIAS: tanh_biases,
            TensorKind.CLASSIFIER_BIAS: class_biases,
        }
        return [_fitted(sources[each.kind][row], each.shape) for row, each in enumerate(group)]


def _fitted(tile: torch.Tensor, shape: Shape) -> torch.Tensor:
    """Repeat and cut a tile to a shape; extents beyond the tile's are laid out along its last one."""
    extents = list(shape) + [1] * (tile.dim() - len(shape))
    extents = [*extents[: tile.dim() - 1], math.prod(extents[tile.dim() - 1 :])]
    repeats = [-(-extent // has) for extent, has in zip(extents, tile.shape, strict=True)]
    if any(repeat > 1 for repeat in repeats):
        tile = tile.repeat(repeats)
    return tile[tuple(slice(extent) for extent in extents)].reshape(shape)
