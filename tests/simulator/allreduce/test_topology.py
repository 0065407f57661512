import pytest

from gpusonde.simulator.allreduce import HYBRID_CUBE_MESH, LinkTopology


def test_rings_of_the_hybrid_cube_mesh():
    assert [HYBRID_CUBE_MESH.rings(world) for world in range(2, 9)] == [1, 2, 4, 2, 2, 4, 6]


def test_every_device_of_the_hybrid_cube_mesh_has_six_links():
    for device in range(8):
        assert sum(count for pair, count in HYBRID_CUBE_MESH.links.items() if device in pair) == 6


def test_devices_without_a_ring_of_links_still_exchange():
    assert LinkTopology({(0, 1): 2}).rings(2) == 2
    assert LinkTopology({(0, 1): 1, (2, 3): 1}).rings(4) == 1


@pytest.mark.parametrize("links", [{(1, 0): 1}, {(0, 0): 1}, {(0, 1): 0}, {(-1, 1): 1}])
def test_impossible_links_are_refused(links):
    with pytest.raises(ValueError, match="links of"):
        LinkTopology(links)


@pytest.mark.parametrize("world", [1, 9])
def test_worlds_beyond_the_machine_are_refused(world):
    with pytest.raises(ValueError, match="2 to 8"):
        HYBRID_CUBE_MESH.rings(world)
