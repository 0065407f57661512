"""The model on measurements whose truth is known."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from support.measured_workloads import PLACES, chain, measured, true_seconds
from support.wired_networks import measured_pairs

from gpusonde.catalog import Precision
from gpusonde.errors import ModelError, TooFewRunsError
from gpusonde.predictor.crossgpu.neighbourhood import Calibration
from gpusonde.predictor.workload.engine import Cluster, HostResources, Parallelism, WorkloadModel, WorkloadRequest
from gpusonde.predictor.workload.engine.out_of_distribution import Intervals, Newness, OodScore
from gpusonde.predictor.workload.graph import Operation, Primitive, WorkloadGraph

HERE = Cluster("T4", environment="here/T4")


def error(predictions, requests, catalog):
    truth = true_seconds(requests, catalog)
    return np.abs(np.array([each.seconds for each in predictions]) / truth - 1)


def test_networks_that_were_not_measured_are_predicted_closely(model, catalog):
    requests = [
        WorkloadRequest(chain(width, depth), batch, Cluster(device, environment=place))
        for width, depth in ((24, 6), (48, 12), (96, 8))
        for batch in (8, 16, 32)
        for place, (device, _) in PLACES.items()
    ]
    predictions = model.predict(requests)
    assert error(predictions, requests, catalog).mean() < 0.08
    assert not any(each.out_of_distribution for each in predictions)
    assert all(each.low_s < each.seconds < each.high_s for each in predictions)


def test_intervals_hold_their_share_of_architectures_left_out(catalog):
    rows = measured(catalog, batches=(8,), noise=0.05)
    inside = []
    for name in sorted({each.architecture for each in rows}):
        model = WorkloadModel(catalog).fit([each for each in rows if each.architecture != name], regressor="svr")
        asked = [each for each in rows if each.architecture == name]
        for row, answer in zip(asked, model.predict([each.request for each in asked]), strict=True):
            inside.append(answer.low_s <= row.seconds <= answer.high_s)
    assert np.mean(inside) >= 0.8


def test_a_place_that_was_measured_with_noise_has_wider_intervals(catalog, measurements):
    drawn = np.random.default_rng(1)
    noisy = [
        dataclasses.replace(each, seconds=each.seconds * math.exp(drawn.normal(0, 0.2)))
        if each.request.cluster.environment == "there/T4"
        else each
        for each in measurements
    ]
    fitted = WorkloadModel(catalog).fit(noisy, regressor="svr")
    here, there = fitted.predict(
        [WorkloadRequest(chain(48, 8), 16, Cluster("T4", environment=each)) for each in ("here/T4", "there/T4")]
    )
    assert math.log(there.high_s / there.low_s) > 2 * math.log(here.high_s / here.low_s)


def test_a_network_that_was_measured_at_the_place_has_a_narrower_interval_than_one_that_is_new_there(
    catalog, measurements, tmp_path
):
    drawn = np.random.default_rng(4)
    # Networks differ by what no count of theirs tells of: who measured one knows, who did not can be far off.
    own = {name: math.exp(drawn.normal(0, 0.3)) for name in sorted({each.architecture for each in measurements})}
    rows = [
        dataclasses.replace(each, seconds=each.seconds * own[each.architecture])
        for each in measurements
        if (each.architecture, each.request.cluster.environment) != ("chain64x8", "here/T4")
    ]
    fitted = WorkloadModel(catalog).fit(rows, regressor="svr")
    fitted.save(tmp_path / "model")
    asked = [WorkloadRequest(chain(width, 8), 16, HERE) for width in (32, 64, 48)]

    def widths(model):
        return [math.log(each.high_s / each.seconds) for each in model.predict(asked)]

    there, elsewhere, nowhere = widths(WorkloadModel.load(tmp_path / "model", catalog=catalog))
    assert there < 0.7 * elsewhere
    assert elsewhere <= nowhere * (1 + 1e-9)
    # Files of before do not tell what was measured where: as wide as for what is new there.
    (svr,) = fitted.state.estimators.values()
    former = dataclasses.replace(fitted.state, estimators={"svr": dataclasses.replace(svr, measured_there={})})
    assert widths(WorkloadModel(catalog, state=former))[:2] == pytest.approx([elsewhere, elsewhere])


def test_a_place_with_few_measurements_counts_as_unknown_until_its_own_errors_say_otherwise(catalog, measurements):
    drawn = np.random.default_rng(2)
    others = [each for each in measurements if each.request.cluster.environment != "there/T4"]
    own = [each for each in measurements if each.request.cluster.environment == "there/T4"]
    noisy = [
        dataclasses.replace(own[position], seconds=own[position].seconds * math.exp(drawn.normal(0, 0.3)))
        for position in drawn.permutation(len(own))
    ]
    request = WorkloadRequest(chain(32, 8), 16, Cluster("T4", environment="there/T4"))
    elsewhere = dataclasses.replace(request, cluster=HERE)
    widths = {}
    for count in (3, 8, 20):
        fitted = WorkloadModel(catalog).fit([*others, *noisy[:count]], regressor="svr")
        new, there, here = fitted.predict([dataclasses.replace(request, cluster=Cluster("T4")), request, elsewhere])
        widths[count] = math.log(there.high_s / there.low_s) / math.log(here.high_s / here.low_s)
        assert widths[count] > 2  # far from the interval of the places with many
        few = any("too few steps were measured at 'there/T4'" in reason for reason in there.reasons)
        assert few == (count < 9)
        if few:
            assert there.high_s / there.low_s == pytest.approx(new.high_s / new.low_s)


@pytest.mark.parametrize(("own", "elsewhere"), [(5, 0), (5, 4), (9, 0)])
def test_a_gpu_that_only_a_place_with_few_measurements_tells_of_counts_as_unknown(
    catalog, measurements, own, elsewhere
):
    at_t4 = [each for each in measurements if each.request.cluster.device == "T4"]

    def on_a_new_gpu(place, rows):
        cluster = Cluster("L4", environment=place)
        return [dataclasses.replace(row, request=dataclasses.replace(row.request, cluster=cluster)) for row in rows]

    few = [*on_a_new_gpu("far/L4", at_t4[:own]), *on_a_new_gpu("near/L4", at_t4[own : own + elsewhere])]
    fitted = WorkloadModel(catalog).fit([*measurements, *few], regressor="svr")
    (found,) = fitted.predict([WorkloadRequest(chain(32, 8), 16, Cluster("L4", environment="far/L4"))])
    assert found.out_of_distribution == (own + elsewhere < 9)
    assert any("too few, were measured on L4" in reason for reason in found.reasons) == found.out_of_distribution


def at_hosts(request, **free):
    """The same where the hosts have that much free."""
    return dataclasses.replace(request, cluster=dataclasses.replace(request.cluster, host=HostResources(**free)))


def test_what_hosts_have_free_counts_where_measurements_tell_of_it(catalog, model, measurements):
    def at(request, cores):
        return at_hosts(request, cores=cores, memory_bytes=64e9)

    told = [
        dataclasses.replace(each, request=at(each.request, cores), seconds=each.seconds * slower)
        for each in measurements
        for cores, slower in ((2.0, 1.5), (32.0, 1.0))
    ]
    asked = WorkloadRequest(chain(48, 8), 16, HERE)
    knowing = WorkloadModel(catalog).fit(told, regressor="svr")
    few, many = knowing.predict([at(asked, 2.0), at(asked, 32.0)])
    assert 1.3 < few.seconds / many.seconds < 1.7
    assert few.reasons == ()
    (found,) = model.predict([at(asked, 2.0)])
    assert dataclasses.replace(found, reasons=()) == model.predict([asked])[0]
    assert any("what the hosts have free does not change this answer" in reason for reason in found.reasons)
    for far, why in (
        (at(asked, 100.0), "the hosts have 3.1 times the most cores that any measured one had free"),
        (at(asked, 0.5), "the hosts have 0.25 times the least cores that any measured one had free"),
        (asked, "nobody knows what the hosts have free of cores; of all measurements it is known"),
    ):
        (found,) = knowing.predict([far])
        assert found.out_of_distribution
        assert why in found.reasons
    assert not many.out_of_distribution


def test_what_hosts_had_free_survives_the_file(catalog, measurements, tmp_path):
    told = [dataclasses.replace(each, request=at_hosts(each.request, cores=8.0)) for each in measurements]
    fitted = WorkloadModel(catalog).fit(told, regressor="linear")
    fitted.save(tmp_path / "model.zip")
    loaded = WorkloadModel.load(tmp_path / "model.zip", catalog=catalog)
    assert loaded.state.ood_detector.hosts == fitted.state.ood_detector.hosts
    asked = WorkloadRequest(chain(48, 8), 16, HERE)
    alone, other = loaded.predict([asked, at_hosts(asked, cores=800.0)])
    # All hosts were the same: it counts for nothing, but is known to be another one.
    assert not alone.out_of_distribution
    assert "the hosts have 100 times the most cores that any measured one had free" in other.reasons


def test_networks_with_the_same_counts_are_no_measure_of_how_unlike_networks_are(catalog):
    fitted = WorkloadModel(catalog).fit(measured_pairs(catalog), regressor="linear")
    (found,) = fitted.predict([WorkloadRequest(chain(48, 6), 16, HERE)])
    assert not found.out_of_distribution


def test_what_is_new_together_widens_an_interval_by_what_each_adds_to_an_own_error_counted_once():
    quantiles = {Newness.FAMILY: Calibration(0.5, 50), Newness.DEVICE: Calibration(0.4, 50)}
    known = OodScore((), 0.0, (), False, 1.0, False, "", measured_there=False, nearest=())
    kind = dataclasses.replace(known, unlike_network=("of another kind",))
    device = dataclasses.replace(known, unknown_device=True)
    both = dataclasses.replace(kind, unknown_device=True)
    own = Calibration(0.3, 50)
    widths = [Intervals(0.9, quantiles).half_width(each, own) for each in (known, kind, device, both)]
    assert widths == pytest.approx([0.3, 0.5, 0.4, math.sqrt(0.5**2 + 0.4**2 - 0.3**2)])
    assert Intervals(0.9, quantiles).half_width(both, Calibration(0.6, 50)) == pytest.approx(0.6)


def test_the_further_a_network_is_from_all_measured_ones_the_wider_is_the_answer():
    intervals = Intervals(0.9, {Newness.FAMILY: Calibration(0.5, 50)})
    near = OodScore((), 0.0, (), False, 1.0, False, "", measured_there=False, nearest=())
    own = Calibration(0.3, 50)
    widths = [
        intervals.half_width(dataclasses.replace(near, distance=distance), own) for distance in (0.0, 0.5, 1.0, 3.0)
    ]
    assert widths == pytest.approx([0.3, math.sqrt(0.3**2 + 0.25 * (0.5**2 - 0.3**2)), 0.5, 0.5])
    # Where no kind of network could be left out, nobody knows what it would add.
    assert Intervals(0.9, {}).half_width(dataclasses.replace(near, distance=0.9), own) == pytest.approx(0.3)


def test_a_batch_of_requests_is_answered_as_each_alone(model):
    requests = [WorkloadRequest(chain(32, depth), 16, HERE) for depth in (5, 7, 9)]
    together, alone = model.predict(requests), [model.predict([each])[0] for each in requests]
    # Products of matrices of other shapes round otherwise, in the last digit.
    for each, other in zip(together, alone, strict=True):
        assert (each.seconds, each.low_s, each.high_s) == pytest.approx((other.seconds, other.low_s, other.high_s))
        assert (each.reasons, each.memory) == (other.reasons, other.memory)
        assert [name for name, _ in each.nearest] == [name for name, _ in other.nearest]
    assert model.predict([]) == []


def test_a_place_that_is_not_named_widens_the_interval_and_says_so(model):
    known, unknown = model.predict(
        [WorkloadRequest(chain(32, 8), 16, HERE), WorkloadRequest(chain(32, 8), 16, Cluster("T4"))]
    )
    assert unknown.high_s / unknown.low_s > 1.5 * known.high_s / known.low_s
    assert not known.reasons
    assert not unknown.out_of_distribution
    assert "environment" in unknown.reasons[0]


def test_what_was_not_measured_at_a_known_place_widens_the_interval_and_says_so(catalog, measurements):
    rows = [
        each for each in measurements if each.request.cluster.environment != "there/T4" or each.request.batch_size == 8
    ]
    fitted = WorkloadModel(catalog).fit(rows, regressor="svr")
    request = WorkloadRequest(chain(32, 8), 32, HERE)
    usual, other_batch, other_device = fitted.predict(
        [
            request,
            dataclasses.replace(request, cluster=Cluster("T4", environment="there/T4")),
            dataclasses.replace(request, cluster=Cluster("V100-SXM2-16GB", environment="there/T4")),
        ]
    )
    assert not usual.reasons
    assert "8 to 8" in other_batch.reasons[0]
    assert "V100" in other_device.reasons[0]
    assert other_device.high_s / other_device.low_s > 1.5 * usual.high_s / usual.low_s
    assert not other_batch.out_of_distribution
    assert not other_device.out_of_distribution


def test_a_device_that_was_not_measured_is_extrapolated_and_flagged(model, catalog):
    request = WorkloadRequest(chain(64, 8), 32, Cluster("H100-SXM5-80GB"))
    answer = model.predict([request])[0]
    assert answer.out_of_distribution
    assert answer.regressor == "calibrated_roofline"
    assert any("H100-SXM5-80GB" in reason for reason in answer.reasons)
    assert answer.high_s / answer.low_s > 2
    assert answer.low_s < true_seconds([request], catalog)[0] < answer.high_s


@pytest.mark.parametrize(
    ("changes", "batch", "said"),
    [
        ({"precision": Precision.FP16}, 16, "fp16"),
        ({"device_count": 2, "parallelism": Parallelism.DISTRIBUTED}, 16, "distributed"),
        ({"device_count": 8, "parallelism": Parallelism.DATA_PARALLEL}, 16, "8 devices"),
        ({"device_count": 2, "node_count": 2, "parallelism": Parallelism.DATA_PARALLEL}, 16, "2 hosts"),
        ({}, 512, "512 samples"),
    ],
)
def test_what_was_never_measured_of_a_cluster_is_flagged_with_its_reason(model, changes, batch, said):
    answer = model.predict([WorkloadRequest(chain(32, 8), batch, dataclasses.replace(HERE, **changes))])[0]
    assert answer.out_of_distribution
    assert any(said in reason for reason in answer.reasons)


def test_networks_unlike_all_measured_ones_fall_back_to_the_roofline(model, catalog):
    requests = [
        WorkloadRequest(chain(2048, 32), 16, HERE),  # much larger
        WorkloadRequest(chain(4, 1, pixels=8), 16, HERE),  # much smaller
        WorkloadRequest(chain(64, 200, normalised=False), 16, HERE),  # much longer, of other operations
    ]
    for request, answer in zip(requests, model.predict(requests), strict=True):
        assert answer.out_of_distribution
        assert answer.features == "roofline"
        assert "network" in answer.reasons[0]
        truth = float(true_seconds([request], catalog)[0])
        assert 1 / 3 < answer.seconds / truth < 3


def test_the_nearest_measured_architectures_are_named(model):
    answer = model.predict([WorkloadRequest(chain(64, 8), 16, HERE)])[0]
    assert answer.nearest[0] == ("chain64x8", pytest.approx(1.0))
    alike = [likeness for _, likeness in answer.nearest]
    assert alike == sorted(alike, reverse=True)


@pytest.mark.parametrize("regressor", ["linear", "polynomial", "svr", "mlp", "boosted_residual"])
def test_the_regressor_that_is_asked_for_answers(model, measurements, catalog, regressor):
    request = WorkloadRequest(chain(48, 10), 16, HERE)
    answer = model.predict([request], regressor=regressor)[0]
    assert answer.regressor == regressor
    assert error([answer], [request], catalog)[0] < 0.25
    alone = WorkloadModel(catalog).fit(measurements, regressor=regressor)
    assert alone.predict([request])[0].regressor == regressor
    with pytest.raises(ModelError, match="it has"):
        alone.predict([request], regressor="linear" if regressor != "linear" else "svr")


def test_fitting_twice_gives_the_same_answers(model, measurements, catalog):
    again = WorkloadModel(catalog).fit(measurements)
    requests = [WorkloadRequest(chain(40, 9), 16, HERE)]
    for name in model.scores:
        assert again.predict(requests, regressor=name) == model.predict(requests, regressor=name)


def test_the_papers_kind_predicts_seconds_and_has_its_four_regressors(catalog, measurements):
    model = WorkloadModel(catalog).fit(measurements, kind="paper", regressor="polynomial")
    request = WorkloadRequest(chain(48, 10), 16, HERE)
    answer = model.predict([request])[0]
    assert answer.regressor == "polynomial"
    assert 0 < answer.seconds < 1
    with pytest.raises(ModelError, match="boosted_residual"):
        WorkloadModel(catalog).fit(measurements, kind="paper", regressor="boosted_residual")


def test_columns_of_an_embedding_are_used_where_there_is_an_encoder(catalog, measurements):
    def embed(graphs):
        return np.array([[math.log(each.parameter_count), float(len(each.operations))] for each in graphs])

    model = WorkloadModel(catalog, embed=embed).fit(measurements, kind="paper", regressor="linear")
    request = WorkloadRequest(chain(48, 10), 16, HERE)
    assert model.predict([request])[0].features == "embedding"
    with pytest.raises(ModelError, match="embedding"):
        WorkloadModel(catalog, state=model.state).predict([request])
    other = WorkloadModel(catalog, state=model.state, embed=lambda graphs: embed(graphs)[:, :1])
    with pytest.raises(ModelError, match="an embedding of 1 numbers; this model was fitted with one of 2"):
        other.predict([request])


def test_refuses_what_it_cannot_be_fitted_on(catalog, measurements):
    few = [each for each in measurements if each.architecture in ("chain16x4", "chain16x8")]
    with pytest.raises(TooFewRunsError, match="2 architectures"):
        WorkloadModel(catalog).fit(few)
    with pytest.raises(TooFewRunsError):
        WorkloadModel(catalog).fit(measurements[:5])
    with pytest.raises(ModelError, match="kind"):
        WorkloadModel(catalog).fit(measurements, kind="best")
    with pytest.raises(ModelError, match="regressor"):
        WorkloadModel(catalog).fit(measurements, regressor="forest")
    with pytest.raises(ModelError, match="coverage"):
        WorkloadModel(catalog, coverage=1.0)


@pytest.mark.parametrize("extent", [10**9, 10**30])
def test_refuses_shapes_that_no_device_could_hold(model, extent):
    shape = (1, *[extent] * 12)
    operations = (Operation(Primitive.INPUT, "x", shape), Operation(Primitive.ACTIVATION, "relu", shape, (shape,)))
    with pytest.raises(ModelError, match="too large"):
        model.predict([WorkloadRequest(WorkloadGraph("vast", operations, ((0, 1),), 1), 8, HERE)])


def test_a_graph_without_work_costs_what_every_step_does(model):
    nothing = WorkloadGraph("nothing", (Operation(Primitive.INPUT, "x", (1, 3, 8, 8)),), (), 1)
    answer = model.predict([WorkloadRequest(nothing, 8, HERE)])[0]
    assert answer.out_of_distribution
    assert 0 < answer.seconds < 0.01


def test_refuses_devices_that_the_catalogue_lacks_and_predicting_unfitted(model, catalog):
    with pytest.raises(ModelError, match="no such thing"):
        model.predict([WorkloadRequest(chain(16, 4), 8, Cluster("no such thing"))])
    with pytest.raises(ModelError, match="not fitted"):
        WorkloadModel(catalog).predict([WorkloadRequest(chain(16, 4), 8, HERE)])
