"""Which GPU makes the others of its job wait, told by its power among the others now and before."""

import numpy as np
import pytest

from gpusonde.epoch_detect.progress import find_slow_device

DEVICES = tuple(f"GPU-{i}" for i in range(8))
TICK_S, STEP_S, BUSY_W, WAITING_W = 0.5, 10.0, 500.0, 150.0
SLOW_FROM_S = 600.0


def power(until_s, slow=None, share=0.1, link=False, seed=0):
    """Eight GPUs whose steps end in a tenth of communication; from 600 s on all wait for ``slow``, or for a link."""
    rng = np.random.default_rng(seed)
    time_s = np.arange(0.0, until_s, TICK_S)
    late = time_s >= SLOW_FROM_S
    step = np.where(late, STEP_S * (1 + share), STEP_S)
    place = (time_s % step) / step
    rows = np.empty((len(DEVICES), time_s.size))
    for i in range(len(DEVICES)):
        waits = (place > 0.9) | (late & (place > 1 - share - 0.1) & (i != slow if slow is not None else link))
        rows[i] = np.where(waits, WAITING_W, BUSY_W) * (1 + 0.01 * i)
    return time_s, rows * (1 + rng.normal(0, 0.01, rows.shape))


def found(until_s, since_s=SLOW_FROM_S, **fault):
    time_s, rows = power(until_s, **fault)
    return find_slow_device(DEVICES, time_s, {"power_watts": rows}, since_s, cycle_s=STEP_S)


def test_the_gpu_that_does_not_wait_is_named_once_the_cycle_has_slowed():
    verdict = found(680.0, slow=3)
    assert verdict.device == "GPU-3"
    assert verdict.probability > 0.9
    assert "where the others draw least, as if it did not wait" in verdict.reason
    assert verdict.ranked[0].device == "GPU-3"
    assert verdict.ranked[0].probability > 10 * verdict.ranked[1].probability


def test_nobody_is_named_where_all_wait_alike():
    verdict = found(680.0, link=True)
    assert verdict.device is None
    assert verdict.reason.startswith("no device stands out")


@pytest.mark.parametrize("seed", range(5))
def test_a_healthy_job_that_is_asked_all_the_same_names_nobody(seed):
    assert found(720.0, share=0.0, seed=seed).device is None


@pytest.mark.parametrize("others_save", [0.0, 0.03])
def test_a_device_that_draws_less_is_named_only_where_the_others_wait(others_save):
    # As a node does whose fans slow down, or one that throttles.
    rng = np.random.default_rng(4)
    time_s = np.arange(0.0, 680.0, TICK_S)
    late = time_s >= SLOW_FROM_S
    rows = BUSY_W * np.where(late, 1 - others_save, 1.0) * (1 + rng.normal(0, 0.01, (len(DEVICES), time_s.size)))
    rows[3, late] *= 0.9
    verdict = find_slow_device(DEVICES, time_s, {"power_watts": rows}, SLOW_FROM_S)
    assert verdict.ranked[0].device == "GPU-3"
    assert verdict.device == ("GPU-3" if others_save else None)
    assert others_save or verdict.reason.startswith("nobody waits: they draw no less than before, ")


def test_nothing_is_said_before_enough_was_seen():
    assert found(610.0, slow=3).device is None
    assert found(610.0, 30.0, slow=3).device is None
    two = find_slow_device(DEVICES[:2], np.arange(9.0), {"power_watts": np.ones((2, 9))}, 5.0)
    assert two.reason == "2 devices cannot be compared; three or more can"
    assert find_slow_device(DEVICES, np.arange(9.0), {}, 5.0).reason == "the power of its devices is not known"


def test_utilisation_says_that_a_gpu_waits_for_its_data():
    time_s, rows = power(680.0, link=True)
    use = np.full_like(rows, 1.0)
    use[2, (time_s >= SLOW_FROM_S) & (time_s % 11.0 < 1.1)] = 0.0
    values = {"power_watts": rows, "gpu_utilization": use}
    verdict = find_slow_device(DEVICES, time_s, values, SLOW_FROM_S, cycle_s=STEP_S)
    assert verdict.device == "GPU-2"
    assert "is without work in" in verdict.reason


def test_a_dead_meter_is_no_slow_gpu_and_hides_none():
    time_s, rows = power(680.0, slow=3)
    rows[6] = np.nan
    rows[7] = 0.0
    verdict = find_slow_device(DEVICES, time_s, {"power_watts": rows}, SLOW_FROM_S, cycle_s=STEP_S)
    assert verdict.device == "GPU-3"


def test_values_of_another_shape_are_refused():
    with pytest.raises(ValueError, match="expected values of shape"):
        find_slow_device(DEVICES, np.arange(3.0), {"power_watts": np.zeros((2, 3))}, 1.0)


def test_two_devices_that_stand_out_alike_are_nobody():
    time_s, rows = power(680.0, slow=3)
    _, other = power(680.0, slow=4, seed=1)
    rows[4] = other[4]
    verdict = find_slow_device(DEVICES, time_s, {"power_watts": rows}, SLOW_FROM_S, cycle_s=STEP_S)
    assert verdict.device is None
    assert "differ from the others alike" in verdict.reason
    assert {suspect.device for suspect in verdict.ranked[:2]} == {"GPU-3", "GPU-4"}


def test_a_short_baseline_asks_for_a_larger_deviation():
    time_s, rows = power(720.0)
    late = time_s >= SLOW_FROM_S - 70
    needed = [
        float(find_slow_device(DEVICES[:4], time_s[kept], {"power_watts": rows[:4, kept]}, SLOW_FROM_S)
              .reason.rsplit(", ", 1)[1].split()[0])
        for kept in (late, np.ones_like(late))
    ]  # fmt: skip
    assert needed[0] > 1.2 * needed[1]


@pytest.mark.parametrize("pause_s", [1.0, 2.0, 5.0])
def test_a_gpu_that_begins_to_write_a_checkpoint_is_not_slow(pause_s):
    rng = np.random.default_rng(0)
    time_s = np.arange(SLOW_FROM_S - 100, SLOW_FROM_S + 60, TICK_S)
    rows = BUSY_W * (1 + rng.normal(0, 0.01, (len(DEVICES), time_s.size)))
    newest = slice(-1 - int(pause_s / TICK_S), None)
    rows[:, newest], rows[4, newest] = WAITING_W, WAITING_W / 2
    assert find_slow_device(DEVICES, time_s, {"power_watts": rows}, SLOW_FROM_S).device is None
