"""``Batcher``: collects the ticks of all GPUs into batches; and a source's words as the messages of the wire.

How a block's bytes are laid out is the business of ``gpusonde.service.wire``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gpusonde.agent.sources.base import (
    AlignedTicks,
    GpuDescription,
    GpuEventKind,
    GpuTicks,
    SourceEvent,
    SourceInventory,
    StaticOrigin,
)
from gpusonde.common.v1 import gpu_pb2, metric_pb2
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.service.wire import (
    BLANK_REASONS,
    KINDS,
    LONGEST_BLOCK_NS,
    SAMPLING_CLASSES,
    UNITS,
    Int64Array,
    encode_blocks,
    make_compressor,
)
from gpusonde.telemetry import FloatArray, Metric, MetricKind, MissingReason

STATIC_ORIGINS = {
    StaticOrigin.NVML: gpu_pb2.STATIC_SOURCE_NVML,
    StaticOrigin.CUDA_DRIVER: gpu_pb2.STATIC_SOURCE_CUDA_DRIVER,
    StaticOrigin.DCGM: gpu_pb2.STATIC_SOURCE_DCGM,
    StaticOrigin.RECORDED: gpu_pb2.STATIC_SOURCE_UNSPECIFIED,
}
EVENT_KINDS = {
    GpuEventKind.XID: ingest_pb2.GPU_EVENT_KIND_XID,
    GpuEventKind.LOST: ingest_pb2.GPU_EVENT_KIND_LOST,
    GpuEventKind.RECOVERED: ingest_pb2.GPU_EVENT_KIND_RECOVERED,
    GpuEventKind.CLOCK_STEP: ingest_pb2.GPU_EVENT_KIND_CLOCK_STEP,
}


def inventory_record(inventory: SourceInventory) -> ingest_pb2.Record:
    """Return the record that names the GPUs and columns of the batches after it."""
    return ingest_pb2.Record(
        inventory=ingest_pb2.Inventory(
            gpus=[_gpu(gpu) for gpu in inventory.gpus],
            metrics=[_descriptor(metric, metric.name in inventory.multiplexed) for metric in inventory.metrics],
            source=inventory.source,
            sampling_interval_us=min(round(inventory.interval_s * 1e6), 0xFFFF_FFFF),
        )
    )


def events_record(events: Iterable[SourceEvent]) -> ingest_pb2.Record:
    """Return the record of what happened to GPUs outside their metrics."""
    return ingest_pb2.Record(
        gpu_events=ingest_pb2.GpuEvents(
            events=[
                ingest_pb2.GpuEvent(
                    gpu=event.gpu,
                    time_unix_nano=event.time_unix_nano,
                    kind=EVENT_KINDS[event.kind],
                    value=event.value,
                )
                for event in events
            ]
        )
    )


def source_ended_record(gpus: Iterable[int]) -> ingest_pb2.Record:
    """Return the record that ends the runs of a finite source's GPUs."""
    return ingest_pb2.Record(source_ended=ingest_pb2.SourceEnded(gpus=gpus))


def _gpu(gpu: GpuDescription) -> gpu_pb2.Gpu:
    return gpu_pb2.Gpu(
        gpu_uuid=gpu.gpu_uuid,
        mig_uuid=gpu.mig_uuid,
        gpu_index=gpu.gpu_index,
        pci_bus_id=gpu.pci_bus_id,
        product_name=gpu.product_name,
        framebuffer_bytes=gpu.framebuffer_bytes,
        driver_version=gpu.driver_version,
        static_attributes=[
            gpu_pb2.StaticAttribute(name=a.name, value=a.value, source=STATIC_ORIGINS[a.origin])
            for a in gpu.static_attributes
        ],
        missing_metrics=[
            gpu_pb2.MissingMetric(metric=name, reason=BLANK_REASONS[reason])
            for name, reason in gpu.missing_metrics.items()
        ],
        replayed=gpu.replayed,
    )


def _descriptor(metric: Metric, multiplexed: bool) -> metric_pb2.MetricDescriptor:
    return metric_pb2.MetricDescriptor(
        name=metric.name,
        unit=UNITS[metric.unit],
        kind=KINDS[metric.kind],
        dcgm_field_id=metric.dcgm_field_id or 0,
        multiplexed=multiplexed,
        sampling_class=SAMPLING_CLASSES[metric.sampling_class],
    )


@dataclass
class _OpenBlock:
    first_ns: int
    last_ns: int
    parts: list[GpuTicks] = field(default_factory=list)
    ticks: int = 0


class Batcher:
    """Collects the ticks of all GPUs into one ``SampleBatch``.

    A GPU gets a second block in the same batch when its times span more than an int32 of microseconds, and when they do
    not increase (the wall clock was set back). A collector refuses a batch of the latter kind: ask ``continues`` first.
    Values are zstd frames: batches are encoded when they are spooled, before a collector is there to negotiate with.
    The uplink unpacks them for one that wants plain float32.

    Args:
        metrics: Columns of the ticks.
    """

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self.change_columns(metrics)
        self._compressor = make_compressor()
        self._open: dict[int, _OpenBlock] = {}
        self._closed: list[tuple[int, _OpenBlock]] = []
        self._aligned: AlignedTicks | None = None
        self._missed: dict[int, int] = {}
        self._ticks = 0
        self._blanks: dict[MissingReason, int] = {}

    def change_columns(self, metrics: Sequence[Metric]) -> None:
        """Take ticks of other columns from now on; call it after :meth:`flush`."""
        self._counter_columns = [i for i, m in enumerate(metrics) if m.kind is MetricKind.COUNTER]
        self._metric_count = len(metrics)

    @property
    def pending_bytes(self) -> int:
        """Size of their values before compression."""
        return self._ticks * (4 * self._metric_count + 4)

    def add_aligned(self, ticks: AlignedTicks) -> bool:
        """Take ticks of all GPUs as they are, if they are the first of a batch and increasing; else return False."""
        times = ticks.time_unix_nano
        if self._ticks or not times.size or not (times[:, 1:] > times[:, :-1]).all():
            return False
        if (times[:, -1] - times[:, 0]).max() > LONGEST_BLOCK_NS:
            return False
        self._aligned = ticks
        self._ticks = int(times.size)
        return True

    def add(self, ticks: GpuTicks) -> None:
        """Append ticks of one GPU."""
        self._part_aligned()
        times = ticks.time_unix_nano
        if not times.size:
            return
        if times.size == 1 and (block := self._open.get(ticks.gpu)) is not None:
            # A live source gives one tick at a time; ten times a second and GPU the general way is felt.
            time_ns = int(times[0])
            if block.last_ns < time_ns <= block.first_ns + LONGEST_BLOCK_NS:
                block.parts.append(ticks)
                block.last_ns = time_ns
                block.ticks += 1
                self._ticks += 1
                return
        cuts = [0, *(np.flatnonzero(np.diff(times) <= 0) + 1).tolist(), int(times.size)]
        for start, end in itertools.pairwise(cuts):
            self._add_increasing(ticks, start, end)

    def continues(self, ticks: GpuTicks) -> bool:
        """Whether the ticks come after all others of their GPU in the batch; a collector takes no others in it."""
        self._part_aligned()
        block = self._open.get(ticks.gpu)
        return block is None or not ticks.time_unix_nano.size or int(ticks.time_unix_nano[0]) > block.last_ns

    def add_missed(self, gpu: int, ticks: int) -> None:
        """Count deadlines that passed without a reading; they travel in the GPU's next block."""
        self._missed[gpu] = self._missed.get(gpu, 0) + ticks

    def flush(self, batch: ingest_pb2.SampleBatch | None = None) -> ingest_pb2.SampleBatch | None:
        """Return everything added so far as one batch, or None when there is nothing.

        Args:
            batch: An empty batch to fill, for example that of a record.
        """
        batch = ingest_pb2.SampleBatch() if batch is None else batch
        if self._aligned is not None:
            aligned = self._aligned
            done, counts = self._encode_aligned(batch, aligned.gpus, aligned.time_unix_nano, aligned.values)
            self._count_aligned_blanks(done, counts, aligned.blanks)
        else:
            self._encode(batch, [*self._closed, *self._open.items()])
        flushed, self._ticks = self._ticks, 0
        self._open, self._closed, self._aligned = {}, [], None
        if not flushed:
            return None
        batch.encoding = ingest_pb2.ENCODING_FLOAT32_LE_ZSTD
        return batch

    def drop(self) -> None:
        """Forget what was added since the last :meth:`flush`."""
        self._open, self._closed, self._aligned, self._missed, self._ticks = {}, [], None, {}, 0

    def take_blanks(self) -> dict[MissingReason, int]:
        """Return how many NaN values were encoded since the last call, by reason."""
        blanks, self._blanks = self._blanks, {}
        return blanks

    def _add_increasing(self, ticks: GpuTicks, start: int, end: int) -> None:
        while start < end:
            times = ticks.time_unix_nano[start:end]
            block = self._open.get(ticks.gpu)
            if block is not None and (times[0] <= block.last_ns or times[0] - block.first_ns > LONGEST_BLOCK_NS):
                self._closed.append((ticks.gpu, self._open.pop(ticks.gpu)))
                block = None
            if block is None:
                block = self._open[ticks.gpu] = _OpenBlock(int(times[0]), int(times[0]))
            fitting = int(np.searchsorted(times, block.first_ns + LONGEST_BLOCK_NS, side="right"))
            part = slice(start, start + fitting)
            block.parts.append(GpuTicks(ticks.gpu, ticks.time_unix_nano[part], ticks.values[:, part], ticks.blanks))
            block.last_ns = int(times[fitting - 1])
            block.ticks += fitting
            self._ticks += fitting
            start += fitting

    def _encode(self, batch: ingest_pb2.SampleBatch, blocks: Sequence[tuple[int, _OpenBlock]]) -> None:
        # All GPUs are read at once, so that their blocks are mostly of one length.
        for _, group in itertools.groupby(blocks, lambda item: item[1].ticks):
            alike = list(group)
            joined = [_join(block.parts) for _, block in alike]
            done, counts = self._encode_aligned(
                batch,
                [gpu for gpu, _ in alike],
                np.stack([times for times, _ in joined]),
                np.stack([values for _, values in joined]),
            )
            if counts is not None:
                for message, (_, block), count in zip(done, alike, counts, strict=True):
                    message.blank_counts.extend(self._count_blanks(block.parts, count))

    def _encode_aligned(
        self, batch: ingest_pb2.SampleBatch, gpus: Sequence[int], times: Int64Array, values: FloatArray
    ) -> tuple[list[ingest_pb2.GpuBlock], Int64Array | None]:
        """Encode as many ticks of each GPU; return the blocks and how many values each column of them lacks.

        Args:
            batch: Gets the blocks.
            gpus: Indices of the GPUs.
            times: Shape (GPUs, n).
            values: Shape (GPUs, metrics, n); changed.
        """
        blank = np.isnan(values)
        done = encode_blocks(batch, gpus, times, values, self._counter_columns, self._compressor)
        if self._missed:
            for message in done:
                message.missed_ticks = self._missed.pop(message.gpu, 0)
        return done, blank.sum(axis=2) if blank.any() else None

    def _part_aligned(self) -> None:
        """Go on one GPU after the other."""
        if self._aligned is not None:
            aligned, self._aligned, self._ticks = self._aligned, None, 0
            for ticks in aligned:
                self._add_increasing(ticks, 0, ticks.time_unix_nano.size)

    def _count_aligned_blanks(
        self,
        done: Sequence[ingest_pb2.GpuBlock],
        counts: Int64Array | None,
        blanks: Sequence[Mapping[int, MissingReason]],
    ) -> None:
        """Say in the blocks how many values are missing, each column's for one reason."""
        if counts is None:
            return
        rows, columns = np.nonzero(counts)
        each = zip(rows.tolist(), columns.tolist(), counts[rows, columns].tolist(), strict=True)
        for row, column, count in each:
            reason = blanks[row].get(column, MissingReason.NO_DATA)
            done[row].blank_counts.add(metric=column, reason=BLANK_REASONS[reason], count=count)
            self._blanks[reason] = self._blanks.get(reason, 0) + count

    def _count_blanks(self, parts: Sequence[GpuTicks], per_column: Int64Array) -> list[ingest_pb2.BlankCount]:
        counts: dict[tuple[int, MissingReason], int] = {}
        for column in np.flatnonzero(per_column).tolist():
            for part in parts:
                count = int(per_column[column])
                if len(parts) > 1:
                    count = int(np.isnan(part.values[column]).sum())
                if count:
                    reason = part.blanks.get(column, MissingReason.NO_DATA)
                    counts[column, reason] = counts.get((column, reason), 0) + count
                    self._blanks[reason] = self._blanks.get(reason, 0) + count
        return [
            ingest_pb2.BlankCount(metric=column, reason=BLANK_REASONS[reason], count=count)
            for (column, reason), count in sorted(counts.items(), key=lambda item: (item[0][0], item[0][1].value))
        ]


def _join(parts: Sequence[GpuTicks]) -> tuple[Int64Array, FloatArray]:
    if len(parts) == 1:
        return parts[0].time_unix_nano, parts[0].values
    return np.concatenate([part.time_unix_nano for part in parts]), np.concatenate([p.values for p in parts], axis=1)


def increasing_parts(ticks: GpuTicks) -> Iterator[GpuTicks]:
    """Cut ticks where their time does not increase: the wall clock was set back between them."""
    times = ticks.time_unix_nano
    cuts = (np.flatnonzero(np.diff(times) <= 0) + 1).tolist() if times.size > 1 else []
    if not cuts:
        yield ticks
        return
    for start, end in itertools.pairwise([0, *cuts, int(times.size)]):
        yield GpuTicks(ticks.gpu, times[start:end], ticks.values[:, start:end], ticks.blanks)
