"""What strangers send to do harm: how fast it is refused, what that costs, and that nothing in it runs."""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.util
import json
import logging
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from page import bar, table

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests"))

from support.hostile_graphs import (  # noqa: E402
    HOSTILE,
    MARKER,
    onnx_file,
    onnx_node,
    onnx_weight,
    small_onnx,
    with_pickle,
)

from gpusonde.errors import GraphError, MalformedGraphError  # noqa: E402
from gpusonde.predictor.workload.graph import read_graph  # noqa: E402
from gpusonde.predictor.workload.graph.onnx.model import encode_bytes  # noqa: E402

_BAR_S = 1.0
_LARGE_BYTES = 10_000_000


def section(args: argparse.Namespace) -> list[str]:
    """Lines of the section, bars noted in ``args``."""
    MARKER.unlink(missing_ok=True)
    slowest_s, accepted = 0.0, []
    found: dict[str, list[tuple[int, float, float, bool]]] = {}
    for name, hostile in HOSTILE.items():
        data = hostile.make()
        seconds, mebibytes, said = _refused(data)
        slowest_s = max(slowest_s, seconds)
        if not said.startswith(hostile.refusal.__name__):
            accepted.append(name)
        kind = next((each for each in (".pt2", "ONNX", "JSON") if each in name), "none of them")
        found.setdefault(kind, []).append((len(data), seconds, mebibytes, said.startswith(hostile.refusal.__name__)))
        del data
        gc.collect()
    executed = MARKER.exists()
    met = slowest_s < _BAR_S and not executed and not accepted
    said = f"{len(HOSTILE)} of {len(HOSTILE)} refused" if not accepted else f"not refused as they should be: {accepted}"
    said += f", the slowest in {slowest_s:.2f} s; executed: {'something' if executed else 'nothing'}"
    bar(args, "hostile input", "refused in < 1 s, nothing executed", said, met=met)
    columns = ("format", "files", "refused", "largest", "slowest", "most memory beyond the file")
    rows = [
        (
            kind, len(each), sum(one[3] for one in each), _size(max(one[0] for one in each)),
            f"{1e3 * max(one[1] for one in each):.0f} ms", f"{max(one[2] for one in each):.0f} MiB",
        )
        for kind, each in found.items()
    ]  # fmt: skip
    said = (
        "Each file of `tests/support/hostile_graphs.py` (pickles, external data, bombs, cycles, a million nodes, "
        "shapes that are no numbers), handed to `read_graph`: wall time and growth of the process until the error."
    )
    return ["## Hostile input", "", said, "", *table(columns, rows), _by_torch(), "", *_by_onnx(args.quick)]


def _refused(data: bytes) -> tuple[float, float, str]:
    before = _memory("VmRSS")
    # From here on the peak is that of reading alone.
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    started = time.perf_counter()
    said = "accepted"
    try:
        read_graph(data)
    except GraphError as error:
        said = f"{type(error).__name__}: {str(error)[:110]}".replace("|", "/")
    seconds = time.perf_counter() - started
    return seconds, max(0.0, _memory("VmHWM") - before), said


def _memory(field: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def _by_torch() -> str:
    """What torch does with the archive that we refuse."""
    if importlib.util.find_spec("torch") is None:
        return ""
    import torch

    # It tells of what it could not load, at length.
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        sound, evil, marker = (Path(folder) / each for each in ("sound.pt2", "evil.pt2", "executed"))
        network = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU())
        torch.export.save(torch.export.export(network, (torch.zeros(1, 8),)), sound)
        evil.write_bytes(with_pickle(sound.read_bytes(), marker))
        with contextlib.suppress(MalformedGraphError):
            read_graph(evil)
        ours = marker.exists()
        with contextlib.suppress(Exception):
            torch.export.load(evil)
        return (
            f"The same archive, made by torch {torch.__version__} with a pickle in `data/sample_inputs` that calls "
            f"`os.system`: `read_graph` {'runs' if ours else 'does not run'} it, `torch.export.load` "
            f"{'runs' if marker.exists() else 'does not run'} it."
        )


_READERS = {
    "ours": "from gpusonde.predictor.workload.graph.reading import read_graph as read",
    "onnx": "import onnx, functools; read = functools.partial(onnx.load_model, load_external_data=False)",
}
_CHILD = """
import json, sys, time
def memory(field):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024
{imports}
before = memory("VmRSS")
open("/proc/self/clear_refs", "w").write("5")
began = time.perf_counter()
try:
    read(sys.argv[1])
    said = "read"
except Exception as error:
    said = type(error).__name__
print(json.dumps([time.perf_counter() - began, max(0.0, memory("VmHWM") - before), said]))
"""


def _by_onnx(quick: bool) -> list[str]:
    """What the parser of the onnx package makes of the same files, and of large ones, in a process of its own."""
    files = {name: hostile.make for name, hostile in HOSTILE.items() if hostile.format == "onnx"}
    empty = encode_bytes(1, b"")
    if not quick:
        files["64 MiB of empty nodes"] = lambda: onnx_file(empty * ((64 << 20) // len(empty)))
        files["1 GiB of weights, sound"] = lambda: small_onnx(
            onnx_weight("big", [1 << 28], encode_bytes(9, bytes(1 << 30))), onnx_node("Relu", ["y"], ["z"])
        )
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        for name, make in files.items():
            path.write_bytes(make())
            if path.stat().st_size < _LARGE_BYTES:
                continue
            cells = []
            for imports in _READERS.values():
                command = [sys.executable, "-c", _CHILD.format(imports=imports), str(path)]
                answer = subprocess.run(command, capture_output=True, check=True).stdout
                seconds, mebibytes, said = json.loads(answer)
                cells += [f"{1e3 * seconds:.0f} ms", f"{mebibytes:.0f} MiB", said]
            rows.append((name, _size(path.stat().st_size), *cells))
    said = "ONNX files of more than ten megabytes, read by us and by the onnx package's parser in fresh processes:"
    columns = ("file", "size", "ours: time", "memory", "outcome", "onnx: time", "memory", "outcome")
    return [said, "", *table(columns, rows)]


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 100_000 else f"{count / 1e3:.1f} kB"
