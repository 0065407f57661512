"""What happened in each epoch: mean metrics and energy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gpusonde.epoch_detect.ticks import seconds_seen
from gpusonde.telemetry import FloatArray

_LEAST_SEEN = 0.9  # share of an epoch that ticks must speak for to give its energy
_COUNTER, _POWER = "energy_joules", "power_watts"


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


def epoch_table(
    time_s: FloatArray, values: Mapping[str, FloatArray], starts_s: FloatArray, ends_s: FloatArray
) -> tuple[EpochSummary, ...]:
    """Summarise each epoch.

    A tick speaks for the time since the tick before it. Means weigh the ticks by that time. Energy is the difference of
    the driver's counter, to the fraction of a tick; without a counter it is the sum of power times that time, scaled to
    the whole epoch.

    Args:
        time_s: Shape (n,), increasing.
        values: Metric -> shape (n,), NaN where there is no value.
        starts_s: Shape (epochs,).
        ends_s: Shape (epochs,).
    """
    if time_s.size < 2:
        return ()
    weights = seconds_seen(time_s)
    table = []
    for start, end in zip(starts_s.tolist(), ends_s.tolist(), strict=True):
        inside = slice(*np.searchsorted(time_s, [start, end], side="right"))
        seen = min(1.0, float(weights[inside].sum()) / (end - start))
        means = {
            name: _weighted_mean(column[inside], weights[inside]) for name, column in values.items() if name != _COUNTER
        }
        energy = float("nan")
        if _COUNTER in values:
            energy = _counted(time_s, values[_COUNTER], start, end)
        if np.isnan(energy) and seen >= _LEAST_SEEN and _POWER in values:
            energy = means[_POWER] * (end - start)
        table.append(EpochSummary(start, end, seen, means, energy))
    return tuple(table)


def _weighted_mean(column: FloatArray, weights: FloatArray) -> float:
    weight = np.where(np.isfinite(column), weights, 0.0)
    total = float(weight.sum())
    return float(np.where(weight > 0, column, 0.0) @ weight) / total if total > 0 else float("nan")


def _counted(time_s: FloatArray, counter: FloatArray, start: float, end: float) -> float:
    """Difference of a counter that may begin anew; NaN if it did, or does not reach over the epoch."""
    known = np.isfinite(counter)
    times, counts = time_s[known], counter[known]
    first, stop = np.searchsorted(times, [start, end])
    around = counts[max(first - 1, 0) : stop + 1]
    if around.size < 2 or first == 0 or stop == times.size or (np.diff(around) < 0).any():
        return float("nan")
    at_start, at_end = np.interp([start, end], times, counts)
    return float(at_end - at_start)
