"""When a job's GPUs may be taken away: two witnesses on every GPU, for long enough, and nothing against it."""

import math

import numpy as np
import pytest

from gpusonde.epoch_detect.progress.idleness import ProcessUse, judge_idleness

WANTED_S = 1800.0


def gpu(seconds=1800, interval_s=1.0, **values):
    """A GPU that rests but for what is given; None leaves a metric out."""
    time_s = np.arange(0.0, seconds, interval_s)
    rng = np.random.default_rng(3)
    rest = {
        "gpu_utilization": np.zeros_like(time_s),
        "power_watts": rng.normal(70.0, 0.5, time_s.size),
        "pcie_tx_bytes_per_second": rng.uniform(0, 2e4, time_s.size),
        "pcie_rx_bytes_per_second": rng.uniform(0, 2e4, time_s.size),
    } | {name: value if value is None else np.broadcast_to(value, time_s.shape) for name, value in values.items()}
    return time_s, {name: column for name, column in rest.items() if column is not None}


REST = ProcessUse(WANTED_S, 0.01, 0.0)


def judge(*gpus, idle_s=3200.0, longest_pause_s=0.0, processes=REST):
    known = {f"GPU-{i}": each for i, each in enumerate(gpus)}
    return judge_idleness(idle_s, WANTED_S, longest_pause_s, known, processes)


def judge_what_is_over(*gpus):
    """Of which nobody knows what processes do."""
    known = {f"GPU-{i}": each for i, each in enumerate(gpus)}
    return judge_idleness(7300.0, WANTED_S, 0.0, known, None, is_over=True)


def bursts(every, value):
    column = np.zeros(1800)
    column[::every] = value
    return column


def test_a_job_whose_gpus_all_rest_is_idle_and_says_by_what():
    verdict = judge(gpu(), gpu())
    assert verdict.idle
    assert verdict.evidence == (
        "idle for 3200 s on 2 GPUs",
        "it is not in use",
        "its power is flat",
        "nothing moves over PCIe",
        "its processes rest",
    )


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"gpu_utilization": bursts(100, 0.9)}, "GPU GPU-1: in use by up to 90 %"),
        ({"sm_active": bursts(200, 0.2)}, "GPU GPU-1: in use by up to 20 %"),
        ({"power_watts": 70.0 + bursts(60, 200.0)}, "GPU GPU-1: power between 70 and 270 W"),
        ({"pcie_rx_bytes_per_second": 5e7}, "GPU GPU-1: 50 MB/s over PCIe"),
    ],
)
def test_one_gpu_that_shows_anything_keeps_all_of_them(values, said):
    verdict = judge(gpu(), gpu(**values))
    assert not verdict.idle
    assert verdict.evidence == (said,)


def test_a_kernel_that_computes_evenly_is_not_taken_for_rest_where_its_use_is_not_known():
    verdict = judge(gpu(gpu_utilization=None, power_watts=300.0))
    assert not verdict.idle
    assert "its use and one more witness are wanted" in verdict.evidence[0]


def test_power_that_goes_from_one_idle_level_to_another_says_nothing():
    levels = np.repeat([60.0, 78.0, 66.0], 600)
    verdict = judge(gpu(power_watts=levels))
    assert verdict.idle
    assert "its power is flat" not in verdict.evidence
    without_bus = {"pcie_tx_bytes_per_second": None, "pcie_rx_bytes_per_second": None}
    assert judge(gpu(power_watts=levels, **without_bus)).idle
    assert not judge_what_is_over(gpu(power_watts=levels, **without_bus)).idle
    assert not judge(gpu(power_watts=2.5 * levels * (levels > 70) + levels)).idle


def test_one_witness_is_not_enough_and_processes_that_rest_are_one():
    alone = gpu(power_watts=None, pcie_tx_bytes_per_second=None, pcie_rx_bytes_per_second=None)
    assert not judge_what_is_over(alone).idle
    assert judge(alone).evidence == ("idle for 3200 s on 1 GPU", "it is not in use", "its processes rest")
    assert not judge(gpu(gpu_utilization=None)).idle


def test_pauses_that_the_job_came_back_from_are_waited_out():
    assert judge(gpu(), longest_pause_s=500.0).idle
    early = judge(gpu(), longest_pause_s=1700.0)
    assert not early.idle
    assert early.evidence == ("idle for 3200 s of 10200 s; it paused for 1700 s before and went on",)
    assert judge(gpu(), idle_s=10_300.0, longest_pause_s=1700.0).idle


@pytest.mark.parametrize(
    "missing",
    [
        {"gpu_utilization": np.where(np.arange(1800) < 300, 0.0, np.nan)},
        {"power_watts": None, "pcie_rx_bytes_per_second": None},
        {"power_watts": None, "pcie_tx_bytes_per_second": np.where(np.arange(1800) % 400 < 300, 0.0, np.nan)},
        {"power_watts": np.where(np.arange(1800) < 5, 70.0, np.nan), "pcie_tx_bytes_per_second": None},
    ],
)
def test_a_witness_that_is_there_for_a_while_only_or_by_half_does_not_say_that_a_gpu_rests(missing):
    verdict = judge_what_is_over(gpu(**missing))
    assert not verdict.idle
    assert "one more witness are wanted" in verdict.evidence[0]


def test_metrics_that_are_missing_are_no_rest():
    assert not judge(gpu(seconds=600)).idle
    assert not judge(gpu(), (np.empty(0), {})).idle
    assert not judge(gpu(gpu_utilization=np.nan)).idle
    hole = gpu()
    keep = (hole[0] < 300) | (hole[0] > 900)
    assert not judge((hole[0][keep], {name: column[keep] for name, column in hole[1].items()})).idle
    assert not judge().idle


def test_an_agent_that_samples_idle_gpus_less_often_is_heard_all_the_same():
    assert judge(gpu(interval_s=2.0)).idle


def test_processes_that_work_keep_a_job_whose_gpus_rest():
    busy = judge(gpu(), processes=ProcessUse(WANTED_S, 3.5, 2e3))
    assert not busy.idle
    assert busy.evidence == ("its processes take 3.50 processors",)
    loads = judge(gpu(), processes=ProcessUse(WANTED_S, 0.05, 4e7))
    assert not loads.idle
    assert loads.evidence == ("its processes read and write 40.0 MB/s",)


@pytest.mark.parametrize(
    "unknown",
    [
        None,
        ProcessUse(WANTED_S, math.nan, math.nan),
        ProcessUse(WANTED_S, 0.01, math.nan),
        ProcessUse(WANTED_S, math.nan, 0.0),
        ProcessUse(0.5 * WANTED_S, 0.01, 0.0),
    ],
)
def test_a_job_of_whose_processes_too_little_is_known_is_never_taken_however_long_it_rests(unknown):
    assert "its processes rest" in judge(gpu()).evidence
    verdict = judge(gpu(), idle_s=1e6, processes=unknown)
    assert not verdict.idle
    assert verdict.evidence == ("what its processes do is not known, which counts as work",)


def test_gpus_of_a_job_that_is_over_are_waited_for_longer_where_others_may_work_beside_them():
    known = {"GPU-0": gpu()}
    early = judge_idleness(2000.0, WANTED_S, 0.0, known, None, is_over=True)
    assert (early.idle, early.evidence) == (False, ("idle for 2000 s of 7200 s",))
    assert judge_idleness(7300.0, WANTED_S, 0.0, known, None, is_over=True).idle


def test_work_may_have_come_and_gone_while_there_were_no_metrics():
    time_s, values = gpu()
    seen = (time_s < 900) | (time_s > 1020)
    verdict = judge((time_s[seen], {name: column[seen] for name, column in values.items()}))
    assert not verdict.idle
    assert verdict.evidence == ("GPU GPU-0: no metrics for 122 s of that",)


def test_a_first_long_rest_gets_most_of_twice_the_time_that_is_asked_for():
    early = judge(gpu(), idle_s=3100.0)
    assert (early.idle, early.evidence) == (False, ("idle for 3100 s of 3150 s",))
    assert judge(gpu(), idle_s=3150.0).idle


def test_the_first_rest_of_a_job_that_is_not_known_for_long_is_waited_for_longer():
    known = {"GPU-0": gpu()}
    early = judge_idleness(3200.0, WANTED_S, 0.0, known, REST, known_s=3600.0)
    assert not early.idle
    assert "its pauses are not known yet" in early.evidence[0]
    assert judge_idleness(7300.0, WANTED_S, 0.0, known, REST, known_s=3600.0).idle
    assert judge_idleness(3200.0, WANTED_S, 0.0, known, REST, known_s=7300.0).idle


def test_a_job_that_has_worked_for_moments_only_is_waited_for_no_longer_than_ten_times_as_long():
    known = {"GPU-0": gpu()}
    assert judge_idleness(3200.0, WANTED_S, 0.0, known, REST, known_s=300.0).idle
    later = judge_idleness(3200.0, WANTED_S, 0.0, known, REST, known_s=400.0)
    assert later.evidence[0].startswith("idle for 3200 s of 4000 s; it had gone on for 400 s only")
