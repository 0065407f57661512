"""``Rhythm``: how often one GPU must be read so that the period of what it does stays known within 1 %.

Two things bound the distance between readings, and neither needs epochs to be known:

* **Age.** A period that was seen ``n`` times is known to about ``0.4 * distance / (n * period)``, which is ``0.4 *
  distance / age``: readings may lie a seventy-fifth of the time apart that has passed since the job began or changed.
* **Cycles.** The shortest cycle that matters keeps ten readings: one that repeats, and in which nearly a third of
  the variance lies. Weaker ripple within training steps is not kept.

A change begins a new age, at full rate: a value beyond all that the job showed, or a cycle that does not repeat the one
before it (compared with some play, as no epoch is exactly as long as the last).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gpusonde.telemetry import FloatArray

# Multiples of the interval at full rate.
STEPS = (1, 2, 3, 4, 5, 7, 10, 14, 20, 28)
# Whatever is known: beyond it, work that begins would be seen late.
SLOWEST_S = 2.8
_SLOWEST_IDLE_S = 1.0  # a job may begin

_READINGS_PER_AGE = 75.0
_READINGS_PER_CYCLE = 10.0
# A cycle repeats where the correlation with itself one period later is at least this.
_COHERENT = 0.5
# Share of the variance in what is faster, above which that matters.
_MATTERS = 0.3
# The same for what is faster than eight readings: steps within it blur the repetition.
_REPEATS = 0.3
_WIDTHS = 20  # of ten readings, in which it is looked for
_HELD = 0.35  # of the age, after it was seen
# Kept readings; when they are full, every other one of the older half goes.
_KEPT = 1024
_COARSE = 2.5  # distances between readings
_LEAST_CELLS = 16  # of a correlation
_LOOK_S = 1.0
# The period is estimated anew after so much more of the age.
_NEWS = 0.1
_PLAY = 0.1  # of a period
# Squared difference from the cycle before, over the variance: a change is beyond that of the cycles until then times
# the first, and the second more.
_UNUSUAL = 3.0
_CHANGED = 0.09
_BEYOND = 0.3  # of the range seen so far
_LEAST_RANGE = 0.05  # of the largest value: below it a metric is constant
_LEAST_RATIO = 0.02  # and for those that are near 0
_IDLE = 0.02  # of the first metric
_IDLE_PER_AGE = 10.0  # there is no period to lose
_SHORTEST_S = 1.5  # of the cycles that are compared; what is shorter is ripple, and wanders
# Doing next to nothing for so long, and for this share of the age, ends a job: the next is to be seen as a change.
_STILL_S = 20.0
_STILL_RANGE = 0.1
_STILL = 0.25
_SETTLING_S = 5.0  # the range is learnt; what lies beyond it afterwards is news


class Rhythm:
    """Follows one GPU's activity and says how far apart its readings may lie.

    Args:
        interval_s: Distance at full rate.
        columns: How many metrics are followed.
        slowest_s: Largest distance.
    """

    def __init__(self, interval_s: float, columns: int, slowest_s: float = SLOWEST_S) -> None:
        self._full_s = interval_s
        self._steps = [step for step in STEPS if step * interval_s <= slowest_s * (1 + 1e-9)] or [1]
        self._times = np.empty(_KEPT)
        self._values = np.empty((columns, _KEPT))
        self._count = 0
        self._low = np.full(columns, math.inf)
        self._high = np.full(columns, -math.inf)
        self._step = 0
        self._since_s = math.nan
        self._looked_s = -math.inf
        self._estimated_age_s = 0.0
        self._beyond = 0
        self._held_until_s = -math.inf
        self._suspected: tuple[float, float, float] | None = None
        self._excused = 0.0
        self.period_s: float | None = None
        self._usual = 0.0
        self.changes = 0

    @property
    def interval_s(self) -> float:
        """Seconds until the next reading; what lies beyond all else is looked at again at once."""
        return self._full_s if self._beyond else self._here_s

    @property
    def _here_s(self) -> float:
        return self._full_s * self._steps[self._step]

    def see(self, now_s: float, values: Sequence[float] | FloatArray) -> None:
        """Take a reading; one with a missing value says nothing.

        Args:
            now_s: When, monotonic clock.
            values: One for each metric.
        """
        row = np.asarray(values, dtype=np.float64)
        if not np.isfinite(row).all():
            return
        if not self._count:
            self._since_s = now_s
        self._keep(now_s, row)
        if self._is_beyond(row) and now_s - self._since_s > _SETTLING_S:
            self._beyond += 1
            if self._beyond > 1:
                self._begin_anew(now_s)
        else:
            self._beyond = 0
        if not self._beyond:
            self._low, self._high = np.minimum(self._low, row), np.maximum(self._high, row)
        if now_s - self._looked_s >= _LOOK_S and len(self._steps) > 1:
            self._looked_s = now_s
            self._look(now_s)

    def _keep(self, now_s: float, row: FloatArray) -> None:
        if self._count == _KEPT:
            half = _KEPT // 2
            kept = np.concatenate([np.arange(0, half, 2), np.arange(half, _KEPT)])
            self._count = kept.size
            self._times[: kept.size] = self._times[kept]
            self._values[:, : kept.size] = self._values[:, kept]
        self._times[self._count] = now_s
        self._values[:, self._count] = row
        self._count += 1

    def _is_beyond(self, row: FloatArray) -> bool:
        if self._count == 1:
            return False
        margin = np.maximum(_BEYOND * (self._high - self._low), self._least_range())
        return bool(((row > self._high + margin) | (row < self._low - margin)).any())

    def _begin_anew(self, now_s: float) -> None:
        """A new age begins: full rate, and what came before says nothing of the period."""
        self.changes += 1
        self._suspected = None
        self._since_s = now_s
        self._held_until_s = -math.inf
        self._step = 0
        self._beyond = 0
        self._low = np.minimum(self._low, self._values[:, self._count - 1])
        self._high = np.maximum(self._high, self._values[:, self._count - 1])
        self._times[0] = now_s
        self._values[:, 0] = self._values[:, self._count - 1]
        self._count = 1
        self.period_s = None
        self._estimated_age_s = 0.0

    def _look(self, now_s: float) -> None:
        age_s = now_s - self._since_s
        if age_s < _SETTLING_S:
            return
        rows = self._varying()
        if rows.any() and self._stands_still(now_s, age_s):
            self._low, self._high = np.full_like(self._low, math.inf), np.full_like(self._high, -math.inf)
            self._begin_anew(now_s)
            return
        is_idle = not rows.any() and self._high[0] <= _IDLE
        per_age = _IDLE_PER_AGE if is_idle else _READINGS_PER_AGE
        if self.period_s is not None and rows.any():
            difference = self._difference(now_s, self.period_s, rows)
            if difference > max(_UNUSUAL * self._usual + _CHANGED, self._excused):
                suspected = (self.period_s, self._since_s, difference)
                self._begin_anew(now_s)
                self._suspected = suspected
                return
        if age_s >= (1 + _NEWS) * self._estimated_age_s:
            self._estimated_age_s = age_s
            self._estimate(now_s, rows)
        while self._step + 1 < len(self._steps):
            slower_s = self._full_s * self._steps[self._step + 1]
            if age_s < per_age * slower_s or (is_idle and slower_s > _SLOWEST_IDLE_S) or now_s < self._held_until_s:
                break
            if rows.any() and self._needs(now_s, slower_s, rows):
                # What repeats does not always do so clearly.
                self._held_until_s = now_s + _HELD * age_s
                break
            self._step += 1

    def _varying(self) -> npt.NDArray[np.bool_]:
        varies: npt.NDArray[np.bool_] = self._high - self._low > self._least_range()
        return varies

    def _stands_still(self, now_s: float, age_s: float) -> bool:
        still_s = max(_STILL_S, _STILL * age_s)
        if age_s < still_s:
            return False
        recent = self._values[:, np.searchsorted(self._times[: self._count], now_s - still_s) : self._count]
        lowest = self._low + np.maximum(_STILL_RANGE * (self._high - self._low), self._least_range())
        return bool((recent <= lowest[:, None]).all())

    def _least_range(self) -> FloatArray:
        least: FloatArray = np.maximum(_LEAST_RANGE * np.abs(self._high), _LEAST_RATIO)
        return least

    def _grid(self, begin_s: float, end_s: float, step_s: float, rows: npt.NDArray[np.bool_]) -> FloatArray:
        """Return the kept readings at even distances, shape (metrics, n), scaled by their ranges."""
        times = np.arange(begin_s, end_s + 0.5 * step_s, step_s)
        kept = self._times[: self._count]
        scale = (self._high - self._low)[rows]
        even = np.array([np.interp(times, kept, row[: self._count]) for row in self._values[rows]])
        return np.asarray(even / scale[:, None])

    def _needs(self, now_s: float, slower_s: float, rows: npt.NDArray[np.bool_]) -> bool:
        """Whether a cycle that matters would have too few readings at a slower rate."""
        width_s = _READINGS_PER_CYCLE * slower_s
        if self.period_s is not None and self.period_s < width_s:
            return True
        step_s = self._here_s
        begin_s = max(self._times[0], now_s - _WIDTHS * width_s)
        values = self._grid(begin_s, now_s, step_s, rows)
        width = round(width_s / step_s)
        if values.shape[1] < 3 * width:
            return True
        slow = _moving_mean(values, width)
        fast = values[:, width // 2 : width // 2 + slow.shape[1]] - slow
        # How the job came up is not what it does.
        half_s = 0.5 * (now_s - float(self._times[0]))
        wide = self._grid(min(now_s - half_s, begin_s), now_s, max(step_s, half_s / 512), rows)
        for row, whole in zip(fast, wide, strict=True):
            if row.var() < _MATTERS * max(whole.var(), row.var()):
                continue
            if _period_cells(_correlate(row[None], width + 2), _REPEATS) is not None:
                return True
        return False

    def _estimate(self, now_s: float, rows: npt.NDArray[np.bool_]) -> None:
        if not rows.any():
            return
        # What was thinned since is too coarse for a cycle that is short beside it.
        kept = self._times[: self._count]
        coarse = np.flatnonzero(np.diff(kept) > _COARSE * self._here_s)
        begin_s = float(kept[coarse[-1] + 1] if coarse.size else kept[0])
        step_s = max(self._here_s, (now_s - begin_s) / _KEPT)
        values = self._grid(begin_s, now_s, step_s, rows)
        if values.shape[1] < _LEAST_CELLS:
            return
        cells = _period_cells(_correlate(values, int(values.shape[1] / 2.2)), _COHERENT)
        if cells is not None and cells * step_s >= max(_SHORTEST_S, 4 * self._here_s):
            self.period_s = cells * step_s
            if self._suspected is not None and abs(self.period_s / self._suspected[0] - 1) < _PLAY:
                # The same tempo as before: an odd cycle was no change, and the next such is none either.
                self._since_s, self._excused = self._suspected[1], 1.5 * self._suspected[2]
            elif self._suspected is not None:
                self._excused = 0.0
            self._suspected = None
            # Not of the last cycle: that may be the first after a change.
            earlier = (now_s - back * self.period_s for back in (1.0, 4 / 3, 5 / 3))
            self._usual = max(self._difference(then_s, self.period_s, rows) for then_s in earlier)

    def _difference(self, now_s: float, period_s: float, rows: npt.NDArray[np.bool_]) -> float:
        """Return by how much the last cycle differs from the one before it, over the variance; 0 while unknown."""
        play_s = max(_PLAY * period_s, 2 * self._here_s)
        step_s = max(self._here_s, period_s / 64)
        cells, play = round(period_s / step_s), math.ceil(play_s / step_s)
        begin_s = now_s - (2 * cells + play) * step_s
        if begin_s < self._times[0]:
            return 0.0
        values = self._grid(begin_s, now_s, step_s, rows)[:, -(2 * cells + play + 1) :]
        last = values[:, -cells:]
        before = np.lib.stride_tricks.sliding_window_view(values[:, : cells + 2 * play + 1], 2 * play + 1, axis=1)
        before = before[:, -cells:]
        off = np.maximum(last - before.max(axis=2), 0) + np.maximum(before.min(axis=2) - last, 0)
        variance = values[:, : cells + play].var(axis=1)
        useful = variance > 1e-4
        return float(((off**2).mean(axis=1)[useful] / variance[useful]).max(initial=0.0))


def _moving_mean(values: FloatArray, width: int) -> FloatArray:
    sums = np.cumsum(np.pad(values, ((0, 0), (1, 0))), axis=1)
    return np.asarray((sums[:, width:] - sums[:, :-width]) / width)


def _correlate(values: FloatArray, lags: int) -> FloatArray:
    """Return the unbiased autocorrelation, metrics weighted by their variance, shape (lags,)."""
    n = values.shape[1]
    centred = values - values.mean(axis=1, keepdims=True)
    size = 1 << (2 * n - 1).bit_length()
    raw = np.fft.irfft((np.abs(np.fft.rfft(centred, size)) ** 2).sum(axis=0), size)[:lags]
    return np.asarray(raw / max(float(raw[0]), 1e-30) * n / (n - np.arange(lags)))


def _period_cells(correlation: FloatArray, coherent: float) -> float | None:
    """Return the lag of the first peak that is nearly the highest and at least ``coherent``; None without one."""
    inner = correlation[1:-1]
    valleys = np.flatnonzero((inner <= correlation[:-2]) & (inner < correlation[2:])) + 1
    low = np.flatnonzero(correlation < 0.5 * coherent)
    if not valleys.size or not low.size:
        return None
    peaks = np.flatnonzero((inner > correlation[:-2]) & (inner >= correlation[2:])) + 1
    peaks = peaks[(peaks > low[0]) & (correlation[peaks] >= coherent)]
    if not peaks.size:
        return None
    first = int(peaks[correlation[peaks] >= 0.75 * correlation[peaks].max()][0])
    left, top, right = correlation[first - 1 : first + 2]
    bend = left - 2 * top + right
    return first + (0.5 * float((left - right) / bend) if bend else 0.0)
