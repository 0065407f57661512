"""What the processes of a job did names the cycles of its run while it goes on: real jobs, sent as an agent would."""

import random
from pathlib import Path

import pytest
from support.job_records import IDLE_S, PERIOD_S, START, gpu_traces, records_of
from support.marked_jobs import marked_records
from support.tracked_store import TrackedStore

from gpusonde.collector.query.runs import list_epochs
from gpusonde.collector.tracking.remote import TrackerProcesses
from gpusonde.epoch_detect import detect, tracker
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.query.v1 import query_pb2
from gpusonde.service.wire import ActivityRecord

ROOT = Path(__file__).parents[2]
# Each names its cycles by another kind of mark: workers born anew, of an evaluation, bytes written, memory that falls.
KINDS = ("epochs", "evaluated every quarter", "saved every k steps", "folds")


@pytest.fixture(scope="module")
def recordings():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks" / "marks"))
        import real_jobs

        found = real_jobs.load_recordings(ROOT / "tests" / "data" / "marks" / "longer_jobs.json.gz")
    return {recording.kind: recording for recording in found}


@pytest.fixture(scope="module")
def processes():
    processes = TrackerProcesses(1)
    yield processes
    processes.close()


def told(subject):
    (run,) = subject.runs()
    tree = subject.results.tree(run.run_id)
    return repr(run), subject.results.epochs(run.run_id), tree


def roles(tree):
    return {round(cycle.period_s, 1): cycle.role for cycle in tree.cycles if cycle.role != "unknown"}


def offline_roles(recording):
    found = detect(recording.trace, marks=recording.marks)
    return {round(cycle.period_s, 1): str(cycle.role) for cycle in found.cycles if cycle.role != "unknown"}


@pytest.mark.parametrize("kind", KINDS)
def test_the_names_of_a_followed_run_are_those_of_its_recording_with_marks(tmp_path, recordings, kind):
    subject = TrackedStore(tmp_path / "data")
    subject.feed(marked_records(recordings[kind].trace, recordings[kind].marks), 10)
    _, _, tree = told(subject)
    assert roles(tree) == offline_roles(recordings[kind])
    assert roles(tree)
    subject.store.close()


def test_a_name_is_told_while_the_job_goes_on(tmp_path, recordings, monkeypatch):
    monkeypatch.setattr(tracker, "_FIRST_ANALYSIS_S", 20.0)  # the third look, after 115 s, is within these 143 s
    recording = recordings["epochs"]
    subject = TrackedStore(tmp_path / "data")
    records = marked_records(recording.trace, recording.marks)
    for first in range(0, len(records) - 1, 10):
        subject.feed(records[first : min(first + 10, len(records) - 1)], 10)
        # Marks name a level as soon as they can; lists tell it once it is confirmed.
        if subject.runs() and any(each.role == "epoch" and each.confirmed for each in told(subject)[2].cycles):
            break
    (run,) = subject.runs()
    assert not run.ended
    answer = list_epochs(subject.results, query_pb2.ListEpochsRequest(run_id=run.run_id))
    assert query_pb2.CYCLE_ROLE_EPOCH in {cycle.role for cycle in answer.cycles}
    subject.store.close()


@pytest.fixture(scope="module")
def folds(recordings, tmp_path_factory):
    """The records of a job of folds, and what is told of it where nothing is restarted."""
    records = marked_records(recordings["folds"].trace, recordings["folds"].marks)
    calm = TrackedStore(tmp_path_factory.mktemp("calm") / "data")
    calm.feed(records, 20)
    found = told(calm)
    calm.store.close()
    return records, found


@pytest.mark.parametrize("seed", range(4))
def test_restarts_at_any_moment_leave_no_trace_in_the_names(tmp_path, folds, processes, seed):
    records, calm = folds
    chance = random.Random(seed)
    more = {"make_tracker": processes.make} if seed % 2 else {}
    subject = TrackedStore(tmp_path / "restarted", state_interval_s=chance.choice([1.0, 7.0]), **more)
    if seed % 2:
        subject.restore_tracker = processes.restore
    first = 0
    while first < len(records):
        count = chance.randint(1, 60)
        subject.feed(records[first : first + count], chance.randint(1, 12))
        first += count
        if chance.random() < 0.3:
            subject.store.flush()
        if chance.random() < 0.6:
            subject.pipeline.finish()
        subject.restart()
    subject.pipeline.round()
    assert told(subject) == calm
    assert set(roles(calm[2]).values()) == {"epoch", "trial"}
    subject.store.close()


def test_a_backlog_gives_the_names_of_a_live_stream(tmp_path, recordings):
    recording = recordings["folds"]
    records = marked_records(recording.trace, recording.marks)
    live, backlog = TrackedStore(tmp_path / "live"), TrackedStore(tmp_path / "backlog")
    live.feed(records, 10)
    backlog.store.samples.append(records)
    backlog.store.flush()
    backlog.restart()
    backlog.pipeline.round()
    assert told(backlog) == told(live)
    for each in (live, backlog):
        each.store.close()


def test_looks_at_a_gpu_without_ticks_begin_no_run_and_harm_no_other(tmp_path, recordings):
    recording = recordings["epochs"]
    records = marked_records(recording.trace, recording.marks)
    plain = TrackedStore(tmp_path / "plain")
    plain.feed(records, 10)
    subject = TrackedStore(tmp_path / "strange")
    strange = marked_records(recording.trace, recording.marks, agent_id="agent-2", gpu="GPU-9")
    subject.store.samples.append([record for record in strange if isinstance(record.decoded, ActivityRecord)])
    subject.feed(records, 10)
    assert told(subject)[1:] == told(plain)[1:]
    for each in (plain, subject):
        each.store.close()


def workers_of(gpus, seconds):
    """Two workers that live from epoch to epoch, looked at once a second, thirty looks to a message."""
    messages = {}
    for first in range(0, seconds - 30, 30):
        looks = range(first, first + 30)
        born = [2 * (second >= IDLE_S and (second - IDLE_S) % PERIOD_S == 0) for second in looks]
        ended = [2 * (second > IDLE_S and (second - IDLE_S) % PERIOD_S == 0) for second in looks]
        group = ingest_pb2.ProcessGroupActivity(
            gpu_uuids=gpus, forks=born, exits=ended, lifetime_ms=[round(1e3 * PERIOD_S) * count for count in ended]
        )
        messages[first + 29] = ingest_pb2.JobActivity(
            start_time_unix_nano=START + first * 10**9, offsets_ms=range(0, 30_000, 1000), groups=[group]
        )
    return messages


@pytest.mark.parametrize("seed", range(2))
def test_the_gpus_of_a_job_have_its_names_and_restarts_leave_no_trace(tmp_path, seed):
    traces = gpu_traces(3)
    seconds = len(traces["GPU-0"]) // 10
    records = records_of(traces, activity=workers_of(list(traces), seconds), bound_after_s=18.0)
    calm, subject = TrackedStore(tmp_path / "calm"), TrackedStore(tmp_path / "restarted", state_interval_s=7.0)
    calm.feed(records, 5)
    chance, first = random.Random(seed), 0
    while first < len(records):
        count = chance.randint(1, 60)
        subject.feed(records[first : first + count], chance.randint(1, 12))
        first += count
        if chance.random() < 0.6:
            subject.pipeline.finish()
        subject.restart()
    for each in (calm, subject):
        for _ in range(4):
            each.pipeline.round()

    def outcome(tracked):
        return {
            run.gpu_uuid: (repr(run), tracked.results.epochs(run.run_id), tracked.results.tree(run.run_id))
            for run in tracked.runs()
        }

    assert outcome(subject) == outcome(calm)
    trees = {tree for _, _, tree in outcome(calm).values()}
    (tree,) = trees
    assert "epoch" in {cycle.role for cycle in tree.cycles if abs(cycle.period_s / PERIOD_S - 1) < 0.05}
    for each in (calm, subject):
        each.store.close()
