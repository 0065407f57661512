"""``gpusonde store``: looking after a collector's data directory."""

from __future__ import annotations

import argparse
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from gpusonde import formatting
from gpusonde.cli.output import JsonKey, Output, Screen
from gpusonde.cli.parsing import Parser, positive_integer
from gpusonde.errors import UsageError

if TYPE_CHECKING:
    from gpusonde.collector.storage.local import BackupReport, CheckReport, CompactReport, ExportReport, SqlAnswer

_EXIT_FINDINGS = 1


class StoreFindingPayload(TypedDict):
    """Something that is wrong with a data directory."""

    kind: Annotated[
        str, JsonKey("`catalog`, `log_tail`, `missing`, `damaged`, `mismatch`, `overlap`, `hole` or `orphan`")
    ]
    file: str
    problem: Annotated[str, JsonKey("and what to do")]
    repaired: bool


class StoreCheckPayload(TypedDict):
    """What ``gpusonde store fsck`` prints."""

    directory: str
    live: Annotated[bool, JsonKey("a collector was using it")]
    segments: Annotated[int, JsonKey("files that could be read to the end")]
    rows: int
    size_bytes: int
    log_entries: int
    recorded_gaps: Annotated[int, JsonKey("gaps and losses on record")]
    deleted_files: Annotated[int, JsonKey("by retention")]
    findings: list[StoreFindingPayload]


class StoreCompactPayload(TypedDict):
    """What ``gpusonde store compact`` prints."""

    directory: str
    files_written: int
    segments_left: Annotated[int, JsonKey("unreadable; exit code 1 with any")]
    size_before_bytes: Annotated[int, JsonKey("all ticks")]
    size_after_bytes: Annotated[int, JsonKey("all ticks")]
    averages_bytes: int


class StoreBackupPayload(TypedDict):
    """What ``gpusonde store backup`` prints."""

    directory: str
    out: str
    segments: Annotated[int, JsonKey("in the backup")]
    size_bytes: Annotated[int, JsonKey("of the segments")]
    files_copied: Annotated[int, JsonKey("that were not in the backup before")]
    bytes_copied: Annotated[int, JsonKey("a link takes none")]
    missing: Annotated[list[str], JsonKey("segments that the store has lost; exit code 1")]


class ExportedGpuPayload(TypedDict):
    """A GPU in an exported file."""

    gpu_uuid: str
    gpu_model: str | None
    ticks: int
    resolution_s: Annotated[float | None, JsonKey("1: older ticks are averages over a second; null: none are")]


class StoreExportPayload(TypedDict):
    """What ``gpusonde store export`` prints."""

    out: str
    live: Annotated[bool, JsonKey("a collector was using the directory")]
    gpus: list[ExportedGpuPayload]


class SqlColumnPayload(TypedDict):
    """A column of an answer."""

    name: str
    type: Annotated[str, JsonKey("in DuckDB")]


class StoreSqlPayload(TypedDict):
    """What ``gpusonde store sql`` prints."""

    columns: list[SqlColumnPayload]
    rows: list[list[Any]]
    truncated: Annotated[bool, JsonKey("there are more rows than `--limit`")]


def time_unix_nano(text: str) -> int:
    """Argument type: ISO 8601 (without a zone it is UTC) or Unix seconds, as Unix nanoseconds."""
    try:
        return round(float(text) * 1e9)
    except (ValueError, OverflowError):
        pass
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; write 2026-11-21T10:00:00Z or Unix seconds") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    since = moment - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1000


def add_fsck_options(parser: Parser) -> None:
    """Declare ``gpusonde store fsck``."""
    parser.add_argument("directory", type=Path, metavar="DIR", help="data directory of a collector")
    parser.add_argument(
        "--repair", action="store_true", help="set files aside that are not part of the store, or remove leftovers"
    )
    parser.add_argument(
        "--rebuild",
        action="store_true",
        help="make the catalogue anew from the segments, those set aside included; then check",
    )


def run_fsck(args: argparse.Namespace) -> int:
    """Read everything, say what is wrong, and repair what can be where asked."""
    from gpusonde.collector.storage.local import check_store, rebuild_catalog

    output = Output(as_json=args.json)
    done = []
    if args.rebuild:
        with output.progress("rebuilding", total=1.0) as show:
            done = rebuild_catalog(args.directory, on_progress=show)
    with output.progress("reading", total=1.0) as show:
        report = check_store(args.directory, repair=args.repair, on_progress=show)
    report.findings[:0] = done
    findings: list[StoreFindingPayload] = [
        {"kind": f.kind.value, "file": f.path, "problem": f.problem, "repaired": f.repaired} for f in report.findings
    ]
    payload: StoreCheckPayload = {
        "directory": str(args.directory),
        "live": report.live,
        "segments": report.segments,
        "rows": report.rows,
        "size_bytes": report.size_bytes,
        "log_entries": report.log_entries,
        "recorded_gaps": report.gaps,
        "deleted_files": report.deletions,
        "findings": findings,
    }
    output.result(payload, lambda screen: _render_check(screen, report))
    return _EXIT_FINDINGS if findings else 0


def _render_check(screen: Screen, report: CheckReport) -> None:
    screen.line(
        f"read {formatting.count(report.segments, 'segment')} with {report.rows:,} rows,"
        f" {report.size_bytes / 1e6:,.1f} MB, and {formatting.count(report.log_entries, 'record')} in the log;"
        f" {formatting.count(report.gaps, 'gap')} on record,"
        f" {formatting.count(report.deletions, 'file')} deleted by retention"
    )
    if report.live:
        screen.note("a collector is using the directory: what it is just writing was left out")
    for finding in report.findings:
        screen.note(f"{finding.kind.value}: {finding.path}: {finding.problem}")
    if not report.findings:
        screen.line("nothing is wrong")


def add_compact_options(parser: Parser) -> None:
    """Declare ``gpusonde store compact``."""
    parser.add_argument("directory", type=Path, metavar="DIR", help="data directory of a collector")


def run_compact(args: argparse.Namespace) -> int:
    """Compact all segments."""
    from gpusonde.collector.storage.local import compact_store

    report = compact_store(args.directory)
    payload: StoreCompactPayload = {
        "directory": str(args.directory),
        "files_written": report.files_written,
        "segments_left": report.segments_left,
        "size_before_bytes": report.size_before_bytes,
        "size_after_bytes": report.size_after_bytes,
        "averages_bytes": report.averages_bytes,
    }
    Output(as_json=args.json).result(payload, lambda screen: _render_compact(screen, report))
    return _EXIT_FINDINGS if report.segments_left else 0


def _render_compact(screen: Screen, report: CompactReport) -> None:
    screen.line(
        f"{formatting.count(report.files_written, 'file')} written; ticks take {report.size_after_bytes / 1e6:,.1f} MB,"
        f" before it was {report.size_before_bytes / 1e6:,.1f} MB; averages {report.averages_bytes / 1e6:,.1f} MB"
    )
    if report.segments_left:
        screen.note(
            f"{formatting.count(report.segments_left, 'segment')} could not be read; 'gpusonde store fsck' says why"
        )


def add_backup_options(parser: Parser) -> None:
    """Declare ``gpusonde store backup``."""
    parser.add_argument("directory", type=Path, metavar="DIR", help="data directory of a collector")
    parser.add_argument(
        "out", type=Path, metavar="OUT", help="directory of the backup; the same one is brought up to date"
    )


def run_backup(args: argparse.Namespace) -> int:
    """Bring a backup up to date."""
    from gpusonde.collector.storage.local import backup_store

    output = Output(as_json=args.json)
    with output.progress("copying", total=1.0) as show:
        report = backup_store(args.directory, args.out, on_progress=show)
    payload: StoreBackupPayload = {
        "directory": str(args.directory),
        "out": str(args.out),
        "segments": report.segments,
        "size_bytes": report.size_bytes,
        "files_copied": report.files_copied,
        "bytes_copied": report.bytes_copied,
        "missing": report.missing,
    }
    output.result(payload, lambda screen: _render_backup(screen, args.out, report))
    return _EXIT_FINDINGS if report.missing else 0


def _render_backup(screen: Screen, out: Path, report: BackupReport) -> None:
    screen.line(
        f"{out} holds {formatting.count(report.segments, 'segment')} of {report.size_bytes / 1e6:,.1f} MB;"
        f" {formatting.count(report.files_copied, 'file')} new, {report.bytes_copied / 1e6:,.1f} MB copied"
    )
    for name in report.missing:
        screen.note(f"{name} is not there any more; 'gpusonde store fsck' says what it held")


def add_export_options(parser: Parser) -> None:
    """Declare ``gpusonde store export``."""
    parser.add_argument("directory", type=Path, metavar="DIR", help="data directory of a collector")
    parser.add_argument("out", type=Path, metavar="OUT", help="file to write: .parquet or .csv")
    parser.add_argument(
        "--gpu",
        action="append",
        default=[],
        metavar="UUID",
        help="this GPU (repeatable; else every GPU with samples in that time)",
    )
    parser.add_argument("--from", dest="start", type=time_unix_nano, default=0, metavar="TIME", help="earliest time")
    parser.add_argument(
        "--to",
        dest="end",
        type=time_unix_nano,
        default=1 << 62,
        metavar="TIME",
        help="time after the latest; ISO 8601 or Unix seconds",
    )


def run_export(args: argparse.Namespace) -> int:
    """Write samples into a trace file."""
    from gpusonde.collector.storage.local import export_samples

    if args.end <= args.start:
        raise UsageError("--to comes before --from")
    if args.out.suffix.lower() not in (".parquet", ".csv"):
        raise UsageError(f"{args.out}: a trace file ends with .parquet or .csv")
    output = Output(as_json=args.json)
    with output.progress("exporting"):
        report = export_samples(args.directory, args.out, args.gpu, start_unix_nano=args.start, end_unix_nano=args.end)
    payload: StoreExportPayload = {
        "out": str(args.out),
        "live": report.live,
        "gpus": [
            {
                "gpu_uuid": gpu.gpu_uuid,
                "gpu_model": gpu.gpu_model or None,
                "ticks": gpu.ticks,
                "resolution_s": gpu.resolution_s or None,
            }
            for gpu in report.gpus
        ],
    }
    output.result(payload, lambda screen: _render_export(screen, args.out, report))
    return 0


def _render_export(screen: Screen, out: Path, report: ExportReport) -> None:
    screen.line(
        f"{out}: {formatting.count(sum(gpu.ticks for gpu in report.gpus), 'tick')} of"
        f" {formatting.count(len(report.gpus), 'GPU')}"
    )
    averaged = [gpu for gpu in report.gpus if gpu.resolution_s]
    if averaged:
        screen.note(
            f"of {formatting.count(len(averaged), 'GPU')} the oldest ticks are deleted: what is left are averages over"
            " a second"
        )
    if report.live:
        screen.note("a collector is using the directory: what it has not sealed yet, about a minute, is missing")


def add_sql_options(parser: Parser) -> None:
    """Declare ``gpusonde store sql``."""
    parser.add_argument("directory", type=Path, metavar="DIR", help="data directory of a collector")
    parser.add_argument(
        "statement", metavar="SELECT", help="over samples, seconds, runs, epochs, ... (docs/collector.md)"
    )
    parser.add_argument("--limit", type=positive_integer, default=1000, metavar="N", help="most rows (default: 1000)")


def run_sql(args: argparse.Namespace) -> int:
    """Answer a SELECT."""
    from gpusonde.collector.storage.local import query_store

    answer = query_store(args.directory, args.statement, limit=args.limit)
    payload: StoreSqlPayload = {
        "columns": [{"name": n, "type": t} for n, t in zip(answer.columns, answer.types, strict=True)],
        "rows": [[_plain(value) for value in row] for row in answer.rows],
        "truncated": answer.truncated,
    }
    Output(as_json=args.json).result(payload, lambda screen: _render_answer(screen, answer))
    return 0


def _plain(value: object) -> object:
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _render_answer(screen: Screen, answer: SqlAnswer) -> None:
    screen.table(answer.columns, [["" if cell is None else str(cell) for cell in row] for row in answer.rows])
    if answer.truncated:
        screen.note(f"there are more than {formatting.count(len(answer.rows), 'row')}: raise --limit, or ask for less")
