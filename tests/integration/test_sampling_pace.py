"""An agent that samples less often while nothing works: its data are honest, and the epochs are found all the same."""

import json
import math
import subprocess
import sys
import time

import numpy as np
import pytest
from support.epoch_traces import trace_of
from support.running_collector import ProcessCollector, ThreadCollector
from support.wire_agent import wait_until

from gpusonde.agent import AgentConfig, ReplaySource, run_agent
from gpusonde.agent.config import SourceConfig
from gpusonde.agent.metrics import SelfCounters
from gpusonde.agent.pace import AdaptivePace
from gpusonde.agent.sampler import Sampler
from gpusonde.agent.sources.base import (
    Clocks,
    GpuDescription,
    GpuTicks,
    Reading,
    SourceInventory,
    SourceStatistics,
)
from gpusonde.cli.main import main
from gpusonde.collector.client import Client
from gpusonde.epoch_detect import detect
from gpusonde.telemetry import Trace, metric


class TracedGpu:
    """A GPU that does what a trace says, on a simulated clock; what the sampler reads of it becomes another trace."""

    name = "traced"

    def __init__(self, trace, begin_ns=0, averages=False):
        self.begin_ns = begin_ns
        self.averages = averages  # since the reading before, as GPM's values are; else what was between is lost
        self.first = 0
        self.statistics = SourceStatistics()
        self.trace = trace
        self.now_s = 0.0
        self.times, self.columns = [], []
        self.metrics = tuple(metric(name) for name in trace.metrics)
        self.inventory = SourceInventory("traced", (GpuDescription("GPU-a"),), self.metrics, 0.1)

    def sampled(self, settings):
        counters = SelfCounters()
        pace = AdaptivePace(settings, self.metrics, 1, counters)
        clocks = Clocks(lambda: self.now_s, lambda: round(self.now_s * 1e9), lambda: 0.0)
        Sampler(self, self.inventory, pace, self, counters, clocks=clocks, wait=self.wait).run()
        values = dict(zip(self.trace.metrics, np.array(self.columns).T, strict=True))
        return Trace(np.array(self.times), values, gpu_uuid="GPU-a"), counters

    def wait(self, seconds):
        self.now_s += seconds
        return False

    def read(self, deadline_s):
        at = int(np.searchsorted(self.trace.time_s, self.now_s))
        if at == len(self.trace):
            return None
        self.times.append(self.now_s)
        first, self.first = min(self.first, at) if self.averages else at, at + 1
        self.columns.append([self.trace.values[name][first : at + 1].mean() for name in self.trace.metrics])
        stamp = self.begin_ns + round(self.now_s * 1e6) * 1000
        return Reading((GpuTicks(0, np.array([stamp]), np.array([self.columns[-1]]).T),))

    def open(self):
        return self.inventory

    def close(self):
        pass

    def progress(self):
        return None

    def has_room(self):
        return True

    def put(self, reading):
        return True


def test_epochs_around_a_long_stall_that_was_sampled_slowly_are_those_of_full_rate(tmp_path):
    epoch = [(14.0, 0.8), (4.0, 0.3)]
    trace, _ = trace_of([*[epoch] * 5, [*epoch, (120.0, 0.0)], *[epoch] * 5], idle_s=60.0)
    sparse, counters = TracedGpu(trace).sampled(
        SourceConfig(interval_s=0.1, idle_interval_s=1.0, idle_after_s=20.0, read_budget=0.25)
    )
    assert counters.slowdowns["idle"] >= 2
    assert counters.missed_ticks == 0
    assert len(sparse) < 0.75 * len(trace)
    full = detect(trace)
    with ThreadCollector(tmp_path / "data") as collector:
        config = AgentConfig.load(
            overrides={"spool.directory": str(tmp_path / "spool"), "uplink.collector": collector.target}
        )
        report = run_agent(config, source=ReplaySource([sparse], speed=math.inf), exit_when_acked=True)
        assert report.drained
        with Client(collector.target) as client:
            wait_until(lambda: client.list_runs() and not client.list_runs()[0].active, 120, "end of the run")
            (run,) = client.list_runs()
            epochs = client.list_epochs(run.run_id).epochs
            stored = client.read_samples("GPU-a")
    assert stored.time_s - stored.time_s[0] == pytest.approx(sparse.time_s - sparse.time_s[0], abs=2e-6)
    assert run.missed_ticks == 0
    assert run.verdict == full.verdict == "epochs"
    assert run.period_s == pytest.approx(full.period_s, rel=0.01)
    starts = np.array([e.start_unix_nano for e in epochs]) / 1e9
    wanted = full.epoch_starts_s
    assert starts - starts[0] == pytest.approx(wanted - wanted[0], abs=1.1)


class HurriedAgent:
    """Makes the sampler of an agent live on a simulated clock; all of the others have the real one."""

    def __init__(self, gpu, begin_ns):
        self.gpu, self.begin_ns = gpu, begin_ns
        self.readings = 0

    def sampler(self, *arguments, **more):
        self.sink = arguments[3]
        clocks = Clocks(lambda: self.gpu.now_s, lambda: self.begin_ns + round(self.gpu.now_s * 1e9), lambda: 0.0)
        return Sampler(*arguments, clocks=clocks, wait=self.wait, **more)

    def wait(self, seconds):
        self.readings += 1
        # Ten minutes are over within a second: the writer is given the time that it would have had.
        if self.readings % 100 == 0:
            wait_until(self.sink.has_room, 120, "the writer")
        return self.gpu.wait(seconds)


def test_epochs_of_a_job_read_at_the_adaptive_rate_reach_the_tracker_as_if_read_at_full_rate(
    tmp_path, monkeypatch, capsys
):
    trace, _ = trace_of([[(24.0, 0.8), (6.0, 0.3)]] * 16, idle_s=10.0)
    full = detect(trace)
    begin_ns = time.time_ns() // 1000 * 1000 - round(trace.time_s[-1] * 1e9)
    gpu = TracedGpu(trace, begin_ns, averages=True)
    hurried = HurriedAgent(gpu, begin_ns)
    monkeypatch.setattr("gpusonde.agent.daemon.Sampler", hurried.sampler)
    config = {
        "spool.directory": str(tmp_path / "spool"),
        "source.rate": "adaptive",
        "uplink.batch_interval": "100ms",
    }
    with ThreadCollector(tmp_path / "data") as collector:
        config["uplink.collector"] = collector.target
        report = run_agent(AgentConfig.load(overrides=config), source=gpu, exit_when_acked=True)
        with Client(collector.target) as client:
            wait_until(lambda: client.list_runs() and not client.list_runs()[0].active, 120, "end of the run")
            (run,) = client.list_runs()
            epochs = client.list_epochs(run.run_id).epochs
            stored = client.read_samples("GPU-a")
    read_s = np.array(gpu.times)
    assert len(read_s) < len(trace) / 5
    assert np.diff(read_s).max() == pytest.approx(2.8)
    assert report.drained
    assert report.counters.missed_ticks == run.missed_ticks == 0
    assert stored.time_s - stored.time_s[0] == pytest.approx(read_s - read_s[0], abs=2e-6)
    assert stored.values["dram_active"] == pytest.approx(np.array(gpu.columns)[:, 0], abs=1e-6)
    assert run.verdict == full.verdict == "epochs"
    assert run.period_s == pytest.approx(full.period_s, rel=0.01)
    starts = np.array([e.start_unix_nano - begin_ns for e in epochs]) / 1e9
    assert starts == pytest.approx(full.epoch_starts_s, abs=1.8)  # a reading lies up to 1.4 s from what it saw
    # What reads the store afterwards sees no hole either.
    out = tmp_path / "out.parquet"
    assert main(["store", "export", str(tmp_path / "data"), str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["gpus"][0]["ticks"] == len(read_s)
    assert main(["detect", str(out), "--json"]) == 0
    detected = json.loads(capsys.readouterr().out)
    assert detected["period_s"] == pytest.approx(run.period_s, rel=1e-6)
    assert detected["warnings"] == []
    assert detected["interval_s"] == pytest.approx(np.median(np.diff(read_s)), abs=1e-6)


# Works for 2.5 s, idles for 5 s, works for 2.5 s: as hardware would, on the real clocks of a process.
AGENT = """
import json, sys, time
import numpy as np
from gpusonde.agent import AgentConfig, SourceInventory, run_agent
from gpusonde.agent.sources.base import GpuDescription, GpuTicks, Reading, SourceStatistics
from gpusonde.telemetry import metric

class Working:
    name = "working"
    statistics = SourceStatistics()
    def open(self):
        self.begin_s = time.monotonic()
        return SourceInventory("working", (GpuDescription("GPU-a"),), (metric("sm_active"),), 0.1)
    def read(self, deadline_s):
        since_s = time.monotonic() - self.begin_s
        if since_s > 10.0:
            return None
        works = since_s < 2.5 or since_s >= 7.5
        stamp = time.time_ns() // 1000 * 1000
        return Reading((GpuTicks(0, np.array([stamp]), np.array([[0.9 if works else 0.0]])),))
    def progress(self):
        return None
    def close(self):
        pass

config = AgentConfig.load(overrides=dict(a.split("=", 1) for a in sys.argv[1:]))
print(json.dumps(run_agent(config, source=Working(), exit_when_acked=True).as_json()))
"""


def test_a_real_agent_slows_down_on_an_idle_gpu_and_is_back_within_a_second_of_work(tmp_path):
    with ProcessCollector(tmp_path / "data") as collector:
        settings = {
            "agent.id": "working",
            "spool.directory": str(tmp_path / "spool"),
            "uplink.collector": collector.target,
            "source.idle_after": "1500ms",
            "source.read_budget": "1",
        }
        arguments = [f"{key}={value}" for key, value in settings.items()]
        out = subprocess.run(
            [sys.executable, "-c", AGENT, *arguments], capture_output=True, text=True, timeout=200, check=False
        )
        assert out.returncode == 0, out.stderr
        report = json.loads(out.stdout)
        with Client(collector.target) as client:
            stored = client.read_samples("GPU-a")
    assert report["drained"]
    assert report["slowdowns"] == {"idle": 1}
    assert len(stored) == report["ticks"]
    works = stored.values["sm_active"] > 0.5
    steps = np.diff(stored.time_s)
    again = int(np.flatnonzero(works & (stored.time_s - stored.time_s[0] > 5))[0])
    print(f"distances while idle {np.round(steps[again - 4 : again], 3)} s, at work {np.round(steps[again], 3)} s")
    # The three ticks before the work that was seen last are idle at 1 s; those after it are at full rate again.
    late_s = report["lateness_max_s"]
    assert np.median(steps[again - 3 : again - 1]) == pytest.approx(1.0, abs=0.2 + late_s)
    assert stored.time_s[again] - stored.time_s[0] < 7.5 + 1.1 + late_s
    assert np.median(steps[again:]) == pytest.approx(0.1, abs=0.05)
    # What a busy machine took is counted, what the agent chose is not.
    wanted = 25 + 15 + 4 + 18
    assert len(stored) + report["missed_ticks"] == pytest.approx(wanted, abs=8)
