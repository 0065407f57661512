"""Rows of a store, whichever engine keeps them: records on their way in, facts and results on their way out.

Samples come as columns; see ``samples``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.service.wire import (
    DecodedRecord,
    InventoryRecord,
    JobActivity,
    Limits,
    decode_activity,
    decode_record,
)

if TYPE_CHECKING:
    from gpusonde.epoch_detect import Cycle

# What the store holds has passed the limits of its day; reading it back must not depend on today's.
STORED_LIMITS = Limits(
    record_bytes=1 << 28, gpus=1 << 20, metrics=1 << 16, blocks=1 << 20, ticks=1 << 24, items=1 << 20, text=1 << 16,
    labels=1 << 16,
)  # fmt: skip


class Position(NamedTuple):
    """Place of a record in the order of arrival of one agent.

    Attributes:
        spool: The collector's own number of the spool; spools of one agent are numbered in order of first arrival.
        sequence: Sequence number inside the spool.
    """

    spool: int
    sequence: int


@dataclass(frozen=True)
class RejectedRecord:
    """A record that was refused again and again; its bytes lie in the quarantine."""

    field: str
    problem: str
    size_bytes: int
    file_name: str


StoredRecord = DecodedRecord | RejectedRecord


class EntryKind(IntEnum):
    """What the payload of an entry is."""

    RECORD = 1  # a serialised gpusonde.ingest.v1.Record
    REJECTION = 2  # JSON: why the record with this sequence was refused for good


@dataclass(frozen=True)
class LogEntry:
    """One entry of the log."""

    agent_id: str
    spool_id: str
    sequence: int
    received_unix_nano: int
    kind: EntryKind
    payload: bytes


@dataclass(frozen=True)
class PendingRecord:
    """A record to be stored: as it came and decoded."""

    entry: LogEntry
    decoded: StoredRecord


@dataclass(frozen=True)
class AgentRow:
    """An agent as it introduced itself last; with ``first_sequence``, which is not kept, its spool begins."""

    agent_id: str
    spool_id: str
    instance_id: str
    start_unix_nano: int
    host_name: str
    agent_version: str
    host: bytes
    first_sequence: int = 1


@dataclass(frozen=True)
class SpoolStanding:
    """Where a spool stands as its agent comes.

    Attributes:
        durable_sequence: Sequence up to which it is durable.
        inventory: Its latest durable inventory, if there is one.
    """

    durable_sequence: int
    inventory: InventoryRecord | None


@dataclass(frozen=True)
class GpuRow:
    """A GPU as an agent described it last; ``message`` is a serialised ``gpusonde.common.v1.Gpu``."""

    gpu_uuid: str
    agent_id: str
    host_name: str
    message: bytes
    metrics: tuple[str, ...]


@dataclass(frozen=True)
class LossRow:
    """Records that will never come.

    Attributes:
        agent_id: Whose.
        spool_id: Of which spool.
        first_sequence: First lost one; 0 when ticks were lost before they became records.
        last_sequence: Last lost one.
        reason: A ``gpusonde.ingest.v1.LossReason``; unspecified for a gap.
        lost_ticks: Ticks the agent counted, 0 when nobody knows.
        reported: True when the agent reported it, False when the collector saw the gap.
    """

    agent_id: str
    spool_id: str
    first_sequence: int
    last_sequence: int
    reason: int
    lost_ticks: int
    reported: bool


@dataclass(frozen=True)
class RejectionRow:
    """A record that was refused for good and where its bytes are."""

    agent_id: str
    spool_id: str
    sequence: int
    field: str
    problem: str
    size_bytes: int
    file_name: str


@dataclass(frozen=True)
class RunRow:
    """One run.

    Attributes:
        run_id: Stable name: the same ticks give the same id.
        agent_id: Agent that sampled it.
        gpu_uuid: Its GPU.
        job_id: Scheduler's job, empty when unknown.
        scheduler: A ``gpusonde.common.v1.Scheduler``.
        ended: Whether it is over.
        end_reason: Why it is over, for a human reader.
        start_unix_nano: First activity.
        end_unix_nano: Latest tick while it goes on, last activity when it is over.
        first_spool: Spool of its first record.
        first_sequence: Sequence of its first record.
        last_spool: Spool of its last record.
        last_sequence: Sequence of its last record.
        tick_count: Ticks from start to end.
        missed_ticks: Ticks the sampler skipped meanwhile.
        verdict: ``epochs``, ``short_cycle`` or ``none``; empty before the first analysis.
        reason: Why the verdict is what it is.
        period_s: Typical epoch duration; NaN when unknown, like both bounds.
        period_low_s: Lower end of its interval.
        period_high_s: Upper end of its interval.
        confidence: 0..1.
        epoch_count: Epochs that were not withdrawn; 0 while none is confirmed.
        idle_share: Share of the time from first to last activity in which the GPU did not work; NaN when unknown.
        stalled_share: Share of it lost to unusual idle and between epochs; NaN when unknown.
    """

    run_id: str
    agent_id: str
    gpu_uuid: str
    job_id: str
    scheduler: int
    ended: bool
    end_reason: str
    start_unix_nano: int
    end_unix_nano: int
    first_spool: int
    first_sequence: int
    last_spool: int
    last_sequence: int
    tick_count: int
    missed_ticks: int
    verdict: str = ""
    reason: str = ""
    period_s: float = math.nan
    period_low_s: float = math.nan
    period_high_s: float = math.nan
    confidence: float = 0.0
    epoch_count: int = 0
    idle_share: float = math.nan
    stalled_share: float = math.nan

    @property
    def first(self) -> Position:
        """Its first record."""
        return Position(self.first_spool, self.first_sequence)

    @property
    def last(self) -> Position:
        """Its last record."""
        return Position(self.last_spool, self.last_sequence)


@dataclass(frozen=True)
class EpochRow:
    """One epoch of a run as it stands.

    Attributes:
        index: Identifies it within the run; order the epochs by start.
        start_unix_nano: Start.
        end_unix_nano: End.
        confidence: 0..1.
        status: ``provisional``, ``confirmed``, ``other_level`` (of another level of the tree than the one told) or
            ``withdrawn``.
        revision: How often the tracker had changed its mind about the run when this last changed.
    """

    index: int
    start_unix_nano: int
    end_unix_nano: int
    confidence: float
    status: str
    revision: int

    @property
    def stands(self) -> bool:
        """Whether it is one of the epochs that are told."""
        return self.status in ("provisional", "confirmed")


@dataclass(frozen=True)
class SummaryRow:
    """What the ticks of one epoch add up to.

    Attributes:
        seen_share: Share of the epoch that ticks speak for, 0..1.
        energy_joules: Energy used in it; NaN when unknown.
        means: Metric -> mean over the epoch, without metrics that had no value.
    """

    seen_share: float
    energy_joules: float
    means: Mapping[str, float]


@dataclass(frozen=True)
class CycleRow:
    """One level of the tree of cycles of a run's job; see ``gpusonde.epoch_detect.Cycle``.

    Attributes:
        period_s: Typical seconds from start to start.
        period_low_s: Lower end of its interval.
        period_high_s: Upper end of its interval.
        count: Whole cycles seen.
        confidence: That the level is real, 0..1.
        role: ``step``, ``evaluation``, ``checkpoint``, ``epoch``, ``trial`` or ``unknown``.
        role_confidence: 0..1.
        parent: Index of the level that this one is nested in; None for the outermost.
        starts_unix_nano: The latest starts, at most ``MOST_STARTS``: a run has a million steps.
        confirmed: Whether it has held for six of its own cycles or two of its parent's.
    """

    period_s: float
    period_low_s: float
    period_high_s: float
    count: int
    confidence: float
    role: str
    role_confidence: float
    parent: int | None
    starts_unix_nano: tuple[int, ...]
    # Trees of a time at which this was not stored are told as they were then.
    confirmed: bool = True

    @classmethod
    def of(cls, cycle: Cycle, starts_unix_nano: tuple[int, ...], *, confirmed: bool) -> CycleRow:
        """Return a level that was found, with its latest starts."""
        return cls(
            cycle.period_s,
            cycle.period_low_s,
            cycle.period_high_s,
            cycle.count,
            cycle.confidence,
            str(cycle.role),
            cycle.role_confidence,
            cycle.parent,
            starts_unix_nano,
            confirmed=confirmed,
        )


MOST_STARTS = 64
# Of a run, that a question reads: the latest. A job that evaluates every minute has so many in a day.
MOST_STATES = 2000


@dataclass(frozen=True)
class DeviationRow:
    """What one GPU of a job does otherwise than the others; see ``gpusonde.epoch_detect.Deviation``."""

    gpu_uuid: str
    kind: str
    amount: float


@dataclass(frozen=True)
class CycleTree:
    """The tree of cycles of a run's job.

    Attributes:
        cycles: The levels, shortest first.
        level: Index of the level that the run's period and epochs tell; None if it is none of them.
        deviations: GPUs of the job that do otherwise than the others.
        run_state: ``training``, ``serving``, ``idle`` or ``other``; empty where it was not judged.
        run_state_confidence: 0..1.
    """

    cycles: tuple[CycleRow, ...] = ()
    level: int | None = None
    deviations: tuple[DeviationRow, ...] = ()
    run_state: str = ""
    run_state_confidence: float = 0.0


@dataclass(frozen=True)
class JobStateRow:
    """From when on a run's job is in a state; see ``gpusonde.epoch_detect.progress.JobState``.

    Attributes:
        start_unix_nano: Since when; until the next one begins, or the run ends.
        state: Which; empty where none begins at that time any more.
        reason: What it rests on, for a human reader.
        confidence: 0..1.
    """

    start_unix_nano: int
    state: str
    reason: str
    confidence: float


@dataclass(frozen=True)
class AlertRow:
    """An alert about a job.

    Attributes:
        scheduler: A ``gpusonde.common.v1.Scheduler``; of a run that none is known of, unspecified.
        job_id: The job.
        rule: The state that it was in for too long.
        start_unix_nano: Since when.
        end_unix_nano: When it was over; 0 while it is not.
        reason: What it rests on, for a human reader.
        agent_id: Of the job's first run: who follows that agent raises the alert and ends it.
        untold: Whether the webhook has not taken it as it stands.
    """

    scheduler: int
    job_id: str
    rule: str
    start_unix_nano: int
    end_unix_nano: int
    reason: str
    agent_id: str
    untold: bool = False


@dataclass(frozen=True)
class RunUpdate:
    """A run and, where they changed, all its epochs and the tree of cycles, and states that are new or have changed."""

    run: RunRow
    epochs: Sequence[EpochRow] | None
    tree: CycleTree | None = None
    states: Sequence[JobStateRow] = ()


@dataclass(frozen=True)
class StoreUsage:
    """How much is kept.

    Attributes:
        tier_bytes: Size on disk by tier: raw (ticks), second (averages), log, catalog, lost_found (segments set
            aside).
        free_bytes: Free space where it lies; None where that is not ours to know.
    """

    tier_bytes: Mapping[str, int]
    free_bytes: int | None = None


def read_activity(message: bytes, *gpu_uuids: str) -> JobActivity | None:
    """Return a stored message about what processes did, or None if it is about none of these GPUs."""
    (job,) = decode_activity(ingest_pb2.JobActivity.FromString(message), STORED_LIMITS).jobs
    return None if set(gpu_uuids).isdisjoint(job.gpu_uuids) else job


def decode_inventory(message: bytes) -> InventoryRecord | None:
    """Return the inventory in a serialised record as it was stored, or None if it holds something else."""
    decoded = decode_record(ingest_pb2.Record.FromString(message), None, STORED_LIMITS)
    return decoded if isinstance(decoded, InventoryRecord) else None
