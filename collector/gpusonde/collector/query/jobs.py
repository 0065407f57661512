"""``ListJobs``, ``GetJob``, ``ListAlerts``: jobs over all GPUs and hosts, what each does, how far it is, its alerts."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from gpusonde.collector.config import RunsConfig
from gpusonde.collector.query.endings import JobProgress, earlier_runs
from gpusonde.collector.query.job_looks import JobLooks
from gpusonde.collector.query.job_parts import JobPart, Span, StateSpan, goodput, job_parts, pauses, slower_since
from gpusonde.collector.query.job_runs import SILENT_NS, JobRuns, active_jobs, all_jobs, held_by_jobs
from gpusonde.collector.query.job_tree import JobTree
from gpusonde.collector.query.paging import from_token, page_size, to_token
from gpusonde.collector.query.runs import (
    ROLES,
    Chosen,
    cycle_message,
    deviation_messages,
    gpu_message,
    nanoseconds,
    timestamp,
    tree_parts,
)
from gpusonde.collector.query.slow_jobs import SlowJobs
from gpusonde.collector.storage.model import AlertRow, GpuRow, RunRow
from gpusonde.collector.storage.store import ResultStore, Store
from gpusonde.collector.tracking.jobs import job_of
from gpusonde.collector.tracking.runs import has_activity, measure_activity
from gpusonde.common.v1 import job_pb2
from gpusonde.epoch_detect import told_role
from gpusonde.errors import RequestError
from gpusonde.formatting import count
from gpusonde.query.v1 import query_pb2

_DAY_NS = 86_400_000_000_000
_LATELY_NS = 30_000_000_000
# Ticks of hosts whose clocks agree come within so long of each other.
_TOGETHER_NS = 8_000_000_000
# In so much of it a GPU works whose run is not found yet; less are ticks of a monitor or a display.
_SOME_USE = 0.1
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
_Gpus = Mapping[tuple[str, str], GpuRow]  # (GPU, agent) -> what is known of it


@dataclass(frozen=True)
class JobView:
    """How a collector looks at jobs.

    Attributes:
        slow_jobs: Says of those that are slower why; None leaves that out.
        least_activity: Above which a GPU works, as where its runs begin.
    """

    slow_jobs: SlowJobs | None = None
    least_activity: float = RunsConfig.activity_threshold


_PLAIN = JobView()


def list_jobs(
    store: Store, request: query_pb2.ListJobsRequest, now_unix_nano: int | None = None, view: JobView = _PLAIN
) -> query_pb2.ListJobsResponse:
    """Answer ``ListJobs``.

    Args:
        store: Where runs and bindings are.
        request: Which jobs.
        now_unix_nano: The time; None means that of the clock.
        view: How.

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
    held = held_by_jobs(store, request.job_id, now)
    if request.active_only:
        found = active_jobs(store.results, request.job_id, held)
        jobs: Iterable[JobRuns] = (each for each in found if before is None or each.place < before)
    else:
        jobs = all_jobs(store.results, request.job_id, before, held)
    response = query_pb2.ListJobsResponse()
    last: JobRuns | None = None
    for looked_at, runs in enumerate(jobs):
        if last is not None and (len(response.jobs) == limit or looked_at == _MOST_LOOKED_AT):
            response.next_page_token = to_token([*last.place])
            break
        last = runs
        if runs.are(chosen, now):
            job = _job(store, runs, request, now, view)
            if not states or job.state in states:
                response.jobs.append(job)
    return response


def get_job(store: Store, request: query_pb2.GetJobRequest, view: JobView = _PLAIN) -> query_pb2.GetJobResponse:
    """Answer ``GetJob``, as ``list_jobs`` does.

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
    found = list_jobs(store, listing, view=view).jobs
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


def _job(store: Store, of: JobRuns, request: query_pb2.ListJobsRequest, now: int, view: JobView) -> query_pb2.Job:
    described = {hold.binding.gpu_uuid for hold in of.held} | {run.gpu_uuid for run in of.runs}
    gpus = {(gpu.gpu_uuid, gpu.agent_id): gpu for gpu in store.facts.gpus(described)}
    job = _named(of)
    rests = of.active and not of.open_runs
    reached = of.reached_unix_nano
    job.start_time.CopyFrom(timestamp(of.start_unix_nano))
    job.end_time.CopyFrom(timestamp(max(reached, now) if rests else reached))
    job.members.extend(_members(of, gpus))
    parts = job_parts(store, of)
    states = _add_state(job, parts, of, now)
    if of.open_runs and job.state == query_pb2.JOB_STATE_SLOWER:
        _add_slowness(job, of, gpus, slower_since(states), view.slow_jobs)
    if rests:
        _add_idleness(job, store, of, now, view.least_activity)
    _add_goodput(job, parts, of, rests=rests)
    if of.runs:
        _add_progress(job, store.results, of.runs, states, request)
    if request.job_id:
        job.alerts.extend(_alerts(store.results, job, of))
    window_ns = request.process_window.ToNanoseconds() if request.HasField("process_window") else None
    _add_rest(job, store, pauses(parts, of.runs), window_ns, now)
    return job


def _named(of: JobRuns) -> query_pb2.Job:
    """Return a job with its name: that of its scheduler, else that of its only run."""
    job = query_pb2.Job(active=of.active)
    lead = min(of.runs, key=lambda run: (run.agent_id, run.start_unix_nano, run.run_id), default=None)
    if lead is not None and job_of(lead) is None:
        job.job_id, job.scheduler = lead.run_id, job_pb2.SCHEDULER_UNSPECIFIED
    else:
        by = lead or of.held[0].binding
        job.job_id, job.scheduler = by.job_id, cast(job_pb2.Scheduler, by.scheduler)
    return job


def _members(of: JobRuns, gpus: _Gpus) -> Iterator[query_pb2.JobMember]:
    """Yield the runs of a job, oldest first, and GPUs that it has and has not worked on."""

    def member(key: tuple[str, str], run_id: str, *, is_here: bool) -> query_pb2.JobMember:
        gpu = gpus.get((key[1], key[0]))
        return query_pb2.JobMember(
            run_id=run_id,
            agent_id=key[0],
            host_name=gpu.host_name if gpu else "",
            gpu_uuid=key[1],
            product_name=gpu_message(gpu).product_name,
            active=is_here,
        )

    given = {hold.gpu for hold in of.held}
    for run in reversed(of.runs):
        key = (run.agent_id, run.gpu_uuid)
        yield member(key, run.run_id, is_here=not run.ended or key in given)
    worked = {(run.agent_id, run.gpu_uuid) for run in of.runs}
    for hold in of.held:
        if hold.gpu not in worked:
            yield member(hold.gpu, "", is_here=True)


def _add_slowness(job: query_pb2.Job, of: JobRuns, gpus: _Gpus, since: int, slow_jobs: SlowJobs | None) -> None:
    """Say of a job since when it is slower, why, and who may drag it."""
    job.state_time.CopyFrom(timestamp(since))
    if slow_jobs is not None:
        found = slow_jobs.explain(job.job_id, of.open_runs, gpus, since)
        job.reason = "; ".join(filter(None, [job.reason, found.reason]))
        job.slow_devices.extend(found.devices)


def gpus_of(job: query_pb2.Job) -> set[tuple[str, str]]:
    """Return agent and UUID of the GPUs that a job has, of one that is over of those that it had."""
    return {(each.agent_id, each.gpu_uuid) for each in job.members if each.active or not job.active}


def _add_idleness(job: query_pb2.Job, store: Store, of: JobRuns, now: int, least_activity: float) -> None:
    """Say of a job whose GPUs all rest that its scheduler still gives them to it."""
    since = max(of.reached_unix_nano, min(hold.binding.start_unix_nano for hold in of.held))
    silent = sorted({hold.agent_id for hold in of.held if not hold.is_heard})
    job.state_time.CopyFrom(timestamp(since))
    worked = "has worked since" if of.runs else "has ever worked"
    job.reason = f"none of its {len(of.held)} GPUs {worked}, and the scheduler still gives them to it"
    job.state, job.confidence = query_pb2.JOB_STATE_IDLE, 0.9
    against = [f"nothing is heard of {', '.join(silent)}"] if silent else []
    uses = {gpu: _use(store, gpu, now, least_activity) for gpu in sorted({hold.binding.gpu_uuid for hold in of.held})}
    if dumb := [gpu for gpu, use in uses.items() if math.isnan(use)]:
        against.append(f"nothing tells whether {', '.join(dumb[:_MOST_NAMED])} is in use")
    if busy := [gpu for gpu, use in uses.items() if use > _SOME_USE]:
        against.append(f"{', '.join(busy[:_MOST_NAMED])} work, and what was sent of them is not looked at yet")
    if against:
        job.state, job.confidence = query_pb2.JOB_STATE_UNKNOWN, 0.0
        job.reason = "; ".join([*against, job.reason])


def _use(store: Store, gpu_uuid: str, now: int, least_activity: float) -> float:
    """Return in which share of its latest ticks a GPU works; NaN where they do not say, 0 where there are none."""
    names = [name for name in store.facts.metrics(gpu_uuid) if has_activity([name])]
    samples = store.samples.read(gpu_uuid, now - _LATELY_NS, now + 1, names)
    if not len(samples):
        samples = store.samples.read(gpu_uuid, now - SILENT_NS, now + 1, names)
        samples = samples.take(
            np.flatnonzero(samples.time_unix_nano > samples.time_unix_nano.max(initial=0) - _LATELY_NS)
        )
    activity = measure_activity(samples)
    known = activity[np.isfinite(activity)]
    if not known.size:
        return math.nan if len(samples) else 0.0
    return float((known > least_activity).mean())


def _alerts(results: ResultStore, job: query_pb2.Job, of: JobRuns) -> Iterator[query_pb2.JobAlert]:
    """Yield the alerts about a job, and about no other one that had or has its name."""
    first = min([of.start_unix_nano, *(hold.binding.start_unix_nano for hold in of.held)])
    behind = (job.end_time.ToNanoseconds() + 1, "", "")
    for row in results.alerts(job_id=job.job_id, before=behind, limit=_MOST_ALERTS):
        if row.scheduler == job.scheduler and (row.end_unix_nano or row.start_unix_nano) >= first:
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


def _add_state(job: query_pb2.Job, parts: Mapping[str, JobPart], of: JobRuns, now: int) -> Sequence[StateSpan]:
    """Add what the job is doing: what the most of its GPUs do, with the hosts named that do otherwise.

    Returns:
        The states of a host that does what most do, with the end of each.
    """
    here = of.agents_now
    known = {agent_id: part for agent_id, part in parts.items() if agent_id in here or not here}
    if not job.active:
        last = max(of.runs, key=lambda run: run.end_unix_nano)
        job.state, job.reason, job.confidence = query_pb2.JOB_STATE_ENDED, last.end_reason, 1.0
        job.state_time.CopyFrom(job.end_time)
    elif not known:
        job.state, job.reason = query_pb2.JOB_STATE_UNKNOWN, "nothing is known of its state yet"
        job.state_time.CopyFrom(job.start_time)
    if not known:
        return ()
    silent = _silent(of.open_runs, now)
    heard = {agent_id: part for agent_id, part in known.items() if agent_id not in silent}
    state, agents = _most(heard or known)
    told = known[agents[0]].states
    if job.active:
        row, end = told[-1]
        unheard = [f"nothing is heard of {', '.join(sorted(silent))}"] if silent else []
        if heard:
            job.state, job.confidence = _state(state), row.confidence
            others = [f"{agent_id} is {part.state}" for agent_id, part in heard.items() if agent_id not in agents]
            if dumb := sorted({run.agent_id for run in of.open_runs} - heard.keys() - silent):
                others.append(f"nothing is known of {', '.join(dumb)}")
            job.reason = "; ".join([row.reason, *others, *_apart(of.open_runs, now), *unheard])
            job.state_time.CopyFrom(timestamp(row.start_unix_nano))
        else:
            job.state, job.reason = query_pb2.JOB_STATE_UNKNOWN, f"{unheard[0]}; before that: {row.reason}"
            job.state_time.CopyFrom(timestamp(end))
    # What it does now is no history, unless nobody knows any more that it does.
    before = told[:-1] if of.open_runs and heard else told
    job.history.extend(
        query_pb2.JobStateSpan(
            state=_state(row.state), start_time=timestamp(row.start_unix_nano), end_time=timestamp(end)
        )
        for row, end in before[-_MOST_SPANS:]
    )
    return told


def _most(parts: Mapping[str, JobPart]) -> tuple[str, list[str]]:
    """Return the state in which most GPUs are, and the agents in it."""
    counts: dict[str, int] = {}
    for part in parts.values():
        counts[part.state] = counts.get(part.state, 0) + len(part.gpus)
    state = max(counts, key=lambda name: counts[name])
    return state, [agent_id for agent_id, part in parts.items() if part.state == state]


def _silent(open_runs: Sequence[RunRow], now: int) -> set[str]:
    """Return the agents that have sent no ticks of runs that go on for minutes, but did within a day.

    Ticks that are older are those of a recording; runs of an agent that is silent for longer end.
    """
    latest: dict[str, int] = {}
    for run in open_runs:
        latest[run.agent_id] = max(latest.get(run.agent_id, 0), run.end_unix_nano)
    return {agent_id for agent_id, at in latest.items() if SILENT_NS < now - at < _DAY_NS}


def _apart(open_runs: Sequence[RunRow], now: int) -> Iterator[str]:
    """Say whose ticks end seconds before or after those of the other hosts, which shifts their states."""
    latest = {run.agent_id: run.end_unix_nano for run in sorted(open_runs, key=lambda run: run.end_unix_nano)}
    live = {agent_id: at for agent_id, at in latest.items() if abs(now - at) <= SILENT_NS}
    in_order = sorted(live.values())
    # Of the two in the middle, the one that is nearer to the collector's clock: of two hosts one may be late.
    middle = min(in_order[(len(live) - 1) // 2 : len(live) // 2 + 1], key=lambda at: abs(now - at), default=0)
    apart = [(agent_id, at) for agent_id, at in sorted(live.items()) if abs(at - middle) > _TOGETHER_NS]
    for agent_id, at in apart[:_MOST_NAMED]:
        seconds, way = round(abs(at - middle) / 1e9), "ahead of" if at > middle else "behind"
        yield f"the newest ticks of {agent_id} are {seconds} s {way} the others' (clock or backlog)"
    if len(apart) > _MOST_NAMED:
        yield f"those of {count(len(apart) - _MOST_NAMED, 'more host')} likewise"


def _add_goodput(job: query_pb2.Job, parts: Mapping[str, JobPart], of: JobRuns, *, rests: bool) -> None:
    """Add in which share of its GPUs' time a job got on; where it rests, up to now."""
    good, total = goodput(parts.values())
    if rests:
        until, worked = job.end_time.ToNanoseconds(), of.reached_unix_nano
        total += sum(max(0, until - max(worked, hold.binding.start_unix_nano)) for hold in of.held)
    if total:
        job.goodput_ratio = good / total
        job.gpu_time.FromNanoseconds(total)


def _add_rest(job: query_pb2.Job, store: Store, found: Sequence[Span], window_ns: int | None, now: int) -> None:
    """Add the longest pause of a job and, of a window that is asked for, what its processes did."""
    longest_ns = max((end - begin for begin, end in found), default=0)
    if window_ns is not None:
        # Short pauses are shorter than the window, whatever rested in them.
        long = [begin for begin, end in found if end - begin > window_ns / _SHORT_PAUSE]
        looks = JobLooks(store.facts, gpus_of(job), window_ns, now, min(long, default=now))
        if (processes := looks.processes()) is not None:
            job.processes.CopyFrom(processes)
            longest_ns = looks.longest_rest(found)
    if longest_ns:
        job.longest_pause.FromNanoseconds(longest_ns)


def _state(name: str) -> query_pb2.JobState:
    return cast(query_pb2.JobState, STATES.get(name, query_pb2.JOB_STATE_UNKNOWN))


def _add_progress(
    job: query_pb2.Job,
    results: ResultStore,
    members: Sequence[RunRow],
    states: Sequence[StateSpan],
    request: query_pb2.ListJobsRequest,
) -> None:
    """Add the level that measures the progress and, where that is asked for, how far it is and when it ends."""
    run = max(members, key=lambda run: (not run.ended, run.end_unix_nano))
    tree = JobTree.of(tree_parts(results, run)).listed()
    job.deviations.extend(deviation_messages(tree))
    level = tree.level
    if request.total_role:
        same = [i for i in range(len(tree.cycles)) if ROLES[told_role(tree.cycles, i)] == request.total_role]
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
