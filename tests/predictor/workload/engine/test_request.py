"""Requests: what cannot be asked, and epochs from iterations."""

import pytest

from gpusonde.errors import ModelError
from gpusonde.predictor.workload.engine import Cluster, HostResources, Parallelism, WorkloadMeasurement, WorkloadRequest
from gpusonde.predictor.workload.graph import Operation, Primitive, WorkloadGraph

GRAPH = WorkloadGraph("empty", (Operation(Primitive.INPUT, "x", (1, 3, 8, 8)),), (), 1)
T4 = Cluster("T4")


@pytest.mark.parametrize(
    "arguments",
    [
        {"device": ""},
        {"device": "T4", "device_count": 0},
        {"device": "T4", "node_count": 0},
        {"device": "T4", "device_count": 2, "node_count": 3, "parallelism": Parallelism.DISTRIBUTED},
        {"device": "T4", "device_count": 2},
    ],
)
def test_refuses_clusters_that_cannot_be(arguments: dict[str, object]) -> None:
    with pytest.raises(ModelError):
        Cluster(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_refuses_resources_that_are_no_amount(value: float) -> None:
    with pytest.raises(ModelError, match="cores"):
        HostResources(cores=value)


def test_counts_the_samples_of_all_devices() -> None:
    assert WorkloadRequest(GRAPH, 32, Cluster("T4", 4, 2, parallelism=Parallelism.DISTRIBUTED)).global_batch_size == 128
    with pytest.raises(ModelError):
        WorkloadRequest(GRAPH, 0, T4)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_refuses_durations_that_are_none(seconds: float) -> None:
    with pytest.raises(ModelError, match="resnet18"):
        WorkloadMeasurement(WorkloadRequest(GRAPH, 1, T4), seconds, "resnet18")


def test_an_epoch_counts_its_last_batch_in_full() -> None:
    request = WorkloadRequest(GRAPH, 128, Cluster("T4", 4, parallelism=Parallelism.DISTRIBUTED))
    assert request.epoch_iterations(1) == 1
    assert request.epoch_iterations(1024) == 2
    assert request.epoch_iterations(1025) == 3
    with pytest.raises(ModelError):
        request.epoch_iterations(0)
