"""How often a GPU must be read, decided from its readings alone."""

import numpy as np
import pytest

from gpusonde.agent.rhythm import SLOWEST_S, Rhythm


def readings(activity, seconds, *, interval_s=0.1, columns=1):
    """Read what ``activity(second)`` says as often as the rhythm asks; the times and the distances asked for then."""
    rhythm = Rhythm(interval_s, columns)
    times, asked, now = [], [], 0.0
    while now < seconds:
        rhythm.see(now, np.atleast_1d(activity(now)))
        times.append(now)
        asked.append(rhythm.interval_s)
        now = round(now + rhythm.interval_s, 6)
    return np.array(times), np.array(asked), rhythm


def epochs(period_s, *, noise=0.02, seed=1, begin_s=0.0):
    """Training at 0.8, a fifth of each epoch validation at 0.3, with noise."""
    rng = np.random.default_rng(seed)

    def activity(second):
        level = 0.8 if (second - begin_s) % period_s < 0.8 * period_s else 0.3
        return level + noise * rng.normal()

    return activity


def asked_at(times, asked, second):
    return asked[np.searchsorted(times, second, side="right") - 1]


def test_a_young_job_is_read_at_full_rate_and_an_old_one_rarely():
    times, asked, rhythm = readings(epochs(60.0), 1200.0)
    assert set(asked[times < 10]) == {0.1}
    assert asked_at(times, asked, 1000.0) == pytest.approx(SLOWEST_S)
    # The first validation is news, the later ones are not.
    assert rhythm.changes == 1
    assert times.size < 1200 / 0.1 / 9


@pytest.mark.parametrize("period_s", [2.0, 4.0, 8.0, 15.0])
def test_a_short_cycle_keeps_ten_readings(period_s):
    _, asked, rhythm = readings(epochs(period_s), 600.0)
    assert asked.max() <= period_s / 10 + 1e-9
    assert rhythm.period_s == pytest.approx(period_s, rel=0.05)


@pytest.mark.parametrize(("before_s", "after_s"), [(20.0, 30.0), (30.0, 20.0), (20.0, 5.0), (40.0, 52.0), (60.0, 10.0)])
def test_another_tempo_brings_the_full_rate_back_within_one_cycle(before_s, after_s):
    at = 10 * before_s
    slow, fast = epochs(before_s), epochs(after_s, seed=2, begin_s=at)
    times, asked, _ = readings(lambda second: slow(second) if second < at else fast(second), at + 200.0)
    assert asked[(times > at - 20) & (times < at)].min() > 0.1
    back = times[(times >= at) & (asked == 0.1)]
    assert back.size
    assert back[0] - at <= max(before_s, after_s)


def test_another_level_brings_the_full_rate_back_with_the_next_reading():
    steady = epochs(20.0)
    times, asked, _ = readings(lambda second: steady(second) * (1.0 if second < 300 else 1.6), 320.0)
    back = times[(times >= 300) & (asked == 0.1)]
    assert back[0] - 300 <= SLOWEST_S


def test_a_second_job_after_a_pause_is_young_again():
    job = epochs(30.0)

    def activity(second):
        return job(second) if second < 600 or second >= 900 else 0.0

    times, asked, _ = readings(activity, 960.0)
    assert asked_at(times, asked, 895.0) >= 1.0
    began = times[times >= 900][0]
    assert set(asked[(times >= began + 0.2) & (times < began + 5)]) == {0.1}


def test_noise_and_a_constant_have_no_cycle_that_would_hold_the_rate_up():
    rng = np.random.default_rng(3)
    _, asked, _ = readings(lambda second: 0.5 + 0.1 * rng.normal(), 600.0)
    assert asked[-1] == pytest.approx(SLOWEST_S)
    _, asked, rhythm = readings(lambda second: 0.0, 100.0)
    assert asked[-1] == 1.0  # work may begin
    assert rhythm.changes == 0


def test_a_reading_with_a_missing_value_decides_nothing():
    rhythm = Rhythm(0.1, 2)
    for number in range(1000):
        rhythm.see(0.1 * number, [0.5, np.nan])
    assert rhythm.interval_s == 0.1


def test_two_metrics_are_followed_where_only_one_of_them_varies():
    job = epochs(15.0)
    _, asked, rhythm = readings(lambda second: np.array([1.0, 300 * job(second)]), 400.0, columns=2)
    assert rhythm.period_s == pytest.approx(15.0, rel=0.05)
    assert asked.max() <= 1.5


def test_an_interval_beyond_the_slowest_is_kept():
    _, asked, _ = readings(epochs(60.0), 300.0, interval_s=5.0)
    assert set(asked) == {5.0}
