"""Our port of Luminol beside Luminol: the largest difference of the scores, and how much faster it is."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable

import numpy as np

from gpusonde.epoch_detect.published.luminol import luminol_scores, original_luminol_scores

_LENGTHS = (2, 3, 50, 500, 1999, 2000, 2001, 4077, 15999, 16000, 20000)
_HOUR = 36_000

_Rng = np.random.Generator
_Series = tuple[np.ndarray, np.ndarray | None]
_KINDS: dict[str, Callable[[int, _Rng], _Series]] = {
    "noise": lambda n, rng: (rng.normal(size=n), None),
    "constant": lambda n, _: (np.full(n, 0.1), None),
    "spikes": lambda n, rng: (rng.normal(size=n) + 20 * (rng.random(n) < 0.01), None),
    "missing values (NaN)": lambda n, rng: (np.where(np.arange(n) % 97 == 5, np.nan, rng.normal(size=n)), None),
    "square wave": lambda n, rng: (np.sign(np.sin(np.arange(n) / 30)) + rng.normal(0, 0.01, n), None),
    "jittered whole-number times": lambda n, rng: (rng.normal(size=n), np.cumsum(rng.integers(1, 9, n))),
}


def exactness() -> list[str]:
    """Lines of the report."""
    heading = ["## Exactness of the Luminol port", ""]
    if importlib.util.find_spec("luminol") is None:
        return [*heading, "Not measured: the extra `paper`, which brings `luminol` itself, is not installed.", ""]
    rng = np.random.default_rng(5)
    worst = max(largest_difference(*make(n, rng)) for make in _KINDS.values() for n in _LENGTHS)
    hour = rng.normal(size=_HOUR)
    theirs_s, ours_s = _seconds(original_luminol_scores, hour), _seconds(luminol_scores, hour)
    lengths = ", ".join(map(str, _LENGTHS))
    said = (
        f"`luminol_scores` against the package `luminol` itself, on series of {lengths} points: largest absolute "
        f"difference of a score {worst:g} ({', '.join(_KINDS)}). An hour at 10 Hz ({_HOUR:,} points): Luminol "
        f"{theirs_s:.2f} CPU seconds, the port {ours_s:.4f}, hence {theirs_s / ours_s:.0f} times faster (best of "
        "three)."
    )
    return [*heading, said, ""]


def largest_difference(series: np.ndarray, times: np.ndarray | None) -> float:
    """Largest absolute difference of a score; infinite where only one of the two has none."""
    with np.errstate(all="ignore"):  # NaN runs through both
        ours, theirs = luminol_scores(series, times), original_luminol_scores(series, times)
    if not np.array_equal(np.isnan(ours), np.isnan(theirs)):
        return float("inf")
    return float(np.nanmax(np.abs(ours - theirs), initial=0.0))


def _seconds(score: Callable[[np.ndarray], np.ndarray], series: np.ndarray) -> float:
    best = np.inf
    for _ in range(3):
        begin = time.process_time()
        score(series)
        best = min(best, time.process_time() - begin)
    return float(best)
