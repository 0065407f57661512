"""Graphs from .pt2 archives, as ``torch.export.save`` writes them: from the JSON text in them, without torch."""

from __future__ import annotations

from typing import BinaryIO

from gpusonde.predictor.workload.graph.graph_json import parse_json
from gpusonde.predictor.workload.graph.ir import WorkloadGraph
from gpusonde.predictor.workload.graph.limits import GraphLimits
from gpusonde.predictor.workload.graph.pt2.archive import read_program
from gpusonde.predictor.workload.graph.pt2.program import ProgramReader

__all__ = ["from_pt2"]


def from_pt2(file: BinaryIO, *, name: str | None = None, limits: GraphLimits | None = None) -> WorkloadGraph:
    """Read the graph of an archive that may come from anybody. Nothing in it is unpickled, and no weight is read.

    The graph is the one that ``from_torch`` makes of the same program; sizes that the program leaves open are those of
    the example that it was exported with.

    Args:
        file: The archive; it can seek.
        name: What the user calls the network; the archive's own name if not given.
        limits: What is accepted; None means the defaults.

    Returns:
        The graph.

    Raises:
        MalformedGraphError: No such archive.
        GraphLimitError: Larger than the limits.
        UnsupportedGraphError: Several programs, or sizes that nobody can tell.
        DataDependentGraphError: It holds branches or loops that depend on the values of the data.
    """
    limits = limits or GraphLimits()
    text = read_program(file, limits)
    program = parse_json(text.program, limits, limits.program_bytes)
    weights = parse_json(text.weights, limits, limits.program_bytes) if text.weights else None
    title = text.name if name is None else name
    return limits.check_graph(ProgramReader(program, title, weights, limits).read())
