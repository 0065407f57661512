"""What it costs to find the epochs of an hour: 10 Hz, four metrics."""

from __future__ import annotations

import time

import numpy as np
from report import table

from gpusonde.epoch_detect import detect
from gpusonde.telemetry import Trace

_TICKS = 36_000
_INTERVAL_S = 0.1
_RUNS = 3


def offline_cost() -> list[str]:
    """Lines for the page: CPU seconds per hour-long trace, the best of three runs each."""
    rows = []
    for epoch_s in (20.0, 61.0, 300.0):
        trace = _hour(epoch_s)
        spent = []
        for _ in range(_RUNS):
            begin = time.process_time()
            found = detect(trace)
            spent.append(time.process_time() - begin)
        rows.append((f"{epoch_s:g} s", f"{found.period_s:.2f} s", f"{min(spent):.2f} s"))
    explanation = "Hour-long traces at 10 Hz with four metrics, detected at once; the best of three runs each."
    return ["## Offline cost", "", explanation, "", *table(("epochs of", "found", "CPU per trace-hour"), rows)]


def _hour(epoch_s: float) -> Trace:
    rng = np.random.default_rng(1)
    time_s = np.arange(_TICKS) * _INTERVAL_S
    level = np.where(time_s % epoch_s < 0.8 * epoch_s, 0.8, 0.4)
    level = level + rng.normal(0, 0.02, _TICKS) + 0.05 * np.sin(2 * np.pi * time_s / 0.73)
    shares = {"sm_active": 1.0, "dram_active": 0.7, "tensor_active": 0.5}
    return Trace(time_s, {**{name: share * level for name, share in shares.items()}, "power_watts": 100 + 400 * level})
