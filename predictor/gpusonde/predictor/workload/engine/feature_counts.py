"""``GraphCounts``: what a training step of a network costs on any device, by class of operation."""

from __future__ import annotations

import math
import threading
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from gpusonde.predictor.workload.graph import Operation, Primitive, WorkloadGraph
from gpusonde.predictor.workload.graph.cost import count_operation_cost

FloatArray = npt.NDArray[np.float64]


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


_CLASSES = {
    Primitive.CONVOLUTION: OperationClass.CONVOLUTION,
    Primitive.TRANSPOSED_CONVOLUTION: OperationClass.CONVOLUTION,
    Primitive.GROUPED_CONVOLUTION: OperationClass.GROUPED,
    Primitive.DEPTHWISE_CONVOLUTION: OperationClass.DEPTHWISE,
    Primitive.LINEAR: OperationClass.LINEAR,
    Primitive.MATRIX_PRODUCT: OperationClass.LINEAR,
    Primitive.ATTENTION: OperationClass.LINEAR,
    Primitive.RECURRENT: OperationClass.LINEAR,
    Primitive.BATCH_NORM: OperationClass.NORMALISATION,
    Primitive.LAYER_NORM: OperationClass.NORMALISATION,
    Primitive.OTHER_NORM: OperationClass.NORMALISATION,
    Primitive.ACTIVATION: OperationClass.ACTIVATION,
    Primitive.SUM: OperationClass.ELEMENTWISE,
    Primitive.PRODUCT: OperationClass.ELEMENTWISE,
    Primitive.CONCATENATION: OperationClass.CONCATENATION,
    Primitive.MAX_POOL: OperationClass.POOLING,
    Primitive.AVERAGE_POOL: OperationClass.POOLING,
    Primitive.GLOBAL_AVERAGE_POOL: OperationClass.POOLING,
}
_NO_WORK = frozenset({Primitive.INPUT, Primitive.OUTPUT, Primitive.PARAMETER})
MATRIX_CLASSES = (
    OperationClass.CONVOLUTION,
    OperationClass.LINEAR,
    OperationClass.GROUPED,
    OperationClass.DEPTHWISE,
)
# A step costs a multiple of the forward pass: what multiplies with something needs two products of the same size for
# its gradients, that of its input and that of its weight; everything else goes back as it came.
_MATRIX_STEP = 3
_OTHER_STEP = 2


@dataclass(frozen=True)
class GraphCounts:
    """Forward, backward and update of one network, per operation; bytes are those of fp32.

    Attributes:
        classes: Class of each operation, shape (n,).
        flops_per_sample: Floating-point operations that grow with the batch, shape (n,).
        fixed_flops: Those that do not, shape (n,).
        bytes_per_sample: Traffic that grows with the batch, shape (n,).
        fixed_bytes: Weights, and what is computed from weights only, shape (n,).
        dense_kernel: Whether each is a convolution of stride 1 with a 3 x 3 kernel, for which there are algorithms with
            fewer operations than are counted, shape (n,).
        launches: Kernels that the operations and the update of the weights start.
        input_bytes: The network's inputs, per sample.
        weight_bytes: All trainable parameters.
        parameters: Trainable tensors.
        layers: Convolutions and linear layers.
    """

    classes: npt.NDArray[np.intp]
    flops_per_sample: FloatArray
    fixed_flops: FloatArray
    bytes_per_sample: FloatArray
    fixed_bytes: FloatArray
    dense_kernel: npt.NDArray[np.bool_]
    launches: float
    input_bytes: float
    weight_bytes: float
    parameters: int
    layers: int

    @classmethod
    def of(cls, graph: WorkloadGraph) -> GraphCounts:
        """Count a graph."""
        rows = []
        input_bytes = 0.0
        for operation, sees_input in zip(graph.operations, graph.sees_input, strict=True):
            if operation.primitive is Primitive.INPUT:
                input_bytes += 4.0 * math.prod(operation.output) / graph.batch_size
            if operation.primitive in _NO_WORK:
                continue
            kind = _CLASSES.get(operation.primitive, OperationClass.OTHER)
            step = float(_MATRIX_STEP if kind in MATRIX_CLASSES else _OTHER_STEP)
            cost = count_operation_cost(operation)
            dense = float(_has_dense_kernel(operation))
            flops, moved = step * cost.flops, step * (cost.input_bytes + cost.output_bytes)
            weights = step * cost.weight_bytes
            if sees_input:
                batch = graph.batch_size
                rows.append((float(kind), flops / batch, 0.0, moved / batch, weights, step, dense))
            else:
                rows.append((float(kind), 0.0, flops, 0.0, moved + weights, step, dense))
        table = np.array(rows, dtype=np.float64).reshape(-1, 7)
        parameters = sum(len(operation.parameters) for operation in graph.operations)
        return cls(
            classes=table[:, 0].astype(np.intp),
            flops_per_sample=table[:, 1],
            fixed_flops=table[:, 2],
            bytes_per_sample=table[:, 3],
            fixed_bytes=table[:, 4],
            dense_kernel=table[:, 6] > 0,
            launches=float(table[:, 5].sum()) + parameters,
            input_bytes=input_bytes,
            weight_bytes=4.0 * graph.parameter_count,
            parameters=parameters,
            layers=graph.layer_count,
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


def _has_dense_kernel(operation: Operation) -> bool:
    """Tell whether a convolution is of stride 1 with a 3 x 3 kernel."""
    if operation.primitive is not Primitive.CONVOLUTION or operation.weight[2:] != (3, 3) or not operation.inputs:
        return False
    return 2 * math.prod(operation.output[2:]) > math.prod(operation.inputs[0][2:])


class CountsCache:
    """Counts graphs once each: a graph that is asked about again, with another batch or cluster, costs nothing.

    Args:
        limit: Graphs that are remembered; one that nobody holds any more is forgotten when the next one is counted.
    """

    def __init__(self, limit: int = 1024) -> None:
        self._limit = limit
        self._known: OrderedDict[int, tuple[weakref.ref[WorkloadGraph], GraphCounts]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, graph: WorkloadGraph) -> GraphCounts:
        """Return the graph's counts."""
        with self._lock:
            found = self._known.get(id(graph))
            # An id is given again once its object is gone.
            if found is not None and found[0]() is graph:
                self._known.move_to_end(id(graph))
                return found[1]
        counts = GraphCounts.of(graph)
        with self._lock:
            # A process that answers strangers sees every graph once: the counts of large ones must not pile up.
            for key in [key for key, (held, _) in self._known.items() if held() is None]:
                del self._known[key]
            self._known[id(graph)] = (weakref.ref(graph), counts)
            self._known.move_to_end(id(graph))
            while len(self._known) > self._limit:
                self._known.popitem(last=False)
        return counts
