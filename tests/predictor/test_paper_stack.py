from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gpusonde.predictor.crossgpu import MeasurementError, PaperStack
from gpusonde.predictor.crossgpu.paper import DYNAMIC_METRICS, STATIC_ATTRIBUTES, FeatureGroups, paper_features


@pytest.fixture(scope="module")
def stack(runs):
    return PaperStack(forest_trees=20, catboost_trees=60, threads=1).fit(runs)


def test_features_are_those_of_the_papers_figure_7(runs, gpus):
    run = runs.run(1)  # a V100
    names = FeatureGroups().names()
    row = paper_features(run.measurement(), [gpus.get("T4")], FeatureGroups())[0]
    assert len(row) == len(names) == 7 * len(DYNAMIC_METRICS) + len(STATIC_ATTRIBUTES) + 1
    assert row[names.index("ratio_cuda_cores")] == 5120 / 2560
    assert row[names.index("ratio_sm_count")] == 80 / 40
    assert row[names.index("gpu_utilization_mean")] == run.metrics["gpu_utilization"].mean
    assert row[names.index("epoch_latency_s")] == run.epoch_latency_s


def test_the_groups_of_table_v_select_features(runs, gpus):
    static = FeatureGroups(dynamic=False)
    assert all(name.startswith(("ratio_", "epoch_latency_s")) for name in static.names())
    assert paper_features(runs.run(0).measurement(), [gpus.get("T4")], static).shape == (1, len(static.names()))


def test_it_predicts_seconds_in_the_right_order_of_magnitude(stack, runs):
    errors = [
        abs(stack.predict(runs.run(row).measurement(), [other.gpu])[0] / other.epoch_latency_s - 1)
        for row in range(0, len(runs), 4)
        for other in runs.counterparts(row)
    ]
    assert np.median(errors) < 0.3


def test_both_base_regressors_can_be_asked(stack, runs):
    source, target = runs.pairs()
    predictions = stack.predict_pairs(runs, source[:5], target[:5])
    assert set(predictions) == {"random_forest", "catboost", "stack"}
    assert all(values.shape == (5,) for values in predictions.values())


def test_a_missing_metric_is_named(stack, runs, gpus):
    source = dataclasses.replace(runs.run(0).measurement(), metrics={})
    with pytest.raises(MeasurementError, match="gpu_utilization"):
        stack.predict(source, [gpus.get("T4")])
