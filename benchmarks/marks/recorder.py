"""Records a real training job that has no GPU: what its training process does stands in for one.

Ten times a second: ``graphics_active`` is the share of the time in which threads of the training process ran
(``/proc/PID/task/*/schedstat``, nanoseconds), at most one. Its workers, processes of their own, are not in it.
``framebuffer_used_bytes`` is its resident memory. Once a second the agent's own
:class:`~gpusonde.agent.jobs.activity.ActivityReader` looks at the process, as on a GPU's host.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from gpusonde.agent.jobs.activity import ActivityReader
from gpusonde.agent.metrics import SelfCounters

_TICK_S = 0.1
_LOOK_S = 1.0
_COLUMNS = ("forks", "exits", "lifetime_ms", "read_bytes", "written_bytes", "processor_ms")
# Seconds of each kind of job.
KINDS = {
    "epochs": 90.0, "epochs, workers kept, evaluated": 100.0, "epochs, evaluated, saved": 100.0,
    "evaluated every quarter": 150.0, "saved every k steps": 150.0, "folds": 130.0, "folds, workers kept": 130.0,
    "search of rates": 120.0, "stream, evaluated": 100.0, "stream, saved": 100.0,
}  # fmt: skip
JOB = Path(__file__).with_name("job.py")


def record(kind: str, python: str, seconds: float, scale: float = 1.0) -> dict[str, Any]:
    """Run a job of a kind and return what was recorded: ticks, looks and its true events, seconds from its start."""
    with tempfile.TemporaryDirectory() as folder:
        events = Path(folder) / "events.jsonl"
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
        command = [python, str(JOB), kind, str(events), folder, str(seconds), str(scale)]
        with subprocess.Popen(command, env=environment) as process:
            while not (events.exists() and events.read_bytes()) and process.poll() is None:
                time.sleep(0.1)
            ticks, looks = _watch(process)
        if process.returncode:
            raise RuntimeError(f"{kind}: the job ended with {process.returncode}")
        told = [json.loads(line) for line in events.read_text().splitlines()]
    begin = ticks[0][0]
    kept = [tick for tick, before in zip(ticks[1:], ticks, strict=False) if tick[0] - before[0] >= 0.5 * _TICK_S]
    ticks = [ticks[0], *kept]
    return {
        "kind": kind,
        "time_s": [round(t - begin, 3) for t, _, _ in ticks],
        "graphics_active": [round(a, 3) for _, a, _ in ticks],
        "framebuffer_used_bytes": [b for _, _, b in ticks],
        "marks": {"time_s": [round(t - begin, 3) for t in looks.pop("time_s")], **looks},
        "events": [[event["event"], round(event["time_unix_s"] - begin, 3)] for event in told],
    }


def _watch(process: subprocess.Popen[bytes]) -> tuple[list[tuple[float, float, int]], dict[str, list[float]]]:
    reader = ActivityReader(SelfCounters())
    looks: dict[str, list[float]] = {name: [] for name in ("time_s", *_COLUMNS)}
    ticks: list[tuple[float, float, int]] = []
    reader.follow({"job": (process.pid,)}, {})
    before, before_s, due_s, look_s = _processor_ns(process.pid), time.monotonic(), time.monotonic(), 0.0
    while process.poll() is None:
        due_s = max(due_s + _TICK_S, time.monotonic() + _TICK_S / 10)
        time.sleep(max(0.0, due_s - time.monotonic()))
        now, now_s = _processor_ns(process.pid), time.monotonic()
        # A thread that has ended takes its time along.
        if now >= before > 0:
            share = min(1.0, (now - before) * 1e-9 / (now_s - before_s))
            ticks.append((time.time(), share, _resident_bytes(process.pid)))
        before, before_s = now, now_s
        if now_s - look_s >= _LOOK_S - _TICK_S / 2:
            look_s = now_s
            _add(looks, reader.look(time.time_ns()))
    _add(looks, reader.take())
    reader.close()
    return ticks, looks


def _add(looks: dict[str, list[float]], records: list[Any]) -> None:
    for entry in records:
        activity = entry.job_activity
        looks["time_s"] += [activity.start_time_unix_nano * 1e-9 + ms * 1e-3 for ms in activity.offsets_ms]
        for name in _COLUMNS:
            looks[name] += getattr(activity.groups[0], name)


def _processor_ns(pid: int) -> int:
    total = 0
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            total += int(Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0])
    except OSError:
        return 0
    return total


def _resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
