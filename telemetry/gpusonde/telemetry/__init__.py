"""Metric catalogue, traces and readers of trace files."""

from gpusonde.telemetry.metrics import (
    METRIC_BY_CODE,
    METRIC_BY_DCGM_FIELD_ID,
    METRIC_BY_NAME,
    METRICS,
    BlankReason,
    Metric,
    MetricKind,
    SamplingClass,
    Unit,
    UnknownMetricError,
    metric,
    metric_names,
)
from gpusonde.telemetry.trace import FloatArray, Trace, TraceError

__all__ = [
    "METRICS",
    "METRIC_BY_CODE",
    "METRIC_BY_DCGM_FIELD_ID",
    "METRIC_BY_NAME",
    "BlankReason",
    "FloatArray",
    "Metric",
    "MetricKind",
    "SamplingClass",
    "Trace",
    "TraceError",
    "Unit",
    "UnknownMetricError",
    "metric",
    "metric_names",
]
