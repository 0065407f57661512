"""A module's graph by symbolic tracing (``torch.fx``): fast, and refused where it would miss anything.

Also what both front ends ask of a module: its trainable tensors, the mode that it is read in, the shapes of values.
"""

from __future__ import annotations

import contextlib
import inspect
import signal
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.nn.modules import transformer

from gpusonde.errors import DataDependentGraphError, UnsupportedGraphError
from gpusonde.predictor.workload.graph.builder import GraphBuilder, Key
from gpusonde.predictor.workload.graph.ir import Primitive, Shape, WorkloadGraph
from gpusonde.predictor.workload.graph.op_registry import (
    PRODUCTS_WITH_A_SUM,
    TORCH_MODULES,
    OpType,
    find_torch_op_type,
    is_in_place,
    strip_torch_name,
)


def raise_interruption(error: BaseException) -> None:
    """Raise what only came by while torch was at work: a time that is up, and what a handler of a signal raised.

    Args:
        error: What torch let through, possibly as the cause or the context of its own.
    """
    handlers = {_find_code(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    cause: BaseException | None = error
    while cause is not None:
        trace, codes = cause.__traceback__, set()
        while trace is not None:
            codes.add(trace.tb_frame.f_code)
            trace = trace.tb_next
        if isinstance(cause, TimeoutError) or codes & handlers:
            raise cause
        cause = cause.__cause__ or cause.__context__


def _find_code(handler: object) -> object:
    function = inspect.unwrap(getattr(handler, "__func__", handler)) if callable(handler) else None
    return getattr(function, "__code__", None)


def unwrap(module: nn.Module) -> nn.Module:
    """Return the network inside of what runs it in parallel or compiles it.

    Args:
        module: The network, possibly wrapped.
    """
    while True:
        if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            module = module.module
        elif isinstance(getattr(module, "_orig_mod", None), nn.Module):
            module = module._orig_mod
        else:
            return module


def name_parameters(module: nn.Module) -> dict[str, str]:
    """Return the first name of every trainable tensor, by each of its names.

    Args:
        module: The network; a tensor that it uses in several places has several names.
    """
    first: dict[int, str] = {}
    names = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names[name] = first.setdefault(id(parameter), name)
    return names


def count_parameters(module: nn.Module) -> dict[str, int]:
    """Count the numbers in every trainable tensor, each once, by its first name.

    Args:
        module: The network.
    """
    return {name: parameter.numel() for name, parameter in module.named_parameters()}


@contextlib.contextmanager
def read_mode(module: nn.Module, *, as_trained: bool = False) -> Iterator[None]:
    """Put a module into evaluation while its graph is read, and back afterwards.

    Dropout and batch normalisation are then plain operators, and one sample is enough. The fused kernel that
    ``nn.TransformerEncoder`` takes in evaluation, and never while it trains, is turned off. So is its look at the
    values of a mask, which only tells whether to call the mask a causal one: the work is the same.

    Args:
        module: The network.
        as_trained: Modules that hold others are put into training, so that they run what only runs there, such as
            auxiliary heads; the modules that they hold at the bottom stay in evaluation.
    """
    before = {each: each.training for each in module.modules()}
    fused = torch.backends.mha.get_fastpath_enabled()
    looks_at_mask = transformer._detect_is_causal_mask
    try:
        for each in before:
            each.training = as_trained and next(each.children(), None) is not None
        torch.backends.mha.set_fastpath_enabled(False)
        transformer._detect_is_causal_mask = lambda mask, is_causal=None, size=None: is_causal is True
        with torch.no_grad():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        transformer._detect_is_causal_mask = looks_at_mask
        for each, training in before.items():
            each.training = training


@contextlib.contextmanager
def keep_as_is(module: nn.Module) -> Iterator[None]:
    """Undo what a module's code assigns to it while it is traced.

    A network may replace a buffer or keep a tensor for the next call. What it would keep of a trace is no tensor, and
    whoever runs the network next would fail on it.

    Args:
        module: The network.
    """
    before = [(vars(each), dict(vars(each)), _copy_collections(vars(each))) for each in module.modules()]
    try:
        yield
    finally:
        for attributes, values, collections in before:
            for name in attributes.keys() - values.keys():
                del attributes[name]
            attributes.update(values)
            for collection, content in collections:
                collection.clear()
                if isinstance(collection, list):
                    collection.extend(content)
                else:
                    collection.update(content)


def read_shape(value: Any) -> Shape | None:
    """Return the extents of a tensor, or of the first of several; None of anything else.

    Args:
        value: What an operator returned when it was run on tensors without storage.

    Raises:
        DataDependentGraphError: An extent depends on the values of the data.
    """
    if isinstance(value, tuple | list):
        return next((shape for shape in map(read_shape, value) if shape is not None), None)
    if not isinstance(value, torch.Tensor):
        return None
    if not all(isinstance(extent, int) for extent in value.shape):  # the others are symbols
        raise DataDependentGraphError(
            f"a tensor has shape {tuple(value.shape)}, which depends on the values of the data: there is no single"
            " graph. Replace operations such as nonzero, unique or boolean indexing, or hand in the part of the"
            " network without them."
        )
    return tuple(value.shape)


def find_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in tuples, lists and mappings.

    Args:
        value: What a network is given or returns; whatever else is in it is left out.
    """
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from find_tensors(tuple(value.values()))
    elif isinstance(value, tuple | list):
        for each in value:
            yield from find_tensors(each)


def move_to_device_of(module: nn.Module, example: Any) -> Any:
    """Move the example's tensors to the meta device if the module is there.

    Args:
        module: The network.
        example: Tensors in tuples, lists and mappings.
    """
    tensors = [*module.parameters(), *module.buffers()]
    if not any(each.is_meta for each in tensors):
        return example
    return _move_to_meta(example)


def _copy_collections(attributes: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """Return what can be put back into lists, sets and mappings that a module holds."""
    return [(each, each.copy()) for each in attributes.values() if type(each) in {dict, OrderedDict, list, set}]


def _move_to_meta(example: Any) -> Any:
    if isinstance(example, torch.Tensor):
        return example.to("meta")
    if isinstance(example, tuple | list):
        return type(example)(map(_move_to_meta, example))
    if isinstance(example, Mapping):
        return {name: _move_to_meta(each) for name, each in example.items()}
    return example


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
    graph_module = _trace(module, arguments, keywords)
    builder = GraphBuilder(name, "fx")
    reader = _TraceReader(builder, module, graph_module)
    outputs = reader.read()
    if builder.unknown:
        raise UnsupportedGraphError(f"fx does not look into {', '.join(builder.unknown)}")
    graph = builder.build(outputs, batch_size)
    expected = sum(count_parameters(module).values())
    if graph.parameter_count != expected:
        raise UnsupportedGraphError(f"fx sees {graph.parameter_count} of {expected} trainable numbers")
    return graph


def _trace(module: nn.Module, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> fx.GraphModule:
    try:
        bound = inspect.signature(module.forward).bind(*arguments, **keywords)
    except TypeError as error:
        raise UnsupportedGraphError(f"the example does not fit the network's inputs: {error}") from error
    bound.apply_defaults()
    given = bound.arguments
    fixed = {each: value for each, value in given.items() if not isinstance(value, torch.Tensor)}
    if any(True for _ in find_tensors(fixed)):
        raise UnsupportedGraphError("fx does not look into collections of tensors among the inputs")
    try:
        tracer = fx.Tracer()
        with keep_as_is(module):
            graph = tracer.trace(module, fixed)
            # What nobody reads is run too, and what works in place is often read by nobody: no node is removed.
            graph_module = fx.GraphModule(tracer.root, graph)
        FakeTensorProp(graph_module, FakeTensorMode(allow_non_fake_inputs=True)).propagate(*given.values())
    except Exception as error:
        raise_interruption(error)
        raise UnsupportedGraphError(f"fx cannot trace it: {error}") from error
    return graph_module


class _TraceReader:
    """Hands the nodes of a traced module to a ``GraphBuilder``."""

    def __init__(self, builder: GraphBuilder, module: nn.Module, graph_module: fx.GraphModule) -> None:
        self._builder = builder
        self._graph_module = graph_module
        self._names = name_parameters(module)
        self._buffers: dict[Any, Key] = {}
        self._modules = dict(module.named_modules(remove_duplicate=False))

    def read(self) -> list[Key]:
        """Read all nodes; return what the network returns."""
        for node in self._graph_module.graph.nodes:
            if node.op == "output":
                return list(self._find_tensors(node.args))
            self._read(node)
        return []

    def _read(self, node: fx.Node) -> None:
        shape = read_shape(node.meta.get("val"))
        if shape is None:  # a size, a number, a check
            return
        if node.op == "placeholder":
            self._builder.add_input(node, shape, node.name)
        elif node.op == "get_attr":
            if node.target in self._names:
                self._builder.add_parameter(node, self._names[node.target], shape)
            elif node.target in self._buffers:
                # It may have been written since.
                self._builder.add_view(node, self._buffers[node.target], shape)
            else:
                self._builder.add_constant(node, shape)
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
        arguments: list[Key] = list(self._find_tensors((node.args, node.kwargs)))
        for name, parameter in module.named_parameters(recurse=False):
            key = ("parameter", f"{node.target}.{name}")
            self._builder.add_parameter(key, self._names[key[1]], tuple(parameter.shape))
            arguments.append(key)
        self._builder.add_operator(
            node,
            find_torch_op_type(operator_name),
            arguments,
            shape,
            source=f"torch.nn.{type(module).__name__}",
            name=node.name,
            groups=getattr(module, "groups", 1),
            overwrites=bool(getattr(module, "inplace", False)),
        )

    def _read_function(self, node: fx.Node, shape: Shape) -> None:
        source, op_type = _name_operator(node)
        bare = strip_torch_name(source)
        if bare in _COMPOSITE:
            raise UnsupportedGraphError(f"fx does not look into {bare}")
        if bare == "getitem" and _is_collection(node.args[0]):
            self._builder.add_view(node, node.args[0], shape)
            return
        arguments: list[Key] = list(self._find_tensors(node.args))
        keywords = sorted(node.kwargs, key=_rank_keyword)
        arguments += self._find_tensors([node.kwargs[each] for each in keywords])
        if bare == "rmatmul":
            arguments.reverse()
        elif bare in PRODUCTS_WITH_A_SUM:
            arguments = [*arguments[1:], *arguments[:1]]
        elif bare == "getitem" and (len(arguments) > 1 or _is_lookup(node.args[1])):
            op_type = Primitive.LOOKUP
        position = _GROUPS_POSITION.get(bare)
        groups = node.kwargs.get("groups", node.args[position] if position and len(node.args) > position else 1)
        equation = next((each for each in (*node.args, *node.kwargs.values()) if isinstance(each, str)), "")
        if bare == "einsum" and not equation:
            raise UnsupportedGraphError("fx does not look into an einsum of lists")
        self._builder.add_operator(
            node,
            op_type,
            arguments,
            shape,
            source=source,
            name=node.name,
            groups=groups,
            equation=equation if bare == "einsum" else "",
            overwrites=is_in_place(source) or node.kwargs.get("inplace") is True or bare in _IN_PLACE_OPERATORS,
        )

    def _find_tensors(self, argument: Any) -> Iterator[Key]:
        """Yield the nodes that are tensors, in order and as often as they occur; of those that are several, each."""
        if isinstance(argument, fx.Node):
            if _is_collection(argument):
                yield from self._find_parts(argument, argument.meta["val"])
            elif read_shape(argument.meta.get("val")) is not None:
                yield argument
        elif isinstance(argument, tuple | list):
            for each in argument:
                yield from self._find_tensors(each)
        elif isinstance(argument, Mapping):
            yield from self._find_tensors(list(argument.values()))
        elif isinstance(argument, slice):
            yield from self._find_tensors([argument.start, argument.stop, argument.step])

    def _find_parts(self, node: fx.Node, value: Any, *place: int) -> Iterator[Key]:
        """Return the tensors that an operator returned, as an LSTM its states, where they are handed on as one."""
        if isinstance(value, tuple | list):
            for number, each in enumerate(value):
                yield from self._find_parts(node, each, *place, number)
        elif (shape := read_shape(value)) is not None:
            key = (node, *place)
            self._builder.add_view(key, node, shape)
            yield key


def _is_collection(argument: Any) -> bool:
    """Tell whether it is an operator that returned several tensors."""
    return isinstance(argument, fx.Node) and isinstance(argument.meta.get("val"), tuple | list)


def _is_lookup(index: Any) -> bool:
    """Tell whether it picks elements by their numbers, which copies them; a slice does not."""
    given = index if isinstance(index, tuple) else (index,)
    return any(isinstance(each, list | torch.Tensor) for each in given)


def _name_operator(node: fx.Node) -> tuple[str, OpType | None]:
    """Return what the user would call the operator, and what it is."""
    if node.op == "call_method":
        return str(node.target), find_torch_op_type(str(node.target))
    function: Callable[..., Any] = node.target
    package = getattr(function, "__module__", None) or "torch"
    name = _FUNCTIONS.get(f"{package}.{function.__name__}", function.__name__)
    source = f"{package}.{name}"
    known = package.partition(".")[0] in _KNOWN_PACKAGES or package == _STOCHASTIC_DEPTH
    return (name if known else source), (find_torch_op_type(name) if known else None)


def _rank_keyword(keyword: str) -> int:
    """Order keywords as the positions that they stand for."""
    return _FIRST_KEYWORDS.index(keyword) if keyword in _FIRST_KEYWORDS else len(_FIRST_KEYWORDS)
