"""What is assumed of networks that nobody measured."""

import numpy as np
import pytest

from gpusonde.catalog import load_gpus
from gpusonde.simulator.links import (
    CUBE_MESH,
    EFA,
    INFINIBAND,
    NVSWITCH,
    PCIE,
    TCP,
    RatedNetwork,
    inner_link,
    outer_link,
)

GPUS = load_gpus()
MIB = 2.0**20


def reached(network: RatedNetwork, world: int, size: float = 1024 * MIB) -> float:
    return float(network.bus_bandwidth([size], world).bytes_per_second[0])


@pytest.mark.parametrize(
    ("gpu", "kind"),
    [
        ("A100-SXM4-40GB", NVSWITCH),
        ("B200", NVSWITCH),
        ("V100-SXM2-16GB", CUBE_MESH),
        ("A100-PCIe-40GB", PCIE),
        ("H100-NVL-94GB", PCIE),
        ("T4", PCIE),
    ],
)
def test_a_data_sheet_says_what_joins_the_gpus_of_a_machine(gpu, kind):
    assert inner_link(GPUS.get(gpu)).kind is kind


def test_gpus_without_a_data_sheet_are_on_pci_express():
    assert inner_link(None).kind is PCIE
    assert inner_link(None).bytes_per_second == pytest.approx(15.76e9)


@pytest.mark.parametrize(("gbits", "provider", "kind"), [(50, "aws", TCP), (100, "aws", EFA), (400, "oci", INFINIBAND)])
def test_from_100_gbit_per_second_on_machines_reach_into_the_memory_of_gpus(gbits, provider, kind):
    assert outer_link(gbits * 1e9 / 8, provider).kind is kind


def test_two_machines_send_each_other_half_of_what_each_of_many_sends():
    network = RatedNetwork(inner_link(GPUS.get("B200")), 8, outer_link(50e9))
    assert reached(network, 16, 1e12) / reached(network, 256, 1e12) == pytest.approx((15 / 8) / (255 / 248), rel=0.01)


def test_the_inside_decides_where_it_is_slower_than_the_network():
    network = RatedNetwork(inner_link(GPUS.get("T4")), 4, outer_link(400e9))
    assert reached(network, 8) == pytest.approx(reached(network, 4), rel=0.05)


def test_small_transfers_reach_less():
    network = RatedNetwork(inner_link(GPUS.get("A100-SXM4-40GB")), 8, outer_link(50e9, "aws"))
    for world in (2, 8, 16, 64):
        found = network.bus_bandwidth(MIB * 2.0 ** np.arange(12), world).bytes_per_second
        assert (np.diff(found) > 0).all()


def test_eight_gpus_of_a_cube_mesh_use_all_links_and_two_only_theirs():
    network = RatedNetwork(inner_link(GPUS.get("V100-SXM2-16GB")), 8)
    assert 3 < reached(network, 8) / reached(network, 2) < 5
