"""What a load shows when it is laid over itself: how alike it is a cycle later, and cycle upon cycle.

A multiple of a cycle repeats as well as the cycle does, and so may an equal part of it; what tells them apart is how
much of the likeness is their own. :class:`Autocorrelation` looks a period ahead, wherever a cycle starts;
:func:`fold_cycles` lays the cycles of a reading upon each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft

from gpusonde.epoch_detect.cycles.events import CycleReading, Load
from gpusonde.telemetry import FloatArray

_NOTHING = float("nan")
_NEAR = 0.02  # of a lag: what is most alike there counts
_OFF = (0.6, 0.9, 1.1, 1.4)  # periods, around which the load should be less alike
_PARTS = (2, 3, 4, 5, 6, 8)
_MULTIPLES = (2, 3, 4)
_BINS = 48  # of a cycle
_MOST_CYCLES = 240
_FEWEST_CYCLES = 3


@dataclass(frozen=True, kw_only=True)
class LikenessAhead:
    """How alike a load is a period later; NaN where a feature does not apply.

    Attributes:
        alike: Autocorrelation at the period.
        rise: By how much that is more than at lags a little off.
        beyond_part: By how much it is more than at equal parts of the period, at the best of them.
        of_multiple: By how much it is less than at multiples, at the best of them.
    """

    alike: float
    rise: float
    beyond_part: float
    of_multiple: float


class Autocorrelation:
    """Autocorrelation of a load, of all its metrics together."""

    def __init__(self, job: Load) -> None:
        """Compute it for all lags up to two thirds of the load."""
        rows = job.values - job.values.mean(axis=1, keepdims=True)
        n = rows.shape[1]
        size = next_fast_len(2 * n, real=True)
        product = irfft(np.abs(rfft(rows, size, axis=1)) ** 2, size, axis=1).sum(axis=0)[: max(2, 2 * n // 3)]
        sums = np.concatenate([[0.0], np.cumsum((rows**2).sum(axis=0))])
        lag = np.arange(product.size)
        power = np.sqrt(np.maximum(sums[n - lag] * (sums[n] - sums[lag]), 0.0))
        self._values: FloatArray = product / np.maximum(power, 1e-9)
        self._step_s = job.step_s

    def look_ahead(self, period_s: float) -> LikenessAhead:
        """Look a period ahead."""
        alike = self._at(period_s)
        off = [self._at(period_s * by, widest=False) for by in _OFF]
        parts = [self._at(period_s / by) for by in _PARTS if period_s >= 2 * by * self._step_s]
        multiples = [self._at(period_s * by) for by in _MULTIPLES]
        return LikenessAhead(
            alike=alike, rise=alike - _most(off), beyond_part=alike - _most(parts),
            of_multiple=_most(multiples) - alike,
        )  # fmt: skip

    def _at(self, lag_s: float, *, widest: bool = True) -> float:
        """Return the highest value near a lag, or that at the lag; NaN beyond the load."""
        lag = lag_s / self._step_s
        if lag + 1 >= self._values.size:
            return _NOTHING
        reach = max(1.0, _NEAR * lag) if widest else 0.0
        first, last = int(np.floor(lag - reach)), int(np.ceil(lag + reach))
        return float(self._values[max(1, first) : last + 1].max(initial=-1.0))


@dataclass(frozen=True, kw_only=True)
class LikenessOfCycles:
    """How alike the cycles of a reading are; NaN where they are fewer than three.

    Attributes:
        explained: Share of the variance that the other cycles predict of each.
        own: Share of that which no equal part of the cycle predicts as well.
        next_like: Likeness of what is left of a cycle and of the one after it.
        later_like: The same of cycles that lie two to six apart, where it is most.
    """

    explained: float
    own: float
    next_like: float
    later_like: float


def fold_cycles(job: Load, reading: CycleReading) -> LikenessOfCycles:
    """Lay the cycles of a reading upon each other, each stretched to one length."""
    starts = (reading.starts_s - job.start_s) / job.step_s
    if starts.size < _FEWEST_CYCLES + 1:
        starts = np.arange(0.0, len(job), reading.period_s / job.step_s)
    starts = starts[(starts >= 0) & (starts <= len(job))][: _MOST_CYCLES + 1]
    count = starts.size - 1
    if count < _FEWEST_CYCLES:
        return LikenessOfCycles(explained=_NOTHING, own=_NOTHING, next_like=_NOTHING, later_like=_NOTHING)
    share = np.arange(_BINS + 1) / _BINS
    edges = starts[:-1, None] + np.diff(starts)[:, None] * share
    cells = np.arange(len(job) + 1)
    folded = []
    for row in job.values:
        sums = np.concatenate([[0.0], np.cumsum(row)])
        bins = np.diff(np.interp(edges, cells, sums), axis=1) / np.maximum(np.diff(edges, axis=1), 1e-9)
        folded.append(bins - bins.mean())
    wave = np.fft.rfft(np.array(folded), axis=2)[:, :, 1:]  # without the mean of each cycle: drift is no cycle
    weight = np.full(wave.shape[2], 2.0)
    weight[-1] = 1.0
    others = (wave.sum(axis=1, keepdims=True) - wave) / (count - 1)
    common = (np.real(wave * others.conj()).sum(axis=(0, 1))) * weight
    total = float((np.abs(wave) ** 2).sum(axis=(0, 1)) @ weight)
    predicted = float(common.sum())
    harmonic = np.arange(1, weight.size + 1)
    own = [float(common[harmonic % part != 0].sum()) for part in _PARTS]
    left = wave - wave.mean(axis=1, keepdims=True)
    size = float((np.abs(left) ** 2 @ weight).sum()) / count + 1e-12
    like = [
        float((np.real(left[:, lag:] * left[:, :-lag].conj()) @ weight).sum()) / (count - lag) / size
        for lag in range(1, min(7, count))
    ]
    return LikenessOfCycles(
        explained=predicted / (total + 1e-12),
        own=min(own) / max(predicted, 0.02 * total, 1e-12),
        next_like=like[0],
        later_like=_most(like[1:]),
    )


def _most(values: list[float]) -> float:
    seen = [value for value in values if not np.isnan(value)]
    return max(seen) if seen else _NOTHING
