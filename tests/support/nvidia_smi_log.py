"""Logs as ``nvidia-smi --query-gpu=timestamp,... --format=csv -lms N`` writes them, for tests."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_START = datetime.datetime(2025, 7, 26, 23, 32, 9)


@dataclass(frozen=True)
class Schedule:
    """When the rows of a log were written.

    Attributes:
        time_s: Shape (n,), seconds after the start, whole milliseconds.
        gpu: Shape (n,), index of the GPU of each row.
    """

    time_s: npt.NDArray[np.float64]
    gpu: npt.NDArray[np.int64]

    def without(self, rows: Sequence[int]) -> Schedule:
        """Return the schedule with some rows lost."""
        return Schedule(np.delete(self.time_s, rows), np.delete(self.gpu, rows))


def schedule(
    gpus: int,
    ticks: int,
    *,
    pause_s: float = 0.1,
    jitter_s: float = 0.002,
    within_s: float = 0.0015,
    stall_share: float = 0.0,
    hole_share: float = 0.0,
    seed: int = 0,
) -> Schedule:
    """Make the rows of a log: a burst of one row per GPU, then a pause that is never shorter than ``pause_s``.

    Args:
        gpus: Number of GPUs.
        ticks: Number of bursts.
        pause_s: Shortest time between bursts (``-lms``).
        jitter_s: Standard deviation of what the pause takes longer.
        within_s: Mean time between the rows of a burst; about a third of them carry the same millisecond.
        stall_share: Share of bursts in which one GPU answers about 0.3 s late.
        hole_share: Share of pauses that take up to 9 s.
        seed: Seed of the random numbers.
    """
    random = np.random.default_rng(seed)
    now, times = 0.0, []
    for _ in range(ticks):
        stalled = random.integers(gpus) if random.random() < stall_share else -1
        for gpu in range(gpus):
            now += random.exponential(within_s) if random.random() < 0.7 else 0.0
            now += random.uniform(0.15, 0.8) if gpu == stalled else 0.0
            times.append(round(now, 3))
        now += pause_s + abs(random.normal(0.0, jitter_s))
        now += random.uniform(0.5, 9.0) if random.random() < hole_share else 0.0
    return Schedule(np.array(times), np.tile(np.arange(gpus), ticks))


def stamp(seconds: float) -> str:
    """Return a time as nvidia-smi writes it."""
    moment = _START + datetime.timedelta(milliseconds=round(seconds * 1000))
    return f"{moment:%Y/%m/%d %H:%M:%S}.{moment.microsecond // 1000:03d}"


def power(gpu: int, row: int) -> float:
    """The power that ``log`` writes, different for each GPU."""
    return 100.0 * (gpu + 1) + row % 50


def log(rows: Schedule) -> str:
    """Return the text of a log with power, utilisation and memory, and no column that names the GPU."""
    lines = ["timestamp, power.draw [W], utilization.gpu [%], memory.used [MiB]"]
    for row, (time_s, gpu) in enumerate(zip(rows.time_s.tolist(), rows.gpu.tolist(), strict=True)):
        lines.append(f"{stamp(time_s)}, {power(gpu, row):.2f} W, 57 %, 132 MiB")
    return "\n".join(lines) + "\n"
