"""A module's graph by symbolic tracing (``torch.fx``): fast, and refused where it would miss anything."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from gpusonde.predictor.workload.graph.assembly import GraphAssembly, Key
from gpusonde.predictor.workload.graph.errors import UnsupportedGraphError
from gpusonde.predictor.workload.graph.from_torch.modules import (
    kept_as_is,
    parameter_counts,
    parameter_names,
    shape_of,
    tensors_in,
)
from gpusonde.predictor.workload.graph.ir import Primitive, Shape, WorkloadGraph
from gpusonde.predictor.workload.graph.vocabulary import (
    PRODUCTS_WITH_A_SUM,
    TORCH_MODULES,
    Role,
    is_in_place,
    torch_name,
    torch_role,
)

# Packages whose functions do what their name says; a function of the same name elsewhere may do anything.
_KNOWN_PACKAGES = frozenset({"torch", "_operator", "builtins", "math"})
_STOCHASTIC_DEPTH = "torchvision.ops.stochastic_depth"  # nothing in evaluation, and marked as not to be looked into
_GROUPS_POSITION = {f"{kind}{dimensions}d": 6 for kind in ("conv", "conv_transpose") for dimensions in (1, 2, 3)}
_IN_PLACE_OPERATORS = frozenset({"iadd", "imul", "isub", "itruediv"})
# Functions written in Python of several operators, into which only export looks.
_COMPOSITE = frozenset({"normalize", "local_response_norm", "lp_pool1d", "lp_pool2d", "tensordot", "stft", "istft"})
_FUNCTIONS = {"torch.nn.functional.unfold": "im2col"}  # a method of the same name only makes a view
_FIRST_KEYWORDS = ("input", "self", "tensor", "tensors", "query", "key", "value", "weight", "mat1", "mat2", "other")


def trace(
    module: nn.Module, arguments: tuple[Any, ...], keywords: Mapping[str, Any], *, name: str, batch_size: int
) -> WorkloadGraph:
    """Read a module's graph by symbolic tracing.

    Args:
        module: The network, in the mode that it is to be read in.
        arguments: An example of its inputs.
        keywords: Those given by name.
        name: Of the graph.
        batch_size: Samples in the example.

    Raises:
        UnsupportedGraphError: Tracing fails, or would miss an operation or a trainable tensor.
    """
    graph_module = _traced(module, arguments, keywords)
    assembly = GraphAssembly(name, "fx")
    reader = _Reader(assembly, module, graph_module)
    outputs = reader.read()
    if assembly.unknown:
        raise UnsupportedGraphError(f"fx does not look into {', '.join(assembly.unknown)}")
    graph = assembly.build(outputs, batch_size)
    expected = sum(parameter_counts(module).values())
    if graph.parameter_count != expected:
        raise UnsupportedGraphError(f"fx sees {graph.parameter_count} of {expected} trainable numbers")
    return graph


def _traced(module: nn.Module, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> fx.GraphModule:
    try:
        bound = inspect.signature(module.forward).bind(*arguments, **keywords)
    except TypeError as error:
        raise UnsupportedGraphError(f"the example does not fit the network's inputs: {error}") from error
    bound.apply_defaults()
    given = bound.arguments
    fixed = {each: value for each, value in given.items() if not isinstance(value, torch.Tensor)}
    if any(True for _ in tensors_in(fixed)):
        raise UnsupportedGraphError("fx does not look into collections of tensors among the inputs")
    try:
        tracer = fx.Tracer()
        with kept_as_is(module):
            graph = tracer.trace(module, fixed)
            # What nobody reads is run too, and what works in place is often read by nobody: no node is removed.
            graph_module = fx.GraphModule(tracer.root, graph)
        FakeTensorProp(graph_module, FakeTensorMode(allow_non_fake_inputs=True)).propagate(*given.values())
    except Exception as error:
        raise UnsupportedGraphError(f"fx cannot trace it: {error}") from error
    return graph_module


class _Reader:
    """Hands the nodes of a traced module to an assembly."""

    def __init__(self, assembly: GraphAssembly, module: nn.Module, graph_module: fx.GraphModule) -> None:
        self._assembly = assembly
        self._graph_module = graph_module
        self._names = parameter_names(module)
        self._buffers: dict[Any, Key] = {}
        self._modules = dict(module.named_modules(remove_duplicate=False))

    def read(self) -> list[Key]:
        """All nodes; returns what the network returns."""
        for node in self._graph_module.graph.nodes:
            if node.op == "output":
                return list(self._tensors_in(node.args))
            self._read(node)
        return []

    def _read(self, node: fx.Node) -> None:
        shape = shape_of(node.meta.get("val"))
        if shape is None:  # a size, a number, a check
            return
        if node.op == "placeholder":
            self._assembly.add_input(node, shape, node.name)
        elif node.op == "get_attr":
            if node.target in self._names:
                self._assembly.add_parameter(node, self._names[node.target], shape)
            elif node.target in self._buffers:
                # It may have been written since.
                self._assembly.add_view(node, self._buffers[node.target], shape)
            else:
                self._assembly.add_constant(node, shape)
                self._buffers[node.target] = node
        elif node.op == "call_module":
            self._read_module(node, shape)
        else:
            self._read_function(node, shape)

    def _read_module(self, node: fx.Node, shape: Shape) -> None:
        module = self._modules[node.target]
        operator_name = TORCH_MODULES.get(type(module).__name__)
        hooked = module._forward_hooks or module._forward_pre_hooks
        padded = getattr(module, "padding_mode", "zeros") != "zeros"  # an operator of its own
        if operator_name is None or operator_name in _COMPOSITE or hooked or padded:
            raise UnsupportedGraphError(f"fx does not look into {type(module).__name__}")
        arguments: list[Key] = list(self._tensors_in((node.args, node.kwargs)))
        for name, parameter in module.named_parameters(recurse=False):
            key = ("parameter", f"{node.target}.{name}")
            self._assembly.add_parameter(key, self._names[key[1]], tuple(parameter.shape))
            arguments.append(key)
        self._assembly.add_operator(
            node,
            torch_role(operator_name),
            arguments,
            shape,
            source=f"torch.nn.{type(module).__name__}",
            name=node.name,
            groups=getattr(module, "groups", 1),
            overwrites=bool(getattr(module, "inplace", False)),
        )

    def _read_function(self, node: fx.Node, shape: Shape) -> None:
        source, role = _named(node)
        bare = torch_name(source)
        if bare in _COMPOSITE:
            raise UnsupportedGraphError(f"fx does not look into {bare}")
        if bare == "getitem" and _is_collection(node.args[0]):
            self._assembly.add_view(node, node.args[0], shape)
            return
        arguments: list[Key] = list(self._tensors_in(node.args))
        keywords = sorted(node.kwargs, key=_keyword_rank)
        arguments += self._tensors_in([node.kwargs[each] for each in keywords])
        if bare == "rmatmul":
            arguments.reverse()
        elif bare in PRODUCTS_WITH_A_SUM:
            arguments = [*arguments[1:], *arguments[:1]]
        elif bare == "getitem" and (len(arguments) > 1 or _chooses(node.args[1])):
            role = Primitive.LOOKUP
        position = _GROUPS_POSITION.get(bare)
        groups = node.kwargs.get("groups", node.args[position] if position and len(node.args) > position else 1)
        equation = next((each for each in (*node.args, *node.kwargs.values()) if isinstance(each, str)), "")
        if bare == "einsum" and not equation:
            raise UnsupportedGraphError("fx does not look into an einsum of lists")
        self._assembly.add_operator(
            node,
            role,
            arguments,
            shape,
            source=source,
            name=node.name,
            groups=groups,
            equation=equation if bare == "einsum" else "",
            overwrites=is_in_place(source) or node.kwargs.get("inplace") is True or bare in _IN_PLACE_OPERATORS,
        )

    def _tensors_in(self, argument: Any) -> Iterator[Key]:
        """Nodes that are tensors, in order and as often as they occur; of those that are several, each."""
        if isinstance(argument, fx.Node):
            if _is_collection(argument):
                yield from self._parts(argument, argument.meta["val"])
            elif shape_of(argument.meta.get("val")) is not None:
                yield argument
        elif isinstance(argument, tuple | list):
            for each in argument:
                yield from self._tensors_in(each)
        elif isinstance(argument, Mapping):
            yield from self._tensors_in(list(argument.values()))
        elif isinstance(argument, slice):
            yield from self._tensors_in([argument.start, argument.stop, argument.step])

    def _parts(self, node: fx.Node, value: Any, *place: int) -> Iterator[Key]:
        """The tensors that an operator returned, as an LSTM its states, where they are handed on as one."""
        if isinstance(value, tuple | list):
            for number, each in enumerate(value):
                yield from self._parts(node, each, *place, number)
        elif (shape := shape_of(value)) is not None:
            key = (node, *place)
            self._assembly.add_view(key, node, shape)
            yield key


def _is_collection(argument: Any) -> bool:
    """Whether it is an operator that returned several tensors."""
    return isinstance(argument, fx.Node) and isinstance(argument.meta.get("val"), tuple | list)


def _chooses(index: Any) -> bool:
    """Whether it picks elements by their numbers, which copies them; a slice does not."""
    given = index if isinstance(index, tuple) else (index,)
    return any(isinstance(each, list | torch.Tensor) for each in given)


def _named(node: fx.Node) -> tuple[str, Role | None]:
    """What the user would call the operator, and what it is."""
    if node.op == "call_method":
        return str(node.target), torch_role(str(node.target))
    function: Callable[..., Any] = node.target
    package = getattr(function, "__module__", None) or "torch"
    name = _FUNCTIONS.get(f"{package}.{function.__name__}", function.__name__)
    source = f"{package}.{name}"
    known = package.partition(".")[0] in _KNOWN_PACKAGES or package == _STOCHASTIC_DEPTH
    return (name if known else source), (torch_role(name) if known else None)


def _keyword_rank(keyword: str) -> int:
    """Keywords in the order of the positions that they stand for."""
    return _FIRST_KEYWORDS.index(keyword) if keyword in _FIRST_KEYWORDS else len(_FIRST_KEYWORDS)
