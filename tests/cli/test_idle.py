"""``gpusonde idle``: asked as an operator would ask, of a collector that runs."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.collector_process import ask
from support.job_records import binding
from support.running_collector import ThreadCollector
from support.trace_records import incoming
from support.tracked_store import TrackedStore
from support.wire_agent import batch, block, inventory, wait_until

from gpusonde.cli.commands.idle import _judge_hosts, judge
from gpusonde.collector.client.query import job_info
from gpusonde.collector.query.jobs import STATES, list_jobs
from gpusonde.collector.storage.model import AgentRow
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.query.v1 import query_pb2
from gpusonde.telemetry import Trace

METRICS = ("sm_active", "power_watts")
SECOND = 1_000_000_000


def activity(sequence, start_ns):
    """Half a minute of a job's processes that rest."""
    nothing = [0] * 30
    group = ingest_pb2.ProcessGroupActivity(
        gpu_uuids=["GPU-rests"], processor_ms=nothing, read_bytes=nothing, written_bytes=nothing, holders=0
    )
    looks = ingest_pb2.JobActivity(
        start_time_unix_nano=start_ns, offsets_ms=[1000 * i for i in range(30)], groups=[group]
    )
    return ingest_pb2.Record(sequence=sequence, job_activity=looks)


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
        if first % 300 == 0:
            said.append(activity(len(said) + 1, start + first // 10 * SECOND))
    subject = TrackedStore(directory)
    subject.store.samples.register_agents([AgentRow("agent-1", "spool-1", "instance", start, "gpu-host", "1", b"")])
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
    assert {"it is not in use", "its power is flat", "its processes rest"} <= set(job["evidence"])


def test_one_that_has_not_rested_for_long_enough_is_left_alone(collector):
    (job,) = idle(collector, "--for", "2h")["jobs"]
    assert not job["idle"]
    assert "of 12600 s" in job["evidence"][0]


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


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("no-such-command", "no-such-command cannot be run: No such file or directory"),
        # More than a pipe holds, and than is kept.
        ("sh -c 'yes denied | head -c 9999999 >&2; exit 3'", "sh ended with 3, "),
    ],
)
def test_a_command_that_cannot_be_run_or_prints_much_is_told_of(collector, command, said):
    (job,) = idle(collector, "--for", "20s", "--reap", command, "--act", exit_code=1)["jobs"]
    assert job["failure"].startswith(f"job resting: {said}")
    assert len(job["failure"]) < 300


def test_a_command_that_hangs_is_killed_with_what_it_started(collector, tmp_path, monkeypatch):
    monkeypatch.setattr("gpusonde.cli.commands.idle._COMMAND_TIMEOUT_S", 2.0)
    script = f"sleep 900 & echo $! > {tmp_path}/pid; wait"
    (job,) = idle(collector, "--for", "20s", "--reap", f"sh -c '{script}'", "--act", exit_code=1)["jobs"]
    assert job["failure"].startswith("job resting: sh did not end within 2 s and was killed")
    # It is gone, or a child that nobody has buried yet.
    stat = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/stat")
    wait_until(lambda: not stat.exists() or stat.read_text().split()[2] == "Z", 20, "end of what it started")


def test_a_command_has_ended_though_what_it_leaves_running_holds_its_output(collector, tmp_path):
    script = f"sleep 900 & echo $! > {tmp_path}/pid; echo gone >&2; exit 3"
    (job,) = idle(collector, "--for", "20s", "--reap", f"sh -c '{script}'", "--act", exit_code=1)["jobs"]
    assert job["failure"] == "job resting: sh ended with 3, gone"
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


@pytest.mark.parametrize(
    "arguments", [("--for", "soon"), ("--for", "0s"), ("--act",), ("--reap", "'open"), ("--host", "")]
)
def test_what_cannot_be_meant_is_refused(collector, arguments):
    idle(collector, *arguments, exit_code=2)


def test_whole_hosts_are_idle_only_if_all_their_gpus_are_and_the_exit_code_says_so(collector):
    (host,) = {host for job in idle(collector, "--for", "20s")["jobs"] for host in job["hosts"]}
    assert host == "gpu-host"
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


# An older collector does not say whether any is on the GPUs.
@pytest.mark.parametrize(
    ("on_gpus", "takes", "idle"), [(True, False, False), (True, True, True), (False, False, True), (None, False, False)]
)
def test_a_program_that_waits_on_the_gpus_and_has_hardly_worked_may_wait_to_be_asked(on_gpus, takes, idle):
    message = query_pb2.Job(job_id="4711", active=True, state=query_pb2.JOB_STATE_IDLE)
    message.members.add(gpu_uuid="GPU-1")
    message.end_time.FromNanoseconds(9000 * SECOND)
    message.processes.CopyFrom(query_pb2.JobProcesses(processors=0.0, bytes_per_second=0.0, on_gpus=on_gpus))
    message.processes.seen.FromNanoseconds(1800 * SECOND)
    time_s = np.arange(7200.0, 9000.0)
    values = {"gpu_utilization": np.zeros(time_s.size), "power_watts": np.full(time_s.size, 60.0)}
    client = SimpleNamespace(
        list_jobs=lambda **_: [job_info(message)], read_samples=lambda *_, **__: Trace(time_s, values)
    )
    verdict = judge(client, job_info(message), 1800.0, takes_servers=takes).verdict
    assert verdict.idle is idle
    assert idle or verdict.evidence[0].startswith("a program is on its GPUs and has hardly worked")


@pytest.mark.parametrize("late_s", [1, 31])
def test_what_processes_did_lately_and_is_still_with_the_agent_does_not_make_them_unknown(tmp_path, late_s):
    """Agents send it every half minute: between two records it ends up to that long ago."""
    start = 1_700_000_000 * SECOND
    now = start + 300 * SECOND + late_s * SECOND
    bound = binding("GPU-rests", "resting")
    bound.start_time_unix_nano = start
    said = [inventory(1, METRICS, ("GPU-rests",))]
    said.append(ingest_pb2.Record(sequence=2, job_bindings=ingest_pb2.JobBindings(bindings=[bound])))
    rng = np.random.default_rng(1)
    for first in range(0, 10 * (300 + late_s), 10):
        values = np.stack([np.zeros(10), rng.normal(60.0, 0.3, 10)])
        said.append(batch(len(said) + 1, block(first, 10, values, METRICS, start_ns=start)))
    said += [activity(len(said) + 1 + i, start + 30 * i * SECOND) for i in range(10)]
    subject = TrackedStore(tmp_path / "data")
    subject.feed(incoming(said), 40)

    def ask_store(*, process_window_s=None, **_):
        request = query_pb2.ListJobsRequest(job_id="resting", active_only=True)
        if process_window_s is not None:
            request.process_window.FromNanoseconds(round(process_window_s * SECOND))
        return [job_info(job) for job in list_jobs(subject.store, request, now).jobs]

    time_s = np.arange(200.0, 300.0 + late_s)
    trace = Trace(time_s, {"sm_active": np.zeros(time_s.size), "power_watts": np.full(time_s.size, 60.0)})
    client = SimpleNamespace(list_jobs=ask_store, read_samples=lambda *_, **__: trace)
    (job,) = ask_store()
    assert "its processes rest" in judge(client, job, 60.0, takes_servers=True).verdict.evidence
    subject.store.close()


@pytest.mark.parametrize(("spent", "named"), [({"serving": 3600, "training": 60}, True), ({"training": 3600}, False)])
def test_a_job_that_has_answered_requests_is_left_alone_unless_servers_are_asked_for(spent, named):
    message = query_pb2.Job(job_id="4711", active=True, state=query_pb2.JOB_STATE_IDLE)
    message.end_time.FromNanoseconds(7200 * SECOND)
    message.state_time.FromNanoseconds(7190 * SECOND)
    for state, seconds in spent.items():
        span = message.history.add(state=STATES[state])
        span.end_time.FromNanoseconds(seconds * SECOND)
    job = job_info(message)
    client = SimpleNamespace(list_jobs=lambda **_: [job])
    verdict = judge(client, job, 1800.0).verdict
    assert not verdict.idle
    assert ("--servers takes it all the same" in verdict.evidence[0]) is named
    assert "idle for 10 s of" in judge(client, job, 1800.0, takes_servers=True).verdict.evidence[0]


def test_how_long_is_waited_is_the_same_before_and_after_the_time_that_is_asked_for():
    message = query_pb2.Job(job_id="4711", active=True, state=query_pb2.JOB_STATE_IDLE)
    message.end_time.FromNanoseconds(20_000 * SECOND)
    message.state_time.FromNanoseconds(19_000 * SECOND)
    message.longest_pause.FromNanoseconds(900 * SECOND)
    listed = job_info(message)
    # In most of that pause its processes worked, as the collector says where it is asked for them.
    message.longest_pause.FromNanoseconds(600 * SECOND)
    client = SimpleNamespace(list_jobs=lambda **_: [job_info(message)])
    (evidence,) = judge(client, listed, 1800.0).verdict.evidence
    assert evidence == "idle for 1000 s of 3600 s; it paused for 600 s before and went on"


def test_gpus_that_a_job_had_before_it_was_put_back_into_the_queue_say_nothing_of_it():
    message = query_pb2.Job(job_id="4711", active=True, state=query_pb2.JOB_STATE_IDLE)
    message.members.add(run_id="a", gpu_uuid="GPU-left", host_name="host-1")
    message.members.add(run_id="b", gpu_uuid="GPU-1", host_name="host-2", active=True)
    message.members.add(run_id="c", gpu_uuid="GPU-1", host_name="host-2", active=True)
    message.end_time.FromNanoseconds(9000 * SECOND)
    asked = []
    time_s = np.arange(7200.0, 9000.0)
    trace = Trace(time_s, {"gpu_utilization": np.zeros(time_s.size), "power_watts": np.full(time_s.size, 60.0)})
    client = SimpleNamespace(
        list_jobs=lambda **_: [job_info(message)], read_samples=lambda gpu, **_: asked.append(gpu) or trace
    )
    told = judge(client, job_info(message), 1800.0).payload()
    assert asked == told["gpu_uuids"] == ["GPU-1"]
    assert told["hosts"] == ["host-2"]


def test_a_host_that_a_job_has_left_is_judged_by_its_own_gpus_while_the_job_goes_on_elsewhere(monkeypatch):
    message = query_pb2.Job(job_id="4711", active=True, state=query_pb2.JOB_STATE_TRAINING)
    message.members.add(run_id="a", gpu_uuid="GPU-left", host_name="host-1")
    message.members.add(run_id="b", gpu_uuid="GPU-1", host_name="host-2", active=True)
    message.start_time.FromNanoseconds(1000 * SECOND)
    message.processes.CopyFrom(query_pb2.JobProcesses(processors=9.0, bytes_per_second=0.0))
    asked = []
    time_s = np.arange(7200.0, 9000.0)
    trace = Trace(time_s, {"gpu_utilization": np.zeros(time_s.size), "power_watts": np.full(time_s.size, 60.0)})
    run = SimpleNamespace(run_id="a", job_id="4711", gpu_uuid="GPU-left", host_name="host-1", end_unix_nano=SECOND)
    client = SimpleNamespace(
        list_jobs=lambda **_: [job_info(message)],
        list_runs=lambda **_: [run],
        read_samples=lambda gpu, **_: asked.append(gpu) or trace,
    )
    monkeypatch.setattr(time, "time_ns", lambda: 9000 * SECOND)
    (judged,), against = _judge_hosts(client, frozenset(["host-1"]), 1800.0, takes_servers=False)
    assert (judged.verdict.idle, against, asked) == (True, [], ["GPU-left"]), judged.verdict
