"""Template matching: many cycles at once are what each of them is alone, and a jump bridges what is no cycle."""

import numpy as np
import pytest

from gpusonde.epoch_detect.cycles.candidates import Scope, find_candidates
from gpusonde.epoch_detect.cycles.signal import Signal
from gpusonde.epoch_detect.cycles.template_matching import Search, match_template, match_templates


def _cycles(period: int, cells: int, seed: int, metrics: int = 2) -> np.ndarray:
    rng = np.random.default_rng(seed)
    level = np.where(np.arange(cells) % period < 0.7 * period, 1.0, 0.0)
    return level - level.mean() + rng.normal(0, 0.1, (metrics, cells))


def test_cycles_of_one_length_are_matched_together_as_each_alone() -> None:
    searches = [
        Search(_cycles(period, cells, seed), sought)
        for seed, (period, cells, sought) in enumerate(
            [(20, 480, 20.0), (21, 130, 20.3), (20, 97, 19.8), (33, 700, 20.0), (20, 41, 20.0), (8, 200, 8.0)]
        )
    ]
    together = match_templates(searches)
    for search, match in zip(searches, together, strict=True):
        alone = match_template(search.values, search.period)
        assert (match is None) == (alone is None)
        if match is not None and alone is not None:
            np.testing.assert_array_equal(match.starts, alone.starts)
            np.testing.assert_allclose(match.template, alone.template, atol=1e-12)
            assert match.agreement == pytest.approx(alone.agreement, abs=1e-12)
            assert match.contrast == pytest.approx(alone.contrast, abs=1e-9)
    assert together[0] is not None
    assert together[0].period == pytest.approx(20.0, abs=0.1)
    assert together[0].cycles >= 23


def test_a_sequence_jumps_over_a_standstill() -> None:
    values = _cycles(20, 600, 7)
    values[:, 190:395] = -0.7
    found = match_template(values, 20.0)
    assert found is not None
    assert (~found.joined).sum() == 1
    assert found.cycles >= 16


def test_with_a_template_its_length_counts_and_not_the_period() -> None:
    values = _cycles(20, 400, 8)
    found = match_template(values, 20.0)
    assert found is not None
    again = match_template(_cycles(20, 600, 9), 5.0, found.template)
    assert again is not None
    assert again.period == pytest.approx(20.0, abs=0.1)
    assert again.cycles >= 29


def test_what_does_not_resemble_itself_or_is_too_short_has_no_match() -> None:
    assert match_template(np.random.default_rng(1).normal(size=(1, 60)), 20.0) is None
    assert match_template(_cycles(20, 39, 2), 20.0) is None


def test_a_scope_leaves_out_short_periods_that_are_not_known() -> None:
    signal = Signal(0.0, 0.1, _cycles(40, 4000, 3), (0, 1), (float("nan"),) * 2)
    every = {c.period_s for c in find_candidates(signal)}
    narrow = {c.period_s for c in find_candidates(signal, Scope(20.0, (4.0,)))}
    assert narrow < every
    assert {p for p in every if p >= 20.0} <= narrow
    assert all(p >= 20.0 or 3.5 < p < 4.6 for p in narrow)
    assert any(p < 20.0 for p in narrow)
