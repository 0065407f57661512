"""The slow device of a job: how often it is named, after how many seconds of training, and who is named for nothing.

A fault begins in the middle of a recording; what comes before is the baseline. ``find_slow_device`` is asked every four
seconds from then on. That the job's cycle has slowed is given: when that is known is another table's question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from faults import slow_device
from recordings import JobRecording

from gpusonde.epoch_detect.progress import SlowDeviceVerdict, find_slow_device
from gpusonde.telemetry import FloatArray

_ASKED_S = 4.0
_LOOKED_S = 260.0
_BASELINE_S = 1200.0  # before the fault, as a collector reads them
_LEAST_TRAINING_S = 100.0  # before a fault and after it
_AFTER_S = (30.0, 60.0, 150.0)
_SEED = 17
_JOBS = (  # kind, its name, beginnings of a fault in each job, slow devices for each, seconds of its shortest cycle
    ("gpt3/64", "gpt3, 64 nodes", 4, 2, 10.8), ("h100 checkpoints", "8 H100, checkpoints", 2, 2, 0.0),
    ("llama2_70b_lora/8", "llama2, 8 nodes", 2, 1, 0.0), ("ssd/8", "ssd, 8 nodes", 2, 1, 0.0),
)  # fmt: skip
_FAULTS = (
    ("hot", 0.05, 2.0), ("hot", 0.10, 2.0), ("throttle", 0.05, 2.0), ("throttle", 0.10, 2.0), ("throttle", 0.05, 1.0),
    ("throttle", 0.10, 1.0), ("data", 0.10, 2.0), ("data, utilisation", 0.10, 2.0), ("link", 0.10, 2.0),
)  # fmt: skip


def _training_s(recording: JobRecording, at_s: float) -> FloatArray:
    """Seconds of training since a time, at each tick; evaluations and what stands idle do not count."""
    time_s = recording.time_s
    common = np.median(recording.power, axis=0)
    trains = (time_s >= at_s) & (time_s <= recording.log.stop_s) & (common > 0.6 * common.max())
    for first, last in recording.log.evaluations_s:
        trains &= (time_s < first - 4) | (time_s > last + 4)
    return np.asarray(np.cumsum(trains) * recording.interval_s)


def _ask(recording: JobRecording, at_s: float, now_s: float, cycle_s: float) -> SlowDeviceVerdict:
    first, stop = np.searchsorted(recording.time_s, [at_s - _BASELINE_S, now_s], side="right")
    values = {metric: column[:, first:stop] for metric, column in recording.values.items()}
    return find_slow_device(recording.devices, recording.time_s[first:stop], values, at_s, cycle_s=cycle_s)


def _trial(recording: JobRecording, device: int | None, at_s: float, cycle_s: float) -> tuple[list[bool], bool, bool]:
    """(named rightly after each of the times, first in rank after 60 s, a wrong name)."""
    time_s = recording.time_s
    trained = _training_s(recording, at_s)
    name = None if device is None else recording.devices[device]
    right, top, wrong = [False] * len(_AFTER_S), False, False
    for at in np.arange(at_s, min(at_s + _LOOKED_S, time_s[-1]), _ASKED_S):
        seconds = float(trained[np.searchsorted(time_s, at, side="right") - 1])
        if seconds > _AFTER_S[-1] + _ASKED_S:
            break
        verdict = _ask(recording, at_s, at, cycle_s)
        top |= bool(verdict.ranked) and seconds <= 60 + _ASKED_S and verdict.ranked[0].device == name
        if verdict.device is not None:
            wrong |= verdict.device != name
            if verdict.device == name:
                # Cells close a tick later, and it is asked every four seconds only.
                right = [r or seconds <= after + _ASKED_S for r, after in zip(right, _AFTER_S, strict=True)]
    return right, top, wrong


def _onsets(recording: JobRecording, count: int) -> list[float]:
    """Times with 100 s of training before and after them, none where there is no such time."""
    trained = _training_s(recording, recording.log.start_s)
    fit = np.flatnonzero((trained >= _LEAST_TRAINING_S) & (trained <= trained[-1] - _LEAST_TRAINING_S))
    chosen = np.random.default_rng(_SEED).choice(fit, count) if fit.size else fit
    return sorted(recording.time_s[chosen].tolist())


def _column(recordings: Sequence[JobRecording], *, onsets: int, devices: int, cycle_s: float) -> tuple[int, list[str]]:
    """Trials of each fault in some jobs, and a cell of the table for each fault.

    Args:
        recordings: Healthy jobs.
        onsets: Beginnings of a fault per job.
        devices: Slow devices per beginning.
        cycle_s: Shortest cycle of the job.
    """
    rng = np.random.default_rng(_SEED)
    found: dict[tuple[str, float, float], list[tuple[list[bool], bool, bool]]] = {}
    for recording in recordings:
        for at_s in _onsets(recording, onsets):
            for fault in _FAULTS:
                kind, slower, exponent = fault
                for device in rng.integers(len(recording.devices), size=devices):
                    made = slow_device(
                        recording, int(device), slower, kind.split(",")[0], at_s, power_exponent=exponent,
                        with_utilisation=True,
                    )  # fmt: skip
                    given = "utilisation" in kind
                    if not given:
                        made = replace(made, values={"power_watts": made.power})
                    who = None if kind == "link" else int(device)
                    found.setdefault(fault, []).append(_trial(made, who, at_s, cycle_s))
    cells = []
    for (kind, _, _), trials in found.items():
        right = ", ".join(f"{share:.2f}" for share in np.array([trial[0] for trial in trials]).mean(axis=0))
        first, wrong = np.mean([trial[1:] for trial in trials], axis=0)
        cells.append(f"-; -; {wrong:.2f}" if kind == "link" else f"{right}; {first:.2f}; {wrong:.2f}")
    return len(next(iter(found.values()))), cells


def healthy(recordings: Sequence[JobRecording]) -> tuple[int, int]:
    """Wrong names and answers of healthy jobs, asked as if their cycle had slowed in the middle, up to the end."""
    asked = wrong = 0
    for recording in recordings:
        at_s = (recording.log.start_s + recording.log.stop_s) / 2
        for at in np.arange(at_s, recording.log.stop_s, 2 * _ASKED_S):
            verdict = _ask(recording, at_s, at, 0.0)
            asked += verdict.window_s > 0
            wrong += verdict.device is not None
    return wrong, asked


def table(recordings: Sequence[JobRecording]) -> list[str]:
    """The section's lines."""
    titles, columns = ["fault"], []
    for kind, name, onsets, devices, cycle_s in _JOBS:
        some = [run for run in recordings if run.kind == kind]
        trials, cells = _column(some, onsets=onsets, devices=devices, cycle_s=cycle_s)
        titles.append(f"{name} ({trials})")
        columns.append(cells)
    faults = [
        f"{kind} {slower:.0%}" + (f", power ~ f^{exponent:.0f}" if kind == "throttle" else "")
        for kind, slower, exponent in _FAULTS
    ]
    rows = zip(faults, *columns, strict=True)
    lines = ["| " + " | ".join(row) + " |" for row in (titles, ["---"] * len(titles), *rows)]
    kinds = sorted({run.kind for run in recordings if len(run.devices) > 2})
    told = [(kind, healthy([run for run in recordings if run.kind == kind])) for kind in kinds]
    said = ", ".join(f"{kind} {wrong} of {asked}" for kind, (wrong, asked) in told)
    return [*lines, "", "Healthy jobs, asked all the same, wrong names of all answers:", f"{said}."]
