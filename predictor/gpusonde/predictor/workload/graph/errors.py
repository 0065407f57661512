"""Why a workload's graph cannot be had: one exception per cause."""

from __future__ import annotations


class GraphError(ValueError):
    """A graph that cannot be used."""


class MalformedGraphError(GraphError):
    """The input is not what its format says, or describes no directed acyclic graph of operations."""


class GraphLimitError(GraphError):
    """The input is larger than what is accepted."""


class UnsupportedGraphError(GraphError):
    """The input is sound, but its operations cannot be turned into a graph."""


class DataDependentControlFlowError(UnsupportedGraphError):
    """Which operations run depends on the values of the data: there is no single graph."""
