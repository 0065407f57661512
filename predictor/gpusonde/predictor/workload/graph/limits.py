"""What a graph that a stranger hands in may hold: sizes are checked before anything is built from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpusonde.errors import GraphLimitError, MalformedGraphError
from gpusonde.predictor.workload.graph.ir import Shape, WorkloadGraph

_MIB = 1 << 20


@dataclass(frozen=True)
class GraphLimits:
    """Most that is accepted; more raises ``GraphLimitError``.

    The defaults hold networks of a few hundred layers many times over, and keep the memory that a hostile input costs
    below half a gibibyte, its time below a second.

    Attributes:
        json_bytes: Size of a graph as JSON text.
        program_bytes: Size of the program inside a .pt2 archive, unpacked: JSON text with stack traces in it.
        onnx_bytes: Size of an ONNX file; the weights in it count, although they are stepped over.
        onnx_structure_bytes: Size of an ONNX file without its weights.
        inference_s: Seconds that onnx may take to infer the shapes that an ONNX file does not say, in a process of its
            own; 0 means that such a file is refused.
        onnx_fields: Fields of the messages in an ONNX file that are looked at.
        archive_bytes: Size of a .pt2 archive; likewise.
        archive_entries: Files in a .pt2 archive.
        compression_ratio: Unpacked size of a file in an archive, per packed byte.
        values: Numbers, texts and other values in JSON text.
        containers: Lists and objects in JSON text.
        operations: Operations of a graph; nodes of the program that it is read from.
        edges: Edges of a graph.
        inputs: Input shapes of all operations together.
        tensors: Named tensors of an ONNX file or of a .pt2 program, parameters included.
        dimensions: Extents of one shape.
        extent: One extent of a shape.
        elements: Product of the extents of one shape.
        batch_size: Samples in a batch.
        text: Characters of a name.
        notes: Notes on a graph.
        note_text: Characters of one note.
    """

    json_bytes: int = 16 * _MIB
    program_bytes: int = 32 * _MIB
    onnx_bytes: int = 2048 * _MIB
    onnx_structure_bytes: int = 16 * _MIB
    inference_s: float = 20.0
    onnx_fields: int = 300_000
    archive_bytes: int = 8192 * _MIB
    archive_entries: int = 10_000
    compression_ratio: int = 200
    values: int = 1_000_000
    containers: int = 600_000
    operations: int = 20_000
    edges: int = 100_000
    inputs: int = 100_000
    tensors: int = 100_000
    dimensions: int = 8
    extent: int = (1 << 31) - 1
    elements: int = 1 << 40
    batch_size: int = 1 << 20
    text: int = 400
    notes: int = 32
    note_text: int = 1000

    def check_count(self, what: str, count: int, most: int) -> None:
        """Raise ``GraphLimitError`` if there are more than ``most``; ``what`` names them in the plural."""
        if count > most:
            raise GraphLimitError(f"{count} {what}: at most {most} are accepted")

    def check_size(self, what: str, size: int, most: int) -> None:
        """Raise ``GraphLimitError`` if ``size`` bytes are more than ``most``."""
        if size > most:
            raise GraphLimitError(f"{what} has {size} bytes: at most {most} are accepted")

    def check_shape(self, place: str, shape: Sequence[object]) -> Shape:
        """Check the extents of a tensor.

        Args:
            place: Where the shape stands, for the error's text.
            shape: Extents, as they were read.

        Returns:
            The shape.

        Raises:
            MalformedGraphError: An extent is no integer, or below 1.
            GraphLimitError: Too many extents, one is too large, or the tensor is.
        """
        if len(shape) > self.dimensions:
            raise GraphLimitError(f"{place}: {len(shape)} dimensions, at most {self.dimensions} are accepted")
        extents = tuple(self._check_extent(place, position, each) for position, each in enumerate(shape))
        if math.prod(extents) > self.elements:
            raise GraphLimitError(f"{place}: a tensor of more than {self.elements} elements")
        return extents

    def _check_extent(self, place: str, position: int, extent: object) -> int:
        # A bool is an int to isinstance.
        if type(extent) is not int:
            raise MalformedGraphError(f"{place}[{position}]: an extent must be an integer")
        if extent < 1:
            raise MalformedGraphError(f"{place}[{position}]: an extent must be at least 1")
        if extent > self.extent:
            raise GraphLimitError(f"{place}[{position}]: an extent of at most {self.extent} is accepted")
        return extent

    def check_text(self, place: str, text: object, most: int | None = None) -> str:
        """Check a name: printable text of at most ``most`` characters (default ``self.text``).

        Raises:
            MalformedGraphError: Not text, or with control characters.
            GraphLimitError: Too long.
        """
        if not isinstance(text, str):
            raise MalformedGraphError(f"{place}: it must be text")
        most = self.text if most is None else most
        if len(text) > most:
            raise GraphLimitError(f"{place}: {len(text)} characters, at most {most} are accepted")
        # Names end up in logs and on terminals. Lone surrogates are not printable either.
        if not text.isprintable():
            raise MalformedGraphError(f"{place}: it holds characters that cannot be printed")
        return text

    def check_graph(self, graph: WorkloadGraph) -> WorkloadGraph:
        """Check a whole graph, whatever it was read from.

        Returns:
            The graph.

        Raises:
            MalformedGraphError: Shapes or names are none.
            GraphLimitError: It is too large.
        """
        self.check_totals(graph)
        self.check_text("name", graph.name)
        self.check_text("front_end", graph.front_end)
        self.check_batch_size(graph.batch_size)
        for position, note in enumerate(graph.notes):
            self.check_text(f"notes[{position}]", note, self.note_text)
        for position, operation in enumerate(graph.operations):
            place = f"operations[{position}]"
            self.check_text(f"{place}.name", operation.name)
            self.check_text(f"{place}.source", operation.source)
            self.check_shape(f"{place}.output", operation.output)
            self.check_shape(f"{place}.weight", operation.weight)
            self.check_shape(f"{place}.groups", (operation.groups,))
            for at, shape in enumerate(operation.inputs):
                self.check_shape(f"{place}.inputs[{at}]", shape)
            for at, parameter in enumerate(operation.parameters):
                self.check_text(f"{place}.parameters[{at}]", parameter.name)
                self.check_shape(f"{place}.parameters[{at}]", parameter.shape)
        return graph

    def check_totals(self, graph: WorkloadGraph) -> WorkloadGraph:
        """Check what concerns a graph as a whole; ``check_graph`` does it too.

        Returns:
            The graph.

        Raises:
            MalformedGraphError: Two operations have the same name.
            GraphLimitError: It has too many of something.
        """
        self.check_count("operations", len(graph.operations), self.operations)
        self.check_count("edges", len(graph.edges), self.edges)
        self.check_count("inputs", sum(len(each.inputs) for each in graph.operations), self.inputs)
        self.check_count("parameters", sum(len(each.parameters) for each in graph.operations), self.tensors)
        self.check_count("notes", len(graph.notes), self.notes)
        names: set[str] = set()
        for position, operation in enumerate(graph.operations):
            if operation.name in names:
                raise MalformedGraphError(f"operations[{position}].name: an earlier operation has it too")
            names.add(operation.name)
        return graph

    def check_batch_size(self, batch_size: object) -> int:
        """Check the number of samples in a batch.

        Raises:
            MalformedGraphError: No integer, or below 1.
            GraphLimitError: Too large.
        """
        if type(batch_size) is not int or batch_size < 1:
            raise MalformedGraphError("batch_size: it must be an integer of at least 1")
        if batch_size > self.batch_size:
            raise GraphLimitError(f"batch_size: at most {self.batch_size} is accepted")
        return batch_size
