"""``ListJobs``, ``GetJob``, ``ListAlerts``: jobs over all GPUs and hosts, what each does, how far it is, its alerts."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import cast

import numpy as np

from gpusonde.collector.config import RunsConfig
from gpusonde.collector.query.endings import JobProgress, earlier_runs, stays
from gpusonde.collector.query.job_looks import JobLooks
from gpusonde.collector.query.job_tree import JobTree
from gpusonde.collector.query.paging import from_token, page_size, to_token
from gpusonde.collector.query.runs import (
    MOST_RUNS_OF_A_JOB,
    Chosen,
    cycle_message,
    deviation_messages,
    gpu_message,
    nanoseconds,
    timestamp,
    tree_parts,
    with_ends,
)
from gpusonde.collector.query.slow_jobs import SlowJobs
from gpusonde.collector.storage.model import AlertRow, GpuRow, JobStateRow, RunRow
from gpusonde.collector.storage.store import ResultStore, Store
from gpusonde.collector.tracking.jobs import NO_JOBS, job_of
from gpusonde.collector.tracking.runs import has_activity, measure_activity
from gpusonde.common.v1 import job_pb2
from gpusonde.errors import RequestError
from gpusonde.query.v1 import query_pb2
from gpusonde.service.wire import Binding

_PAGE = 1000
_MOST_OPEN_RUNS = 100_000
_DAY_NS = 86_400_000_000_000
_SILENT_NS = 300_000_000_000
_LATELY_NS = 30_000_000_000
# GPUs of a job that begin to work within so long of each other are its own since it began.
_TOGETHER_NS = 60_000_000_000
# In so much of it a GPU works whose run is not found yet; less are ticks of a monitor or a display.
_SOME_USE = 0.1
_LEAST_ACTIVITY = RunsConfig().activity_threshold
_MOST_NAMED = 4
_MOST_SPANS = 64
# Of the time that processes are asked about: in a shorter pause it is not looked up what they did.
_SHORT_PAUSE = 8
_MOST_ALERTS = 16
# Jobs that one answer goes through where few of them are asked for.
_MOST_LOOKED_AT = 5_000
STATES = {
    name.removeprefix("JOB_STATE_").lower(): number
    for name, number in query_pb2.JobState.items()
    if number != query_pb2.JOB_STATE_UNSPECIFIED
}
# In which a job gets on. A checkpoint is not progress: it is what a failure would have cost, paid in advance.
_PROGRESS = frozenset({query_pb2.JOB_STATE_TRAINING, query_pb2.JOB_STATE_EVALUATING, query_pb2.JOB_STATE_SLOWER})
_PAUSES = frozenset({"idle", "stalled", "hung", "checkpointing"})
_RESTS = _PAUSES | {"ended", "unknown"}


def list_jobs(
    store: Store,
    request: query_pb2.ListJobsRequest,
    now_unix_nano: int | None = None,
    slow_jobs: SlowJobs | None = None,
) -> query_pb2.ListJobsResponse:
    """Answer ``ListJobs``.

    Args:
        store: Where runs and bindings are.
        request: Which jobs.
        now_unix_nano: The time; None means that of the clock.
        slow_jobs: Says of jobs that are slower why; None leaves that out.

    Raises:
        RequestError: A page that cannot be, or a total without its job (``INVALID_ARGUMENT``).
    """
    limit = page_size(request.page_size, 100, 1000)
    for field in ("total_cycles", "total_role", "like_job_id"):
        if getattr(request, field) and not request.job_id:
            raise RequestError("INVALID_ARGUMENT", f"field {field!r}: is that of one job; name it in 'job_id'")
    if request.HasField("process_window"):
        window_ns = nanoseconds(request.process_window, "process_window")
        if not request.job_id or not 0 < window_ns <= _DAY_NS:
            raise RequestError("INVALID_ARGUMENT", "field 'process_window': is up to a day, and of one job ('job_id')")
    place = from_token(request.page_token, (int, str))
    before = (int(place[0]), str(place[1])) if place else None
    now = time.time_ns() if now_unix_nano is None else now_unix_nano
    chosen, states = Chosen(store, request), frozenset(request.states)
    held = _held(store, request.job_id, now)
    found = _active_jobs(store.results, request.job_id, held) if request.active_only else None
    jobs = _after(found, before) if found is not None else _jobs(store.results, request.job_id, before, held)
    response = query_pb2.ListJobsResponse()
    last: _Runs | None = None
    for looked_at, runs in enumerate(jobs):
        if last is not None and (len(response.jobs) == limit or looked_at == _MOST_LOOKED_AT):
            response.next_page_token = to_token([*last.place])
            break
        last = runs
        if runs.are(chosen, now):
            job = _job(store, runs, request, now, slow_jobs)
            if not states or job.state in states:
                response.jobs.append(job)
    return response


def get_job(
    store: Store, request: query_pb2.GetJobRequest, slow_jobs: SlowJobs | None = None
) -> query_pb2.GetJobResponse:
    """Answer ``GetJob``.

    Raises:
        RequestError: No such job (``NOT_FOUND``), or no name (``INVALID_ARGUMENT``).
    """
    if not request.job_id:
        raise RequestError(
            "INVALID_ARGUMENT", "field 'job_id': is empty; ListJobs ('gpusonde jobs') names those there are"
        )
    listing = query_pb2.ListJobsRequest(
        job_id=request.job_id,
        page_size=1,
        total_cycles=request.total_cycles,
        total_role=request.total_role,
        like_job_id=request.like_job_id,
        process_window=request.process_window if request.HasField("process_window") else None,
    )
    found = list_jobs(store, listing, slow_jobs=slow_jobs).jobs
    if not found:
        raise RequestError(
            "NOT_FOUND", f"no job {request.job_id[:80]!r}; ListJobs ('gpusonde jobs') names those there are"
        )
    return query_pb2.GetJobResponse(job=found[0])


def list_alerts(results: ResultStore, request: query_pb2.ListAlertsRequest) -> query_pb2.ListAlertsResponse:
    """Answer ``ListAlerts``.

    Raises:
        RequestError: A page that cannot be (``INVALID_ARGUMENT``).
    """
    limit = page_size(request.page_size, 100, 1000)
    place = from_token(request.page_token, (int, str, str))
    before = (int(place[0]), str(place[1]), str(place[2])) if place else None
    rows = results.alerts(job_id=request.job_id, open_only=request.open_only, before=before, limit=limit + 1)
    response = query_pb2.ListAlertsResponse(alerts=map(_alert, rows[:limit]))
    if len(rows) > limit:
        last = rows[limit - 1]
        response.next_page_token = to_token([last.start_unix_nano, last.job_id, last.rule])
    return response


@dataclass(frozen=True)
class _Hold:
    """What a scheduler still gives to a job: the GPUs of one agent, since when, and whether that agent is heard."""

    agent_id: str
    binding: Binding
    is_heard: bool


@dataclass(frozen=True)
class _Runs:
    """The runs of a job, newest first, and what its scheduler still gives to it; one of them may be empty."""

    runs: Sequence[RunRow]
    held: Sequence[_Hold]

    @property
    def place(self) -> tuple[int, str]:
        """Its place in the list."""
        if self.runs:
            return self.runs[0].start_unix_nano, self.runs[0].run_id
        return self.held[-1].binding.start_unix_nano, self.held[-1].binding.job_id

    @property
    def active(self) -> bool:
        return bool(self.held) or any(not run.ended for run in self.runs)

    def are(self, chosen: Chosen, now: int) -> bool:
        """Return whether the job is one of those that are asked for."""
        runs, holds = self.runs, [hold.binding for hold in self.held]
        start = min([run.start_unix_nano for run in runs] + [hold.start_unix_nano for hold in holds])
        end = now if holds else max(run.end_unix_nano for run in runs)
        return chosen.has_time(start, end) and (
            any(chosen.has_gpu(run.agent_id, run.gpu_uuid) for run in runs)
            or any(chosen.has_gpu(hold.agent_id, hold.binding.gpu_uuid) for hold in self.held)
        )


_Named = tuple[int, str]  # scheduler, job


def _held(store: Store, job_id: str, now: int) -> dict[_Named, list[_Hold]]:
    """Return what schedulers give to jobs, without what agents say of whom nothing was heard for a day."""
    held: dict[_Named, list[_Hold]] = {}
    for agent_id, binding in store.facts.open_bindings():
        if binding.scheduler in NO_JOBS or not binding.job_id or (job_id and binding.job_id != job_id):
            continue
        tick = store.samples.next_tick(binding.gpu_uuid, now - _DAY_NS)
        if tick is not None:
            is_heard = store.samples.next_tick(binding.gpu_uuid, now - _SILENT_NS) is not None
            held.setdefault((binding.scheduler, binding.job_id), []).append(_Hold(agent_id, binding, is_heard))
    return held


def _active_jobs(results: ResultStore, job_id: str, held: Mapping[_Named, Sequence[_Hold]]) -> list[_Runs]:
    """Return the jobs that go on, newest first."""
    found: list[_Runs] = []
    seen: set[str] = set()
    for run in results.runs(job_id=job_id, open_only=True, limit=_MOST_OPEN_RUNS):
        if run.run_id not in seen:
            members = runs_of_job(results, run, held)
            seen.update(member.run_id for member in members)
            found.append(_Runs(members, held.get((run.scheduler, run.job_id), [])))
    alone = results.run(job_id) if job_id and not found else None
    if alone is not None and not alone.ended and job_of(alone) is None:
        found.append(_Runs([alone], []))
    named = {(each.runs[0].scheduler, each.runs[0].job_id) for each in found}
    for key in held.keys() - named:
        newest = [run for run in results.runs(job_id=key[1], limit=_PAGE) if run.scheduler == key[0]][:1]
        # Those before the binding were of another job of that name.
        since = min(hold.binding.start_unix_nano for hold in held[key])
        members = runs_of_job(results, newest[0], held) if newest else []
        lasts = any(run.end_unix_nano >= since for run in members)
        found.append(_Runs(members if lasts else [], held[key]))
    return sorted(found, key=lambda each: each.place, reverse=True)


def _after(found: Sequence[_Runs], before: tuple[int, str] | None) -> Iterator[_Runs]:
    return (each for each in found if before is None or each.place < before)


def _jobs(
    results: ResultStore, job_id: str, before: tuple[int, str] | None, held: Mapping[_Named, Sequence[_Hold]]
) -> Iterator[_Runs]:
    """Yield all jobs that have worked, newest first."""
    if job_id and not results.runs(job_id=job_id, limit=1):
        run = results.run(job_id)
        if run is not None and job_of(run) is None:
            yield _Runs([run], [])
        elif of_name := [hold for key, holds in held.items() if key[1] == job_id for hold in holds]:
            yield _Runs([], of_name)
        return
    seen: set[str] = set()
    while True:
        page = results.runs(job_id=job_id, before=before, limit=_PAGE)
        for run in page:
            if run.run_id in seen:
                continue
            members = runs_of_job(results, run, held)
            seen.update(member.run_id for member in members)
            # One whose newest run came before belongs to an earlier page.
            if members[0].run_id == run.run_id:
                yield _Runs(members, _still_held(results, run, members, held))
        if len(page) < _PAGE:
            return
        before = (page[-1].start_unix_nano, page[-1].run_id)


def _still_held(
    results: ResultStore, newest: RunRow, members: Sequence[RunRow], held: Mapping[_Named, Sequence[_Hold]]
) -> Sequence[_Hold]:
    """Return what a scheduler still gives to a job of these runs: to the last of its name, if it has begun by then."""
    holds = held.get((newest.scheduler, newest.job_id), []) if job_of(newest) is not None else []
    if not holds or max(run.end_unix_nano for run in members) < min(hold.binding.start_unix_nano for hold in holds):
        return []
    same = results.runs(job_id=newest.job_id, limit=MOST_RUNS_OF_A_JOB)
    last = next((run.run_id for run in same if run.scheduler == newest.scheduler), newest.run_id)
    return holds if last == newest.run_id else []


def runs_of_job(
    results: ResultStore, run: RunRow, held: Mapping[_Named, Sequence[_Hold]] = MappingProxyType({})
) -> list[RunRow]:
    """Return the runs of a run's job, newest first; without what schedulers give now, up to a pause of hours."""
    if job_of(run) is None:
        return [run]
    same = [
        other for other in results.runs(job_id=run.job_id, limit=MOST_RUNS_OF_A_JOB) if other.scheduler == run.scheduler
    ]
    found = stays(same)
    if holds := held.get((run.scheduler, run.job_id)):
        # However long it paused since then: the scheduler has not taken the GPUs away in between.
        since = min(hold.binding.start_unix_nano for hold in holds)
        lasting = [stay for stay in found if max(each.end_unix_nano for each in stay) >= since]
        found = [*found[: len(found) - len(lasting)], [each for stay in lasting for each in stay]]
    (members,) = [stay for stay in found if any(other.run_id == run.run_id for other in stay)] or [[run]]
    return members[::-1]


def _job(
    store: Store, of: _Runs, request: query_pb2.ListJobsRequest, now: int, slow_jobs: SlowJobs | None
) -> query_pb2.Job:
    members = of.runs
    described = {hold.binding.gpu_uuid for hold in of.held} | {run.gpu_uuid for run in members}
    gpus = {(gpu.gpu_uuid, gpu.agent_id): gpu for gpu in store.facts.gpus(described)}
    job = query_pb2.Job(active=of.active)
    if members:
        lead = min(members, key=lambda run: (run.agent_id, run.start_unix_nano, run.run_id))
        has_id = job_of(lead) is not None
        job.job_id = lead.job_id if has_id else lead.run_id
        job.scheduler = cast(job_pb2.Scheduler, lead.scheduler if has_id else job_pb2.SCHEDULER_UNSPECIFIED)
    else:
        job.job_id = of.held[0].binding.job_id
        job.scheduler = cast(job_pb2.Scheduler, of.held[0].binding.scheduler)
    starts = [run.start_unix_nano for run in members] or [hold.binding.start_unix_nano for hold in of.held]
    job.start_time.CopyFrom(timestamp(min(starts)))
    works = any(not run.ended for run in members)
    end = max((run.end_unix_nano for run in members), default=min(starts))
    job.end_time.CopyFrom(timestamp(end if works or not of.active else max(end, now)))
    given = {(hold.agent_id, hold.binding.gpu_uuid) for hold in of.held}
    for run in reversed(members):
        is_here = not run.ended or (run.agent_id, run.gpu_uuid) in given
        job.members.append(_member(run, gpus.get((run.gpu_uuid, run.agent_id)), is_active=is_here))
    worked = {(run.agent_id, run.gpu_uuid) for run in members}
    for hold in of.held:
        if (key := (hold.agent_id, hold.binding.gpu_uuid)) not in worked:
            job.members.append(_bound(hold, gpus.get((key[1], key[0]))))
    parts = _parts(store.results, members)
    told = _add_state(job, parts, of, now)
    if works and job.state == query_pb2.JOB_STATE_SLOWER:
        since = _slower_since(told)
        job.state_time.CopyFrom(timestamp(since))
        if slow_jobs is not None:
            found = slow_jobs.explain(job.job_id, [run for run in members if not run.ended], gpus, since)
            job.reason = "; ".join(filter(None, [job.reason, found.reason]))
            job.slow_devices.extend(found.devices)
    resting_ns = _add_idleness(job, store, of, end, now) if of.active and not works else 0
    _add_goodput(job, parts, resting_ns)
    pauses = _pauses(parts, members)
    longest_ns = max((end - begin for begin, end in pauses), default=0)
    if members:
        latest = max(members, key=lambda run: (not run.ended, run.end_unix_nano))
        _add_progress(job, store.results, latest, members, told, request)
    if request.job_id:
        job.alerts.extend(_alerts(store.results, job))
    if request.HasField("process_window"):
        window_ns = request.process_window.ToNanoseconds()
        members_gpus = gpus_of(job)
        # Short pauses are shorter than the window, whatever rested in them.
        long = [begin for begin, stop in pauses if stop - begin > window_ns / _SHORT_PAUSE]
        looks = JobLooks(store.facts, members_gpus, window_ns, now, min(long, default=now))
        if (processes := looks.processes()) is not None:
            job.processes.CopyFrom(processes)
            longest_ns = looks.longest_rest(pauses)
    if longest_ns:
        job.longest_pause.FromNanoseconds(longest_ns)
    return job


def gpus_of(job: query_pb2.Job) -> set[tuple[str, str]]:
    """Return agent and UUID of the GPUs that a job has, of one that is over of those that it had."""
    return {(each.agent_id, each.gpu_uuid) for each in job.members if each.active or not job.active}


def _bound(hold: _Hold, gpu: GpuRow | None) -> query_pb2.JobMember:
    return query_pb2.JobMember(
        agent_id=hold.agent_id,
        host_name=gpu.host_name if gpu else "",
        gpu_uuid=hold.binding.gpu_uuid,
        product_name=gpu_message(gpu).product_name,
        active=True,
    )


def _add_idleness(job: query_pb2.Job, store: Store, of: _Runs, end: int, now: int) -> int:
    """Say of a job whose GPUs all rest that its scheduler still gives them to it; return the GPU time, nanoseconds."""
    since = max(end, min(hold.binding.start_unix_nano for hold in of.held))
    silent = sorted({hold.agent_id for hold in of.held if not hold.is_heard})
    job.state_time.CopyFrom(timestamp(since))
    worked = "has worked since" if of.runs else "has ever worked"
    job.reason = f"none of its {len(of.held)} GPUs {worked}, and the scheduler still gives them to it"
    job.state, job.confidence = query_pb2.JOB_STATE_IDLE, 0.9
    against = [f"nothing is heard of {', '.join(silent)}"] if silent else []
    uses = {gpu: _use(store, gpu, now) for gpu in sorted({hold.binding.gpu_uuid for hold in of.held})}
    if dumb := [gpu for gpu, use in uses.items() if math.isnan(use)]:
        against.append(f"nothing tells whether {', '.join(dumb[:_MOST_NAMED])} is in use")
    if busy := [gpu for gpu, use in uses.items() if use > _SOME_USE]:
        against.append(f"{', '.join(busy[:_MOST_NAMED])} work, and what was sent of them is not looked at yet")
    if against:
        job.state, job.confidence = query_pb2.JOB_STATE_UNKNOWN, 0.0
        job.reason = "; ".join([*against, job.reason])
    until = job.end_time.ToNanoseconds()
    return sum(max(0, until - max(end, hold.binding.start_unix_nano)) for hold in of.held)


def _use(store: Store, gpu_uuid: str, now: int) -> float:
    """Return in which share of its latest ticks a GPU works; NaN where they do not say, 0 where there are none."""
    names = [name for name in store.facts.metrics(gpu_uuid) if has_activity([name])]
    samples = store.samples.read(gpu_uuid, now - _LATELY_NS, now + 1, names)
    if not len(samples):
        samples = store.samples.read(gpu_uuid, now - _SILENT_NS, now + 1, names)
        samples = samples.take(
            np.flatnonzero(samples.time_unix_nano > samples.time_unix_nano.max(initial=0) - _LATELY_NS)
        )
    activity = measure_activity(samples)
    known = activity[np.isfinite(activity)]
    if not known.size:
        return math.nan if len(samples) else 0.0
    return float((known > _LEAST_ACTIVITY).mean())


def _alerts(results: ResultStore, job: query_pb2.Job) -> Iterator[query_pb2.JobAlert]:
    for row in results.alerts(job_id=job.job_id, limit=_MOST_ALERTS):
        if row.scheduler == job.scheduler:
            yield _alert(row)


def _alert(row: AlertRow) -> query_pb2.JobAlert:
    return query_pb2.JobAlert(
        state=_state(row.rule),
        start_time=timestamp(row.start_unix_nano),
        end_time=timestamp(row.end_unix_nano) if row.end_unix_nano else None,
        reason=row.reason,
        job_id=row.job_id,
        scheduler=cast(job_pb2.Scheduler, row.scheduler),
    )


def _member(run: RunRow, gpu: GpuRow | None, *, is_active: bool) -> query_pb2.JobMember:
    return query_pb2.JobMember(
        run_id=run.run_id,
        agent_id=run.agent_id,
        host_name=gpu.host_name if gpu else "",
        gpu_uuid=run.gpu_uuid,
        product_name=gpu_message(gpu).product_name,
        active=is_active,
    )


@dataclass(frozen=True)
class _AgentStates:
    """What one agent's GPUs of a job did: states one after another, with their ends, and since when it has each GPU."""

    rows: Sequence[tuple[JobStateRow, int]]
    since: Sequence[int]

    @property
    def state(self) -> str:
        return self.rows[-1][0].state


def _parts(results: ResultStore, members: Sequence[RunRow]) -> dict[str, _AgentStates]:
    """Return what is known of each agent's GPUs, by agent; those of which nothing is known are left out."""
    known = results.states([run.run_id for run in members])
    parts = {}
    for agent_id in sorted({run.agent_id for run in members}):
        runs = [run for run in members if run.agent_id == agent_id]
        rows = sorted((row for run in runs for row in known.get(run.run_id, ())), key=lambda row: row.start_unix_nano)
        if told := with_ends(rows, max(run.end_unix_nano for run in runs)):
            began: dict[str, int] = {}
            for run in runs:
                began[run.gpu_uuid] = min(run.start_unix_nano, began.get(run.gpu_uuid, run.start_unix_nano))
            first = min(began.values())
            # A job starts before its GPUs work, and they begin one after the other.
            since = [told[0][0].start_unix_nano if at - first < _TOGETHER_NS else at for at in began.values()]
            parts[agent_id] = _AgentStates(_within(runs, told), since)
    return parts


def _within(runs: Sequence[RunRow], told: Sequence[tuple[JobStateRow, int]]) -> list[tuple[JobStateRow, int]]:
    """Return states, work of them only as long as there were runs: one that was requeued did none in between."""
    within = []
    for row, end in told:
        begun = [run.end_unix_nano for run in runs if run.start_unix_nano < end]
        # Rests begin where work ended, and go on without a run.
        work_end = end if row.state in _RESTS else max(begun, default=end)
        within.append((row, max(min(end, work_end), row.start_unix_nano)))
    return within


def _add_state(
    job: query_pb2.Job, parts: Mapping[str, _AgentStates], of: _Runs, now: int
) -> Sequence[tuple[JobStateRow, int]]:
    """Add what the job is doing: what the most of its GPUs do, with the hosts named that do otherwise.

    Returns:
        The states of a host that does what most do, with the end of each.
    """
    members, lost = of.runs, False
    # A job that was put back into the queue may have left hosts.
    here = {run.agent_id for run in members if not run.ended} | {hold.agent_id for hold in of.held}
    if here:
        parts = {agent_id: part for agent_id, part in parts.items() if agent_id in here}
    if not job.active:
        last = max(members, key=lambda run: run.end_unix_nano)
        job.state, job.reason, job.confidence = query_pb2.JOB_STATE_ENDED, last.end_reason, 1.0
        job.state_time.CopyFrom(job.end_time)
    elif not parts:
        job.state, job.reason = query_pb2.JOB_STATE_UNKNOWN, "nothing is known of its state yet"
        job.state_time.CopyFrom(job.start_time)
    if not parts:
        return ()
    silent = _silent(members, now)
    parts = {agent_id: part for agent_id, part in parts.items() if agent_id not in silent} or parts
    counts: dict[str, int] = {}
    for part in parts.values():
        counts[part.state] = counts.get(part.state, 0) + len(part.since)
    state = max(counts, key=lambda name: counts[name])
    agents = [agent_id for agent_id, part in parts.items() if part.state == state]
    told = parts[agents[0]].rows
    if job.active:
        row, _ = told[-1]
        job.state, job.reason, job.confidence = _state(row.state), row.reason, row.confidence
        job.state_time.CopyFrom(timestamp(row.start_unix_nano))
        others = [f"{agent_id} is {part.state}" for agent_id, part in parts.items() if agent_id not in agents]
        if dumb := sorted({run.agent_id for run in members if not run.ended} - parts.keys() - silent):
            others.append(f"nothing is known of {', '.join(dumb)}")
        unheard = [f"nothing is heard of {', '.join(sorted(silent))}"] if silent else []
        job.reason = "; ".join([job.reason, *others, *unheard])
        if lost := parts.keys() <= silent:
            job.state, job.confidence = query_pb2.JOB_STATE_UNKNOWN, 0.0
            job.reason = f"{unheard[0]}; before that: {row.reason}"
            job.state_time.CopyFrom(timestamp(told[-1][1]))
    goes_on = any(not run.ended for run in members)
    for row, end in (told[:-1] if goes_on and not lost else told)[-_MOST_SPANS:]:
        job.history.append(
            query_pb2.JobStateSpan(
                state=_state(row.state), start_time=timestamp(row.start_unix_nano), end_time=timestamp(end)
            )
        )
    return told


def _silent(runs: Sequence[RunRow], now: int) -> set[str]:
    """Return the agents that have sent no ticks of runs that go on for minutes, but did within a day.

    Ticks that are older are those of a recording; runs of an agent that is silent for longer end.
    """
    latest: dict[str, int] = {}
    for run in runs:
        if not run.ended:
            latest[run.agent_id] = max(latest.get(run.agent_id, 0), run.end_unix_nano)
    return {agent_id for agent_id, at in latest.items() if _SILENT_NS < now - at < _DAY_NS}


def _slower_since(told: Sequence[tuple[JobStateRow, int]]) -> int:
    """Return when a job that is slower became so: evaluations and checkpoints since then are no end of it."""
    since = told[-1][0].start_unix_nano
    for row, _ in reversed(told):
        if _state(row.state) == query_pb2.JOB_STATE_TRAINING:
            break
        if _state(row.state) == query_pb2.JOB_STATE_SLOWER:
            since = row.start_unix_nano
    return since


def _add_goodput(job: query_pb2.Job, parts: Mapping[str, _AgentStates], resting_ns: int) -> None:
    total, good = resting_ns, 0
    for part in parts.values():
        for row, end in part.rows:
            spent = sum(max(0, end - max(row.start_unix_nano, since)) for since in part.since)
            total += spent
            good += spent if _state(row.state) in _PROGRESS else 0
    if total:
        job.goodput_ratio = good / total
        job.gpu_time.FromNanoseconds(total)


def _pauses(parts: Mapping[str, _AgentStates], members: Sequence[RunRow]) -> list[tuple[int, int]]:
    """Return the pauses after which the job went on, their beginnings and ends."""
    found = []
    for part in parts.values():
        begin: int | None = None
        for row, _ in part.rows:
            if row.state in _PAUSES:
                begin = row.start_unix_nano if begin is None else begin
            elif begin is not None:
                found.append((begin, row.start_unix_nano))
                begin = None
    # Runs end with the last activity; of a job on several GPUs the one that works longest counts.
    reached: int | None = None
    for run in reversed(members):
        if reached is not None and run.start_unix_nano > reached:
            found.append((reached, run.start_unix_nano))
        reached = max(reached or 0, run.end_unix_nano)
    return found


def _state(name: str) -> query_pb2.JobState:
    return cast(query_pb2.JobState, STATES.get(name, query_pb2.JOB_STATE_UNKNOWN))


def _add_progress(
    job: query_pb2.Job,
    results: ResultStore,
    run: RunRow,
    members: Sequence[RunRow],
    states: Sequence[tuple[JobStateRow, int]],
    request: query_pb2.ListJobsRequest,
) -> None:
    """Add the level that measures the progress and, where that is asked for, how far it is and when it ends."""
    tree = JobTree.of(tree_parts(results, run)).listed()
    job.deviations.extend(deviation_messages(tree))
    level = tree.level
    if request.total_role:
        same = [i for i, cycle in enumerate(tree.cycles) if cycle_message(cycle).role == request.total_role]
        level = max(same, key=lambda i: tree.cycles[i].confidence, default=None)
    if level is not None:
        job.level.CopyFrom(cycle_message(tree.cycles[level]))
    if not (request.job_id or request.estimates):
        return
    if not job.active:
        if request.total_cycles or request.like_job_id:
            job.estimate_reason = "the job is over"
        return
    progress = JobProgress(results, members, run, tree, level, states)
    if request.total_cycles:
        ending = progress.with_total(request.total_cycles)
    else:
        earlier = earlier_runs(results, members, request.like_job_id)
        ending = progress.like(earlier, request.like_job_id)
    job.estimate_reason = ending.reason
    if ending.estimate is not None:
        job.estimate.CopyFrom(ending.estimate)
    if ending.progress is not None:
        job.progress_ratio = ending.progress
