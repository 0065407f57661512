"""Recordings of real jobs: their ticks, marks and true cycles, and how well these are named."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpusonde.epoch_detect import Cycle, CycleRole, EpochTracker, Marks, detect
from gpusonde.telemetry import Trace

TRUE_ROLES = (CycleRole.EPOCH, CycleRole.TRIAL, CycleRole.EVALUATION, CycleRole.CHECKPOINT)
_MARKS = (
    ("forks", 1.0), ("exits", 1.0), ("lifetime_ms", 1e-3), ("read_bytes", 1.0), ("written_bytes", 1.0),
    ("processor_ms", 1e-3),
)  # fmt: skip
WAYS = ("without marks", "with marks", "followed")
_TICKS, _LOOKS = 10, 30  # of a record
_LEAST_COUNT = 4
_SAME = 0.1


@dataclass(frozen=True)
class TrueLevel:
    """A true cycle: its usual period, and every name that is right."""

    period_s: float
    roles: tuple[CycleRole, ...]


@dataclass(frozen=True)
class Recording:
    """One recorded job."""

    kind: str
    trace: Trace
    marks: Marks
    levels: tuple[TrueLevel, ...]


@dataclass(frozen=True)
class Score:
    """How many of the true levels are told with a right role, and how many roles that are told are wrong."""

    right: int
    true: int
    wrong: int
    text: str


def load_recordings(path: Path) -> list[Recording]:
    """Read recordings."""
    return [_parse(entry) for entry in json.loads(gzip.decompress(path.read_bytes()))]


def _parse(entry: dict[str, Any]) -> Recording:
    trace = Trace(
        np.array(entry["time_s"]),
        {name: np.array(entry[name], float) for name in ("graphics_active", "framebuffer_used_bytes")},
    )
    looks = entry["marks"]
    values = np.array([np.array(looks[name], float) * unit for name, unit in _MARKS])
    marks = Marks(np.array(looks["time_s"]), values, np.empty(0), np.empty(0))
    return Recording(entry["kind"], trace, marks, _true_levels(entry["events"]))


def _true_levels(events: list[tuple[str, float]]) -> tuple[TrueLevel, ...]:
    levels: list[TrueLevel] = []
    for role in TRUE_ROLES:
        times = [at for event, at in events if event == role]
        if len(times) < _LEAST_COUNT:
            continue
        period = float(np.median(np.diff(times)))
        same = next((i for i, level in enumerate(levels) if abs(level.period_s / period - 1) < _SAME), None)
        if same is None:
            levels.append(TrueLevel(period, (role,)))
        else:
            levels[same] = TrueLevel(levels[same].period_s, (*levels[same].roles, role))
    return tuple(levels)


def score(recording: Recording, way: str) -> Score:
    """Find the cycles of a job and compare their roles with the true ones.

    Args:
        recording: The job.
        way: One of :data:`WAYS`.
    """
    if way == "followed":
        cycles = _follow(recording)
    else:
        cycles = detect(recording.trace, marks=recording.marks if way == "with marks" else None).cycles
    right, wrong, words = 0, 0, []
    for cycle in cycles:
        near = [level for level in recording.levels if abs(cycle.period_s / level.period_s - 1) < _SAME]
        is_right = bool(near) and cycle.role in near[0].roles
        right += is_right
        wrong += cycle.role != CycleRole.UNKNOWN and not is_right
        if near or cycle.role != CycleRole.UNKNOWN:
            words.append(f"{cycle.role} {cycle.period_s:.1f} s")
    return Score(right, len(recording.levels), wrong, "; ".join(words) or "none")


def _follow(recording: Recording) -> tuple[Cycle, ...]:
    """Return what a tracker tells at the last tick of a job, before it knows that this is the end."""
    trace, marks = recording.trace, recording.marks
    tracker, looks = EpochTracker(trace.metrics), 0
    values = np.array([trace.values[name] for name in trace.metrics])
    for first in range(0, len(trace), _TICKS):
        piece = slice(first, first + _TICKS)
        tracker.update(trace.time_s[piece], values[:, piece])
        while looks + _LOOKS <= marks.time_s.size and marks.time_s[looks + _LOOKS - 1] <= trace.time_s[piece][-1]:
            record = slice(looks, looks + _LOOKS)
            tracker.note_marks(marks.time_s[record], marks.values[:, record])
            looks += _LOOKS
    return tracker.detection.cycles if tracker.detection is not None else ()
