"""Writes an ONNX file again without its weights and with fixed inputs: what shapes are inferred from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpusonde.predictor.workload.graph.from_onnx.model import Extent, OnnxModel, OnnxValue
from gpusonde.predictor.workload.graph.from_onnx.wire import (
    BYTES,
    VARINT,
    Bytes,
    WireReader,
    encoded_bytes,
    encoded_varint,
)
from gpusonde.predictor.workload.graph.ir import Shape
from gpusonde.predictor.workload.graph.limits import GraphLimits

# Values of small tensors say which shape to make; those of large ones are weights.
_LARGEST_KEPT_BYTES = 4096
_IR_VERSION, _OPSETS = 1, 8
_DIMS, _DATA_TYPE, _NAME = 1, 2, 8


def without_weights(
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
            written += encoded_varint(number << 3) + encoded_varint(begin)
        elif number == _OPSETS and kind == BYTES:
            written += encoded_bytes(number, data[begin:end])
        elif number == 7 and kind == BYTES:
            graph = b"".join(_graph(wire, begin, end, model, inputs, names))
            written += encoded_bytes(number, graph)
    limits.check_size("the ONNX file without its weights", len(written), limits.onnx_structure_bytes)
    return bytes(written)


def _graph(
    wire: WireReader, begin: int, end: int, model: OnnxModel, inputs: Mapping[str, Shape], names: Mapping[str, int]
) -> Iterator[bytes]:
    for number, kind, at, to in wire.fields(begin, end):
        if kind != BYTES:
            continue
        if number == 5 and to - at > _LARGEST_KEPT_BYTES:
            yield encoded_bytes(number, _only_shape(wire, at, to))
        elif number in (1, 2, 5):
            yield encoded_bytes(number, wire.data[at:to])
    for name, shape in inputs.items():
        yield encoded_bytes(11, _value(model.inputs[name], shape))
    for name, value in model.outputs.items():
        yield encoded_bytes(
            12, _value(value, _known(value, names)) if value.element_type else encoded_bytes(1, name.encode())
        )
    for value in model.between.values():
        known = _known(value, names)
        # One that is half known would be believed where it is wrong for these inputs.
        if value.element_type and known is not None:
            yield encoded_bytes(13, _value(value, known))


def _only_shape(wire: WireReader, begin: int, end: int) -> bytes:
    written = bytearray()
    for number, kind, at, to in wire.fields(begin, end):
        if number in (_DIMS, _DATA_TYPE) and kind == VARINT:
            written += encoded_varint(number << 3) + encoded_varint(at)
        elif number in (_DIMS, _NAME) and kind == BYTES:
            written += encoded_bytes(number, wire.data[at:to])
    return bytes(written)


def _known(value: OnnxValue, names: Mapping[str, int]) -> Shape | None:
    if value.extents is None:
        return None
    extents = [number_of(each, names) for each in value.extents]
    return None if None in extents else tuple(each for each in extents if each is not None)


def number_of(extent: Extent, names: Mapping[str, int]) -> int | None:
    """An extent as a number; None if it is not known."""
    return names.get(extent) if isinstance(extent, str) else extent


def _value(value: OnnxValue, shape: Shape | None) -> bytes:
    tensor = encoded_varint(1 << 3) + encoded_varint(value.element_type)
    if shape is not None:
        dims = b"".join(encoded_bytes(1, encoded_varint(1 << 3) + encoded_varint(each)) for each in shape)
        tensor += encoded_bytes(2, dims)
    return encoded_bytes(1, value.name.encode()) + encoded_bytes(2, encoded_bytes(1, tensor))
