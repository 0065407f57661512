"""The default detector: from remembered ticks to epochs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gpusonde.epoch_detect.cycles.boundaries import Epochs, place_epochs
from gpusonde.epoch_detect.cycles.features import feature_table
from gpusonde.epoch_detect.cycles.holes import Clock, seen_epochs, with_short_holes
from gpusonde.epoch_detect.cycles.hypotheses import Reading, distinct, read, read_whole
from gpusonde.epoch_detect.cycles.phase import Lock, lock
from gpusonde.epoch_detect.cycles.scorer import Scorer
from gpusonde.epoch_detect.cycles.signal import Signal, scaled_signal
from gpusonde.epoch_detect.cycles.tempo import candidates, longest_period, view_of
from gpusonde.epoch_detect.result import EpochDetection, Hypothesis, Verdict
from gpusonde.epoch_detect.ticks import LEAST_TICKS, Ticks, active_range, busy_ticks, fastest_first
from gpusonde.telemetry import FloatArray

SHORT_CYCLE_TICKS = 20  # below, an iteration and an epoch look the same
_LEAST_CONFIDENCE = 0.45
_LEAST_CONFIDENCE_OF_FEW = 0.55  # of two or three cycles, which agree by chance more easily than the scorer was taught
_FEW_CYCLES = 3
_LEAST_CYCLES = 2
_REPORTED_HYPOTHESES = 3
_LEAST_BUSY = (
    0.2  # of the ticks from the first to the last activity; training with long pauses works for a half or more
)
_WARM_UP = 0.5  # periods that warm-up before the first level change may take
_WARM_UP_BUSY = 0.7  # share of the ticks in it at which the GPU must work
_HOLDING = 0.85  # share of their former agreement that the cycles must keep for a known cycle to hold


@dataclass(frozen=True)
class Readings:
    """All readings of the active part of some ticks.

    Attributes:
        active: The ticks from the first to the last at which the GPU worked, long holes shortened.
        clock: From their time to that of the ticks.
        signal: They, scaled, on a uniform grid.
        readings: The readings of distinct periods.
        features: Shape (readings, features).
    """

    active: Ticks
    clock: Clock
    signal: Signal
    readings: list[Reading]
    features: FloatArray


@dataclass(frozen=True)
class Hold:
    """A reading to go on with when more ticks have come.

    Attributes:
        step_s: Cell width of the level in which the cycle was found.
        smoothing: The view of the level.
        changes: The view of the level.
        template: Shape (rows, window), the cycle.
        rows: The metrics of the template.
        agreement: How alike the cycles were.
        confidence: Of the detection.
    """

    step_s: float
    smoothing: int
    changes: bool
    template: FloatArray
    rows: tuple[int, ...]
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
    hypotheses = tuple(
        Hypothesis(found.readings[i].period_s, found.readings[i].chain.cycles, float(probabilities[i]))
        for i in order[:_REPORTED_HYPOTHESES]
    )
    chosen, confidence = found.readings[order[0]], float(probabilities[order[0]])
    nothing = EpochDetection(Verdict.NONE, "", metrics=ticks.names, hypotheses=hypotheses)
    if confidence < (_LEAST_CONFIDENCE_OF_FEW if chosen.chain.cycles <= _FEW_CYCLES else _LEAST_CONFIDENCE):
        reason = (
            f"the likeliest cycle, {chosen.period_s:.4g} s, is an epoch with a probability of {confidence:.2f} only"
        )
        return replace(nothing, reason=reason), None
    chain, epochs = settle(found, chosen, ended=ended)
    if epochs.regular.sum() < 2:
        return replace(nothing, reason="no two whole epochs lie inside the activity"), None
    view = chosen.candidate
    hold = Hold(
        view.level.step_s, view.smoothing, view.changes, chain.template, found.signal.rows, chain.agreement, confidence
    )
    return _detection(found.active.names, found.clock, found.signal.step_s, epochs, confidence, hypotheses), hold


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
    return chain, _place(found.active, found.signal, chain, chosen.candidate.level.step_s, ended)


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
    signal = scaled_signal(active)
    if signal is None or signal.rows != hold.rows:
        return None
    level = signal
    while level.step_s < 0.75 * hold.step_s and len(level) > 1:
        level = level.halved()
    if abs(level.step_s / hold.step_s - 1) > 0.02:
        return None
    view = view_of(level, hold.smoothing, hold.changes, longest_period(level))
    chain = lock(view.values, float(hold.template.shape[1]), hold.template)
    if chain is None or chain.agreement < _HOLDING * hold.agreement:
        return None
    epochs = _place(active, signal, chain, level.step_s, ended=False)
    if epochs.regular.sum() < _LEAST_CYCLES:
        return None
    return _detection(active.names, clock, signal.step_s, epochs, hold.confidence, hypotheses)


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
    signal = scaled_signal(active)
    if signal is None:
        return "every metric is constant while the GPU works"
    every = [r for c in candidates(signal) if (r := read(c)) is not None and r.chain.cycles >= _LEAST_CYCLES]
    if not every:
        return "nothing repeats"
    kept = distinct(every)
    return Readings(active, clock, signal, kept, feature_table(kept, every, len(active), signal.step_s, ended=ended))


def _place(active: Ticks, signal: Signal, chain: Lock, step_s: float, ended: bool) -> Epochs:
    rows = fastest_first([active.names[i] for i in signal.rows])
    epochs = seen_epochs(place_epochs(signal, chain, step_s, rows, ended=ended), active.time_us)
    if not epochs.starts_s.size or not 0 < epochs.starts_s[0] <= _WARM_UP * chain.period * step_s:
        return epochs
    before = (active.time_us - active.time_us[0]) * 1e-6 < epochs.starts_s[0]
    if busy_ticks(active)[before].mean() < _WARM_UP_BUSY:
        return epochs
    # Busy right up to the first level change: compiling and loading, which is part of the first epoch. Hence its length
    # says nothing about the others.
    regular = epochs.regular.copy()
    regular[0] &= regular[1:].sum() < _LEAST_CYCLES
    return replace(epochs, starts_s=np.concatenate([[0.0], epochs.starts_s[1:]]), regular=regular)


def mean_period(epochs: Epochs, step_s: float) -> tuple[float, float, float]:
    """Mean duration of the regular epochs with its 95 % interval (normal), at least the resolution of the ticks."""
    lengths = (epochs.ends_s - epochs.starts_s)[epochs.regular]
    mean = float(lengths.mean())
    half = float(1.96 * lengths.std(ddof=1) / np.sqrt(lengths.size) + step_s / lengths.size)
    return mean, mean - half, mean + half
