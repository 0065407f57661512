from __future__ import annotations

import numpy as np
import pytest

from gpusonde.predictor.crossgpu import MeasurementError, MetricDistribution, SourceMeasurement, summarise_metrics
from gpusonde.telemetry import Trace


def test_a_distribution_leaves_blanks_out():
    values = [1.0, np.nan, 2.0, 3.0, 4.0]
    found = MetricDistribution.from_values(values)
    assert found == MetricDistribution(2.5, np.std([1, 2, 3, 4], ddof=1), 1.0, 1.75, 2.5, 3.25, 4.0)


def test_a_distribution_of_nothing_is_an_error():
    with pytest.raises(MeasurementError, match="no finite value"):
        MetricDistribution.from_values([np.nan])


@pytest.mark.parametrize("latency", [0.0, -1.0, float("nan"), float("inf")])
def test_an_impossible_latency_is_refused(gpus, latency):
    with pytest.raises(MeasurementError, match="epoch_latency_s"):
        SourceMeasurement(gpus.get("T4"), latency)


def test_percent_given_as_ratio_is_refused_as_another_unit(gpus):
    percent = MetricDistribution(60, 10, 0, 50, 70, 80, 95)
    with pytest.raises(MeasurementError, match=r"gpu_utilization.*another unit"):
        SourceMeasurement(gpus.get("T4"), 1.0, {"gpu_utilization": percent})


def test_an_unknown_metric_is_refused_with_the_nearest_name(gpus):
    with pytest.raises(MeasurementError, match="gpu_utilization"):
        SourceMeasurement(gpus.get("T4"), 1.0, {"gpu_utilisation": MetricDistribution(0, 0, 0, 0, 0, 0, 0)})


def test_a_nan_in_a_distribution_is_refused(gpus):
    broken = MetricDistribution(float("nan"), 0, 0, 0, 0, 0, 0)
    with pytest.raises(MeasurementError, match="mean is nan"):
        SourceMeasurement(gpus.get("T4"), 1.0, {"power_watts": broken})


def test_the_whole_run_of_a_trace_is_summarised_without_blank_metrics():
    time_s = np.arange(5) / 10
    blank = np.full(5, np.nan)
    trace = Trace(time_s, {"gpu_utilization": np.array([0, 0.5, np.nan, 1, 1]), "memory_utilization": blank})
    found = summarise_metrics(trace)
    assert list(found) == ["gpu_utilization"]
    assert found["gpu_utilization"].mean == pytest.approx(0.625)


def test_a_static_attribute_in_another_unit_is_refused(gpus):
    with pytest.raises(MeasurementError, match=r"memory_bandwidth_bytes_per_second.*another unit"):
        SourceMeasurement(gpus.get("T4"), 1.0, static_attributes={"memory_bandwidth_bytes_per_second": 320.0})
    SourceMeasurement(gpus.get("T4"), 1.0, static_attributes={"power_limit_watts": 60.0, "something_else": 3.0})
