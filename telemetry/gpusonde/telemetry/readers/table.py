"""From rows in the order of a file to one checked ``Trace`` per GPU."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gpusonde.telemetry.errors import TraceFormatError
from gpusonde.telemetry.metadata import TraceMetadata
from gpusonde.telemetry.readers.values import Column
from gpusonde.telemetry.trace import FloatArray, Trace

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

# More than any file of one machine or test set holds; a column of random text must not become a million traces.
MAX_TRACES = 65_536

# A sampler on a fixed grid that was held up takes the missed ticks at once. A repeated time that comes from this has,
# over the last few ticks, as much time behind it as ticks need; one row too many in an undisturbed trace has less.
# Measured on traces of Python samplers on busy hosts: 0.15 % of the ticks repeat a time, up to five in a row.
_LOOK_BACK = 8
_TOLERANCE = 0.4
_MAX_REPEATED_SHARE = 0.05


@dataclass
class GpuLabels:
    """Numbers the GPUs (or recorded runs) of a file in the order in which they first appear."""

    path: str | os.PathLike[str]
    codes: dict[tuple[str, ...], int] = field(default_factory=dict)

    def add(self, keys: Sequence[tuple[str, ...]], lines: Sequence[int]) -> IntArray:
        """Return the number of each key, shape (n,).

        Raises:
            TraceFormatError: There are too many different ones.
        """
        codes = self.codes
        numbers = np.array([codes.setdefault(key, len(codes)) for key in keys], dtype=np.int64)
        if len(codes) > MAX_TRACES:
            first = int(np.argmax(numbers >= MAX_TRACES))
            raise TraceFormatError(
                self.path, f"more than {MAX_TRACES} different GPUs or traces; split the file", line=int(lines[first])
            )
        return numbers


@dataclass(frozen=True)
class Rows:
    """All rows of a file, in its order.

    Attributes:
        path: The file.
        time_s: Shape (n,), seconds after ``origin_unix_s``.
        lines: Shape (n,), line or row of each.
        codes: Shape (n,), the index in ``gpus`` that the row belongs to; -1 for rows to leave out.
        gpus: What is known of each GPU.
        columns: The metric columns.
        time_field: Name of the time column, for messages.
        place: The word before a line or row number in messages.
        warnings: What was left out or repaired so far.
    """

    path: str | os.PathLike[str]
    time_s: FloatArray
    lines: IntArray
    codes: IntArray
    gpus: Sequence[TraceMetadata]
    columns: Sequence[Column]
    time_field: str
    place: str = ""
    warnings: Sequence[str] = ()


def split_by_gpu(rows: Rows) -> list[Trace]:
    """Return one trace per GPU, in the order of ``rows.gpus``; GPUs without rows are left out.

    Raises:
        TraceFormatError: The times of one GPU do not increase.
    """
    word = rows.place or "line "
    scope = " in all GPUs of the file" if len(rows.gpus) > 1 else ""
    warnings = (*rows.warnings, *(text for column in rows.columns for text in column.warnings(word, scope)))
    values = {column.metric: column.values() for column in rows.columns}
    order = np.argsort(rows.codes, kind="stable")
    bounds = np.searchsorted(rows.codes[order], np.arange(len(rows.gpus) + 1))
    traces = []
    for gpu, start, end in zip(rows.gpus, bounds[:-1], bounds[1:], strict=True):
        if start == end:
            continue
        chosen = order[start:end]
        kept = _distinct_times(rows, rows.time_s[chosen], rows.lines[chosen], gpu)
        said = warnings
        if not kept.all():
            repeated = (
                f"{int((~kept).sum())} ticks have the time of the tick after them, where the sampler caught up after a "
                "pause; the last of each such group was taken"
            )
            said = (*warnings, repeated)
            chosen = chosen[kept]
        traces.append(gpu.trace(rows.time_s[chosen], {name: column[chosen] for name, column in values.items()}, said))
    return traces


def _distinct_times(rows: Rows, time_s: FloatArray, lines: IntArray, gpu: TraceMetadata) -> BoolArray:
    """Return which ticks to keep, shape (n,): all of them, but for repeated times where a late sampler caught up.

    With times rounded to milliseconds, ticks taken at once coincide. Any other repeated time means that the file was
    put together wrongly.
    """
    gaps = np.diff(time_s)
    suspects = np.flatnonzero(gaps <= 0)
    keep = np.ones(len(time_s), dtype=np.bool_)
    if not suspects.size:
        return keep
    usual = float(np.median(gaps))
    for before in suspects:
        if (
            gaps[before] < 0
            or suspects.size > _MAX_REPEATED_SHARE * gaps.size
            or not _catching_up(gaps, int(before), usual)
        ):
            raise _disorder(rows, time_s, lines, gpu, int(before))
        keep[before] = False
    return keep


def _catching_up(gaps: FloatArray, index: int, usual: float) -> bool:
    """Whether the ticks up to the one after this gap took as long as ticks usually take, over any of the last few."""
    elapsed = np.cumsum(gaps[max(0, index + 1 - _LOOK_BACK) : index + 1][::-1])
    return bool((elapsed >= (np.arange(1, len(elapsed) + 1) - _TOLERANCE) * usual).any())


def _disorder(rows: Rows, time_s: FloatArray, lines: IntArray, gpu: TraceMetadata, before: int) -> TraceFormatError:
    here = before + 1
    equal = time_s[before] == time_s[here]
    of_gpu = f" of {gpu.gpu_uuid}" if len(rows.gpus) > 1 and gpu.gpu_uuid else ""
    return TraceFormatError(
        rows.path,
        f"the time{of_gpu} ({time_s[here]:.6f} s) {'is the same as' if equal else 'lies before'} that on "
        f"{rows.place or 'line '}{lines[before]} ({time_s[before]:.6f} s); times must increase: "
        + (
            "remove the repeated rows, or name the GPU of each row"
            if equal
            else "sort the file, or cut it at this place"
        ),
        line=int(lines[here]),
        field=rows.time_field,
        place=rows.place,
    )
