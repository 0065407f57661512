"""Whatever is damaged in a stored state: it is refused in clear words, or can be gone on with."""

import functools
import json
import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.damaged_states import damaged, damaged_arrays

from gpusonde.epoch_detect import EpochTracker
from gpusonde.epoch_detect.history import pack, unpack
from gpusonde.epoch_detect.progress import PaceWatch, StateWatch
from gpusonde.epoch_detect.stored import DamagedStateError

TICK_S = 0.1
EPOCH_S = 12.0
METRICS = ("graphics_active", "framebuffer_used_bytes")
Restored = Any


def ticks(from_s: float, to_s: float) -> tuple[Any, Any]:
    """Epochs of 12 s, and memory that falls with every third of them."""
    time_s = np.arange(round(from_s / TICK_S), round(to_s / TICK_S)) * TICK_S
    active = 0.8 + 0.02 * np.random.default_rng(1).standard_normal(10_000)[: time_s.size]
    active[time_s % EPOCH_S < 1.0] = 0.1
    memory = np.where((time_s % (3 * EPOCH_S) < 1.0) & (time_s > 1), 1e9, 8e9)
    return time_s, np.array([np.clip(active, 0, 1), memory])


def looks(from_s: float, to_s: float) -> tuple[Any, Any]:
    """Workers are born with each epoch."""
    time_s = np.arange(from_s, to_s)
    born = time_s % EPOCH_S == 0
    values = np.zeros((6, time_s.size))
    values[:3, born] = np.array([[2.0], [2.0], [2 * EPOCH_S]])
    return time_s, values


@functools.cache
def tracker_state() -> bytes:
    """The state of a tracker that has reported epochs and holds their cycle."""
    tracker = EpochTracker(METRICS)
    for at in range(90):
        tracker.update(*ticks(at, at + 1))
    tracker.note_marks(*looks(0, 90))
    return tracker.state()


def restore_tracker(fields: Any) -> EpochTracker:
    """What is stored with other fields."""
    arrays = unpack(tracker_state())
    return EpochTracker.restore(pack({**arrays, "meta": np.frombuffer(json.dumps(fields).encode(), dtype=np.uint8)}))


def go_on_tracking(tracker: EpochTracker) -> None:
    """A minute more, and the end."""
    tracker.update(*ticks(90, 120), exhaustive=False)
    tracker.note_marks(*looks(90, 120))
    tracker.finish()
    tracker.shares()
    assert tracker.epochs == tuple(sorted(tracker.epochs, key=lambda epoch: epoch.start_s))
    tracker.state()


def paced() -> Any:
    """The fields of the pace of cycles of 4 s that have begun to take longer."""
    time_s, power = cycles()
    tracker, watch = EpochTracker(["power_watts"]), PaceWatch(["power_watts"])
    for at in range(0, 6800, 40):
        tracker.update(time_s[at : at + 40], power[:, at : at + 40])
        if tracker.detection is not None:
            watch.note_detection(tracker.detection)
        watch.update(time_s[at : at + 40], power[:, at : at + 40])
    assert watch.change is not None
    return json.loads(watch.state())


@functools.cache
def cycles() -> tuple[Any, Any]:
    """Cycles of 4 s, those behind the 150th of 4.3 s, 800 s of them."""
    lengths_s = np.where(np.arange(250) < 150, 4.0, 4.28) * (1 + 0.004 * np.random.default_rng(2).normal(size=250))
    ends_s = np.cumsum(lengths_s)
    time_s = np.arange(8000) * TICK_S
    at = np.searchsorted(ends_s, time_s, side="right")
    share = (time_s - (ends_s - lengths_s)[at]) / lengths_s[at]
    power = np.where(share < 0.7, 450.0, 200.0) + 60.0 * np.sin(9.0 * share) ** 2
    return time_s, (power + np.random.default_rng(3).normal(0, 4.0, time_s.size))[None]


def go_on_pacing(watch: PaceWatch) -> None:
    """Some cycles more, and what is told."""
    time_s, power = cycles()
    watch.update(time_s[6800:7600], power[:, 6800:7600])
    if watch.change is not None:
        assert watch.change.reason
    watch.state()


WATCHED_S = 447.0


def watched() -> Any:
    """The fields of a job of two GPUs in a pause, which has come back from some."""
    watch = StateWatch(2)
    assert show(watch, 0.0, 30, -150, 20, -60, 25, -60, 30, -60, 12) == WATCHED_S
    watch.note_marks(WATCHED_S, written_bytes_per_s=1e5, processors=0.5, processes=2)
    return json.loads(watch.state())


def show(watch: StateWatch, now_s: float, *lengths: int) -> float:
    """So many seconds of rest each, or of work where it is a negative number; returns the time after them."""
    for seconds in lengths:
        time_s = now_s + np.arange(10 * abs(seconds)) * TICK_S
        watts, use = (550.0, 0.95) if seconds < 0 else (70.0, 0.0)
        power = watts * np.exp(np.random.default_rng(abs(seconds)).normal(0, 0.01, (2, time_s.size)))
        watch.update(time_s, {"power_watts": power, "gpu_utilization": np.full((2, time_s.size), use)})
        now_s += abs(seconds)
    return now_s


def go_on_watching(watch: StateWatch) -> None:
    """Work, a pause that is too long, the end, and what is told."""
    watch.gpus = 2  # as the collector says
    now_s = show(watch, WATCHED_S, 20, -40, 80)
    for processes in (1, 0):
        watch.note_marks(now_s, written_bytes_per_s=0.0, processors=0.1, processes=processes)
    show(watch, now_s, -20)
    assert watch.spans
    watch.state()


STATES = {
    "tracker": (lambda: json.loads(unpack(tracker_state())["meta"].tobytes()), restore_tracker, go_on_tracking),
    "pace": (paced, lambda fields: PaceWatch.from_state(json.dumps(fields).encode()), go_on_pacing),
    "job": (watched, lambda fields: StateWatch.from_state(json.dumps(fields).encode()), go_on_watching),
}
_TRIED, _USED = 300, 12  # of some 1000 to 2500; of those that are taken


@pytest.mark.parametrize("name", STATES)
def test_a_damaged_state_is_refused_or_can_be_gone_on_with(name: str) -> None:
    """Each key missing, of another kind, of another length, no number, huge; of those that are taken some are used."""
    make, restore, go_on = STATES[name]
    fields = make()
    go_on(restore(fields))
    damages = dict(damaged(fields))
    chosen = random.Random(3).sample(sorted(damages), min(_TRIED, len(damages)))
    taken = {where: damages[where] for where in chosen if is_taken(where, restore, damages[where])}
    for where in random.Random(4).sample(sorted(taken), min(_USED, len(taken))):
        if where.startswith("metrics"):
            continue  # that there are as many as are given, who gives them checks
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                go_on(restore(taken[where]))
            except Exception as error:
                raise AssertionError(where) from error


def test_a_tracker_state_with_damaged_arrays_is_refused_or_can_be_gone_on_with() -> None:
    def restore(arrays: Any) -> EpochTracker:
        return EpochTracker.restore(pack(arrays))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        damages = dict(damaged_arrays(unpack(tracker_state())))
        taken = {where: arrays for where, arrays in damages.items() if is_taken(where, restore, arrays)}
        for where in random.Random(4).sample(sorted(taken), _USED):
            try:
                go_on_tracking(restore(taken[where]))
            except Exception as error:
                raise AssertionError(where) from error


def is_taken(where: str, restore: Callable[[Any], Restored], changed: Any) -> bool:
    """Whether a state is; a refusal is one of its own, with what happens next."""
    try:
        restore(changed)
    except DamagedStateError as error:
        refusal = str(error)
    except Exception as error:
        raise AssertionError(where) from error
    else:
        return True
    assert "start the run's tracking anew" in refusal or "; this release reads" in refusal, where
    return False


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"7", b"null", b"\xff", b"[" * 100_000, b"1" * 100_000])
def test_what_is_no_state_at_all_is_refused(data: bytes) -> None:
    for restore in (PaceWatch.from_state, StateWatch.from_state, EpochTracker.restore):
        with pytest.raises(DamagedStateError, match="start the run's tracking anew"):
            restore(data)
