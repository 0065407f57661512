"""The controller asked over gRPC: a real collector, its processes and its queue on disk."""

import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.certificates import Authority, tls_settings
from support.layered_graphs import graph_json
from support.running_collector import ProcessCollector, ThreadCollector
from support.wire_agent import WireStream, batch, block, hello, inventory

from gpusonde.collector.client import CollectorError, WorkloadClient
from gpusonde.collector.workload.training_queue import TrainingQueue
from gpusonde.common.v1 import gpu_pb2
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.predictor.workload import zoo
from gpusonde.predictor.workload.embedding import EncoderDescription, EncoderWeights
from gpusonde.predictor.workload.embedding.registry import Registry
from gpusonde.predictor.workload.graph import dump_graph
from gpusonde.service.tls import ClientSecurity
from gpusonde.workload.v1 import workload_pb2, workload_pb2_grpc

T4 = {"device": "T4"}


def workload(graph=None, **more):
    return {"graph": {"content": graph or graph_json()}, "batch_size": 8, "cluster": T4, **more}


def refusal(ask):
    with pytest.raises(CollectorError) as error:
        ask()
    return error.value.code, error.value.details


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("controller") / "data"


@pytest.fixture(scope="module")
def collector(folder, model_file):
    description = EncoderDescription(dataset_type="scenes", training_steps=7)
    Registry(folder / "embeddings").add(EncoderWeights(description, EncoderWeights.random(1).arrays))
    # Neighbours are looked for among all networks of the zoo.
    with ThreadCollector(folder, workload__model=model_file, workers__time_limit="300s") as running:
        yield running


@pytest.fixture
def client(collector):
    with WorkloadClient(collector.target) as asking:
        yield asking


def test_questions_of_one_request_are_answered_one_by_one(client):
    graph = {"content": graph_json("mine")}
    found = client.predict(
        [
            {"graph": graph, "batch_size": 8, "cluster": T4},
            {"graph": graph, "batch_size": 0, "cluster": T4},
            {"graph": graph, "batch_size": 8, "cluster": {"device": "no such"}},
            {"graph": {"content": b"{}"}, "batch_size": 8, "cluster": T4},
            {"graph": graph, "batch_size": 64, "cluster": {"device": "V100", "device_count": 4}},
        ]
    )
    assert [answer["error"] and answer["error"]["kind"] for answer in found] == [
        None, "invalid_request", "unknown_device", "malformed_graph", None,
    ]  # fmt: skip
    one, four = found[0]["prediction"], found[4]["prediction"]
    assert one["graph"]["name"] == "mine"
    for prediction in (one, four):
        seconds = prediction["iteration_seconds"]
        assert 0 < seconds["low"] <= seconds["value"] <= seconds["high"]
        assert 0 < prediction["coverage"] < 1
        assert prediction["epoch_seconds"] is None
        assert prediction["embedding"] is None
        assert prediction["regressor"]
        assert prediction["features"]
    assert one["cluster"]["device"] == "T4"
    assert (four["cluster"]["device_count"], four["cluster"]["parallelism"]) == (4, "distributed")


def test_an_epoch_is_its_iterations(client):
    (found,) = client.predict([workload(samples_per_epoch=1000)])
    prediction = found["prediction"]
    assert prediction["epoch_seconds"]["value"] == pytest.approx(125 * prediction["iteration_seconds"]["value"])


def at_once(client, count):
    """Ask about many graphs in one request, which the client cuts into several."""
    graph = workload_pb2.GraphSource(graph=workload_pb2.Graph(content=b"{}"))
    return client._ask(client._stub.Embed, workload_pb2.EmbedRequest(dataset_type="scenes", graphs=[graph] * count))


class Noting(workload_pb2_grpc.WorkloadServiceServicer):
    """Keeps the requests and answers each question with its batch size."""

    def __init__(self):
        self.requests = []

    def Predict(self, request, context):
        self.requests.append(request)
        answers = [
            workload_pb2.WorkloadAnswer(error=workload_pb2.WorkloadError(text=str(each.batch_size)))
            for each in request.workloads
        ]
        return workload_pb2.PredictResponse(answers=answers)

    def Embed(self, request, context):
        self.requests.append(request)
        near = [workload_pb2.NearestArchitecture(name="x")] * request.nearest_count
        answers = [workload_pb2.EmbeddingAnswer(embedding=workload_pb2.Embedding(nearest=near)) for _ in request.graphs]
        return workload_pb2.EmbedResponse(answers=answers, encoder_sha256="ab")


@pytest.fixture
def noting():
    server = grpc.server(ThreadPoolExecutor(2))
    servicer = Noting()
    workload_pb2_grpc.add_WorkloadServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with WorkloadClient(f"127.0.0.1:{port}") as asking:
        yield servicer, asking
    server.stop(0).wait()


def sizes(answers):
    return [int(answer["error"]["text"]) for answer in answers]


def test_a_graph_that_many_questions_are_about_is_sent_once(noting):
    servicer, asking = noting
    graph, other = {"content": graph_json()}, {"content": graph_json("other")}
    questions = [{"graph": (graph, other)[size % 2], "batch_size": size, "cluster": T4} for size in range(1, 101)]
    assert sizes(asking.predict(questions)) == list(range(1, 101))
    (request,) = servicer.requests
    assert [each.graph.WhichOneof("source") for each in request.workloads[:3]] == ["graph", "graph", "same_as"]
    assert [each.graph.same_as for each in request.workloads[2:6]] == [0, 1, 0, 1]


def test_any_number_of_questions_is_cut_into_requests_that_are_taken(noting):
    servicer, asking = noting
    graph = {"content": graph_json()}
    assert sizes(asking.predict([{"graph": graph, "batch_size": n, "cluster": T4} for n in range(1, 1201)])) == list(
        range(1, 1201)
    )
    assert [len(request.workloads) for request in servicer.requests] == [500, 500, 200]
    assert all(request.workloads[0].graph.WhichOneof("source") == "graph" for request in servicer.requests)
    servicer.requests.clear()
    large = [{"content": b" " * (3 << 20)} for _ in range(3)]
    asking.predict([{"graph": each, "batch_size": 1, "cluster": T4} for each in [*large, large[2]]])
    assert [len(request.workloads) for request in servicer.requests] == [1, 1, 2]
    assert asking.predict([]) == []


def test_any_number_of_graphs_is_cut_too_and_the_answers_are_one(noting):
    servicer, asking = noting
    graph = {"content": graph_json()}
    found = asking.embed([graph] * 1200, "scenes", 2)
    assert (len(found["answers"]), found["encoder_sha256"]) == (1200, "ab")
    assert [len(request.graphs) for request in servicer.requests] == [500, 500, 200]
    assert all((each.dataset_type, each.nearest_count) == ("scenes", 2) for each in servicer.requests)
    assert [each["name"] for each in found["answers"][-1]["embedding"]["nearest"]] == ["x", "x"]
    assert asking.embed([], "scenes")["answers"] == []


def test_an_embedding_that_is_missing_is_queued_once_and_the_answer_says_so(client, folder):
    first, second, there = client.predict(
        [workload(dataset_type="voices"), workload(dataset_type="voices"), workload(dataset_type="scenes")]
    )
    use = first["prediction"]["embedding"]
    assert (use["available"], use["training"]["state"]) == (False, "queued")
    assert "predicted from analytic features alone; its training is queued" in use["note"]
    assert second["prediction"]["embedding"] == use
    assert there["prediction"]["embedding"]["available"]
    assert there["prediction"]["embedding"]["training"] is None
    (training,) = client.trainings()["trainings"]
    assert (training["dataset_type"], training["queued_time"]) == ("voices", use["training"]["queued_time"])
    queue = TrainingQueue(folder / "trainings")
    with queue.claim() as claim:
        claim.progress(3, 10)
        (again,) = client.predict([workload(dataset_type="voices")])
        assert "3 of 10 steps are done" in again["prediction"]["embedding"]["note"]
        claim.failed("no data of it")
    (again,) = client.predict([workload(dataset_type="voices")])
    assert "has failed (no data of it)" in again["prediction"]["embedding"]["note"]


def test_readers_cannot_fill_the_queue(client):
    answers = client.predict([workload(dataset_type=f"type-{i}") for i in range(20)])
    notes = [answer["prediction"]["embedding"]["note"] for answer in answers]
    assert sum("too many trainings wait" in note for note in notes) >= 4
    assert sum(training["state"] == "queued" for training in client.trainings()["trainings"]) <= 16


def test_embeddings_and_neighbours_are_those_of_the_dataset_type(client, folder):
    sha256 = Registry(folder / "embeddings").get("scenes").sha256
    listed = client.trainings(["scenes", "voices"])
    assert listed["dataset_types"] == [
        {"name": "scenes", "encoder_sha256": sha256, "trained_steps": 7, "shipped": False}
    ]
    assert {each["name"] for each in client.trainings()["dataset_types"]} >= {"digits", "scenes"}
    found = client.embed([{"content": graph_json()}, {"content": b"{}"}], "scenes", 3)
    assert (found["encoder_sha256"], found["trained_steps"]) == (sha256, 7)
    assert len(found["answers"][0]["embedding"]["values"]) == 32
    assert found["answers"][1]["error"]["kind"] == "malformed_graph"
    alike = [each["similarity"] for each in found["answers"][0]["embedding"]["nearest"]]
    assert len(alike) == 3
    assert alike == sorted(alike, reverse=True)
    (plain,) = client.embed([{"content": graph_json()}], "scenes")["answers"]
    assert plain["embedding"]["nearest"] == []
    none = client.embed([{"content": graph_json()}], "nowhere")
    assert none["answers"][0]["error"]["kind"] == "no_embedding"
    assert none["trained_steps"] is None


def test_trainings_are_found_by_name(client):
    client.predict([workload(dataset_type="voices")])
    assert [each["dataset_type"] for each in client.trainings(["voices", "never"])["trainings"]] == ["voices"]
    assert client.trainings(["never"])["trainings"] == []


@pytest.mark.parametrize(
    ("ask", "code", "says"),
    [
        (lambda c: c.embed([{"content": b"{}"}], ""), "INVALID_ARGUMENT", "dataset_type"),
        (lambda c: c.embed([{"content": b"{}"}], "../up"), "INVALID_ARGUMENT", "dataset_type"),
        (lambda c: c.embed([{"content": b"{}"}], "scenes", 51), "INVALID_ARGUMENT", "nearest_count"),
        (lambda c: c.trainings(["../up"]), "INVALID_ARGUMENT", "dataset_type"),
        (lambda c: at_once(c, 1001), "RESOURCE_EXHAUSTED", "1000 are taken"),
        (lambda c: c.predict([workload(b" " * ((8 << 20) + 1))]), "RESOURCE_EXHAUSTED", "max_request_bytes"),
        (lambda c: c.queue_training("scenes"), "PERMISSION_DENIED", "no admin"),
    ],
)
def test_what_cannot_be_asked_is_refused_as_a_whole(client, ask, code, says):
    found, text = refusal(lambda: ask(client))
    assert found == code
    assert says in text


def test_nothing_asked_is_nothing_answered(client):
    assert client.predict([]) == []


def test_a_collector_that_answers_no_such_questions_says_so(tmp_path):
    with (
        ThreadCollector(tmp_path / "data", workload__processes="0") as running,
        WorkloadClient(running.target) as asking,
    ):
        code, text = refusal(lambda: asking.predict([workload()]))
        assert (code, "workload.processes" in text) == ("FAILED_PRECONDITION", True)
        assert asking.hosts() == []


def test_a_model_that_can_no_longer_be_read_is_no_one_s_answer_and_a_good_one_is_taken_at_once(
    tmp_path, model_file, caplog
):
    path = tmp_path / "model.safetensors"
    shutil.copy(model_file, path)
    with (
        ThreadCollector(tmp_path / "data", workload__model=str(path)) as running,
        WorkloadClient(running.target) as asking,
    ):
        path.write_bytes(b"no model")
        (answer,) = asking.predict([workload()])
        assert "model.safetensors: not a workload model" in caplog.text
        assert (answer["error"]["kind"], "log" in answer["error"]["text"]) == ("internal", True)
        assert "model.safetensors" not in answer["error"]["text"]
        shutil.copy(model_file, path)
        assert asking.predict([workload()])[0]["prediction"]


def test_out_of_the_box_a_known_network_is_recognised_and_what_is_nothing_like_it_is_flagged(tmp_path):
    strange = graph_json("strange", channels=4096, size=512, layers=200)
    known = dump_graph(zoo.load("resnet50")).encode()
    with ThreadCollector(tmp_path / "data") as running, WorkloadClient(running.target) as asking:
        found, other = asking.predict([workload(known, cluster={"device": "V100"}), workload(strange)])
        prediction = found["prediction"]
        # Measured by others: 0.03 s for 12 samples on a V100 (fp32).
        assert 5e-3 < prediction["iteration_seconds"]["value"] < 0.2
        assert (prediction["graph"]["parameters"], prediction["out_of_distribution"]) == (25_557_032, False)
        assert (prediction["nearest"][0]["name"], prediction["nearest"][0]["family"]) == ("resnet50", "resnet")
        assert other["prediction"]["out_of_distribution"]
        assert other["prediction"]["reasons"]


def test_a_regressor_that_the_model_lacks_is_an_error_and_one_that_it_has_answers(client):
    lacking, there = client.predict([workload(regressor="mlp"), workload(regressor="linear")])
    assert (lacking["error"]["kind"], "mlp" in lacking["error"]["text"]) == ("invalid_request", True)
    assert there["prediction"]["regressor"] in ("linear", "calibrated_roofline")


def test_health_knows_the_service(collector):
    with grpc.insecure_channel(collector.target) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service="gpusonde.workload.v1.WorkloadService")
        assert stub.Check(request).status == health_pb2.HealthCheckResponse.SERVING


def test_readers_ask_admins_queue_and_agents_do_neither(tmp_path, model_file):
    authority = Authority(tmp_path / "authority")
    with ThreadCollector(tmp_path / "data", workload__model=model_file, **tls_settings(authority)) as running:
        for role, may_ask, may_queue in (("reader", True, False), ("admin", True, True), ("agent", False, False)):
            certificate, key = authority.client(role, "someone")
            security = ClientSecurity(str(authority.ca), str(certificate), str(key))
            with WorkloadClient(running.target, security=security) as asking:
                asks = [lambda c=asking: c.predict([workload()]), asking.trainings, asking.hosts]
                for ask in asks:
                    if may_ask:
                        ask()
                    else:
                        assert refusal(ask)[0] == "PERMISSION_DENIED"
                if may_queue:
                    assert asking.queue_training("scenes")["state"] == "queued"
                    assert asking.queue_training("scenes", again=True)["attempts"] == 0
                else:
                    assert refusal(lambda c=asking: c.queue_training("scenes"))[0] == "PERMISSION_DENIED"


def test_what_was_queued_is_there_after_the_collector_was_killed(tmp_path, model_file):
    with ProcessCollector(tmp_path / "data", workload__model=model_file) as running:
        with WorkloadClient(running.target) as asking:
            (answer,) = asking.predict([workload(dataset_type="voices")])
            queued = answer["prediction"]["embedding"]["training"]
        running.kill()
        running.start()
        with WorkloadClient(running.target) as asking:
            assert asking.trainings()["trainings"] == [queued]


HOST = gpu_pb2.Host(host_name="node-1", cpu_count=16, cpu_core_count=8, memory_bytes=64 << 30, cpu_flops=8e11)


def test_a_prediction_for_hosts_takes_their_devices_and_what_they_have_free(tmp_path, model_file):
    greeting = hello(agent_id="agent-1")
    greeting.host.CopyFrom(HOST)
    now_ns = time.time_ns()
    with (
        ThreadCollector(tmp_path / "data", workload__model=model_file) as running,
        WireStream(running.target, greeting) as stream,
        WorkloadClient(running.target) as asking,
    ):
        stream.greet()
        metrics = ("gpu_utilization", "framebuffer_used_bytes")
        gpus = [gpu_pb2.Gpu(gpu_uuid=f"GPU-{i}", gpu_index=i, product_name="Tesla T4") for i in range(2)]
        for gpu in gpus:
            gpu.framebuffer_bytes = 16 << 30
        stream.send(inventory(metrics=metrics, gpus=gpus))
        load = gpu_pb2.HostLoad(cpu_busy_ratio=0.75)
        stream.send_raw(ingest_pb2.StreamSamplesRequest(host_load=load))
        values = [[0.25] * 10, [float(4 << 30)] * 10]
        stream.send(batch(2, block(values=values, metrics=metrics, start_ns=now_ns - 2_000_000_000)))
        stream.wait_acked(2)
        (host,) = asking.hosts(host_names=["node-1"])
        first, second = host["devices"]
        assert (first["device"], first["busy_ratio"], second["busy_ratio"]) == ("T4", 0.25, None)
        assert first["available_flops"] == pytest.approx(0.75 * first["flops"])
        assert first["free_memory_bytes"] == float(12 << 30)
        (answer,) = asking.predict([workload(cluster={"agent_ids": ["agent-1"]})])
        cluster = answer["prediction"]["cluster"]
        assert (cluster["device"], cluster["device_count"], cluster["agent_ids"]) == ("T4", 2, ["agent-1"])
        assert cluster["host"]["cores"] == 2.0
        assert cluster["host"]["memory_bytes"] == float(16 << 30)
        (unknown,) = asking.predict([workload(cluster={"host_names": ["node-2"]})])
        assert unknown["error"]["kind"] == "unknown_host"
        assert asking.hosts(agent_ids=["nobody"]) == []


def test_hosts_come_page_by_page(tmp_path):
    with ThreadCollector(tmp_path / "data") as running:
        for number in range(5):
            with WireStream(running.target, hello(agent_id=f"agent-{number}")) as stream:
                stream.greet()
        with WorkloadClient(running.target) as asking:
            assert [host["agent_id"] for host in asking.hosts()] == [f"agent-{i}" for i in range(5)]
        with grpc.insecure_channel(running.target) as channel:
            stub = workload_pb2_grpc.WorkloadServiceStub(channel)
            request = workload_pb2.DescribeClusterRequest(page_size=2)
            seen = []
            for _ in range(3):
                response = stub.DescribeCluster(request)
                seen += [host.agent_id for host in response.hosts]
                request.page_token = response.next_page_token
            assert (seen, response.next_page_token) == ([f"agent-{i}" for i in range(5)], "")
            for bad in ({"page_size": -1}, {"page_token": "x"}):
                with pytest.raises(grpc.RpcError) as error:
                    stub.DescribeCluster(workload_pb2.DescribeClusterRequest(**bad))
                assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
