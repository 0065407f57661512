"""Hundreds of SIGHUPs to a real agent and a real collector, with good and bad files: no tick and no record is lost."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
from prometheus_client.parser import text_string_to_metric_families
from support.wire_agent import wait_until

from gpusonde.collector.client import Client

SIGNALS = 240
# One GPU whose tick i has the value i: what arrived can be compared with what was sampled.
AGENT = """
import json, sys, time
import numpy as np
from gpusonde.agent import AgentConfig, SourceInventory, run_agent
from gpusonde.agent.sources.base import GpuDescription, GpuTicks, Reading, SourceStatistics
from gpusonde.service import process
from gpusonde.service.reload import ConfigSource
from gpusonde.telemetry import metric

class Counting:
    name = "counting"
    statistics = SourceStatistics()
    tick = 0
    def open(self):
        return SourceInventory("counting", (GpuDescription("GPU-1"),), (metric("power_watts"),), 0.3)
    def read(self, deadline_s):
        stamp = time.time_ns() // 1000 * 1000
        self.tick += 1
        return Reading((GpuTicks(0, np.array([stamp]), np.array([[float(self.tick)]])),))
    def progress(self):
        return None
    def close(self):
        pass

process.ignore_hangups()
load = lambda: AgentConfig.load(sys.argv[1])
report = run_agent(load(), source=Counting(), config_source=ConfigSource(load, lambda config: None))
print(json.dumps(report.as_json()))
"""


class Daemon:
    """A process with a configuration file, a place for its metrics address, and a log."""

    def __init__(self, command, config: Path, directory: Path):
        self.config = config
        self._address = directory / "metrics_address"
        self.log = config.with_suffix(".log")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([*command, str(config)], stdout=subprocess.PIPE, stderr=log, text=True)

    def hang_up(self):
        os.kill(self.process.pid, signal.SIGHUP)

    def metric(self, name, **labels):
        """The value of one metric; None while the address is changing."""
        try:
            with urllib.request.urlopen(f"http://{self._address.read_text().strip()}/metrics", timeout=200) as answer:
                families = list(text_string_to_metric_families(answer.read().decode()))
        except (OSError, ValueError):
            return None
        return next((s.value for f in families for s in f.samples if (s.name, s.labels) == (name, labels)), None)

    def known(self, name, **labels):
        """The same, once the address stands."""
        return wait_until(lambda: self.metric(name, **labels), what=name)

    def write(self, text):
        """Replace the file in one step, as an operator's tools do."""
        temporary = self.config.with_suffix(".new")
        temporary.write_text(text)
        temporary.rename(self.config)

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


def collector_file(store, turn):
    return f"""
[server]
listen = "127.0.0.1:0"
drain_grace = "{2 + turn % 2}s"
[store]
directory = "{store}"
segment_interval = "{1 + turn % 3}s"
[ingest]
max_unacked_records = {32 + turn % 4}
commit_interval = "{10 + turn % 5}ms"
[metrics]
listen = "{("127.0.0.1", "localhost")[turn % 2]}:0"
[log]
level = "{("info", "debug")[turn % 2]}"
"""


def agent_file(spool, target, turn):
    return f"""
[agent]
id = "stormy"
[source]
interval = "300ms"
slow_interval = "10s"
[spool]
directory = "{spool}"
max_bytes = "{64 + turn % 2}MiB"
commit_interval = "{10 + turn % 5}ms"
[uplink]
collector = "{target}"
batch_interval = "{100 + turn % 3 * 100}ms"
# Every change of this one connects anew.
allowed_targets = "collector-{turn // 8}:7433"
[metrics]
listen = "{("127.0.0.1", "localhost")[turn // 2 % 2]}:0"
"""


def test_a_storm_of_sighups_costs_no_tick_and_no_record(tmp_path):
    store, spool = tmp_path / "store", tmp_path / "spool"
    files = tmp_path / "collector.toml", tmp_path / "agent.toml"
    files[0].write_text(collector_file(store, 0))
    collector = Daemon([sys.executable, "-m", "gpusonde.cli", "collector", "--json", "--config"], files[0], store)
    daemons = [collector]
    latest_s = 0.0
    try:
        wait_until(lambda: (store / "address").exists() or collector.process.poll() is not None, 120)
        target = (store / "address").read_text().strip()
        files[1].write_text(agent_file(spool, target, 0))
        agent = Daemon([sys.executable, "-c", AGENT], files[1], spool)
        daemons.append(agent)
        wait_until(lambda: (agent.metric("gpusonde_agent_acked_sequence") or 0) >= 2, 120, agent.log.read_text())
        for turn in range(SIGNALS):
            if turn % 4 == 3:
                agent.write("[uplink]\nbatch_interval = 7\n")
                collector.write("[ingest]\nunheard_of = 1\n")
            else:
                agent.write(agent_file(spool, target, turn))
                collector.write(collector_file(store, turn))
            agent.hang_up()
            collector.hang_up()
            began_s = time.monotonic()
            time.sleep(0.03)
            latest_s = max(latest_s, time.monotonic() - began_s - 0.03)
        for daemon, name in ((agent, "agent"), (collector, "collector")):
            prefix = f"gpusonde_{name}_config"
            daemon.write(agent_file(spool, target, 0) if daemon is agent else collector_file(store, 0))
            wait_until(lambda: (daemon.hang_up(), daemon.metric(f"{prefix}_last_reload_successful") == 1)[1])  # noqa: B023
            assert daemon.known(f"{prefix}_reloads_total", result="success") >= 20
            assert daemon.known(f"{prefix}_reloads_total", result="failure") >= 5
        assert agent.known("gpusonde_agent_reconnects_total") >= 3
        agent.process.send_signal(signal.SIGTERM)
        report = json.loads(agent.process.communicate(timeout=200)[0])
        with Client(target) as client:
            stored = client.read_samples("GPU-1")
        collector.process.send_signal(signal.SIGTERM)
        counts = {c["name"]: c["count"] for c in json.loads(collector.process.communicate(timeout=200)[0])["counts"]}
    finally:
        for daemon in daemons:
            daemon.end()
    assert (agent.process.returncode, collector.process.returncode) == (0, 0)
    assert report["drained"]
    # A tick is missed when it is 150 ms late; a machine on which we wake up late keeps no time for the agent either.
    # With a sampler that waits for reloads it is most of them.
    assert report["missed_ticks"] <= 5 + 100 * latest_s
    assert report["dropped_records"] == {}
    np.testing.assert_array_equal(stored.values["power_watts"], np.arange(1, report["ticks"] + 1))
    assert report["ticks"] >= SIGNALS * 0.03 / 0.3
    assert not counts.keys() & {"gaps", "declared_gaps", "refusals", "quarantined"}
    assert counts["records"] == report["acked_sequence"]
