from __future__ import annotations

import math

import numpy as np
import pytest

from gpusonde.catalog import Precision
from gpusonde.predictor.crossgpu import MetricDistribution, SourceMeasurement, read_runs
from gpusonde.predictor.crossgpu.features import DEFAULT_TENSOR_WEIGHT, REQUIRED_METRICS, log_compute_rate
from gpusonde.predictor.crossgpu.prior import (
    MetricLevel,
    Roofline,
    log_cautious_ratio,
    log_idle_effect,
    log_latency_ratio,
    log_peak_ratio,
    metric_level,
    roofline,
)


def flat(value: float) -> MetricDistribution:
    return MetricDistribution(value, 0.0, value, value, value, value, value)


def measurement(gpus, **metrics: float) -> SourceMeasurement:
    return SourceMeasurement(gpus.get("T4"), 10.0, {name: flat(value) for name, value in metrics.items()})


def test_the_prior_is_the_formula_of_the_documentation(gpus):
    source = measurement(gpus, **{**dict.fromkeys(REQUIRED_METRICS, 0.8), "memory_utilization": 0.4})
    t4, v100 = gpus.get("T4"), gpus.get("V100-SXM2-16GB")
    working = math.sqrt(
        t4.fp32_tflops / v100.fp32_tflops
        * t4.memory_bandwidth_bytes_per_second / v100.memory_bandwidth_bytes_per_second
    )  # fmt: skip
    line = roofline(source, MetricLevel.NVIDIA_SMI)
    assert log_latency_ratio(source, v100, line) == pytest.approx(math.log(0.2 + 0.8 * working))


def test_utilisation_alone_says_how_much_the_idle_time_may_do_and_nothing_more(gpus):
    source, target = measurement(gpus, gpu_utilization=0.8), gpus.get("A100-SXM4-40GB")
    line = roofline(source, MetricLevel.UTILIZATION)
    assert line == roofline(source, MetricLevel.STATIC)
    working = math.exp(log_latency_ratio(source, target, line))
    effect = log_idle_effect(source, target, line)
    assert effect == pytest.approx(math.log((0.2 + 0.8 * working) / working))
    assert effect > log_idle_effect(measurement(gpus, gpu_utilization=0.9), target, line) > 0
    assert log_idle_effect(measurement(gpus), target, line) == 0


def test_an_idle_gpu_gains_nothing_from_a_faster_one(gpus):
    source = measurement(gpus, **dict.fromkeys(REQUIRED_METRICS, 0.0))
    assert log_latency_ratio(source, gpus.get("H100-SXM5-80GB"), roofline(source, MetricLevel.NVIDIA_SMI)) == 0.0


def test_memory_utilization_moves_the_weight_a_little(gpus):
    def weight(memory: float) -> float:
        source = measurement(gpus, **{**dict.fromkeys(REQUIRED_METRICS, 0.8), "memory_utilization": memory})
        return roofline(source, MetricLevel.NVIDIA_SMI).bandwidth_weight

    assert weight(0.4) == pytest.approx(0.5)
    assert weight(0.0) == pytest.approx(0.4)
    assert weight(0.8) == pytest.approx(0.6)


def test_dram_activity_moves_the_weight_to_the_memory_bandwidth(gpus):
    target = gpus.get("P100-PCIe-16GB")  # T4 -> P100: 2.3 times the bandwidth, 1.2 times the FP32 rate
    ratios = []
    for dram in (0.1, 0.5, 0.9):
        source = measurement(gpus, graphics_active=1.0, sm_active=0.9, fp32_active=0.5, dram_active=dram)
        ratios.append(log_latency_ratio(source, target, roofline(source, MetricLevel.DCGM)))
    assert ratios == sorted(ratios, reverse=True)


def test_tensor_activity_moves_the_compute_weight_to_the_tensor_rate(gpus):
    busy = {"graphics_active": 1.0, "sm_active": 0.9, "dram_active": 0.3}
    tensor = measurement(gpus, **busy, tensor_active=0.5, fp32_active=0.0)
    plain = measurement(gpus, **busy, tensor_active=0.0, fp32_active=0.5)
    line = roofline(tensor, MetricLevel.DCGM)
    assert line.tensor_weight > 0.9
    assert roofline(plain, MetricLevel.DCGM).tensor_weight == 0.0
    # T4 -> V100: 1.9 times the tensor rate as the FP32 rate. P100 has no tensor cores and loses what they gave.
    for name, slower in (("V100-SXM2-16GB", False), ("P100-PCIe-16GB", True)):
        ratio = log_latency_ratio(tensor, gpus.get(name), line)
        assert (ratio > 0) is slower
        assert log_latency_ratio(plain, gpus.get(name), roofline(plain, MetricLevel.DCGM)) < 0


@pytest.mark.parametrize(
    ("gpu", "precision", "tflops"),
    [
        # Half of the matrix work's rate, half of the cores' (geometric mean).
        ("V100-SXM2-16GB", Precision.TF32, 15.67),  # no TF32: FP32 all along
        ("A100-SXM4-40GB", Precision.TF32, math.sqrt(19.49 * 156)),
        ("A100-SXM4-40GB", Precision.FP32, 19.49),
        ("A100-SXM4-40GB", Precision.BF16, math.sqrt(19.49 * 312)),
        ("V100-SXM2-16GB", Precision.BF16, 15.67),  # emulated
        ("A100-SXM4-40GB", Precision.FP8, math.sqrt(19.49 * 312)),  # its libraries refuse: mixed precision
        ("H100-SXM5-80GB", Precision.FP8, math.sqrt(66.91 / 2 * 1979)),
        ("A10G", Precision.TF32, math.sqrt(35.02 / 2 * 35)),  # 128 lanes per SM, of which 64 can be kept busy
        ("H100-SXM5-80GB", Precision.MIXED, math.sqrt(66.91 / 2 * 989)),
        ("GTX 1080 Ti", Precision.FP32, 11.34),  # 128 lanes, but schedulers that issue twice per clock
        ("K80", Precision.FP32, 4.113 * math.sqrt(2 / 3)),
        ("V100-SXM2-16GB", Precision.FP64, 7.834),
    ],
)
def test_the_compute_rate_is_what_the_precision_can_use(gpus, gpu, precision, tflops):
    rate = math.exp(log_compute_rate(gpus.get(gpu), precision, DEFAULT_TENSOR_WEIGHT))
    assert rate == pytest.approx(tflops, rel=0.005)


def test_the_baseline_takes_peak_rates_as_they_are(gpus):
    source = measurement(gpus, gpu_utilization=0.8)
    t4, a10g = gpus.get("T4"), gpus.get("A10G")
    working = math.sqrt(
        t4.fp32_tflops / a10g.fp32_tflops
        * t4.memory_bandwidth_bytes_per_second / a10g.memory_bandwidth_bytes_per_second
    )  # fmt: skip
    assert log_peak_ratio(source, a10g) == pytest.approx(math.log(0.2 + 0.8 * working))


def test_without_metrics_the_longer_of_two_likely_times_is_avoided(gpus):
    source = measurement(gpus)
    for name in ("A100-SXM4-40GB", "K80"):
        ratio = log_latency_ratio(source, gpus.get(name), Roofline(busy=1.0))
        assert log_cautious_ratio(source, gpus.get(name)) == pytest.approx(ratio - 0.13 * abs(ratio))
    assert log_cautious_ratio(source, gpus.get("T4")) == 0.0


@pytest.mark.shared_data
def test_the_variance_without_metrics_is_that_of_the_runs_table(shared_runs_path):
    runs = read_runs(shared_runs_path)
    source, target = runs.pairs()
    errors, ratios = [], []
    for i, j in zip(source, target, strict=True):
        ratio = log_latency_ratio(runs.runs[i].measurement(), runs.runs[j].gpu, Roofline(busy=1.0))
        ratios.append(abs(ratio))
        errors.append(math.log(runs.runs[j].epoch_latency_s / runs.runs[i].epoch_latency_s) - ratio)
    # 0.455 is the median of a squared standard normal variable: runs that are off by a factor do not count.
    variance = float(np.median(np.square(errors))) / 0.455
    assert variance / float(np.mean(ratios)) == pytest.approx(0.13, abs=0.005)


@pytest.mark.parametrize(
    ("names", "level"),
    [
        (REQUIRED_METRICS, MetricLevel.NVIDIA_SMI),
        ((*REQUIRED_METRICS, "dram_active", "sm_active"), MetricLevel.NVIDIA_SMI),
        (("dram_active", "sm_active"), MetricLevel.DCGM),
        (("gpu_utilization", "power_watts"), MetricLevel.UTILIZATION),
        (("power_watts",), MetricLevel.STATIC),
        ((), MetricLevel.STATIC),
    ],
)
def test_the_level_follows_from_the_metrics_there_are(gpus, names, level):
    assert metric_level(measurement(gpus, **dict.fromkeys(names, 0.5)), REQUIRED_METRICS) is level
