"""The same answers whoever asks: gRPC, HTTP, curl, and a program that has only fetch and the OpenAPI document."""

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import grpc
import pytest
from google.protobuf import json_format
from support.filled_web import ADMIN, DEMO, GPU, START_NS, WEB, filled_collector
from support.layered_graphs import graph_json
from support.problem_documents import small_problem
from support.running_collector import ThreadCollector
from support.trace_records import trace_records
from support.web_client import WebClient
from support.wire_agent import WireStream, hello, wait_until

pytest.importorskip("uvicorn", reason="HTTP needs the extra web")
pytest.importorskip("starlette", reason="HTTP needs the extra web")

from gpusonde.collector.messages import fill
from gpusonde.collector.web.routes import ROUTES, openapi
from gpusonde.planning.v1 import planning_pb2
from gpusonde.query.v1 import query_pb2
from gpusonde.telemetry import read_trace

ROOT = Path(__file__).parents[2]
NODE = ROOT / "tests" / "data" / "ask_over_http.mjs"
MINUTE = {"start_time": {"seconds": START_NS // 10**9}, "end_time": {"seconds": START_NS // 10**9 + 60}}
JSON_ROUTES = [route for route in ROUTES if route.answers == "json"]
BY_RPC = {route.rpc: route for route in ROUTES}


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    with filled_collector(tmp_path_factory.mktemp("http")) as collector:
        yield collector


def messages(route, run_id):
    """Requests of a method: one at least that is answered, one that is refused where there is such a one."""
    problem = planning_pb2.SolveProblemRequest()
    fill(problem.problem, small_problem())
    planned = {"problem": problem.problem}
    groups = [{"offer": "t4", "machines": 4, "batch_size": 64}]
    graph = {"graph": {"content": graph_json("mine")}}
    subject = {"gpu_uuid": GPU, **MINUTE} if "gpu_uuid" in route.path_fields else {"run_id": run_id}
    nobody = dict.fromkeys(subject.keys() - MINUTE.keys(), "nobody")
    given = {
        "ListRuns": [
            {"gpu_uuid": GPU, "page_size": 5000},
            {"agent_id": "agent-1", "status": query_pb2.RUN_STATUS_ENDED, **MINUTE},
            {"host_name": "nobody"},
            {"page_token": "W10="},
            {"page_size": -1},
        ],
        "GetRun": [{"run_id": run_id}, {"run_id": "nobody"}],
        "ListEpochs": [{"run_id": run_id, "page_size": 3}, {"run_id": "nobody"}],
        "DecimateSamples": [
            subject | {"metrics": ["power_watts", "sm_active"], "bin_count": 50},
            subject | {"metrics": ["speed_of_light"]},
            subject,
            nobody,
        ],
        "ListJobs": [
            {},
            {"states": [query_pb2.JOB_STATE_ENDED, query_pb2.JOB_STATE_HUNG], "agent_id": "agent-1", **MINUTE},
            {"host_name": "nobody"},
            {"total_cycles": 3},
        ],
        "GetJob": [{"job_id": run_id}, {"job_id": "a/b"}],
        "ListAlerts": [{}, {"open_only": True}, {"page_token": "x"}],
        "PredictEpochLatency": [{"run_id": run_id, "target_gpu_models": ["V100"]}, {"run_id": "nobody"}, {}],
        "PoseProblem": [{"run_id": run_id, "epochs": 9, "providers": ["aws"]}, {"run_id": run_id}],
        "SolveProblem": [planned, {}],
        "SolveProblems": [{"problems": [problem.problem] * 2, "budget_usd": 99}, {}],
        "ListParetoPlans": [planned, {}],
        "EstimatePlan": [planned | {"plan": {"groups": groups}}, {}],
        "Predict": [{"workloads": [{"graph": graph, "batch_size": 8, "cluster": {"device": "T4"}}]}, {}],
        "Embed": [{"graphs": [graph], "dataset_type": "scenes"}, {}],
        "DescribeCluster": [{}, {"page_token": "x"}],
        "QueueTraining": [{"dataset_type": "letters"}, {}],
        "ListTrainings": [{}, {"dataset_types": ["letters"]}],
        "ListAgents": [{}],
        "DrainAgents": [{"agent_ids": ["nobody"]}, {}],
    }
    return [route.request_class(**fields) for fields in given[route.rpc]]


def fields_of(message):
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def over_grpc(target, route, message):
    """Return the answer's document, or the status and its text."""
    with grpc.insecure_channel(target) as channel:
        call = channel.unary_unary(
            route.full_name,
            request_serializer=route.request_class.SerializeToString,
            response_deserializer=route.response_class.FromString,
        )
        try:
            return document_of(call(message, timeout=120, metadata=[("authorization", f"Bearer {ADMIN}")])), "", ""
        except grpc.RpcError as error:
            return None, error.code().name, error.details()


def document_of(answer):
    """Map a message by protobuf's own JSON mapping."""
    return json_format.MessageToDict(
        answer, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def stream_over_grpc(target, route, message, token=ADMIN):
    """Yield the messages of a stream."""
    metadata = [("authorization", f"Bearer {token}")] if token else []
    with grpc.insecure_channel(target) as channel:
        call = channel.unary_stream(
            route.full_name,
            request_serializer=route.request_class.SerializeToString,
            response_deserializer=route.response_class.FromString,
        )
        yield from call(message, timeout=120, metadata=metadata)


def over_http(client, route, message):
    """Ask as a program would that has the message as a document."""
    document = fields_of(message)
    path = route.plain_path
    for field in route.path_fields:
        path = path.replace(f"{{{field}}}", str(document.pop(field, "")).replace("/", "%2F"))
    if route.verb == "POST":
        status, _, body = client.ask("POST", path, document)
        return status, body
    pairs = []
    for name, value in document.items():
        for one in value if isinstance(value, list) else [value]:
            pairs.append(f"{name}={str(one).lower() if isinstance(one, bool) else one}")
    status, _, body = client.ask("GET", path + ("?" + "&".join(pairs) if pairs else ""))
    return status, body


def assert_same(target, route, message, status, body):
    expected, code, detail = over_grpc(target, route, message)
    if code:
        told = json.loads(body)
        assert (told["code"], told["detail"]) == (code, detail), message
        assert status == told["status"] >= 400
    else:
        assert (status, json.loads(body)) == (200, expected), message
    return not code


@pytest.mark.parametrize("route", JSON_ROUTES, ids=lambda r: f"{r.rpc} {r.path}")
def test_every_question_has_the_same_answer_over_both(filled, route):
    answered = [
        assert_same(filled.target, route, message, *over_http(filled.admin, route, message))
        for message in messages(route, filled.run_id)
    ]
    assert answered[0]


def test_every_method_for_one_question_has_a_path():
    offered = {(route.service, route.rpc) for route in ROUTES}
    for service in {route.method.containing_service for route in ROUTES}:
        for method in service.methods:
            assert method.client_streaming or (service.name, method.name) in offered, method.full_name


def test_samples_are_the_bytes_that_grpc_streams(filled):
    route = BY_RPC["ReadSamples"]
    message = route.request_class(gpu_uuid=GPU, metrics=["power_watts", "sm_active"], **MINUTE)
    pieces = [piece.arrow_ipc for piece in stream_over_grpc(filled.target, route, message)]
    status, body = over_http(filled.admin, route, message)
    assert (status, body) == (200, b"".join(pieces))
    assert len(body) > 600 * 8


def test_events_are_the_messages_that_grpc_streams(tmp_path):
    route = BY_RPC["WatchChanges"]
    with (
        ThreadCollector(tmp_path / "data", **WEB) as collector,
        WireStream(collector.target, hello("agent-1")) as stream,
    ):
        stream.greet()
        records = trace_records(read_trace(DEMO).window(0, 110), end=False)
        stream.send(*records).wait_acked(len(records))
        client = WebClient(tmp_path / "data")

        def is_same():
            # What is known of the run grows until the tracker has seen all of it.
            name, document = next(client.events("/v1/watch"))
            message = next(stream_over_grpc(collector.target, route, route.request_class(), token=""))
            return name == "change" and document["runs"] and document == document_of(message)

        wait_until(is_same, 100, "the same first message over both")


@pytest.mark.skipif(shutil.which("node") is None, reason="no node here")
def test_a_program_with_nothing_but_fetch_and_the_description_gets_them_too(filled):
    operations = {
        (verb.upper(), path): operation["operationId"]
        for path, verbs in openapi()["paths"].items()
        for verb, operation in verbs.items()
    }
    asked = [(route, message) for route in JSON_ROUTES for message in messages(route, filled.run_id)]
    samples, watch = BY_RPC["ReadSamples"], BY_RPC["WatchChanges"]
    asked += [(samples, samples.request_class(gpu_uuid=GPU, **MINUTE)), (watch, watch.request_class())]
    questions = [
        {"operation": operations[route.verb, route.plain_path], "fields": fields_of(message)}
        for route, message in asked
    ]
    # What it queues is listed from then on, and is to be so before it asks for the list.
    for message in messages(BY_RPC["QueueTraining"], filled.run_id):
        over_grpc(filled.target, BY_RPC["QueueTraining"], message)
    host, port = filled.admin.address
    done = subprocess.run(
        ["node", str(NODE), f"http://{host}:{port}", ADMIN],
        input=json.dumps(questions),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert len(answers) == len(asked)
    for (route, message), answer in zip(asked, answers, strict=True):
        if route is samples:
            pieces = stream_over_grpc(filled.target, route, message)
            assert answer["text"] == hashlib.sha256(b"".join(piece.arrow_ipc for piece in pieces)).hexdigest()
        elif route is watch:
            name, _, document = answer["text"].partition("\ndata: ")
            assert name == "event: change"
            assert json.loads(document) == document_of(next(stream_over_grpc(filled.target, route, message)))
        else:
            assert_same(filled.target, route, message, answer["status"], answer["text"])


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here")
def test_what_the_page_tells_to_type_into_a_shell_is_answered(filled):
    lines = re.findall(r"^\$ (curl -s .*)$", (ROOT / "docs" / "web.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(lines) >= 3
    for line in lines:
        typed = line.replace("127.0.0.1:7434", ":".join(map(str, filled.admin.address))).replace("RUN", filled.run_id)
        done = subprocess.run(["sh", "-c", typed], capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, done.stderr
        assert "code" not in json.loads(done.stdout), done.stdout
