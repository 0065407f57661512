"""What makes a record invalid, and which field is named."""

import contextlib

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from support.wire_agent import START_NS, batch, block, gpu, inventory, source_ended

from gpusonde.common.v1 import gpu_pb2, job_pb2, metric_pb2
from gpusonde.errors import WireError
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.service.wire import ACTIVITY_COLUMNS, Limits, decode_activity, decode_record

LIMITS = Limits()
COUNTERS = ("sm_active", "energy_joules", "xid_count")


def decoded_inventory(**more):
    return decode_record(inventory(**more), None, LIMITS)


def refusal(record, known="default", limits=LIMITS):
    with pytest.raises(WireError) as caught:
        decode_record(record, decoded_inventory() if known == "default" else known, limits)
    return caught.value


def changed_block(**changes):
    record = batch(2)
    for name, value in changes.items():
        setattr(record.batch.blocks[0], name, value)
    return record


def test_a_block_becomes_arrays():
    record = batch(2, block(first_tick=5, ticks=3, missed=2))
    (decoded,) = decode_record(record, decoded_inventory(), LIMITS).blocks
    assert decoded.gpu_uuid == "GPU-a"
    assert decoded.time_unix_nano.tolist() == [START_NS + tick * 100_000_000 for tick in (5, 6, 7)]
    assert decoded.values.shape == (3, 3)
    assert decoded.values[0].tolist() == pytest.approx([0.05, 0.06, 0.07])
    assert decoded.missed_ticks == 2


@pytest.mark.parametrize(
    ("record", "field", "words"),
    [
        (changed_block(gpu=1), "batch.blocks[0].gpu", "index 1 is out of range: the inventory has 1 GPUs"),
        (changed_block(tick_count=0), "batch.blocks[0].tick_count", "0 is not between 1 and"),
        (changed_block(tick_count=1 << 30), "batch.blocks[0].tick_count", "is not between"),
        (changed_block(tick_count=9), "batch.blocks[0].tick_offsets_us", "has 40 bytes; 9 ticks need 36"),
        (changed_block(values=b"1234"), "batch.blocks[0].values", "has 4 bytes; ticks times metrics"),
        (changed_block(start_time_unix_nano=-1), "batch.blocks[0].start_time_unix_nano", "is not a time"),
        (changed_block(start_time_unix_nano=(1 << 63) - 1), "batch.blocks[0].start_time_unix_nano", "is not a time"),
        (
            changed_block(tick_offsets_us=np.array([0, 1, 2, 2, 3, 4, 5, 6, 7, 8], dtype="<i4").tobytes()),
            "batch.blocks[0].tick_offsets_us",
            "does not increase",
        ),
        (
            changed_block(tick_offsets_us=np.arange(-5, 5, dtype="<i4").tobytes()),
            "batch.blocks[0].tick_offsets_us",
            "does not increase",
        ),
        (batch(2, block(), block(first_tick=5)), "batch.blocks[1].start_time_unix_nano", "does not come after"),
        (batch(2, block(bases=[1.0])), "batch.blocks[0].counter_bases", "has 1 entries; the inventory has 0 counters"),
        (batch(2, encoding=0), "batch.encoding", "none of those"),
        (ingest_pb2.Record(sequence=2, batch=ingest_pb2.SampleBatch(encoding=1)), "batch.blocks", "is empty"),
        (ingest_pb2.Record(sequence=2), "record.payload", "is empty or newer than this collector"),
        (source_ended(2, 3), "source_ended.gpus[0]", "out of range"),
    ],
)
def test_a_bad_batch_names_its_field(record, field, words):
    error = refusal(record)
    assert error.field == field
    assert words in error.problem


@pytest.mark.parametrize(
    ("blank", "field"),
    [
        (ingest_pb2.BlankCount(metric=9, reason=1, count=1), "batch.blocks[0].blank_counts[0].metric"),
        (ingest_pb2.BlankCount(metric=0, reason=99, count=1), "batch.blocks[0].blank_counts[0].reason"),
        (ingest_pb2.BlankCount(metric=0, reason=1, count=11), "batch.blocks[0].blank_counts[0].count"),
    ],
)
def test_a_bad_blank_count_names_its_field(blank, field):
    record = batch(2)
    record.batch.blocks[0].blank_counts.append(blank)
    assert refusal(record).field == field


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        (lambda i: i.ClearField("gpus"), "inventory.gpus", "is empty"),
        (lambda i: i.ClearField("metrics"), "inventory.metrics", "is empty"),
        (lambda i: i.gpus.append(gpu("GPU-a")), "inventory.gpus[1]", "appears twice"),
        (lambda i: i.metrics.append(i.metrics[0]), "inventory.metrics[3]", "appears twice"),
        (lambda i: setattr(i.metrics[0], "name", "sm_activ"), "inventory.metrics[0].name", "did you mean sm_active"),
        (
            lambda i: setattr(i.metrics[1], "unit", metric_pb2.UNIT_JOULES),
            "inventory.metrics[1].unit",
            "power_watts is measured in watts",
        ),
        (
            lambda i: setattr(i.metrics[1], "kind", metric_pb2.METRIC_KIND_COUNTER),
            "inventory.metrics[1].kind",
            "power_watts is a gauge",
        ),
        (lambda i: setattr(i.gpus[0], "gpu_uuid", ""), "inventory.gpus[0].gpu_uuid", "is empty"),
        (lambda i: setattr(i.gpus[0], "gpu_uuid", "x" * 300), "inventory.gpus[0].gpu_uuid", "300 characters"),
        (lambda i: setattr(i.gpus[0], "product_name", "T4\n"), "inventory.gpus[0].product_name", "unprintable"),
        (
            lambda i: i.gpus[0].static_attributes.add(name="sm_count", value=float("inf")),
            "inventory.gpus[0].static_attributes[0].value",
            "not a finite number",
        ),
        (lambda i: setattr(i, "sampling_interval_us", 0), "inventory.sampling_interval_us", "is not between"),
    ],
)
def test_a_bad_inventory_names_its_field(change, field, words):
    record = inventory()
    change(record.inventory)
    error = refusal(record)
    assert error.field == field
    assert words in error.problem


def test_caps_hold_for_gpus_metrics_and_blocks():
    small = Limits(gpus=1, metrics=2, blocks=1, ticks=5)
    assert refusal(inventory(gpus=("a", "b"), metrics=("sm_active",)), limits=small).field == "inventory.gpus"
    assert refusal(inventory(), limits=small).field == "inventory.metrics"
    known = decode_record(inventory(metrics=("sm_active",)), None, small)
    one = block(metrics=("sm_active",), ticks=5)
    assert refusal(batch(2, one, one), known, small).field == "batch.blocks"
    assert refusal(batch(2, block(metrics=("sm_active",), ticks=6)), known, small).field == "batch.blocks[0].tick_count"


def test_a_record_over_the_size_limit_is_refused_with_a_status_of_its_own():
    with pytest.raises(WireError, match="at most 100 are taken") as refused:
        decode_record(batch(2), decoded_inventory(), Limits(record_bytes=100))
    assert refused.value.status == "RESOURCE_EXHAUSTED"


def test_a_batch_without_inventory_is_refused_with_a_status_of_its_own():
    with pytest.raises(WireError, match="send one first") as refused:
        decode_record(batch(1), None, LIMITS)
    assert refused.value.status == "FAILED_PRECONDITION"


def test_counters_are_differences_to_a_float64_base():
    known = decoded_inventory(metrics=COUNTERS)
    values = np.array([[0.5, 0.5], [0.0, 1.5], [0.0, 1.0]])
    record = batch(2, block(ticks=2, values=values, bases=[123_456_789.25, 7.0]))
    (decoded,) = decode_record(record, known, LIMITS).blocks
    assert decoded.layout.counters == (1, 2)
    assert decoded.counter_bases.tolist() == [123_456_789.25, 7.0]
    assert refusal(batch(2, block(ticks=2, values=values)), known).field == "batch.blocks[0].counter_bases"
    bad = batch(2, block(ticks=2, values=values, bases=[float("nan"), 1.0]))
    assert refusal(bad, known).field == "batch.blocks[0].counter_bases[0]"


def packed(data, **options):
    record = batch(2, encoding=ingest_pb2.ENCODING_FLOAT32_LE_ZSTD)
    record.batch.blocks[0].values = zstandard.ZstdCompressor(**options).compress(data)
    return record


@pytest.mark.parametrize("write_content_size", [True, False])
def test_a_zstd_frame_expands_to_the_same_block(write_content_size):
    plain = batch(2)
    record = packed(plain.batch.blocks[0].values, write_content_size=write_content_size)
    known = decoded_inventory()
    expected, found = (decode_record(r, known, LIMITS).blocks[0] for r in (plain, record))
    assert (expected.values == found.values).all()


@pytest.mark.parametrize(
    "data",
    [
        packed(bytes(1 << 26)).batch.blocks[0].values,
        packed(bytes(1 << 26), write_content_size=False).batch.blocks[0].values,
        packed(bytes(119)).batch.blocks[0].values,
        packed(bytes(120)).batch.blocks[0].values[:-3],
        packed(bytes(120)).batch.blocks[0].values + b"more",
        b"no zstd at all",
        b"",
    ],
    ids=["bomb", "bomb of undeclared size", "too short", "truncated", "trailing bytes", "garbage", "empty"],
)
def test_a_zstd_frame_of_another_size_is_refused_without_expanding_it(data):
    record = batch(2, encoding=ingest_pb2.ENCODING_FLOAT32_LE_ZSTD)
    record.batch.blocks[0].values = data
    assert refusal(record).field == "batch.blocks[0].values"


def test_the_blocks_of_a_batch_together_cannot_expand_without_bound():
    known = decoded_inventory()
    ticks = 30_000
    frame = zstandard.ZstdCompressor().compress(bytes(4 * 3 * ticks))
    blocks = [block(first_tick=i * ticks, ticks=ticks, values=np.zeros((3, 1))) for i in range(60)]
    for item in blocks:
        item.values = frame
        item.tick_offsets_us = np.arange(ticks, dtype="<i4").tobytes()
    record = batch(2, *blocks, encoding=ingest_pb2.ENCODING_FLOAT32_LE_ZSTD)
    error = refusal(record, known, Limits(record_bytes=8 << 20))
    assert "more than 33554432 bytes of samples" in error.problem


def test_sentinels_become_nan_with_a_reason():
    values = np.array([[0.5, -1.0, 9.0, np.nan], [1e12, 50.0, np.inf, 60.0], [1e9, 1e9, 1e9, 1e9]])
    (decoded,) = decode_record(batch(2, block(ticks=4, values=values)), decoded_inventory(), LIMITS).blocks
    assert np.isnan(decoded.values[0]).tolist() == [False, True, True, True]
    assert np.isnan(decoded.values[1]).tolist() == [True, False, True, False]
    out_of_range = gpu_pb2.BLANK_REASON_OUT_OF_RANGE
    assert [(b.metric, b.reason, b.count) for b in decoded.blanks] == [
        ("sm_active", out_of_range, 2),
        ("power_watts", out_of_range, 2),
    ]


def test_a_mig_instance_goes_by_its_own_uuid():
    known = decoded_inventory(gpus=(gpu("GPU-a", mig_uuid="MIG-1"), gpu("GPU-a", mig_uuid="MIG-2")))
    assert [g.gpu_uuid for g in known.gpus] == ["MIG-1", "MIG-2"]


@pytest.mark.parametrize(
    ("binding", "field"),
    [
        (job_pb2.JobBinding(gpu_uuid="g", start_time_unix_nano=5), "job_bindings.bindings[0].job_id"),
        (job_pb2.JobBinding(job_id="j", start_time_unix_nano=5), "job_bindings.bindings[0].gpu_uuid"),
        (job_pb2.JobBinding(gpu_uuid="g", job_id="j"), "job_bindings.bindings[0].start_time_unix_nano"),
        (
            job_pb2.JobBinding(gpu_uuid="g", job_id="j", start_time_unix_nano=5, end_time_unix_nano=4),
            "job_bindings.bindings[0].end_time_unix_nano",
        ),
        (
            job_pb2.JobBinding(gpu_uuid="g", job_id="j", start_time_unix_nano=5, labels={"k": "v" * 300}),
            "job_bindings.bindings[0].labels[k]",
        ),
    ],
)
def test_a_bad_job_binding_names_its_field(binding, field):
    record = ingest_pb2.Record(sequence=1, job_bindings=ingest_pb2.JobBindings(bindings=[binding]))
    assert refusal(record).field == field


def activity(looks=3, **more):
    group = {"gpu_uuids": ["GPU-a", "GPU-b"], "forks": range(looks), "lifetime_ms": [1500] * looks} | more
    return ingest_pb2.JobActivity(
        start_time_unix_nano=START_NS,
        offsets_ms=[1000 * i for i in range(looks)],
        groups=[ingest_pb2.ProcessGroupActivity(**group)],
    )


def test_what_processes_do_becomes_columns_of_which_those_that_cannot_be_read_are_nan():
    record = ingest_pb2.Record(sequence=1, job_activity=activity(written_bytes=[0, 2**40, 0]))
    (job,) = decode_record(record, None, LIMITS).jobs
    assert job.gpu_uuids == ("GPU-a", "GPU-b")
    assert job.time_unix_nano.tolist() == [START_NS + i * 10**9 for i in range(3)]
    columns = dict(zip(ACTIVITY_COLUMNS, job.values.tolist(), strict=True))
    assert (columns["forks"], columns["lifetime_s"]) == ([0, 1, 2], [1.5] * 3)
    assert columns["written_bytes"] == [0, 2**40, 0]
    assert np.isnan(columns["read_bytes"]).all()
    again = decode_activity(ingest_pb2.JobActivity.FromString(job.message), LIMITS).jobs[0]
    assert (again.values[0] == job.values[0]).all()


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (ingest_pb2.JobActivity(), "job_activity.start_time_unix_nano"),
        (ingest_pb2.JobActivity(start_time_unix_nano=5, offsets_ms=[3, 3]), "job_activity.offsets_ms"),
        (ingest_pb2.JobActivity(start_time_unix_nano=5, offsets_ms=[2**32 - 1]), "job_activity.offsets_ms"),
        (ingest_pb2.JobActivity(start_time_unix_nano=5, offsets_ms=range(5000)), "job_activity.offsets_ms"),
        (activity(exits=[1]), "job_activity.groups[0].exits"),
        (activity(read_bytes=[1] * 4), "job_activity.groups[0].read_bytes"),
        (activity(gpu_uuids=["GPU\n"]), "job_activity.groups[0].gpu_uuids"),
        (activity(gpu_uuids=["g"] * 200), "job_activity.groups[0].gpu_uuids"),
        (activity(processes=2**31), "job_activity.groups[0].processes"),
    ],
)
def test_bad_news_of_processes_name_their_field(message, field):
    assert refusal(ingest_pb2.Record(sequence=1, job_activity=message)).field == field


def test_a_loss_report_must_be_a_range():
    report = ingest_pb2.LossReport(first_lost_sequence=5, last_lost_sequence=4)
    assert refusal(ingest_pb2.Record(sequence=6, loss_report=report)).field == "loss_report.last_lost_sequence"
    ticks_only = ingest_pb2.LossReport(lost_ticks=10, reason=ingest_pb2.LOSS_REASON_DISK_FULL)
    assert decode_record(ingest_pb2.Record(sequence=6, loss_report=ticks_only), None, LIMITS).lost_ticks == 10


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_make_the_decoder_fail_otherwise_than_by_refusing(data):
    try:
        record = ingest_pb2.Record.FromString(data)
    except Exception:
        return
    with contextlib.suppress(WireError):
        decode_record(record, decoded_inventory(), LIMITS)


@settings(max_examples=200, deadline=None)
@given(
    ticks=st.integers(0, 2**32 - 1),
    gpu_index=st.integers(0, 3),
    start=st.integers(-(2**63), 2**63 - 1),
    offsets=st.binary(max_size=48),
    values=st.binary(max_size=150),
    encoding=st.integers(0, 3),
    bases=st.lists(st.floats(), max_size=2),
)
def test_no_block_makes_the_decoder_fail_otherwise_than_by_refusing(
    ticks, gpu_index, start, offsets, values, encoding, bases
):
    wire = ingest_pb2.GpuBlock(
        gpu=gpu_index, tick_count=ticks, start_time_unix_nano=start, tick_offsets_us=offsets, values=values,
        counter_bases=bases,
    )  # fmt: skip
    with contextlib.suppress(WireError):
        decode_record(batch(2, wire, encoding=encoding), decoded_inventory(), LIMITS)
