"""``read_trace`` and ``read_traces``: every trace file that gpusonde understands, its kind told by content."""

from __future__ import annotations

import contextlib
import csv
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any

from gpusonde.errors import TraceError, TraceFormatError, shown
from gpusonde.telemetry.readers import dcgmi, nvidia_smi, prometheus, smi_dmon
from gpusonde.telemetry.readers.dcgmi import read_dcgmi
from gpusonde.telemetry.readers.delimited import DEFAULT_MAX_BYTES, blocks, guess_delimiter, open_regular, split_row
from gpusonde.telemetry.readers.dialects import (
    DIALECTS,
    OWN_NAMES,
    ColumnRule,
    advise_columns,
    find_dialect,
    read_rule,
)
from gpusonde.telemetry.readers.nvidia_smi import MAX_GPUS, read_nvidia_smi
from gpusonde.telemetry.readers.own_csv import read_own_csv
from gpusonde.telemetry.readers.own_parquet import read_own_parquet, read_parquet_columns
from gpusonde.telemetry.readers.prometheus import read_prometheus, without_password
from gpusonde.telemetry.readers.records import Records, check_cells, is_json, read_json, read_table, split_records
from gpusonde.telemetry.readers.smi_dmon import read_smi_dmon, read_smi_tables
from gpusonde.telemetry.readers.table import TIME_S, TIMESTAMP, names_a_metric
from gpusonde.telemetry.trace import Trace, too_large

_PARQUET_MAGIC = b"PAR1"
_NVIDIA_SMI_ROW = re.compile(r"\d{4}/\d{2}/\d{2} \d{2}:\d{2}:\d{2}(\.\d+)?\s*,")
# Headings of dmon and pmon, with and without -o D or T.
_NVIDIA_SMI_MON = re.compile(r"\s*#\s*(?:(?:Date|Time)[,\s]+)*gpu\b(?P<process>[,\s]+pid\b)?")
_DCGMI_HEADER = re.compile(r"#\s*Entity")
_NUMBERS = re.compile(r"[-+0-9.eE,;\s]+")
_STDIN = "-"
_FRAME = "DataFrame"


class Format(Enum):
    """Kinds of trace files."""

    PARQUET = "Parquet file"
    OWN_CSV = "CSV file"
    NVIDIA_SMI = "nvidia-smi log"
    SMI_DMON = "nvidia-smi dmon log"
    SMI_TABLE = "log of nvidia-smi tables"
    DCGMI_DMON = "dcgmi dmon log"
    JSON = "JSON file"
    TABLE = "table"
    API = "Prometheus API"


# Where rows of several GPUs may stand in one column, with nothing that tells them apart.
_MAY_MIX_GPUS = (Format.OWN_CSV, Format.PARQUET, Format.TABLE, Format.JSON)


def formats() -> list[tuple[str, str, str, str]]:
    """Return what ``docs/trace_files.md`` says of each kind: name, what writes it, where its times and its GPUs are."""
    own = [
        (
            "CSV",
            "`gpusonde record OUT.csv`, `gpusonde store export DIR OUT.csv`, your own scripts",
            "in the file",
            "`gpu_uuid` or `trace_id`, or just one",
        ),
        ("Parquet", "`gpusonde record OUT.parquet`, pandas, Polars, ...", "in the file", "the same"),
        (
            "nvidia-smi",
            "`nvidia-smi --query-gpu=... --format=csv -lms N`",
            "`timestamp`",
            "a column that names them, or their turns",
        ),
        (
            "nvidia-smi dmon",
            "`nvidia-smi dmon -s pucm -o DT`, also with `--format csv`",
            "with `-o DT`, else you say the interval",
            "column `gpu`",
        ),
        ("nvidia-smi tables", "`nvidia-smi -l 1 > LOG`", "above each table, whole seconds", "in the table"),
        ("dcgmi dmon", "`dcgmi dmon -e ... -d N`", "`ts`, else you say the interval", "first column"),
    ]
    return [*own, *((each.name, each.written_by, each.times, each.gpus) for each in (OWN_NAMES, *DIALECTS))]


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
            if monitor is not None and monitor["process"]:
                raise TraceFormatError(
                    path,
                    "this is a log of nvidia-smi pmon, which tells of processes; record with nvidia-smi dmon -o DT, "
                    "or, many times a second, with nvidia-smi --query-gpu=timestamp,index,... --format=csv -lms 100",
                    line=number,
                )
            if smi_dmon.is_header(line):
                return Format.SMI_DMON
            if smi_dmon.is_table(line):
                return Format.SMI_TABLE
            if is_json(line):
                return Format.JSON
            if not line.startswith("#"):
                return _by_header(path, line, number)
    raise TraceFormatError(path, "no header line, only blank or comment lines; the first line must name the columns")


def _by_header(path: str | os.PathLike[str], line: str, number: int) -> Format:
    try:
        cells = split_row(line, guess_delimiter(line))
    except csv.Error as error:
        raise TraceFormatError(path, f"the header cannot be read: {error}", line=number) from None
    if nvidia_smi.is_header(cells):
        return Format.NVIDIA_SMI
    if find_dialect(cells) is not None and not any(map(names_a_metric, cells)):
        return Format.TABLE
    if any(map(names_a_metric, cells)):
        return Format.OWN_CSV
    if {TIME_S, TIMESTAMP} & set(cells):
        what = f"no column is a metric (found {shown(', '.join(cells))}); {advise_columns(cells)}"
    elif _NVIDIA_SMI_ROW.match(line):
        what = (
            "an nvidia-smi log without a header; say which column is what, counted from 1, "
            f"perhaps {_headless_columns(cells)}, or record it again without 'noheader'"
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
            f"not a trace: {shown(line)} is no header with time_s or timestamp, nor one of a tool that is known "
            f"(docs/trace_files.md shows them); {advise_columns(cells)}"
        )
    raise TraceFormatError(path, what, line=number)


# What a cell of an nvidia-smi log looks like, and what it most often is.
_HEADLESS = (
    (re.compile(r"\d{4}/.*"), "timestamp"),
    (re.compile(r"GPU-.*"), "gpu_uuid"),
    (re.compile(r"\d{1,2}"), "gpu_index"),
    (re.compile(r"[\d.]+ W"), "power_watts"),
    (re.compile(r"\d+ %"), "gpu_utilization"),
    (re.compile(r"\d+ MiB"), "framebuffer_used_bytes"),
)


def _headless_columns(cells: Sequence[str]) -> str:
    told: dict[str, int] = {}
    for position, cell in enumerate(cells, start=1):
        meaning = next((meaning for pattern, meaning in _HEADLESS if pattern.fullmatch(cell)), None)
        if meaning is not None:
            told.setdefault(meaning, position)
    return " ".join(f"--column {position}={meaning}" for meaning, position in told.items())


def read_traces(
    path: str | os.PathLike[str],
    *,
    gpus: int | None = None,
    interval_s: float | None = None,
    columns: Sequence[str] = (),
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> list[Trace]:
    """Read all traces of a file.

    Reads what ``docs/trace_files.md`` lists: our own CSV and Parquet, logs of nvidia-smi and dcgmi, files of monitors
    and experiment trackers, series of Prometheus, and with ``columns`` any other table. What was left out or repaired
    stands in each trace's ``warnings``.

    Args:
        path: The file, whose format is told by content; ``-`` for what comes on stdin; or an address of Prometheus,
            ``prom://HOST:PORT/?query=...``.
        gpus: Number of GPUs whose rows take turns in an nvidia-smi log that names none; found from the times if None.
        interval_s: Seconds between the ticks of a file without times, which is refused if None.
        columns: What columns of other names are, each ``THEIRS=OURS`` or ``THEIRS=OURS:UNIT``; of a table without a
            header, THEIRS are positions, counted from 1.
        max_bytes: Largest file to read, which also bounds what a Parquet file may unpack to.

    Returns:
        One trace per GPU (or per ``trace_id``), in the file's order; at least one.

    Raises:
        OSError: The file cannot be opened or read.
        TraceFormatError: The file, or a place in it, is not a trace; it is larger than ``max_bytes``; it is a Parquet
            file, and pyarrow is not installed.
        ValueError: ``gpus`` or ``interval_s`` is not positive, or one of ``columns`` is of no such form.
    """
    if gpus is not None and not 1 <= gpus <= MAX_GPUS:
        raise ValueError(f"gpus must lie in 1..{MAX_GPUS}, not {gpus}")
    if interval_s is not None and not 0 < interval_s < float("inf"):
        raise ValueError(f"interval_s must be a positive number of seconds, not {interval_s}")
    rules = [read_rule(text) for text in columns]
    if os.fspath(path) == _STDIN:
        return _read_stdin(gpus, interval_s, columns, max_bytes)
    kind, traces, timed = _read(path, gpus, interval_s, rules, max_bytes)
    if kind in _MAY_MIX_GPUS and len(traces) == 1 and not traces[0].gpu_uuid:
        together = nvidia_smi.rows_at_once(traces[0].time_s)
        if together > 1:
            raise TraceFormatError(
                path,
                f"the ticks come {together} at a time, milliseconds apart: {together} GPUs in one column? Name the GPU "
                "of each row in a column gpu_uuid, or say which column does, such as --column device=gpu_index",
            )
    unused = []
    if gpus is not None and kind not in (Format.NVIDIA_SMI, Format.TABLE):
        unused.append(f"gpus was not used: the rows of a {kind.value} name their GPUs")
    if interval_s is not None and timed:
        unused.append(f"interval_s was not used: the rows of a {kind.value} have times")
    return [replace(trace, warnings=(*trace.warnings, *unused)) for trace in traces] if unused else traces


def _read(
    path: str | os.PathLike[str], gpus: int | None, interval_s: float | None, rules: list[ColumnRule], max_bytes: int
) -> tuple[Format, list[Trace], bool]:
    """Return the file's format, its traces, and whether it has times (False where its reader says so itself)."""
    records: Records
    if prometheus.is_address(path):
        kind, records = Format.API, read_prometheus(os.fspath(path))
    else:
        # The names of columns that the user tells make a table of what is none by its header.
        headless = bool(rules) and all(rule.name.isdigit() for rule in rules)
        kind = Format.TABLE if headless else _sniff_with(path, bool(rules), interval_s, max_bytes)
        if rules and kind in (Format.DCGMI_DMON, Format.SMI_DMON):
            raise TraceFormatError(path, f"the columns of a {kind.value} are known; leave --column out")
        if kind is Format.PARQUET and not rules:
            return kind, read_own_parquet(path, max_bytes=max_bytes), True
        if kind is Format.NVIDIA_SMI:
            return kind, read_nvidia_smi(path, gpus=gpus, max_bytes=max_bytes), True
        if kind is Format.DCGMI_DMON:
            return kind, read_dcgmi(path, interval_s=interval_s, max_bytes=max_bytes), False
        if kind is Format.SMI_DMON:
            return kind, read_smi_dmon(path, interval_s=interval_s, max_bytes=max_bytes), False
        if kind is Format.OWN_CSV:
            return kind, read_own_csv(path, max_bytes=max_bytes), True
        if kind is Format.PARQUET:
            records = read_parquet_columns(path, max_bytes=max_bytes)
        elif kind is Format.SMI_TABLE:
            records = read_smi_tables(path, max_bytes=max_bytes)
        elif kind is Format.JSON:
            records = read_json(path, max_bytes=max_bytes)
        else:
            records = read_table(path, headless=headless, max_bytes=max_bytes)
    traces, timed = split_records(records, rules=rules, interval_s=interval_s, gpus=gpus)
    return kind, traces, timed


def _sniff_with(path: str | os.PathLike[str], has_rules: bool, interval_s: float | None, max_bytes: int) -> Format:
    """Return the format, a table where only what the user says beside the file makes it one that can be read."""
    try:
        kind = sniff(path, max_bytes)
    except TraceFormatError as error:
        if has_rules and error.line is not None:
            return Format.TABLE
        raise
    if kind in (Format.OWN_CSV, Format.NVIDIA_SMI) and (has_rules or (interval_s and _lacks_times(path, max_bytes))):
        return Format.TABLE
    return kind


def _lacks_times(path: str | os.PathLike[str], max_bytes: int) -> bool:
    for block in blocks(path, max_bytes=max_bytes):
        for line in block.lines:
            if line.strip() and not line.startswith("#"):
                return not {TIME_S, TIMESTAMP} & set(split_row(line, guess_delimiter(line)))
    return False


def _read_stdin(gpus: int | None, interval_s: float | None, columns: Sequence[str], max_bytes: int) -> list[Trace]:
    """Read what comes on stdin; readers look at a file twice, so it is kept in one until then."""
    with tempfile.NamedTemporaryFile() as kept:
        size = 0
        while chunk := sys.stdin.buffer.read(1 << 20):
            size += len(chunk)
            if size > max_bytes:
                raise TraceFormatError(_STDIN, too_large(size, max_bytes, "bytes or more"))
            kept.write(chunk)
        kept.flush()
        with _named(kept.name, "stdin", _STDIN):
            return read_traces(kept.name, gpus=gpus, interval_s=interval_s, columns=columns, max_bytes=max_bytes)


@contextlib.contextmanager
def _named(path: str, name: str, told: str = "") -> Iterator[None]:
    """Have errors about a file that nobody knows tell what it is of."""
    try:
        yield
    except TraceError as error:
        error.args = (str(error).replace(path, name),)
        if isinstance(error, TraceFormatError):
            error.path = told or name
        raise


def as_traces(given: Any, columns: Sequence[str] | Mapping[str, str] = ()) -> list[Trace]:
    """Return traces as they were given, or those of a pandas DataFrame.

    A DataFrame is read as a CSV file with its columns is (docs/trace_files.md); an index that has a name, or holds
    times, is one of them: ``timestamp`` where it is a ``DatetimeIndex``, ``time_s`` where it is a ``TimedeltaIndex``.

    Args:
        given: A trace, traces, or a DataFrame.
        columns: What columns of other names of a DataFrame are: as in ``read_traces``, or ``{THEIRS: OURS}``.

    Raises:
        TraceError: It is no trace.
        ValueError: One of ``columns`` is of no such form.
    """
    if isinstance(given, Trace):
        return [given]
    if not hasattr(given, "to_csv"):
        return list(given)
    rules = [f"{theirs}={ours}" for theirs, ours in columns.items()] if isinstance(columns, Mapping) else list(columns)
    index, kind = given.index, type(given.index).__name__
    is_told = any(rule.startswith(f"{index.name}=") for rule in rules)
    if kind == "TimedeltaIndex" and not is_told:
        given = given.set_axis(index.total_seconds(), axis=0).rename_axis(TIME_S).reset_index()
    elif kind == "DatetimeIndex" and not is_told:
        given = given.rename_axis(TIMESTAMP).reset_index()
    elif index.name is not None:
        given = given.reset_index()
    check_cells(_FRAME, given.size, DEFAULT_MAX_BYTES)
    with tempfile.NamedTemporaryFile("w", suffix=".csv", encoding="utf-8", newline="") as kept:
        given.to_csv(kept, index=False)
        kept.flush()
        with _named(kept.name, _FRAME):
            return read_traces(kept.name, columns=rules)


def read_trace(
    path: str | os.PathLike[str],
    *,
    gpu: str | int | None = None,
    gpus: int | None = None,
    interval_s: float | None = None,
    columns: Sequence[str] = (),
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> Trace:
    """Read one trace of a file.

    Args:
        path: The file.
        gpu: Which one: the GPU's index, its ``gpu_uuid`` (or the beginning of it, if only one begins so) or its
            ``trace_id``. May be None where the file holds a single trace.
        gpus: As in ``read_traces``.
        interval_s: As in ``read_traces``.
        columns: As in ``read_traces``.
        max_bytes: As in ``read_traces``.

    Raises:
        TraceError: There are several traces and ``gpu`` is None, or none is the chosen one (the error lists them), or
            ``read_traces`` refuses the file.
        OSError: The file cannot be opened or read.
    """
    traces = read_traces(path, gpus=gpus, interval_s=interval_s, columns=columns, max_bytes=max_bytes)
    if gpu is None:
        if len(traces) == 1:
            return traces[0]
        raise TraceError(
            f"{without_password(path)}: {len(traces)} GPUs ({_names(traces)}); choose one with --gpu I, or --gpu all"
            " where they run one job"
        )
    found = _chosen(traces, str(gpu))
    if found is None:
        raise TraceError(f"{without_password(path)}: no GPU {str(gpu)!r}; --gpu takes one of {_names(traces)}")
    return found


def _chosen(traces: Sequence[Trace], gpu: str) -> Trace | None:
    exact = [trace for trace in traces if gpu in (trace.gpu_uuid, trace.attributes.get("trace_id"))]
    if len(exact) == 1:
        return exact[0]
    if gpu.isascii() and gpu.isdigit() and len(gpu) < 10:
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
