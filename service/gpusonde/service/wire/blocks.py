"""Sample batches: arrays to the bytes of the wire, and back with every size checked.

Layout of one ``GpuBlock`` (``gpusonde/ingest/v1/ingest.proto``): int32 little-endian microseconds after the first tick,
then float32 little-endian values, metric-major. A counter's values are differences to its float64 base, because float32
holds 24 bits and a counter of millijoules or bytes needs more; NaN marks a value that the source did not give.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
import zstandard

from gpusonde.common.v1 import gpu_pb2
from gpusonde.errors import WireError
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.service.wire.model import (
    BatchRecord,
    Blanks,
    Block,
    Float32Array,
    Float64Array,
    Int64Array,
    InventoryRecord,
    Layout,
    Limits,
    check_count,
    check_index,
    check_time,
)
from gpusonde.telemetry import METRIC_BY_NAME, Unit

_BLANK_REASONS = frozenset(gpu_pb2.BlankReason.values())
# zstd lets a frame ask for a large window; a block never needs more than its own size.
_LARGEST_WINDOW_BYTES = 1 << 23
_LARGEST_BLOCK_BYTES = 64 << 20
_ZSTD_LEVEL = 1

LONGEST_BLOCK_NS = (2**31 - 1) * 1000
"""Time that a block can span: int32 microseconds reach 35 minutes."""


def make_compressor() -> zstandard.ZstdCompressor:
    """Return what compresses the values of blocks."""
    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL)


def encode_blocks(
    batch: ingest_pb2.SampleBatch,
    gpus: Sequence[int],
    time_unix_nano: Int64Array,
    values: Float64Array,
    counter_columns: Sequence[int],
    compressor: zstandard.ZstdCompressor,
) -> list[ingest_pb2.GpuBlock]:
    """Encode ticks of several GPUs, as many of each, all at once: NumPy's calls cost more here than its arithmetic.

    Args:
        batch: What the blocks are added to, in place: protobuf copies a message that is put into another one.
        gpus: Their indices in the inventory.
        time_unix_nano: Shape (gpus, n), increasing, over at most ``LONGEST_BLOCK_NS``.
        values: Shape (gpus, metrics, n); those of counters are replaced by differences to their base.
        counter_columns: Rows that are counters.
        compressor: What ``make_compressor`` returns.
    """
    bases = np.zeros((len(gpus), 0))
    if counter_columns:
        counters = values[:, counter_columns]
        bases = counters[:, :, 0]
        if np.isnan(bases).any():
            first = np.argmin(np.isnan(counters), axis=2)
            bases = np.take_along_axis(counters, first[..., None], axis=2)[..., 0]
            bases[np.isnan(bases)] = 0.0
        values[:, counter_columns] = counters - bases[..., None]
    plain = np.ascontiguousarray(values, dtype="<f4")
    offsets_us = ((time_unix_nano - time_unix_nano[:, :1]) // 1000).astype("<i4")
    add = batch.blocks.add
    return [
        add(
            gpu=gpu,
            tick_count=time_unix_nano.shape[1],
            start_time_unix_nano=start_ns,
            tick_offsets_us=offsets_us[i].tobytes(),
            values=compressor.compress(plain[i].data),
            counter_bases=base,
        )
        for i, (gpu, start_ns, base) in enumerate(zip(gpus, time_unix_nano[:, 0].tolist(), bases.tolist(), strict=True))
    ]


def count_ticks(batch: ingest_pb2.SampleBatch) -> int:
    """Return the ticks of one GPU each that a batch holds."""
    return sum(block.tick_count for block in batch.blocks)


def expand_batch(batch: ingest_pb2.SampleBatch) -> ingest_pb2.SampleBatch:
    """Return the batch with plain float32 values, for a collector that does not take zstd.

    Raises:
        WireError: A frame is damaged or larger than any block may be.
    """
    if batch.encoding != ingest_pb2.ENCODING_FLOAT32_LE_ZSTD:
        return batch
    plain = ingest_pb2.SampleBatch()
    plain.CopyFrom(batch)
    plain.encoding = ingest_pb2.ENCODING_FLOAT32_LE
    expander = zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW_BYTES)
    for i, block in enumerate(plain.blocks):
        field = f"batch.blocks[{i}].values"
        try:
            size = zstandard.frame_content_size(block.values)
        except zstandard.ZstdError as error:
            raise WireError(field, f"is no zstd frame: {error}") from None
        if not 0 <= size <= _LARGEST_BLOCK_BYTES:
            raise WireError(field, f"its zstd frame declares {size} bytes; at most {_LARGEST_BLOCK_BYTES} are taken")
        block.values = _decompress(block.values, expander, size, field)
    return plain


def decode_batch(message: ingest_pb2.SampleBatch, inventory: InventoryRecord, limits: Limits) -> BatchRecord:
    """Check a batch and turn its bytes into arrays.

    Values outside of what the catalogue calls plausible (negative, above the metric's maximum, infinite) become NaN and
    are counted as ``OUT_OF_RANGE``: a sentinel that an agent let through must not look like a measurement.

    Raises:
        WireError: Sizes do not agree, an index is out of range, times do not increase, a cap is exceeded.
    """
    if not message.blocks:
        raise WireError("batch.blocks", "is empty")
    check_count(message.blocks, "batch.blocks", limits.blocks)
    if message.encoding not in (ingest_pb2.ENCODING_FLOAT32_LE, ingest_pb2.ENCODING_FLOAT32_LE_ZSTD):
        raise WireError("batch.encoding", f"number {message.encoding} is none of those that HelloAck allows")
    # Every block may expand to its own cap; together they may not expand beyond a few plain records.
    budget = 4 * limits.record_bytes
    expander = zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW_BYTES)
    found = []
    for i, wire in enumerate(message.blocks):
        checked = _check(wire, message.encoding, expander, inventory, limits, i)
        budget -= checked.ticks * 8 + len(checked.plain) + 8 * len(checked.bases)
        if budget < 0:
            raise WireError(
                f"batch.blocks[{i}].values", f"the batch holds more than {4 * limits.record_bytes} bytes of samples"
            )
        found.append(checked)
    # An agent samples all of its GPUs at once, so that all blocks are mostly of one length and are decoded together.
    blocks = [block for _, alike in groupby(found, lambda b: b.ticks) for block in _decode(list(alike), inventory)]
    last_time: dict[str, int] = {}
    for i, block in enumerate(blocks):
        first, last = block.time_unix_nano[[0, -1]].tolist()
        if first <= last_time.get(block.gpu_uuid, -1):
            raise WireError(
                f"batch.blocks[{i}].start_time_unix_nano",
                "does not come after the previous block of the same GPU in the batch",
            )
        last_time[block.gpu_uuid] = last
    return BatchRecord(tuple(blocks))


class _CheckedBlock(NamedTuple):
    """A block whose sizes agree; ``plain`` holds its values, not compressed any more."""

    number: int
    gpu_uuid: str
    ticks: int
    start: int
    offsets: bytes
    plain: bytes
    bases: tuple[float, ...]
    missed: int
    blanks: list[Blanks]


def _check(
    wire: ingest_pb2.GpuBlock,
    encoding: int,
    expander: zstandard.ZstdDecompressor,
    inventory: InventoryRecord,
    limits: Limits,
    index: int,
) -> _CheckedBlock:
    """Check everything of a block but its numbers, and expand it."""
    field = f"batch.blocks[{index}]"
    layout = inventory.layout
    gpu = inventory.gpus[check_index(wire.gpu, f"{field}.gpu", len(inventory.gpus), "GPUs")]
    ticks = wire.tick_count
    if not 0 < ticks <= limits.ticks:
        raise WireError(f"{field}.tick_count", f"{ticks} is not between 1 and {limits.ticks}")
    start = check_time(wire.start_time_unix_nano, f"{field}.start_time_unix_nano")
    offsets = wire.tick_offsets_us
    if len(offsets) != 4 * ticks:
        raise WireError(f"{field}.tick_offsets_us", f"has {len(offsets)} bytes; {ticks} ticks need {4 * ticks}")
    bases = tuple(wire.counter_bases)
    if len(bases) != len(layout.counters):
        raise WireError(
            f"{field}.counter_bases", f"has {len(bases)} entries; the inventory has {len(layout.counters)} counters"
        )
    for i, base in enumerate(bases):
        if not math.isfinite(base):
            raise WireError(f"{field}.counter_bases[{i}]", f"{base} is not a finite number")
    plain = _plain(wire.values, encoding, expander, 4 * ticks * len(layout.metrics), f"{field}.values")
    declared = _declared_blanks(wire, layout, f"{field}.blank_counts")
    return _CheckedBlock(index, gpu.gpu_uuid, ticks, start, offsets, plain, bases, wire.missed_ticks, declared)


def _decode(alike: Sequence[_CheckedBlock], inventory: InventoryRecord) -> list[Block]:
    """Turn blocks of one length into arrays, all at once: NumPy's calls cost more here than its arithmetic."""
    layout, count, ticks = inventory.layout, len(alike), alike[0].ticks
    offsets = np.frombuffer(b"".join(b.offsets for b in alike), dtype="<i4").reshape(count, ticks).astype(np.int64)
    good = offsets[:, 0] >= 0
    if ticks > 1:
        good &= (offsets[:, 1:] > offsets[:, :-1]).all(axis=1)
    if not good.all():
        number = alike[int(np.argmin(good))].number
        raise WireError(f"batch.blocks[{number}].tick_offsets_us", "does not increase from tick to tick")
    times = np.array([b.start for b in alike], dtype=np.int64)[:, None] + offsets * 1000
    plain = b"".join(b.plain for b in alike)
    values = np.frombuffer(plain, dtype="<f4").reshape(count, len(layout.metrics), ticks).astype(np.float32)
    implausible = _blank_out_implausible(values, layout)
    bases = np.array([b.bases for b in alike], dtype=np.float64).reshape(count, len(layout.counters))
    return [
        Block(b.gpu_uuid, layout, times[i], values[i], bases[i], b.missed, (*b.blanks, *implausible.get(i, ())))
        for i, b in enumerate(alike)
    ]


def _plain(data: bytes, encoding: int, expander: zstandard.ZstdDecompressor, size: int, field: str) -> bytes:
    if encoding == ingest_pb2.ENCODING_FLOAT32_LE_ZSTD:
        data = _decompress(data, expander, size, field)
    if len(data) != size:
        raise WireError(field, f"has {len(data)} bytes; ticks times metrics of the inventory need {size}")
    return data


def _decompress(data: bytes, expander: zstandard.ZstdDecompressor, size: int, field: str) -> bytes:
    """Expand one zstd frame to exactly ``size`` bytes, never to more."""
    try:
        declared = zstandard.frame_content_size(data)
        # The library trusts the size in the frame's header over max_output_size, so it has to be looked at first.
        if declared not in (-1, size):
            raise WireError(field, f"its zstd frame declares {declared} bytes; ticks times metrics need {size}")
        return expander.decompress(data, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise WireError(field, f"is not one zstd frame of {size} bytes: {error}") from None


def _declared_blanks(wire: ingest_pb2.GpuBlock, layout: Layout, field: str) -> list[Blanks]:
    check_count(wire.blank_counts, field, len(layout.metrics) * len(_BLANK_REASONS))
    blanks = []
    for i, entry in enumerate(wire.blank_counts):
        index = check_index(entry.metric, f"{field}[{i}].metric", len(layout.metrics), "metrics")
        if entry.reason not in _BLANK_REASONS:
            raise WireError(f"{field}[{i}].reason", f"number {entry.reason} is no reason for a blank")
        if entry.count > wire.tick_count:
            raise WireError(f"{field}[{i}].count", f"{entry.count} is more than the {wire.tick_count} ticks")
        blanks.append(Blanks(layout.metrics[index], entry.reason, entry.count))
    return blanks


def _blank_out_implausible(values: Float32Array, layout: Layout) -> dict[int, list[Blanks]]:
    """Make NaN of what cannot be, in ``values`` of shape (blocks, metrics, ticks); return the blanks of each block."""
    lower, upper = _bounds(layout)
    # NaN compares false, so that only what is there and cannot be is found.
    implausible = (values < lower) | (values > upper)
    if not implausible.any():
        return {}
    values[implausible] = np.nan
    counts = implausible.sum(axis=2)
    found: dict[int, list[Blanks]] = {}
    for block, column in np.argwhere(counts).tolist():
        blank = Blanks(layout.metrics[column], gpu_pb2.BLANK_REASON_OUT_OF_RANGE, int(counts[block, column]))
        found.setdefault(block, []).append(blank)
    return found


@functools.lru_cache(maxsize=64)
def _bounds(layout: Layout) -> tuple[Float32Array, Float32Array]:
    """Return the plausible range of every column, shape (metrics, 1) each; only infinities are out of a counter's."""
    largest = np.finfo(np.float32).max
    lower = np.full((len(layout.metrics), 1), -largest, dtype=np.float32)
    upper = np.full((len(layout.metrics), 1), largest, dtype=np.float32)
    for i, name in enumerate(layout.metrics):
        known = METRIC_BY_NAME[name]
        if i in layout.counters:
            continue  # differences to a base: a counter that restarts goes below it
        if known.unit is not Unit.CELSIUS:
            lower[i] = 0.0
        if known.maximum is not None:
            upper[i] = known.maximum
    return lower, upper
