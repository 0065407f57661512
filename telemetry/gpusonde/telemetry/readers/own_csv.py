"""Reader of our own CSV files: ``time_s`` or ``timestamp``, metric columns, ``gpu_uuid`` or ``trace_id``."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from gpusonde.errors import TraceFormatError, shown
from gpusonde.telemetry.readers.delimited import (
    DEFAULT_MAX_BYTES,
    DelimitedFile,
    RowBlock,
    TimestampParser,
)
from gpusonde.telemetry.readers.table import (
    TIME_S,
    GpuLabels,
    IntArray,
    Rows,
    TraceColumns,
    find_columns,
    join_metadata,
    split_by_gpu,
)
from gpusonde.telemetry.trace import CSV_KEY, FloatArray, Trace, TraceMetadata, finite, from_json, parse_json


def read_own_csv(path: str | os.PathLike[str], *, max_bytes: int = DEFAULT_MAX_BYTES) -> list[Trace]:
    """Read the traces of a CSV file of ours, in the order in which their GPUs first appear.

    Raises:
        OSError: The file cannot be read.
        TraceFormatError: The file is not a trace, or larger than ``max_bytes``; the error names line and field.
    """
    file = DelimitedFile(path, max_bytes=max_bytes)
    file.read_header()
    columns = find_columns(path, file.header, file.header_line)
    times = _CsvTimes(path, columns, decimal_comma=file.delimiter == ";")
    labels = GpuLabels(path)
    metrics = [columns.column(name, file.header, decimal_comma=file.delimiter == ";") for name in columns.metrics]
    lines: list[IntArray] = []
    codes: list[IntArray] = []
    for block in file.rows():
        try:
            time = times.parse(block)
            numbers = [
                column.parse(block.columns[columns.metrics[column.metric]], path, block.lines) for column in metrics
            ]
        except TraceFormatError:
            if block.doubtful:
                file.warnings.append(f"line {block.lines[0]}: the last row is incomplete and was left out")
                continue
            raise
        if block.doubtful:
            file.warnings.append(
                f"line {block.lines[0]}: the last line has no line end; if the file was cut, its last value is wrong"
            )
        times.parts.append(time)
        for column, parsed in zip(metrics, numbers, strict=True):
            column.take(parsed, block.lines)
        lines.append(np.array(block.lines, dtype=np.int64))
        keys = [block.columns[index] for index in columns.keys]
        codes.append(
            labels.add(list(zip(*keys, strict=True)), block.lines)
            if keys
            else np.zeros(len(block.lines), dtype=np.int64)
        )
    if not lines:
        raise TraceFormatError(path, "only a header, no complete row below it", line=file.header_line)
    described = _metadata(path, file.comments)
    time_s, origin_unix_s, attributes = times.finish()
    return split_by_gpu(
        Rows(
            path,
            time_s,
            np.concatenate(lines),
            np.concatenate(codes),
            join_metadata(list(labels.codes) or [()], columns, described, origin_unix_s, attributes),
            metrics,
            columns.time_field,
            warnings=(*columns.warnings, *file.warnings),
            exact=any(uuid is not None for uuid in described),
        )
    )


@dataclass
class _CsvTimes:
    """Collects the time column, as seconds or as nanoseconds since 1970."""

    path: str | os.PathLike[str]
    columns: TraceColumns
    decimal_comma: bool
    parts: list[npt.NDArray[Any]] = field(default_factory=list)
    parser: TimestampParser = field(default_factory=TimestampParser)

    def parse(self, block: RowBlock) -> npt.NDArray[Any]:
        cells = block.columns[self.columns.time]
        if self.columns.time_field == TIME_S:
            return self._seconds(cells, block.lines)
        return self.parser.parse(cells, self.path, block.lines, self.columns.time_field)

    def _seconds(self, cells: Sequence[str], lines: Sequence[int]) -> FloatArray:
        if self.decimal_comma:
            cells = [cell.replace(",", ".") for cell in cells]
        times = np.empty(len(cells))
        for index, cell in enumerate(cells):
            try:
                times[index] = float(cell)
            except ValueError:
                raise self._error(
                    lines[index], f"{shown(cell)} is not a time in seconds; complete or delete the row"
                ) from None
        if not np.isfinite(times).all():
            index = int(np.argmin(np.isfinite(times)))
            raise self._error(lines[index], f"{shown(cells[index])} is not a finite time; complete or delete the row")
        return times

    def _error(self, line: int, what: str) -> TraceFormatError:
        return TraceFormatError(self.path, what, line=line, field=self.columns.time_field)

    def finish(self) -> tuple[FloatArray, float | None, dict[str, str]]:
        """Return seconds, the Unix time of their origin, and what to say of them."""
        times = np.concatenate(self.parts)
        return (times, None, {}) if self.columns.time_field == TIME_S else self.parser.seconds(times)


def _metadata(path: str | os.PathLike[str], comments: Sequence[tuple[int, str]]) -> dict[str | None, TraceMetadata]:
    """Read ``# key: value`` comments: ours, and those that people write by hand (under None)."""
    described: dict[str | None, TraceMetadata] = {}
    by_hand: dict[str, str] = {}
    for number, comment in comments:
        key, colon, value = comment.lstrip("# ").partition(":")
        key, value = key.strip(), value.strip()
        if not colon or not key:
            continue
        if key != CSV_KEY:
            by_hand[key] = value
            continue
        try:
            one = from_json(parse_json(value))
        except ValueError as error:
            raise TraceFormatError(path, str(error), line=number, field=CSV_KEY) from None
        described[one.gpu_uuid] = one
    if by_hand:
        origin = finite(by_hand.pop("origin_unix_s", math.nan))
        model = by_hand.pop("gpu_model", "")
        described[None] = TraceMetadata("", model, origin, by_hand)
    return described
