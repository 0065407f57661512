"""What each epoch used, stored beside it: the same as offline, in bounded pieces, whatever stops in between."""

import logging
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.epoch_traces import training_trace
from support.faulty_files import flip_byte
from support.trace_records import incoming, trace_records

from gpusonde.collector.storage.local.results import LocalResults
from gpusonde.collector.storage.model import EpochRow, RunUpdate
from gpusonde.epoch_detect import detect
from gpusonde.epoch_detect.progress import epoch_table, time_shares
from gpusonde.errors import StoreFullError
from gpusonde.telemetry import Trace

DATA = Path(__file__).parents[1] / "data"
START_NS = 1_700_000_000_000_000_000


def summaries_of(subject):
    """The summaries of the only run's epochs, by start; None where there is none."""
    (run,) = subject.runs()
    epochs = [epoch for epoch in subject.results.epochs(run.run_id) if epoch.status != "withdrawn"]
    found = subject.results.summaries(run.run_id, epochs)
    return [found.get(epoch.index) for epoch in epochs]


def assert_same_as_offline(subject, trace):
    offline = detect(trace)
    table = epoch_table(trace.time_s, trace.values, offline.epoch_starts_s, offline.epoch_ends_s)
    assert_same(summaries_of(subject), table)


def assert_same(summaries, table):
    for found, expected in zip(summaries, table, strict=True):
        assert found.seen_share == pytest.approx(expected.seen_share, rel=1e-6)
        # Counters cross the wire in float32 steps from a double base.
        assert found.energy_joules == pytest.approx(expected.energy_joules, rel=1e-5)
        assert found.means == pytest.approx(expected.mean_metrics, rel=1e-6)


@pytest.mark.parametrize("flushed", [False, True], ids=["from the log", "from segments"])
def test_means_energy_and_shares_are_those_of_the_trace(setup, trace, records, flushed):
    subject = setup()
    for i in range(0, len(records), 20):
        subject.feed(records[i : i + 20], 10)
        if flushed:
            subject.store.flush()
    assert_same_as_offline(subject, trace)
    offline = detect(trace)
    expected = time_shares(trace.time_s, trace.values, offline.epoch_starts_s, offline.epoch_ends_s)
    (run,) = subject.runs()
    assert (run.idle_share, run.stalled_share) == pytest.approx((expected.idle, expected.stalled), abs=1e-6)


def test_an_open_run_has_the_summaries_of_its_confirmed_epochs(setup):
    subject = setup()
    subject.feed(incoming(trace_records(training_trace(20.0, 14)[0]))[:230], 10)
    (run,) = subject.runs()
    assert not run.ended
    confirmed = [epoch.status == "confirmed" for epoch in subject.results.epochs(run.run_id)]
    assert any(confirmed)
    assert [summary is not None for summary in summaries_of(subject)] == confirmed


def test_a_counter_that_is_read_once_a_second_tells_the_energy_from_the_first_epoch_on(setup, trace):
    counter = np.where(np.arange(len(trace)) % 10 == 3, 5e6 + 70.0 * trace.time_s, np.nan)
    counted = Trace(trace.time_s, {**trace.values, "energy_joules": counter}, trace.gpu_uuid, trace.gpu_model)
    subject = setup()
    subject.feed(incoming(trace_records(counted)), 20)
    offline = detect(trace)
    lengths = (offline.epoch_ends_s - offline.epoch_starts_s)[:-1]  # the last one ends with the trace
    assert [summary.energy_joules for summary in summaries_of(subject)[:-1]] == pytest.approx(70.0 * lengths, rel=1e-5)
    assert_same_as_offline(subject, counted)


class Looks:
    """Tells to stop at every look but the first."""

    def __init__(self):
        self.looks = 0

    def __call__(self):
        self.looks += 1
        return self.looks > 1


def long_epochs():
    """A run of three epochs of 50 minutes each with a tick a second and a hole of 8 minutes."""
    time_s = np.concatenate([np.arange(0.0, 4000.0), np.arange(4480.0, 9000.0)])
    values = {
        "sm_active": 0.5 + 0.3 * np.sin(time_s / 90.0),
        "power_watts": 100.0 + time_s / 90.0,
        "energy_joules": 100.0 * time_s + time_s**2 / 180.0,
    }
    trace = Trace(time_s, values, "GPU-slow", "Tesla T4")
    starts = np.array([1.5, 3000.25, 6000.0])
    return trace, starts, np.array([3000.25, 6000.0, 8998.5])


def stored_by_hand(subject, trace, starts, ends):
    """A run with given epochs instead of those that would be found."""
    subject.store.samples.append(incoming(trace_records(trace)))
    subject.pipeline.round()
    (run,) = subject.runs()
    epochs = [
        EpochRow(i, START_NS + round(start * 1e9), START_NS + round(end * 1e9), 0.9, "confirmed", 0)
        for i, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]
    subject.results.save([RunUpdate(replace(run, verdict="epochs"), epochs)], {})
    subject.summaries.add(run.run_id)
    return run


def test_long_epochs_are_read_in_pieces_of_15_minutes_and_add_up_to_the_same(setup, monkeypatch):
    trace, starts, ends = long_epochs()
    subject = setup()
    stored_by_hand(subject, trace, starts, ends)
    ticks_read = []
    read = subject.store.samples.read

    def counted(*arguments, **more):
        samples = read(*arguments, **more)
        ticks_read.append(len(samples))
        return samples

    monkeypatch.setattr(subject.store.samples, "read", counted)
    while subject.summaries.waiting:
        before = len(ticks_read)
        subject.summaries.work(Looks())
        assert len(ticks_read) <= before + 1
    assert max(ticks_read) <= 1000
    table = epoch_table(trace.time_s, trace.values, starts, ends)
    assert_same(summaries_of(subject), table)


def test_a_round_of_tracking_spends_its_time_on_a_few_pieces_and_the_rest_waits(setup):
    trace, starts, ends = long_epochs()
    subject = setup()
    stored_by_hand(subject, trace, starts, ends)
    reads = []
    read = subject.store.samples.read

    def slow(*arguments, **more):
        reads.append(arguments)
        subject.now += 0.15
        return read(*arguments, **more)

    subject.store.samples.read = slow
    subject.pipeline.round()
    assert len(reads) == 2  # the second began within the 0.2 s
    assert subject.summaries.waiting
    while subject.summaries.waiting:
        before = len(reads)
        subject.pipeline.round()
        assert len(reads) <= before + 2
    assert None not in summaries_of(subject)


def test_what_is_left_at_a_stop_is_done_after_the_next_start(setup, trace, records, monkeypatch):
    subject = setup()
    monkeypatch.setattr(subject.summaries, "work", lambda stop: None)
    subject.feed(records, 20)
    assert subject.runs()[0].ended
    assert summaries_of(subject) == [None] * 5
    assert subject.results.count_to_summarise(subject.runs()[0].run_id) == 5
    subject.restart()
    subject.pipeline.round()
    assert_same_as_offline(subject, trace)
    assert subject.results.count_to_summarise(subject.runs()[0].run_id) == 0


def test_an_epoch_that_moves_loses_its_summary_and_gets_another(setup, trace, records):
    subject = setup()
    subject.feed(records, 20)
    (run,) = subject.runs()
    epochs = subject.results.epochs(run.run_id)
    moved = [replace(epoch, end_unix_nano=epoch.end_unix_nano - 10**9) if i == 1 else epoch for i, epoch in
             enumerate(epochs)]  # fmt: skip
    kept = summaries_of(subject)
    subject.results.save([RunUpdate(run, moved)], {})
    assert [summary is None for summary in summaries_of(subject)] == [i == 1 for i in range(len(epochs))]
    subject.summaries.add(run.run_id)
    subject.pipeline.round()
    found = summaries_of(subject)
    assert [one == other for one, other in zip(found, kept, strict=True)] == [i != 1 for i in range(len(epochs))]


def test_a_damaged_segment_costs_its_epochs_the_summary_and_is_named(setup, trace, records, caplog):
    subject = setup()
    for i in range(0, len(records), 20):
        subject.feed(records[i : i + 20], 20)
        subject.store.flush()
    (run,) = subject.runs()
    (*_, last) = epochs = subject.results.epochs(run.run_id)
    subject.results.save([RunUpdate(run, [replace(e, end_unix_nano=e.end_unix_nano - 1000) for e in epochs])], {})
    path = subject.store.layout.directory / "segments" / subject.store._segments.parts_between(
        run.gpu_uuid, last.start_unix_nano + 10**10, last.end_unix_nano)[0].file_name  # fmt: skip
    flip_byte(path, 300)
    subject.summaries.add(run.run_id)
    with caplog.at_level(logging.ERROR):
        subject.pipeline.round()
    assert path.name in caplog.text
    found = summaries_of(subject)
    assert found[0] is not None
    assert found[-1] is None
    assert not subject.summaries.waiting
    flip_byte(path, 300)
    subject.restart()
    subject.pipeline.round()
    assert None not in summaries_of(subject)


class FullResults(LocalResults):
    full = False

    def save_summaries(self, run_id, summaries):
        if self.full:
            raise StoreFullError("no room")
        super().save_summaries(run_id, summaries)


def test_summaries_that_do_not_fit_are_stored_when_there_is_room(setup, trace, records, caplog):
    subject = setup(results=FullResults)
    subject.results.full = True
    subject.feed(records, 20)
    assert summaries_of(subject) == [None] * 5
    assert "cannot be stored now: no room" in caplog.text
    subject.results.full = False
    subject.now += 10.0
    subject.pipeline.round()
    assert_same_as_offline(subject, trace)


def test_a_fault_in_one_run_leaves_the_others_alone(setup, trace, records, monkeypatch, caplog):
    subject = setup()
    other = incoming(trace_records(trace, gpu_uuid="GPU-bad"), agent_id="agent-2")
    read = subject.store.samples.read

    def faulty(gpu_uuid, *given, **more):
        if gpu_uuid == "GPU-bad":
            raise RuntimeError("a fault of ours")
        return read(gpu_uuid, *given, **more)

    monkeypatch.setattr(subject.store.samples, "read", faulty)
    subject.store.samples.append(other)
    subject.feed(records, 50)
    assert "have no mean metrics until the next start" in caplog.text
    runs = {run.gpu_uuid: run for run in subject.runs()}
    assert subject.results.count_to_summarise(runs["GPU-bad"].run_id) > 0
    assert subject.results.count_to_summarise(runs[trace.gpu_uuid].run_id) == 0


def test_the_store_of_an_older_collector_is_brought_up_to_date_and_its_epochs_summarised(setup, tmp_path):
    directory = tmp_path / "data"
    shutil.copytree(DATA / "store_version_1", directory)
    with sqlite3.connect(directory / "catalog.sqlite") as old:
        old.executescript((directory / "catalog.sql").read_text())
        epochs_before = old.execute("SELECT epoch_index, start_unix_nano, end_unix_nano FROM epochs").fetchall()
    old.close()
    subject = setup()
    (run,) = subject.runs()
    assert (run.run_id, run.verdict, run.epoch_count) == ("20231114T221340-d2987f84", "epochs", 5)
    assert np.isnan(run.idle_share)
    subject.pipeline.round()
    epochs = subject.results.epochs(run.run_id)
    assert [(e.index, e.start_unix_nano, e.end_unix_nano) for e in epochs] == epochs_before
    found = summaries_of(subject)
    assert None not in found
    assert all(summary.energy_joules > 0 and "sm_active" in summary.means for summary in found)
    subject.restart()
    assert summaries_of(subject) == found
