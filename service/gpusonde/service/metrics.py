"""Metric families as their collectors write them, one line each, and ``Distribution`` for hot paths."""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

# From a tick's lateness to a slow disk's sync.
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Distribution:
    """Counts values by size. One thread observes; any may read.

    Args:
        bounds: Upper bounds of the buckets, increasing; one more bucket takes what exceeds the last.
    """

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Add one value."""
        self._counts[bisect.bisect_left(self._bounds, value)] += 1
        self._sum += value

    @property
    def count(self) -> int:
        """Number of values so far."""
        return sum(self._counts)

    @property
    def total(self) -> float:
        """Sum of the values so far."""
        return self._sum

    def cumulative(self) -> list[tuple[float, int]]:
        """Return each upper bound, the last one infinite, with the number of values up to it."""
        reached, rows = 0, []
        for bound, count in zip((*self._bounds, math.inf), tuple(self._counts), strict=True):
            reached += count
            rows.append((bound, reached))
        return rows


def counter(name: str, text: str, value: float) -> Metric:
    """Return a counter without labels; the name is given without ``_total``."""
    return CounterMetricFamily(name, text, value=value)


def counters(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    """Return a counter with one label, in order of its values."""
    family = CounterMetricFamily(name, text, labels=[label])
    for key in sorted(values):
        family.add_metric([key], values[key])
    return family


def gauge(name: str, text: str, value: float | None) -> Metric:
    """Return a gauge without labels; None means that there is no value now."""
    family = GaugeMetricFamily(name, text)
    if value is not None:
        family.add_metric([], value)
    return family


def gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    """Return a gauge with one label, in order of its values."""
    family = GaugeMetricFamily(name, text, labels=[label])
    for key in sorted(values):
        family.add_metric([key], values[key])
    return family


def info(name: str, text: str, labels: Mapping[str, str]) -> Metric:
    """Return a gauge that is always 1 and says something by its labels."""
    family = GaugeMetricFamily(name, text, labels=list(labels))
    family.add_metric(list(labels.values()), 1)
    return family


def histogram(name: str, text: str, distribution: Distribution) -> Metric:
    """Return a histogram without labels."""
    rows = [("+Inf" if math.isinf(bound) else repr(bound), count) for bound, count in distribution.cumulative()]
    return HistogramMetricFamily(name, text, buckets=rows, sum_value=distribution.total)
