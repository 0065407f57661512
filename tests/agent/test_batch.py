"""Ticks to columnar blocks and back, pinned byte for byte."""

import numpy as np
import pytest
from support.decoded_blocks import decode

from gpusonde.agent.batch import Batcher, inventory_record
from gpusonde.agent.sources.base import GpuDescription, GpuTicks, SourceInventory, StaticAttribute, StaticOrigin
from gpusonde.common.v1 import gpu_pb2
from gpusonde.errors import WireError
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.service.wire import BLANK_REASONS, KINDS, SAMPLING_CLASSES, UNITS, expand_batch
from gpusonde.telemetry import METRICS, MetricKind, MissingReason, SamplingClass, Unit, metric

COLUMNS = (metric("sm_active"), metric("energy_joules"), metric("power_watts"))
SECOND = 1_000_000_000


def ticks(gpu, seconds, rows, blanks=None):
    times = np.array([round(s * 1e6) * 1000 for s in seconds], dtype=np.int64)
    return GpuTicks(gpu, times, np.array(rows, dtype=np.float64), blanks or {})


def test_the_bytes_of_a_batch_are_pinned():
    batcher = Batcher(COLUMNS)
    nan = float("nan")
    batcher.add(
        ticks(0, [1.7e9, 1.7e9 + 0.1], [[0.5, 0.25], [9e9, 9e9 + 30], [nan, 300]], {2: MissingReason.READ_ERROR})
    )
    batcher.add_missed(0, 3)
    record = ingest_pb2.Record(sequence=7, batch=expand_batch(batcher.flush()))
    assert record.SerializeToString(deterministic=True).hex() == (
        "0807"  # sequence 7
        "1a47"  # batch
        "0a43"  # block of GPU 0 (zero is not written)
        "1002"  # two ticks
        "1900002a36fe9c9717"  # start_time_unix_nano
        "220800000000a0860100"  # offsets 0 and 100000 microseconds
        "2a18"  # 24 bytes of values
        "0000003f0000803e"  # 0.5 0.25
        "000000000000f041"  # 0 and 30 joules above the base
        "0000c07f00009643"  # NaN 300
        "3003"  # three missed ticks
        "3a08000000d088c30042"  # base 9e9
        "4206080210051801"  # metric 2, READ_ERROR, once
        "1001"  # FLOAT32_LE
    )


def test_what_goes_in_comes_out():
    generator = np.random.default_rng(0)
    batcher = Batcher(COLUMNS)
    parts = []
    for start in (0.0, 1.0, 2.5):
        seconds = 1.7e9 + start + np.arange(10) * 0.1
        part = ticks(1, seconds, np.sort(generator.random((3, 10))) * [[1], [1e6], [700]])
        batcher.add(part)
        parts.append(part)
    batch = batcher.flush()
    assert batch.encoding == ingest_pb2.ENCODING_FLOAT32_LE_ZSTD
    (block,) = decode(batch, COLUMNS)
    assert block.gpu == 1
    np.testing.assert_array_equal(block.time_unix_nano, np.concatenate([p.time_unix_nano for p in parts]))
    np.testing.assert_allclose(block.values, np.concatenate([p.values for p in parts], axis=1), rtol=1e-5)
    assert batcher.flush() is None
    assert batcher.pending_bytes == 0


def test_a_counter_keeps_small_steps_on_a_large_base():
    batcher = Batcher((metric("energy_joules"),))
    joules = 8e11 + np.arange(100) * 0.5
    batcher.add(ticks(0, 1 + np.arange(100) * 0.1, [joules]))
    (block,) = decode(batcher.flush(), (metric("energy_joules"),))
    np.testing.assert_array_equal(block.values[0], joules)


def test_a_counter_that_begins_blank_takes_its_base_from_the_first_value():
    batcher = Batcher((metric("xid_count"),))
    batcher.add(ticks(0, [1, 2, 3], [[np.nan, 5, 6]]))
    batcher.add(ticks(1, [1, 2, 3], [[np.nan, np.nan, np.nan]]))
    first, second = decode(batcher.flush(), (metric("xid_count"),))
    np.testing.assert_array_equal(first.values[0], [np.nan, 5, 6])
    assert np.isnan(second.values).all()


def test_blanks_are_counted_by_metric_and_reason():
    batcher = Batcher(COLUMNS)
    nan = np.nan
    batcher.add(ticks(0, [1, 2], [[nan, nan], [1, 2], [nan, 4]], {0: MissingReason.NOT_SUPPORTED}))
    batcher.add(ticks(0, [3, 4], [[nan, 1], [1, 2], [3, 4]], {0: MissingReason.GPU_LOST}))
    (block,) = decode(batcher.flush(), COLUMNS)
    assert block.blank_counts == {
        (0, gpu_pb2.BLANK_REASON_NOT_SUPPORTED): 2,
        (0, gpu_pb2.BLANK_REASON_GPU_LOST): 1,
        (2, gpu_pb2.BLANK_REASON_NO_DATA): 1,
    }
    assert batcher.take_blanks() == {
        MissingReason.NOT_SUPPORTED: 2,
        MissingReason.GPU_LOST: 1,
        MissingReason.NO_DATA: 1,
    }
    assert batcher.take_blanks() == {}


def test_a_clock_set_back_begins_a_new_block_so_that_times_increase_inside_each():
    batcher = Batcher(COLUMNS)
    row = [[0.0] * 4] * 3
    batcher.add(ticks(0, [100.0, 100.1, 40.0, 40.1], row))
    batcher.add(ticks(0, [40.1, 40.2, 40.3, 40.4], row))  # the first again: not after the one before
    blocks = decode(batcher.flush(), COLUMNS)
    assert [block.time_unix_nano.size for block in blocks] == [2, 2, 4]
    for block in blocks:
        assert (np.diff(block.time_unix_nano) > 0).all()
    assert [int(block.time_unix_nano[0]) for block in blocks] == [100 * SECOND, 40 * SECOND, 40 * SECOND + SECOND // 10]


def test_a_block_longer_than_int32_microseconds_is_cut():
    batcher = Batcher(COLUMNS)
    seconds = 600.0 * np.arange(1, 11)
    batcher.add(ticks(0, seconds, np.zeros((3, 10))))
    blocks = decode(batcher.flush(), COLUMNS)
    assert [block.time_unix_nano.size for block in blocks] == [4, 4, 2]
    np.testing.assert_array_equal(np.concatenate([b.time_unix_nano for b in blocks]), (seconds * 1e9).astype(np.int64))


def test_missed_ticks_travel_once_with_the_next_block_of_their_gpu():
    batcher = Batcher(COLUMNS)
    batcher.add_missed(0, 2)
    batcher.add_missed(1, 1)
    batcher.add(ticks(0, [1], [[0], [0], [0]]))
    assert [b.missed_ticks for b in decode(batcher.flush(), COLUMNS)] == [2]
    batcher.add(ticks(0, [2], [[0], [0], [0]]))
    batcher.add(ticks(1, [2], [[0], [0], [0]]))
    assert {b.gpu: b.missed_ticks for b in decode(batcher.flush(), COLUMNS)} == {0: 0, 1: 1}


def test_unpacking_gives_the_same_values_without_zstd():
    batcher = Batcher(COLUMNS)
    batcher.add(ticks(0, [1, 2], [[0.5, np.nan], [1, 2], [3, 4]]))
    packed = batcher.flush()
    plain = expand_batch(packed)
    assert plain.encoding == ingest_pb2.ENCODING_FLOAT32_LE
    assert len(plain.blocks[0].values) == 24
    np.testing.assert_array_equal(decode(plain, COLUMNS)[0].values, decode(packed, COLUMNS)[0].values)
    assert expand_batch(plain) is plain


@pytest.mark.parametrize("field", ["values", "tick_offsets_us", "counter_bases", "frame"])
def test_blocks_of_another_shape_are_refused(field):
    batcher = Batcher(COLUMNS)
    batcher.add(ticks(0, [1, 2], [[0.5, 1], [1, 2], [3, 4]]))
    batch = batcher.flush() if field == "frame" else expand_batch(batcher.flush())
    if field == "counter_bases":
        del batch.blocks[0].counter_bases[:]
    elif field == "frame":
        batch.blocks[0].values = batch.blocks[0].values[:-4]
    else:
        setattr(batch.blocks[0], field, getattr(batch.blocks[0], field)[:-4])
    with pytest.raises(WireError):
        decode(batch, COLUMNS)


def test_the_inventory_carries_names_units_and_what_is_missing():
    gpu = GpuDescription(
        "GPU-1", 3, "NVIDIA A100", "0000:10:00.0", 40 << 30, "550.1",
        static_attributes=(StaticAttribute("sm_count", 108, StaticOrigin.CUDA_DRIVER),),
        missing_metrics={"sm_active": MissingReason.NO_PERMISSION},
    )  # fmt: skip
    record = inventory_record(SourceInventory("dcgm", (gpu,), METRICS, 0.1, frozenset({"fp16_active"})))
    message = record.inventory
    assert (message.source, message.sampling_interval_us) == ("dcgm", 100_000)
    assert message.gpus[0].static_attributes[0] == gpu_pb2.StaticAttribute(
        name="sm_count", value=108, source=gpu_pb2.STATIC_SOURCE_CUDA_DRIVER
    )
    assert message.gpus[0].missing_metrics[0].reason == gpu_pb2.BLANK_REASON_NO_PERMISSION
    assert [m.name for m in message.metrics] == [m.name for m in METRICS]
    assert [m.name for m in message.metrics if m.multiplexed] == ["fp16_active"]
    descriptors = {m.name: m for m in message.metrics}
    assert descriptors["power_watts"].dcgm_field_id == 155


@pytest.mark.parametrize("enumeration", [Unit, MetricKind, SamplingClass, MissingReason])
def test_every_member_of_the_catalogue_has_a_place_on_the_wire(enumeration):
    tables = {Unit: UNITS, MetricKind: KINDS, SamplingClass: SAMPLING_CLASSES, MissingReason: BLANK_REASONS}
    table = tables[enumeration]
    assert set(table) == set(enumeration)
    assert len(set(table.values())) == len(table)
