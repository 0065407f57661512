"""Curves from timed steps, from estimates and from predicted epoch latencies, through one interface."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gpusonde.catalog import load_gpus
from gpusonde.errors import ProblemError
from gpusonde.predictor.crossgpu import LatencyModel, LatencyPrediction, SourceMeasurement
from gpusonde.simulator.compute import (
    ComputeProbe,
    CurveOrigin,
    EpochLatency,
    LatencyEstimate,
    compute_curve,
)
from gpusonde.simulator.gradients import assumed_trace
from gpusonde.simulator.iteration import BusBandwidth, DeviceGroup, IterationSimulator

# Half of the width of an interval that holds 90 % of a normal distribution, in standard deviations.
NORMAL_90 = 1.6448536


def prediction(latency, low, high, status="ok"):
    return LatencyPrediction("V100", latency, low, high, 0.9, status, False, "prior only", "because", "test")


def estimates(batches):
    """A straight line, give or take 10 %."""
    factor = math.exp(0.1 * NORMAL_90)
    steps = [(batch, 0.01 + 0.001 * batch) for batch in batches]
    return [LatencyEstimate(batch, seconds, seconds / factor, seconds * factor) for batch, seconds in steps]


def test_all_three_origins_give_the_same_curve_for_the_same_latencies_and_say_where_it_comes_from():
    batches = (8, 16, 64, 128)
    timed = [ComputeProbe(batch, 0.01 + 0.001 * batch) for batch in batches]
    estimated = estimates(batches)
    steps = [math.ceil(50_000 / batch) for batch in batches]
    epochs = [
        EpochLatency.from_prediction(
            prediction(*[count * (0.01 + 0.001 * batch) * f for f in (1, 0.8, 1.25)]), batch, 50_000
        )
        for batch, count in zip(batches, steps, strict=True)
    ]
    curves = [compute_curve(source, largest_batch=512) for source in (timed, estimated, epochs)]
    assert [curve.origin for curve in curves] == [CurveOrigin.PROBES, CurveOrigin.GRAY_BOX, CurveOrigin.CROSS_GPU]
    for curve in curves:
        assert curve.predict([10, 100]).total_s == pytest.approx(curves[0].predict([10, 100]).total_s)
        assert curve.largest_batch == 512
        # An interval is no scatter of steps.
        assert curve.spread == pytest.approx(curves[0].spread)
    of_fit, *others = (curve.predict(64).uncertainty[0] for curve in curves)
    assert others == pytest.approx(np.hypot(of_fit, [0.1, math.log(1.25) / NORMAL_90]))


def test_the_last_batch_of_an_epoch_is_a_step_even_if_it_is_not_full():
    step = EpochLatency(32, 100, 8.0, 8.0, 8.0).per_step()
    assert step.total_s == pytest.approx(2.0)


def test_runs_seen_by_telemetry_on_one_gpu_become_a_curve_on_another():
    gpus, model = load_gpus(), LatencyModel.shipped()
    epochs = [
        EpochLatency.from_prediction(
            model.predict(SourceMeasurement(gpus.get("T4"), epoch_s), [gpus.get("V100-SXM2-16GB")])[0], batch, 10_000
        )
        for batch, epoch_s in ((16, 120.0), (64, 80.0), (256, 70.0))
    ]
    curve = compute_curve(epochs)
    assert curve.origin is CurveOrigin.CROSS_GPU
    assert (curve.uncertainty > 0.05).all()
    latency = curve.predict([16, 64, 256]).total_s
    assert latency == pytest.approx([each.per_step().total_s for each in epochs], rel=0.1)
    assert (latency < np.array([120.0 / 625, 80.0 / 157, 70.0 / 40])).all()


def test_one_run_takes_its_shape_from_the_curve_of_another_gpu():
    shape = compute_curve([ComputeProbe(8, 0.1), ComputeProbe(64, 0.4), ComputeProbe(128, 0.8)])
    alone = [EpochLatency(64, 64_000, 200.0, 180.0, 220.0)]
    curve = compute_curve(alone, shape=shape, largest_batch=100)
    ratio = curve.predict([8, 64, 128]).total_s / shape.predict([8, 64, 128]).total_s
    assert ratio == pytest.approx([0.2 / shape.predict(64).total_s[0]] * 3)
    assert (curve.origin, curve.largest_batch) == (CurveOrigin.CROSS_GPU, 100)
    assert (curve.uncertainty > shape.uncertainty).all()
    assert curve.predict([32, 64]).extrapolated.tolist() == [True, False]
    with pytest.raises(ProblemError, match="two batch sizes"):
        compute_curve([ComputeProbe(64, 0.2)])


def test_one_run_alone_has_the_shape_of_most_jobs_and_is_the_less_sure_the_further_a_batch_is_from_its_own():
    curve = compute_curve([EpochLatency(64, 64_000, 200.0, 180.0, 220.0)])
    assert curve.origin is CurveOrigin.CROSS_GPU
    there = curve.predict([4, 32, 64, 128])
    assert there.total_s == pytest.approx([0.2 * (batch / 64) ** 0.8 for batch in (4, 32, 64, 128)])
    own, distances = math.log(220 / 180) / 2 / NORMAL_90, np.log([16, 2, 1, 2])
    assert there.uncertainty == pytest.approx(np.hypot(own, 0.3 * distances))
    assert there.extrapolated.tolist() == [True, True, False, True]


def test_what_is_uncertain_about_a_curve_shows_beside_the_iteration_and_not_in_it():
    class Wire:
        def bus_bandwidth(self, transfer_bytes, world_size):
            return BusBandwidth(np.full(len(transfer_bytes), 1e12), np.zeros(len(transfer_bytes)))

    batches = (8, 16, 64)
    timed = compute_curve([ComputeProbe(batch, 0.01 + 0.001 * batch) for batch in batches], "paper")
    estimated = compute_curve(estimates(batches), "paper")
    simulator = IterationSimulator(assumed_trace(1e8), Wire())
    certain, uncertain = (simulator.estimate([DeviceGroup(curve, 64, 16)]) for curve in (timed, estimated))
    assert uncertain.mean_s == pytest.approx(certain.mean_s)
    assert certain.uncertainty_s == 0.0
    assert uncertain.uncertainty_s == pytest.approx(np.expm1(0.1 * 1.645) * timed.predict(16).total_s[0], rel=1e-3)


@pytest.mark.parametrize(
    ("figures", "says"),
    [
        ((8, 0.1, 0.2, 0.3), "hold the estimate"),
        ((8, 0.1, 0.0, 0.3), "above zero"),
        ((8, 0.1, 0.1, math.inf), "finite"),
        ((8, math.nan, 0.1, 0.2), "hold the estimate"),
        ((8, 0.1, 0.1, 0.2, 1.0), "coverage"),
        ((0, 0.1, 0.1, 0.2), "batch size"),
    ],
)
def test_estimates_that_are_none_are_refused(figures, says):
    with pytest.raises(ProblemError, match=says):
        compute_curve([LatencyEstimate(*figures), LatencyEstimate(16, 0.2, 0.1, 0.3)])


def test_epochs_that_no_run_has_are_refused():
    with pytest.raises(ProblemError, match="no epoch latency was predicted"):
        EpochLatency.from_prediction(prediction(math.nan, math.nan, math.nan, "unsupported_gpu"), 8, 1000)
    for figures in ((0, 1000, 1, 1, 1), (8, 0, 1, 1, 1), (8, math.inf, 1, 1, 1)):
        with pytest.raises(ProblemError, match="above zero"):
            EpochLatency(*figures)
