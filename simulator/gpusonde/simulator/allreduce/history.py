"""What is remembered of measurements: newer ones count more, and there is an end to how many are kept."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpusonde.simulator.allreduce.curves import UNREPEATED_SPREAD, FloatArray, SizeCurve
from gpusonde.simulator.allreduce.measurements import AllreduceMeasurement

IntArray = npt.NDArray[np.int64]

# Per link, world size, number of concurrent transfers and size.
NEWEST_PER_CONFIGURATION = 16
MOST_MEASUREMENTS = 200_000
# More repeats in one allocation add no trust.
_MOST_REPEATS = 16
# A measurement that age leaves less of than this share of the newest is stale: its level follows the fresh ones.
_FRESH_SHARE = 0.5
# How far, in factors of e of size, fresh measurements speak for stale ones.
_REACH = 1.5
# A stale level follows its fresh neighbours only where they say something: the weight of saying nothing.
_UNMOVED_WEIGHT = 0.05


@dataclass(frozen=True)
class Decay:
    """How measurements lose weight with time.

    Attributes:
        half_life_s: Seconds after which a measurement counts half.
        now_s: Unix time in seconds; None: that of the newest measurement.

    Raises:
        ValueError: A half-life that is not above zero.
    """

    half_life_s: float
    now_s: float | None = None

    def __post_init__(self) -> None:
        if not self.half_life_s > 0:
            raise ValueError(f"half_life_s must be above zero, not {self.half_life_s}")

    def freshness(self, measurements: Sequence[AllreduceMeasurement]) -> FloatArray:
        """Return what age leaves of each, shape (n,), above 0 up to 1."""
        times = [one.measured_at_s for one in measurements if one.measured_at_s is not None]
        now_s = self.now_s if self.now_s is not None else max(times, default=0.0)
        ages = np.array([0.0 if one.measured_at_s is None else now_s - one.measured_at_s for one in measurements])
        return np.asarray(0.5 ** np.clip(ages / self.half_life_s, 0.0, 200.0))

    def weights(self, measurements: Sequence[AllreduceMeasurement]) -> FloatArray:
        """Return how much each counts now, shape (n,), above zero."""
        trust = np.array([one.weight * min(one.repeats, _MOST_REPEATS) ** 0.5 for one in measurements])
        return trust * self.freshness(measurements)


def select_newest(measurements: Iterable[AllreduceMeasurement], decay: Decay) -> tuple[AllreduceMeasurement, ...]:
    """Return what stays: the newest of every configuration, and of all of them no more than the limit."""
    groups: dict[tuple[object, ...], list[AllreduceMeasurement]] = defaultdict(list)
    for one in measurements:
        where = (one.fabric, one.device, one.location, one.world_size, one.concurrent, one.transfer_bytes)
        groups[where].append(one)
    newest = [
        one for group in groups.values() for one in sorted(group, key=_age_key, reverse=True)[:NEWEST_PER_CONFIGURATION]
    ]
    if len(newest) > MOST_MEASUREMENTS:
        heaviest = np.argsort(-decay.weights(newest), kind="stable")[:MOST_MEASUREMENTS]
        newest = [newest[place] for place in sorted(heaviest)]
    return tuple(newest)


def _age_key(one: AllreduceMeasurement) -> float:
    return np.inf if one.measured_at_s is None else one.measured_at_s


def make_size_curve(measurements: Sequence[AllreduceMeasurement], decay: Decay) -> SizeCurve:
    """Return the curve of measurements of one link, world size and number of concurrent transfers.

    The knots are weighted medians of the durations of each size. Where a network changed, fresh knots pull the stale
    ones nearby along: a few probes of some sizes re-level the rest.
    """
    sizes = np.log([one.transfer_bytes for one in measurements])
    times = np.log([one.seconds for one in measurements])
    weights, freshness = decay.weights(measurements), decay.freshness(measurements)
    knots, place = np.unique(sizes, return_inverse=True)
    order = np.argsort(place, kind="stable")
    groups = np.split(order, np.searchsorted(place[order], np.arange(1, knots.size)))
    values = np.array([weighted_median(times[group], weights[group]) for group in groups])
    scatter = _scatter(measurements, times, weights, groups, values)
    levelled = _levelled(knots, values, times, freshness, groups)
    return SizeCurve(knots, levelled, scatter, float(weights.sum()))


def weighted_median(values: FloatArray, weights: FloatArray) -> float:
    """Return the weighted median, the middle of two when both halves weigh the same."""
    if values.size == 1:
        return float(values[0])
    order = np.argsort(values, kind="stable")
    ordered, sums = values[order], np.cumsum(weights[order])
    half = 0.5 * sums[-1]
    first = int(np.searchsorted(sums, half * (1.0 - 1e-12)))
    exact = abs(sums[first] - half) <= 1e-9 * half and first + 1 < values.size
    return float(0.5 * (ordered[first] + ordered[first + 1]) if exact else ordered[first])


def _scatter(
    measurements: Sequence[AllreduceMeasurement],
    times: FloatArray,
    weights: FloatArray,
    groups: Sequence[IntArray],
    values: FloatArray,
) -> float:
    """Robust standard deviation of repeats around their median, in logarithms."""
    away: list[float] = []
    counts: list[float] = []
    for group, middle in zip(groups, values, strict=True):
        if group.size > 1:
            # Of n repeats the median lies nearer to each than the truth does.
            away.extend(np.abs(times[group] - middle) * np.sqrt(group.size / (group.size - 1.0)))
            counts.extend(weights[group])
    said = [(one.log_spread, weight) for one, weight in zip(measurements, weights, strict=True) if one.log_spread]
    repeated = 0.0
    if away:
        distances, heavy = np.array(away), np.array(counts)
        # Between the median (robust) and the mean (sees that two of twelve allocations run at half speed).
        repeated = 0.5 * (
            1.4826 * weighted_median(distances, heavy) + 1.2533 * float(np.average(distances, weights=heavy))
        )
    within = weighted_median(np.array([s for s, _ in said]), np.array([w for _, w in said])) if said else 0.0
    found = max(repeated, within)
    # Repeats in one allocation say nothing about other allocations.
    return max(found, UNREPEATED_SPREAD)


def _levelled(
    knots: FloatArray, values: FloatArray, times: FloatArray, freshness: FloatArray, groups: Sequence[IntArray]
) -> FloatArray:
    """Move stale knots as fresh measurements moved their neighbours."""
    newest = np.array([freshness[group].max() for group in groups])
    limit = _FRESH_SHARE * newest.max()
    is_fresh = newest >= limit
    if is_fresh.all():
        return values
    # What was known before: the stale measurements alone.
    before = [(place, times[group][freshness[group] < limit]) for place, group in enumerate(groups)]
    known = [(place, float(np.median(old))) for place, old in before if old.size]
    was = SizeCurve(knots[[place for place, _ in known]], np.array([level for _, level in known]), 0.0, 1.0)
    seen = is_fresh & was.covers(knots)
    if not seen.any():
        return values
    moved = values[seen] - was.seconds(knots[seen])
    near = np.exp(-0.5 * ((knots[:, None] - knots[seen][None, :]) / _REACH) ** 2)
    shift = near @ moved / (near.sum(axis=1) + _UNMOVED_WEIGHT)
    return np.asarray(values + np.where(is_fresh, 0.0, (1.0 - newest / newest.max()) * shift))
