"""Hands the nodes of an exported program, as ``torch.export.save`` writes it down, to a graph's builder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from gpusonde.errors import DataDependentGraphError, GraphLimitError, MalformedGraphError, UnsupportedGraphError
from gpusonde.predictor.workload.graph.builder import GraphBuilder, Key
from gpusonde.predictor.workload.graph.ir import Primitive, Shape, WorkloadGraph
from gpusonde.predictor.workload.graph.limits import GraphLimits
from gpusonde.predictor.workload.graph.op_registry import (
    PRODUCTS_WITH_A_SUM,
    find_torch_op_type,
    is_in_place,
    strip_torch_name,
)

_CHOICES = frozenset({"cond", "while_loop", "switch"})
_MOST_NESTED = 8
_MOST_SCOPES = 100
_TENSORS = frozenset({"as_tensor", "as_tensors", "as_optional_tensor", "as_optional_tensors", "as_nested_tensors"})
_SIZES = frozenset({"as_sym_int", "as_sym_ints"})
_PREFIX = "torch.ops."

_Type = TypeVar("_Type")


class ProgramReader:
    """Reads one program.

    Args:
        document: Its JSON text, parsed.
        name: Of the graph.
        weights: The JSON text that says where each weight lies, parsed; None if there is none.
        limits: What is accepted.
    """

    def __init__(self, document: object, name: str, weights: object, limits: GraphLimits) -> None:
        self._module = _get(_check_type(document, dict, "the program"), "graph_module", dict)
        self._builder = GraphBuilder(name, "pt2")
        self._limits = limits
        self._same = _find_same_tensors(weights)
        self._nodes = self._arguments = self._scopes = 0
        self._batch_size: int | None = None
        self._is_open = False

    def read(self) -> WorkloadGraph:
        """Make the graph.

        Raises:
            MalformedGraphError: Not such a program.
            GraphLimitError: It is too large.
            DataDependentGraphError: It holds branches or loops that depend on the values of the data.
            UnsupportedGraphError: Sizes that nobody can tell, or no tensor among its inputs.
        """
        graph = _get(self._module, "graph", dict)
        shapes = self._read_shapes(graph)
        specifications = _get(_get(self._module, "signature", dict), "input_specs", list)
        self._limits.check_count("inputs", len(specifications), self._limits.tensors)
        for specification in specifications:
            self._read_input(_check_type(specification, dict, "an input"), shapes)
        outputs = self._read_graph(graph, shapes, 0)
        if self._batch_size is None:
            raise UnsupportedGraphError("no input of the program is a tensor whose first extent is the batch")
        if self._is_open:
            self._builder.add_note("the program leaves sizes open: shapes are those of the example")
        return self._builder.build(outputs, self._batch_size)

    def _read_input(self, specification: Mapping[str, Any], shapes: Mapping[str, Shape]) -> None:
        for kind, value in specification.items():
            argument = _get(_check_type(value, dict, "an input"), "arg", dict, default={})
            name = _name(argument) if "name" in argument else next(_find_tensors(argument), None)
            if name is None or name not in shapes:
                continue
            shape = shapes[name]
            if kind == "parameter":
                called = _get(value, "parameter_name", str)
                self._builder.add_parameter(_make_key(0, name), self._same.get(called, called), shape)
            elif kind == "user_input":
                self._builder.add_input(_make_key(0, name), shape, name)
                if self._batch_size is None and shape:
                    self._batch_size = shape[0]
            else:
                self._builder.add_constant(_make_key(0, name), shape)

    def _read_graph(self, graph: Mapping[str, Any], shapes: Mapping[str, Shape], scope: int) -> list[Key]:
        """Add the nodes of a graph; names in graphs within graphs are told apart by the number of the scope."""
        nodes = _get(graph, "nodes", list)
        self._nodes += len(nodes)
        self._limits.check_count("nodes", self._nodes, self._limits.operations)
        for node in nodes:
            self._read_node(_check_type(node, dict, "a node"), shapes, scope)
        return [_make_key(scope, name) for name in _find_tensors(_get(graph, "outputs", list)) if name in shapes]

    def _read_node(self, node: Mapping[str, Any], shapes: Mapping[str, Shape], scope: int) -> None:
        target = _get(node, "target", str)
        inputs = [_check_type(each, dict, "an argument") for each in _get(node, "inputs", list)]
        settings = {_get(each, "name", str): _get(each, "arg", dict) for each in inputs}
        values = [_get(each, "arg", dict) for each in inputs]
        outputs = [name for name in _find_tensors(_get(node, "outputs", list)) if name in shapes]
        name = _name_operator(target)
        if name.rpartition("::")[2] in _CHOICES:
            raise DataDependentGraphError(
                f"the network chooses what to run while it runs ({name}): there is no single graph. Export one branch."
            )
        inner = next((each["as_graph"] for each in values if "as_graph" in each), None)
        if inner is not None:
            self._read_inner(_get(_check_type(inner, dict, "a graph"), "graph", dict), values, outputs, scope)
        elif outputs:
            title = node.get("name")
            self._add(
                name, target, title if isinstance(title, str) else outputs[0], values, settings, outputs, shapes, scope
            )

    def _add(
        self, name: str, target: str, title: str, values: Sequence[Mapping[str, Any]],
        settings: Mapping[str, Mapping[str, Any]], outputs: Sequence[str], shapes: Mapping[str, Shape], scope: int,
    ) -> None:  # fmt: skip
        arguments: list[Key | None] = [_make_key(scope, each) for each in _find_tensors(values) if each in shapes]
        self._arguments += len(arguments)
        self._limits.check_count("arguments", self._arguments, self._limits.inputs)
        op_type = find_torch_op_type(name)
        if strip_torch_name(name) in PRODUCTS_WITH_A_SUM:
            arguments = [*arguments[1:], *arguments[:1]]
        elif settings.get("transposed", {}).get("as_bool") is True:
            op_type = Primitive.TRANSPOSED_CONVOLUTION
        groups = settings.get("groups", {}).get("as_int", 1)
        equation = settings.get("equation", {}).get("as_string", "")
        key = _make_key(scope, outputs[0])
        self._builder.add_operator(
            key,
            op_type,
            arguments,
            shapes[outputs[0]],
            source=target.removeprefix(_PREFIX).removesuffix(".default") if op_type is not None else name,
            name=title,
            groups=_check_type(groups, int, "groups"),
            equation=_check_type(equation, str, "equation"),
            overwrites=is_in_place(name),
        )
        self._limits.check_count("edges", self._builder.edge_count, self._limits.edges)
        for other in outputs[1:]:
            self._builder.add_view(_make_key(scope, other), key, shapes[other])

    def _read_inner(
        self, graph: Mapping[str, Any], values: Sequence[Mapping[str, Any]], outputs: Sequence[str], scope: int
    ) -> None:
        """Read a graph within the graph, as ``with torch.no_grad()`` makes one: its nodes, in place."""
        self._scopes += 1
        inner_scope = self._scopes
        if self._scopes > _MOST_SCOPES:
            raise GraphLimitError(f"more than {_MOST_SCOPES} graphs within the graph")
        shapes = self._read_shapes(graph)
        given = [each for value in values if "as_graph" not in value for each in _find_names(value)]
        for name, source in zip(_find_names(_get(graph, "inputs", list)), given, strict=False):
            if name in shapes:
                self._builder.add_view(_make_key(inner_scope, name), _make_key(scope, source), shapes[name])
        for name, key in zip(outputs, self._read_graph(graph, shapes, inner_scope), strict=False):
            self._builder.add_view(_make_key(scope, name), key, self._builder.shape(key))

    def _read_shapes(self, graph: Mapping[str, Any]) -> dict[str, Shape]:
        values = _get(graph, "tensor_values", dict)
        self._limits.check_count("tensors", len(values), self._limits.tensors)
        return {name: self._read_shape(name, _check_type(value, dict, "a tensor")) for name, value in values.items()}

    def _read_shape(self, name: str, value: Mapping[str, Any]) -> Shape:
        place = f"tensor_values.{name[:100]}"
        extents = [self._read_extent(place, _check_type(each, dict, place)) for each in _get(value, "sizes", list)]
        # Tensors without elements occur as arguments; they are read as one of one element.
        return self._limits.check_shape(place, [1 if each == 0 and type(each) is int else each for each in extents])

    def _read_extent(self, place: str, size: Mapping[str, Any]) -> object:
        if "as_int" in size:
            return size["as_int"]
        expression = _get(size, "as_expr", dict)
        hint = expression.get("hint")
        self._is_open = True
        if isinstance(hint, dict) and "as_int" in hint:
            return hint["as_int"]
        raise UnsupportedGraphError(f"{place}: a size that is known only when the network runs")


def _find_same_tensors(weights: object) -> dict[str, str]:
    """Return the first name of each weight that has several."""
    configuration = weights.get("config") if isinstance(weights, dict) else None
    if not isinstance(configuration, dict):
        return {}
    first: dict[str, str] = {}
    try:
        return {name: first.setdefault(json.dumps(place), name) for name, place in configuration.items()}
    except RecursionError:
        raise MalformedGraphError("what says where the weights lie is nested too deeply") from None


def _make_key(scope: int, name: str) -> Key:
    """Return what a tensor is called among those of all scopes."""
    return f"{scope}:{name}" if scope else name


def _name_operator(target: str) -> str:
    """Return the name of an operator as its schema has it: "aten::conv2d"."""
    parts = target.removeprefix(_PREFIX).split(".")
    return f"{parts[0]}::{parts[1]}" if target.startswith(_PREFIX) and len(parts) > 1 else parts[-1]


def _find_tensors(argument: object) -> Iterator[str]:
    """Return the names of the tensors in an argument, in order and as often as they occur."""
    for kind, name in _read_names(argument, 0):
        if kind != "as_sym_int":
            yield name


def _find_names(argument: object) -> Iterator[str]:
    """Return the names of tensors and of sizes."""
    for _, name in _read_names(argument, 0):
        yield name


def _read_names(argument: object, depth: int, kind: str = "") -> Iterator[tuple[str, str]]:
    if depth > _MOST_NESTED:
        raise MalformedGraphError("an argument is nested too deeply")
    if isinstance(argument, list):
        for each in argument:
            yield from _read_names(each, depth + 1, kind)
    elif isinstance(argument, dict):
        for key, value in argument.items():
            if key in _TENSORS:
                yield from _read_names(value, depth + 1, "as_tensor")
            elif key in _SIZES:
                yield from _read_names(value, depth + 1, "as_sym_int")
            elif kind and key in {"name", "as_name"}:
                yield kind, _check_type(value, str, "a name")


def _name(argument: Mapping[str, Any]) -> str:
    return _get(argument, "name", str)


def _check_type(value: object, kind: type[_Type], place: str) -> _Type:
    # A bool is an int to isinstance.
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise MalformedGraphError(f"no exported program: {place} must be of type {kind.__name__}")
    return value


def _get(given: Mapping[str, Any], key: str, kind: type[_Type], default: _Type | None = None) -> _Type:
    if key not in given and default is not None:
        return default
    return _check_type(given.get(key), kind, key)
