"""Graphs of primitive operations: the intermediate form, its front ends, its file format and its costs."""

from gpusonde.predictor.workload.graph.errors import (
    DataDependentControlFlowError,
    GraphError,
    GraphLimitError,
    MalformedGraphError,
    UnsupportedGraphError,
)
from gpusonde.predictor.workload.graph.ir import Operation, Parameter, Primitive, WorkloadGraph

__all__ = [
    "DataDependentControlFlowError",
    "GraphError",
    "GraphLimitError",
    "MalformedGraphError",
    "Operation",
    "Parameter",
    "Primitive",
    "UnsupportedGraphError",
    "WorkloadGraph",
]
