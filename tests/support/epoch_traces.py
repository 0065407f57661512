"""Small traces with known epochs, for tests that need one and not a realistic one."""

import json
from pathlib import Path

import numpy as np

from gpusonde.telemetry import Trace, write_trace


def training_trace(
    period_s: float = 20.0,
    epochs: int = 8,
    *,
    interval_s: float = 0.1,
    idle_s: float = 15.0,
    validation: float = 0.2,
    seed: int = 3,
) -> tuple[Trace, np.ndarray]:
    """A trace with training at one level and validation at a lower one; also the true epoch starts."""
    rng = np.random.default_rng(seed)
    n = int((2 * idle_s + period_s * epochs) / interval_s)
    time = np.arange(n) * interval_s
    since = time - interval_s / 2 - idle_s  # a tick tells about the interval before it
    busy = (since >= 0) & (since < period_s * epochs)
    phase = np.where(busy, since % period_s / period_s, 0)
    level = np.where(phase < 1 - validation, 0.8, 0.35)
    dram = np.where(busy, level + rng.normal(0, 0.04, n), 0.0).clip(0)
    power = np.where(busy, 90 + 150 * level, 55) + rng.normal(0, 2, n)
    starts = idle_s + period_s * np.arange(epochs)
    return Trace(time, {"dram_active": dram, "power_watts": power}), starts


def trace_of(
    epochs: list[list[tuple[float, float]]], *, idle_s: float = 15.0, interval_s: float = 0.1, seed: int = 5
) -> tuple[Trace, np.ndarray]:
    """A trace of epochs, each a list of (seconds, activity); also the true epoch starts."""
    rng = np.random.default_rng(seed)
    phases = [(idle_s, 0.0), *(phase for epoch in epochs for phase in epoch), (idle_s, 0.0)]
    ends = np.cumsum([seconds for seconds, _ in phases])
    time = np.arange(1, int(ends[-1] / interval_s)) * interval_s
    # A tick tells about the interval before it.
    level = np.array([activity for _, activity in phases])[np.searchsorted(ends, time - interval_s / 2)]
    dram = np.where(level > 0, level + rng.normal(0, 0.02, time.size), 0.0).clip(0)
    power = 55 + 185 * level + rng.normal(0, 2, time.size)
    lengths = [sum(seconds for seconds, _ in epoch) for epoch in epochs]
    starts = idle_s + np.concatenate([[0.0], np.cumsum(lengths)[:-1]])
    return Trace(time, {"dram_active": dram, "power_watts": power}), starts


def write_scored_traces(folder: Path) -> tuple[Path, Path]:
    """Two trainings (``a``, ``b``) and a flat line (``flat``) in one file, and their truth in another."""
    traces, truth = [], {}
    for name, period_s in (("a", 12.0), ("b", 20.0)):
        trace, starts = training_trace(period_s, 6)
        traces.append(_named(trace, name))
        truth[name] = {"period_s": period_s, "epoch_starts_s": starts.tolist(), "shape": "plain"}
    rng = np.random.default_rng(1)
    flat = {name: rng.normal(0.5, 0.01, 900) for name in trace.values}
    traces.append(_named(Trace(np.arange(900) * 0.1, flat), "flat"))
    truth["flat"] = {"period_s": None, "shape": "steady"}
    write_trace(traces, folder / "traces.parquet")
    (folder / "truth.json").write_text(json.dumps(truth))
    return folder / "traces.parquet", folder / "truth.json"


def _named(trace: Trace, name: str) -> Trace:
    return Trace(trace.time_s, dict(trace.values), gpu_uuid=name)
