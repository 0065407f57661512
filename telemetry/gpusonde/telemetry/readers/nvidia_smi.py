"""Reader of ``nvidia-smi --query-gpu=timestamp,... --format=csv -lms N`` logs.

``deinterleave`` tells apart the GPUs of a log that names none of them. nvidia-smi prints one row per GPU, always in the
same order, then sleeps N milliseconds. So the rows come in bursts of as many rows as there are GPUs: within a burst
they are some milliseconds apart (each row carries the time at which its own GPU was asked), between bursts at least N
milliseconds. Values are of no help: idle GPUs look alike. What disturbs the picture: a GPU that answers late, in the
middle of a burst (0.86 s was seen at N = 100), pauses of the whole log (8.7 s), and rows that were lost.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpusonde.errors import TraceFormatError, shown
from gpusonde.telemetry.metrics import METRIC_BY_NAME
from gpusonde.telemetry.readers.delimited import (
    DEFAULT_MAX_BYTES,
    TIME_ZONE_NOTE,
    DelimitedFile,
    TimestampParser,
)
from gpusonde.telemetry.readers.table import (
    Column,
    GpuLabels,
    IntArray,
    Rows,
    conversion,
    split_by_gpu,
    warn_of_columns,
)
from gpusonde.telemetry.trace import FloatArray, Trace, TraceMetadata

BoolArray = npt.NDArray[np.bool_]

MAX_GPUS = 64
# A burst is believed only where the rows of one come this close together: one GPU is asked within milliseconds, while
# the shortest pause that people use is 100 ms.
_WITHIN_BURST_S = 0.06
_SHORTEST_PAUSE_S = 0.008
_PAUSE_TO_WITHIN = 3.0
_ENOUGH_WHOLE_BURSTS = 0.7
_CLEARLY = 0.9
# Pieces of bursts whose beginnings are this near to one period apart may be two bursts.
_SAME_PACE = 0.15
# Rows of one GPU that come every 20 ms or more, with some holes, may look like a few long bursts.
_FEW_BURSTS = 5
_ONE_AT_A_TIME_S = 0.02
_SAMPLE_ROWS = 100_000


@dataclass(frozen=True)
class Deinterleaved:
    """The GPU of each row.

    Attributes:
        gpu: Shape (n,), index of the row's GPU within its burst; -1 for rows of broken bursts.
        gpus: Number of GPUs.
        broken_bursts: How many bursts had rows missing and were left out.
        dropped_rows: How many rows that were.
        stalled_bursts: How many bursts were put together again around a GPU that answered late.
    """

    gpu: IntArray
    gpus: int
    broken_bursts: int = 0
    dropped_rows: int = 0
    stalled_bursts: int = 0


def deinterleave(time_s: FloatArray, breaks: Sequence[int] = (), gpus: int | None = None) -> Deinterleaved:
    """Find the GPU of each row.

    Args:
        time_s: Shape (n,), the rows' times in the order of the file.
        breaks: Indices of rows before which a burst certainly ends (the log was started again there).
        gpus: The number of GPUs where it is known.

    Raises:
        ValueError: ``gpus`` is not given and the times show no clear bursts, or it contradicts clear ones.
    """
    gaps = np.diff(time_s)
    edges = np.zeros(len(gaps), dtype=np.bool_)
    edges[[index - 1 for index in breaks if 0 < index < len(time_s)]] = True
    sample = gaps[:_SAMPLE_ROWS], edges[:_SAMPLE_ROWS]
    found = _bursts(*sample, range(2, MAX_GPUS + 1), _ENOUGH_WHOLE_BURSTS)
    if gpus is not None and found is not None and found.count != gpus:
        if found.whole >= _CLEARLY:
            raise ValueError(f"the rows come in bursts of {found.count}, which contradicts {gpus} GPUs")
        found = None
    if found is None and gpus is not None and gpus > 1:
        found = _bursts(*sample, [gpus], 0.0)
        if found is None:
            # No pauses to go by (nvidia-smi -lms 1): the order of the rows is all there is.
            return _in_order(len(time_s), gpus)
    if found is None:
        if gpus is None and len(gaps) and not _steady(gaps, _SHORTEST_PAUSE_S):
            raise ValueError("the times do not show how many GPUs take turns in this log")
        return _in_order(len(time_s), 1)
    # Time that jumps back is a new start, whatever the reason.
    starts = np.flatnonzero((gaps >= found.shortest_pause_s) | (gaps < 0) | edges) + 1
    return _assign(time_s, starts, found.count, frozenset(breaks))


def rows_at_once(time_s: FloatArray) -> int:
    """Return how many rows come together, milliseconds apart, as those of several GPUs do; 1 where they do not.

    Args:
        time_s: Shape (n,), the rows' times in the order of the file.
    """
    gaps = np.diff(time_s[: _SAMPLE_ROWS + 1])
    found = _bursts(gaps, np.zeros(len(gaps), dtype=np.bool_), range(2, MAX_GPUS + 1), _CLEARLY)
    return 1 if found is None else found.count


@dataclass(frozen=True)
class _Bursts:
    shortest_pause_s: float
    count: int
    whole: float  # share of the rows that are in bursts of exactly ``count``


def _bursts(gaps: FloatArray, edges: BoolArray, counts: Iterable[int], enough: float) -> _Bursts | None:
    """Return the number of GPUs, of those given, that leaves the most rows in whole bursts; None if no number fits."""
    best: _Bursts | None = None
    for count in counts:
        if count > len(gaps) + 1:
            break
        # With this many GPUs, one gap in so many is a pause; take the middle of the longest ones for its length.
        pause = float(np.quantile(gaps, 1.0 - 0.5 / count)) if len(gaps) else 0.0
        within = gaps[gaps < pause / 2]
        if pause < _SHORTEST_PAUSE_S or not within.size:
            continue
        usual = float(np.median(within))
        if usual * _PAUSE_TO_WITHIN > pause or usual > _WITHIN_BURST_S:
            continue
        ends = np.flatnonzero((gaps >= pause / 2) | (gaps < 0) | edges) + 1
        sizes = np.diff(np.concatenate([[0], ends, [len(gaps) + 1]]))
        bursts = int(np.count_nonzero(sizes == count))
        if bursts < 2 or (bursts < _FEW_BURSTS and _steady(gaps, _ONE_AT_A_TIME_S)):
            continue
        whole = bursts * count / (len(gaps) + 1)
        if whole >= enough and (best is None or whole > best.whole):
            best = _Bursts(pause / 2, count, whole)
    return best


def _steady(gaps: FloatArray, at_least_s: float) -> bool:
    """Whether the rows come one at a time: as a pause is a minimum, few gaps are much shorter than most."""
    middle = float(np.median(gaps))
    return middle > at_least_s and float(np.mean(gaps < 0.3 * middle)) <= 0.02


def _in_order(rows: int, count: int) -> Deinterleaved:
    """Number the rows one after the other; those of an incomplete last turn are left out."""
    gpu = np.arange(rows, dtype=np.int64) % count
    left = rows % count
    if left:
        gpu[rows - left :] = -1
    return Deinterleaved(gpu, count, int(left > 0), left)


def _assign(time_s: FloatArray, starts: IntArray, count: int, restarts: frozenset[int]) -> Deinterleaved:
    """Number the rows of whole bursts; put stalled bursts together; leave broken ones out.

    Pieces of bursts that follow each other and together hold the rows of whole bursts are a burst in which a GPU
    answered late, unless the pieces come at the pace of bursts: then each may have lost rows, and none can be trusted.
    """
    bounds = np.concatenate([[0], starts, [len(time_s)]]).astype(np.int64)
    whole = np.diff(bounds) == count
    gpu = np.full(len(time_s), -1, dtype=np.int64)
    period = float(np.median(np.diff(time_s[bounds[:-1]]))) if len(whole) > 2 else np.inf
    broken = dropped = stalled = 0
    for first, last in _runs(whole):
        if whole[first]:
            start, end = int(bounds[first]), int(bounds[last])
            gpu[start:end] = np.arange(end - start) % count
            continue
        piece = first
        while piece < last:
            stop = piece + 1
            # A restart of the log is never inside of a burst.
            while stop < last and int(bounds[stop]) not in restarts:
                stop += 1
            start, end = int(bounds[piece]), int(bounds[stop])
            spacing = np.diff(time_s[bounds[piece:stop]])
            at_pace = bool((np.abs(spacing - period) < _SAME_PACE * period).any())
            if (end - start) % count == 0 and not at_pace:
                gpu[start:end] = np.arange(end - start) % count
                stalled += (end - start) // count
            else:
                broken, dropped = broken + stop - piece, dropped + end - start
            piece = stop
    return Deinterleaved(gpu, count, broken, dropped, stalled)


def _runs(flags: BoolArray) -> list[tuple[int, int]]:
    """Return [first, last) of each run of equal flags."""
    changes = np.flatnonzero(np.diff(flags)) + 1
    edges = [0, *(int(i) for i in changes), len(flags)]
    return list(itertools.pairwise(edges))


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
class _LogColumns:
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
        TraceFormatError: The file is not a trace, or larger than ``max_bytes``; the error names line and field.
    """
    file = DelimitedFile(path, max_bytes=max_bytes, is_message=lambda line: _MESSAGE.match(line) is not None)
    file.read_header()
    columns = _find_columns(file)
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
        times.append(parser.parse(block.columns[columns.timestamp], path, block.lines, _TIMESTAMP))
        numbers = [column.parse(block.columns[index], path, block.lines) for index, column in columns.columns]
        for (_, column), parsed in zip(columns.columns, numbers, strict=True):
            column.take(parsed, block.lines)
        lines.append(np.array(block.lines, dtype=np.int64))
        if columns.identity is not None:
            keys = [(cell,) for cell in block.columns[columns.identity]]
            codes.append(labels.add(keys, block.lines))
            indices = block.columns[columns.index] if columns.index is not None else [""] * len(keys)
            models = block.columns[columns.name] if columns.name is not None else [""] * len(keys)
            names.update(dict(zip(keys, zip(indices, models, strict=True), strict=True)))
        elif columns.name is not None:
            all_names.extend(block.columns[columns.name])
    if not lines:
        raise TraceFormatError(path, "only a header, no complete row below it", line=file.header_line)
    time = np.concatenate(times)
    time_s, origin_unix_s, _ = parser.seconds(time)
    line = np.concatenate(lines)
    common = {"time_zone": TIME_ZONE_NOTE, "source": "nvidia-smi"}
    if columns.identity is not None:
        code = np.concatenate(codes)
        if gpus is not None:
            file.warnings.append(
                f"gpus was not used: the column {file.header[columns.identity]} names the GPU of each row"
            )
        described = [
            TraceMetadata(
                _uuid(file.header[columns.identity], key[0]),
                names[key][1],
                origin_unix_s,
                {**common, **({"gpu_index": names[key][0]} if names[key][0] else {})},
            )
            for key in labels.codes
        ]
    else:
        code, count = _take_turns(file, time_s, line, gpus)
        described = [
            TraceMetadata(f"GPU-{i}", _model(all_names, code, i), origin_unix_s, {**common, "gpu_index": str(i)})
            for i in range(count)
        ]
    return split_by_gpu(
        Rows(
            path,
            time_s,
            line,
            code,
            described,
            [column for _, column in columns.columns],
            _TIMESTAMP,
            warnings=(*columns.warnings, *file.warnings),
        )
    )


def _find_columns(file: DelimitedFile) -> _LogColumns:
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
            "this nvidia-smi log has no times; say how far its ticks are apart, such as --interval-s 100ms "
            "for -lms 100, or record it again with --query-gpu=timestamp,...",
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
    return _LogColumns(
        positions[_TIMESTAMP][0],
        positions[identity][0] if identity else None,
        positions[_INDEX][0] if _INDEX in positions else None,
        positions[model][0] if model else None,
        sorted(chosen.values(), key=lambda item: item[0]),
        [warn_of_columns(unknown)] if unknown else [],
    )


def _take_turns(file: DelimitedFile, time_s: FloatArray, lines: IntArray, gpus: int | None) -> tuple[IntArray, int]:
    """Tell the GPUs of a log apart that names none, and say what was left out."""
    breaks = [int(i) for i in np.searchsorted(lines, file.repeated_headers)]
    try:
        found = deinterleave(time_s, breaks, gpus)
    except ValueError as error:
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
