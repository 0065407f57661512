"""``JobSecond``: a second of all GPUs of a job in a few numbers, or a tick where ticks come less often."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gpusonde.telemetry import FloatArray

POWER = "power_watts"
USE = ("sm_active", "graphics_active", "gpu_utilization")
MEMORY = "framebuffer_used_bytes"
UTILIZATION, SM_CLOCK, TEMPERATURE = "gpu_utilization", "sm_clock_mhz", "gpu_temperature_celsius"
_BUS = ("pcie_tx_bytes_per_second", "pcie_rx_bytes_per_second")
_FULL = 0.985  # utilisation of a GPU that waits in a kernel
_NOT_USED = 0.1
_COMPUTING = (("tensor_active", 0.02), ("dram_active", 0.08))  # share of use of those that do not only wait


@dataclass
class JobSecond:
    """What the GPUs did; NaN where nothing was given.

    Attributes:
        time_s: Of its last tick.
        watts: Mean power of a GPU.
        use: Mean share of use of a GPU.
        bus: Bytes per second over PCIe, mean of the GPUs.
        held_bytes: Mean memory in use of a GPU.
        spinning: GPUs that are in use all the time.
        unused: GPUs that are hardly in use.
        gpus: GPUs whose use is known.
        computes: Whether tensor pipes or memory work, as they do not for a kernel that waits.
        swing: How far power goes up and down within it, over the mean, or use, whatever is more; mean of the GPUs, 0
            for a single tick.
    """

    time_s: float
    watts: float
    use: float
    bus: float
    held_bytes: float
    spinning: int
    unused: int
    gpus: int
    computes: bool
    swing: float = 0.0

    @classmethod
    def measure(
        cls, time_s: float, values: Mapping[str, FloatArray], least_watts: float = 0.0, *, with_swing: bool = True
    ) -> JobSecond:
        """Sum up ticks.

        Args:
            time_s: Of the last one.
            values: Metric -> shape (gpus, ticks), NaN where there is no value.
            least_watts: What no GPU draws less than: a meter that says so says nothing.
            with_swing: Whether ``swing`` is wanted.
        """
        use = next((_of_each(values[name]) for name in USE if name in values), None)
        busy = _of_each(values[UTILIZATION]) if UTILIZATION in values else use
        spinning = unused = gpus = 0
        if busy is not None:
            for share in busy.tolist():
                spinning += share >= _FULL
                unused += share < _NOT_USED
                gpus += not math.isnan(share)
        return cls(
            time_s,
            _mean(_watts(_of_each(values[POWER]), least_watts)) if POWER in values else math.nan,
            math.nan if use is None else _mean(use),
            sum(_mean(_of_each(values[name])) for name in _BUS if name in values) if _BUS[0] in values else math.nan,
            _mean(values[MEMORY][:, -1]) if MEMORY in values else math.nan,
            spinning,
            unused,
            gpus,
            any(name in values and _mean(_of_each(values[name])) > least for name, least in _COMPUTING),
            _swing(values) if with_swing and next(iter(values.values())).shape[1] > 1 else 0.0,
        )

    @property
    def is_partly_used(self) -> bool:
        """Whether a GPU is in use now and then: neither silent nor waiting in a kernel."""
        return self.spinning + self.unused < self.gpus


def _watts(means: FloatArray, least: float) -> FloatArray:
    return np.where(means >= least, means, np.nan) if least else means


def _of_each(column: FloatArray) -> FloatArray:
    """Mean of each GPU, shape (gpus,), NaN where it gave nothing."""
    means: FloatArray = column[:, 0] if column.shape[1] == 1 else np.add.reduce(column, axis=1) / column.shape[1]
    if not math.isnan(np.add.reduce(means)):
        return means
    known = np.isfinite(column)
    return np.asarray(np.where(known, column, 0.0).sum(axis=1) / np.where(known.any(axis=1), known.sum(axis=1), np.nan))


def _swing(values: Mapping[str, FloatArray]) -> float:
    swings = [0.0]
    if POWER in values:
        watts = values[POWER]
        swings.append(_mean(_range(watts) / np.maximum(_of_each(watts), 1e-9)))
    swings.extend(_mean(_range(values[name])) for name in USE if name in values)
    return float(np.nanmax(swings))


def _range(column: FloatArray) -> FloatArray:
    """Largest less least of each GPU, shape (gpus,), NaN where it gave nothing."""
    return np.asarray(np.fmax.reduce(column, axis=1) - np.fmin.reduce(column, axis=1))


def _mean(values: FloatArray) -> float:
    """Mean of those that are known; NaN if none is."""
    total = float(np.add.reduce(values))
    if not math.isnan(total):
        return total / values.size
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else math.nan
