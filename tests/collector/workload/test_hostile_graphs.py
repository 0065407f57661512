"""Graphs from people who mean harm, sent to a collector that takes records: refused one by one, and nothing run."""

import threading
import time

import grpc
import pytest
from support.hostile_graphs import HOSTILE, pt2, with_pickle
from support.layered_graphs import graph_json
from support.running_collector import ThreadCollector
from support.wire_agent import WireStream, batch, hello, inventory

from gpusonde.collector.client import CollectorError, WorkloadClient
from gpusonde.errors import DataDependentGraphError, GraphLimitError, MalformedGraphError, UnsupportedGraphError
from gpusonde.workload.v1 import workload_pb2, workload_pb2_grpc

KINDS = {
    GraphLimitError: "graph_too_large",
    MalformedGraphError: "malformed_graph",
    UnsupportedGraphError: "unsupported_graph",
    DataDependentGraphError: "data_dependent_graph",
}
CLUSTER = {"device": "T4"}
# The bar is one second. Other work on the host (tests run beside each other) must not make it fail, and to move 100 MB
# through gRPC in Python takes its time whatever is in them.
PATIENCE_S = 15.0  # more than any of them takes, by far, on a machine that is busy
PATIENCE_PER_BYTE_S = 2e-7


class Agent:
    """Streams records until told to stop, and waits for the acknowledgement of each."""

    def __init__(self, target):
        self._stream = WireStream(target, hello(), timeout_s=300)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.waits_s = []

    def _run(self):
        self._stream.greet()
        self._stream.send(inventory())
        sequence = 1
        while not self._stop.is_set():
            sequence += 1
            began = time.monotonic()
            self._stream.send(batch(sequence)).wait_acked(sequence)
            self.waits_s.append(time.monotonic() - began)
            time.sleep(0.02)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join(240)
        self._stream.close()


@pytest.fixture(scope="module")
def collector(tmp_path_factory, model_file):
    # The largest of them are to reach their reader.
    settings = {"workload__max_request_bytes": "128MiB", "workers__time_limit": "5m", "workload__model": model_file}
    with ThreadCollector(tmp_path_factory.mktemp("hostile") / "data", **settings) as running:
        yield running


@pytest.fixture(scope="module")
def agent(collector):
    with Agent(collector.target) as streaming:
        yield streaming
    assert len(streaming.waits_s) > 10
    assert max(streaming.waits_s) < 4 * PATIENCE_S


@pytest.fixture(scope="module")
def client(collector):
    with WorkloadClient(collector.target) as asking:
        asking.predict([workload(graph_json())])
        yield asking


def workload(content, **more):
    return {"graph": {"content": content, **more}, "batch_size": 8, "cluster": CLUSTER}


@pytest.mark.parametrize("name", HOSTILE)
def test_it_is_refused_at_once_and_the_next_question_is_answered_while_records_go_on(client, agent, name):
    hostile = HOSTILE[name]
    content = hostile.make()
    acknowledged = len(agent.waits_s)
    began = time.monotonic()
    refused, answered = client.predict([workload(content, format=hostile.format), workload(graph_json())])
    took_s = time.monotonic() - began
    assert refused["error"]["kind"] == KINDS[hostile.refusal], refused["error"]
    assert answered["prediction"]
    assert took_s < PATIENCE_S + PATIENCE_PER_BYTE_S * len(content)
    assert len(agent.waits_s) >= acknowledged


def test_a_pickle_in_an_archive_is_not_executed(client, tmp_path):
    marker = tmp_path / "executed"
    entries = ("data/sample_inputs/model.pt", "data/constants/model_constants_config.json", "data/weights/model.pt")
    for entry in entries:
        client.predict([workload(with_pickle(pt2(), marker, entry))])
    assert not marker.exists()


def test_what_is_larger_than_a_request_may_be_never_arrives(tmp_path, model_file):
    with (
        ThreadCollector(tmp_path / "data", workload__model=model_file) as running,
        Agent(running.target) as agent,
        WorkloadClient(running.target) as client,
    ):
        began = time.monotonic()
        with pytest.raises(CollectorError) as error:
            client.predict([workload(HOSTILE["100 MB of JSON"].make())])
        assert error.value.code == "RESOURCE_EXHAUSTED"
        assert time.monotonic() - began < 4 * PATIENCE_S
        with pytest.raises(CollectorError, match=r"workload\.max_request_bytes"):
            client.predict([workload(b"{" * ((8 << 20) + 1))])
        assert client.predict([workload(graph_json())])[0]["prediction"]
    assert max(agent.waits_s) < 4 * PATIENCE_S


def test_all_of_them_in_one_request_leave_the_good_one_its_answer(client, agent):
    small = [(hostile.make(), hostile) for name, hostile in HOSTILE.items() if "100 MB" not in name]
    workloads = [workload(content, format=hostile.format) for content, hostile in small] + [workload(graph_json())]
    *refused, answered = client.predict(workloads)
    assert [answer["error"]["kind"] for answer in refused] == [KINDS[hostile.refusal] for _, hostile in small]
    assert answered["prediction"]


def test_whoever_breaks_off_leaves_nobody_reading(collector, client):
    with grpc.insecure_channel(collector.target) as channel:
        stub = workload_pb2_grpc.WorkloadServiceStub(channel)
        request = workload_pb2.PredictRequest()
        for _ in range(200):
            added = request.workloads.add(batch_size=1)
            added.graph.graph.content = graph_json(f"net-{len(request.workloads)}", layers=500)
            added.cluster.device = "T4"
        call = stub.Predict.future(request)
        time.sleep(0.1)
        call.cancel()
    began = time.monotonic()
    assert client.predict([workload(graph_json())])[0]["prediction"]
    assert time.monotonic() - began < 4 * PATIENCE_S


def test_what_is_small_on_the_wire_and_large_behind_it_never_arrives(tmp_path):
    with ThreadCollector(tmp_path / "data") as running, grpc.insecure_channel(running.target) as channel:
        stub = workload_pb2_grpc.WorkloadServiceStub(channel)
        request = workload_pb2.PredictRequest()
        request.workloads.add(batch_size=1).graph.graph.content = b" " * 50_000_000
        with pytest.raises(grpc.RpcError) as error:
            stub.Predict(request, compression=grpc.Compression.Gzip, timeout=200)
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
