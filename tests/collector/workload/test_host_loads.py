"""What agents say of their hosts' load: the latest counts, beside records, and none of it can do harm."""

import math

import grpc
import pytest
from support.running_collector import ThreadCollector
from support.wire_agent import WireStream, batch, hello, inventory, wait_until

from gpusonde.collector.client import Client, WorkloadClient
from gpusonde.collector.ingest.session import take_load
from gpusonde.common.v1 import gpu_pb2
from gpusonde.ingest.v1 import ingest_pb2


def load(**figures):
    return ingest_pb2.StreamSamplesRequest(host_load=gpu_pb2.HostLoad(**figures))


def test_only_figures_that_can_be_are_kept():
    message = gpu_pb2.HostLoad(cpu_busy_ratio=math.nan, disk_bytes_per_second=-1.0, disk_busy_ratio=math.inf)
    message.available_memory_bytes = 5
    message.MergeFromString(b"\xfa\x3e\x03abc")
    known = take_load(message, 7.0)
    assert (known.load, known.unix_s) == (gpu_pb2.HostLoad(available_memory_bytes=5), 7.0)
    assert known.load.ByteSize() == gpu_pb2.HostLoad(available_memory_bytes=5).ByteSize()


@pytest.mark.parametrize(("setting", "interval_ms"), [("30s", 30_000), ("0s", 0)])
def test_agents_are_told_how_often_to_say_it(tmp_path, setting, interval_ms):
    with (
        ThreadCollector(tmp_path / "data", workload__host_load_interval=setting) as collector,
        WireStream(collector.target, hello()) as stream,
    ):
        assert stream.greet().host_load_interval_ms == interval_ms


def test_the_latest_load_is_shown_while_the_agent_streams_and_records_go_on(tmp_path):
    greeting = hello()
    greeting.host.CopyFrom(
        gpu_pb2.Host(host_name="node-1", cpu_count=16, cpu_core_count=8, memory_bytes=1 << 34, cpu_flops=8e11)
    )
    with ThreadCollector(tmp_path / "data") as collector, WorkloadClient(collector.target) as client:
        with WireStream(collector.target, greeting) as stream:
            stream.greet()
            stream.send(inventory())
            for busy in (0.25, 0.5):
                stream.send_raw(load(cpu_busy_ratio=busy, available_memory_bytes=1 << 30))
            stream.send(batch(2))
            stream.wait_acked(2)
            (host,) = client.hosts()
            assert (host["agent_id"], host["host"]["host_name"], host["connected"]) == ("agent-1", "node-1", True)
            assert host["load"]["cpu_busy_ratio"] == 0.5
            assert host["load"]["disk_busy_ratio"] is None
            assert host["load_time"] > 1e9
            assert host["available"] == {
                "cores": 4.0,
                "memory_bytes": float(1 << 30),
                "disk_bytes_per_second": None,
                "flops": 4e11,
            }
            (device,) = host["devices"]
            assert device["gpu_uuid"]
        gone = wait_until(lambda: [h for h in client.hosts() if not h["connected"]])[0]
        assert (gone["load"], gone["available"]["cores"]) == (None, 8.0)


def test_an_agent_that_says_nothing_else_is_read_more_slowly_and_harms_nobody(tmp_path):
    with (
        ThreadCollector(tmp_path / "data", ingest__max_records_per_second="5") as collector,
        WireStream(collector.target, hello()) as flood,
        WireStream(collector.target, hello(agent_id="agent-2", spool_id="spool-2")) as other,
        Client(collector.target) as client,
    ):
        for _ in range(500):
            flood.send_raw(load(cpu_busy_ratio=0.5))
        other.greet()
        other.send(inventory())
        other.send(batch(2))
        other.wait_acked(2)
        assert client.list_runs() == []


def test_a_load_before_hello_is_refused(tmp_path):
    with ThreadCollector(tmp_path / "data") as collector, grpc.insecure_channel(collector.target) as channel:
        call = channel.stream_stream(
            "/gpusonde.ingest.v1.IngestService/StreamSamples",
            request_serializer=ingest_pb2.StreamSamplesRequest.SerializeToString,
            response_deserializer=ingest_pb2.StreamSamplesResponse.FromString,
        )(iter([load(cpu_busy_ratio=0.5)]))
        with pytest.raises(grpc.RpcError) as error:
            next(call)
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
