"""Graphs from a user's Python file, run where it can do no harm: opt-in, on the user's side, never in the collector.

The file runs in a process that has no network, no process beside it, a file system that consists of Python, its
packages and an empty folder, nobody's rights, no environment, and limits of time, memory and files. What it answers is
read as a graph from a stranger.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpusonde.predictor.workload.graph.graph_json import load_graph
from gpusonde.predictor.workload.graph.ir import (
    DataDependentControlFlowError,
    GraphError,
    MalformedGraphError,
    Shape,
    UnsupportedGraphError,
    WorkloadGraph,
)
from gpusonde.predictor.workload.graph.limits import GraphLimits
from gpusonde.predictor.workload.graph.subprocess import Answer, run_confined

__all__ = ["ExampleInput", "SandboxError", "SandboxOptions", "graph_from_python"]

_INSIDE = Path(__file__).with_name("inside.py")
# A name that no package lies below.
_SCRATCH = "/gpusonde-scratch"
_ENVIRONMENT = {"LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HOME": _SCRATCH, "TMPDIR": _SCRATCH}
# No secret, and some Pythons do not start without it.
_PASSED_ON = ("LD_LIBRARY_PATH",)
_GRACE_S = 60.0
_MOST_COMPLAINT = 1000
_GRAPH, _PROBLEM = b"G", b"E"
_ERRORS: dict[str, type[GraphError]] = {
    each.__name__: each for each in (DataDependentControlFlowError, MalformedGraphError, UnsupportedGraphError)
}


class SandboxError(GraphError):
    """There is no sandbox on this machine, or the file did in it what it must not."""


@dataclass(frozen=True)
class ExampleInput:
    """A tensor that the network is called with; its values do not matter.

    Attributes:
        shape: Its extents; the first is the batch.
        kind: PyTorch's name of the type of its values: "float32", "int64" ...
    """

    shape: Shape
    kind: str = "float32"


@dataclass(frozen=True)
class SandboxOptions:
    """What the file may use.

    Attributes:
        timeout_s: Seconds until it is killed, after PyTorch is loaded.
        cpu_s: Processor time in seconds, likewise.
        memory_bytes: Memory beyond PyTorch's own.
        file_bytes: Size of a file that it writes into its empty folder.
        files: Open files.
        allow_weaker: Run it where the system permits no namespaces, too: then it has the network, and can read what
            this user (or nobody, for root) can read.
    """

    timeout_s: float = 120.0
    cpu_s: int = 120
    memory_bytes: int = 4 << 30
    file_bytes: int = 16 << 20
    files: int = 256
    allow_weaker: bool = False


def graph_from_python(
    path: str | os.PathLike[str],
    factory: str,
    inputs: Sequence[ExampleInput],
    *,
    name: str | None = None,
    options: SandboxOptions | None = None,
    limits: GraphLimits | None = None,
) -> WorkloadGraph:
    """Run a Python file in a sandbox and read the graph of the network that it builds.

    Args:
        path: The file. What it imports must be installed: no other file of its folder is there.
        factory: Name of a function or class in it that, called without arguments, returns a ``torch.nn.Module``.
        inputs: What the network is called with.
        name: Of the graph; the factory's if not given.
        options: What the file may use.
        limits: What is accepted of the answer.

    Returns:
        The graph.

    Raises:
        SandboxError: This machine permits no such sandbox (the text says what is missing), or the file did not end in
            time, or was killed.
        MalformedGraphError: What came out of the sandbox is no graph.
        GraphLimitError: It is too large.
        UnsupportedGraphError: The file raised an error, or its network cannot be read.
        DataDependentControlFlowError: Which operations run depends on the values of the data.
        OSError: The file cannot be read.
    """
    options, limits = options or SandboxOptions(), limits or GraphLimits()
    path = Path(path)
    task = {
        "path": [each for each in sys.path if each],
        "readable": _readable(),
        "scratch": _SCRATCH,
        "file_name": path.name,
        "factory": limits.check_text("factory", factory),
        "inputs": [(limits.check_shape("input", each.shape), each.kind) for each in inputs],
        "name": factory if name is None else limits.check_text("name", name),
        "timeout_s": options.timeout_s,
        "cpu_s": options.cpu_s,
        "memory_bytes": options.memory_bytes,
        "file_bytes": options.file_bytes,
        "files": options.files,
        "allow_weaker": options.allow_weaker,
    }
    answer = run_confined(
        [sys.executable, "-I", "-B", str(_INSIDE)],
        json.dumps(task).encode() + b"\n" + path.read_bytes(),
        timeout_s=options.timeout_s + _GRACE_S,
        most_bytes=limits.json_bytes,
        environment={**_ENVIRONMENT, **{each: os.environ[each] for each in _PASSED_ON if each in os.environ}},
    )
    return _read(answer, options, limits)


def _read(answer: Answer, options: SandboxOptions, limits: GraphLimits) -> WorkloadGraph:
    if answer.overflowed:
        raise SandboxError(f"the file wrote more than {limits.json_bytes} bytes instead of a graph, and was killed")
    kind, content = answer.output[:1], answer.output[1:]
    if answer.timed_out:
        raise SandboxError(f"the file did not end within {options.timeout_s:g} s, and was killed")
    if kind == _GRAPH:
        graph = load_graph(content, limits)
        if options.allow_weaker:
            graph = replace(graph, notes=(*graph.notes, "the sandbox was allowed to be a weak one"))
        return graph
    if kind == _PROBLEM:
        raise _problem(content)
    raise SandboxError(
        "the file ended its process before there was a graph: it took more time or memory than allowed, or left."
        + _printable(answer.complaint.strip().rpartition("\n")[2], " It last said: ")
    )


def _problem(content: bytes) -> GraphError:
    kind, _, text = content.decode("utf-8", "replace").partition("\n")
    text = _printable(text)
    if kind == "timeout":
        return SandboxError(f"the file did not end within {text} s, and was killed")
    if kind == "raised":
        return UnsupportedGraphError(f"the file raised an error: {text}")
    if kind == "SandboxError":
        return SandboxError(
            f"this system does not let the file be shut off from network and files ({text}). It was not run. To run it "
            "all the same, allow a weaker sandbox"
        )
    return _ERRORS.get(kind, UnsupportedGraphError)(text or "the network cannot be read")


def _printable(text: str, before: str = "") -> str:
    text = "".join(each if each.isprintable() else " " for each in text[:_MOST_COMPLAINT])
    return before + text if text else ""


def _readable() -> list[str]:
    """Where Python and its packages lie."""
    places = [sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(sys.executable), *sys.path]
    places += [os.path.realpath(each) for each in (sys.executable, *places) if each]
    found = {os.path.abspath(each) for each in places if each and os.path.exists(each)}
    # A script that lies in the home folder puts all of it on the path.
    home = os.path.join(os.path.expanduser("~"), "")
    return sorted(each for each in found if not home.startswith(os.path.join(each, "")))
