"""Trackers in other processes: the same epochs, and a process that dies costs time only."""

import os
import random
import signal
from pathlib import Path

import numpy as np
import pytest
from support.job_records import gpu_traces, records_of
from support.running_collector import ProcessCollector
from support.trace_records import incoming, trace_records
from support.tracked_store import TrackedStore
from support.wire_agent import WireStream, hello, wait_until

from gpusonde.collector.tracking.remote import TrackerProcesses
from gpusonde.epoch_detect import EpochTracker
from gpusonde.errors import ChildFaultError, ChildLostError
from gpusonde.telemetry import read_trace

DEMO_TRACE = Path(__file__).parents[1] / "data" / "demo_trace.parquet"


@pytest.fixture(scope="module")
def trace():
    return read_trace(DEMO_TRACE)


@pytest.fixture
def processes():
    processes = TrackerProcesses(2)
    yield processes
    processes.close()


def pieces(trace, seed=0):
    chance = random.Random(seed)
    values = np.array([trace.values[name] for name in trace.metrics])
    first = 0
    while first < len(trace):
        stop = first + chance.randint(1, 40)
        yield trace.time_s[first:stop], values[:, first:stop]
        first = stop


def trackers_of(pid):
    children = Path(f"/proc/{pid}/task").glob("*/children")
    return [child for file in children for child in file.read_text().split()]


def process_of(tracker):
    return tracker._process.pid


def test_a_remote_tracker_finds_what_a_local_one_finds(processes, trace):
    local, remote = EpochTracker(trace.metrics), processes.make(trace.metrics)
    here, there = [], []
    for time_s, values in pieces(trace):
        here += local.update(time_s, values)
        there += remote.update(time_s, values)
    here += local.finish()
    there += remote.finish()
    assert there == here
    assert remote.epochs == local.epochs
    assert remote.detection.reason == local.detection.reason
    assert remote.shares() == local.shares()


def test_the_state_of_a_remote_tracker_is_that_of_a_local_one(processes, trace):
    local, remote = EpochTracker(trace.metrics), processes.make(trace.metrics)
    for time_s, values in list(pieces(trace))[:40]:
        local.update(time_s, values)
        remote.update(time_s, values)
    state = remote.state()
    assert state == local.state()
    again = processes.restore(state)
    assert again.epochs == local.epochs
    assert again.state() == state


def test_a_look_is_finished_though_no_more_ticks_come(processes, trace):
    local, remote = EpochTracker(trace.metrics), processes.make(trace.metrics)
    for time_s, values in pieces(trace.window(0, trace.time_s[0] + 28.1)):
        local.update(time_s, values)
        remote.update(time_s, values)
    assert local.detection is None
    local.finish_look()
    remote.finish_look()
    remote.settle()
    assert local.detection is not None
    assert remote.detection.reason == local.detection.reason


def test_bytes_that_are_no_state_are_refused_and_harm_no_other_tracker(processes, trace):
    other = processes.make(trace.metrics)
    for _ in range(2):
        with pytest.raises(ChildFaultError, match="not a stored tracker state"):
            processes.restore(b"nothing")
    assert other.finish() == []


def test_the_end_of_a_process_is_told_and_the_next_tracker_starts_another(processes, trace):
    trackers = [processes.make(trace.metrics) for _ in range(2)]
    os.kill(process_of(trackers[0]), signal.SIGKILL)
    with pytest.raises(ChildLostError):
        trackers[0].finish()
    assert trackers[1].finish() == []
    later = [processes.make(trace.metrics) for _ in range(2)]
    assert [tracker.finish() for tracker in later] == [[], []]
    assert process_of(later[0]) != process_of(trackers[0])


def test_processes_killed_at_any_moment_leave_no_trace_in_runs_and_epochs(tmp_path, processes, trace):
    records = incoming(trace_records(trace))
    calm = TrackedStore(tmp_path / "calm")
    calm.feed(records, 5)
    subject = TrackedStore(tmp_path / "killed", make_tracker=processes.make, state_interval_s=7.0)
    subject.restore_tracker = processes.restore
    chance = random.Random(1)
    first = 0
    while first < len(records):
        subject.feed(records[first : first + 30], 5)
        first += 30
        for process in processes._processes:
            if process and process.is_alive and chance.random() < 0.4:
                os.kill(process.pid, signal.SIGKILL)
                wait_until(lambda process=process: not process.is_alive, 120, "its end")
    for _ in range(10):
        subject.pipeline.notify(frozenset((gpu.agent_id, gpu.gpu_uuid) for gpu in subject.store.facts.gpus()))
        subject.pipeline.round()
    (run,), (expected,) = subject.runs(), calm.runs()
    assert repr(run) == repr(expected)
    assert subject.results.epochs(run.run_id) == calm.results.epochs(expected.run_id)


def test_processes_killed_at_any_moment_leave_no_trace_in_the_runs_of_a_job(tmp_path, processes):
    records = records_of(gpu_traces(3))
    calm = TrackedStore(tmp_path / "calm")
    calm.feed(records, 20)
    subject = TrackedStore(tmp_path / "killed", make_tracker=processes.make, state_interval_s=7.0)
    subject.restore_tracker = processes.restore
    chance = random.Random(4)
    for first in range(0, len(records), 20):
        subject.feed(records[first : first + 20], 10)
        for process in processes._processes:
            if process and process.is_alive and chance.random() < 0.4:
                os.kill(process.pid, signal.SIGKILL)
                wait_until(lambda process=process: not process.is_alive, 120, "its end")
    for _ in range(10):
        subject.pipeline.notify(frozenset((gpu.agent_id, gpu.gpu_uuid) for gpu in subject.store.facts.gpus()))
        subject.pipeline.round()
    assert outcomes(subject) == outcomes(calm)
    assert {run.ended for run in subject.runs()} == {True}
    for each in (calm, subject):
        each.store.close()


def outcomes(subject):
    return {run.gpu_uuid: (repr(run), subject.results.epochs(run.run_id)) for run in subject.runs()}


def test_no_process_outlives_a_collector_that_was_killed(tmp_path, trace):
    with ProcessCollector(tmp_path / "data", runs__processes="1") as collector:
        with WireStream(collector.target, hello()) as stream:
            stream.greet()
            stream.send(*trace_records(trace, end=False))
            found = wait_until(lambda: trackers_of(collector.pid), 120, "a process of trackers")
        collector.kill()
        wait_until(lambda: not any(Path(f"/proc/{pid}/cwd").exists() for pid in found), 120, "its end")
