"""What speaks for and against each reading of a trace, as numbers for the scorer.

What stands at the boundaries of a reading: a level change unlike all others marks an epoch, ripple does not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.ndimage import maximum_filter1d

from gpusonde.epoch_detect.cycles.candidates import Reading
from gpusonde.epoch_detect.cycles.signal import median
from gpusonde.epoch_detect.cycles.template_matching import Lock, likeness, start_phase, stretched
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


FEATURES = (
    "log_ticks",  # of the period
    "log_possible_cycles",  # in the whole activity
    "log_cycles",
    "smoothing",
    "autocorrelation",
    "agreement",
    "weakest",
    "explained",
    "scatter",
    "coverage",
    "strength",
    "contrast",
    "jumps",
    "neighbours",
    "next_but_one_gain",  # cycles two apart agree better than neighbours: the period is a half
    "next_but_two_gain",
    "within_template",  # the template repeats in itself: the period is a multiple
    "edge",
    "plateau",
    "swing",
    "metrics",
    "of_changes",
    "agreement_of_levels",
    "explained_of_levels",
    "weakest_of_levels",
    "agreement_of_changes",
    "explained_of_changes",
    "weakest_of_changes",
    "contrast_of_changes",
    "support",
    "score",
    "below_best",
    "best_longer",
    "best_longer_agreement",
    "best_shorter",
    "best_multiple",
    "best_multiple_agreement",
    "best_part",
    "best_part_agreement",
    "best_unrelated",
    "median_unrelated",
    "log_ratio_to_best",
    "lies_in",  # a longer cycle always holds the same number of these: epochs within a checkpoint cycle, or evaluations
    "lies_in_count",
    "lies_in_excess",  # what the longer cycle holds beyond them, in cycles
    "lies_in_cycles",
    "holds",  # the same, seen from the longer cycle
    "holds_count",
    "holds_excess",
    "holds_scatter",
    "begin_phase",  # periods between the start of the activity and the nearest boundary: epochs fill their run
    "end_phase",
    "cut",  # what was left out: nothing, long pauses, all pauses
    "removed",  # share of the time
    "best_elsewhere",  # score where other pauses were left out
    "same_elsewhere",  # the same of readings of this length
    "with_pauses",  # usual length with what was left out, in periods
    *MARKERS,
    "continued",  # share of the activity that other readings with a like cycle add: epochs that got longer or shorter
)
_NESTING_PARTNERS = 10
_NEAR_EDGE = 2.0  # periods from the edge of the activity beyond which the boundaries are not extrapolated to it
_HARMONICS = tuple(range(2, 9))
_SAME = 0.06
_SAME_LENGTH = 0.08
_OTHER_LENGTH = 0.15  # of the logarithm; a chain follows smaller changes itself
_GRID = 256


def feature_table(kept: list[Reading], all_readings: list[Reading], *, ended: bool) -> FloatArray:
    """Features of each reading.

    Args:
        kept: Readings of distinct periods.
        all_readings: All of them, near duplicates of other smoothings and resolutions included.
        ended: Whether the activity is over; while it is not, its last tick says nothing.

    Returns:
        Shape (kept, features), NaN where a feature does not apply.
    """
    partners = sorted(kept, key=lambda r: -r.score)[:_NESTING_PARTNERS]
    table = np.empty((len(kept), len(FEATURES)))
    for strand in {id(r.strand): r.strand for r in kept}.values():
        here = [i for i, r in enumerate(kept) if r.strand is strand]
        elsewhere = [(r.usual_s, r.score) for r in kept if r.strand is not strand]
        table[here] = _of_strand(
            [kept[i] for i in here], [r for r in all_readings if r.strand is strand], partners,
            np.array(elsewhere).reshape(-1, 2), ended=ended,
        )  # fmt: skip
    return table


def _of_strand(
    kept: list[Reading], all_readings: list[Reading], partners: list[Reading], elsewhere: FloatArray, *, ended: bool
) -> FloatArray:
    strand = kept[0].strand
    extents = [_Extent.of(r) for r in partners if r.strand is strand]
    ticks, step_s = len(strand.ticks), strand.signal.step_s
    periods = np.array([r.period_s for r in kept])
    scores = np.array([r.score for r in kept])
    agreements = np.array([r.chain.agreement for r in kept])
    every = np.array([r.period_s for r in all_readings])
    every_score = np.array([r.score for r in all_readings])
    of_changes = np.array([r.candidate.changes for r in all_readings])
    best = int(np.argmax(scores))
    rows = []
    for i, reading in enumerate(kept):
        ratio = periods / periods[i]
        multiple = _harmonic(ratio)
        part = _harmonic(1 / ratio)
        unrelated = ~(multiple | part | (np.abs(ratio - 1) < _SAME))
        twins = np.abs(every / periods[i] - 1) < 0.04
        rows.append(
            [
                np.log(periods[i] / step_s),
                np.log(ticks * step_s / periods[i]),
                np.log(reading.chain.cycles),
                reading.candidate.smoothing,
                reading.candidate.correlation,
                *_of_chain(reading.chain),
                reading.candidate.changes,
                *_of_view(twins & ~of_changes, all_readings)[:3],
                *_of_view(twins & of_changes, all_readings),
                int((every_score[twins] > 0.8 * scores[i]).sum()),
                scores[i],
                scores[best] - scores[i],
                _largest(scores, ratio > 1.5),
                _largest(agreements, ratio > 1.5),
                _largest(scores, ratio < 0.67),
                _largest(scores, multiple),
                _largest(agreements, multiple),
                _largest(scores, part),
                _largest(agreements, part),
                _largest(scores, unrelated),
                float(np.median(scores[unrelated])) if unrelated.any() else np.nan,
                np.log(periods[i] / periods[best]),
                *_nesting(reading, partners),
                *_edge_phases(reading, ended=ended),
                strand.cut,
                strand.removed,
                _largest(elsewhere[:, 1], elsewhere[:, 0] > 0),
                _largest(elsewhere[:, 1], np.abs(elsewhere[:, 0] / reading.usual_s - 1) < _SAME_LENGTH),
                reading.usual_s / reading.period_s,
                *markers(reading),
                _continued(reading, extents),
            ]
        )
    return np.array(rows, dtype=np.float64)


@dataclass(frozen=True)
class _Extent:
    """Where the cycles of a reading lie, and their shape."""

    reading: Reading
    covered: np.ndarray[tuple[int], np.dtype[np.bool_]]
    shape: FloatArray

    @classmethod
    def of(cls, reading: Reading) -> _Extent:
        return cls(reading, _covered(reading), stretched(reading.chain.template))


def _continued(reading: Reading, partners: list[_Extent]) -> float:
    """Share of the activity that cycles of another length but the same shape cover, where these ones do not."""
    mine, shape, most = _covered(reading), None, 0.0
    for partner in partners:
        if abs(np.log(partner.reading.period_s / reading.period_s)) > _OTHER_LENGTH:
            beyond = float(np.count_nonzero(partner.covered & ~mine)) / _GRID
            if beyond > most + 0.02:
                shape = stretched(reading.chain.template) if shape is None else shape
                most = max(most, beyond * max(0.0, likeness(shape, partner.shape)))
    return most


def _covered(reading: Reading) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Shape (_GRID,), which parts of the strand lie in the reading's cycles."""
    level = reading.candidate.level
    edges = (reading.first + reading.chain.starts) / len(level) * _GRID
    width = reading.chain.template.shape[1] / len(level) * _GRID
    place = np.arange(_GRID) + 0.5
    last = np.searchsorted(edges, place, side="right") - 1
    return np.asarray((last >= 0) & (place - edges[np.maximum(last, 0)] < width))


def _of_chain(chain: Lock) -> list[float]:
    one, two, three = chain.neighbours
    template = chain.template
    spans = np.ptp(template, axis=1)
    row = template[int(np.argmax(spans))]
    swing = float(spans.max())
    level = median(row)
    return [
        chain.agreement,
        chain.weakest,
        chain.explained,
        chain.scatter,
        chain.coverage,
        chain.strength,
        chain.contrast,
        1.0 - float(chain.joined.mean()),
        one,
        two - one,
        three - one,
        _self_similarity(template),
        float(np.abs(np.diff(row)).max()) / (swing + 1e-12),
        float((np.abs(row - level) < 0.15 * swing).mean()),
        swing,
        template.shape[0],
    ]


def _nesting(reading: Reading, partners: list[Reading]) -> list[float]:
    """How regularly the cycles lie in those of a longer reading, and hold those of a shorter one; see ``FEATURES``."""
    lies_in, holds = [0.0, np.nan, np.nan, np.nan], [0.0, np.nan, np.nan, np.nan]
    for partner in partners:
        if partner.period_s > 1.5 * reading.period_s:
            share, count = _children_per_parent(partner, reading)
            if share * partner.score > lies_in[0]:
                excess = partner.period_s / reading.period_s - count
                lies_in = [share * partner.score, count, excess, np.log(partner.chain.cycles)]
        elif reading.period_s > 1.5 * partner.period_s:
            share, count = _children_per_parent(reading, partner)
            if share * partner.score > holds[0]:
                excess = reading.period_s / partner.period_s - count
                holds = [share * partner.score, count, excess, partner.chain.scatter]
    return lies_in + holds


def _edge_phases(reading: Reading, *, ended: bool) -> tuple[float, float]:
    """Periods from the first and the last activity to the nearest boundary, 0..0.5; NaN where that cannot be told."""
    template, period = reading.chain.template, reading.chain.period
    row = template[int(np.argmax(np.ptp(template, axis=1)))]
    offset = reading.first + start_phase(row) * template.shape[1]
    first = (reading.chain.starts[0] + offset) / period
    last = (len(reading.candidate.level) - reading.chain.starts[-1] - offset) / period
    begin, end = (abs(d - round(d)) if d < _NEAR_EDGE else np.nan for d in (first, last))
    return begin, end if ended else np.nan


def _children_per_parent(parent: Reading, child: Reading) -> tuple[float, float]:
    """Share of the longer cycles that hold the usual number of shorter ones, and that number."""
    children, bounds = child.starts_s, parent.starts_s
    inside = (bounds[:-1] >= children[0] - child.period_s) & (bounds[1:] <= children[-1] + child.period_s)
    counts = np.diff(np.searchsorted(children, bounds))[inside & parent.chain.joined]
    if counts.size < 2:
        return 0.0, np.nan
    usual = median(counts)
    return float((counts == usual).mean()), usual


def _of_view(where: np.ndarray[tuple[int], np.dtype[np.bool_]], readings: list[Reading]) -> list[float]:
    """Agreement, explained variance, weakest agreement and contrast of the best of some readings."""
    if not where.any():
        return [np.nan] * 4
    best = max((readings[i] for i in np.flatnonzero(where)), key=lambda r: r.score).chain
    return [best.agreement, best.explained, best.weakest, best.contrast]


def _self_similarity(template: FloatArray) -> float:
    """Largest circular correlation of the template with itself at a half, a third ... a sixth of its length."""
    flat = template - template.mean(axis=1, keepdims=True)
    power = float((flat**2).sum()) + 1e-12
    window = template.shape[1]
    shifts = {round(window * j / k) for k in range(2, 7) for j in range(1, k)} - {0, window}
    return max(float((flat * np.roll(flat, shift, axis=1)).sum()) / power for shift in shifts)


def _harmonic(ratio: FloatArray) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    nearest = np.round(ratio)
    hit: np.ndarray[tuple[int], np.dtype[np.bool_]] = (
        (nearest >= _HARMONICS[0]) & (nearest <= _HARMONICS[-1]) & (np.abs(ratio / np.maximum(nearest, 1) - 1) < _SAME)
    )
    return hit


def _largest(values: FloatArray, where: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> float:
    return float(values[where].max()) if where.any() else float("nan")
