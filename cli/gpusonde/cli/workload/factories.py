"""Graphs of networks that a function of the user's makes: in the user's own process, or in a sandbox."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from gpusonde.cli.errors import CommandError, MissingExtraError, one_line

if TYPE_CHECKING:
    from gpusonde.cli.workload.wish import Wish
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
        from gpusonde.simulator.instrument.allreduce_probe import load_function

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
