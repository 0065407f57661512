"""Validation of sample batches: bytes from the wire to arrays."""

from __future__ import annotations

import numpy as np
import zstandard

from gpusonde.collector.records.errors import RecordError
from gpusonde.collector.records.fields import check_count, check_finite, check_index, check_time
from gpusonde.collector.records.limits import Limits
from gpusonde.collector.records.model import BatchRecord, Blanks, Block, Float32Array, InventoryRecord, Layout
from gpusonde.common.v1 import gpu_pb2
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.telemetry import METRIC_BY_NAME, Unit

_BLANK_REASONS = frozenset(gpu_pb2.BlankReason.values())
# zstd lets a frame ask for a large window; a block never needs more than its own size.
_LARGEST_WINDOW_BYTES = 1 << 23


def decode_batch(message: ingest_pb2.SampleBatch, inventory: InventoryRecord, limits: Limits) -> BatchRecord:
    """Check a batch and turn its bytes into arrays.

    Values outside of what the catalogue calls plausible (negative, above the metric's maximum, infinite) become NaN and
    are counted as ``OUT_OF_RANGE``: a sentinel that an agent let through must not look like a measurement.

    Raises:
        RecordError: Sizes do not agree, an index is out of range, times do not increase, a cap is exceeded.
    """
    if not message.blocks:
        raise RecordError("batch.blocks", "is empty")
    check_count(message.blocks, "batch.blocks", limits.blocks)
    if message.encoding not in (ingest_pb2.ENCODING_FLOAT32_LE, ingest_pb2.ENCODING_FLOAT32_LE_ZSTD):
        raise RecordError("batch.encoding", f"number {message.encoding} is none of those that HelloAck allows")
    # Every block may expand to its own cap; together they may not expand beyond a few plain records.
    budget = 4 * limits.record_bytes
    blocks = []
    last_time: dict[str, int] = {}
    for i, wire in enumerate(message.blocks):
        field = f"batch.blocks[{i}]"
        block = _block(wire, message.encoding, inventory, limits, field)
        budget -= block.nbytes
        if budget < 0:
            raise RecordError(
                f"{field}.values", f"the batch holds more than {4 * limits.record_bytes} bytes of samples"
            )
        first = int(block.time_unix_nano[0])
        if first <= last_time.get(block.gpu_uuid, -1):
            raise RecordError(
                f"{field}.start_time_unix_nano", "does not come after the previous block of the same GPU in the batch"
            )
        last_time[block.gpu_uuid] = int(block.time_unix_nano[-1])
        blocks.append(block)
    return BatchRecord(tuple(blocks))


def _block(wire: ingest_pb2.GpuBlock, encoding: int, inventory: InventoryRecord, limits: Limits, field: str) -> Block:
    layout = inventory.layout
    gpu = inventory.gpus[check_index(wire.gpu, f"{field}.gpu", len(inventory.gpus), "GPUs")]
    ticks = wire.tick_count
    if not 0 < ticks <= limits.ticks:
        raise RecordError(f"{field}.tick_count", f"{ticks} is not between 1 and {limits.ticks}")
    start = check_time(wire.start_time_unix_nano, f"{field}.start_time_unix_nano")
    if len(wire.tick_offsets_us) != 4 * ticks:
        raise RecordError(
            f"{field}.tick_offsets_us", f"has {len(wire.tick_offsets_us)} bytes; {ticks} ticks need {4 * ticks}"
        )
    offsets = np.frombuffer(wire.tick_offsets_us, dtype="<i4").astype(np.int64)
    if offsets[0] < 0 or (ticks > 1 and not (np.diff(offsets) > 0).all()):
        raise RecordError(f"{field}.tick_offsets_us", "does not increase from tick to tick")
    if len(wire.counter_bases) != len(layout.counters):
        raise RecordError(
            f"{field}.counter_bases",
            f"has {len(wire.counter_bases)} entries; the inventory has {len(layout.counters)} counters",
        )
    bases = [check_finite(base, f"{field}.counter_bases[{i}]") for i, base in enumerate(wire.counter_bases)]
    plain = _plain(wire.values, encoding, 4 * ticks * len(layout.metrics), f"{field}.values")
    values = np.frombuffer(plain, dtype="<f4").reshape(len(layout.metrics), ticks).astype(np.float32)
    blanks = _declared_blanks(wire, layout, f"{field}.blank_counts")
    blanks += _blank_out_implausible(values, layout)
    return Block(
        gpu.gpu_uuid, layout, start + offsets * 1000, values, np.array(bases, dtype=np.float64), wire.missed_ticks,
        tuple(blanks),
    )  # fmt: skip


def _plain(data: bytes, encoding: int, size: int, field: str) -> bytes:
    if encoding == ingest_pb2.ENCODING_FLOAT32_LE_ZSTD:
        data = _decompress(data, size, field)
    if len(data) != size:
        raise RecordError(field, f"has {len(data)} bytes; ticks times metrics of the inventory need {size}")
    return data


def _decompress(data: bytes, size: int, field: str) -> bytes:
    """Expand one zstd frame to exactly ``size`` bytes, never to more."""
    try:
        declared = zstandard.frame_content_size(data)
        # The library trusts the size in the frame's header over max_output_size, so it has to be looked at first.
        if declared not in (-1, size):
            raise RecordError(field, f"its zstd frame declares {declared} bytes; ticks times metrics need {size}")
        expander = zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW_BYTES)
        return expander.decompress(data, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise RecordError(field, f"is not one zstd frame of {size} bytes: {error}") from None


def _declared_blanks(wire: ingest_pb2.GpuBlock, layout: Layout, field: str) -> list[Blanks]:
    check_count(wire.blank_counts, field, len(layout.metrics) * len(_BLANK_REASONS))
    blanks = []
    for i, entry in enumerate(wire.blank_counts):
        index = check_index(entry.metric, f"{field}[{i}].metric", len(layout.metrics), "metrics")
        if entry.reason not in _BLANK_REASONS:
            raise RecordError(f"{field}[{i}].reason", f"number {entry.reason} is no reason for a blank")
        if entry.count > wire.tick_count:
            raise RecordError(f"{field}[{i}].count", f"{entry.count} is more than the {wire.tick_count} ticks")
        blanks.append(Blanks(layout.metrics[index], entry.reason, entry.count))
    return blanks


def _blank_out_implausible(values: Float32Array, layout: Layout) -> list[Blanks]:
    lower, upper = _bounds(layout)
    with np.errstate(invalid="ignore"):
        implausible = (values < lower) | (values > upper)
    if not implausible.any():
        return []
    values[implausible] = np.nan
    return [
        Blanks(layout.metrics[i], gpu_pb2.BLANK_REASON_OUT_OF_RANGE, int(count))
        for i, count in enumerate(implausible.sum(axis=1))
        if count
    ]


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
