"""The collector as a service: what it tells systemd, where it says it listens, what keeps it from starting."""

import logging
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.running_collector import ProcessCollector, ThreadCollector
from support.trace_records import trace_records
from support.wire_agent import START_NS, WireStream, hello, wait_until

from gpusonde.collector.client import Client
from gpusonde.epoch_detect import detect
from gpusonde.errors import GpusondeError
from gpusonde.predictor.crossgpu import ModelFileError
from gpusonde.service.tls import is_loopback
from gpusonde.telemetry import read_trace

OPEN_TO_ALL = {"security__plaintext": "anywhere", "security__anonymous": "anywhere"}
DEMO_TRACE = Path(__file__).parents[1] / "data" / "demo_trace.parquet"
UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "gpusonde-collector.service"


def test_the_address_is_in_a_file_while_the_collector_serves(tmp_path):
    with ThreadCollector(tmp_path / "data") as collector:
        assert (tmp_path / "data" / "address").read_text() == collector.target + "\n"
    assert not (tmp_path / "data" / "address").exists()


def test_listening_to_the_world_is_warned_about(tmp_path, caplog):
    with (
        caplog.at_level(logging.WARNING),
        ThreadCollector(tmp_path / "data", server__listen="0.0.0.0:0", **OPEN_TO_ALL),
    ):
        wait_until(lambda: "reachable from other hosts without encryption" in caplog.text)
        wait_until(lambda: "takes callers without certificate and token" in caplog.text)


@pytest.mark.parametrize(
    ("listen", "expected"),
    [("127.0.0.1:1", True), ("[::1]:1", True), ("localhost:1", True), ("0.0.0.0:1", False), ("gpu-host:1", False)],
)
def test_loopback_is_told_from_the_world(listen, expected):
    assert is_loopback(listen) is expected


def test_a_model_that_cannot_be_used_keeps_the_collector_from_starting(tmp_path):
    model = tmp_path / "model"
    model.write_bytes(b"no model")
    with pytest.raises(ModelFileError, match="model"):
        ThreadCollector(tmp_path / "data", prediction__model=str(model)).__enter__()


def test_an_address_that_is_not_ours_keeps_the_collector_from_starting(tmp_path):
    with pytest.raises(GpusondeError, match="no address of this host"):
        ThreadCollector(tmp_path / "data", server__listen="192.0.2.1:7433", **OPEN_TO_ALL).__enter__()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_the_unit_is_valid_and_hardened(tmp_path):
    # The command is not installed here; systemd checks that it exists.
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/usr/bin/gpusonde", "/usr/bin/true"))
    verify = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False)
    assert (verify.returncode, verify.stderr) == (0, "")
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(copy)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_a_collector_that_was_stopped_goes_on_with_its_open_runs(tmp_path, caplog):
    trace = read_trace(DEMO_TRACE).window(0, 110)
    records = trace_records(trace)
    stored = []
    for part in (records[:70], records[70:]):
        with (
            caplog.at_level(logging.INFO, logger="gpusonde"),
            ThreadCollector(tmp_path / "data") as collector,
            WireStream(collector.target, hello()) as stream,
            Client(collector.target) as client,
        ):
            stream.greet()
            stream.send(*part).wait_acked(part[-1].sequence)
            if part[-1] is records[-1]:
                wait_until(lambda: client.list_runs() and not client.list_runs()[0].active, what="end of the run")
                (run,) = client.list_runs()
                starts = [(e.start_unix_nano - START_NS) / 1e9 for e in client.list_epochs(run.run_id).epochs]
        stored.append(len(list((tmp_path / "data" / "tracking").iterdir())))
    assert stored == [1, 0]
    assert "again from its start" not in caplog.text
    assert starts == pytest.approx(detect(trace).epoch_starts_s.tolist(), abs=1e-6)


def test_several_collectors_do_not_share_an_address(tmp_path):
    with ThreadCollector(tmp_path / "one") as one, pytest.raises(GpusondeError, match="listen"):
        ThreadCollector(tmp_path / "two", server__listen=one.target).__enter__()


def test_without_tracking_samples_are_kept_and_no_runs_are_found(tmp_path):
    with ThreadCollector(tmp_path / "data", runs__track="false") as collector:
        with WireStream(collector.target, hello()) as stream:
            stream.greet()
            stream.send(*trace_records(read_trace(DEMO_TRACE))[:50])
            wait_until(lambda: stream.next().ack.durable_sequence == 50)
        with Client(collector.target) as client:
            assert client.list_runs() == []
    assert list((tmp_path / "data" / "segments").glob("*.parquet"))


def test_a_taken_port_is_explained_in_one_line(tmp_path):
    with ThreadCollector(tmp_path / "a") as first:
        listen = ("--listen", first.target, "--store", str(tmp_path / "b"), "--set", "metrics.listen=")
        second = subprocess.run(
            [sys.executable, "-m", "gpusonde.cli", "collector", *listen], capture_output=True, text=True, check=False
        )
    assert second.returncode == 1
    reason = "another process (another collector?) uses it; choose another one with server.listen"
    assert second.stderr == f"gpusonde: error: cannot listen on {first.target}: {reason}\n"


def test_an_address_that_is_none_is_a_usage_error(tmp_path):
    answer = subprocess.run(
        [sys.executable, "-m", "gpusonde.cli", "collector", "--listen", "nowhere"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (answer.returncode, answer.stdout) == (2, "")
    assert "server.listen: 'nowhere' is no address; write host:port" in answer.stderr


def test_a_second_signal_cuts_what_is_still_open(tmp_path):
    with (
        ProcessCollector(tmp_path / "data", server__drain_grace="10m", metrics__listen="") as collector,
        grpc.insecure_channel(collector.target) as channel,
    ):
        # A stream that does not end by itself.
        states = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert next(states).status == health_pb2.HealthCheckResponse.SERVING
        os.kill(collector.pid, signal.SIGTERM)
        assert next(states).status == health_pb2.HealthCheckResponse.NOT_SERVING
        with pytest.raises(subprocess.TimeoutExpired):
            collector.wait(1.0)
        os.kill(collector.pid, signal.SIGTERM)
        assert collector.wait(120.0) == 0
        assert "a second signal" in collector.log_path.read_text()
