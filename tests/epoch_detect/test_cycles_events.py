"""Readings of constructed signals: the training clock, the event comb, lines between events, and their phases."""

import numpy as np
import pytest

from gpusonde.epoch_detect.cycles.events import CycleReading, Load, find_events, read_events, scale_load
from gpusonde.epoch_detect.cycles.folds import Autocorrelation, fold_cycles
from gpusonde.epoch_detect.cycles.lines import cut_stretches, lock_phase, place_cycles, read_lines
from gpusonde.epoch_detect.ticks import Ticks
from gpusonde.telemetry import FloatArray


def load(values: FloatArray, step_s: float = 0.1) -> Load:
    rows = np.atleast_2d(values)
    return Load(0.0, step_s, rows, np.empty((0, rows.shape[1])), tuple(f"metric {i}" for i in range(len(rows))))


def noisy(level: FloatArray, noise: float, seed: int = 1) -> FloatArray:
    return level + np.random.default_rng(seed).normal(0, noise, level.size)


def best(readings: list[CycleReading], source: str) -> CycleReading:
    return max((r for r in readings if r.source == source), key=lambda r: r.evidence)


def test_the_training_clock_counts_training_seconds_whatever_happens_between() -> None:
    parts, ends, time = [], [], 0
    for number in range(12):
        parts += [np.ones(200)]
        if number in (3, 7):  # a stall in the middle of an epoch
            parts[-1] = np.concatenate([np.ones(120), np.zeros(90), np.ones(80)])
        parts += [np.full(20 if number % 4 else 60, 0.3)]  # validation, longer in every fourth
        time += sum(p.size for p in parts[-2:])
        ends.append(time)
    found = best(read_events(load(noisy(np.concatenate(parts), 0.02))), "clock")
    assert found.period_s == pytest.approx(22.0, rel=0.02)
    assert found.starts_s.size >= 12
    inside = np.array(ends[:-1]) * 0.1
    assert np.abs(found.starts_s[:, None] - inside).min(axis=0).max() < 0.3


def test_identical_narrow_dips_at_even_distance_are_read_though_some_are_missing() -> None:
    level = np.ones(6000)
    dips = np.arange(90, 6000, 237)
    rng = np.random.default_rng(3)
    seen = dips[rng.random(dips.size) > 0.25]
    level[seen] = level[seen + 1] = 0.9
    level[rng.integers(0, 6000, 6)] = 0.9  # and some that mean nothing
    found = best(read_events(load(noisy(level, 0.015))), "comb")
    assert found.period_s == pytest.approx(23.7, rel=0.003)
    teeth = found.starts_s / 0.1
    assert np.abs(teeth[:, None] - (dips[2:-2] + 2)).min(axis=0).max() < 3


def test_a_few_marks_at_even_distance_are_read_though_the_first_comes_late_and_dips_between_are_uneven() -> None:
    level = np.ones(860)
    level[390:430:4] = level[720:760:4] = 0.8  # narrow, and in two of four intervals: they cost no training
    for mark in range(340, 800, 112):
        level[mark : mark + 5] = 0.3
    level[12:18] = 0.3  # start-up
    found = best(read_events(load(noisy(level, 0.005), 2.0)), "clock")
    assert found.period_s == pytest.approx(224.0, rel=0.01)
    # Four intervals in four, and in training seconds from the start-up on no more than three in five.
    assert found.evidence > 4


def test_a_constant_load_has_no_events() -> None:
    assert find_events(np.ones((1, 500)), np.ones(500)) == []
    assert read_events(load(np.ones(500))) == []


def test_steps_are_read_between_events_that_start_their_phase_anew() -> None:
    rng = np.random.default_rng(5)
    parts, marks, place = [], [], 0
    for _ in range(14):
        length = int(rng.integers(240, 300))
        parts += [1 + 0.05 * (np.arange(length) % 17.3 < 5), np.full(12, 0.2)]
        marks.append((place + length, place + length + 12))
        place += length + 12
    job = load(noisy(np.concatenate(parts), 0.03))
    stretches = cut_stretches(job, 0.1 * np.array(marks))
    assert len(stretches) == 14
    found = best(read_lines([job], stretches), "line")
    assert found.period_s == pytest.approx(1.73, rel=0.005)
    lock = lock_phase(job, stretches, found.period_s / 0.1)
    assert lock is not None
    assert lock.agreement > 0.5
    starts, whole = place_cycles(job, lock)
    # The step starts where its burst ends or begins: always at the same phase after the event.
    after = [starts[starts >= 0.1 * (end - 1)][0] - 0.1 * end for _, end in marks[:-1]]
    assert np.std(np.exp(2j * np.pi * np.array(after) / 1.73)) < 0.35
    assert whole == pytest.approx(sum((b - a) / 17.3 for a, b in stretches), abs=16)


def test_ramp_and_tail_of_a_run_are_no_steps() -> None:
    steps = 1 + 0.1 * (np.arange(20 * 40) % 40 < 12)
    ramp, tail = np.linspace(0.1, 1, 60), np.linspace(1, 0.4, 90)
    job = load(noisy(np.concatenate([ramp, steps, tail]), 0.01))
    lock = lock_phase(job, np.array([[0, len(job)]]), 40.0)
    assert lock is not None
    starts, whole = place_cycles(job, lock)
    assert whole == pytest.approx(20, abs=1)
    assert starts[0] > 4


def test_noise_has_no_steady_phase() -> None:
    job = load(noisy(np.ones(4000), 0.05))
    lock = lock_phase(job, np.array([[0, 4000]]), 23.0)
    assert lock is not None
    assert lock.steadiness < 0.6
    assert lock.explained < 0.1


def test_many_devices_show_a_line_that_one_hides() -> None:
    step = 0.012 * np.sin(2 * np.pi * np.arange(3000) / 13.7)
    devices = [load(noisy(1 + step, 0.06, seed)) for seed in range(16)]
    whole = np.array([[0, 3000]])
    found = best(read_lines(devices, whole), "line")
    assert found.period_s == pytest.approx(1.37, rel=0.005)


def test_noise_that_falls_with_the_frequency_does_not_move_a_line_of_few_cycles() -> None:
    rng = np.random.default_rng(11)
    stretches = np.arange(24)[:, None] * 70 + [0, 58]

    def device() -> Load:
        red = np.cumsum(rng.normal(0, 0.02, 24 * 70))
        red -= np.convolve(red, np.ones(101) / 101, mode="same")
        phase = np.repeat(rng.random(24), 70)
        return load(1 + red + 0.1 * np.sin(2 * np.pi * (np.arange(24 * 70) / 5.385 + phase)), step_s=2.0)

    found = best(read_lines([device() for _ in range(16)], stretches), "line")
    assert found.period_s == pytest.approx(10.77, rel=0.001)


@pytest.mark.parametrize("seed", range(4))
def test_a_plain_line_is_read_at_its_peak_though_one_event_was_not_seen(seed: int) -> None:
    parts, marks, place = [], [], 0
    for number in range(24):
        parts += [1 + 0.1 * np.sin(2 * np.pi * np.arange(60) / 5.385), np.full(8, 1.0)]
        if number != 5:
            marks.append((place + 60, place + 68))
        place += 68
    job = load(noisy(np.concatenate(parts), 0.01, seed), step_s=2.0)
    stretches = cut_stretches(job, 2.0 * np.array(marks))
    assert (np.diff(stretches) > 100).sum() == 1
    assert best(read_lines([job], stretches), "line").period_s == pytest.approx(10.77, rel=0.007)


@pytest.mark.parametrize("cells", [3, 24, 40])
def test_short_loads_give_no_answer_and_no_exception(cells: int) -> None:
    job = load(noisy(np.ones(cells), 0.1))
    read_events(job)
    read_lines([job], np.array([[0, cells]]))
    assert lock_phase(job, np.array([[0, cells]]), float(cells)) is None


def test_metrics_are_scaled_from_idle_and_traffic_is_kept_apart() -> None:
    time_us = np.arange(400) * 100_000
    busy = np.r_[np.zeros(50), np.ones(300), np.zeros(50)]
    values = np.array([60 + 200 * busy, 0.9 * busy, 4e9 * busy], dtype=np.float32)
    ticks = Ticks(time_us, values, ("power_watts", "sm_active", "pcie_tx_bytes_per_second"))
    found = scale_load(ticks, np.array([60.0, 0.0, 0.0]))
    assert found is not None
    assert found.names[-1] == "pcie_tx_bytes_per_second"
    assert found.values.shape == (2, len(found))
    assert found.traffic.shape == (1, len(found))
    np.testing.assert_allclose(np.median(found.values, axis=1), 1.0)
    assert scale_load(Ticks(time_us, np.ones_like(values), ticks.names)) is None


def cycle(period_s: float, job: Load) -> CycleReading:
    starts = np.arange(0.0, job.end_s + 1e-6, period_s)
    return CycleReading("clock", period_s, 1.0, starts.size - 1, np.empty((0, 2)), starts)


def nested(parts: int = 4, parents: int = 8) -> Load:
    """Parts of 10 s that end with a dip; behind the last of each parent a longer one. A parent takes 40 s."""
    part = np.concatenate([np.ones(90), np.full(10, 0.3)])
    last = np.concatenate([np.ones(70), np.full(30, 0.1)])
    return load(noisy(np.tile(np.concatenate([np.tile(part, parts - 1), last]), parents), 0.02))


def test_a_multiple_of_a_cycle_has_nothing_of_its_own() -> None:
    job = nested()
    parent, twice, none = (fold_cycles(job, cycle(p, job)) for p in (40.0, 80.0, 37.0))
    assert parent.explained > 0.9
    assert parent.own > 0.1
    assert twice.explained > 0.9
    assert abs(twice.own) < 0.02
    assert none.explained < 0.5


def test_what_is_left_of_a_part_comes_back_with_its_parent() -> None:
    job = nested()
    part, parent = (fold_cycles(job, cycle(p, job)) for p in (10.0, 40.0))
    assert part.later_like > 0.8
    assert part.next_like < 0
    assert abs(parent.later_like) < 0.3


def test_a_load_is_most_alike_a_period_later() -> None:
    job = nested()
    correlation = Autocorrelation(job)
    part, parent, twice = (correlation.look_ahead(p) for p in (10.0, 40.0, 80.0))
    assert parent.alike > 0.9
    assert parent.beyond_part > 0.1
    assert abs(twice.beyond_part) < 0.02
    assert part.of_multiple > 0.1
    assert min(part.rise, parent.rise) > 0.1
    assert np.isnan(correlation.look_ahead(10 * job.end_s).alike)


def test_two_cycles_are_too_few_to_lay_upon_each_other() -> None:
    assert np.isnan(fold_cycles(nested(), cycle(160.0, nested())).explained)
