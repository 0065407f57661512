"""What stands at the boundaries of a reading: a level change unlike all others marks an epoch, ripple does not."""

from __future__ import annotations

import numpy as np
from scipy.ndimage import maximum_filter1d

from gpusonde.epoch_detect.cycles.hypotheses import Reading
from gpusonde.telemetry import FloatArray

MARKERS = (
    "marker_clarity",  # usual level change at the boundaries, in standard deviations of all changes
    "marker_purity",  # of as many of the largest changes as there are boundaries, the share that lies at one
    "marker_margin",  # log ratio of the usual change at a boundary to the largest one elsewhere
    "marker_rank_margin",  # the same to the n-th largest elsewhere, n a tenth of the number of boundaries and one
    "marker_weakest",  # the weakest change at a boundary in units of the usual one
)
_WIDTH = 0.06  # periods over which the level before and after is averaged
_NEAR = 0.08  # periods that a change may lie off


def markers(reading: Reading) -> list[float]:
    """The figures named in ``MARKERS``."""
    chain, level = reading.chain, reading.candidate.level.values
    window = chain.template.shape[1]
    begin = reading.first + int(chain.starts[0])
    stop = min(reading.first + int(chain.starts[-1]) + window, level.shape[1])
    starts = chain.starts - chain.starts[0]
    change = _changes(level[:, begin:stop], max(1, round(_WIDTH * window)), reading.candidate.changes)
    near = max(1, round(_NEAR * window))
    # Both directions of every metric; the largest within reach counts.
    both = np.concatenate([change, -change])
    reachable = maximum_filter1d(both, 2 * near + 1, axis=1, mode="nearest")
    inside = starts[:, None] + np.arange(window)
    # The lower middle one of an even number: half of the boundaries must show the change.
    several = np.sort(reachable[:, np.minimum(inside, both.shape[1] - 1)], axis=1)
    folded = several[:, (starts.size - 1) // 2]
    row, phase = np.unravel_index(int(np.argmax(folded)), folded.shape)
    signed, usual = both[row], float(folded[row, phase])
    if usual <= 0:
        return [0.0, 0.0, np.nan, np.nan, 0.0]
    places = np.minimum(starts + phase, signed.size - 1)
    here = reachable[row][places]
    peaks = np.flatnonzero((signed >= maximum_filter1d(signed, 2 * near + 1, mode="nearest")) & (signed > 0))
    distance = np.abs(peaks[:, None] - places).min(axis=1)
    elsewhere = np.sort(signed[peaks[distance > near]])[::-1]
    ranked = peaks[np.argsort(-signed[peaks], kind="stable")][: places.size]
    purity = float((np.abs(ranked[:, None] - places).min(axis=1) <= near).mean()) if ranked.size else 0.0
    nth = min(places.size // 10 + 1, elsewhere.size - 1)
    return [
        usual / (float(signed.std()) + 1e-9),
        purity,
        _log_ratio(usual, elsewhere[0]) if elsewhere.size else _MOST,
        _log_ratio(usual, elsewhere[nth]) if elsewhere.size else _MOST,
        float(here.min()) / usual,
    ]


_MOST = 3.0


def _log_ratio(one: float, other: float) -> float:
    return float(np.clip(np.log(one / max(other, 1e-9)), -_MOST, _MOST))


def _changes(values: FloatArray, width: int, are_changes: bool) -> FloatArray:
    """Mean over the cells after each cell's left edge less that before it; changes are what they are."""
    if are_changes:
        return values
    n = values.shape[1]
    sums = np.concatenate([np.zeros((values.shape[0], 1)), np.cumsum(values, axis=1)], axis=1)
    here = np.arange(n)
    left, right = np.maximum(here - width, 0), np.minimum(here + width, n)
    change: FloatArray = (sums[:, right] - sums[:, here]) / (right - here)
    change -= (sums[:, here] - sums[:, left]) / np.maximum(here - left, 1)
    change[:, 0] = 0.0
    return change
