"""LossReports: how records that were given up are told to the collector."""

from __future__ import annotations

from gpusonde.agent.spool.index import Segment
from gpusonde.ingest.v1 import ingest_pb2


def loss_record(first: int, last: int, reason: ingest_pb2.LossReason, ticks: int) -> ingest_pb2.Record:
    """Return the record that declares a loss; ``first == last == 0`` when the ticks never had a sequence."""
    return ingest_pb2.Record(
        loss_report=ingest_pb2.LossReport(
            first_lost_sequence=first, last_lost_sequence=last, reason=reason, lost_ticks=ticks
        )
    )


def loss_of(segment: Segment, unacked: int) -> ingest_pb2.LossReport:
    """Return what dropping a segment from its record ``unacked`` on loses, and what LossReports among those told."""
    loss = ingest_pb2.LossReport(
        first_lost_sequence=segment.first_sequence + unacked,
        last_lost_sequence=segment.last_sequence,
        reason=ingest_pb2.LOSS_REASON_SPOOL_FULL,
        lost_ticks=sum(segment.ticks[unacked:]),
    )
    for sequence, report in segment.loss_reports.items():
        if sequence >= segment.first_sequence + unacked:
            loss = merge(report, loss)
    return loss


def merge(earlier: ingest_pb2.LossReport, later: ingest_pb2.LossReport) -> ingest_pb2.LossReport:
    """Return one report for two losses; the range is the smallest that holds both, the ticks are their sum."""
    first = min(s for s in (earlier.first_lost_sequence, later.first_lost_sequence) if s)
    return ingest_pb2.LossReport(
        first_lost_sequence=first,
        last_lost_sequence=max(earlier.last_lost_sequence, later.last_lost_sequence),
        reason=ingest_pb2.LOSS_REASON_SPOOL_FULL,
        lost_ticks=earlier.lost_ticks + later.lost_ticks,
    )
