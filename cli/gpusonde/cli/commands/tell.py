"""``gpusonde tell``: writes what jobs do where users and schedulers look: Slurm's comments, pods, Kueue's workloads.

Of a job that is over the last word is a summary: how long, how many cycles, what of its time it did, and its energy.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import re
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypedDict
from urllib.parse import urlsplit

from gpusonde import formatting
from gpusonde.cli.connection import add_collector_options, connect
from gpusonde.cli.exchange_rates import ExchangeRates
from gpusonde.cli.output import JsonKey, Output, Screen, complain
from gpusonde.cli.parsing import Parser
from gpusonde.cli.running import run_program
from gpusonde.cli.runs_view import noun_of_level
from gpusonde.errors import CollectorError, CommandError, ConfigError, UnknownGpuError, UsageError
from gpusonde.formatting import percent
from gpusonde.http_request import send
from gpusonde.service.config import check_url, parse_duration_s
from gpusonde.service.tls import is_loopback

if TYPE_CHECKING:
    from gpusonde.collector.client import Client, JobInfo

_TIMEOUT_S = 10.0
# Jobs that ended longer ago have left Slurm's memory (its MinJobAge), and their pods mostly are gone.
_ENDED_FOR_S = 300.0
_MOST_JOBS = 1000
_LONGEST_TEXT = 400
_COUNTER = "energy_joules"
_AROUND_NS = 10_000_000_000
_LARGEST_ANSWER_BYTES = 4 << 20
# States that are Events, of type Warning; what ends one of them is a Normal one.
_EVENTS = frozenset({"hung", "stalled", "slower", "idle"})
# Of several pods the first that one of them is in is told, else any.
_WORST = ("hung", "stalled", "slower", "idle", "unknown")
_KUEUE_WORKLOAD = "kueue.x-k8s.io/workload"
_KUEUE_VERSIONS = ("v1beta2", "v1beta1")
_KUEUE_PREBUILT = "kueue.x-k8s.io/prebuilt-workload-name"
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
    parser.add_argument(
        "scheduler", choices=("slurm", "kubernetes", "kueue"), help="whose jobs are told about, and where"
    )
    parser.add_argument(
        "--gpus", default="", metavar="A,B", help="with kueue: GPUs for which each job's exchange rate is told"
    )
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
    if args.gpus and args.scheduler != "kueue":
        raise UsageError("--gpus: is told to Kueue only")
    gpus = [name for name in args.gpus.split(",") if name]
    if gpus:
        from gpusonde.catalog import load_gpus

        for name in gpus:
            try:
                load_gpus().resolve(name)
            except UnknownGpuError as error:
                raise UsageError(f"--gpus: {error}") from error
    api = _ApiServer(args.api)
    known: dict[str, str] = {}
    with connect(args) as client, contextlib.suppress(KeyboardInterrupt):
        place: _Place = _Slurm(client) if args.scheduler == "slurm" else _Kubernetes(api, client)
        if args.scheduler == "kueue":
            place = _Kueue(api, client, gpus, known)
        while True:
            try:
                failed = _tell(client, place, args, known)
            except CollectorError as error:
                if every_s is None:
                    raise
                complain(f"gpusonde: error: {error}")
            else:
                if every_s is None:
                    return 1 if failed else 0
            time.sleep(every_s)
    return 0


class _NoAnswerError(CommandError):
    """A scheduler says nothing: it would not for the other jobs either, each after its own wait."""


class _Place(Protocol):
    """Where users look."""

    def takes(self, job_id: str) -> bool:
        """Say whether that is the name of a job there."""
        ...

    def describe(self, job: JobInfo) -> str:
        """Return what is to be told of a job; nothing where nothing is."""
        ...

    def tell(self, job: JobInfo, text: str) -> None:
        """Write the text to the job.

        Raises:
            CommandError: It does not take it, or does not answer.
        """
        ...


def _tell(client: Client, place: _Place, args: argparse.Namespace, known: dict[str, str]) -> bool:
    """Tell what has changed; return whether something could not be told, which is then tried again."""
    now = time.time_ns()
    told: list[ToldPayload] = []
    jobs = client.list_jobs(active_only=True, estimates=args.scheduler == "kueue")
    # The newest may be over; of others it is known that they were told of.
    jobs += client.list_jobs(limit=_MOST_JOBS)
    for gone in known.keys() - {job.job_id for job in jobs}:
        jobs += client.list_jobs(job_id=gone, limit=1)
    for gone in known.keys() - {job.job_id for job in jobs}:
        del known[gone]
    # Of a name that was used before, the newest one counts.
    newest = {(job.scheduler, job.job_id): job for job in reversed(jobs)}
    for job in reversed(newest.values()):
        if job.scheduler != args.scheduler.replace("kueue", "kubernetes") or not place.takes(job.job_id):
            continue
        if not job.active and (now - job.end_unix_nano) / 1e9 > _ENDED_FOR_S:
            known.pop(job.job_id, None)
            continue
        text = place.describe(job)
        if not text or known.get(job.job_id) == text:
            continue
        failure: str | None = None
        answers = True
        try:
            if not args.dry_run:
                place.tell(job, text)
            known[job.job_id] = text
        except CommandError as error:
            failure = str(error)
            answers = not isinstance(error, _NoAnswerError)
            left = "" if answers else "; the other jobs are told once it answers"
            complain(f"gpusonde: error: job {job.job_id}: {failure}{left}")
        told.append({"job_id": job.job_id, "text": text, "failure": failure})
        if not answers:
            break

    def render(screen: Screen) -> None:
        for each in told:
            if not each["failure"]:
                screen.line(f"{each['job_id']}: {each['text']}")
        if not told:
            screen.line(f"nothing to tell {args.scheduler}: no such job goes on at the collector at {args.collector}")

    payload: TellPayload = {"told": told}
    if told or args.every is None:
        Output(as_json=args.json).result(payload, render)
    return any(each["failure"] for each in told)


def describe(job: JobInfo, energy_j: float | None = None) -> str:
    """Return what a job is doing in one line of ASCII; it changes when that does, and not with every second."""
    parts = [f"gpusonde: {job.state} since {_clock(job.state_unix_nano)}"]
    if not job.active:
        hours = (job.end_unix_nano - job.start_unix_nano) / 3.6e12
        parts = [f"gpusonde: ended at {_clock(job.end_unix_nano)} after {hours:.2f} h"]
    if job.level is not None:
        count = f"{job.level.count} " if not job.active else ""
        parts.append(f"{count}{noun_of_level(job.level)}s of {formatting.seconds(job.level.period_s)}")
    if not job.active or job.state in ("stalled", "hung", "idle", "slower"):
        parts.append(f"goodput {formatting.percent(job.goodput_ratio)}")
    if not job.active:
        parts += _summary(job)
        if energy_j is not None:
            parts.append(f"{energy_j / 3.6e6:.3g} kWh")
    if job.active and job.state in ("stalled", "hung", "slower"):
        parts.append(job.reason)
    return ", ".join(parts).encode("ascii", "replace").decode()[:_LONGEST_TEXT]


def _summary(job: JobInfo) -> list[str]:
    """Return what a job did with its time, most of it first."""
    spent: dict[str, int] = {}
    for span in job.history:
        spent[span.state] = spent.get(span.state, 0) + span.end_unix_nano - span.start_unix_nano
    if job.active:  # the history ends with the state before this one
        spent[job.state] = spent.get(job.state, 0) + job.end_unix_nano - job.state_unix_nano
    total = sum(spent.values())
    longest = sorted(spent.items(), key=lambda each: -each[1])
    # In twentieths: a job that goes on is told anew when they change.
    shares = [(state, round(20 * part / total) / 20) for state, part in longest] if total else []
    return [f"{state} {percent(share)}" for state, share in shares if share]


def _energy_j(client: Client, job: JobInfo) -> float | None:
    """Return what the GPUs of a job drew by their counters; None where one of them has none."""
    total_j = 0.0
    for gpu_uuid in {member.gpu_uuid for member in job.members}:
        ends_j = []
        for at in (job.start_unix_nano, job.end_unix_nano - _AROUND_NS):
            try:
                trace = client.read_samples(
                    gpu_uuid, metrics=[_COUNTER], start_unix_nano=at, end_unix_nano=at + _AROUND_NS
                )
            except CollectorError:
                return None
            ends_j += [float(value) for value in trace.values.get(_COUNTER, ()) if math.isfinite(value)]
        if len(ends_j) < 2 or ends_j[-1] < ends_j[0]:
            return None
        total_j += ends_j[-1] - ends_j[0]
    return total_j


def _clock(unix_nano: int) -> str:
    return datetime.fromtimestamp(unix_nano / 1e9, tz=timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


class _Slurm:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._keeps_accounts = True

    def describe(self, job: JobInfo) -> str:
        if not job.active:
            return describe(job, _energy_j(self._client, job)) if self._keeps_accounts else ""
        # The comment of a job that is over cannot be changed any more: what stands there then is its summary.
        return ", ".join([describe(job), *(f"{each} so far" for each in _summary(job)[:2])])[:_LONGEST_TEXT]

    def takes(self, job_id: str) -> bool:
        return _SLURM_ID.fullmatch(job_id) is not None

    def tell(self, job: JobInfo, text: str) -> None:
        # Slurm takes the rest of an argument for the value; quotes and line ends are not ours to send.
        comment = re.sub(r"[^ -~]|[\"'\\]", " ", text)
        if job.active:
            _run(["scontrol", "update", f"JobId={job.job_id}", f"Comment={comment}"])
            return
        try:
            _run(["sacctmgr", "-i", "modify", "job", "where", f"jobid={job.job_id}", "set", f"AdminComment={comment}"])
        except CommandError as error:
            # A cluster without accounts refuses each, or has no such program; one that is slow does neither.
            self._keeps_accounts = isinstance(error.__cause__, subprocess.TimeoutExpired)
            if self._keeps_accounts:
                raise
            raise CommandError(str(error)) from error


def _run(command: Sequence[str]) -> None:
    try:
        status, said = run_program(command, _TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise _NoAnswerError(f"{command[0]} does not answer within {_TIMEOUT_S:.0f} s") from error
    except OSError as error:
        raise _NoAnswerError(f"{command[0]} cannot be run: {error.strerror or error}") from error
    if status:
        raise CommandError(f"{command[0]} ended with {status}: {said or 'without a word'}")


class _ApiServer:
    """The API server of Kubernetes, asked as the service account that a pod has.

    Args:
        api: Address of the server.
    """

    def __init__(self, api: str) -> None:
        try:
            check_url(api)
        except ValueError as error:
            raise UsageError(f"--api: {error}") from None
        parts = urlsplit(api)
        if parts.scheme != "https" and not is_loopback(f"{parts.hostname}:{parts.port or 80}"):
            raise UsageError("--api: the token of the service account goes to https:// only, or over loopback")
        self._api = api.rstrip("/")

    def annotate(self, path: str, annotations: Mapping[str, str]) -> dict[str, Any]:
        """Set annotations of an object, and return the object.

        Raises:
            CommandError: The server does not answer, or refuses.
        """
        return self.ask("PATCH", path, {"metadata": {"annotations": annotations}})

    def ask(self, method: str, path: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
        """Ask once, and return the answer.

        Raises:
            CommandError: The server does not answer, or refuses.
        """
        kind = "merge-patch+json" if method == "PATCH" else "json"
        headers = {"Content-Type": f"application/{kind}"}
        authority = _SERVICE_ACCOUNT / "ca.crt"
        try:
            # Read each time: it is renewed every hour.
            headers["Authorization"] = f"Bearer {(_SERVICE_ACCOUNT / 'token').read_text().strip()}"
        except OSError as error:
            if self._api.startswith("https://"):
                raise CommandError(f"no service account: {error}") from error
        request = urllib.request.Request(  # noqa: S310 - checked above
            self._api + path, None if body is None else json.dumps(body).encode(), headers, method=method
        )
        context = ssl.create_default_context(cafile=str(authority)) if authority.exists() else None
        try:
            found = json.loads(send(request, _TIMEOUT_S, most_bytes=_LARGEST_ANSWER_BYTES, tls=context))
            return found if isinstance(found, dict) else {}
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")
            raise CommandError(f"the API server answers {error.code}: {' '.join(said.split())[:200]}") from error
        except OSError as error:
            raise _NoAnswerError(f"the API server at {self._api} does not answer: {error}") from error
        except ValueError as error:
            raise CommandError(f"the API server at {self._api} answers no JSON: {error}") from error


class _Pods:
    """Jobs whose names are those of pods."""

    def __init__(self, api: _ApiServer, client: Client) -> None:
        self._api = api
        self._client = client

    def takes(self, job_id: str) -> bool:
        return len(job_id.split("/")) == 2 and all(map(_KUBERNETES_NAME.fullmatch, job_id.split("/")))


class _Kubernetes(_Pods):
    """Annotates pods, and adds an Event where a state begins that somebody should look at, or ends."""

    def describe(self, job: JobInfo) -> str:
        return describe(job, None if job.active else _energy_j(self._client, job))

    def tell(self, job: JobInfo, text: str) -> None:
        namespace, pod = job.job_id.split("/")
        annotations = {"gpusonde/state": job.state, "gpusonde/summary": text}
        found = self._api.annotate(f"/api/v1/namespaces/{namespace}/pods/{pod}", annotations)
        before = job.history[-1].state if job.history else ""
        if job.state in _EVENTS or before in _EVENTS:
            self._add_event(namespace, pod, found, job, text)

    def _add_event(self, namespace: str, pod: str, found: Mapping[str, Any], job: JobInfo, text: str) -> None:
        at = _clock(job.state_unix_nano)
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            # The same state has the same name, whoever tells it, and however often.
            "metadata": {"namespace": namespace, "name": f"{pod[:220]}.{job.state_unix_nano:x}"},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": namespace,
                "name": pod,
                "uid": found.get("metadata", {}).get("uid", ""),
            },
            "type": "Warning" if job.state in _EVENTS else "Normal",
            "reason": f"Gpusonde{job.state.capitalize()}",
            "message": text,
            "source": {"component": "gpusonde"},
            "reportingComponent": "gpusonde",
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
        }
        try:
            self._api.ask("POST", f"/api/v1/namespaces/{namespace}/events", event)
        except CommandError as error:
            if "answers 409" not in str(error):
                raise


class _Kueue(_Pods):
    """Annotates the Workload of each pod that Kueue has admitted: how long it takes still, what other GPUs are worth.

    Args:
        api: The server.
        client: The collector.
        gpus: For which exchange rates are told.
        known: What was told of each job, of those that are still there.
    """

    def __init__(self, api: _ApiServer, client: Client, gpus: Sequence[str], known: dict[str, str]) -> None:
        super().__init__(api, client)
        self._gpus = gpus
        self._known = known
        self._workloads: dict[str, str] = {}
        self._rates: dict[str, str] = {}
        self._without_rates: dict[str, str] = {}

    def describe(self, job: JobInfo) -> str:
        if not job.active:
            # What it was told as is no more: the other pods are told anew.
            left = self._workloads.pop(job.job_id, None)
            for pod in [pod for pod, of in self._workloads.items() if of == left]:
                self._known.pop(pod, None)
            self._rates.pop(job.job_id, None)
            self._without_rates.pop(job.job_id, None)
            return ""
        told: dict[str, object] = {"state": job.state}
        if (estimate := job.estimate) is not None:
            now = time.time_ns()
            names = ("remaining_s", "remaining_low_s", "remaining_high_s")
            ends = (estimate.end_unix_nano, estimate.end_low_unix_nano, estimate.end_high_unix_nano)
            # Two digits: it is told anew when they change.
            told |= {name: float(f"{max(end - now, 0) / 1e9:.2g}") for name, end in zip(names, ends, strict=True)}
            told["basis"] = estimate.basis
        if rates := self._exchange_rates(job):
            told["exchange_rates"] = json.loads(rates)
        return json.dumps(told, sort_keys=True)

    def _exchange_rates(self, job: JobInfo) -> str:
        """Return GPU model -> how many of the job's own GPUs one of it is worth, as JSON; once known they stay."""
        known = self._rates.get(job.job_id, "")
        runs = [member.run_id for member in job.members if member.run_id and member.active]
        if self._gpus and runs and not known:
            try:
                found = self._client.predict_run(runs[0], self._gpus)
            except CollectorError as error:
                # Before there are cycles there is nothing to predict from; whatever else it is, is said once.
                said = f"job {job.job_id} is told without exchange rates: {error}"
                if self._without_rates.get(job.job_id) != said:
                    complain(f"gpusonde: warning: {said}")
                self._without_rates[job.job_id] = said
                return ""
            self._without_rates.pop(job.job_id, None)
            rates = ExchangeRates.from_predictions(
                found.source_gpu_model, found.source_epoch_latency_s, found.source_gpu_count, found.predictions
            ).rates()
            known = self._rates[job.job_id] = json.dumps(rates, sort_keys=True) if rates else ""
        for each in (self._rates, self._without_rates):
            while len(each) > _MOST_JOBS:
                del each[next(iter(each))]
        return known

    def tell(self, job: JobInfo, text: str) -> None:
        namespace, pod = job.job_id.split("/")
        found = self._api.ask("GET", f"/api/v1/namespaces/{namespace}/pods/{pod}").get("metadata", {})
        workload = (found.get("annotations") or {}).get(_KUEUE_WORKLOAD) or (found.get("labels") or {}).get(
            _KUEUE_PREBUILT
        )
        if not workload or not _KUBERNETES_NAME.fullmatch(workload):
            raise CommandError(f"no {_KUEUE_WORKLOAD} on the pod: Kueue has not admitted it")
        place = f"namespaces/{namespace}/workloads/{workload}"
        pods = {pod: of for pod, of in self._workloads.items() if pod in self._known and pod != job.job_id}
        text = _of_workload([text, *(self._known[pod] for pod, of in pods.items() if of == place)])
        self._workloads = pods | {job.job_id: place}
        for version in _KUEUE_VERSIONS:
            path = f"/apis/kueue.x-k8s.io/{version}/{place}"
            try:
                self._api.annotate(path, {"gpusonde/estimate": text})
            except CommandError as error:
                if "answers 404" not in str(error) or version == _KUEUE_VERSIONS[-1]:
                    raise
            else:
                return


def _of_workload(texts: Sequence[str]) -> str:
    """Return what is told of a Workload with these pods: the one that ends last, in the state that most wants somebody.

    How long it takes still is not known before it is of every pod.
    """
    if len(texts) == 1:
        return texts[0]
    pods: list[dict[str, Any]] = [json.loads(text) for text in texts]
    told = max(pods, key=lambda pod: float(pod.get("remaining_s", math.inf)))
    told["state"] = min((pod["state"] for pod in pods), key=lambda state: (*_WORST, state).index(state))
    return json.dumps(told | {"pods": len(pods)}, sort_keys=True)
