"""``gpusonde runs``: the runs that a collector has seen."""

from __future__ import annotations

import argparse

from gpusonde.cli.connection import add_collector_options, connect
from gpusonde.cli.output import Output, Screen
from gpusonde.cli.parsing import Parser, Subparsers, add_command, positive_integer


def add_runs_parser(subparsers: Subparsers, common: Parser) -> None:
    """Declare ``gpusonde runs``."""
    parser = add_command(subparsers, common, "runs", "list the runs that a collector has seen, newest first")
    add_collector_options(parser)
    parser.add_argument("--gpu-uuid", default="", metavar="UUID", help="only runs on this GPU")
    parser.add_argument("--job", default="", metavar="ID", help="only runs of this job of the scheduler")
    parser.add_argument("--limit", type=positive_integer, default=50, metavar="N", help="at most N (default: 50)")


def run_runs(args: argparse.Namespace) -> int:
    """Ask and print."""
    from gpusonde.cli.runs_view import render_runs, run_payload

    with connect(args) as client:
        runs = client.list_runs(gpu_uuid=args.gpu_uuid, job_id=args.job, limit=args.limit)

    def render(screen: Screen) -> None:
        if runs:
            render_runs(screen, runs)
        else:
            screen.line(f"the collector at {args.collector} has seen no such run")

    Output(as_json=args.json).result({"runs": [run_payload(run_runs) for run_runs in runs]}, render)
    return 0
