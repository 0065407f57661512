"""``gpusonde idle``: asked as an operator would ask, of a collector that runs."""

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from support.collector_process import ask
from support.job_records import binding
from support.running_collector import ThreadCollector
from support.trace_records import incoming
from support.tracked_store import TrackedStore
from support.wire_agent import batch, block, inventory

from gpusonde.collector.storage.model import AgentRow
from gpusonde.ingest.v1 import ingest_pb2

METRICS = ("sm_active", "power_watts")
SECOND = 1_000_000_000


@pytest.fixture(scope="module")
def collector(tmp_path_factory):
    """Of two jobs with a GPU each that the scheduler gives them, one has rested for two minutes, the other works."""
    directory = tmp_path_factory.mktemp("idle") / "data"
    start = time.time_ns() - 130 * SECOND
    gpus = {"GPU-rests": "resting", "GPU-works": "working"}
    bindings = [binding(gpu, job) for gpu, job in gpus.items()]
    for each in bindings:
        each.start_time_unix_nano = start
    said = [inventory(1, METRICS, tuple(gpus))]
    said.append(ingest_pb2.Record(sequence=2, job_bindings=ingest_pb2.JobBindings(bindings=bindings)))
    rng = np.random.default_rng(1)
    # Beyond now: however slow the machine is, no question comes after the last of them.
    for first in range(0, 4300, 10):
        rest = np.stack([np.zeros(10), rng.normal(60.0, 0.3, 10)])
        work = np.stack([rng.uniform(0.8, 1.0, 10), rng.normal(300.0, 20.0, 10)])
        blocks = [
            block(first, 10, values, METRICS, gpu_index=i, start_ns=start) for i, values in enumerate((rest, work))
        ]
        said.append(batch(len(said) + 1, *blocks))
    subject = TrackedStore(directory)
    subject.feed(incoming(said), 40)
    subject.store.close()
    with ThreadCollector(directory) as running:
        yield running


def idle(collector, *arguments, **more):
    return ask("idle", "--collector", collector.target, *arguments, **more)


def test_jobs_that_rest_are_named_with_the_evidence_and_others_are_not(collector):
    (job,) = idle(collector, "--for", "20s")["jobs"]
    assert (job["job_id"], job["idle"], job["reaped"]) == ("resting", True, False)
    assert job["gpu_uuids"] == ["GPU-rests"]
    assert job["idle_s"] > 100
    assert {"it is not in use", "its power is flat"} <= set(job["evidence"])


def test_one_that_has_not_rested_for_long_enough_is_left_alone(collector):
    (job,) = idle(collector, "--for", "2h")["jobs"]
    assert not job["idle"]
    assert "of 28800 s; what its processes do is not known" in job["evidence"][0]


@pytest.fixture
def command(tmp_path):
    script = tmp_path / "reap.sh"
    script.write_text(
        f'#!/bin/sh\necho "$GPUSONDE_JOB_ID $GPUSONDE_SCHEDULER $1" > {tmp_path}/told\ncat > {tmp_path}/json\n'
    )
    script.chmod(0o755)
    return script


def test_nothing_is_run_unless_told_to(collector, command, tmp_path):
    idle(collector, "--for", "20s", "--reap", str(command))
    assert not (tmp_path / "told").exists()


def test_the_command_gets_the_job_and_its_evidence_and_runs_without_a_shell(collector, command, tmp_path):
    (job,) = idle(collector, "--for", "20s", "--reap", f"{command} '$(id) ; x'", "--act")["jobs"]
    assert job["reaped"]
    assert (tmp_path / "told").read_text() == "resting slurm $(id) ; x\n"
    assert json.loads((tmp_path / "json").read_text())["job_id"] == "resting"


def test_a_command_that_fails_fails_the_whole_and_is_named(collector, capsys):
    (job,) = idle(collector, "--for", "20s", "--reap", "/bin/false", "--act", exit_code=1)["jobs"]
    assert job["failure"] == "job resting: /bin/false ended with 1, without a word"
    assert (job["idle"], job["reaped"]) == (True, False)
    assert job["failure"] in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [("--for", "soon"), ("--for", "0s"), ("--act",), ("--reap", "'open")])
def test_what_cannot_be_meant_is_refused(collector, arguments):
    idle(collector, *arguments, exit_code=2)


def test_whole_hosts_are_idle_only_if_all_their_gpus_are_and_the_exit_code_says_so(collector):
    (host,) = {host for job in idle(collector, "--for", "20s")["jobs"] for host in job["hosts"]}
    answer = idle(collector, "--for", "20s", "--host", host, exit_code=1)
    # One of its two jobs rests.
    assert answer["hosts_idle"] is False
    assert [reason for reason in answer["hosts_evidence"] if reason.startswith("job working is ")]
    assert [job["job_id"] for job in answer["jobs"] if job["idle"]] == ["resting"]
    unknown = idle(collector, "--for", "20s", "--host", "no-such-host", exit_code=1)
    assert unknown["hosts_evidence"] == ["nothing is known of host no-such-host"]
    idle(collector, "--host", host, "--reap", "true", exit_code=2)


def test_a_host_whose_last_job_is_long_over_is_idle(tmp_path):
    start = time.time_ns() - 400 * SECOND
    said = [inventory(1, METRICS, ("GPU-1",))]
    rng = np.random.default_rng(1)
    for first in range(0, 9000, 10):
        busy = first < 300
        values = np.stack([np.full(10, 0.9 if busy else 0.0), rng.normal(300.0 if busy else 60.0, 0.3, 10)])
        said.append(batch(len(said) + 1, block(first, 10, values, METRICS, start_ns=start)))
    subject = TrackedStore(tmp_path / "data")
    host = "gpu-host"
    subject.store.samples.register_agents([AgentRow("agent-1", "spool-1", "instance", start, host, "1", b"")])
    subject.feed(incoming(said), 40)
    subject.store.close()
    with ThreadCollector(tmp_path / "data") as running:
        answer = idle(running, "--for", "60s", "--host", host)
        assert answer["hosts_idle"] is True
        assert {"it is not in use", "its power is flat"} <= set(answer["jobs"][0]["evidence"])
        assert idle(running, "--for", "30m", "--host", host, exit_code=1)["hosts_idle"] is False


@pytest.mark.skipif(importlib.util.find_spec("sky") is None, reason="the package skypilot is not installed")
def test_skypilots_own_autostop_stops_a_cluster_that_was_found_idle_though_a_job_runs_for_ever(tmp_path):
    script = Path(__file__).parents[1] / "support" / "skypilot_stop.py"
    own = {"HOME": str(tmp_path), "SKY_RUNTIME_DIR": str(tmp_path), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    done = subprocess.run(
        [sys.executable, str(script)], env=os.environ | own, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("STOPS ")]
    # Its own idleness waits for the job; `sky autostop -i 0 --wait-for none`, once we say so, does not.
    assert json.loads(line.removeprefix("STOPS ")) == {"jobs": False, "none": True, "off": False}
