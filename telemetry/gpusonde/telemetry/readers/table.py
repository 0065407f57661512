"""From rows in the order of a file to one checked ``Trace`` per GPU.

``TraceColumns`` says which columns of our own CSV and Parquet files mean what, ``Column`` reads their numbers: units,
missing values, sentinels and impossible values.
"""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from gpusonde.errors import TraceFormatError, shown
from gpusonde.telemetry.metrics import METRIC_BY_NAME, Unit
from gpusonde.telemetry.trace import FloatArray, Trace, TraceMetadata

TIME_S = "time_s"
TIMESTAMP = "timestamp"
GPU_UUID = "gpu_uuid"
TRACE_ID = "trace_id"
_KNOWN = (TIME_S, TIMESTAMP, GPU_UUID, TRACE_ID)
_SHOWN_COLUMNS = 8


@dataclass(frozen=True)
class TraceColumns:
    """Positions of the columns that matter.

    Attributes:
        time: Position of the time column.
        time_field: Its name, ``time_s`` or ``timestamp``.
        keys: Positions of the columns that tell traces apart: ``trace_id`` and ``gpu_uuid``, where they are there.
        has_gpu_uuid: Whether the last of the keys is ``gpu_uuid``.
        metrics: Metric name to position, in the file's order.
        warnings: Columns left out, and units that a header states.
        conversions: Metric name to (factor, divisor), where the header states another unit than the catalogue's.
    """

    time: int
    time_field: str
    keys: tuple[int, ...]
    has_gpu_uuid: bool
    metrics: dict[str, int]
    warnings: tuple[str, ...]
    conversions: Mapping[str, tuple[float, float]]

    def column(self, metric: str, header: Sequence[str], *, decimal_comma: bool = False) -> Column:
        """Return the column that reads a metric below this header."""
        return Column(
            metric, header[self.metrics[metric]], *self.conversions.get(metric, (1.0, 1.0)), decimal_comma=decimal_comma
        )


# "gpu_utilization [%]", "power_watts (mW)"; "gpu_utilization_percent".
_STATED_UNIT = re.compile(r"(\w+?)(?: ?[\[(]\s*(.+?)\s*[\])]|_(percent|pct))", re.ASCII)


def _metric_and_unit(name: str) -> tuple[str, tuple[float, float] | None]:
    """Return the metric that a header names with the unit it states, or the header as it is."""
    match = _STATED_UNIT.fullmatch(name)
    entry = METRIC_BY_NAME.get(match[1]) if match else None
    if match is None or entry is None:
        return name, None
    known = conversion(entry.unit, match[2] or "%")
    return (name, None) if known is None else (entry.name, known)


def names_a_metric(name: str) -> bool:
    """Whether a header of our own files names a metric so, with or without a unit."""
    return _metric_and_unit(name)[0] in METRIC_BY_NAME


def find_columns(path: str | os.PathLike[str], header: Sequence[str], line: int | None) -> TraceColumns:
    """Find the columns of a trace in a header.

    Raises:
        TraceFormatError: A name stands twice, or there is no time or no metric.
    """
    positions: dict[str, int] = {}
    unknown = []
    conversions = {}
    warnings = []
    for index, written in enumerate(header):
        name, stated = _metric_and_unit(written)
        if stated is not None:
            conversions[name] = stated
            warnings.append(f"{written}: read in the unit that the header states, as {name}")
        if name in METRIC_BY_NAME or name in _KNOWN:
            if name in positions:
                raise TraceFormatError(path, "the column is there twice; rename or remove one", line=line, field=name)
            positions[name] = index
        else:
            unknown.append(name)
    time_field = TIME_S if TIME_S in positions else TIMESTAMP
    if time_field not in positions:
        raise TraceFormatError(
            path,
            "no time column; a trace needs time_s (seconds) or timestamp (ISO 8601 or Unix time), this header begins "
            f"with {shown(', '.join(header))}; say how far the ticks are apart, such as --interval-s 1s",
            line=line,
        )
    metrics = {name: index for name, index in positions.items() if name in METRIC_BY_NAME}
    if not metrics:
        raise TraceFormatError(
            path,
            f"no column is a metric (found {shown(', '.join(header))}); name columns as in the catalogue, such as "
            "gpu_utilization or power_watts, or say what they are with --column THEIRS=OURS[:UNIT]",
            line=line,
        )
    if unknown:
        warnings.append(warn_of_columns(unknown))
    if time_field == TIME_S and TIMESTAMP in positions:
        warnings.append("the column timestamp was left out: time_s gives the times")
    return TraceColumns(
        positions[time_field],
        time_field,
        tuple(positions[name] for name in (TRACE_ID, GPU_UUID) if name in positions),
        GPU_UUID in positions,
        metrics,
        tuple(warnings),
        conversions,
    )


def join_metadata(
    keys: Sequence[tuple[str, ...]],
    columns: TraceColumns,
    described: Mapping[str | None, TraceMetadata],
    origin_unix_s: float | None,
    attributes: Mapping[str, str],
) -> list[TraceMetadata]:
    """Join what the rows' keys and the file's metadata (by ``gpu_uuid``; None: of all) say of each trace."""
    gpus = []
    for key in keys:
        uuid = key[-1] if key else ""
        known = described.get(uuid)
        if known is None:
            common = described.get(None, TraceMetadata())
            # A file of one trace needs no gpu_uuid column.
            if not key and len(described) == 1:
                common = next(iter(described.values()))
            known = common if not key else replace(common, gpu_uuid=uuid)
        extra = dict(attributes)
        if len(key) > (1 if columns.has_gpu_uuid else 0):
            extra["trace_id"] = key[0]
        gpus.append(
            replace(
                known,
                origin_unix_s=known.origin_unix_s if origin_unix_s is None else origin_unix_s,
                attributes={**extra, **known.attributes},
            )
        )
    return gpus


def warn_of_columns(names: Sequence[str]) -> str:
    """Return the warning that names unknown columns and, for each, a metric it may be meant to be."""
    described = []
    for name in names[:_SHOWN_COLUMNS]:
        nearest = difflib.get_close_matches(name[:100], METRIC_BY_NAME, n=1, cutoff=0.75)
        described.append(f"{shown(name)}{f' (did you mean {nearest[0]}?)' if nearest else ''}")
    more = len(names) - _SHOWN_COLUMNS
    return f"columns left out, as they are no metrics: {', '.join(described)}{f' and {more} more' if more > 0 else ''}"


# What tools write where a GPU gave no value. Empty cells are our own way of writing it.
MISSING_TEXTS = frozenset(
    {
        *("n/a", "[n/a]", "na", "nan", "null", "none", "-", "err!", "[err!]", "unknown error", "[unknown error]"),
        *("not supported", "[not supported]", "[not found]", "[timeout]", "[gpu is lost]", "[gpu requires reset]"),
        *("[insufficient permissions]", "[insufficient_permissions]"),
        "[requested functionality has been deprecated]",
    }
)

# Blank values of DCGM (dcgm_structs.h): the base and, up to three above it, not found, not supported, no permission.
_SENTINELS = np.array(
    [0x7FFFFFF0 + i for i in range(4)] + [(1 << 47) + i for i in range(4)],
    dtype=np.float64,
)
_INT64_BLANK = float(0x7FFFFFFFFFFFFFF0)
_ABSOLUTE_ZERO = -273.15

_ALL_PER_CENT = 100.0
_MOSTLY = 0.5
_MANY_IMPOSSIBLE = 0.05
# No GPU counts its memory in pieces this small: numbers below are MiB or GiB.
_LEAST_BYTES = 1 << 20
# No GPU at work draws, or is clocked at, less than this: numbers below are in the unit beside it.
_SOME = 20
_LEAST = {Unit.WATTS: (1.5, "kW"), Unit.MEGAHERTZ: (10.0, "GHz")}

_NUMBER_AND_UNIT = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([^\d\s].*)?", re.ASCII)

# Unit as written -> (multiply by, divide by). Percent is divided: 57 * 0.01 is not 0.57.
_CONVERSIONS: dict[Unit, dict[str, tuple[float, float]]] = {
    Unit.RATIO: {"%": (1.0, 100.0)},
    Unit.WATTS: {"W": (1.0, 1.0), "mW": (1.0, 1000.0), "kW": (1000.0, 1.0)},
    Unit.JOULES: {"J": (1.0, 1.0), "mJ": (1.0, 1000.0), "kJ": (1000.0, 1.0)},
    Unit.CELSIUS: {"C": (1.0, 1.0), "°C": (1.0, 1.0)},
    Unit.MEGAHERTZ: {"MHz": (1.0, 1.0), "GHz": (1000.0, 1.0), "Hz": (1.0, 1e6)},
    # Drivers before R340 wrote "MB" and meant MiB.
    Unit.BYTES: {
        "B": (1.0, 1.0), "KiB": (1024.0, 1.0), "MiB": (1024.0**2, 1.0), "MB": (1024.0**2, 1.0), "GiB": (1024.0**3, 1.0),
        "10^6 B": (1e6, 1.0), "10^9 B": (1e9, 1.0),
    },
    Unit.BYTES_PER_SECOND: {
        "B/s": (1.0, 1.0), "KiB/s": (1024.0, 1.0), "MiB/s": (1024.0**2, 1.0), "GiB/s": (1024.0**3, 1.0)
    },
    Unit.COUNT: {},
    Unit.BITS: {},
}  # fmt: skip


@dataclass(frozen=True)
class Numbers:
    """Numbers of one block as they stand in the file, shape (n,), with the conversion to the catalogue's unit."""

    raw: FloatArray
    factor: FloatArray | float
    divisor: FloatArray | float
    missing: int = 0


def conversion(unit: Unit, written: str) -> tuple[float, float] | None:
    """Return (factor, divisor) from a written unit to the catalogue's, or None where it is no unit of this metric."""
    return _CONVERSIONS[unit].get(written)


def units_of(unit: Unit) -> tuple[str, ...]:
    """Return the units, as written, that values of a metric may be in."""
    return tuple(_CONVERSIONS[unit])


@dataclass
class Column:
    """One metric column while a file is read.

    Attributes:
        metric: Name in the catalogue.
        header: Name in the file, for messages.
        factor: What a number without a unit of its own is multiplied by.
        divisor: What it is divided by after that.
        decimal_comma: Whether "0,5" is a half.
        missing: How many cells held a tool's word for "no value".
        impossible: How many values were sentinels or outside of the metric's range.
        first_impossible: Line of the first of them.
        above: How many values, sentinels aside, were above the metric's range (of a ratio: and at most 100).
        over_one: How many were above 1 (the same).
        positive: How many were above zero.
        fractional: How many were no whole numbers (the same).
        largest: The largest of them all.
        parts: Converted blocks.
    """

    metric: str
    header: str
    factor: float = 1.0
    divisor: float = 1.0
    decimal_comma: bool = False
    missing: int = 0
    impossible: int = 0
    first_impossible: int = 0
    above: int = 0
    over_one: int = 0
    positive: int = 0
    fractional: int = 0
    largest: float = 0.0
    parts: list[FloatArray] = field(default_factory=list)

    def parse(self, cells: Sequence[str], path: str | os.PathLike[str], lines: Sequence[int]) -> Numbers:
        """Read the cells of one block, whose file and lines are given; an empty cell is NaN.

        Raises:
            TraceFormatError: A cell is neither a number in a known unit nor blank.
        """
        if self.decimal_comma:
            cells = [cell.replace(",", ".") for cell in cells]
        numbers = _plain_numbers(cells)
        if numbers is not None:
            return Numbers(numbers, self.factor, self.divisor)
        # Nearly always, either all cells carry the same unit or none does.
        _, space, written = cells[0].partition(" ")
        known = conversion(METRIC_BY_NAME[self.metric].unit, written)
        suffix = space + written
        if known is not None and all(cell.endswith(suffix) for cell in cells):
            numbers = _plain_numbers([cell[: -len(suffix)] for cell in cells])
            if numbers is not None:
                return Numbers(numbers, *known)
        return self._parse_each(cells, path, lines)

    def _parse_each(self, cells: Sequence[str], path: str | os.PathLike[str], lines: Sequence[int]) -> Numbers:
        unit = METRIC_BY_NAME[self.metric].unit
        raw = np.full(len(cells), np.nan)
        factor = np.full(len(cells), self.factor)
        divisor = np.full(len(cells), self.divisor)
        missing = 0
        for index, cell in enumerate(cells):
            text = cell.strip()
            match = _NUMBER_AND_UNIT.fullmatch(text)
            if match is not None:
                number, written = match.groups()
                known = conversion(unit, written) if written else (self.factor, self.divisor)
                if known is not None:
                    raw[index] = float(number)
                    factor[index], divisor[index] = known
                    continue
            if text and text.lower() not in MISSING_TEXTS:
                what = f"{shown(cell)} is not a number that can be read as {unit.value}; correct it, or leave it empty"
                raise TraceFormatError(path, what, line=lines[index], field=self.header)
            missing += bool(text)
        return Numbers(raw, factor, divisor, missing)

    def take(self, numbers: Numbers, lines: Sequence[int]) -> None:
        """Convert the numbers of one block, whose lines or rows are given, and keep them."""
        raw = numbers.raw
        with np.errstate(over="ignore", invalid="ignore"):
            values = raw * numbers.factor / numbers.divisor
        entry = METRIC_BY_NAME[self.metric]
        lowest = _ABSOLUTE_ZERO if entry.unit is Unit.CELSIUS else 0.0
        highest = math.inf if entry.maximum is None else entry.maximum
        wrong = (values < lowest) | (values > highest) | np.isinf(values) | (raw >= _INT64_BLANK)
        blank = np.isin(raw, _SENTINELS) | (raw >= _INT64_BLANK)
        wrong |= blank
        meant = values[~blank & (values > 0) & np.isfinite(values)]
        self.positive += meant.size
        in_range = meant <= _ALL_PER_CENT if entry.unit is Unit.RATIO else True
        self.above += int(np.count_nonzero((meant > highest) & in_range))
        self.over_one += int(np.count_nonzero((meant > 1) & in_range))
        self.fractional += int(np.count_nonzero(meant % 1))
        self.largest = max(self.largest, float(meant.max(initial=0.0)))
        count = int(np.count_nonzero(wrong))
        if count:
            if not self.impossible:
                self.first_impossible = int(lines[int(np.argmax(wrong))])
            self.impossible += count
            values[wrong] = np.nan
        self.missing += numbers.missing
        self.parts.append(values)

    def values(self) -> FloatArray:
        """Return all values taken so far, shape (n,)."""
        return np.concatenate(self.parts) if self.parts else np.empty(0)

    def doubt(self) -> str:
        """Say which other unit the values must be in, and what to do; empty where they may well be what they say.

        Values in a wrong unit are mostly impossible ones: left out, the few that remain would give a confident answer.
        """
        unit = METRIC_BY_NAME[self.metric].unit
        if unit is Unit.RATIO:
            # Activity a little above 1 is seen under MIG.
            if self.over_one > _MOSTLY * self.positive or self.above > _MANY_IMPOSSIBLE * self.positive:
                return self._advise("per cent? A ratio lies in 0..1", "%")
        elif unit is Unit.BYTES and 0 < self.largest < _LEAST_BYTES:
            return self._advise(f"MiB? No value is larger than {self.largest:,.10g} bytes", "MiB")
        elif unit in _LEAST and 0 < self.largest < _LEAST[unit][0] and self.fractional >= _SOME:
            smaller = _LEAST[unit][1]
            return self._advise(f"{smaller}? No value is larger than {self.largest:,.10g} {unit.value}", smaller)
        elif self.above > _MOSTLY * self.positive:
            larger = {Unit.WATTS: "mW", Unit.JOULES: "mJ"}.get(unit)
            if larger is not None:
                return self._advise(f"{larger}? Most values are impossible as {unit.value}", larger)
            return f"not {unit.value}? Most values are impossible, up to {self.largest:,.10g}; convert them"
        return ""

    def _advise(self, doubt: str, unit: str) -> str:
        told = f"--column '{self.header}={self.metric}:{'percent' if unit == '%' else unit}'"
        return f"{doubt}: name the column '{self.metric} [{unit}]', say {told}, or convert the values"

    def warnings(self, place: str, scope: str) -> list[str]:
        """Say what was read as missing; ``place`` is the word before a line number, ``scope`` follows the counts."""
        said = []
        if self.missing:
            said.append(f"{self.header}: {self.missing} values{scope} were given as not available; they are missing")
        if self.impossible:
            said.append(
                f"{self.header}: {self.impossible} values{scope} are sentinels or impossible "
                f"(the first on {place}{self.first_impossible}); they are taken as missing"
            )
        return said


def _plain_numbers(cells: Sequence[str]) -> FloatArray | None:
    """Return the cells as numbers, or None where one of them is more than a number."""
    try:
        numbers = np.array([float(cell) if cell else math.nan for cell in cells])
    except ValueError:
        return None
    # Python reads "1_0" as ten.
    return None if any("_" in cell for cell in cells) else numbers


IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

# More than any file of one machine or test set holds; a column of random text must not become a million traces.
MAX_TRACES = 65_536

# A sampler that was held up takes the missed ticks at once, and rows get copied: 0.15 % of the ticks of Python samplers
# on busy hosts repeat a time. Where many do, rows of several GPUs stand in one column, or the times are too coarse.
_MAX_REPEATED_SHARE = 0.01
_FEW_REPEATED = 3  # of which that share says nothing, in a file of a few hundred ticks
_SHARE_OF_SHORT_FILE = 0.1

_MOST_SECONDS = 1e11  # the year 5138
_LONG_STEP_S = 90.0  # slower than the samplers of fleets, once a minute at most


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
        exact: Whether gpusonde wrote the file, so that its units are beyond doubt.
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
    exact: bool = False


def split_by_gpu(rows: Rows) -> list[Trace]:
    """Return one trace per GPU, in the order of ``rows.gpus``; GPUs without rows are left out.

    Raises:
        TraceFormatError: The times of one GPU do not increase, or a metric's values are in another unit.
    """
    said_of_times = [] if rows.exact else _check_units(rows)
    word = rows.place or "line "
    scope = " in all GPUs of the file" if len(rows.gpus) > 1 else ""
    told = (text for column in rows.columns for text in column.warnings(word, scope))
    warnings = (*rows.warnings, *said_of_times, *told)
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
                f"{int((~kept).sum())} ticks have the time of the tick after them, the first of them on "
                f"{word}{rows.lines[chosen][~kept][0]}; the last of each such group was taken"
            )
            said = (*warnings, repeated)
            chosen = chosen[kept]
        traces.append(gpu.trace(rows.time_s[chosen], {name: column[chosen] for name, column in values.items()}, said))
    return traces


def _check_units(rows: Rows) -> list[str]:
    """Refuse metrics, and a ``time_s``, that are certainly in another unit; say where the times may be."""
    for column in rows.columns:
        doubt = column.doubt()
        if doubt:
            raise TraceFormatError(rows.path, doubt, field=column.header)
    if rows.time_field != TIME_S:
        return []
    if abs(rows.time_s).max() >= _MOST_SECONDS:
        what = "milliseconds? Name the column timestamp, which takes Unix time in any unit, or convert it to seconds"
        raise TraceFormatError(rows.path, what, field=TIME_S)
    steps = np.diff(rows.time_s[rows.codes == rows.codes[0]])
    usual = float(np.median(steps)) if steps.size else 0.0
    if usual < _LONG_STEP_S or np.any(rows.time_s % 1):
        return []
    what = f"ticks are {usual:g} s apart; if these are milliseconds, say --column time_s=time_s:ms, or divide by 1000"
    # Samplers of fleets come once a minute, or every few; those of GPUs every 100, 200 or 1000 ms.
    if usual % 60:
        raise TraceFormatError(rows.path, f"{what}; if they are seconds, say --column time_s=time_s:s", field=TIME_S)
    return [what]


def _distinct_times(rows: Rows, time_s: FloatArray, lines: IntArray, gpu: TraceMetadata) -> BoolArray:
    """Return which ticks to keep, shape (n,): all of them, but for a few that have the time of the next one.

    Many of them, or a time that goes back, mean that the file was put together wrongly.
    """
    gaps = np.diff(time_s)
    suspects = np.flatnonzero(gaps <= 0)
    few = max(_MAX_REPEATED_SHARE * gaps.size, min(_FEW_REPEATED, _SHARE_OF_SHORT_FILE * gaps.size))
    many = suspects.size > few
    if suspects.size and (many or (gaps < 0).any()):
        back = suspects if many else np.flatnonzero(gaps < 0)
        raise _disorder(rows, time_s, lines, gpu, int(back[0]))
    return np.append(gaps > 0, True)


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
