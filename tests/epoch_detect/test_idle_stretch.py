"""A stretch without work is idle, whatever its length: no epoch is invented for it."""

import numpy as np
import pytest
from support.epoch_traces import trace_of

from gpusonde.epoch_detect import detect


@pytest.mark.parametrize("periods", [0.5, 1.0, 2.0, 2.6, 3.0, 4.0, 6.0, 12.0])
def test_idle_inside_a_run_invents_no_epoch(periods: float) -> None:
    rng = np.random.default_rng(7)
    lengths = 20.0 * rng.normal(1, 0.01, 16)
    epochs = [[(0.8 * s, 0.8), (0.2 * s, 0.4)] for s in lengths]
    epochs[7] = [(0.4 * 20, 0.8), (periods * 20, 0.0), (0.4 * 20, 0.8), (0.2 * 20, 0.4)]
    trace, starts = trace_of(epochs)
    found = detect(trace)
    assert found.period_s == pytest.approx(20.0, rel=0.05)
    assert found.epoch_starts_s.size == len(starts)
    np.testing.assert_allclose(np.delete(found.epoch_starts_s, 7), np.delete(starts, 7), atol=0.5)
