"""What it costs to find the epochs of an hour: 10 Hz, four metrics."""

from __future__ import annotations

import time

import numpy as np

from gpusonde.epoch_detect import detect
from gpusonde.telemetry import Trace

_TICKS = 36_000
_INTERVAL_S = 0.1
_RUNS = 3
_EPOCHS_S = (20.0, 61.0, 300.0)


def offline_cost() -> list[str]:
    """Lines for the page: CPU seconds per hour-long trace, the best of three runs each."""
    found_s, cpu_s = [], []
    for epoch_s in _EPOCHS_S:
        trace = _hour(epoch_s)
        spent = []
        for _ in range(_RUNS):
            begin = time.process_time()
            found = detect(trace)
            spent.append(time.process_time() - begin)
        found_s.append(f"{found.period_s:.2f}")
        cpu_s.append(min(spent))
    said = (
        f"Hour-long traces at 10 Hz with four metrics, with epochs of {', '.join(map('{:g}'.format, _EPOCHS_S))} s "
        f"(found: {', '.join(found_s)} s), detected at once: {min(cpu_s):.2f} to {max(cpu_s):.2f} s of CPU, the best "
        "of three runs each."
    )
    return ["## Offline cost", "", said, ""]


def _hour(epoch_s: float) -> Trace:
    rng = np.random.default_rng(1)
    time_s = np.arange(_TICKS) * _INTERVAL_S
    level = np.where(time_s % epoch_s < 0.8 * epoch_s, 0.8, 0.4)
    level = level + rng.normal(0, 0.02, _TICKS) + 0.05 * np.sin(2 * np.pi * time_s / 0.73)
    shares = {"sm_active": 1.0, "dram_active": 0.7, "tensor_active": 0.5}
    return Trace(time_s, {**{name: share * level for name, share in shares.items()}, "power_watts": 100 + 400 * level})
