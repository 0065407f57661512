"""``gpusonde jobs`` and ``gpusonde top``: what jobs are doing, over all their GPUs and hosts; once, or all the time."""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from gpusonde import formatting
from gpusonde.cli.connection import add_collector_options, connect
from gpusonde.cli.errors import check_writable
from gpusonde.cli.output import JsonKey, Output, Screen, complain, make_screen
from gpusonde.cli.parsing import Parser, add_plot_option, positive_integer
from gpusonde.cli.runs_view import LevelPayload, job_facts, level_payload, level_text
from gpusonde.errors import CollectorError, CommandError, UsageError

if TYPE_CHECKING:
    from gpusonde.collector.client import Client, JobAlert, JobInfo

_WATCH_INTERVAL_S = 1.0
_MOST_TOTAL = 2**32 - 1
# States that go on when the last activity of a run is over, which is its end.
_GO_ON = frozenset({"checkpointing", "ended", "hung", "idle", "stalled", "unknown"})


class JobSpanPayload(TypedDict):
    """A stretch of time that a job was in a state."""

    state: str
    start_time: str
    end_time: str


class JobEstimatePayload(TypedDict):
    """When a job ends."""

    cycles_done: int
    cycles_left: Annotated[int, JsonKey("the one under way included; 0 where earlier jobs tell the end")]
    end_time: Annotated[str, JsonKey("with its 90 % interval")]
    end_low_time: str
    end_high_time: str
    basis: Annotated[str, JsonKey("what it rests on")]


class JobAlertPayload(TypedDict):
    """A state that a job was in for too long."""

    job_id: str
    scheduler: str | None
    state: str
    start_time: str
    end_time: Annotated[str | None, JsonKey("null while it is not over")]
    reason: str


class JobPayload(TypedDict):
    """One job: what a user started, over all its GPUs and hosts."""

    job_id: Annotated[str, JsonKey("the scheduler's, else the run's")]
    scheduler: Annotated[str | None, JsonKey("`slurm`, `kubernetes`, `static`, `container`")]
    active: bool
    start_time: Annotated[str, JsonKey("first activity")]
    end_time: Annotated[str, JsonKey("last activity; the latest tick while it is active")]
    state: Annotated[
        str,
        JsonKey(
            "`starting`, `training`, `evaluating`, `checkpointing`, `stalled`, `hung`, `serving`, `idle`, `slower`, "
            "`ended`, `unknown`"
        ),
    ]
    state_time: Annotated[str, JsonKey("since when")]
    reason: Annotated[str, JsonKey("what the state rests on")]
    confidence: Annotated[float, JsonKey("probability that `state` is right")]
    history: Annotated[list[JobSpanPayload], JsonKey("states before, the latest 64")]
    level: Annotated[LevelPayload | None, JsonKey("level of its cycles that measures the progress")]
    progress_ratio: Annotated[float, JsonKey("null where the total is not known")]
    estimate: Annotated[JobEstimatePayload | None, JsonKey("of one JOB")]
    estimate_reason: Annotated[str | None, JsonKey("of one JOB, why there is no estimate")]
    goodput_ratio: Annotated[float, JsonKey("share of its GPUs' time in training or evaluation")]
    gpu_s: Annotated[float, JsonKey("seconds of GPUs that `goodput_ratio` is a share of")]
    members: Annotated[list[dict[str, Any]], JsonKey("its runs", holds="gpusonde.collector.client.results.JobMember")]
    deviations: Annotated[
        list[dict[str, Any]],
        JsonKey("GPUs of the job that do otherwise", holds="gpusonde.collector.client.results.GpuDeviation"),
    ]
    slow_devices: Annotated[
        list[dict[str, Any]],
        JsonKey(
            "GPUs or hosts that may drag a `slower` job, likeliest first",
            holds="gpusonde.collector.client.results.SlowDevice",
        ),
    ]
    alerts: Annotated[list[JobAlertPayload], JsonKey("of one JOB, the latest 16")]


class JobsPayload(TypedDict):
    """What ``gpusonde jobs`` prints."""

    jobs: Annotated[list[JobPayload], JsonKey("the newest first")]
    goodput_ratio: Annotated[float, JsonKey("of all of them")]


class AlertsPayload(TypedDict):
    """What ``gpusonde jobs --alerts`` prints."""

    alerts: Annotated[list[JobAlertPayload], JsonKey("the newest first")]


def add_jobs_options(parser: Parser) -> None:
    """Declare ``gpusonde jobs``."""
    run = "run without a job, of whose name the beginning is enough"
    parser.add_argument("job", nargs="?", default="", metavar="JOB", help=f"job id, or {run}")
    parser.add_argument("--all", action="store_true", help="also jobs, or alerts, that are over")
    parser.add_argument("--alerts", action="store_true", help="the alerts there were, about jobs or the JOB")
    parser.add_argument("--limit", type=positive_integer, default=50, metavar="N", help="at most N (default: 50)")
    total = parser.add_mutually_exclusive_group()
    for unit in ("epochs", "steps"):
        total.add_argument(
            f"--total-{unit}",
            type=positive_integer,
            metavar="N",
            help=f"{unit} the JOB is to run for; says how far it is, and when it will be done",
        )
    total.add_argument(
        "--total-cycles",
        type=positive_integer,
        metavar="N",
        help="the same, in cycles of the level that measures its progress",
    )
    parser.add_argument(
        "--like",
        default="",
        metavar="JOB",
        help="a job that is over and tells when this one will be, without a total (default: earlier ones of its name)",
    )
    add_plot_option(parser, "what the jobs did when, and when the JOB will be done,")
    parser.add_argument("--watch", action="store_true", help="again every second, until interrupted")
    add_collector_options(parser)


def add_top_options(parser: Parser) -> None:
    """Declare ``gpusonde top``."""
    parser.description = (
        "Watch the fleet: every GPU by state, jobs with why they are in theirs, those that want somebody first. Arrow "
        "keys choose a job, Enter opens it, Escape goes back; s sorts, / filters, a shows jobs that are over, q ends."
    )
    add_collector_options(parser)


def run_top(args: argparse.Namespace) -> int:
    """Watch until the user ends it."""
    if args.json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("top needs a terminal; 'gpusonde jobs --watch' goes into pipes, with --json too")
    from gpusonde.cli.top import TopApp

    with connect(args) as client:
        # Who is refused, or asks where nobody listens, is told so as by every other command.
        client.list_jobs(active_only=True, limit=1)
        TopApp(client, args.collector).run()
    return 0


def run_jobs(args: argparse.Namespace) -> int:
    """Ask and print."""
    total = args.total_epochs or args.total_steps or args.total_cycles
    if (total or args.like) and not args.job:
        raise UsageError("a total, or what is alike, is that of one job: name the JOB")
    if (total or 0) > _MOST_TOTAL:
        raise UsageError(f"a total is at most {_MOST_TOTAL}")
    if args.alerts and (total or args.watch or args.plot):
        raise UsageError("--alerts lists alerts; it goes with no total, no --plot and no --watch")
    if args.watch and args.plot:
        raise UsageError("--plot draws once; leave --watch away")
    check_writable(args.plot)
    with connect(args) as client:
        if args.alerts:
            _print_alerts(client, args)
            return 0
        if not args.watch:
            _print(args, _ask(client, args))
            return 0
        with contextlib.suppress(KeyboardInterrupt):
            _watch(client, args)
    return 0


def _ask(client: Client, args: argparse.Namespace) -> list[JobInfo]:
    jobs = client.list_jobs(
        job_id=args.job,
        active_only=not (args.all or args.job),
        limit=args.limit,
        total_cycles=args.total_epochs or args.total_steps or args.total_cycles,
        total_role="epoch" if args.total_epochs else "step" if args.total_steps else "",
        like_job_id=args.like,
    )
    if args.job and not jobs:
        args.job = _run_without_job(client, args.job)
        return _ask(client, args)
    return jobs


def _run_without_job(client: Client, begin: str) -> str:
    """Return the whole name of the only run without a job whose name begins so.

    Raises:
        CommandError: There is none, or more than one.
    """
    found = [run.run_id for run in client.list_runs() if not run.job_id and run.run_id.startswith(begin)]
    # A number is a scheduler's: a run that happens to begin so is no answer about that job.
    if begin.isdigit() or len(found) != 1 or found == [begin]:
        raise CommandError(f"the collector has seen no job {begin!r}; 'gpusonde jobs --all' lists them")
    return found[0]


def _print(args: argparse.Namespace, jobs: Sequence[JobInfo]) -> None:
    if args.plot is not None:
        _draw(args.plot, jobs)
    payload: JobsPayload = {"jobs": [_payload(job) for job in jobs], "goodput_ratio": _goodput(jobs)}
    Output(as_json=args.json).result(payload, lambda screen: _render(screen, args, jobs))


def _draw(path: Path, jobs: Sequence[JobInfo]) -> None:
    from gpusonde.cli.picture import JobMarks, draw_jobs

    def marks(job: JobInfo) -> JobMarks:
        spans = [(span.state, span.start_unix_nano / 1e9, span.end_unix_nano / 1e9) for span in job.history]
        if job.state != "ended":
            spans.append((job.state, job.state_unix_nano / 1e9, job.end_unix_nano / 1e9))
        end_s = None
        if (end := job.estimate) is not None:
            end_s = (end.end_low_unix_nano / 1e9, end.end_unix_nano / 1e9, end.end_high_unix_nano / 1e9)
        return JobMarks(job.job_id, spans, end_s)

    goodput = _goodput(jobs)
    told = "" if math.isnan(goodput) else f"goodput {formatting.percent(goodput)}"
    headline = f"job {jobs[0].job_id}: {jobs[0].state}" if len(jobs) == 1 else f"what {len(jobs)} jobs did"
    draw_jobs(path, [marks(job) for job in jobs], headline, told)


def _print_alerts(client: Client, args: argparse.Namespace) -> None:
    alerts = client.list_alerts(job_id=args.job, open_only=not (args.all or args.job), limit=args.limit)

    def render(screen: Screen) -> None:
        if not alerts:
            asked_all = args.all or args.job
            said = "there was no alert" if asked_all else "no alert is open"
            more = "" if asked_all else "; --all lists those that are over"
            screen.line(f"{said} at the collector at {args.collector}{more}")
            return
        screen.table(
            ("job", "alert", "since", "over", "why"),
            [
                (
                    alert.job_id,
                    alert.state,
                    formatting.local_time(alert.start_unix_nano),
                    formatting.local_time(alert.end_unix_nano) if alert.end_unix_nano else formatting.ABSENT,
                    alert.reason,
                )
                for alert in alerts
            ],
        )

    payload: AlertsPayload = {"alerts": [_alert_payload(alert) for alert in alerts]}
    Output(as_json=args.json).result(payload, render)


def _watch(client: Client, args: argparse.Namespace) -> None:
    """Print again whenever something has changed: under ``--json`` and into a pipe one after the other.

    Raises:
        CollectorError: Not even the first answer came; one that fails later is told, and asked for again.
    """
    shown = failure = ""
    jobs: Sequence[JobInfo] | None = None
    while True:
        began = time.monotonic()
        try:
            jobs = _ask(client, args)
        except CollectorError as error:
            if jobs is None:
                raise
            if str(error) != failure:
                complain(f"gpusonde: error: {error}; asked again every second")
            failure = str(error)
            time.sleep(_WATCH_INTERVAL_S)
            continue
        failure = ""
        if args.json or not sys.stdout.isatty():
            text = repr(jobs)
            if text != shown:
                _print(args, jobs)
            shown = text
        else:
            with _TerminalText() as frame:
                _render(make_screen(frame, frame), args, jobs)
                lines = _fitting(frame.getvalue().splitlines(), shutil.get_terminal_size().lines, of_job=bool(args.job))
            # Home, the lines with the rest of each cleared, then what was below.
            sys.stdout.write("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J")
            sys.stdout.flush()
        time.sleep(max(0.0, _WATCH_INTERVAL_S - (time.monotonic() - began)))


class _TerminalText(io.StringIO):
    """What is printed on the terminal at once: made for its width, in its colours."""

    def isatty(self) -> bool:
        return True


def _fitting(lines: list[str], height: int, *, of_job: bool) -> list[str]:
    """Return lines without some in the middle, as what is higher than the terminal would scroll with every look.

    Of jobs the newest stay, of one job what it does and what comes behind its oldest states.
    """
    room = max(height - 2, 4)  # the cursor stands on the last line, a sign where some are missing
    if len(lines) <= room + 1:
        return lines
    head = room // 2 if of_job else room - 1
    return [*lines[:head], "...", *lines[len(lines) - room + head :]]


def _render(screen: Screen, args: argparse.Namespace, jobs: Sequence[JobInfo]) -> None:
    if not jobs:
        screen.line(f"no job goes on at the collector at {args.collector}; --all lists those that are over")
        return
    screen.table(
        ("job", "state", "since", "GPUs", "hosts", "cycle", "done", "ends", "goodput", "why"),
        [
            (
                job.job_id,
                f"{job.state} {formatting.probability(job.confidence)}" if job.confidence else job.state,
                formatting.local_time(job.state_unix_nano),
                str(len({(member.agent_id, member.gpu_uuid) for member in job.present})),
                str(len({member.host_name for member in job.present})),
                level_text(job),
                formatting.percent(job.progress_ratio),
                formatting.local_time(job.estimate.end_unix_nano) if job.estimate else formatting.ABSENT,
                formatting.percent(job.goodput_ratio),
                job.reason,
            )
            for job in jobs
        ],
        numeric=("GPUs", "hosts", "done", "goodput"),
        optional=("goodput", "hosts", "since", "cycle", "GPUs"),
    )
    if args.job:
        for job in jobs:
            _render_details(screen, job)
    elif not math.isnan(goodput := _goodput(jobs)):
        hours = sum(job.gpu_s for job in jobs) / 3600
        screen.line(f"goodput of all: {formatting.percent(goodput)} of {hours:.1f} GPU hours")
    if args.plot is not None:
        screen.line(f"picture: {args.plot}")


def _goodput(jobs: Sequence[JobInfo]) -> float:
    """Share of the GPU time of jobs in which they made progress, NaN where no state of any is known."""
    known = [job for job in jobs if not math.isnan(job.goodput_ratio)]
    total = sum(job.gpu_s for job in known)
    return sum(job.goodput_ratio * job.gpu_s for job in known) / total if total else math.nan


def _render_details(screen: Screen, job: JobInfo) -> None:
    for span in job.history:
        is_over = job.active or span is not job.history[-1] or span.state not in _GO_ON
        lasted = formatting.lasted((span.end_unix_nano - span.start_unix_nano) / 1e9, is_over=is_over)
        screen.line(f"{formatting.local_time(span.start_unix_nano)}  {span.state} {lasted}")
    for fact in job_facts(job):
        screen.line(fact)


def _payload(job: JobInfo) -> JobPayload:
    estimate: JobEstimatePayload | None = None
    if job.estimate is not None:
        estimate = {
            "cycles_done": job.estimate.epochs_done,
            "cycles_left": job.estimate.epochs_left,
            "end_time": formatting.iso_time(job.estimate.end_unix_nano),
            "end_low_time": formatting.iso_time(job.estimate.end_low_unix_nano),
            "end_high_time": formatting.iso_time(job.estimate.end_high_unix_nano),
            "basis": job.estimate.basis,
        }
    return {
        "job_id": job.job_id,
        "scheduler": job.scheduler or None,
        "active": job.active,
        "start_time": formatting.iso_time(job.start_unix_nano),
        "end_time": formatting.iso_time(job.end_unix_nano),
        "state": job.state,
        "state_time": formatting.iso_time(job.state_unix_nano),
        "reason": job.reason,
        "confidence": job.confidence,
        "history": [
            {
                "state": span.state,
                "start_time": formatting.iso_time(span.start_unix_nano),
                "end_time": formatting.iso_time(span.end_unix_nano),
            }
            for span in job.history
        ],
        "level": level_payload(job.level) if job.level else None,
        "progress_ratio": job.progress_ratio,
        "estimate": estimate,
        "estimate_reason": job.estimate_reason or None,
        "goodput_ratio": job.goodput_ratio,
        "gpu_s": job.gpu_s,
        "members": [vars(member) for member in job.members],
        "deviations": [vars(deviation) for deviation in job.deviations],
        "slow_devices": [vars(device) for device in job.slow_devices],
        "alerts": [_alert_payload(alert) for alert in job.alerts],
    }


def _alert_payload(alert: JobAlert) -> JobAlertPayload:
    return {
        "job_id": alert.job_id,
        "scheduler": alert.scheduler or None,
        "state": alert.state,
        "start_time": formatting.iso_time(alert.start_unix_nano),
        "end_time": formatting.iso_time(alert.end_unix_nano) if alert.end_unix_nano else None,
        "reason": alert.reason,
    }
