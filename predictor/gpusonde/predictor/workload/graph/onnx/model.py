"""What a graph needs of an ONNX file: nodes, names and shapes. Weights are stepped over.

Reads the wire format of protocol buffers field by field, so that nothing is built that was not counted first: a message
is a slice of the file, and its fields are visited in plain Python. A generated parser is native code and builds every
message of a file at once: an ONNX file of 64 MiB that consists of empty nodes becomes gigabytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from mmap import mmap

from gpusonde.errors import DataDependentGraphError, GraphLimitError, MalformedGraphError, UnsupportedGraphError
from gpusonde.predictor.workload.graph.ir import Shape
from gpusonde.predictor.workload.graph.limits import GraphLimits

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {FIXED64: 8, FIXED32: 4}
_LONGEST_VARINT = 10
_SIGN = 1 << 63

Bytes = bytes | mmap
"""A file in memory, or mapped into it so that only what is looked at is loaded."""

Field = tuple[int, int, int, int]
"""Number, wire type, and: the value and 0 of a varint, begin and end of anything else."""


class WireReader:
    """Visits the fields of messages.

    Args:
        data: The whole file.
        most_fields: Fields to visit before giving up, over all messages.
    """

    def __init__(self, data: Bytes, most_fields: int) -> None:
        self.data = data
        self._left = self._most = most_fields

    def fields(self, begin: int, end: int) -> Iterator[Field]:
        """Yield the fields of the message between two offsets, in the file's order.

        Raises:
            MalformedGraphError: No message.
            GraphLimitError: Too many fields.
        """
        data = self.data
        at = begin
        while at < end:
            self._left -= 1
            if self._left < 0:
                raise GraphLimitError(f"more than {self._most} fields in the messages")
            key = data[at]
            at += 1
            if key >= 0x80:
                key, at = self._read_varint(at - 1, end)
            number, kind = key >> 3, key & 7
            if number == 0:
                raise MalformedGraphError(f"no protocol buffer: field 0 at byte {at}")
            if kind == VARINT:
                value, at = self._read_varint(at, end)
                yield number, kind, value, 0
                continue
            if kind == BYTES:
                size, at = self._read_varint(at, end)
            elif kind in _FIXED_BYTES:
                size = _FIXED_BYTES[kind]
            else:
                raise MalformedGraphError(f"no protocol buffer: a field of kind {kind} at byte {at}")
            if size > end - at:
                raise MalformedGraphError(f"no protocol buffer: the field at byte {at} is cut off")
            yield number, kind, at, at + size
            at += size

    def text(self, begin: int, end: int) -> str:
        """Return the text of a field.

        Raises:
            MalformedGraphError: No UTF-8.
        """
        try:
            return self.data[begin:end].decode("utf-8")
        except UnicodeDecodeError:
            raise MalformedGraphError(f"no UTF-8 text at byte {begin}") from None

    def integers(self, field: Field) -> Iterator[int]:
        """Yield the signed integers of a field of a repeated one, packed or not.

        Raises:
            MalformedGraphError: No integers.
            GraphLimitError: Too many fields.
        """
        _, kind, at, end = field
        if kind == VARINT:
            yield signed(at)
            return
        if kind != BYTES:
            raise MalformedGraphError("no ONNX: integers are expected")
        while at < end:
            self._left -= 1
            if self._left < 0:
                raise GraphLimitError(f"more than {self._most} fields in the messages")
            value, at = self._read_varint(at, end)
            yield signed(value)

    def _read_varint(self, at: int, end: int) -> tuple[int, int]:
        value = 0
        for place in range(_LONGEST_VARINT):
            if at >= end:
                break
            byte = self.data[at]
            at += 1
            value |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:
                return value & 0xFFFF_FFFF_FFFF_FFFF, at
        raise MalformedGraphError(f"no protocol buffer: a number at byte {at} does not end")


def signed(value: int) -> int:
    """Return a varint as int64."""
    return value - (_SIGN << 1) if value & _SIGN else value


def encode_varint(value: int) -> bytes:
    """Write an unsigned integer."""
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def encode_bytes(number: int, content: bytes) -> bytes:
    """Write a field that holds bytes, text or a message."""
    return encode_varint(number << 3 | BYTES) + encode_varint(len(content)) + content


Extent = int | str | None
"""An extent of a tensor: a number, a name that stands for one, or unknown."""

DEFAULT_DOMAINS = frozenset({"", "ai.onnx"})
_CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap"})
_EXTERNAL = 1
_FLOATS = frozenset({1, 10, 11, 16})


@dataclass
class OnnxNode:
    """A node: an operator and the tensors that it reads and writes.

    Attributes:
        operator: Its type, such as "Conv".
        domain: Whose operator it is; "" is ONNX's own.
        name: May be empty.
        inputs: Names of tensors; "" where an optional one is left out.
        outputs: Likewise.
        integers: Integers of its attributes, by the attribute's name.
        texts: Texts of its attributes.
        constant: The tensor in its attribute "value", if any.
    """

    operator: str = ""
    domain: str = ""
    name: str = ""
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    integers: dict[str, tuple[int, ...]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    constant: OnnxTensor | None = None

    def integer(self, name: str, default: int) -> int:
        """Return the first integer of an attribute."""
        return self.integers.get(name, (default,))[0]


@dataclass(frozen=True)
class OnnxTensor:
    """A tensor with values, which are not read.

    Attributes:
        name: How nodes call it.
        shape: Its extents.
        is_float: Its values are of a floating-point type.
    """

    name: str
    shape: Shape
    is_float: bool


@dataclass(frozen=True)
class OnnxValue:
    """What a file says of a tensor that is computed or given.

    Attributes:
        name: How nodes call it.
        element_type: ONNX's number for the type of its values; 0 if unknown.
        extents: None if not even their number is known.
    """

    name: str
    element_type: int = 0
    extents: tuple[Extent, ...] | None = None


@dataclass
class OnnxModel:
    """An ONNX file.

    Attributes:
        name: Of the graph in it.
        nodes: In the file's order.
        tensors: Tensors with values: the initialisers.
        inputs: What the graph reads, without the initialisers.
        outputs: What it writes.
        between: Tensors in between, as far as the file says what they are.
        functions: Operators that the file itself defines: domain and name.
    """

    name: str = ""
    nodes: list[OnnxNode] = field(default_factory=list)
    tensors: dict[str, OnnxTensor] = field(default_factory=dict)
    inputs: dict[str, OnnxValue] = field(default_factory=dict)
    outputs: dict[str, OnnxValue] = field(default_factory=dict)
    between: dict[str, OnnxValue] = field(default_factory=dict)
    functions: set[tuple[str, str]] = field(default_factory=set)


def read_model(data: Bytes, limits: GraphLimits) -> OnnxModel:
    """Read an ONNX file.

    Args:
        data: The file.
        limits: What is accepted.

    Raises:
        MalformedGraphError: No ONNX file.
        GraphLimitError: Too large.
        UnsupportedGraphError: It needs another file, or defines what is not read here.
        DataDependentGraphError: It branches or loops.
    """
    limits.check_size("the ONNX file", len(data), limits.onnx_bytes)
    return _Reading(data, limits).model()


class _Reading:
    def __init__(self, data: Bytes, limits: GraphLimits) -> None:
        self._wire = WireReader(data, limits.onnx_fields)
        self._limits = limits
        self._inputs = 0

    def model(self) -> OnnxModel:
        model = OnnxModel()
        graphs: list[tuple[int, int]] = []
        for number, kind, begin, end in self._wire.fields(0, len(self._wire.data)):
            if kind != BYTES:
                continue
            if number == 7:
                graphs.append((begin, end))
            elif number == 25:
                model.functions.add(self._read_function(begin, end))
        if len(graphs) != 1:
            raise MalformedGraphError(f"no ONNX file: {len(graphs)} graphs in it")
        self._read_graph(model, *graphs[0])
        return model

    def _read_graph(self, model: OnnxModel, begin: int, end: int) -> None:
        values: list[tuple[int, int, int]] = []
        for number, kind, at, to in self._wire.fields(begin, end):
            if kind != BYTES:
                continue
            if number == 1:
                if len(model.nodes) >= self._limits.operations:
                    raise GraphLimitError(f"more than {self._limits.operations} nodes in the ONNX file")
                model.nodes.append(self._read_node(at, to))
            elif number == 2:
                model.name = self._name(at, to)
            elif number == 5:
                tensor = self._read_tensor(at, to)
                if tensor.name in model.tensors:
                    raise MalformedGraphError(f"two initialisers are called {tensor.name!r}")
                model.tensors[tensor.name] = tensor
            elif number == 15:
                raise UnsupportedGraphError("sparse initialisers are not read")
            elif number in (11, 12, 13):
                values.append((number, at, to))
            self._limits.check_count("tensors", len(model.tensors) + len(values), self._limits.tensors)
        for number, at, to in values:
            value = self._read_value(at, to)
            if number == 11 and value.name not in model.tensors:
                model.inputs[value.name] = value
            elif number == 12:
                model.outputs[value.name] = value
            elif number == 13:
                model.between[value.name] = value

    def _read_node(self, begin: int, end: int) -> OnnxNode:
        node = OnnxNode()
        for number, kind, at, to in self._wire.fields(begin, end):
            if kind != BYTES:
                continue
            if number in (1, 2):
                self._inputs += 1
                self._limits.check_count("inputs and outputs of nodes", self._inputs, self._limits.inputs)
            if number == 1:
                node.inputs.append(self._name(at, to))
            elif number == 2:
                node.outputs.append(self._name(at, to))
            elif number == 3:
                node.name = self._name(at, to)
            elif number == 4:
                node.operator = self._name(at, to)
            elif number == 5:
                self._read_attribute(node, at, to)
            elif number == 7:
                node.domain = self._name(at, to)
        if not node.operator:
            raise MalformedGraphError("a node without an operator")
        if node.operator in _CONTROL_FLOW and node.domain in DEFAULT_DOMAINS:
            raise _make_control_flow_error(node.operator)
        return node

    def _read_attribute(self, node: OnnxNode, begin: int, end: int) -> None:
        name = ""
        text: str | None = None
        integers: list[int] = []
        for each in self._wire.fields(begin, end):
            number, kind, at, to = each
            if number == 1 and kind == BYTES:
                name = self._name(at, to)
            elif number == 3 and kind == VARINT:
                integers.append(signed(at))
            elif number == 4 and kind == BYTES and to - at <= self._limits.text:
                text = self._wire.data[at:to].decode("utf-8", "replace")
            elif number in (5, 10) and kind == BYTES:
                node.constant = self._read_tensor(at, to)
            elif number in (6, 11) and kind == BYTES:
                raise _make_control_flow_error(node.operator)
            elif number == 8:
                # Long lists are tables, not settings.
                integers.extend(self._wire.integers(each))
        if integers:
            node.integers[name] = tuple(integers)
        if text is not None:
            node.texts[name] = text

    def _read_tensor(self, begin: int, end: int) -> OnnxTensor:
        name, kind_of_value = "", 0
        extents: list[int] = []
        for each in self._wire.fields(begin, end):
            number, kind, at, to = each
            if number == 1:
                extents.extend(self._wire.integers(each))
                if len(extents) > self._limits.dimensions:
                    raise GraphLimitError(f"a tensor of more than {self._limits.dimensions} dimensions")
            elif number == 2 and kind == VARINT:
                kind_of_value = at
            elif number == 8 and kind == BYTES:
                name = self._name(at, to)
            elif number == 13 or (number == 14 and kind == VARINT and at == _EXTERNAL):
                raise UnsupportedGraphError(
                    "its weights lie in another file, which is not read: export with all weights inside "
                    "(torch.onnx.export: external_data=False)"
                )
            elif kind == VARINT and number in (4, 5, 7, 10, 11):
                raise UnsupportedGraphError("weights that are not packed are not read")
        return OnnxTensor(name, self._read_shape(f"initialiser {name!r}", extents), kind_of_value in _FLOATS)

    def _read_shape(self, place: str, extents: list[int]) -> Shape:
        # Empty tensors are common as arguments ("no scales", "no axes"); they are read as one of one element.
        return self._limits.check_shape(place, [each or 1 for each in extents])

    def _read_value(self, begin: int, end: int) -> OnnxValue:
        name, value = "", OnnxValue("")
        for number, kind, at, to in self._wire.fields(begin, end):
            if number == 1 and kind == BYTES:
                name = self._name(at, to)
            elif number == 2 and kind == BYTES:
                for inner, inner_kind, inner_at, inner_to in self._wire.fields(at, to):
                    if inner == 1 and inner_kind == BYTES:
                        value = self._read_tensor_type(inner_at, inner_to)
        return OnnxValue(name, value.element_type, value.extents)

    def _read_tensor_type(self, begin: int, end: int) -> OnnxValue:
        element_type = 0
        extents: list[Extent] | None = None
        for number, kind, at, to in self._wire.fields(begin, end):
            if number == 1 and kind == VARINT:
                element_type = at
            elif number == 2 and kind == BYTES:
                extents = [self._read_extent(*each) for each in self._wire.fields(at, to)]
        if extents is not None and len(extents) > self._limits.dimensions:
            raise GraphLimitError(f"a tensor of more than {self._limits.dimensions} dimensions")
        return OnnxValue("", element_type, None if extents is None else tuple(extents))

    def _read_extent(self, number: int, kind: int, begin: int, end: int) -> Extent:
        if number != 1 or kind != BYTES:
            return None
        extent: Extent = None
        for inner, inner_kind, at, to in self._wire.fields(begin, end):
            if inner == 1 and inner_kind == VARINT:
                extent = signed(at)
            elif inner == 2 and inner_kind == BYTES:
                extent = self._name(at, to) or None
        return extent

    def _read_function(self, begin: int, end: int) -> tuple[str, str]:
        name = domain = ""
        for number, kind, at, to in self._wire.fields(begin, end):
            if number == 1 and kind == BYTES:
                name = self._name(at, to)
            elif number == 10 and kind == BYTES:
                domain = self._name(at, to)
        return domain, name

    def _name(self, begin: int, end: int) -> str:
        if end - begin > 4 * self._limits.text:
            raise GraphLimitError(f"a name of {end - begin} bytes in the ONNX file")
        return self._limits.check_text("a name in the ONNX file", self._wire.text(begin, end))


def _make_control_flow_error(operator: str) -> DataDependentGraphError:
    return DataDependentGraphError(
        f"{operator}: which operations run depends on the data, there is no single graph of them"
    )
