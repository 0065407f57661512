"""What a training step holds in a device's memory, and which batches fit: counted from the graph alone.

A step holds weights, gradients, the optimizer's state, and what operations keep for the backward pass: of a product its
inputs, of a ReLU its output, of a softmax its output, of a sum nothing, as PyTorch's ``derivatives.yaml`` has it.
Tensors that several operations keep are one; under mixed precision every product keeps a half-precision copy of what it
reads, as autocast makes it. The backward pass gives back what it has used while gradients come: the peak is the moment
at which both together are most, and never less than the optimizer's update needs.

Not seen in a graph: masks of dropout, copies that views make, the framework's own caches. Networks set aside for it say
how far off that is (``docs/results/workload.md``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from gpusonde.catalog import Precision
from gpusonde.predictor.workload.graph import Operation, Primitive, WorkloadGraph
from gpusonde.predictor.workload.graph.cost import MATRIX_PRIMITIVES
from gpusonde.predictor.workload.graph.op_registry import strip_torch_name

FloatArray = npt.NDArray[np.float64]


class Optimizer(str, Enum):
    """What updates the weights."""

    SGD = "sgd"
    MOMENTUM = "momentum"
    ADAMW = "adamw"


class Fits(str, Enum):
    """Whether a step fits into a device's memory."""

    YES = "yes"
    LIKELY = "likely"
    UNKNOWN = "unknown"
    NO = "no"


@dataclass(frozen=True)
class MemoryNeed:
    """What a step holds at its peak, bytes.

    Attributes:
        weights_bytes: Of mixed precision with the copies that products read.
        gradients_bytes: Of weights, that are there at the peak.
        optimizer_bytes: Moments of the gradients.
        activations_bytes: What operations keep for the backward pass.
        workspace_bytes: What comes and goes at the peak, and what driver and framework hold.
    """

    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float
    workspace_bytes: float

    @property
    def total_bytes(self) -> float:
        """All of it."""
        return (
            self.weights_bytes
            + self.gradients_bytes
            + self.optimizer_bytes
            + self.activations_bytes
            + self.workspace_bytes
        )


@dataclass(frozen=True)
class MemoryFit:
    """Whether a step fits, and what would.

    Attributes:
        fits: Whether it does; ``unknown`` where the count is closer to the memory than counts usually are right.
        need: What it holds.
        device_bytes: Of the device.
        largest_batch: Samples per device that fit; 0 where not even one does.
        largest_batch_checkpointed: The same where activations are computed again in the backward pass, for about a
            third more time.
    """

    fits: Fits
    need: MemoryNeed
    device_bytes: float
    largest_batch: int
    largest_batch_checkpointed: int

    def document(self) -> dict[str, Any]:
        """Return it as JSON has it: ``fits``, and the figures as ``memory``."""
        return {
            "fits": self.fits.value,
            "memory": {
                **{item.name: round(getattr(self.need, item.name)) for item in fields(self.need)},
                "device_bytes": round(self.device_bytes),
                "largest_batch": self.largest_batch,
                "largest_batch_checkpointed": self.largest_batch_checkpointed,
            },
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> MemoryFit:
        """Read what ``document`` writes."""
        memory = document["memory"]
        need = MemoryNeed(*(float(memory[item.name]) for item in fields(MemoryNeed)))
        device = float(memory["device_bytes"])
        return cls(Fits(document["fits"]), need, device, memory["largest_batch"], memory["largest_batch_checkpointed"])


# Of a device's memory: error correction and the allocator's holes take the rest.
_USABLE = 0.95
# Driver, context, and workspaces of libraries.
_CONTEXT_BYTES = 512 * 2**20
# Networks set aside were off by no more than that.
_SURELY, _PERHAPS = 0.8, 1.25
_LARGEST_BATCH = 1 << 20

_STATES = {Optimizer.SGD: 0, Optimizer.MOMENTUM: 1, Optimizer.ADAMW: 2}
# Copies of the weights that the update makes for a moment, all tensors at once.
_UPDATE_COPIES = {Optimizer.SGD: 0, Optimizer.MOMENTUM: 0, Optimizer.ADAMW: 1}
_HALF = frozenset({Precision.FP16, Precision.BF16, Precision.FP8})

_NORMALISATION = frozenset({Primitive.BATCH_NORM, Primitive.LAYER_NORM, Primitive.OTHER_NORM})
_KEEP_INPUTS = (
    MATRIX_PRIMITIVES
    | _NORMALISATION
    | {Primitive.PRODUCT, Primitive.MAX_POOL, Primitive.AVERAGE_POOL, Primitive.OTHER}
)
_KEEP_OUTPUT = frozenset({Primitive.ATTENTION, Primitive.RECURRENT, Primitive.SOFTMAX})
_NOTHING = frozenset({Primitive.INPUT, Primitive.OUTPUT, Primitive.PARAMETER})
# Of activations: what is computed from the output, as a ReLU (and what has no name is taken for one), and what needs
# neither; the others keep what they read.
_FROM_OUTPUT = frozenset(
    {"", "relu", "relu6", "sigmoid", "tanh", "leaky_relu", "elu", "exp", "sqrt", "rsqrt", "reciprocal", "threshold"}
)
_FROM_NEITHER = frozenset(
    {
        "neg", "floor", "ceil", "round", "trunc", "sign", "where", "masked_fill", "tril", "triu", "cumsum", "mul",
        "div", "add", "sub", "eq", "ne", "lt", "le", "gt", "ge", "logical_not", "logical_and", "logical_or",
        "bitwise_not", "invert", "isnan", "isinf", "and", "or", "xor", "positive",
    }
)  # fmt: skip
# In single precision under autocast, whatever they read.
_SINGLE_PRIMITIVES = frozenset({Primitive.LAYER_NORM, Primitive.OTHER_NORM, Primitive.SOFTMAX})
_SINGLE_NAMES = frozenset(
    {"pow", "rsqrt", "exp", "log", "log1p", "log2", "log10", "expm1", "reciprocal", "softplus", "cumsum", "cumprod"}
)
# Those that networks in half precision compute in single precision by hand: they normalise.
_SINGLE_BY_HAND = frozenset({"pow", "rsqrt"})
_INDEX_BYTES = 8
_LOSS_BYTES, _LOSS_GRADIENT_BYTES = 4, 8


def _bare_name(operation: Operation) -> str:
    """Return an operation's name: "relu" of "torch.nn.ReLU", "keras.relu", "aten.relu_" and "Relu"."""
    source = operation.source
    if source.startswith(("torch.nn.", "keras.")):
        return source.rpartition(".")[2].lower()
    return strip_torch_name(source).lower()


def _is_by_constant(operation: Operation) -> bool:
    """Tell whether a product's other factor learns nothing, as a rotation by positions: it alone is needed again."""
    return operation.primitive is Primitive.PRODUCT and len(operation.inputs) == 1 and not operation.weight


def _add_up(shapes: tuple[tuple[int, ...], ...]) -> int:
    return sum(map(math.prod, shapes))


@dataclass(frozen=True)
class StepMemory:
    """What a training step of one network holds, at every moment of its backward pass.

    A moment is that at which the backward pass comes to an operation, the last one the loss's own; the amounts of shape
    (operations + 1,) are bytes, those that grow with the batch of one sample.

    Attributes:
        weights: With copies that stay for the step.
        optimizer: The state.
        update: What the update needs beside weights and state: gradients, and copies.
        gradients: That there are at each moment.
        kept: Activations that are there, of a sample and of none.
        passing: What the moment's operation reads and writes, of a sample and of none.
        across: What the forward pass hands on behind each operation, shape (operations,).
    """

    weights: float
    optimizer: float
    update: float
    gradients: FloatArray
    kept: tuple[FloatArray, FloatArray]
    passing: tuple[FloatArray, FloatArray]
    across: tuple[FloatArray, FloatArray]

    @classmethod
    def of(
        cls, graph: WorkloadGraph, precision: Precision, optimizer: Optimizer, *, buckets: bool = False
    ) -> StepMemory:
        """Count a graph.

        Args:
            graph: The network.
            precision: Half precision has weights, gradients and state in it too; mixed precision is autocast's.
            optimizer: What updates the weights.
            buckets: Gradients are copied for an exchange, and the copies stay.
        """
        return _Count(graph, precision).finish(optimizer, buckets=buckets)

    def need(self, batch_size: int) -> MemoryNeed:
        """Return what a step of that many samples holds at its peak."""
        kept = batch_size * self.kept[0] + self.kept[1]
        passing = batch_size * self.passing[0] + self.passing[1]
        moment = int((self.gradients + kept + passing).argmax())
        peak = self.gradients[moment] + kept[moment] + passing[moment]
        fixed = self.weights, self.optimizer
        if peak < self.update:
            gradients = float(self.gradients[0])
            return MemoryNeed(fixed[0], gradients, fixed[1], 0.0, self.update - gradients + _CONTEXT_BYTES)
        return MemoryNeed(
            fixed[0],
            float(self.gradients[moment]),
            fixed[1],
            float(kept[moment]),
            float(passing[moment]) + _CONTEXT_BYTES,
        )

    def largest_batch(self, memory_bytes: float) -> int:
        """Return the most samples that fit into a device's memory; 0 where not one does."""
        free = self._free(memory_bytes)
        if free < self.update:
            return 0
        room = free - self.gradients - self.kept[1] - self.passing[1]
        return _count_samples(room, self.kept[0] + self.passing[0])

    def largest_batch_checkpointed(self, memory_bytes: float) -> int:
        """Return the same for a forward pass that keeps only what it hands from one part to the next."""
        free = self._free(memory_bytes)
        if free < self.update:
            return 0
        room = np.array([free - float(self.gradients.max()) - float(self.kept[1].max())])
        return max(self.largest_batch(memory_bytes), _count_samples(room, np.array([self.checkpointed_bytes])))

    @cached_property
    def checkpointed_bytes(self) -> float:
        """Bytes of a sample where parts are computed again when the backward pass comes to them.

        The parts, as many as is best, keep about the same, and are cut where little is handed on.
        """
        sums = self.kept[0][:-1]
        loss = float(self.kept[0][-1] - sums[-1] + self.passing[0][-1])
        passing = float(self.passing[0][:-1].max())
        least = math.inf
        for parts in range(1, min(_MOST_PARTS, len(sums)) + 1):
            cuts = self._cut(sums, parts)
            handed = float(self.across[0][cuts].sum())
            ends = np.concatenate([np.zeros(1), sums[cuts], sums[-1:]])
            least = min(least, handed + max(float(np.diff(ends).max()) + passing, loss))
        return least

    def _cut(self, sums: FloatArray, parts: int) -> npt.NDArray[np.intp]:
        """Return behind which operations to cut: near equal parts, where least is handed on."""
        cuts = []
        for number in range(1, parts):
            low, high = (int(np.searchsorted(sums, sums[-1] * (number + shift) / parts)) for shift in (-0.25, 0.25))
            low = min(low, len(sums) - 1)
            cuts.append(low + int(self.across[0][low : max(high, low + 1)].argmin()))
        return np.unique(np.array(cuts, dtype=np.intp))

    def _free(self, memory_bytes: float) -> float:
        return usable_bytes(memory_bytes) - self.weights - self.optimizer

    def fit(self, batch_size: int, memory_bytes: float) -> MemoryFit:
        """Compare a step with a device's memory."""
        need = self.need(batch_size)
        share = need.total_bytes / (_USABLE * memory_bytes)
        fits = Fits.NO
        for least, word in ((_SURELY, Fits.YES), (1.0, Fits.LIKELY), (_PERHAPS, Fits.UNKNOWN)):
            if share <= least:
                fits = word
                break
        return MemoryFit(
            fits, need, memory_bytes, self.largest_batch(memory_bytes), self.largest_batch_checkpointed(memory_bytes)
        )


_MOST_PARTS = 64


def usable_bytes(memory_bytes: float) -> float:
    """Return what a framework's tensors may have of a device's memory."""
    return _USABLE * memory_bytes - _CONTEXT_BYTES


def _count_samples(room: FloatArray, per_sample: FloatArray) -> int:
    most = float((room / np.maximum(per_sample, 1.0)).min())
    return int(min(max(math.floor(most), 0), _LARGEST_BATCH))


class _Count:
    """Counts what the operations of one graph keep."""

    def __init__(self, graph: WorkloadGraph, precision: Precision) -> None:
        self._graph = graph
        self._mixed = precision is Precision.MIXED
        self._half = precision in _HALF
        self._plain = {Precision.FP64: 8, Precision.MIXED: 4}.get(precision, 2 if self._half else 4)
        self._widths = self._list_widths()
        count = len(graph.operations)
        self._released = np.zeros((2, count + 1))
        self._passing = np.zeros((2, count + 1))
        # Writer, width, and the reader that has a copy of its own (-1: nobody) -> already counted.
        self._known: set[tuple[int, int, int]] = set()

    def finish(self, optimizer: Optimizer, *, buckets: bool) -> StepMemory:
        """Count all operations, then the loss."""
        copies = sum(self._count(position) for position in range(len(self._graph.operations)))
        self._count_loss()
        weights = float(self._plain * self._graph.parameter_count)
        own = [self._plain * sum(each.count for each in operation.parameters) for operation in self._graph.operations]
        gradients = np.append(np.cumsum(own[::-1])[::-1], 0.0).astype(np.float64)
        bucket = weights if buckets else 0.0
        # Nothing updates them: under mixed precision too they are kept in half.
        frozen = float(2 if self._mixed else self._plain) * self._graph.frozen_count
        sums = np.cumsum(self._released, axis=1)
        return StepMemory(
            weights=weights + copies + bucket + frozen,
            optimizer=_STATES[optimizer] * weights,
            update=weights * (1 + _UPDATE_COPIES[optimizer]),
            gradients=gradients,
            kept=(sums[0], sums[1]),
            passing=(self._passing[0], self._passing[1]),
            across=self._hand_on(),
        )

    def _list_widths(self) -> list[int]:
        """Return the bytes of a number in what each operation writes."""
        found: list[int] = []
        for operation, writers in zip(self._graph.operations, self._graph.predecessors, strict=True):
            read = [found[each] for each in writers]
            widest = max(read, default=self._plain)
            name = _bare_name(operation)
            if not (self._mixed or self._half):
                width = self._plain
            elif operation.primitive in MATRIX_PRIMITIVES:
                width = 2
            elif name in (_SINGLE_NAMES if self._mixed else _SINGLE_BY_HAND):
                width = 4
            elif self._mixed:
                width = 4 if operation.primitive in _SINGLE_PRIMITIVES or not read else widest
            else:
                # A product with a weight ends what was computed in single precision by hand.
                width = 2 if operation.weight or operation.primitive is not Primitive.PRODUCT else widest
            found.append(width)
        return found

    def _count(self, position: int) -> float:
        """Note what an operation keeps; return the bytes of the copy of its weight that autocast makes."""
        operation = self._graph.operations[position]
        if operation.primitive in _NOTHING:
            return 0.0
        written, read = math.prod(operation.output), _add_up(operation.inputs)
        own = self._widths[position]
        writers = self._graph.predecessors[position]
        widest = max((self._widths[each] for each in writers), default=own)
        self._add(self._passing, position, position, own * written + widest * read)
        name = _bare_name(operation)
        activation = operation.primitive is Primitive.ACTIVATION
        if operation.primitive in _KEEP_OUTPUT or (activation and name in _FROM_OUTPUT):
            self._keep(position, position, own)
        elif (activation and name in _FROM_NEITHER) or _is_by_constant(operation):
            return 0.0
        if operation.primitive in _KEEP_INPUTS or (activation and name not in _FROM_OUTPUT):
            self._keep_inputs(position, own)
        if operation.primitive is Primitive.MAX_POOL:
            self._add(self._released, position, position, _INDEX_BYTES * written)
        if operation.primitive is Primitive.RECURRENT and operation.weight:
            steps = math.prod(operation.inputs[0][:-1]) if operation.inputs else 0
            self._add(self._released, position, position, own * steps * operation.weight[0])
        if self._mixed and operation.primitive in MATRIX_PRIMITIVES and operation.weight and operation.parameters:
            return 2.0 * math.prod(operation.weight)
        return 0.0

    def _keep_inputs(self, position: int, own: int) -> None:
        """Keep what an operation reads: the tensor that was written, or the copy that it is turned into."""
        operation, writers = self._graph.operations[position], self._graph.predecessors[position]
        for writer in writers:
            self._keep(position, writer, self._read_width(operation, writer, own))
        there = sum(math.prod(self._graph.operations[each].output) for each in writers)
        # More is read than was written: views that repeat, such as keys for several queries, are copies.
        repeated = _add_up(operation.inputs) - there
        if writers and repeated > 0:
            self._add(self._released, position, position, own * repeated)

    def _read_width(self, operation: Operation, writer: int, own: int) -> int:
        width = self._widths[writer]
        if operation.primitive in MATRIX_PRIMITIVES:
            return 2 if self._mixed else min(width, own)
        if self._mixed and operation.primitive in _SINGLE_PRIMITIVES:
            return 4
        if self._half and operation.primitive is Primitive.PRODUCT:
            return own  # by hand, too: what a factor in single precision meets becomes single, what a weight meets half
        return max(width, own) if _bare_name(operation) in _SINGLE_BY_HAND else width

    def _keep(self, position: int, writer: int, width: int) -> None:
        is_copy = width != self._widths[writer]
        # Products turn what they read into half precision each for itself; others share what one made by hand.
        key = (writer, width, position if is_copy and self._mixed else -1)
        if key not in self._known:
            self._known.add(key)
            self._add(self._released, position, writer, width * math.prod(self._graph.operations[writer].output))

    def _count_loss(self) -> None:
        """Count a loss by logarithms of probabilities, in single precision, of all that the network returns."""
        graph = self._graph
        last = len(graph.operations)
        for position, operation in enumerate(graph.operations):
            returned = any(graph.operations[each].primitive is Primitive.OUTPUT for each in graph.successors[position])
            if operation.primitive in _NOTHING or (graph.successors[position] and not returned):
                continue
            numbers = math.prod(operation.output)
            if (position, self._widths[position], -1) not in self._known:
                self._add(self._released, last, position, self._widths[position] * numbers)
            self._add(self._released, last, position, _LOSS_BYTES * numbers)
            self._add(self._passing, last, position, _LOSS_GRADIENT_BYTES * numbers)

    def _add(self, table: FloatArray, moment: int, of: int, amount: float) -> None:
        """Add bytes of the graph's own batch: of a sample where they grow with it."""
        if self._graph.sees_input[of]:
            table[0, moment] += amount / self._graph.batch_size
        else:
            table[1, moment] += amount

    def _hand_on(self) -> tuple[FloatArray, FloatArray]:
        """Add up, behind each operation, what was written before and is read after."""
        graph = self._graph
        changes = np.zeros((2, len(graph.operations) + 1))
        for position, (operation, readers) in enumerate(zip(graph.operations, graph.successors, strict=True)):
            if readers and operation.primitive is not Primitive.PARAMETER:
                amount = self._widths[position] * math.prod(operation.output)
                self._add(changes, position, position, amount)
                self._add(changes, max(readers), position, -amount)
        sums = np.cumsum(changes[:, :-1], axis=1)
        return sums[0], sums[1]
