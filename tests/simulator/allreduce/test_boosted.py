import numpy as np
import pytest
from support.ring_network import SIZES, grid, noisy

from gpusonde.errors import CommandError
from gpusonde.simulator.allreduce import AllreduceMeasurement, AllreduceModel, Link, boosting
from gpusonde.simulator.allreduce.boosting import PaperModel
from gpusonde.simulator.allreduce.history import Decay

pytest.importorskip("xgboost", reason="XGBoost is not installed")


def odd_worlds_are_slow(fabrics=6):
    """Odd world sizes reach half of the bandwidth: what no interpolation between even ones knows."""
    return [
        AllreduceMeasurement(
            f"machine {fabric}",
            size,
            world,
            one.seconds * (1 + fabric / 4) * (2 if world % 2 else 1),
        )
        for fabric in range(fabrics)
        for world in range(2, 9)
        if not (fabric == 0 and world % 2)
        for size, one in ((each.transfer_bytes, each) for each in grid(worlds=(world,)))
    ]


def test_the_paper_predicts_negative_bandwidths_and_the_default_never():
    rows = noisy(grid(worlds=range(2, 17)), 0.3)
    sizes = np.array(SIZES) * 1.5
    published = PaperModel(rows, Decay(1.0), models=1).published(Link("ring"), sizes, 4)
    assert (published < 0).any()
    paper, default = (AllreduceModel.fit(rows, kind=kind).network("ring") for kind in ("paper", "default"))
    assert (paper.bus_bandwidth(sizes, 4).bytes_per_second > 0).all()
    assert (default.bus_bandwidth(sizes, 4).bytes_per_second > 0).all()


def test_the_paper_fits_large_transfers():
    rows = grid()
    told = AllreduceModel.fit(rows, kind="paper").network("ring").bus_bandwidth([SIZES[-1]], 8)
    assert told.bytes_per_second == pytest.approx([1e10], rel=0.1)
    assert told.log_spread == 0.0


def test_a_residual_is_learnt_where_it_helps():
    rows = odd_worlds_are_slow()
    learnt, plain = (AllreduceModel.fit(rows, residual=use) for use in ("auto", "off"))
    assert learnt.residual is not None
    assert plain.residual is None
    sizes = np.array(SIZES[10:])
    truth = 2 * np.array([one.seconds for one in grid(worlds=(5,), sizes=sizes)])
    near, far = (np.abs(np.log(each.network("machine 0").seconds(sizes, 5) / truth)).mean() for each in (learnt, plain))
    assert near < 0.8 * far


def test_a_residual_changes_nothing_at_what_was_measured():
    rows = odd_worlds_are_slow()
    told = AllreduceModel.fit(rows).network("machine 1").seconds(np.array(SIZES), 5)
    truth = [one.seconds for one in rows if one.fabric == "machine 1" and one.world_size == 5]
    assert told == pytest.approx(truth)


def test_no_residual_is_learnt_from_little_data():
    assert AllreduceModel.fit(grid()).residual is None


def test_without_xgboost_the_default_interpolates_and_the_paper_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(boosting, "is_installed", lambda: False)
    assert AllreduceModel.fit(odd_worlds_are_slow()).residual is None
    with pytest.raises(CommandError, match="xgboost-cpu"):
        AllreduceModel.fit(grid(), kind="paper")


def test_trees_are_the_same_every_time():
    rows = grid()
    one, other = (AllreduceModel.fit(rows, kind="paper").network("ring").seconds(np.array(SIZES), 3) for _ in range(2))
    assert (one == other).all()
