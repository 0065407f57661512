from __future__ import annotations

import math

import pytest

from gpusonde.predictor.crossgpu import MetricDistribution, SourceMeasurement
from gpusonde.predictor.crossgpu.features import REQUIRED_METRICS
from gpusonde.predictor.crossgpu.prior import MetricLevel, log_latency_ratio, metric_level, roofline


def flat(value: float) -> MetricDistribution:
    return MetricDistribution(value, 0.0, value, value, value, value, value)


def measurement(gpus, **metrics: float) -> SourceMeasurement:
    return SourceMeasurement(gpus.get("T4"), 10.0, {name: flat(value) for name, value in metrics.items()})


def test_the_prior_is_the_formula_of_the_documentation(gpus):
    source = measurement(gpus, gpu_utilization=0.8)
    t4, v100 = gpus.get("T4"), gpus.get("V100-SXM2-16GB")
    working = math.sqrt(
        t4.fp32_tflops / v100.fp32_tflops
        * t4.memory_bandwidth_bytes_per_second / v100.memory_bandwidth_bytes_per_second
    )  # fmt: skip
    line = roofline(source, MetricLevel.UTILIZATION)
    assert log_latency_ratio(source, v100, line) == pytest.approx(math.log(0.2 + 0.8 * working))


def test_an_idle_gpu_gains_nothing_from_a_faster_one(gpus):
    source = measurement(gpus, gpu_utilization=0.0)
    assert log_latency_ratio(source, gpus.get("H100-SXM5-80GB"), roofline(source, MetricLevel.UTILIZATION)) == 0.0


def test_memory_utilization_moves_the_weight_a_little(gpus):
    def weight(memory: float) -> float:
        source = measurement(gpus, **{**dict.fromkeys(REQUIRED_METRICS, 0.8), "memory_utilization": memory})
        return roofline(source, MetricLevel.NVIDIA_SMI).bandwidth_weight

    assert weight(0.4) == pytest.approx(0.5)
    assert weight(0.0) == pytest.approx(0.3)
    assert weight(0.8) == pytest.approx(0.7)


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
    p100 = gpus.get("P100-PCIe-16GB")  # no tensor cores: the FP32 rate has to do
    assert log_latency_ratio(tensor, p100, line) == log_latency_ratio(plain, p100, roofline(plain, MetricLevel.DCGM))
    assert roofline(plain, MetricLevel.DCGM).tensor_weight == 0.0


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
