"""Removal of idle gaps: a stall, a restart or a checkpoint after every few epochs hides the cycle around it.

Where the GPU pauses the activity is looked at twice more: without any gap, and with gaps shortened to the usual one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpusonde.epoch_detect.cycles.boundaries import Epochs
from gpusonde.epoch_detect.cycles.signal import Signal, median, percentiles, scale_signal
from gpusonde.epoch_detect.ticks import LEAST_TICKS, Ticks, middle_of_three
from gpusonde.telemetry import FloatArray, Unit, metric

IDLE_LOAD = 0.35  # of the usual load: below, the GPU is idle
_LOAD = 0.3  # of the high level: what exceeds it is load, whose median is the usual one
_HIGH = 98  # percentile of the values that is the high level
_LEAST_REMOVED = 0.02  # share of the time below which the gaps hide nothing
_OUTLYING = 2.0  # usual gaps: a longer one is cut to one
_LONGEST_GAPS = 1.1  # usual epochs; one that is idle for longer ends before its gaps
_AS_LONG = 0.2  # by how much the work in an epoch that pauses may differ from that of the others, as a ratio
_LEAST_REGULAR = 2
_NO_WORK = 0.1  # of the usual work of an epoch
_WHOLE = 0.9  # the same: less is a part of an epoch
_ONE = 1.25  # the same of two parts that are one epoch
_PARTING = 0.2  # usual lengths that idle between two parts takes beyond what an epoch usually idles


@dataclass(frozen=True)
class PreprocessedView:
    """The activity with some of its idle gaps removed.

    Attributes:
        gap_removal: 0 for none removed, 1 for long gaps shortened, 2 for all removed.
        removed: Share of the time that is left out.
        ticks: The rest, its times moved together.
        signal: It, scaled, on a uniform grid.
        places_s: Shape (gaps,), increasing seconds of the view's own time at which something was removed.
        lengths_s: Shape (gaps,), how long it was.
    """

    gap_removal: int
    removed: float
    ticks: Ticks
    signal: Signal
    places_s: FloatArray
    lengths_s: FloatArray

    def to_activity_time(self, time_s: FloatArray) -> FloatArray:
        """Map the view's own time to that of the activity; the place of a removed gap maps to the end of the gap."""
        cuts = np.searchsorted(self.places_s, time_s + self.signal.step_s, side="right")
        moved = np.concatenate([[0.0], np.cumsum(self.lengths_s)])
        return np.asarray(time_s + moved[cuts])

    def restore_gaps(self, epochs: Epochs) -> Epochs:
        """Add the gaps to the epochs; those that are idle for too long end before, and do not count for the period."""
        if not self.places_s.size or not epochs.starts_s.size:
            return epochs
        starts, ends = self.to_activity_time(epochs.starts_s), self.to_activity_time(epochs.ends_s)
        ends[:-1] = np.minimum(ends[:-1], starts[1:])
        ends[-1] = min(ends[-1], starts[-1] + (epochs.ends_s - epochs.starts_s)[-1])
        alone = epochs.ends_s - epochs.starts_s
        among = epochs.regular if epochs.regular.any() else np.ones(alone.size, dtype=bool)
        gaps = ends - starts - alone
        longer = gaps > _LONGEST_GAPS * median((ends - starts)[among])
        # A job that died in the middle of an epoch begins it anew.
        broken = (gaps > 0) & (np.abs(alone / median(alone[among]) - 1) > _AS_LONG)
        certain = epochs.regular & ~longer & ~broken
        regular = certain if certain.sum() >= _LEAST_REGULAR else epochs.regular & ~longer
        return Epochs(starts, np.where(longer, starts + alone, ends), regular)


def preprocess(active: Ticks) -> Iterator[PreprocessedView]:
    """Look at the activity as it is and, where there are idle gaps, without them.

    Args:
        active: Ticks of the activity, from time 0.

    Yields:
        At most three; none if no metric varies.
    """
    nothing = np.empty(0)
    signal = scale_signal(active)
    if signal is None:
        return
    yield PreprocessedView(0, 0.0, active, signal, nothing, nothing)
    gaps = _find_idle_gaps(active)
    for gap_removal in (1, 2):
        if (shorter := _remove_gaps(active, gap_removal, *gaps)) is not None:
            yield shorter


def remove_gaps(active: Ticks, gap_removal: int) -> PreprocessedView | None:
    """Make one of these views; None where it would not differ or nothing would be left."""
    if gap_removal == 0:
        return next(preprocess(active), None)
    return _remove_gaps(active, gap_removal, *_find_idle_gaps(active))


def _remove_gaps(
    active: Ticks, gap_removal: int, first: npt.NDArray[np.int64], stop: npt.NDArray[np.int64]
) -> PreprocessedView | None:
    if not first.size:
        return None
    time_s = active.time_us * 1e-6
    usual_step = median(np.diff(time_s))
    # From the last tick with load to the first one after the gap, of which one step is load.
    lengths = time_s[stop] - time_s[first - 1] - usual_step
    left = np.zeros(lengths.size)
    if gap_removal == 1:
        usual = median(lengths)
        left = np.where(lengths > _OUTLYING * usual, usual, lengths)
    gone = lengths - left
    removed = float(gone.sum()) / float(time_s[-1] - time_s[0] + usual_step)
    if removed < _LEAST_REMOVED:
        return None
    keep = np.ones(time_s.size, dtype=bool)
    moved = np.zeros(time_s.size)
    for a, b, rest, away in zip(first, stop, left, gone, strict=True):
        if away > 0:
            keep[a:b] = time_s[a:b] <= time_s[a - 1] + rest
            moved[b:] += away
    short_us = np.round((time_s - moved) * 1e6).astype(np.int64)[keep]
    if short_us.size < LEAST_TICKS or np.diff(short_us).min() <= 0:
        return None
    ticks = Ticks(short_us, active.values[:, keep], active.names, active.merged)
    signal = scale_signal(ticks)
    if signal is None:
        return None
    where = gone > 0
    places = (time_s - moved)[stop[where]] - 0.5 * usual_step
    return PreprocessedView(gap_removal, removed, ticks, signal, places, gone[where])


def _find_idle_gaps(active: Ticks) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return first tick, and one past the last, of every stretch with hardly any load; a single odd tick is none."""
    low = middle_of_three(measure_load(active)) < IDLE_LOAD
    low[[0, -1]] = False
    edges = np.flatnonzero(np.diff(low.astype(np.int8))) + 1
    return edges[::2], edges[1::2]


def join_around_idle(active: Ticks, epochs: Epochs) -> Epochs:
    """Leave out epochs without work, and make one of two that an idle stretch parted.

    A template that repeats bridges a stretch of nearly a whole number of periods with epochs that nobody trained.
    """
    if epochs.starts_s.size < _LEAST_REGULAR:
        return epochs
    time_s = (active.time_us - active.time_us[0]) * 1e-6
    load, seconds = measure_load(active), np.diff(time_s, prepend=time_s[0])
    idle = load < IDLE_LOAD
    worked = _between(epochs, time_s, np.where(idle, 0.0, load) * seconds)
    idled = _between(epochs, time_s, idle * seconds)
    whole = epochs.regular if epochs.regular.any() else np.ones(worked.size, dtype=bool)
    usual, length = median(worked[whole]), median((epochs.ends_s - epochs.starts_s)[whole])
    if usual <= 0:
        return epochs
    share, usually_idle = worked / usual, median(idled[whole])
    starts: list[float] = []
    ends: list[float] = []
    regular: list[bool] = []
    parts: list[float] = []
    for start, end, certain, part, rest in zip(
        epochs.starts_s, epochs.ends_s, epochs.regular, share, idled - usually_idle, strict=True
    ):
        if part < _NO_WORK:
            parts += [rest] if parts else []
            continue
        rests = sum(parts[1:]) + rest if parts else 0.0
        apart = bool(parts) and rests >= _PARTING * length and max(parts[0], part) < _WHOLE
        if apart and parts[0] + part < _ONE:
            ends[-1], regular[-1] = end, False
            parts = [parts[0] + part]
            continue
        starts, ends, regular = [*starts, start], [*ends, end], [*regular, certain]
        parts = [part, rest]
    if len(starts) == epochs.starts_s.size:
        return epochs
    kept = np.array(regular, dtype=bool)
    return Epochs(np.array(starts), np.array(ends), kept)


def _between(epochs: Epochs, time_s: FloatArray, amount: FloatArray) -> FloatArray:
    """Sum over each epoch of what the ticks have."""
    total = np.cumsum(amount)
    found: FloatArray = np.interp(epochs.ends_s, time_s, total) - np.interp(epochs.starts_s, time_s, total)
    return found


def measure_load(active: Ticks) -> FloatArray:
    """Return the load of the GPU, shape (n,), as a ratio of the usual one; the mean over the metrics."""
    zero_based = [metric(n).unit in (Unit.RATIO, Unit.BYTES_PER_SECOND) for n in active.names]
    total, rows = np.zeros(len(active)), 0
    for column, has_zero in zip(active.values, zero_based, strict=True):
        finite = np.isfinite(column)
        if has_zero is not any(zero_based) or not finite.any():
            continue
        place = np.arange(column.size)
        values = column.astype(np.float64)
        if not finite.all():
            values = np.interp(place, place[finite], values[finite])
        low = 0.0 if has_zero else percentiles(values, (2,))[0]
        values -= low
        high = percentiles(values, (_HIGH,))[0]
        if high > 0:
            total += values / median(values[values > _LOAD * high])
            rows += 1
    return total / rows if rows else np.ones(len(active))
