"""Why a job became slower, and who drags it: asked of its ticks in the store, once its cycles take longer."""

from dataclasses import replace

import numpy as np
import pytest
from support.job_records import START, records_of
from support.tracked_store import TrackedStore

from gpusonde.collector.query import slow_jobs as slow_jobs_module
from gpusonde.collector.query.jobs import JobView, list_jobs
from gpusonde.collector.query.slow_jobs import SlowJobs
from gpusonde.query.v1 import query_pb2
from gpusonde.telemetry import Trace

GPUS = tuple(f"GPU-{i}" for i in range(4))
STEP_S, SLOWER, SLOW_FROM_S, END_S = 6.0, 0.1, 360.0, 480.0


def traces(slow, without_power=(), ahead_s=0.0):
    """Steps that end in a pause of a tenth; from 360 s on all wait for one GPU, whose clock may be ahead, or a link."""
    time_s = np.arange(0.0, END_S, 0.1)
    found = {}
    for i, gpu in enumerate(GPUS):
        true_s = time_s - ahead_s * (i == slow)
        late = true_s >= SLOW_FROM_S
        place = np.where(late, (true_s - SLOW_FROM_S) % (STEP_S * (1 + SLOWER)), true_s % STEP_S)
        waits = (place > 0.9 * STEP_S) & ~(late & (i == slow) & (place < STEP_S * (0.9 + SLOWER)))
        noise = np.random.default_rng(i).normal(0, 0.01, time_s.size)
        power, dram = np.where(waits, 150.0, 500.0 + 5 * i) * (1 + noise), np.where(waits, 0.02, 0.7) * (1 + noise)
        if gpu in without_power:
            power[:] = np.nan
        found[gpu] = Trace(time_s, {"dram_active": dram, "power_watts": power})
    return found


@pytest.fixture
def store_of(tmp_path):
    subjects = []

    def make(slow, without_power=(), ahead_s=0.0):
        subjects.append(TrackedStore(tmp_path / "data"))
        subjects[-1].feed(records_of(traces(slow, without_power, ahead_s))[:-1], 10)
        return subjects[-1].store

    yield make
    for subject in subjects:
        subject.store.close()


def asked(store):
    jobs = list_jobs(store, query_pb2.ListJobsRequest(active_only=True), view=JobView(SlowJobs(store)))
    return jobs.jobs[0]


def test_a_job_is_slower_since_its_steps_take_longer_and_the_gpu_that_does_not_wait_is_named(store_of):
    job = asked(store_of(slow=2))
    assert job.state == query_pb2.JOB_STATE_SLOWER
    assert job.state_time.ToNanoseconds() == pytest.approx(START + SLOW_FROM_S * 1e9, abs=2 * STEP_S * 1e9)
    assert "10 % longer than the 6 s before" in job.reason
    assert "drags: " in job.reason
    first = job.slow_devices[0]
    assert (first.gpu_uuid, first.agent_id) == ("GPU-2", "agent-1")
    assert first.probability > 0.9
    assert "as if it did not wait" in first.evidence


def test_where_all_wait_alike_nobody_drags_the_job(store_of):
    job = asked(store_of(slow=None))
    assert job.state == query_pb2.JOB_STATE_SLOWER
    assert not job.slow_devices
    assert "drags" not in job.reason
    assert "the GPUs pause in" in job.reason


def test_what_was_found_is_remembered_until_more_of_the_job_is_known(store_of):
    store = store_of(slow=2)
    slow_jobs = SlowJobs(store)
    runs = [run for run in store.results.runs(limit=9) if not run.ended]
    since = START + round(SLOW_FROM_S * 1e9)
    found = slow_jobs.explain("job-1", runs, {}, since)
    assert found.devices[0].gpu_uuid == "GPU-2"
    assert slow_jobs.explain("job-1", runs, {}, since) is found
    # Nothing is known of a moment ago.
    assert slow_jobs.explain("job-2", runs, {}, START + round(END_S * 1e9) - 1).reason == ""


def test_a_host_that_gives_no_power_is_left_as_it_is_and_the_others_are_compared(store_of):
    store = store_of(slow=2, without_power=("GPU-0",))
    runs = [replace(run, agent_id=f"host of {run.gpu_uuid}") for run in store.results.runs(limit=9) if not run.ended]
    assert len(runs) == len(GPUS)
    found = SlowJobs(store).explain("job-1", runs, {}, START + round(SLOW_FROM_S * 1e9))
    assert (found.devices[0].gpu_uuid, found.devices[0].agent_id) == ("GPU-2", "host of GPU-2")


def test_a_host_whose_clock_is_ahead_is_compared_over_the_newest_seconds_as_well(store_of):
    store, since = store_of(slow=2, ahead_s=14.0), START + round(SLOW_FROM_S * 1e9)
    runs = [
        replace(run, agent_id=f"host of {run.gpu_uuid}", end_unix_nano=since + round(45e9))
        for run in store.results.runs(limit=9) if not run.ended
    ]  # fmt: skip
    assert SlowJobs(store).explain("job-1", runs, {}, since).devices[0].gpu_uuid == "GPU-2"


def test_a_host_that_has_fallen_silent_delays_the_answer_for_nobody(store_of):
    store = store_of(slow=2)
    since = START + round(SLOW_FROM_S * 1e9)
    runs = [run for run in store.results.runs(limit=9) if not run.ended]
    silent = [replace(run, end_unix_nano=since - 1) if run.gpu_uuid == "GPU-0" else run for run in runs]
    assert SlowJobs(store).explain("job-1", silent, {}, since).devices[0].gpu_uuid == "GPU-2"


def test_what_was_found_of_a_job_is_not_said_of_another_scheduler_s_job_of_the_name(store_of):
    store = store_of(slow=2)
    slow_jobs, since = SlowJobs(store), START + round(SLOW_FROM_S * 1e9)
    runs = [run for run in store.results.runs(limit=9) if not run.ended]
    assert slow_jobs.explain("job-1", runs, {}, since).devices
    others = [replace(run, scheduler=run.scheduler + 1) for run in runs[:1]]
    assert not slow_jobs.explain("job-1", others, {}, since).devices


def test_the_job_s_shortest_cycle_says_which_pauses_belong_to_it(store_of, monkeypatch):
    given = []
    find = slow_jobs_module.find_slow_device
    monkeypatch.setattr(
        slow_jobs_module,
        "find_slow_device",
        lambda *each, cycle_s: given.append(cycle_s) or find(*each, cycle_s=cycle_s),
    )
    asked(store_of(slow=2))
    assert given == [pytest.approx(STEP_S, rel=SLOWER)]


@pytest.mark.parametrize(("cycle_s", "ticks"), [(6, 6), (50, 32)])
@pytest.mark.parametrize("hosts", [("b", "b"), ("b", "c")])
def test_hosts_whose_clocks_are_seconds_apart_are_shifted_to_the_others_be_they_two_or_three(hosts, cycle_s, ticks):
    time_s = np.arange(0.0, 240.0, 0.5)
    watts = np.where(time_s % cycle_s < 0.8 * cycle_s, 500.0, 150.0) * np.linspace(1.0, 1.2, time_s.size)
    late = np.concatenate((np.full(ticks, 500.0), watts[:-ticks]))
    values = {"power_watts": np.array([watts, *[late if host == "b" else watts for host in hosts]])}
    slow_jobs_module._align(values, np.array(["a", *hosts]), time_s)
    inside = slice(40, -40)
    for row in values["power_watts"]:
        assert row[inside] == pytest.approx(values["power_watts"][0][inside])
