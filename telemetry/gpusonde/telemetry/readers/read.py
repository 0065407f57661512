"""``read_trace`` and ``read_traces``: every trace file that gpusonde understands, its kind told by content."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum

from gpusonde.errors import TraceError, TraceFormatError, shown
from gpusonde.telemetry.readers import dcgmi, nvidia_smi, smi_dmon
from gpusonde.telemetry.readers.dcgmi import read_dcgmi
from gpusonde.telemetry.readers.delimited import DEFAULT_MAX_BYTES, blocks, guess_delimiter, open_regular, split_row
from gpusonde.telemetry.readers.nvidia_smi import MAX_GPUS, read_nvidia_smi
from gpusonde.telemetry.readers.own_csv import read_own_csv
from gpusonde.telemetry.readers.own_parquet import read_own_parquet
from gpusonde.telemetry.readers.smi_dmon import read_smi_dmon
from gpusonde.telemetry.readers.table import TIME_S, TIMESTAMP
from gpusonde.telemetry.trace import Trace

_PARQUET_MAGIC = b"PAR1"
_NVIDIA_SMI_ROW = re.compile(r"\d{4}/\d{2}/\d{2} \d{2}:\d{2}:\d{2}(\.\d+)?\s*,")
# Headings of dmon and pmon, with and without -o D or T.
_NVIDIA_SMI_MON = re.compile(r"\s*#\s*(?:(?:Date|Time)[,\s]+)*gpu\b(?P<process>[,\s]+pid\b)?")
_NVIDIA_SMI_TABLE = re.compile(
    r"[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d{2}:\d{2}:\d{2} \d{4}\s*|\+-{20}.*|\| NVIDIA-SMI .*"
)
_DCGMI_HEADER = re.compile(r"#\s*Entity")
_NUMBERS = re.compile(r"[-+0-9.eE,;\s]+")


class Format(Enum):
    """Kinds of trace files."""

    PARQUET = "Parquet file"
    OWN_CSV = "CSV file"
    NVIDIA_SMI = "nvidia-smi log"
    SMI_DMON = "nvidia-smi dmon log"
    DCGMI_DMON = "dcgmi dmon log"


def sniff(path: str | os.PathLike[str], max_bytes: int) -> Format:
    """Return the format of a file.

    Raises:
        OSError: The file cannot be read.
        TraceFormatError: It is none of ours, and the error quotes the line that shows it, or larger than ``max_bytes``.
    """
    file, _ = open_regular(path, max_bytes)
    with file:
        if file.read(len(_PARQUET_MAGIC)) == _PARQUET_MAGIC:
            return Format.PARQUET
    for block in blocks(path, max_bytes=max_bytes):
        for number, line in enumerate(block.lines, start=block.first_line):
            if not line.strip():
                continue
            if dcgmi.is_header(line):
                return Format.DCGMI_DMON
            monitor = _NVIDIA_SMI_MON.match(line)
            if monitor is not None and not monitor["process"] and smi_dmon.is_header(line):
                return Format.SMI_DMON
            if monitor is not None:
                tool = "pmon, which tells of processes" if monitor["process"] else "dmon without dates and times"
                raise TraceFormatError(
                    path,
                    f"this is a log of nvidia-smi {tool}; record with nvidia-smi dmon -o DT, or, many times a second, "
                    "with nvidia-smi --query-gpu=timestamp,index,... --format=csv -lms 100",
                    line=number,
                )
            if not line.startswith("#"):
                return _by_header(path, line, number)
    raise TraceFormatError(path, "no header line, only blank or comment lines; the first line must name the columns")


def _by_header(path: str | os.PathLike[str], line: str, number: int) -> Format:
    try:
        cells = split_row(line, guess_delimiter(line))
    except csv.Error as error:
        raise TraceFormatError(path, f"the header cannot be read: {error}", line=number) from None
    if TIME_S in cells:
        return Format.OWN_CSV
    if nvidia_smi.is_header(cells):
        return Format.NVIDIA_SMI
    if TIMESTAMP in cells:
        return Format.OWN_CSV
    if _NVIDIA_SMI_ROW.match(line):
        what = "an nvidia-smi log without a header; record it again without 'noheader' in --format=csv,noheader"
    elif _NVIDIA_SMI_TABLE.fullmatch(line):
        what = (
            "this is the table that nvidia-smi prints for people; record with "
            "nvidia-smi --query-gpu=timestamp,index,power.draw,utilization.gpu,memory.used --format=csv -lms 100"
        )
    elif dcgmi.is_row(line):
        what = "rows of dcgmi dmon without their header; keep the lines that begin with #Entity"
    elif _DCGMI_HEADER.search(line):
        what = (
            "a dcgmi dmon log with time stamps in an unknown form; record it again with "
            "dcgmi dmon ... | ts '%Y-%m-%dT%H:%M:%.S'"
        )
    elif _NUMBERS.fullmatch(line):
        what = "numbers in place of the names of the columns; put a header line above them, such as time_s,power_watts"
    else:
        what = (
            f"not a trace: {shown(line)} is no header with time_s or timestamp, nor one of nvidia-smi or dcgmi dmon "
            "(docs/trace_files.md shows the formats)"
        )
    raise TraceFormatError(path, what, line=number)


def read_traces(
    path: str | os.PathLike[str],
    *,
    gpus: int | None = None,
    interval_s: float | None = None,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> list[Trace]:
    """Read all traces of a file.

    Reads our own CSV and Parquet, logs of ``nvidia-smi --query-gpu=timestamp,... --format=csv -lms N``, ``nvidia-smi
    dmon -o DT`` and ``dcgmi dmon`` (``docs/trace_files.md``). What was left out or repaired stands in each trace's
    ``warnings``.

    Args:
        path: The file; its format is told by content.
        gpus: Number of GPUs whose rows take turns in an nvidia-smi log that names none; found from the times if None.
        interval_s: Seconds between the ticks of a ``dcgmi dmon`` log without time stamps, which is refused if None.
        max_bytes: Largest file to read, which also bounds what a Parquet file may unpack to.

    Returns:
        One trace per GPU (or per ``trace_id``), in the file's order; at least one.

    Raises:
        OSError: The file cannot be opened or read.
        TraceFormatError: The file, or a place in it, is not a trace; it is larger than ``max_bytes``; it is a Parquet
            file, and pyarrow is not installed.
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
    elif kind is Format.SMI_DMON:
        traces = read_smi_dmon(path, max_bytes=max_bytes)
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
        TraceError: There are several traces and ``gpu`` is None, or none is the chosen one (the error lists them), or
            ``read_traces`` refuses the file.
        OSError: The file cannot be opened or read.
    """
    traces = read_traces(path, gpus=gpus, interval_s=interval_s, max_bytes=max_bytes)
    if gpu is None:
        if len(traces) == 1:
            return traces[0]
        raise TraceError(f"{os.fspath(path)}: {len(traces)} GPUs ({_names(traces)}); choose one with --gpu I")
    found = _chosen(traces, str(gpu))
    if found is None:
        raise TraceError(f"{os.fspath(path)}: no GPU {str(gpu)!r}; --gpu takes one of {_names(traces)}")
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
