"""``WorkloadGraph``: the intermediate form of a network, whatever it was read from.

A directed acyclic graph of primitive operations with the shapes that they work on. Views (reshape, transpose, slices)
and operations that cost next to nothing (dropout) are contracted: an edge leads from the operation that wrote a tensor
to the one that reads it. There are no weights, no code, and no derived figures in it: ``cost`` counts those.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from gpusonde.errors import (
    MalformedGraphError,
)

Shape = tuple[int, ...]


class Primitive(str, Enum):
    """Kinds of operations. Their order is the order of the embedding's vocabulary: new ones go to the end."""

    INPUT = "input"
    CONVOLUTION = "convolution"
    DEPTHWISE_CONVOLUTION = "depthwise_convolution"
    GROUPED_CONVOLUTION = "grouped_convolution"
    LINEAR = "linear"
    MATRIX_PRODUCT = "matrix_product"
    ATTENTION = "attention"
    BATCH_NORM = "batch_norm"
    LAYER_NORM = "layer_norm"
    ACTIVATION = "activation"
    SUM = "sum"
    PRODUCT = "product"
    CONCATENATION = "concatenation"
    MAX_POOL = "max_pool"
    AVERAGE_POOL = "average_pool"
    GLOBAL_AVERAGE_POOL = "global_average_pool"
    SOFTMAX = "softmax"
    LOOKUP = "lookup"
    RECURRENT = "recurrent"
    OTHER_NORM = "other_norm"
    INTERPOLATION = "interpolation"
    PARAMETER = "parameter"
    OTHER = "other"
    OUTPUT = "output"
    TRANSPOSED_CONVOLUTION = "transposed_convolution"


@dataclass(frozen=True)
class Parameter:
    """A trainable tensor.

    Attributes:
        name: As the network calls it.
        shape: Its extents; () for a scalar.
    """

    name: str
    shape: Shape

    @property
    def count(self) -> int:
        """Numbers in it."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Operation:
    """One primitive operation.

    Attributes:
        primitive: Its kind.
        name: Unique in the graph; as the front end calls it.
        output: Shape of what it writes; of the first tensor if there are several.
        inputs: Shapes of the activations that it reads, in order, without weights.
        weight: Shape of the weight that it works with, in PyTorch's layout; () if none. Of a convolution (out channels,
            in channels per group, extents of the kernel), of a transposed one (in channels, out channels per group,
            extents), of a linear layer (out, in), of a product with a stack of matrices (..., out, in), of a recurrent
            layer all its matrices side by side (gates x hidden, sum of their columns over layers and directions). A
            weight that an earlier operation uses too stands here as well.
        parameters: The trainable tensors that no earlier operation has.
        groups: Groups of a convolution, else 1.
        source: The front end's own name of the operation, such as "aten.conv2d" or "Conv".
    """

    primitive: Primitive
    name: str
    output: Shape
    inputs: tuple[Shape, ...] = ()
    weight: Shape = ()
    parameters: tuple[Parameter, ...] = ()
    groups: int = 1
    source: str = ""


@dataclass(frozen=True)
class WorkloadGraph:
    """A network's operations and who reads whose output.

    Attributes:
        name: What the user calls it.
        operations: In an order in which they can run.
        edges: Pairs of positions (writer, reader), ascending, without repeats; writers come first in ``operations``.
        batch_size: Samples in the batch that the shapes were taken with.
        front_end: What the graph was read with: "fx", "export", "onnx", "pt2" or "keras".
        notes: What the reader should know, such as that batch normalisation was folded away.

    Raises:
        MalformedGraphError: Not such a graph.
    """

    name: str
    operations: tuple[Operation, ...]
    edges: tuple[tuple[int, int], ...]
    batch_size: int
    front_end: str = ""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.operations:
            raise MalformedGraphError("the graph has no operation")
        if self.batch_size < 1:
            raise MalformedGraphError(f"batch size {self.batch_size}: it must be at least 1")
        count = len(self.operations)
        before = (-1, -1)
        for edge in self.edges:
            if not 0 <= edge[0] < edge[1] < count:
                raise MalformedGraphError(f"edge {edge}: it must lead from an earlier to a later of {count} operations")
            if edge <= before:
                raise MalformedGraphError(f"edge {edge}: edges must ascend and not repeat")
            before = edge

    @property
    def parameter_count(self) -> int:
        """Trainable numbers in the network."""
        return sum(parameter.count for each in self.operations for parameter in each.parameters)

    @cached_property
    def frozen(self) -> tuple[bool, ...]:
        """Whether each operation's weight is frozen: one that no operation has as a parameter.

        Of a weight that several operations use, the first one has it.
        """
        trained = {parameter.shape for each in self.operations for parameter in each.parameters}
        return tuple(
            bool(each.weight) and not each.parameters and each.weight not in trained for each in self.operations
        )

    @property
    def frozen_count(self) -> int:
        """Numbers in frozen weights."""
        return sum(math.prod(each.weight) for each, frozen in zip(self.operations, self.frozen, strict=True) if frozen)

    @property
    def layer_count(self) -> int:
        """Operations that the field counts as layers: convolutions and linear layers."""
        return sum(each.primitive in LAYERS for each in self.operations)

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """Who reads the output of each operation."""
        return _list_neighbours(len(self.operations), self.edges)

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """Whose outputs each operation reads."""
        return _list_neighbours(len(self.operations), [(reader, writer) for writer, reader in self.edges])

    @cached_property
    def sees_input(self) -> tuple[bool, ...]:
        """Whether each operation works on what came from an input, so that its cost grows with the batch."""
        seen = [each.primitive is Primitive.INPUT for each in self.operations]
        waiting = deque(position for position, is_input in enumerate(seen) if is_input)
        while waiting:
            for reader in self.successors[waiting.popleft()]:
                if not seen[reader]:
                    seen[reader] = True
                    waiting.append(reader)
        return tuple(seen)


LAYERS = frozenset(
    {
        Primitive.CONVOLUTION,
        Primitive.DEPTHWISE_CONVOLUTION,
        Primitive.GROUPED_CONVOLUTION,
        Primitive.TRANSPOSED_CONVOLUTION,
        Primitive.LINEAR,
    }
)


def _list_neighbours(count: int, edges: Sequence[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
    lists: list[list[int]] = [[] for _ in range(count)]
    for one, other in edges:
        lists[one].append(other)
    return tuple(map(tuple, lists))
