"""Files that pretend to be graphs: what somebody sends who means harm. No torch, no onnx needed to make them."""

from __future__ import annotations

import io
import json
import os
import pickle
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpusonde.errors import (
    DataDependentGraphError,
    GraphError,
    GraphLimitError,
    MalformedGraphError,
    UnsupportedGraphError,
)
from gpusonde.predictor.workload.graph.onnx.model import encode_bytes, encode_varint

MILLION = 1_000_000
MARKER = Path(tempfile.gettempdir()) / "gpusonde-was-executed"
"""What the pickles below make when somebody unpickles them."""


@dataclass(frozen=True)
class HostileInput:
    """A file that must be refused.

    Attributes:
        make: Makes it; some have a hundred megabytes.
        refusal: The error that it ends in.
        format: "json", "onnx" or "pt2".
    """

    make: Callable[[], bytes]
    refusal: type[GraphError]
    format: str


# --- JSON -----------------------------------------------------------------------------------------------------------


def json_graph(**changes: Any) -> bytes:
    """A sound graph as JSON text, with some of its fields changed."""
    document: dict[str, Any] = {
        "format": "gpusonde.workload_graph/1",
        "name": "small",
        "batch_size": 1,
        "operations": [
            {"primitive": "input", "name": "x", "output": [1, 8]},
            {"primitive": "linear", "name": "fc", "output": [1, 4], "inputs": [[1, 8]], "weight": [4, 8],
             "parameters": [["fc.weight", [4, 8]]]},
            {"primitive": "output", "name": "output", "output": [1, 4], "inputs": [[1, 4]]},
        ],
        "edges": [[0, 1], [1, 2]],
    }  # fmt: skip
    return json.dumps({**document, **changes}).encode()


def _json_shape(extent: object) -> bytes:
    return json_graph(operations=[{"primitive": "input", "name": "x", "output": [1, extent]}], edges=[])


# --- ONNX -----------------------------------------------------------------------------------------------------------


def onnx_text(number: int, text: str) -> bytes:
    """A field that holds text."""
    return encode_bytes(number, text.encode())


def onnx_integer(number: int, value: int) -> bytes:
    """A field that holds an integer."""
    return encode_varint(number << 3) + encode_varint(value & (1 << 64) - 1)


def onnx_node(operator: str, inputs: Sequence[str], outputs: Sequence[str], *attributes: bytes) -> bytes:
    """A field of a graph: a node."""
    content = b"".join(onnx_text(1, each) for each in inputs) + b"".join(onnx_text(2, each) for each in outputs)
    return encode_bytes(1, content + onnx_text(4, operator) + b"".join(encode_bytes(5, each) for each in attributes))


def onnx_value(number: int, name: str, shape: Sequence[int | str] | None) -> bytes:
    """A field of a graph: an input (11), an output (12) or a tensor in between (13)."""
    tensor = onnx_integer(1, 1)
    if shape is not None:
        extents = (onnx_text(2, each) if isinstance(each, str) else onnx_integer(1, each) for each in shape)
        tensor += encode_bytes(2, b"".join(encode_bytes(1, each) for each in extents))
    return encode_bytes(number, onnx_text(1, name) + encode_bytes(2, encode_bytes(1, tensor)))


def onnx_weight(name: str, shape: Sequence[int], content: bytes = b"") -> bytes:
    """A field of a graph: an initialiser of fp32 with these values, or with none."""
    extents = b"".join(onnx_integer(1, each) for each in shape)
    return encode_bytes(5, extents + onnx_integer(2, 1) + onnx_text(8, name) + content)


def onnx_file(*fields: bytes) -> bytes:
    """An ONNX file with a graph of these fields."""
    opset = encode_bytes(8, onnx_text(1, "") + onnx_integer(2, 18))
    return onnx_integer(1, 8) + opset + encode_bytes(7, b"".join(fields) + onnx_text(2, "main_graph"))


def small_onnx(*more: bytes, batch: int | str = 1) -> bytes:
    """A sound ONNX file: a linear layer and what else is given."""
    return onnx_file(
        onnx_node("MatMul", ["x", "w"], ["h"]), onnx_node("Relu", ["h"], ["y"]), onnx_weight("w", [8, 4]),
        onnx_value(11, "x", [batch, 8]), onnx_value(12, "y", [batch, 4]), onnx_value(13, "h", [batch, 4]), *more,
    )  # fmt: skip


def _onnx_external_data() -> bytes:
    place = encode_bytes(13, onnx_text(1, "location") + onnx_text(2, "/etc/passwd"))
    return small_onnx(onnx_weight("e", [4], place + onnx_integer(14, 1)), onnx_node("Add", ["y", "e"], ["z"]))


def _onnx_cycle() -> bytes:
    return onnx_file(
        onnx_value(11, "x", [1, 8]), onnx_value(12, "b", [1, 8]), onnx_value(13, "a", [1, 8]),
        onnx_node("Add", ["x", "b"], ["a"]), onnx_node("Relu", ["a"], ["b"]),
    )  # fmt: skip


def _onnx_loop() -> bytes:
    body = onnx_text(1, "body") + encode_bytes(6, onnx_node("Relu", ["q"], ["r"])) + onnx_integer(20, 5)
    return small_onnx(onnx_node("Loop", ["", "", "y"], ["z"], body))


# --- .pt2 -----------------------------------------------------------------------------------------------------------


def _tensor(*extents: object) -> dict[str, Any]:
    return {"dtype": 7, "sizes": [each if isinstance(each, dict) else {"as_int": each} for each in extents]}


def program_node(operator: str, inputs: Sequence[str], output: str) -> dict[str, Any]:
    """A node of an exported program."""
    arguments = [{"name": f"a{at}", "arg": {"as_tensor": {"name": each}}, "kind": 1} for at, each in enumerate(inputs)]
    outputs = [{"as_tensor": {"name": output}}]
    return {"target": f"torch.ops.aten.{operator}", "inputs": arguments, "outputs": outputs, "metadata": {}}


def program(nodes: Sequence[dict[str, Any]] | None = None, **tensors: Any) -> dict[str, Any]:
    """A sound exported program as JSON: a linear layer and a ReLU, or other nodes."""
    if nodes is None:
        nodes = [program_node("linear.default", ["x", "p_w"], "h"), program_node("relu.default", ["h"], "y")]
    values = {"x": _tensor(1, 8), "p_w": _tensor(4, 8), "h": _tensor(1, 4), "y": _tensor(1, 4), **tensors}
    arguments = [{"as_tensor": {"name": "p_w"}}, {"as_tensor": {"name": "x"}}]
    signature = {
        "input_specs": [
            {"parameter": {"arg": {"name": "p_w"}, "parameter_name": "fc.weight"}},
            {"user_input": {"arg": {"as_tensor": {"name": "x"}}}},
        ],
        "output_specs": [{"user_output": {"arg": {"as_tensor": {"name": "y"}}}}],
    }
    graph = {"inputs": arguments, "outputs": [{"as_tensor": {"name": "y"}}], "nodes": nodes, "tensor_values": values}
    return {"graph_module": {"graph": graph, "signature": signature}, "schema_version": {"major": 8, "minor": 20}}


def archive(files: dict[str, bytes | str], method: int = zipfile.ZIP_STORED) -> bytes:
    """A ZIP archive of these files."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as writer:
        for name, content in files.items():
            writer.writestr(name, content)
    return made.getvalue()


def pt2(document: object | None = None, **more: bytes) -> bytes:
    """A .pt2 archive with this program."""
    text = json.dumps(program() if document is None else document)
    return archive({"small/models/model.json": text, "small/archive_format": "pt2", **more})


class Exploit:
    """What makes a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self._command = f"touch '{marker}'"

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self._command,)


def with_pickle(given: bytes, marker: Path, entry: str = "data/sample_inputs/model.pt") -> bytes:
    """The archive with a pickle in it that makes the file ``marker`` when it is loaded.

    Args:
        given: A .pt2 archive, of torch or of ours.
        marker: The file.
        entry: Which of its files to replace, without its folder.
    """
    with zipfile.ZipFile(io.BytesIO(given)) as reader:
        files = {each: reader.read(each) for each in reader.namelist()}
    folder = next(iter(files)).partition("/")[0]
    return archive({**files, f"{folder}/{entry}": pickle.dumps(Exploit(marker))})


def _twice_the_same() -> bytes:
    # zipfile warns of a repeated name; renaming in place does not.
    return archive({"small/models/model.json": json.dumps(program()), "small/models/model_json": "{}"}).replace(
        b"small/models/model_json", b"small/models/model.json"
    )


def _bomb() -> bytes:
    return archive({"small/models/model.json": b" " * (30 << 20)}, zipfile.ZIP_DEFLATED)


def _false_size() -> bytes:
    # Says 100 bytes where 30 MiB come out.
    made = bytearray(_bomb())
    at = made.rindex(b"PK\x01\x02")
    made[at + 24 : at + 28] = (100).to_bytes(4, "little")
    return bytes(made)


def _many_files() -> bytes:
    # Entries of a directory that takes four million bytes; none of them has content.
    beginning = b"PK\x03\x04" + bytes(26)
    entry = b"PK\x01\x02" + bytes(24) + (1).to_bytes(2, "little") + bytes(16) + b"a"
    count = 85_000
    end = b"PK\x05\x06" + bytes(4) + b"\xff\xff\xff\xff" + (count * len(entry)).to_bytes(4, "little") + bytes(6)
    return beginning + entry * count + end


def _cyclic_program() -> dict[str, Any]:
    return program([program_node("add.Tensor", ["x", "y"], "h"), program_node("relu.default", ["h"], "y")])


def _branching_program() -> dict[str, Any]:
    node = program_node("relu.default", ["x"], "y")
    return program([{**node, "target": "torch.ops.higher_order.cond"}])


def _million_program_nodes() -> bytes:
    document = json.dumps(program(["@"]))  # type: ignore[list-item]
    return archive({"small/models/model.json": document.replace('"@"', ",".join(["{}"] * MILLION))})


HOSTILE: dict[str, HostileInput] = {
    "100 MB of JSON": HostileInput(lambda: json_graph(name="x" * 100_000_000), GraphLimitError, "json"),
    "a million nodes, JSON": HostileInput(
        lambda: json_graph(operations=["@"]).replace(b'"@"', b",".join([b"{}"] * MILLION)), GraphLimitError, "json"
    ),
    "a cycle, JSON": HostileInput(lambda: json_graph(edges=[[0, 1], [1, 2], [2, 1]]), MalformedGraphError, "json"),
    "NaN in a shape, JSON": HostileInput(lambda: _json_shape(float("nan")), MalformedGraphError, "json"),
    "infinity in a shape, JSON": HostileInput(lambda: _json_shape(float("inf")), MalformedGraphError, "json"),
    "a negative extent, JSON": HostileInput(lambda: _json_shape(-5), MalformedGraphError, "json"),
    "a huge extent, JSON": HostileInput(lambda: _json_shape(10**18), GraphLimitError, "json"),
    "a number of a million digits, JSON": HostileInput(
        lambda: _json_shape("@").replace(b'"@"', b"9" * MILLION), GraphLimitError, "json"
    ),
    "lists in lists, JSON": HostileInput(lambda: b'{"a":' + b"[" * MILLION, GraphLimitError, "json"),
    "a repeated key, JSON": HostileInput(
        lambda: json_graph().replace(b'"name"', b'"name": "a", "name"', 1), MalformedGraphError, "json"
    ),
    "external data, ONNX": HostileInput(_onnx_external_data, UnsupportedGraphError, "onnx"),
    "a million nodes, ONNX": HostileInput(
        lambda: onnx_file(onnx_node("Relu", ["x"], ["y"]) * MILLION), GraphLimitError, "onnx"
    ),
    "a million empty nodes, ONNX": HostileInput(
        lambda: onnx_file(encode_bytes(1, b"") * MILLION), MalformedGraphError, "onnx"
    ),
    "a million tensors, ONNX": HostileInput(
        lambda: onnx_file(onnx_weight("", [1]) * MILLION), MalformedGraphError, "onnx"
    ),
    "a million inputs of a node, ONNX": HostileInput(
        lambda: small_onnx(onnx_node("Concat", ["y"] * MILLION, ["z"])), GraphLimitError, "onnx"
    ),
    "a cycle, ONNX": HostileInput(_onnx_cycle, MalformedGraphError, "onnx"),
    "a negative extent, ONNX": HostileInput(
        lambda: onnx_file(onnx_node("Relu", ["x"], ["y"]), onnx_value(11, "x", [1, -3])), MalformedGraphError, "onnx"
    ),
    "a huge extent, ONNX": HostileInput(
        lambda: onnx_file(onnx_node("Relu", ["x"], ["y"]), onnx_value(11, "x", [1, 1 << 60])), GraphLimitError, "onnx"
    ),
    "a loop, ONNX": HostileInput(_onnx_loop, DataDependentGraphError, "onnx"),
    "a file that is cut off, ONNX": HostileInput(lambda: small_onnx()[:-20], MalformedGraphError, "onnx"),
    "a pickle that calls os.system, .pt2": HostileInput(
        lambda: with_pickle(pt2(), MARKER), MalformedGraphError, "pt2"
    ),
    "nothing but a pickle, .pt2": HostileInput(
        lambda: pickle.dumps(Exploit(MARKER)), MalformedGraphError, "pt2"
    ),
    "a file of torch.save, .pt2": HostileInput(
        lambda: archive({"a/data.pkl": pickle.dumps(Exploit(MARKER))}),
        MalformedGraphError, "pt2",
    ),
    "a million nodes, .pt2": HostileInput(_million_program_nodes, GraphLimitError, "pt2"),
    "100 MB of JSON, .pt2": HostileInput(
        lambda: archive({"small/models/model.json": b'{"a": "' + b"x" * 100_000_000 + b'"}'}), GraphLimitError, "pt2"
    ),
    "a cycle, .pt2": HostileInput(lambda: pt2(_cyclic_program()), MalformedGraphError, "pt2"),
    "NaN in a shape, .pt2": HostileInput(
        lambda: pt2(program(h=_tensor(1, float("nan")))), MalformedGraphError, "pt2"
    ),
    "a negative extent, .pt2": HostileInput(lambda: pt2(program(h=_tensor(1, -4))), MalformedGraphError, "pt2"),
    "a branch, .pt2": HostileInput(lambda: pt2(_branching_program()), DataDependentGraphError, "pt2"),
    "a ZIP bomb, .pt2": HostileInput(_bomb, GraphLimitError, "pt2"),
    "a false size, .pt2": HostileInput(_false_size, MalformedGraphError, "pt2"),
    "85,000 files, .pt2": HostileInput(_many_files, GraphLimitError, "pt2"),
    "two files of one name, .pt2": HostileInput(_twice_the_same, MalformedGraphError, "pt2"),
    "neither of all": HostileInput(lambda: b"\x7fELF" + bytes(100), MalformedGraphError, "onnx"),
}  # fmt: skip
