"""What the epochs give: their table, the trend of their duration, the end of the job, idle and stalls."""

import math

import numpy as np
import pytest
from support.epoch_traces import training_trace

from gpusonde.epoch_detect.progress import (
    EpochSums,
    duration_trend,
    epoch_table,
    estimate_end,
    estimate_from_others,
    long_epochs,
    time_shares,
)
from gpusonde.epoch_detect.ticks import measure_seen_seconds
from gpusonde.errors import TotalEpochsError, TotalPassedError
from gpusonde.telemetry import FloatArray


def test_means_and_energy_of_each_epoch_are_those_of_its_ticks() -> None:
    time = np.arange(0.0, 40.05, 0.1)
    power = np.where(time <= 20, 100.0, 300.0)
    first, second = epoch_table(
        time, {"power_watts": power, "sm_active": power / 1000}, np.array([0.0, 20.0]), np.array([20.0, 40.0])
    )
    assert first.mean_metrics == pytest.approx({"power_watts": 100.0, "sm_active": 0.1})
    assert second.mean_metrics["power_watts"] == pytest.approx(300.0)
    assert first.energy_joules == pytest.approx(2000.0, rel=0.01)
    assert second.energy_joules == pytest.approx(6000.0, rel=0.01)
    assert second.duration_s == pytest.approx(20.0)


def test_the_energy_counter_is_preferred_and_read_between_ticks() -> None:
    time = np.arange(0.0, 30.0, 1.0)
    values = {"energy_joules": 250.0 * time, "power_watts": np.full(30, 1.0)}
    (epoch,) = epoch_table(time, values, np.array([2.5]), np.array([12.5]))
    assert epoch.energy_joules == pytest.approx(2500.0)
    assert "energy_joules" not in epoch.mean_metrics


def test_a_counter_that_begins_anew_gives_way_to_power() -> None:
    time = np.arange(0.0, 30.0, 0.1)
    values = {"energy_joules": np.where(time < 15, 9e6 + 200 * time, 200 * time), "power_watts": np.full(300, 200.0)}
    (epoch,) = epoch_table(time, values, np.array([10.0]), np.array([20.0]))
    assert epoch.energy_joules == pytest.approx(2000.0, rel=0.01)


def test_energy_of_an_epoch_with_a_hole_in_it_is_not_made_up() -> None:
    time = np.concatenate([np.arange(0.0, 10.0, 0.1), np.arange(14.0, 20.0, 0.1)])
    (epoch,) = epoch_table(time, {"power_watts": np.full(time.size, 100.0)}, np.array([1.0]), np.array([19.0]))
    assert epoch.seen_share == pytest.approx(14 / 18, abs=0.02)
    assert np.isnan(epoch.energy_joules)
    assert epoch.mean_metrics["power_watts"] == pytest.approx(100.0)


@pytest.mark.parametrize("piece", [2, 7, 50, 1000])
def test_an_epoch_added_up_in_pieces_is_the_same(piece: int) -> None:
    time = np.concatenate([np.arange(0.0, 10.0, 0.1), np.arange(10.8, 30.0, 0.1)])
    values = {"energy_joules": 3e6 + 55.0 * time, "power_watts": 50 + time, "sm_active": np.sin(time)}
    values["energy_joules"][np.arange(time.size) % 10 != 4] = np.nan
    values["sm_active"][20:40] = np.nan
    (whole,) = epoch_table(time, values, np.array([2.03]), np.array([27.77]))
    sums = EpochSums(2.03, 27.77)
    seen = measure_seen_seconds(time)
    for first in range(0, time.size - 1, piece - 1):  # neighbours share a tick
        part = slice(first, first + piece)
        weights = seen[part].copy()
        weights[0] = 0.0
        sums.add(time[part], weights, {name: column[part] for name, column in values.items()})
    found = sums.summary()
    assert found.mean_metrics == pytest.approx(whole.mean_metrics)
    assert (found.seen_share, found.energy_joules) == pytest.approx((whole.seen_share, whole.energy_joules))
    assert whole.energy_joules == pytest.approx(55.0 * 25.74)


def test_a_metric_without_values_has_no_mean() -> None:
    (epoch,) = epoch_table(
        np.arange(0.0, 20.0, 0.1), {"sm_active": np.full(200, np.nan)}, np.array([1.0]), np.array([9.0])
    )
    assert np.isnan(epoch.mean_metrics["sm_active"])
    assert np.isnan(epoch.energy_joules)


@pytest.mark.parametrize(("before", "after"), [(20, 4), (8, 8), (4, 40), (150, 30)])
@pytest.mark.parametrize("change", [0.15, -0.15, 1.0])
def test_a_lasting_change_of_duration_is_found_at_its_epoch(before: int, after: int, change: float) -> None:
    rng = np.random.default_rng(before + after)
    durations = np.concatenate([np.full(before, 40.0), np.full(after, 40.0 * (1 + change))])
    trend = duration_trend(durations * rng.normal(1, 0.02, durations.size))
    assert len(trend.change_points) == 1
    point = trend.change_points[0]
    assert abs(point.epoch - before) <= 1
    assert point.change == pytest.approx(change, abs=0.03)
    assert trend.recent_s == pytest.approx(40.0 * (1 + change), rel=0.03)


def test_steady_epochs_give_hardly_any_false_alarm() -> None:
    rng = np.random.default_rng(4)
    alarms = sum(
        bool(duration_trend(30 * rng.lognormal(0, scatter, n)).change_points)
        for n in (6, 20, 100)
        for scatter in (0.003, 0.02, 0.1)
        for _ in range(30)
    )
    assert alarms <= 0.02 * 270


def test_a_single_pause_is_no_change() -> None:
    durations = np.full(30, 12.0) * np.random.default_rng(2).normal(1, 0.01, 30)
    durations[[7, 19]] *= 2.5
    assert duration_trend(durations).change_points == ()
    # Hardly any scatter, and the last one was cut short.
    regular = np.full(12, 20.0) * np.random.default_rng(2).normal(1, 0.0002, 12)
    for at in range(12):
        durations = regular.copy()
        durations[-1] *= 0.96
        durations[at] *= 1.5
        assert duration_trend(durations).change_points == (), at


def test_single_long_epochs_are_found_and_what_recurs_is_none() -> None:
    durations = np.full(30, 12.0) * np.random.default_rng(2).normal(1, 0.01, 30)
    durations[7] *= 1.5
    durations[19] *= 2.5
    assert [(at, pytest.approx(times, rel=0.05)) for at, times in long_epochs(durations)] == [(19, 2.5), (7, 1.5)]
    durations[::5] *= 1.5
    assert long_epochs(durations) == []
    # A change for good is none, nor is drift, nor what scatters as much.
    assert long_epochs(np.concatenate([np.full(10, 12.0), np.full(10, 18.0)])) == []
    assert long_epochs(12.0 * 1.03 ** np.arange(30)) == []
    assert long_epochs(12.0 * np.random.default_rng(3).lognormal(0, 0.2, 30)) == []


def test_gradual_growth_is_told_per_epoch() -> None:
    trend = duration_trend(10 * 1.002 ** np.arange(12) * np.random.default_rng(5).normal(1, 0.002, 12))
    assert trend.change_per_epoch == pytest.approx(0.002, abs=0.0005)
    assert trend.change_per_epoch_low < 0.002 < trend.change_per_epoch_high


@pytest.mark.parametrize("durations", [[], [3.0, 0.0], [1.0, -2.0]])
def test_durations_that_are_none_are_refused(durations: list[float]) -> None:
    with pytest.raises(ValueError, match="positive"):
        duration_trend(np.array(durations))


def test_nine_of_ten_ends_lie_in_their_interval_though_the_pace_drifts() -> None:
    rng = np.random.default_rng(6)
    inside = []
    for _ in range(300):
        durations = np.concatenate([[50.0], rng.normal(30.0, 0.6, 39)])
        done = int(rng.integers(5, 35))
        durations[done:] *= rng.normal(1.0, 0.05)
        ends = np.cumsum(durations)
        starts = np.concatenate([[0.0], ends[:-1]])
        estimate = estimate_end(starts[:done], ends[:done], 40, float(ends[done - 1]))
        inside.append(estimate.end_low_s <= ends[-1] <= estimate.end_high_s)
    assert 0.86 <= np.mean(inside) <= 0.97


def test_the_end_is_told_from_the_epochs_since_the_slow_down() -> None:
    ends = np.cumsum([*[20.0] * 10, *[40.0] * 10])
    estimate = estimate_end(np.concatenate([[0.0], ends[:-1]]), ends, 30, float(ends[-1]))
    assert (estimate.epochs_done, estimate.epochs_left) == (20, 10)
    assert estimate.end_s == pytest.approx(ends[-1] + 400.0, rel=0.01)


def test_a_job_that_is_late_is_not_said_to_have_ended() -> None:
    ends = np.arange(1, 11) * 10.0
    estimate = estimate_end(ends - 10.0, ends, 11, now_s=500.0)
    assert (estimate.end_low_s, estimate.end_s) == (500.0, 500.0)


def test_a_finished_job_ends_with_its_last_epoch() -> None:
    ends = np.arange(1, 6) * 10.0
    assert estimate_end(ends - 10.0, ends, 5, 80.0).end_high_s == 50.0


def test_what_recurs_every_few_epochs_is_counted_as_often_as_it_is_to_come() -> None:
    durations = np.full(20, 10.0)
    durations[4::5] += 6.0  # a checkpoint after every fifth
    ends = np.cumsum(durations)
    estimate = estimate_end(ends - durations, ends, 40, float(ends[-1]))
    assert estimate.end_s == pytest.approx(2 * ends[-1], rel=0.01)
    assert "longer" in estimate.basis


@pytest.mark.parametrize(("trained_s", "done"), [([[0.0, 200.0]], 17), ([[0.0, 100.0], [120.0, 200.0]], 15)])
def test_a_gap_is_epochs_that_were_not_seen_or_a_pause(trained_s: list[list[float]], done: int) -> None:
    starts = np.array([*range(0, 100, 10), *range(120, 170, 10)], dtype=float)
    estimate = estimate_end(starts, starts + 10.0, 30, 170.0, training_s=np.array(trained_s))
    assert estimate.epochs_done == done


@pytest.mark.parametrize(("longer_s", "done"), [(19.0, 14), (14.0, 15)])
def test_a_gap_as_long_as_a_longer_epoch_that_was_seen_is_one(longer_s: float, done: int) -> None:
    durations = np.full(14, 10.0)
    durations[[4, 9]] = longer_s, 19.0  # with an evaluation that looks like training; the tenth was not seen
    ends = np.cumsum(durations)
    starts, ends = np.delete(ends - durations, 9), np.delete(ends, 9)
    trained_s = np.array([[0.0, ends[-1]]])
    assert estimate_end(starts, ends, 30, float(ends[-1]), training_s=trained_s).epochs_done == done


def test_epochs_in_a_gap_are_counted_by_what_one_trains() -> None:
    # Each trains for 16 s of 20; between the sixth and the eighth, which were told, it began anew, which took 24 s.
    starts = np.append(np.arange(7) * 20.0, np.arange(8, 16) * 20.0 + 24.0)
    trained = np.array([[start, start + 16.0] for start in np.sort(np.append(starts, 7 * 20.0 + 24.0))])
    estimate = estimate_end(starts, starts + 20.0, 24, 344.0, training_s=trained)
    assert estimate.epochs_done == 16


@pytest.mark.parametrize(
    ("rests_s", "later_s"), [([], 0.0), ([(105, 107), (118, 121), (130, 134)], 0.0), ([(105, 131)], 26.0)]
)
def test_a_long_pause_since_the_last_epoch_comes_on_top_and_many_short_ones_do_not(
    rests_s: list[tuple[float, float]], later_s: float
) -> None:
    starts = np.arange(0.0, 100.0, 10.0)
    edges = np.array([0.0, *[edge for rest in rests_s for edge in rest], 160.0]).reshape(-1, 2)
    estimate = estimate_end(starts, starts + 10.0, 30, 160.0, training_s=edges)
    assert estimate.end_s == pytest.approx(300.0 + later_s)


@pytest.mark.parametrize(("first_s", "done"), [(9.0, 10), (33.0, 13), (36.0, 13)])
def test_what_it_trained_right_before_the_first_epoch_that_was_seen_is_epochs_too(first_s: float, done: int) -> None:
    starts = first_s + np.arange(0.0, 100.0, 10.0)
    estimate = estimate_end(starts, starts + 10.0, 30, first_s + 100, training_s=np.array([[0.0, first_s + 100]]))
    assert (estimate.epochs_done, estimate.end_s) == (done, pytest.approx(first_s + 100 + 10 * (30 - done)))
    # It may have been a start.
    other = estimate_end(starts, starts + 10.0, 30, first_s + 100)
    assert estimate.end_high_s - estimate.end_low_s > 1.1 * (other.end_high_s - other.end_low_s)


def test_what_looked_like_training_before_a_rest_was_a_start_and_no_epochs() -> None:
    starts = 33.0 + np.arange(0.0, 100.0, 10.0)
    trained_s = np.array([[0.0, 24.0], [26.0, 27.0], [33.0, 133.0]])
    assert estimate_end(starts, starts + 10.0, 30, 133.0, training_s=trained_s).epochs_done == 10
    short_rests_s = np.array([[3.0, 10.0], [12.0, 31.0], [33.0, 133.0]])
    assert estimate_end(starts, starts + 10.0, 30, 133.0, training_s=short_rests_s).epochs_done == 12


def test_longer_epochs_to_come_are_counted_by_their_rhythm() -> None:
    durations = np.full(24, 10.0)
    durations[3::4] += 20.0
    ends = np.cumsum(durations)
    for done in range(9, 22):
        estimate = estimate_end(ends[:done] - durations[:done], ends[:done], 24, float(ends[done - 1]))
        assert estimate.end_s == pytest.approx(ends[-1], rel=0.01)


@pytest.mark.parametrize(("longer", "end_s"), [(8, 330.0), (2, 310.0)])
def test_one_longer_epoch_is_expected_again_until_it_is_overdue(longer: int, end_s: float) -> None:
    durations = np.full(12, 10.0)
    durations[longer] += 10.0
    ends = np.cumsum(durations)
    estimate = estimate_end(ends - durations, ends, 30, float(ends[-1]))
    assert estimate.end_s == pytest.approx(end_s)


def test_an_evaluation_that_was_told_as_an_epoch_is_none() -> None:
    trained = np.array([[10.0 * i + 6.0 * (i // 4), 10.0 * i + 6.0 * (i // 4) + 10.0] for i in range(20)])
    starts = np.sort(np.append(trained[:, 0], trained[3::4, 1]))
    ends = np.append(starts[1:], starts[-1] + 6.0)
    estimate = estimate_end(starts, ends, 40, float(ends[-1]), training_s=trained)
    assert (estimate.epochs_done, estimate.end_s) == (20, pytest.approx(2 * ends[-1], rel=0.01))
    # Nor does it count against a total that they alone do not reach.
    assert estimate_end(starts, ends, 22, float(ends[-1]), training_s=trained).epochs_left == 2
    with pytest.raises(TotalPassedError, match="20 epochs are over, more than the 19"):
        estimate_end(starts, ends, 19, float(ends[-1]), training_s=trained)


def test_an_evaluation_as_long_as_an_epoch_is_none_and_epochs_in_a_row_without_known_training_are_some() -> None:
    starts = np.arange(0.0, 270.0, 10.0)
    trained = np.array([[start, start + 10.0] for start in starts if start % 90 != 80])
    ends = starts + 10.0
    assert estimate_end(starts, ends, 48, 270.0, training_s=trained).epochs_done == 24
    unknown = np.array([[start, start + 10.0] for start in starts if not 50 <= start < 80])
    assert estimate_end(starts, ends, 48, 270.0, training_s=unknown).epochs_done == 27


def test_an_evaluation_that_was_told_as_an_epoch_is_none_though_the_next_epoch_was_not_seen() -> None:
    starts = np.delete(np.arange(0.0, 200.0, 10.0), 6)
    trained_s = np.array([[0.0, 50.0], [60.0, 200.0]])
    estimate = estimate_end(starts, starts + 10.0, 40, 200.0, training_s=trained_s)
    assert estimate.epochs_done == 19


def test_evaluations_as_long_as_two_epochs_are_none_where_they_come_again() -> None:
    starts = np.arange(0.0, 240.0, 10.0)
    trained_s = np.array([[80.0 * i, 80.0 * i + 60.0] for i in range(3)])
    estimate = estimate_end(starts, starts + 10.0, 36, 240.0, training_s=trained_s)
    assert (estimate.epochs_done, estimate.end_s) == (18, pytest.approx(480.0, rel=0.01))


def test_epochs_that_were_not_seen_before_anything_is_known_of_the_states_are_counted() -> None:
    starts = np.array([0.0, 30.0, *np.arange(40.0, 200.0, 10.0)])
    estimate = estimate_end(starts, starts + 10.0, 40, 200.0, training_s=np.array([[150.0, 200.0]]))
    assert estimate.epochs_done == 20


def test_what_was_lost_since_the_last_epoch_may_come_again() -> None:
    starts = np.arange(0.0, 100.0, 10.0)
    estimate = estimate_end(starts, starts + 10.0, 30, 160.0, training_s=np.array([[0.0, 105.0], [131.0, 160.0]]))
    assert estimate.end_high_s - estimate.end_s > 26.0 > estimate.end_s - estimate.end_low_s


# Where it is not known to train, the silence may be the first longer one: of the 40 to come, as many may hold another
# as of the 19 that count.
@pytest.mark.parametrize(
    ("silent_s", "further_s", "is_known"),
    [(0.0, 0.0, True), (44.0, 0.0, True), (80.0, 0.85 * 80.0, True), (80.0, 80.0 * (1 + 40 / 19), False)],
)
def test_the_interval_reaches_further_where_no_epoch_has_been_seen_for_long(
    silent_s: float, further_s: float, *, is_known: bool
) -> None:
    starts, now_s = np.arange(0.0, 200.0, 10.0), 200.0 + silent_s
    training_s = np.array([[0.0, now_s]]) if is_known else None
    estimate = estimate_end(starts, starts + 10.0, 60, now_s, training_s=training_s)
    assert estimate.end_s == pytest.approx(600.0)
    low_s, high_s = estimate.end_s - estimate.end_low_s, estimate.end_high_s - estimate.end_s
    assert high_s == pytest.approx(math.hypot(low_s, further_s))
    assert ("none seen for the last 80 s" in estimate.basis) == (further_s > 0)


def test_where_longer_epochs_are_known_a_silence_is_not_taken_for_the_first_of_them() -> None:
    durations = np.full(20, 10.0)
    durations[4::5] = 15.0
    ends = np.cumsum(durations)
    now_s = float(ends[-1]) + 80.0
    estimate = estimate_end(ends - durations, ends, 60, now_s, training_s=np.array([[0.0, now_s]]))
    low_s, high_s = estimate.end_s - estimate.end_low_s, estimate.end_high_s - estimate.end_s
    assert high_s == pytest.approx(math.hypot(low_s, 0.85 * 80.0))


def test_epochs_of_another_pace_are_told_by_rests_before_anybody_follows_them() -> None:
    bounds = np.concatenate([np.arange(0.0, 801.0, 100.0), 800.0 + 130.0 * np.arange(1, 6)])
    training_s = np.column_stack([bounds[:-1], bounds[:-1] + 0.8 * np.diff(bounds)])
    estimate = estimate_end(bounds[:8], bounds[1:9], 20, 1420.0, training_s=training_s)
    assert estimate.epochs_left == 8
    assert estimate.end_s == pytest.approx(1320.0 + 8 * 130.0)
    assert "told by its rests" in estimate.basis
    # Rests that do not come once in each tell nothing of those to come.
    halves = np.sort(np.concatenate([training_s, training_s + 5.0]).ravel()).reshape(-1, 2)[2:]
    assert "told by its rests" not in estimate_end(bounds[:8], bounds[1:9], 20, 1420.0, training_s=halves).basis


def test_rests_tell_of_another_pace_wherever_the_boundaries_lie_around_them() -> None:
    bounds = np.concatenate([np.arange(0.0, 801.0, 100.0), 800.0 + 130.0 * np.arange(1, 6)])
    training_s = np.column_stack([bounds[:-1], bounds[:-1] + 0.8 * np.diff(bounds)])
    # A boundary is placed a second too early here, and one too late there.
    placed = bounds[:9] + np.where(np.arange(9) % 2, 1.0, -1.0)
    estimate = estimate_end(placed[:8], placed[1:9], 20, 1420.0, training_s=training_s)
    assert estimate.epochs_left == 8
    assert "told by its rests" in estimate.basis


def test_what_is_told_of_training_counts_for_nothing_where_epochs_hardly_train_by_it() -> None:
    starts = np.arange(0.0, 200.0, 10.0)
    training_s = np.array([[-400.0, -200.0], *([start, start + 1.0] for start in starts)])
    estimate = estimate_end(starts, starts + 10.0, 60, 200.0, training_s=training_s)
    assert estimate == estimate_end(starts, starts + 10.0, 60, 200.0)


def test_the_interval_is_wider_where_longer_epochs_are_unlike() -> None:
    def half_s(*longer_s: float) -> float:
        durations = np.full(40, 10.0)
        durations[[5, 14, 30]] = longer_s
        ends = np.cumsum(durations)
        estimate = estimate_end(ends - durations, ends, 80, float(ends[-1]))
        return estimate.end_high_s - estimate.end_s

    assert half_s(12.0, 12.0, 66.0) > 1.2 * half_s(30.0, 30.0, 30.0)


def test_shorter_epochs_before_the_first_that_was_seen_are_told_by_rests() -> None:
    bounds = np.concatenate([[0.0, 60.0, 130.0, 210.0], 210.0 + 100.0 * np.arange(1, 8)])
    training_s = np.column_stack([bounds[:-1], np.diff(bounds) - 20.0 + bounds[:-1]])
    estimate = estimate_end(bounds[3:-1], bounds[4:], 20, float(bounds[-1]), training_s=training_s)
    # By 80 s of training each, what was trained before it would be 1.9.
    assert estimate.epochs_done == 9


def test_a_longer_epoch_that_a_boundary_cuts_is_one_and_not_two_in_a_row() -> None:
    durations = np.tile([*[10.0] * 6, 16.0, 14.0], 3)
    ends = np.cumsum(durations)
    estimate = estimate_end(ends - durations, ends, 48, float(ends[-1]))
    assert estimate.end_s == pytest.approx(2 * ends[-1])
    assert "3 longer ones" in estimate.basis


def test_what_is_left_drifts_the_less_the_more_has_been_seen() -> None:
    def half_s(done: int) -> float:
        starts = np.arange(0.0, 10.0 * done, 10.0)
        estimate = estimate_end(starts, starts + 10.0, done + 20, 10.0 * done)
        return estimate.end_s - estimate.end_low_s

    assert half_s(20) > 1.645 * 0.05 * 200.0 > 1.6 * half_s(80)


def test_what_was_told_as_an_epoch_and_hardly_trained_may_have_been_one() -> None:
    starts = np.arange(0.0, 120.0, 10.0)
    trained_s = np.array([[0.0, 50.0], [59.0, 120.0]])
    estimate = estimate_end(starts, starts + 10.0, 30, 120.0, training_s=trained_s)
    assert estimate.epochs_done == 11
    assert estimate.end_s - estimate.end_low_s > 10.0 * 0.8


@pytest.mark.parametrize("spans_s", [np.empty((0, 2)), np.array([[100.0, 100.0]])])
def test_training_that_has_no_length_is_training_of_which_nothing_is_known(spans_s: FloatArray) -> None:
    starts = np.arange(0.0, 100.0, 10.0)
    known = estimate_end(starts, starts + 10.0, 40, 100.0)
    assert estimate_end(starts, starts + 10.0, 40, 100.0, training_s=spans_s) == known


def test_the_interval_is_wide_where_the_pace_has_changed_before() -> None:
    def width(durations: list[float]) -> float:
        ends = np.cumsum(durations)
        estimate = estimate_end(ends - durations, ends, 40, float(ends[-1]))
        return (estimate.end_high_s - estimate.end_low_s) / (estimate.end_s - ends[-1])

    assert width([10.0] * 20) < 0.2
    assert width([*[10.0] * 7, *[14.0] * 7, *[11.0] * 6]) > 0.4
    # How much it changes is known less well of one change than of three that are alike.
    assert width([*[10.0] * 10, *[10.8] * 10]) > width([10.0, *([10.0] * 5 + [10.8] * 5) * 2])


@pytest.mark.parametrize("trained_s", [(0.0, 600.0), (-500.0, 100.0)])
def test_no_end_is_told_where_the_epochs_that_were_seen_are_a_sixth_of_the_training(
    trained_s: tuple[float, float],
) -> None:
    starts = np.arange(0.0, 100.0, 10.0)
    with pytest.raises(TotalEpochsError, match="only 17% of what it has trained"):
        estimate_end(starts, starts + 10.0, 40, trained_s[1], training_s=np.array([trained_s]))


@pytest.mark.parametrize("known_from_s", [0.0, 60.0, 280.0, 395.0, 400.0])
def test_epochs_from_before_anything_is_known_of_its_states_are_training_that_was_seen(known_from_s: float) -> None:
    starts = np.arange(0.0, 400.0, 10.0)
    estimate = estimate_end(starts, starts + 10.0, 80, 405.0, training_s=np.array([[known_from_s, 405.0]]))
    assert (estimate.epochs_done, estimate.end_s) == (40, pytest.approx(800.0))


def test_a_total_between_the_epochs_and_what_was_told_as_some_is_not_said_to_be_passed() -> None:
    trained = np.array([[10.0 * i + 6.0 * (i // 4), 10.0 * i + 6.0 * (i // 4) + 10.0] for i in range(20)])
    starts = np.sort(np.append(trained[:, 0], trained[3::4, 1]))
    ends = np.append(starts[1:], starts[-1] + 6.0)
    much = np.append(trained, [[1000.0, 2000.0]], axis=0)
    with pytest.raises(TotalEpochsError, match="only 17% of what it has trained") as told:
        estimate_end(starts, ends, 22, 2000.0, training_s=much)
    assert not isinstance(told.value, TotalPassedError)


def test_earlier_runs_bound_the_end_of_one_that_goes_on() -> None:
    estimate = estimate_from_others([1000.0, 1100.0, 900.0, 1050.0], 50.0, 500.0)
    assert 500.0 < estimate.end_low_s < estimate.end_s == pytest.approx(50 + 1025, abs=10)
    assert estimate.end_high_s < 50 + 1500
    with pytest.raises(TotalEpochsError, match="no earlier run of it took longer than 1100 s"):
        estimate_from_others([1000.0, 1100.0], 50.0, 2000.0)


@pytest.mark.parametrize(("done", "total", "words"), [(2, 9, "at least 3"), (5, 4, "more than the 4")])
def test_impossible_totals_are_refused(done: int, total: int, words: str) -> None:
    ends = np.arange(1, done + 1) * 10.0
    with pytest.raises(TotalEpochsError, match=words):
        estimate_end(ends - 10.0, ends, total, 100.0)


def test_idle_and_stalls_are_told_apart() -> None:
    trace, starts = training_trace(20.0, 6, validation=0.0)
    values = {name: column.copy() for name, column in trace.values.items()}
    for start in starts:  # two seconds of idle belong to every epoch
        values["dram_active"][(trace.time_s > start + 10) & (trace.time_s <= start + 12)] = 0.0
    values["dram_active"][(trace.time_s > starts[3] + 14) & (trace.time_s <= starts[3] + 19)] = 0.0
    shares = time_shares(trace.time_s, values, starts, starts + 20.0)
    assert shares.idle == pytest.approx((6 * 2 + 5) / 120, abs=0.01)
    assert shares.stalled == pytest.approx(5 / 120, abs=0.01)


def test_shares_of_nothing_are_not_numbers() -> None:
    empty = np.empty(0)
    assert np.isnan(time_shares(np.arange(50.0), {"sm_active": np.zeros(50)}, empty, empty).idle)


@pytest.mark.parametrize("rate", [0.012, -0.012, 0.03])
def test_drift_is_told_as_drift_and_not_as_steps(rate: float) -> None:
    rng = np.random.default_rng(8)
    for epochs in (12, 24, 40):
        trend = duration_trend(20.0 * (1 + rate) ** np.arange(epochs) * rng.normal(1, 0.005, epochs))
        assert trend.change_points == ()
        assert trend.change_per_epoch == pytest.approx(rate, abs=0.15 * abs(rate))


def test_a_step_and_then_drift_are_both_told() -> None:
    durations = np.concatenate([np.full(15, 30.0), 36.0 * 1.01 ** np.arange(20)])
    trend = duration_trend(durations * np.random.default_rng(9).normal(1, 0.004, durations.size))
    (point,) = trend.change_points
    assert (point.epoch, point.change) == (15, pytest.approx(0.2, abs=0.03))
    assert trend.change_per_epoch == pytest.approx(0.01, abs=0.002)
