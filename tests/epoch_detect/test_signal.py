"""The quick order statistics are those of NumPy."""

import numpy as np
import pytest

from gpusonde.epoch_detect.cycles.signal import median, quantile


@pytest.mark.parametrize("size", [1, 2, 3, 8, 31])
def test_median_and_quantiles_equal_numpys(size: int) -> None:
    values = np.random.default_rng(size).normal(0, 1, size)
    assert median(values) == np.median(values)
    for share in (0.0, 0.1, 0.5, 0.98, 1.0):
        assert quantile(values, share) == pytest.approx(np.quantile(values, share), rel=1e-12, abs=1e-15)


def test_the_median_of_a_matrix_is_that_of_all_its_values() -> None:
    values = np.arange(12).reshape(3, 4)
    assert median(values) == 5.5
