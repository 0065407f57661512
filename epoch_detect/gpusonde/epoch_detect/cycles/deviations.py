"""GPUs of a job that do not do what the others do: idle, behind or ahead, or at something else."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.ndimage import uniform_filter1d

from gpusonde.epoch_detect.cycles.events import Load
from gpusonde.epoch_detect.result import Deviation
from gpusonde.telemetry import FloatArray

_LEAST_DEVICES = 2
_IDLE = 0.2  # of the mean load of the others
_SMOOTHED = 1 / 16  # of a cycle
_UNLIKE = 0.3  # correlation with the others, where most of them correlate
_COHERENT = 0.6
_LEAST_LAG = 2.0  # cells
_LAG_SHARE = 0.03  # of a cycle
_CLEARER = 0.1  # by how much the correlation must be better with the lag
_MISSING = 0.5  # of the usual correlation of a cycle


def find_deviations(names: Sequence[str], devices: Sequence[Load], period_s: float) -> tuple[Deviation, ...]:
    """Name the GPUs that do not do what the others do.

    Args:
        names: Of the GPUs.
        devices: What each does, on one grid.
        period_s: Of the cycle to compare; NaN if none is known.
    """
    if len(devices) < _LEAST_DEVICES or not np.isfinite(period_s):
        return ()
    period = period_s / devices[0].step_s
    loads = np.array([d.values.mean(axis=0) for d in devices])
    busy = loads.mean(axis=1)
    smooth = uniform_filter1d(loads, max(1, int(_SMOOTHED * period)), axis=1, mode="nearest")
    smooth -= uniform_filter1d(smooth, min(smooth.shape[1], max(3, int(3 * period))), axis=1, mode="nearest")
    others = (smooth.sum(axis=0) - smooth) / (len(devices) - 1)
    reach = int(min(0.5 * period, smooth.shape[1] // 4))
    found, alike = [], [_correlate(row, rest, 0) for row, rest in zip(smooth, others, strict=True)]
    coherent = float(np.median(alike)) >= _COHERENT
    for i, name in enumerate(names):
        if busy[i] < _IDLE * float(np.median(np.delete(busy, i))):
            found.append(Deviation(name, "idle", float(busy[i])))
            continue
        if not coherent:
            continue
        by_lag = [_correlate(smooth[i], others[i], lag) for lag in range(-reach, reach + 1)]
        lag = int(np.argmax(by_lag)) - reach
        best = max(by_lag)
        if best < _UNLIKE:
            found.append(Deviation(name, "unlike", best))
        elif abs(lag) > max(_LEAST_LAG, _LAG_SHARE * period) and best > alike[i] + _CLEARER:
            found.append(Deviation(name, "lag", lag * devices[0].step_s))
        elif (missing := _count_missing(smooth[i], others[i], period)) > 0:
            found.append(Deviation(name, "missing", float(missing)))
    return tuple(found)


def _correlate(one: FloatArray, other: FloatArray, lag: int) -> float:
    """Correlation of one with another that is ``lag`` cells later, -1..1."""
    n = one.size
    a, b = one[max(0, lag) : n + min(0, lag)], other[max(0, -lag) : n + min(0, -lag)]
    return float(a @ b / (np.sqrt((a @ a) * (b @ b)) + 1e-12))


def _count_missing(one: FloatArray, other: FloatArray, period: float) -> int:
    """How many cycles the others have where this one has none."""
    cycles = int(one.size / period)
    edges = np.round(np.arange(cycles + 1) * period).astype(np.int64)
    alike = np.add.reduceat(one * other, edges[:-1])
    size = np.add.reduceat(other * other, edges[:-1])
    present = size > 0.5 * np.median(size)
    return int((present & (alike < (1 - _MISSING) * 0.5 * size)).sum())
