"""``gpusonde spool``: what an agent's spool holds, and whether its files are whole."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

from gpusonde import formatting
from gpusonde.cli.output import JsonKey, Output, Screen
from gpusonde.cli.parsing import Parser

if TYPE_CHECKING:
    from gpusonde.agent.spool.inspection import SpoolReport


class SpoolPayload(TypedDict):
    """What both actions print."""

    directory: str
    agent_id: str | None
    spool_id: str | None
    held_by: Annotated[str | None, JsonKey("process")]
    acked_sequence: Annotated[int, JsonKey("acknowledged, or reported as dropped, up to here")]
    last_sequence: int
    records: int
    ticks: int
    size_bytes: int


class SpoolSegmentPayload(TypedDict):
    """A segment of a spool."""

    file: str
    first_sequence: int
    last_sequence: int
    records: int
    ticks: int
    loss_reports: int
    size_bytes: int
    first_tick_time: str | None
    last_tick_time: str | None


class SpoolJournalPayload(TypedDict):
    """The batch that is being filled: a killed agent's next start makes records of it."""

    file: str
    steps: int
    ticks: int
    first_tick_time: str | None
    last_tick_time: str | None


class SpoolListPayload(SpoolPayload):
    """What ``gpusonde spool ls`` prints."""

    journal: Annotated[SpoolJournalPayload | None, JsonKey("ticks that wait for the end of their batch")]
    segments: Annotated[list[SpoolSegmentPayload], JsonKey("the oldest first")]


class SpoolFindingPayload(TypedDict):
    """Something that is wrong with a spool."""

    file: str
    kind: Annotated[
        str,
        JsonKey("`torn_tail`, `lost_records`, `damaged_bytes`, `leftover`, `unusable` (a person must decide)"),
    ]
    detail: Annotated[str, JsonKey("what, and what to do")]
    lost_records: int
    torn_bytes: int


class SpoolCheckPayload(SpoolPayload):
    """What ``gpusonde spool fsck`` prints."""

    repaired: bool
    lost_records: int
    torn_bytes: Annotated[int, JsonKey("of records never written to their end")]
    findings: list[SpoolFindingPayload]


def add_ls_options(parser: Parser) -> None:
    """Declare ``gpusonde spool ls``."""
    parser.add_argument("directory", type=Path, metavar="DIR", help="directory of the spool")


def run_ls(args: argparse.Namespace) -> int:
    """List what the spool holds."""
    from gpusonde.agent.spool.inspection import inspect_spool

    report = inspect_spool(args.directory, repair=False)
    payload: SpoolListPayload = {**_summary(report), "journal": _journal(report), "segments": _segments(report)}
    Output(as_json=args.json).result(payload, lambda screen: _render_list(screen, report))
    return 0


def add_fsck_options(parser: Parser) -> None:
    """Declare ``gpusonde spool fsck``."""
    parser.description = (
        "Check every byte of a spool. Nothing is changed without --repair. Exit code 0 when all is well or was "
        "repaired, else 1."
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="directory of the spool")
    parser.add_argument(
        "--repair",
        action="store_true",
        help="cut torn tails and put loss reports in the places of lost records, as the agent would at its next start",
    )


def run_fsck(args: argparse.Namespace) -> int:
    """Check the spool, and repair it where asked."""
    from gpusonde.agent.spool.inspection import inspect_spool

    report = inspect_spool(args.directory, repair=args.repair)
    payload: SpoolCheckPayload = {
        **_summary(report),
        "repaired": report.repaired,
        "lost_records": sum(finding.lost_records for finding in report.findings),
        "torn_bytes": sum(finding.torn_bytes for finding in report.findings),
        "findings": [
            {
                "file": str(finding.path),
                "kind": finding.kind.value,
                "detail": finding.detail,
                "lost_records": finding.lost_records,
                "torn_bytes": finding.torn_bytes,
            }
            for finding in report.findings
        ],
    }
    Output(as_json=args.json).result(payload, lambda screen: _render_check(screen, report))
    return 1 if report.findings and not report.repaired else 0


def _summary(report: SpoolReport) -> SpoolPayload:
    return {
        "directory": str(report.directory),
        "agent_id": report.identity.agent_id if report.identity else None,
        "spool_id": report.identity.spool_id if report.identity else None,
        "held_by": report.held_by,
        "acked_sequence": report.acked_sequence,
        "last_sequence": report.last_sequence,
        "records": sum(segment.records for segment in report.segments),
        "ticks": sum(segment.ticks for segment in report.segments),
        "size_bytes": sum(segment.size_bytes for segment in report.segments),
    }


def _segments(report: SpoolReport) -> list[SpoolSegmentPayload]:
    return [
        {
            "file": str(segment.path),
            "first_sequence": segment.first_sequence,
            "last_sequence": segment.last_sequence,
            "records": segment.records,
            "ticks": segment.ticks,
            "loss_reports": segment.loss_reports,
            "size_bytes": segment.size_bytes,
            "first_tick_time": _time(segment.first_tick_unix_nano),
            "last_tick_time": _time(segment.last_tick_unix_nano),
        }
        for segment in report.segments
    ]


def _journal(report: SpoolReport) -> SpoolJournalPayload | None:
    if report.journal is None:
        return None
    return {
        "file": str(report.journal.path),
        "steps": report.journal.steps,
        "ticks": report.journal.ticks,
        "first_tick_time": _time(report.journal.first_tick_unix_nano),
        "last_tick_time": _time(report.journal.last_tick_unix_nano),
    }


def _time(unix_nano: int | None) -> str | None:
    return None if unix_nano is None else formatting.iso_time(unix_nano)


def _local_time(unix_nano: int | None) -> str:
    return formatting.ABSENT if unix_nano is None else formatting.local_time(unix_nano)


def _render_summary(screen: Screen, report: SpoolReport) -> None:
    whose = f"agent {report.identity.agent_id}, spool {report.identity.spool_id}" if report.identity else "of nobody"
    running = f"; process {report.held_by} has it" if report.held_by else ""
    records = sum(segment.records for segment in report.segments)
    size = sum(segment.size_bytes for segment in report.segments)
    screen.line(f"{report.directory}: {whose}{running}")
    screen.line(
        f"{formatting.count(records, 'record')} up to {report.last_sequence} in {size:,} bytes; up to "
        f"{report.acked_sequence} acknowledged or reported as dropped"
    )


def _render_list(screen: Screen, report: SpoolReport) -> None:
    _render_summary(screen, report)
    if report.journal is not None:
        screen.line(
            f"{formatting.count(report.journal.ticks, 'tick')} more in {report.journal.path.name}: a batch that is "
            "being filled"
        )
    if not report.segments:
        return
    rows = [
        (
            segment.path.name,
            f"{segment.first_sequence} to {segment.last_sequence}" if segment.records else formatting.ABSENT,
            f"{segment.ticks:,}",
            f"{segment.size_bytes:,}",
            *map(_local_time, (segment.first_tick_unix_nano, segment.last_tick_unix_nano)),
        )
        for segment in report.segments
    ]
    screen.line()
    columns = ("segment", "records", "ticks", "bytes", "first tick", "last tick")
    screen.table(columns, rows, numeric=("ticks", "bytes"), optional=("bytes", "first tick"))


def _render_check(screen: Screen, report: SpoolReport) -> None:
    _render_summary(screen, report)
    for finding in report.findings:
        screen.note(f"{finding.path}: {finding.detail}")
    if not report.findings:
        screen.line("nothing is damaged")
    elif report.repaired:
        screen.line("repaired; the agent reports what is lost at its next start")
    else:
        screen.line("nothing was changed; --repair does what the agent would do at its next start")
