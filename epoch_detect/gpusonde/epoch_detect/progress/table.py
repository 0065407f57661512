"""What the epochs of a run tell.

``epoch_table`` has mean metrics and energy of each, ``duration_trend`` how their duration changes, gradually and at
once, ``estimate_end`` when the job will be done, and ``time_shares`` which share of the run was idle or lost in stalls.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.ndimage import median_filter
from scipy.special import stdtrit

from gpusonde.epoch_detect.ticks import Ticks, active_range, active_ticks, choose_metrics, measure_seen_seconds
from gpusonde.errors import TotalEpochsError
from gpusonde.telemetry import FloatArray

_MOST_EPOCHS = 400  # the newest are looked at; the search takes the square of their number
_SHORTEST_STRETCH = 3  # epochs; one long epoch is a pause, not a change
_LEAST_TREND_SCATTER = 0.004  # of the duration: boundaries are placed to a tick, not to nothing
_PENALTY = 5.0  # times log(epochs) that a change must explain; false alarms on steady noise: see the tests
_LEAST_CHANGE = 0.04  # as a ratio: less is real, perhaps, but of no use to anybody
_OUTLIER = 3.0  # standard deviations beyond which a single epoch counts no more


@dataclass(frozen=True)
class ChangePoint:
    """From one epoch to the next the duration changed for good.

    Attributes:
        epoch: Index of the first epoch of the new duration.
        before_s: Median duration of the stretch before.
        after_s: Median duration of the stretch from there on.
    """

    epoch: int
    before_s: float
    after_s: float

    @property
    def change(self) -> float:
        """Ratio: 0.25 for epochs that take a quarter longer."""
        return self.after_s / self.before_s - 1


@dataclass(frozen=True)
class Trend:
    """Trend of the durations.

    Attributes:
        change_points: Slow-downs and speed-ups, in order.
        recent_s: Median duration since the last change point.
        change_per_epoch: Ratio by which each epoch since then takes longer than the one before; 0 for under 5 epochs.
        change_per_epoch_low: Lower end of its 95 % interval (Theil-Sen).
        change_per_epoch_high: Upper end of it.
    """

    change_points: tuple[ChangePoint, ...]
    recent_s: float
    change_per_epoch: float
    change_per_epoch_low: float
    change_per_epoch_high: float


def duration_trend(durations_s: FloatArray) -> Trend:
    """Find change points and the gradual change after the last one.

    Optimal partitioning (Jackson et al. 2005) of the logarithms into stretches of equal mean; the noise is estimated
    from the differences of neighbours, which a change does not inflate.

    Args:
        durations_s: Shape (epochs,), positive; leave the slow first epoch out.

    Raises:
        ValueError: No duration, or one that is not positive.
    """
    if not durations_s.size or not (durations_s > 0).all():
        raise ValueError("durations of epochs are positive, and there is at least one")
    offset = max(0, durations_s.size - _MOST_EPOCHS)
    logs = np.log(durations_s[offset:])
    bounds = [0, *_changes(logs), logs.size]
    medians = [float(np.exp(np.median(logs[a:b]))) for a, b in itertools.pairwise(bounds)]
    points = tuple(
        ChangePoint(offset + at, before, after)
        for at, before, after in zip(bounds[1:-1], medians[:-1], medians[1:], strict=True)
    )
    recent = logs[bounds[-2] :]
    slope = low = high = 0.0
    if recent.size >= 5:
        # Slow to import; a collector starts without it.
        from scipy.stats import theilslopes  # noqa: PLC0415

        slope, _, low, high = (float(x) for x in np.expm1(theilslopes(recent)))
    return Trend(points, medians[-1], slope, low, high)


def _changes(logs: FloatArray) -> list[int]:
    """Indices at which a new stretch begins."""
    n = logs.size
    if n < 2 * _SHORTEST_STRETCH:
        return []
    scatter = max(_LEAST_TREND_SCATTER, float(np.median(np.abs(np.diff(logs)))) / (0.6745 * np.sqrt(2)))
    usual = median_filter(logs, 5, mode="nearest")
    calm = usual + np.clip(logs - usual, -_OUTLIER * scatter, _OUTLIER * scatter)
    sums, squares = (np.concatenate([[0.0], np.cumsum(x)]) for x in (calm, calm**2))
    best, last = np.full(n + 1, np.inf), np.zeros(n + 1, dtype=np.int64)
    best[0] = -_PENALTY * np.log(n)
    for end in range(_SHORTEST_STRETCH, n + 1):
        begins = np.arange(0, end - _SHORTEST_STRETCH + 1)
        size = end - begins
        cost = squares[end] - squares[begins] - (sums[end] - sums[begins]) ** 2 / size
        total = best[begins] + cost / scatter**2 + _PENALTY * np.log(n)
        last[end] = begins[np.argmin(total)]
        best[end] = total.min()
    found: list[int] = []
    at = int(last[n])
    while at > 0:
        found.insert(0, at)
        at = int(last[at])
    return _worth_telling(logs, found)


def _worth_telling(logs: FloatArray, found: list[int]) -> list[int]:
    """Leave out the smallest change, as long as it is too small, and look at the merged stretches again."""
    kept = list(found)
    while kept:
        bounds = [0, *kept, logs.size]
        medians = [float(np.median(logs[a:b])) for a, b in itertools.pairwise(bounds)]
        sizes = np.abs(np.diff(medians))
        if sizes.min() >= np.log1p(_LEAST_CHANGE):
            break
        del kept[int(np.argmin(sizes))]
    return kept


COVERAGE = 0.9
_LEAST_SCATTER = 0.02  # of the duration: epochs alike so far need not stay so
FEWEST_EPOCHS = 3


@dataclass(frozen=True)
class EndEstimate:
    """When the last epoch ends.

    Attributes:
        epochs_done: Epochs that are over.
        epochs_left: Epochs still to come, the one under way included.
        end_s: Expected end on the time axis of the epochs.
        end_low_s: Lower end of its 90 % interval.
        end_high_s: Upper end of it.
    """

    epochs_done: int
    epochs_left: int
    end_s: float
    end_low_s: float
    end_high_s: float


def estimate_end(starts_s: FloatArray, ends_s: FloatArray, total_epochs: int, now_s: float) -> EndEstimate:
    """Estimate the end from the epochs since the last change of their duration.

    The interval holds the scatter of single epochs and what is not known of their mean (Student's t); that the job goes
    on as it did is assumed.

    Args:
        starts_s: Shape (epochs,), of the epochs that are over.
        ends_s: Shape (epochs,).
        total_epochs: Epochs that the job is to run for.
        now_s: Time of the newest tick: the job was not done before it unless no epoch is left.

    Raises:
        TotalEpochsError: More epochs are over than there are to be, or fewer than three are.
    """
    done = int(starts_s.size)
    if done < FEWEST_EPOCHS:
        raise TotalEpochsError(
            f"{done} epochs are over; at least {FEWEST_EPOCHS} are needed to say when the job will be done"
        )
    if total_epochs < done:
        raise TotalEpochsError(f"{done} epochs are over, more than the {total_epochs} that the job is said to have")
    left = total_epochs - done
    last = float(ends_s[-1])
    if not left:
        return EndEstimate(done, 0, last, last, last)
    durations = (ends_s - starts_s)[1:]  # the first one compiles, fills caches, allocates
    points = duration_trend(durations).change_points
    recent = durations[points[-1].epoch if points else 0 :]
    mean, n = float(recent.mean()), recent.size
    scatter = max(float(recent.std(ddof=1)), _LEAST_SCATTER * mean)
    half = float(stdtrit(n - 1, 0.5 + COVERAGE / 2)) * scatter * float(np.sqrt(left + left**2 / n))
    expected = max(last + left * mean, now_s)
    return EndEstimate(
        done, left, expected, max(last + left * mean - half, now_s), max(last + left * mean + half, now_s)
    )


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
