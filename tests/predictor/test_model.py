from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from support.synthetic_runs import synthetic_runs, write_runs

from gpusonde.catalog import Precision
from gpusonde.errors import ModelError
from gpusonde.predictor.crossgpu import (
    LatencyModel,
    MetricDistribution,
    ModelSettings,
    SourceMeasurement,
    TooFewRunsError,
    read_runs,
)
from gpusonde.predictor.crossgpu.evaluation import Scores, predict_pairs
from gpusonde.predictor.crossgpu.model import _Anchors
from gpusonde.predictor.crossgpu.neighbourhood import (
    Regime,
    TrainedGpu,
    dominates,
    interpolate_rising,
    rate_uncertainty,
)
from gpusonde.predictor.crossgpu.prior import MetricLevel, log_idle_effect, log_latency_ratio, roofline
from gpusonde.predictor.crossgpu.regression import GaussianProcess, ObliviousTrees
from gpusonde.predictor.crossgpu.runs_table import RunsTable


def without(source: SourceMeasurement, *names: str) -> SourceMeasurement:
    return dataclasses.replace(source, metrics={k: v for k, v in source.metrics.items() if k not in names})


def test_seen_gpus_are_predicted_near_the_measured_latency(model, runs, gpus):
    errors = []
    for row in range(len(runs)):
        for other in runs.counterparts(row):
            (prediction,) = model.predict(runs.run(row).measurement(), [other.gpu])
            assert prediction.status == "ok"
            assert prediction.epoch_latency_low_s < prediction.epoch_latency_s < prediction.epoch_latency_high_s
            errors.append(abs(prediction.epoch_latency_s / other.epoch_latency_s - 1))
    assert np.mean(errors) < 0.06


def test_the_source_gpu_itself_gets_the_measured_latency(model, runs):
    run = runs.run(3)
    (prediction,) = model.predict(run.measurement(), [run.gpu])
    assert prediction.epoch_latency_s == run.epoch_latency_s
    assert (prediction.status, prediction.method) == ("ok", "measured")


def test_an_unseen_target_is_flagged_and_its_interval_is_wider(model, runs, gpus):
    source = runs.run(0).measurement()
    seen, unseen, far = model.predict(source, [gpus.get("T4"), gpus.get("A100-SXM4-40GB"), gpus.get("B200")])

    def width(prediction):
        return prediction.epoch_latency_high_s / prediction.epoch_latency_low_s

    assert (unseen.status, unseen.extrapolated) == ("extrapolated", True)
    assert "A100-SXM4-40GB" in unseen.reason
    assert width(seen) < width(unseen) < width(far)


def test_the_same_chip_with_more_memory_counts_as_seen(model, runs, gpus):
    (prediction,) = model.predict(runs.run(0).measurement(), [gpus.get("V100-SXM2-32GB")])
    assert prediction.status == "ok"


@pytest.mark.parametrize(("own", "other"), [("V100-SXM2-16GB", "V100-SXM2-32GB"), ("V100-PCIe-16GB", "V100-PCIe-32GB")])
def test_a_variant_of_the_source_itself_takes_as_long_as_the_source(model, runs, gpus, own, other):
    source = dataclasses.replace(runs.run(1).measurement(), gpu=gpus.get(own), static_attributes={})
    (prediction,) = model.predict(source, [gpus.get(other)])
    assert prediction.epoch_latency_s == source.epoch_latency_s
    assert (prediction.status, prediction.method) == ("ok", "same chip")
    assert prediction.epoch_latency_low_s < source.epoch_latency_s < prediction.epoch_latency_high_s


def test_a_card_of_the_same_chip_for_less_power_is_another_gpu(model, runs, gpus):
    source = dataclasses.replace(runs.run(1).measurement(), gpu=gpus.get("A100-SXM4-40GB"), static_attributes={})
    (prediction,) = model.predict(source, [gpus.get("A100-PCIe-40GB")])
    assert prediction.status == "extrapolated"


def test_with_both_gpus_unseen_the_prior_alone_answers(model, runs, gpus):
    source = dataclasses.replace(runs.run(0).measurement(), gpu=gpus.get("A100-SXM4-40GB"), static_attributes={})
    (prediction,) = model.predict(source, [gpus.get("H100-SXM5-80GB")])
    assert prediction.method == "prior only"
    assert prediction.status == "extrapolated"
    line = dataclasses.replace(roofline(source, MetricLevel.NVIDIA_SMI), exponent=model.state.pairs.working_exponent)
    log_ratio = log_latency_ratio(source, gpus.get("H100-SXM5-80GB"), line)
    assert prediction.epoch_latency_s == pytest.approx(source.epoch_latency_s * math.exp(log_ratio))
    assert line.exponent != 1.0


def test_a_missing_metric_degrades_openly_to_the_prior(model, runs, gpus):
    source = without(runs.run(0).measurement(), "memory_utilization")
    (prediction,) = model.predict(source, [gpus.get("T4")])
    assert prediction.method == "prior only, gpu_utilization"
    assert "memory_utilization" in prediction.reason
    assert (prediction.status, prediction.extrapolated) == ("extrapolated", True)
    assert "a factor of" in prediction.reason


def test_idle_time_of_the_source_widens_the_interval_as_much_wherever_the_target_lies(model, gpus):
    def half_width(target, **metrics):
        known = {name: MetricDistribution.from_values([value]) for name, value in metrics.items()}
        (answer,) = model.predict(SourceMeasurement(gpus.get("T4"), 10.0, known), [gpus.get(target)])
        return math.log(answer.epoch_latency_s / answer.epoch_latency_low_s)

    assert model.state.gpus.interval_inflation(gpus.get("H200-SXM-141GB")) > 1.5
    for target in ("A10", "H200-SXM-141GB"):
        source = SourceMeasurement(gpus.get("T4"), 10.0, {"gpu_utilization": MetricDistribution.from_values([0.5])})
        effect = log_idle_effect(source, gpus.get(target), roofline(source, MetricLevel.UTILIZATION))
        added = math.hypot(half_width(target), effect)
        assert half_width(target, gpu_utilization=0.5) == pytest.approx(added)


def test_no_interval_reaches_much_beyond_the_source_where_the_target_has_nothing_less(model, runs, gpus):
    run = runs.run(0).measurement()
    slow = dataclasses.replace(run, metrics={**run.metrics, "gpu_utilization": MetricDistribution.from_values([0.05])})
    (answer,) = model.predict(slow, [gpus.get("GB200")])
    assert answer.epoch_latency_high_s == pytest.approx(1.2 * run.epoch_latency_s)
    double = dataclasses.replace(slow, precision=Precision.FP64)
    assert model.predict(double, [gpus.get("GB200")])[0].epoch_latency_high_s > 1.3 * run.epoch_latency_s


def test_dcgm_metrics_alone_are_called_unvalidated(model, gpus):
    flat = MetricDistribution(0.5, 0, 0.5, 0.5, 0.5, 0.5, 0.5)
    source = SourceMeasurement(gpus.get("T4"), 10.0, {"dram_active": flat, "sm_active": flat})
    (prediction,) = model.predict(source, [gpus.get("A10G")])
    assert "unvalidated" in prediction.method
    assert "unvalidated" in prediction.reason
    assert prediction.extrapolated


def test_without_dynamic_metrics_static_figures_answer_with_the_widest_interval(model, runs, gpus):
    source = dataclasses.replace(runs.run(0).measurement(), metrics={})
    (static,) = model.predict(source, [gpus.get("T4")])
    (full,) = model.predict(runs.run(0).measurement(), [gpus.get("T4")])
    assert static.method == "prior only, static"
    assert static.epoch_latency_high_s / static.epoch_latency_s > full.epoch_latency_high_s / full.epoch_latency_s


def test_the_detectors_error_widens_the_interval(model, runs, gpus):
    exact = runs.run(0).measurement()
    rough = dataclasses.replace(exact, epoch_latency_relative_error=0.2)
    (a,), (b,) = (model.predict(source, [gpus.get("T4")]) for source in (exact, rough))
    own = math.log(a.epoch_latency_high_s / a.epoch_latency_s)
    assert math.log(b.epoch_latency_high_s / b.epoch_latency_s) == pytest.approx(
        math.hypot(own, 1.6449 * 0.2), rel=1e-3
    )
    (itself,) = model.predict(rough, [rough.gpu])
    assert itself.epoch_latency_high_s > itself.epoch_latency_s


def test_a_run_unlike_all_fitted_ones_is_flagged(model, runs, gpus):
    source = runs.run(0).measurement()
    flat = MetricDistribution(0.02, 0, 0.02, 0.02, 0.02, 0.02, 0.02)
    strange = dataclasses.replace(source, metrics={**source.metrics, "gpu_utilization": flat})
    (prediction,) = model.predict(strange, [gpus.get("T4")])
    assert prediction.status == "extrapolated"
    assert "metrics" in prediction.reason
    assert prediction.method == "prior only"


def test_an_epoch_of_a_thousand_times_as_many_steps_has_the_same_ratio(model, runs, gpus):
    source = runs.run(0).measurement()
    longer = dataclasses.replace(source, epoch_latency_s=source.epoch_latency_s * 1024)
    targets = [gpus.get(name) for name in ("T4", "A10G", "H100-SXM5-80GB")]
    for short, long in zip(model.predict(source, targets), model.predict(longer, targets), strict=True):
        assert long.epoch_latency_s == pytest.approx(1024 * short.epoch_latency_s)
        assert long.epoch_latency_high_s == pytest.approx(1024 * short.epoch_latency_high_s)
        assert (long.status, long.method) == (short.status, short.method)


def test_what_the_run_holds_is_compared_with_the_memory_of_the_target(model, runs, gpus):
    source = dataclasses.replace(runs.run(0).measurement(), gpu=gpus.get("A100-SXM4-80GB"), static_attributes={})
    targets = [gpus.get(name) for name in ("A100-SXM4-80GB", "H100-SXM5-80GB", "A10G", "T4")]

    def ask(gibibytes):
        held = MetricDistribution.from_values([gibibytes * 2**30])
        found = model.predict(
            dataclasses.replace(source, metrics={**source.metrics, "framebuffer_used_bytes": held}), targets
        )
        return [each.fits for each in found], [each.reason for each in found]

    assert ask(10)[0] == ["yes", "yes", "yes", "yes"]
    assert ask(23)[0] == ["yes", "yes", "likely", "no"]
    fits, reasons = ask(30)
    assert fits == ["yes", "yes", "no", "no"]
    assert "the run holds 30 GiB, more than this GPU has: a smaller batch fits" in reasons[3]
    assert "holds" not in reasons[1]
    fits, reasons = ask(78)  # all there was: some frameworks reserve it
    assert fits == ["yes", "likely", "unknown", "unknown"]
    assert "may have taken all there was" in reasons[3]
    nobody = without(source, "framebuffer_used_bytes")
    assert [each.fits for each in model.predict(nobody, targets)] == ["yes", "unknown", "unknown", "unknown"]


def test_too_few_epochs_are_said(model, runs, gpus):
    source = dataclasses.replace(runs.run(0).measurement(), epoch_count=1)
    (prediction,) = model.predict(source, [gpus.get("T4")])
    assert prediction.status == "insufficient_epochs"
    assert prediction.epoch_latency_s > 0


def test_a_target_with_unknown_rates_does_not_hurt_the_others(model, runs, gpus):
    unknown = dataclasses.replace(gpus.get("B200"), fp32_tflops=0.0)
    bad, good = model.predict(runs.run(0).measurement(), [unknown, gpus.get("T4")])
    assert (bad.status, bad.target_gpu) == ("unsupported_gpu", "B200")
    assert math.isnan(bad.epoch_latency_s)
    assert "fp32_tflops" in bad.reason
    assert good.status == "ok"


def test_a_situation_that_was_not_calibrated_gets_the_priors_interval(runs, gpus, small_settings):
    quick = LatencyModel(dataclasses.replace(small_settings, regimes=())).fit(runs)
    source, target = runs.run(0).measurement(), gpus.get("A100-SXM4-40GB")
    (prediction,) = quick.predict(source, [target])
    scale = rate_uncertainty(TrainedGpu.from_spec(source.gpu), TrainedGpu.from_spec(target))
    prior = quick.state.calibrations[Regime.PRIOR_ONLY].quantile * scale
    assert math.log(prediction.epoch_latency_high_s / prediction.epoch_latency_s) >= prior * 0.999


def test_a_gpu_that_power_holds_back_gets_a_wider_interval(model, runs, gpus):
    source = dataclasses.replace(runs.run(0).measurement(), gpu=gpus.get("A100-SXM4-80GB"), static_attributes={})
    # Much the same peak rates; the L4 has 72 W for a boost clock of 2.6 times its base clock.
    l4 = gpus.get("L4")
    steady = dataclasses.replace(l4, name="steady", base_clock_mhz=l4.boost_clock_mhz, power_limit_watts=200.0)
    a, b = model.predict(source, [l4, steady])
    assert a.epoch_latency_s == pytest.approx(b.epoch_latency_s)
    widths = [math.log(p.epoch_latency_high_s / p.epoch_latency_s) for p in (a, b)]
    assert widths[0] > 1.3 * widths[1]


def test_a_precision_the_model_was_not_fitted_on_gets_the_prior_and_says_so(model, runs, gpus):
    fp32 = runs.run(0).measurement()
    targets = [gpus.get("T4"), gpus.get("V100-SXM2-16GB")]
    mixed = model.predict(dataclasses.replace(fp32, precision=Precision.MIXED), targets)
    assert {p.status for p in mixed} == {"extrapolated"}
    assert "fitted on single precision" in mixed[0].reason
    # Both have tensor cores and the P100 of the source has none: they gain more than in FP32.
    assert all(a.epoch_latency_s < b.epoch_latency_s for a, b in zip(mixed, model.predict(fp32, targets), strict=True))


@pytest.mark.shared_data
def test_an_unseen_cnn_of_the_measured_runs_is_predicted_within_the_aim(shared_runs_path):
    runs = read_runs(shared_runs_path)
    source, target = runs.pairs()
    held_out = np.array([runs.runs[index].configuration.model == "VGG19" for index in source])
    model = LatencyModel(ModelSettings(regimes=())).fit(runs, pairs=(source[~held_out], target[~held_out]))
    errors = predict_pairs(model, runs, source[held_out], target[held_out])
    assert Scores.from_errors(errors).mape < 0.09


def test_several_targets_at_once_give_the_same_as_one_by_one(model, runs, gpus):
    source = runs.run(7).measurement()
    targets = [gpus.get(name) for name in ("T4", "A10G", "V100-SXM2-16GB", "L4", "P100-PCIe-16GB")]
    together = model.predict(source, targets)
    for target, prediction in zip(targets, together, strict=True):
        (alone,) = model.predict(source, [target])
        assert alone.epoch_latency_s == pytest.approx(prediction.epoch_latency_s, rel=1e-9)


def test_an_unfitted_model_says_so(runs, gpus):
    with pytest.raises(ModelError, match="fit"):
        LatencyModel().predict(runs.run(0).measurement(), [gpus.get("T4")])


def test_too_few_runs_are_refused(runs):
    with pytest.raises(TooFewRunsError, match="at least 30"):
        LatencyModel().fit(RunsTable(runs.runs[:8]))


def test_the_trees_taken_out_of_catboost_predict_as_catboost_does():
    from catboost import CatBoostRegressor

    generator = np.random.default_rng(0)
    x = generator.normal(size=(300, 5)).astype(np.float32).astype(np.float64)
    x[:, 2] = 1.0  # a constant column, which CatBoost leaves out of its own numbering
    y = np.sin(x[:, 0]) + x[:, 1] * x[:, 4]
    ours = ObliviousTrees.fit(x, y, trees=60, learning_rate=0.1, depth=5, seed=3, threads=1)
    theirs = CatBoostRegressor(
        iterations=60,
        learning_rate=0.1,
        depth=5,
        random_seed=3,
        thread_count=1,
        verbose=False,
        allow_writing_files=False,
    ).fit(x.astype(np.float32), y)
    queries = generator.normal(size=(200, 5)).astype(np.float32)
    np.testing.assert_allclose(ours.predict(queries.astype(np.float64)), theirs.predict(queries), atol=1e-6)


def test_the_gaussian_process_agrees_with_scikit_learns():
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    generator = np.random.default_rng(1)
    x = generator.normal(size=(80, 3))
    y = np.sin(2 * x[:, 0]) + 0.1 * generator.normal(size=80)
    ours = GaussianProcess.fit(x, y)
    length = ours.length * math.sqrt(3)  # ours is per root mean square over the three features
    kernel = ConstantKernel(ours.amplitude**2) * Matern(length, nu=1.5) + WhiteKernel(ours.noise**2)
    scaled = (x - x.mean(0)) / x.std(0)
    theirs = GaussianProcessRegressor(kernel, optimizer=None).fit(scaled, y)
    queries = generator.normal(size=(20, 3))
    mean, deviation = ours.predict(queries)
    expected, expected_deviation = theirs.predict((queries - x.mean(0)) / x.std(0), return_std=True)
    np.testing.assert_allclose(mean, expected, atol=1e-4)
    # Ours conditions on the nearest point alone, so it is never the smaller one.
    assert (deviation >= np.sqrt(np.maximum(expected_deviation**2, ours.noise**2)) - 1e-6).all()
    # And the search found a place no worse than scikit-learn's own.
    searched = GaussianProcessRegressor(kernel).fit(scaled, y)
    assert theirs.log_marginal_likelihood_value_ >= searched.log_marginal_likelihood_value_ - 0.5


def test_where_tf32_matters_and_nobody_says_both_answers_are_told(model, runs, gpus):
    source = SourceMeasurement(gpus.get("V100-SXM2-16GB"), 100.0)
    a100 = gpus.get("A100-SXM4-40GB")
    unsaid, tf32, fp32 = (
        model.predict(dataclasses.replace(source, precision=precision), [a100])[0]
        for precision in (None, Precision.TF32, Precision.FP32)
    )
    assert unsaid.epoch_latency_s == tf32.epoch_latency_s < fp32.epoch_latency_s / 1.3
    assert "products in FP32" in unsaid.reason
    assert "products in FP32" not in tf32.reason + fp32.reason
    # Neither of these two has TF32: nothing to tell.
    (t4,) = model.predict(source, [gpus.get("T4")])
    assert "TF32" not in t4.reason


def test_a_gpu_without_a_unit_for_the_precision_is_said(model, gpus):
    source = SourceMeasurement(gpus.get("A100-SXM4-40GB"), 100.0, precision=Precision.BF16)
    v100, h100 = model.predict(source, [gpus.get("V100-SXM2-16GB"), gpus.get("H100-SXM5-80GB")])
    assert "V100-SXM2-16GB has no unit for bf16: reckoned as fp32" in v100.reason
    assert "no unit" not in h100.reason


def test_a_gpu_with_nothing_less_than_another_new_one_is_not_slower(model, runs, gpus):
    """Both unseen; between seen ones the runs decide, and an answer slower than the source says why."""
    names = ("RTX A4500", "RTX A5000", "RTX A6000", "A40", "L20", "L40", "L40S", "RTX 4090", "H100-PCIe-80GB")
    targets = [gpus.get(name) for name in names]
    pairs = [(a, b) for a in targets for b in targets if a is not b and dominates(a, b)]
    assert len(pairs) > 10
    for row in range(0, len(runs), 5):
        found = {each.target_gpu: each for each in model.predict(runs.run(row).measurement(), targets)}
        for better, other in pairs:
            assert found[better.name].epoch_latency_s <= 1.01 * found[other.name].epoch_latency_s


def test_between_known_gpus_whose_answers_contradict_each_other_a_new_one_lies_in_the_middle(gpus):
    """A host kept the better one waiting; the order in which a model holds them decides nothing."""
    known, answers = [gpus.get("T4"), gpus.get("V100-SXM2-16GB")], np.array([0.0, 0.5])
    new = gpus.get("V100-PCIe-16GB")
    assert dominates(known[1], new)
    assert dominates(new, known[0])
    for order in ([0, 1], [1, 0]):
        anchors = _Anchors(tuple(known[i] for i in order), np.array([0.0, -0.9])[order], answers[order])
        assert anchors.answer([new], [-0.8]) == pytest.approx([0.25])


def test_gpus_of_one_generation_are_as_far_from_the_fitted_ones_whatever_their_number(model, gpus):
    """Compute capabilities 10.0 and 12.0; the one with the lower rates is not the further one."""
    inflation = model.state.gpus.interval_inflation
    assert inflation(gpus.get("RTX 5080")) <= inflation(gpus.get("RTX PRO 6000 Server")) <= inflation(gpus.get("GB200"))
    assert inflation(gpus.get("RTX 5080")) > inflation(gpus.get("RTX 4090"))


def test_a_gpu_that_is_slow_in_fp64_says_so(model, gpus):
    source = SourceMeasurement(gpus.get("V100-SXM2-16GB"), 100.0, precision=Precision.FP64)
    slow, fast = model.predict(source, [gpus.get("RTX 4090"), gpus.get("H100-SXM5-80GB")])
    assert dominates(gpus.get("RTX 4090"), gpus.get("V100-SXM2-16GB"))
    assert slow.epoch_latency_s > source.epoch_latency_s > fast.epoch_latency_s
    assert "FP64 at 1/64 of its FP32 rate" in slow.reason
    assert "FP64 at" not in fast.reason


def test_a_better_gpu_that_is_slower_than_another_one_says_why(tmp_path, small_settings, gpus):
    """Of the source and the targets, whichever was measured."""
    rows = synthetic_runs()
    for row in rows:
        if row["Instances"] == "p3":  # a host that keeps its GPU waiting
            row["one_epoch_average_second"] *= 6
    runs = read_runs(write_runs(tmp_path / "runs.csv", rows))
    model = LatencyModel(small_settings).fit(runs)
    t4, v100 = gpus.get("T4"), gpus.get("V100-SXM2-16GB")
    for row in range(4):
        source = runs.run(row).measurement()
        slow, fast = model.predict(source, [v100, t4])
        assert slow.epoch_latency_s > 1.1 * fast.epoch_latency_s
        words = "faster than on V100-SXM2-16GB though" if source.gpu == v100 else "slower than on T4 though"
        assert words in (fast if source.gpu == v100 else slow).reason
        assert "than on" not in (slow if source.gpu == v100 else fast).reason
        slow, new = model.predict(source, [v100, gpus.get("V100-PCIe-16GB")])  # the second was not fitted on
        assert new.epoch_latency_s < 0.99 * slow.epoch_latency_s
        words = "faster than on V100-SXM2-16GB" if source.gpu == v100 else "slower than on V100-PCIe-16GB"
        assert words in (new if source.gpu == v100 else slow).reason


def test_between_known_answers_the_interpolation_rises_and_keeps_what_rises():
    prior, answers = np.array([0.5, -1.0, 0.0, -0.5]), np.array([0.4, -0.8, 0.0, -0.9])
    places = np.linspace(-2, 2, 81)
    found = interpolate_rising(prior, answers, places)
    assert (np.diff(found) >= -1e-12).all()
    # -0.8 and -0.9 fall, and are pooled; the others stay; outside the slope is the prior's.
    expected = {-1.0: -0.85, -0.5: -0.85, 0.0: 0.0, 0.5: 0.4, 1.5: 1.4, -2.0: -1.85}
    assert interpolate_rising(prior, answers, np.array(list(expected))) == pytest.approx(list(expected.values()))
