"""``read_trace`` and ``read_traces``: every trace file that gpusonde understands."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from gpusonde.telemetry.errors import GpuChoiceError
from gpusonde.telemetry.readers.bursts import MAX_GPUS
from gpusonde.telemetry.readers.dcgmi import read_dcgmi
from gpusonde.telemetry.readers.nvidia_smi import read_nvidia_smi
from gpusonde.telemetry.readers.own_csv import read_own_csv
from gpusonde.telemetry.readers.own_parquet import read_own_parquet
from gpusonde.telemetry.readers.sniff import Format, sniff
from gpusonde.telemetry.readers.text import DEFAULT_MAX_BYTES
from gpusonde.telemetry.trace import Trace


def read_traces(
    path: str | os.PathLike[str],
    *,
    gpus: int | None = None,
    interval_s: float | None = None,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> list[Trace]:
    """Read all traces of a file.

    Reads our own CSV and Parquet, ``nvidia-smi --query-gpu=timestamp,... --format=csv -lms N`` logs and ``dcgmi dmon``
    logs (``docs/trace_files.md``). What was left out or repaired is in each trace's ``warnings``.

    Args:
        path: The file; its format is told by content.
        gpus: Number of GPUs whose rows take turns in an nvidia-smi log that names none; found from the times if None.
        interval_s: Seconds between the ticks of a ``dcgmi dmon`` log without time stamps; its default, 1 s, if None.
        max_bytes: Largest file to read, which also bounds what a Parquet file may unpack to.

    Returns:
        One trace per GPU (or per ``trace_id``), in the file's order; at least one.

    Raises:
        OSError: The file cannot be opened or read.
        TraceFormatError: The file, or a place in it, is not a trace.
        TraceTooLargeError: The file is larger than ``max_bytes``.
        ParquetSupportError: A Parquet file, and pyarrow is not installed.
        ValueError: ``gpus`` or ``interval_s`` is not positive.
    """
    if gpus is not None and not 1 <= gpus <= MAX_GPUS:
        raise ValueError(f"gpus must lie in 1..{MAX_GPUS}, not {gpus}")
    if interval_s is not None and not 0 < interval_s < float("inf"):
        raise ValueError(f"interval_s must be a positive number of seconds, not {interval_s}")
    kind = sniff(path, max_bytes)
    unused = []
    if gpus is not None and kind is not Format.NVIDIA_SMI:
        unused.append(f"gpus was not used: the rows of a {kind.value} name their GPUs")
    if interval_s is not None and kind is not Format.DCGMI_DMON:
        unused.append(f"interval_s was not used: the rows of a {kind.value} have times")
    if kind is Format.PARQUET:
        traces = read_own_parquet(path, max_bytes=max_bytes)
    elif kind is Format.NVIDIA_SMI:
        traces = read_nvidia_smi(path, gpus=gpus, max_bytes=max_bytes)
    elif kind is Format.DCGMI_DMON:
        traces = read_dcgmi(path, interval_s=interval_s, max_bytes=max_bytes)
    else:
        traces = read_own_csv(path, max_bytes=max_bytes)
    return [replace(trace, warnings=(*trace.warnings, *unused)) for trace in traces] if unused else traces


def read_trace(
    path: str | os.PathLike[str],
    *,
    gpu: str | int | None = None,
    gpus: int | None = None,
    interval_s: float | None = None,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> Trace:
    """Read one trace of a file.

    Args:
        path: The file.
        gpu: Which one: the GPU's index, its ``gpu_uuid`` (or the beginning of it, if only one begins so) or its
            ``trace_id``. May be None where the file holds a single trace.
        gpus: As in ``read_traces``.
        interval_s: As in ``read_traces``.
        max_bytes: As in ``read_traces``.

    Raises:
        GpuChoiceError: There are several traces and ``gpu`` is None, or none is the chosen one; the error lists them.
        TraceError: Anything that ``read_traces`` refuses.
        OSError: The file cannot be opened or read.
    """
    traces = read_traces(path, gpus=gpus, interval_s=interval_s, max_bytes=max_bytes)
    if gpu is None:
        if len(traces) == 1:
            return traces[0]
        raise GpuChoiceError(f"{os.fspath(path)}: {len(traces)} GPUs ({_names(traces)}); choose one with --gpu I")
    found = _chosen(traces, str(gpu))
    if found is None:
        raise GpuChoiceError(f"{os.fspath(path)}: no GPU {str(gpu)!r}; --gpu takes one of {_names(traces)}")
    return found


def _chosen(traces: Sequence[Trace], gpu: str) -> Trace | None:
    exact = [trace for trace in traces if gpu in (trace.gpu_uuid, trace.attributes.get("trace_id"))]
    if len(exact) == 1:
        return exact[0]
    if gpu.isascii() and gpu.isdigit():
        # A log of GPUs 2 and 3 only: their own numbers come first.
        numbered = [trace for trace in traces if "gpu_index" in trace.attributes]
        if numbered:
            return next((trace for trace in numbered if trace.attributes["gpu_index"] == str(int(gpu))), None)
        return traces[int(gpu)] if int(gpu) < len(traces) else None
    begins = [trace for trace in traces if gpu and trace.gpu_uuid.startswith(gpu)]
    return begins[0] if len(begins) == 1 else None


_SHOWN_TRACES = 16


def _names(traces: Sequence[Trace]) -> str:
    names = [
        f"{trace.attributes.get('gpu_index', index)}{f' = {trace.gpu_uuid}' if trace.gpu_uuid else ''}"
        for index, trace in enumerate(traces[:_SHOWN_TRACES])
    ]
    more = len(traces) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")
