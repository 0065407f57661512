"""What ``gpusonde workload`` asks a collector: predictions for hosts, embeddings, lists, orders of admins."""

import json
import time

import pytest
from support.certificates import Authority, tls_settings
from support.json_keys import mismatches
from support.layered_graphs import small_graph
from support.running_collector import ThreadCollector
from support.trained_encoders import add_encoder
from support.wire_agent import WireStream, batch, block, hello, inventory

from gpusonde.cli.commands.fleet import HostsPayload, TrainingsPayload
from gpusonde.cli.main import main
from gpusonde.cli.workload.answers import StepsPayload
from gpusonde.cli.workload.embed import EmbedPayload
from gpusonde.collector.workload.training_queue import TrainingQueue
from gpusonde.common.v1 import gpu_pb2
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.predictor.workload.graph import dump_graph


@pytest.fixture(scope="module")
def collector(tmp_path_factory):
    folder = tmp_path_factory.mktemp("collector") / "data"
    queue = TrainingQueue(folder / "trainings")
    queue.enqueue("voices")
    with queue.claim() as claim:
        claim.failed("no folder of it")
    add_encoder(folder / "embeddings", "tiny")
    # Neighbours are looked for among all networks of the zoo.
    with ThreadCollector(folder, workers__time_limit="300s") as running:
        greeting = hello(agent_id="agent-1")
        greeting.host.CopyFrom(gpu_pb2.Host(host_name="node-1", cpu_count=8, memory_bytes=1 << 34))
        with WireStream(running.target, greeting) as stream:
            stream.greet()
            stream.send_raw(ingest_pb2.StreamSamplesRequest(host_load=gpu_pb2.HostLoad(cpu_busy_ratio=0.5)))
            stream.send(inventory(gpus=("GPU-a", "GPU-b"))).wait_acked(1)
            yield running


@pytest.fixture
def network(tmp_path):
    (tmp_path / "net.json").write_text(dump_graph(small_graph("net")))
    return str(tmp_path / "net.json")


PAYLOADS = {"predict": StepsPayload, "embed": EmbedPayload, "hosts": HostsPayload, "trainings": TrainingsPayload}


def say(capsys, *words, family="workload"):
    code = main([family, *words])
    said = capsys.readouterr()
    if code == 0 and "--json" in words:
        assert mismatches(json.loads(said.out), PAYLOADS[words[0]]) == []
    return code, said


def fleet(capsys, *words):
    return say(capsys, *words, family="fleet")


@pytest.mark.parametrize("action", ["hosts", "trainings"])
def test_lists_have_the_keys_that_they_declare(collector, capsys, action):
    code, said = fleet(capsys, action, "--collector", collector.target, "--json")
    assert code == 0, said.err
    assert json.loads(said.out)[action]


def test_hosts_are_listed_with_their_gpus_and_what_is_free(collector, capsys):
    code, said = fleet(capsys, "hosts", "--collector", collector.target)
    assert code == 0, said.err
    for word in ("node-1", "agent-1", "2 x T4"):
        assert word in said.out
    code, said = fleet(capsys, "hosts", "--agents", "agent-7", "--collector", collector.target)
    assert (code, said.out.strip()) == (0, "the collector knows no such host")


def test_a_prediction_for_hosts_is_for_their_gpus_with_what_is_free_of_them(collector, network, capsys):
    asked = ("predict", network, "--hosts", "node-1", "--batch-size", "8,64", "--samples-per-epoch", "1000")
    code, said = say(capsys, *asked, "--collector", collector.target, "--json")
    assert code == 0, said.err
    found = json.loads(said.out)
    small, large = found["predictions"]
    assert (small["graph"], small["batch_size"], large["batch_size"]) == ("net", 8, 64)
    for each in (small, large):
        assert (each["gpu_model"], each["gpu_count"], each["node_count"]) == ("T4", 2, 1)
        assert (each["parallelism"], each["agent_ids"]) == ("distributed", ["agent-1"])
        assert 0 < each["communication_ratio"] < 1
        # Half of the host is busy: Eq. 1 and 2.
        assert (each["free_cores"], each["free_memory_bytes"]) == (4.0, float(1 << 33))
        assert each["step_low_s"] < each["step_s"] < each["step_high_s"]
        assert any("what the hosts have free does not change this answer" in reason for reason in each["reasons"])
    assert small["epoch_s"] == pytest.approx(63 * small["step_s"])
    assert "node-1: reckoned with 4.00 free cores and 8.00 GiB of free memory" in found["notes"]
    code, said = say(capsys, *asked, "--collector", collector.target)
    assert "2 x T4" in said.out
    assert "reckoned with" in said.out


def test_of_hosts_some_gpus_can_be_asked_for(collector, network, capsys):
    asked = ("predict", network, "--hosts", "node-1", "--target-gpus", "Tesla T4", "--gpus", "1,2,3")
    code, said = say(capsys, *asked, "--collector", collector.target, "--json")
    assert code == 0, said.err
    one, two, three = json.loads(said.out)["predictions"]
    assert [(each["gpu_count"], each["parallelism"]) for each in (one, two)] == [(1, "none"), (2, "distributed")]
    assert (three["gpu_model"], three["step_s"]) == (None, None)
    assert three["error"] == "3 devices of T4: the hosts have 2"


def test_busy_gpus_are_pointed_out(collector, network, capsys):
    greeting = hello(agent_id="agent-2")
    greeting.host.CopyFrom(gpu_pb2.Host(host_name="node-2", cpu_count=8, memory_bytes=1 << 34))
    with WireStream(collector.target, greeting) as stream:
        stream.greet()
        stream.send(inventory(gpus=("GPU-c", "GPU-d"), metrics=("gpu_utilization",))).wait_acked(1)
        busy = block(start_ns=time.time_ns() - 2_000_000_000, values=[[0.75] * 10], metrics=("gpu_utilization",))
        stream.send(batch(2, busy)).wait_acked(2)
        code, said = say(capsys, "predict", network, "--hosts", "node-2", "--collector", collector.target, "--json")
    assert code == 0, said.err
    said_of_gpus = [note for note in json.loads(said.out)["notes"] if "worked in the last minute" in note]
    assert said_of_gpus == [
        "node-2: 1 of 2 GPUs worked in the last minute; predicted is a job that has them for itself"
    ]


def test_hosts_that_are_not_there_are_said(collector, network, capsys):
    code, said = say(capsys, "predict", network, "--hosts", "node-9", "--collector", collector.target)
    assert code == 1
    assert "no answer for net on these hosts: there is no host 'node-9' here" in said.out


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--hosts", "node-1"), "belongs to --collector"),
        (("--hosts", "node-1", "--machines", "1", "--collector", "127.0.0.1:1"), "--machines belongs to --target-gpus"),
        (("--collector", "127.0.0.1:1"), "name GPU models by --target-gpus, or --hosts"),
        (("--target-gpus", "T4", "--model", "m", "--collector", "127.0.0.1:1"), "exclude each other"),
        (("--target-gpus", "T4", "--dataset-type", "tiny"), "--dataset-type belongs to --collector"),
        (("--target-gpus", "T4", "--channels-last", "--collector", "127.0.0.1:1"), "belongs to a model here"),
        (("--target-gpus", "T4", "--graph-launch", "--collector", "127.0.0.1:1"), "belongs to a model here"),
    ],
)
def test_what_does_not_go_together_is_said(network, capsys, words, problem):
    code, said = say(capsys, "predict", network, *words)
    assert code == 2
    assert problem in said.err


def test_embeddings_of_a_collector_are_those_of_its_own_encoder(collector, network, tmp_path, capsys):
    registry = tmp_path / "registry"
    add_encoder(registry, "tiny")
    asked = ("embed", network, "zoo:resnet18", "--nearest", "2", "--encoder")
    code, said = say(capsys, *asked, "tiny", "--collector", collector.target, "--json")
    assert code == 0, said.err
    there = json.loads(said.out)
    _, said = say(capsys, *asked, f"{registry}/tiny", "--json")
    here = json.loads(said.out)
    assert {key: there[key] for key in there if key != "graphs"} == {key: here[key] for key in here if key != "graphs"}
    for one, other in zip(there["graphs"], here["graphs"], strict=True):
        assert one["graph"] == other["graph"]
        assert one["embedding"] == pytest.approx(other["embedding"], rel=1e-5, abs=1e-6)
        assert [each["architecture"] for each in one["nearest"]] == [each["architecture"] for each in other["nearest"]]
    code, said = say(capsys, "embed", network, "--nearest", "0", "--collector", collector.target, "--json")
    assert json.loads(said.out)["graphs"][0]["nearest"] == []


def test_embeddings_that_a_collector_does_not_have_are_said(collector, network, capsys):
    code, said = say(capsys, "embed", network, "--encoder", "voices", "--collector", collector.target)
    assert code == 1
    assert "no encoder for dataset type 'voices'" in said.err
    code, said = say(capsys, "embed", network, "--encoder", "./tiny", "--collector", collector.target)
    assert code == 2
    assert "exclude each other" in said.err


def test_trainings_are_listed_with_their_state_and_reason(collector, capsys):
    code, said = fleet(capsys, "trainings", "--collector", collector.target)
    assert code == 0, said.err
    for word in ("voices", "failed", "no folder of it"):
        assert word in said.out


def test_queueing_is_for_admins(collector, tmp_path, capsys):
    code, said = fleet(capsys, "trainings", "--train", "voices", "--collector", collector.target)
    assert code == 1
    assert "no admin" in said.err
    code, said = fleet(capsys, "list", "--train", "voices", "--collector", collector.target)
    assert code == 2
    authority = Authority(tmp_path / "authority")
    certificate, key = authority.client("admin", "someone")
    proof = ("--tls-ca", str(authority.ca), "--tls-cert", str(certificate), "--tls-key", str(key))
    with ThreadCollector(tmp_path / "data", **tls_settings(authority)) as running:
        code, said = fleet(capsys, "trainings", "--train", "sounds", "--collector", running.target, *proof)
        assert code == 0, said.err
        assert "sounds" in said.out
        assert "queued" in said.out
