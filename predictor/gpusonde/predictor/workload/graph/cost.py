"""What the operations of a graph cost: floating-point operations and bytes, counted from the shapes alone.

One multiply-add is two operations, as in ``torch.utils.flop_counter``; what papers and torchvision publish as "GFLOPS"
are multiply-adds, half of it. Matrix operations (convolutions, linear layers, products of matrices, attention,
recurrent layers) are kept apart from elementwise ones: they alone are comparable with other counters, and they alone
run on a GPU's matrix units. All counts are of the forward pass; bytes are those of fp32.

What works on an input grows in proportion to the batch; weights do not, nor does what is computed from weights only.
Where both meet, as in adding a bias that was looked up, all samples are taken to read their own copy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from gpusonde.predictor.workload.graph.ir import Operation, Primitive, Shape, WorkloadGraph

BYTES_PER_NUMBER = 4

MATRIX_PRIMITIVES = frozenset(
    {
        Primitive.CONVOLUTION,
        Primitive.DEPTHWISE_CONVOLUTION,
        Primitive.GROUPED_CONVOLUTION,
        Primitive.TRANSPOSED_CONVOLUTION,
        Primitive.LINEAR,
        Primitive.MATRIX_PRODUCT,
        Primitive.ATTENTION,
        Primitive.RECURRENT,
    }
)

# Operations per element of the larger of what is read and what is written. A normalisation takes mean and variance
# (2 each), then subtracts, divides, scales and shifts; a softmax finds the maximum, subtracts, raises, sums, divides.
_ELEMENTWISE = {
    Primitive.BATCH_NORM: 8,
    Primitive.LAYER_NORM: 8,
    Primitive.OTHER_NORM: 8,
    Primitive.SOFTMAX: 5,
    Primitive.INTERPOLATION: 8,
    Primitive.ACTIVATION: 1,
    Primitive.SUM: 1,
    Primitive.PRODUCT: 1,
    Primitive.MAX_POOL: 1,
    Primitive.AVERAGE_POOL: 1,
    Primitive.GLOBAL_AVERAGE_POOL: 1,
    Primitive.OTHER: 1,
}
# Places where the graph begins and ends: they move nothing themselves.
_FREE = frozenset({Primitive.INPUT, Primitive.OUTPUT, Primitive.PARAMETER})


@dataclass(frozen=True)
class OperationCost:
    """Cost of one forward pass.

    Attributes:
        matrix_flops: Floating-point operations of matrix operations, two for each multiply-add.
        elementwise_flops: All others.
        input_bytes: Read from activations, in fp32; of a lookup, the indices and the rows that they choose.
        output_bytes: Written, in fp32.
        weight_bytes: Read from weights, in fp32.
    """

    matrix_flops: int = 0
    elementwise_flops: int = 0
    input_bytes: int = 0
    output_bytes: int = 0
    weight_bytes: int = 0

    @property
    def flops(self) -> int:
        """All floating-point operations."""
        return self.matrix_flops + self.elementwise_flops

    @property
    def bytes(self) -> int:
        """All bytes read and written."""
        return self.input_bytes + self.output_bytes + self.weight_bytes

    def __add__(self, other: OperationCost) -> OperationCost:
        return OperationCost(
            self.matrix_flops + other.matrix_flops,
            self.elementwise_flops + other.elementwise_flops,
            self.input_bytes + other.input_bytes,
            self.output_bytes + other.output_bytes,
            self.weight_bytes + other.weight_bytes,
        )


@dataclass(frozen=True)
class GraphCost:
    """Cost of one forward pass of several operations.

    Attributes:
        batch_size: Samples that the counts are of.
        scaling: What grows in proportion to the batch; its ``weight_bytes`` are 0.
        fixed: What does not: reading the weights, and what is computed from weights only.
    """

    batch_size: int
    scaling: OperationCost
    fixed: OperationCost

    @property
    def total(self) -> OperationCost:
        """Of the batch that the graph was taken with."""
        return self.scaling + self.fixed

    @property
    def per_sample(self) -> OperationCost:
        """What one more sample in the batch adds, rounded down."""
        return self._scale(1)

    def at(self, batch_size: int) -> OperationCost:
        """Return the cost of a batch of this size.

        Args:
            batch_size: Samples.
        """
        return self._scale(batch_size) + self.fixed

    def _scale(self, batch_size: int) -> OperationCost:
        one = self.scaling
        return OperationCost(
            one.matrix_flops * batch_size // self.batch_size,
            one.elementwise_flops * batch_size // self.batch_size,
            one.input_bytes * batch_size // self.batch_size,
            one.output_bytes * batch_size // self.batch_size,
        )


def count_operation_cost(operation: Operation) -> OperationCost:
    """Count the cost of one operation with the shapes that it has in the graph.

    Args:
        operation: Any operation.
    """
    primitive = operation.primitive
    if primitive in _FREE:
        return OperationCost()
    read = sum(map(math.prod, operation.inputs))
    written = math.prod(operation.output)
    weights = sum(each.count for each in operation.parameters)
    if operation.weight:
        weights = max(weights, math.prod(operation.weight))
    if primitive is Primitive.LOOKUP:
        return OperationCost(
            input_bytes=BYTES_PER_NUMBER * (read + written), output_bytes=BYTES_PER_NUMBER * written, weight_bytes=0
        )
    return OperationCost(
        matrix_flops=_count_matrix_flops(operation, written),
        elementwise_flops=_count_elementwise_flops(operation, written),
        input_bytes=BYTES_PER_NUMBER * read,
        output_bytes=BYTES_PER_NUMBER * written,
        weight_bytes=BYTES_PER_NUMBER * weights,
    )


def count_graph_cost(graph: WorkloadGraph, primitives: Iterable[Primitive] | None = None) -> GraphCost:
    """Add up the cost of a graph's operations.

    Args:
        graph: The network.
        primitives: The kinds to count; all if not given.
    """
    wanted = frozenset(Primitive) if primitives is None else frozenset(primitives)
    # Weights are read once, whatever the batch: they are kept out of what scales.
    scaling, fixed = OperationCost(), OperationCost()
    for operation, sees_input in zip(graph.operations, graph.sees_input, strict=True):
        if operation.primitive not in wanted:
            continue
        cost = count_operation_cost(operation)
        if sees_input:
            scaling += replace(cost, weight_bytes=0)
            fixed += OperationCost(weight_bytes=cost.weight_bytes)
        else:
            fixed += cost
    return GraphCost(graph.batch_size, scaling, fixed)


def _count_matrix_flops(operation: Operation, written: int) -> int:
    primitive, weight, inputs = operation.primitive, operation.weight, operation.inputs
    if primitive not in MATRIX_PRIMITIVES:
        return 0
    if primitive is Primitive.ATTENTION:
        return _count_attention_flops(inputs, written)
    if primitive is Primitive.RECURRENT:
        return 2 * _count_steps(inputs) * math.prod(weight) if weight else 0
    if primitive is Primitive.TRANSPOSED_CONVOLUTION:
        return 2 * sum(map(math.prod, inputs[:1])) * math.prod(weight[1:])
    if primitive is Primitive.MATRIX_PRODUCT:
        contracted = weight[-1:] or (inputs[0][-1:] if inputs else ())
        return 2 * written * contracted[0] if contracted else 0
    if not weight and len(inputs) > 1:  # weights that were computed: they are an operand as any other
        weight = inputs[1]
    return 2 * written * math.prod(weight[1:]) if weight else 0


def _count_attention_flops(inputs: tuple[Shape, ...], written: int) -> int:
    """Count queries x keys, then weights x values; the mask of a causal one saves nothing."""
    if not inputs or len(inputs[0]) < 2:
        return 0
    queries = inputs[0]
    keys = inputs[1] if len(inputs) > 1 and len(inputs[1]) > 1 else queries
    return 2 * keys[-2] * (math.prod(queries) + written)


def _count_steps(inputs: tuple[Shape, ...]) -> int:
    """Count samples x time steps of a recurrent layer."""
    return math.prod(inputs[0][:-1]) if inputs and inputs[0] else 0


def _count_elementwise_flops(operation: Operation, written: int) -> int:
    inputs = operation.inputs
    if operation.primitive is Primitive.ATTENTION and inputs and len(inputs[0]) > 1:
        keys = inputs[1] if len(inputs) > 1 and len(inputs[1]) > 1 else inputs[0]
        return _ELEMENTWISE[Primitive.SOFTMAX] * math.prod(inputs[0][:-1]) * keys[-2]
    each = _ELEMENTWISE.get(operation.primitive, 0)
    return each * max(written, max(map(math.prod, inputs), default=0))
