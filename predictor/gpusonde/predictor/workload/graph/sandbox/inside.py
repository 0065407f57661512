"""The program that runs a user's Python file in the sandbox, and writes the graph that comes of it to a pipe.

Its standard input begins with a line of JSON (what to do and where Python's packages are); the source text follows.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
import traceback
import types
from typing import Any

_GRAPH, _PROBLEM = b"G", b"E"
_POLL_S = 0.02


def main() -> None:
    """Run what standard input says."""
    task = json.loads(sys.stdin.buffer.readline())
    source = sys.stdin.buffer.read()
    sys.path[:] = task["path"]
    # Whatever is printed from now on goes to standard error; only we know where the answer goes.
    answer = os.dup(1)
    os.dup2(2, 1)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    try:
        namespaces = _prepare(task)
    except OSError as error:
        _write(answer, _PROBLEM + f"SandboxError\n{error}".encode())
        return
    child = os.fork()
    if child == 0:
        try:
            _run(task, source, answer, is_apart=namespaces)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    # Ours to end, whatever ends us: the first process of a numbering takes all others with it.
    signal.signal(signal.SIGTERM, lambda *_: _end(child))
    until = time.monotonic() + task["timeout_s"]
    while time.monotonic() < until:
        ended, _ = os.waitpid(child, os.WNOHANG)
        if ended:
            return
        time.sleep(_POLL_S)
    _end(child)
    _write(answer, _PROBLEM + f"timeout\n{task['timeout_s']:g}".encode())


def _prepare(task: dict[str, Any]) -> bool:
    """Load what takes long, and leave the namespaces; returns whether that was permitted."""
    from gpusonde.predictor.workload.graph.sandbox import namespaces  # noqa: PLC0415

    # Without PyTorch there will be no graph, but what the file itself says about that is worth more.
    with contextlib.suppress(ModuleNotFoundError):
        from gpusonde.predictor.workload.graph import torch  # noqa: F401, PLC0415

    namespaces.die_with_parent(signal.SIGTERM)
    try:
        namespaces.leave_namespaces()
    except OSError:
        if not task["allow_weaker"]:
            raise
        return False
    return True


def _end(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def _run(task: dict[str, Any], source: bytes, answer: int, *, is_apart: bool) -> None:
    from gpusonde.predictor.workload.graph.sandbox import namespaces  # noqa: PLC0415

    try:
        if is_apart:
            _enter_empty_root(task)
        namespaces.drop_privileges()
        namespaces.die_with_parent(signal.SIGKILL)
        namespaces.limit_resources(
            memory_bytes=task["memory_bytes"], cpu_s=task["cpu_s"], file_bytes=task["file_bytes"], files=task["files"]
        )
    except OSError as error:
        _write(answer, _PROBLEM + f"SandboxError\n{error}".encode())
        return
    # From here on, nothing is trusted.
    _write(answer, _graph_of(task, source))


def _enter_empty_root(task: dict[str, Any]) -> None:
    from gpusonde.predictor.workload.graph.sandbox import namespaces  # noqa: PLC0415

    try:
        namespaces.enter_empty_root(task["readable"], task["scratch"])
    except OSError:
        # Some systems permit namespaces, and then nothing in them.
        if not task["allow_weaker"]:
            raise


def _graph_of(task: dict[str, Any], source: bytes) -> bytes:
    from gpusonde.predictor.workload.graph import GraphError, dump_graph  # noqa: PLC0415

    try:
        return _GRAPH + dump_graph(_read(task, source)).encode()
    except GraphError as error:
        return _PROBLEM + f"{type(error).__name__}\n{error}".encode("utf-8", "replace")
    except BaseException as error:
        return _PROBLEM + f"raised\n{type(error).__name__}: {error}".encode("utf-8", "replace")


def _read(task: dict[str, Any], source: bytes) -> Any:
    module = types.ModuleType("network")
    sys.modules["network"] = module
    exec(compile(source, task["file_name"], "exec"), module.__dict__)  # noqa: S102 - what the sandbox is for
    factory = getattr(module, task["factory"])
    import torch  # noqa: PLC0415

    try:
        with torch.device("meta"):
            network = factory()
    except (NotImplementedError, RuntimeError):
        # Some initialise their weights from values, which tensors without memory do not have.
        network = factory()
    example = tuple(torch.zeros(shape, dtype=getattr(torch, kind)) for shape, kind in task["inputs"])
    return torch(network, example, name=task["name"])


def _write(answer: int, content: bytes) -> None:
    while content:
        content = content[os.write(answer, content) :]


if __name__ == "__main__":
    main()
