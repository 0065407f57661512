import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.ring_network import SIZES, grid, noisy, seconds

from gpusonde.errors import ProblemError
from gpusonde.simulator.allreduce import HYBRID_CUBE_MESH, AllreduceMeasurement, AllreduceModel
from gpusonde.simulator.iteration import NetworkModel


def error(model, sizes, world, concurrent=1, **network):
    told = model.network("ring", **network).seconds(np.array(sizes), world, concurrent)
    truth = [seconds(size, world, bytes_per_second=10e9 / concurrent) for size in sizes]
    return np.abs(told / truth - 1).max()


def test_measured_configurations_are_reproduced():
    model = AllreduceModel.fit(grid())
    assert error(model, SIZES, 4) < 1e-9


def test_sizes_between_measured_ones_are_interpolated():
    model = AllreduceModel.fit(grid())
    assert error(model, [2.0 * size for size in SIZES[:-1]], 8) < 0.1


def test_sizes_beyond_the_measured_ones_keep_the_bandwidth():
    model = AllreduceModel.fit(grid())
    assert error(model, [SIZES[-1] * 64], 4) < 0.05
    assert error(model, [1.0], 4) < 0.05


def test_world_sizes_between_measured_ones_are_interpolated():
    assert error(AllreduceModel.fit(grid()), SIZES, 6) < 0.12


def test_larger_worlds_are_never_faster():
    network = AllreduceModel.fit(grid()).network("ring")
    at_16, at_64 = (network.bus_bandwidth(np.array(SIZES), world).bytes_per_second for world in (16, 64))
    assert (at_64 <= at_16).all()
    # Large transfers are not slower either: the link decides.
    assert at_64[-1] == pytest.approx(at_16[-1], rel=0.02)


def test_one_world_size_speaks_for_larger_ones_with_a_wide_spread():
    network = AllreduceModel.fit(grid(worlds=(4,))).network("ring")
    near, far = (network.bus_bandwidth(np.array(SIZES), world) for world in (4, 32))
    assert (far.log_spread > near.log_spread + 0.1).all()
    assert (far.bytes_per_second <= near.bytes_per_second).all()


def test_transfers_at_a_time_share_the_link_as_measured():
    model = AllreduceModel.fit(grid(concurrent=(1, 4)))
    assert error(model, SIZES, 4, concurrent=4) < 1e-9
    assert error(model, SIZES[8:], 4, concurrent=2) < 0.25


def test_transfers_at_a_time_share_the_best_bandwidth_when_nobody_measured_them():
    network = AllreduceModel.fit(grid()).network("ring")
    alone, shared = (network.bus_bandwidth(np.array(SIZES), 4, count).bytes_per_second for count in (1, 4))
    assert shared[-1] == pytest.approx(alone[-1] / 4, rel=0.05)
    assert shared[0] == pytest.approx(alone[0])
    assert (shared <= alone).all()


def test_world_sizes_of_one_machine_follow_its_rings():
    rows = [
        AllreduceMeasurement("dgx-1", size, world, 2 * size * (world - 1) / world / (22e9 * rings))
        for world, rings in ((2, 1), (3, 2), (4, 4), (6, 2), (8, 6))
        for size in SIZES[8:]
    ]
    recognised = AllreduceModel.fit(rows).network("dgx-1")
    told = recognised.bus_bandwidth(np.array([1e8]), 5).bytes_per_second
    with pytest.raises(ProblemError, match="inside of one machine only"):
        recognised.bus_bandwidth([1e8], 16)
    given = AllreduceModel.fit(rows[:16], topologies={"dgx-1": HYBRID_CUBE_MESH})
    assert told == pytest.approx([44e9], rel=0.02)
    assert given.network("dgx-1").bus_bandwidth(np.array([1e8]), 8).bytes_per_second == pytest.approx([132e9], rel=0.02)


def test_a_machine_and_its_network_are_not_mixed():
    inside = grid(worlds=(2, 4), factor=0.1, devices_per_machine=4)
    across = grid(worlds=(8, 16), devices_per_machine=4)
    model = AllreduceModel.fit([*inside, *across])
    assert error(model, SIZES, 6) < 0.3
    told = model.network("ring").seconds(np.array([1e9]), 3)
    assert told == pytest.approx([0.1 * seconds(1e9, 3)], rel=0.1)


def test_several_machines_are_not_guessed_from_the_inside_of_one():
    model = AllreduceModel.fit(grid(worlds=(2, 4), devices_per_machine=4))
    with pytest.raises(ProblemError, match="inside of one machine only"):
        model.network("ring").bus_bandwidth([1e6], 8)
    slow = AllreduceModel.fit(grid("slow", factor=50.0)).network("slow")
    network = model.network("ring", beyond=slow)
    assert network.seconds([1e6], 8) == pytest.approx(slow.seconds([1e6], 8))
    assert network.seconds([1e6], 4) == pytest.approx(model.network("ring").seconds([1e6], 4))


def test_one_machine_is_no_slower_than_several():
    network = AllreduceModel.fit(grid(worlds=(8, 16), devices_per_machine=4)).network("ring")
    inside, across = (network.bus_bandwidth(np.array(SIZES), world).bytes_per_second for world in (4, 8))
    assert (inside >= across * (1 - 1e-9)).all()


def test_locations_count_together_unless_one_is_named():
    model = AllreduceModel.fit([*grid(location="a"), *grid(location="b", factor=2.0)])
    pooled, named = model.network("ring"), model.network("ring", location="b")
    assert named.seconds(np.array([1e8]), 4) == pytest.approx([2 * seconds(1e8, 4)], rel=0.1)
    assert pooled.seconds(np.array([1e8]), 4) == pytest.approx([np.sqrt(2) * seconds(1e8, 4)], rel=0.1)
    assert pooled.bus_bandwidth([1e8], 4).log_spread > 0.3 > named.bus_bandwidth([1e8], 4).log_spread
    other = model.network("ring", location="c")
    assert other.basis == "measured with another location"
    assert other.bus_bandwidth([1e8], 4).log_spread > 0.3


def test_a_few_probes_of_a_location_level_what_others_measured():
    here = grid(worlds=(4,), sizes=SIZES[-2:], location="here", factor=2.0)
    network = AllreduceModel.fit([*grid(location="there"), *here]).network("ring", location="here")
    assert network.seconds(SIZES[-2:], 4) == pytest.approx([2 * seconds(size, 4) for size in SIZES[-2:]])
    for world in (4, 8):
        for size in (SIZES[0], SIZES[7], SIZES[-1]):
            assert network.seconds([size], world) == pytest.approx([2 * seconds(size, world)], rel=0.1)
    wide, narrow = (network.bus_bandwidth([SIZES[-1]], world).log_spread for world in (8, 4))
    assert wide > narrow


def test_one_large_size_alone_says_little_about_small_ones():
    network = AllreduceModel.fit(grid(worlds=(4,), sizes=(1 << 28,))).network("ring")
    small, large = (network.bus_bandwidth([size], 4) for size in (64.0, float(1 << 28)))
    assert small.bytes_per_second < large.bytes_per_second / 100
    assert small.log_spread > 5 * large.log_spread


def test_an_unknown_fabric_is_an_error_that_names_near_ones():
    model = AllreduceModel.fit(grid("AWS p4d 4x100Gb EFA"))
    with pytest.raises(ProblemError, match='"AWS p4d 4x100Gb EFA"'):
        model.network("AWS p4de 4x100Gb EFA")


def test_an_unknown_fabric_may_be_assumed_with_a_wide_spread():
    rows = [*grid("one", device="A100"), *grid("two", device="V100", factor=8.0)]
    network = AllreduceModel.fit(rows).network("three", device="V100", assume=True)
    assert network.is_assumed
    assert network.bus_bandwidth([1e8], 4).log_spread >= 1.0
    assert network.seconds([1e8], 4) == pytest.approx([8 * seconds(1e8, 4)], rel=0.1)


def test_scattered_measurements_are_smoothed():
    rows = noisy(grid(worlds=(2, 3, 4, 6, 8)), 0.4)
    network = AllreduceModel.fit(rows, residual="off").network("ring")
    truth = np.array([seconds(one.transfer_bytes, one.world_size) for one in rows])
    told = np.array([network.seconds([one.transfer_bytes], one.world_size)[0] for one in rows])
    measured = np.array([one.seconds for one in rows])
    assert np.abs(np.log(told / truth)).mean() < 0.8 * np.abs(np.log(measured / truth)).mean()


def test_the_spread_shows_how_repeats_scatter():
    rows = [one for seed in range(12) for one in noisy(grid(), 0.4, seed)]
    spread = AllreduceModel.fit(rows).network("ring").bus_bandwidth(np.array(SIZES), 4).log_spread
    assert np.median(spread) == pytest.approx(0.4, rel=0.25)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.builds(
            AllreduceMeasurement,
            fabric=st.just("any"),
            transfer_bytes=st.floats(1, 1e13),
            world_size=st.integers(2, 2000),
            seconds=st.floats(1e-9, 1e6),
            concurrent=st.integers(1, 64),
            devices_per_machine=st.sampled_from([0, 8]),
            location=st.sampled_from(["", "here", "there"]),
        ),
        min_size=1,
        max_size=12,
    ),
    size=st.floats(1, 1e13),
    world=st.integers(2, 5000),
    concurrent=st.integers(1, 64),
)
def test_whatever_was_measured_bandwidths_are_finite_and_above_zero(rows, size, world, concurrent):
    slow = AllreduceModel.fit(grid("slow")).network("slow")
    network = AllreduceModel.fit(rows, residual="off").network("any", location="here", beyond=slow)
    told = network.bus_bandwidth([size], world, concurrent)
    assert np.isfinite(told.bytes_per_second).all()
    assert (told.bytes_per_second > 0).all()
    assert np.isfinite(told.log_spread).all()
    assert (told.log_spread > 0).all()


def test_the_order_of_measurements_does_not_matter():
    rows = noisy(grid(), 0.3)
    one, other = (AllreduceModel.fit(found, residual="off").network("ring") for found in (rows, rows[::-1]))
    assert (one.seconds(np.array(SIZES), 6) == other.seconds(np.array(SIZES), 6)).all()


def test_it_is_a_network_of_the_iteration_simulator():
    network: NetworkModel = AllreduceModel.fit(grid()).network("ring")
    assert network.bus_bandwidth(np.array([1e6]), 4).log_spread.shape == (1,)


@pytest.mark.parametrize(
    "change",
    [
        {"transfer_bytes": 0.0},
        {"transfer_bytes": float("nan")},
        {"seconds": -1.0},
        {"world_size": 1},
        {"concurrent": 0},
        {"weight": 0.0},
        {"fabric": ""},
        {"fabric": "x" * 201},
        {"location": "a\nb"},
        {"log_spread": -0.1},
        {"measured_at_s": float("inf")},
        {"repeats": 0},
    ],
)
def test_impossible_measurements_are_refused(change):
    good = {"fabric": "any", "transfer_bytes": 1e6, "world_size": 2, "seconds": 1e-3}
    with pytest.raises(ProblemError):
        AllreduceMeasurement(**{**good, **change})


@pytest.mark.parametrize(("sizes", "world"), [([0.0], 2), ([float("nan")], 2), ([1e6], 1)])
def test_impossible_questions_are_refused(sizes, world):
    with pytest.raises(ValueError, match=r"above zero|two devices"):
        AllreduceModel.fit(grid()).network("ring").bus_bandwidth(sizes, world)


def test_no_measurements_are_an_error():
    with pytest.raises(ValueError, match="needs measurements"):
        AllreduceModel.fit([])
