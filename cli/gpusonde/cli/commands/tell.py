"""``gpusonde tell``: writes what jobs do where their users look: Slurm's comments, annotations of Kubernetes pods.

Of a job that is over the last word is a summary: how long, how many cycles, how much of its time made progress.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol, TypedDict

from gpusonde.cli import formatting
from gpusonde.cli.connection import add_collector_options, connect
from gpusonde.cli.output import JsonKey, Output, Screen
from gpusonde.cli.parsing import Parser
from gpusonde.errors import CommandError, ConfigError, UsageError
from gpusonde.service.config import parse_duration_s

if TYPE_CHECKING:
    from gpusonde.collector.client import Client, JobInfo

_TIMEOUT_S = 10.0
# Jobs that ended longer ago have left Slurm's memory (its MinJobAge), and their pods mostly are gone.
_ENDED_FOR_S = 300.0
_MOST_JOBS = 1000
_LONGEST_TEXT = 400
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_API = "https://kubernetes.default.svc"
_SLURM_ID = re.compile(r"\d+(_\d+)?")
_KUBERNETES_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


class ToldPayload(TypedDict):
    """A job of which something was told."""

    job_id: str
    text: str
    failure: Annotated[str | None, JsonKey("why it could not be told")]


class TellPayload(TypedDict):
    """What ``gpusonde tell`` prints."""

    told: Annotated[list[ToldPayload], JsonKey("jobs whose text has changed")]


def add_tell_options(parser: Parser) -> None:
    """Declare ``gpusonde tell``."""
    parser.add_argument("scheduler", choices=("slurm", "kubernetes"), help="whose jobs are told about, and where")
    parser.add_argument("--every", metavar="TIME", help="again after so long, until interrupted (30s; default: once)")
    parser.add_argument("--dry-run", action="store_true", help="say what would be told")
    parser.add_argument(
        "--api", default=_API, metavar="URL", help=f"of the Kubernetes API server (default: {_API}, as in a pod)"
    )
    add_collector_options(parser)


def run_tell(args: argparse.Namespace) -> int:
    """Ask and tell; exit code 1 if something could not be told."""
    every_s = None
    if args.every is not None:
        try:
            every_s = parse_duration_s(args.every)
        except ConfigError as error:
            raise UsageError(f"--every: {error}") from error
        if every_s < 1:
            raise UsageError("--every: schedulers are asked once a second at most; write for example 30s")
    place: _Place = _Slurm() if args.scheduler == "slurm" else _Kubernetes(args.api)
    known: dict[str, str] = {}
    with connect(args) as client, contextlib.suppress(KeyboardInterrupt):
        while True:
            failed = _tell(client, place, args, known)
            if every_s is None:
                return 1 if failed else 0
            time.sleep(every_s)
    return 0


class _Place(Protocol):
    """Where users look."""

    def takes(self, job_id: str) -> bool:
        """Say whether that is the name of a job there."""
        ...

    def tell(self, job: JobInfo, text: str) -> None:
        """Write the text to the job.

        Raises:
            CommandError: It does not take it.
        """
        ...


def _tell(client: Client, place: _Place, args: argparse.Namespace, known: dict[str, str]) -> bool:
    """Tell what has changed; return whether something could not be told, which is then tried again."""
    now = time.time_ns()
    told: list[ToldPayload] = []
    for job in client.list_jobs(limit=_MOST_JOBS):
        if job.scheduler != args.scheduler or not place.takes(job.job_id):
            continue
        if not job.active and (now - job.end_unix_nano) / 1e9 > _ENDED_FOR_S:
            known.pop(job.job_id, None)
            continue
        text = describe(job)
        if known.get(job.job_id) == text:
            continue
        failure: str | None = None
        try:
            if not args.dry_run:
                place.tell(job, text)
            known[job.job_id] = text
        except CommandError as error:
            failure = str(error)
            print(f"gpusonde: error: job {job.job_id}: {failure}", file=sys.stderr)
        told.append({"job_id": job.job_id, "text": text, "failure": failure})

    def render(screen: Screen) -> None:
        for each in told:
            screen.line(f"{each['job_id']}: {each['text']}")

    payload: TellPayload = {"told": told}
    if told or args.every is None:
        Output(as_json=args.json).result(payload, render)
    return any(each["failure"] for each in told)


def describe(job: JobInfo) -> str:
    """Return what a job is doing in one line of ASCII; when that changes, and not with every second."""
    parts = [f"gpusonde: {job.state} since {_clock(job.state_unix_nano)}"]
    if not job.active:
        hours = (job.end_unix_nano - job.start_unix_nano) / 3.6e12
        parts = [f"gpusonde: ended at {_clock(job.end_unix_nano)} after {hours:.2f} h"]
    if job.level is not None:
        role = "cycles" if job.level.role == "unknown" else f"{job.level.role}s"
        count = f"{job.level.count} " if not job.active else ""
        parts.append(f"{count}{role} of {formatting.seconds(job.level.period_s)}")
    if not job.active or job.state in ("stalled", "hung", "idle", "slower"):
        parts.append(f"goodput {formatting.percent(job.goodput_ratio)}")
    if job.active and job.state in ("stalled", "hung", "slower"):
        parts.append(job.reason)
    return ", ".join(parts).encode("ascii", "replace").decode()[:_LONGEST_TEXT]


def _clock(unix_nano: int) -> str:
    return datetime.fromtimestamp(unix_nano / 1e9, tz=timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


class _Slurm:
    def takes(self, job_id: str) -> bool:
        return _SLURM_ID.fullmatch(job_id) is not None

    def tell(self, job: JobInfo, text: str) -> None:
        # Slurm takes the rest of an argument for the value; quotes and line ends are not ours to send.
        comment = re.sub(r"[^ -~]|[\"'\\]", " ", text)
        _run(["scontrol", "update", f"JobId={job.job_id}", f"Comment={comment}"])


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CommandError(f"{command[0]} cannot be run: {error}") from error
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).decode(errors="replace").split())[-200:]
        raise CommandError(f"{command[0]} ended with {done.returncode}: {said}")


class _Kubernetes:
    """Annotates pods by the API server, as the service account that a pod has.

    Args:
        api: Address of the server.
    """

    def __init__(self, api: str) -> None:
        if not api.startswith(("https://", "http://127.0.0.1:", "http://localhost:")):
            raise UsageError("--api: the token of the service account goes to https:// only, or over loopback")
        self._api = api.rstrip("/")

    def takes(self, job_id: str) -> bool:
        return len(job_id.split("/")) == 2 and all(map(_KUBERNETES_NAME.fullmatch, job_id.split("/")))

    def tell(self, job: JobInfo, text: str) -> None:
        namespace, pod = job.job_id.split("/")
        annotations = {"gpusonde/state": job.state, "gpusonde/summary": text}
        self._patch(f"/api/v1/namespaces/{namespace}/pods/{pod}", {"metadata": {"annotations": annotations}})

    def _patch(self, path: str, body: Mapping[str, object]) -> None:
        headers = {"Content-Type": "application/merge-patch+json"}
        authority = _SERVICE_ACCOUNT / "ca.crt"
        try:
            # Read each time: it is renewed every hour.
            headers["Authorization"] = f"Bearer {(_SERVICE_ACCOUNT / 'token').read_text().strip()}"
        except OSError as error:
            if self._api.startswith("https://"):
                raise CommandError(f"no service account: {error}") from error
        request = urllib.request.Request(  # noqa: S310 - checked above
            self._api + path, json.dumps(body).encode(), headers, method="PATCH"
        )
        context = ssl.create_default_context(cafile=str(authority)) if authority.exists() else None
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=context):  # noqa: S310
                pass
        except urllib.error.HTTPError as error:
            said = error.read(500).decode(errors="replace")
            raise CommandError(f"the API server answers {error.code}: {' '.join(said.split())[:200]}") from error
        except OSError as error:
            raise CommandError(f"the API server at {self._api} does not answer: {error}") from error
