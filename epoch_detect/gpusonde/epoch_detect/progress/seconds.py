"""``JobSecond``: a second of all GPUs of a job in a few numbers, or a tick where ticks come less often."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpusonde.telemetry import FloatArray

POWER = "power_watts"
SM_ACTIVE = "sm_active"
USE = (SM_ACTIVE, "graphics_active", "gpu_utilization")
MEMORY = "framebuffer_used_bytes"
UTILIZATION, SM_CLOCK, TEMPERATURE = "gpu_utilization", "sm_clock_mhz", "gpu_temperature_celsius"
_BUS = ("pcie_tx_bytes_per_second", "pcie_rx_bytes_per_second")
_COMPUTING = {"tensor_active": 0.02, "dram_active": 0.08}  # share of use of those that do not only wait
# Share of SMs that a kernel that waits is on, at most: those of collectives take 32 of 132.
_WAITING = _COMPUTING | {SM_ACTIVE: 0.3}
_LOADS = frozenset({POWER, *USE})
# Those that tell what a job does, as far as a GPU has them.
STATE_METRICS = (*USE, POWER, *_BUS, *_COMPUTING, MEMORY)
_FULL = 0.985  # utilisation of a GPU that waits in a kernel
_NOT_USED = 0.1
_MUCH_LESS = 0.4  # of what another one draws: what GPUs of one job do not that work, in step or one after the other
_SAME_SECOND_S = 0.95  # of ticks that are of one
_REST_S = 0.5  # ticks that are left over, which tell nothing alone


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
        computes: Whether tensor pipes or memory of any GPU work, as they do not for a kernel that waits.
        waits: Whether all GPUs are in use all the time and, as their SMs, tensor pipes and memory tell, for nothing.
        of_some: Whether GPUs do nothing while others work, by their power where their use is not known.
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
    waits: bool = False
    of_some: bool = False

    @classmethod
    def measure(
        cls,
        time_s: Sequence[float],
        stops: Sequence[int],
        metrics: Sequence[str],
        values: FloatArray,
        least_watts: float = 0.0,
        highest: FloatArray | None = None,
    ) -> list[JobSecond]:
        """Sum up the ticks of each second, but for its ``swing``.

        Args:
            time_s: Shape (ticks,).
            stops: Shape (seconds + 1,), where each begins and the one before stops, from 0 to the number of ticks.
            metrics: Of :data:`STATE_METRICS`, those that are given.
            values: Shape (metrics, gpus, ticks), NaN where there is no value. All in one: calls of numpy on a few
                values each are most of what a second costs.
            least_watts: What no GPU draws less than: a meter that says so says nothing.
            highest: Shape (gpus, ticks), highest load in what each tick is the mean of; None where ticks are no means.
        """
        if not time_s:
            return []
        cells = [values[..., begin:stop] for begin, stop in itertools.pairwise(stops)]
        of_each = np.array([_mean(ticks) for ticks in cells])  # shape (seconds, metrics, gpus)
        if least_watts and POWER in metrics:
            watts = of_each[:, metrics.index(POWER)]
            of_each[:, metrics.index(POWER)] = np.where(watts >= least_watts, watts, np.nan)
        use = next((name for name in USE if name in metrics), "")
        load = POWER if POWER in metrics else use
        busy = UTILIZATION if UTILIZATION in metrics else use
        shares = of_each[:, metrics.index(busy)].tolist() if busy else [()] * len(cells)
        if highest is None and load and len(time_s) > len(cells):
            highest = values[metrics.index(load)]
        peaks = _mean(np.fmax.reduceat(highest, stops[:-1], axis=1).T).tolist() if load and highest is not None else ()
        seconds, tells = [], not _COMPUTING.keys().isdisjoint(metrics)
        for i, means in enumerate(_mean(of_each).tolist()):
            mean, ticks = dict(zip(metrics, means, strict=True)), cells[i]
            held_bytes, crest = mean.get(MEMORY, math.nan), 1.0
            if ticks.shape[2] > 1 and MEMORY in mean:
                held_bytes = float(_mean(ticks[metrics.index(MEMORY), :, -1]))
            if peaks and mean[load] > 0:
                crest = peaks[i] / mean[load]
            uses = spinning, unused, gpus = _count_uses(shares[i])
            of_some = 0 < unused < gpus
            if not gpus and POWER in metrics and of_each.shape[2]:
                watts = of_each[i, metrics.index(POWER)]
                of_some = bool(np.fmin.reduce(watts) < _MUCH_LESS * np.fmax.reduce(watts))
            computes, waits = any(mean[name] > least for name, least in _COMPUTING.items() if name in mean), False
            if tells and not computes:
                # One that computes alone is work, however many wait for it.
                most = dict(zip(metrics, np.fmax.reduce(of_each[i], axis=1).tolist(), strict=True))
                computes = any(most[name] > least for name, least in _COMPUTING.items() if name in most)
                waits = 0 < spinning == gpus and all(most.get(name, math.inf) <= at for name, at in _WAITING.items())
            seconds.append(
                cls(
                    time_s[stops[i + 1] - 1],
                    mean.get(POWER, math.nan),
                    mean.get(use, math.nan),
                    sum(mean[name] for name in _BUS if name in mean) if _BUS[0] in mean else math.nan,
                    held_bytes,
                    *uses,
                    computes,
                    crest=crest,
                    waits=waits,
                    of_some=of_some,
                )
            )
        return seconds

    def note_swing(self, metrics: Sequence[str], values: FloatArray) -> None:
        """Measure ``swing``, which only pauses ask for.

        Args:
            metrics: As for :meth:`measure`.
            values: Its ticks, likewise.
        """
        swings = np.fmax.reduce(values, axis=2) - np.fmin.reduce(values, axis=2)
        if POWER in metrics:
            swings[metrics.index(POWER)] /= np.maximum(_mean(values[metrics.index(POWER)]), 1e-9)
        of_each = zip(metrics, _mean(swings).tolist(), strict=True)
        self.swing = max((each for name, each in of_each if name in _LOADS and not math.isnan(each)), default=0.0)

    @property
    def is_partly_used(self) -> bool:
        """Whether a GPU is in use now and then: neither silent nor waiting in a kernel."""
        return self.spinning + self.unused < self.gpus


def stops_of_seconds(time_s: Sequence[float]) -> list[int]:
    """Where each second of some ticks begins and the one before stops, for :meth:`JobSecond.measure`."""
    stops = [0]
    while stops[-1] < len(time_s):
        stop = bisect.bisect_left(time_s, time_s[stops[-1]] + _SAME_SECOND_S)
        stops.append(len(time_s) if time_s[-1] < time_s[stop - 1] + _REST_S else stop)
    return stops


def _count_uses(shares: Sequence[float]) -> tuple[int, int, int]:
    """GPUs that are in use all the time, hardly, and of which the use is known."""
    spinning = unused = gpus = 0
    for share in shares:
        spinning += share >= _FULL
        unused += share < _NOT_USED
        gpus += not math.isnan(share)
    return spinning, unused, gpus


def _mean(values: FloatArray) -> FloatArray:
    """Mean over the last axis of those that are known; NaN if none is."""
    size = values.shape[-1]
    if size == 1:
        return values[..., 0]
    means: FloatArray = np.add.reduce(values, axis=-1) / size
    if not math.isnan(np.add.reduce(means, axis=None)):
        return means
    known = np.isfinite(values)
    count = known.sum(axis=-1)
    of_known = np.where(known, values, 0.0).sum(axis=-1) / np.where(count, count, np.nan)
    return np.where(np.isnan(means), of_known, means)
