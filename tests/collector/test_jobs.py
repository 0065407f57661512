"""The GPUs of one job are tracked as one: one tracker, one answer, and GPUs that do otherwise are named."""

import random

import numpy as np
import pytest
from support.epoch_traces import training_trace
from support.job_records import (
    EPOCHS,
    PERIOD_S,
    START,
    binding,
    gpu_traces,
    idle_outside,
    records_of,
    shifted,
)
from support.tracked_store import TrackedStore

from gpusonde.collector.query.runs import list_epochs
from gpusonde.common.v1 import job_pb2
from gpusonde.epoch_detect import EpochTracker
from gpusonde.query.v1 import query_pb2
from gpusonde.telemetry import Trace


class CountingTracker(EpochTracker):
    """Counts the ticks that all of them get."""

    ticks = 0

    def update(self, time_s, values, *, exhaustive=True):
        type(self).ticks += len(time_s)
        return super().update(time_s, values, exhaustive=exhaustive)


def confirmed(subject, run):
    return [
        (round((e.start_unix_nano - START) / 1e9, 6), round((e.end_unix_nano - START) / 1e9, 6))
        for e in subject.results.epochs(run.run_id)
        if e.status == "confirmed"
    ]


def outcome(subject):
    return {
        run.gpu_uuid: (repr(run), subject.results.epochs(run.run_id), subject.results.tree(run.run_id))
        for run in subject.runs()
    }


def test_eight_gpus_of_a_job_are_followed_by_one_tracker_and_have_one_answer(setup, monkeypatch):
    monkeypatch.setattr(CountingTracker, "ticks", 0)
    traces = gpu_traces(8)
    subject = setup(make_tracker=CountingTracker)
    subject.feed(records_of(traces), 20)
    subject.pipeline.round()
    runs = subject.runs()
    assert {run.gpu_uuid for run in runs} == set(traces)
    (answer,) = {(run.verdict, run.period_s, run.epoch_count, *confirmed(subject, run)) for run in runs}
    assert answer[:1] == ("epochs",)
    assert answer[1] == pytest.approx(PERIOD_S, rel=0.01)
    assert answer[2] == EPOCHS
    assert len({subject.results.tree(run.run_id) for run in runs}) == 1
    assert CountingTracker.ticks <= 1.3 * len(traces["GPU-0"])


def test_ticks_of_a_job_wait_for_its_other_gpus_for_four_seconds(setup, monkeypatch):
    monkeypatch.setattr(CountingTracker, "ticks", 0)
    traces = gpu_traces(2)
    subject = setup(make_tracker=CountingTracker)
    records, behind = records_of(traces), []
    for second in range(60):
        subject.feed(records[second : second + 1], 1)
        behind.append(second - CountingTracker.ticks / 10)
    # The idle time before a run is not all its tracker's.
    assert max(behind[30:]) - min(behind[30:]) <= 4.0


def test_what_is_found_is_that_of_the_mean_of_the_gpus(setup):
    quiet = training_trace(PERIOD_S, EPOCHS)[0]
    rng = np.random.default_rng(5)
    noisy = {
        f"GPU-{i}": Trace(
            quiet.time_s,
            {
                "dram_active": (quiet.values["dram_active"] + rng.normal(0, 0.15, len(quiet))).clip(0, 1)
                * (quiet.values["dram_active"] > 0),
                "power_watts": quiet.values["power_watts"] + rng.normal(0, 60, len(quiet)),
            },
        )
        for i in range(8)
    }
    subject = setup()
    subject.feed(records_of(noisy), 20)
    subject.pipeline.round()
    alone = TrackedStore(subject.store.layout.directory.parent / "alone")
    alone.feed(records_of({"GPU-0": noisy["GPU-0"]}), 20)
    errors = [
        np.abs(np.diff([start for start, _ in confirmed(each, each.runs()[0])]) - PERIOD_S).max(initial=0)
        for each in (subject, alone)
    ]
    assert {run.epoch_count for run in subject.runs()} == {EPOCHS}
    assert errors[0] <= errors[1] or alone.runs()[0].epoch_count != EPOCHS
    alone.store.close()


@pytest.mark.parametrize("scheduler", [job_pb2.SCHEDULER_SYSTEMD, job_pb2.SCHEDULER_USER])
def test_gpus_of_a_unit_or_a_user_are_tracked_one_by_one(setup, scheduler):
    traces = {"GPU-0": training_trace(20.0, 8, seed=1)[0], "GPU-1": training_trace(16.0, 10, seed=2)[0]}
    subject = setup()
    subject.feed(records_of(traces, [binding(gpu, scheduler=scheduler) for gpu in traces]), 20)
    subject.pipeline.round()
    periods = {run.gpu_uuid: run.period_s for run in subject.runs()}
    assert periods == {"GPU-0": pytest.approx(20.0, rel=0.02), "GPU-1": pytest.approx(16.0, rel=0.02)}


def test_two_jobs_on_one_host_have_an_answer_each(setup):
    traces = {
        "GPU-0": training_trace(20.0, 8, seed=1)[0],
        "GPU-1": training_trace(16.0, 10, seed=2)[0],
        "GPU-2": training_trace(20.0, 8, seed=3)[0],
        "GPU-3": training_trace(16.0, 10, seed=4)[0],
    }
    jobs = {"GPU-0": "one", "GPU-1": "two", "GPU-2": "one", "GPU-3": "two"}
    subject = setup()
    subject.feed(records_of(traces, [binding(gpu, job) for gpu, job in jobs.items()]), 20)
    subject.pipeline.round()
    found = {}
    for run in subject.runs():
        found.setdefault(run.job_id, set()).add((run.period_s, *confirmed(subject, run)))
    assert {job: len(answers) for job, answers in found.items()} == {"one": 1, "two": 1}


@pytest.fixture(scope="module")
def untidy():
    """A job of which one GPU joins late, one leaves early, one has nothing to do; the first to begin ends first."""
    traces = gpu_traces(5)
    traces["GPU-1"] = idle_outside(traces["GPU-1"], 40.0, 1e9)
    traces["GPU-2"] = idle_outside(traces["GPU-2"], 0.0, 110.0)
    traces["GPU-3"] = idle_outside(traces["GPU-3"], 0.0, 0.0)
    traces["GPU-0"] = idle_outside(traces["GPU-0"], 0.0, 100.0)
    return records_of(traces, bound_after_s=18.0)


@pytest.fixture(scope="module")
def uninterrupted(untidy, tmp_path_factory):
    subject = TrackedStore(tmp_path_factory.mktemp("uninterrupted") / "data")
    subject.feed(untidy, 5)
    for _ in range(4):
        subject.pipeline.round()
    found = outcome(subject)
    subject.store.close()
    return found


def test_the_untidy_job_is_worth_comparing_with(uninterrupted):
    assert set(uninterrupted) == {"GPU-0", "GPU-1", "GPU-2", "GPU-4"}
    # Those that went on long after the first one are led by another one to their end.
    assert uninterrupted["GPU-1"][1] == uninterrupted["GPU-4"][1]
    assert len([e for e in uninterrupted["GPU-4"][1] if e.status == "confirmed"]) == EPOCHS
    assert ("GPU-3", "idle") in {(d.gpu_uuid, d.kind) for d in uninterrupted["GPU-4"][2].deviations}


@pytest.mark.parametrize("seed", range(4))
def test_restarts_at_any_moment_leave_no_trace_in_the_runs_of_a_job(setup, untidy, uninterrupted, seed):
    chance = random.Random(seed)
    subject = setup(state_interval_s=chance.choice([1.0, 7.0, 30.0]))
    first = 0
    while first < len(untidy):
        count = chance.randint(1, 60)
        subject.feed(untidy[first : first + count], chance.randint(1, 12))
        first += count
        if chance.random() < 0.3:
            subject.store.flush()
        if chance.random() < 0.6:
            subject.pipeline.finish()
        subject.restart()
    for _ in range(6):
        subject.pipeline.round()
    assert outcome(subject) == uninterrupted


def test_a_backlog_gives_the_same_rows_as_a_live_stream(setup, untidy, uninterrupted):
    subject = setup()
    subject.store.samples.append(untidy)
    for _ in range(6):
        subject.pipeline.round()
    assert outcome(subject) == uninterrupted


def test_a_gpu_that_is_behind_the_others_is_named(setup):
    traces = gpu_traces(4)
    traces["GPU-2"] = shifted(traces["GPU-2"], 4.0)
    subject = setup()
    subject.feed(records_of(traces), 20)
    subject.pipeline.round()
    (deviations,) = {subject.results.tree(run.run_id).deviations for run in subject.runs()}
    (deviation,) = deviations
    assert (deviation.gpu_uuid, deviation.kind) == ("GPU-2", "lag")
    assert deviation.amount == pytest.approx(4.0, abs=0.5)


def test_a_gpu_that_a_job_has_left_is_not_said_to_do_otherwise(setup):
    traces = gpu_traces(3)
    traces["GPU-2"] = idle_outside(traces["GPU-2"], 0.0, 60.0)
    ends = {"GPU-2": START + 61_000_000_000}
    subject = setup()
    subject.feed(records_of(traces, [binding(gpu, end=ends.get(gpu, 0)) for gpu in traces]), 20)
    subject.pipeline.round()
    (run,) = [run for run in subject.runs() if run.gpu_uuid == "GPU-0"]
    assert subject.results.tree(run.run_id).deviations == ()


def test_slices_of_one_gpu_that_a_job_holds_are_one(setup):
    traces = {f"MIG-{i}": trace for i, trace in enumerate(gpu_traces(3).values())}
    subject = setup()
    subject.feed(records_of(traces), 20)
    subject.pipeline.round()
    assert len({(run.period_s, *confirmed(subject, run)) for run in subject.runs()}) == 1


def test_a_tracker_that_fails_costs_its_job_the_epochs_and_nothing_else(setup):
    class Failing(EpochTracker):
        def update(self, time_s, values, *, exhaustive=True):
            raise RuntimeError("a fault of ours")

    subject = setup(make_tracker=Failing)
    subject.feed(records_of(gpu_traces(2)), 20)
    subject.pipeline.round()
    assert {(run.verdict, run.ended) for run in subject.runs()} == {("none", True)}
    assert all("epoch tracking failed" in run.reason for run in subject.runs())


def test_a_job_on_several_hosts_has_one_tree_and_the_hosts_that_disagree_are_named(setup):
    subject = setup()
    slower = {f"GPU-b{i}": training_trace(30.0, 6, seed=i)[0] for i in range(2)}
    alike = {f"GPU-c{i}": trace for i, trace in enumerate(gpu_traces(2).values())}
    lagging = {f"GPU-a{i}": trace for i, trace in enumerate(gpu_traces(4).values())}
    lagging["GPU-a2"] = shifted(lagging["GPU-a2"], 4.0)
    for agent, traces in (("agent-3", alike), ("agent-2", slower), ("agent-1", lagging)):
        subject.feed(records_of(traces, agent_id=agent), 50)
    subject.pipeline.round()
    runs = subject.runs()
    answers = [list_epochs(subject.results, query_pb2.ListEpochsRequest(run_id=run.run_id)) for run in runs]
    first = min(runs, key=lambda run: (run.start_unix_nano, run.gpu_uuid))
    assert {answer.tree_agent_id for answer in answers} == {first.agent_id}
    assert len({tuple(cycle.SerializeToString() for cycle in answer.cycles) for answer in answers}) == 1
    level = answers[0].cycles[answers[0].level]
    assert level.period.ToNanoseconds() / 1e9 == pytest.approx(PERIOD_S, rel=0.01)
    assert {tuple(answer.disagreeing_agents) for answer in answers} == {("agent-2",)}
    (other,) = answers[0].host_deviations
    assert (other.agent_id, other.kind, other.amount) == ("agent-2", "period", pytest.approx(30.0, rel=0.02))
    assert {tuple(each.gpu_uuid for each in answer.deviations) for answer in answers} == {("GPU-a2",)}


def test_a_level_that_is_not_sure_yet_is_left_out_unless_asked_for_and_is_told_when_the_run_is_over(setup):
    subject = setup()
    records = records_of(gpu_traces(1))
    hidden = 0
    for first in range(0, len(records), 10):
        subject.feed(records[first : first + 10], 10)
        for run in subject.runs():
            ask = query_pb2.ListEpochsRequest(run_id=run.run_id)
            told = list_epochs(subject.results, ask)
            ask.include_provisional = True
            everything = list_epochs(subject.results, ask)
            assert not [cycle for cycle in told.cycles if cycle.provisional]
            assert len(told.cycles) + told.provisional_cycles == len(everything.cycles)
            assert sum(cycle.provisional for cycle in everything.cycles) == told.provisional_cycles
            hidden += told.provisional_cycles > 0
    assert hidden
    assert run.ended
    assert told.provisional_cycles == 0
    assert told.cycles
