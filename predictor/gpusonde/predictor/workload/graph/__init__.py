"""Graphs of primitive operations: the intermediate form, its front ends, its file format and its costs.

What other rooms use can be imported from here, each part when it is asked for. ``graph.torch`` has a face of its own,
since it brings torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpusonde.predictor.workload.graph.cost import BYTES_PER_NUMBER, count_graph_cost, count_operation_cost
    from gpusonde.predictor.workload.graph.graph_json import dump_graph, load_graph
    from gpusonde.predictor.workload.graph.ir import Operation, Parameter, Primitive, WorkloadGraph
    from gpusonde.predictor.workload.graph.limits import GraphLimits
    from gpusonde.predictor.workload.graph.reading import read_graph

_HOMES = {
    "BYTES_PER_NUMBER": "cost",
    "count_graph_cost": "cost",
    "count_operation_cost": "cost",
    "dump_graph": "graph_json",
    "load_graph": "graph_json",
    "Operation": "ir",
    "Parameter": "ir",
    "Primitive": "ir",
    "WorkloadGraph": "ir",
    "GraphLimits": "limits",
    "read_graph": "reading",
}
__all__ = [
    "BYTES_PER_NUMBER",
    "GraphLimits",
    "Operation",
    "Parameter",
    "Primitive",
    "WorkloadGraph",
    "count_graph_cost",
    "count_operation_cost",
    "dump_graph",
    "load_graph",
    "read_graph",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - see above

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
