"""``gpusonde workload trainings``: the trainings of encoders that a collector has queued."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from gpusonde.cli import wording
from gpusonde.cli.connection import add_collector_options, client_security
from gpusonde.cli.output import Output, Screen
from gpusonde.cli.parsing import Parser, Subparsers, UsageError, add_command


def add_trainings_parser(subparsers: Subparsers, common: Parser) -> None:
    """Declare ``gpusonde workload trainings``."""
    parser = add_command(
        subparsers,
        common,
        "trainings",
        "list the trainings of encoders that a collector has queued, or queue one",
        "List the trainings of encoders that a collector has queued, newest first, or queue one, which needs a "
        "certificate or token of the role admin. 'gpusonde workload train --queue' works on them.",
    )
    parser.add_argument("--add", metavar="NAME", help="queue the training for this type of data first")
    parser.add_argument("--again", action="store_true", help="with --add: also when it is done or has failed")
    add_collector_options(parser)


def run_trainings(args: argparse.Namespace) -> int:
    """Ask and print."""
    from gpusonde.collector.client.query.workload import WorkloadClient

    if args.again and args.add is None:
        raise UsageError("--again belongs to --add")
    with WorkloadClient(args.collector, security=client_security(args)) as client:
        if args.add is not None:
            client.queue_training(args.add, again=args.again)
        payload = {"trainings": [_training(each) for each in client.trainings()]}
    Output(as_json=args.json).result(payload, lambda screen: _render_trainings(screen, payload["trainings"]))
    return 0


def _training(found: Mapping[str, Any]) -> dict[str, Any]:
    def time(name: str) -> str | None:
        return None if found[name] is None else wording.iso_time(round(found[name] * 1e9))

    return {
        "dataset_type": found["dataset_type"],
        "state": found["state"],
        "reason": found["reason"] or None,
        "queued_time": time("queued_time"),
        "started_time": time("started_time"),
        "ended_time": time("ended_time"),
        "completed_steps": found["completed_steps"],
        "total_steps": found["total_steps"] or None,
        "attempts": found["attempts"],
        "encoder_sha256": found["encoder_sha256"] or None,
    }


def _render_trainings(screen: Screen, trainings: Sequence[Mapping[str, Any]]) -> None:
    if not trainings:
        screen.line("no training was ever queued there")
        return
    screen.table(
        ("type of data", "state", "steps", "queued", "reason"),
        [
            (
                each["dataset_type"],
                each["state"],
                f"{each['completed_steps']}/{each['total_steps'] or '?'}" if each["attempts"] else "",
                each["queued_time"],
                each["reason"] or "",
            )
            for each in trainings
        ],
    )
