"""Runs with power as the results repositories of MLPerf Training have them.

There, ``<system>/<network>/power/<run>/node_N.txt`` holds readings of a node's power and
``<system>/<network>/<run>.txt`` what the job logged, both as lines of ``:::MLLOG`` and a JSON object.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

_SAME_EVENT_S = 0.3  # several ranks log one event


@dataclass(frozen=True)
class SubmittedRun:
    """One run.

    Attributes:
        name: System, network and run.
        network: What was trained.
        nodes: Of each node the times in seconds, and watts, as its meter wrote them: stamps repeat and step back.
        events: Key of the log -> times in seconds; what several ranks logged stands once. ``step`` are those at which
            the duration of steps was logged.
    """

    name: str
    network: str
    nodes: tuple[tuple[np.ndarray, np.ndarray], ...]
    events: dict[str, list[float]]


def submitted_runs(folder: Path) -> Iterator[SubmittedRun]:
    """Read the runs below a folder, seconds after the first reading of a run's first node.

    Args:
        folder: A checkout, or any part of it.
    """
    for run in sorted(path for path in folder.glob("**/power/*") if path.is_dir()):
        log = run.parents[1] / f"{run.name}.txt"
        readings = sorted(run.glob("node_*.txt"), key=lambda path: int(re.sub(r"\D", "", path.stem) or 0))
        series = [each for each in map(_power, readings) if each[0].size > 1] if log.is_file() else []
        if series:
            origin_s = series[0][0][0]
            nodes = tuple((time_s - origin_s, watts) for time_s, watts in series)
            name = "/".join((*log.parent.parts[-2:], run.name))
            yield SubmittedRun(name, log.parent.name, nodes, _events(log, origin_s))


def _mllog(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            _, mark, text = line.partition(":::MLLOG ")
            try:
                entry = json.loads(text) if mark else None
            except ValueError:
                continue  # two ranks wrote into one line
            if isinstance(entry, dict) and isinstance(entry.get("time_ms"), (int, float)):
                yield entry


def _power(path: Path) -> tuple[np.ndarray, np.ndarray]:
    rows = [(e["time_ms"] / 1000, e["value"]) for e in _mllog(path) if e.get("key") == "power_reading"]
    rows = [(at, float(watts)) for at, watts in rows if isinstance(watts, (int, float)) and math.isfinite(watts)]
    table = np.array(rows, dtype=np.float64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def _events(path: Path, origin_s: float) -> dict[str, list[float]]:
    found: dict[str, list[float]] = defaultdict(list)
    for entry in _mllog(path):
        key, at, value = str(entry.get("key")), entry["time_ms"] / 1000 - origin_s, entry.get("value")
        if key.endswith(("_start", "_stop")):
            found[key].append(at)
        elif key == "tracked_stats" and isinstance(value, dict) and any("step_tim" in name for name in value):
            found["step"].append(at)
    return {key: _once(times) for key, times in found.items()}


def _once(times: Iterable[float]) -> list[float]:
    kept: list[float] = []
    for at in sorted(times):
        if not kept or at - kept[-1] > _SAME_EVENT_S:
            kept.append(at)
    return kept
