"""Cycles that take longer are told within a few of them, and what is as long as ever is not."""

import itertools
import json
import math
import pickle
from dataclasses import replace

import numpy as np
import pytest

from gpusonde.epoch_detect import Cycle, EpochDetection, EpochTracker, Verdict
from gpusonde.epoch_detect.progress import PaceWatch
from gpusonde.epoch_detect.progress.cycle_clock import CycleClock
from gpusonde.epoch_detect.progress.level_pace import LevelPace

TICK_S = 0.1


def ticks(durations_s, noise=0.05, seed=0):
    """Power of cycles of such durations: work, a slope, and a pause in a twelfth of each; with its time."""
    rng = np.random.default_rng(seed)
    ends_s = np.concatenate([[0.0], np.cumsum(durations_s)])
    fine_s = np.arange(0.0, ends_s[-1], TICK_S / 8)
    place = np.interp(fine_s, ends_s, np.arange(ends_s.size)) % 1
    load = np.where(place < 0.88, 0.8 + 0.2 * place, 0.2)
    load = load[: load.size // 8 * 8].reshape(-1, 8).mean(axis=1)
    return TICK_S * np.arange(1, load.size + 1), 100 + 400 * (load + rng.normal(0, noise, load.size))


def durations(cycle_s, count, slower=0.0, scatter=0.01, from_cycle=60, seed=0):
    rng = np.random.default_rng(seed)
    each = cycle_s * np.exp(rng.normal(0, scatter, count))
    each[from_cycle:] *= 1 + slower
    return each


def followed(durations_s, cycle_s, **options):
    """The pace of a level, and when its change was told, in cycles after the sixtieth."""
    pace, told = LevelPace(CycleClock(cycle_s, TICK_S)), math.nan
    time_s, power = ticks(durations_s, **options)
    onset_s = float(durations_s[:60].sum())
    for at in range(0, time_s.size, 10):
        pace.update(time_s[at : at + 10], power[None, at : at + 10])
        if pace.change is not None and math.isnan(told):
            told = (time_s[min(at + 9, time_s.size - 1)] - onset_s) / cycle_s
    return pace, told


class Begins(CycleClock):
    """A clock that is told where cycles begin, and before which ones it had lost them."""

    def update(self, time_s, rows, starts_s=None):
        return [math.nan, float(time_s[0])] if rows.any() else [float(time_s[0])]


def told_of(durations_s, longest_s=math.inf):
    """What the pace of cycles of about 2 s says behind each of them; longer ones are none."""
    pace, told = LevelPace(Begins(2.0, TICK_S)), []
    for begin_s, before_s in zip(np.cumsum([0.0, *durations_s]), [0.0, *durations_s], strict=True):
        pace.update(np.array([begin_s]), np.full((1, 1), before_s > longest_s))
        told.append(pace.change)
    return told


def cycle_of(period_s):
    return Cycle(period_s, period_s, period_s, 20, np.empty(0), 0.9, confirmed=True)


@pytest.mark.parametrize("cycle_s", [1.0, 1.37, 6.0])
@pytest.mark.parametrize("seed", range(3))
def test_five_percent_are_told_within_five_cycles_where_they_have_ten_ticks(cycle_s, seed):
    each = durations(cycle_s, 90, 0.05, scatter=0.005, seed=seed)
    pace, told = followed(each, cycle_s * 1.003, seed=seed)
    assert 0 < told <= 6 + 1.0 / cycle_s  # a cycle is over once the next has begun; ticks come a second at a time
    assert pace.change.after_s / pace.change.before_s == pytest.approx(1.05, abs=0.01)
    assert pace.change.since_s == pytest.approx(each[:60].sum(), abs=2 * cycle_s)
    assert "5 % longer than the" in pace.change.reason


def test_ten_percent_are_told_where_cycles_have_eight_ticks():
    _, told = followed(durations(0.8, 90, 0.1, scatter=0.0), 0.8)
    assert 0 < told <= 6 + 1.0 / 0.8


@pytest.mark.parametrize("scatter", [0.0, 0.01, 0.05])
def test_cycles_that_scatter_as_ever_are_no_change(scatter):
    pace, told = followed(durations(2.0, 400, scatter=scatter), 2.0)
    assert math.isnan(told)
    assert pace.cycles > 200
    assert pace.scatter == pytest.approx(scatter, abs=0.01)


def test_single_long_cycles_are_no_change_however_long():
    each = durations(2.0, 400, scatter=0.005)
    each[::9] *= 1.3
    assert math.isnan(followed(each, 2.0)[1])


@pytest.mark.parametrize("seed", range(5))
def test_cycles_with_an_evaluation_in_them_hide_no_change(seed):
    each = durations(2.0, 90, 0.05, scatter=0.006, seed=seed)
    each[4::8] += 0.9

    changes = told_of(each)
    told = next(cycle for cycle, change in enumerate(changes) if change is not None) - 60
    assert 0 < told <= 4
    assert changes[-1].after_s / changes[-1].before_s == pytest.approx(1.05, abs=0.01)


@pytest.mark.parametrize("longer", [0.5, 0.8])
def test_cycles_are_found_again_right_behind_a_long_one(longer):
    each = durations(2.0, 90, 0.05, scatter=0.004, seed=2)
    each[60] *= 1 + longer
    pace, told = followed(each, 2.0, seed=2)
    assert 0 < told <= 5 + longer + 1.0 / 2.0
    assert pace.change.after_s / pace.change.before_s == pytest.approx(1.05, abs=0.01)


def test_a_metric_that_begins_its_cycles_unevenly_moves_no_boundary():
    each = durations(2.0, 120, scatter=0.003)
    time_s, power = ticks(each)
    starts_s = np.concatenate([[0.0], np.cumsum(each)[:-1]])
    late_s = starts_s + np.random.default_rng(1).uniform(0, 0.3, starts_s.size)
    since_s = time_s - late_s[np.maximum(np.searchsorted(late_s, time_s, side="right") - 1, 0)]
    pace = LevelPace(CycleClock(2.0, TICK_S))
    rows = np.array([power, np.where(since_s < 1.2, 0.9, 0.1)])
    for at in range(0, time_s.size, 40):
        pace.update(time_s[at : at + 40], rows[:, at : at + 40])
    assert pace.cycles > 90
    assert pace.scatter < 0.006


@pytest.mark.parametrize(
    ("cycle_s", "evaluation", "seed"), [(0.8, 40, 8), (0.95, 53, 1), (0.95, 90, 0), (0.8, 90, 6), (0.8, 90, 7)]
)
def test_what_looks_like_cycles_in_the_noise_of_an_evaluation_is_no_change(cycle_s, evaluation, seed):
    rng, power = np.random.default_rng(seed), []
    for part in range(100 * seed, 100 * seed + 8):
        steps = ticks(durations(cycle_s, 40, scatter=0.015, seed=part), noise=0.012, seed=part)[1]
        power += [steps, 260 * (1 + rng.normal(0, 0.012, evaluation))]
    pace, power = LevelPace(CycleClock(cycle_s, TICK_S)), np.concatenate(power)
    for at in range(0, power.size, 10):
        part = slice(at, at + 10)
        pace.update(TICK_S * np.arange(1, power.size + 1)[part], power[None, part])
        assert pace.change is None
    assert pace.cycles > 200


@pytest.mark.parametrize("noise", [0.003, 0.02])
def test_the_noise_of_an_evaluation_holds_no_cycle_whatever_it_looks_like(noise):
    cycle_s, found = 1.2, 0
    for seed in range(4):
        time_s, power = ticks(durations(cycle_s, 100, seed=seed), noise=0.02, seed=seed)
        clock, rng = CycleClock(cycle_s, TICK_S), np.random.default_rng(seed)
        parts = [slice(at, at + 50) for at in range(0, time_s.size, 50)]
        assert sum(len(clock.update(time_s[part], power[None, part])) for part in parts) > 80
        for _ in range(20):
            later_s = time_s[-1] + TICK_S * np.arange(1, 51)
            begins = clock.update(later_s, 250 * (1 + rng.normal(0, noise, (1, 50))))
            found += np.isfinite(begins).sum()
            time_s = later_s
    assert found <= 4  # the one that ends as the evaluation begins


def test_a_change_that_has_dwindled_is_over():
    each = durations(2.0, 120, 0.1, scatter=0.003)
    each[66:] = 2.0 * (1 + np.maximum(0.1 * 0.93 ** np.arange(54), 0.013))
    told = [change is not None for change in told_of(each)]
    assert any(told[60:70])
    assert not any(told[-30:])


@pytest.mark.parametrize("cycle_s", [1.2, 6.0])
def test_metrics_that_stand_still_hide_no_cycle(cycle_s):
    # As the clocks and the memory of a job do, counters of errors, and the use of units that it does not use.
    time_s, power = ticks(durations(cycle_s, 120, 0.08, scatter=0.015))
    rows = np.vstack([power, np.outer([1410.0, 6.4e10, *[0.0] * 12], np.ones(power.size))])
    pace = LevelPace(CycleClock(cycle_s, TICK_S))
    for at in range(0, time_s.size, 10):
        pace.update(time_s[at : at + 10], rows[:, at : at + 10])
    assert pace.is_running
    assert pace.change is not None


def with_pauses(every, pause_s, durations_s, dip=0.1):
    """Power of cycles that begin with a shallow dip, and of a deep pause behind every so many of them."""
    time_s, load, begins_s, now_s = [], [], [], 0.0
    for number, each_s in enumerate(durations_s):
        begins_s.append(now_s)
        count = int((now_s + each_s) / TICK_S) - int(now_s / TICK_S)
        at_s = TICK_S * (int(now_s / TICK_S) + 1 + np.arange(count))
        time_s.append(at_s)
        load.append(0.9 - dip * (at_s - now_s < 0.15 * each_s))
        now_s += each_s
        if (number + 1) % every == 0:
            rest = int((now_s + pause_s) / TICK_S) - int(now_s / TICK_S)
            time_s.append(TICK_S * (int(now_s / TICK_S) + 1 + np.arange(rest)))
            load.append(np.full(rest, 0.1))
            now_s += pause_s
    load = np.concatenate(load)
    return np.concatenate(time_s), 100 + 400 * (load + np.random.default_rng(0).normal(0, 0.01, load.size)), begins_s


def test_deep_pauses_in_a_few_cycles_hide_no_shallow_waveform():
    pace = LevelPace(CycleClock(6.0, TICK_S))
    time_s, power, _ = with_pauses(4, 7.0, durations(6.0, 80, scatter=0.003))
    for at in range(0, time_s.size, 40):
        pace.update(time_s[at : at + 40], power[None, at : at + 40])
    assert pace.is_running
    assert pace.scatter < 0.01
    # Two of four: neither that with the pause in it, nor one that is over only once the next has begun.
    assert pace.cycles >= 35


def test_the_cycle_right_behind_a_pause_counts():
    clock, found = CycleClock(6.0, TICK_S), []
    time_s, power, begins_s = with_pauses(4, 7.0, durations(6.0, 80, scatter=0.003))
    for at in range(0, time_s.size, 40):
        found += clock.update(time_s[at : at + 40], power[None, at : at + 40])
    known = np.array([each for each in found if math.isfinite(each)])
    behind = np.array(begins_s[24::4])
    near = np.abs(known[:, None] - behind).min(axis=0)
    assert np.mean(near < 0.02 * 6.0) > 0.8
    assert (np.diff(known) > 0.9 * 6.0).all()


@pytest.mark.parametrize(("scatter", "is_told"), [(0.006, True), (0.03, False)])
def test_of_a_level_that_is_not_sure_only_even_cycles_count(scatter, is_told):
    each = durations(6.0, 110, 0.2, scatter=scatter)
    pace = LevelPace(CycleClock(6.0, TICK_S), is_sure=False)
    time_s, power = ticks(each)
    for at in range(0, time_s.size, 40):
        pace.update(time_s[at : at + 40], power[None, at : at + 40])
    assert pace.cycles > 90
    assert (pace.change is not None) is is_told


def test_a_state_with_a_finer_waveform_learns_it_anew():
    time_s, power = ticks(durations(20.0, 40, scatter=0.003))
    clock = CycleClock(20.0, TICK_S)
    clock.update(time_s[:6000], power[None, :6000])
    fields = clock.fields()
    fields["waveform"] = np.repeat(fields["waveform"], 2, axis=1).tolist()
    del fields["begin_s"], fields["again_s"]
    again = CycleClock.of_fields(fields)
    assert clock.is_running
    assert not again.is_running
    assert sum(map(math.isfinite, again.update(time_s[6000:], power[None, 6000:]))) > 5


def test_cycles_that_a_waveform_learned_anew_finds_again_are_counted_once():
    pace = LevelPace(CycleClock(2.0, TICK_S))
    time_s, power = ticks(durations(2.0, 60, scatter=0.004))
    flat = np.arange(time_s.size) % 600 > 380  # an evaluation of many cycles, again and again
    power[flat] = 350 + np.random.default_rng(0).normal(0, 5, int(flat.sum()))
    for at in range(0, time_s.size, 40):
        pace.update(time_s[at : at + 40], power[None, at : at + 40])
    assert 15 < pace.cycles <= np.count_nonzero(~flat) * TICK_S / 2.0


def test_a_change_is_over_once_the_cycles_are_as_before():
    each = durations(2.0, 140, 0.1, scatter=0.005)
    each[100:] /= 1.1
    pace, told = followed(each, 2.0)
    assert told < 6
    assert pace.change is None


def test_what_was_told_of_cycles_that_have_ended_is_over_in_time():
    each = durations(6.0, 130, 0.13, scatter=0.005, from_cycle=100)
    pace, _ = followed(each, 6.0)
    assert pace.change is not None
    told = []
    for minute in range(12):
        # Work at one load from then on.
        time_s = float(each.sum()) + 60.0 * minute + TICK_S * np.arange(1, 601)
        pace.update(time_s, np.full((1, 600), 500.0))
        told.append(pace.change is not None)
    assert told == [True] * 9 + [False] * 3


def test_two_pauses_beside_a_cycle_as_ever_are_no_change():
    told = []
    for seed in range(40):
        each = durations(2.0, 64, scatter=0.008, seed=seed)
        each[61:63] += 0.3
        told.append(any(told_of(each)))
    assert sum(told) <= 2


@pytest.mark.parametrize("seed", range(5))
def test_single_cycles_that_were_as_long_delay_no_change(seed):
    each = durations(2.0, 90, 0.05, scatter=0.006, seed=seed)
    each[6:60:9] *= 1.05
    told = next(cycle for cycle, change in enumerate(told_of(each)) if change is not None) - 60
    assert 0 < told <= 4


@pytest.mark.parametrize("cycle_s", [0.6, 0.65])
def test_cycles_of_few_ticks_are_found_wherever_in_a_tick_they_begin(cycle_s):
    loads = np.tile([0.9, 0.9, 0.2, 0.7, 0.1], 90)
    edges_s = np.cumsum([0.0, *np.repeat(durations(cycle_s, 90, 0.1, scatter=0.0) / 5, 5)])
    time_s = TICK_S * np.arange(1, int(edges_s[-1] / TICK_S))
    area = np.interp([0.0, *time_s], edges_s, np.cumsum([0.0, *(np.diff(edges_s) * loads)]))
    power = np.diff(area) / TICK_S + 0.005 * np.random.default_rng(0).normal(size=time_s.size)
    pace, onset_s = LevelPace(CycleClock(cycle_s, TICK_S)), edges_s[300]
    for at in range(0, time_s.size, 10):
        pace.update(time_s[at : at + 10], power[None, at : at + 10])
        if pace.change is not None:
            break
    assert onset_s < time_s[at] < onset_s + 5 * cycle_s


def test_a_few_cycles_that_are_much_longer_and_not_alike_are_another_work():
    each = durations(2.0, 90, scatter=0.006)
    each[60:63] *= [1.15, 1.28, 1.56]
    assert not any(told_of(each))


def test_what_was_told_is_over_where_hardly_any_cycle_is_found_any_more():
    rng = np.random.default_rng(1)
    # Two of them in a minute, here and there.
    gaps = [[rng.uniform(45, 75), *np.full(2, 2.2)] for _ in range(40)]
    told = told_of(np.concatenate([durations(2.0, 100, 0.1, scatter=0.002), *gaps]), longest_s=10.0)
    assert told[99] is not None
    assert told[-1] is None


def test_a_change_of_cycles_that_scatter_is_not_over_by_chance():
    last = [told_of(durations(2.0, 160, 0.1, scatter=0.045, from_cycle=80, seed=seed))[85:] for seed in range(30)]
    over = [one is not None and other is None for each in last for one, other in itertools.pairwise(each)]
    assert sum(over) <= 2


@pytest.mark.parametrize(("confidence", "is_sure"), [(0.9, True), (0.55, True), (0.3, False)])
def test_a_level_that_is_unlikely_later_on_is_sure_no_more(confidence, is_sure):
    time_s, power = ticks(durations(2.0, 60, scatter=0.004))
    watch = PaceWatch(["power_watts"])
    watch.update(time_s, power[None])
    for each in (0.9, confidence):
        watch.note_detection(EpochDetection(Verdict.NONE, "", cycles=(replace(cycle_of(2.0), confidence=each),)))
    assert [pace.is_sure for pace in watch.paces] == [is_sure]


@pytest.mark.parametrize("cycle_s", [0.7, 0.8])
def test_cycles_of_few_ticks_are_followed_and_judged_however_unlikely_their_level_is(cycle_s):
    time_s, power = ticks(durations(cycle_s, 200, 0.1, scatter=0.004, from_cycle=160), noise=0.02)
    unlikely = replace(cycle_of(cycle_s), confidence=0.3)
    watch, told = PaceWatch(["power_watts"]), []
    for at in range(0, time_s.size, 10):
        watch.update(time_s[at : at + 10], power[None, at : at + 10])
        if at == 400:
            watch.note_detection(EpochDetection(Verdict.NONE, "", cycles=(unlikely, cycle_of(30.0))))
        told.append(watch.change is not None)
    first = 10 * told.index(True)
    assert 0 < time_s[first] - durations(cycle_s, 160, scatter=0.004).sum() < 8 * cycle_s


def test_of_levels_of_few_ticks_that_are_not_sure_the_likeliest_is_followed():
    time_s, power = ticks(durations(0.7, 100))
    watch = PaceWatch(["power_watts"])
    watch.update(time_s, power[None])
    levels = [replace(cycle_of(each_s), confidence=c) for each_s, c in ((0.55, 0.2), (0.7, 0.4), (0.9, 0.3))]
    watch.note_detection(EpochDetection(Verdict.NONE, "", cycles=tuple(levels)))
    assert [(pace.period_s, pace.is_sure) for pace in watch.paces] == [(0.7, False)]


@pytest.mark.parametrize(("cycle_s", "begins_anew"), [(0.8, True), (2.0, False)])
def test_a_level_of_few_ticks_that_is_likely_later_on_is_followed_anew_as_it_is_then(cycle_s, begins_anew):
    time_s, power = ticks(durations(cycle_s, 60, scatter=0.004))
    watch, vague_s = PaceWatch(["power_watts"]), 0.95 * cycle_s
    watch.update(time_s, power[None])
    for each_s, confidence in ((vague_s, 0.3), (cycle_s, 0.9)):
        level = replace(cycle_of(each_s), confidence=confidence)
        watch.note_detection(EpochDetection(Verdict.NONE, "", cycles=(level,)))
    followed = [(pace.period_s, pace.is_sure) for pace in watch.paces]
    assert followed == [(cycle_s, True) if begins_anew else (vague_s, False)]


@pytest.mark.parametrize("slower", [0.65, 0.9, 1.0, 1.4, 2.0])
def test_cycles_that_take_far_longer_than_a_search_reaches_are_told_within_six_minutes(slower):
    each = durations(1.0, 800, slower, scatter=0.01, from_cycle=200)
    onset_s, told_s = float(each[:200].sum()), math.nan
    pace, (time_s, power) = LevelPace(CycleClock(1.0, TICK_S)), ticks(each)
    for at in range(0, time_s.size, 10):
        pace.update(time_s[at : at + 10], power[None, at : at + 10])
        if pace.change is not None and math.isnan(told_s):
            told_s = time_s[at] - onset_s
            # Who goes on with its state goes on telling it.
            pace = LevelPace.of_fields(json.loads(json.dumps(pace.fields())))
    assert told_s < 360
    assert pace.change is not None
    assert pace.change.after_s == pytest.approx(1 + slower, rel=0.03)
    assert pace.change.before_s == pytest.approx(1.0, rel=0.02)
    assert pace.change.since_s == pytest.approx(onset_s, abs=45)


def test_what_is_kept_to_see_another_tempo_does_not_grow_with_the_length_of_a_cycle():
    clock, hours = CycleClock(3600.0, TICK_S), TICK_S * np.arange(int(20 * 3600 / TICK_S))
    for at in range(0, hours.size, 36_000):
        clock.update(hours[at : at + 36_000], np.sin(hours[at : at + 36_000])[None])
    assert len(pickle.dumps(clock)) < 100_000


def test_the_batches_of_an_evaluation_are_not_the_cycles_of_the_job():
    # Each evaluation has a beat of its own, longer than the steps, and the steps come back.
    part = [*[1.0] * 150, *[1.7] * 80]
    each = np.array(part * 6) * np.exp(np.random.default_rng(1).normal(0, 0.005, 6 * len(part)))
    pace, told = LevelPace(CycleClock(1.0, TICK_S)), False
    time_s, power = ticks(each)
    for at in range(0, time_s.size, 10):
        pace.update(time_s[at : at + 10], power[None, at : at + 10])
        told |= pace.change is not None
    assert not told
    assert pace.cycles > 100


def test_what_repeats_after_two_cycles_alone_is_no_other_tempo():
    # From the middle on each second cycle has hardly any shape.
    time_s, power = ticks(durations(1.0, 900, scatter=0.005))
    place = time_s % 2 < 1
    half = time_s > 300
    power[half & place] = 0.7 * power.mean() + 0.3 * power[half & place]
    pace, told = LevelPace(CycleClock(1.0, TICK_S)), False
    for at in range(0, time_s.size, 10):
        pace.update(time_s[at : at + 10], power[None, at : at + 10])
        told |= pace.change is not None and pace.change.after_s > 1.5
    assert not told


def test_what_comes_little_by_little_is_told_as_drift():
    each = durations(2.0, 300, scatter=0.003)
    each[100:] *= 1.002 ** np.arange(200)
    pace, _ = followed(each, 2.0)
    assert pace.change.drift_per_cycle == pytest.approx(0.002, abs=0.001)
    assert "more with each" in pace.change.reason
    # Not from the beginning of what is known: the first 100 cycles take no longer, and 20 more of them less than 4 %.
    assert each[:112].sum() < pace.change.since_s < each[:152].sum()


@pytest.mark.parametrize(("slower", "told"), [(0.05, range(4)), (0.09, range(10, 13))])
def test_a_change_is_more_than_cycles_scatter_by(slower, told):
    jobs = [durations(2.0, 400, slower, scatter=0.045, from_cycle=200, seed=seed) for seed in range(12)]
    assert sum(any(told_of(each)) for each in jobs) in told


@pytest.mark.parametrize(("scatter", "is_told"), [(0.01, True), (0.03, True), (0.045, False), (0.06, False)])
def test_a_drift_is_told_of_even_cycles_alone(scatter, is_told):
    growing = 1 + 0.0001 * np.arange(800)
    told = [change for change in told_of(growing * durations(2.0, 800, scatter=scatter)) if change is not None]
    assert any(change.drift_per_cycle > 0 for change in told) is is_told
    assert bool(told) is is_told


def test_a_metric_without_a_repeated_waveform_says_nothing():
    pace = LevelPace(CycleClock(2.0, TICK_S))
    time_s = TICK_S * np.arange(8000)
    pace.update(time_s, np.random.default_rng(0).normal(300, 50, (1, time_s.size)))
    assert (pace.is_running, pace.cycles) == (False, 0)
    assert pace.change is None


def test_levels_are_those_of_the_tracker_and_a_copy_of_the_state_goes_on_alike():
    time_s, power = ticks(durations(4.0, 200, 0.07, scatter=0.004, from_cycle=150))
    tracker, watch = EpochTracker(["power_watts"]), PaceWatch(["power_watts"])
    told = []
    for at in range(0, time_s.size, 40):
        part = slice(at, at + 40)
        tracker.update(time_s[part], power[None, part])
        if tracker.detection is not None:
            watch.note_detection(tracker.detection)
        watch.update(time_s[part], power[None, part])
        if at == 4000:
            watch = PaceWatch.from_state(watch.state())
        told.append(watch.change is not None)
    assert [pace.period_s for pace in watch.paces] == pytest.approx([4.0], rel=0.02)
    first_s = time_s[told.index(True) * 40]
    assert 0 < first_s - durations(4.0, 150, scatter=0.004).sum() < 6 * 4.0
    assert told[-1]


def test_a_broken_state_is_refused():
    with pytest.raises(ValueError, match="no state of a pace"):
        PaceWatch.from_state(b'{"version": 1}')


def test_another_tempo_says_nothing_beside_a_level_that_is_not_sure():
    time_s, power = ticks(durations(1.0, 800, 0.65, scatter=0.01, from_cycle=200))
    pace, told = LevelPace(CycleClock(1.0, TICK_S), is_sure=False), False
    for at in range(0, time_s.size, 10):
        pace.update(time_s[at : at + 10], power[None, at : at + 10])
        told |= pace.change is not None and pace.change.after_s > 1.5
    assert not told


def test_another_tempo_beside_a_level_that_is_not_sure_keeps_no_level_from_being_followed():
    time_s, power = ticks(durations(2.0, 200, scatter=0.004))
    pace = LevelPace(CycleClock(1.0, TICK_S), is_sure=False)
    for at in range(0, time_s.size, 10):
        pace.update(time_s[at : at + 10], power[None, at : at + 10])
    assert pace._clock.other_tempo.period_s == pytest.approx(2.0, rel=0.02)
    assert not pace.is_of(cycle_of(2.0))


def test_cycles_that_got_slower_are_still_those_of_their_level():
    pace, _ = followed(durations(4.0, 120, 0.05), 4.0)
    assert pace.is_of(cycle_of(4.0 * 1.05 * 1.07))
    assert not pace.is_of(cycle_of(4.0 * 1.25))


@pytest.mark.parametrize("was_over", [False, True])
def test_a_drift_that_was_over_is_not_told_again(was_over):
    each = durations(2.0, 400, scatter=0.003)
    each[100:200] *= 1.001 ** np.arange(100)
    each[200:] *= 1.001**100
    pace, (time_s, power) = LevelPace(CycleClock(2.0, TICK_S)), ticks(each)
    at = 0
    while pace.change is None:
        pace.update(time_s[at : at + 10], power[None, at : at + 10])
        at += 10
    told, fields = pace.change, pace.fields()
    assert told.drift_per_cycle > 0
    fields |= {"change": None, "back_s": told.since_s if was_over else None}
    pace, again = LevelPace.of_fields(json.loads(json.dumps(fields))), False
    for first in range(at, time_s.size, 10):
        pace.update(time_s[first : first + 10], power[None, first : first + 10])
        again |= pace.change is not None and pace.change.since_s <= told.since_s
    assert again != was_over
