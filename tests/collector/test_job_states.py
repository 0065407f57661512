"""What a job does is watched while its ticks are followed: all GPUs together, over restarts and backlogs alike."""

import json

import numpy as np
import pytest
from support.epoch_traces import training_trace
from support.job_records import START, binding, gpu_traces, records_of
from support.trace_records import incoming
from support.tracked_store import TrackedStore

from gpusonde.collector.query.jobs import list_jobs
from gpusonde.collector.storage.samples import Samples
from gpusonde.collector.tracking.states import JobStates
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.query.v1 import query_pb2
from gpusonde.service.wire import JobActivity
from gpusonde.telemetry import Trace

SECOND = 1_000_000_000


def stuck(trace, from_s, dram=0.0, watts=55.0):
    """The same trace whose work stops for good."""
    after = trace.time_s >= from_s
    values = {"dram_active": dram, "power_watts": watts}
    return Trace(trace.time_s, {name: np.where(after, values[name], row) for name, row in trace.values.items()})


def told(subject, **request):
    """The states of the one job, with when they begin, and the one of now."""
    (job,) = list_jobs(subject.store, query_pb2.ListJobsRequest(**request)).jobs
    name = query_pb2.JobState.Name
    spans = [(round((s.start_time.ToNanoseconds() - START) / 1e9), name(s.state)[10:].lower()) for s in job.history]
    now = (round((job.state_time.ToNanoseconds() - START) / 1e9), name(job.state)[10:].lower())
    return spans, now, job


@pytest.fixture
def setup(tmp_path):
    subjects = []

    def make(name="data"):
        subjects.append(TrackedStore(tmp_path / name))
        return subjects[-1]

    yield make
    for subject in subjects:
        subject.store.close()


@pytest.fixture(scope="module")
def job():
    """Records of four GPUs of one job, the last one, the end of their source, left out."""
    return records_of(gpu_traces(4))[:-1]


def test_a_job_is_seen_to_start_to_train_and_to_end(setup, job):
    subject = setup()
    subject.feed(job, 5)
    spans, now, found = told(subject)
    # Ticks shortly before its first activity belong to a run.
    assert spans[0] == (5, "starting")
    assert "training" in {name for _, name in spans}
    assert now[1] in ("training", "evaluating", "idle")
    assert found.goodput_ratio > 0.8
    assert {len(subject.results.states([run.run_id])) for run in subject.runs()} == {0, 1}


def test_a_backlog_read_at_once_tells_the_same_as_a_live_stream(setup, job):
    live, late = setup("live"), setup("late")
    live.feed(job, 5)
    late.feed(job, len(job))
    assert told(late)[0] == told(live)[0]


def test_a_restart_in_the_middle_leaves_no_trace(setup, job):
    whole, cut = setup("whole"), setup("cut")
    whole.feed(job, 5)
    cut.feed(job[:100], 5)
    cut.pipeline.finish()
    cut.restart()
    cut.feed(job[100:], 5)
    assert told(cut)[0] == told(whole)[0]


def test_the_state_of_a_restart_without_what_it_knew_is_that_of_reading_the_run_again(setup, job):
    whole, cut = setup("whole"), setup("cut")
    whole.feed(job, 5)
    cut.feed(job[:100], 5)
    cut.restart()
    cut.feed(job[100:], 5)
    assert told(cut)[0] == told(whole)[0]


def test_a_job_that_stops_working_stalls_and_is_told_since_when(setup):
    traces = {gpu: stuck(training_trace(20.0, 14, seed=i)[0], 150.0) for i, gpu in enumerate(("GPU-0", "GPU-1"))}
    subject = setup()
    subject.feed(records_of(traces)[:-1], 5)
    _, (since_s, state), found = told(subject)
    assert state in ("stalled", "hung")
    assert since_s == pytest.approx(150, abs=5)
    assert "of its range for" in found.reason


def test_a_job_of_which_one_gpu_trains_and_another_rests_is_training_and_not_unknown(setup):
    trains = training_trace(12.0, 150, seed=0)[0]
    traces = {"GPU-0": trains, "GPU-1": stuck(training_trace(12.0, 150, seed=1)[0], 75.0)}
    subject = setup()
    subject.feed(records_of(traces)[:-1], 20)
    spans, now, _ = told(subject)
    names = {name for _, name in [*spans, now]}
    assert "training" in names
    assert names <= {"starting", "training", "evaluating", "idle"}


def test_runs_without_a_job_are_watched_one_by_one(setup):
    traces = {
        "GPU-0": training_trace(20.0, 14, seed=0)[0],
        "GPU-1": stuck(training_trace(20.0, 14, seed=1)[0], 150.0),
    }
    subject = setup()
    subject.feed(records_of(traces, [binding(gpu, "uid-1000", scheduler=6) for gpu in traces])[:-1], 5)
    jobs = list_jobs(subject.store, query_pb2.ListJobsRequest()).jobs
    states = {each.members[0].gpu_uuid: query_pb2.JobState.Name(each.state) for each in jobs}
    assert states["GPU-1"] in ("JOB_STATE_STALLED", "JOB_STATE_HUNG")
    assert states["GPU-0"] not in ("JOB_STATE_STALLED", "JOB_STATE_HUNG", "JOB_STATE_UNKNOWN")


def test_a_gpu_that_falls_silent_does_not_hold_up_what_is_told_of_its_job(setup):
    traces = gpu_traces(2)
    records = records_of(traces)[:-1]
    half = len(records) // 2
    for record in records[half:]:
        assert len(record.decoded.blocks) == 2
    subject = setup()
    subject.feed(records[:half], 5)
    # From here on only the first GPU gives ticks.
    short = records_of({"GPU-0": traces["GPU-0"]})[half:-1]
    subject.feed(short, 5)
    spans, now, _ = told(subject)
    assert max(now[0], spans[-1][0]) > half


def written(records, from_s, to_s, bytes_per_s):
    """The same records with looks at the job's processes, of which those of some seconds wrote."""
    told = []
    for record in (each.entry.payload for each in records):
        told.append(ingest_pb2.Record.FromString(record))
        if not told[-1].HasField("batch"):
            continue
        at_ns = told[-1].batch.blocks[0].start_time_unix_nano + SECOND
        writes = from_s <= (at_ns - START) / SECOND < to_s
        group = ingest_pb2.ProcessGroupActivity(
            gpu_uuids=["GPU-0"],
            forks=[0],
            exits=[0],
            lifetime_ms=[0],
            read_bytes=[0],
            written_bytes=[round(bytes_per_s) if writes else 0],
            processor_ms=[900],
        )
        activity = ingest_pb2.JobActivity(start_time_unix_nano=at_ns, offsets_ms=[0], groups=[group])
        told.append(ingest_pb2.Record(job_activity=activity))
    for sequence, record in enumerate(told, start=1):
        record.sequence = sequence
    return incoming(told, "agent-1")


def test_a_pause_in_which_the_job_writes_is_a_checkpoint_however_long_it_takes(setup):
    paused = stuck(training_trace(20.0, 14, seed=0)[0], 150.0)
    records = records_of({"GPU-0": paused})[:-1]
    subject = setup()
    subject.feed(written(records, 150.0, 1e9, 5e8), 5)
    _, (since_s, state), found = told(subject)
    assert state == "checkpointing"
    assert since_s == pytest.approx(150, abs=5)
    assert "500 MB/s are written" in found.reason


def test_a_job_whose_cycles_take_longer_is_slower_and_says_by_how_much(setup):
    fast, slow = training_trace(20.0, 10, seed=0)[0], training_trace(26.0, 14, seed=1)[0]
    # Without the idle time around each of the two.
    fast, slow = fast.window(0, 215.0), slow.window(15.0, 370.0)
    whole = Trace(
        np.concatenate([fast.time_s, slow.time_s - slow.time_s[0] + fast.time_s[-1] + 0.1]),
        {name: np.concatenate([fast.values[name], slow.values[name]]) for name in fast.values},
    )
    subject = setup()
    subject.feed(records_of({"GPU-0": whole})[:-1], 5)
    spans, now, found = told(subject)
    assert "slower" in {name for _, name in [*spans, now]}
    reasons = [row.reason for run in subject.runs() for row in subject.results.states([run.run_id]).get(run.run_id, [])]
    assert any("30 % longer than the 20 s before" in reason for reason in reasons), reasons
    assert found.active


def seconds_of(start_s, watts, use):
    """Ticks of one GPU, ten a second, each second with its own power and use."""
    time = START + start_s * SECOND + np.arange(10 * len(watts)) * SECOND // 10
    columns = {"power_watts": np.repeat(watts, 10), "gpu_utilization": np.repeat(use, 10)}
    zeros = np.zeros(time.size, dtype=np.int64)
    return Samples(time, zeros, zeros, zeros, columns)


def test_what_a_gpu_draws_at_rest_in_one_job_is_known_to_the_next_one_on_it():
    states = JobStates()
    for begin in range(0, 60, 4):
        resting = begin < 20
        states.take(
            ("one",), "GPU-0", seconds_of(begin, [60.0 if resting else 400.0] * 4, [0.0 if resting else 0.9] * 4)
        )
        states.settle(("one",))
    states.end(("one",), "GPU-0", leads=True)
    states.take(("two",), "GPU-0", seconds_of(80, [400.0] * 4, [0.9] * 4))
    states.take(("three",), "GPU-1", seconds_of(80, [400.0] * 4, [0.9] * 4))
    idle = [json.loads(states.state((name,)).split(" ", 2)[2])["scalars"]["_idle_watts"] for name in ("two", "three")]
    assert idle == [60.0, float("inf")]


def test_ticks_that_come_one_second_at_a_time_lead_to_the_states_of_those_that_come_together():
    watts, use = [60.0] * 20 + [400.0] * 100 + [60.0] * 80, [0.0] * 20 + [0.9] * 100 + [0.0] * 80
    told = []
    for step in (1, 7):
        states, rows = JobStates(), {}
        for begin in range(0, 200, step):
            part = slice(begin, begin + step)
            states.take(("job",), "GPU-0", seconds_of(begin, watts[part], use[part]))
            states.settle(("job",))
            rows |= {row.start_unix_nano: row.state for row in states.news(("job",))}
        rows |= {row.start_unix_nano: row.state for row in states.end(("job",), "GPU-0", leads=True)}
        told.append([(start, state) for start, state in sorted(rows.items()) if state])
    assert told[0] == told[1]
    assert [state for _, state in told[0]][:2] == ["starting", "training"]


def test_kernels_that_compute_nothing_are_no_work_in_the_collector_either():
    states, told = JobStates(), {}
    for begin in range(0, 200, 4):
        works, spins = 20 <= begin < 120, begin >= 120
        of_gpu = seconds_of(begin, [60.0 if begin < 20 else 400.0] * 4, [0.0 if begin < 20 else 1.0] * 4)
        shares = {"sm_active": 0.9 if works else 0.02 * spins, "tensor_active": 0.5 * works, "dram_active": 0.4 * works}
        of_gpu.columns.update((name, np.full(len(of_gpu), float(share))) for name, share in shares.items())
        for gpu in ("GPU-0", "GPU-1"):
            states.take(("job",), gpu, of_gpu)
        states.settle(("job",))
        told |= {row.start_unix_nano: row for row in states.news(("job",))}
    last = max((row for row in told.values() if row.state), key=lambda row: row.start_unix_nano)
    assert (last.state, round((last.start_unix_nano - START) / SECOND)) == ("hung", pytest.approx(120, abs=4))
    assert "none computes" in last.reason


@pytest.mark.parametrize("step", [4, 4.3])
def test_steps_that_come_to_wait_for_their_data_are_no_evaluation_of_a_job_that_a_collector_follows(step):
    states, rows, time_s = JobStates(), {}, np.arange(0, 300, 0.1)
    works = np.where(time_s < 150, 1.0, (time_s - 150) % 0.7 < 0.5) * (time_s >= 20)
    watts = (60.0 + 340.0 * works) * np.exp(np.random.default_rng(0).normal(0, 0.01, time_s.size))
    for begin in np.arange(0, 300, step):
        of_record = (time_s >= begin - 1e-6) & (time_s < begin + step - 1e-6)
        time, zeros = (
            START + np.rint(time_s[of_record] * 1e9).astype(np.int64),
            np.zeros(of_record.sum(), dtype=np.int64),
        )
        columns = {"power_watts": watts[of_record], "gpu_utilization": works[of_record]}
        states.take(("job",), "GPU-0", Samples(time, zeros, zeros, zeros, columns))
        states.settle(("job",))
        rows |= {row.start_unix_nano: row.state for row in states.news(("job",))}
    assert [state for _, state in sorted(rows.items()) if state] == ["starting", "training"]


def followed(rests_with, alive):
    """States of a job that trains and stops, a second at a time, and of whose processes agents tell twice a minute."""
    states, rows, looks = JobStates(), {}, []
    for second in range(320):
        works = 20 <= second < 200
        states.take(("job",), "GPU-0", seconds_of(second, [400.0 if works else 60.0], [0.9 if works else 0.0]))
        states.settle(("job",))
        looks.append([0.0, 4.0] if second < 200 else rests_with)
        if len(looks) == 30:
            values = np.zeros((6, 30))
            values[4:] = np.array(looks).T
            times = START + np.arange(second - 29, second + 1) * SECOND
            count = alive(second - 30)
            states.note_activity(("job",), JobActivity(("GPU-0",), times, values, b"", holders=count, processes=count))
            looks.clear()
        rows |= {row.start_unix_nano: row for row in states.news(("job",))}
    rows |= {row.start_unix_nano: row for row in states.end(("job",), "GPU-0", leads=True)}
    return [
        (round((start - START) / SECOND), row.state, row.reason) for start, row in sorted(rows.items()) if row.state
    ]


def test_what_agents_tell_twice_a_minute_holds_until_they_tell_more():
    *_, saves = followed([3e8, 0.5], lambda _: 8)
    assert saves[1] == "checkpointing"
    assert saves[0] == pytest.approx(200, abs=4)
    *_, last = followed([0.0, 0.01], lambda _: 8)
    assert last[1] == "idle", "one GPU whose processes rest may be somebody who thinks"


def test_a_job_whose_processes_are_all_gone_has_ended():
    *_, last = followed([0.0, 0.0], lambda second: 8 if second < 200 else 0)
    assert last[1:] == ("ended", "no process of the job is left")
    assert last[0] == pytest.approx(200, abs=4)


def test_a_job_that_works_on_processors_while_none_of_them_is_on_its_gpus_has_not_ended():
    none_on_gpus = JobActivity(("GPU-0",), np.array([START]), np.zeros((6, 1)), b"", holders=0, processes=3)
    assert none_on_gpus.alive is None


def test_one_of_eight_processes_that_is_gone_is_a_hang():
    *_, last = followed([0.0, 7.0], lambda second: 8 if second < 200 else 7)
    assert last[1] == "hung"
    assert "1 of 8 processes are gone" in last[2]
