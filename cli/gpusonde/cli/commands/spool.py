"""``gpusonde spool``: what an agent's spool holds, and whether its files are whole."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpusonde.cli import formatting
from gpusonde.cli.output import Output, Screen
from gpusonde.cli.parsing import Parser, Subparsers, add_command

if TYPE_CHECKING:
    from gpusonde.agent.spool.inspection import SpoolReport


def add_spool_parser(subparsers: Subparsers, common: Parser) -> None:
    """Declare ``gpusonde spool`` and what can be done with one."""
    # The common options belong to the actions: argparse would overwrite those given before the action's name.
    parser = subparsers.add_parser(
        "spool",
        help="list or check the spool of an agent",
        description="List or check the spool of an agent, beside which it may run.",
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=Parser)
    listing = add_command(actions, common, "ls", "list the segments of a spool with their records, ticks and times")
    check = add_command(
        actions,
        common,
        "fsck",
        "check every byte of a spool; exit code 1 with findings",
        "Check every byte of a spool. Nothing is changed without --repair. Exit code 0 when all is well or was "
        "repaired, else 1.",
    )
    check.add_argument(
        "--repair",
        action="store_true",
        help="cut torn tails and put loss reports in the places of lost records, as the agent would at its next start",
    )
    for action in (listing, check):
        action.add_argument("directory", type=Path, metavar="DIR", help="directory of the spool")


def run_spool(args: argparse.Namespace) -> int:
    """Read the spool and print."""
    from gpusonde.agent.spool.inspection import inspect_spool

    checks = args.action == "fsck"
    report = inspect_spool(args.directory, repair=checks and args.repair)
    payload = _summary(report) | (_findings(report) if checks else _segments(report))
    Output(as_json=args.json).result(
        payload, lambda screen: (_render_check if checks else _render_list)(screen, report)
    )
    return 1 if checks and report.findings and not report.repaired else 0


def _summary(report: SpoolReport) -> dict[str, Any]:
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


def _segments(report: SpoolReport) -> dict[str, Any]:
    return {
        "segments": [
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
    }


def _findings(report: SpoolReport) -> dict[str, Any]:
    return {
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


def _time(unix_nano: int | None) -> str | None:
    return None if unix_nano is None else formatting.iso_time(unix_nano)


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
    if not report.segments:
        return
    rows = [
        (
            segment.path.name,
            f"{segment.first_sequence} to {segment.last_sequence}" if segment.records else formatting.ABSENT,
            f"{segment.ticks:,}",
            f"{segment.size_bytes:,}",
            _time(segment.first_tick_unix_nano) or formatting.ABSENT,
            _time(segment.last_tick_unix_nano) or formatting.ABSENT,
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
