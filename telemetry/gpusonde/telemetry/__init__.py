"""Metric catalogue, traces and readers of trace files."""

from gpusonde.errors import TraceError, TraceFormatError, UnknownMetricError
from gpusonde.telemetry.metrics import (
    METRIC_BY_CODE,
    METRIC_BY_DCGM_FIELD_ID,
    METRIC_BY_NAME,
    METRICS,
    Metric,
    MetricKind,
    MissingReason,
    SamplingClass,
    Unit,
    metric,
    metric_names,
)
from gpusonde.telemetry.readers import read_trace, read_traces
from gpusonde.telemetry.trace import FloatArray, Trace, TraceMetadata
from gpusonde.telemetry.writers import TraceWriter, write_trace

__all__ = [
    "METRICS",
    "METRIC_BY_CODE",
    "METRIC_BY_DCGM_FIELD_ID",
    "METRIC_BY_NAME",
    "FloatArray",
    "Metric",
    "MetricKind",
    "MissingReason",
    "SamplingClass",
    "Trace",
    "TraceError",
    "TraceFormatError",
    "TraceMetadata",
    "TraceWriter",
    "Unit",
    "UnknownMetricError",
    "metric",
    "metric_names",
    "read_trace",
    "read_traces",
    "write_trace",
]
