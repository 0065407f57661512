"""``gpusonde idle``: jobs whose GPUs may be taken away, with the evidence; takes them with ``--reap`` and ``--act``."""

from __future__ import annotations

import argparse
import math
import os
import shlex
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, TypedDict

from gpusonde import formatting
from gpusonde.cli.connection import add_collector_options, connect
from gpusonde.cli.output import JsonKey, Output, Screen, complain, to_json
from gpusonde.cli.parsing import Parser
from gpusonde.cli.running import run_program
from gpusonde.errors import CollectorError, ConfigError, UsageError
from gpusonde.service.config import parse_duration_s

if TYPE_CHECKING:
    from gpusonde.collector.client import Client, JobInfo
    from gpusonde.epoch_detect.progress.idleness import IdlenessVerdict
    from gpusonde.telemetry import FloatArray

_COMMAND_TIMEOUT_S = 60.0
_WORKS = ("training", "slower", "evaluating", "serving")
_LEAST_WORK_S = 60.0
_SERVER = "it has served, and nothing tells whether it will be asked again; --servers takes it all the same"
_NOT_ASKED = "a program is on its GPUs and has hardly worked: it may wait to be asked; --servers takes it all the same"
# A collector says of so long at most what processes did.
_LONGEST_WINDOW_S = 86_400.0
# An agent sends what processes did every half minute: the latest of it is not known here yet.
_WITH_AGENT_S = 35.0
# The newest, among which those of a host are looked for.
_MOST_RUNS = 10_000


class IdleJobPayload(TypedDict):
    """A job that seems to be idle."""

    job_id: str
    scheduler: str | None
    idle: Annotated[bool, JsonKey("whether its GPUs may be taken away")]
    since_time: str
    idle_s: float
    evidence: Annotated[list[str], JsonKey("for it, or against it")]
    hosts: list[str]
    gpu_uuids: list[str]
    reaped: Annotated[bool, JsonKey("the command succeeded for it")]
    failure: Annotated[str | None, JsonKey("of the command; exit code 1")]


class IdlePayload(TypedDict):
    """What ``gpusonde idle`` prints."""

    jobs: Annotated[list[IdleJobPayload], JsonKey("that do nothing, or are on the hosts asked for")]
    hosts_idle: Annotated[
        bool | None,
        JsonKey("with `--host`: whether all their GPUs may be taken away; exit code 1 if not"),
    ]
    hosts_evidence: Annotated[list[str], JsonKey("what speaks against it")]


@dataclass(frozen=True)
class JudgedJob:
    """A job in state idle, what is thought of it, and what was done about it."""

    job: JobInfo
    verdict: IdlenessVerdict
    reaped: bool = False
    failure: str = ""

    @property
    def idle_s(self) -> float:
        """For how long it is in that state."""
        return (self.job.end_unix_nano - self.job.state_unix_nano) / 1e9

    def payload(self) -> IdleJobPayload:
        """Return it as it is printed."""
        return {
            "job_id": self.job.job_id,
            "scheduler": self.job.scheduler or None,
            "idle": self.verdict.idle,
            "since_time": formatting.iso_time(self.job.state_unix_nano),
            "idle_s": self.idle_s,
            "evidence": list(self.verdict.evidence),
            "hosts": sorted({member.host_name for member in self.job.present}),
            "gpu_uuids": list(dict.fromkeys(member.gpu_uuid for member in self.job.present)),
            "reaped": self.reaped,
            "failure": self.failure or None,
        }


def add_idle_options(parser: Parser) -> None:
    """Declare ``gpusonde idle``."""
    parser.add_argument(
        "--for",
        dest="wanted",
        default="30m",
        metavar="TIME",
        help="how long is long enough; found is what rests for 1.75 times that or more (default: 30m)",
    )
    parser.add_argument(
        "--reap",
        metavar="COMMAND",
        help="say what would be run for each idle job: a command without a shell, which gets GPUSONDE_JOB_ID and "
        "GPUSONDE_SCHEDULER, and the job as JSON on stdin",
    )
    parser.add_argument(
        "--host",
        action="append",
        default=[],
        help="say of whole hosts (may be repeated) whether all their GPUs may be taken away; exit code 0 if so, else 1",
    )
    parser.add_argument(
        "--servers",
        action="store_true",
        help="name jobs, too, that have answered requests and may be asked again",
    )
    parser.add_argument("--act", action="store_true", help="run it, after a second look at the job")
    add_collector_options(parser)


def run_idle(args: argparse.Namespace) -> int:
    """Ask, judge and print; exit code 1 if a command failed."""
    try:
        wanted_s = parse_duration_s(args.wanted)
    except ConfigError as error:
        raise UsageError(f"--for: {error}") from error
    try:
        command = shlex.split(args.reap or "")
    except ValueError as error:
        raise UsageError(f"--reap: {error}") from error
    if wanted_s <= 0:
        raise UsageError("--for: is no time; write for example 30m")
    if args.act and not command:
        raise UsageError("--act runs the command of --reap; give one")
    if "" in args.host:
        raise UsageError("--host: is empty; name a host as 'gpusonde jobs --json' does")
    if args.host and command:
        raise UsageError("--host says whether, by its exit code; --reap takes jobs")
    if args.host:
        return _run_hosts(args, wanted_s)
    with connect(args) as client:
        judged = [judge(client, job, wanted_s, takes_servers=args.servers) for job in _idle_jobs(client)]
        if args.act:
            judged = [_reap(client, each, command, wanted_s, takes_servers=args.servers) for each in judged]

    def render(screen: Screen) -> None:
        _render(screen, args, command, judged)

    payload: IdlePayload = {
        "jobs": [each.payload() for each in judged],
        "hosts_idle": None,
        "hosts_evidence": [],
    }
    Output(as_json=args.json).result(payload, render)
    failures = [each.failure for each in judged if each.failure]
    for failure in failures:
        complain(f"gpusonde: error: {failure}")
    return 1 if failures else 0


def _run_hosts(args: argparse.Namespace, wanted_s: float) -> int:
    """Say whether hosts do nothing, for schedulers that stop machines; whatever is not known counts as work."""
    with connect(args) as client:
        judged, against = _judge_hosts(client, frozenset(args.host), wanted_s, takes_servers=args.servers)

    def render(screen: Screen) -> None:
        for each in judged:
            screen.line(f"{each.job.job_id}: {'; '.join(each.verdict.evidence)}")
        for reason in against:
            screen.line(reason)
        screen.line(f"{', '.join(args.host)}: {'in use, or not known' if against else 'idle'}")

    payload: IdlePayload = {
        "jobs": [each.payload() for each in judged],
        "hosts_idle": not against,
        "hosts_evidence": against,
    }
    Output(as_json=args.json).result(payload, render)
    return 1 if against else 0


def _judge_hosts(
    client: Client, hosts: frozenset[str], wanted_s: float, *, takes_servers: bool
) -> tuple[list[JudgedJob], list[str]]:
    """Return the verdicts on what has worked on hosts last, and what speaks against taking these away."""
    now = time.time_ns()
    active = [job for job in client.list_jobs(active_only=True) if hosts & {member.host_name for member in job.present}]
    against = [f"job {job.job_id} is {job.state}" for job in active if job.state != "idle"]
    judged = [judge(client, job, wanted_s, takes_servers=takes_servers) for job in active if job.state == "idle"]
    held = {member.gpu_uuid for job in active for member in job.present}
    newest = {run.gpu_uuid: run for run in reversed(client.list_runs(limit=_MOST_RUNS)) if run.host_name in hosts}
    known = {run.host_name for run in newest.values()}
    known |= {member.host_name for job in active for member in job.present}
    against += [f"nothing is known of host {host}" for host in sorted(hosts - known)]
    for run in newest.values():
        if run.gpu_uuid in held:
            continue
        # A job that is over: since then it has been idle, as far as ticks say so up to now.
        found = [job for job in client.list_jobs(job_id=run.job_id or run.run_id) or client.list_jobs(job_id=run.run_id)
                 if run.run_id in {member.run_id for member in job.members}]  # fmt: skip
        found = [_left_behind(job, run.gpu_uuid) for job in found]
        judged += [
            judge(
                client,
                replace(job, state_unix_nano=run.end_unix_nano, end_unix_nano=now),
                wanted_s,
                takes_servers=takes_servers or not job.active,
            )
            for job in found[:1]
        ]
        against += [] if found else [f"GPU {run.gpu_uuid}: nothing is known of run {run.run_id}"]
    against += [
        f"job {each.job.job_id}: {reason}"
        for each in judged
        if not each.verdict.idle
        for reason in each.verdict.evidence
    ]
    return judged, against


def _left_behind(job: JobInfo, gpu_uuid: str) -> JobInfo:
    """Return a job as far as a GPU is concerned that it has no more: there it is over, whatever it does elsewhere."""
    if not job.active or gpu_uuid in {each.gpu_uuid for each in job.present}:
        return job
    return replace(job, active=False, members=tuple(each for each in job.members if each.gpu_uuid == gpu_uuid))


def _idle_jobs(client: Client, job_id: str = "") -> list[JobInfo]:
    return [job for job in client.list_jobs(job_id=job_id, active_only=True) if job.state == "idle"]


def judge(client: Client, job: JobInfo, wanted_s: float, *, takes_servers: bool = False) -> JudgedJob:
    """Say of a job in state idle whether its GPUs may be taken away."""
    from gpusonde.epoch_detect.progress.idleness import IdlenessVerdict, ProcessUse, judge_idleness

    spent = _work_s(job)
    if sum(spent.values()) < 2 * spent["serving"] and not takes_servers:
        return JudgedJob(job, IdlenessVerdict(False, (_SERVER,)))
    idle_s = (job.end_unix_nano - job.state_unix_nano) / 1e9
    processes, longest_pause_s = None, job.longest_pause_s
    gpus: dict[str, tuple[FloatArray, dict[str, FloatArray]]] = {}
    window_s = min(wanted_s + _WITH_AGENT_S, _LONGEST_WINDOW_S)
    same = client.list_jobs(job_id=job.job_id, active_only=job.active, process_window_s=window_s)
    for each in (each for each in same if (each.scheduler, each.active) == (job.scheduler, job.active)):
        longest_pause_s = each.longest_pause_s
        if (found := each.processes) is not None:
            processes = ProcessUse(found.seen_s, found.processors, found.bytes_per_s, found.on_gpus)
    if idle_s >= wanted_s:
        start = job.end_unix_nano - round(wanted_s * 1e9)
        for gpu_uuid in sorted({member.gpu_uuid for member in job.present}):
            try:
                trace = client.read_samples(gpu_uuid, start_unix_nano=start, end_unix_nano=job.end_unix_nano + 1)
            except CollectorError as error:
                # What cannot be read is no evidence.
                return JudgedJob(job, IdlenessVerdict(False, (f"GPU {gpu_uuid}: {error}",)))
            gpus[gpu_uuid] = (trace.time_s, dict(trace.values))
    on_gpus = processes is not None and processes.on_gpus
    if on_gpus and sum(spent.values()) < _LEAST_WORK_S and not takes_servers:
        return JudgedJob(job, IdlenessVerdict(False, (_NOT_ASKED,)))
    gone_on_s = (job.state_unix_nano - job.start_unix_nano) / 1e9
    has_begun = on_gpus or any(member.run_id for member in job.members)
    verdict = judge_idleness(
        idle_s,
        wanted_s,
        longest_pause_s,
        gpus,
        processes,
        known_s=gone_on_s if has_begun else math.inf,
        is_over=not job.active,
    )
    return JudgedJob(job, verdict)


def _work_s(job: JobInfo) -> dict[str, float]:
    """Return for how long a job was in each state in which it works."""
    spent = dict.fromkeys(_WORKS, 0.0)
    for span in job.history:
        if span.state in spent:
            spent[span.state] += (span.end_unix_nano - span.start_unix_nano) / 1e9
    return spent


def _reap(
    client: Client, judged: JudgedJob, command: Sequence[str], wanted_s: float, *, takes_servers: bool
) -> JudgedJob:
    """Look once more, as the first look may have taken long, and run the command."""
    if not judged.verdict.idle:
        return judged
    now = [job for job in _idle_jobs(client, judged.job.job_id) if job.scheduler == judged.job.scheduler]
    again = judge(client, now[0], wanted_s, takes_servers=takes_servers) if now else None
    if again is None or not again.verdict.idle or again.job.state_unix_nano != judged.job.state_unix_nano:
        from gpusonde.epoch_detect.progress.idleness import IdlenessVerdict

        return JudgedJob(judged.job, IdlenessVerdict(False, ("it does something else at the second look",)))
    environment = os.environ | {"GPUSONDE_JOB_ID": again.job.job_id, "GPUSONDE_SCHEDULER": again.job.scheduler}
    try:
        status, said = run_program(
            command, _COMMAND_TIMEOUT_S, environment=environment, given=to_json(again.payload()).encode()
        )
    except subprocess.TimeoutExpired:
        failure = (
            f"did not end within {_COMMAND_TIMEOUT_S:g} s and was killed; whether it has done anything is not known"
        )
    except OSError as error:
        failure = f"cannot be run: {error.strerror or error}"
    else:
        failure = f"ended with {status}, {said or 'without a word'}" if status else ""
    if failure:
        return replace(again, failure=f"job {again.job.job_id}: {command[0]} {failure}")
    return replace(again, reaped=True)


def _render(screen: Screen, args: argparse.Namespace, command: Sequence[str], judged: Sequence[JudgedJob]) -> None:
    if not judged:
        screen.line(f"no job is idle at the collector at {args.collector}")
        return
    screen.table(
        ("job", "idle", "for (s)", "GPUs", "evidence"),
        [
            (
                each.job.job_id,
                "reaped" if each.reaped else formatting.yes_no(each.verdict.idle),
                formatting.number(each.idle_s),
                str(len({member.gpu_uuid for member in each.job.present})),
                "; ".join(each.verdict.evidence),
            )
            for each in judged
        ],
        numeric=("for (s)", "GPUs"),
        optional=("GPUs",),
    )
    idle = [each for each in judged if each.verdict.idle and not each.reaped]
    if command and idle and not args.act:
        for each in idle:
            screen.line(f"would run for job {each.job.job_id}: {shlex.join(command)}")
        screen.note("nothing was run; --act runs it")
