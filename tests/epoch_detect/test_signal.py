"""The quick order statistics are those of NumPy."""

import numpy as np
import pytest
from scipy.ndimage import median_filter

from gpusonde.epoch_detect.cycles.signal import median, medians, percentiles
from gpusonde.epoch_detect.ticks import middle_of_three


@pytest.mark.parametrize("size", [1, 2, 3, 8, 31, 700, 701])
def test_order_statistics_equal_numpys(size: int) -> None:
    rows = np.random.default_rng(size).normal(0, 1, (3, size))
    assert median(rows[0]) == np.median(rows[0])
    assert medians(rows).tolist() == np.median(rows, axis=1).tolist()
    percents = (0, 2, 10, 50, 97.5, 98, 100)
    assert percentiles(rows[0], percents) == np.percentile(rows[0], percents).tolist()
    assert middle_of_three(rows[0]).tolist() == median_filter(rows[0], 3, mode="nearest").tolist()


def test_the_median_of_a_matrix_is_that_of_all_its_values() -> None:
    values = np.arange(12).reshape(3, 4)
    assert median(values) == 5.5
