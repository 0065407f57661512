"""A module's graph by ``torch.export``: looks into everything, follows Python's control flow on shapes.

``build`` and ``example`` make a network of a user's factory, without its weights, and inputs for it.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.export.graph_signature import InputKind, TensorArgument
from torch.nn.parameter import UninitializedTensorMixin

from gpusonde.errors import DataDependentGraphError, UnsupportedGraphError
from gpusonde.predictor.workload.graph.builder import GraphBuilder, Key, write_tensordot_equation
from gpusonde.predictor.workload.graph.ir import Primitive, Shape, WorkloadGraph
from gpusonde.predictor.workload.graph.op_registry import (
    PRODUCTS_WITH_A_SUM,
    find_torch_op_type,
    is_in_place,
    strip_torch_name,
)
from gpusonde.predictor.workload.graph.torch.fx import (
    find_tensors,
    keep_as_is,
    name_parameters,
    raise_interruption,
    read_shape,
)


def build(factory: Callable[[], object]) -> nn.Module:
    """Return a factory's network on the meta device: its shapes, no weights.

    Args:
        factory: Called without arguments. It may compute with tensors of its own, only parameters lose their values.

    Raises:
        UnsupportedGraphError: It returns something else, or fails; the cause is what it raised.
    """
    module = _build(factory)
    if not isinstance(module, nn.Module):
        raise UnsupportedGraphError(f"the factory returned {type(module).__name__}; it must return a torch.nn.Module")
    if any(isinstance(each, UninitializedTensorMixin) for each in (*module.parameters(), *module.buffers())):
        raise UnsupportedGraphError(
            "lazy layers have no shapes before the network has run: call it once on an example before returning it"
        )
    return module.to("meta")


def _build(factory: Callable[[], object]) -> object:
    """Call the factory, giving tensors to who computes with them while building, and weights to who looks at them."""
    first: Exception | None = None
    for without in (lambda: torch.device("meta"), put_parameters_on_meta, contextlib.nullcontext):
        try:
            with without():
                return factory()
        except Exception as error:
            raise_interruption(error)
            first = first or error
    raise UnsupportedGraphError(f"building the network failed: {type(first).__name__}: {first}") from first


def example(inputs: Sequence[tuple[Sequence[int], str]], batch_size: int) -> tuple[torch.Tensor, ...]:
    """Return a batch of inputs without values.

    Args:
        inputs: Extents of one sample and type of numbers of each input, as in ``((3, 224, 224), "float32")``.
        batch_size: Samples.
    """
    return tuple(
        torch.empty((batch_size, *extents), dtype=getattr(torch, dtype), device="meta") for extents, dtype in inputs
    )


@contextlib.contextmanager
def put_parameters_on_meta() -> Iterator[None]:
    """Let parameters lose their storage as soon as they are registered; other tensors keep theirs."""
    register = nn.Module.register_parameter

    def register_on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None:
            parameter = nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)
        register(module, name, parameter)

    nn.Module.register_parameter = register_on_meta
    try:
        yield
    finally:
        nn.Module.register_parameter = register


_UNKNOWN_OUTPUT = "is not a known type"
_BATCHED = "_add_batch_dim"
_INNER = "network."  # how names of tensors begin in a network that was wrapped in ``_TensorsOnly``
_CHOICES = frozenset({"cond", "while_loop", "switch"})
_DATA_DEPENDENT = frozenset(
    {
        "GuardOnDataDependentSymNode",
        "PendingUnbackedSymbolNotFound",
        "DataDependentOutputException",
        "DynamicOutputShapeException",
    }
)


def export(
    module: nn.Module, arguments: tuple[Any, ...], keywords: Mapping[str, Any], *, name: str, batch_size: int
) -> WorkloadGraph:
    """Read a module's graph by ``torch.export``, without running it on data.

    Args:
        module: The network, in the mode that it is to be read in.
        arguments: An example of its inputs.
        keywords: Those given by name.
        name: Of the graph.
        batch_size: Samples in the example.

    Raises:
        DataDependentGraphError: What it runs depends on the values of the data.
        UnsupportedGraphError: It cannot be exported for another reason.
    """
    try:
        with _silence(), keep_as_is(module):
            program = _export(module, arguments, keywords)
    except Exception as error:
        raise_interruption(error)
        raise _explain(error) from error
    return read_program(program, module, name=name, batch_size=batch_size)


def _export(module: nn.Module, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> torch.export.ExportedProgram:
    try:
        program = torch.export.export(module, arguments, dict(keywords), strict=False)
    except RuntimeError as error:
        if _UNKNOWN_OUTPUT not in str(error):
            raise
        program = torch.export.export(_TensorsOnly(module), arguments, dict(keywords), strict=False)
    if any(_name_operator(node.target) == _BATCHED for node in program.graph.nodes):
        # Within torch.vmap the batch is hidden, and the work that it makes with it.
        program = program.run_decompositions({})
    return program


class _TensorsOnly(nn.Module):
    """A network that returns objects, such as a cache of keys and values, without them."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, *arguments: Any, **keywords: Any) -> list[torch.Tensor]:
        return list(find_tensors(self.network(*arguments, **keywords)))


def read_program(
    program: torch.export.ExportedProgram, module: nn.Module, *, name: str, batch_size: int
) -> WorkloadGraph:
    """Read the graph of an exported program.

    Args:
        program: What ``torch.export.export`` made of the module.
        module: The module; it tells which names are one tensor.
        name: Of the graph.
        batch_size: Samples in the example that it was exported with.

    Raises:
        DataDependentGraphError: It holds branches or loops that depend on the values of the data.
    """
    builder = GraphBuilder(name, "export")
    outputs = _ProgramReader(builder, program, name_parameters(module)).read()
    return builder.build(outputs, batch_size)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Silence torch: what it warns, logs and prints of an export that fails is in the error too."""
    logger = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    disabled = logger.disabled
    try:
        logger.disabled = True
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.disabled = disabled


class _ProgramReader:
    """Hands the nodes of an exported program to a ``GraphBuilder``."""

    def __init__(self, builder: GraphBuilder, program: torch.export.ExportedProgram, names: Mapping[str, str]) -> None:
        self._builder = builder
        self._program = program
        self._names = names
        self._parts: dict[tuple[fx.Node, int], Key] = {}
        self._specifications = {
            each.arg.name: each for each in program.graph_signature.input_specs if isinstance(each.arg, TensorArgument)
        }

    def read(self) -> list[Key]:
        """Read all nodes; return what the network returns."""
        return self._read_graph(self._program.graph_module, self._read_placeholder)

    def _read_graph(self, graph_module: fx.GraphModule, placeholder: Any) -> list[Key]:
        for node in graph_module.graph.nodes:
            shape = read_shape(node.meta.get("val"))
            if node.op == "output":
                return list(_find_tensors(node.args))
            if node.op == "placeholder":
                placeholder(node, shape)
            elif node.op == "get_attr":
                if shape is not None:
                    self._builder.add_constant(node, shape)
            else:
                self._read_operator(graph_module, node, shape)
        return []

    def _read_placeholder(self, node: fx.Node, shape: Shape | None) -> None:
        if shape is None:
            return
        specification = self._specifications.get(node.name)
        kind = None if specification is None else specification.kind
        if specification is not None and kind is InputKind.PARAMETER:
            target = str(specification.target)
            target = target if target in self._names else target.removeprefix(_INNER)
            self._builder.add_parameter(node, self._names.get(target, target), shape)
        elif kind is InputKind.USER_INPUT:
            self._builder.add_input(node, shape, node.name)
        else:
            self._builder.add_constant(node, shape)

    def _read_operator(self, graph_module: fx.GraphModule, node: fx.Node, shape: Shape | None) -> None:
        name = _name_operator(node.target)
        if name in _CHOICES:
            raise DataDependentGraphError(
                f"the network chooses what to run while it runs ({name}): there is no single graph. Hand in one branch."
            )
        inner = _find_inner_graph(graph_module, node)
        if inner is not None:
            self._read_inner(inner, node)
        elif shape is not None:
            self._add(node, name, shape)

    def _read_inner(self, inner: fx.GraphModule, node: fx.Node) -> None:
        """Read a graph within the graph, as ``with torch.enable_grad()`` makes one: its nodes, in place."""
        given = iter([each for each in node.args if isinstance(each, fx.Node) and each.op != "get_attr"])

        def placeholder(each: fx.Node, shape: Shape | None) -> None:
            source = next(given, None)
            if shape is not None and source is not None:
                self._builder.add_view(each, source, shape)

        for number, output in enumerate(self._read_graph(inner, placeholder)):
            self._parts[node, number] = output

    def _add(self, node: fx.Node, name: str, shape: Shape) -> None:
        if name == "getitem" and node.args in self._parts:
            self._builder.add_view(node, self._parts[node.args], shape)
            return
        arguments: list[Key | None] = list(_find_tensors((node.args, node.kwargs)))
        op_type = find_torch_op_type(name)
        settings = _name_arguments(node)
        bare = strip_torch_name(name)
        equation = settings.get("equation", "")
        if bare == "tensordot":
            ranks = [len(self._builder.shape(each)) for each in arguments[:2]]
            equation = write_tensordot_equation((settings["dims_self"], settings["dims_other"]), ranks)
        if bare in PRODUCTS_WITH_A_SUM:
            arguments = [*arguments[1:], *arguments[:1]]
        elif settings.get("transposed") is True:
            op_type = Primitive.TRANSPOSED_CONVOLUTION
        self._builder.add_operator(
            node,
            op_type,
            arguments,
            shape,
            source=str(node.target).removesuffix(".default") if op_type is not None else name,
            name=node.name,
            groups=settings.get("groups", 1),
            equation=equation,
            overwrites=is_in_place(name),
        )


def _find_tensors(argument: Any) -> Iterator[fx.Node]:
    """Yield the nodes that are tensors, in order and as often as they occur."""
    if isinstance(argument, fx.Node):
        if read_shape(argument.meta.get("val")) is not None:
            yield argument
    elif isinstance(argument, tuple | list):
        for each in argument:
            yield from _find_tensors(each)
    elif isinstance(argument, Mapping):
        yield from _find_tensors(list(argument.values()))


def _name_operator(target: Any) -> str:
    schema = getattr(target, "_schema", None)
    if schema is not None:
        return str(schema.name)
    return str(getattr(target, "__name__", target))


def _name_arguments(node: fx.Node) -> dict[str, Any]:
    """Return the operator's arguments by the names of its schema."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return {}
    names = [each.name for each in schema.arguments]
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def _find_inner_graph(graph_module: fx.GraphModule, node: fx.Node) -> fx.GraphModule | None:
    for each in node.args:
        if isinstance(each, fx.Node) and each.op == "get_attr":
            inner = getattr(graph_module, str(each.target), None)
            if isinstance(inner, fx.GraphModule):
                return inner
    return None


def _explain(error: BaseException) -> UnsupportedGraphError:
    """Return what to tell the user of an export that failed."""
    cause: BaseException | None = error
    while cause is not None:
        if type(cause).__name__ in _DATA_DEPENDENT or "data-dependent" in str(cause).lower():
            return DataDependentGraphError(
                "what the network runs depends on the values of its data (an if, a loop or a size): there is no single"
                " graph. Hand in the part without it, or replace the choice by torch.where or by a constant."
                f" torch says: {_cut_to_line(cause)}"
            )
        cause = cause.__cause__ or cause.__context__
    return UnsupportedGraphError(
        "torch.export could not read the network on this example. Check that network(*example) runs and that it is an"
        f" ordinary module; otherwise hand in its ONNX file. torch says: {type(error).__name__}: {_cut_to_line(error)}"
    )


def _cut_to_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:300]
