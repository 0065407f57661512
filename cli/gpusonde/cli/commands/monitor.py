"""``gpusonde monitor``: whether a running job should go on as it is."""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import functools
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, TypedDict, cast

from gpusonde.cli.commands.plan import given_plan, group
from gpusonde.cli.connection import add_collector_options, client_security, connect
from gpusonde.cli.errors import check_writable, error_context
from gpusonde.cli.output import JsonKey, Output, to_json
from gpusonde.cli.parsing import Parser, add_plot_option, ratio, time_since_s
from gpusonde.cli.plans_view import draw_watched, render_recommendation
from gpusonde.errors import DocumentError, UsageError
from gpusonde.formatting import count, duration

if TYPE_CHECKING:
    from gpusonde.optimizer.documents.problem import ProblemDocument

_LOG = logging.getLogger(__name__)
_STDIN = "-"
# On the job's clock, as a collector does by default.
_LOOK_INTERVAL_S = 10.0
_MOST_KEPT = 10_000
# A report waits no longer for prices that are read again.
_PRICES_WAIT_S = 1.0
_PLAN = "gpusonde.optimizer.problem.Plan"
_MACHINES = "gpusonde.optimizer.documents.watching.MachineCount"


class RecommendationPayload(TypedDict):
    """What should be done with a running job."""

    kind: Annotated[
        str,
        JsonKey(
            "`launch` machines, `wait` for them, `run` the job on what is there, `keep` the plan, `idle` until there "
            "are cheaper machines, `no_plan` that can be had, `done`"
        ),
    ]
    at_s: Annotated[float, JsonKey("since the job's start")]
    plan: Annotated[dict[str, Any] | None, JsonKey("what should run, or runs", holds=_PLAN)]
    launch: Annotated[list[dict[str, Any]], JsonKey(holds=_MACHINES)]
    end: Annotated[list[dict[str, Any]], JsonKey(holds=_MACHINES)]
    projection: Annotated[
        dict[str, Any] | None,
        JsonKey(
            "the job's end on the plan, since its start",
            holds="gpusonde.optimizer.continual.progress.Projection",
        ),
    ]
    completed_iterations: float
    remaining_iterations: float
    throughput: Annotated[dict[str, Any] | None, JsonKey(holds="gpusonde.optimizer.continual.progress.Throughput")]
    spent_usd: float
    expected_usd: Annotated[float | None, JsonKey("when the job ends")]
    checkpoint_interval_s: Annotated[float | None, JsonKey("null when none are needed")]
    at_risk: Annotated[bool, JsonKey("deadline or budget cannot be kept with confidence")]
    fallback: Annotated[dict[str, Any] | None, JsonKey("on demand, if all spot machines go", holds=_PLAN)]
    fallback_before_s: Annotated[float | None, JsonKey("latest time to turn to it")]
    why: str


class MonitorPayload(TypedDict):
    """What ``gpusonde monitor`` prints at the end."""

    recommendations: Annotated[list[RecommendationPayload], JsonKey("those that say something new, the latest 10,000")]


def add_monitor_options(parser: Parser) -> None:
    """Declare ``gpusonde monitor``."""
    parser.description = (
        "Watch a running job and say when another plan is better (docs/planning.md), until it is done or its run has "
        "ended. Progress comes from the epochs of "
        "a run that a collector tracks (--run), or from reports (--progress): JSON Lines with elapsed_s and "
        "completed_iterations, or with elapsed_s and plan, preempted or refused when machines change."
    )
    parser.add_argument("problem", type=Path, metavar="PROBLEM", help="problem file of the whole job")
    parser.add_argument("--plan", type=Path, metavar="FILE", help="what runs: a plan, or the solution that has it")
    parser.add_argument(
        "--group", type=group, action="append", metavar="OFFER=N@BATCH", help="what runs, instead of --plan; repeatable"
    )
    parser.add_argument("--progress", metavar="FILE", help="reports, one JSON object per line; - for stdin")
    parser.add_argument("--run", metavar="ID", help="run of the collector ('gpusonde runs' lists them)")
    parser.add_argument(
        "--elapsed-s", type=time_since_s, metavar="TIME", help="seconds since the job began (default: 0, or the run's)"
    )
    parser.add_argument("--spent-usd", type=ratio, metavar="X", help="spent so far (default: 0)")
    parser.add_argument(
        "--completed-iterations",
        type=ratio,
        metavar="N",
        help="done so far; with --run, before that run (default: 0)",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="append every recommendation as a line of JSON")
    add_plot_option(parser, "at the end, machines, progress and cost over time,")
    add_collector_options(parser, default=None, otherwise="computing here")


def run_monitor(args: argparse.Namespace) -> int:
    """Watch and print."""
    from gpusonde.optimizer.documents.references import read_problem

    _check_monitor(args)
    check_writable(args.plot)
    output = Output(as_json=args.json)
    read_s = time.monotonic()
    with error_context(args.problem):
        problem = read_problem(args.problem)
    start = _start(args)
    kept: list[dict[str, Any]] = []
    watched: deque[dict[str, Any]] = deque(maxlen=_MOST_KEPT)
    machines: deque[dict[str, Any]] = deque(maxlen=_MOST_KEPT)
    screen = output.screen()
    with _appended(args.out) as out:
        found = (
            _of_collector(args, problem, start, machines)
            if args.collector
            else _here(args, problem, start, machines, read_s)
        )

        def tell(recommendation: dict[str, Any]) -> None:
            del kept[: len(kept) + 1 - _MOST_KEPT]
            kept.append(recommendation)
            if not args.json:
                render_recommendation(screen, recommendation)
            if out is not None:
                out.write(to_json(recommendation) + "\n")
                out.flush()

        recommendation: dict[str, Any] | None = None
        interrupt: KeyboardInterrupt | None = None
        try:
            for recommendation in found:
                if args.plot is not None:
                    watched.append(recommendation)
                if not kept or _is_news(kept[-1], recommendation):
                    tell(recommendation)
            if args.run is not None and recommendation is not None and recommendation["why"] != kept[-1]["why"]:
                # The watch ends because the run has, which may be all that is new.
                tell(recommendation)
        except KeyboardInterrupt as error:
            # What it has seen is told all the same: most watches end so.
            interrupt = error
    if args.plot is not None and watched:
        draw_watched(args.plot, problem, [{"elapsed_s": 0.0, **start}, *machines], watched)
        if not args.json:
            screen.line(f"picture: {args.plot}")
    if args.json:
        output.result(cast(MonitorPayload, {"recommendations": kept}), lambda _: None)
    if interrupt is not None:
        raise interrupt
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


def _here(
    args: argparse.Namespace,
    problem: Mapping[str, Any],
    start: Mapping[str, Any],
    machines: deque[dict[str, Any]],
    read_s: float,
) -> Iterator[dict[str, Any]]:
    from gpusonde.catalog import load_gpus, load_offers
    from gpusonde.optimizer.documents.problem import parse_problem
    from gpusonde.optimizer.documents.references import read_problem, reread_after_s
    from gpusonde.optimizer.documents.watching import start_watch, take_report
    from gpusonde.optimizer.spot_offers import ask_spot_rows

    gpus = load_gpus()

    def read_again(stop: threading.Event) -> ProblemDocument:
        read = read_problem(args.problem, ask=functools.partial(ask_spot_rows, stop=stop))
        return parse_problem(read, gpus, load_offers(gpus=gpus))

    with error_context(args.problem):
        watch = start_watch(parse_problem(problem, gpus, load_offers(gpus=gpus)), start)
        reread_s = reread_after_s(args.problem)
    looked_s = float(start.get("elapsed_s", 0.0))
    waiting_s = None
    with contextlib.closing(_Prices(args.problem, reread_s, read_again, read_s)) as prices:

        def recommend(now_s: float) -> dict[str, Any]:
            found = watch.recommend(now_s)
            return {**found, "why": "; ".join(filter(None, (found["why"], prices.age())))}

        with _reports(args, machines) as reports:
            yield recommend(looked_s)
            for report in reports:
                if (newest := prices.newest()) is not None:
                    watch.follow(newest)
                now_s = max(looked_s, take_report(watch, report) or 0.0)
                if now_s < looked_s + _LOOK_INTERVAL_S and "completed_iterations" in report:
                    waiting_s = now_s
                    continue
                looked_s, waiting_s = now_s, None
                yield (found := recommend(now_s))
                if found["kind"] == "done":
                    return
        if waiting_s is not None:
            yield recommend(waiting_s)


class _Prices:
    """The prices of a problem file, read again beside the reports: these wait for a second of it at most."""

    def __init__(
        self,
        path: Path,
        every_s: float | None,
        read: Callable[[threading.Event], ProblemDocument],
        read_s: float,
    ) -> None:
        self._path = path
        self._every_s = every_s
        self._read = read
        # When the reading of the prices that count began, and of the latest.
        self._counts_since_s = self._began_s = read_s
        self._reading: concurrent.futures.Future[ProblemDocument] | None = None
        self._failed = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def newest(self) -> ProblemDocument | None:
        """Return what was read since it was last asked for; begin to read where that is due."""
        if self._every_s is None:
            return None
        wait_s = 0.0
        if self._reading is None:
            if time.monotonic() < self._began_s + self._every_s:
                return None
            self._began_s, wait_s = time.monotonic(), _PRICES_WAIT_S
            self._reading = concurrent.futures.Future()
            # A daemon: a file may hang for ever, and the process ends all the same.
            self._thread = threading.Thread(target=self._run, args=(self._reading,), name="prices", daemon=True)
            self._thread.start()
        try:
            found = self._reading.result(wait_s)
        except concurrent.futures.TimeoutError:
            if wait_s:
                _LOG.warning("%s: prices are still being read: reports go on with the last ones", self._path)
            return None
        except (DocumentError, OSError) as error:
            _LOG.warning("%s: the last prices stay: %s", self._path, error)
            self._reading = None
            self._failed += 1
            return None
        self._reading, self._failed, self._counts_since_s = None, 0, self._began_s
        return found

    def age(self) -> str:
        """Say how old the prices are, where newer ones are due; else nothing."""
        why = []
        if self._failed:
            why.append(f"{count(self._failed, 'reading')} since {'has' if self._failed == 1 else 'have'} failed")
        if self._reading is not None:
            why.append("they are being read")
        age = duration(time.monotonic() - self._counts_since_s)
        return f"prices are {age} old: {', '.join(why)}" if why else ""

    def close(self) -> None:
        """End a program that has not printed its prices yet."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_PRICES_WAIT_S)

    def _run(self, reading: concurrent.futures.Future[ProblemDocument]) -> None:
        try:
            reading.set_result(self._read(self._stop))
        except BaseException as error:  # it is raised where the result is asked for
            reading.set_exception(error)


def _of_collector(
    args: argparse.Namespace, problem: Mapping[str, Any], start: dict[str, Any], machines: deque[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    from gpusonde.cli.commands.epochs import find_run
    from gpusonde.collector.client import PlanningClient

    if args.run is not None:
        with connect(args) as client:
            found = find_run(client, args.run)
        start["run_id"] = found.run_id
        start.setdefault("elapsed_s", max(0.0, time.time() - found.start_unix_nano / 1e9))
    with (
        PlanningClient(args.collector, security=client_security(args)) as planning,
        _reports(args, machines) as reports,
    ):
        yield from planning.watch(problem, start, reports)


@contextlib.contextmanager
def _reports(args: argparse.Namespace, machines: deque[dict[str, Any]]) -> Iterator[Iterable[dict[str, Any]]]:
    """Open the reports; those of machines are remembered for the picture as they go by."""
    from gpusonde.optimizer.documents.watching import read_reports

    def passed(reports: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for report in reports:
            if "elapsed_s" in report and "completed_iterations" not in report:
                machines.append(report)
            yield report

    if args.progress is None:
        yield ()
    elif args.progress == _STDIN:
        yield passed(read_reports(sys.stdin, "stdin"))
    else:
        with open(args.progress, encoding="utf-8", errors="replace") as file:
            yield passed(read_reports(file, args.progress))


@contextlib.contextmanager
def _appended(path: Path | None) -> Iterator[IO[str] | None]:
    if path is None:
        yield None
        return
    with path.open("a", encoding="utf-8") as file:
        yield file


def _is_news(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether a recommendation says something else than the one before it."""
    return any(before[key] != after[key] for key in ("kind", "plan", "launch", "end", "at_risk"))
