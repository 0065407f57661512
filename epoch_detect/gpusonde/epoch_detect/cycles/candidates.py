"""Hypotheses about the cycle of a trace.

Candidates for the period are peaks of the autocorrelation at many resolutions, and enough periods between them that
none is missed. A hypothesis is a candidate whose cycles were found by template matching, with a score that says how
consistent they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpusonde.epoch_detect.cycles.idle_gaps import PreprocessedView
from gpusonde.epoch_detect.cycles.signal import (
    Signal,
    autocorrelate,
    changes,
    median,
    pyramid,
    remove_trend,
    smooth,
)
from gpusonde.epoch_detect.cycles.template_matching import (
    Search,
    TemplateMatch,
    match_template,
    match_templates,
)
from gpusonde.telemetry import FloatArray

_SHORTEST = 16  # samples per period that a level is made for: 16 ... 40; the finest level takes shorter ones, too
_LONGEST = 40
_SHORTEST_OF_ALL = 5
_TREND = 3  # times the longest period
# (cells to average, whether to look at changes instead of levels). Averages stand against an iteration ripple that is
# faster than the cycle sought, changes against plateaus that have nothing to do with it, such as another tenant's.
_VIEWS = ((1, False), (4, False), (2, True))
_PEAKS = 4  # per level and smoothing
_PROMINENCE = 0.03
_SIEVE_RATIO = 1.25


@dataclass(frozen=True)
class PeriodCandidate:
    """A period to examine.

    Attributes:
        period: In cells of ``level``.
        level: The signal to examine it in: about 16 to 40 cells per period, smoothed, without trend.
        smoothing: Cells that were averaged.
        changes: Whether the signal was replaced by its changes.
        correlation: Autocorrelation at the period.
    """

    period: float
    level: Signal
    smoothing: int
    changes: bool
    correlation: float

    @property
    def period_s(self) -> float:
        """Period in seconds."""
        return self.period * self.level.step_s


def make_view(level: Signal, width: int, differenced: bool, longest: int) -> Signal:
    """Make one view of a level: its changes, or the smoothed level without its trend.

    Args:
        level: The signal at some resolution.
        width: Cells to average.
        differenced: Whether to look at changes instead of levels.
        longest: Longest period of interest in cells; the trend is what varies more slowly than that.
    """
    if differenced:
        values = changes(level.values, width)
    else:
        values = remove_trend(smooth(level.values, width), _TREND * longest)
    return Signal(level.start_s, level.step_s, values, level.rows, (float("nan"),) * len(level.rows))


def longest_period(level: Signal) -> int:
    """Return the longest period in cells that is looked for in a level."""
    return min(_LONGEST, int(len(level) / 2.5))


def find_candidates(signal: Signal) -> list[PeriodCandidate]:
    """Find periods at which the signal resembles itself, of five cells and up to 1/2.5 of its length."""
    found: list[PeriodCandidate] = []
    for depth, level in enumerate(pyramid(signal)):
        shortest = _SHORTEST if depth else _SHORTEST_OF_ALL
        longest = longest_period(level)
        if longest < shortest + 2:
            continue
        for width, differenced in _VIEWS:
            view = make_view(level, width, differenced, longest)
            if float(np.abs(view.values).max()) < 1e-6:
                continue
            correlation = autocorrelate(view.values, longest + 2)
            least = shortest if differenced else max(shortest, 2 * width)
            peaks = _peaks(correlation, least)
            peaks += [(p, float(correlation[round(p)])) for p in _sieve(least, longest) if not _near(p, peaks)]
            found += [PeriodCandidate(p, view, width, differenced, r) for p, r in peaks]
    return _keep_distinct(found)


def _peaks(correlation: FloatArray, least: int) -> list[tuple[float, float]]:
    # Its import takes longer than all others of a collector, which should listen before that.
    from scipy.signal import find_peaks  # noqa: PLC0415

    peaks, _ = find_peaks(correlation, prominence=_PROMINENCE)
    peaks = peaks[(peaks >= least) & (correlation[peaks] > 0.02)]
    if not peaks.size:
        return []
    strongest = peaks[np.argsort(-correlation[peaks])][:_PEAKS].tolist()
    first_strong = int(peaks[np.argmax(correlation[peaks] > 0.75 * correlation[peaks].max())])
    if first_strong not in strongest:
        strongest.append(first_strong)
    return [_vertex(correlation, p) for p in strongest]


def _sieve(least: int, longest: int) -> list[float]:
    """List periods so close together that template matching, with its tolerance, misses none between them."""
    steps = int(np.log(longest / least) / np.log(_SIEVE_RATIO)) + 1
    return [least * _SIEVE_RATIO**k for k in range(steps)]


def _near(period: float, peaks: list[tuple[float, float]]) -> bool:
    return any(abs(np.log(period / p)) < 0.5 * np.log(_SIEVE_RATIO) for p, _ in peaks)


def _vertex(correlation: FloatArray, peak: int) -> tuple[float, float]:
    """Return place and height of the parabola through a peak and its neighbours."""
    left, middle, right = correlation[peak - 1 : peak + 2]
    bend = left - 2 * middle + right
    shift = 0.5 * (left - right) / bend if bend < 0 else 0.0
    return peak + float(shift), float(middle - 0.25 * (left - right) * shift)


def _keep_distinct(found: list[PeriodCandidate]) -> list[PeriodCandidate]:
    """Of candidates within 4 % of one another, keep the best correlated of each view."""
    kept: list[PeriodCandidate] = []
    for candidate in sorted(found, key=lambda c: -c.correlation):
        if all(k.smoothing != candidate.smoothing or abs(candidate.period_s / k.period_s - 1) > 0.04 for k in kept):
            kept.append(candidate)
    return kept


_EXAMINED_CYCLES = 24
_SAME = 0.06  # periods this close are one
_RETUNED = 2  # times at most
_OUT_OF_TUNE = 0.05  # of the length of the template


@dataclass(frozen=True)
class CycleHypothesis:
    """A candidate and the cycles that template matching finds for it.

    Attributes:
        period_s: Seconds, as matched, without the idle gaps that the preprocessed view leaves out.
        match: The cycles in the examined part.
        candidate: Where it came from.
        score: How convincing it is, 0..1.
        preprocessed: The view of the activity in which the candidate was found.
        first: Cell of the candidate's level at which the examined part begins.
    """

    period_s: float
    match: TemplateMatch
    candidate: PeriodCandidate
    score: float
    preprocessed: PreprocessedView
    first: int = 0

    @property
    def starts_s(self) -> FloatArray:
        """Shape (cycles,), where the cycles start, in seconds of the activity; the phase is arbitrary."""
        cells = (self.first + self.match.starts).astype(np.float64)
        return self.preprocessed.to_activity_time(cells * self.candidate.level.step_s)

    @property
    def usual_s(self) -> float:
        """Median distance of neighbouring cycles in seconds of the activity, idle gaps included."""
        distances = np.diff(self.starts_s)[self.match.joined]
        return median(distances) if distances.size else self.period_s


def match_candidates(candidates: list[tuple[PeriodCandidate, PreprocessedView]]) -> list[CycleHypothesis]:
    """Match cycles of each candidate, in the part of its signal that resembles itself best.

    Args:
        candidates: Each with the view of the activity in which it was found.

    Returns:
        Those of which there are two cycles at least, in order.
    """
    parts = [_best_part(candidate) for candidate, _ in candidates]
    searches = [
        Search(candidate.level.values[:, first:stop], candidate.period)
        for (candidate, _), (first, stop) in zip(candidates, parts, strict=True)
    ]
    return [
        CycleHypothesis(
            match.period * candidate.level.step_s, match, candidate, score_consistency(match, candidate), view, first
        )
        for (candidate, view), (first, _), match in zip(candidates, parts, match_templates(searches), strict=True)
        if match is not None
    ]


def match_whole(hypothesis: CycleHypothesis) -> TemplateMatch:
    """Match cycles through the whole signal, starting from the cycle that was found in its examined part."""
    values = hypothesis.candidate.level.values
    found = match_template(values, hypothesis.candidate.period, hypothesis.match.template)
    if found is None or found.cycles < hypothesis.match.cycles:
        found = hypothesis.match
    for _ in range(_RETUNED):
        # Cycles that are all longer than their template, or shorter, come out between the two.
        if abs(found.period / found.template.shape[1] - 1) <= _OUT_OF_TUNE:
            break
        tuned = match_template(values, found.period)
        if tuned is None or tuned.cycles < found.cycles or tuned.agreement < found.agreement:
            break
        found = tuned
    return found


def score_consistency(match: TemplateMatch, candidate: PeriodCandidate) -> float:
    """Score agreement, explained variance and autocorrelation; few, scattered or sparse cycles count for less."""
    alike = (
        0.5 * max(0.0, match.agreement)
        + 0.3 * float(np.sqrt(max(0.0, match.explained)))
        + 0.2 * min(1.0, max(0.0, candidate.correlation) / 0.6)
    )
    return alike * (1 - 0.5 / match.cycles) * min(1.0, match.coverage / 0.6) * (1 - min(0.5, match.scatter))


def keep_distinct(hypotheses: list[CycleHypothesis]) -> list[CycleHypothesis]:
    """Keep the best hypothesis of each period in each preprocessed view, best first."""
    kept: list[CycleHypothesis] = []
    for hypothesis in sorted(hypotheses, key=lambda r: -r.score):
        if all(
            k.preprocessed is not hypothesis.preprocessed or abs(hypothesis.period_s / k.period_s - 1) > _SAME
            for k in kept
        ):
            kept.append(hypothesis)
    return kept


def _best_part(candidate: PeriodCandidate) -> tuple[int, int]:
    """Return the first cell to examine, and one past the last."""
    values, lag, span = candidate.level.values, round(candidate.period), int(_EXAMINED_CYCLES * candidate.period)
    if values.shape[1] <= span:
        return 0, values.shape[1]
    product = np.einsum("mn,mn->n", values[:, :-lag], values[:, lag:])
    sums = np.concatenate([[0.0], np.cumsum(product)])
    inside = min(span - lag, product.size)
    first = int(np.argmax(sums[inside:] - sums[:-inside]))
    return first, first + span
