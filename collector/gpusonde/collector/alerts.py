"""``JobAlerts``: what of a job wants a person, told to a webhook in Alertmanager's format and kept in the store.

A rule fires once a job has been in its state for long enough, and is over once the job has been in another one for a
while: a job at the edge of two states raises one alert. What the webhook does not take waits, is sent again, by the
next process, too, and is dropped in the end, counted.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any
from urllib.request import Request

from gpusonde.collector.config import AlertsConfig
from gpusonde.collector.query.jobs import JobView, list_jobs
from gpusonde.collector.storage.model import AlertRow
from gpusonde.collector.storage.store import Store
from gpusonde.common.v1 import job_pb2
from gpusonde.errors import RequestError, StoreError
from gpusonde.http_request import send
from gpusonde.query.v1 import query_pb2

_LOG = logging.getLogger(__name__)
_LOOK_INTERVAL_S = 5.0
# The ends of so many jobs are estimated in a look, those of the others in the next ones.
_ENDS_PER_LOOK = 10
# However many jobs there are, a tenth of a core looks at them.
_REST_PER_LOOK = 9.0
_PAGE = 1000
_SEND_TIMEOUT_S = 10.0
_MOST_WAITING = 1000
_LONGEST_BACKOFF_S = 300.0
_MOST_OPEN = 10_000
_STATES = {
    "hung": query_pb2.JOB_STATE_HUNG,
    "stalled": query_pb2.JOB_STATE_STALLED,
    "slower": query_pb2.JOB_STATE_SLOWER,
    "idle": query_pb2.JOB_STATE_IDLE,
}
# In which what an alert is about goes on: what cannot be told is no sign that all is well, and cycles that take longer
# have evaluations and checkpoints, too.
_GOES_ON = {rule: frozenset({state, query_pb2.JOB_STATE_UNKNOWN}) for rule, state in _STATES.items()}
_GOES_ON["slower"] |= {query_pb2.JOB_STATE_EVALUATING, query_pb2.JOB_STATE_CHECKPOINTING}
_CRITICAL = frozenset({"hung"})
_Key = tuple[int, str, str]  # scheduler, job, rule


@dataclass
class AlertCounters:
    """Since the start of the process.

    Attributes:
        fired: Alerts by rule.
        sent: Notifications that the webhook has taken.
        failed: Attempts that it has not.
        dropped: Notifications given up, as too many waited.
    """

    fired: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_STATES, 0))
    sent: int = 0
    failed: int = 0
    dropped: int = 0


class JobAlerts:
    """Watches all jobs whose first host this collector follows.

    Args:
        store: Where jobs are, and alerts are kept.
        executor: Runs the looks; they block.
        config: The rules.
        clock: Unix time in nanoseconds.
        view: How jobs are looked at.

    Attributes:
        jobs: All jobs that went on at the latest look, those of other collectors included.
        counters: What happened.
    """

    def __init__(
        self,
        store: Store,
        executor: Executor,
        config: AlertsConfig,
        clock: Callable[[], int],
        view: JobView | None = None,
    ) -> None:
        self._store = store
        self._view = view or JobView()
        self._executor = executor
        self._config = config
        self._clock = clock
        self._followed: set[str] = set()
        self._open: dict[_Key, AlertRow] = {}
        self._well_since: dict[_Key, int] = {}
        # Those whose end has been estimated, longest ago first.
        self._ends: dict[tuple[int, str], query_pb2.Job] = {}
        # As they stand in the store, what each notification is of.
        self._waiting: deque[list[AlertRow]] = deque()
        self._to_send = asyncio.Event()
        self.jobs: Sequence[query_pb2.Job] = ()
        self.counters = AlertCounters()

    def configure(self, config: AlertsConfig) -> None:
        """Follow other rules from the next look on."""
        self._config = config

    async def run(self) -> None:
        """Look and send until cancelled."""
        sending = asyncio.ensure_future(self._send_for_ever())
        loop = asyncio.get_running_loop()
        try:
            while True:
                began = time.monotonic()
                try:
                    if await loop.run_in_executor(self._executor, self.look):
                        self._to_send.set()
                except StoreError as error:
                    _LOG.error("jobs cannot be looked at now: %s", error)
                except Exception:  # whatever a job is, the collector goes on, and the next look may be luckier
                    _LOG.exception("jobs cannot be looked at now")
                await asyncio.sleep(max(_LOOK_INTERVAL_S, _REST_PER_LOOK * (time.monotonic() - began)))
        finally:
            sending.cancel()

    def look(self) -> bool:
        """Look at all jobs once; return whether there is something to send.

        Raises:
            StoreError: The store cannot be read or written. What was found is found again at the next look.
        """
        followed = {agent_id for agent_id, _ in self._store.followed()}
        if new := followed - self._followed:
            self._take_over(new)
        self._followed = followed
        known = self._open = {key: row for key, row in self._open.items() if row.agent_id in followed}
        jobs = list(self._active_jobs())
        changed = self._changes([job for job in jobs if job.members[0].agent_id in followed])
        if changed:
            self._store.results.save_alerts(changed)
        for row in changed:
            key = (row.scheduler, row.job_id, row.rule)
            if row.end_unix_nano:
                known.pop(key, None)
                self._well_since.pop(key, None)
            else:
                known[key] = row
                self.counters.fired[row.rule] += 1
                _LOG.warning("job %s: %s (%s)", row.job_id, row.rule, row.reason)
        self._add_ends(jobs)
        self.jobs = jobs
        if changed and self._config.webhook:
            self._waiting.append(changed)
            while len(self._waiting) > _MOST_WAITING:
                self._waiting.popleft()
                self.counters.dropped += 1
        return bool(self._waiting)

    def _take_over(self, agents: set[str]) -> None:
        """Go on with the alerts about agents' jobs, and with what of them another process has not got rid of."""
        opened = self._store.results.alerts(open_only=True, limit=_MOST_OPEN)
        untold = self._store.results.alerts(untold_only=True, limit=_MOST_WAITING)
        self._open |= {(row.scheduler, row.job_id, row.rule): row for row in opened if row.agent_id in agents}
        waits = {_identity(row) for rows in self._waiting for row in rows}
        self._waiting.extend(
            [row] for row in reversed(untold) if row.agent_id in agents and _identity(row) not in waits
        )

    def _active_jobs(self) -> Iterator[query_pb2.Job]:
        request = query_pb2.ListJobsRequest(active_only=True, page_size=_PAGE)
        while True:
            response = list_jobs(self._store, request, view=self._view)
            yield from response.jobs
            request.page_token = response.next_page_token
            if not response.next_page_token:
                return

    def _add_ends(self, jobs: Sequence[query_pb2.Job]) -> None:
        """Add how far jobs are and when they end, of a few anew, of the others as it was known."""
        named = {(int(job.scheduler), job.job_id): job for job in jobs}
        self._ends = {key: known for key, known in self._ends.items() if key in named}
        waiting = [key for key in named if key not in self._ends] + list(self._ends)
        for key in waiting[:_ENDS_PER_LOOK]:
            request = query_pb2.ListJobsRequest(job_id=key[1], active_only=True)
            found: list[query_pb2.Job] = []
            # What cannot be estimated must cost no alert.
            with suppress(RequestError):
                asked = list_jobs(self._store, request, self._clock(), self._view).jobs
                found = [job for job in asked if job.scheduler == key[0]]
            self._ends.pop(key, None)
            self._ends[key] = found[0] if found else named[key]
        for key, known in self._ends.items():
            if known.HasField("estimate"):
                named[key].estimate.CopyFrom(known.estimate)
            if known.HasField("progress_ratio"):
                named[key].progress_ratio = known.progress_ratio

    def _changes(self, jobs: Sequence[query_pb2.Job]) -> list[AlertRow]:
        """Return alerts that begin, and those that end."""
        now, untold = self._clock(), bool(self._config.webhook)
        after_ns = {rule: round(seconds * 1e9) for rule, seconds in self._config.after_s.items()}
        going_on = {(int(job.scheduler), job.job_id): job for job in jobs}
        changed = []
        for job in jobs:
            for rule, state in _STATES.items():
                key = (int(job.scheduler), job.job_id, rule)
                since = job.state_time.ToNanoseconds()
                held = job.state == state and after_ns[rule] and job.end_time.ToNanoseconds() - since >= after_ns[rule]
                if held and key not in self._open:
                    agent_id = job.members[0].agent_id
                    row = AlertRow(int(job.scheduler), job.job_id, rule, since, 0, job.reason, agent_id, untold)
                    changed.append(row)
        for key, row in self._open.items():
            found = going_on.get(key[:2])
            if found is not None and found.state in _GOES_ON[row.rule]:
                self._well_since.pop(key, None)
                continue
            since = self._well_since.setdefault(key, now)
            if found is None or now - since >= round(self._config.clear_after_s * 1e9):
                changed.append(replace(row, end_unix_nano=now, untold=untold))
        return changed

    def _note_told(self, sent: Sequence[AlertRow]) -> None:
        """Keep that the webhook has taken alerts, but for those that have changed since; in the thread that looks."""
        if self._waiting and self._waiting[0] is sent:
            self._waiting.popleft()
        waits = {_identity(row) for rows in self._waiting for row in rows}
        told = [replace(row, untold=False) for row in sent if _identity(row) not in waits]
        if told:
            self._store.results.save_alerts(told)

    async def _send_for_ever(self) -> None:
        loop = asyncio.get_running_loop()
        backoff_s = 1.0
        while True:
            await self._to_send.wait()
            self._to_send.clear()
            while self._waiting and (address := self._config.webhook):
                rows = self._waiting[0]
                try:
                    await loop.run_in_executor(None, _post, address, notification(rows))
                except OSError as error:
                    self.counters.failed += 1
                    _LOG.warning("the webhook does not take alerts, %d wait: %s", len(self._waiting), error)
                    await asyncio.sleep(backoff_s)
                    backoff_s = min(2 * backoff_s, _LONGEST_BACKOFF_S)
                    continue
                self.counters.sent += 1
                backoff_s = 1.0
                try:
                    await loop.run_in_executor(self._executor, self._note_told, rows)
                except StoreError as error:
                    # It is sent once more by the next process.
                    _LOG.error("that the webhook has taken an alert cannot be kept: %s", error)


def _identity(row: AlertRow) -> tuple[int, str, str, int]:
    return row.scheduler, row.job_id, row.rule, row.start_unix_nano


def notification(rows: Sequence[AlertRow]) -> dict[str, Any]:
    """Return alerts as Alertmanager's webhook (version 4) sends them."""
    alerts = [_alert(row) for row in rows]
    firing = any(alert["status"] == "firing" for alert in alerts)
    return {
        "version": "4",
        "groupKey": "gpusonde",
        "truncatedAlerts": 0,
        "status": "firing" if firing else "resolved",
        "receiver": "gpusonde",
        "groupLabels": {},
        "commonLabels": _common([alert["labels"] for alert in alerts]),
        "commonAnnotations": _common([alert["annotations"] for alert in alerts]),
        "externalURL": "",
        "alerts": alerts,
    }


def _alert(row: AlertRow) -> dict[str, Any]:
    labels = {
        "alertname": f"GpusondeJob{row.rule.capitalize()}",
        "job_id": row.job_id,
        "scheduler": job_pb2.Scheduler.Name(row.scheduler).removeprefix("SCHEDULER_").lower(),
        "severity": "critical" if row.rule in _CRITICAL else "warning",
    }
    return {
        "status": "resolved" if row.end_unix_nano else "firing",
        "labels": labels,
        "annotations": {"summary": f"job {row.job_id} is {row.rule}", "description": row.reason},
        "startsAt": _time(row.start_unix_nano),
        "endsAt": _time(row.end_unix_nano) if row.end_unix_nano else "0001-01-01T00:00:00Z",
        "generatorURL": "",
        "fingerprint": hashlib.sha256(json.dumps(labels, sort_keys=True).encode()).hexdigest()[:16],
    }


def _common(of: Sequence[Mapping[str, str]]) -> dict[str, str]:
    return {name: value for name, value in of[0].items() if all(each.get(name) == value for each in of)}


def _time(unix_nano: int) -> str:
    return datetime.fromtimestamp(unix_nano / 1e9, tz=timezone.utc).isoformat().replace("+00:00", "Z")


def _post(address: str, body: Mapping[str, Any]) -> None:
    content = {"Content-Type": "application/json"}
    send(Request(address, json.dumps(body).encode(), content), _SEND_TIMEOUT_S)  # noqa: S310 - the configuration checks
