"""Ticks -> columnar sample batches, and back.

Layout of one ``GpuBlock`` (``gpusonde/ingest/v1/ingest.proto``): int32 little-endian microseconds after the first tick,
then float32 little-endian values, metric-major. A counter's values are differences to its float64 base, because float32
holds 24 bits and a counter of millijoules or bytes needs more; NaN marks a value that the source did not give.

Our own words -> the messages of ``gpusonde.ingest.v1``, apart from the sample batches (see ``batch``).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import zstandard

from gpusonde.agent.sources.base import (
    GpuDescription,
    GpuEvent,
    GpuEventKind,
    GpuTicks,
    SourceInventory,
    StaticOrigin,
    TimeArray,
)
from gpusonde.common.v1 import gpu_pb2, metric_pb2
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.telemetry import BlankReason, FloatArray, Metric, MetricKind, SamplingClass, Unit

UNITS = {
    Unit.RATIO: metric_pb2.UNIT_RATIO,
    Unit.BYTES: metric_pb2.UNIT_BYTES,
    Unit.BYTES_PER_SECOND: metric_pb2.UNIT_BYTES_PER_SECOND,
    Unit.WATTS: metric_pb2.UNIT_WATTS,
    Unit.JOULES: metric_pb2.UNIT_JOULES,
    Unit.CELSIUS: metric_pb2.UNIT_CELSIUS,
    Unit.MEGAHERTZ: metric_pb2.UNIT_MEGAHERTZ,
    Unit.COUNT: metric_pb2.UNIT_COUNT,
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
    BlankReason.NOT_SUPPORTED: gpu_pb2.BLANK_REASON_NOT_SUPPORTED,
    BlankReason.NO_PERMISSION: gpu_pb2.BLANK_REASON_NO_PERMISSION,
    BlankReason.NOT_FOUND: gpu_pb2.BLANK_REASON_NOT_FOUND,
    BlankReason.NO_DATA: gpu_pb2.BLANK_REASON_NO_DATA,
    BlankReason.READ_ERROR: gpu_pb2.BLANK_REASON_READ_ERROR,
    BlankReason.GPU_LOST: gpu_pb2.BLANK_REASON_GPU_LOST,
    BlankReason.OUT_OF_RANGE: gpu_pb2.BLANK_REASON_OUT_OF_RANGE,
}
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


def events_record(events: Iterable[GpuEvent]) -> ingest_pb2.Record:
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


# int32 microseconds reach 35 minutes; a longer block is cut.
_MAX_OFFSET_NS = (2**31 - 1) * 1000
_ZSTD_LEVEL = 1
_MAX_BLOCK_BYTES = 64 << 20

Encoding = ingest_pb2.Encoding


class BatchError(ValueError):
    """Bytes that are not a block of the announced shape."""


@dataclass(frozen=True)
class DecodedBlock:
    """One ``GpuBlock`` as arrays: counters are whole again, shape (metrics, n) like the ticks it was made of."""

    gpu: int
    time_unix_nano: TimeArray
    values: FloatArray
    missed_ticks: int
    blank_counts: Mapping[tuple[int, int], int]


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

    Args:
        metrics: Columns of the ticks.
        compress: Store the values as zstd frames. Batches are encoded when they are spooled, before a collector is
            there to negotiate with; the uplink unpacks them for a collector that wants plain float32.
    """

    def __init__(self, metrics: Sequence[Metric], *, compress: bool = True) -> None:
        self.change_columns(metrics)
        self.set_compression(compress)
        self._open: dict[int, _OpenBlock] = {}
        self._closed: list[tuple[int, _OpenBlock]] = []
        self._missed: dict[int, int] = {}
        self._ticks = 0
        self._blanks: dict[BlankReason, int] = {}

    def change_columns(self, metrics: Sequence[Metric]) -> None:
        """Take ticks of other columns from now on; call it after :meth:`flush`."""
        self._counter_columns = [i for i, m in enumerate(metrics) if m.kind is MetricKind.COUNTER]
        self._metric_count = len(metrics)

    def set_compression(self, compress: bool) -> None:
        """Store the values of the following batches as zstd frames, or plainly."""
        self._compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL) if compress else None

    @property
    def pending_ticks(self) -> int:
        """Ticks of one GPU each that wait for :meth:`flush`."""
        return self._ticks

    @property
    def pending_bytes(self) -> int:
        """Size of their values before compression."""
        return self._ticks * (4 * self._metric_count + 4)

    def add(self, ticks: GpuTicks) -> None:
        """Append ticks of one GPU."""
        times = ticks.time_unix_nano
        if not times.size:
            return
        if times.size == 1 and (block := self._open.get(ticks.gpu)) is not None:
            # A live source gives one tick at a time; ten times a second and GPU the general way is felt.
            time_ns = int(times[0])
            if block.last_ns < time_ns <= block.first_ns + _MAX_OFFSET_NS:
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
        block = self._open.get(ticks.gpu)
        return block is None or not ticks.time_unix_nano.size or int(ticks.time_unix_nano[0]) > block.last_ns

    def add_missed(self, gpu: int, ticks: int) -> None:
        """Count deadlines that passed without a reading; they travel in the GPU's next block."""
        self._missed[gpu] = self._missed.get(gpu, 0) + ticks

    def flush(self) -> ingest_pb2.SampleBatch | None:
        """Return everything added so far as one batch, or None when there is nothing."""
        blocks = [*self._closed, *self._open.items()]
        if not blocks:
            return None
        batch = ingest_pb2.SampleBatch(
            blocks=[self._encode(gpu, block) for gpu, block in blocks],
            encoding=(
                ingest_pb2.ENCODING_FLOAT32_LE if self._compressor is None else ingest_pb2.ENCODING_FLOAT32_LE_ZSTD
            ),
        )
        self._open, self._closed, self._ticks = {}, [], 0
        return batch

    def take_blanks(self) -> dict[BlankReason, int]:
        """Return how many NaN values were encoded since the last call, by reason."""
        blanks, self._blanks = self._blanks, {}
        return blanks

    def _add_increasing(self, ticks: GpuTicks, start: int, end: int) -> None:
        while start < end:
            times = ticks.time_unix_nano[start:end]
            block = self._open.get(ticks.gpu)
            if block is not None and (times[0] <= block.last_ns or times[0] - block.first_ns > _MAX_OFFSET_NS):
                self._closed.append((ticks.gpu, self._open.pop(ticks.gpu)))
                block = None
            if block is None:
                block = self._open[ticks.gpu] = _OpenBlock(int(times[0]), int(times[0]))
            fitting = int(np.searchsorted(times, block.first_ns + _MAX_OFFSET_NS, side="right"))
            part = slice(start, start + fitting)
            block.parts.append(GpuTicks(ticks.gpu, ticks.time_unix_nano[part], ticks.values[:, part], ticks.blanks))
            block.last_ns = int(times[fitting - 1])
            block.ticks += fitting
            self._ticks += fitting
            start += fitting

    def _encode(self, gpu: int, block: _OpenBlock) -> ingest_pb2.GpuBlock:
        times = np.concatenate([part.time_unix_nano for part in block.parts])
        values = np.concatenate([part.values for part in block.parts], axis=1)
        bases = []
        for column in self._counter_columns:
            present = values[column][~np.isnan(values[column])]
            base = float(present[0]) if present.size else 0.0
            bases.append(base)
            values[column] -= base
        raw = values.astype("<f4").tobytes()
        return ingest_pb2.GpuBlock(
            gpu=gpu,
            tick_count=int(times.size),
            start_time_unix_nano=int(times[0]),
            tick_offsets_us=((times - times[0]) // 1000).astype("<i4").tobytes(),
            values=raw if self._compressor is None else self._compressor.compress(raw),
            missed_ticks=self._missed.pop(gpu, 0),
            counter_bases=bases,
            blank_counts=self._count_blanks(block),
        )

    def _count_blanks(self, block: _OpenBlock) -> list[ingest_pb2.BlankCount]:
        counts: dict[tuple[int, BlankReason], int] = {}
        for part in block.parts:
            blank = np.isnan(part.values)
            if not blank.any():
                continue
            per_column = blank.sum(axis=1)
            for column in np.flatnonzero(per_column).tolist():
                reason = part.blanks.get(column, BlankReason.NO_DATA)
                count = int(per_column[column])
                counts[column, reason] = counts.get((column, reason), 0) + count
                self._blanks[reason] = self._blanks.get(reason, 0) + count
        return [
            ingest_pb2.BlankCount(metric=column, reason=BLANK_REASONS[reason], count=count)
            for (column, reason), count in sorted(counts.items(), key=lambda item: (item[0][0], item[0][1].value))
        ]


def increasing_parts(ticks: GpuTicks) -> Iterator[GpuTicks]:
    """Cut ticks where their time does not increase: the wall clock was set back between them."""
    times = ticks.time_unix_nano
    cuts = (np.flatnonzero(np.diff(times) <= 0) + 1).tolist() if times.size > 1 else []
    if not cuts:
        yield ticks
        return
    for start, end in itertools.pairwise([0, *cuts, int(times.size)]):
        yield GpuTicks(ticks.gpu, times[start:end], ticks.values[:, start:end], ticks.blanks)


def batch_ticks(batch: ingest_pb2.SampleBatch) -> int:
    """Return the ticks of one GPU each that a batch holds."""
    return sum(block.tick_count for block in batch.blocks)


def unpack(batch: ingest_pb2.SampleBatch) -> ingest_pb2.SampleBatch:
    """Return the batch with plain float32 values, for a collector that does not take zstd.

    Raises:
        BatchError: A frame is damaged or larger than any block may be.
    """
    if batch.encoding != ingest_pb2.ENCODING_FLOAT32_LE_ZSTD:
        return batch
    plain = ingest_pb2.SampleBatch()
    plain.CopyFrom(batch)
    plain.encoding = ingest_pb2.ENCODING_FLOAT32_LE
    for block in plain.blocks:
        block.values = _decompress(block.values)
    return plain


def decode(batch: ingest_pb2.SampleBatch, metrics: Sequence[Metric]) -> list[DecodedBlock]:
    """Return the blocks of a batch as arrays.

    Raises:
        BatchError: A block does not have the announced shape.
    """
    counter_columns = [i for i, m in enumerate(metrics) if m.kind is MetricKind.COUNTER]
    decoded = []
    for block in unpack(batch).blocks:
        if len(block.tick_offsets_us) != 4 * block.tick_count:
            raise BatchError(f"{len(block.tick_offsets_us)} bytes of offsets do not hold {block.tick_count} ticks")
        if len(block.values) != 4 * block.tick_count * len(metrics):
            raise BatchError(
                f"{len(block.values)} bytes of values do not hold {block.tick_count} ticks of {len(metrics)} metrics"
            )
        if len(block.counter_bases) != len(counter_columns):
            raise BatchError(f"{len(block.counter_bases)} counter bases for {len(counter_columns)} counters")
        values = np.frombuffer(block.values, "<f4").astype(np.float64).reshape(len(metrics), block.tick_count)
        for column, base in zip(counter_columns, block.counter_bases, strict=True):
            values[column] += base
        offsets_us = np.frombuffer(block.tick_offsets_us, "<i4").astype(np.int64)
        decoded.append(
            DecodedBlock(
                gpu=block.gpu,
                time_unix_nano=block.start_time_unix_nano + offsets_us * 1000,
                values=values,
                missed_ticks=block.missed_ticks,
                blank_counts={(b.metric, int(b.reason)): b.count for b in block.blank_counts},
            )
        )
    return decoded


def _decompress(frame: bytes) -> bytes:
    try:
        size = zstandard.frame_content_size(frame)
        if not 0 <= size <= _MAX_BLOCK_BYTES:
            raise BatchError(f"a zstd frame announces {size} bytes; a block holds at most {_MAX_BLOCK_BYTES}")
        return zstandard.ZstdDecompressor().decompress(frame)
    except zstandard.ZstdError as error:
        raise BatchError(f"damaged zstd frame: {error}") from error
