"""This tree and another commit side by side: two processes take turns with the same traces, so load counts for both.

The other commit is checked out into a temporary worktree, whose packages come before the installed ones; third-party
packages are the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpusonde.epoch_detect import EpochTracker, detect
from gpusonde.telemetry import Trace

_REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Look:
    """What a tracker said when it changed its mind.

    Attributes:
        at_s: Time of the newest tick.
        verdict: The new verdict.
        period_s: Of it.
    """

    at_s: float
    verdict: str
    period_s: float


@dataclass(frozen=True)
class Outcome:
    """What one process made of one trace.

    Attributes:
        cpu_s: CPU seconds of each call: one offline, one a second while streaming.
        looks: While streaming, each new detection; offline the only one.
        reported: How many epochs were ever reported while streaming.
        withdrawn: How many of them were withdrawn.
    """

    cpu_s: np.ndarray
    looks: list[Look]
    reported: int = 0
    withdrawn: int = 0


class Worker:
    """A process with one version of the detector.

    Args:
        traces: An archive of the traces.
        roots: Folders of packages that come first.
    """

    def __init__(self, traces: Path, roots: list[Path]) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, roots))}
        command = [sys.executable, str(Path(__file__).resolve()), str(traces)]
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, task: str, name: str) -> Outcome:
        """Do ``offline`` or ``streaming`` with one trace."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps([task, name]) + "\n")
        stdin.flush()
        line = stdout.readline()
        if not line:
            raise RuntimeError(f"the process that should do {task} of {name} has ended; see above for its error")
        answer = json.loads(line)
        looks = [Look(*look) for look in answer["looks"]]
        return Outcome(np.array(answer["cpu_s"]), looks, answer["reported"], answer["withdrawn"])

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@contextlib.contextmanager
def side_by_side(reference: str, traces: dict[str, Trace]) -> Iterator[tuple[Worker, Worker]]:
    """Start a process of ``reference``, a commit, and one of this tree."""
    with tempfile.TemporaryDirectory() as folder:
        tree, file = Path(folder) / "reference", Path(folder) / "traces.npz"
        arrays = {
            f"{name}/{metric}": trace.values[metric] for name, trace in traces.items() for metric in trace.metrics
        }
        np.savez(file, **{f"{name}/": trace.time_s for name, trace in traces.items()}, **arrays)
        git = ["git", "-C", str(_REPOSITORY), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), reference], check=True)
        workers = []
        try:
            for root in (tree, _REPOSITORY):
                workers.append(Worker(file, sorted(path.parent for path in root.glob("*/gpusonde"))))
            yield workers[0], workers[1]
        finally:
            for worker in workers:
                worker.close()
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def load() -> str:
    """The load of the machine, for the reader to judge the figures by."""
    return f"load {', '.join(f'{value:.1f}' for value in os.getloadavg())} on {os.cpu_count()} cores"


def _work() -> None:
    """Answer tasks from standard input."""
    traces: dict[str, dict[str, np.ndarray]] = {}
    with np.load(sys.argv[1]) as archive:
        for key in archive.files:
            name, _, metric = key.partition("/")
            traces.setdefault(name, {})[metric] = archive[key]
    made = {
        name: Trace(columns[""], {metric: values for metric, values in columns.items() if metric})
        for name, columns in traces.items()
    }
    detect(next(iter(made.values())))  # imports and loads what is loaded once
    for line in sys.stdin:
        task, name = json.loads(line)
        outcome = _offline(made[name]) if task == "offline" else _streaming(made[name])
        print(json.dumps(outcome), flush=True)


def _offline(trace: Trace) -> dict[str, object]:
    begin = time.process_time()
    found = detect(trace)
    cpu_s = time.process_time() - begin
    look = [float(trace.time_s[-1]), str(found.verdict), found.period_s]
    return {"cpu_s": [cpu_s], "looks": [look], "reported": 0, "withdrawn": 0}


def _streaming(trace: Trace) -> dict[str, object]:
    """Feed the trace second by second, and end it; what the end costs is not counted."""
    tracker, seen, cpu_s, looks, told = EpochTracker(trace.metrics), None, [], [], []
    values = np.array([trace.values[name] for name in trace.metrics])
    cuts = np.searchsorted(trace.time_s, np.arange(trace.time_s[0] + 1, trace.time_s[-1] + 1))
    for low, high in zip(np.r_[0, cuts], np.r_[cuts, len(trace)], strict=True):
        begin = time.process_time()
        told += tracker.update(trace.time_s[low:high], values[:, low:high])
        cpu_s.append(time.process_time() - begin)
        if (found := tracker.detection) is not seen and found is not None:
            seen = found
            looks.append([float(trace.time_s[high - 1]), str(found.verdict), found.period_s])
    reported, withdrawn = (sum(event.kind == kind for event in told) for kind in ("reported", "withdrawn"))
    return {"cpu_s": cpu_s, "looks": looks, "reported": reported, "withdrawn": withdrawn}


if __name__ == "__main__":
    _work()
