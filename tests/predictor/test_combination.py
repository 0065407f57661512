from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gpusonde.predictor.crossgpu.model import combine_predictions


def test_two_sources_are_no_worse_than_one_on_average(model, runs):
    alone, together = [], []
    for row in range(0, len(runs), 3):
        target = runs.run(row)
        sources = [run.measurement() for run in runs.counterparts(row)]
        alone += [abs(model.predict(s, [target.gpu])[0].epoch_latency_s / target.epoch_latency_s - 1) for s in sources]
        (combined,) = model.predict_combined(sources, [target.gpu])
        together.append(abs(combined.epoch_latency_s / target.epoch_latency_s - 1))
    assert np.mean(together) < np.mean(alone)


def test_a_measurement_on_the_target_wins(model, runs):
    target = runs.run(0)
    sources = [run.measurement() for run in (target, *runs.counterparts(0))]
    (combined,) = model.predict_combined(sources, [target.gpu])
    assert combined.epoch_latency_s == pytest.approx(target.epoch_latency_s)
    assert combined.method == "measured"


def test_a_source_that_must_extrapolate_does_not_spoil_one_that_need_not(model, runs, gpus):
    good = runs.run(0).measurement()
    strange = dataclasses.replace(good, gpu=gpus.get("K80"), static_attributes={})
    (combined,) = model.predict_combined([strange, good], [gpus.get("T4")])
    assert combined == model.predict(good, [gpus.get("T4")])[0]


def test_the_combined_latency_lies_between_and_says_how_many_there_were(model, runs, gpus):
    sources = [runs.run(0).measurement(), runs.run(1).measurement()]
    single = [model.predict(source, [gpus.get("A10G")])[0] for source in sources]
    (combined,) = model.predict_combined(sources, [gpus.get("A10G")])
    low, high = sorted(prediction.epoch_latency_s for prediction in single)
    assert low <= combined.epoch_latency_s <= high
    assert combined.method == "prior + residual, mean of 2 sources"


def test_predictions_for_different_targets_are_not_combined(model, runs, gpus):
    predictions = model.predict(runs.run(0).measurement(), [gpus.get("T4"), gpus.get("A10G")])
    with pytest.raises(ValueError, match="one target"):
        combine_predictions(predictions)
    with pytest.raises(ValueError, match="one target"):
        combine_predictions([])
    with pytest.raises(ValueError, match="no source"):
        model.predict_combined([], [gpus.get("T4")])
