"""``read_graph``: a graph from a file of any format that is read without running anything in it."""

from __future__ import annotations

import io
import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import BinaryIO

from gpusonde.errors import MalformedGraphError
from gpusonde.predictor.workload.graph.config import from_config
from gpusonde.predictor.workload.graph.graph_json import parse_json, read_document
from gpusonde.predictor.workload.graph.ir import WorkloadGraph
from gpusonde.predictor.workload.graph.limits import GraphLimits
from gpusonde.predictor.workload.graph.onnx import from_onnx
from gpusonde.predictor.workload.graph.pt2 import from_pt2


class GraphFormat(str, Enum):
    """Formats of files."""

    JSON = "json"
    ONNX = "onnx"
    PT2 = "pt2"


_ARCHIVE = b"PK\x03\x04"
_EMPTY_ARCHIVE = b"PK\x05\x06"
_SPACES = b" \t\r\n"
# A pickle since protocol 2, and what torch.save wrote before it wrote archives.
_PICKLE = b"\x80"
_LOOKED_AT = 64


def recognise(beginning: bytes) -> GraphFormat:
    """Tell the format of a file.

    Args:
        beginning: Its first bytes; 64 suffice.

    Raises:
        MalformedGraphError: None that is read.
    """
    if beginning.startswith((_ARCHIVE, _EMPTY_ARCHIVE)):
        return GraphFormat.PT2
    if beginning.lstrip(_SPACES).startswith(b"{"):
        return GraphFormat.JSON
    if beginning.startswith(_PICKLE):
        raise MalformedGraphError(
            "a pickle, which would run code: it is not read. Hand in a graph, an ONNX file or a .pt2"
        )
    # An ONNX file begins with the field of its format's version, or with another of its first fields.
    if beginning and beginning[0] & 7 in (0, 2) and 1 <= beginning[0] >> 3 <= 25:
        return GraphFormat.ONNX
    raise MalformedGraphError("neither a graph as JSON text nor an ONNX file nor a .pt2 archive")


def read_graph(
    source: bytes | str | os.PathLike[str],
    format: GraphFormat | str | None = None,
    limits: GraphLimits | None = None,
    *,
    name: str | None = None,
    batch_size: int = 1,
) -> WorkloadGraph:
    """Read a graph that may come from anybody. Nothing in it is run or unpickled, no weight is read.

    Args:
        source: The file's content, or its path.
        format: Its format; recognised by its content if not given, never by its name.
        limits: What is accepted; None means the defaults.
        name: What the user calls the network; if not given: as a graph in JSON says, else as the file is
            called, else as it says.
        batch_size: Samples in a batch, for an ONNX file that leaves it open.

    Returns:
        The graph.

    Raises:
        MalformedGraphError: Not such a file.
        GraphLimitError: Larger than the limits.
        UnsupportedGraphError: Sound, but no graph can be had from it; the text says what to do.
        DataDependentGraphError: Which operations run depends on the values of the data.
        OSError: The path cannot be read.
    """
    limits = limits or GraphLimits()
    if isinstance(source, bytes):
        found = recognise(source[:_LOOKED_AT]) if format is None else GraphFormat(format)
        return _read(io.BytesIO(source), source, found, limits, name, batch_size)
    path = Path(source)
    with path.open("rb") as file:
        beginning = file.read(_LOOKED_AT)
        found = recognise(beginning) if format is None else GraphFormat(format)
        if name is None and found is not GraphFormat.JSON:
            # What exporters write as a name is the same for all networks.
            name = "".join(filter(str.isprintable, path.stem))[: limits.text]
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            # A pipe can neither be mapped nor be read again.
            content = beginning + file.read(limits.archive_bytes)
            return _read(io.BytesIO(content), content, found, limits, name, batch_size)
        with _map_file(file) as data:
            return _read(file, data, found, limits, name, batch_size)


def _read(
    file: BinaryIO, data: bytes | mmap.mmap, found: GraphFormat, limits: GraphLimits, name: str | None, batch_size: int
) -> WorkloadGraph:
    if found is GraphFormat.PT2:
        return from_pt2(file, name=name, limits=limits)
    if found is GraphFormat.ONNX:
        return from_onnx(data, name=name, batch_size=batch_size, limits=limits)
    limits.check_size("the JSON text", len(data), limits.json_bytes)
    document = parse_json(bytes(data), limits)
    if isinstance(document, dict) and "format" not in document and "model_type" in document:
        return from_config(document, name=name, limits=limits)
    graph = read_document(document, limits)
    return graph if name is None else replace(graph, name=limits.check_text("name", name))


@contextmanager
def _map_file(file: BinaryIO) -> Iterator[bytes | mmap.mmap]:
    """Map the file into memory without reading it: weights are gigabytes, and nobody looks at them."""
    if os.fstat(file.fileno()).st_size == 0:
        yield b""
        return
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        yield data
