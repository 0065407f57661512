"""Decoded records, caps on all that an agent can send, checks of fields, and the catalogue's words as numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sized
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpusonde.common.v1 import gpu_pb2, metric_pb2
from gpusonde.errors import WireError
from gpusonde.telemetry import MetricKind, MissingReason, SamplingClass, Unit

UNITS = {
    Unit.RATIO: metric_pb2.UNIT_RATIO,
    Unit.BYTES: metric_pb2.UNIT_BYTES,
    Unit.BYTES_PER_SECOND: metric_pb2.UNIT_BYTES_PER_SECOND,
    Unit.WATTS: metric_pb2.UNIT_WATTS,
    Unit.JOULES: metric_pb2.UNIT_JOULES,
    Unit.CELSIUS: metric_pb2.UNIT_CELSIUS,
    Unit.MEGAHERTZ: metric_pb2.UNIT_MEGAHERTZ,
    Unit.COUNT: metric_pb2.UNIT_COUNT,
    Unit.BITS: metric_pb2.UNIT_BITS,
}
KINDS = {
    MetricKind.GAUGE: metric_pb2.METRIC_KIND_GAUGE,
    MetricKind.COUNTER: metric_pb2.METRIC_KIND_COUNTER,
}
SAMPLING_CLASSES = {
    SamplingClass.FAST: metric_pb2.SAMPLING_CLASS_FAST,
    SamplingClass.SLOW: metric_pb2.SAMPLING_CLASS_SLOW,
}
BLANK_REASONS = {
    MissingReason.NOT_SUPPORTED: gpu_pb2.BLANK_REASON_NOT_SUPPORTED,
    MissingReason.NO_PERMISSION: gpu_pb2.BLANK_REASON_NO_PERMISSION,
    MissingReason.NOT_FOUND: gpu_pb2.BLANK_REASON_NOT_FOUND,
    MissingReason.NO_DATA: gpu_pb2.BLANK_REASON_NO_DATA,
    MissingReason.READ_ERROR: gpu_pb2.BLANK_REASON_READ_ERROR,
    MissingReason.GPU_LOST: gpu_pb2.BLANK_REASON_GPU_LOST,
    MissingReason.OUT_OF_RANGE: gpu_pb2.BLANK_REASON_OUT_OF_RANGE,
}
_MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Upper bounds on what one agent may send; beyond them a record is refused, never truncated.

    Attributes:
        record_bytes: Serialised size of one record.
        records: Records of one request.
        agents: Agents with an open stream at the same time.
        gpus: Entries of an inventory.
        metrics: Columns of an inventory.
        blocks: Blocks of one batch.
        ticks: Ticks of one block.
        items: Bindings, events and other repeated entries of one record.
        text: Characters of one string.
        labels: Labels of one job binding.
    """

    record_bytes: int = 4 * _MEBIBYTE
    records: int = 16
    agents: int = 2000
    gpus: int = 128
    metrics: int = 128
    blocks: int = 1024
    ticks: int = 36_000
    items: int = 4096
    text: int = 256
    labels: int = 64


Int64Array = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Layout:
    """Columns of a block.

    Attributes:
        metrics: Names in column order.
        counters: Indices of the counter columns, in column order.
    """

    metrics: tuple[str, ...]
    counters: tuple[int, ...]


@dataclass(frozen=True)
class InventoryGpu:
    """One GPU (or MIG instance) of an inventory.

    Attributes:
        gpu_uuid: Key of the device everywhere in the collector: the MIG instance's UUID where there is one.
        product_name: Name as the driver spells it.
        framebuffer_bytes: Memory of the device, 0 when unknown.
        static_attributes: Figures read on the device; the unit is the suffix of the name.
        missing_metrics: Metrics the device cannot give.
        replayed: True when the samples come from a replayed or generated trace.
        message: The serialised ``gpusonde.common.v1.Gpu``.
    """

    gpu_uuid: str
    product_name: str
    framebuffer_bytes: int
    static_attributes: Mapping[str, float]
    missing_metrics: frozenset[str]
    replayed: bool
    message: bytes


@dataclass(frozen=True)
class InventoryRecord:
    """GPUs and columns that the batches after it refer to by index."""

    gpus: tuple[InventoryGpu, ...]
    layout: Layout
    source: str
    sampling_interval_us: int


@dataclass(frozen=True)
class Blanks:
    """How many values of one metric are NaN in a block, and why (a ``gpusonde.common.v1.BlankReason``)."""

    metric: str
    reason: int
    count: int


@dataclass(frozen=True)
class Block:
    """Consecutive ticks of one GPU.

    Attributes:
        gpu_uuid: The GPU.
        layout: Columns.
        time_unix_nano: Shape (n,), strictly increasing.
        values: Shape (metrics, n), float32; counters are differences to their base.
        counter_bases: Shape (counters,).
        missed_ticks: Ticks the sampler skipped before this block.
        blanks: Reasons of the NaNs.
    """

    gpu_uuid: str
    layout: Layout
    time_unix_nano: Int64Array
    values: Float32Array
    counter_bases: Float64Array
    missed_ticks: int
    blanks: tuple[Blanks, ...]

    @property
    def nbytes(self) -> int:
        """Bytes the arrays occupy."""
        return int(self.time_unix_nano.nbytes + self.values.nbytes + self.counter_bases.nbytes)


@dataclass(frozen=True)
class BatchRecord:
    """Blocks of one message."""

    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Binding:
    """One job's hold on one GPU over ``[start, end)``; ``end_unix_nano`` 0 means it still holds it."""

    gpu_uuid: str
    job_id: str
    scheduler: int
    start_unix_nano: int
    end_unix_nano: int
    labels: Mapping[str, str]


@dataclass(frozen=True)
class BindingsRecord:
    """Job bindings of one message."""

    bindings: tuple[Binding, ...]


@dataclass(frozen=True)
class LossRecord:
    """Records the agent gave up (``reason`` is a ``gpusonde.ingest.v1.LossReason``)."""

    first_sequence: int
    last_sequence: int
    reason: int
    lost_ticks: int


@dataclass(frozen=True)
class GpuEvent:
    """An XID, a lost or recovered GPU, a clock step (``kind`` is a ``gpusonde.ingest.v1.GpuEventKind``)."""

    gpu_uuid: str
    time_unix_nano: int
    kind: int
    value: int


@dataclass(frozen=True)
class EventsRecord:
    """GPU events of one message."""

    events: tuple[GpuEvent, ...]


@dataclass(frozen=True)
class SourceEndedRecord:
    """The finite source behind these GPUs has no more ticks."""

    gpu_uuids: tuple[str, ...]


ACTIVITY_COLUMNS = ("forks", "exits", "lifetime_s", "read_bytes", "written_bytes", "processor_s")


@dataclass(frozen=True)
class JobActivity:
    """What the processes on some GPUs of a host did, look by look, and what they forked.

    Attributes:
        gpu_uuids: GPUs that are one job, as far as the agent can tell.
        time_unix_nano: Shape (looks,), strictly increasing.
        values: Shape (6, looks), what came since the look before, in the order of :data:`ACTIVITY_COLUMNS`; the
            seconds of ``lifetime_s`` are those of the processes that ended, added up. NaN where it cannot be read.
        message: The record with nothing else in it.
        holders: How many processes were on the GPUs at most; None where the agent did not tell.
        processes: How many there were at all, likewise.
    """

    gpu_uuids: tuple[str, ...]
    time_unix_nano: Int64Array
    values: Float64Array
    message: bytes
    holders: int | None = None
    processes: int | None = None

    @property
    def alive(self) -> int | None:
        """How many were on the GPUs, 0 where none of the job is left; None where neither is known."""
        return self.holders or (0 if self.holders == self.processes == 0 else None)


@dataclass(frozen=True)
class ActivityRecord:
    """What the processes of jobs did, of one message."""

    jobs: tuple[JobActivity, ...]


DecodedRecord = (
    InventoryRecord | BatchRecord | BindingsRecord | LossRecord | EventsRecord | SourceEndedRecord | ActivityRecord
)


# Identities end up in file names, logs and labels: no separators, no control characters.
_IDENTITY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}")
# Nanoseconds that an int64 holds with room for offsets: from 1970 to the year 2116.
_LAST_UNIX_NANO = 1 << 62


def check_identity(value: str, field: str) -> str:
    """Return ``value`` if it can name an agent, a spool or a device."""
    if not _IDENTITY.fullmatch(value):
        raise WireError(
            field,
            f"{value[:40]!r} is not an identity: 1 to 128 of A-Z a-z 0-9 . _ : @ - beginning with a letter or digit",
        )
    return value


def check_text(value: str, field: str, limit: int, *, required: bool = False) -> str:
    """Return ``value`` if it is printable text of at most ``limit`` characters."""
    if required and not value:
        raise WireError(field, "is empty")
    if len(value) > limit:
        raise WireError(field, f"has {len(value)} characters, at most {limit} are taken")
    if value and not value.isprintable():
        raise WireError(field, "holds unprintable characters")
    return value


def check_count(items: Sized, field: str, limit: int) -> None:
    """Raise if there are more than ``limit`` items."""
    if len(items) > limit:
        raise WireError(field, f"has {len(items)} entries, at most {limit} are taken")


def check_index(index: int, field: str, count: int, what: str) -> int:
    """Return ``index`` if it is one of ``count``."""
    if index >= count:
        raise WireError(field, f"index {index} is out of range: the inventory has {count} {what}")
    return index


def check_time(unix_nano: int, field: str) -> int:
    """Return ``unix_nano`` if it is a time from 1970 to 2116."""
    if not 0 < unix_nano < _LAST_UNIX_NANO:
        raise WireError(field, f"{unix_nano} is not a time in nanoseconds since 1970")
    return unix_nano


def check_finite(value: float, field: str) -> float:
    """Return ``value`` if it is a finite number."""
    if not math.isfinite(value):
        raise WireError(field, f"{value} is not a finite number")
    return value
