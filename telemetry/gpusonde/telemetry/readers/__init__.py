"""Readers of trace files. The format is told by content, never by the file's name."""

from gpusonde.telemetry.readers.read import as_traces, read_trace, read_traces

__all__ = ["as_traces", "read_trace", "read_traces"]
