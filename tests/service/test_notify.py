"""sd_notify: one datagram per state, nothing outside of systemd."""

import signal
import socket

import pytest

from gpusonde.service.health import notify


@pytest.fixture
def systemd(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.settimeout(200)
        yield receiver, str(tmp_path / "notify")


def test_a_state_is_one_datagram(systemd):
    receiver, address = systemd
    notify("READY=1", environment={"NOTIFY_SOCKET": address})
    assert receiver.recv(100) == b"READY=1"


def test_outside_of_systemd_nothing_happens():
    notify("READY=1", environment={})


def test_a_socket_that_is_gone_is_a_warning(tmp_path, caplog):
    notify("READY=1", environment={"NOTIFY_SOCKET": str(tmp_path / "nowhere")})
    assert "cannot be told" in caplog.text


def test_the_agent_says_when_it_samples_and_when_it_stops(systemd, tmp_path, monkeypatch):
    import subprocess
    import sys

    receiver, address = systemd
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    (tmp_path / "trace.csv").write_text("time_s,sm_active\n" + "".join(f"{i / 10},0.5\n" for i in range(10_000)))
    script = (
        "import sys; from gpusonde.agent import AgentConfig, run_agent\n"
        "run_agent(AgentConfig.load(overrides=dict(a.split('=') for a in sys.argv[1:])))"
    )
    settings = [
        "source.kind=replay",
        f"source.trace={tmp_path / 'trace.csv'}",
        f"spool.directory={tmp_path / 'spool'}",
        "uplink.collector=127.0.0.1:1",
        "uplink.drain_timeout=100ms",
    ]
    agent = subprocess.Popen([sys.executable, "-c", script, *settings])
    try:
        assert receiver.recv(1000).splitlines()[0] == b"READY=1"
        agent.send_signal(signal.SIGTERM)
        assert receiver.recv(1000).splitlines()[0] == b"STOPPING=1"
        assert agent.wait(200) == 0
    finally:
        agent.kill()
        agent.wait()
