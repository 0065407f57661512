"""ReplaySource: spacing, rebased stamps, several GPUs, bad traces."""

import math

import numpy as np
import pytest

from gpusonde.agent.sources.replay import ReplaySource
from gpusonde.errors import SourceUnavailableError
from gpusonde.telemetry import MissingReason, Trace

NOW_NS = 1_700_000_000_123_456_789


def trace(n=101, first_s=50.0, interval_s=0.1, uuid="", origin=None, names=("sm_active",)):
    time_s = first_s + np.arange(n) * interval_s
    return Trace(time_s, dict.fromkeys(names, time_s / 1000), gpu_uuid=uuid, gpu_model="T4", origin_unix_s=origin)


def play(traces, speed, step_s=0.1, **options):
    """Read at regular deadlines; returns inventory, GPU -> stamps and the wall time of each reading."""
    clock = {"s": 5.0}
    source = ReplaySource(
        traces, speed=speed, monotonic=lambda: clock["s"], wall_ns=lambda: NOW_NS, new_uuid=lambda: "R", **options
    )
    inventory = source.open()
    stamps = {gpu: [] for gpu in range(len(traces))}
    values = {gpu: [] for gpu in range(len(traces))}
    late = []
    while True:
        reading = source.read(clock["s"])
        if reading is None:
            break
        for ticks in reading.ticks:
            stamps[ticks.gpu] += ticks.time_unix_nano.tolist()
            values[ticks.gpu] += ticks.values[0].tolist()
            late.append(NOW_NS + (clock["s"] - 5.0) * 1e9 - ticks.time_unix_nano[-1])
        if not reading.more:
            clock["s"] += step_s
    return inventory, stamps, values, late, clock["s"] - 5.0


@pytest.mark.parametrize("speed", [0.5, 1.0, 7.0, 100.0, math.inf])
def test_the_spacing_is_the_trace_s_and_nothing_lies_in_the_future(speed):
    original = trace()
    _, stamps, values, late, took_s = play([original], speed)
    assert len(stamps[0]) == 101
    expected = np.rint((original.time_s - original.time_s[0]) * 1e6).astype(np.int64) * 1000
    np.testing.assert_array_equal(np.array(stamps[0]) - stamps[0][0], expected)
    assert all(stamp % 1000 == 0 for stamp in stamps[0])
    np.testing.assert_array_equal(values[0], original.values["sm_active"])
    assert min(late) >= -1000
    assert took_s == pytest.approx(10.0 / speed, abs=0.21)
    if speed >= 1:
        end_ns = NOW_NS + 10.0 / speed * 1e9
        assert abs(stamps[0][-1] - end_ns) <= 2000


def test_several_gpus_share_one_axis_and_keep_their_offsets():
    traces = [trace(uuid="a"), trace(n=51, first_s=52.0, uuid="b", names=("power_watts",))]
    inventory, stamps, _, _, _ = play(traces, math.inf)
    assert [gpu.gpu_uuid for gpu in inventory.gpus] == ["a", "b"]
    assert stamps[1][0] - stamps[0][0] == 2_000_000_000
    assert [m.name for m in inventory.metrics] == ["sm_active", "power_watts"]
    assert inventory.gpus[0].missing_metrics == {"power_watts": MissingReason.NOT_FOUND}
    assert (len(stamps[0]), len(stamps[1])) == (101, 51)


def test_recorded_times_are_kept_on_request():
    origin = 1_600_000_000.0
    _, stamps, _, _, _ = play([trace(origin=origin)], math.inf, keep_time=True)
    assert stamps[0][0] == 1_600_000_050_000_000_000
    assert stamps[0][-1] == 1_600_000_060_000_000_000


def test_gpus_recorded_with_wall_clocks_are_laid_on_that_clock():
    traces = [trace(uuid="a", origin=1e9), trace(uuid="b", first_s=0.0, origin=1e9 + 53)]
    _, stamps, _, _, _ = play(traces, math.inf)
    assert stamps[1][0] - stamps[0][0] == 3_000_000_000


def test_a_trace_without_a_uuid_gets_one_of_its_own():
    first, second = (ReplaySource([trace()]).open().gpus[0].gpu_uuid for _ in range(2))
    assert first.startswith("REPLAY-")
    assert first != second


def test_the_inventory_marks_the_gpu_as_replayed():
    inventory, *_ = play([trace(uuid="a")], math.inf)
    assert inventory.gpus[0].replayed
    assert inventory.gpus[0].product_name == "T4"
    assert inventory.interval_s == pytest.approx(0.1)
    assert inventory.can_wait


def test_a_long_backlog_comes_in_bounded_readings():
    source = ReplaySource([trace(n=2000)], speed=math.inf, monotonic=lambda: 0.0)
    source.open()
    sizes = []
    more = True
    while more:
        reading = source.read(0.0)
        sizes.append(reading.ticks[0].time_unix_nano.size)
        more = reading.more
    assert sizes == [500] * 4
    assert source.progress() == 1.0
    source.close()


@pytest.mark.parametrize(
    ("traces", "options", "what"),
    [
        ([], {}, "no trace"),
        ([trace(n=0)], {}, "no ticks"),
        ([trace(uuid="a"), trace(uuid="a")], {}, "same gpu_uuid"),
        ([trace()], {"speed": 0.0}, "not positive"),
        ([trace()], {"speed": math.nan}, "not positive"),
        ([trace()], {"keep_time": True}, "without keep_time"),
    ],
)
def test_what_cannot_be_replayed_is_refused_with_a_reason(traces, options, what):
    with pytest.raises(SourceUnavailableError, match=what):
        ReplaySource(traces, **options).open()


def test_a_trace_of_one_tick_is_replayed():
    _, stamps, _, _, _ = play([trace(n=1)], 1.0)
    assert len(stamps[0]) == 1
