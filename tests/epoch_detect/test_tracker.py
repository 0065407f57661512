"""``EpochTracker``: the same epochs as offline, in bounded memory, revised openly, surviving restarts."""

import io
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from support.epoch_traces import trace_of, training_trace

from gpusonde.epoch_detect import (
    Cycle,
    CycleRole,
    EpochDetection,
    EpochEvent,
    EpochTracker,
    Marks,
    RunState,
    Verdict,
    detect,
)
from gpusonde.epoch_detect.history import pack, unpack
from gpusonde.epoch_detect.progress import time_shares
from gpusonde.telemetry import Trace, read_trace

_DEMO = Path(__file__).parents[1] / "data" / "demo_trace.parquet"


def _values(trace: Trace) -> np.ndarray:
    return np.array([trace.values[name] for name in trace.metrics])


def _feed(tracker: EpochTracker, trace: Trace, chunk: int = 10) -> list[EpochEvent]:
    values = _values(trace)
    events = []
    for i in range(0, len(trace), chunk):
        events += tracker.update(trace.time_s[i : i + chunk], values[:, i : i + chunk])
    return events


def _alive(tracker: EpochTracker) -> list[tuple[float, float]]:
    return [(e.start_s, e.end_s) for e in tracker.epochs if e.stands]


@pytest.mark.parametrize("chunk", [1, 37, 100_000])
def test_finish_gives_the_epochs_of_detect_however_the_ticks_arrive(chunk: int) -> None:
    trace, _ = training_trace(epochs=5)
    tracker = EpochTracker(trace.metrics)
    _feed(tracker, trace, chunk)
    tracker.finish()
    found = detect(trace)
    assert _alive(tracker) == list(zip(found.epoch_starts_s.tolist(), found.epoch_ends_s.tolist(), strict=True))
    assert {e.status for e in tracker.epochs} <= {"confirmed", "withdrawn"}
    assert tracker.detection is not None
    assert tracker.detection.period_s == found.period_s
    assert {e.confidence for e in tracker.epochs if e.status == "confirmed"} == {found.confidence}


def test_wall_clock_times_and_trimmed_idle_give_the_epochs_of_the_file() -> None:
    trace, _ = training_trace(epochs=6)
    tracker = EpochTracker(trace.metrics)
    part = trace.window(9.0, trace.time_s[-1] - 8.0)
    moved = Trace(part.time_s + 1.7e9, {k: v.astype(np.float32).astype(float) for k, v in part.values.items()})
    _feed(tracker, moved, 10)
    tracker.finish()
    np.testing.assert_allclose([s - 1.7e9 for s, _ in _alive(tracker)], detect(trace).epoch_starts_s, atol=2e-6)


def test_epochs_are_told_once_their_level_has_held_for_six() -> None:
    trace, starts = training_trace(15.0, 24)
    tracker = EpochTracker(trace.metrics)
    assert not _feed(tracker, trace.window(0, starts[6]))
    assert tracker.detection is not None
    assert tracker.detection.verdict == "none"
    assert {e.status for e in tracker.epochs} == {"provisional"}
    events = _feed(tracker, trace.window(starts[6], starts[17]))
    assert {event.kind for event in events} == {"reported"}
    assert len(events) >= 6
    assert {e.status for e in tracker.epochs} == {"confirmed"}
    assert tracker.detection.verdict == "epochs"
    assert tracker.detection.period_s == pytest.approx(15.0, rel=0.02)


def test_what_is_surely_a_cycle_is_told_on_the_way_though_it_may_not_be_the_epoch() -> None:
    trace = read_trace(_DEMO)
    tracker, values, told = EpochTracker(trace.metrics), _values(trace), []
    for i in range(0, len(trace), 10):
        tracker.update(trace.time_s[i : i + 10], values[:, i : i + 10])
        if (found := tracker.detection) is not None and found.verdict == "epochs":
            told.append((found.epoch_starts_s.size, found.period_s, found.role))
    cycles, period_s, role = told[0]
    assert 6 <= cycles <= 8
    assert period_s == pytest.approx(17.5, rel=0.02)
    assert role != CycleRole.EPOCH
    assert not [event for event in tracker.finish() if event.kind == "withdrawn"]


def _found(told_s: float, *levels_s: float, role: CycleRole = CycleRole.UNKNOWN) -> EpochDetection:
    """What an analysis of 120 s gives that finds levels and takes one of them for the epoch."""
    cycles = []
    for period_s in levels_s:
        starts, of_told = np.arange(0, 120, period_s), period_s == told_s
        cycles.append(
            Cycle(
                period_s,
                period_s * 0.99,
                period_s * 1.01,
                starts.size - 1,
                starts,
                0.95,
                role=role if of_told else CycleRole.UNKNOWN,
                role_confidence=0.8 * of_told,
                confirmed=starts.size > 6,
            )
        )
    starts = np.arange(0, 120, told_s)
    return EpochDetection(
        Verdict.EPOCHS,
        "a test's",
        period_s=told_s,
        period_low_s=told_s * 0.99,
        period_high_s=told_s * 1.01,
        confidence=0.5,
        epoch_starts_s=starts[:-1],
        epoch_ends_s=starts[1:],
        cycles=tuple(cycles),
        level=levels_s.index(told_s),
        run_state=RunState.TRAINING,
    )


def _look(monkeypatch: pytest.MonkeyPatch, looks: Sequence[EpochDetection]) -> tuple[EpochTracker, list[EpochEvent]]:
    """A tracker whose analyses give what is said, the last of them at the end of the run."""
    from gpusonde.epoch_detect import look as module

    left = iter(looks)
    monkeypatch.setattr(module, "analyse_and_cache", lambda *args, **keywords: (next(left), None))
    tracker = EpochTracker(["dram_active"])
    events: list[EpochEvent] = []
    tracker.update([0.0], [[1.0]])
    for i in range(len(looks) - 1):
        events += tracker.update([1000.0 * 5**i], [[1.0]], exhaustive=False)
    return tracker, events + tracker.finish()


def test_cycles_that_were_told_stay_cycles_where_another_level_is_told_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inner, outer = _found(8.0, 8.0, 24.0), _found(24.0, 8.0, 24.0)
    tracker, events = _look(monkeypatch, [inner, inner, outer])
    assert not [event for event in events if event.kind == "withdrawn"]
    assert {e.status for e in tracker.epochs if e.end_s - e.start_s == pytest.approx(8.0)} == {"other_level"}
    assert [e.end_s - e.start_s for e in tracker.epochs if e.stands] == pytest.approx([24.0] * 4)
    # The same goes for two analyses in a row that are sure of it, and for the way back.
    tracker, events = _look(monkeypatch, [inner, inner, replaced := _found(8.0, 8.0), inner])
    assert {e.status for e in tracker.epochs} == {"confirmed"}
    longer = _found(16.0, 8.0, 16.0)
    tracker, events = _look(monkeypatch, [inner, longer, longer, replaced])
    assert [e.status for e in tracker.epochs if e.stands] == ["confirmed"] * 14
    assert {event.epoch.index for event in events if event.epoch.status == "other_level"} <= set(range(14))


def test_cycles_belong_to_the_level_of_their_own_length(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = replace(_found(8.0, 8.0, 24.0), period_s=9.2)  # as pauses between some of them make it
    tracker, events = _look(monkeypatch, [inner, inner, _found(24.0, 8.0, 24.0)])
    assert not [event for event in events if event.kind == "withdrawn"]
    assert {e.status for e in tracker.epochs if e.end_s - e.start_s == pytest.approx(8.0)} == {"other_level"}


def test_cycles_that_were_told_are_withdrawn_where_the_run_has_no_such_level(monkeypatch: pytest.MonkeyPatch) -> None:
    tracker, events = _look(monkeypatch, [_found(8.0, 8.0), _found(8.0, 8.0), _found(59.9, 59.9)])
    assert len([event for event in events if event.kind == "withdrawn"]) == 14
    assert not [e for e in tracker.epochs if e.status == "other_level"]


def test_cycles_that_were_told_stay_where_the_last_look_has_nothing_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    slower = _found(30.0, 30.0)
    later = replace(slower, epoch_starts_s=slower.epoch_starts_s + 65, epoch_ends_s=slower.epoch_ends_s + 65)
    tracker, _ = _look(monkeypatch, [_found(8.0, 8.0), _found(8.0, 8.0), later])
    assert {e.end_s for e in tracker.epochs if e.status == "other_level"} == set(range(8, 65, 8))
    assert {e.start_s for e in tracker.epochs if e.status == "withdrawn"} == set(range(64, 112, 8))


def test_a_level_that_one_look_sees_and_the_one_before_did_not_is_not_told_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = EpochDetection(Verdict.NONE, "nothing repeats")
    _, events = _look(monkeypatch, [_found(30.0, 30.0), _found(8.0, 8.0, 30.0), nothing])
    assert not events
    _, events = _look(monkeypatch, [_found(30.0, 30.0), _found(8.0, 8.0, 30.0), _found(8.0, 8.0, 30.0), nothing])
    assert {event.kind for event in events} == {"reported", "withdrawn"}


def test_steps_are_not_told_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = EpochDetection(Verdict.NONE, "nothing repeats")
    _, events = _look(monkeypatch, [_found(8.0, 8.0, role=CycleRole.STEP)] * 2 + [nothing])
    assert not events


def test_told_cycles_that_a_look_calls_steps_are_no_epochs_until_a_later_one_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    epochs, steps = _found(8.0, 8.0), _found(8.0, 8.0, role=CycleRole.STEP)
    tracker, events = _look(monkeypatch, [epochs, steps, epochs, epochs])
    expected = [("reported", "confirmed"), ("revised", "other_level"), ("revised", "confirmed")]
    told = [(event.kind, event.epoch.status) for event in events if event.kind != "confirmed"]
    assert told == [each for each in expected for _ in range(14)]
    assert len(tracker.epochs) == 14


def test_what_is_hardly_a_training_is_not_told_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    serving = replace(_found(8.0, 8.0), run_state=RunState.SERVING)
    tracker, events = _look(monkeypatch, [serving, serving, EpochDetection(Verdict.NONE, "nothing repeats")])
    assert not events
    assert tracker.detection is not None


def test_what_is_told_has_the_role_of_its_level_where_that_is_sure() -> None:
    assert _found(8.0, 8.0, 24.0, role=CycleRole.EPOCH).role == CycleRole.EPOCH
    assert _found(8.0, 8.0, 24.0, role=CycleRole.EVALUATION).role == CycleRole.EVALUATION
    assert EpochDetection(Verdict.NONE, "nothing").role == CycleRole.UNKNOWN


def test_the_tree_survives_from_look_to_look_and_a_restart() -> None:
    trace, _ = training_trace(20.0, 40)
    tracker = EpochTracker(trace.metrics)
    values, counts = _values(trace), []
    for i in range(0, len(trace), 100):
        tracker.update(trace.time_s[i : i + 100], values[:, i : i + 100])
        if (found := tracker.detection) is not None and found.verdict == "epochs":
            assert found.level is not None
            told = found.cycles[found.level]
            assert told.confirmed
            assert told.period_s == pytest.approx(20.0, rel=0.02)
            counts.append(told.count)
    assert counts == sorted(counts)
    assert len(set(counts)) > 5  # followed between analyses
    one, again = tracker.detection, EpochTracker.restore(tracker.state()).detection
    assert one is not None
    assert again is not None
    for cycle, same in zip(one.cycles, again.cycles, strict=True):
        assert np.array_equal(cycle.starts_s, same.starts_s)
        assert (cycle.period_s, cycle.role, cycle.parent) == (same.period_s, same.role, same.parent)
        assert (cycle.count, cycle.confirmed) == (same.count, same.confirmed)


def test_an_epoch_that_the_end_of_a_running_trace_cuts_off_is_not_counted() -> None:
    trace, starts = training_trace(20.0, 10)
    cut = trace.window(0, starts[8] + 17.5)  # all of its training, but not what ends it
    found = detect(cut, running=True)
    assert found.epoch_ends_s[-1] <= starts[8] + 1
    assert all(c.starts_s[-1] <= starts[8] + 1 for c in found.cycles if abs(c.period_s - 20) < 1)


def test_epochs_change_only_by_events() -> None:
    trace, _ = training_trace(20.0, 10)
    tracker = EpochTracker(trace.metrics)
    known = {}
    values = _values(trace)
    for i in range(0, len(trace), 25):
        for event in tracker.update(trace.time_s[i : i + 25], values[:, i : i + 25]):
            known[event.epoch.index] = event.epoch
        assert {e.index: e for e in tracker.epochs if e.status != "provisional"} == known
    for event in tracker.finish():
        known[event.epoch.index] = event.epoch
    assert {e.index: e for e in tracker.epochs} == known


def test_state_survives_a_restart_in_the_middle_without_a_trace_of_it() -> None:
    trace, _ = training_trace(20.0, 7)
    straight, restarted = EpochTracker(trace.metrics), EpochTracker(trace.metrics)
    values = _values(trace)
    for i in range(0, len(trace), 50):
        one = straight.update(trace.time_s[i : i + 50], values[:, i : i + 50])
        restarted = EpochTracker.restore(restarted.state())
        assert restarted.update(trace.time_s[i : i + 50], values[:, i : i + 50]) == one
        assert restarted.epochs == straight.epochs
    assert restarted.finish() == straight.finish()


def test_state_survives_a_restart_while_an_analysis_goes_on() -> None:
    trace, _ = training_trace(6.0, 5, idle_s=5.0)
    straight, restarted = EpochTracker(trace.metrics), EpochTracker(trace.metrics)
    values, under_way = _values(trace), 0
    for i in range(0, len(trace), 3):
        one = straight.update(trace.time_s[i : i + 3], values[:, i : i + 3])
        under_way += straight._running is not None
        restarted = EpochTracker.restore(restarted.state())
        assert restarted.update(trace.time_s[i : i + 3], values[:, i : i + 3]) == one
    assert under_way >= 3
    assert restarted.epochs == straight.epochs
    assert straight.epochs


def test_no_update_does_more_than_a_small_part_of_an_analysis(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpusonde.epoch_detect import look as module

    steps = []
    real = module.analyse_in_steps

    def counted(*args: object, **keywords: object):
        made = real(*args, **keywords)
        while True:
            steps[-1] += 1
            try:
                yield next(made)
            except StopIteration as end:
                return end.value

    monkeypatch.setattr(module, "analyse_in_steps", counted)
    trace, _ = training_trace(20.0, 10)
    tracker, values = EpochTracker(trace.metrics), _values(trace)
    for i in range(0, len(trace), 10):
        steps.append(0)
        tracker.update(trace.time_s[i : i + 10], values[:, i : i + 10])
    assert max(steps) <= 12
    assert sum(steps) > 3 * max(steps)


def test_a_look_is_finished_though_no_more_ticks_come() -> None:
    trace, starts = training_trace(3.0, 40)
    one, other = EpochTracker(trace.metrics), EpochTracker(trace.metrics)
    begun = trace.window(0, starts[0] + 13.4)
    assert _feed(one, begun) == []
    assert one.detection is None
    events = one.finish_look()
    assert one.detection is not None
    assert one.detection.cycles[-1].period_s == pytest.approx(3.0, rel=0.02)
    assert one.finish_look() == []
    # What was found is what the next ticks would have led to.
    rest = trace.window(starts[0] + 13.4, trace.time_s[-1])
    assert events + _feed(one, rest) == _feed(other, begun) + _feed(other, rest)


def test_what_was_told_in_one_tempo_stays_in_the_next_and_nothing_is_told_between_the_two() -> None:
    epochs = [*[[(10.4, 0.9), (1.6, 0.4)]] * 16, *[[(18.4, 0.9), (1.6, 0.4)]] * 14]
    trace, starts = trace_of(epochs)
    tracker = EpochTracker(trace.metrics)
    reported = [event.epoch for event in _feed(tracker, trace) if event.kind == "reported"]
    first = [epoch for epoch in reported if epoch.end_s < starts[16] + 1]
    assert len(first) >= 12
    assert all(epoch.end_s - epoch.start_s == pytest.approx(12.0, abs=0.5) for epoch in first)
    later = [epoch for epoch in reported if epoch.start_s > starts[16] - 1]
    assert all(epoch.end_s - epoch.start_s == pytest.approx(20.0, abs=0.5) for epoch in later)
    tracker.finish()
    assert not [epoch for epoch in tracker.epochs if epoch.status == "withdrawn"]


def test_ticks_that_are_averaged_while_an_analysis_goes_on_change_nothing() -> None:
    trace, _ = training_trace(20.0, 8)
    whole, cut = EpochTracker(trace.metrics, capacity=512), EpochTracker(trace.metrics, capacity=512)
    assert _feed(whole, trace, 100_000) == _feed(cut, trace, 7)
    assert whole.epochs == cut.epochs
    assert whole.epochs


def test_a_cycle_that_is_followed_has_the_epochs_of_the_whole_run() -> None:
    trace, starts = training_trace(20.0, 40)
    tracker = EpochTracker(trace.metrics)
    _feed(tracker, trace.window(0, starts[35]))
    assert tracker.detection is not None
    found = detect(trace.window(0, starts[35]))
    assert tracker.detection.period_s == pytest.approx(found.period_s, rel=0.002)
    known = tracker.detection.epoch_starts_s
    assert known.size >= 30
    np.testing.assert_allclose(known, found.epoch_starts_s[: known.size], atol=0.2)


def test_memory_is_bounded_and_long_runs_are_still_found() -> None:
    trace, _ = training_trace(30.0, 60)
    tracker = EpochTracker(trace.metrics, capacity=4096)
    _feed(tracker, trace, 500)
    tracker.finish()
    assert tracker.nbytes <= 4096 * (8 + 4 * 2)
    assert tracker.detection is not None
    assert tracker.detection.period_s == pytest.approx(30.0, rel=0.01)
    assert len(_alive(tracker)) == pytest.approx(60, abs=2)


def test_default_memory_stays_under_a_mebibyte_with_four_metrics() -> None:
    names = ("dram_active", "sm_active", "power_watts", "gpu_utilization")
    tracker = EpochTracker(names)
    tracker._next_us = 10**15  # only the memory is of interest here
    tracker.update(np.arange(80_000) * 0.1, np.random.default_rng(0).random((4, 80_000)))
    assert tracker.nbytes < 2**20
    assert len(tracker.state()) < 2**20


def test_work_per_tick_does_not_grow_with_history(monkeypatch: pytest.MonkeyPatch) -> None:
    analysed: list[int] = []
    from gpusonde.epoch_detect import look as looking
    from gpusonde.epoch_detect import tracker as tracking

    def counted(module: ModuleType, name: str) -> None:
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda ticks, *a, **k: analysed.append(len(ticks)) or real(ticks, *a, **k))

    counted(looking, "analyse_and_cache")
    counted(tracking, "extend_match")
    trace, _ = training_trace(30.0, 100, interval_s=0.25)
    tracker = EpochTracker(trace.metrics, capacity=2048)
    share = []
    for i in range(0, len(trace), 3000):
        tracker.update(trace.time_s[i : i + 3000], _values(trace)[:, i : i + 3000])
        share.append(sum(analysed) / (i + 3000))
    assert max(analysed) <= 2048
    assert share[-1] <= share[0]


def test_one_who_has_fallen_behind_looks_once_and_finds_the_same_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpusonde.epoch_detect import look as looking
    from gpusonde.epoch_detect import tracker as tracking

    looks: list[int] = []

    def counted(module: ModuleType, name: str) -> None:
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda ticks, *a, **k: looks.append(len(ticks)) or real(ticks, *a, **k))

    counted(looking, "analyse_and_cache")
    counted(tracking, "extend_match")
    trace, _ = training_trace(20.0, 12)
    tracker, thorough = EpochTracker(trace.metrics), EpochTracker(trace.metrics)
    values = _values(trace)
    half = len(trace) // 2
    tracker.update(trace.time_s[:half], values[:, :half], exhaustive=False)
    assert len(looks) == 1
    # Nothing is due so soon after it.
    tracker.update(trace.time_s[half : half + 20], values[:, half : half + 20], exhaustive=False)
    assert len(looks) == 1
    tracker.update(trace.time_s[half + 20 :], values[:, half + 20 :])
    thorough.update(trace.time_s, values)
    assert len(looks) > 3
    tracker.finish()
    thorough.finish()
    assert _alive(tracker) == _alive(thorough)


def test_one_who_has_fallen_behind_looks_at_a_young_run_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpusonde.epoch_detect import look as module

    looks: list[float] = []
    real = module.analyse_and_cache
    monkeypatch.setattr(
        module, "analyse_and_cache", lambda ticks, **k: looks.append(ticks.time_us[-1] * 1e-6) or real(ticks, **k)
    )
    trace, _ = training_trace(60.0, 4)
    values = _values(trace)
    tracker = EpochTracker(trace.metrics)
    first = trace.time_s[0]
    for i in range(0, 1300, 10):
        tracker.update(trace.time_s[i : i + 10], values[:, i : i + 10], exhaustive=False)
    np.testing.assert_allclose(looks, [28.0, 112.5], atol=1.1)
    # Thorough again: the moments that have passed are one, and the next one is later than what is known.
    tracker.update(trace.time_s[1300:1310], values[:, 1300:1310])
    assert len(looks) <= 3
    assert tracker.next_analysis_s - first >= 100.8


def test_late_and_timeless_ticks_are_left_out() -> None:
    tracker, in_order = EpochTracker(["dram_active"]), EpochTracker(["dram_active"])
    tracker.update([0.0, 0.1, 0.1, 0.05, np.nan, 0.2], [[1, 2, 3, 4, 5, 6]])
    tracker.update([0.15, 0.3], [[7, 8]])
    in_order.update([0.0, 0.1, 0.2, 0.3], [[1, 2, 6, 8]])
    assert tracker.state() == in_order.state()


def test_wrong_shapes_are_refused() -> None:
    tracker = EpochTracker(["dram_active", "sm_active"])
    with pytest.raises(ValueError, match=r"shape \(2, n\)"):
        tracker.update([0.0, 0.1], [[1.0, 1.0]])


def test_a_run_without_ticks_finishes_with_none() -> None:
    tracker = EpochTracker(["dram_active"])
    assert tracker.finish() == []
    assert tracker.detection is not None
    assert tracker.detection.verdict == "none"


@pytest.mark.parametrize("data", [b"", b"nonsense", b"PK\x03\x04broken"])
def test_a_broken_state_is_refused_with_what_to_do(data: bytes) -> None:
    with pytest.raises(ValueError, match="start the run's tracking anew"):
        EpochTracker.restore(data)


def test_shares_are_those_of_the_ticks_and_survive_a_restart() -> None:
    trace, _ = training_trace(20.0, 5)
    tracker = EpochTracker(trace.metrics)
    _feed(tracker, trace)
    tracker.finish()
    found = detect(trace)
    expected = time_shares(trace.time_s, trace.values, found.epoch_starts_s, found.epoch_ends_s)
    shares = tracker.shares()
    assert (shares.idle, shares.stalled) == pytest.approx((expected.idle, expected.stalled), abs=1e-6)
    assert EpochTracker.restore(tracker.state()).shares() == shares


def test_shares_of_a_run_that_has_just_begun_are_not_numbers() -> None:
    assert np.isnan(EpochTracker(["dram_active"]).shares().idle)


def test_a_state_that_unpacks_to_more_than_any_tracker_holds_is_refused() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("meta.npy", bytes((1 << 26) + 1))
    with pytest.raises(ValueError, match="is too large; start the run's tracking anew"):
        EpochTracker.restore(buffer.getvalue())


def _marked_job(seconds: float = 240.0, epoch_s: float = 12.0) -> tuple[Trace, Marks]:
    """A job that shows epochs of 12 s, three of them a trial: memory falls, and workers are born with each epoch."""
    time_s = np.arange(0.0, seconds, 0.1)
    active = 0.8 + 0.02 * np.random.default_rng(1).standard_normal(time_s.size)
    active[time_s % epoch_s < 1.0] = 0.1
    memory = np.where((time_s % (3 * epoch_s) < 1.0) & (time_s > 1), 1e9, 8e9)
    looks = np.arange(0.0, seconds)
    born = looks % epoch_s == 0
    values = np.zeros((6, looks.size))
    values[0, born] = 2
    values[1, born & (looks > 0)] = 2
    values[2, born & (looks > 0)] = 2 * epoch_s
    trace = Trace(time_s, {"graphics_active": np.clip(active, 0, 1), "framebuffer_used_bytes": memory})
    return trace, Marks(looks, values, np.empty(0), np.empty(0))


def _play(trackers: list[EpochTracker], trace: Trace, marks: Marks, chunk: int = 10, origin: float = 0.0) -> None:
    """Give the ticks in pieces, and every thirty looks behind the ticks of the last of them."""
    values, looks = _values(trace), 0
    for first in range(0, len(trace), chunk):
        piece = slice(first, first + chunk)
        last_s = trace.time_s[piece][-1]
        for tracker in trackers:
            tracker.update(trace.time_s[piece] + origin, values[:, piece])
        while looks + 30 <= marks.time_s.size and marks.time_s[looks + 29] <= last_s:
            for tracker in trackers:
                tracker.note_marks(marks.time_s[looks : looks + 30] + origin, marks.values[:, looks : looks + 30])
            looks += 30


def _roles(tracker: EpochTracker) -> dict[int, str]:
    assert tracker.detection is not None
    return {round(c.period_s): str(c.role) for c in tracker.detection.cycles if c.role != "unknown"}


@pytest.mark.parametrize(("chunk", "origin"), [(10, 0.0), (1, 1.7e9), (100_000, -5.0)])
def test_marks_name_what_detect_names_by_them(chunk: int, origin: float) -> None:
    trace, marks = _marked_job()
    tracker = EpochTracker(trace.metrics)
    _play([tracker], trace, marks, chunk, origin)
    tracker.finish()
    expected = {round(c.period_s): str(c.role) for c in detect(trace, marks=marks).cycles if c.role != "unknown"}
    assert _roles(tracker)[12] == expected[12] == "epoch"
    if chunk < len(trace):  # memory is kept from the first looks on
        assert _roles(tracker) == expected == {12: "epoch", 36: "trial"}


def test_levels_of_a_job_that_goes_on_are_named_by_marks_that_came_since_the_last_look() -> None:
    trace, marks = _marked_job(156.0)
    tracker = EpochTracker(trace.metrics)
    _play([tracker], trace, marks)
    # It has looked after 66 s, when no trial had begun a third time, and does again after 158 s.
    assert _roles(tracker) == {12: "epoch", 36: "trial"}
    assert EpochTracker.restore(tracker.state()).state() == tracker.state()


def test_marks_survive_restarts_at_any_moment_without_a_trace_of_them() -> None:
    trace, marks = _marked_job()
    calm = EpochTracker(trace.metrics)
    _play([calm], trace, marks)
    calm.finish()
    again, begin, told = EpochTracker(trace.metrics), 0.0, 0.0
    for stop in (7.0, 33.0, 48.3, 115.4, 200.0, trace.time_s[-1] + 1):
        known = 30 * (stop // 30)
        new = (marks.time_s >= told) & (marks.time_s < known)
        piece = replace(marks, time_s=marks.time_s[new], values=marks.values[:, new])
        _play([again], trace.window(begin, stop), piece)
        first, begin, told = again, stop, known
        again = EpochTracker.restore(first.state())
        assert again.state() == first.state()
    again.finish()
    assert repr(again.detection) == repr(calm.detection)
    assert again.epochs == calm.epochs


def test_a_state_of_a_release_that_knew_no_marks_is_read() -> None:
    trace, marks = _marked_job()
    tracker = EpochTracker(trace.metrics)
    _feed(tracker, trace.window(0.0, 100.0))
    with zipfile.ZipFile(io.BytesIO(tracker.state())) as stored:
        assert not [name for name in stored.namelist() if name.startswith("marks")]
    again = EpochTracker.restore(tracker.state())
    again.note_marks(marks.time_s[:100], marks.values[:, :100])
    again.finish()
    assert _roles(again)[12] == "epoch"


def test_marks_of_a_week_are_bounded_and_long_cycles_still_named() -> None:
    hours = 24 * 7
    tracker = EpochTracker(("graphics_active", "framebuffer_used_bytes"))
    epoch_s = 7200
    for hour in range(hours):
        looks = 3600.0 * hour + np.arange(3600.0)
        values = np.zeros((6, looks.size))
        born = looks % epoch_s == 0
        values[0, born], values[1, born & (looks > 0)], values[2, born & (looks > 0)] = 2, 2, 2 * epoch_s
        ticks_s = 3600.0 * hour + np.arange(0.0, 3600.0, 5.0)
        active = np.where(ticks_s % epoch_s < 300.0, 0.05, 0.8)
        memory = np.where(ticks_s % (4 * epoch_s) < 10.0, 1e9, 8e9)
        tracker.note_marks(looks, values)
        tracker.update(ticks_s, np.array([active, memory]), exhaustive=False)
    assert tracker.nbytes < 1 << 20
    assert len(tracker.state()) < 1 << 20
    tracker.finish()
    assert _roles(tracker)[epoch_s] == "epoch"
    assert _roles(tracker)[4 * epoch_s] == "trial"


def test_marks_that_are_damaged_in_a_state_are_refused() -> None:
    trace, marks = _marked_job()
    tracker = EpochTracker(trace.metrics)
    _play([tracker], trace, marks)
    arrays = unpack(tracker.state())
    for name, broken in (
        ("marks_looks_values", arrays["marks_looks_values"][:, :-1]),
        ("marks_memory_pooled", np.array(0)),
        ("marks_looks_waiting", np.zeros((6, 5))),
        ("marks_looks_time", np.zeros(1 << 14)),
    ):
        with pytest.raises(ValueError, match="start the run's tracking anew"):
            EpochTracker.restore(pack({**arrays, name: broken}))
    with pytest.raises(ValueError, match="not a tracker state"):
        EpochTracker.restore(pack({name: each for name, each in arrays.items() if name != "marks_memory_time"}))
