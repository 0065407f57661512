"""What the epochs of a run tell.

``epoch_table`` has mean metrics and energy of each, ``time_shares`` which share of the run was idle or lost in stalls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gpusonde.epoch_detect.ticks import Ticks, active_range, active_ticks, choose_metrics, measure_seen_seconds
from gpusonde.telemetry import FloatArray


@dataclass(frozen=True)
class Shares:
    """Shares of the time from the first to the last activity that was seen; ratios, NaN without activity.

    Attributes:
        idle: The GPU did not work: validation on the host, checkpoints, waiting for data, stalls.
        stalled: Idle that an epoch of this run does not usually have, and time between epochs that belongs to none.
    """

    idle: float
    stalled: float


def time_shares(
    time_s: FloatArray, values: Mapping[str, FloatArray], starts_s: FloatArray, ends_s: FloatArray
) -> Shares:
    """Measure idle and stalls.

    Idle is what lies under a twentieth of the metrics' own high level. The usual idle of an epoch is the median over
    the epochs; what one has beyond it counts as stalled, as does the time between the end of one epoch and the start of
    the next. Holes count as neither.

    Args:
        time_s: Shape (n,), increasing.
        values: Metric -> shape (n,).
        starts_s: Shape (epochs,), may be empty.
        ends_s: Shape (epochs,).
    """
    names = choose_metrics(tuple(values))
    if time_s.size < 2 or not names:
        return Shares(float("nan"), float("nan"))
    columns = np.array([values[name] for name in names], dtype=np.float32)
    ticks = Ticks(np.round((time_s - time_s[0]) * 1e6).astype(np.int64), columns, names)
    first, stop = active_range(ticks)
    if stop - first < 2:
        return Shares(float("nan"), float("nan"))
    seen = measure_seen_seconds(time_s)
    idle = np.cumsum(np.where(active_ticks(ticks), 0.0, seen))
    known = np.cumsum(seen)
    total = float(known[stop - 1] - known[first])
    if total <= 0:
        return Shares(float("nan"), float("nan"))

    def between(amount: FloatArray, begin: FloatArray, end: FloatArray) -> FloatArray:
        return np.asarray(np.interp(end, time_s, amount) - np.interp(begin, time_s, amount))

    stalled = 0.0
    if starts_s.size:
        inside = between(idle, starts_s, ends_s)
        stalled += float(np.maximum(inside - np.median(inside), 0.0).sum())
        stalled += float(np.maximum(between(known, ends_s[:-1], starts_s[1:]), 0.0).sum())
    return Shares(float(idle[stop - 1] - idle[first]) / total, min(1.0, stalled / total))


_LEAST_SEEN = 0.9  # share of an epoch that ticks must speak for to give its energy
_COUNTER, _POWER = "energy_joules", "power_watts"
_NAN = float("nan")


@dataclass(frozen=True)
class EpochSummary:
    """One epoch.

    Attributes:
        start_s: Start on the ticks' time axis.
        end_s: End.
        seen_share: Share of it that ticks speak for, 0..1; the rest lies in holes.
        mean_metrics: Mean of each metric over it, NaN where there was no value; counters are left out.
        energy_joules: Energy used in it; NaN where neither the driver's counter nor the power tells it.
    """

    start_s: float
    end_s: float
    seen_share: float
    mean_metrics: Mapping[str, float]
    energy_joules: float

    @property
    def duration_s(self) -> float:
        """Seconds."""
        return self.end_s - self.start_s


class EpochSums:
    """Adds up one epoch piece by piece: an epoch of days needs no more memory than the largest piece.

    A tick speaks for the time since the tick before it. Means weigh the ticks by that time. Energy is the difference of
    the driver's counter, to the fraction of a tick; without a counter it is the sum of power times that time, scaled to
    the whole epoch.

    Args:
        start_s: Start on the time axis of the ticks.
        end_s: End, after the start.
    """

    def __init__(self, start_s: float, end_s: float) -> None:
        self.start_s = start_s
        self.end_s = end_s
        self._seen_s = 0.0
        self._sums: dict[str, float] = {}
        self._weights: dict[str, float] = {}
        self._counter = _Counter(start_s, end_s)

    def add(self, time_s: FloatArray, seen_s: FloatArray, values: Mapping[str, FloatArray]) -> None:
        """Take a piece; ticks outside of the epoch may be among it, and its counter needs one on either side.

        Args:
            time_s: Shape (n,), increasing, behind the pieces before; the last tick may begin the next piece.
            seen_s: Shape (n,), for how many seconds each tick speaks; none for a tick that was in a piece before.
            values: Metric -> shape (n,), NaN where there is no value.
        """
        inside = slice(*np.searchsorted(time_s, [self.start_s, self.end_s], side="right"))
        weights = seen_s[inside]
        self._seen_s += float(weights.sum())
        for name, column in values.items():
            if name == _COUNTER:
                self._counter.add(time_s, column)
                continue
            weight = np.where(np.isfinite(column[inside]), weights, 0.0)
            self._weights[name] = self._weights.get(name, 0.0) + float(weight.sum())
            self._sums[name] = self._sums.get(name, 0.0) + float(np.where(weight > 0, column[inside], 0.0) @ weight)

    def summary(self) -> EpochSummary:
        """What the pieces so far add up to."""
        length = self.end_s - self.start_s
        seen = min(1.0, self._seen_s / length)
        means = {name: total / w if (w := self._weights[name]) > 0 else _NAN for name, total in self._sums.items()}
        energy = self._counter.difference
        if np.isnan(energy) and seen >= _LEAST_SEEN and _POWER in means:
            energy = means[_POWER] * length
        return EpochSummary(self.start_s, self.end_s, seen, means, energy)


def epoch_table(
    time_s: FloatArray, values: Mapping[str, FloatArray], starts_s: FloatArray, ends_s: FloatArray
) -> tuple[EpochSummary, ...]:
    """Summarise each epoch, as :class:`EpochSums` does.

    Args:
        time_s: Shape (n,), increasing.
        values: Metric -> shape (n,), NaN where there is no value.
        starts_s: Shape (epochs,).
        ends_s: Shape (epochs,).
    """
    if time_s.size < 2:
        return ()
    seen_s = measure_seen_seconds(time_s)
    table = []
    for start, end in zip(starts_s.tolist(), ends_s.tolist(), strict=True):
        sums = EpochSums(start, end)
        sums.add(time_s, seen_s, values)
        table.append(sums.summary())
    return tuple(table)


class _Counter:
    """Reads a counter, which may begin anew, at the start and at the end of an epoch."""

    def __init__(self, start_s: float, end_s: float) -> None:
        self._start_s = start_s
        self._end_s = end_s
        self._last_time, self._last_count = np.empty(0), np.empty(0)
        self._at_start = self._at_end = _NAN
        self._began_anew = False

    @property
    def difference(self) -> float:
        """How far it counted; NaN if it began anew, or does not reach over the epoch."""
        return _NAN if self._began_anew else self._at_end - self._at_start

    def add(self, time_s: FloatArray, counts: FloatArray) -> None:
        """Take a piece."""
        known = np.isfinite(counts)
        times = np.concatenate([self._last_time, time_s[known]])
        counts = np.concatenate([self._last_count, counts[known]])
        if not times.size:
            return
        crossing = (times[1:] >= self._start_s) & (times[:-1] < self._end_s)
        self._began_anew |= bool((np.diff(counts)[crossing] < 0).any())
        if np.isnan(self._at_start) and times[0] < self._start_s <= times[-1]:
            self._at_start = float(np.interp(self._start_s, times, counts))
        if np.isnan(self._at_end) and times[0] < self._end_s <= times[-1]:
            self._at_end = float(np.interp(self._end_s, times, counts))
        self._last_time, self._last_count = times[-1:], counts[-1:]
