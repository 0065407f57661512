"""The default detector: from remembered ticks to epochs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gpusonde.epoch_detect.boundaries import Epochs, place_epochs
from gpusonde.epoch_detect.features import feature_table
from gpusonde.epoch_detect.hypotheses import Reading, distinct, read, read_whole
from gpusonde.epoch_detect.result import EpochDetection, Hypothesis, Verdict
from gpusonde.epoch_detect.scorer import Scorer
from gpusonde.epoch_detect.signal import Signal, scaled_signal
from gpusonde.epoch_detect.tempo import candidates
from gpusonde.epoch_detect.ticks import LEAST_TICKS, Ticks, active_range, fastest_first
from gpusonde.telemetry import FloatArray

SHORT_CYCLE_TICKS = 20  # below, an iteration and an epoch look the same
_LEAST_CONFIDENCE = 0.5
_LEAST_CYCLES = 2
_REPORTED_HYPOTHESES = 3


@dataclass(frozen=True)
class Readings:
    """All readings of the active part of some ticks.

    Attributes:
        active: The ticks from the first to the last at which the GPU worked.
        signal: They, scaled, on a uniform grid.
        readings: The readings of distinct periods.
        features: Shape (readings, features).
    """

    active: Ticks
    signal: Signal
    readings: list[Reading]
    features: FloatArray


def analyse(ticks: Ticks, *, ended: bool = True, scorer: Scorer | None = None) -> EpochDetection:
    """Find the epochs in ticks; times are seconds on the ticks' own axis.

    Args:
        ticks: Any number of ticks, idle around the activity included.
        ended: Whether the run is over; while it is not, the end of the ticks does not end an epoch.
        scorer: Judges the readings; None for the shipped one.

    Returns:
        The detection; ``none`` with the reason where there is nothing to find.
    """
    found = read_all(ticks)
    if isinstance(found, str):
        return EpochDetection(Verdict.NONE, found, metrics=ticks.names)
    probabilities = (scorer or Scorer.shipped()).probability(found.features)
    order = np.argsort(-probabilities, kind="stable")
    hypotheses = tuple(
        Hypothesis(found.readings[i].period_s, found.readings[i].chain.cycles, float(probabilities[i]))
        for i in order[:_REPORTED_HYPOTHESES]
    )
    chosen, confidence = found.readings[order[0]], float(probabilities[order[0]])
    nothing = EpochDetection(Verdict.NONE, "", metrics=ticks.names, hypotheses=hypotheses)
    if confidence < _LEAST_CONFIDENCE:
        reason = (
            f"the likeliest cycle, {chosen.period_s:.4g} s, is an epoch with a probability of {confidence:.2f} only"
        )
        return replace(nothing, reason=reason)
    epochs = _place(found, chosen, ended)
    if epochs.regular.sum() < 2:
        return replace(nothing, reason="no two whole epochs lie inside the activity")
    period, low, high = _period(epochs, found.signal.step_s)
    origin = float(found.active.time_us[0]) * 1e-6
    short = period < SHORT_CYCLE_TICKS * found.signal.step_s
    cycles = f"{epochs.starts_s.size} cycles of {period:.4g} s"
    return EpochDetection(
        verdict=Verdict.SHORT_CYCLE if short else Verdict.EPOCHS,
        reason=f"{cycles}, under {SHORT_CYCLE_TICKS} ticks: iteration or epoch" if short else f"{cycles} repeat",
        period_s=period,
        period_low_s=low,
        period_high_s=high,
        confidence=confidence,
        epoch_starts_s=origin + epochs.starts_s,
        epoch_ends_s=origin + epochs.ends_s,
        metrics=ticks.names,
        hypotheses=hypotheses,
    )


def read_all(ticks: Ticks) -> Readings | str:
    """Every reading of the ticks with its features; or the reason why there is none."""
    if len(ticks) < LEAST_TICKS:
        return f"{len(ticks)} ticks; at least {LEAST_TICKS} are needed"
    has_value = np.isfinite(ticks.values).any(axis=0)
    if not has_value.any():
        return "no metric has a value; check that the GPU supports them"
    ticks = Ticks(ticks.time_us[has_value], ticks.values[:, has_value], ticks.names)
    first, stop = active_range(ticks)
    if stop - first < LEAST_TICKS:
        return f"the GPU works for {stop - first} ticks only; at least {LEAST_TICKS} are needed"
    active = ticks.slice(first, stop)
    signal = scaled_signal(active)
    if signal is None:
        return "every metric is constant while the GPU works"
    every = [r for c in candidates(signal) if (r := read(c)) is not None and r.chain.cycles >= _LEAST_CYCLES]
    if not every:
        return "nothing repeats"
    kept = distinct(every)
    return Readings(active, signal, kept, feature_table(kept, every, len(active), signal.step_s))


def _place(found: Readings, chosen: Reading, ended: bool) -> Epochs:
    rows = fastest_first([found.active.names[i] for i in found.signal.rows])
    return place_epochs(found.signal, read_whole(chosen), chosen.candidate.level.step_s, rows, ended=ended)


def _period(epochs: Epochs, step_s: float) -> tuple[float, float, float]:
    """Mean duration of the regular epochs with its 95 % interval (normal), at least the resolution of the ticks."""
    lengths = (epochs.ends_s - epochs.starts_s)[epochs.regular]
    mean = float(lengths.mean())
    half = float(1.96 * lengths.std(ddof=1) / np.sqrt(lengths.size) + step_s / lengths.size)
    return mean, mean - half, mean + half
