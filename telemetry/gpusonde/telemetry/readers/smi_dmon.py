"""Readers of what ``nvidia-smi`` prints for people: logs of ``dmon``, also with ``--format csv``, and its tables.

Two heading lines of ``dmon`` name the columns and their units, again every few ticks; times are local, in whole
seconds, with ``-o DT``. Without it there are none, and with ``-o T`` no dates::

    #Date       Time        gpu    pwr  gtemp  mtemp     sm    mem    enc    dec   mclk   pclk
    #YYYYMMDD   HH:MM:SS    Idx      W      C      C      %      %      %      %    MHz    MHz
     20251204   01:22:31      0     18     61      -      0      0      0      0    405    300

The tables of ``nvidia-smi -l 1 > log`` begin each with its date, in local time and whole seconds; each GPU has two
lines that matter::

    Thu Dec  4 01:22:31 2025
    |   0  NVIDIA GeForce GTX TITAN X     Off |   00000000:01:00.0 Off |                  N/A |
    | 22%   61C    P2              72W / 250W |     132MiB /  12288MiB |     57%      Default |
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gpusonde.errors import TraceFormatError, shown
from gpusonde.telemetry.metrics import METRIC_BY_NAME
from gpusonde.telemetry.readers.delimited import DEFAULT_MAX_BYTES, TIME_ZONE_NOTE, TimestampParser, blocks
from gpusonde.telemetry.readers.records import Records
from gpusonde.telemetry.readers.table import (
    Column,
    GpuLabels,
    IntArray,
    Rows,
    conversion,
    split_by_gpu,
    warn_of_columns,
)
from gpusonde.telemetry.trace import Trace, TraceMetadata

_TIME = "time"
_DAY = re.compile(r"\d{8}", re.ASCII)
_TIME_OF_DAY = re.compile(r"\d{2}:\d{2}:\d{2}", re.ASCII)
_INDEX = re.compile(r"\d+", re.ASCII)
_SEPARATOR = re.compile(r"\s*,\s*|\s+")
# Column of "nvidia-smi dmon --help" -> metric; "sm" is what --query-gpu calls utilization.gpu.
_METRICS = {
    "pwr": "power_watts",
    "gtemp": "gpu_temperature_celsius",
    "temp": "gpu_temperature_celsius",
    "mtemp": "memory_temperature_celsius",
    "sm": "gpu_utilization",
    "mem": "memory_utilization",
    "enc": "encoder_utilization",
    "dec": "decoder_utilization",
    "mclk": "memory_clock_mhz",
    "pclk": "sm_clock_mhz",
    "fb": "framebuffer_used_bytes",
}


_HEADINGS = (["Date", "Time", "gpu"], ["Time", "gpu"], ["gpu"])


def is_header(line: str) -> bool:
    """Whether these are the names of the columns of such a log."""
    return line.lstrip().startswith("#") and any(_cells(line)[: len(names)] == names for names in _HEADINGS)


def read_smi_dmon(
    path: str | os.PathLike[str], *, interval_s: float | None = None, max_bytes: int = DEFAULT_MAX_BYTES
) -> list[Trace]:
    """Read the traces of the log, one per GPU; a last row that was cut is left out with a warning.

    Args:
        path: The log.
        interval_s: Seconds between ticks, where the log has no times (the log's ``-d``, 1 without).
        max_bytes: Largest file to read.

    Raises:
        OSError: The file cannot be read.
        TraceFormatError: The file is not such a log, has no times and ``interval_s`` is None, or is larger than
            ``max_bytes``; the error names line and field.
    """
    header: list[str] = []
    columns: list[tuple[int, Column]] = []
    warnings: list[str] = []
    clock, labels = _Clock(), GpuLabels(path)
    times: list[IntArray] = []
    lines: list[IntArray] = []
    codes: list[IntArray] = []
    held: tuple[int, str] | None = None
    for block in blocks(path, max_bytes=max_bytes):
        numbers, rows = [], []
        for number, line in enumerate(block.lines, start=block.first_line):
            if not line.strip():
                continue
            if held is not None:
                raise TraceFormatError(path, held[1], line=held[0])
            cells = _cells(line)
            if is_header(line):
                if header and cells != header:
                    raise TraceFormatError(path, "another heading; cut the log there", line=number)
                header = cells
            elif line.lstrip().startswith("#"):
                if header and not columns:
                    columns = _columns(path, header, cells, number, warnings)
            elif not columns:
                raise TraceFormatError(path, "a row before the two lines of the heading; delete it", line=number)
            elif block.ends_file and not block.terminated and number == block.first_line + len(block.lines) - 1:
                held = (number, "the row was cut")
            elif len(cells) != len(header) or not _first_cell(header).fullmatch(cells[0]):
                held = (number, f"{shown(line.strip())} is no row of nvidia-smi dmon; delete the line")
            else:
                numbers.append(number)
                rows.append(cells)
        if not rows:
            continue
        by_column = list(zip(*rows, strict=True))
        gpu_numbers = by_column[header.index("gpu")]
        times.append(clock.read(header, by_column, path, numbers))
        for index, column in columns:
            column.take(column.parse(by_column[index], path, numbers), numbers)
        lines.append(np.array(numbers, dtype=np.int64))
        codes.append(labels.add([(gpu,) for gpu in gpu_numbers], numbers))
    if held is not None:
        warnings.append(f"line {held[0]}: the last row is incomplete and was left out; the file was cut there")
    if not lines:
        raise TraceFormatError(path, "only a heading, no complete row below it")
    code = np.concatenate(codes)
    common = {"source": "nvidia-smi dmon"}
    origin_unix_s = None
    if "Time" not in header:
        if interval_s is None:
            raise TraceFormatError(
                path,
                "the log has no times; say how far its ticks are apart, --interval-s 1s unless nvidia-smi dmon ran "
                "with -d, or record with nvidia-smi dmon -o DT",
                line=1,
            )
        ticks = np.zeros(len(code))
        for gpu in range(len(labels.codes)):
            ticks[code == gpu] = np.arange(np.count_nonzero(code == gpu))
        time_s = ticks * interval_s
    else:
        time_s, origin_unix_s, _ = clock.parser.seconds(np.concatenate(times))
        if interval_s is not None:
            warnings.append("interval_s was not used: the log has times")
        if "Date" in header:
            common["time_zone"] = TIME_ZONE_NOTE
        else:
            origin_unix_s = None
    gpus = [TraceMetadata(f"GPU-{gpu}", "", origin_unix_s, {**common, "gpu_index": gpu}) for (gpu,) in labels.codes]
    read = [column for _, column in columns]
    return split_by_gpu(Rows(path, time_s, np.concatenate(lines), code, gpus, read, _TIME, warnings=warnings))


@dataclass
class _Clock:
    """Reads days and times; without days, a time before the one above it is of the next day."""

    parser: TimestampParser = field(default_factory=TimestampParser)
    _day: int = 1
    _last: str = ""

    def read(
        self, header: list[str], cells: Sequence[Sequence[str]], path: str | os.PathLike[str], lines: list[int]
    ) -> IntArray:
        if "Time" not in header:
            return np.zeros(len(lines), dtype=np.int64)
        if "Date" in header:
            stamps = [f"{day[:4]}-{day[4:6]}-{day[6:]}T{time}" for day, time in zip(*cells[:2], strict=True)]
        else:
            stamps = []
            for time in cells[0]:
                self._day += time < self._last
                self._last = time
                stamps.append(f"2000-01-{self._day:02d}T{time}")
        return self.parser.parse(stamps, path, lines, _TIME)


def _first_cell(header: list[str]) -> re.Pattern[str]:
    return {"Date": _DAY, "Time": _TIME_OF_DAY}.get(header[0], _INDEX)


def _cells(line: str) -> list[str]:
    return _SEPARATOR.split(line.strip().lstrip("#").strip().rstrip(","))


def _columns(
    path: str | os.PathLike[str], header: list[str], units: list[str], line: int, warnings: list[str]
) -> list[tuple[int, Column]]:
    """Return the position and column of each metric."""
    if len(units) != len(header):
        raise TraceFormatError(path, f"{len(units)} units below {len(header)} names of columns", line=line)
    found = []
    for index, (name, unit) in enumerate(zip(header, units, strict=True)):
        if name not in _METRICS:
            continue
        known = conversion(METRIC_BY_NAME[_METRICS[name]].unit, unit)
        if known is None:
            raise TraceFormatError(path, f"unknown unit {shown(unit)}", line=line, field=name)
        found.append((index, Column(_METRICS[name], name, *known)))
    if not found:
        raise TraceFormatError(path, "no column is a metric; record with nvidia-smi dmon -s pucm -o DT", line=line)
    unknown = [name for name in header[header.index("gpu") + 1 :] if name not in _METRICS]
    if unknown:
        warnings.append(warn_of_columns(unknown))
    return found


_DATE = re.compile(r"[A-Z][a-z]{2} ([A-Z][a-z]{2}) +(\d{1,2}) (\d{2}:\d{2}:\d{2}) (\d{4})\s*", re.ASCII)
_FRAME = re.compile(r"\+-{20}.*|\| NVIDIA-SMI .*")
_GPU = re.compile(r"\|\s+(?P<index>\d+)\s+(?P<name>\S.*?)\s+(?:On|Off|N/A)\s*\|\s*[0-9A-Fa-f:.]{7,}\s.*")
_VALUES = re.compile(
    r"\|\s*\S+\s+(?P<temperature>\d+|N/A)C?\s+P\d+\s+(?P<power>[\d.]+|N/A)\s*W?\s*/.*?\|"
    r"\s*(?P<memory>[\d.]+|N/A)\s*(?:MiB)?\s*/.*?\|\s*(?P<utilization>\d+|N/A)\s*%?\s.*"
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def is_table(line: str) -> bool:
    """Whether a log that begins with this line is made of such tables."""
    return _DATE.fullmatch(line) is not None or _FRAME.fullmatch(line) is not None


def read_smi_tables(path: str | os.PathLike[str], *, max_bytes: int = DEFAULT_MAX_BYTES) -> Records:
    """Read the tables as records; those of processes below them are passed over.

    Raises:
        OSError: The file cannot be read.
        TraceFormatError: No GPU stands in it, or it is larger than ``max_bytes``.
    """
    records = Records(path, max_bytes=max_bytes)
    stamp = ""
    gpu: re.Match[str] | None = None
    for block in blocks(path, max_bytes=max_bytes):
        for number, line in enumerate(block.lines, start=block.first_line):
            date = _DATE.fullmatch(line)
            if date is not None and date[1] in _MONTHS:
                stamp = f"{date[4]}-{_MONTHS.index(date[1]) + 1:02d}-{int(date[2]):02d}T{date[3]}"
                continue
            values = _VALUES.fullmatch(line) if gpu is not None else None
            if values is not None and gpu is not None:
                told = {
                    "gpu_index": gpu["index"],
                    "gpu_model": gpu["name"],
                    "power_watts": values["power"],
                    "gpu_utilization [%]": values["utilization"],
                    "framebuffer_used_bytes [MiB]": values["memory"],
                    "gpu_temperature_celsius": values["temperature"],
                }
                records.add(number, {**({"timestamp": stamp} if stamp else {}), **told})
                gpu = None
            else:
                gpu = _GPU.fullmatch(line) or None
    if not records.lines:
        raise TraceFormatError(
            path,
            "the table that nvidia-smi prints for people, but no GPU with its values in it; record with "
            "nvidia-smi --query-gpu=timestamp,index,power.draw,utilization.gpu,memory.used --format=csv -lms 100",
            line=1,
        )
    return records
