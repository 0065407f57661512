"""What ``gpusonde workload trainings`` and ``hosts`` ask a collector: lists for people, orders for admins."""

import pytest
from support.certificates import Authority, tls_settings
from support.running_collector import ThreadCollector
from support.wire_agent import WireStream, hello, inventory

from gpusonde.cli.main import main
from gpusonde.collector.workload.training.queue import TrainingQueue
from gpusonde.common.v1 import gpu_pb2
from gpusonde.ingest.v1 import ingest_pb2


@pytest.fixture(scope="module")
def collector(tmp_path_factory):
    folder = tmp_path_factory.mktemp("collector") / "data"
    queue = TrainingQueue(folder / "trainings")
    queue.add("voices")
    with queue.claim() as claim:
        claim.failed("no folder of it")
    with ThreadCollector(folder) as running:
        greeting = hello(agent_id="agent-1")
        greeting.host.CopyFrom(gpu_pb2.Host(host_name="node-1", cpu_count=8, memory_bytes=1 << 34))
        with WireStream(running.target, greeting) as stream:
            stream.greet()
            stream.send_raw(ingest_pb2.StreamSamplesRequest(host_load=gpu_pb2.HostLoad(cpu_busy_ratio=0.5)))
            stream.send(inventory(gpus=("GPU-a", "GPU-b"))).wait_acked(1)
            yield running


def say(capsys, *words):
    code = main(["workload", *words])
    return code, capsys.readouterr()


def test_hosts_are_listed_with_their_gpus_and_what_is_free(collector, capsys):
    code, said = say(capsys, "hosts", "--collector", collector.target)
    assert code == 0, said.err
    for word in ("node-1", "agent-1", "2 x T4"):
        assert word in said.out
    code, said = say(capsys, "hosts", "node-2", "--agents", "agent-7", "--collector", collector.target)
    assert (code, said.out.strip()) == (0, "the collector knows no such host")


def test_trainings_are_listed_with_their_state_and_reason(collector, capsys):
    code, said = say(capsys, "trainings", "--collector", collector.target)
    assert code == 0, said.err
    for word in ("voices", "failed", "no folder of it"):
        assert word in said.out


def test_queueing_is_for_admins(collector, tmp_path, capsys):
    code, said = say(capsys, "trainings", "--add", "voices", "--collector", collector.target)
    assert code == 1
    assert "no admin" in said.err
    code, said = say(capsys, "trainings", "--again", "--collector", collector.target)
    assert code == 2
    authority = Authority(tmp_path / "authority")
    certificate, key = authority.client("admin", "someone")
    proof = ("--tls-ca", str(authority.ca), "--tls-cert", str(certificate), "--tls-key", str(key))
    with ThreadCollector(tmp_path / "data", **tls_settings(authority)) as running:
        code, said = say(capsys, "trainings", "--add", "sounds", "--collector", running.target, *proof)
        assert code == 0, said.err
        assert "sounds" in said.out
        assert "queued" in said.out
