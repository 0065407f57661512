"""Epochs by template matching: from remembered ticks to the likeliest cycle, and its epochs.

Idle gaps are removed (``idle_gaps``), candidates matched (``candidates``, ``template_matching``), hypotheses judged
(``features``, ``scorer``), and the epochs of the likeliest one placed (``boundaries``, ``segments``).
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, replace

import numpy as np

from gpusonde.epoch_detect.cycles.boundaries import Epochs, move_to_changes, place_epochs
from gpusonde.epoch_detect.cycles.candidates import (
    EVERYTHING,
    CycleHypothesis,
    PeriodCandidate,
    Scope,
    find_candidates,
    keep_distinct,
    match_candidates,
    match_whole,
)
from gpusonde.epoch_detect.cycles.events import CycleReading
from gpusonde.epoch_detect.cycles.features import feature_table
from gpusonde.epoch_detect.cycles.holes import TimeMap, drop_unseen_epochs, shorten_holes
from gpusonde.epoch_detect.cycles.idle_gaps import (
    IDLE_LOAD,
    PreprocessedView,
    join_around_idle,
    measure_load,
    preprocess,
    remove_gaps,
)
from gpusonde.epoch_detect.cycles.scorer import Scorer
from gpusonde.epoch_detect.cycles.segments import Pattern, add_other_periods, find_other_periods
from gpusonde.epoch_detect.cycles.signal import median, scale_signal
from gpusonde.epoch_detect.cycles.template_matching import TemplateMatch, match_template
from gpusonde.epoch_detect.result import EpochDetection, Hypothesis, Verdict
from gpusonde.epoch_detect.ticks import (
    LEAST_TICKS,
    Ticks,
    active_range,
    active_ticks,
    fastest_first,
    measure_closest_step,
)
from gpusonde.telemetry import FloatArray

SHORT_CYCLE_TICKS = 20  # below, an iteration and an epoch look the same
_LEAST_CONFIDENCE = 0.40
_LEAST_CONFIDENCE_OF_FEW = 0.35  # of two or three cycles, which the scorer hardly ever sees where there are none
_FEW_CYCLES = 3
LEAST_CYCLES = 2
NO_TWO_WHOLE = "no two whole epochs lie inside the activity"
_REPORTED_HYPOTHESES = 3
_TEMPLATES = 6  # hypotheses that are readings of levels
_SAME = 0.06  # hypotheses this close in length are one hypothesis
_LEAST_BUSY = 0.2  # of the ticks of the activity; training with long pauses works for a half or more
_WARM_UP = 0.5  # periods that warm-up before the first level change may take
_LONG_WARM_UP = 1.25  # the same where it is little work
_WARM_UP_BUSY = 0.7  # share of the ticks in it at which the GPU must work
_LEAST_OF_SEGMENT = 3  # epochs before and after a change of their duration
_OTHER_SEGMENT = 0.2  # of the logarithm of the duration
_UNEXPLAINED = 0.25  # share of the variance of the durations that a single change may leave
_AS_LIKELY = 0.9  # of the probability of the likeliest hypothesis
_AS_LIKELY_READINGS = 3
_DOUBTFUL = 0.03  # half the interval of the mean duration, as a ratio
_MUCH_LESS = 0.33
_IDLE = 2  # percentile of the values of all ticks
_SAME_BOUNDARY = 0.1  # periods by which a boundary may differ that two looks found
_IRREGULAR = 0.5  # of the logarithm of the duration, beside the usual one
_OTHER_END = 0.06  # of the logarithm of the duration, by which the last epochs of a run that goes on may be off
_OFF = 5.0  # times as much as the others may they be
_HOLDING = 0.85  # share of their former agreement that the cycles must keep for a known cycle to hold


@dataclass(frozen=True)
class CycleHypotheses:
    """All hypotheses of the active part of some ticks.

    Attributes:
        active: The ticks from the first to the last at which the GPU was active, long holes shortened.
        time_map: From their time to that of the ticks.
        hypotheses: The hypotheses of distinct periods, with and without idle gaps.
        features: Shape (hypotheses, features).
    """

    active: Ticks
    time_map: TimeMap
    hypotheses: list[CycleHypothesis]
    features: FloatArray


@dataclass(frozen=True)
class SelectedHypothesis:
    """The hypothesis that is the answer.

    Attributes:
        hypothesis: One of the hypotheses.
        probability: That it is right.
        match: Its cycles, in cells of the hypothesis's level.
        epochs: They fill all of the activity.
    """

    hypothesis: CycleHypothesis
    probability: float
    match: TemplateMatch
    epochs: Epochs

    def relative_half_width(self) -> float:
        """Return half the interval of the mean duration, as a ratio; infinite where there is none."""
        if self.epochs.regular.sum() < LEAST_CYCLES:
            return math.inf
        mean, low, high = mean_period(self.epochs, self.hypothesis.preprocessed.signal.step_s)
        return 0.5 * (high - low) / mean


@dataclass(frozen=True)
class CachedMatch:
    """The match of a hypothesis, to go on with when more ticks have come.

    Attributes:
        gap_removal: Which idle gaps were removed where the cycle was found; see :class:`PreprocessedView`.
        rows: The metrics of the patterns.
        pattern: The cycle.
        others: The same cycle with other periods.
        agreement: How alike the cycles were.
        confidence: Of the detection.
    """

    gap_removal: int
    rows: tuple[int, ...]
    pattern: Pattern
    others: tuple[Pattern, ...]
    agreement: float
    confidence: float


def choose_epochs(
    found: CycleHypotheses, names: tuple[str, ...], scorer: Scorer | None, *, ended: bool
) -> Generator[None, None, tuple[EpochDetection, CachedMatch | None, list[CycleReading]]]:
    """Tell the epochs of the likeliest hypothesis, its match to cache, and the likeliest ones as readings of levels."""
    probabilities = (scorer or Scorer.shipped()).probability(found.features)
    yield
    order = np.argsort(-probabilities, kind="stable")
    hypotheses = _hypotheses([(found.hypotheses[i], float(probabilities[i])) for i in order])
    nothing = EpochDetection(Verdict.NONE, "", metrics=names, hypotheses=hypotheses)
    chosen, confidence = found.hypotheses[order[0]], float(probabilities[order[0]])
    if confidence >= min(_LEAST_CONFIDENCE, _LEAST_CONFIDENCE_OF_FEW):
        choice = choose(found, probabilities, ended=ended)
        yield
        chosen, confidence = choice.hypothesis, choice.probability
    templates = _to_readings([(chosen, confidence), *((found.hypotheses[i], float(probabilities[i])) for i in order)])
    if confidence < (_LEAST_CONFIDENCE_OF_FEW if chosen.match.cycles <= _FEW_CYCLES else _LEAST_CONFIDENCE):
        reason = f"the likeliest cycle, {chosen.usual_s:.4g} s, is an epoch with a probability of {confidence:.2f} only"
        return replace(nothing, reason=reason), None, templates
    signal, epochs = chosen.preprocessed.signal, choice.epochs
    if epochs.regular.sum() < LEAST_CYCLES:
        return replace(nothing, reason=NO_TWO_WHOLE), None, templates
    cached = CachedMatch(
        chosen.preprocessed.gap_removal, signal.rows,
        replace(Pattern.from_hypothesis(chosen), template=choice.match.template),
        find_other_periods(chosen, found.hypotheses), choice.match.agreement, confidence,
    )  # fmt: skip
    detection = tell_epochs(found.active, found.time_map, signal.step_s, epochs, confidence, hypotheses)
    return detection, cached, templates


def _to_readings(ranked: list[tuple[CycleHypothesis, float]]) -> list[CycleReading]:
    """Return the likeliest hypotheses of different length as readings of levels."""
    kept: list[CycleReading] = []
    for hypothesis, probability in ranked:
        if all(abs(np.log(hypothesis.usual_s / k.period_s)) > _SAME for k in kept):
            starts, count = hypothesis.starts_s, hypothesis.match.cycles
            kept.append(
                CycleReading(
                    "template", hypothesis.usual_s, probability, count, np.empty((0, 2)), starts,
                    spread=hypothesis.match.scatter, score=hypothesis.score,
                )
            )  # fmt: skip
        if len(kept) == _TEMPLATES:
            break
    return kept


def _hypotheses(ranked: list[tuple[CycleHypothesis, float]]) -> tuple[Hypothesis, ...]:
    """Return the likeliest hypotheses of different length."""
    kept: list[Hypothesis] = []
    for hypothesis, probability in ranked:
        period_s = hypothesis.usual_s if hypothesis.preprocessed.gap_removal else hypothesis.period_s
        if all(abs(period_s / k.period_s - 1) > _SAME for k in kept):
            kept.append(Hypothesis(period_s, hypothesis.match.cycles, probability))
        if len(kept) == _REPORTED_HYPOTHESES:
            break
    return tuple(kept)


def choose(found: CycleHypotheses, probabilities: FloatArray, *, ended: bool) -> SelectedHypothesis:
    """Take the likeliest hypothesis; or one about as likely whose epochs are of one length, where its are not at all.

    Args:
        found: The hypotheses.
        probabilities: Shape (hypotheses,).
        ended: Whether the run is over.
    """
    order = np.argsort(-probabilities, kind="stable")[:_AS_LIKELY_READINGS]
    choices = (
        SelectedHypothesis(
            found.hypotheses[i], float(probabilities[i]), *place_hypothesis(found, found.hypotheses[i], ended=ended)
        )
        for i in order
        if probabilities[i] >= _AS_LIKELY * probabilities[order[0]]
    )
    likeliest = next(choices)
    if (half_width := likeliest.relative_half_width()) <= _DOUBTFUL:
        return likeliest
    return next((choice for choice in choices if choice.relative_half_width() < _MUCH_LESS * half_width), likeliest)


def place_hypothesis(found: CycleHypotheses, chosen: CycleHypothesis, *, ended: bool) -> tuple[TemplateMatch, Epochs]:
    """Lay the epochs of one hypothesis through all of the activity.

    Args:
        found: The hypotheses.
        chosen: One of them.
        ended: Whether the run is over.

    Returns:
        The cycles, in cells of the hypothesis's level, and the epochs.
    """
    match = match_whole(chosen)
    others = find_other_periods(chosen, found.hypotheses)
    return match, _place(found.active, chosen.preprocessed, match, chosen.candidate.level.step_s, others, ended)


def extend_match(ticks: Ticks, cached: CachedMatch, hypotheses: tuple[Hypothesis, ...]) -> EpochDetection | None:
    """Go on with a known cycle through more ticks of the same run; far cheaper than to analyse them afresh.

    Args:
        ticks: The ticks so far, of a run that goes on.
        cached: What :func:`analyse_and_cache` gave.
        hypotheses: To repeat in the answer.

    Returns:
        The detection; None if the cycle does not hold any more, so that a fresh analysis is due.
    """
    first, stop = active_range(ticks)
    if stop - first < LEAST_TICKS:
        return None
    active, time_map = shorten_holes(ticks.slice(first, stop))
    # Where there are no gaps to remove, the activity as it is is the same.
    among = remove_gaps(active, cached.gap_removal) or remove_gaps(active, 0)
    if among is None:
        return None
    # A metric that hardly varies is in one part of a run and not in another.
    common = tuple(row for row in cached.rows if row in among.signal.rows)
    if not common:
        return None
    among = replace(among, signal=among.signal.choose(common))
    pattern, *others = (
        each.choose([cached.rows.index(row) for row in common]).coarsened(among.signal.step_s)
        for each in (cached.pattern, *cached.others)
    )
    view = pattern.apply(among.signal)
    if view is None:
        return None
    match = match_template(view.values, float(pattern.template.shape[1]), pattern.template)
    if match is None or match.agreement < _HOLDING * cached.agreement:
        return None
    epochs = _place(active, among, match, view.step_s, tuple(others), ended=False)
    if epochs.regular.sum() < LEAST_CYCLES:
        return None
    return tell_epochs(active, time_map, among.signal.step_s, epochs, cached.confidence, hypotheses)


def append_epochs(known: EpochDetection, latest: EpochDetection, step_s: float) -> EpochDetection | None:
    """Add the latest epochs of a run to those before them, where the two overlap.

    Args:
        known: What was found before.
        latest: What was found in the last part of the run, on the same time axis.
        step_s: Usual distance of ticks.

    Returns:
        The detection; None if the two do not fit together.
    """
    distance = np.abs(known.epoch_starts_s[:, None] - latest.epoch_starts_s)
    # Both are sure of what lies in the middle of what they saw: the last common boundary but one.
    common = np.argwhere(distance <= _SAME_BOUNDARY * known.period_s)[:-1]
    if not common.size:
        return None
    old, new = common[-1]
    # Of level changes about as large a few epochs may have another one; those before them decide where an epoch begins.
    off_s = median(known.epoch_starts_s[common[:, 0]] - latest.epoch_starts_s[common[:, 1]])
    starts = np.concatenate([known.epoch_starts_s[:old], latest.epoch_starts_s[new:] + off_s])
    ends = np.concatenate([known.epoch_ends_s[:old], latest.epoch_ends_s[new:] + off_s])
    ends[:-1] = np.minimum(ends[:-1], starts[1:])
    lengths = ends - starts
    regular = np.abs(np.log(lengths / median(lengths))) < _IRREGULAR
    regular[0] &= regular[1:].sum() < LEAST_CYCLES
    if regular.sum() < LEAST_CYCLES:
        return None
    period, low, high = mean_period(Epochs(starts, ends, regular), step_s)
    return replace(
        latest,
        verdict=known.verdict,
        reason=_count_cycles(starts.size, period) + " repeat",
        period_s=period,
        period_low_s=low,
        period_high_s=high,
        epoch_starts_s=starts,
        epoch_ends_s=ends,
    )


def without_doubtful_end(found: EpochDetection) -> EpochDetection:
    """Leave out the last epochs of a run that goes on while they are few and of another length than those before.

    What cuts the end of the run off, or fills it with something shorter, the next look knows better.
    """
    lengths = found.epoch_ends_s - found.epoch_starts_s
    if found.verdict != Verdict.EPOCHS or lengths.size <= _LEAST_OF_SEGMENT:
        return found
    off = np.abs(np.log(lengths / median(lengths)))
    other = off > max(_OTHER_END, _OFF * median(off))
    last = int(np.argmin(other[::-1]))  # how many of them there are at the end
    if other.all() or not 0 < last < _LEAST_OF_SEGMENT:
        return found
    whole = slice(0, lengths.size - last)
    like = lengths[whole][off[whole] < _IRREGULAR]
    moved = float(like.mean()) - found.period_s if off[-1] < _IRREGULAR and like.size == lengths.size - last else 0.0
    return replace(
        found,
        reason=_count_cycles(lengths.size - last, found.period_s + moved) + " repeat",
        period_s=found.period_s + moved,
        period_low_s=found.period_low_s + moved,
        period_high_s=found.period_high_s + moved,
        epoch_starts_s=found.epoch_starts_s[whole],
        epoch_ends_s=found.epoch_ends_s[whole],
    )


def _count_cycles(cycles: int, period_s: float) -> str:
    return f"{cycles} cycles of {period_s:.4g} s"


def tell_epochs(
    active: Ticks,
    time_map: TimeMap,
    step_s: float,
    epochs: Epochs,
    confidence: float,
    hypotheses: tuple[Hypothesis, ...],
) -> EpochDetection:
    """Put placed epochs in the words of the answer."""
    period, low, high = mean_period(epochs, step_s)
    # What an agent read often enough once, it may read less often since: the iteration would have been seen then.
    tick_s = measure_closest_step(time_map.short_s, step_s) / active.merged
    short = period < SHORT_CYCLE_TICKS * tick_s
    cycles = _count_cycles(epochs.starts_s.size, period)
    return EpochDetection(
        verdict=Verdict.SHORT_CYCLE if short else Verdict.EPOCHS,
        reason=f"{cycles}, under {SHORT_CYCLE_TICKS} ticks: iteration or epoch" if short else f"{cycles} repeat",
        period_s=period,
        period_low_s=low,
        period_high_s=high,
        confidence=confidence,
        epoch_starts_s=time_map.restore(epochs.starts_s),
        epoch_ends_s=time_map.restore(epochs.ends_s),
        metrics=active.names,
        hypotheses=hypotheses,
    )


@dataclass(frozen=True)
class Activity:
    """The active part of some ticks.

    Attributes:
        active: The ticks from the first to the last at which the GPU was active, long holes shortened.
        time_map: From their time to that of the ticks.
        idle: Shape (metrics,), low values of all ticks: those of an idle GPU if there was idle.
    """

    active: Ticks
    time_map: TimeMap
    idle: FloatArray


def find_activity(ticks: Ticks) -> Activity | str:
    """Cut ticks to where the GPU works; or say why there is nothing to look at."""
    if len(ticks) < LEAST_TICKS:
        return f"{len(ticks)} ticks; at least {LEAST_TICKS} are needed"
    has_value = np.isfinite(ticks.values).any(axis=0)
    if not has_value.any():
        return "no metric has a value; check that the GPU supports them"
    ticks = Ticks(ticks.time_us[has_value], ticks.values[:, has_value], ticks.names, ticks.merged)
    first, stop = active_range(ticks)
    if stop - first < LEAST_TICKS:
        return f"the GPU works for {stop - first} ticks only; at least {LEAST_TICKS} are needed"
    active, time_map = shorten_holes(ticks.slice(first, stop))
    busy = float(active_ticks(active).mean())
    if busy < _LEAST_BUSY:
        return f"the GPU works for {100 * busy:.0f} % of the time only, more like a scheduled job than like training"
    return Activity(active, time_map, measure_idle(ticks))


def measure_idle(ticks: Ticks) -> FloatArray:
    """Return a low value of each metric, shape (metrics,): that of an idle GPU, if it was idle."""
    finite = [row[np.isfinite(row)] for row in ticks.values]
    return np.array([float(np.percentile(row, _IDLE)) if row.size else np.nan for row in finite])


def find_hypotheses(
    activity: Activity, *, ended: bool = True, scope: Scope = EVERYTHING
) -> Generator[None, None, CycleHypotheses | str]:
    """Find every hypothesis with its features, with a pause after each part of the work; or say why there is none.

    Args:
        activity: Where the GPU works.
        ended: Whether the run is over.
        scope: Which periods to look for.
    """
    active, time_map = activity.active, activity.time_map
    candidates: list[tuple[PeriodCandidate, PreprocessedView]] = []
    varies = False
    for view in preprocess(active):
        varies = True
        yield
        candidates += [(candidate, view) for candidate in find_candidates(view.signal, scope)]
        yield
    if not varies:
        return "every metric is constant while the GPU works"
    every = yield from match_candidates(candidates)
    if not every:
        return "nothing repeats"
    kept = keep_distinct(every)
    yield
    features = yield from feature_table(kept, every, ended=ended)
    return CycleHypotheses(active, time_map, kept, features)


def _place(
    active: Ticks,
    among: PreprocessedView,
    match: TemplateMatch,
    step_s: float,
    others: tuple[Pattern, ...],
    ended: bool,
) -> Epochs:
    rows = fastest_first([active.names[i] for i in among.signal.rows])
    placed = place_epochs(among.signal, match, step_s, rows, ended=ended)
    placed = add_other_periods(among.signal, placed, others, rows, ended=ended)
    whole = among.restore_gaps(placed)
    if among.gap_removal and (signal := scale_signal(active)) is not None:
        whole = move_to_changes(signal, whole, fastest_first([active.names[i] for i in signal.rows]))
    seen = join_around_idle(active, drop_unseen_epochs(whole, active.time_us))
    return _with_warm_up(active, seen, match.period * step_s)


def _with_warm_up(active: Ticks, epochs: Epochs, period_s: float) -> Epochs:
    """Let the first epoch begin with the activity, if the GPU is busy from there to the first level change.

    That is compiling and loading, which is part of the first epoch; it may take as long as an epoch where it is clearly
    less work. Hence the length of the first epoch says nothing about the others.
    """
    if not epochs.starts_s.size or not 0 < epochs.starts_s[0] <= _LONG_WARM_UP * period_s:
        return epochs
    before = (active.time_us - active.time_us[0]) * 1e-6 < epochs.starts_s[0]
    if active_ticks(active)[before].mean() < _WARM_UP_BUSY:
        return epochs
    if epochs.starts_s[0] > _WARM_UP * period_s and np.median(measure_load(active)[before]) > IDLE_LOAD:
        return epochs
    regular = epochs.regular.copy()
    regular[0] &= regular[1:].sum() < LEAST_CYCLES
    return replace(epochs, starts_s=np.concatenate([[0.0], epochs.starts_s[1:]]), regular=regular)


def mean_period(epochs: Epochs, step_s: float) -> tuple[float, float, float]:
    """Average the regular epochs: mean duration and its 95 % interval (normal), at least the resolution of the ticks.

    If they take clearly longer from some epoch on, or shorter, then of the longer one of the two stretches.
    """
    lengths = _longer_segment((epochs.ends_s - epochs.starts_s)[epochs.regular])
    mean = float(lengths.mean())
    half = float(1.96 * lengths.std(ddof=1) / np.sqrt(lengths.size) + step_s / lengths.size)
    return mean, mean - half, mean + half


def _longer_segment(lengths: FloatArray) -> FloatArray:
    n = lengths.size
    if n < 2 * _LEAST_OF_SEGMENT:
        return lengths
    sums, squares = np.cumsum(lengths), np.cumsum(lengths**2)
    first = np.arange(_LEAST_OF_SEGMENT, n - _LEAST_OF_SEGMENT + 1)
    before, after = sums[first - 1] / first, (sums[-1] - sums[first - 1]) / (n - first)
    within = squares[-1] - first * before**2 - (n - first) * after**2
    best = int(np.argmin(within))
    total = float(squares[-1] - sums[-1] ** 2 / n)
    if within[best] > _UNEXPLAINED * total or abs(np.log(after[best] / before[best])) < _OTHER_SEGMENT:
        return lengths
    at = int(first[best])
    return lengths[:at] if at > n - at else lengths[at:]
