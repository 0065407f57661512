"""Why cycles take longer is said in words and figures where the metrics show it, and nothing else is."""

import warnings

import numpy as np
import pytest

from gpusonde.epoch_detect.progress import slowdown_causes

DEVICES = tuple(f"host/GPU-{i}" for i in range(4))
SINCE_S = 300.0
TIME_S = np.arange(0.0, 600.0, 0.5)
AFTER = TIME_S >= SINCE_S


def healthy(pause=0.1, pause_after=None, use_in_pause=0.0):
    """Four GPUs whose cycles of 10 s end in a pause."""
    rng = np.random.default_rng(0)
    share = np.where(AFTER, pause if pause_after is None else pause_after, pause)
    works = 1 - share > (TIME_S % 10) / 10
    values = {
        "power_watts": np.where(works, 600.0, 120.0),
        "gpu_utilization": np.where(works, 1.0, use_in_pause),
        "sm_clock_mhz": np.where(works, 1980.0, 1985.0),
        "gpu_temperature_celsius": np.full(TIME_S.size, 61.0),
        "framebuffer_used_bytes": np.full(TIME_S.size, 40 * 2.0**30),
        "pcie_replay_count": np.zeros(TIME_S.size),
        "xid_count": np.zeros(TIME_S.size),
        "nvlink_tx_bytes_per_second": np.where(works, 5e10, 0.0),
        "nvlink_rx_bytes_per_second": np.where(works, 5e10, 0.0),
    }
    noise = {"power_watts": 5.0, "sm_clock_mhz": 3.0, "nvlink_tx_bytes_per_second": 1e8}
    return {name: row + rng.normal(0, noise.get(name, 0.0), (4, TIME_S.size)) for name, row in values.items()}


def causes(values):
    return slowdown_causes(DEVICES, TIME_S, values, SINCE_S)


def test_a_job_whose_metrics_show_nothing_has_no_cause():
    assert causes(healthy()) == []
    assert causes({}) == []
    assert slowdown_causes(DEVICES, TIME_S[:601], {k: v[:, :601] for k, v in healthy().items()}, SINCE_S) == []


def test_clocks_that_fell_are_told_with_the_gpu_and_whether_it_is_hot():
    values = healthy()
    values["sm_clock_mhz"][2, AFTER] *= 0.92
    (cool,) = causes(values)
    assert cool.startswith("the SM clock of host/GPU-2 fell by 8.0 % (1980 to 182")
    assert cool.endswith("not for heat (61 degrees)")
    values["gpu_temperature_celsius"][2, AFTER] = 87.0
    assert causes(values)[0].endswith("at 87 degrees")


def test_the_driver_s_reason_for_clocks_that_fell_is_told_where_it_is_a_new_one():
    values = healthy()
    values["sm_clock_mhz"][2, AFTER] *= 0.92
    # All are held back by their power all the time; one is too hot now.
    values["clock_event_reason_bits"] = np.full((4, TIME_S.size), 0x4, dtype=float)
    assert causes(values)[0].endswith(", the driver gives no new reason")
    values["clock_event_reason_bits"][2, AFTER] = 0x4 | 0x8 | 0x40
    # A cell in which the reason changes holds the mean of both.
    values["clock_event_reason_bits"][2, 600] = 0x4 + 0x24
    (cause,) = causes(values)
    assert cause.endswith(", by the driver: thermal slowdown by hardware and slowdown by hardware")
    # Reasons alone, without anything slower, are none.
    assert causes({**healthy(), "clock_event_reason_bits": values["clock_event_reason_bits"]}) == []


@pytest.mark.parametrize(("late_s", "percent"), [(0.0, "10.0"), (40.0, "9.")])
def test_power_that_fell_while_the_gpus_work_is_throttling_where_no_clock_is_known(late_s, percent):
    values = {name: row for name, row in healthy().items() if name in ("power_watts", "gpu_utilization")}
    values["power_watts"][:, SINCE_S + late_s <= TIME_S] *= 0.9
    (cause,) = causes(values)
    assert cause.startswith(f"each of the 4 GPUs draws {percent}")
    assert " % less power where it works, as if throttled" in cause


def test_longer_pauses_are_waits_for_data_or_within_a_kernel_for_the_others():
    (data,) = causes(healthy(pause_after=0.2))
    assert "more of the time: they wait for data" in data
    (others,) = causes(healthy(pause_after=0.2, use_in_pause=1.0))
    assert others.endswith("within a kernel: they wait for communication")


@pytest.mark.parametrize("use_in_pause", [0.0, 1.0])
@pytest.mark.parametrize("known", [["power_watts"], ["power_watts", "gpu_utilization"]])
def test_a_checkpoint_on_one_side_is_no_wait_in_every_cycle(known, use_in_pause):
    everything = healthy(use_in_pause=use_in_pause)
    for begin_s in (SINCE_S + 1, SINCE_S + 280):
        values = {name: everything[name].copy() for name in known}
        saves = (begin_s <= TIME_S) & (begin_s + 60 > TIME_S)
        for name, low in (("power_watts", 120.0), ("gpu_utilization", use_in_pause)):
            if name in values:
                values[name][:, saves] = low
        assert causes(values) == []


def test_links_memory_of_others_growth_and_faults_are_told():
    values = healthy()
    values["pcie_replay_count"][1, AFTER] = np.arange(AFTER.sum())
    assert causes(values) == ["PCIe of host/GPU-1 repeated 599 packets (0 before)"]
    values = healthy()
    values["nvlink_tx_bytes_per_second"][:, AFTER] *= 0.5
    assert "NVLink of each of the 4 GPUs moves at most 75" in causes(values)[0]
    values = healthy()
    values["framebuffer_used_bytes"][3, AFTER] += 6 * 2.0**30
    assert causes(values) == ["6 GiB more are in use on host/GPU-3: another process runs there"]
    values = healthy()
    values["framebuffer_used_bytes"] *= 1 + TIME_S / 3000
    assert causes(values)[0].startswith("the memory in use grows steadily, from 40")
    values = healthy()
    values["xid_count"][0, AFTER] = 1.0
    assert causes(values) == ["the driver reported an XID of host/GPU-0"]


@pytest.mark.parametrize("dead", ["power_watts", "sm_clock_mhz", "gpu_utilization", "framebuffer_used_bytes"])
def test_a_metric_that_some_gpus_lack_is_no_cause(dead):
    values = healthy()
    values[dead][1:3] = np.nan
    assert causes(values) == []


@pytest.mark.parametrize("devices", [slice(None), slice(2)])
@pytest.mark.parametrize("when", [AFTER, ~AFTER, AFTER & (TIME_S < SINCE_S + 100)])
def test_what_is_not_known_for_a_while_is_no_cause_and_no_warning(devices, when):
    everything = healthy()
    for name in [*everything, None]:
        values = {metric: column.copy() for metric, column in everything.items()}
        for metric in values if name is None else [name]:
            values[metric][devices, when] = np.nan
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert causes(values) == []
