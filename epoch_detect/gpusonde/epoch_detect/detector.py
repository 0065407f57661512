"""The default detector: from remembered ticks to epochs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpusonde.epoch_detect.boundaries import Epochs, place_epochs
from gpusonde.epoch_detect.hypotheses import Reading, choose, distinct, read, read_whole
from gpusonde.epoch_detect.result import EpochDetection, Hypothesis, Verdict
from gpusonde.epoch_detect.signal import Signal, scaled_signal
from gpusonde.epoch_detect.tempo import candidates
from gpusonde.epoch_detect.ticks import LEAST_TICKS, Ticks, active_range, fastest_first

SHORT_CYCLE_TICKS = 20  # below, an iteration and an epoch look the same
_LEAST_CYCLES = 3
_REPORTED_HYPOTHESES = 3


def analyse(ticks: Ticks, *, ended: bool = True) -> EpochDetection:
    """Find the epochs in ticks; times are seconds on the ticks' own axis.

    Args:
        ticks: Any number of ticks, idle around the activity included.
        ended: Whether the run is over; while it is not, the end of the ticks does not end an epoch.

    Returns:
        The detection; ``none`` with the reason where there is nothing to find.
    """
    if len(ticks) < LEAST_TICKS:
        return _none(ticks, f"{len(ticks)} ticks; at least {LEAST_TICKS} are needed")
    has_value = np.isfinite(ticks.values).any(axis=0)
    if not has_value.any():
        return _none(ticks, "no metric has a value; check that the GPU supports them")
    ticks = Ticks(ticks.time_us[has_value], ticks.values[:, has_value], ticks.names)
    first, stop = active_range(ticks)
    if stop - first < LEAST_TICKS:
        return _none(ticks, f"the GPU works for {stop - first} ticks only; at least {LEAST_TICKS} are needed")
    active = ticks.slice(first, stop)
    signal = scaled_signal(active)
    if signal is None:
        return _none(ticks, "every metric is constant while the GPU works")
    readings = [r for c in candidates(signal) if (r := read(c)) is not None and r.chain.cycles >= _LEAST_CYCLES]
    if not readings:
        return _none(ticks, "nothing repeats at least three times")
    return _decide(ticks, active, signal, distinct(readings), ended)


def _decide(ticks: Ticks, active: Ticks, signal: Signal, readings: list[Reading], ended: bool) -> EpochDetection:
    chosen = choose(readings, SHORT_CYCLE_TICKS * signal.step_s)
    ordered = [chosen, *(r for r in readings if r is not chosen)][:_REPORTED_HYPOTHESES]
    hypotheses = tuple(Hypothesis(r.period_s, r.chain.cycles, r.score) for r in ordered)
    least = 0.58 + (0.08 if chosen.chain.cycles <= 3 else 0.02 if chosen.chain.cycles <= 5 else 0.0)
    if chosen.score < least:
        reason = f"the best cycle, {chosen.period_s:.4g} s, repeats too loosely ({chosen.score:.2f} of {least:.2f})"
        return replace(_none(ticks, reason), hypotheses=hypotheses)
    rows = fastest_first([active.names[i] for i in signal.rows])
    chain = read_whole(chosen)
    epochs = place_epochs(signal, chain, chosen.candidate.level.step_s, rows, ended=ended)
    if epochs.regular.sum() < 2:
        return replace(_none(ticks, "no two whole epochs lie inside the activity"), hypotheses=hypotheses)
    period, low, high = _period(epochs, signal.step_s)
    origin = float(active.time_us[0]) * 1e-6
    short = period < SHORT_CYCLE_TICKS * signal.step_s
    cycles = f"{epochs.starts_s.size} cycles of {period:.4g} s"
    return EpochDetection(
        verdict=Verdict.SHORT_CYCLE if short else Verdict.EPOCHS,
        reason=f"{cycles}, under {SHORT_CYCLE_TICKS} ticks: iteration or epoch" if short else f"{cycles} repeat",
        period_s=period,
        period_low_s=low,
        period_high_s=high,
        confidence=float(1 / (1 + np.exp(-14 * (chosen.score - least)))),
        epoch_starts_s=origin + epochs.starts_s,
        epoch_ends_s=origin + epochs.ends_s,
        metrics=ticks.names,
        hypotheses=hypotheses,
    )


def _period(epochs: Epochs, step_s: float) -> tuple[float, float, float]:
    """Mean duration of the regular epochs with its 95 % interval (normal), at least the resolution of the ticks."""
    lengths = (epochs.ends_s - epochs.starts_s)[epochs.regular]
    mean = float(lengths.mean())
    half = float(1.96 * lengths.std(ddof=1) / np.sqrt(lengths.size) + step_s / lengths.size)
    return mean, mean - half, mean + half


def _none(ticks: Ticks, reason: str) -> EpochDetection:
    return EpochDetection(verdict=Verdict.NONE, reason=reason, metrics=ticks.names)
