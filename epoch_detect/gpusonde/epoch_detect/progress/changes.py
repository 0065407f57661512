"""``duration_trend``: how durations of a job's cycles change, at once (:class:`ChangePoint`) or little by little."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.ndimage import median_filter

from gpusonde.telemetry import FloatArray

_MOST_EPOCHS = 400  # the newest are looked at; the search takes the square of their number
_SHORTEST_STRETCH = 3  # epochs; one long epoch is a pause, not a change
_LEAST_DRIFTING = 6  # epochs from which on a stretch may be a line instead of a level
_LEAST_TREND_SCATTER = 0.004  # of the duration: boundaries are placed to a tick, not to nothing
_PENALTY = 5.0  # times log(epochs) that a change must explain; false alarms on steady noise: see the tests
_LEAST_CHANGE = 0.04  # as a ratio: less is real, perhaps, but of no use to anybody
_OUTLIER = 3.0  # standard deviations beyond which a single epoch counts no more
_LONG, _MOST_LONG = 0.2, 0.1  # of the usual duration; share of the epochs: what comes more often belongs to the job


@dataclass(frozen=True)
class ChangePoint:
    """From one epoch to the next the duration changed for good.

    Attributes:
        epoch: Index of the first epoch of the new duration.
        before_s: Usual duration before, where it drifts the last one.
        after_s: Usual duration from there on, where it drifts the first one.
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

    Optimal partitioning (Jackson et al. 2005) of the logarithms into stretches of one level or one line, whichever
    explains them with less; so drift is no step. The noise is estimated from the differences of neighbours, which a
    change does not inflate.

    Args:
        durations_s: Shape (epochs,), positive; leave the slow first epoch out.

    Raises:
        ValueError: No duration, or one that is not positive.
    """
    if not durations_s.size or not (durations_s > 0).all():
        raise ValueError("durations of epochs are positive, and there is at least one")
    offset = max(0, durations_s.size - _MOST_EPOCHS)
    logs = np.log(durations_s[offset:])
    inner = _changes(logs)
    fits = _fit_stretches(logs, inner)
    points = tuple(
        ChangePoint(offset + at, float(np.exp(left[1])), float(np.exp(right[0])))
        for at, left, right in zip(inner, fits[:-1], fits[1:], strict=True)
    )
    recent = logs[inner[-1] if inner else 0 :]
    slope = low = high = 0.0
    if recent.size >= 5:
        # Slow to import; a collector starts without it.
        from scipy.stats import theilslopes  # noqa: PLC0415

        slope, _, low, high = (float(x) for x in np.expm1(theilslopes(recent)))
    return Trend(points, float(np.exp(np.median(recent))), slope, low, high)


def long_epochs(durations_s: Sequence[float]) -> list[tuple[int, float]]:
    """Find single epochs that took far longer than those around them.

    Args:
        durations_s: Of each epoch, positive; leave the slow first one out.

    Returns:
        Of each, the longest first: its index, and how many times the usual duration it took. Where long ones come
        again and again, as an evaluation after every fifth epoch does, none.
    """
    if len(durations_s) < 2 * _SHORTEST_STRETCH:
        return []
    logs = np.log(durations_s)
    excess = logs - median_filter(logs, 5, mode="nearest")
    found = np.flatnonzero(excess > max(np.log1p(_LONG), 2 * _OUTLIER * _usual_scatter(logs)))
    if found.size > max(1.0, _MOST_LONG * logs.size):
        return []
    return sorted(((int(at), float(np.exp(excess[at]))) for at in found), key=lambda each: -each[1])


def _usual_scatter(logs: FloatArray) -> float:
    if logs.size < 2:
        return _LEAST_TREND_SCATTER
    return max(_LEAST_TREND_SCATTER, float(np.median(np.abs(np.diff(logs)))) / (0.6745 * float(np.sqrt(2))))


def _changes(logs: FloatArray) -> list[int]:
    """Indices at which a new stretch begins."""
    n = logs.size
    if n < 2 * _SHORTEST_STRETCH:
        return []
    scatter = _usual_scatter(logs)
    usual = median_filter(logs, 5, mode="nearest")
    calm = usual + np.clip(logs - usual, -_OUTLIER * scatter, _OUTLIER * scatter)
    place = np.arange(n, dtype=float)
    sums, squares, products = (np.concatenate([[0.0], np.cumsum(x)]) for x in (calm, calm**2, calm * place))
    best, last = np.full(n + 1, np.inf), np.zeros(n + 1, dtype=np.int64)
    best[0] = -_PENALTY * np.log(n)
    for end in range(_SHORTEST_STRETCH, n + 1):
        begins = np.arange(0, end - _SHORTEST_STRETCH + 1)
        size = end - begins
        total = sums[end] - sums[begins]
        level = squares[end] - squares[begins] - total**2 / size
        middle = (begins + end - 1) / 2
        tilt = (products[end] - products[begins] - middle * total) ** 2 / np.maximum(size * (size**2 - 1.0) / 12, 1.0)
        line = np.where(size >= _LEAST_DRIFTING, level - tilt + _PENALTY * np.log(n) * scatter**2, np.inf)
        total_cost = best[begins] + np.minimum(level, line) / scatter**2 + _PENALTY * np.log(n)
        last[end] = begins[np.argmin(total_cost)]
        best[end] = total_cost.min()
    found: list[int] = []
    at = int(last[n])
    while at > 0:
        found.insert(0, at)
        at = int(last[at])
    return _worth_telling(logs, found)


def _fit_stretches(logs: FloatArray, inner: list[int]) -> list[tuple[float, float]]:
    """Fitted logarithm at the first and the last epoch of each stretch, the same where it is level."""
    scatter, bounds = _usual_scatter(logs), [0, *inner, logs.size]
    fits = []
    for a, b in itertools.pairwise(bounds):
        part = logs[a:b]
        middle = float(np.median(part))
        first = last = middle
        if part.size >= _LEAST_DRIFTING:
            third = max(3, part.size // 3)  # the median of two is no match for one long epoch
            rise = float(np.median(part[-third:]) - np.median(part[:third])) / (part.size - third) * (part.size - 1)
            noise = scatter * np.sqrt(2 * 1.57 / third)
            if abs(rise) > _OUTLIER * noise:
                first, last = middle - rise / 2, middle + rise / 2
        fits.append((first, last))
    return fits


def _worth_telling(logs: FloatArray, found: list[int]) -> list[int]:
    """Leave out the smallest change, as long as it is too small, and look at the merged stretches again."""
    kept = list(found)
    while kept:
        fits = _fit_stretches(logs, kept)
        sizes = np.array([abs(right[0] - left[1]) for left, right in itertools.pairwise(fits)])
        if sizes.min() >= np.log1p(_LEAST_CHANGE):
            break
        del kept[int(np.argmin(sizes))]
    return kept
