"""Reader of ``nvidia-smi --query-gpu=timestamp,... --format=csv -lms N`` logs."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpusonde.telemetry.errors import TraceFormatError, shown
from gpusonde.telemetry.metadata import TraceMetadata
from gpusonde.telemetry.metrics import METRIC_BY_NAME
from gpusonde.telemetry.readers.bursts import MAX_GPUS, BurstError, deinterleave
from gpusonde.telemetry.readers.columns import left_out
from gpusonde.telemetry.readers.delimited import DelimitedFile
from gpusonde.telemetry.readers.table import GpuLabels, IntArray, Rows, split_by_gpu
from gpusonde.telemetry.readers.text import DEFAULT_MAX_BYTES
from gpusonde.telemetry.readers.timestamps import (
    NANOSECONDS,
    TIME_ZONE_NOTE,
    TimestampError,
    TimestampParser,
    seconds_from,
)
from gpusonde.telemetry.readers.values import CellError, Column, conversion
from gpusonde.telemetry.trace import FloatArray, Trace

# Field of "nvidia-smi --help-query-gpu" -> metric, and the unit it has when neither header nor cell states one.
# Where several fields give the same metric, the first of them is taken.
FIELDS: dict[str, tuple[str, str]] = {
    "power.draw.instant": ("power_watts", "W"),
    "power.draw": ("power_watts", "W"),
    "power.draw.average": ("power_watts", "W"),
    "utilization.gpu": ("gpu_utilization", "%"),
    "utilization.memory": ("memory_utilization", "%"),
    "utilization.encoder": ("encoder_utilization", "%"),
    "utilization.decoder": ("decoder_utilization", "%"),
    "memory.used": ("framebuffer_used_bytes", "MiB"),
    "memory.free": ("framebuffer_free_bytes", "MiB"),
    "temperature.gpu": ("gpu_temperature_celsius", "C"),
    "temperature.memory": ("memory_temperature_celsius", "C"),
    "clocks.current.sm": ("sm_clock_mhz", "MHz"),
    "clocks.sm": ("sm_clock_mhz", "MHz"),
    "clocks.current.memory": ("memory_clock_mhz", "MHz"),
    "clocks.mem": ("memory_clock_mhz", "MHz"),
}
_TIMESTAMP = "timestamp"
# What tells GPUs apart, the most telling first. A name alone tells nothing: the GPUs of a machine mostly share it.
_IDENTITY = ("uuid", "gpu_uuid", "index", "pci.bus_id", "gpu_bus_id", "serial", "gpu_serial")
_NAMES = ("name", "gpu_name")
_INDEX = "index"
_HEADER_CELL = re.compile(r"([a-z0-9_.]+)(?: \[([A-Za-z%]+)\])?", re.ASCII)
# What nvidia-smi prints in place of rows when a GPU or the driver goes away.
_MESSAGE = re.compile(
    r"(?:Unable to determine|Failed to initialize|No devices were found|NVIDIA-SMI has failed|GPU is lost)"
)


def is_header(cells: Sequence[str]) -> bool:
    """Whether these are the column names of an nvidia-smi log: a field of ours, or a dotted name with a unit."""
    matches = [_HEADER_CELL.fullmatch(cell) for cell in cells]
    return any(match is not None and (match[1] in FIELDS or bool(match[2] and "." in match[1])) for match in matches)


@dataclass(frozen=True)
class _Layout:
    timestamp: int
    identity: int | None
    index: int | None
    name: int | None
    columns: list[tuple[int, Column]]
    warnings: list[str]


def read_nvidia_smi(
    path: str | os.PathLike[str], *, gpus: int | None = None, max_bytes: int = DEFAULT_MAX_BYTES
) -> list[Trace]:
    """Read the traces of an nvidia-smi log, in the order in which nvidia-smi lists the GPUs.

    nvidia-smi writes local time without a zone. ``origin_unix_s`` takes it for UTC, as attribute ``time_zone`` tells.

    Args:
        path: The log.
        gpus: Number of GPUs whose rows take turns in the log, where it names none; found from the times if None.
        max_bytes: Largest file to read.

    Raises:
        OSError: The file cannot be read.
        TraceFormatError: The file is not a trace; the error names line and field.
        TraceTooLargeError: The file is larger than ``max_bytes``.
    """
    file = DelimitedFile(path, max_bytes=max_bytes, is_message=lambda line: _MESSAGE.match(line) is not None)
    file.read_header()
    layout = _layout(file)
    parser = TimestampParser()
    labels = GpuLabels(path)
    times: list[IntArray] = []
    lines: list[IntArray] = []
    codes: list[IntArray] = []
    names: dict[tuple[str, ...], tuple[str, str]] = {}
    all_names: list[str] = []
    for block in file.rows():
        if block.doubtful:
            file.warnings.append(
                f"line {block.lines[0]}: the last row has no line end and was left out; the file was cut there"
            )
            continue
        try:
            times.append(_times(block.columns[layout.timestamp], parser))
            numbers = [column.parse(block.columns[index]) for index, column in layout.columns]
        except CellError as error:
            raise TraceFormatError(path, str(error), line=block.lines[error.index], field=error.header) from None
        for (_, column), parsed in zip(layout.columns, numbers, strict=True):
            column.take(parsed, block.lines)
        lines.append(np.array(block.lines, dtype=np.int64))
        if layout.identity is not None:
            keys = [(cell,) for cell in block.columns[layout.identity]]
            codes.append(labels.add(keys, block.lines))
            indices = block.columns[layout.index] if layout.index is not None else [""] * len(keys)
            models = block.columns[layout.name] if layout.name is not None else [""] * len(keys)
            names.update(dict(zip(keys, zip(indices, models, strict=True), strict=True)))
        elif layout.name is not None:
            all_names.extend(block.columns[layout.name])
    if not lines:
        raise TraceFormatError(path, "only a header, no complete row below it", line=file.header_line)
    time = np.concatenate(times)
    origin = int(time.min())
    time_s = seconds_from(time, origin)
    line = np.concatenate(lines)
    common = {"time_zone": TIME_ZONE_NOTE, "source": "nvidia-smi"}
    if layout.identity is not None:
        code = np.concatenate(codes)
        if gpus is not None:
            file.warnings.append(
                f"gpus was not used: the column {file.header[layout.identity]} names the GPU of each row"
            )
        described = [
            TraceMetadata(
                _uuid(file.header[layout.identity], key[0]),
                names[key][1],
                origin / NANOSECONDS,
                {**common, **({"gpu_index": names[key][0]} if names[key][0] else {})},
            )
            for key in labels.codes
        ]
    else:
        code, count = _take_turns(file, time_s, line, gpus)
        described = [
            TraceMetadata(f"GPU-{i}", _model(all_names, code, i), origin / NANOSECONDS, {**common, "gpu_index": str(i)})
            for i in range(count)
        ]
    return split_by_gpu(
        Rows(
            path,
            time_s,
            line,
            code,
            described,
            [column for _, column in layout.columns],
            _TIMESTAMP,
            warnings=(*layout.warnings, *file.warnings),
        )
    )


def _layout(file: DelimitedFile) -> _Layout:
    """Find the columns; the best of several fields for one metric is taken."""
    positions: dict[str, tuple[int, str]] = {}
    unknown = []
    for index, cell in enumerate(file.header):
        match = _HEADER_CELL.fullmatch(cell)
        name, unit = (match[1], match[2] or "") if match else (cell, "")
        if name in positions or (name not in FIELDS and name not in (_TIMESTAMP, *_IDENTITY, *_NAMES)):
            unknown.append(cell)
        else:
            positions[name] = (index, unit)
    if _TIMESTAMP not in positions:
        raise TraceFormatError(
            file.path,
            "this nvidia-smi log has no times; record it again with --query-gpu=timestamp,...",
            line=file.header_line,
            field=_TIMESTAMP,
        )
    chosen: dict[str, tuple[int, Column]] = {}
    for name, (metric, default) in FIELDS.items():
        if name not in positions:
            continue
        index, unit = positions[name]
        header = file.header[index]
        if metric in chosen:
            unknown.append(header)
            continue
        known = conversion(METRIC_BY_NAME[metric].unit, unit or default)
        if known is None:
            raise TraceFormatError(file.path, f"unknown unit {shown(unit)}", line=file.header_line, field=header)
        chosen[metric] = (index, Column(metric, header, *known))
    if not chosen:
        raise TraceFormatError(
            file.path,
            f"no field of this nvidia-smi log is a metric; query for example {', '.join(list(FIELDS)[1:5])}",
            line=file.header_line,
        )
    identity = next((name for name in _IDENTITY if name in positions), None)
    model = next((name for name in _NAMES if name in positions), None)
    return _Layout(
        positions[_TIMESTAMP][0],
        positions[identity][0] if identity else None,
        positions[_INDEX][0] if _INDEX in positions else None,
        positions[model][0] if model else None,
        sorted(chosen.values(), key=lambda item: item[0]),
        [left_out(unknown)] if unknown else [],
    )


def _times(cells: Sequence[str], parser: TimestampParser) -> IntArray:
    times = np.empty(len(cells), dtype=np.int64)
    for index, cell in enumerate(cells):
        try:
            times[index] = parser.nanoseconds(cell)
        except TimestampError as error:
            raise CellError(index, _TIMESTAMP, str(error)) from None
    return times


def _take_turns(file: DelimitedFile, time_s: FloatArray, lines: IntArray, gpus: int | None) -> tuple[IntArray, int]:
    """Tell the GPUs of a log apart that names none, and say what was left out."""
    breaks = [int(i) for i in np.searchsorted(lines, file.repeated_headers)]
    try:
        found = deinterleave(time_s, breaks, gpus)
    except BurstError as error:
        raise TraceFormatError(
            file.path,
            f"{error}; say it with gpus=N (--gpus N), 1 to {MAX_GPUS}, or record with --query-gpu=timestamp,index,...",
            line=int(lines[0]),
        ) from None
    if found.broken_bursts:
        file.warnings.append(
            f"{found.dropped_rows} rows of {found.broken_bursts} broken bursts were left out: "
            f"rows of some of the {found.gpus} GPUs are missing there"
        )
    if not (found.gpu >= 0).any():
        raise TraceFormatError(
            file.path, f"no burst has a row of each of {found.gpus} GPUs; correct gpus=N (--gpus N)", line=int(lines[0])
        )
    return found.gpu, found.gpus


def _uuid(field: str, value: str) -> str:
    return f"GPU-{value}" if field == _INDEX else value


def _model(names: Sequence[str], code: IntArray, gpu: int) -> str:
    return names[int(np.argmax(code == gpu))] if names else ""
