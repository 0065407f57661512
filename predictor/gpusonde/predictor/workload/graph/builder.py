"""``GraphBuilder``: what every front end hands its operators to, so that all make the same graph of the same network.

It contracts views and constants, decides which primitive an operator is where its name alone does not say (depthwise or
grouped convolution, product with a weight or of two activations, Einstein sums of two tensors as products of matrices),
and gives each trainable tensor to the operation that reads it first.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from gpusonde.errors import MalformedGraphError
from gpusonde.predictor.workload.graph.ir import Operation, Parameter, Primitive, Shape, WorkloadGraph
from gpusonde.predictor.workload.graph.op_registry import NoOp, OpType


def find_contraction_shapes(equation: str, left: Shape, right: Shape) -> tuple[Shape, Shape] | None:
    """Return the shapes of the two matrices, or stacks of them, whose product an Einstein sum is.

    Args:
        equation: As in ``torch.einsum``, such as "bhqd,bhkd->bhqk"; without an arrow, what occurs once is kept.
        left: Extents of the first tensor.
        right: Extents of the second.

    Returns:
        ((batch, m, k), (batch, k, n)), without ``batch`` if nothing is multiplied side by side; None if nothing is
        summed over that both have, or the equation is not one of these two tensors.
    """
    terms, _, result = equation.replace(" ", "").partition("->")
    both = terms.split(",")
    if len(both) != 2:
        return None
    extents: dict[str, int] = {}
    labels = []
    for term, shape in zip(both, (left, right), strict=True):
        names = _spell_out(term, len(shape))
        if len(names) != len(shape):
            return None
        for name, extent in zip(names, shape, strict=True):
            extents[name] = max(extent, extents.get(name, 1))
        labels.append(dict.fromkeys(names))
    first, second = labels
    if "->" in equation:
        kept = {name for name in extents if (name in result if len(name) == 1 else "..." in result)}
    else:
        kept = {name for name in extents if len(name) > 1 or terms.count(name) == 1}
    shared = [name for name in first if name in second]
    summed = math.prod(extents[name] for name in shared if name not in kept)
    if all(name in kept for name in shared):
        return None
    batch = math.prod(extents[name] for name in shared if name in kept)
    rows = math.prod(extents[name] for name in first if name not in second)
    columns = math.prod(extents[name] for name in second if name not in first)
    if batch == 1:
        return (rows, summed), (summed, columns)
    return (batch, rows, summed), (batch, summed, columns)


def take_first_contraction(equation: str, shapes: Sequence[Shape]) -> tuple[str, Shape, str] | None:
    """Take the first two tensors of an Einstein sum of more.

    Args:
        equation: Without "...".
        shapes: Extents of its first two tensors.

    Returns:
        The equation of these two, the shape of what it makes, and the equation of that and of the other tensors; None
        if the equation is not one of these.
    """
    terms, arrow, result = equation.replace(" ", "").partition("->")
    tensors = terms.split(",")
    if "." in equation or len(tensors) < 3 or list(map(len, tensors[:2])) != list(map(len, shapes)):
        return None
    if not arrow:
        result = "".join(sorted(name for name in set(terms) - {","} if terms.count(name) == 1))
    extents: dict[str, int] = {}
    for name, extent in zip("".join(tensors[:2]), (extent for shape in shapes for extent in shape), strict=True):
        extents[name] = max(extent, extents.get(name, 1))
    wanted = set("".join(tensors[2:]) + result)
    kept = "".join(name for name in extents if name in wanted)
    first = f"{tensors[0]},{tensors[1]}->{kept}"
    return first, tuple(extents[name] for name in kept), f"{','.join([kept, *tensors[2:]])}->{result}"


def write_tensordot_equation(dims: Sequence[Sequence[int]], ranks: Sequence[int]) -> str:
    """Return the equation of a ``tensordot``, as of an Einstein sum.

    Args:
        dims: The dimensions that are summed over, of the first and of the second tensor, in the same order.
        ranks: Their numbers of dimensions.
    """
    left = [chr(ord("a") + number) for number in range(ranks[0])]
    right = [chr(ord("A") + number) for number in range(ranks[1])]
    for mine, other in zip(*dims, strict=True):
        right[other] = left[mine]
    kept = [name for name in (*left, *right) if (name in left) != (name in right)]
    return f"{''.join(left)},{''.join(right)}->{''.join(kept)}"


def _spell_out(term: str, rank: int) -> list[str]:
    """Give each extent a name; those that "..." stands for are ".1", ".2", ... from the last."""
    before, dots, after = term.partition("...")
    hidden = max(rank - len(before) - len(after), 0) if dots else 0
    return [*before, *(f".{number}" for number in range(hidden, 0, -1)), *after]


Key = Hashable

_MOST_NAMED = 8
_MOST_NESTED = 16  # views of views that writing in place is followed through
_MOST_WRITERS = 16  # of one tensor; parts written by more are joined, so that edges stay in proportion to operators
_CONVOLUTIONS = frozenset({Primitive.CONVOLUTION, Primitive.TRANSPOSED_CONVOLUTION})
# Their operands are tensors of equal standing: a trainable one among them is an operation of its own.
_WEIGHTLESS = frozenset({Primitive.CONCATENATION, Primitive.ATTENTION})


@dataclass
class _Value:
    """A tensor: who wrote it, or which trainable tensor it is a view of; neither: a constant.

    A tensor without elements, such as a cache at the start, is a constant: nobody waits for it.
    """

    shape: Shape
    writers: tuple[int, ...] = ()
    parameter: Parameter | None = None
    base: _Value | None = None

    @property
    def is_constant(self) -> bool:
        return not self.writers and self.parameter is None


class GraphBuilder:
    """Builds one graph, operator by operator in an order in which they can run.

    Args:
        name: What the user calls the network.
        front_end: As in ``WorkloadGraph``.
    """

    def __init__(self, name: str, front_end: str) -> None:
        self._name = name
        self._front_end = front_end
        self._operations: list[Operation] = []
        self._edges: set[tuple[int, int]] = set()
        self._values: dict[Key, _Value] = {}
        self._owned: set[str] = set()
        self._parameter_operations: dict[str, int] = {}
        self._names: dict[str, int] = {}
        self._notes: list[str] = []
        self._unknown: dict[str, int] = {}

    def add_input(self, key: Key, shape: Shape, name: str | None = None) -> None:
        """Add a tensor that the network is given.

        Args:
            key: What operators call it.
            shape: Its extents.
            name: Of the operation; the key if not given.
        """
        if 0 in shape:
            self._values[key] = _Value(shape)
            return
        position = self._append(Operation(Primitive.INPUT, name or str(key), shape), ())
        self._values[key] = _Value(shape, (position,))

    def add_parameter(self, key: Key, name: str, shape: Shape) -> None:
        """Add a trainable tensor; two keys with one name are one tensor.

        Args:
            key: What operators call it.
            name: What the network calls it.
            shape: Its extents.
        """
        self._values[key] = _Value(shape, parameter=None if 0 in shape else Parameter(name, shape))

    def add_constant(self, key: Key, shape: Shape) -> None:
        """Add a tensor that is neither trained nor computed from an input: a buffer, a mask.

        Args:
            key: What operators call it.
            shape: Its extents.
        """
        self._values[key] = _Value(shape)

    def add_view(self, key: Key, of: Key, shape: Shape) -> None:
        """Add another name, shape or part of a tensor.

        Args:
            key: What operators call it.
            of: The tensor.
            shape: Extents of the new one.
        """
        self._values[key] = self._follow_views([self._get_value(of)], shape)

    def add_operator(
        self,
        key: Key,
        op_type: OpType | None,
        arguments: Sequence[Key | None],
        output: Shape,
        *,
        source: str,
        name: str | None = None,
        groups: int = 1,
        equation: str = "",
        overwrites: bool = False,
    ) -> None:
        """Add an operator.

        Args:
            key: What later operators call its (first) output.
            op_type: As the registry says; None for an unknown one, which the graph's notes then name. A product of
                matrices has the two matrices first among its arguments and what is added to it after them.
            arguments: Keys of the tensors that it reads, in the operator's own order; None for one left out.
            output: Shape of its first output.
            source: The front end's own name of the operator.
            name: Of the operation; the key if not given.
            groups: Of a convolution.
            equation: Of an Einstein sum.
            overwrites: It works in place: who reads its first argument later reads its output.

        Raises:
            MalformedGraphError: It reads a tensor that nothing wrote.
        """
        operands = [None if each is None else self._get_value(each) for each in arguments]
        if equation:
            op_type, operands = self._contract(equation, operands, source)
        present = [each for each in operands if each is not None]
        if op_type is NoOp.CONSTANT:
            self._values[key] = present[0] if overwrites and present else _Value(output)
        elif 0 in output or all(each.is_constant for each in present):
            self._values[key] = _Value(output)
        elif op_type is NoOp.VIEW:
            self._values[key] = self._follow_views(present, output)
            if overwrites:
                _overwrite(present[0], self._values[key].writers)
        else:
            if op_type is None:
                self._unknown[source] = self._unknown.get(source, 0) + 1
            primitive = op_type if isinstance(op_type, Primitive) else Primitive.OTHER
            position = self._add_op(primitive, operands, output, name or str(key), source, groups)
            self._values[key] = _Value(output, (position,))
            if overwrites and present:
                _overwrite(present[0], (position,))

    def add_note(self, note: str) -> None:
        """Add what the reader of the graph should know.

        Args:
            note: A sentence.
        """
        self._notes.append(note)

    def shape(self, key: Key) -> Shape:
        """Return the extents of a tensor.

        Args:
            key: As it was added.

        Raises:
            MalformedGraphError: Nothing wrote it.
        """
        return self._get_value(key).shape

    @property
    def unknown(self) -> tuple[str, ...]:
        """Operators so far that are not in the registry."""
        return tuple(self._unknown)

    @property
    def edge_count(self) -> int:
        """Edges so far: an operator that reads parts of a tensor written by many has many."""
        return len(self._edges)

    def build(self, outputs: Iterable[Key], batch_size: int) -> WorkloadGraph:
        """Make the graph.

        Args:
            outputs: What the network returns.
            batch_size: Samples in the batch of the inputs.

        Raises:
            MalformedGraphError: There is nothing in it.
        """
        returned = [each for each in map(self._get_value, outputs) if 0 not in each.shape]
        shapes = tuple(each.shape for each in returned)
        sources = [writer for each in returned for writer in self._find_writer(each)]
        last = Operation(Primitive.OUTPUT, "output", shapes[0] if shapes else (), shapes)
        self._append(last, sources)
        if any(each.primitive is Primitive.RECURRENT and not each.weight for each in self._operations):
            self._notes.append(
                "recurrent layers whose weights are computed by operators: their products are not counted"
            )
        if self._unknown:
            named = [f"{source} ({count})" for source, count in list(self._unknown.items())[:_MOST_NAMED]]
            more = len(self._unknown) - len(named)
            rest = f" and {more} others" if more else ""
            self._notes.append(f"unknown operators, counted as elementwise: {', '.join(named)}{rest}")
        return WorkloadGraph(
            self._name,
            tuple(self._operations),
            tuple(sorted(self._edges)),
            batch_size,
            self._front_end,
            tuple(self._notes),
        )

    def _get_value(self, key: Key) -> _Value:
        try:
            return self._values[key]
        except KeyError:
            raise MalformedGraphError(f"an operator reads {key!s:.80}, which nothing before it writes") from None

    def _contract(
        self, equation: str, operands: list[_Value | None], source: str
    ) -> tuple[OpType | None, list[_Value | None]]:
        """Return an Einstein sum as a product of matrices; of one tensor or without a sum: as what it costs."""
        tensors = [each for each in operands if each is not None]
        while len(tensors) > 2 and (step := take_first_contraction(equation, [each.shape for each in tensors[:2]])):
            # PyTorch takes them from the left, two at a time.
            first, shape, equation = step
            key = object()
            self._values.update({(key, number): each for number, each in enumerate(tensors[:2])})
            self.add_operator(key, None, [(key, 0), (key, 1)], shape, source=source, name="einsum", equation=first)
            tensors = [self._get_value(key), *tensors[2:]]
        operands = [*tensors]
        if len(tensors) == 1:
            return Primitive.GLOBAL_AVERAGE_POOL, operands
        if len(tensors) != 2:
            return None, operands
        shapes = find_contraction_shapes(equation, tensors[0].shape, tensors[1].shape)
        if shapes is None:
            return Primitive.PRODUCT, operands
        return Primitive.MATRIX_PRODUCT, [
            _Value(shape, each.writers, each.parameter, each) for each, shape in zip(tensors, shapes, strict=True)
        ]

    def _follow_views(self, present: Sequence[_Value], output: Shape) -> _Value:
        first = present[0]
        if 0 in output:
            return _Value(output)
        if len(present) == 1 or all(each.is_constant for each in present[1:]):
            return _Value(output, first.writers, first.parameter, first)
        writers = _unite(self._find_writer(each) for each in present)
        if len(writers) > _MOST_WRITERS:
            shapes = tuple(each.shape for each in present if each.writers)
            joined = Operation(Primitive.CONCATENATION, "joined", output, shapes)
            writers = (self._append(joined, writers),)
        return _Value(output, writers, None, first)

    def _add_op(
        self, primitive: Primitive, operands: list[_Value | None], output: Shape, name: str, source: str, groups: int
    ) -> int:
        if primitive in _WEIGHTLESS:
            for each in operands:
                if each is not None:
                    self._find_writer(each)
        present = [each for each in operands if each is not None]
        weight = _find_weight_shape(primitive, operands)
        if primitive is Primitive.MATRIX_PRODUCT and len(weight) == 2:
            primitive = Primitive.LINEAR
        elif primitive in {Primitive.SUM, Primitive.PRODUCT}:
            tensors = [each for each in present if not (each.is_constant and math.prod(each.shape) == 1)]
            primitive = primitive if len(tensors) > 1 else Primitive.ACTIVATION
        elif primitive is Primitive.CONVOLUTION and groups > 1:
            depthwise = weight[1:2] == (1,)
            primitive = Primitive.DEPTHWISE_CONVOLUTION if depthwise else Primitive.GROUPED_CONVOLUTION
        elif primitive is Primitive.AVERAGE_POOL and len(output) > 2 and math.prod(output[2:]) == 1:
            primitive = Primitive.GLOBAL_AVERAGE_POOL
        parameters = []
        for each in present:
            trained = each.parameter
            if trained is not None and not each.writers and trained.name not in self._owned:
                self._owned.add(trained.name)
                parameters.append(trained)
        operation = Operation(
            primitive,
            name,
            output,
            tuple(each.shape for each in present if each.writers),
            weight,
            tuple(parameters),
            groups,
            source,
        )
        return self._append(operation, _unite(each.writers for each in present))

    def _find_writer(self, value: _Value) -> tuple[int, ...]:
        """Return which operations wrote a tensor; of a trainable tensor, the operation that stands for it."""
        trained = value.parameter
        if trained is not None and not value.writers:
            if trained.name not in self._parameter_operations:
                owned = () if trained.name in self._owned else (trained,)
                self._owned.add(trained.name)
                operation = Operation(Primitive.PARAMETER, trained.name, trained.shape, (), trained.shape, owned)
                self._parameter_operations[trained.name] = self._append(operation, ())
            value.writers = (self._parameter_operations[trained.name],)
        return value.writers

    def _append(self, operation: Operation, sources: Iterable[int]) -> int:
        given = operation.name
        if given in self._names:
            # Counting on from the last one: a file may call all of its operators the same.
            number = self._names[given] + 1
            while f"{given}_{number}" in self._names:
                number += 1
            self._names[given] = number
            operation = replace(operation, name=f"{given}_{number}")
        self._names[operation.name] = 0
        position = len(self._operations)
        self._operations.append(operation)
        self._edges.update((source, position) for source in sources)
        return position


def _find_weight_shape(primitive: Primitive, operands: Sequence[_Value | None]) -> Shape:
    """Return the shape of the weight, turned into PyTorch's layout."""
    present = [each for each in operands if each is not None]
    if primitive is Primitive.MATRIX_PRODUCT:
        return _find_matrix_shape(present)
    if primitive in _WEIGHTLESS:
        return ()
    weights = [each.shape for each in present if not each.writers and each.parameter is not None]
    if primitive is Primitive.RECURRENT:
        return _find_recurrent_shape(weights)
    if primitive in _CONVOLUTIONS or primitive is Primitive.LINEAR:
        second = operands[1] if len(operands) > 1 else None
        return second.shape if second is not None and not second.writers else ()
    return weights[0] if weights else ()


def _find_matrix_shape(present: Sequence[_Value]) -> Shape:
    """Return (..., out, in) of the factor that no input is in; () if both are activations."""
    if len(present) < 2:
        return ()
    left, right = present[:2]
    if not right.writers and (left.writers or left.is_constant):
        return (*right.shape[:-2], right.shape[-1], right.shape[-2]) if len(right.shape) > 1 else (1, *right.shape)
    if not left.writers:
        return left.shape if len(left.shape) > 1 else (1, *left.shape)
    return ()


def _find_recurrent_shape(weights: Iterable[Shape]) -> Shape:
    """Put all matrices side by side."""
    matrices = [shape for shape in weights if len(shape) == 2]
    if not matrices:
        return ()
    numbers, rows = sum(map(math.prod, matrices)), matrices[0][0]
    return (rows, numbers // rows) if rows and numbers % rows == 0 else (1, numbers)


def _overwrite(value: _Value, writers: tuple[int, ...]) -> None:
    """Let who reads this tensor, or what it is a view of, read what was written into it.

    What was there before is read by the writers themselves.
    """
    each: _Value | None = value
    for _ in range(_MOST_NESTED):
        if each is None:
            break
        each.writers = writers
        each = each.base


def _unite(writers: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(writer for each in writers for writer in each))
