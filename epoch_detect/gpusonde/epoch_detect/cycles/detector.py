"""The default detector: from remembered ticks to epochs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from gpusonde.epoch_detect.cycles.boundaries import Epochs, moved_to_changes, place_epochs
from gpusonde.epoch_detect.cycles.candidates import Reading, candidates, distinct, read, read_whole
from gpusonde.epoch_detect.cycles.features import feature_table
from gpusonde.epoch_detect.cycles.holes import Clock, seen_epochs, with_short_holes
from gpusonde.epoch_detect.cycles.pauses import LITTLE_WORK, Strand, strand, strands, work
from gpusonde.epoch_detect.cycles.scorer import Scorer
from gpusonde.epoch_detect.cycles.segments import Pattern, filled, other_tempos
from gpusonde.epoch_detect.cycles.signal import scaled_signal
from gpusonde.epoch_detect.cycles.template_matching import Lock, lock
from gpusonde.epoch_detect.result import EpochDetection, Hypothesis, Verdict
from gpusonde.epoch_detect.ticks import LEAST_TICKS, Ticks, active_range, busy_ticks, fastest_first
from gpusonde.telemetry import FloatArray

SHORT_CYCLE_TICKS = 20  # below, an iteration and an epoch look the same
_LEAST_CONFIDENCE = 0.40
_LEAST_CONFIDENCE_OF_FEW = 0.35  # of two or three cycles, which the scorer hardly ever sees where there are none
_FEW_CYCLES = 3
_LEAST_CYCLES = 2
_REPORTED_HYPOTHESES = 3
_SAME = 0.06  # readings this close in length are one hypothesis
_LEAST_BUSY = 0.2  # of the ticks of the activity; training with long pauses works for a half or more
_WARM_UP = 0.5  # periods that warm-up before the first level change may take
_LONG_WARM_UP = 1.25  # the same where it is little work
_WARM_UP_BUSY = 0.7  # share of the ticks in it at which the GPU must work
_LEAST_OF_REGIME = 3  # epochs before and after a change of their duration
_OTHER_REGIME = 0.2  # of the logarithm of the duration
_UNEXPLAINED = 0.25  # share of the variance of the durations that a single change may leave
_AS_LIKELY = 0.9  # of the probability of the likeliest reading
_AS_LIKELY_READINGS = 3
_DOUBTFUL = 0.03  # half the interval of the mean duration, as a ratio
_MUCH_LESS = 0.33
_HOLDING = 0.85  # share of their former agreement that the cycles must keep for a known cycle to hold


@dataclass(frozen=True)
class Readings:
    """All readings of the active part of some ticks.

    Attributes:
        active: The ticks from the first to the last at which the GPU worked, long holes shortened.
        clock: From their time to that of the ticks.
        readings: The readings of distinct periods, with and without pauses.
        features: Shape (readings, features).
    """

    active: Ticks
    clock: Clock
    readings: list[Reading]
    features: FloatArray


@dataclass(frozen=True)
class Choice:
    """The reading that makes the answer.

    Attributes:
        reading: One of the readings.
        probability: That it is right.
        chain: Its cycles, in cells of the reading's level.
        epochs: They fill all of the activity.
    """

    reading: Reading
    probability: float
    chain: Lock
    epochs: Epochs

    def doubt(self) -> float:
        """Half the interval of the mean duration, as a ratio; infinite where there is none."""
        if self.epochs.regular.sum() < _LEAST_CYCLES:
            return math.inf
        mean, low, high = mean_period(self.epochs, self.reading.strand.signal.step_s)
        return 0.5 * (high - low) / mean


@dataclass(frozen=True)
class Hold:
    """A reading to go on with when more ticks have come.

    Attributes:
        cut: What was left out of the strand in which the cycle was found.
        rows: The metrics of the patterns.
        pattern: The cycle.
        others: The same cycle at other tempos.
        agreement: How alike the cycles were.
        confidence: Of the detection.
    """

    cut: int
    rows: tuple[int, ...]
    pattern: Pattern
    others: tuple[Pattern, ...]
    agreement: float
    confidence: float


def analyse(ticks: Ticks, *, ended: bool = True, scorer: Scorer | None = None) -> EpochDetection:
    """Find the epochs in ticks; times are seconds on the ticks' own axis.

    Args and returns are those of :func:`analyse_and_hold`, without what to hold.
    """
    return analyse_and_hold(ticks, ended=ended, scorer=scorer)[0]


def analyse_and_hold(
    ticks: Ticks, *, ended: bool = True, scorer: Scorer | None = None
) -> tuple[EpochDetection, Hold | None]:
    """Find the epochs in ticks; times are seconds on the ticks' own axis.

    Args:
        ticks: Any number of ticks, idle around the activity included.
        ended: Whether the run is over; while it is not, the end of the ticks does not end an epoch.
        scorer: Judges the readings; None for the shipped one.

    Returns:
        The detection, ``none`` with the reason where there is nothing to find; and what :func:`extend` needs, if epochs
        were found.
    """
    found = read_all(ticks, ended=ended)
    if isinstance(found, str):
        return EpochDetection(Verdict.NONE, found, metrics=ticks.names), None
    probabilities = (scorer or Scorer.shipped()).probability(found.features)
    order = np.argsort(-probabilities, kind="stable")
    hypotheses = _hypotheses([(found.readings[i], float(probabilities[i])) for i in order])
    choice = choose(found, probabilities, ended=ended)
    chosen, confidence = choice.reading, choice.probability
    nothing = EpochDetection(Verdict.NONE, "", metrics=ticks.names, hypotheses=hypotheses)
    if confidence < (_LEAST_CONFIDENCE_OF_FEW if chosen.chain.cycles <= _FEW_CYCLES else _LEAST_CONFIDENCE):
        reason = f"the likeliest cycle, {chosen.usual_s:.4g} s, is an epoch with a probability of {confidence:.2f} only"
        return replace(nothing, reason=reason), None
    signal, epochs = chosen.strand.signal, choice.epochs
    if epochs.regular.sum() < _LEAST_CYCLES:
        return replace(nothing, reason="no two whole epochs lie inside the activity"), None
    hold = Hold(
        chosen.strand.cut, signal.rows, replace(Pattern.of(chosen), template=choice.chain.template),
        other_tempos(chosen, found.readings), choice.chain.agreement, confidence,
    )  # fmt: skip
    return _detection(found.active.names, found.clock, signal.step_s, epochs, confidence, hypotheses), hold


def _hypotheses(ranked: list[tuple[Reading, float]]) -> tuple[Hypothesis, ...]:
    """The likeliest readings of different length."""
    kept: list[Hypothesis] = []
    for reading, probability in ranked:
        period_s = reading.usual_s if reading.strand.cut else reading.period_s
        if all(abs(period_s / k.period_s - 1) > _SAME for k in kept):
            kept.append(Hypothesis(period_s, reading.chain.cycles, probability))
        if len(kept) == _REPORTED_HYPOTHESES:
            break
    return tuple(kept)


def choose(found: Readings, probabilities: FloatArray, *, ended: bool) -> Choice:
    """Take the likeliest reading; or one about as likely whose epochs are of one length, where its are not at all.

    Args:
        found: The readings.
        probabilities: Shape (readings,).
        ended: Whether the run is over.
    """
    order = np.argsort(-probabilities, kind="stable")[:_AS_LIKELY_READINGS]
    choices = (
        Choice(found.readings[i], float(probabilities[i]), *settle(found, found.readings[i], ended=ended))
        for i in order
        if probabilities[i] >= _AS_LIKELY * probabilities[order[0]]
    )
    likeliest = next(choices)
    if (doubt := likeliest.doubt()) <= _DOUBTFUL:
        return likeliest
    return next((choice for choice in choices if choice.doubt() < _MUCH_LESS * doubt), likeliest)


def settle(found: Readings, chosen: Reading, *, ended: bool) -> tuple[Lock, Epochs]:
    """Lay the epochs of one reading through all of the activity.

    Args:
        found: The readings.
        chosen: One of them.
        ended: Whether the run is over.

    Returns:
        The cycles, in cells of the reading's level, and the epochs.
    """
    chain = read_whole(chosen)
    others = other_tempos(chosen, found.readings)
    return chain, _place(found.active, chosen.strand, chain, chosen.candidate.level.step_s, others, ended)


def extend(ticks: Ticks, hold: Hold, hypotheses: tuple[Hypothesis, ...]) -> EpochDetection | None:
    """Go on with a known cycle through more ticks of the same run; far cheaper than to analyse them afresh.

    Args:
        ticks: The ticks so far, of a run that goes on.
        hold: The cycle.
        hypotheses: To repeat in the answer.

    Returns:
        The detection; None if the cycle does not hold any more, so that a fresh analysis is due.
    """
    first, stop = active_range(ticks)
    if stop - first < LEAST_TICKS:
        return None
    active, clock = with_short_holes(ticks.slice(first, stop))
    among = strand(active, hold.cut)
    if among is None or among.signal.rows != hold.rows:
        return None
    view = hold.pattern.view(among.signal)
    if view is None:
        return None
    chain = lock(view.values, float(hold.pattern.template.shape[1]), hold.pattern.template)
    if chain is None or chain.agreement < _HOLDING * hold.agreement:
        return None
    epochs = _place(active, among, chain, view.step_s, hold.others, ended=False)
    if epochs.regular.sum() < _LEAST_CYCLES:
        return None
    return _detection(active.names, clock, among.signal.step_s, epochs, hold.confidence, hypotheses)


def _detection(
    names: tuple[str, ...],
    clock: Clock,
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
        epoch_starts_s=clock.real(epochs.starts_s),
        epoch_ends_s=clock.real(epochs.ends_s),
        metrics=names,
        hypotheses=hypotheses,
    )


def read_all(ticks: Ticks, *, ended: bool = True) -> Readings | str:
    """Every reading of the ticks with its features; or the reason why there is none.

    Args:
        ticks: Any number of ticks.
        ended: Whether the run is over.
    """
    if len(ticks) < LEAST_TICKS:
        return f"{len(ticks)} ticks; at least {LEAST_TICKS} are needed"
    has_value = np.isfinite(ticks.values).any(axis=0)
    if not has_value.any():
        return "no metric has a value; check that the GPU supports them"
    ticks = Ticks(ticks.time_us[has_value], ticks.values[:, has_value], ticks.names)
    first, stop = active_range(ticks)
    if stop - first < LEAST_TICKS:
        return f"the GPU works for {stop - first} ticks only; at least {LEAST_TICKS} are needed"
    active, clock = with_short_holes(ticks.slice(first, stop))
    busy = float(busy_ticks(active).mean())
    if busy < _LEAST_BUSY:
        return f"the GPU works for {100 * busy:.0f} % of the time only, more like a scheduled job than like training"
    found = list(strands(active))
    if not found:
        return "every metric is constant while the GPU works"
    every = [r for s in found for c in candidates(s.signal) if (r := read(c, s)) and r.chain.cycles >= _LEAST_CYCLES]
    if not every:
        return "nothing repeats"
    kept = distinct(every)
    return Readings(active, clock, kept, feature_table(kept, every, ended=ended))


def _place(
    active: Ticks, among: Strand, chain: Lock, step_s: float, others: tuple[Pattern, ...], ended: bool
) -> Epochs:
    rows = fastest_first([active.names[i] for i in among.signal.rows])
    placed = place_epochs(among.signal, chain, step_s, rows, ended=ended)
    placed = filled(among.signal, placed, others, rows, ended=ended)
    whole = among.whole(placed)
    if among.cut and (signal := scaled_signal(active)) is not None:
        whole = moved_to_changes(signal, whole, fastest_first([active.names[i] for i in signal.rows]))
    return _with_warm_up(active, seen_epochs(whole, active.time_us), chain.period * step_s)


def _with_warm_up(active: Ticks, epochs: Epochs, period_s: float) -> Epochs:
    """Let the first epoch begin with the activity, if the GPU is busy from there to the first level change.

    That is compiling and loading, which is part of the first epoch; it may take as long as an epoch where it is clearly
    less work. Hence the length of the first epoch says nothing about the others.
    """
    if not epochs.starts_s.size or not 0 < epochs.starts_s[0] <= _LONG_WARM_UP * period_s:
        return epochs
    before = (active.time_us - active.time_us[0]) * 1e-6 < epochs.starts_s[0]
    if busy_ticks(active)[before].mean() < _WARM_UP_BUSY:
        return epochs
    if epochs.starts_s[0] > _WARM_UP * period_s and np.median(work(active)[before]) > LITTLE_WORK:
        return epochs
    regular = epochs.regular.copy()
    regular[0] &= regular[1:].sum() < _LEAST_CYCLES
    return replace(epochs, starts_s=np.concatenate([[0.0], epochs.starts_s[1:]]), regular=regular)


def mean_period(epochs: Epochs, step_s: float) -> tuple[float, float, float]:
    """Mean duration of the regular epochs with its 95 % interval (normal), at least the resolution of the ticks.

    If they take clearly longer from some epoch on, or shorter, then of the longer one of the two stretches.
    """
    lengths = _of_one_regime((epochs.ends_s - epochs.starts_s)[epochs.regular])
    mean = float(lengths.mean())
    half = float(1.96 * lengths.std(ddof=1) / np.sqrt(lengths.size) + step_s / lengths.size)
    return mean, mean - half, mean + half


def _of_one_regime(lengths: FloatArray) -> FloatArray:
    n = lengths.size
    if n < 2 * _LEAST_OF_REGIME:
        return lengths
    sums, squares = np.cumsum(lengths), np.cumsum(lengths**2)
    first = np.arange(_LEAST_OF_REGIME, n - _LEAST_OF_REGIME + 1)
    before, after = sums[first - 1] / first, (sums[-1] - sums[first - 1]) / (n - first)
    within = squares[-1] - first * before**2 - (n - first) * after**2
    best = int(np.argmin(within))
    total = float(squares[-1] - sums[-1] ** 2 / n)
    if within[best] > _UNEXPLAINED * total or abs(np.log(after[best] / before[best])) < _OTHER_REGIME:
        return lengths
    at = int(first[best])
    return lengths[:at] if at > n - at else lengths[at:]
