"""Metric catalogue, traces and readers of trace files.

What reads and writes files is imported when it is first asked for: an agent has none, and is to be small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
)
from gpusonde.telemetry.trace import FloatArray, Trace, TraceMetadata

if TYPE_CHECKING:
    from gpusonde.telemetry.readers import as_traces, read_trace, read_traces
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
    "as_traces",
    "metric",
    "read_trace",
    "read_traces",
    "write_trace",
]

_HOMES = {
    "as_traces": "gpusonde.telemetry.readers",
    "read_trace": "gpusonde.telemetry.readers",
    "read_traces": "gpusonde.telemetry.readers",
    "TraceWriter": "gpusonde.telemetry.writers",
    "write_trace": "gpusonde.telemetry.writers",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - see above

    return getattr(import_module(_HOMES[name]), name)
