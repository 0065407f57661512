"""``ListEpochs``: the epochs of a run, what each used, and what they tell together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from gpusonde.collector.query.errors import InvalidQuestionError
from gpusonde.collector.query.paging import from_token, page_size, to_token
from gpusonde.collector.query.runs import VERDICTS, duration, find_run, timestamp
from gpusonde.collector.storage.engine import ResultStore
from gpusonde.collector.storage.tables.results import EpochRow, RunRow, SummaryRow
from gpusonde.epoch_detect.progress import COVERAGE, FEWEST_EPOCHS, TotalEpochsError, duration_trend, estimate_end
from gpusonde.query.v1 import query_pb2

_STATUSES = {
    "provisional": query_pb2.EPOCH_STATUS_PROVISIONAL,
    "confirmed": query_pb2.EPOCH_STATUS_CONFIRMED,
    "withdrawn": query_pb2.EPOCH_STATUS_WITHDRAWN,
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
        NotFoundError: No such run.
        InvalidQuestionError: A page that cannot be, or fewer epochs in total than are over.
    """
    limit = page_size(request.page_size, 1000, 10_000)
    place = from_token(request.page_token, (int, int))
    run = find_run(results, request.run_id)
    everything = results.epochs(run.run_id)
    standing = [epoch for epoch in everything if epoch.status != "withdrawn"]
    response = query_pb2.ListEpochsResponse(
        verdict=VERDICTS.get(run.verdict, query_pb2.EPOCH_VERDICT_UNSPECIFIED),
        reason=run.reason or _NOT_ANALYSED,
        trend=_trend(standing),
        idle_share=None if math.isnan(run.idle_share) else run.idle_share,
        stalled_share=None if math.isnan(run.stalled_share) else run.stalled_share,
        pending_summaries=results.count_to_summarise(run.run_id),
    )
    if request.total_epochs:
        _estimate(response, run, standing, request.total_epochs)
    listed = everything if request.include_withdrawn else standing
    if place:
        last = (int(place[0]), int(place[1]))
        listed = [epoch for epoch in listed if (epoch.start_unix_nano, epoch.index) > last]
    page = listed[:limit]
    response.epochs.extend(_within_a_page(page, results.summaries(run.run_id, page)))
    count = len(response.epochs)
    if len(listed) > count:
        response.next_page_token = to_token([listed[count - 1].start_unix_nano, listed[count - 1].index])
    return response


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
    response: query_pb2.ListEpochsResponse, run: RunRow, epochs: Sequence[EpochRow], total_epochs: int
) -> None:
    """Add the estimate, or why there is none yet."""
    if len(epochs) < FEWEST_EPOCHS:
        response.estimate_reason = (
            f"{len(epochs)} epochs are over; at least {FEWEST_EPOCHS} are needed to say when the job will be done"
        )
        return
    origin = run.start_unix_nano
    starts_s = np.array([(epoch.start_unix_nano - origin) / 1e9 for epoch in epochs])
    ends_s = np.array([(epoch.end_unix_nano - origin) / 1e9 for epoch in epochs])
    try:
        estimate = estimate_end(starts_s, ends_s, total_epochs, (run.end_unix_nano - origin) / 1e9)
    except TotalEpochsError as error:
        raise InvalidQuestionError(
            f"field 'total_epochs': {error}; give the number with which the job was started, or leave it out"
        ) from None
    if origin / 1e9 + estimate.end_high_s > _LATEST_UNIX_S:
        raise InvalidQuestionError(
            f"field 'total_epochs': {total_epochs} epochs as long as these end after the year 9999; give the number"
            " with which the job was started, or leave it out"
        )
    response.estimate.CopyFrom(
        query_pb2.EndEstimate(
            epochs_done=estimate.epochs_done,
            epochs_left=estimate.epochs_left,
            end_time=timestamp(origin + round(estimate.end_s * 1e9)),
            end_time_lower=timestamp(origin + round(estimate.end_low_s * 1e9)),
            end_time_upper=timestamp(origin + round(estimate.end_high_s * 1e9)),
            interval_coverage=COVERAGE,
        )
    )
