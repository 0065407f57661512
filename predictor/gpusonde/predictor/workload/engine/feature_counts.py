"""``GraphCounts``: what a training step of a network costs on any device, by class of operation."""

from __future__ import annotations

import math
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from gpusonde.predictor.workload.graph import Operation, Primitive, WorkloadGraph
from gpusonde.predictor.workload.graph.cost import OperationCost, count_operation_cost
from gpusonde.predictor.workload.graph.ir import Shape

FloatArray = npt.NDArray[np.float64]
_Counts = TypeVar("_Counts")


class OperationClass(IntEnum):
    """Kinds of operations that take time in the same way."""

    CONVOLUTION = 0
    LINEAR = 1
    GROUPED = 2
    DEPTHWISE = 3
    NORMALISATION = 4
    ACTIVATION = 5
    ELEMENTWISE = 6
    CONCATENATION = 7
    POOLING = 8
    OTHER = 9
    ATTENTION = 10  # fused: scores are never written
    ROWWISE = 11  # layer norms: single precision inside whatever the rest is in
    SOFTMAX = 12  # likewise
    GROUPWISE = 13  # norms of groups of channels, likewise


_CLASSES = {
    Primitive.CONVOLUTION: OperationClass.CONVOLUTION,
    Primitive.TRANSPOSED_CONVOLUTION: OperationClass.CONVOLUTION,
    Primitive.GROUPED_CONVOLUTION: OperationClass.GROUPED,
    Primitive.DEPTHWISE_CONVOLUTION: OperationClass.DEPTHWISE,
    Primitive.LINEAR: OperationClass.LINEAR,
    Primitive.MATRIX_PRODUCT: OperationClass.LINEAR,
    Primitive.ATTENTION: OperationClass.ATTENTION,
    Primitive.RECURRENT: OperationClass.LINEAR,
    Primitive.BATCH_NORM: OperationClass.NORMALISATION,
    Primitive.LAYER_NORM: OperationClass.ROWWISE,
    Primitive.OTHER_NORM: OperationClass.GROUPWISE,
    Primitive.SOFTMAX: OperationClass.SOFTMAX,
    Primitive.ACTIVATION: OperationClass.ACTIVATION,
    Primitive.SUM: OperationClass.ELEMENTWISE,
    Primitive.PRODUCT: OperationClass.ELEMENTWISE,
    Primitive.CONCATENATION: OperationClass.CONCATENATION,
    Primitive.MAX_POOL: OperationClass.POOLING,
    Primitive.AVERAGE_POOL: OperationClass.POOLING,
    Primitive.GLOBAL_AVERAGE_POOL: OperationClass.OTHER,
}
_NO_WORK = frozenset({Primitive.INPUT, Primitive.OUTPUT, Primitive.PARAMETER})
MATRIX_CLASSES = (
    OperationClass.CONVOLUTION,
    OperationClass.LINEAR,
    OperationClass.GROUPED,
    OperationClass.DEPTHWISE,
    OperationClass.ATTENTION,
)
# A step costs a multiple of the forward pass: what multiplies with something needs two products of the same size for
# its gradients, that of its input and that of its weight; everything else goes back as it came.
_MATRIX_STEP = 3
_OTHER_STEP = 2
# What a forward pass alone has of that, by how often tensors of an activation's size are read or written: normalising
# by known means takes 2 of training's 8 (3 to find means and use them, 5 for gradients), an activation and softmax 2 of
# 5, norms of rows 2 of 6 or 7, those of groups 3 of 8. Other operations have half, as sums have, and products of
# matrices one pass.
_FORWARD_PASSES = {
    OperationClass.NORMALISATION: _OTHER_STEP / 4,
    OperationClass.ACTIVATION: _OTHER_STEP * 2 / 5,
    OperationClass.SOFTMAX: _OTHER_STEP * 2 / 5,
    OperationClass.ROWWISE: _OTHER_STEP / 3,
    OperationClass.GROUPWISE: _OTHER_STEP * 3 / 8,
}


@dataclass(frozen=True)
class GraphCounts:
    """Forward, backward and update of one network, or its forward pass alone, per operation; bytes are those of fp32.

    Attributes:
        classes: Class of each operation, shape (n,).
        flops_per_sample: Floating-point operations that grow with the batch, shape (n,).
        fixed_flops: Those that do not, shape (n,).
        bytes_per_sample: Traffic that grows with the batch, shape (n,).
        fixed_bytes: Weights, and what is computed from weights only, shape (n,).
        single: Share of each one's traffic that stays in single precision under automatic mixed precision, as norms and
            softmax give single precision and what is added to it becomes so, shape (n,).
        dense_kernel: Whether each is a convolution of stride 1 with a 3 x 3 kernel, for which there are algorithms with
            fewer operations than are counted, shape (n,).
        kernels: Extents of each convolution's kernel, multiplied, shape (n,).
        group_channels: Channels of each convolution's groups, shape (n,).
        unaligned: Share of each convolution's activations whose channels no unit for matrix products takes as they
            are; 1 of products of matrices with such rows, shape (n,).
        padding: Operations of each over those that are counted, as channels fill whole tiles only, shape (n,).
        launches: Kernels that the operations and the update of the weights start.
        input_bytes: The network's inputs, per sample.
        weight_bytes: All trainable parameters.
        parameters: Trainable tensors.
        layers: Convolutions and linear layers.
        forward_only: Whether the forward pass alone is counted.
    """

    classes: npt.NDArray[np.intp]
    flops_per_sample: FloatArray
    fixed_flops: FloatArray
    bytes_per_sample: FloatArray
    fixed_bytes: FloatArray
    single: FloatArray
    dense_kernel: npt.NDArray[np.bool_]
    kernels: FloatArray
    group_channels: FloatArray
    unaligned: FloatArray
    padding: FloatArray
    launches: float
    input_bytes: float
    weight_bytes: float
    parameters: int
    layers: int
    forward_only: bool

    @classmethod
    def of(cls, graph: WorkloadGraph, forward_only: bool = False) -> GraphCounts:
        """Count a graph."""
        rows = []
        single = _find_single_precision(graph)
        input_bytes = 0.0
        for position, (operation, sees_input) in enumerate(zip(graph.operations, graph.sees_input, strict=True)):
            if operation.primitive is Primitive.INPUT:
                input_bytes += 4.0 * math.prod(operation.output) / graph.batch_size
            if operation.primitive in _NO_WORK:
                continue
            kind = _CLASSES.get(operation.primitive, OperationClass.OTHER)
            passes = 1.0 if forward_only else _count_passes(kind, frozen=graph.frozen[position])
            step = _FORWARD_PASSES.get(kind, passes) if forward_only else passes
            cost = count_operation_cost(operation)
            dense = float(_has_dense_kernel(operation))
            flops, moved = step * cost.flops, step * (cost.input_bytes + cost.output_bytes)
            weights = step * cost.weight_bytes
            weight = _find_weight_shape(operation)
            kernel = (dense, float(math.prod(weight[2:])), float(math.prod(weight[1:2])))
            shape = (*kernel, _find_unaligned_share(operation, cost), _find_padding(operation))
            kept = _find_single_share(graph, position, single, cost)
            if sees_input:
                batch = graph.batch_size
                rows.append((float(kind), flops / batch, 0.0, moved / batch, weights, passes, kept, *shape))
            else:
                rows.append((float(kind), 0.0, flops, 0.0, moved + weights, passes, kept, *shape))
        table = np.array(rows, dtype=np.float64).reshape(-1, 12)
        parameters = sum(len(operation.parameters) for operation in graph.operations)
        return cls(
            classes=table[:, 0].astype(np.intp),
            flops_per_sample=table[:, 1],
            fixed_flops=table[:, 2],
            bytes_per_sample=table[:, 3],
            fixed_bytes=table[:, 4],
            single=table[:, 6],
            dense_kernel=table[:, 7] > 0,
            kernels=table[:, 8],
            group_channels=table[:, 9],
            unaligned=table[:, 10],
            padding=table[:, 11],
            launches=float(table[:, 5].sum()) + (0 if forward_only else parameters),
            input_bytes=input_bytes,
            weight_bytes=0.0 if forward_only else 4.0 * graph.parameter_count,
            parameters=parameters,
            layers=graph.layer_count,
            forward_only=forward_only,
        )

    def flops(self, batch_size: int) -> FloatArray:
        """Return the floating-point operations of each operation in a step, shape (n,)."""
        return batch_size * self.flops_per_sample + self.fixed_flops

    def bytes(self, batch_size: int) -> FloatArray:
        """Return the memory traffic of each operation in a step, fp32, shape (n,)."""
        return batch_size * self.bytes_per_sample + self.fixed_bytes

    def by_class(self, values: FloatArray) -> FloatArray:
        """Add up per class one value per operation, shape (classes,)."""
        summed: FloatArray = np.bincount(self.classes, weights=values, minlength=len(OperationClass)).astype(np.float64)
        return summed


_SINGLE = frozenset({OperationClass.ROWWISE, OperationClass.SOFTMAX, OperationClass.GROUPWISE})
_HALF = frozenset({*MATRIX_CLASSES})


def _find_single_precision(graph: WorkloadGraph) -> list[bool]:
    """Tell of each operation whether its output is in single precision under automatic mixed precision."""
    single: list[bool] = []
    for operation, read in zip(graph.operations, graph.predecessors, strict=True):
        kind = _CLASSES.get(operation.primitive, OperationClass.OTHER)
        if operation.primitive in _NO_WORK or kind in _HALF:
            single.append(operation.primitive in _NO_WORK)
        else:
            single.append(kind in _SINGLE or any(single[each] for each in read))
    return single


def _find_single_share(graph: WorkloadGraph, position: int, single: Sequence[bool], cost: OperationCost) -> float:
    """Return the share of an operation's traffic that is in single precision."""
    read = graph.predecessors[position]
    reading = sum(single[each] for each in read) / len(read) if read else 0.0
    whole = cost.input_bytes + cost.output_bytes
    return (reading * cost.input_bytes + single[position] * cost.output_bytes) / whole if whole else 0.0


def _count_passes(kind: OperationClass, *, frozen: bool) -> float:
    """Count passes of a training step, the forward one among them; a frozen weight has no gradient."""
    if kind not in MATRIX_CLASSES:
        return _OTHER_STEP
    return _MATRIX_STEP - 1 if frozen else _MATRIX_STEP


def _find_weight_shape(operation: Operation) -> Shape:
    """Return the shape of an operation's weight; one that was computed is an operand as any other."""
    return operation.weight or (operation.inputs[1] if len(operation.inputs) > 1 else ())


# NVIDIA, "Convolutional Layers User's Guide": channels in half precision are read by eights, and products are computed
# in tiles, the last of which is as long as the others.
_ALIGNED = 8
_TILE = 32
# An image's own channels need no gradient.
_COLOURS = 4
_CONVOLUTIONS = frozenset({Primitive.CONVOLUTION, Primitive.GROUPED_CONVOLUTION, Primitive.DEPTHWISE_CONVOLUTION})


def _find_unaligned_share(operation: Operation, cost: OperationCost) -> float:
    if operation.primitive is Primitive.MATRIX_PRODUCT and operation.inputs:
        return float(any(shape[-1] % _ALIGNED for shape in (operation.inputs[0], operation.output) if shape))
    if operation.primitive not in _CONVOLUTIONS or not operation.inputs:
        return 0.0
    read = cost.input_bytes if operation.inputs[0][1] % _ALIGNED else 0
    written = cost.output_bytes if operation.output[1] % _ALIGNED else 0
    return (read + written) / (cost.input_bytes + cost.output_bytes)


def _find_padding(operation: Operation) -> float:
    """Return the mean over the products of a step: forward pass, gradient of what was read, gradient of the weight.

    Fused attention fills the channels of a head.
    """
    if operation.primitive is Primitive.ATTENTION and operation.inputs:
        return _fill(operation.inputs[0][-1])
    if operation.primitive is not Primitive.CONVOLUTION or not operation.inputs:
        return 1.0
    read, written = operation.inputs[0][1], operation.output[1]
    of_kernel = _fill(read * math.prod(_find_weight_shape(operation)[2:]))
    return (_fill(written) * (1.0 + of_kernel) + (_fill(read) if read > _COLOURS else 1.0)) / 3


def _fill(channels: int) -> float:
    return math.ceil(channels / _TILE) * _TILE / channels


def _has_dense_kernel(operation: Operation) -> bool:
    """Tell whether a convolution is of stride 1 with a 3 x 3 kernel."""
    if operation.primitive is not Primitive.CONVOLUTION or not operation.inputs:
        return False
    if _find_weight_shape(operation)[2:] != (3, 3):
        return False
    return 2 * math.prod(operation.output[2:]) > math.prod(operation.inputs[0][2:])


class CountsCache(Generic[_Counts]):
    """Counts graphs once each: a graph that is asked about again, with another batch or cluster, costs nothing.

    Args:
        count: Counts a graph, in a way that further arguments say.
        limit: Counts that are remembered; one whose graph nobody holds any more is forgotten when the next is made.
    """

    def __init__(self, count: Callable[..., _Counts], limit: int = 1024) -> None:
        self._count = count
        self._limit = limit
        self._known: OrderedDict[tuple[Hashable, ...], tuple[weakref.ref[WorkloadGraph], _Counts]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, graph: WorkloadGraph, *how: Hashable) -> _Counts:
        """Return the graph's counts.

        Args:
            graph: The network.
            how: Further arguments of what counts.
        """
        own = (id(graph), *how)
        with self._lock:
            found = self._known.get(own)
            # An id is given again once its object is gone.
            if found is not None and found[0]() is graph:
                self._known.move_to_end(own)
                return found[1]
        counts = self._count(graph, *how)
        with self._lock:
            # A process that answers strangers sees every graph once: the counts of large ones must not pile up.
            for key in [key for key, (held, _) in self._known.items() if held() is None]:
                del self._known[key]
            self._known[own] = (weakref.ref(graph), counts)
            self._known.move_to_end(own)
            while len(self._known) > self._limit:
                self._known.popitem(last=False)
        return counts
