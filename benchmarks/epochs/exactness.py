"""Our port of Luminol beside Luminol: the largest difference of the scores, and how much faster it is."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from gpusonde.epoch_detect.published.bitmap import luminol_scores
from gpusonde.epoch_detect.published.luminol_engine import original_luminol_scores

_LENGTHS = (2, 3, 50, 500, 1999, 2000, 2001, 4077, 15999, 16000, 20000)
_HOUR = 36_000


def exactness() -> list[str]:
    """Lines of the report."""
    largest, cases = 0.0, 0
    for series, times in _cases():
        with np.errstate(all="ignore"):  # NaN runs through both
            ours, theirs = luminol_scores(series, times), original_luminol_scores(series, times)
        both_blank = np.isnan(ours) & np.isnan(theirs)
        largest = max(largest, float(np.max(np.where(both_blank, 0.0, np.abs(ours - theirs)), initial=0.0)))
        cases += 1
    hour = np.random.default_rng(3).normal(size=_HOUR)
    ratio = _seconds(original_luminol_scores, hour) / _seconds(luminol_scores, hour)
    found = (
        f"Against the package `luminol` itself, {cases} series of 2 to 20,000 points (noise, constant, spikes, missing "
        f"values, jittered whole-number times): largest difference {largest:g}. An hour at 10 Hz ({_HOUR:,} points) "
        f"takes Luminol {ratio:.0f} times as long."
    )
    return ["## Exactness of the Luminol port", "", found, ""]


def _cases() -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    rng = np.random.default_rng(5)
    for n in _LENGTHS:
        noise = rng.normal(size=n)
        yield noise, None
        yield np.full(n, 0.1), None
        yield noise + 20 * (rng.random(n) < 0.01), None
        yield np.where(np.arange(n) % 97 == 5, np.nan, noise), None
        yield noise, np.cumsum(rng.integers(1, 9, n))


def _seconds(score, series: np.ndarray) -> float:
    best = np.inf
    for _ in range(3):
        begin = time.process_time()
        score(series)
        best = min(best, time.process_time() - begin)
    return float(best)
