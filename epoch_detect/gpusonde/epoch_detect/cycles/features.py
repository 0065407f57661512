"""What speaks for and against each hypothesis about the cycle of a trace, as named numbers for the scorer.

:class:`Features` names them; the fitted scorer holds the same names and refuses others.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, fields

import numpy as np
from scipy.ndimage import maximum_filter1d

from gpusonde.epoch_detect.cycles.candidates import CycleHypothesis
from gpusonde.epoch_detect.cycles.signal import median
from gpusonde.epoch_detect.cycles.template_matching import (
    TemplateMatch,
    correlate_cycles,
    find_start_phase,
    normalise_template,
)
from gpusonde.telemetry import FloatArray


@dataclass(frozen=True, kw_only=True)
class Features:
    """What is known of one hypothesis; NaN where a feature does not apply."""

    log_period_ticks: float
    log_possible_cycles: float  # in the whole activity
    log_cycles: float
    smoothing: float
    autocorrelation: float
    agreement: float
    weakest_agreement: float
    explained_variance: float
    scatter: float
    coverage: float
    strength: float
    contrast: float
    jumps: float
    neighbour_agreement: float
    next_but_one_gain: float  # cycles two apart agree better than neighbours: the period is a half
    next_but_two_gain: float
    self_similarity: float  # the template repeats in itself: the period is a multiple
    steepest_step: float
    plateau: float
    amplitude: float
    metrics: float
    differenced: float
    level_agreement: float
    level_explained_variance: float
    level_weakest_agreement: float
    difference_agreement: float
    difference_explained_variance: float
    difference_weakest_agreement: float
    difference_contrast: float
    support: float
    score: float
    below_best: float
    best_longer: float
    best_longer_agreement: float
    best_shorter: float
    best_multiple: float
    best_multiple_agreement: float
    best_divisor: float
    best_divisor_agreement: float
    best_unrelated: float
    median_unrelated: float
    log_ratio_to_best: float
    # A longer cycle always holds the same number of these: epochs within a checkpoint cycle, or evaluations.
    nested_in: float
    nested_in_count: float
    nested_in_excess: float  # what the longer cycle holds beyond them, in cycles
    nested_in_log_cycles: float
    contains: float  # the same, seen from the longer cycle
    contains_count: float
    contains_excess: float
    contains_scatter: float
    begin_phase: float  # periods between the start of the activity and the nearest boundary: epochs fill their run
    end_phase: float
    gap_removal: float  # no idle gaps, long ones, all
    removed: float  # share of the time
    best_other_view: float  # score where other gaps were removed
    best_other_view_same_period: float
    period_with_gaps: float  # usual length with the gaps removed from it, in periods
    change_clarity: float  # usual level change at the boundaries, in standard deviations of all changes
    change_purity: float  # of as many of the largest changes as there are boundaries, the share that lies at one
    change_margin: float  # log ratio of the usual change at a boundary to the largest one elsewhere
    change_rank_margin: float  # the same to the n-th largest elsewhere, n a tenth of the number of boundaries and one
    change_weakest: float  # the weakest change at a boundary in units of the usual one
    continued: float  # share of the activity that a like cycle of another length adds: epochs got longer or shorter


FEATURES = tuple(field.name for field in fields(Features))


_in_order = operator.attrgetter(*FEATURES)


def to_table(rows: Iterable[Features]) -> FloatArray:
    """Arrange features for the scorer, shape (rows, features)."""
    return np.array([_in_order(row) for row in rows], dtype=np.float64)


_AT_ONCE = 4  # hypotheses that are described without a pause
_NESTING_PARTNERS = 10
_NEAR_EDGE = 2.0  # periods from the edge of the activity beyond which the boundaries are not extrapolated to it
_HARMONICS = tuple(range(2, 9))
_SAME = 0.06
_SAME_LENGTH = 0.08
_OTHER_LENGTH = 0.15  # of the logarithm; a match follows smaller changes itself
_GRID = 256
_CHANGE_WIDTH = 0.06  # periods over which the level before and after is averaged
_CHANGE_NEAR = 0.08  # periods that a change may lie off
_LARGEST_LOG_RATIO = 3.0


def feature_table(
    kept: list[CycleHypothesis], all_hypotheses: list[CycleHypothesis], *, ended: bool
) -> Generator[None, None, FloatArray]:
    """Compute the features of each hypothesis.

    Args:
        kept: Hypotheses of distinct periods.
        all_hypotheses: All of them, near duplicates of other smoothings and resolutions included.
        ended: Whether the activity is over; while it is not, its last tick says nothing.

    Returns:
        Shape (kept, features), NaN where a feature does not apply; after a pause now and then.
    """
    partners = sorted(kept, key=lambda h: -h.score)[:_NESTING_PARTNERS]
    table = np.empty((len(kept), len(FEATURES)))
    for view in {id(h.preprocessed): h.preprocessed for h in kept}.values():
        here = [i for i, h in enumerate(kept) if h.preprocessed is view]
        elsewhere = [(h.usual_s, h.score) for h in kept if h.preprocessed is not view]
        described = _describe_view(
            [kept[i] for i in here], [h for h in all_hypotheses if h.preprocessed is view], partners,
            np.array(elsewhere).reshape(-1, 2), ended=ended,
        )  # fmt: skip
        rows = []
        for row in described:
            rows.append(row)
            if len(rows) % _AT_ONCE == 0:
                yield
        table[here] = to_table(rows)
    return table


def _describe_view(
    kept: list[CycleHypothesis],
    all_hypotheses: list[CycleHypothesis],
    partners: list[CycleHypothesis],
    elsewhere: FloatArray,
    *,
    ended: bool,
) -> Iterator[Features]:
    """Describe the hypotheses of one preprocessed view; ``elsewhere`` has period and score of those of others."""
    view = kept[0].preprocessed
    extents = [_Extent.from_hypothesis(h) for h in partners if h.preprocessed is view]
    ticks, step_s = len(view.ticks), view.signal.step_s
    periods = np.array([h.period_s for h in kept])
    scores = np.array([h.score for h in kept])
    agreements = np.array([h.match.agreement for h in kept])
    every = np.array([h.period_s for h in all_hypotheses])
    every_score = np.array([h.score for h in all_hypotheses])
    differenced = np.array([h.candidate.changes for h in all_hypotheses])
    best = int(np.argmax(scores))
    for i, hypothesis in enumerate(kept):
        ratio = periods / periods[i]
        multiple = _harmonic(ratio)
        divisor = _harmonic(1 / ratio)
        unrelated = ~(multiple | divisor | (np.abs(ratio - 1) < _SAME))
        twins = np.abs(every / periods[i] - 1) < 0.04
        of_level = _best_match(twins & ~differenced, every_score, all_hypotheses)
        of_difference = _best_match(twins & differenced, every_score, all_hypotheses)
        begin_phase, end_phase = _edge_phases(hypothesis, ended=ended)
        yield Features(
            log_period_ticks=np.log(periods[i] / step_s),
            log_possible_cycles=np.log(ticks * step_s / periods[i]),
            log_cycles=np.log(hypothesis.match.cycles),
            smoothing=hypothesis.candidate.smoothing,
            autocorrelation=hypothesis.candidate.correlation,
            **_describe_match(hypothesis.match),
            differenced=hypothesis.candidate.changes,
            level_agreement=of_level.agreement if of_level else np.nan,
            level_explained_variance=of_level.explained if of_level else np.nan,
            level_weakest_agreement=of_level.weakest if of_level else np.nan,
            difference_agreement=of_difference.agreement if of_difference else np.nan,
            difference_explained_variance=of_difference.explained if of_difference else np.nan,
            difference_weakest_agreement=of_difference.weakest if of_difference else np.nan,
            difference_contrast=of_difference.contrast if of_difference else np.nan,
            support=int((every_score[twins] > 0.8 * scores[i]).sum()),
            score=scores[i],
            below_best=scores[best] - scores[i],
            best_longer=_largest(scores, ratio > 1.5),
            best_longer_agreement=_largest(agreements, ratio > 1.5),
            best_shorter=_largest(scores, ratio < 0.67),
            best_multiple=_largest(scores, multiple),
            best_multiple_agreement=_largest(agreements, multiple),
            best_divisor=_largest(scores, divisor),
            best_divisor_agreement=_largest(agreements, divisor),
            best_unrelated=_largest(scores, unrelated),
            median_unrelated=median(scores[unrelated]) if unrelated.any() else np.nan,
            log_ratio_to_best=np.log(periods[i] / periods[best]),
            **_describe_nesting(hypothesis, partners),
            begin_phase=begin_phase,
            end_phase=end_phase,
            gap_removal=view.gap_removal,
            removed=view.removed,
            best_other_view=_largest(elsewhere[:, 1], elsewhere[:, 0] > 0),
            best_other_view_same_period=_largest(
                elsewhere[:, 1], np.abs(elsewhere[:, 0] / hypothesis.usual_s - 1) < _SAME_LENGTH
            ),
            period_with_gaps=hypothesis.usual_s / hypothesis.period_s,
            **_describe_changes(hypothesis),
            continued=_continued(hypothesis, extents),
        )


@dataclass(frozen=True)
class _Extent:
    """Where the cycles of a hypothesis lie, and their shape."""

    hypothesis: CycleHypothesis
    covered: np.ndarray[tuple[int], np.dtype[np.bool_]]
    shape: FloatArray

    @classmethod
    def from_hypothesis(cls, hypothesis: CycleHypothesis) -> _Extent:
        return cls(hypothesis, _covered(hypothesis), normalise_template(hypothesis.match.template))


def _continued(hypothesis: CycleHypothesis, partners: list[_Extent]) -> float:
    """Return the share of the activity that cycles of another length but the same shape add to these."""
    mine, shape, most = _covered(hypothesis), None, 0.0
    for partner in partners:
        if abs(np.log(partner.hypothesis.period_s / hypothesis.period_s)) > _OTHER_LENGTH:
            beyond = float(np.count_nonzero(partner.covered & ~mine)) / _GRID
            if beyond > most + 0.02:
                shape = normalise_template(hypothesis.match.template) if shape is None else shape
                most = max(most, beyond * max(0.0, correlate_cycles(shape, partner.shape)))
    return most


def _covered(hypothesis: CycleHypothesis) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Say which parts of the preprocessed view, shape (_GRID,), lie in the hypothesis's cycles."""
    level = hypothesis.candidate.level
    edges = (hypothesis.first + hypothesis.match.starts) / len(level) * _GRID
    width = hypothesis.match.template.shape[1] / len(level) * _GRID
    place = np.arange(_GRID) + 0.5
    last = np.searchsorted(edges, place, side="right") - 1
    return np.asarray((last >= 0) & (place - edges[np.maximum(last, 0)] < width))


def _describe_match(match: TemplateMatch) -> dict[str, float]:
    one, two, three = match.neighbours
    template = match.template
    spans = np.ptp(template, axis=1)
    row = template[int(np.argmax(spans))]
    amplitude = float(spans.max())
    level = median(row)
    return {
        "agreement": match.agreement,
        "weakest_agreement": match.weakest,
        "explained_variance": match.explained,
        "scatter": match.scatter,
        "coverage": match.coverage,
        "strength": match.strength,
        "contrast": match.contrast,
        "jumps": 1.0 - float(match.joined.mean()),
        "neighbour_agreement": one,
        "next_but_one_gain": two - one,
        "next_but_two_gain": three - one,
        "self_similarity": _self_similarity(template),
        "steepest_step": float(np.abs(np.diff(row)).max()) / (amplitude + 1e-12),
        "plateau": float((np.abs(row - level) < 0.15 * amplitude).mean()),
        "amplitude": amplitude,
        "metrics": template.shape[0],
    }


def _describe_nesting(hypothesis: CycleHypothesis, partners: list[CycleHypothesis]) -> dict[str, float]:
    """Say how regularly the cycles are nested in those of a longer hypothesis, and contain those of a shorter one."""
    nested = {"nested_in": 0.0, "nested_in_count": np.nan, "nested_in_excess": np.nan, "nested_in_log_cycles": np.nan}
    contains = {"contains": 0.0, "contains_count": np.nan, "contains_excess": np.nan, "contains_scatter": np.nan}
    for partner in partners:
        # The share is 1 at most, so that a partner with a lower score than this cannot be the best.
        if partner.period_s > 1.5 * hypothesis.period_s and partner.score > nested["nested_in"]:
            share, count = _children_per_parent(partner, hypothesis)
            if share * partner.score > nested["nested_in"]:
                nested = {
                    "nested_in": share * partner.score,
                    "nested_in_count": count,
                    "nested_in_excess": partner.period_s / hypothesis.period_s - count,
                    "nested_in_log_cycles": np.log(partner.match.cycles),
                }
        elif hypothesis.period_s > 1.5 * partner.period_s and partner.score > contains["contains"]:
            share, count = _children_per_parent(hypothesis, partner)
            if share * partner.score > contains["contains"]:
                contains = {
                    "contains": share * partner.score,
                    "contains_count": count,
                    "contains_excess": hypothesis.period_s / partner.period_s - count,
                    "contains_scatter": partner.match.scatter,
                }
    return nested | contains


def _edge_phases(hypothesis: CycleHypothesis, *, ended: bool) -> tuple[float, float]:
    """Return periods from first and last activity to the nearest boundary, 0..0.5; NaN where that cannot be told."""
    template, period = hypothesis.match.template, hypothesis.match.period
    row = template[int(np.argmax(np.ptp(template, axis=1)))]
    offset = hypothesis.first + find_start_phase(row) * template.shape[1]
    first = (hypothesis.match.starts[0] + offset) / period
    last = (len(hypothesis.candidate.level) - hypothesis.match.starts[-1] - offset) / period
    begin, end = (abs(d - round(d)) if d < _NEAR_EDGE else np.nan for d in (first, last))
    return begin, end if ended else np.nan


def _children_per_parent(parent: CycleHypothesis, child: CycleHypothesis) -> tuple[float, float]:
    """Return the share of the longer cycles that contain the usual number of shorter ones, and that number."""
    children, bounds = child.starts_s, parent.starts_s
    inside = (bounds[:-1] >= children[0] - child.period_s) & (bounds[1:] <= children[-1] + child.period_s)
    counts = np.diff(np.searchsorted(children, bounds))[inside & parent.match.joined]
    if counts.size < 2:
        return 0.0, np.nan
    usual = median(counts)
    return float((counts == usual).mean()), usual


def _best_match(
    where: np.ndarray[tuple[int], np.dtype[np.bool_]], scores: FloatArray, hypotheses: list[CycleHypothesis]
) -> TemplateMatch | None:
    """Return the match of the best of some hypotheses; None if there is none among them."""
    return hypotheses[int(np.argmax(np.where(where, scores, -np.inf)))].match if where.any() else None


def _self_similarity(template: FloatArray) -> float:
    """Return the largest correlation of the template with itself, turned by a half, a third ... a sixth."""
    window = template.shape[1]
    spectrum = np.fft.rfft(template - np.add.reduce(template, axis=1, keepdims=True) / window, axis=1)
    turned = np.fft.irfft(np.add.reduce(spectrum.real**2 + spectrum.imag**2, axis=0), window)
    return float(np.maximum.reduce(turned[_turns(window)]) / (turned[0] + 1e-12))


@functools.cache
def _turns(window: int) -> list[int]:
    """List the cells of a half, a third ... a sixth of a template, and multiples."""
    return sorted({round(window * j / k) for k in range(2, 7) for j in range(1, k)} - {0, window})


def _harmonic(ratio: FloatArray) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    nearest = np.round(ratio)
    hit: np.ndarray[tuple[int], np.dtype[np.bool_]] = (
        (nearest >= _HARMONICS[0]) & (nearest <= _HARMONICS[-1]) & (np.abs(ratio / np.maximum(nearest, 1) - 1) < _SAME)
    )
    return hit


def _largest(values: FloatArray, where: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> float:
    return float(values[where].max()) if where.any() else float("nan")


def _describe_changes(hypothesis: CycleHypothesis) -> dict[str, float]:
    """Compare the level changes at the boundaries with all others.

    A level change unlike all others marks an epoch, ripple does not.
    """
    match, level = hypothesis.match, hypothesis.candidate.level.values
    window = match.template.shape[1]
    begin = hypothesis.first + int(match.starts[0])
    stop = min(hypothesis.first + int(match.starts[-1]) + window, level.shape[1])
    starts = match.starts - match.starts[0]
    change = _changes(level[:, begin:stop], max(1, round(_CHANGE_WIDTH * window)), hypothesis.candidate.changes)
    near = max(1, round(_CHANGE_NEAR * window))
    # Both directions of every metric; the largest within reach counts.
    both = np.concatenate([change, -change])
    reachable = maximum_filter1d(both, 2 * near + 1, axis=1, mode="nearest")
    inside = starts[:, None] + np.arange(window)
    # The lower middle one of an even number: half of the boundaries must show the change.
    several = reachable[:, np.minimum(inside, both.shape[1] - 1)]
    folded = np.partition(several, (starts.size - 1) // 2, axis=1)[:, (starts.size - 1) // 2]
    row, phase = np.unravel_index(int(np.argmax(folded)), folded.shape)
    signed, usual = both[row], float(folded[row, phase])
    if usual <= 0:
        return {
            "change_clarity": 0.0,
            "change_purity": 0.0,
            "change_margin": np.nan,
            "change_rank_margin": np.nan,
            "change_weakest": 0.0,
        }
    places = np.minimum(starts + phase, signed.size - 1)
    here = reachable[row][places]
    peaks = np.flatnonzero((signed >= maximum_filter1d(signed, 2 * near + 1, mode="nearest")) & (signed > 0))
    distance = np.abs(peaks[:, None] - places).min(axis=1)
    elsewhere = np.sort(signed[peaks[distance > near]])[::-1]
    ranked = peaks[np.argsort(-signed[peaks], kind="stable")][: places.size]
    purity = float((np.abs(ranked[:, None] - places).min(axis=1) <= near).mean()) if ranked.size else 0.0
    nth = min(places.size // 10 + 1, elsewhere.size - 1)
    return {
        "change_clarity": usual / (float(signed.std()) + 1e-9),
        "change_purity": purity,
        "change_margin": _log_ratio(usual, elsewhere[0]) if elsewhere.size else _LARGEST_LOG_RATIO,
        "change_rank_margin": _log_ratio(usual, elsewhere[nth]) if elsewhere.size else _LARGEST_LOG_RATIO,
        "change_weakest": float(here.min()) / usual,
    }


def _log_ratio(one: float, other: float) -> float:
    return float(np.clip(np.log(one / max(other, 1e-9)), -_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO))


def _changes(values: FloatArray, width: int, are_changes: bool) -> FloatArray:
    """Return the mean over the cells after each cell's left edge less that before it; changes are what they are."""
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
