"""Runs as messages, and the words that they share with epochs."""

from __future__ import annotations

import math
from typing import cast

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from gpusonde.collector.query.errors import InvalidQuestionError, NotFoundError
from gpusonde.collector.query.paging import from_token, page_size, to_token
from gpusonde.collector.storage.engine import ResultStore
from gpusonde.collector.storage.store import Store
from gpusonde.collector.storage.tables.facts import GpuRow
from gpusonde.collector.storage.tables.results import RunRow
from gpusonde.common.v1 import gpu_pb2, job_pb2
from gpusonde.query.v1 import query_pb2

# That of google.protobuf.Duration, about 10,000 years.
_LONGEST_DURATION_S = 315_576_000_000
VERDICTS = {
    "epochs": query_pb2.EPOCH_VERDICT_EPOCHS,
    "short_cycle": query_pb2.EPOCH_VERDICT_SHORT_CYCLE,
    "none": query_pb2.EPOCH_VERDICT_NONE,
}


def find_run(results: ResultStore, run_id: str) -> RunRow:
    """Return a run.

    Raises:
        NotFoundError: There is none of that name.
    """
    run = results.run(run_id)
    if run is None:
        raise NotFoundError(f"no run {run_id[:80]!r}; ListRuns ('gpusonde runs') names those there are")
    return run


def list_runs(results: ResultStore, store: Store, request: query_pb2.ListRunsRequest) -> query_pb2.ListRunsResponse:
    """Answer ``ListRuns``."""
    limit = page_size(request.page_size, 100, 1000)
    place = from_token(request.page_token, (int, str))
    before = (int(place[0]), str(place[1])) if place else None
    runs = results.runs(gpu_uuid=request.gpu_uuid, job_id=request.job_id, before=before, limit=limit + 1)
    page = runs[:limit]
    gpus = {(gpu.gpu_uuid, gpu.agent_id): gpu for gpu in store.gpus()}
    response = query_pb2.ListRunsResponse(runs=[_run(run, gpus.get((run.gpu_uuid, run.agent_id))) for run in page])
    if len(runs) > limit:
        response.next_page_token = to_token([page[-1].start_unix_nano, page[-1].run_id])
    return response


def nanoseconds(message: Timestamp | Duration, field: str) -> int:
    """Return a time or a duration of a request.

    Raises:
        InvalidQuestionError: It is outside of what such a message may hold.
    """
    # The library looks at times and, for now, not at durations.
    if isinstance(message, Duration) and abs(message.seconds) > _LONGEST_DURATION_S:
        raise InvalidQuestionError(f"field {field!r}: {message.seconds} s is no duration")
    try:
        return int(message.ToNanoseconds())
    except ValueError as error:
        raise InvalidQuestionError(f"field {field!r}: {error}") from None


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
