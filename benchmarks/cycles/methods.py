"""The methods that are compared.

A method is a function of the traces of a job, and of how many epochs it has if a user told that, else None. It returns
the levels and the best guess. To add one, write such a function anywhere and name it with ``--method
NAME=MODULE:FUNCTION``; :func:`answer` makes an answer of a few periods.
"""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from scipy.signal import find_peaks

from gpusonde.epoch_detect import Cycle, CycleRole, EpochDetection, Verdict, detect
from gpusonde.epoch_detect.cycles.roles import Told
from gpusonde.errors import UsageError
from gpusonde.telemetry import Trace

sys.path.append(str(Path(__file__).resolve().parents[1] / "epochs"))

from peers import even_series

Method = Callable[[Sequence[Trace], int | None], EpochDetection]

_MOST_LEVELS = 5
_APART = 0.1  # of the logarithm of the period


def answer(periods_s: Sequence[float], confidences: Sequence[float] = ()) -> EpochDetection:
    """Make an answer of periods, the best guess first; without confidences, all levels count as told."""
    right = [(p, c) for p, c in zip(periods_s, confidences or [1.0] * len(periods_s), strict=True) if math.isfinite(p)]
    if not right:
        return EpochDetection(Verdict.NONE, "nothing found")
    levels = tuple(
        Cycle(period, math.nan, math.nan, 0, np.empty(0), confidence, CycleRole.UNKNOWN)
        for period, confidence in sorted(right)
    )
    best, confidence = right[0]
    # Who states no confidence is not taken at a word for it.
    return EpochDetection(
        Verdict.EPOCHS, "", period_s=best, confidence=confidence if confidences else 0.0, cycles=levels
    )


def fft(traces: Sequence[Trace], epochs: int | None = None) -> EpochDetection:
    """The five highest peaks of the spectrum of the metric that follows the load best, of the first GPU."""
    if (made := even_series(traces[0])) is None:
        return answer(())
    step, values = made
    power = np.abs(np.fft.rfft(values * np.hanning(values.size))) ** 2
    power[:2] = 0
    places, _ = find_peaks(power)
    return answer(_apart(values.size * step / places[np.argsort(-power[places])]))


def autocorrelation(traces: Sequence[Trace], epochs: int | None = None) -> EpochDetection:
    """The five highest peaks of the autocorrelation, of the same metric."""
    if (made := even_series(traces[0])) is None:
        return answer(())
    step, values = made
    correlation = np.fft.irfft(np.abs(np.fft.rfft(values, 2 * values.size)) ** 2)[: values.size // 2]
    if correlation[0] <= 0:
        return answer(())
    places, _ = find_peaks(correlation / correlation[0], prominence=0.05)
    return answer(_apart(step * places[np.argsort(-correlation[places])]))


def published(traces: Sequence[Trace], epochs: int | None = None) -> EpochDetection:
    """The published detector of epochs, on the first GPU."""
    return detect(traces[0], mode="paper")


def ours(traces: Sequence[Trace], epochs: int | None = None) -> EpochDetection:
    """Our detector, on all GPUs of the job."""
    return detect(traces, told=Told(total_epochs=epochs))


METHODS: dict[str, Method] = {
    "FFT": fft,
    "autocorrelation": autocorrelation,
    "published": published,
    "gpusonde": ours,
}


def load_method(text: str) -> tuple[str, Method]:
    """Find a method that is named as ``NAME=MODULE:FUNCTION``.

    Raises:
        UsageError: It is not named so, or there is no such function.
    """
    name, equals, place = text.partition("=")
    module, colon, function = place.partition(":")
    if not (name and equals and module and colon and function):
        raise UsageError(f"--method {text}: write NAME=MODULE:FUNCTION")
    try:
        found: Method = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"--method {text}: {error}; is the module on PYTHONPATH?") from error
    return name, found


def _apart(periods_s: np.ndarray) -> list[float]:
    kept: list[float] = []
    for period in periods_s.tolist():
        if all(abs(math.log(period / other)) > _APART for other in kept):
            kept.append(period)
        if len(kept) == _MOST_LEVELS:
            break
    return kept
