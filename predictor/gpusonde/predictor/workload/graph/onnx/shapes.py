"""Extents of every tensor of an ONNX file: as the file says them, or inferred by onnx in a process of its own.

For that the file is written again, without its weights and with fixed inputs.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpusonde.errors import ChildError, MalformedGraphError, UnsupportedGraphError
from gpusonde.predictor.workload.graph.ir import Shape
from gpusonde.predictor.workload.graph.limits import GraphLimits
from gpusonde.predictor.workload.graph.onnx.model import (
    BYTES,
    VARINT,
    Bytes,
    Extent,
    OnnxModel,
    OnnxValue,
    WireReader,
    encode_bytes,
    encode_varint,
    read_model,
)
from gpusonde.service.child import Child, Purpose

# Values of small tensors say which shape to make; those of large ones are weights.
_LARGEST_KEPT_BYTES = 4096
_IR_VERSION, _OPSETS = 1, 8
_DIMS, _DATA_TYPE, _NAME = 1, 2, 8


def strip_weights(
    data: Bytes, model: OnnxModel, inputs: Mapping[str, Shape], names: Mapping[str, int], limits: GraphLimits
) -> bytes:
    """Write a model again.

    Args:
        data: The file.
        model: What was read from it.
        inputs: Extents of every input.
        names: What the names stand for that the file uses for extents.
        limits: What is accepted.

    Returns:
        Another ONNX file.

    Raises:
        GraphLimitError: It is too large even so.
    """
    wire = WireReader(data, limits.onnx_fields)
    written = bytearray()
    for number, kind, begin, end in wire.fields(0, len(data)):
        if number == _IR_VERSION and kind == VARINT:
            written += encode_varint(number << 3) + encode_varint(begin)
        elif number == _OPSETS and kind == BYTES:
            written += encode_bytes(number, data[begin:end])
        elif number == 7 and kind == BYTES:
            graph = b"".join(_rewrite_graph(wire, begin, end, model, inputs, names))
            written += encode_bytes(number, graph)
    limits.check_size("the ONNX file without its weights", len(written), limits.onnx_structure_bytes)
    return bytes(written)


def _rewrite_graph(
    wire: WireReader, begin: int, end: int, model: OnnxModel, inputs: Mapping[str, Shape], names: Mapping[str, int]
) -> Iterator[bytes]:
    for number, kind, at, to in wire.fields(begin, end):
        if kind != BYTES:
            continue
        if number == 5 and to - at > _LARGEST_KEPT_BYTES:
            yield encode_bytes(number, _keep_shape(wire, at, to))
        elif number in (1, 2, 5):
            yield encode_bytes(number, wire.data[at:to])
    for name, shape in inputs.items():
        yield encode_bytes(11, _rewrite_value(model.inputs[name], shape))
    for name, value in model.outputs.items():
        yield encode_bytes(
            12,
            _rewrite_value(value, _take_known(value, names)) if value.element_type else encode_bytes(1, name.encode()),
        )
    for value in model.between.values():
        known = _take_known(value, names)
        # One that is half known would be believed where it is wrong for these inputs.
        if value.element_type and known is not None:
            yield encode_bytes(13, _rewrite_value(value, known))


def _keep_shape(wire: WireReader, begin: int, end: int) -> bytes:
    written = bytearray()
    for number, kind, at, to in wire.fields(begin, end):
        if number in (_DIMS, _DATA_TYPE) and kind == VARINT:
            written += encode_varint(number << 3) + encode_varint(at)
        elif number in (_DIMS, _NAME) and kind == BYTES:
            written += encode_bytes(number, wire.data[at:to])
    return bytes(written)


def _take_known(value: OnnxValue, names: Mapping[str, int]) -> Shape | None:
    if value.extents is None:
        return None
    extents = [resolve_extent(each, names) for each in value.extents]
    return None if None in extents else tuple(each for each in extents if each is not None)


def resolve_extent(extent: Extent, names: Mapping[str, int]) -> int | None:
    """Return an extent as a number; None if it is not known."""
    return names.get(extent) if isinstance(extent, str) else extent


def _rewrite_value(value: OnnxValue, shape: Shape | None) -> bytes:
    tensor = encode_varint(1 << 3) + encode_varint(value.element_type)
    if shape is not None:
        dims = b"".join(encode_bytes(1, encode_varint(1 << 3) + encode_varint(each)) for each in shape)
        tensor += encode_bytes(2, dims)
    return encode_bytes(1, value.name.encode()) + encode_bytes(2, encode_bytes(1, tensor))


_INFER_SHAPES = f"{__package__}.infer_shapes:make_answer"
_INFERENCE_BYTES = 2 << 30


@dataclass
class Shapes:
    """Extents of tensors by name.

    Attributes:
        inputs: Of what the network is given.
        batch_size: First extent of the first input.
        names: What the names stand for that the file uses for extents.
        was_symbolic: The file leaves the batch open.
        known: Of every tensor that the file says.
    """

    inputs: dict[str, Shape]
    batch_size: int
    names: dict[str, int]
    was_symbolic: bool
    known: dict[str, Shape] = field(default_factory=dict)


def collect_declared_shapes(model: OnnxModel, batch_size: int, limits: GraphLimits) -> Shapes:
    """Collect the extents that a file says.

    Args:
        model: The file.
        batch_size: Samples in a batch, for a file that leaves it open.
        limits: What is accepted.

    Raises:
        MalformedGraphError: Negative extents, or no input.
        GraphLimitError: Too large ones.
        UnsupportedGraphError: An input leaves open more than its batch.
    """
    if not model.inputs:
        raise MalformedGraphError("the ONNX file has no input")
    shapes = Shapes({}, 0, {}, was_symbolic=False)
    for name, value in model.inputs.items():
        shapes.inputs[name] = _find_input_shape(name, value, batch_size, shapes, limits)
    shapes.batch_size = next((each[0] for each in shapes.inputs.values() if each), 1)
    _collect(model, shapes, limits)
    return shapes


def infer(data: Bytes, model: OnnxModel, shapes: Shapes, limits: GraphLimits) -> None:
    """Let onnx infer what the file does not say, and add it to ``shapes.known``.

    onnx infers in native code, which a hostile file may lead astray: it runs in a process that may hold two gibibytes
    and write nothing, for as long as the limits say. What it answers is read as if a stranger had sent it.

    Args:
        data: The file.
        model: What was read from it.
        shapes: What the file says.
        limits: What is accepted.

    Raises:
        UnsupportedGraphError: onnx is not installed, or cannot.
        GraphLimitError: The answer is too large.
    """
    if limits.inference_s <= 0:
        raise UnsupportedGraphError(
            "the file does not say the shapes of all tensors, and they are not inferred here: infer them first "
            "(onnx.shape_inference.infer_shapes)"
        )
    if importlib.util.find_spec("onnx") is None:
        raise UnsupportedGraphError(
            "the file does not say the shapes of all tensors, and the onnx package that infers them is not installed "
            "(extra 'collector')"
        )
    reduced = strip_weights(data, model, shapes.inputs, shapes.names, limits)
    purpose = Purpose(
        _INFER_SHAPES, "shapes", niceness=0, is_confined=True, max_answer_bytes=limits.onnx_structure_bytes
    )
    child = Child.start(purpose, _INFERENCE_BYTES)
    try:
        answer = child.ask(reduced, limits.inference_s).result()
    except ChildError:
        raise UnsupportedGraphError("onnx cannot infer the shapes of this file's tensors") from None
    finally:
        child.end()
        child.ended.result()
    inferred = read_model(answer, limits)
    _collect(inferred, shapes, limits)


def _find_input_shape(name: str, value: OnnxValue, batch_size: int, shapes: Shapes, limits: GraphLimits) -> Shape:
    if value.extents is None:
        raise UnsupportedGraphError(f"input {name!r} has no shape: export with one")
    extents: list[int] = []
    for position, extent in enumerate(value.extents):
        number = resolve_extent(extent, shapes.names)
        if number is None and position == 0:
            number = batch_size
            shapes.was_symbolic = True
            if isinstance(extent, str):
                shapes.names[extent] = batch_size
        if number is None:
            called = f" ({extent!r})" if extent else ""
            raise UnsupportedGraphError(
                f"input {name!r} leaves extent {position}{called} open: export with a fixed one"
            )
        extents.append(number)
    return limits.check_shape(f"input {name!r}", extents)


def _collect(model: OnnxModel, shapes: Shapes, limits: GraphLimits) -> None:
    for values in (model.between, model.outputs):
        for name, value in values.items():
            shape = _read_shape(value, shapes.names)
            if shape is not None:
                # Tensors without elements occur as arguments; they are read as one of one element.
                extents = [each or 1 for each in shape]
                shapes.known[name] = limits.check_shape(f"tensor {name!r}", extents)
    shapes.known.update(shapes.inputs)


def _read_shape(value: OnnxValue, names: Mapping[str, int]) -> list[int] | None:
    if value.extents is None:
        return None
    numbers = [resolve_extent(each, names) for each in value.extents]
    return None if None in numbers else [each for each in numbers if each is not None]
