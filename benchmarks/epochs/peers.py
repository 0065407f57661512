"""What others would do: a plain FFT peak, the autocorrelation, and change-point libraries, on the same active part."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.signal import find_peaks

from gpusonde.epoch_detect import EpochDetection, Verdict
from gpusonde.epoch_detect.cycles.signal import resample_ticks
from gpusonde.epoch_detect.detect import round_to_wire_times
from gpusonde.epoch_detect.ticks import Ticks, active_range, select_values
from gpusonde.telemetry import Trace

_MOST_POINTS = 4000  # change-point search is slow; longer series are averaged down for it
_PREFERRED = ("dram_active", "gpu_utilization", "sm_active", "power_watts")

Detector = Callable[[Trace], EpochDetection]


def even_series(trace: Trace) -> tuple[float, np.ndarray] | None:
    """Cell width and the preferred metric on a uniform grid, trimmed to the activity."""
    name = next((n for n in _PREFERRED if n in trace.values), None)
    if name is None or len(trace) < 32:
        return None
    names, values = select_values(trace, [name])
    ticks = Ticks(round_to_wire_times(trace.time_s), values.astype(np.float32), names)
    first, stop = active_range(ticks)
    if stop - first < 32:
        return None
    step, grid = resample_ticks(ticks.slice(first, stop))
    return step, grid[0] - grid[0].mean()


def _answer(period_s: float | None) -> EpochDetection:
    if period_s is None or not np.isfinite(period_s) or period_s <= 0:
        return EpochDetection(Verdict.NONE, "nothing found")
    return EpochDetection(Verdict.EPOCHS, "peer", period_s=float(period_s))


def fft_peak(trace: Trace) -> EpochDetection:
    """The frequency with the largest power, of at least two cycles and at most half of the sampling rate."""
    if (made := even_series(trace)) is None:
        return _answer(None)
    step, values = made
    power = np.abs(np.fft.rfft(values * np.hanning(values.size))) ** 2
    power[:2] = 0
    return _answer(values.size * step / int(np.argmax(power)) if power.any() else None)


def autocorrelation_peak(trace: Trace) -> EpochDetection:
    """The first strong peak of the autocorrelation."""
    if (made := even_series(trace)) is None:
        return _answer(None)
    step, values = made
    spectrum = np.abs(np.fft.rfft(values, 2 * values.size)) ** 2
    correlation = np.fft.irfft(spectrum)[: values.size // 2]
    if correlation[0] <= 0:
        return _answer(None)
    peaks, _ = find_peaks(correlation / correlation[0], prominence=0.05)
    return _answer(step * int(peaks[np.argmax(correlation[peaks])]) if peaks.size else None)


def pelt(trace: Trace) -> EpochDetection:
    """Mean distance of the change points of ruptures' Pelt, with the penalty of the Bayesian information criterion."""
    import ruptures

    if (made := even_series(trace)) is None:
        return _answer(None)
    step, values = _thinned(*made)
    noise = float(np.median(np.abs(np.diff(values))) / 0.954) + 1e-6
    found = ruptures.Pelt(model="l2", min_size=3, jump=1).fit(values).predict(pen=3 * np.log(values.size) * noise**2)
    return _answer(step * float(np.mean(np.diff(found[:-1]))) if len(found) > 2 else None)


def jenks(trace: Trace) -> EpochDetection:
    """Two natural breaks of the values (jenkspy), then the mean distance of the rises from the lower to the upper."""
    import jenkspy

    if (made := even_series(trace)) is None:
        return _answer(None)
    step, values = _thinned(*made)
    if np.unique(values).size < 3:
        return _answer(None)
    upper = values > jenkspy.jenks_breaks(values.tolist(), n_classes=2)[1]
    rises = np.flatnonzero(np.diff(upper.astype(int)) == 1)
    return _answer(step * float(np.mean(np.diff(rises))) if rises.size > 1 else None)


def _thinned(step: float, values: np.ndarray) -> tuple[float, np.ndarray]:
    group = -(-values.size // _MOST_POINTS)
    cells = values.size // group
    return step * group, values[: cells * group].reshape(cells, group).mean(axis=1)


PEERS: dict[str, Detector] = {
    "FFT peak": fft_peak,
    "autocorrelation": autocorrelation_peak,
    "ruptures Pelt": pelt,
    "jenkspy": jenks,
}
