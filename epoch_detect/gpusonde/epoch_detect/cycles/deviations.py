"""GPUs of a job that do not do what the others do: idle, behind or ahead, or at something else."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft
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
    by_lag = _correlate(smooth, others, reach)
    found, alike = [], by_lag[:, reach]
    coherent = float(np.median(alike)) >= _COHERENT
    for i, name in enumerate(names):
        if busy[i] < _IDLE * float(np.median(np.delete(busy, i))):
            found.append(Deviation(name, "idle", float(busy[i])))
            continue
        if not coherent:
            continue
        lag = int(np.argmax(by_lag[i])) - reach
        best = float(by_lag[i].max())
        if best < _UNLIKE:
            found.append(Deviation(name, "unlike", best))
        elif abs(lag) > max(_LEAST_LAG, _LAG_SHARE * period) and best > alike[i] + _CLEARER:
            found.append(Deviation(name, "lag", lag * devices[0].step_s))
        elif (missing := _count_missing(smooth[i], others[i], period)) > 0:
            found.append(Deviation(name, "missing", float(missing)))
    return tuple(found)


def _correlate(ones: FloatArray, others: FloatArray, reach: int) -> FloatArray:
    """Correlate rows with others that lag behind, -1..1; shape (rows, 2 reach + 1), from ``-reach`` cells on.

    Args:
        ones: Shape (rows, cells).
        others: Shape (rows, cells).
        reach: Largest lag in cells.
    """
    n, lags = ones.shape[1], np.arange(-reach, reach + 1)
    size = next_fast_len(n + reach, real=True)
    common = irfft(rfft(ones, size) * np.conj(rfft(others, size)), size)[:, lags]
    sums = [np.pad(np.cumsum(rows**2, axis=1), ((0, 0), (1, 0))) for rows in (ones, others)]
    late, early = np.maximum(lags, 0), np.maximum(-lags, 0)
    energy = (sums[0][:, n - early] - sums[0][:, late]) * (sums[1][:, n - late] - sums[1][:, early])
    return np.asarray(common / (np.sqrt(energy) + 1e-12))


def _count_missing(one: FloatArray, other: FloatArray, period: float) -> int:
    """How many cycles the others have where this one has none."""
    cycles = int(one.size / period)
    edges = np.round(np.arange(cycles + 1) * period).astype(np.int64)
    alike = np.add.reduceat(one * other, edges[:-1])
    size = np.add.reduceat(other * other, edges[:-1])
    present = size > 0.5 * np.median(size)
    return int((present & (alike < (1 - _MISSING) * 0.5 * size)).sum())
