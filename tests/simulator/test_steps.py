"""Steps of networks with a process per GPU: the step on one, and the exchange of the graph's own gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpusonde.catalog import Precision
from gpusonde.errors import ModelError
from gpusonde.predictor.workload import zoo
from gpusonde.predictor.workload.engine import Cluster, HostResources, Parallelism, WorkloadModel, WorkloadRequest
from gpusonde.simulator.steps import DataParallelModel

VGG, RESNET = zoo.load("vgg16"), zoo.load("resnet50")


@pytest.fixture(scope="module")
def model():
    return DataParallelModel(WorkloadModel.shipped())


def ask(graph=VGG, count=8, hosts=1, device="V100-SXM2-16GB", batch=16, **told):
    parallelism = Parallelism.NONE if count == 1 else Parallelism.DISTRIBUTED
    return WorkloadRequest(graph, batch, Cluster(device, count, hosts, parallelism=parallelism, **told))


def width(answer):
    return answer.high_s / answer.low_s


def test_one_gpu_and_one_process_are_the_models_own_answers(model):
    gathered = replace(ask().cluster, parallelism=Parallelism.DATA_PARALLEL)
    requests = [ask(count=1), replace(ask(), cluster=gathered)]
    assert model.predict(requests) == model.model.predict(requests)


def test_a_slower_link_waits_longer_and_says_which_it_was(model):
    one, nvlink, pcie, slow, fast = model.predict(
        [
            ask(count=1),
            ask(),
            ask(link="pcie"),
            ask(count=16, hosts=2, network_bytes_per_second=10e9 / 8),
            ask(count=16, hosts=2),
        ]
    )
    assert one.seconds < nvlink.seconds < min(pcie.seconds, fast.seconds) < slow.seconds
    assert one.communication_ratio is None
    assert 0 < nvlink.communication_ratio < pcie.communication_ratio < slow.communication_ratio < 1
    assert width(one) < width(nvlink) < width(pcie)
    assert nvlink.out_of_distribution
    assert any(each.endswith("gradients is simulated, by nvlink inside of a host") for each in nvlink.reasons)
    assert any("100 Gbit/s between hosts, which is assumed" in each for each in fast.reasons)
    assert any("10 Gbit/s between hosts" in each and "assumed" not in each for each in slow.reasons)


def test_many_weights_and_little_work_wait_longer(model):
    vgg, resnet = model.predict([ask(link="pcie"), ask(RESNET, link="pcie")])
    assert vgg.communication_ratio > resnet.communication_ratio


def test_gradients_in_half_precision_wait_less(model):
    mixed, half = model.predict(
        [ask(device="A100-SXM4-40GB", precision=each, link="pcie") for each in (Precision.MIXED, Precision.BF16)]
    )
    assert half.communication_ratio < mixed.communication_ratio


def test_copies_of_gradients_count_in_the_memory(model):
    one, eight = model.predict([ask(count=1), ask()])
    assert eight.memory.need.total_bytes > one.memory.need.total_bytes


def test_more_gpus_in_a_host_than_machines_hold_are_refused_unless_the_host_is_there(model):
    with pytest.raises(ModelError, match="holds more than 8; spread them over hosts, for example 2x8x"):
        model.predict([ask(count=16)])
    there, old, spread = model.predict(
        [ask(count=16, host=HostResources(cores=64.0)), ask(count=16, device="K80"), ask(count=16, hosts=2)]
    )
    assert min(there.seconds, old.seconds, spread.seconds) > 0


def test_links_that_such_gpus_do_not_have_are_refused(model):
    with pytest.raises(ModelError, match="T4 has no NVLink"):
        model.predict([ask(device="T4", link="nvlink")])
    with pytest.raises(ModelError, match="one MIG slice"):
        ask(device="A100-SXM4-40GB MIG 1g.5gb")
