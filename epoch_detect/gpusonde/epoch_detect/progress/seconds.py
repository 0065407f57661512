"""``JobSecond``: a second of all GPUs of a job in a few numbers, or a tick where ticks come less often."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpusonde.telemetry import FloatArray

POWER = "power_watts"
USE = ("sm_active", "graphics_active", "gpu_utilization")
MEMORY = "framebuffer_used_bytes"
UTILIZATION, SM_CLOCK, TEMPERATURE = "gpu_utilization", "sm_clock_mhz", "gpu_temperature_celsius"
_BUS = ("pcie_tx_bytes_per_second", "pcie_rx_bytes_per_second")
_COMPUTING = {"tensor_active": 0.02, "dram_active": 0.08}  # share of use of those that do not only wait
METRICS = (*USE, POWER, *_BUS, *_COMPUTING, MEMORY)
_FULL = 0.985  # utilisation of a GPU that waits in a kernel
_NOT_USED = 0.1


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
        crest: Highest tick over the mean, of power, or of use where that is not given; mean of the GPUs.
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
    crest: float = 1.0

    @classmethod
    def measure(
        cls,
        time_s: float,
        metrics: Sequence[str],
        values: FloatArray,
        least_watts: float = 0.0,
        *,
        with_swing: bool = True,
    ) -> JobSecond:
        """Sum up ticks.

        Args:
            time_s: Of the last one.
            metrics: Of :data:`METRICS`, those that are given.
            values: Shape (metrics, gpus, ticks), NaN where there is no value. All in one: calls of numpy on a few
                values each are most of what a second costs.
            least_watts: What no GPU draws less than: a meter that says so says nothing.
            with_swing: Whether ``swing`` is wanted.
        """
        of_each = _of_each(values)
        if least_watts and POWER in metrics:
            watts = of_each[metrics.index(POWER)]
            of_each[metrics.index(POWER)] = np.where(watts >= least_watts, watts, np.nan)
        means = (np.add.reduce(of_each, axis=1) / of_each.shape[1]).tolist()
        mean = {name: _mean(of_each[i]) if math.isnan(means[i]) else means[i] for i, name in enumerate(metrics)}
        use = next((name for name in USE if name in mean), "")
        spinning = unused = gpus = 0
        load = POWER if POWER in mean else use
        busy = UTILIZATION if UTILIZATION in mean else use
        for share in of_each[metrics.index(busy)].tolist() if busy else ():
            spinning += share >= _FULL
            unused += share < _NOT_USED
            gpus += not math.isnan(share)
        return cls(
            time_s,
            mean.get(POWER, math.nan),
            mean.get(use, math.nan),
            sum(mean[name] for name in _BUS if name in mean) if _BUS[0] in mean else math.nan,
            _mean(values[metrics.index(MEMORY), :, -1]) if MEMORY in mean else math.nan,
            spinning,
            unused,
            gpus,
            any(mean[name] > least for name, least in _COMPUTING.items() if name in mean),
            _swing(dict(zip(metrics, values, strict=True))) if with_swing and values.shape[2] > 1 else 0.0,
            _crest(values[metrics.index(load)], mean[load]) if load and values.shape[2] > 1 else 1.0,
        )

    @property
    def is_partly_used(self) -> bool:
        """Whether a GPU is in use now and then: neither silent nor waiting in a kernel."""
        return self.spinning + self.unused < self.gpus


def _of_each(columns: FloatArray) -> FloatArray:
    """Mean of each GPU over the ticks, the last axis; NaN where it gave nothing."""
    ticks = columns.shape[-1]
    means: FloatArray = columns[..., 0].copy() if ticks == 1 else np.add.reduce(columns, axis=-1) / ticks
    if not math.isnan(np.add.reduce(means, axis=None)):
        return means
    known = np.isfinite(columns)
    count = known.sum(axis=-1)
    of_known = np.where(known, columns, 0.0).sum(axis=-1) / np.where(count, count, np.nan)
    return np.where(np.isnan(means), of_known, means)


def _crest(column: FloatArray, mean: float) -> float:
    highest = _mean(np.fmax.reduce(column, axis=1))
    return highest / mean if mean > 0 else 1.0


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
