"""The default detector: from remembered ticks to epochs.

Idle gaps are removed (``idle_gaps``), candidates matched (``candidates``, ``template_matching``), hypotheses judged
(``features``, ``scorer``), and the epochs of the likeliest one placed (``boundaries``, ``segments``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from gpusonde.epoch_detect.cycles.boundaries import Epochs, move_to_changes, place_epochs
from gpusonde.epoch_detect.cycles.candidates import (
    CycleHypothesis,
    find_candidates,
    keep_distinct,
    match_candidates,
    match_whole,
)
from gpusonde.epoch_detect.cycles.deviations import find_deviations
from gpusonde.epoch_detect.cycles.events import Load, Reading, scale_load
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
from gpusonde.epoch_detect.cycles.roles import NamedLevel, Settled, Told, describe_roles, name_levels, settle
from gpusonde.epoch_detect.cycles.scorer import Scorer
from gpusonde.epoch_detect.cycles.segments import Pattern, add_other_periods, find_other_periods
from gpusonde.epoch_detect.cycles.signal import scale_signal
from gpusonde.epoch_detect.cycles.template_matching import TemplateMatch, match_template
from gpusonde.epoch_detect.cycles.tree import Level, find_levels, judge_levels, level_of, nest, place_level
from gpusonde.epoch_detect.result import Cycle, EpochDetection, Hypothesis, Verdict
from gpusonde.epoch_detect.ticks import LEAST_TICKS, Ticks, active_range, active_ticks, fastest_first
from gpusonde.telemetry import FloatArray

SHORT_CYCLE_TICKS = 20  # below, an iteration and an epoch look the same
_LEAST_CONFIDENCE = 0.40
_LEAST_CONFIDENCE_OF_FEW = 0.35  # of two or three cycles, which the scorer hardly ever sees where there are none
_FEW_CYCLES = 3
_LEAST_CYCLES = 2
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
_NOTHING_TOLD = Told()
_LIKELIER = 0.15  # by how much another level must be likelier than that of the template matching to be the best guess
_LEAST_GUESS = 0.65  # of a level where the template matching finds none
_TOLD = 0.98  # confidence of what follows from what was told
_IDLE = 2  # percentile of the values of all ticks
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
        if self.epochs.regular.sum() < _LEAST_CYCLES:
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


def analyse(
    ticks: Ticks,
    *,
    devices: Mapping[str, Ticks] = MappingProxyType({}),
    ended: bool = True,
    told: Told = _NOTHING_TOLD,
    scorer: Scorer | None = None,
) -> EpochDetection:
    """Find the cycles and the epochs in ticks; times are seconds on the ticks' own axis.

    Args and returns are those of :func:`analyse_and_cache`, without the match to cache.
    """
    return analyse_and_cache(ticks, devices=devices, ended=ended, told=told, scorer=scorer)[0]


def analyse_and_cache(
    ticks: Ticks,
    *,
    devices: Mapping[str, Ticks] = MappingProxyType({}),
    ended: bool = True,
    told: Told = _NOTHING_TOLD,
    scorer: Scorer | None = None,
) -> tuple[EpochDetection, CachedMatch | None]:
    """Find the cycles and the epochs in ticks; times are seconds on the ticks' own axis.

    Args:
        ticks: Any number of ticks, idle around the activity included; of a job on several GPUs their mean.
        devices: The ticks of each GPU of such a job by its name, on the same axis.
        ended: Whether the run is over; while it is not, the end of the ticks does not end an epoch.
        told: What is known of the job; it refutes levels before one is chosen.
        scorer: Judges the hypotheses; None for the shipped one.

    Returns:
        The detection, ``none`` with the reason where there is nothing to find; and the match that
        :func:`extend_match` goes on from, if epochs were found.
    """
    activity = find_activity(ticks)
    if isinstance(activity, str):
        return EpochDetection(Verdict.NONE, activity, metrics=ticks.names), None
    found = find_hypotheses(activity, ended=ended)
    if isinstance(found, str):
        detection, cached = EpochDetection(Verdict.NONE, found, metrics=ticks.names), None
        templates: list[Reading] = []
    else:
        detection, cached, templates = _choose_epochs(found, ticks.names, scorer, ended=ended)
    job = scale_load(activity.active, activity.idle)
    loads = {} if job is None else _device_loads(devices, activity, job)
    named = [] if job is None else _find_levels(job, list(loads.values()), templates)
    settled = settle(named, told, ended=ended)
    cycles = nest(level.cycle for level in settled.levels)
    likeliest = level_of(detection.period_s, cycles)
    level = choose_level(settled, likeliest if detection.verdict != Verdict.NONE else None)
    if level is None and likeliest in settled.refuted:
        detection = replace(detection, verdict=Verdict.NONE, reason="what was told refutes every cycle as the epoch")
        cached = None
    elif level is not None and (level != likeliest or detection.verdict == Verdict.NONE):
        detection, cached = _place_level(detection, cycles[level], activity, found, ended=ended), None
    if level is not None:
        detection = replace(detection, confidence=_TOLD if level == settled.epoch else settled.levels[level].guess)
    compared_s = cycles[level].period_s if level is not None else max((c.period_s for c in cycles), default=math.nan)
    return replace(
        detection,
        cycles=tuple(replace(c, starts_s=activity.time_map.restore(c.starts_s)) for c in cycles),
        level=level,
        deviations=find_deviations(list(devices), list(loads.values()), compared_s),
        warnings=(*detection.warnings, *settled.warnings),
    ), cached


def choose_level(settled: Settled, likeliest: int | None) -> int | None:
    """Choose the level that is the best guess of the epoch: that of the template matching unless something refutes it.

    Args:
        settled: The levels.
        likeliest: That of the template matching; None if it gives none.
    """
    if settled.epoch is not None:
        return settled.epoch
    guess = np.array([level.guess for level in settled.levels])
    guess[list(settled.refuted)] = 0.0
    best = int(np.argmax(guess)) if guess.size else None
    if best is None or guess[best] == 0:
        return None
    if likeliest is None or likeliest in settled.refuted:
        return best if guess[best] >= _LEAST_GUESS else None
    return best if guess[best] >= guess[likeliest] + _LIKELIER else likeliest


def _find_levels(job: Load, devices: Sequence[Load], templates: list[Reading]) -> list[NamedLevel]:
    """Find the levels of the tree of cycles, shortest first, in seconds of the activity."""
    working = [device for device in devices if device.values.any()]
    judged = judge_levels(find_levels(job, working or [job], templates))
    judged.sort(key=lambda found: found.level.period_s)
    placed = [replace(place_level(j.level, job), confidence=j.confidence) for j in judged]
    return name_levels(describe_roles(job, judged), placed)


def _device_loads(devices: Mapping[str, Ticks], activity: Activity, job: Load) -> dict[str, Load]:
    """Put what each GPU of a job does on the grid of the job; one that does nothing stays there with nothing."""
    grid_s = activity.time_map.restore(job.to_s(np.arange(len(job))))
    loads = {}
    for name, ticks in devices.items():
        first, stop = active_range(ticks)
        load = scale_load(ticks.slice(first, stop), measure_idle(ticks)) if stop - first >= LEAST_TICKS else None
        if load is None:
            loads[name] = replace(job, values=np.zeros_like(job.values), traffic=np.zeros_like(job.traffic))
        else:
            own_s = ticks.time_us[first] * 1e-6 + load.start_s + load.step_s * np.arange(len(load))
            loads[name] = load.moved_to(job, own_s, grid_s)
    return loads


def _place_level(
    detection: EpochDetection, cycle: Cycle, activity: Activity, found: CycleHypotheses | str, *, ended: bool
) -> EpochDetection:
    """Tell the epochs of another level than the likeliest hypothesis has."""
    near = [] if isinstance(found, str) else [
        h for h in found.hypotheses if abs(np.log(h.usual_s / cycle.period_s)) < _SAME
    ]  # fmt: skip
    if near and not isinstance(found, str):
        chosen = max(near, key=lambda h: h.score)
        _, epochs = place_hypothesis(found, chosen, ended=ended)
        if epochs.regular.sum() >= _LEAST_CYCLES:
            placed = _detection(
                activity.active.names, activity.time_map, chosen.preprocessed.signal.step_s, epochs, cycle.confidence,
                detection.hypotheses,
            )  # fmt: skip
            if level_of(placed.period_s, [cycle]) is not None:
                return placed
    if cycle.starts_s.size < _LEAST_CYCLES + 1:
        return replace(detection, verdict=Verdict.NONE, reason="no two whole epochs lie inside the activity")
    starts = activity.time_map.restore(cycle.starts_s)
    return replace(
        detection, verdict=Verdict.EPOCHS, reason=f"{starts.size - 1} cycles of {cycle.period_s:.4g} s repeat",
        period_s=cycle.period_s, period_low_s=cycle.period_low_s, period_high_s=cycle.period_high_s,
        confidence=cycle.confidence, epoch_starts_s=starts[:-1], epoch_ends_s=starts[1:],
    )  # fmt: skip


def find_readings(ticks: Ticks, devices: Mapping[str, Ticks], *, ended: bool = True) -> tuple[Load, list[Level]] | None:
    """Find every level that some reading speaks for, to fit what judges them; None where there is nothing to read."""
    activity = find_activity(ticks)
    if isinstance(activity, str) or (job := scale_load(activity.active, activity.idle)) is None:
        return None
    found = find_hypotheses(activity, ended=ended)
    templates = [] if isinstance(found, str) else _choose_epochs(found, ticks.names, None, ended=ended)[2]
    loads = [load for load in _device_loads(devices, activity, job).values() if load.values.any()]
    return job, find_levels(job, loads or [job], templates)


def _choose_epochs(
    found: CycleHypotheses, names: tuple[str, ...], scorer: Scorer | None, *, ended: bool
) -> tuple[EpochDetection, CachedMatch | None, list[Reading]]:
    """Return the epochs of the likeliest hypothesis, its match to cache, and the likeliest ones as readings."""
    probabilities = (scorer or Scorer.shipped()).probability(found.features)
    order = np.argsort(-probabilities, kind="stable")
    hypotheses = _hypotheses([(found.hypotheses[i], float(probabilities[i])) for i in order])
    choice = choose(found, probabilities, ended=ended)
    chosen, confidence = choice.hypothesis, choice.probability
    templates = _to_readings([(chosen, confidence), *((found.hypotheses[i], float(probabilities[i])) for i in order)])
    nothing = EpochDetection(Verdict.NONE, "", metrics=names, hypotheses=hypotheses)
    if confidence < (_LEAST_CONFIDENCE_OF_FEW if chosen.match.cycles <= _FEW_CYCLES else _LEAST_CONFIDENCE):
        reason = f"the likeliest cycle, {chosen.usual_s:.4g} s, is an epoch with a probability of {confidence:.2f} only"
        return replace(nothing, reason=reason), None, templates
    signal, epochs = chosen.preprocessed.signal, choice.epochs
    if epochs.regular.sum() < _LEAST_CYCLES:
        return replace(nothing, reason="no two whole epochs lie inside the activity"), None, templates
    cached = CachedMatch(
        chosen.preprocessed.gap_removal, signal.rows,
        replace(Pattern.from_hypothesis(chosen), template=choice.match.template),
        find_other_periods(chosen, found.hypotheses), choice.match.agreement, confidence,
    )  # fmt: skip
    detection = _detection(found.active.names, found.time_map, signal.step_s, epochs, confidence, hypotheses)
    return detection, cached, templates


def _to_readings(ranked: list[tuple[CycleHypothesis, float]]) -> list[Reading]:
    """Return the likeliest hypotheses of different length as readings of levels."""
    kept: list[Reading] = []
    for hypothesis, probability in ranked:
        if all(abs(np.log(hypothesis.usual_s / k.period_s)) > _SAME for k in kept):
            starts, count = hypothesis.starts_s, hypothesis.match.cycles
            kept.append(
                Reading(
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
    among = remove_gaps(active, cached.gap_removal)
    if among is None or among.signal.rows != cached.rows:
        return None
    view = cached.pattern.apply(among.signal)
    if view is None:
        return None
    match = match_template(view.values, float(cached.pattern.template.shape[1]), cached.pattern.template)
    if match is None or match.agreement < _HOLDING * cached.agreement:
        return None
    epochs = _place(active, among, match, view.step_s, cached.others, ended=False)
    if epochs.regular.sum() < _LEAST_CYCLES:
        return None
    return _detection(active.names, time_map, among.signal.step_s, epochs, cached.confidence, hypotheses)


def _detection(
    names: tuple[str, ...],
    time_map: TimeMap,
    step_s: float,
    epochs: Epochs,
    confidence: float,
    hypotheses: tuple[Hypothesis, ...],
) -> EpochDetection:
    period, low, high = mean_period(epochs, step_s)
    short = period < SHORT_CYCLE_TICKS * step_s
    cycles = f"{epochs.starts_s.size} cycles of {period:.4g} s"
    return EpochDetection(
        verdict=Verdict.SHORT_CYCLE if short else Verdict.EPOCHS,
        reason=f"{cycles}, under {SHORT_CYCLE_TICKS} ticks: iteration or epoch" if short else f"{cycles} repeat",
        period_s=period,
        period_low_s=low,
        period_high_s=high,
        confidence=confidence,
        epoch_starts_s=time_map.restore(epochs.starts_s),
        epoch_ends_s=time_map.restore(epochs.ends_s),
        metrics=names,
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
    ticks = Ticks(ticks.time_us[has_value], ticks.values[:, has_value], ticks.names)
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


def find_hypotheses(activity: Activity, *, ended: bool = True) -> CycleHypotheses | str:
    """Find every hypothesis with its features; or say why there is none.

    Args:
        activity: Where the GPU works.
        ended: Whether the run is over.
    """
    active, time_map = activity.active, activity.time_map
    found = list(preprocess(active))
    if not found:
        return "every metric is constant while the GPU works"
    every = match_candidates([(candidate, view) for view in found for candidate in find_candidates(view.signal)])
    if not every:
        return "nothing repeats"
    kept = keep_distinct(every)
    return CycleHypotheses(active, time_map, kept, feature_table(kept, every, ended=ended))


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
    regular[0] &= regular[1:].sum() < _LEAST_CYCLES
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
