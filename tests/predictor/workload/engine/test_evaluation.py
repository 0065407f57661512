from __future__ import annotations

import pytest

from gpusonde.errors import TooFewRunsError
from gpusonde.predictor.workload import zoo
from gpusonde.predictor.workload.engine import Cluster, WorkloadMeasurement, WorkloadPrediction, WorkloadRequest
from gpusonde.predictor.workload.engine.evaluation import WorkloadEvaluation, WorkloadProtocol, cut_folds, evaluate

NETWORKS = {name: zoo.load_keras(name, 32) for name in ("LeNet5", "VGG11", "VGG13", "ResNet18")}


@pytest.fixture
def measurements():
    return [
        WorkloadMeasurement(
            WorkloadRequest(graph, batch, Cluster("T4")), 0.001 * batch, name.lower(), zoo.keras_family(name)
        )
        for name, graph in NETWORKS.items()
        for batch in (8, 16, 32)
    ]


def answer(seconds, *, flagged=False):
    return WorkloadPrediction(seconds, seconds / 2, 2 * seconds, 0.9, "svr", "roofline", flagged)


@pytest.mark.parametrize(("protocol", "count"), [(WorkloadProtocol.ARCHITECTURE, 4), (WorkloadProtocol.FAMILY, 3)])
def test_what_is_held_back_is_in_no_row_that_is_known(measurements, protocol, count):
    folds = list(cut_folds(measurements, protocol))

    assert len(folds) == count
    for fold in folds:
        names = [getattr(measurements[each], protocol.value) for each in fold.unknown]
        assert set(names) == {fold.name}
        assert fold.name not in {getattr(measurements[each], protocol.value) for each in fold.known}
    assert sorted(each for fold in folds for each in fold.unknown) == list(range(len(measurements)))


def test_random_splits_ask_for_a_fifth_and_are_the_same_every_time(measurements):
    folds, again = (list(cut_folds(measurements, WorkloadProtocol.RANDOM)) for _ in range(2))

    assert len(folds) == 5
    assert all(len(fold.unknown) == 3 and not set(fold.known) & set(fold.unknown) for fold in folds)
    assert [list(fold.unknown) for fold in folds] == [list(fold.unknown) for fold in again]
    assert len({tuple(fold.unknown) for fold in folds}) == 5


def test_one_family_cannot_be_held_back(measurements):
    with pytest.raises(TooFewRunsError, match="family"):
        list(cut_folds([each for each in measurements if each.family == "vgg"], WorkloadProtocol.FAMILY))


def test_two_rows_cannot_be_split(measurements):
    with pytest.raises(TooFewRunsError, match="2 measurements"):
        list(cut_folds(measurements[:2], WorkloadProtocol.RANDOM))


def test_the_model_is_fitted_on_nothing_that_is_asked_for(measurements):
    class Watched:
        def __init__(self, known):
            self.known = {each.request.graph.name for each in known}

        def predict(self, requests):
            assert not self.known & {each.graph.name for each in requests}
            return [answer(1.0) for _ in requests]

    done = []
    found = evaluate(
        measurements, list(cut_folds(measurements, WorkloadProtocol.ARCHITECTURE)), Watched, done=done.append
    )

    assert set(map(id, found.measurements)) == set(map(id, measurements))
    assert done == ["lenet5", "resnet18", "vgg11", "vgg13"]
    assert [int(some.sum()) for some in found.by_fold().values()] == [3, 3, 3, 3]


def test_off_by_3x_is_to_both_sides_and_coverage_counts_what_intervals_hold(measurements):
    asked = measurements[:4]
    factors = (3.1, 1 / 3.1, 2.9, 1.5)
    said = [answer(factor * each.seconds) for factor, each in zip(factors, asked, strict=True)]

    found = WorkloadEvaluation(asked, said, ["one", "one", "other", "other"])

    assert list(found.far_off) == [True, True, False, False]
    assert found.errors == pytest.approx([2.1, 1 - 1 / 3.1, 1.9, 0.5])
    assert found.coverage == 0.25


def test_flags_are_the_models(measurements):
    found = WorkloadEvaluation(measurements[:2], [answer(1.0, flagged=True), answer(1.0)], ["one", "one"])

    assert list(found.flagged) == [True, False]
