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
from gpusonde.telemetry.readers import read_trace, read_traces
from gpusonde.telemetry.trace import (
    FloatArray,
    GpuChoiceError,
    MissingMetricError,
    ParquetSupportError,
    Trace,
    TraceError,
    TraceFormatError,
    TraceMetadata,
    TraceTooLargeError,
)
from gpusonde.telemetry.writers import TraceWriter, write_trace

__all__ = [
    "METRICS",
    "METRIC_BY_CODE",
    "METRIC_BY_DCGM_FIELD_ID",
    "METRIC_BY_NAME",
    "BlankReason",
    "FloatArray",
    "GpuChoiceError",
    "Metric",
    "MetricKind",
    "MissingMetricError",
    "ParquetSupportError",
    "SamplingClass",
    "Trace",
    "TraceError",
    "TraceFormatError",
    "TraceMetadata",
    "TraceTooLargeError",
    "TraceWriter",
    "Unit",
    "UnknownMetricError",
    "metric",
    "metric_names",
    "read_trace",
    "read_traces",
    "write_trace",
]
