"""Graphs of primitive operations: the intermediate form, its front ends, its file format and its costs."""

from gpusonde.predictor.workload.graph.graph_json import dump_graph, load_graph
from gpusonde.predictor.workload.graph.ir import (
    DataDependentControlFlowError,
    GraphError,
    GraphLimitError,
    MalformedGraphError,
    Operation,
    Parameter,
    Primitive,
    UnsupportedGraphError,
    WorkloadGraph,
)
from gpusonde.predictor.workload.graph.limits import GraphLimits

__all__ = [
    "DataDependentControlFlowError",
    "GraphError",
    "GraphLimitError",
    "GraphLimits",
    "MalformedGraphError",
    "Operation",
    "Parameter",
    "Primitive",
    "UnsupportedGraphError",
    "WorkloadGraph",
    "dump_graph",
    "load_graph",
]
