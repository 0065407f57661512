"""Metric families as their collectors write them: one line each."""

from __future__ import annotations

import math
from collections.abc import Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from gpusonde.service.distribution import Distribution


def counter(name: str, text: str, value: float) -> Metric:
    """A counter without labels; the name is given without ``_total``."""
    return CounterMetricFamily(name, text, value=value)


def counters(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    """A counter with one label, in order of its values."""
    family = CounterMetricFamily(name, text, labels=[label])
    for key in sorted(values):
        family.add_metric([key], values[key])
    return family


def gauge(name: str, text: str, value: float | None) -> Metric:
    """A gauge without labels; None means that there is no value now."""
    family = GaugeMetricFamily(name, text)
    if value is not None:
        family.add_metric([], value)
    return family


def gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    """A gauge with one label, in order of its values."""
    family = GaugeMetricFamily(name, text, labels=[label])
    for key in sorted(values):
        family.add_metric([key], values[key])
    return family


def info(name: str, text: str, labels: Mapping[str, str]) -> Metric:
    """A gauge that is always 1 and says something by its labels."""
    family = GaugeMetricFamily(name, text, labels=list(labels))
    family.add_metric(list(labels.values()), 1)
    return family


def histogram(name: str, text: str, distribution: Distribution) -> Metric:
    """A histogram without labels."""
    rows = [("+Inf" if math.isinf(bound) else repr(bound), count) for bound, count in distribution.cumulative()]
    return HistogramMetricFamily(name, text, buckets=rows, sum_value=distribution.total)
