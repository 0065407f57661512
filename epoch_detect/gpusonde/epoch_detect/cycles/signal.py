"""From ticks to a uniform, scaled signal at several resolutions.

Its order statistics are its own: NumPy's spend ten times as long on bookkeeping, thousands of times a trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.ndimage import uniform_filter1d

from gpusonde.epoch_detect.ticks import (
    Ticks,
    active_ticks,
    has_several_rates,
    measure_closest_step,
    measure_seen_seconds,
)
from gpusonde.telemetry import FloatArray, Unit, metric

_LONG = 512  # values beyond which a partition is faster than a sort


def median(values: npt.NDArray[np.floating] | npt.NDArray[np.integer]) -> float:
    """Median of all values, at least one and none of them NaN; the same as ``numpy.median``."""
    below, above = (values.size - 1) // 2, values.size // 2
    ordered = np.partition(values, (below, above), axis=None) if values.size > _LONG else np.sort(values, axis=None)
    return 0.5 * (float(ordered[below]) + float(ordered[above]))


def percentiles(values: npt.NDArray[np.floating], percents: Sequence[float]) -> list[float]:
    """Values that so many percent do not exceed, of at least one value and none of them NaN; ``numpy.percentile``'s."""
    ordered = np.sort(values, axis=None)
    found = []
    for percent in percents:
        place = percent / 100 * (ordered.size - 1)
        below = int(place)
        low, high = ordered[below], ordered[min(below + 1, ordered.size - 1)]
        part = place - below
        found.append(float(low + (high - low) * part if part < 0.5 else high - (high - low) * (1 - part)))
    return found


def medians(rows: FloatArray) -> FloatArray:
    """Median of every row, none of whose values is NaN; shape (rows,), the same as ``numpy.median``."""
    below, above = (rows.shape[1] - 1) // 2, rows.shape[1] // 2
    ordered = np.partition(rows, (below, above), axis=1) if rows.shape[1] > _LONG else np.sort(rows, axis=1)
    return np.asarray(0.5 * (ordered[:, below] + ordered[:, above]))


_CELLS_PER_TICK = 4  # at most; a trace with long holes or mixed rates gets a coarser grid instead of a longer one
_LEAST_SAMPLES = 24  # shortest signal that a level may have
_FAINT = 0.01  # of the variance


@dataclass(frozen=True)
class Signal:
    """Scaled metrics on a uniform grid.

    Attributes:
        start_s: Time of the left edge of the first cell, in seconds after the first tick.
        step_s: Width of a cell in seconds.
        values: Shape (metrics, cells), scaled so that each metric's usual range has width 1.
        rows: For each row of ``values`` the index of its metric in the ticks.
        zeros: For each row where its zero lies; NaN if its idle level is unknown, or if the zero means nothing.
    """

    start_s: float
    step_s: float
    values: FloatArray
    rows: tuple[int, ...]
    zeros: tuple[float, ...]

    def __len__(self) -> int:
        return int(self.values.shape[1])

    def choose(self, rows: tuple[int, ...]) -> Signal:
        """Return the same of some of its metrics."""
        places = [self.rows.index(row) for row in rows]
        return replace(self, values=self.values[places], rows=rows, zeros=tuple(self.zeros[i] for i in places))

    def halved(self) -> Signal:
        """Average neighbouring cells; an odd last cell is left out."""
        cells = len(self) // 2
        values = 0.5 * (self.values[:, : 2 * cells : 2] + self.values[:, 1 : 2 * cells : 2])
        return Signal(self.start_s, 2 * self.step_s, values, self.rows, self.zeros)

    def halved_widely(self) -> Signal:
        """The same, with a quarter of the weight on the neighbours of those cells."""
        cells = np.pad(self.values, ((0, 0), (1, 2)), mode="edge")
        left, own, other, right = (cells[:, i : i + len(self) : 2] for i in range(4))
        wide = 0.125 * (left + right) + 0.375 * (own + other)
        return replace(self.halved(), values=wide[:, : len(self) // 2])


def resample_ticks(ticks: Ticks) -> tuple[float, FloatArray]:
    """Average ticks over cells as wide as their usual spacing; empty cells are interpolated.

    Where an agent read at several rates, cells are half as wide as the spacing that held for half of the working time,
    and a tick stands in the middle of the time since the one before, over which most sources give averages.

    Returns:
        Cell width in seconds, and the values, shape (metrics, cells), NaN for a metric without any value. The first
        cell is centred on the first tick.
    """
    time_s = (ticks.time_us - ticks.time_us[0]) * 1e-6
    span = float(time_s[-1])
    usual = median(np.diff(time_s))
    step = max(usual, span / (_CELLS_PER_TICK * len(ticks)))
    if has_several_rates(time_s):
        seen_s = measure_seen_seconds(time_s)
        while_active_s = np.sort(seen_s[active_ticks(ticks)])
        total_s = np.cumsum(while_active_s)
        if total_s.size and total_s[-1] > 0:
            step = max(step, 0.5 * float(while_active_s[np.searchsorted(total_s, 0.5 * total_s[-1])]))
        time_s = time_s - 0.5 * np.maximum(seen_s - measure_closest_step(time_s, usual), 0.0)
    cells = int(span / step + 0.5) + 1
    cell = np.minimum((time_s / step + 0.5).astype(np.int64), cells - 1)
    grid = np.full((len(ticks.names), cells), np.nan)
    for row, column in zip(grid, ticks.values.astype(np.float64), strict=True):
        finite = np.isfinite(column)
        counts = np.bincount(cell[finite], minlength=cells)
        sums = np.bincount(cell[finite], weights=column[finite], minlength=cells)
        filled = np.flatnonzero(counts)
        if filled.size == cells:
            row[:] = sums / counts
        elif filled.size:
            row[:] = np.interp(np.arange(cells), filled, sums[filled] / counts[filled])
    return step, grid


def scale_signal(ticks: Ticks) -> Signal | None:
    """Resample and scale; None if no metric varies.

    Each metric is divided by the distance between its 2nd and 98th percentile and cut off a little beyond them, so that
    a spike at start-up does not set the scale.
    """
    step, grid = resample_ticks(ticks)
    rows, values, zeros = [], [], []
    for index, row in enumerate(grid):
        if not np.isfinite(row[0]):
            continue
        low, middle, high = percentiles(row, (2, 50, 98))
        spread = high - low
        if spread <= 1e-4 * max(abs(low), abs(high)) or spread < 1e-9:
            continue
        values.append((np.clip(row, low - 0.25 * spread, high + 0.25 * spread) - middle) / spread)
        rows.append(index)
        has_zero = metric(ticks.names[index]).unit in (Unit.RATIO, Unit.BYTES_PER_SECOND)
        zeros.append(-float(middle) / float(spread) if has_zero else float("nan"))
    return Signal(-0.5 * step, step, np.array(values), tuple(rows), tuple(zeros)) if rows else None


def pyramid(signal: Signal) -> list[Signal]:
    """The signal at its own resolution and at 1/2, 1/4, ... of it, as long as three cycles could fit.

    Cells beat with cycles that are shorter: the mean over 409.6 s of cycles of 200.7 s goes up and down every 10,000 s.
    Where hardly anything but such a beat may be left, cells reach over their neighbours, too, and beat far less.
    """
    levels, wide = [signal], signal
    power = signal.values.var(axis=1)
    while len(levels[-1]) >= 4 * _LEAST_SAMPLES:
        plain, wide = levels[-1].halved(), wide.halved_widely()
        is_faint = (plain.values.var(axis=1) < _FAINT * power).all()
        levels.append(wide if is_faint else plain)
    return levels


def smooth(values: FloatArray, width: int) -> FloatArray:
    """Moving average over ``width`` cells along the last axis."""
    return uniform_filter1d(values, width, axis=-1, mode="nearest") if width > 1 else values


def remove_trend(values: FloatArray, width: int) -> FloatArray:
    """Subtract the moving average over ``width`` cells, which leaves what varies faster than that."""
    return values - uniform_filter1d(values, min(width, values.shape[-1]), axis=-1, mode="nearest")


def changes(values: FloatArray, width: int) -> FloatArray:
    """Difference of the means over the ``width`` cells after and before each cell's left edge, without outliers."""
    sums = np.concatenate([np.zeros((values.shape[0], 1)), np.cumsum(values, axis=1)], axis=1)
    n = values.shape[1]
    here = np.arange(n)
    left, right = np.maximum(here - width, 0), np.minimum(here + width, n)
    before = (sums[:, here] - sums[:, left]) / np.maximum(here - left, 1)
    difference = (sums[:, right] - sums[:, here]) / (right - here) - before
    difference[:, 0] = 0.0
    for row in difference:
        low, high = percentiles(row, (1, 99))
        np.clip(row, 1.2 * min(low, 0.0), 1.2 * max(high, 0.0), out=row)
    return np.asarray(difference)


def autocorrelate(values: FloatArray, lags: int) -> FloatArray:
    """Unbiased autocorrelation, averaged over the metrics.

    Args:
        values: Shape (metrics, n), without trend.
        lags: Number of lags to return, at most n.

    Returns:
        Shape (lags,); 1 at lag 0.
    """
    n = values.shape[1]
    size = fast_length(n + lags)
    power = np.abs(np.fft.rfft(values - values.mean(axis=1, keepdims=True), size)) ** 2
    raw = np.fft.irfft(power, size)[:, :lags]
    zero = np.maximum(raw[:, :1], 1e-30)
    unbiased: npt.NDArray[np.float64] = (raw / zero).mean(axis=0) * n / (n - np.arange(lags))
    return unbiased


def fast_length(n: int) -> int:
    """Smallest length >= n of the form 2^k or 3 * 2^k."""
    power = 1 << (n - 1).bit_length()
    return power * 3 // 4 if power * 3 // 4 >= n else power
