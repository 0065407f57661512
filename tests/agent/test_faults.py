"""Real agent processes: killed at random, stopped politely, started twice, with a full disk, with a lost collector."""

import json
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from support.decoded_blocks import decode
from support.scripted_collector import ScriptedCollector

from gpusonde.agent.spool.segment import scan
from gpusonde.telemetry import metric

# An agent whose source counts ticks for ever: tick i carries the value i, so that the collector's side can tell which
# ticks arrived. It says on stdout up to which tick everything was committed.
AGENT = """
import json, sys, time
import numpy as np
from pathlib import Path
from gpusonde.agent import AgentConfig, SourceInventory, run_agent
from gpusonde.agent.sources.base import GpuDescription, GpuTicks, Reading, SourceStatistics
from gpusonde.telemetry import metric

class Counting:
    name = "counting"
    statistics = SourceStatistics()
    def __init__(self, first):
        self.tick = first
    def open(self):
        return SourceInventory("counting", (GpuDescription("GPU-1"),), (metric("power_watts"),), 0.1)
    def read(self, deadline_s):
        n = int(sys.argv[4])
        stamps = np.array([time.time_ns() // 1000 * 1000 + i * 1000 for i in range(n)])
        values = np.arange(self.tick, self.tick + n, dtype=float)[None, :] % 4096
        self.tick += n
        return Reading((GpuTicks(0, stamps, values),))
    def progress(self):
        return None
    def close(self):
        pass

directory, target = sys.argv[1:3]
config = AgentConfig.load(overrides={
    "agent.id": "victim", "spool.directory": directory, "uplink.collector": target, "uplink.batch_interval": "100ms",
    "spool.commit_interval": "10ms", "uplink.drain_timeout": "5s", **json.loads(sys.argv[3]),
})
report = run_agent(config, source=Counting(0))
print(json.dumps(report.as_json()))
"""


@pytest.fixture
def start():
    """Starts agents, and ends those that a failed test leaves behind."""
    started = []

    def start_one(directory, target, ticks_per_reading=20, stderr=subprocess.PIPE, **overrides):
        arguments = [sys.executable, "-c", AGENT, str(directory), target, json.dumps(overrides), str(ticks_per_reading)]
        agent = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=stderr, text=True)
        started.append(agent)
        return agent

    yield start_one
    for agent in started:
        if agent.poll() is None:
            agent.kill()
            agent.communicate()


def wait_for(agent, condition, timeout_s=60.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert agent.poll() is None, f"the agent has ended: {agent.communicate()}"
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.005)


def spooled_batches(directory):
    """How many batches lie in the newest segment of a running agent."""
    segments = sorted(directory.glob("*.seg"))
    records = scan(segments[-1].read_bytes()).records if segments else []
    return sum(record.ticks > 0 for record in records)


def test_an_agent_killed_at_random_leaves_no_hole_and_no_double(tmp_path, start):
    chance = random.Random(1)
    with ScriptedCollector() as collector:
        for _ in range(6):
            before = len(collector.records())
            agent = start(tmp_path / "spool", collector.target)
            try:
                wait_for(agent, lambda before=before: len(collector.records()) > before + 1)
                time.sleep(chance.random() * 0.3)
            finally:
                agent.send_signal(signal.SIGKILL)
                agent.communicate()
        agent = start(tmp_path / "spool", collector.target)
        wait_for(agent, lambda: len(collector.hellos) == 7)
        agent.send_signal(signal.SIGTERM)
        out, errors = agent.communicate(timeout=200)
        assert agent.returncode == 0, errors
        records = collector.records()
    report = json.loads(out)
    assert report["drained"], errors
    assert {hello.spool_id for hello in collector.hellos} == {report["spool_id"]}
    assert [r.sequence for r in records] == list(range(1, report["last_sequence"] + 1))
    assert collector.gaps == []
    assert not any(r.HasField("loss_report") for r in records)
    starts = [hello.agent_start_time_unix_nano for hello in collector.hellos]
    assert starts == sorted(starts)
    assert len({hello.instance_id for hello in collector.hellos}) == 7
    # Inside each process's life its ticks are consecutive: nothing was skipped, nothing came twice.
    lives = 0
    expected = None
    for record in records:
        if record.HasField("inventory"):
            lives, expected = lives + 1, 0.0
        elif record.HasField("batch"):
            for block in decode(record.batch, [metric("power_watts")]):
                np.testing.assert_array_equal(block.values[0], (expected + np.arange(block.time_unix_nano.size)) % 4096)
                expected = (block.values[0][-1] + 1) % 4096
    assert lives == 7


def test_sigterm_writes_what_was_sampled_drains_and_exits_zero(tmp_path, start):
    with ScriptedCollector() as collector:
        agent = start(tmp_path / "spool", collector.target, **{"uplink.batch_interval": "30s"})
        wait_for(agent, lambda: collector.hellos)
        agent.send_signal(signal.SIGTERM)
        out, errors = agent.communicate(timeout=200)
        assert agent.returncode == 0, errors
        sent = sum(b.tick_count for r in collector.payloads("batch") for b in r.batch.blocks)
    report = json.loads(out)
    assert report["drained"]
    assert sent == report["ticks"] > 0


def test_sigterm_without_a_collector_ends_within_the_grace_and_keeps_everything(tmp_path, start):
    agent = start(tmp_path / "spool", "127.0.0.1:1", **{"uplink.drain_timeout": "200ms"})
    wait_for(agent, lambda: spooled_batches(tmp_path / "spool"))
    began = time.monotonic()
    agent.send_signal(signal.SIGTERM)
    out, errors = agent.communicate(timeout=200)
    assert time.monotonic() - began < 20
    assert agent.returncode == 0, errors
    report = json.loads(out)
    assert not report["drained"]
    assert report["unacked_records"] == report["last_sequence"] >= 2
    assert "stay in" in errors


def test_a_second_signal_ends_the_wait_for_the_collector(tmp_path, start):
    agent = start(tmp_path / "spool", "127.0.0.1:1", **{"uplink.drain_timeout": "1h"})
    wait_for(agent, lambda: spooled_batches(tmp_path / "spool"))
    agent.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    assert agent.poll() is None
    agent.send_signal(signal.SIGINT)
    out, errors = agent.communicate(timeout=200)
    assert agent.returncode == 0, errors
    assert not json.loads(out)["drained"]


def test_a_second_agent_on_the_same_spool_is_refused_and_harms_nothing(tmp_path, start):
    with ScriptedCollector() as collector:
        first = start(tmp_path / "spool", collector.target)
        wait_for(first, lambda: collector.hellos)
        second = start(tmp_path / "spool", collector.target)
        _, errors = second.communicate(timeout=200)
        assert second.returncode != 0
        assert "in use by another agent" in errors
        assert str(first.pid) in errors
        assert first.poll() is None
        first.send_signal(signal.SIGTERM)
        out, _ = first.communicate(timeout=200)
        assert json.loads(out)["drained"]
        assert len(collector.hellos) == 1


def test_a_collector_killed_and_started_again_gets_every_record_once(tmp_path, start):
    with ScriptedCollector() as collector:
        agent = start(tmp_path / "spool", collector.target)
        for _ in range(3):
            before = len(collector.records())
            wait_for(agent, lambda before=before: len(collector.records()) > before + 2)
            collector.stop()
            time.sleep(0.1)
            collector.start()
        before = len(collector.records())
        wait_for(agent, lambda: len(collector.records()) > before + 2)
        agent.send_signal(signal.SIGTERM)
        out, errors = agent.communicate(timeout=200)
        assert agent.returncode == 0, errors
        report = json.loads(out)
        assert [r.sequence for r in collector.records()] == list(range(1, report["last_sequence"] + 1))
    assert report["reconnects"] >= 3
    assert report["dropped_records"] == {}
    assert errors.count("is not there") <= 3


@pytest.mark.needs_root
def test_a_disk_that_is_really_full_costs_ticks_that_are_reported_later(tmp_path, start):
    """On a small file system of its own, because no test may fill the host's disk."""
    import os

    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("this machine does not let root mount a tmpfs")
    try:
        with ScriptedCollector() as collector:
            (disk / "ballast").write_bytes(b"\0" * (1800 << 10))
            with (tmp_path / "agent.log").open("w") as log:
                agent = start(disk / "spool", collector.target, 1000, log, **{"spool.max_bytes": "1MiB"})
            wait_for(agent, lambda: collector.payloads("inventory"))
            with (disk / "more").open("wb", buffering=0) as file:
                try:
                    while True:
                        file.write(b"\0" * 512)
                except OSError:
                    pass
            wait_for(agent, lambda: "the disk is full" in (tmp_path / "agent.log").read_text())
            (disk / "more").unlink()
            (disk / "ballast").unlink()
            wait_for(agent, lambda: collector.payloads("loss_report"))
            agent.send_signal(signal.SIGTERM)
            out, _ = agent.communicate(timeout=200)
            assert agent.returncode == 0
            report = json.loads(out)
            lost = sum(r.loss_report.lost_ticks for r in collector.payloads("loss_report"))
            arrived = sum(b.tick_count for r in collector.payloads("batch") for b in r.batch.blocks)
        assert lost == report["lost_ticks"] > 0
        assert arrived + lost == report["ticks"]
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)
