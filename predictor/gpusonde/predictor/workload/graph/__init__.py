"""Graphs of primitive operations: the intermediate form, its front ends, its file format and its costs."""

from gpusonde.predictor.workload.graph.graph_json import dump_graph, load_graph
from gpusonde.predictor.workload.graph.ir import Operation, Parameter, Primitive, WorkloadGraph
from gpusonde.predictor.workload.graph.limits import GraphLimits

__all__ = [
    "GraphLimits",
    "Operation",
    "Parameter",
    "Primitive",
    "WorkloadGraph",
    "dump_graph",
    "load_graph",
]
