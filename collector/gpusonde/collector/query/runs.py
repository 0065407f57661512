"""``ListRuns``, ``GetRun``, ``ListEpochs``: runs as messages, their epochs, what each used, what they tell together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import numpy as np
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from gpusonde.collector.query.job_tree import JobTree, TreePart
from gpusonde.collector.query.paging import from_token, page_size, to_token
from gpusonde.collector.storage.model import (
    CycleRow,
    CycleTree,
    EpochRow,
    GpuRow,
    JobStateRow,
    RunRow,
    SummaryRow,
)
from gpusonde.collector.storage.store import ResultStore, Store
from gpusonde.collector.tracking.jobs import job_of
from gpusonde.common.v1 import gpu_pb2, job_pb2
from gpusonde.epoch_detect import told_role
from gpusonde.epoch_detect.progress import (
    COVERAGE,
    EndEstimate,
    JobState,
    duration_trend,
    estimate_end,
)
from gpusonde.errors import RequestError, TotalEpochsError, TotalPassedError
from gpusonde.query.v1 import query_pb2
from gpusonde.telemetry import FloatArray

# Of all hosts of a job.
MOST_RUNS_OF_A_JOB = 10_000
# That of google.protobuf.Duration, about 10,000 years.
_LONGEST_DURATION_S = 315_576_000_000
END_OF_TIME = 1 << 62
# Runs that one answer goes through where few of them are asked for.
_MOST_LOOKED_AT = 20_000
VERDICTS = {
    "epochs": query_pb2.EPOCH_VERDICT_EPOCHS,
    "short_cycle": query_pb2.EPOCH_VERDICT_SHORT_CYCLE,
    "none": query_pb2.EPOCH_VERDICT_NONE,
}


def find_run(results: ResultStore, run_id: str) -> RunRow:
    """Return a run.

    Raises:
        RequestError: There is none of that name (``NOT_FOUND``), or no name (``INVALID_ARGUMENT``).
    """
    if not run_id:
        raise RequestError(
            "INVALID_ARGUMENT", "field 'run_id': is empty; ListRuns ('gpusonde runs') names those there are"
        )
    run = results.run(run_id)
    if run is None:
        raise RequestError("NOT_FOUND", f"no run {run_id[:80]!r}; ListRuns ('gpusonde runs') names those there are")
    return run


def list_runs(store: Store, request: query_pb2.ListRunsRequest) -> query_pb2.ListRunsResponse:
    """Answer ``ListRuns``.

    Raises:
        RequestError: A page or a time that cannot be (``INVALID_ARGUMENT``).
    """
    limit = page_size(request.page_size, 100, 1000)
    place = from_token(request.page_token, (int, str))
    chosen = Chosen(store, request)
    before = (int(place[0]), str(place[1])) if place else chosen.first_place
    page: list[RunRow] = []
    goes_on, looked_at = True, 0
    while goes_on and len(page) < limit and looked_at < _MOST_LOOKED_AT:
        rows = store.results.runs(
            gpu_uuid=request.gpu_uuid,
            job_id=request.job_id,
            open_only=request.status == query_pb2.RUN_STATUS_ACTIVE,
            before=before,
            limit=limit + 1,
        )
        goes_on, looked_at = len(rows) > limit, looked_at + limit
        for run in rows[:limit]:
            if len(page) == limit:
                goes_on = True
                break
            before = run.start_unix_nano, run.run_id
            if chosen.has(run) and (request.status != query_pb2.RUN_STATUS_ENDED or run.ended):
                page.append(run)
    response = query_pb2.ListRunsResponse(runs=_run_messages(store, page))
    if goes_on and before:
        response.next_page_token = to_token([*before])
    return response


def get_run(store: Store, request: query_pb2.GetRunRequest) -> query_pb2.GetRunResponse:
    """Answer ``GetRun``.

    Raises:
        RequestError: No such run (``NOT_FOUND``), or no name (``INVALID_ARGUMENT``).
    """
    return query_pb2.GetRunResponse(run=_run_messages(store, [find_run(store.results, request.run_id)])[0])


class Chosen:
    """Which runs a list is of, by time, host and agent.

    Args:
        store: Knows hosts.
        request: Has ``start_time``, ``end_time``, ``host_name`` and ``agent_id``.

    Raises:
        RequestError: The end comes before the start (``INVALID_ARGUMENT``).
    """

    def __init__(self, store: Store, request: query_pb2.ListRunsRequest | query_pb2.ListJobsRequest) -> None:
        self._start, self._end = time_range(request)
        self._agent_id = request.agent_id
        self._on_host = (
            {(gpu.gpu_uuid, gpu.agent_id) for gpu in store.facts.gpus() if gpu.host_name == request.host_name}
            if request.host_name
            else None
        )

    @property
    def first_place(self) -> tuple[int, str] | None:
        """The place in a list, newest first, before which none of them stands."""
        return (self._end, "") if self._end < END_OF_TIME else None

    def has(self, run: RunRow) -> bool:
        """Return whether a run is one of them."""
        return self.has_time(run.start_unix_nano, run.end_unix_nano) and self.has_gpu(run.agent_id, run.gpu_uuid)

    def has_time(self, start_unix_nano: int, end_unix_nano: int) -> bool:
        """Return whether something from one time to another is one of them."""
        return start_unix_nano < self._end and end_unix_nano >= self._start

    def has_gpu(self, agent_id: str, gpu_uuid: str) -> bool:
        """Return whether a GPU is one of them."""
        if self._agent_id and agent_id != self._agent_id:
            return False
        return self._on_host is None or (gpu_uuid, agent_id) in self._on_host


def time_range(
    request: query_pb2.ListRunsRequest
    | query_pb2.ListJobsRequest
    | query_pb2.ReadSamplesRequest
    | query_pb2.DecimateSamplesRequest,
) -> tuple[int, int]:
    """Return start and end that a request names, Unix nanoseconds; all of time where it does not.

    Raises:
        RequestError: The end comes before the start, or one of them cannot be (``INVALID_ARGUMENT``).
    """
    start = nanoseconds(request.start_time, "start_time") if request.HasField("start_time") else 0
    end = nanoseconds(request.end_time, "end_time") if request.HasField("end_time") else END_OF_TIME
    # Such a message holds the year 9999, and a store's 64 bits of nanoseconds do not.
    start, end = (min(max(time, 0), END_OF_TIME) for time in (start, end))
    if end < start:
        raise RequestError("INVALID_ARGUMENT", "field 'end_time': comes before start_time")
    return start, end


def nanoseconds(message: Timestamp | Duration, field: str) -> int:
    """Return a time or a duration of a request.

    Raises:
        RequestError: It is outside of what such a message may hold (``INVALID_ARGUMENT``).
    """
    # The library looks at times and, for now, not at durations.
    if isinstance(message, Duration) and abs(message.seconds) > _LONGEST_DURATION_S:
        raise RequestError("INVALID_ARGUMENT", f"field {field!r}: {message.seconds} s is no duration")
    try:
        return int(message.ToNanoseconds())
    except ValueError as error:
        raise RequestError("INVALID_ARGUMENT", f"field {field!r}: {error}") from None


def timestamp(unix_nano: int) -> Timestamp:
    """Return a time as a message."""
    message = Timestamp()
    message.FromNanoseconds(unix_nano)
    return message


def duration(seconds: float) -> Duration | None:
    """Return a duration as a message, None for one that is not known."""
    if not math.isfinite(seconds):
        return None
    message = Duration()
    message.FromNanoseconds(round(seconds * 1e9))
    return message


def gpu_message(gpu: GpuRow | None) -> gpu_pb2.Gpu:
    """Return a GPU as its agent described it."""
    return gpu_pb2.Gpu.FromString(gpu.message) if gpu else gpu_pb2.Gpu()


def _run_messages(store: Store, runs: Sequence[RunRow]) -> list[query_pb2.Run]:
    # Of theirs: a fleet has had thousands.
    described = store.facts.gpus({run.gpu_uuid for run in runs})
    gpus = {(gpu.gpu_uuid, gpu.agent_id): gpu for gpu in described}
    return [_run(run, gpus.get((run.gpu_uuid, run.agent_id))) for run in runs]


def _run(run: RunRow, gpu: GpuRow | None) -> query_pb2.Run:
    described = gpu_message(gpu)
    return query_pb2.Run(
        run_id=run.run_id,
        agent_id=run.agent_id,
        gpu_uuid=run.gpu_uuid,
        product_name=described.product_name,
        job_id=run.job_id,
        scheduler=cast(job_pb2.Scheduler, run.scheduler),  # enums are open: any number is fine
        status=query_pb2.RUN_STATUS_ENDED if run.ended else query_pb2.RUN_STATUS_ACTIVE,
        start_time=timestamp(run.start_unix_nano),
        end_time=timestamp(run.end_unix_nano),
        tick_count=run.tick_count,
        missed_ticks=run.missed_ticks,
        epoch_count=run.epoch_count,
        verdict=VERDICTS.get(run.verdict, query_pb2.EPOCH_VERDICT_UNSPECIFIED),
        epoch_period=duration(run.period_s),
        epoch_period_lower=duration(run.period_low_s),
        epoch_period_upper=duration(run.period_high_s),
        confidence=run.confidence,
        replayed=described.replayed,
        host_name=gpu.host_name if gpu else "",
        framebuffer_bytes=described.framebuffer_bytes,
    )


_STATUSES = {
    "provisional": query_pb2.EPOCH_STATUS_PROVISIONAL,
    "confirmed": query_pb2.EPOCH_STATUS_CONFIRMED,
    "withdrawn": query_pb2.EPOCH_STATUS_WITHDRAWN,
    "other_level": query_pb2.EPOCH_STATUS_OTHER_LEVEL,
}
_NOT_ANALYSED = "too short so far for a first analysis"
# Half of what a gRPC client takes unless it is told otherwise; the largest epoch, of 4096 metrics, is a tenth of it.
_LARGEST_PAGE_BYTES = 2 << 20
# Tag and length around a message inside of another one.
_FRAME_BYTES = 6
# The last second that a Timestamp holds is that of the year 9999.
_LATEST_UNIX_S = 253_402_300_799


def list_epochs(results: ResultStore, request: query_pb2.ListEpochsRequest) -> query_pb2.ListEpochsResponse:
    """Answer ``ListEpochs``.

    Raises:
        RequestError: No such run (``NOT_FOUND``).
        RequestError: A page that cannot be, or fewer epochs in total than are over (``INVALID_ARGUMENT``).
    """
    limit = page_size(request.page_size, 1000, 10_000)
    place = from_token(request.page_token, (int, int))
    run = find_run(results, request.run_id)
    everything = results.epochs(run.run_id)
    counted = counted_epochs(everything)
    response = query_pb2.ListEpochsResponse(
        verdict=VERDICTS.get(run.verdict, query_pb2.EPOCH_VERDICT_UNSPECIFIED),
        reason=run.reason or _NOT_ANALYSED,
        trend=_trend(counted),
        idle_share=None if math.isnan(run.idle_share) else run.idle_share,
        stalled_share=None if math.isnan(run.stalled_share) else run.stalled_share,
        pending_summaries=results.count_to_summarise(run.run_id),
        provisional_epochs=sum(epoch.status == "provisional" for epoch in everything),
    )
    _add_tree(response, results, run, include_provisional=request.include_provisional)
    if request.total_epochs:
        states = results.states([run.run_id]).get(run.run_id, ())
        _estimate(response, run, counted, states, request.total_epochs)
    left_out = set() if request.include_withdrawn else {"withdrawn", "other_level"}
    left_out |= set() if request.include_provisional else {"provisional"}
    listed = [epoch for epoch in everything if epoch.status not in left_out]
    if place:
        last = (int(place[0]), int(place[1]))
        listed = [epoch for epoch in listed if (epoch.start_unix_nano, epoch.index) > last]
    page = listed[:limit]
    response.epochs.extend(_within_a_page(page, results.summaries(run.run_id, page)))
    count = len(response.epochs)
    if len(listed) > count:
        response.next_page_token = to_token([listed[count - 1].start_unix_nano, listed[count - 1].index])
    return response


def counted_epochs(epochs: Sequence[EpochRow]) -> list[EpochRow]:
    """Return the epochs that count: the newest ones do once there are some that the tracker is sure of."""
    standing = [epoch for epoch in epochs if epoch.stands]
    return standing if any(epoch.status != "provisional" for epoch in standing) else []


def training_spans(states: Sequence[tuple[JobStateRow, int]], origin_unix_nano: int) -> FloatArray:
    """Return when a job trained, seconds after an origin, shape (spans, 2).

    Args:
        states: What it did, in order, each with its end.
        origin_unix_nano: What they count from; what was before it, by a run that is over, is left out.
    """
    spans = [
        (max(row.start_unix_nano - origin_unix_nano, 0) / 1e9, (end - origin_unix_nano) / 1e9)
        for row, end in states
        if row.state in _TRAINS and end > origin_unix_nano
    ]
    return np.array(spans).reshape(-1, 2)


def with_ends(states: Sequence[JobStateRow], end_unix_nano: int) -> list[tuple[JobStateRow, int]]:
    """Return states with the end of each: where the next one begins, or, of the last one, where all of them end."""
    told = [row for row in states if row.state]
    last = [max(end_unix_nano, told[-1].start_unix_nano)] if told else []
    return list(zip(told, [*(row.start_unix_nano for row in told[1:]), *last], strict=True))


_TRAINS = frozenset({JobState.TRAINING, JobState.SLOWER})
ROLES = {
    "unknown": query_pb2.CYCLE_ROLE_UNKNOWN,
    "step": query_pb2.CYCLE_ROLE_STEP,
    "evaluation": query_pb2.CYCLE_ROLE_EVALUATION,
    "checkpoint": query_pb2.CYCLE_ROLE_CHECKPOINT,
    "epoch": query_pb2.CYCLE_ROLE_EPOCH,
    "trial": query_pb2.CYCLE_ROLE_TRIAL,
}


def _add_tree(
    response: query_pb2.ListEpochsResponse, results: ResultStore, run: RunRow, *, include_provisional: bool
) -> None:
    """Add the tree of cycles of a run's job on all hosts, and who does otherwise there."""
    job = JobTree.of(tree_parts(results, run))
    tree = job.tree if include_provisional else job.listed()
    response.tree_agent_id = job.agent_id
    response.run_state, response.run_state_confidence = tree.run_state, tree.run_state_confidence
    response.cycles.extend(cycle_message(cycle) for cycle in tree.cycles)
    response.provisional_cycles = sum(not cycle.confirmed for cycle in job.tree.cycles)
    if tree.level is not None:
        response.level = tree.level
    response.role = ROLES[told_role(tree.cycles, tree.level)]
    response.deviations.extend(deviation_messages(tree))
    response.host_deviations.extend(
        query_pb2.HostDeviation(agent_id=each.agent_id, kind=each.kind, amount=each.amount)
        for each in job.host_deviations
    )
    response.disagreeing_agents.extend(each.agent_id for each in job.host_deviations if each.kind == "period")


def deviation_messages(tree: CycleTree) -> list[query_pb2.GpuDeviation]:
    """Return what GPUs of a job do otherwise than the others, as messages."""
    return [
        query_pb2.GpuDeviation(gpu_uuid=each.gpu_uuid, kind=each.kind, amount=each.amount) for each in tree.deviations
    ]


def tree_parts(results: ResultStore, run: RunRow) -> list[TreePart]:
    """Return what each agent has of the job of a run while it went on: the run that began first, and its tree."""
    own, parts = results.tree(run.run_id), {run.agent_id: run}
    if job_of(run) is not None:
        for other in results.runs(job_id=run.job_id, limit=MOST_RUNS_OF_A_JOB):
            together = other.start_unix_nano <= run.end_unix_nano and run.start_unix_nano <= other.end_unix_nano
            known = parts.get(other.agent_id)
            earlier = known is None or (other.start_unix_nano, other.run_id) < (known.start_unix_nano, known.run_id)
            if other.scheduler == run.scheduler and together and earlier:
                parts[other.agent_id] = other
    found = {
        agent_id: TreePart(part, own if part is run else results.tree(part.run_id)) for agent_id, part in parts.items()
    }
    if found[run.agent_id].tree != own:
        # One that outlived those it was followed with.
        found[run.agent_id] = TreePart(run, own)
    return list(found.values())


def cycle_message(cycle: CycleRow) -> query_pb2.Cycle:
    """Return a level of a tree as a message."""
    return query_pb2.Cycle(
        period=duration(cycle.period_s),
        period_lower=duration(cycle.period_low_s),
        period_upper=duration(cycle.period_high_s),
        count=cycle.count,
        confidence=cycle.confidence,
        role=ROLES.get(cycle.role, query_pb2.CYCLE_ROLE_UNSPECIFIED),
        role_confidence=cycle.role_confidence,
        parent=cycle.parent,
        latest_start_times=[timestamp(start) for start in cycle.starts_unix_nano],
        provisional=not cycle.confirmed,
    )


def _within_a_page(epochs: Sequence[EpochRow], summaries: Mapping[int, SummaryRow]) -> Iterator[query_pb2.Epoch]:
    """Yield messages, at least one, until the page is full."""
    size = 0
    for epoch in epochs:
        message = _epoch(epoch, summaries.get(epoch.index))
        size += message.ByteSize() + _FRAME_BYTES
        if size > _LARGEST_PAGE_BYTES and epoch is not epochs[0]:
            return
        yield message


def _epoch(epoch: EpochRow, summary: SummaryRow | None) -> query_pb2.Epoch:
    return query_pb2.Epoch(
        index=epoch.index,
        start_time=timestamp(epoch.start_unix_nano),
        end_time=timestamp(epoch.end_unix_nano),
        confidence=epoch.confidence,
        status=_STATUSES.get(epoch.status, query_pb2.EPOCH_STATUS_UNSPECIFIED),
        revision=epoch.revision,
        summary=None if summary is None else _summary(summary),
    )


def _summary(summary: SummaryRow) -> query_pb2.EpochSummary:
    return query_pb2.EpochSummary(
        seen_share=summary.seen_share,
        energy_joules=None if math.isnan(summary.energy_joules) else summary.energy_joules,
        mean_metrics=[query_pb2.MetricMean(metric=name, mean=mean) for name, mean in summary.means.items()],
    )


def _trend(epochs: Sequence[EpochRow]) -> query_pb2.DurationTrend | None:
    # The first one compiles, fills caches, allocates.
    durations_s = np.array([(epoch.end_unix_nano - epoch.start_unix_nano) / 1e9 for epoch in epochs[1:]])
    if not durations_s.size:
        return None
    trend = duration_trend(durations_s)
    return query_pb2.DurationTrend(
        changes=[
            query_pb2.DurationChange(
                # Counted from 1, and with the first one.
                epoch=point.epoch + 2,
                before=duration(point.before_s),
                after=duration(point.after_s),
                change=point.change,
            )
            for point in trend.change_points
        ],
        recent=duration(trend.recent_s),
        change_per_epoch=trend.change_per_epoch,
        change_per_epoch_lower=trend.change_per_epoch_low,
        change_per_epoch_upper=trend.change_per_epoch_high,
    )


def _estimate(
    response: query_pb2.ListEpochsResponse,
    run: RunRow,
    epochs: Sequence[EpochRow],
    states: Sequence[JobStateRow],
    total_epochs: int,
) -> None:
    """Add the estimate, or why there is none yet."""
    origin = run.start_unix_nano
    starts_s = np.array([(epoch.start_unix_nano - origin) / 1e9 for epoch in epochs])
    ends_s = np.array([(epoch.end_unix_nano - origin) / 1e9 for epoch in epochs])
    try:
        training_s = training_spans(with_ends(states, run.end_unix_nano), origin)
        now_s = (run.end_unix_nano - origin) / 1e9
        estimate = estimate_end(
            starts_s, ends_s, total_epochs, now_s, training_s=training_s if training_s.size else None
        )
    except TotalPassedError as error:
        raise RequestError(
            "INVALID_ARGUMENT",
            f"field 'total_epochs': {error}; give the number with which the job was started, or leave it out",
        ) from None
    except TotalEpochsError as error:
        response.estimate_reason = str(error)
        return
    response.estimate.CopyFrom(end_estimate(estimate, origin, "total_epochs"))


def end_estimate(estimate: EndEstimate, origin_unix_nano: int, field: str) -> query_pb2.EndEstimate:
    """Return an estimate as a message.

    Args:
        estimate: On a time axis that begins at ``origin_unix_nano``.
        origin_unix_nano: Where that is.
        field: Of the request, that says of how many cycles it is.

    Raises:
        RequestError: It is later than a time can be told (``INVALID_ARGUMENT``).
    """
    if origin_unix_nano / 1e9 + estimate.end_high_s > _LATEST_UNIX_S:
        left = estimate.epochs_left
        raise RequestError(
            "INVALID_ARGUMENT",
            f"field {field!r}: {left} more as long as these end after the year 9999; give the number with which the job"
            " was started, or leave it out",
        )
    return query_pb2.EndEstimate(
        epochs_done=estimate.epochs_done,
        epochs_left=estimate.epochs_left,
        end_time=timestamp(origin_unix_nano + round(estimate.end_s * 1e9)),
        end_time_lower=timestamp(origin_unix_nano + round(estimate.end_low_s * 1e9)),
        end_time_upper=timestamp(origin_unix_nano + round(estimate.end_high_s * 1e9)),
        interval_coverage=COVERAGE,
        basis=estimate.basis,
    )
