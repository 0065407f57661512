"""The slow device of a job: how often it is named, after how many seconds of training, and who is named for nothing.

A fault begins in the middle of a recording; what comes before is the baseline. ``find_slow_device`` is asked every four
seconds from then on. That the job's cycle has slowed is given: when that is known is another table's question.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
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
_CLOCKED = (("throttle, clock", 0.05, 1.0), ("throttle, clock", 0.10, 1.0))
_BAR = {("hot", 2.0), ("throttle", 2.0)}
_POOLS = (  # of 8 devices: faults and exponents
    ("hot and power ~ f^2, which the bar was measured with", _BAR),
    ("with power ~ f^1 and data, of power alone", _BAR | {("throttle", 1.0), ("data", 2.0)}),
    ("with them as clocks and utilisation show them", _BAR | {("throttle, clock", 1.0), ("data, utilisation", 2.0)}),
)
_Fault = tuple[str, float, float]
_Trial = tuple[list[bool], bool, bool]


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


def _trial(recording: JobRecording, device: int | None, at_s: float, cycle_s: float) -> _Trial:
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


def _trials(
    task: tuple[Sequence[JobRecording], Sequence[_Fault], int, int, float],
) -> dict[_Fault, list[_Trial]]:
    """Trials of each of some faults in some jobs, with so many beginnings per job and slow devices per beginning."""
    recordings, faults, onsets, devices, cycle_s = task
    rng = np.random.default_rng(_SEED)
    found: dict[_Fault, list[_Trial]] = {}
    for recording in recordings:
        for at_s in _onsets(recording, onsets):
            for fault in faults:
                kind, slower, exponent = fault
                what, _, given = kind.partition(", ")
                for device in rng.integers(len(recording.devices), size=devices):
                    made = slow_device(
                        recording, int(device), slower, what, at_s, power_exponent=exponent,
                        with_utilisation=True, with_clock=True,
                    )  # fmt: skip
                    names = [
                        "power_watts",
                        *{"utilisation": ["gpu_utilization"], "clock": ["sm_clock_mhz"]}.get(given, ()),
                    ]
                    made = replace(made, values={name: made.values[name] for name in names})
                    who = None if kind == "link" else int(device)
                    found.setdefault(fault, []).append(_trial(made, who, at_s, cycle_s))
    return found


def _cells(found: dict[_Fault, list[_Trial]]) -> list[str]:
    cells = []
    for (kind, _, _), trials in found.items():
        right = ", ".join(f"{share:.2f}" for share in np.array([trial[0] for trial in trials]).mean(axis=0))
        first, wrong = np.mean([trial[1:] for trial in trials], axis=0)
        cells.append(f"-; -; {wrong:.2f}" if kind == "link" else f"{right}; {first:.2f}; {wrong:.2f}")
    return cells


def _pooled(found: dict[_Fault, list[_Trial]]) -> list[str]:
    """Shares of the trials of some faults in which it was named in 60 s, and a wrong one was."""
    shares = []
    for _, faults in _POOLS:
        for slower in (0.10, 0.05):
            trials = [
                each for (kind, by, power), some in found.items() if by == slower and (kind, power) in faults
                for each in some
            ]  # fmt: skip
            named, wrong = np.mean([(right[1], wrong) for right, _, wrong in trials], axis=0)
            shares.append(f"{named:.2f}; {wrong:.2f}")
    return shares


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


def table(recordings: Sequence[JobRecording], processes: int) -> list[str]:
    """The section's lines."""
    of_kind = {kind: [run for run in recordings if run.kind == kind] for kind in {run.kind for run in recordings}}
    kinds = sorted({run.kind for run in recordings if len(run.devices) > 2})
    # Each with its own draw, so that trials of one stay as they are when the other changes.
    jobs = [job for job in _JOBS if any(_onsets(run, 1) for run in of_kind.get(job[0], ()))]
    tasks = [
        (of_kind[kind], tried, onsets, devices, cycle_s)
        for kind, _, onsets, devices, cycle_s in jobs for tried in (_FAULTS, _CLOCKED)
    ]  # fmt: skip
    with ProcessPoolExecutor(processes) as pool:
        found, answers = pool.map(_trials, tasks), pool.map(healthy, [of_kind[kind] for kind in kinds])
        trials = [mine | clocked for mine, clocked in zip(found, found, strict=True)]
        told = dict(zip(kinds, answers, strict=True))
    faults = [*_FAULTS, *_CLOCKED]
    titles = ["fault", *(f"{name} ({len(each[faults[0]])})" for (_, name, *_), each in zip(jobs, trials, strict=True))]
    names = [
        f"{kind} {slower:.0%}" + (f", power ~ f^{exponent:.0f}" if kind.startswith("throttle") else "")
        for kind, slower, exponent in faults
    ]
    said = ", ".join(f"{kind} {wrong} of {asked}" for kind, (wrong, asked) in told.items())
    pooled = [f"{name}, {slower}" for name, _ in _POOLS for slower in ("10 %", "5 %")]
    return [
        *_lines(titles, zip(names, *map(_cells, trials), strict=True)), "",
        "Their trials pooled: named in 60 s; in which a wrong one was named.", "",
        *_lines(["faults", *titles[1:]], zip(pooled, *map(_pooled, trials), strict=True)), "",
        "Healthy jobs, asked all the same, wrong names of all answers:", f"{said}.",
    ]  # fmt: skip


def _lines(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(row) + " |" for row in (titles, ["---"] * len(titles), *rows)]
