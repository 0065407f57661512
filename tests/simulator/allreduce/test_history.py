import numpy as np
import pytest
from support.ring_network import SIZES, grid

from gpusonde.simulator.allreduce import AllreduceMeasurement, AllreduceModel, history

DAY_S = 86_400.0


def bandwidth(model, size, world=4):
    return float(model.network("ring").bus_bandwidth([size], world).bytes_per_second[0])


def test_new_probes_replace_old_ones():
    model = AllreduceModel.fit(grid(measured_at_s=0.0))
    faster = model.update(grid(factor=0.5, measured_at_s=180 * DAY_S), now_s=180 * DAY_S)
    for size in SIZES:
        assert bandwidth(faster, size) == pytest.approx(2 * bandwidth(model, size))


def test_probes_of_the_same_age_count_alike():
    model = AllreduceModel.fit(grid(measured_at_s=0.0)).update(grid(factor=4.0, measured_at_s=0.0))
    assert bandwidth(model, 1e8) == pytest.approx(bandwidth(AllreduceModel.fit(grid(factor=2.0)), 1e8))


def test_one_new_size_levels_its_stale_neighbours():
    model = AllreduceModel.fit(grid(measured_at_s=0.0))
    probed = grid(worlds=(4,), sizes=SIZES[-2:-1], factor=0.5, measured_at_s=180 * DAY_S)
    updated = model.update(probed, now_s=180 * DAY_S)
    assert bandwidth(updated, SIZES[-2]) == pytest.approx(2 * bandwidth(model, SIZES[-2]))
    assert 1.4 < bandwidth(updated, SIZES[-1]) / bandwidth(model, SIZES[-1]) < 2.0
    # A fast link says nothing about latency.
    assert bandwidth(updated, SIZES[0]) == pytest.approx(bandwidth(model, SIZES[0]), rel=0.02)


def test_the_history_is_bounded():
    rows = [
        AllreduceMeasurement("ring", 1e6, 2, 1.0 + when, measured_at_s=float(when))
        for when in range(10 * history.NEWEST_PER_CONFIGURATION)
    ]
    model = AllreduceModel.fit(rows)
    assert len(model.measurements) == history.NEWEST_PER_CONFIGURATION
    assert min(one.measured_at_s for one in model.measurements) == 9 * history.NEWEST_PER_CONFIGURATION


def test_the_lightest_go_first_when_there_are_too_many(monkeypatch):
    monkeypatch.setattr(history, "MOST_MEASUREMENTS", 10)
    rows = grid(worlds=(2,), measured_at_s=0.0) + grid(worlds=(4,), sizes=SIZES[:10], measured_at_s=100 * DAY_S)
    model = AllreduceModel.fit(rows)
    assert {one.world_size for one in model.measurements} == {4}


def test_measurements_from_the_future_count_as_new():
    model = AllreduceModel.fit(grid(measured_at_s=1e9), now_s=0.0)
    assert np.isfinite(bandwidth(model, 1e6))


def test_a_half_life_must_be_above_zero():
    with pytest.raises(ValueError, match="half_life_s"):
        AllreduceModel.fit(grid(), half_life_s=0.0)


def test_the_weighted_median_lies_where_half_of_the_weight_is():
    values = np.array([3.0, 1.0, 2.0])
    assert history.weighted_median(values, np.array([1.0, 1.0, 1.0])) == 2.0
    assert history.weighted_median(values, np.array([5.0, 1.0, 1.0])) == 3.0
    assert history.weighted_median(np.array([1.0, 2.0]), np.array([1.0, 1.0])) == 1.5
