"""Graphs from ONNX files, without the onnx package wherever the file says the shapes of its tensors."""

from __future__ import annotations

from gpusonde.predictor.workload.graph.ir import WorkloadGraph
from gpusonde.predictor.workload.graph.limits import GraphLimits
from gpusonde.predictor.workload.graph.onnx.model import Bytes, read_model
from gpusonde.predictor.workload.graph.onnx.operations import NodeReader
from gpusonde.predictor.workload.graph.onnx.shapes import collect_declared_shapes, infer

__all__ = ["from_onnx"]


def from_onnx(
    data: Bytes, *, name: str | None = None, batch_size: int = 1, limits: GraphLimits | None = None
) -> WorkloadGraph:
    """Read the graph of an ONNX file that may come from anybody. Its weights are stepped over.

    Args:
        data: The file; mapped into memory if it is large.
        name: What the user calls the network; the file's own name of its graph if not given.
        batch_size: Samples in a batch, for a file that leaves the first extent of its inputs open.
        limits: What is accepted; None means the defaults.

    Returns:
        The graph.

    Raises:
        MalformedGraphError: No ONNX file, or its nodes are in no order in which they can run.
        GraphLimitError: Larger than the limits.
        UnsupportedGraphError: Weights in other files, functions of its own, shapes that nobody can tell.
        DataDependentGraphError: It branches or loops.
    """
    limits = limits or GraphLimits()
    limits.check_batch_size(batch_size)
    model = read_model(data, limits)
    reader = NodeReader(model)
    shapes = collect_declared_shapes(model, batch_size, limits)
    if any(each not in shapes.known for each in reader.wanted()):
        infer(data, model, shapes, limits)
    return limits.check_graph(reader.assemble(model.name if name is None else name, shapes, limits))
