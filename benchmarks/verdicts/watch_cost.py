"""What a ``StateWatch`` costs a second, alone and in a collector, on top of what finds the cycles."""

from __future__ import annotations

import time

import numpy as np

from gpusonde.collector.storage.samples import SECOND_NS, Samples
from gpusonde.collector.tracking.states import JobStates
from gpusonde.epoch_detect import EpochDetection, EpochTracker
from gpusonde.epoch_detect.progress import PaceWatch, StateWatch
from gpusonde.service.wire import ACTIVITY_COLUMNS, JobActivity

_SECONDS, _REPEATS, _TICKS = 600, 5, 10
_RECORD_S, _LOOKS_S = 4, 30  # of the ticks that an agent sends together, and of its looks at processes
_JOB = ("job",)
_START = 1_700_000_000
_METRICS = (
    "gpu_utilization", "sm_active", "tensor_active", "dram_active", "pcie_tx_bytes_per_second",
    "pcie_rx_bytes_per_second", "framebuffer_used_bytes", "power_watts",
)  # fmt: skip


def _seconds_of_processor(gpus: int) -> tuple[float, int]:
    """Processor seconds per second of a job, best of some, and bytes of its state."""
    rng = np.random.default_rng(0)
    watch = StateWatch(gpus)
    made = []
    for second in range(60):
        values = {name: rng.random((gpus, _TICKS)) for name in _METRICS}
        values["power_watts"] = (70 + 480 * (second > 15)) * (1 + 0.01 * rng.normal(size=(gpus, _TICKS)))
        made.append(values)
    best, now_s = np.inf, 0
    for _ in range(_REPEATS):
        begin = time.process_time()
        for _ in range(_SECONDS):
            watch.note_marks(now_s, written_bytes_per_s=0.0, processors=float(gpus), processes=gpus)
            watch.update(now_s + np.arange(_TICKS) / _TICKS, made[now_s % 60])
            now_s += 1
        best = min(best, (time.process_time() - begin) / _SECONDS)
    return best, len(watch.state())


def _in_collector(gpus: int) -> float:
    """Processor seconds per second of a job, best of some, of what a collector does with its ticks for its states."""
    rng = np.random.default_rng(0)
    states, ticks = JobStates(), _RECORD_S * _TICKS
    columns = {name: rng.random(ticks).astype(np.float32) for name in _METRICS}
    columns["power_watts"] = (550 * (1 + 0.01 * rng.normal(size=ticks))).astype(np.float32)
    looks = np.zeros((len(ACTIVITY_COLUMNS), _LOOKS_S))
    best, now_s = np.inf, _START
    for _ in range(_REPEATS):
        begin = time.process_time()
        for _ in range(0, _SECONDS, _RECORD_S):
            time_ns = now_s * SECOND_NS + np.arange(ticks) * (SECOND_NS // _TICKS)
            for i in range(gpus):
                states.take(_JOB, f"GPU-{i}", Samples(time_ns, time_ns, time_ns, time_ns, columns))
            states.settle(_JOB)
            if states.has_news(_JOB):
                states.news(_JOB)
            now_s += _RECORD_S
            if now_s % _LOOKS_S < _RECORD_S:
                at = (now_s - np.arange(_LOOKS_S)[::-1]) * SECOND_NS
                states.note_activity(_JOB, JobActivity(("GPU-0",), at, looks, b"", holders=gpus, processes=gpus))
        best = min(best, (time.process_time() - begin) / _SECONDS)
    return best


def _of_pace(cycle_s: float) -> tuple[float, int]:
    """Processor seconds per second of a job whose cycles are followed, best of some, and bytes of that state."""
    rng = np.random.default_rng(0)
    names, size = ("sm_active", "dram_active", "power_watts"), _RECORD_S * _TICKS
    time_s = np.arange(0, max(_SECONDS, 40 * cycle_s), 1 / _TICKS)
    starts_s = np.cumsum(cycle_s * (1 + 0.005 * rng.normal(size=int(1.1 * time_s[-1] / cycle_s) + 2)))
    place = np.interp(time_s, np.concatenate([[0.0], starts_s]), np.arange(starts_s.size + 1)) % 1
    load = np.where(place < 0.85, 0.8 + 0.15 * place, 0.2) + 0.01 * rng.normal(size=(3, time_s.size))
    rows = load * np.array([[1.0], [0.6], [550.0]])
    tracker = EpochTracker(names)
    told: list[EpochDetection | None] = []
    for at in range(0, time_s.size, size):
        tracker.update(time_s[at : at + size], rows[:, at : at + size])
        told.append(tracker.detection)
    best, bytes_of_state = np.inf, 0
    for _ in range(_REPEATS):
        watch = PaceWatch(names)
        begin = time.process_time()
        for i, at in enumerate(range(0, time_s.size, size)):
            detection = told[i]
            if detection is not None:
                watch.note_detection(detection)
            watch.update(time_s[at : at + size], rows[:, at : at + size])
        best = min(best, (time.process_time() - begin) / time_s[-1])
        bytes_of_state = len(watch.state())
    return best, bytes_of_state


def table() -> list[str]:
    """Lines of Markdown tables: one size of job each, and one length of cycles each."""
    lines = [
        f"Bar: 0.01 % of a core per GPU. {_TICKS} Hz, {len(_METRICS)} metrics, and marks; best of {_REPEATS} times",
        f"{_SECONDS} s: the watch alone, a second at a time, and in the collector, with records of {_RECORD_S} s.",
        "",
        "| GPUs of the job | watch, us a second | of a core per GPU | in the collector | of a core per GPU | state |",
        "|---|---|---|---|---|---|",
    ]
    for gpus in (1, 8, 64):
        seconds, size = _seconds_of_processor(gpus)
        whole = _in_collector(gpus)
        cells = " | ".join(f"{1e6 * each:.0f} | {each / gpus:.4%}" for each in (seconds, whole))
        lines.append(f"| {gpus} | {cells} | {size / 1000:.1f} kB |")
    lines += [
        "",
        f"Beside it the cycles of a job are followed, once for all of its GPUs; 3 metrics, records of {_RECORD_S} s:",
        "",
        "| cycles of | us a second | of a core | state |",
        "|---|---|---|---|",
    ]
    for cycle_s in (1.0, 10.0, 60.0):
        seconds, size = _of_pace(cycle_s)
        lines.append(f"| {cycle_s:g} s | {1e6 * seconds:.0f} | {seconds:.4%} | {size / 1000:.1f} kB |")
    return lines
