"""Where ``gpusonde workload`` gets a graph from: files, known networks, factories of packages, source code."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpusonde.cli.errors import CommandError, naming
from gpusonde.cli.parsing import UsageError
from gpusonde.cli.workload.factories import graph_from_sandbox, graph_of_factory
from gpusonde.cli.workload.wish import Wish

if TYPE_CHECKING:
    from gpusonde.predictor.workload.graph import WorkloadGraph

_ZOO, _KERAS = "zoo:", "keras:"
_DEFAULT_CLASSES = 1000


def named_graphs(sources: Sequence[str]) -> list[WorkloadGraph]:
    """Return the graphs of files and of known networks, told apart by their names.

    Raises:
        UsageError: A source would need code to be run.
        GraphError: A file holds no graph.
    """
    found: list[WorkloadGraph] = []
    taken: dict[str, int] = {}
    for source in sources:
        graph = _without_code(source)
        if graph is None:
            raise UsageError(f"{source} is neither a file nor a known network; 'gpusonde workload graph' makes a file")
        taken[graph.name] = taken.get(graph.name, 0) + 1
        if taken[graph.name] > 1:
            graph = dataclasses.replace(graph, name=f"{graph.name} ({source})")
        found.append(graph)
    return found


def graph_of(source: str, wish: Wish) -> WorkloadGraph:
    """Return the graph of a source.

    Raises:
        UsageError: The wish does not fit the source, or source code may not be run.
        GraphError: There is no graph to be had.
    """
    if wish.sandbox and wish.trust:
        raise UsageError("--sandbox and --trust exclude each other")
    if wish.weaker and not wish.sandbox:
        raise UsageError("--weaker-sandbox belongs to --sandbox")
    place, _, _ = source.rpartition(":")
    if place.endswith(".py"):
        graph = _of_code(Path(place), source, wish)
    elif wish.sandbox or wish.trust:
        raise UsageError("--sandbox and --trust belong to FILE.py:FACTORY")
    else:
        graph = _of_data_or_package(source, wish)
    return graph if wish.name is None else dataclasses.replace(graph, name=wish.name)


def _of_data_or_package(source: str, wish: Wish) -> WorkloadGraph:
    graph = _without_code(source, wish.batch_size)
    if graph is None:
        return graph_of_factory(source, wish)
    if wish.inputs or (wish.batch_size is not None and graph.front_end != "onnx"):
        raise UsageError(
            f"--input belongs to factories, --batch-size to them and to ONNX; the shapes of {source} are in it already"
        )
    return graph


def _without_code(source: str, batch_size: int | None = None) -> WorkloadGraph | None:
    """The graph of a file or a known network; None where the source is neither."""
    if source.startswith(_ZOO):
        return _of_zoo(source.removeprefix(_ZOO))
    if source.startswith(_KERAS):
        return _of_keras(source.removeprefix(_KERAS))
    path = Path(source)
    if ":" in source and not path.exists():
        return None
    from gpusonde.predictor.workload.graph.reading import read_graph

    if path.suffix == ".py":
        raise UsageError(f"{source} is source code: name the function in it that makes the network, {source}:FACTORY")
    with naming(path):
        return read_graph(path, batch_size=batch_size or 1)


def _of_zoo(name: str) -> WorkloadGraph:
    from gpusonde.predictor.workload import zoo

    if name not in zoo.names():
        raise CommandError(f"no network {name!r} is known; {_alike(name, zoo.names())}")
    return zoo.load(name)


def _of_keras(text: str) -> WorkloadGraph:
    from gpusonde.predictor.workload.zoo import keras_networks

    name, _, size = text.partition("@")
    if name not in keras_networks.names():
        raise CommandError(f"no Keras network {name!r} is known; {_alike(name, keras_networks.names())}")
    if not size.isdigit() or not 0 < int(size) <= 10_000:
        raise UsageError(f"keras:{text}: write keras:{name}@224, with the height and width of its images")
    return keras_networks.build(name, int(size), _DEFAULT_CLASSES)


def _alike(name: str, known: Sequence[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, known, 3)
    return f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(known)}"


def _of_code(path: Path, source: str, wish: Wish) -> WorkloadGraph:
    if not path.is_file():
        raise CommandError(f"there is no file {path}")
    if wish.trust:
        return graph_of_factory(source, wish)
    if wish.sandbox:
        return graph_from_sandbox(source, wish)
    raise UsageError(
        f"{path} is source code, and taking its graph runs it: say --sandbox to run it without network and files, "
        "or --trust if it is your own"
    )
