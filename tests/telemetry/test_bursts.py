"""Telling GPUs apart by the times of their rows alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.nvidia_smi_log import Schedule, schedule

from gpusonde.telemetry.readers.nvidia_smi import deinterleave


@pytest.mark.parametrize("gpus", [1, 2, 3, 4, 7, 8, 16])
@pytest.mark.parametrize(("pause_s", "jitter_s"), [(0.05, 0.01), (0.1, 0.002), (0.1, 0.02), (1.0, 0.02), (5.0, 0.2)])
def test_the_number_of_gpus_is_found_at_any_pace(gpus: int, pause_s: float, jitter_s: float) -> None:
    rows = schedule(gpus, 200, pause_s=pause_s, jitter_s=jitter_s, hole_share=0.01, seed=gpus)
    found = deinterleave(rows.time_s)
    assert found.gpus == gpus
    assert np.array_equal(found.gpu, rows.gpu)
    assert (found.broken_bursts, found.dropped_rows) == (0, 0)


@pytest.mark.parametrize("gpus", [2, 3, 8])
def test_two_bursts_are_enough(gpus: int) -> None:
    rows = schedule(gpus, 2, seed=3)
    assert np.array_equal(deinterleave(rows.time_s).gpu, rows.gpu)


def test_a_burst_with_lost_rows_is_left_out_and_counted() -> None:
    whole = schedule(4, 50)
    rows = whole.without([41, 42])
    found = deinterleave(rows.time_s)
    assert (found.gpus, found.broken_bursts, found.dropped_rows) == (4, 1, 2)
    assert found.gpu[40] == found.gpu[41] == -1
    kept = found.gpu >= 0
    assert np.array_equal(found.gpu[kept], rows.gpu[kept])


def test_a_burst_in_which_a_gpu_answered_late_is_kept() -> None:
    rows = schedule(8, 300, stall_share=0.05, seed=2)
    found = deinterleave(rows.time_s)
    assert found.gpus == 8
    assert found.stalled_bursts > 5
    kept = found.gpu >= 0
    assert np.array_equal(found.gpu[kept], rows.gpu[kept])
    assert kept.mean() > 0.99


def test_two_bursts_that_both_lost_a_row_are_not_taken_for_one_late_burst() -> None:
    whole = schedule(2, 50)
    rows = whole.without([21, 23])  # GPU 1 is missing twice
    found = deinterleave(rows.time_s)
    assert (found.broken_bursts, found.dropped_rows) == (2, 2)
    kept = found.gpu >= 0
    assert np.array_equal(found.gpu[kept], rows.gpu[kept])


def test_a_restart_of_the_log_ends_a_burst() -> None:
    first, second = schedule(4, 30, seed=1).without([119]), schedule(4, 30, seed=2)
    times = np.concatenate([first.time_s, second.time_s + first.time_s[-1] + 0.002])
    found = deinterleave(times, breaks=[len(first.time_s)])
    assert (found.broken_bursts, found.dropped_rows) == (1, 3)
    assert np.array_equal(found.gpu[found.gpu >= 0], [*first.gpu[:116], *second.gpu])


def test_the_last_burst_may_be_incomplete() -> None:
    found = deinterleave(schedule(8, 40).time_s[:-3])
    assert (found.gpus, found.broken_bursts, found.dropped_rows) == (8, 1, 5)


@pytest.mark.parametrize("times", [[0.0, 0.001], [0.0, 0.0, 0.0], [0.0, 0.001, 0.003, 0.2]])
def test_a_single_burst_does_not_tell_the_number_of_gpus(times: list[float]) -> None:
    with pytest.raises(ValueError, match="do not show how many GPUs"):
        deinterleave(np.array(times))
    assert deinterleave(np.array(times), gpus=len(times)).gpu.tolist() == list(range(len(times)))


def test_without_pauses_the_given_number_of_gpus_counts() -> None:
    rows = schedule(2, 100, pause_s=0.001, within_s=0.001)
    found = deinterleave(rows.time_s[:-1], gpus=2)
    assert np.array_equal(found.gpu[:-1], rows.gpu[:-2])
    assert found.dropped_rows == 1


@pytest.mark.parametrize("gpus", [1, 3, 16])
def test_a_number_that_contradicts_clear_bursts_is_refused(gpus: int) -> None:
    with pytest.raises(ValueError, match=f"bursts of 8, which contradicts {gpus} GPUs"):
        deinterleave(schedule(8, 50).time_s, gpus=gpus)


@settings(max_examples=150, deadline=None)
@given(
    gpus=st.integers(1, 16),
    ticks=st.integers(20, 150),
    pause_s=st.sampled_from([0.02, 0.05, 0.1, 0.5, 1.0]),
    jitter_s=st.sampled_from([0.0, 0.002, 0.01]),
    stall_share=st.sampled_from([0.0, 0.03]),
    hole_share=st.sampled_from([0.0, 0.02]),
    tears=st.lists(st.tuples(st.floats(0, 1), st.integers(1, 6)), max_size=2),
    seed=st.integers(0, 1 << 16),
)
def test_no_row_is_ever_given_to_another_gpu(
    gpus: int,
    ticks: int,
    pause_s: float,
    jitter_s: float,
    stall_share: float,
    hole_share: float,
    tears: list[tuple[float, int]],
    seed: int,
) -> None:
    rows: Schedule = schedule(
        gpus, ticks, pause_s=pause_s, jitter_s=jitter_s, stall_share=stall_share, hole_share=hole_share, seed=seed
    )
    lost = {int(at * (len(rows.time_s) - 1)) + i for at, length in tears for i in range(length)}
    rows = rows.without(sorted(row for row in lost if row < len(rows.time_s)))
    try:
        found = deinterleave(rows.time_s)
    except ValueError:
        return
    assert found.gpus == gpus
    kept = found.gpu >= 0
    assert np.array_equal(found.gpu[kept], rows.gpu[kept])
