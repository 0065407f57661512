"""Which GPU makes the others of its job wait, told by power after the cycle has slowed and never before."""

import numpy as np
import pytest

from gpusonde.epoch_detect.progress import SlowDeviceWatch

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


def watched(until_s, **fault):
    watch = SlowDeviceWatch(DEVICES)
    time_s, rows = power(until_s, **fault)
    for first in range(0, time_s.size, 20):
        piece = slice(first, first + 20)
        watch.update(time_s[piece], {"power_watts": rows[:, piece]}, cycle_s=STEP_S)
    return watch


def test_the_gpu_that_does_not_wait_is_named_once_the_cycle_has_slowed():
    verdict = watched(680.0, slow=3).look(SLOW_FROM_S)
    assert verdict.device == "GPU-3"
    assert verdict.probability > 0.9
    assert "where the others draw least, as if it did not wait" in verdict.reason
    assert verdict.ranked[0].device == "GPU-3"
    assert verdict.ranked[0].probability > 10 * verdict.ranked[1].probability


def test_nobody_is_named_while_the_cycle_is_what_it_was():
    verdict = watched(680.0, slow=3).look(None)
    assert (verdict.device, verdict.reason) == (None, "the cycle has not slowed")


def test_nobody_is_named_where_all_wait_alike():
    verdict = watched(680.0, link=True).look(SLOW_FROM_S)
    assert verdict.device is None
    assert verdict.reason.startswith("no device stands out")


@pytest.mark.parametrize("seed", range(5))
def test_a_healthy_job_that_is_asked_all_the_same_names_nobody(seed):
    assert watched(720.0, share=0.0, seed=seed).look(SLOW_FROM_S).device is None


def test_nothing_is_said_before_enough_was_seen():
    watch = watched(610.0, slow=3)
    assert watch.look(SLOW_FROM_S).device is None
    assert watch.look(30.0).device is None
    assert SlowDeviceWatch(DEVICES[:2]).look(0.0).reason == "2 devices cannot be compared; three or more can"


def test_utilisation_says_that_a_gpu_waits_for_its_data():
    watch = SlowDeviceWatch(DEVICES)
    time_s, rows = power(680.0, link=True)
    use = np.full_like(rows, 1.0)
    use[2, (time_s >= SLOW_FROM_S) & (time_s % 11.0 < 1.1)] = 0.0
    for first in range(0, time_s.size, 20):
        piece = slice(first, first + 20)
        watch.update(time_s[piece], {"power_watts": rows[:, piece], "gpu_utilization": use[:, piece]}, cycle_s=STEP_S)
    verdict = watch.look(SLOW_FROM_S)
    assert verdict.device == "GPU-2"
    assert "is without work in" in verdict.reason


def test_a_dead_meter_is_no_slow_gpu_and_hides_none():
    watch = SlowDeviceWatch(DEVICES)
    time_s, rows = power(680.0, slow=3)
    rows[6] = np.nan
    rows[7] = 0.0
    for first in range(0, time_s.size, 20):
        piece = slice(first, first + 20)
        watch.update(time_s[piece], {"power_watts": rows[:, piece]}, cycle_s=STEP_S)
    assert watch.look(SLOW_FROM_S).device == "GPU-3"


def test_a_watch_rebuilt_of_its_state_goes_on_as_if_nothing_had_been():
    time_s, rows = power(680.0, slow=3)
    cut = int(np.searchsorted(time_s, 640.0))
    whole, before = SlowDeviceWatch(DEVICES), SlowDeviceWatch(DEVICES)
    for first in range(0, time_s.size, 20):
        piece = slice(first, first + 20)
        whole.update(time_s[piece], {"power_watts": rows[:, piece]}, cycle_s=STEP_S)
        if first < cut:
            before.update(time_s[piece], {"power_watts": rows[:, piece]}, cycle_s=STEP_S)
        else:
            before = SlowDeviceWatch.from_state(before.state())
            before.update(time_s[piece], {"power_watts": rows[:, piece]}, cycle_s=STEP_S)
    one, other = whole.look(SLOW_FROM_S), before.look(SLOW_FROM_S)
    assert other.device == one.device == "GPU-3"
    assert other.ranked[0].deviation == pytest.approx(one.ranked[0].deviation, rel=1e-3)
    assert len(before.state()) < 1_000_000


@pytest.mark.parametrize("state", [b"", b"[]", b"{}", b'{"version": 99}', b"\xff"])
def test_bytes_that_are_no_state_are_refused(state):
    with pytest.raises(ValueError, match=r".+"):
        SlowDeviceWatch.from_state(state)


def test_values_of_another_shape_are_refused():
    with pytest.raises(ValueError, match="expected values of shape"):
        SlowDeviceWatch(DEVICES).update(np.arange(3.0), {"power_watts": np.zeros((2, 3))})
