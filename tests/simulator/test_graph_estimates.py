"""Curves, gradients and memory from a network's graph."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.workload_graphs import StraightLines, small_network

from gpusonde.catalog import Precision
from gpusonde.predictor.workload import zoo
from gpusonde.predictor.workload.engine import Cluster, WorkloadModel, WorkloadRequest
from gpusonde.simulator.compute import CurveOrigin, compute_curve
from gpusonde.simulator.compute.sources import gradient_bytes, latency_estimate, predict_steps

NORMAL_90 = 1.6448536
GRAPH = small_network()


def curve_of(predictions, batches):
    return compute_curve([latency_estimate(batch, each) for batch, each in zip(batches, predictions, strict=True)])


def test_a_curve_of_a_network_that_never_ran_follows_the_model_and_is_as_uncertain_as_it():
    model = StraightLines()
    curve = curve_of(predict_steps(model, GRAPH, ["T4"], [8, 16, 32, 64])["T4"], [8, 16, 32, 64])
    assert curve.origin is CurveOrigin.GRAY_BOX
    for batch in (8, 24, 64):
        assert curve.predict(batch).total_s[0] == pytest.approx(
            model.seconds(WorkloadRequest(GRAPH, batch, Cluster("T4"))), rel=1e-3
        )
    assert curve.predict(32).uncertainty[0] == pytest.approx(math.log(1.2) / NORMAL_90, rel=0.05)


def test_all_devices_and_batch_sizes_are_one_question_to_the_model():
    model = StraightLines()
    found = predict_steps(model, GRAPH, ["T4", "A10G"], [8, 16, 32], Precision.FP16)
    assert model.asked == [6]
    assert [len(found[device]) for device in ("T4", "A10G")] == [3, 3]
    assert found["A10G"][0].seconds < found["T4"][0].seconds


def test_gradients_are_as_large_as_the_parameters():
    assert gradient_bytes(GRAPH) == 4 * (8 * 3 * 3 * 3 + 10 * 8 + 10)


def test_the_shipped_model_gives_curves_of_a_known_network_that_rise_with_the_batch_and_fall_with_the_gpu():
    devices, batches = ["K80", "T4", "A100-SXM4-40GB"], [16, 32, 64, 128]
    found = predict_steps(WorkloadModel.shipped(), zoo.load("resnet50"), devices, batches)
    curves = {device: curve_of(found[device], batches) for device in devices}
    seconds = [float(curve.predict(64).total_s[0]) for curve in curves.values()]
    assert seconds == sorted(seconds, reverse=True)
    for curve in curves.values():
        assert (np.diff(curve.predict([16, 32, 64, 128]).total_s) > 0).all()
        # Nobody has named a place of measurement, so the estimate is a rough one and says so.
        assert 0.2 < curve.predict(64).uncertainty[0] < 1.5
