"""Where ``gpusonde workload`` gets a graph from: files, known networks, factories of packages, source code.

Graphs of networks that a function of the user's makes: in the user's own process, or in a sandbox.

What the user wants of a graph: the inputs of the network, its name, and how far its code is trusted.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from gpusonde.cli.errors import MissingExtraError, error_context, one_line
from gpusonde.errors import CommandError, UsageError

if TYPE_CHECKING:
    from gpusonde.predictor.workload.graph import WorkloadGraph

_IMAGE = ((3, 224, 224), "float32")


def graph_of_factory(source: str, wish: Wish) -> WorkloadGraph:
    """Return the graph of what ``FILE.py:FACTORY`` or ``PACKAGE.MODULE:FACTORY`` makes. Its code runs here.

    Raises:
        GraphError: There is no such factory, or no graph to be had of its network.
        CommandError: Importing it fails.
    """
    # Code that prints must not spoil what the command prints.
    with contextlib.redirect_stdout(sys.stderr), _own_code(source):
        from gpusonde.simulator.instrument.entry_point import load_function

        factory = load_function(source)
    from gpusonde.predictor.workload.graph.torch import from_torch
    from gpusonde.predictor.workload.graph.torch.export import build, example

    inputs = [(shape.extents, shape.dtype) for shape in wish.inputs] or [_IMAGE]
    batch_size = wish.batch_size or 1
    with contextlib.redirect_stdout(sys.stderr):
        module = build(factory)
    # torch prints pages while it gives up; what can be read of them is in the error.
    with contextlib.redirect_stdout(io.StringIO()), _naming_the_default(wish):
        return from_torch(module, example(inputs, batch_size), name=wish.name or _name(source), batch_size=batch_size)


@contextlib.contextmanager
def _naming_the_default(wish: Wish) -> Iterator[None]:
    """A network that takes no images fails for a reason that is not the user's."""
    from gpusonde.predictor.workload.graph import UnsupportedGraphError

    try:
        yield
    except UnsupportedGraphError as error:
        if type(error) is UnsupportedGraphError and not wish.inputs and "torch says" in str(error):
            error.args = (f"{error} (its input was taken to be an image of 3x224x224; --input says another shape)",)
        raise


@contextlib.contextmanager
def _own_code(source: str) -> Iterator[None]:
    """What the user's code raises while it is imported is no fault of ours."""
    try:
        yield
    except (ImportError, ValueError):
        # Missing distributions and entry points say what to do.
        raise
    except Exception as error:
        raise CommandError(_advice(source, error)) from error


def _advice(source: str, error: Exception) -> str:
    said = one_line(f"{type(error).__name__}: {error}")
    if "torchvision::" in said:
        from gpusonde.predictor.workload import zoo

        name = source.rpartition(":")[2]
        instead = f", or use zoo:{name}, which needs neither" if name in zoo.names() else ""
        return f"this torchvision does not belong to this torch ({said}): install the two together{instead}"
    return f"importing {source.rpartition(':')[0]} failed: {said}"


def _name(source: str) -> str:
    place, _, name = source.rpartition(":")
    return f"{Path(place).stem}.{name}" if place.endswith(".py") else name


def graph_from_sandbox(source: str, wish: Wish) -> WorkloadGraph:
    """Return the graph of what ``FILE.py:FACTORY`` makes. Its code runs without network, files and rights.

    Raises:
        GraphError: There is no sandbox on this machine, or no graph to be had of its network.
    """
    from gpusonde.predictor.workload.graph.sandbox import ExampleInput, SandboxOptions, graph_from_python

    place, _, name = source.rpartition(":")
    if not name:
        raise CommandError(f"{source}: name the function that makes the network, {place}:FACTORY")
    # Inside, what is missing would look like a fault of the file.
    if find_spec("torch") is None:
        raise MissingExtraError("torch", "workload graph", "torch")
    batch_size = wish.batch_size or 1
    inputs = [(shape.extents, shape.dtype) for shape in wish.inputs] or [_IMAGE]
    with _naming_the_default(wish):
        return graph_from_python(
            place,
            name,
            [ExampleInput((batch_size, *extents), dtype) for extents, dtype in inputs],
            name=wish.name or _name(source),
            options=SandboxOptions(allow_weaker=wish.weaker),
        )


_DTYPES = ("float32", "float16", "bfloat16", "float64", "int64", "int32", "bool")
_MOST_DIMENSIONS = 8


@dataclass(frozen=True)
class InputShape:
    """One input of a network.

    Attributes:
        extents: Of one sample, without the batch.
        dtype: Its numbers' type, as torch calls it.
    """

    extents: tuple[int, ...]
    dtype: str = "float32"


@dataclass(frozen=True)
class Wish:
    """How a graph is to be taken.

    Attributes:
        inputs: Of a factory's network; empty for one image of 3 x 224 x 224.
        batch_size: Samples to take it with; None for 1, or what the source has.
        name: What to call it; None for what the source calls it.
        sandbox: Run source code in a sandbox.
        weaker: Also in one that lacks what this system does not permit.
        trust: Run source code here.
    """

    inputs: Sequence[InputShape] = ()
    batch_size: int | None = None
    name: str | None = None
    sandbox: bool = False
    weaker: bool = False
    trust: bool = False


def input_shape(text: str) -> InputShape:
    """Argument type: extents separated by x or commas, after a type and a colon if it is not float32."""
    dtype, colon, extents = text.rpartition(":")
    if colon and dtype not in _DTYPES:
        raise argparse.ArgumentTypeError(f"{dtype!r} is no type; use {', '.join(_DTYPES)}")
    try:
        found = tuple(int(part) for part in extents.replace(",", "x").split("x"))
    except ValueError:
        found = ()
    if not 0 < len(found) <= _MOST_DIMENSIONS or min(found) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no shape; write 3x224x224, or int64:128")
    return InputShape(found, dtype or _DTYPES[0])


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
    with error_context(path):
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
