"""Python files that mean harm, run in the sandbox: each stays in it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpusonde.predictor.workload.graph import GraphError, MalformedGraphError, UnsupportedGraphError
from gpusonde.predictor.workload.graph.sandbox import ExampleInput, SandboxError, SandboxOptions, graph_from_python

Run = Callable[..., GraphError]

_INPUTS = [ExampleInput((2, 3, 8, 8))]
_NETWORK = """
import torch

def build():
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 10)
    )
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a text that must fail, and returns the error."""

    def run(text: str, **options: object) -> GraphError:
        path = tmp_path / "network.py"
        path.write_text(text + "\n\ndef build():\n    raise SystemExit('built')\n")
        with pytest.raises(GraphError) as raised:
            graph_from_python(path, "build", _INPUTS, options=SandboxOptions(**options))  # type: ignore[arg-type]
        if "does not let the file be shut off" in str(raised.value):
            pytest.skip(str(raised.value))
        return raised.value

    return run


def _telling(expression: str) -> str:
    """A file that raises what the expression is."""
    return f"import os, socket, sys\nraise ValueError(repr({expression}))"


def test_a_network_becomes_a_graph(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "network.py"
    path.write_text(_NETWORK)
    try:
        graph = graph_from_python(path, "build", _INPUTS, name="mine")
    except SandboxError as error:
        pytest.skip(str(error))
    assert [each.primitive.value for each in graph.operations] == [
        "input", "convolution", "activation", "linear", "output",
    ]  # fmt: skip
    assert (graph.name, graph.batch_size, graph.parameter_count) == ("mine", 2, 224 + 2890)


def test_there_is_no_network(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        port = server.getsockname()[1]
        error = run(f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 5)")
        assert isinstance(error, UnsupportedGraphError)
        assert "Network is unreachable" in str(error) or "Connection refused" in str(error)
        with pytest.raises(TimeoutError):
            server.accept()
    assert "['lo']" in str(run(_telling("[name for _, name in socket.if_nameindex()]")))


def test_nothing_can_be_started(run: Run) -> None:
    assert "BlockingIOError" in str(run("import os\nos.fork()"))
    assert "BlockingIOError" in str(run("import subprocess\nsubprocess.run(['/bin/true'])"))
    assert "can't start new thread" in str(run("import threading\nthreading.Thread(target=print).start()"))


def test_the_file_system_is_python_and_an_empty_folder(run: Run, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s")
    for path in ("/etc/shadow", "/etc/passwd", str(secret)):
        assert "FileNotFoundError" in str(run(f"open({path!r})"))
    assert "Read-only" in str(run("open('/usr/x', 'w')")) or "Permission" in str(run("open('/usr/x', 'w')"))
    assert "('/gpusonde-scratch', [])" in str(run(_telling("(os.getcwd(), os.listdir('.'))")))
    assert "OSError" in str(run("open('large', 'wb').write(bytes(32 << 20))"))


def test_it_has_nobodys_rights_and_no_secrets(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSONDE_TOKEN", "secret")
    told = str(run(_telling("(os.getuid(), 'GPUSONDE_TOKEN' in os.environ, sorted(os.listdir('/proc/self/fd')))")))
    expected = 65534 if os.getuid() == 0 else os.getuid()
    # Besides the standard ones: the pipe for the answer, and the listing itself.
    assert f"({expected}, False, ['0', '1', '2', '3', '4'])" in told
    capabilities = "[line.split()[1] for line in open('/proc/self/status') if line[:3] == 'Cap']"
    assert f"{['0' * 16] * 5}" in str(run(_telling(capabilities)))
    assert "PermissionError" in str(run("import os\nos.setuid(0)")) or os.getuid() != 0


def test_it_cannot_eat_the_memory(run: Run) -> None:
    error = run("kept = [bytearray(64 << 20) for _ in range(10000)]", memory_bytes=512 << 20)
    assert "MemoryError" in str(error)


@pytest.mark.parametrize("text", ["import time\ntime.sleep(1000)", "while True: pass"])
def test_it_is_killed_when_its_time_is_up(run: Run, text: str) -> None:
    started = time.monotonic()
    error = run("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + text, timeout_s=3)
    assert isinstance(error, SandboxError)
    assert "did not end within 3 s" in str(error)
    assert time.monotonic() - started < 60
    assert _left_over() == []


def test_it_is_killed_when_it_takes_too_much_of_a_processor(run: Run) -> None:
    error = run("while True: pass", cpu_s=1, timeout_s=60)
    assert isinstance(error, SandboxError)
    assert "more time or memory than allowed" in str(error)


_TO_EVERY_PIPE = """
import os
for pipe in range(20):
    try:
        {what}
    except OSError:
        pass
os._exit(0)
"""


def test_garbage_instead_of_a_graph_is_read_as_a_strangers(run: Run) -> None:
    for text in (b'G{"format": 1}', b"G" + b"[" * 1000, b"G\xff"):
        assert isinstance(run(_TO_EVERY_PIPE.format(what=f"os.write(pipe, {text!r})")), MalformedGraphError)
    assert isinstance(run(_TO_EVERY_PIPE.format(what="os.write(pipe, b'?' * 10)")), SandboxError)
    said = str(run(_TO_EVERY_PIPE.format(what=r"os.write(pipe, b'Eraised\n\x1b[2J')")))
    assert said.isprintable()


def test_a_flood_instead_of_a_graph_ends_it(run: Run) -> None:
    flood = "while os.fstat(pipe): os.write(pipe, b'G' * 65536)"
    error = run(_TO_EVERY_PIPE.format(what=flood).replace("range(20)", "range(19, 2, -1)"), timeout_s=30)
    assert isinstance(error, SandboxError)
    assert "instead of a graph" in str(error)


def test_one_that_just_leaves_is_told_of(run: Run) -> None:
    error = run("import os, sys\nprint('good', 'bye', file=sys.stderr, flush=True)\nos._exit(0)")
    assert isinstance(error, SandboxError)
    assert "It last said: good bye" in str(error)


def test_errors_of_the_file_are_told(run: Run) -> None:
    assert "SyntaxError" in str(run("def ("))
    assert "ValueError: no" in str(run("raise ValueError('no')"))
    assert "built" in str(run("print('to standard output')")) or "torch" in str(run("x = 1"))


_WITHOUT_THE_RIGHT = """
import ctypes, sys
from gpusonde.predictor.workload.graph.sandbox import ExampleInput, SandboxOptions, graph_from_python

drop_from_bounding_set, sys_admin = 24, 21
assert ctypes.CDLL(None).prctl(drop_from_bounding_set, sys_admin, 0, 0, 0) == 0
for allow in (False, True):
    try:
        options = SandboxOptions(allow_weaker=allow)
        graph_from_python(sys.argv[1], "build", [ExampleInput((1, 3, 8, 8))], options=options)
    except ValueError as error:
        print(type(error).__name__, error)
"""


@pytest.mark.needs_root
@pytest.mark.skipif(os.getuid() != 0, reason="takes a right away that only root has")
def test_where_no_namespaces_are_permitted_the_file_does_not_run_unless_allowed(tmp_path: Path) -> None:
    path = tmp_path / "network.py"
    path.write_text("import os\nraise ValueError(f'it ran as {os.getuid()}')")
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_THE_RIGHT, str(path)], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    refused, ran = done.stdout.splitlines()
    assert refused.startswith("SandboxError this system does not let the file be shut off from network and files")
    assert "Operation not permitted" in refused
    assert "It was not run" in refused
    assert "it ran as 65534" in ran


def _left_over() -> list[str]:
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                command = (each / "cmdline").read_bytes()
            except OSError:
                continue
            if b"sandbox/inside.py" in command:
                found.append(each.name)
    return found
