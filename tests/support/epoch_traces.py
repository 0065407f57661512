"""Small traces with known epochs, for tests that need one and not a realistic one."""

import numpy as np

from gpusonde.telemetry import Trace


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
