from __future__ import annotations

import math

import numpy as np
import pytest

from gpusonde.predictor.crossgpu import PaperStack
from gpusonde.predictor.crossgpu.evaluation import (
    LatencyProtocol,
    PairErrors,
    Scores,
    add_noise,
    evaluate,
    make_default_predictor,
    make_paper_predictor,
    make_prior_predictor,
)
from gpusonde.predictor.crossgpu.runs_table import RunsTable


def recorded(runs, protocol, **options):
    """What a protocol fits on and tests on."""
    splits = []

    def predictor(task):
        splits.append((task.fit_on, task.predict))
        return make_prior_predictor()(task)

    evaluate(runs, predictor, protocol, **options)
    return splits


def names_of(table, indices, what):
    return {what(table.runs[index]) for index in indices}


@pytest.mark.parametrize(
    ("protocol", "what"),
    [
        (LatencyProtocol.CONFIG, lambda run: run.configuration),
        (LatencyProtocol.CNN, lambda run: run.configuration.model),
    ],
)
def test_what_is_held_out_is_in_no_pair_fitted_on(runs, protocol, what):
    for (source, target), (test_source, test_target) in recorded(runs, protocol):
        fitted = names_of(runs, [*source, *target], what)
        tested = names_of(runs, [*test_source, *test_target], what)
        assert tested
        assert not fitted & tested


def test_a_held_out_target_gpu_is_in_no_pair_fitted_on_not_even_as_a_source(runs):
    splits = recorded(runs, LatencyProtocol.TARGET)
    assert len(splits) == 4
    for (source, target), (_, test_target) in splits:
        (held_out,) = names_of(runs, test_target, lambda run: run.gpu.name)
        assert held_out not in names_of(runs, [*source, *target], lambda run: run.gpu.name)


def test_both_gpus_held_out_leaves_the_other_two(runs):
    splits = recorded(runs, LatencyProtocol.BOTH)
    assert len(splits) == 12
    for (source, target), (test_source, test_target) in splits:
        tested = names_of(runs, [*test_source, *test_target], lambda run: run.gpu.name)
        assert len(tested) == 2
        assert not tested & names_of(runs, [*source, *target], lambda run: run.gpu.name)


def test_a_random_split_leaks_configurations_as_the_papers_does(runs):
    ((source, _), (test_source, _)) = recorded(runs, LatencyProtocol.RANDOM)[0]
    shared = names_of(runs, source, lambda run: run.configuration) & names_of(
        runs, test_source, lambda run: run.configuration
    )
    assert shared


def test_with_a_test_table_its_workloads_are_not_fitted_on(runs):
    own = RunsTable(runs.runs[:48])
    other = RunsTable(runs.runs[32:80])
    ((source, target), (test_source, test_target)) = recorded(own, LatencyProtocol.CNN, test=other)[0]
    assert max([*source, *target]) < 48 <= min([*test_source, *test_target])
    joined = own.runs + other.runs
    fitted = {joined[index].configuration.model for index in [*source, *target]}
    assert fitted == {"Net0", "Net1"}


def test_noise_is_drawn_once_per_run_and_has_the_stated_mean(runs):
    noisy = add_noise(runs, 0.096, seed=3)
    errors = [abs(run.detected_epoch_latency_s / run.epoch_latency_s - 1) for run in noisy.runs]
    assert np.mean(errors) == pytest.approx(0.096, rel=0.25)
    assert [run.epoch_latency_s for run in noisy.runs] == [run.epoch_latency_s for run in runs.runs]
    assert add_noise(runs, 0.0, seed=3) is runs


def test_noise_of_queries_alone_is_declared_and_not_fitted_on(runs):
    tasks = []

    def predictor(task):
        tasks.append(task)
        return make_prior_predictor()(task)

    evaluate(runs, predictor, LatencyProtocol.CONFIG, noise=0.096, noise_in_training=False)
    (task,) = tasks
    assert all(run.detected_epoch_latency_s == run.epoch_latency_s for run in task.training.runs)
    assert all(run.epoch_latency_relative_error == pytest.approx(0.12, rel=0.01) for run in task.test.runs)


def test_scores_are_ratios_and_seconds():
    errors = PairErrors(
        source_gpu=np.array(["T4"] * 4),
        target_gpu=np.array(["A10G"] * 4),
        workload=np.array(["Net"] * 4),
        source_s=np.full(4, 2.0),
        measured_s=np.array([1.0, 2.0, 4.0, 8.0]),
        predicted_s=np.array([1.1, 2.0, 3.6, 8.8]),
        low_s=np.array([0.9, 1.0, 3.7, 8.0]),
        high_s=np.array([1.2, 3.0, 3.9, 9.0]),
        extrapolated=np.array([True, False, False, False]),
    )
    scores = Scores.from_errors(errors)
    assert scores.mape == pytest.approx(0.075)
    assert scores.median_ape == pytest.approx(0.1)
    assert scores.coverage == 0.75
    assert scores.extrapolated == 0.25
    assert scores.rmse_s == pytest.approx(math.sqrt((0.01 + 0.16 + 0.64) / 4))


def test_the_default_model_beats_the_prior_on_unseen_configurations(runs, small_settings):
    default = evaluate(
        runs, make_default_predictor(small_settings, LatencyProtocol.CONFIG), LatencyProtocol.CONFIG, seeds=(1,)
    )
    prior = evaluate(runs, make_prior_predictor(), LatencyProtocol.CONFIG, seeds=(1,))
    assert default.overall.mape < prior.overall.mape
    assert default.overall.coverage > 0.7
    assert set(default.by_target) == set(runs.gpu_names)


def test_an_unseen_gpu_is_flagged_in_every_prediction(runs, small_settings):
    result = evaluate(runs, make_default_predictor(small_settings, LatencyProtocol.TARGET), LatencyProtocol.TARGET)
    assert result.overall.extrapolated == 1.0
    assert result.overall.coverage > 0.8


def test_the_papers_stack_can_be_evaluated(runs):
    result = evaluate(
        runs,
        make_paper_predictor(lambda seed: PaperStack(seed=seed, forest_trees=10, catboost_trees=30, threads=1)),
        LatencyProtocol.RANDOM,
    )
    assert 0 < result.overall.mape < 1
    assert math.isnan(result.overall.coverage)


def test_a_table_with_nothing_to_hold_out_is_an_error(runs):
    with pytest.raises(ValueError, match="no pairs"):
        evaluate(RunsTable(runs.runs[:1]), make_prior_predictor(), LatencyProtocol.CNN)
