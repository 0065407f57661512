"""``gpusonde monitor``: whether a running job should go on with what it has."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from gpusonde.cli.commands.plan import given_plan, group
from gpusonde.cli.connection import add_collector_options, client_security, connect
from gpusonde.cli.errors import naming
from gpusonde.cli.output import Output, to_json
from gpusonde.cli.parsing import Parser, Subparsers, UsageError, add_command, positive_number

_STDIN = "-"
# On the job's clock, as a collector does by default.
_LOOK_INTERVAL_S = 10.0
_MOST_KEPT = 10_000


def add_monitor_parser(subparsers: Subparsers, common: Parser) -> None:
    """Declare ``gpusonde monitor``."""
    parser = add_command(
        subparsers,
        common,
        "monitor",
        "watch a running job and say when another plan is better",
        "Watch a running job and say when another plan is better (docs/planning.md). Progress comes from the epochs of "
        "a run that a collector tracks (--run), or from reports (--progress): JSON Lines with elapsed_s and "
        "completed_iterations, or with elapsed_s and plan, preempted or refused when machines change.",
    )
    parser.add_argument("problem", type=Path, metavar="PROBLEM", help="problem file of the whole job")
    parser.add_argument("--plan", type=Path, metavar="FILE", help="what runs: a plan, or the solution that has it")
    parser.add_argument(
        "--group", type=group, action="append", metavar="OFFER=N@BATCH", help="what runs, instead of --plan; repeatable"
    )
    parser.add_argument("--progress", metavar="FILE", help="reports, one JSON object per line; - for stdin")
    parser.add_argument("--run", metavar="ID", help="run of the collector ('gpusonde runs' lists them)")
    parser.add_argument(
        "--elapsed-s", type=positive_number, metavar="X", help="seconds since the job began (default: 0, or the run's)"
    )
    parser.add_argument("--spent-usd", type=positive_number, metavar="X", help="spent so far (default: 0)")
    parser.add_argument(
        "--completed-iterations",
        type=positive_number,
        metavar="N",
        help="done so far; with --run, before that run (default: 0)",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="append every recommendation as a line of JSON")
    add_collector_options(parser, default=None, otherwise="computing here")


def run_monitor(args: argparse.Namespace) -> int:
    """Watch and print."""
    from gpusonde.cli.planning_view import is_news, render_recommendation
    from gpusonde.optimizer.documents.references import read_problem

    _check_monitor(args)
    output = Output(as_json=args.json)
    with naming(args.problem):
        problem = read_problem(args.problem)
    start = _start(args)
    kept: list[dict[str, Any]] = []
    screen = output.screen()
    with _appended(args.out) as out:
        found = _of_collector(args, problem, start) if args.collector else _here(args, problem, start)
        for recommendation in found:
            if kept and not is_news(kept[-1], recommendation):
                continue
            del kept[: len(kept) + 1 - _MOST_KEPT]
            kept.append(recommendation)
            if not args.json:
                render_recommendation(screen, recommendation)
            if out is not None:
                out.write(to_json(recommendation) + "\n")
                out.flush()
    if args.json:
        output.result({"recommendations": kept}, lambda _: None)
    return 0


def _check_monitor(args: argparse.Namespace) -> None:
    if args.plan is not None and args.group is not None:
        raise UsageError("--plan and --group exclude each other")
    if args.run is not None and args.collector is None:
        raise UsageError("--run needs --collector HOST:PORT")
    if args.run is None and args.progress is None:
        raise UsageError("give --progress FILE, or --run ID with --collector HOST:PORT")
    if args.run is not None and args.progress is not None:
        raise UsageError("--run and --progress exclude each other: either tells how far the job is")


def _start(args: argparse.Namespace) -> dict[str, Any]:
    start: dict[str, Any] = {
        "elapsed_s": args.elapsed_s,
        "spent_usd": args.spent_usd,
        "completed_iterations": args.completed_iterations,
    }
    if args.plan is not None or args.group is not None:
        start["plan"] = given_plan(args.plan, args.group)
    return {key: value for key, value in start.items() if value is not None}


def _here(args: argparse.Namespace, problem: Mapping[str, Any], start: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    from gpusonde.catalog import load_gpus, load_offers
    from gpusonde.optimizer.documents.problem import parse_problem
    from gpusonde.optimizer.documents.watching import start_watch, take_report

    gpus = load_gpus()
    with naming(args.problem):
        watch = start_watch(parse_problem(problem, gpus, load_offers(gpus=gpus)), start)
    looked_s = float(start.get("elapsed_s", 0.0))
    waiting_s = None
    with _reports(args) as reports:
        yield (found := watch.recommend(looked_s))
        for report in reports:
            now_s = max(looked_s, take_report(watch, report) or 0.0)
            if now_s < looked_s + _LOOK_INTERVAL_S and "completed_iterations" in report:
                waiting_s = now_s
                continue
            looked_s, waiting_s = now_s, None
            yield (found := watch.recommend(now_s))
            if found["kind"] == "done":
                return
    if waiting_s is not None:
        yield watch.recommend(waiting_s)


def _of_collector(
    args: argparse.Namespace, problem: Mapping[str, Any], start: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    from gpusonde.cli.commands.epochs import find_run
    from gpusonde.collector.client.query.planning import PlanningClient

    if args.run is not None:
        with connect(args) as client:
            found = find_run(client, args.run)
        start["run_id"] = found.run_id
        start.setdefault("elapsed_s", max(0.0, time.time() - found.start_unix_nano / 1e9))
    with PlanningClient(args.collector, security=client_security(args)) as planning, _reports(args) as reports:
        yield from planning.watch(problem, start, reports)


@contextlib.contextmanager
def _reports(args: argparse.Namespace) -> Iterator[Iterable[dict[str, Any]]]:
    from gpusonde.optimizer.documents.watching import read_reports

    if args.progress is None:
        yield ()
    elif args.progress == _STDIN:
        yield read_reports(sys.stdin, "stdin")
    else:
        with open(args.progress, encoding="utf-8", errors="replace") as file:
            yield read_reports(file, args.progress)


@contextlib.contextmanager
def _appended(path: Path | None) -> Iterator[IO[str] | None]:
    if path is None:
        yield None
        return
    with path.open("a", encoding="utf-8") as file:
        yield file
