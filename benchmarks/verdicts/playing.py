"""Recordings as a watch sees them: second by second, with what the tracker said by then."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from recordings import JobRecording

from gpusonde.epoch_detect import EpochDetection, EpochTracker
from gpusonde.epoch_detect.progress.state import StateWatch
from gpusonde.telemetry import FloatArray

_HELD_BACK_KINDS = frozenset({"gpt3/64", "llama2_70b_lora/64", "ssd/8", "resnet/8", "unet3d/9"})

Told = Sequence[tuple[float, EpochDetection]]
Marks = Callable[[StateWatch, float], None]


def is_held_back(name: str, kind: str) -> bool:
    """Whether a recording is set aside from every choice of a threshold: some kinds, and half of the others by name."""
    return kind in _HELD_BACK_KINDS or hashlib.sha256(name.encode()).digest()[0] % 2 == 1


def batches(time_s: FloatArray) -> Iterator[slice]:
    """The ticks of a second at a time, or one by one where they come less often."""
    step_s = float(np.median(np.diff(time_s[:1000])))
    size = max(1, round(1.0 / step_s))
    for begin in range(0, time_s.size, size):
        yield slice(begin, min(begin + size, time_s.size))


def follow_cycles(recording: JobRecording) -> Told:
    """What an ``EpochTracker`` says of the mean of the devices, and from when on."""
    trace = recording.trace()
    names = tuple(trace.values)
    tracker, rows = EpochTracker(names), np.array([trace.values[name] for name in names])
    told: list[tuple[float, EpochDetection]] = []
    for part in batches(trace.time_s):
        tracker.update(trace.time_s[part], rows[:, part])
        detection = tracker.detection
        if detection is not None and (not told or detection is not told[-1][1]):
            told.append((float(trace.time_s[part][-1]), detection))
    return told


def play(recording: JobRecording, told: Told, marks: Marks | None = None) -> Iterator[tuple[float, StateWatch]]:
    """Show a recording to a watch.

    Args:
        recording: What to show.
        told: What the tracker said of it.
        marks: Called before every second with the watch and the time of its last tick, to note marks.

    Yields:
        The time of the newest tick, and the watch after it.
    """
    watch, waiting = StateWatch(len(recording.devices), idle_watts=recording.idle_watts), list(told)
    for part in batches(recording.time_s):
        now_s = float(recording.time_s[part][-1])
        while waiting and waiting[0][0] <= now_s:
            watch.note_detection(waiting.pop(0)[1])
        if marks is not None:
            marks(watch, now_s)
        watch.update(recording.time_s[part], {name: column[:, part] for name, column in recording.values.items()})
        yield now_s, watch
