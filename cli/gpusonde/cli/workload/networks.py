"""``NetworksBeside``: networks that a table of measurements names by a graph file."""

from __future__ import annotations

from pathlib import Path

from gpusonde.predictor.workload.engine.measurements import KnownNetworks, Network, UnknownNetworkError
from gpusonde.predictor.workload.graph import GraphError
from gpusonde.predictor.workload.graph.reading import read_graph

_SUFFIXES = frozenset({".json", ".onnx", ".pt2"})


class NetworksBeside(KnownNetworks):
    """Finds graph files beside the table, and known networks.

    Args:
        folder: Names of files are relative to it.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._read: dict[str, Network] = {}

    def find(self, name: str, image_size: int | None, description: str = "") -> Network:
        """The network of a row.

        Raises:
            UnknownNetworkError: Its graph is not known, or its file holds none.
        """
        if Path(name).suffix not in _SUFFIXES:
            return super().find(name, image_size, description)
        if name not in self._read:
            try:
                graph = read_graph(self._folder / name)
            except (GraphError, OSError) as error:
                raise UnknownNetworkError(f"{name}: {getattr(error, 'strerror', None) or error}") from error
            # Networks of one name in several files are one architecture at several sizes.
            self._read[name] = Network(graph, graph.name, graph.name)
        return self._read[name]
