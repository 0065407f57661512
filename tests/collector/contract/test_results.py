"""What every engine promises of runs, epochs, summaries, positions and states of tracking."""

import math
from dataclasses import replace

import pytest
from support.store_records import Feed

from gpusonde.collector.storage.model import (
    AlertRow,
    CycleRow,
    CycleTree,
    DeviationRow,
    EpochRow,
    JobStateRow,
    Position,
    RunRow,
    RunUpdate,
    SummaryRow,
)
from gpusonde.collector.storage.store import UnusableStateError

SECOND = 1_000_000_000
HOSTILE = "'; DROP TABLE runs; -- \\ {run:String} %s ü"


def run_row(run_id="run-1", start_s=100, **more):
    fields = {
        "agent_id": "agent-1",
        "gpu_uuid": "GPU-a",
        "job_id": "job-1",
        "scheduler": 1,
        "ended": False,
        "end_reason": "",
        "start_unix_nano": start_s * SECOND,
        "end_unix_nano": (start_s + 50) * SECOND,
        "first_spool": 7,
        "first_sequence": 2,
        "last_spool": 7,
        "last_sequence": 52,
        "tick_count": 500,
        "missed_ticks": 3,
    }
    return RunRow(run_id, **(fields | more))


def epoch(index, start_s, end_s, status="confirmed", revision=1):
    return EpochRow(index, start_s * SECOND, end_s * SECOND, 0.5 + index / 100, status, revision)


def found(**more):
    return {
        "verdict": "epochs",
        "reason": "it's periodic",
        "period_s": 10.25,
        "period_low_s": 10.0,
        "period_high_s": 10.5,
        "confidence": 0.9,
        "epoch_count": 3,
        "idle_share": 0.25,
        "stalled_share": 0.0,
    } | more


def same(one, two):
    """Equal, NaN being equal to NaN."""
    return repr(one) == repr(two)


def test_a_run_is_as_it_was_saved_last(engine):
    engine.open()
    first = run_row()
    engine.results.save([RunUpdate(first, None)], {})
    assert same(engine.results.run("run-1"), first)
    assert math.isnan(engine.results.run("run-1").period_s)
    last = replace(first, ended=True, end_reason="it's idle", **found())
    engine.results.save([RunUpdate(replace(first, tick_count=600), None), RunUpdate(last, None)], {})
    for _ in range(2):
        assert engine.results.run("run-1") == last
        assert engine.results.run("run-2") is None
        assert engine.results.runs(limit=10) == [last]
        engine.open()


def test_runs_are_listed_newest_first_by_gpu_and_job_and_in_pages(engine):
    engine.open()
    runs = [
        run_row(f"run-{i}", 100 + i // 2, gpu_uuid=f"GPU-{i % 3}", job_id=f"job-{i % 2}", **found()) for i in range(12)
    ]
    engine.results.save([RunUpdate(run, None) for run in runs], {})
    ordered = sorted(runs, key=lambda run: (run.start_unix_nano, run.run_id), reverse=True)
    assert engine.results.runs(limit=100) == ordered
    assert engine.results.runs(gpu_uuid="GPU-1", limit=100) == [run for run in ordered if run.gpu_uuid == "GPU-1"]
    both = engine.results.runs(gpu_uuid="GPU-1", job_id="job-0", limit=100)
    assert both == [run for run in ordered if (run.gpu_uuid, run.job_id) == ("GPU-1", "job-0")]
    pages, before = [], None
    while page := engine.results.runs(before=before, limit=5):
        pages += page
        before = (page[-1].start_unix_nano, page[-1].run_id)
    assert pages == ordered


def test_the_open_run_of_a_gpu_is_the_newest_that_is_not_over(engine):
    engine.open()
    rows = [run_row("run-1", 100), run_row("run-2", 200), run_row("run-3", 300, ended=True)]
    rows.append(run_row("run-4", 400, gpu_uuid="GPU-b"))
    engine.results.save([RunUpdate(row, None) for row in rows], {})
    assert engine.results.open_run("agent-1", "GPU-a") == "run-2"
    assert engine.results.open_run("agent-1", "GPU-b") == "run-4"
    assert engine.results.open_run("agent-2", "GPU-a") == ""
    assert [run.run_id for run in engine.results.runs(open_only=True, limit=10)] == ["run-4", "run-2", "run-1"]
    engine.results.save([RunUpdate(replace(rows[1], ended=True), None)], {})
    assert engine.results.open_run("agent-1", "GPU-a") == "run-1"


def test_epochs_are_replaced_and_those_behind_the_last_are_gone(engine):
    engine.open()
    epochs = [epoch(0, 100, 110), epoch(1, 110, 120), epoch(2, 120, 130, "provisional")]
    engine.results.save([RunUpdate(run_row(), epochs)], {})
    assert engine.results.epochs("run-1") == epochs
    # Index 3 begins before index 2, index 1 moved.
    moved = [epochs[0], epoch(1, 110, 121, "withdrawn", 2), epochs[2], epoch(3, 115, 119, revision=2)]
    engine.results.save([RunUpdate(run_row(), moved)], {})
    by_start = [moved[0], moved[1], moved[3], moved[2]]
    for _ in range(2):
        assert engine.results.epochs("run-1") == by_start
        assert engine.results.epochs("run-2") == []
        engine.open()
    engine.results.save([RunUpdate(run_row(), None)], {})
    assert engine.results.epochs("run-1") == by_start
    engine.results.save([RunUpdate(run_row(), epochs[:1])], {})
    assert engine.results.epochs("run-1") == epochs[:1]
    engine.results.save([RunUpdate(run_row(), epochs)], {})
    engine.open()
    assert engine.results.epochs("run-1") == epochs
    engine.results.save([RunUpdate(run_row(), [])], {})
    assert engine.results.epochs("run-1") == []


def test_the_tree_of_cycles_is_the_one_saved_last(engine):
    engine.open()
    step = CycleRow(0.5, 0.49, 0.52, 1_000_000, 0.9, "step", 0.75, 1, (99 * SECOND, 100 * SECOND + 1))
    outer = CycleRow(10.25, 10.0, 10.5, 7, 0.6, "unknown", 0.0, None, ())
    tree = CycleTree((step, outer), 1, (DeviationRow(HOSTILE, "lag", 1.5),), "training", 0.75)
    engine.results.save([RunUpdate(run_row(), [], tree)], {})
    for _ in range(2):
        assert engine.results.tree("run-1") == tree
        assert engine.results.tree(HOSTILE) == CycleTree()
        engine.results.save([RunUpdate(run_row(), None)], {})
        engine.open()
    engine.results.save([RunUpdate(run_row(), None, CycleTree())], {})
    assert engine.results.tree("run-1") == CycleTree()


def test_states_of_a_job_stay_with_its_run_and_are_told_in_order_of_time(engine):
    engine.open()
    training = JobStateRow(100 * SECOND, "training", "epochs of 10.2 s", 0.9)
    hung = JobStateRow(130 * SECOND, "hung", HOSTILE, 0.8)
    engine.results.save([RunUpdate(run_row(), None, states=[hung])], {})
    engine.results.save([RunUpdate(run_row(), None, states=[replace(training, confidence=0.5)])], {})
    engine.results.save([RunUpdate(run_row(), None, states=[training]), RunUpdate(run_row("run-2"), None)], {})
    for _ in range(2):
        assert engine.results.states(["run-2", "run-1", HOSTILE]) == {"run-1": [training, hung]}
        assert engine.results.states([]) == {}
        engine.open()


def test_alerts_are_kept_by_job_rule_and_start_and_told_newest_first(engine):
    engine.open()
    old = AlertRow(1, "job-1", "hung", 100 * SECOND, 0, HOSTILE, "agent-1")
    new = AlertRow(1, "job-2", "idle", 200 * SECOND, 0, "no work", "agent-1")
    engine.results.save_alerts([old, new])
    engine.results.save_alerts([replace(old, end_unix_nano=150 * SECOND)])
    for _ in range(2):
        assert engine.results.alerts(limit=10) == [new, replace(old, end_unix_nano=150 * SECOND)]
        assert engine.results.alerts(open_only=True, limit=10) == [new]
        assert engine.results.alerts(job_id="job-1", open_only=True, limit=10) == []
        assert engine.results.alerts(limit=1) == [new]
        assert engine.results.alerts(before=(new.start_unix_nano, new.job_id, new.rule), limit=9) == [
            replace(old, end_unix_nano=150 * SECOND)
        ]
        assert engine.results.alerts(untold_only=True, limit=9) == []
        engine.open()
    engine.results.save_alerts([replace(new, untold=True)])
    assert engine.results.alerts(untold_only=True, limit=9) == [replace(new, untold=True)]
    engine.results.save_alerts([new])
    assert engine.results.alerts(untold_only=True, limit=9) == []


def test_of_states_the_latest_are_read(engine):
    engine.open()
    states = [JobStateRow(i * SECOND, "training", "works", 0.9) for i in range(10)]
    engine.results.save([RunUpdate(run_row(), None, states=states)], {})
    assert engine.results.states(["run-1"], limit=3) == {"run-1": states[-3:]}
    assert engine.results.states(["run-1"]) == {"run-1": states}


def test_a_summary_is_that_of_an_epoch_until_its_bounds_move(engine):
    engine.open()
    epochs = [epoch(0, 100, 110), epoch(1, 110, 120), epoch(2, 120, 130, "provisional")]
    engine.results.save([RunUpdate(run_row(), epochs)], {})
    assert engine.results.to_summarise("run-1", -1, 10) == epochs[:2]
    assert engine.results.to_summarise("run-1", 100 * SECOND, 10) == epochs[1:2]
    assert engine.results.to_summarise("run-1", -1, 1) == epochs[:1]
    assert engine.results.count_to_summarise("run-1") == 2
    assert engine.results.runs_to_summarise() == ["run-1"]
    summary = SummaryRow(0.75, math.nan, {"sm_active": 0.123456789, "power_watts": 250.0})
    engine.results.save_summaries("run-1", [(epochs[0], summary), (epochs[1], SummaryRow(1.0, 12.5, {}))])
    for _ in range(2):
        read = engine.results.summaries("run-1", epochs)
        assert same(read, {0: summary, 1: SummaryRow(1.0, 12.5, {})})
        assert list(engine.results.summaries("run-1", epochs[1:])) == [1]
        assert engine.results.summaries("run-1", []) == {}
        assert engine.results.count_to_summarise("run-1") == 0
        assert engine.results.runs_to_summarise() == []
        engine.open()
    # More confidence is no other epoch, another end is.
    surer = [replace(epochs[0], confidence=0.99, revision=2), epoch(1, 110, 121, revision=2), epochs[2]]
    engine.results.save([RunUpdate(run_row(), surer)], {})
    assert list(engine.results.summaries("run-1", surer)) == [0]
    assert engine.results.to_summarise("run-1", -1, 10) == [surer[1]]
    # A summary of bounds that no longer hold comes too late.
    engine.results.save_summaries("run-1", [(epochs[1], summary)])
    assert list(engine.results.summaries("run-1", surer)) == [0]
    assert engine.results.runs_to_summarise() == ["run-1"]


def test_positions_of_tracking_are_the_last_that_were_saved(engine):
    engine.open()
    engine.results.save([], {("agent-1", "GPU-a"): (Position(7, 3), 5), (HOSTILE, HOSTILE): (Position(1, 1), 0)})
    engine.results.save([], {("agent-1", "GPU-a"): (Position(7, 9), 6)})
    for _ in range(2):
        assert engine.results.resumes() == {
            ("agent-1", "GPU-a"): (Position(7, 9), 6),
            (HOSTILE, HOSTILE): (Position(1, 1), 0),
        }
        engine.open()


def test_names_are_data_whatever_is_in_them(engine):
    engine.open()
    run = run_row(HOSTILE, gpu_uuid=HOSTILE, agent_id=HOSTILE, job_id=HOSTILE, end_reason=HOSTILE, **found())
    engine.results.save([RunUpdate(run, [epoch(0, 100, 110)])], {})
    engine.results.save_summaries(HOSTILE, [(epoch(0, 100, 110), SummaryRow(1.0, 1.0, {}))])
    assert engine.results.run(HOSTILE) == run
    assert engine.results.runs(gpu_uuid=HOSTILE, job_id=HOSTILE, limit=5) == [run]
    assert engine.results.runs(gpu_uuid="' OR '1'='1", limit=5) == []
    assert engine.results.open_run(HOSTILE, HOSTILE) == HOSTILE
    assert list(engine.results.summaries(HOSTILE, engine.results.epochs(HOSTILE))) == [0]
    assert engine.results.to_summarise(HOSTILE, -1, 5) == []


def test_states_of_tracking_are_kept_whole_or_not_at_all(engine):
    engine.open().samples.append(Feed().batches(1, 2))
    key, other = ("agent-1", "GPU-a"), (HOSTILE, "GPU-b")
    content = bytes(range(256)) * 4000
    assert engine.states.read(key, 1) is None
    engine.states.write(key, 1, b"old")
    engine.states.write(key, 1, content)
    engine.states.write(other, 1, b"")
    for _ in range(2):
        assert engine.states.read(key, 1) == content
        assert engine.states.read(other, 1) == b""
        engine.open()
    with pytest.raises(UnusableStateError):
        engine.states.read(key, 2)
    engine.states.remove(key)
    engine.states.remove(("nobody", "GPU-a"))
    engine.states.keep_only([other])
    assert engine.states.read(key, 1) is None
    assert engine.states.read(other, 1) == b""
    with pytest.raises(ValueError, match="larger than"):
        engine.states.write(key, 1, bytes((1 << 26) + 1))
