"""Daemons under a stand-in for systemd: they are heard while they work, and only then."""

import contextlib
import socket
import threading
import time

import numpy as np
import pytest
from support.faulty_files import FaultyFiles
from support.running_collector import ThreadCollector
from support.wire_agent import WireStream, hello, inventory

from gpusonde.agent import AgentConfig, SourceInventory, run_agent
from gpusonde.agent.sources.base import GpuDescription, GpuTicks, Reading, SourceStatistics
from gpusonde.service.durable_files import OsFiles
from gpusonde.telemetry import metric

TIMEOUT_S = 120.0


class Systemd:
    """Hears what a daemon says."""

    def __init__(self, path, monkeypatch):
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(TIMEOUT_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(path))
        monkeypatch.setenv("WATCHDOG_USEC", "1000000")
        monkeypatch.delenv("WATCHDOG_PID", raising=False)

    def next(self):
        return self._socket.recv(4096).decode().splitlines()

    def wait_for(self, *words):
        """Return the first message that has a line with each of the words."""
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            message = self.next()
            if all(any(word in line for line in message) for word in words):
                return message
        raise AssertionError(f"{words} were not heard")

    def close(self):
        self._socket.close()


@pytest.fixture
def systemd(tmp_path, monkeypatch):
    with contextlib.closing(Systemd(tmp_path / "notify", monkeypatch)) as made:
        yield made


class Gpu:
    """A source that can be made to hang."""

    name = "test"

    def __init__(self):
        self.statistics = SourceStatistics()
        self.answers = threading.Event()
        self.answers.set()

    def open(self):
        return SourceInventory("test", (GpuDescription("GPU-1"),), (metric("power_watts"),), 0.1)

    def read(self, deadline_s):
        self.answers.wait()
        return Reading((GpuTicks(0, np.array([time.time_ns() // 1000 * 1000]), np.array([[1.0]])),))

    def progress(self):
        return None

    def close(self):
        self.answers.set()


@contextlib.contextmanager
def running_agent(directory, source, files):
    config = AgentConfig.load(
        overrides={
            "spool.directory": str(directory),
            "uplink.collector": "127.0.0.1:1",
            "uplink.batch_interval": "100ms",
            "uplink.drain_timeout": "10ms",
            "metrics.listen": "",
        }
    )
    stop = threading.Event()
    agent = threading.Thread(target=run_agent, args=(config,), kwargs={"source": source, "stop": stop, "files": files})
    agent.start()
    try:
        yield
    finally:
        stop.set()
        agent.join(TIMEOUT_S)
        assert not agent.is_alive()


def test_an_agent_is_heard_while_ticks_advance_and_the_spool_can_be_written(tmp_path, systemd):
    source, files = Gpu(), FaultyFiles()
    with running_agent(tmp_path / "spool", source, files):
        assert systemd.next()[0] == "READY=1"
        assert "sampling 1 GPU every 100ms" in systemd.wait_for("WATCHDOG=1", "STATUS=")[1]
        files.full = True
        systemd.wait_for("cannot be written")
        assert not any("WATCHDOG=1" in systemd.next() for _ in range(3))
        files.full = False
        systemd.wait_for("WATCHDOG=1")
        source.answers.clear()
        systemd.wait_for("the sampler has not moved")
        assert not any("WATCHDOG=1" in systemd.next() for _ in range(3))
        source.answers.set()
        systemd.wait_for("WATCHDOG=1")
    systemd.wait_for("STOPPING=1")


class Disk(OsFiles):
    """A disk that can be full, and one that hangs."""

    def __init__(self):
        self.free = 1 << 30
        self.works = threading.Event()
        self.works.set()

    def free_bytes(self, path):
        self.works.wait()
        return self.free


def test_a_collector_is_heard_with_a_full_disk_and_not_with_one_that_hangs(tmp_path, systemd):
    disk = Disk()
    with (
        ThreadCollector(tmp_path / "data", files=disk) as collector,
        WireStream(collector.target, hello()) as stream,
    ):
        assert systemd.next()[0] == "READY=1"
        stream.greet()
        disk.free = 0
        stream.send(inventory())
        systemd.wait_for("WATCHDOG=1", "no records are taken")
        disk.free = 1 << 30
        systemd.wait_for("WATCHDOG=1", "records taken")
        with WireStream(collector.target, hello()) as again:
            again.greet()
            disk.works.clear()
            again.send(inventory())
            systemd.wait_for("the thread that writes records has not moved")
            assert not any("WATCHDOG=1" in systemd.next() for _ in range(3))
            disk.works.set()
            systemd.wait_for("WATCHDOG=1")
    systemd.wait_for("STOPPING=1")
