"""From a scheduler's word to ``gpusonde runs``: a real agent, a real collector, real files and sockets."""

import json
import os
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.fake_kubelet import FakeKubelet
from support.running_collector import ProcessCollector
from support.scripted_collector import ScriptedCollector
from support.wire_agent import wait_until

from gpusonde.agent import AgentConfig, ReplaySource, run_agent
from gpusonde.agent.jobs import JobWatcher
from gpusonde.agent.jobs.processes import ProcFolder
from gpusonde.cli.main import main
from gpusonde.telemetry import Trace

# A faster replay lies in the past; a job may be bound up to a minute after a run has begun.
SECONDS = 50


# How often the watcher has looked: at all, and since a new inventory.
LOOKS = Counter()


@pytest.fixture(autouse=True)
def _jobs_are_looked_for_often(monkeypatch):
    LOOKS.clear()

    def poll(self, real=JobWatcher.poll):
        inventories = LOOKS["inventories"]
        real(self)
        LOOKS.update(["all", *["since inventory"] * min(1, inventories)])

    def inventory_changed(self, gpus, real=JobWatcher.inventory_changed):
        real(self, gpus)
        LOOKS["inventories"] += 1

    monkeypatch.setattr("gpusonde.agent.jobs.watcher.POLL_INTERVAL_S", 0.1)
    monkeypatch.setattr(JobWatcher, "poll", poll)
    monkeypatch.setattr(JobWatcher, "inventory_changed", inventory_changed)


class LiveSource(ReplaySource):
    """A replay that passes for the GPU itself, and waits until its jobs were looked for."""

    def __init__(self, uuid, speed=25.0):
        time_s = np.arange(SECONDS * 10) * 0.1
        busy = np.where((time_s > 5) & (time_s < SECONDS - 5), 0.8, 0.0)
        super().__init__([Trace(time_s, {"sm_active": busy})], speed=speed)
        self._uuid, self._readings = uuid, 0

    def open(self):
        inventory = super().open()
        (gpu,) = inventory.gpus
        return replace(inventory, gpus=(replace(gpu, gpu_uuid=self._uuid, replayed=False),))

    def read(self, deadline_s):
        self._readings += 1
        if self._readings == 4:
            wait_until(lambda: LOOKS["all"], what="a look at the jobs")
        # However late it is, each reading is a tenth of a second.
        return super().read(self._start_s + 0.1 * self._readings)


@pytest.fixture(scope="module")
def collector(tmp_path_factory):
    """One for all: every test has an agent of its own."""
    with ProcessCollector(tmp_path_factory.mktemp("collector") / "store") as running:
        yield running


def sample(folder, collector, source=None, **settings):
    """Run an agent over the whole trace; it has the folder's name."""
    overrides = {
        "agent.id": folder.name,
        "spool.directory": str(folder / "spool"),
        "uplink.collector": collector.target,
        "jobs.slurm_mapping_dir": str(folder / "jobs"),
        "jobs.kubelet_socket": "",
    }
    config = AgentConfig.load(overrides=overrides | {k.replace("__", "."): v for k, v in settings.items()})
    report = run_agent(config, source=source or LiveSource("GPU-a"), exit_when_acked=True)
    assert report.drained
    return report


def runs(folder, collector, capsys):
    """What ``gpusonde runs --json`` says of the folder's agent, once its run is over."""
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        capsys.readouterr()
        assert main(["runs", "--collector", collector.target, "--json"]) == 0
        found = [run for run in json.loads(capsys.readouterr().out)["runs"] if run["agent_id"] == folder.name]
        if found and not any(run["active"] for run in found):
            return found
        time.sleep(0.1)
    pytest.fail("no run in more than three minutes")
    return []


def test_runs_shows_the_slurm_job_of_a_mapping_file(tmp_path, collector, capsys):
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "0").write_text("4711\n")
    long_ago = time.time() - 3600
    os.utime(tmp_path / "jobs" / "0", (long_ago, long_ago))
    report = sample(tmp_path, collector)
    (run,) = runs(tmp_path, collector, capsys)
    assert (run["job_id"], run["scheduler"], run["replayed"]) == ("4711", "slurm", False)
    assert report.counters.job_bindings == 1
    assert report.counters.job_source_failures == {}


def test_runs_shows_the_pod_that_the_kubelet_names(tmp_path, collector, capsys):
    with tempfile.TemporaryDirectory() as folder, FakeKubelet(Path(folder) / "k.sock") as kubelet:
        kubelet.pods = [("training", "resnet-0", "main", "nvidia.com/gpu", ["GPU-a"])]
        sample(tmp_path, collector, jobs__kubelet_socket=str(kubelet.socket))
    (run,) = runs(tmp_path, collector, capsys)
    assert (run["job_id"], run["scheduler"]) == ("training/resnet-0", "kubernetes")


def test_a_host_without_any_scheduler_has_runs_without_jobs(tmp_path, collector, capsys):
    report = sample(tmp_path, collector)
    (run,) = runs(tmp_path, collector, capsys)
    assert (run["job_id"], run["scheduler"]) == (None, None)
    assert report.counters.job_bindings == 0


def test_a_replay_is_not_given_to_the_job_that_runs_here(tmp_path, collector, capsys, caplog):
    caplog.set_level("INFO")
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "0").write_text("4711\n")
    trace = Trace(np.arange(1000) * 0.1, {"sm_active": np.full(1000, 0.8)})
    sample(tmp_path, collector, source=ReplaySource([trace], speed=100.0))
    (run,) = runs(tmp_path, collector, capsys)
    assert run["job_id"] is None
    assert "each run is a job of its own" in caplog.text


def test_a_job_that_ended_while_the_agent_was_away_is_ended_by_its_return(tmp_path):
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "GPU-a").write_text("1\n")
    with ScriptedCollector() as collector:
        sample(tmp_path, collector)
        (tmp_path / "jobs" / "GPU-a").unlink()
        sample(tmp_path, collector)
        told = [b for record in collector.payloads("job_bindings") for b in record.job_bindings.bindings]
    assert [(b.gpu_uuid, b.job_id, bool(b.end_time_unix_nano)) for b in told] == [
        ("GPU-a", "1", False),
        ("GPU-a", "1", True),
    ]
    assert told[0].start_time_unix_nano == told[1].start_time_unix_nano < told[1].end_time_unix_nano


def test_ticks_that_were_queued_before_a_binding_are_recorded_before_it(tmp_path):
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "GPU-a").write_text("1\n")
    with ScriptedCollector() as collector:
        sample(tmp_path, collector, uplink__batch_interval="30s")
        kinds = [record.WhichOneof("payload") for record in collector.records()]
    assert kinds[0] == "inventory"
    assert kinds[-2:] == ["batch", "source_ended"]
    assert kinds.count("job_bindings") == 1


class GrowingSource(LiveSource):
    """A second GPU comes after a while."""

    def open(self):
        self._inventory = super().open()
        return self._inventory

    def read(self, deadline_s):
        if self._readings == 16:
            wait_until(lambda: LOOKS["since inventory"], what="a look after the inventory")
        reading = super().read(deadline_s)
        if self._readings != 15 or reading is None:
            return reading
        (gpu,) = self._inventory.gpus
        return replace(reading, inventory=replace(self._inventory, gpus=(gpu, replace(gpu, gpu_uuid="GPU-b"))))


def test_jobs_are_told_again_after_a_new_inventory_and_those_of_its_new_gpus_with_them(tmp_path):
    (tmp_path / "jobs").mkdir()
    for gpu, job in (("GPU-a", "1"), ("GPU-b", "2")):
        (tmp_path / "jobs" / gpu).write_text(f"{job}\n")
    with ScriptedCollector() as collector:
        sample(tmp_path, collector, source=GrowingSource("GPU-a"))
        records = collector.records()
    told = [
        "inventory" if record.HasField("inventory") else [b.job_id for b in record.job_bindings.bindings]
        for record in records
        if record.WhichOneof("payload") in ("inventory", "job_bindings")
    ]
    assert [sorted(what) if isinstance(what, list) else what for what in told] == [
        "inventory",
        ["1"],
        "inventory",
        ["1", "2"],
    ]


def test_runs_shows_what_the_processes_on_the_gpu_belong_to(tmp_path, collector, capsys, monkeypatch):
    class Reader:
        """What the driver would say."""

        def compute_processes(self):
            return {"GPU-a": (os.getpid(),)}

        def close(self):
            pass

    monkeypatch.setattr("gpusonde.agent.daemon.make_process_reader", lambda _: Reader())
    # The binding says when the process was started; that is long ago for the replay.
    monkeypatch.setattr("gpusonde.agent.jobs.processes.ProcFolder._start", lambda *_: 0)
    sample(tmp_path, collector)
    (run,) = runs(tmp_path, collector, capsys)
    owner = ProcFolder().facts(os.getpid()).owner
    assert (run["job_id"], run["scheduler"]) == (owner.job_id, owner.scheduler.value)
