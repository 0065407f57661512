"""Realistic 10 Hz GPU traces with known epochs, and hard negatives without any.

A family (``families.py``, ``set_aside.py``) plans a job as segments of constant activity; :func:`render` turns the plan
into metrics at 50 Hz - iteration ripple whose phase wanders, noise, drift, other tenants - averages them over jittered
ticks, derives power (a one-second average) and utilisation, and loses some ticks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.random import Generator
from scipy.ndimage import uniform_filter1d
from scipy.signal import lfilter

from gpusonde.telemetry import Trace

FINE_HZ = 50


@dataclass
class Plan:
    """A job as segments.

    Attributes:
        segments: (seconds, activity 0..1, ripples) one after the other.
        epoch_starts: For each epoch the index of its first segment.
        regimes: Periods that count as right if there is no single one.
    """

    segments: list[tuple[float, float, bool]] = field(default_factory=list)
    epoch_starts: list[int] = field(default_factory=list)
    regimes: tuple[float, ...] = ()

    def add(self, seconds: float, level: float, *, ripples: bool = True) -> None:
        """Append a segment."""
        self.segments.append((max(seconds, 0.02), level, ripples))

    def begin_epoch(self) -> None:
        """The next segment starts an epoch."""
        self.epoch_starts.append(len(self.segments))

    def train_and_validate(self, seconds: float, train: float, validation: float, share: float) -> None:
        """Append an epoch of training and, for ``share`` of its time, validation."""
        self.begin_epoch()
        self.add(seconds * (1 - share), train)
        self.add(seconds * share, validation)


@dataclass(frozen=True)
class Example:
    """A trace and what is true of it; ``period_s`` None means that it has no epochs."""

    name: str
    family: str
    trace: Trace
    period_s: float | None
    epoch_starts_s: tuple[float, ...] = ()
    regimes: tuple[float, ...] = ()


Family = Callable[[Generator], Plan]


def log_uniform(rng: Generator, low: float, high: float) -> float:
    """One draw, uniform in the logarithm."""
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def size_of_at_least(rng: Generator, least_epochs: int, shortest_s: float = 0.0) -> tuple[float, int]:
    """The same as :func:`size`, of at least so many epochs of at least so many seconds."""
    while True:
        period, epochs = size(rng)
        if epochs >= least_epochs and period >= shortest_s:
            return period, epochs


def size(rng: Generator) -> tuple[float, int]:
    """Period in seconds and number of epochs of a run of at most an hour, more often a few minutes."""
    longest_run_s = log_uniform(rng, 60, 3600)
    while True:
        period, epochs = log_uniform(rng, 0.8, 600), round(log_uniform(rng, 3, rng.choice([12, 200])))
        if period * epochs <= longest_run_s:
            return period, epochs


def render(name: str, family: str, plan: Plan, rng: Generator) -> Example:
    """Turn a plan into a trace."""
    idle = rng.uniform(3, 60, 2) if rng.random() < 0.85 else (0.0, 0.0)
    seconds = np.array([idle[0], *(s for s, _, _ in plan.segments), idle[1]])
    levels = np.array([0.0, *(level for _, level, _ in plan.segments), 0.0])
    ripples = np.array([False, *(r for _, _, r in plan.segments), False])
    edges = np.concatenate([[0.0], np.cumsum(seconds)])
    cells = int(edges[-1] * FINE_HZ)
    middle = (np.arange(cells) + 0.5) / FINE_HZ
    segment = np.clip(np.searchsorted(edges, middle, side="right") - 1, 0, levels.size - 1)
    level, rippling = levels[segment], ripples[segment]
    busy = (segment > 0) & (segment < levels.size - 1)
    work = level * (1 + _ripple(rng, cells, _median_epoch(plan, edges)) * rippling)
    work = (work + busy * _disturbances(rng, middle, edges[-1])) * _standstills(rng, middle, edges[-1])
    work = work + _blips(rng, middle, ~busy)
    starts = tuple(float(edges[1 + i]) for i in plan.epoch_starts)
    end = float(edges[-2])
    period = float(np.mean(np.diff([*starts, end])[1:])) if len(starts) > 1 else None
    trace = _sampled(rng, middle, work, busy)
    if rng.random() < 0.4:
        trace = trace.select([["dram_active"], ["gpu_utilization", "power_watts"], ["sm_active"]][rng.integers(3)])
    return Example(name, family, trace, period, starts, plan.regimes)


def _median_epoch(plan: Plan, edges: np.ndarray) -> float:
    starts = edges[[1 + i for i in plan.epoch_starts]] if plan.epoch_starts else np.empty(0)
    return float(np.median(np.diff(starts))) if starts.size > 2 else 60.0


def _ripple(rng: Generator, cells: int, period_s: float) -> np.ndarray:
    """Relative change of activity within each training step; the phase performs a random walk."""
    step_s = log_uniform(rng, 0.12, max(0.2, min(3.0, period_s / 6)))
    wander = log_uniform(rng, 0.002, 0.15)
    phase = np.cumsum(1 / (step_s * FINE_HZ) + wander * rng.normal(0, 1, cells) / np.sqrt(step_s * FINE_HZ)) % 1
    depth = rng.choice([0.0, 0.1, 0.3, 0.6]) * rng.uniform(0.3, 1.0)
    if rng.random() < 0.5:
        return np.asarray(depth * np.sin(2 * np.pi * phase))
    duty = rng.uniform(0.4, 0.9)
    return np.asarray(np.where(phase < duty, depth * (1 - duty), -depth * duty))


def _disturbances(rng: Generator, time: np.ndarray, total: float) -> np.ndarray:
    change = np.zeros(time.size)
    if rng.random() < 0.3:  # drift
        change += rng.uniform(-0.15, 0.15) * time / total
    if rng.random() < 0.5:  # the level wanders
        inertia_s, spread = log_uniform(rng, 0.2, 30), log_uniform(rng, 0.005, 0.08)
        steps = rng.normal(0, spread * np.sqrt(2 / (inertia_s * FINE_HZ)), time.size)
        change += lfilter([1.0], [1.0, 1 / (inertia_s * FINE_HZ) - 1.0], steps)
    if rng.random() < 0.4:  # another tenant comes and goes
        often = rng.random() < 0.5
        for _ in range(rng.integers(1, 20 if often else 4)):
            begin, length = rng.uniform(0, total), log_uniform(rng, 2, max(4, total / (20 if often else 4)))
            change += rng.uniform(-0.1, 0.3) * ((time >= begin) & (time < begin + length))
    return change


def _standstills(rng: Generator, time: np.ndarray, total: float) -> np.ndarray:
    """1, and 0 where everything stands still for a moment: a slow disk, a lock, a log that is written."""
    running = np.ones(time.size)
    if rng.random() < 0.4:
        longest = log_uniform(rng, 0.15, 4)
        for _ in range(rng.poisson(total / log_uniform(rng, 10, 300))):
            begin = rng.uniform(0, total)
            first, stop = np.searchsorted(time, [begin, begin + log_uniform(rng, 0.08, longest)])
            running[first:stop] = rng.uniform(0, 0.1)
    return running


def _blips(rng: Generator, time: np.ndarray, outside: np.ndarray) -> np.ndarray:
    """Something small on the GPU before or after the job: a look at the data, an evaluation by hand."""
    level = np.zeros(time.size)
    if rng.random() < 0.25 and outside.any():
        for _ in range(rng.integers(1, 4)):
            begin = float(rng.choice(time[outside]))
            level[(time >= begin) & (time < begin + log_uniform(rng, 0.3, 10))] = rng.uniform(0.03, 0.4)
    return np.where(outside, level, 0.0)


def _sampled(rng: Generator, time: np.ndarray, work: np.ndarray, busy: np.ndarray) -> Trace:
    interval = rng.choice([0.1, 0.1, 0.1, 0.2, 0.5, 1.0]) if time[-1] > 600 else 0.1
    noise = log_uniform(rng, 0.005, 0.08)
    work = np.clip(work, 0, 1)
    sums = np.concatenate([[0.0], np.cumsum(work)])
    n = int(time[-1] / interval)
    ticks = np.arange(1, n) * interval + rng.normal(0, 0.04 * interval, n - 1)
    ticks = ticks[np.concatenate([[True], np.diff(ticks) > 0])]
    keep = rng.random(ticks.size) >= rng.choice([0.0, 0.002, 0.02])
    if rng.random() < 0.2:
        for _ in range(rng.integers(1, 4)):
            begin = rng.uniform(0, ticks[-1])
            keep &= (ticks < begin) | (ticks > begin + rng.uniform(0.5, 10))
    ticks = ticks[keep]

    def averaged(total: np.ndarray) -> np.ndarray:
        right = np.clip((ticks * FINE_HZ).astype(int), 1, work.size)
        left = np.clip(((ticks - interval) * FINE_HZ).astype(int), 0, right - 1)
        return np.asarray((total[right] - total[left]) / (right - left))

    mean, on = averaged(sums), averaged(np.concatenate([[0.0], np.cumsum(busy)]))
    gain = rng.uniform(0.4, 1.0)
    dram = mean * gain + on * noise * rng.normal(0, 1, ticks.size)
    active = mean ** rng.uniform(0.4, 1.2) + on * noise * rng.normal(0, 1, ticks.size)
    board = uniform_filter1d(60 + 240 * work**0.8, FINE_HZ)[np.clip((ticks * FINE_HZ).astype(int), 0, work.size - 1)]
    used = np.round(np.clip(1 - np.exp(-4 * mean) + on * 0.3 * noise * rng.normal(0, 1, ticks.size), 0, 1), 2)
    return Trace(
        np.round(ticks, 3) + np.arange(ticks.size) * 1e-7,
        {
            "dram_active": np.clip(dram, 0, 1).round(3),
            "sm_active": np.clip(active, 0, 1).round(3),
            "power_watts": (board + rng.normal(0, 3, ticks.size)).round(1),
            "gpu_utilization": used,
        },
    )
