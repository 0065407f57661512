"""IngestService over real gRPC: resume, fencing, what is refused and what survives a refusal."""

import asyncio
import gc

import grpc
import pytest
from support.running_collector import ThreadCollector
from support.wire_agent import START_NS, TICK_NS, WireStream, batch, block, hello, inventory, wait_until

from gpusonde.collector import LocalStore
from gpusonde.collector.client import Client
from gpusonde.collector.storage.local.fsck import check_store
from gpusonde.common.v1 import gpu_pb2
from gpusonde.errors import DirectoryLockedError, GpusondeError
from gpusonde.ingest.v1 import ingest_pb2


def stored_ticks(collector, gpu_uuid="GPU-a"):
    with Client(collector.target) as client:
        return len(client.read_samples(gpu_uuid))


def test_hello_ack_names_the_durable_sequence_and_the_limits(collector):
    with WireStream(collector.target, hello()) as stream:
        ack = stream.greet()
        assert ack.durable_sequence == 0
        assert ack.max_record_bytes == 4 << 20
        assert ack.max_unacked_records == 64
        assert ack.max_records_per_request == 16
        assert ack.encoding == ingest_pb2.ENCODING_FLOAT32_LE
        assert ack.collector_id


def test_zstd_is_chosen_when_the_agent_offers_it(collector):
    greeting = hello()
    greeting.encodings.append(ingest_pb2.ENCODING_FLOAT32_LE_ZSTD)
    with WireStream(collector.target, greeting) as stream:
        assert stream.greet().encoding == ingest_pb2.ENCODING_FLOAT32_LE_ZSTD


def test_records_are_acknowledged_and_a_new_stream_goes_on_behind_them(collector):
    with WireStream(collector.target, hello()) as stream:
        stream.greet()
        stream.send(inventory(), batch(2), batch(3)).wait_acked(3)
    with WireStream(collector.target, hello()) as stream:
        assert stream.greet().durable_sequence == 3
        stream.send(batch(4)).wait_acked(4)
    assert stored_ticks(collector) == 30


def together(*records, **more):
    return ingest_pb2.StreamSamplesRequest(records=records, **more)


def test_records_of_one_request_are_taken_as_if_each_came_alone(collector):
    with WireStream(collector.target, hello()) as stream:
        stream.greet()
        stream.send_raw(together(inventory(), batch(2), batch(3))).wait_acked(3)
        # Sent again in part, as after a crash between them.
        stream.send_raw(together(batch(3), batch(4))).send(batch(5)).wait_acked(5)
    assert stored_ticks(collector) == 40


def test_a_refused_record_of_several_takes_none_before_it_along(collector):
    broken = batch(3)
    broken.batch.blocks[0].values = broken.batch.blocks[0].values[:-4]
    with WireStream(collector.target, hello()) as stream:
        stream.greet()
        code, text = stream.send_raw(together(inventory(), batch(2), broken, batch(4))).end()
        assert code == "INVALID_ARGUMENT"
        assert "record 3 is refused" in text
        assert stream.acked == 2
    with WireStream(collector.target, hello()) as stream:
        assert stream.greet().durable_sequence == 2
        stream.send_raw(together(batch(3), batch(4))).wait_acked(4)
    assert stored_ticks(collector) == 30


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (together(inventory(), *map(batch, range(2, 18))), "field 'request.records': has 17 records, at most 16 are"),
        (together(batch(2), record=inventory()), "records and nothing else"),
        (together(inventory(), host_load=gpu_pb2.HostLoad(cpu_busy_ratio=0.5)), "records and nothing else"),
        (together(), "records and nothing else"),
    ],
)  # fmt: skip
def test_a_request_with_too_much_in_it_is_refused_by_name_and_leaves_nothing(collector, request_, words):
    with WireStream(collector.target, hello()) as stream:
        stream.greet()
        code, text = stream.send_raw(request_).end()
        assert code == "INVALID_ARGUMENT"
        assert words in text
        assert stream.acked == 0


def test_half_close_is_answered_when_everything_is_durable(collector):
    with WireStream(collector.target, hello()) as stream:
        stream.greet()
        assert stream.send(inventory(), batch(2)).finish().end() == ("OK", "")
        assert stream.acked == 2


def test_a_repetition_is_dropped_and_counted(tmp_path):
    with ThreadCollector(tmp_path / "data") as collector:
        with WireStream(collector.target, hello()) as stream:
            stream.greet()
            stream.send(inventory(), batch(2), batch(2), inventory(1), batch(3)).wait_acked(3)
        assert stored_ticks(collector) == 20
        assert collector.stop().counts["repetitions"] == 2


def test_a_gap_ends_the_stream_and_keeps_what_came_before(collector):
    with WireStream(collector.target, hello()) as stream:
        stream.greet()
        code, text = stream.send(inventory(), batch(2), batch(4)).end()
        assert code == "OUT_OF_RANGE"
        assert "record 4 leaves a gap: 3 is next" in text
        assert stream.acked == 2
    assert stored_ticks(collector) == 10


def test_a_declared_loss_is_a_gap_on_record(tmp_path):
    with ThreadCollector(tmp_path / "data") as collector:
        with WireStream(collector.target, hello()) as stream:
            stream.greet()
            stream.send(inventory(), batch(2)).wait_acked(2)
        with WireStream(collector.target, hello(first=8)) as stream:
            stream.greet()
            stream.send(batch(8)).wait_acked(8)
    store = LocalStore(tmp_path / "data")
    store.open()
    assert [(loss.first_sequence, loss.last_sequence, loss.reported) for loss in store.facts.losses()] == [
        (3, 7, False)
    ]
    store.close()


def test_a_spool_that_goes_on_under_a_new_id_is_no_gap_and_one_inside_it_is(tmp_path, caplog):
    with ThreadCollector(tmp_path / "data") as collector:
        with WireStream(collector.target, hello(spool_id="renewed", first=38, first_sequence=38)) as stream:
            assert stream.greet().durable_sequence == 37
            stream.send(inventory(sequence=38), batch(39)).wait_acked(39)
        assert "has lost records" not in caplog.text
        with WireStream(collector.target, hello(spool_id="renewed", first=45, first_sequence=38)) as stream:
            stream.greet()
            stream.send(batch(45)).wait_acked(45)
        assert "has lost records 40 to 44" in caplog.text
    assert check_store(tmp_path / "data").findings == []
    store = LocalStore(tmp_path / "data")
    store.open()
    assert [(loss.first_sequence, loss.last_sequence) for loss in store.facts.losses()] == [(40, 44)]
    store.close()


def test_a_hello_that_begins_behind_what_it_holds_is_refused(collector):
    with WireStream(collector.target, hello(first=3, first_sequence=4)) as stream:
        assert stream.end() == (
            "INVALID_ARGUMENT", "field 'hello.first_sequence': is behind hello.first_available_sequence"
        )  # fmt: skip


def test_an_agent_is_told_which_of_its_marked_records_are_here(collector):
    def mark(sequence, tick):
        return ingest_pb2.RecordMark(sequence=sequence, gpu_uuid="GPU-a", tick_time_unix_nano=START_NS + tick * TICK_NS)

    with WireStream(collector.target, hello()) as stream:
        assert stream.greet().same_sequence == 0
        stream.send(inventory(), batch(2), batch(3), batch(4)).wait_acked(4)
    for marks, same in [
        ([mark(2, 0), mark(4, 20)], 4),
        ([mark(2, 0), mark(4, 21), mark(9, 70)], 4),
        ([mark(2, 0), mark(4, 30)], 2),
        ([mark(3, 99)], 0),
    ]:
        with WireStream(collector.target, hello(marks=marks)) as stream:
            assert stream.greet().same_sequence == same
    with WireStream(collector.target, hello(marks=[mark(0, 0)])) as stream:
        assert stream.end() == ("INVALID_ARGUMENT", "field 'hello.marks.sequence': sequences begin with 1")


def test_a_newer_process_with_the_same_spool_takes_over(collector):
    with WireStream(collector.target, hello()) as old:
        old.greet()
        old.send(inventory()).wait_acked(1)
        with WireStream(collector.target, hello(start=2_000, instance="instance-2")) as new:
            assert new.greet().durable_sequence == 1
            assert old.end() == (
                "ABORTED",
                "a newer stream of this agent has taken over; this one is closed",
            )
            old.send(batch(2))
            new.send(batch(2)).wait_acked(2)
    assert stored_ticks(collector) == 10


def test_a_new_stream_is_answered_only_when_the_older_one_is_durable(tmp_path):
    with (
        ThreadCollector(tmp_path / "data", ingest__commit_interval="300ms") as collector,
        WireStream(collector.target, hello()) as old,
    ):
        old.greet()
        old.send(inventory(), *(batch(i) for i in range(2, 30)))
        old.wait_acked(1)
        old.send(*(batch(i) for i in range(30, 60)))
        with WireStream(collector.target, hello()) as new:
            durable = new.greet().durable_sequence
            new.send(*(batch(i) for i in range(durable + 1, 70))).wait_acked(69)
        assert stored_ticks(collector) == 680


def test_a_process_that_was_started_earlier_is_a_second_agent(collector):
    with WireStream(collector.target, hello(start=2_000)) as first:
        first.greet()
        with WireStream(collector.target, hello(start=1_000, instance="instance-2")) as second:
            code, text = second.end()
        assert code == "ALREADY_EXISTS"
        assert "a second agent with the same id: 'agent-1' was started later and owns the id" in text
        first.send(inventory()).wait_acked(1)


def test_a_live_agent_is_not_displaced_by_one_with_another_spool(collector):
    with WireStream(collector.target, hello()) as first:
        first.greet()
        other = hello(spool_id="spool-2", start=2_000, instance="instance-2")
        with WireStream(collector.target, other) as second:
            code, text = second.end()
        assert code == "ALREADY_EXISTS"
        assert "is streaming from another spool" in text
        first.send(inventory()).wait_acked(1)


def test_the_id_of_a_gone_agent_stays_closed_to_an_older_process_even_over_a_restart(tmp_path):
    with (
        ThreadCollector(tmp_path / "data") as collector,
        WireStream(collector.target, hello(start=2_000)) as stream,
    ):
        stream.greet()
    with ThreadCollector(tmp_path / "data") as collector:
        with WireStream(collector.target, hello(start=1_000, instance="instance-2")) as older:
            assert older.end()[0] == "ALREADY_EXISTS"
        with WireStream(collector.target, hello(start=3_000, instance="instance-3")) as newer:
            newer.greet()


def test_a_new_spool_of_the_same_process_starts_from_one(collector):
    with WireStream(collector.target, hello()) as stream:
        stream.greet()
        stream.send(inventory(), batch(2)).wait_acked(2)
        with WireStream(collector.target, hello(spool_id="spool-2")) as renewed:
            assert renewed.greet().durable_sequence == 0
            renewed.send(inventory(1), batch(2, block(first_tick=10))).wait_acked(2)
    assert stored_ticks(collector) == 20


def test_more_agents_than_allowed_are_refused(tmp_path):
    with (
        ThreadCollector(tmp_path / "data", ingest__max_agents="1") as collector,
        WireStream(collector.target, hello()) as first,
    ):
        first.greet()
        with WireStream(collector.target, hello(agent_id="agent-2")) as second:
            code, text = second.end()
        assert code == "RESOURCE_EXHAUSTED"
        assert "1 agents are connected" in text


@pytest.mark.parametrize(
    ("greeting", "field"),
    [
        (hello(agent_id=""), "hello.agent_id"),
        (hello(agent_id="../../etc"), "hello.agent_id"),
        (hello(spool_id="x" * 200), "hello.spool_id"),
        (hello(first=0), "hello.first_available_sequence"),
        (hello(start=0), "hello.agent_start_time_unix_nano"),
        (hello(agent_version="x" * 300), "hello.agent_version"),
    ],
)
def test_a_bad_greeting_names_its_field(collector, greeting, field):
    with WireStream(collector.target, greeting) as stream:
        code, text = stream.end()
    assert code == "INVALID_ARGUMENT"
    assert f"field '{field}'" in text


def test_a_stream_that_begins_with_a_record_is_refused(collector):
    with WireStream(collector.target, None) as stream:
        code, text = stream.send(inventory()).end()
    assert (code, text) == ("INVALID_ARGUMENT", "the first message of a stream carries Hello")


@pytest.mark.parametrize("greeted", [False, True])
def test_a_message_that_is_no_request_is_an_invalid_argument(collector, greeted):
    messages = [ingest_pb2.StreamSamplesRequest(hello=hello()).SerializeToString()] * greeted + [b"\xff" * 100]
    with grpc.insecure_channel(collector.target) as channel:
        call = channel.stream_stream("/gpusonde.ingest.v1.IngestService/StreamSamples")
        with pytest.raises(grpc.RpcError) as caught:
            list(call(iter(messages), timeout=200))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "no StreamSamplesRequest" in caught.value.details()


def test_a_second_hello_in_a_stream_is_refused(collector):
    with WireStream(collector.target, hello()) as stream:
        stream.greet()
        code, _ = stream.send_raw(ingest_pb2.StreamSamplesRequest(hello=hello())).end()
    assert code == "INVALID_ARGUMENT"


def test_an_invalid_record_ends_the_stream_and_everything_before_it_is_kept(collector):
    broken = batch(3)
    broken.batch.blocks[0].values = broken.batch.blocks[0].values[:-4]
    with WireStream(collector.target, hello()) as stream:
        stream.greet()
        code, text = stream.send(inventory(), batch(2), broken, batch(4)).end()
        assert code == "INVALID_ARGUMENT"
        assert "record 3 is refused: field 'batch.blocks[0].values': has 116 bytes" in text
        assert stream.acked == 2
    assert stored_ticks(collector) == 10


def test_a_batch_before_any_inventory_is_a_failed_precondition(collector):
    with WireStream(collector.target, hello()) as stream:
        stream.greet()
        code, text = stream.send(batch(1)).end()
    assert code == "FAILED_PRECONDITION"
    assert "comes before any Inventory of this spool" in text


def test_the_inventory_outlives_the_stream_that_brought_it(collector):
    with WireStream(collector.target, hello()) as stream:
        stream.greet()
        stream.send(inventory()).wait_acked(1)
    with WireStream(collector.target, hello()) as stream:
        stream.greet()
        stream.send(batch(2)).wait_acked(2)


def test_a_record_over_the_announced_size_names_its_size(tmp_path):
    ticks = 10_000
    with ThreadCollector(tmp_path / "data", ingest__max_record_bytes="64KiB") as collector:
        with WireStream(collector.target, hello()) as stream:
            stream.greet()
            code, text = stream.send(inventory(), batch(2, block(ticks=ticks))).end()
        assert code == "RESOURCE_EXHAUSTED"
        assert "at most 65536 are taken" in text


def test_a_message_over_what_grpc_takes_is_resource_exhausted_too(tmp_path):
    with ThreadCollector(tmp_path / "data", ingest__max_record_bytes="64KiB") as collector:
        with WireStream(collector.target, hello()) as stream:
            stream.greet()
            stream.send(inventory()).wait_acked(1)
            code, _ = stream.send(batch(2, block(ticks=30_000))).end()
        assert code == "RESOURCE_EXHAUSTED"
        with WireStream(collector.target, hello()) as stream:
            assert stream.greet().durable_sequence == 1


def test_a_record_refused_again_and_again_goes_into_quarantine_and_the_agent_goes_on(tmp_path):
    poison = batch(3)
    poison.batch.blocks[0].gpu = 7
    with ThreadCollector(tmp_path / "data") as collector:
        with WireStream(collector.target, hello()) as stream:
            stream.greet()
            assert stream.send(inventory(), batch(2), poison).end()[0] == "INVALID_ARGUMENT"
        with WireStream(collector.target, hello()) as stream:
            stream.greet()
            assert stream.send(poison).end()[0] == "INVALID_ARGUMENT"
        with WireStream(collector.target, hello()) as stream:
            stream.greet()
            stream.send(poison, batch(4)).wait_acked(4)
        assert stored_ticks(collector) == 20
        assert collector.stop().counts["quarantined"] == 1
    store = LocalStore(tmp_path / "data")
    store.open()
    (rejection,) = store.facts.rejections()
    assert (rejection.sequence, rejection.field) == (3, "batch.blocks[0].gpu")
    kept = store.layout.quarantine / rejection.file_name
    assert ingest_pb2.Record.FromString(kept.read_bytes()) == poison
    assert store.facts.losses() == []
    store.close()


def test_drain_tells_agents_to_go_and_acknowledges_what_arrived(tmp_path):
    with ThreadCollector(tmp_path / "data", ingest__commit_interval="200ms") as collector:
        stream = WireStream(collector.target, hello())
        stream.greet()
        stream.send(inventory(), batch(2), batch(3)).wait_acked(3)
        stream.send(batch(4))
        collector.stop()
        assert stream.end()[0] == "OK"
        assert stream.drain.grace_ms == 2000
        stream.close()
    with ThreadCollector(tmp_path / "data") as collector, WireStream(collector.target, hello()) as again:
        assert again.greet().durable_sequence == stream.acked


def test_a_second_collector_on_the_port_fails_loudly(collector, tmp_path):
    with pytest.raises(GpusondeError, match="another process"):
        ThreadCollector(tmp_path / "other", server__listen=collector.target).__enter__()


def test_a_second_collector_on_the_directory_fails_loudly(collector, tmp_path):
    with pytest.raises(DirectoryLockedError, match="in use by another collector"):
        LocalStore(tmp_path / "data").open()


def pending_tasks():
    return [one for one in gc.get_objects() if isinstance(one, asyncio.Task) and "AgentSession" in repr(one)]


def test_agents_that_go_away_leave_no_task_behind(tmp_path, caplog):
    with ThreadCollector(tmp_path / "data") as collector:
        for number in range(5):
            stream = WireStream(collector.target, hello(f"agent-{number}"))
            stream.greet()
            stream.send(inventory()).wait_acked(1)
            assert pending_tasks()
            stream.close()
        wait_until(lambda: not pending_tasks(), 120, "end of what waited for the agents")
    assert not [record for record in caplog.records if record.name == "asyncio"]
