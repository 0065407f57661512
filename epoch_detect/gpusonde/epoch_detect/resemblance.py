"""How much new cycles of a run look like those that are known: where they do not, its tempo has changed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from gpusonde.epoch_detect.cycles.boundaries import Epochs
from gpusonde.epoch_detect.cycles.detector import mean_period
from gpusonde.epoch_detect.cycles.signal import median
from gpusonde.epoch_detect.result import EpochDetection
from gpusonde.epoch_detect.ticks import Ticks, measure_seen_seconds
from gpusonde.telemetry import FloatArray

_BoolArray = npt.NDArray[np.bool_]

_BINS = 24
_KNOWN = 16  # newest of the known cycles that new ones are compared with
_LEAST_KNOWN = 3
_ALIKE = 0.7  # of the usual correlation of a known cycle with the others, which a new one has to have
_OVERLAP = 0.3  # periods by which a new cycle may begin before the known ones end
_IRREGULAR = 0.5  # of the logarithm of the duration, beside the usual one


def keep_alike(ticks: Ticks, known: EpochDetection, found: EpochDetection) -> EpochDetection:
    """Leave out new cycles that do not look like the known ones: the last ones, and where there are several before.

    Matching lays cycles of nearly the same length through any ticks, so when the tempo changes it goes on with what is
    none, or with halves. A single one may be a real cycle with a stall in it.

    Args:
        ticks: Of the run, on the axis of both answers.
        known: What was found before.
        found: The same level in more ticks.

    Returns:
        The answer without them; ``found`` itself if all look alike, or too few are known to tell.
    """
    new = np.flatnonzero(found.epoch_starts_s >= known.end_s - _OVERLAP * found.period_s)
    if known.epoch_starts_s.size < _LEAST_KNOWN or not new.size:
        return found
    starts = np.concatenate([known.epoch_starts_s[-_KNOWN:], found.epoch_starts_s[new]])
    ends = np.concatenate([known.epoch_ends_s[-_KNOWN:], found.epoch_ends_s[new]])
    unlike = _find_unlike(ticks, starts, ends, starts.size - new.size)
    left_out = _spread(unlike)
    if not left_out.any():
        return found
    kept = np.ones(found.epoch_starts_s.size, dtype=bool)
    kept[new[left_out]] = False
    starts, ends = found.epoch_starts_s[kept], found.epoch_ends_s[kept]
    lengths = ends - starts
    regular = np.abs(np.log(lengths / median(lengths))) < _IRREGULAR if lengths.size else np.zeros(0, dtype=bool)
    if regular.sum() < _LEAST_KNOWN:
        return known
    period, low, high = mean_period(Epochs(starts, ends, regular), float(np.median(np.diff(ticks.time_us))) * 1e-6)
    return replace(
        found, reason=f"{starts.size} cycles of {period:.4g} s repeat", period_s=period, period_low_s=low,
        period_high_s=high, epoch_starts_s=starts, epoch_ends_s=ends,
    )  # fmt: skip


def _find_unlike(ticks: Ticks, starts_s: FloatArray, ends_s: FloatArray, known: int) -> _BoolArray:
    """Say of each cycle after the known ones whether its shape is another one; shape (cycles - known,)."""
    shapes = _fold(ticks, starts_s, ends_s)
    total = shapes[:known].sum(axis=0)
    usual = median(_correlate(shapes[:known], total - shapes[:known]))
    return np.asarray(_correlate(shapes[known:], total) < _ALIKE * usual)


def _spread(unlike: _BoolArray) -> _BoolArray:
    """Say which cycles to leave out: unlike ones at the end or near another one, and what lies between two of them."""
    padded = np.concatenate([[False, False], unlike, [True, True]])
    near = padded[:-4] | padded[1:-3] | padded[3:-1] | padded[4:]
    between = padded[1:-3] & padded[3:-1]
    return np.asarray((unlike & near) | between)


def _correlate(one: FloatArray, other: FloatArray) -> FloatArray:
    norms = np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1)
    return np.asarray((one * other).sum(axis=-1) / (norms + 1e-12))


def _fold(ticks: Ticks, starts_s: FloatArray, ends_s: FloatArray) -> FloatArray:
    """Average each metric in equal parts of each cycle, without the cycle's mean; shape (cycles, metrics * bins)."""
    first, stop = np.searchsorted(ticks.time_us, np.round(np.array([starts_s.min(), ends_s.max()]) * 1e6))
    near = ticks.slice(max(int(first) - 1, 0), int(stop) + 1)
    time_s = np.asarray(near.time_us * 1e-6, dtype=np.float64)
    seconds = measure_seen_seconds(time_s)
    edges = starts_s[:, None] + (ends_s - starts_s)[:, None] * np.linspace(0, 1, _BINS + 1)
    shapes = [np.zeros((starts_s.size, _BINS))]
    for row in near.values.astype(np.float64):
        finite = np.isfinite(row)
        deviation = float(row[finite].std()) if finite.any() else 0.0
        if deviation == 0.0:
            continue
        sums = np.interp(edges, time_s, np.cumsum(np.where(finite, row, 0.0) * seconds))
        seen = np.interp(edges, time_s, np.cumsum(seconds * finite))
        means = np.diff(sums) / np.maximum(np.diff(seen), 1e-9)
        shapes.append((means - means.mean(axis=1, keepdims=True)) / deviation)
    return np.concatenate(shapes, axis=1)
