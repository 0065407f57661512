"""Reader of ``dcgmi dmon`` logs.

``dcgmi dmon -e 203,1002 -d 100`` prints a heading of column codes, a line ``ID``, then one row per entity and tick::

    #Entity   GPUTL   SMACT
    ID
    GPU 0     98      0.951
    GPU 1     97      N/A

The heading comes again from time to time. There are no times: ticks are ``interval_s`` apart, unless each line begins
with a time stamp, as ``| ts '%Y-%m-%dT%H:%M:%.S'`` puts there. Without either the log is refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gpusonde.errors import TraceFormatError, shown
from gpusonde.telemetry.metrics import METRIC_BY_CODE
from gpusonde.telemetry.readers.delimited import (
    DEFAULT_MAX_BYTES,
    TimestampParser,
    blocks,
)
from gpusonde.telemetry.readers.table import Column, GpuLabels, IntArray, Rows, split_by_gpu, warn_of_columns
from gpusonde.telemetry.trace import FloatArray, Trace, TraceMetadata

_STAMP = r"(?:(?P<stamp>\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}\S*|\d{9,19}(?:\.\d+)?)\s+)?"
_HEADER = re.compile(_STAMP + r"#\s*Entity(?:Id)?\s+(?P<fields>\S.*)", re.ASCII)
_UNITS = re.compile(_STAMP + r"(?:#\s*)?ID\b.*", re.ASCII | re.IGNORECASE)
_ROW = re.compile(_STAMP + r"(?P<kind>[A-Za-z][A-Za-z-]*)\s+(?P<id>\d\S*)\s+(?P<values>\S.*)", re.ASCII)
_GPU = "GPU"
_ENTITIES = frozenset({_GPU, "GPU-I", "GPU-CI", "CI", "vGPU", "Switch", "Link", "CPU", "Core", "CX"})
_TIME = "time stamp"


def is_header(line: str) -> bool:
    """Whether this is the heading of ``dcgmi dmon``."""
    return _HEADER.fullmatch(line.strip()) is not None


def is_row(line: str) -> bool:
    """Whether this is a row of ``dcgmi dmon``."""
    match = _ROW.fullmatch(line.strip())
    return match is not None and match["kind"] in _ENTITIES


@dataclass(frozen=True)
class _Row:
    line: int
    stamp: str | None
    entity: tuple[str, str]
    values: list[str]


def read_dcgmi(
    path: str | os.PathLike[str], *, interval_s: float | None = None, max_bytes: int = DEFAULT_MAX_BYTES
) -> list[Trace]:
    """Read the traces of a ``dcgmi dmon`` log: one per GPU, GPU instance or other entity, in the order of the log.

    Args:
        path: The log.
        interval_s: Seconds between ticks (the log's ``-d`` in milliseconds, divided by 1000), where lines have no time
            stamps.
        max_bytes: Largest file to read.

    Raises:
        OSError: The file cannot be read.
        TraceFormatError: The file is not a trace, has no times and ``interval_s`` is None, or is larger than
            ``max_bytes``; the error names line and field.
    """
    log = _Log(path, max_bytes)
    labels = GpuLabels(path)
    ticks = _Ticks(path, interval_s)
    columns: list[tuple[int, Column]] = []
    lines: list[IntArray] = []
    codes: list[IntArray] = []
    for block in log.rows():
        if not columns:
            columns = _columns(log)
        numbers = [row.line for row in block]
        ticks.add(block)
        cells = list(zip(*(row.values for row in block), strict=True))
        for index, column in columns:
            column.take(column.parse(cells[index], path, numbers), numbers)
        lines.append(np.array(numbers, dtype=np.int64))
        codes.append(labels.add([row.entity for row in block], numbers))
    if not lines:
        raise TraceFormatError(path, "only a heading, no complete row below it", line=log.header_line)
    time_s, origin_unix_s, attributes = ticks.finish()
    gpus = [
        TraceMetadata(
            f"{kind}-{number}",
            "",
            origin_unix_s,
            {"source": "dcgmi dmon", **attributes, **({"gpu_index": number} if kind == _GPU else {})},
        )
        for kind, number in labels.codes
    ]
    return split_by_gpu(
        Rows(
            path,
            time_s,
            np.concatenate(lines),
            np.concatenate(codes),
            gpus,
            [column for _, column in columns],
            _TIME,
            warnings=(*log.warnings, *ticks.warnings),
        )
    )


def _columns(log: _Log) -> list[tuple[int, Column]]:
    columns: dict[str, tuple[int, Column]] = {}
    unknown = []
    for index, code in enumerate(log.header):
        entry = METRIC_BY_CODE.get(code)
        if entry is None or entry.name in columns:
            unknown.append(code)
            continue
        scale = entry.dcgm_scale
        # 57 / 100 is 0.57, 57 * 0.01 is not.
        factor, divisor = (1.0, float(round(1 / scale))) if scale < 1 else (scale, 1.0)
        columns[entry.name] = (index, Column(entry.name, code, factor, divisor))
    if not columns:
        raise TraceFormatError(
            log.path,
            f"no column is a metric (found {shown(' '.join(log.header))}); watch for example -e 203,1002,1005,155",
            line=log.header_line,
        )
    if unknown:
        log.warnings.append(warn_of_columns(unknown))
    return list(columns.values())


class _Log:
    """The rows of a log, checked against its heading."""

    def __init__(self, path: str | os.PathLike[str], max_bytes: int) -> None:
        self.path = path
        self.header: list[str] = []
        self.header_line = 0
        self.warnings: list[str] = []
        self._max_bytes = max_bytes

    def rows(self) -> Iterator[list[_Row]]:
        """Yield rows, about a megabyte at a time; an incomplete last row is left out with a warning."""
        held: tuple[int, str] | None = None
        for block in blocks(self.path, max_bytes=self._max_bytes):
            found = []
            for number, text in enumerate(block.lines, start=block.first_line):
                line = text.strip()
                if not line:
                    continue
                if held is not None:
                    raise TraceFormatError(self.path, held[1], line=held[0])
                cut = block.ends_file and not block.terminated and number == block.first_line + len(block.lines) - 1
                if not cut and self._is_heading(line, number):
                    continue
                row = self._row(line, number)
                if cut:
                    held = (number, "the row was cut")
                elif isinstance(row, str):
                    held = (number, row)
                else:
                    found.append(row)
            if found:
                yield found
        if held is not None:
            self.warnings.append(f"line {held[0]}: the last row is incomplete and was left out; the file was cut there")

    def _is_heading(self, line: str, number: int) -> bool:
        match = _HEADER.fullmatch(line)
        if match is None:
            return bool(self.header) and _UNITS.fullmatch(line) is not None
        fields = match["fields"].split()
        if not self.header:
            self.header, self.header_line = fields, number
        elif fields != self.header:
            raise TraceFormatError(
                self.path,
                f"another heading than on line {self.header_line}; cut the log into one file per heading",
                line=number,
            )
        return True

    def _row(self, line: str, number: int) -> _Row | str:
        match = _ROW.fullmatch(line)
        if match is None or match["kind"] not in _ENTITIES:
            return f"{shown(line)} is no row of dcgmi dmon; delete the line"
        values = match["values"].split()
        if len(values) != len(self.header):
            return (
                f"{len(values)} values, but the heading names {len(self.header)} columns; complete or delete the row "
                "(and watch no text fields: their values contain blanks)"
            )
        return _Row(number, match["stamp"], (match["kind"], match["id"]), values)


class _Ticks:
    """The time of each row: its stamp, or the number of its tick times the interval."""

    def __init__(self, path: str | os.PathLike[str], interval_s: float | None) -> None:
        self.warnings: list[str] = []
        self._path = path
        self._interval_s = interval_s
        self._parser = TimestampParser()
        self._stamped: bool | None = None
        self._seen: set[tuple[str, str]] = set()
        self._tick = 0
        self._parts: list[IntArray] = []

    def add(self, rows: list[_Row]) -> None:
        times = np.empty(len(rows), dtype=np.int64)
        for index, row in enumerate(rows):
            stamped = row.stamp is not None
            if self._stamped is None:
                self._stamped = stamped
            elif stamped != self._stamped:
                raise TraceFormatError(
                    self._path,
                    "some rows have a time stamp and some have none; complete them",
                    line=row.line,
                    field=_TIME,
                )
            times[index] = self._next_tick(row) if row.stamp is None else self._time(row.line, row.stamp)
        self._parts.append(times)

    def _next_tick(self, row: _Row) -> int:
        # Each tick names each entity once.
        if row.entity in self._seen:
            self._seen.clear()
            self._tick += 1
        self._seen.add(row.entity)
        return self._tick

    def _time(self, line: int, stamp: str) -> int:
        try:
            return self._parser.nanoseconds(stamp)
        except ValueError as error:
            raise TraceFormatError(self._path, str(error), line=line, field=_TIME) from None

    def finish(self) -> tuple[FloatArray, float | None, dict[str, str]]:
        """Return seconds, the Unix time of their origin, and what to say of them."""
        times = np.concatenate(self._parts)
        if self._stamped:
            if self._interval_s is not None:
                self.warnings.append("interval_s was not used: the log has time stamps")
            return self._parser.seconds(times)
        if self._interval_s is None:
            raise TraceFormatError(
                self._path,
                "the log has no times; say how far its ticks are apart, --interval-s 100ms where dcgmi dmon ran with "
                "-d 100 and --interval-s 1s without -d, or record with | ts '%Y-%m-%dT%H:%M:%.S'",
            )
        return times.astype(np.float64) * self._interval_s, None, {}
