"""``OtherTempo``: whether the cycles of a level have given way to others that take far longer.

Who follows cycles one by one looks for the next where it is due, and finds none where they take half as long again.
Whether ticks repeat after that time, and after the usual one no more, says their autocorrelation.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.fft import next_fast_len
from scipy.ndimage import uniform_filter1d

from gpusonde.epoch_detect.stored import read_as
from gpusonde.telemetry import FloatArray

_PERIODS, _WINDOW_S = 16.0, 60.0  # that are looked at, the longer
_EVERY_PERIODS, _EVERY_S = 2.0, 15.0  # between two looks, the longer
_SHORTEST, _LEAST, _MOST = 0.3, 1.4, 3.3  # times the usual period: what is looked at, and what the other tempo may be
_USUAL = 0.12  # by which a period differs at most that is the usual one
_REPEATS, _NO_MORE = 0.5, 0.6  # correlation at the other tempo; share of it that the usual one may have
_GONE = 0.25  # the same of a multiple of the usual one
_AS_WELL = 0.8  # share of the highest correlation that is as good
_MULTIPLE = 0.03  # by which a multiple of the usual period differs at most
_SAME = 0.1  # by which two looks may differ
_NEWER = 0.2  # weight of a look in the period
_SILENT_WINDOWS = 2.0  # without either tempo, after which nothing is known any more
_TINY = 1e-30


class OtherTempo:
    """Looks at the latest cells of a job's ticks now and then; memory is bounded by how many of them are in a cycle.

    Args:
        period_s: Usual period of the cycles.
        cell_s: Usual distance of cells.

    Attributes:
        period_s: What the ticks repeat after instead; NaN while they do after the usual period, or after none.
        since_s: Since about when they do.
        longest_s: Longest stretch of another tempo that the job came back from.
    """

    def __init__(self, period_s: float, cell_s: float) -> None:
        self._usual_s, self._cell_s = period_s, cell_s
        self._window_s = max(_PERIODS * period_s, _WINDOW_S)
        self._every_s = max(_EVERY_PERIODS * period_s, _EVERY_S)
        self._parts: list[tuple[FloatArray, FloatArray]] = []  # times, rows
        self._next_s = -math.inf
        self._seen_s = math.nan
        self.period_s, self.since_s, self.longest_s = math.nan, math.nan, 0.0

    @property
    def earliest_s(self) -> float:
        """Since when they may."""
        return self.since_s - self._window_s

    @property
    def lasts_s(self) -> float:
        """For how long it is known to last; 0 where there is none."""
        return 0.0 if math.isnan(self.period_s) else self._seen_s - self.since_s

    def update(self, time_s: FloatArray, rows: FloatArray) -> None:
        """Take cells.

        Args:
            time_s: Shape (n,), increasing, behind those before.
            rows: Shape (metrics, n), without NaN.
        """
        self._parts.append((time_s, rows))
        now_s = float(time_s[-1])
        if now_s < self._next_s:
            return
        self._next_s = now_s + self._every_s
        time_s, rows = (np.concatenate(part, axis=-1) for part in zip(*self._parts, strict=True))
        first = int(np.searchsorted(time_s, now_s - self._window_s))
        time_s, rows = time_s[first:], rows[:, first:]
        self._parts = [(time_s, rows)]
        # Behind a restart nothing is said before a window is full again.
        if now_s - time_s[0] > self._window_s - self._every_s:
            self._look(time_s, rows)

    def _look(self, time_s: FloatArray, rows: FloatArray) -> None:
        now_s = float(time_s[-1])
        usual, other, period_s = self._repeats(time_s, rows)
        # Others that are longer by less are followed one by one; what repeats sooner does so after its multiples, too.
        times = period_s / self._usual_s
        # Cycles of which each second one looks otherwise repeat a little after the usual period still.
        is_multiple = abs(times / max(round(times), 1) - 1) < _MULTIPLE
        is_other = other >= _REPEATS and usual < (_GONE if is_multiple else _NO_MORE) * other and times > _LEAST
        if is_other and abs(period_s / self.period_s - 1) < _SAME:
            self._seen_s = now_s
            self.period_s += _NEWER * (period_s - self.period_s)
        elif is_other:
            self.period_s, self.since_s, self._seen_s = period_s, now_s - self._window_s / 2, now_s
        elif math.isfinite(self.period_s) and (
            usual >= _REPEATS or now_s - self._seen_s > _SILENT_WINDOWS * self._window_s
        ):
            self.longest_s = max(self.longest_s, self.lasts_s)
            self.period_s = math.nan

    def _repeats(self, time_s: FloatArray, rows: FloatArray) -> tuple[float, float, float]:
        """How well the ticks repeat after the usual period, after the best other one, and that one."""
        cells = np.arange(time_s[0], time_s[-1], self._cell_s)
        rows = np.array([np.interp(cells, time_s, row) for row in rows])
        size, last = rows.shape[1], round(_MOST * self._usual_s / self._cell_s)
        # What changes more slowly than any of these cycles is no cycle.
        rows = rows - uniform_filter1d(rows, 2 * last + 1, axis=1)
        padded = next_fast_len(size + last + 2, real=True)
        power = np.abs(np.fft.rfft(rows, padded, axis=1)) ** 2
        repeats = np.fft.irfft(power, padded, axis=1)[:, : last + 2] / np.arange(size, size - last - 2, -1)
        repeats = repeats / np.maximum(repeats[:, :1], _TINY)
        lags = np.arange(last + 2) * self._cell_s / self._usual_s
        is_usual = np.abs(lags - 1) < max(_USUAL, 1.01 * self._cell_s / self._usual_s)
        is_peak = np.zeros(repeats.shape, dtype=bool)
        is_peak[:, 1:-1] = (repeats[:, 1:-1] >= repeats[:, :-2]) & (repeats[:, 1:-1] >= repeats[:, 2:])
        peaks = np.where(is_peak & (lags > _SHORTEST) & ~is_usual, repeats, 0.0)
        row = int(peaks.max(axis=1).argmax())
        best = float(peaks[row].max())
        at = int((peaks[row] >= _AS_WELL * best).argmax())
        left, middle, right = repeats[row, max(at - 1, 0) : at + 2].tolist() if at else (0.0, 0.0, 0.0)
        bend = left - 2 * middle + right
        between = 0.5 * (left - right) / bend if bend < 0 else 0.0
        return float(repeats[:, is_usual].max()), best, (at + between) * self._cell_s

    def fields(self) -> list[float | None]:
        """What another one needs to go on here, for JSON."""
        known = (self.period_s, self.since_s, self._seen_s, self.longest_s)
        return [each if math.isfinite(each) else None for each in known]

    def take_fields(self, fields: Any) -> None:
        """Inverse of :meth:`fields`."""
        known = [math.nan if each is None else each for each in read_as(list[float | None], fields)]
        self.period_s, self.since_s, self._seen_s, self.longest_s = known
