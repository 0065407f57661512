from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gpusonde.predictor.crossgpu import FEATURES, MeasurementError, MetricDistribution
from gpusonde.predictor.crossgpu.features import feature_matrix
from gpusonde.predictor.crossgpu.paper import FeatureGroups


def test_the_list_of_features_is_pinned():
    # Nothing here may tell the run's length, the machine or the workload: see docs/latency_prediction.md, "Leaks".
    assert FEATURES == (
        "gpu_utilization_mean",
        "gpu_utilization_quartile_1",
        "gpu_utilization_median",
        "gpu_utilization_quartile_3",
        "gpu_utilization_maximum",
        "gpu_utilization_standard_deviation",
        "memory_utilization_mean",
        "memory_utilization_median",
        "memory_utilization_quartile_3",
        "memory_utilization_maximum",
        "memory_utilization_standard_deviation",
        "power_share_mean",
        "power_share_median",
        "power_share_maximum",
        "power_share_standard_deviation",
        "sm_clock_share_mean",
        "sm_clock_share_minimum",
        "memory_share_of_busy",
        "power_share_per_busy",
        "log_achieved_bandwidth",
        "power_share_minimum",
        "power_share_quartile_1",
        "power_share_quartile_3",
        "power_share_quartile_range",
        "gpu_utilization_variation",
        "memory_utilization_variation",
        "logit_gpu_utilization",
        "log_memory_utilization",
        "log_memory_utilization_peak",
        "log_ratio_sm_count",
        "log_ratio_cuda_cores",
        "log_ratio_cores_per_sm",
        "log_ratio_boost_clock_mhz",
        "log_ratio_memory_bandwidth_bytes_per_second",
        "log_ratio_l2_cache_bytes",
        "log_ratio_fp32_tflops",
        "log_ratio_power_limit_watts",
        "log_ratio_max_threads_per_sm",
        "log_ratio_shared_memory_bytes_per_sm",
        "difference_compute_capability",
        "busy_times_compute_ratio",
        "busy_times_bandwidth_ratio",
        "memory_share_times_bandwidth_ratio",
        "compute_share_times_compute_ratio",
        "prior_geometric",
        "prior_compute",
        "prior_bandwidth",
        "prior_linear",
        "prior_memory_utilization",
        "prior_quartile_3",
    )


def test_no_leaking_column_enters_any_model():
    for name in (*FEATURES, *FeatureGroups().names()):
        assert not any(
            leak in name for leak in ("throttle", "framebuffer", "uuid", "serial", "time_s", "model", "batch")
        )


def test_one_row_per_target_and_finite_even_for_an_idle_gpu(runs, gpus):
    measurement = runs.run(0).measurement()
    idle = MetricDistribution(0, 0, 0, 0, 0, 0, 0)
    resting = dataclasses.replace(
        measurement, metrics={**measurement.metrics, "gpu_utilization": idle, "memory_utilization": idle}
    )
    targets = [gpus.get("T4"), gpus.get("H100-SXM5-80GB"), gpus.get("K80")]
    for source in (measurement, resting):
        matrix = feature_matrix(source, targets)
        assert matrix.shape == (3, len(FEATURES))
        assert np.isfinite(matrix).all()


def test_framebuffer_metrics_do_not_change_the_features(runs, gpus):
    measurement = runs.run(0).measurement()
    without = {name: value for name, value in measurement.metrics.items() if not name.startswith("framebuffer")}
    assert len(without) < len(measurement.metrics)
    target = [gpus.get("T4")]
    same = feature_matrix(dataclasses.replace(measurement, metrics=without), target)
    assert (same == feature_matrix(measurement, target)).all()


def test_a_missing_metric_is_named(runs, gpus):
    measurement = runs.run(0).measurement()
    metrics = {name: value for name, value in measurement.metrics.items() if name != "power_watts"}
    with pytest.raises(MeasurementError, match="power_watts"):
        feature_matrix(dataclasses.replace(measurement, metrics=metrics), [gpus.get("T4")])


def test_figures_read_on_the_device_take_precedence_over_the_catalogue(runs, gpus):
    measurement = dataclasses.replace(runs.run(0).measurement(), static_attributes={"power_limit_watts": 125.0})
    row = feature_matrix(measurement, [gpus.get("T4")])[0]
    assert row[FEATURES.index("log_ratio_power_limit_watts")] == pytest.approx(np.log(125 / 70))
