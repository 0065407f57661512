"""Files of other tools: rows or JSON objects with names, read by the tool's ``Dialect`` and by what the user says.

``Records`` are ticks as text under the names that the file gives them; ``split_records`` makes traces of them. Long
forms, one row or one series per metric, are joined into one record per GPU and time first.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from gpusonde.errors import TraceFormatError, shown
from gpusonde.telemetry.metrics import METRIC_BY_NAME
from gpusonde.telemetry.readers.delimited import DEFAULT_MAX_BYTES, NANOSECONDS, DelimitedFile, TimestampParser, blocks
from gpusonde.telemetry.readers.dialects import (
    GPU_INDEX,
    GPU_MODEL,
    NVIDIA_SMI,
    OWN_NAMES,
    ColumnRule,
    advise_columns,
    find_dialect,
)
from gpusonde.telemetry.readers.table import (
    GPU_UUID,
    TIME_S,
    TIMESTAMP,
    TRACE_ID,
    Column,
    GpuLabels,
    Numbers,
    Rows,
    split_by_gpu,
    warn_of_columns,
)
from gpusonde.telemetry.trace import FloatArray, Trace, TraceMetadata, too_large

# Objects take many times the memory of their text.
MAX_JSON_BYTES = 512 << 20
# A cell as text takes some hundred bytes, with what is made of it: 860 MB were measured for 8 million.
_CELL_BYTES = 100
_CUT = "the last record is incomplete and was left out; the file was cut there"


@dataclass
class Records:
    """Ticks under the names of their file.

    Attributes:
        path: The file.
        cells: Name to the texts of that column, all of one length; empty where a record lacks it.
        lines: The line on which each record begins.
        warnings: What was left out so far.
        max_bytes: What the cells may take of memory.
    """

    path: str | os.PathLike[str]
    cells: dict[str, list[str]] = field(default_factory=dict)
    lines: list[int] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    max_bytes: int = DEFAULT_MAX_BYTES

    def add(self, line: int, record: Mapping[str, str]) -> None:
        """Take one record.

        Raises:
            TraceFormatError: There are too many cells.
        """
        before = len(self.lines)
        for name, text in record.items():
            column = self.cells.get(name)
            if column is None:
                column = self.cells[name] = [""] * before
            column.append(text)
        self.lines.append(line)
        if len(record) < len(self.cells):
            for column in self.cells.values():
                if len(column) == before:
                    column.append("")
        check_cells(self.path, len(self.lines) * len(self.cells), self.max_bytes)


def check_cells(path: str | os.PathLike[str], count: int, max_bytes: int) -> None:
    """Refuse more cells than may be kept as text.

    Raises:
        TraceFormatError: They would take more than ``max_bytes`` of memory.
    """
    if count * _CELL_BYTES > max_bytes:
        raise TraceFormatError(path, too_large(count * _CELL_BYTES, max_bytes, "bytes in memory"))


# --- tables ---


def read_table(path: str | os.PathLike[str], *, headless: bool, max_bytes: int) -> Records:
    """Read a table of separated values; columns of one without a header are named ``1``, ``2`` and so on.

    Raises:
        OSError: The file cannot be read.
        TraceFormatError: It is no table, or larger than ``max_bytes``, also in memory.
    """
    file = DelimitedFile(path, max_bytes=max_bytes)
    file.read_header(headless=headless)
    twice = [name for name in file.header if file.header.count(name) > 1]
    if twice:
        raise TraceFormatError(
            path, "the column is there twice; rename or remove one", line=file.header_line, field=twice[0]
        )
    columns: list[list[str]] = [[] for _ in file.header]
    records = Records(path, max_bytes=max_bytes)
    for block in file.rows():
        if block.doubtful:
            file.warnings.append(f"line {block.lines[0]}: {_CUT.replace('record', 'row')}")
            continue
        for column, cells in zip(columns, block.columns, strict=True):
            column.extend(cells)
        records.lines.extend(block.lines)
        check_cells(path, len(records.lines) * len(columns), max_bytes)
    if file.delimiter == ";":
        columns = [[cell.replace(",", ".") for cell in column] for column in columns]
    records.cells = dict(zip(file.header, columns, strict=True))
    records.warnings = file.warnings
    return _join_long(records)


_LONG = frozenset({"key", "value", "timestamp"})


def _join_long(records: Records) -> Records:
    """Join MLflow's rows of one metric each into one record per run and time."""
    cells = records.cells
    if not cells.keys() >= _LONG:
        return records
    points = (
        (line, {"run_id": run} if run else {}, time, key, value)
        for line, run, time, key, value in zip(
            records.lines,
            cells.get("run_id", [""] * len(records.lines)),
            cells["timestamp"],
            cells["key"],
            cells["value"],
            strict=True,
        )
    )
    return _join(records.path, points, records.warnings, records.max_bytes)


_Point = tuple[int, Mapping[str, str], str, str, str]


def _join(path: str | os.PathLike[str], points: Iterator[_Point], warnings: list[str], max_bytes: int) -> Records:
    """Join values (line, labels, time, metric, value) into one record per labels and time.

    Raises:
        TraceFormatError: One has two values of a metric at one time, or a time that is none.
    """
    found: dict[tuple[tuple[tuple[str, str], ...], str], tuple[int, dict[str, str]]] = {}
    for line, labels, time, name, value in points:
        key = (tuple(sorted(labels.items())), time)
        record = found.setdefault(key, (line, {TIMESTAMP: time, **labels}))[1]
        if record.setdefault(name, value) != value:
            raise TraceFormatError(
                path,
                f"two values at the time {shown(time)} for one GPU: several GPUs, or several series of one, have the "
                "same labels; ask for one of them, or keep the label that tells them apart",
                line=line,
                field=name,
            )
    records = Records(path, warnings=warnings, max_bytes=max_bytes)
    parser = TimestampParser()

    def instant(item: tuple[int, dict[str, str]]) -> float:
        line, record = item
        text = record[TIMESTAMP]
        return float(text) if _is_number(text) else parser.parse([text], path, [line], TIMESTAMP)[0] / NANOSECONDS

    # By GPU, then by time: a series ends before the next one begins.
    for line, record in sorted(found.values(), key=instant):
        records.add(line, record)
    return records


# --- JSON ---

# What dynolog writes between its objects, on lines of its own.
_GLOG = re.compile(r"[IWEF]\d{4} \d{2}:\d{2}:\d{2}\.\d+\s+\d+ \S+:\d+\] ", re.ASCII)
_DYNOLOG = re.compile(r".*?\btime = (?P<time>\S+) data = (?P<json>\{.*\})\s*", re.ASCII)
_DECODER = json.JSONDecoder(parse_float=str, parse_int=str, parse_constant=lambda _name: "")
_BETWEEN = re.compile(r"[\s,]*")
_DEEPEST = 8


def is_json(line: str) -> bool:
    """Whether a file that begins with this line holds JSON objects."""
    return line.lstrip().startswith(("{", "[")) or _GLOG.match(line) is not None or _DYNOLOG.fullmatch(line) is not None


def read_json(path: str | os.PathLike[str], *, max_bytes: int) -> Records:
    """Read JSON: one object or array, several behind each other, JSON Lines, dynolog's log, Prometheus' answers.

    Raises:
        OSError: The file cannot be read.
        TraceFormatError: It is no JSON, or larger than ``max_bytes``.
    """
    lines = [line for block in blocks(path, max_bytes=min(max_bytes, MAX_JSON_BYTES)) for line in block.lines]
    dynolog = [(number, match) for number, line in enumerate(lines, 1) if (match := _DYNOLOG.fullmatch(line))]
    warnings: list[str] = []
    if dynolog or _GLOG.match(next(filter(None, lines), "")):
        values = [(n, {"time": m["time"], **_object(path, m["json"], n)}) for n, m in dynolog]
    else:
        values = list(_values(path, "\n".join(lines), warnings))
    return records_of(path, values, warnings, max_bytes)


def decode(path: str | os.PathLike[str], text: str) -> list[tuple[int, Any]]:
    """Return the JSON values of a text, with their lines; numbers are texts.

    Raises:
        TraceFormatError: It is no JSON.
    """
    return list(_values(path, text, []))


def records_of(
    path: str | os.PathLike[str],
    values: Sequence[tuple[int, Any]],
    warnings: list[str],
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> Records:
    """Make records of decoded JSON values, whose numbers are texts, and of their lines.

    Raises:
        TraceFormatError: There is none, one is neither an object nor an array of them, or an answer of Prometheus or
            MLflow is of another shape or empty; their cells take more than ``max_bytes`` of memory.
    """
    first = values[0][1] if values else None
    if isinstance(first, dict) and (
        isinstance(first.get("data"), dict) or "metric" in first or ("status" in first and "error" in first)
    ):
        return _join(path, _series(path, values), warnings, max_bytes)
    if isinstance(first, dict) and isinstance(first.get("metrics"), list):
        values = [
            (line, entry)
            for line, value in values
            for entry in _of(path, line, _of(path, line, value, {}).get("metrics"), [])
        ]
    records = Records(path, warnings=warnings, max_bytes=max_bytes)
    several = len(values) > 1
    for line, value in values:
        objects = value if isinstance(value, list) else [value]
        for index, each in enumerate(objects):
            if not isinstance(each, dict):
                raise TraceFormatError(path, "JSON that is no object; a trace has one object per tick", line=line)
            for record in _flatten(each):
                if several and isinstance(value, list):
                    record.setdefault(GPU_INDEX, str(index))
                records.add(line, record)
    if not records.lines:
        raise TraceFormatError(path, "no JSON object in it; a trace needs at least one tick")
    return _join_long(records)


def _object(path: str | os.PathLike[str], text: str, line: int) -> dict[str, Any]:
    try:
        return dict(_DECODER.decode(text))
    except (ValueError, RecursionError):
        raise TraceFormatError(path, "JSON that cannot be read; delete the line", line=line) from None


def _values(path: str | os.PathLike[str], text: str, warnings: list[str]) -> Iterator[tuple[int, Any]]:
    line, at, counted = 1, 0, 0
    while True:
        match = _BETWEEN.match(text, at)
        at = match.end() if match else at
        line, counted = line + text.count("\n", counted, at), at
        if at == len(text):
            return
        try:
            value, at = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            # A file that is still being written, or was cut, ends in the middle of an object.
            if line > 1 and text.rstrip()[-1:] not in "]}" and text.count("\n", at, len(text.rstrip())) == 0:
                warnings.append(f"line {line}: {_CUT}")
                return
            said = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deeply"
            raise TraceFormatError(path, f"JSON that cannot be read ({said}); correct it there", line=line) from None
        yield line, value


def _flatten(value: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the records of an object: one, or one for each object of the list of GPUs that it holds."""
    own: dict[str, str] = {}
    lists = []
    for name, each in value.items():
        if isinstance(each, list):
            if each and all(isinstance(item, dict) for item in each):
                lists.append(each)
        else:
            _flatten_into(own, name, each)
    if len(lists) != 1:
        return [own]
    records = []
    for index, item in enumerate(lists[0]):
        record = dict(own)
        for name, each in item.items():
            _flatten_into(record, name, each)
        if "index" not in record and GPU_UUID not in record and GPU_INDEX not in record:
            record[GPU_INDEX] = str(index)
        records.append(record)
    return records


def _flatten_into(record: dict[str, str], name: str, value: Any, depth: int = 0) -> None:
    if isinstance(value, dict):
        if depth < _DEEPEST:
            for inner, each in value.items():
                _flatten_into(record, f"{name}.{inner}", each, depth + 1)
    elif value is None:
        record[name] = ""
    elif isinstance(value, str):
        record[name] = value.strip()


def _series(path: str | os.PathLike[str], values: Sequence[tuple[int, Any]]) -> Iterator[_Point]:
    """Yield the points of answers of Prometheus' API, and of lines that VictoriaMetrics exported."""
    found = [(line, *series) for line, value in values for series in _answered(path, line, value)]
    if not any(pairs for _, _, pairs in found):
        raise TraceFormatError(path, "an answer without series; nothing matches the query in that time")
    several = len({_host(labels) for _, labels, _ in found}) > 1
    for line, labels, pairs in found:
        kept = {name: labels[name] for name in _GPU_LABELS if labels.get(name)}
        if several and "UUID" not in kept and "uuid" not in kept:
            kept["UUID"] = f"{_host(labels)}/GPU-{labels.get('gpu', '')}"
            kept.pop("gpu", None)
        if labels.get("GPU_I_ID"):
            kept["UUID"] = f"{kept.get('UUID', '')}/{labels['GPU_I_ID']}"
        for time, number in pairs:
            # null is VictoriaMetrics' way of saying that there was no value.
            yield line, kept, time, labels.get("__name__", "value"), "" if number is None else number


_Answered = tuple[dict[str, str], list[tuple[str, str | None]]]


def _answered(path: str | os.PathLike[str], line: int, value: Any) -> list[_Answered]:
    """Return labels and pairs (time, value) of each series of one answer, or of one exported line."""
    answer = _of(path, line, value, {})
    if answer.get("status") == "error" or "error" in answer:
        raise TraceFormatError(
            path, f"Prometheus refused: {shown(str(answer.get('error')))}; correct the query", line=line
        )
    if "metric" in answer:
        times, numbers = (_of(path, line, answer.get(name) or [], []) for name in ("timestamps", "values"))
        if len(times) != len(numbers):
            raise _odd(path, line, f"{len(times)} timestamps of {len(numbers)} values")
        return [_checked(path, line, answer["metric"], [list(pair) for pair in zip(times, numbers, strict=True)])]
    result = _of(path, line, answer.get("data"), {}).get("result")
    if not isinstance(result, list):
        raise TraceFormatError(path, "an answer of Prometheus without series; ask for a query over a range", line=line)
    found = []
    for each in result:
        series = _of(path, line, each, {})
        pairs = series.get("values") or ([series["value"]] if "value" in series else [])
        found.append(_checked(path, line, series.get("metric", {}), pairs))
    return found


def _checked(path: str | os.PathLike[str], line: int, labels: Any, pairs: Any) -> _Answered:
    """Return the labels and pairs of a series, if they are of the shape that they have in every answer."""
    for name, label in _of(path, line, labels, {}).items():
        if not isinstance(label, str):
            raise _odd(path, line, f"the label {shown(name)} is no text")
    for pair in _of(path, line, pairs, []):
        if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], str):
            raise _odd(path, line, "a value without its time")
        if not isinstance(pair[1], str | None):
            raise _odd(path, line, "a value that is no number")
    return labels, pairs


_Shape = TypeVar("_Shape", dict[str, Any], list[Any])


def _of(path: str | os.PathLike[str], line: int, value: Any, shape: _Shape) -> _Shape:
    """Return a decoded value that is to be of the type of ``shape``."""
    if not isinstance(value, type(shape)):
        name = "object" if isinstance(shape, dict) else "array"
        raise _odd(path, line, f"{shown(json.dumps(value))} where an {name} belongs")
    return value


def _odd(path: str | os.PathLike[str], line: int, what: str) -> TraceFormatError:
    return TraceFormatError(
        path, f"{what}; this is no answer of the API, ask for it again and keep it whole", line=line
    )


_GPU_LABELS = ("UUID", "uuid", "gpu", "modelName")


def _host(labels: Mapping[str, str]) -> str:
    return labels.get("Hostname") or labels.get("instance") or ""


# --- traces ---


@dataclass(frozen=True)
class _FoundColumns:
    """Columns by what they mean; metrics by the GPU that their name tells, empty where it tells none."""

    others: Mapping[str, str]
    scales: Mapping[str, tuple[float, float]]
    metrics: Mapping[str, Mapping[str, tuple[str, tuple[float, float]]]]


def split_records(
    records: Records,
    *,
    rules: Sequence[ColumnRule] = (),
    interval_s: float | None = None,
    gpus: int | None = None,
) -> tuple[list[Trace], bool]:
    """Make traces of records; ``rules`` are the user's, before those of the tool whose names the records have.

    Returns:
        One trace per GPU, and whether the records have times.

    Raises:
        TraceFormatError: There is no time and no interval, no metric, or a value that is none.
    """
    names = list(records.cells)
    dialect = find_dialect(names) or OWN_NAMES
    every = (*rules, *dialect.rules, *(OWN_NAMES.rules if dialect is not OWN_NAMES else ()))
    if dialect.name == "Grafana":
        every = (*every, *_rules_of_units(records))
    found = _find(records, every, rules)
    if dialect is NVIDIA_SMI and TIMESTAMP not in found.others and not {GPU_UUID, GPU_INDEX} & found.others.keys():
        if gpus is None:
            raise TraceFormatError(
                records.path,
                "no column names the GPU of a row, and there are no times to find it by; say --gpus N, 1 for one",
                line=records.lines[0],
            )
        records.cells[GPU_INDEX] = [str(row % gpus) for row in range(len(records.lines))]
        found = replace(found, others={**found.others, GPU_INDEX: GPU_INDEX})
    if not found.metrics:
        of = "" if dialect is OWN_NAMES else f" of this {dialect.name} file"
        raise TraceFormatError(
            records.path,
            f"no column{of} is known as a metric (found {shown(', '.join(names))}); {advise_columns(names)}",
            line=records.lines[0],
        )
    parts = _parts(records, found)
    order = np.concatenate([rows for rows, _, _ in parts])
    codes = np.repeat(np.arange(len(parts)), [len(rows) for rows, _, _ in parts])
    lines = np.asarray(records.lines, dtype=np.int64)[order]
    time_s, origin, attributes, time_field = _times(records, found, order, codes, interval_s)
    common = {**attributes, **({"source": dialect.name} if dialect is not OWN_NAMES else {})}
    described = [
        TraceMetadata(uuid, _model(records, found, rows), origin, {**common, **facts})
        for rows, _, (uuid, facts) in parts
    ]
    columns = _columns(records, found, parts)
    warnings = [*records.warnings, *([dialect.note] if dialect.note else [])]
    used = {*found.others.values(), *(name for of in found.metrics.values() for name, _ in of.values())}
    unknown = [name for name in names if name not in used]
    if unknown and dialect is OWN_NAMES:
        warnings.append(warn_of_columns(unknown))
    # A unit of times that the user says is beyond doubt.
    doubted = "time" if any(rule.meaning == TIME_S for rule in rules) else time_field
    traces = split_by_gpu(Rows(records.path, time_s, lines, codes, described, columns, doubted, warnings=warnings))
    return traces, bool(time_field)


def _find(records: Records, rules: Sequence[ColumnRule], users: Sequence[ColumnRule]) -> _FoundColumns:
    others: dict[str, str] = {}
    scales: dict[str, tuple[float, float]] = {}
    metrics: dict[str, dict[str, tuple[str, tuple[float, float]]]] = {}
    taken: set[str] = set()
    for rule in rules:
        matches = [(name, match) for name in records.cells if name not in taken and (match := rule.match(name))]
        if not matches and rule in users:
            raise TraceFormatError(
                records.path,
                f"--column: no column is called {shown(rule.name)}; there are {shown(', '.join(records.cells))}",
                line=records.lines[0],
            )
        for name, match in matches:
            taken.add(name)
            if rule.meaning not in METRIC_BY_NAME:
                if rule.meaning not in others:
                    others[rule.meaning] = name
                    scales[rule.meaning] = rule.scale() if rule.meaning == TIME_S else (1.0, 1.0)
                continue
            of = metrics.setdefault(match.groupdict().get("gpu") or "", {})
            if rule.meaning in of and any(of[rule.meaning][0] == other for other, _ in matches):
                raise TraceFormatError(
                    records.path,
                    f"the columns {shown(of[rule.meaning][0])} and {shown(name)} give {rule.meaning} of one GPU; "
                    f"choose one with --column {shown(name + '=' + rule.meaning)}, or one run per file",
                    line=records.lines[0],
                )
            of.setdefault(rule.meaning, (name, rule.scale()))
    return _FoundColumns(others, scales, metrics)


_CELL_UNITS = {"W": "power_watts", "°C": "gpu_temperature_celsius", "MHz": "sm_clock_mhz", "GHz": "sm_clock_mhz"}
_LEGEND_GPU = re.compile(r"\bgpu\W{0,3}(\d+)\b", re.IGNORECASE)


def _rules_of_units(records: Records) -> list[ColumnRule]:
    """Return the metrics of Grafana's columns where the unit in their cells leaves no doubt: % may be anything."""
    found = []
    for name, cells in records.cells.items():
        texts = [text for text in cells if text][:100]
        units = {re.sub(r"^[-+\d.]+\s*", "", text) for text in texts}
        metric = _CELL_UNITS.get(units.pop()) if len(units) == 1 else None
        if metric is not None:
            legend = _LEGEND_GPU.search(name)
            gpu = legend[1] if legend else name
            at = name.find(gpu)
            pattern = f"{re.escape(name[:at])}(?P<gpu>{re.escape(gpu)}){re.escape(name[at + len(gpu) :])}"
            found.append(ColumnRule(pattern, metric))
    return found


_Part = tuple[Any, str, tuple[str, dict[str, str]]]


def _parts(records: Records, found: _FoundColumns) -> list[_Part]:
    """Return for each GPU its rows, the GPU in the names of its columns, and its name with facts."""
    keyed = [name for meaning in (TRACE_ID, GPU_UUID, GPU_INDEX) if (name := found.others.get(meaning))]
    labels = GpuLabels(records.path)
    if keyed:
        codes = labels.add(list(zip(*(records.cells[name] for name in keyed), strict=True)), records.lines)
    else:
        codes = labels.add([()] * len(records.lines), records.lines)
    order = np.argsort(codes, kind="stable")
    bounds = np.searchsorted(codes[order], np.arange(len(labels.codes) + 1))
    parts: list[_Part] = []
    meanings = [meaning for meaning in (TRACE_ID, GPU_UUID, GPU_INDEX) if meaning in found.others]
    for key, start, end in zip(labels.codes, bounds[:-1], bounds[1:], strict=True):
        known = dict(zip(meanings, key, strict=True))
        for gpu, metrics in found.metrics.items():
            cells = [records.cells[name] for name, _ in metrics.values()]
            rows = [int(row) for row in order[start:end] if any(column[row] for column in cells)]
            if rows:
                parts.append((np.array(rows, dtype=np.int64), gpu, _name(known, gpu)))
    if not parts:
        raise TraceFormatError(records.path, "no record has a value of a metric; a trace needs at least one tick")
    return parts


# Longer numbers are serial numbers: names.
_INDEX = re.compile(r"\d{1,9}", re.ASCII)


def _name(known: Mapping[str, str], gpu: str) -> tuple[str, dict[str, str]]:
    index = gpu if gpu.isdigit() else known.get(GPU_INDEX, "")
    uuid = known.get(GPU_UUID) or (f"GPU-{index}" if index else gpu)
    facts = {GPU_INDEX: str(int(index))} if _INDEX.fullmatch(index) else {}
    return uuid, {**facts, **({TRACE_ID: known[TRACE_ID]} if known.get(TRACE_ID) else {})}


def _model(records: Records, found: _FoundColumns, rows: Any) -> str:
    return records.cells[found.others[GPU_MODEL]][int(rows[0])] if GPU_MODEL in found.others else ""


def _times(
    records: Records, found: _FoundColumns, order: Any, codes: Any, interval_s: float | None
) -> tuple[FloatArray, float | None, dict[str, str], str]:
    """Return seconds, their Unix origin, what to say of them and the name of their column, empty for an interval."""
    for meaning in (TIMESTAMP, TIME_S):
        name = found.others.get(meaning)
        if name is None:
            continue
        cells = records.cells[name]
        if not any(cells):
            continue
        chosen = [cells[row] for row in order]
        lines = [records.lines[row] for row in order]
        if meaning == TIMESTAMP:
            parser = TimestampParser()
            time_s, origin, attributes = parser.seconds(parser.parse(chosen, records.path, lines, name))
            return time_s, origin, attributes, name
        time_s = np.array([float(text) if _is_number(text) else np.nan for text in chosen]) * found.scales[TIME_S][0]
        if not np.isfinite(time_s).all():
            bad = int(np.argmin(np.isfinite(time_s)))
            raise TraceFormatError(
                records.path,
                f"{shown(chosen[bad])} is not a {'finite time' if _is_number(chosen[bad]) else 'time in seconds'}; "
                "complete or delete the record",
                line=lines[bad],
                field=name,
            )
        return time_s, None, {}, name
    if interval_s is None:
        raise TraceFormatError(
            records.path,
            "no times; say how far the ticks are apart, such as --interval-s 1s, or which column has them, "
            "such as --column THEIRS=timestamp",
            line=records.lines[0],
        )
    # The n-th record of a GPU is its n-th tick.
    first = np.concatenate([[0], np.flatnonzero(np.diff(codes)) + 1])
    ticks = np.arange(len(codes)) - np.repeat(first, np.diff([*first, len(codes)]))
    return ticks * interval_s, None, {}, ""


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _columns(records: Records, found: _FoundColumns, parts: Sequence[_Part]) -> list[Column]:
    """Read the numbers of all parts, one column per metric."""
    columns: dict[str, Column] = {}
    for of in found.metrics.values():
        for metric, (name, scale) in of.items():
            columns.setdefault(metric, Column(metric, name, *scale))
    for rows, gpu, _ in parts:
        lines = [records.lines[row] for row in rows]
        for metric, column in columns.items():
            source = found.metrics[gpu].get(metric)
            if source is None:
                column.take(Numbers(np.full(len(rows), np.nan), 1.0, 1.0), lines)
                continue
            name, scale = source
            texts = records.cells[name]
            reader = Column(metric, name, *scale)
            column.take(reader.parse([texts[row] for row in rows], records.path, lines), lines)
    return list(columns.values())
