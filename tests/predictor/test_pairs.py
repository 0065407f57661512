"""Pairs: selecting, joining and weighing them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from gpusonde.predictor.crossgpu import LatencyModel
from gpusonde.predictor.crossgpu.pairs import TIMELESS, Pairs, decay_weights

DAY_S = 86_400.0


@pytest.fixture(scope="module")
def pairs(runs):
    return Pairs.from_runs(runs)


def test_parts_joined_again_mean_what_they_meant(pairs):
    other = np.array([pairs.workloads[number] == "Net2" for number in pairs.workload])
    a, b = pairs.where(other), pairs.where(~other)
    # The parts as two tables would give them: names that the other part has, and only their own.
    a = replace(a, workloads=("Net2",), workload=np.zeros(len(a), dtype=np.intp))
    joined = Pairs.join([b, a])
    assert len(joined) == len(pairs)
    assert [joined.workloads[n] for n in joined.workload[-len(a) :]] == ["Net2"] * len(a)
    names = [[p.configurations[n] for n in p.configuration] for p in (b, a)]
    assert [joined.configurations[n] for n in joined.configuration] == [*names[0], *names[1]]
    gpus = [[(p.gpu_names[i], p.gpu_names[j]) for i, j in zip(p.source_gpu, p.target_gpu, strict=True)] for p in (b, a)]
    assert [
        (joined.gpu_names[i], joined.gpu_names[j]) for i, j in zip(joined.source_gpu, joined.target_gpu, strict=True)
    ] == [*gpus[0], *gpus[1]]


@pytest.mark.parametrize("true", [0.8, 1.0, 1.4])
def test_the_power_that_working_time_goes_with_is_found_from_pairs_and_drawn_to_one(pairs, true):
    known = replace(pairs, log_ratio=pairs.log_prior(true))
    assert known.working_exponent == pytest.approx(true, abs=abs(true - 1) / 3)
    (one, other) = (int(pairs.source_gpu[0]), int(pairs.target_gpu[0]))
    few = known.where(known.touches(one) & known.touches(other))
    assert abs(few.working_exponent - 1) <= abs(known.working_exponent - 1)
    assert known.where(np.zeros(len(known), dtype=bool)).working_exponent == 1.0


def test_a_model_does_not_mind_where_its_pairs_come_from(pairs, runs, small_settings):
    quick = replace(small_settings, regimes=())
    half = pairs.configuration % 2 == 0
    whole = LatencyModel(quick).fit(runs)
    joined = LatencyModel(quick).fit_pairs(Pairs.join([pairs.where(half), pairs.where(~half)]))
    source, target = runs.run(0).measurement(), [runs.run(3).gpu]
    (a,), (b,) = whole.predict(source, target), joined.predict(source, target)
    # Trees draw at random from rows in another order.
    assert b.epoch_latency_s == pytest.approx(a.epoch_latency_s, rel=0.03)


def test_a_gpu_that_few_configurations_ran_on_still_counts_as_new(pairs, runs, small_settings, gpus):
    t4 = pairs.gpu_names.index("T4")
    few = pairs.where(~pairs.touches(t4) | (pairs.configuration < 3))
    model = LatencyModel(replace(small_settings, regimes=())).fit_pairs(few)
    (prediction,) = model.predict(runs.run(0).measurement(), [gpus.get("T4")])
    assert prediction.status == "extrapolated"
    assert "T4" in prediction.reason


def test_weights_halve_with_every_half_life_and_tables_never_age():
    now = 100 * DAY_S
    times = np.array([TIMELESS, now, now - 30 * DAY_S, now - 60 * DAY_S, now + DAY_S])
    assert decay_weights(times, now, 30 * DAY_S).tolist() == pytest.approx([1, 1, 0.5, 0.25, 1])
    assert decay_weights(times, now, math.inf).tolist() == [1] * 5
