"""The front ends for torch on torchvision's networks, as ``benchmarks/workload`` checks them all."""

from __future__ import annotations

import importlib
import importlib.util

import pytest

pytest.importorskip("torch", reason="needs torch (extra torch)")
# Without CUDA it imports only once operators have been declared: so it is looked for, not imported.
if importlib.util.find_spec("torchvision") is None:
    pytest.skip("needs torchvision", allow_module_level=True)

BENCHMARKS = ("planning", "workload")


@pytest.mark.parametrize(
    ("name", "read_by_fx"),
    [
        ("resnet18", True),
        ("resnext50_32x4d", True),
        ("vgg11", True),
        ("squeezenet1_1", True),
        ("mnasnet0_5", True),
        ("shufflenet_v2_x0_5", True),
        ("convnext_tiny", True),
        ("googlenet", False),
        ("vit_b_32", False),
        ("swin_t", False),
    ],
)
def test_a_network_of_torchvision_is_read_exactly_and_is_what_the_zoo_holds(module, name, read_by_fx):
    found = module("graphs").check_network(name)
    assert found.parameters_exact
    assert found.flops_exact
    assert found.alike is (True if read_by_fx else None)
    assert found.shipped


def test_the_transformer_of_the_zoo_is_exact(module):
    found = module("graphs").check_transformer()
    assert found.exact
    assert found.shipped


def test_every_network_of_torchvision_is_in_the_zoo(module):
    from gpusonde.predictor.workload import zoo

    assert set(module("torchvision_networks").network_names()) <= set(zoo.names())


def test_regnets_are_built_although_their_constructors_compute(module):
    network = module("torchvision_networks").build("regnet_y_400mf")
    assert all(each.is_meta for each in network.parameters())
