from __future__ import annotations

import math

import numpy as np
import pytest
from ernest_model import ErnestCurve, PerWorkloadErnest, PooledErnest, fit_curve

from gpusonde.errors import TooFewRunsError
from gpusonde.predictor.workload import zoo
from gpusonde.predictor.workload.engine import Cluster, Parallelism, WorkloadMeasurement, WorkloadRequest

LENET, VGG = zoo.load_keras("LeNet5", 32), zoo.load_keras("VGG11", 32)


def request(graph=LENET, batch=16, devices=1, device="T4"):
    parallelism = Parallelism.DISTRIBUTED if devices > 1 else Parallelism.NONE
    return WorkloadRequest(graph, batch, Cluster(device, devices, parallelism=parallelism))


def measured(curve, *requests):
    return [
        WorkloadMeasurement(
            each, float(curve.seconds([each.global_batch_size], [each.cluster.device_count])[0]), each.graph.name
        )
        for each in requests
    ]


def test_a_curve_of_its_own_form_is_found_again():
    curve = ErnestCurve(fixed=0.1, shared=0.002, exchange=0.03, per_machine=0.004)
    sizes, machines = [32, 64, 64, 128, 256, 512, 96], [1, 1, 2, 4, 8, 16, 3]

    found = fit_curve(sizes, machines, curve.seconds(sizes, machines))

    assert found.seconds(sizes, machines) == pytest.approx(curve.seconds(sizes, machines), rel=1e-9)
    assert found.fixed == pytest.approx(0.1)
    assert found.per_machine == pytest.approx(0.004)


def test_no_coefficient_falls_below_zero():
    # Twice the samples in half the time: a line would slope down.
    curve = fit_curve([16, 32], [1, 1], [0.2, 0.1])

    assert min(curve.fixed, curve.shared, curve.exchange, curve.per_machine) >= 0
    assert curve.seconds([16], [1])[0] == pytest.approx(0.15)


def test_relative_weights_let_small_runs_count():
    sizes, machines, seconds = [1, 1000], [1, 1], [1.0, 1.5]

    absolute = fit_curve([*sizes, 1], [*machines, 1], [*seconds, 4.0])
    relative = fit_curve([*sizes, 1], [*machines, 1], [*seconds, 4.0], relative=True)

    assert relative.seconds([1], [1])[0] < absolute.seconds([1], [1])[0]


def test_without_a_run_there_is_no_curve():
    with pytest.raises(TooFewRunsError):
        fit_curve([], [], [])


def test_pooled_it_gives_two_networks_one_time():
    slow, fast = ErnestCurve(1.0, 0.01, 0, 0), ErnestCurve(0.1, 0.001, 0, 0)
    runs = [
        *measured(fast, *(request(LENET, batch) for batch in (16, 32, 64))),
        *measured(slow, *(request(VGG, batch) for batch in (16, 32, 64))),
    ]

    seconds = PooledErnest().fit(runs).predict([request(LENET, 32), request(VGG, 32)])

    assert seconds[0] == seconds[1] == pytest.approx(np.mean([0.132, 1.32]))


def test_per_workload_it_knows_each_network_and_device():
    slow, fast = ErnestCurve(1.0, 0.01, 0, 0), ErnestCurve(0.1, 0.001, 0, 0)
    runs = [
        *measured(fast, *(request(LENET, batch) for batch in (16, 32, 64))),
        *measured(slow, *(request(LENET, batch, device="K80") for batch in (16, 32, 64))),
        *measured(slow, *(request(VGG, batch) for batch in (16, 32))),
    ]

    asked = [request(LENET, 128), request(LENET, 128, device="K80"), request(VGG, 64), request(VGG, 64, device="M60")]
    seconds = PerWorkloadErnest().fit(runs).predict(asked)

    assert seconds[:2] == pytest.approx([0.228, 2.28])
    # Two runs are too few, and none is none.
    assert [math.isnan(each) for each in seconds] == [False, False, True, True]


def test_an_image_size_is_a_workload_of_its_own():
    curve = ErnestCurve(0.1, 0.001, 0, 0)
    model = PerWorkloadErnest().fit(measured(curve, *(request(LENET, batch) for batch in (16, 32, 64))))

    assert math.isnan(model.predict([request(zoo.load_keras("LeNet5", 64))])[0])


def test_devices_are_its_machines():
    curve = ErnestCurve(0.05, 0.002, 0.01, 0.003)
    runs = measured(curve, *(request(LENET, batch, count) for batch in (8, 16) for count in (1, 2, 3)))

    seconds = PerWorkloadErnest().fit(runs).predict([request(LENET, 16, 4)])

    assert seconds[0] == pytest.approx(float(curve.seconds([64], [4])[0]))
