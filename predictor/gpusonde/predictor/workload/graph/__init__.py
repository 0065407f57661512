"""Graphs of primitive operations: the intermediate form, its front ends, its file format and its costs."""

from gpusonde.predictor.workload.graph.errors import (
    DataDependentControlFlowError,
    GraphError,
    GraphLimitError,
    MalformedGraphError,
    UnsupportedGraphError,
)
from gpusonde.predictor.workload.graph.graph_json import dump_graph, load_graph
from gpusonde.predictor.workload.graph.ir import Operation, Parameter, Primitive, WorkloadGraph
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
