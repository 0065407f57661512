"""Where ``gpusonde workload`` reads graphs from: files, known networks, functions of the user's that make a network.

Files and known networks are data. A function is the user's own code: it is imported into this process and called, as a
training would do; nothing here can read somebody else's code safely (``docs/workload.md`` shows what can).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from gpusonde.cli.errors import error_context, one_line
from gpusonde.errors import CommandError, UsageError

if TYPE_CHECKING:
    from gpusonde.predictor.workload.graph import WorkloadGraph

_ZOO, _KERAS = "zoo:", "keras:"
# One input of a network: the extents of a sample, without the batch, and its numbers' type, as torch calls it.
InputShape: TypeAlias = tuple[tuple[int, ...], str]
_IMAGE: InputShape = ((3, 224, 224), "float32")
_DTYPES = ("float32", "float16", "bfloat16", "float64", "int64", "int32", "bool")
_MOST_DIMENSIONS = 8


def parse_input_shape(text: str) -> InputShape:
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
    return found, dtype or _DTYPES[0]


def read_graphs(sources: Sequence[str]) -> list[WorkloadGraph]:
    """Return the graphs of files and of known networks, told apart by their names.

    Raises:
        UsageError: A source would need code to be run.
        GraphError: A file holds no graph.
    """
    found: list[WorkloadGraph] = []
    taken: dict[str, int] = {}
    for source in sources:
        graph = _read_data(source)
        if graph is None:
            raise UsageError(f"{source} is neither a file nor a known network; 'gpusonde workload graph' makes a file")
        taken[graph.name] = taken.get(graph.name, 0) + 1
        if taken[graph.name] > 1:
            graph = dataclasses.replace(graph, name=f"{graph.name} ({source})")
        found.append(graph)
    return found


def take_graph(
    source: str,
    inputs: Sequence[InputShape] = (),
    batch_size: int | None = None,
    name: str | None = None,
    lora_rank: int | None = None,
) -> WorkloadGraph:
    """Return the graph of a source; the code of a function runs here.

    Args:
        source: A file, a known network, or a function that makes one.
        inputs: Of a function's network; empty for one image of 3 x 224 x 224. Of a configuration the sequence; empty
            for the longest.
        batch_size: Samples to take it with; None for 1, or what the source has.
        name: What to call it; None for what the source calls it.
        lora_rank: Of a configuration: freeze its weights and train adapters of this rank.

    Raises:
        UsageError: The options do not fit the source.
        GraphError: There is no graph to be had.
        CommandError: There is no such network, or importing the user's code fails.
    """
    graph = _read_data(source, batch_size)
    if graph is not None and graph.front_end == "config" and batch_size is None:
        return _read_configuration(source, inputs, name, lora_rank)
    if lora_rank is not None:
        raise UsageError("--lora-rank belongs to a model's config.json")
    if graph is None:
        return _trace(source, inputs, batch_size or 1, name or _function_name(source))
    if inputs or (batch_size is not None and graph.front_end != "onnx"):
        raise UsageError(
            f"--input belongs to factories, --batch-size to them and to ONNX; the shapes of {source} are in it already"
        )
    return graph if name is None else dataclasses.replace(graph, name=name)


def _read_data(source: str, batch_size: int | None = None) -> WorkloadGraph | None:
    """Read a file or a known network; None where the source is neither."""
    if source.startswith(_ZOO):
        return _load_known(source.removeprefix(_ZOO))
    if source.startswith(_KERAS):
        return _load_keras(source.removeprefix(_KERAS))
    path = Path(source)
    if ":" in source and not path.exists():
        return None
    from gpusonde.predictor.workload.graph import read_graph

    if path.suffix == ".py":
        raise UsageError(f"{source} is source code: name the function in it that makes the network, {source}:FACTORY")
    with error_context(path):
        return read_graph(path, batch_size=batch_size or 1)


def _read_configuration(
    source: str, inputs: Sequence[InputShape], name: str | None, lora_rank: int | None
) -> WorkloadGraph:
    from gpusonde.predictor.workload.graph import GraphLimits
    from gpusonde.predictor.workload.graph.config import from_config
    from gpusonde.predictor.workload.graph.graph_json import parse_json

    if len(inputs) > 1 or any(len(extents) > 1 for extents, _ in inputs):
        raise UsageError("--input of a configuration is one sequence: write int64:2048")
    length = inputs[0][0][0] if inputs else None
    with error_context(Path(source)):
        config = parse_json(Path(source).read_bytes(), GraphLimits())
        return from_config(config, sequence_length=length, lora_rank=lora_rank, name=name)


def _load_known(name: str) -> WorkloadGraph:
    from gpusonde.predictor.workload import zoo

    if name not in zoo.names():
        raise CommandError(f"no network {name!r} is known; {_suggest(name, zoo.names())}")
    return zoo.load(name)


def _load_keras(text: str) -> WorkloadGraph:
    from gpusonde.predictor.workload import zoo

    name, _, size = text.partition("@")
    known = zoo.keras_sizes()
    if name not in known:
        raise CommandError(f"no Keras network {name!r} is known; {_suggest(name, tuple(known))}")
    if not size.isdigit():
        raise UsageError(f"keras:{text}: write keras:{name}@224, with the height and width of its images")
    if int(size) not in known[name]:
        sizes = ", ".join(map(str, known[name]))
        raise CommandError(
            f"the graph of {name} is there for images of {sizes} pixels, not {size}; export it to ONNX for others"
        )
    return zoo.load_keras(name, int(size))


def _suggest(name: str, known: Sequence[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, known, 3)
    return f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(known)}"


def _trace(source: str, inputs: Sequence[InputShape], batch_size: int, name: str) -> WorkloadGraph:
    """Return the graph of what ``FILE.py:FACTORY`` or ``PACKAGE.MODULE:FACTORY`` makes."""
    place = source.rpartition(":")[0]
    if place.endswith(".py") and not Path(place).is_file():
        raise CommandError(f"there is no file {place}")
    # Code that prints must not spoil what the command prints.
    with contextlib.redirect_stdout(sys.stderr), _explain_import(source):
        from gpusonde.simulator.instrument.entry_point import load_function

        factory = load_function(source)
    from gpusonde.predictor.workload.graph.torch import build, example, from_torch

    with contextlib.redirect_stdout(sys.stderr):
        module = build(factory)
    # torch prints pages while it gives up; what can be read of them is in the error.
    with contextlib.redirect_stdout(io.StringIO()), contextlib.nullcontext() if inputs else _name_default_input():
        return from_torch(module, example(inputs or [_IMAGE], batch_size), name=name, batch_size=batch_size)


@contextlib.contextmanager
def _name_default_input() -> Iterator[None]:
    """Say in an error that the input was a guess: a network that takes no images fails for no reason of the user's."""
    from gpusonde.errors import UnsupportedGraphError

    try:
        yield
    except UnsupportedGraphError as error:
        if type(error) is UnsupportedGraphError and "torch says" in str(error):
            error.args = (f"{error} (its input was taken to be an image of 3x224x224; --input says another shape)",)
        raise


@contextlib.contextmanager
def _explain_import(source: str) -> Iterator[None]:
    """Tell what the user's code raises while it is imported as an error of his, not as a fault of ours."""
    try:
        yield
    except (ImportError, ValueError):
        # Missing distributions and entry points say what to do.
        raise
    except Exception as error:
        raise CommandError(_advise(source, error)) from error


def _advise(source: str, error: Exception) -> str:
    said = one_line(f"{type(error).__name__}: {error}")
    if "torchvision::" in said:
        from gpusonde.predictor.workload import zoo

        name = source.rpartition(":")[2]
        instead = f", or use zoo:{name}, which needs neither" if name in zoo.names() else ""
        return f"this torchvision does not belong to this torch ({said}): install the two together{instead}"
    return f"importing {source.rpartition(':')[0]} failed: {said}"


def _function_name(source: str) -> str:
    place, _, name = source.rpartition(":")
    return f"{Path(place).stem}.{name}" if place.endswith(".py") else name
