"""The published detector: three rounds of Luminol scores and Savitzky-Golay smoothing, then the peaks.

Source: the hardware-metrics paper, section III-B and figures 3 to 6, and for :data:`NOTEBOOK` its authors' notebook.
What the text leaves open is decided as follows and can be set in :class:`PaperSettings`: peaks need a prominence of
0.01 (as in the notebook) and must not lie below the mean of the smoothed scores; the period is the mean distance of
the peaks; idle before and after the activity is cut off, since the authors cut at the true start and end.

It does not reproduce the published error of 9.6 %: see docs/epoch_detection.md for what it does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.signal import find_peaks, savgol_filter

from gpusonde.epoch_detect.published.luminol import luminol_scores, original_luminol_scores
from gpusonde.epoch_detect.result import EpochDetection, Hypothesis, Verdict
from gpusonde.epoch_detect.ticks import LEAST_TICKS, Ticks, active_range
from gpusonde.telemetry import FloatArray, Trace, TraceError

# The paper uses DRAM activity; its notebook, on hosts without DCGM, GPU utilisation.
_METRIC_PREFERENCE = ("dram_active", "memory_utilization", "sm_active", "gpu_utilization", "graphics_active")
_NOTEBOOK_WINDOWS = (11, 21, 91, 101, 231)
_NOTEBOOK_SHARE = 231 / 1999  # its window for its longest series; it lists no rule for the shorter ones


@dataclass(frozen=True)
class PaperSettings:
    """Parameters of the published detector.

    Attributes:
        name: What the answer's ``mode`` says.
        rounds: How often Luminol and the smoothing are applied.
        smoothings: Savitzky-Golay passes per round.
        order: Order of the smoothing polynomial.
        window_share: Smoothing window as a share of the series.
        windows: If not empty, the nearest of these lengths is taken instead.
        prominence: Least prominence of a peak of the scores, which lie in 0..1.
        exact_mean_filter: Drop every peak below the mean; otherwise drop them as the notebook does, whose loop removes
            from the list it walks and so skips the successor of each removed peak.
        second_half_only: Look only at the second half of the series.
        most_points: Look at this many points only; None for all.
        preferred_metric: Taken first if the trace has it.
    """

    name: str
    rounds: int = 3
    smoothings: int = 1
    order: int = 2
    window_share: float = 1 / 40
    windows: tuple[int, ...] = ()
    prominence: float = 0.01
    exact_mean_filter: bool = True
    second_half_only: bool = False
    most_points: int | None = None
    preferred_metric: str = "dram_active"


PAPER = PaperSettings("paper")
NOTEBOOK = PaperSettings(
    "notebook",
    rounds=1,
    smoothings=2,
    order=1,
    window_share=_NOTEBOOK_SHARE,
    windows=_NOTEBOOK_WINDOWS,
    exact_mean_filter=False,
    second_half_only=True,
    most_points=1999,
    preferred_metric="gpu_utilization",
)


def detect_with_luminol(
    trace: Trace, settings: PaperSettings, *, metrics: Sequence[str] | None = None, engine: str = "port"
) -> EpochDetection:
    """Run the published detector.

    Args:
        trace: The ticks of one GPU.
        settings: :data:`PAPER` or :data:`NOTEBOOK`, or a variation.
        metrics: The first one is used; None for the preferred one.
        engine: ``port`` or ``luminol``.

    Returns:
        The detection; its confidence is 0, for the published detector states none, and its interval is the standard
        error of the peaks' distances.

    Raises:
        gpusonde.telemetry.TraceError: The trace does not hold the metric.
        gpusonde.errors.MissingExtraError: The engine ``luminol`` is not installed.
    """
    name = _metric(trace, settings, metrics)
    if name is None:
        return EpochDetection(Verdict.NONE, "the trace has no metric", mode=settings.name)
    time_s, values = _cut(trace, name, settings)
    if values.size < LEAST_TICKS:
        reason = f"{name} has {values.size} values while the GPU works; at least {LEAST_TICKS} are needed"
        return EpochDetection(Verdict.NONE, reason, mode=settings.name, metrics=(name,))
    peaks = boundaries_by_luminol(values, settings, original_luminol_scores if engine == "luminol" else luminol_scores)
    if peaks.size < 2:
        reason = f"{peaks.size} peaks of the anomaly score; a period needs two"
        return EpochDetection(Verdict.NONE, reason, mode=settings.name, metrics=(name,))
    starts = time_s[peaks]
    lengths = np.diff(starts)
    period = float(lengths.mean())
    half = 1.96 * float(lengths.std()) / np.sqrt(lengths.size)
    return EpochDetection(
        verdict=Verdict.EPOCHS,
        reason=f"{peaks.size} peaks of the anomaly score",
        period_s=period,
        period_low_s=period - half,
        period_high_s=period + half,
        epoch_starts_s=starts[:-1],
        epoch_ends_s=starts[1:],
        mode=settings.name,
        metrics=(name,),
        hypotheses=(Hypothesis(period, int(lengths.size), 0.0),),
    )


def boundaries_by_luminol(
    values: FloatArray, settings: PaperSettings, scores: Callable[[FloatArray], FloatArray]
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Indices of the peaks of the repeatedly scored and smoothed series.

    Args:
        values: Shape (n,), n >= 32, finite.
        settings: The parameters.
        scores: Luminol's scores of a series.

    Returns:
        Shape (peaks,), increasing.
    """
    window = _window(values.size, settings)
    series = values
    for _ in range(settings.rounds):
        series = scores(series)
        for _ in range(settings.smoothings):
            series = savgol_filter(series, window, settings.order)
        series = _to_unit_range(series)
    peaks, _ = find_peaks(series, prominence=settings.prominence)
    mean = float(series.mean())
    if settings.exact_mean_filter:
        return peaks[series[peaks] >= mean].astype(np.int64)
    kept = peaks.tolist()
    for peak in kept:  # the notebook's loop, with its fault
        if series[peak] < mean:
            kept.remove(peak)
    return np.array(kept, dtype=np.int64)


def _metric(trace: Trace, settings: PaperSettings, metrics: Sequence[str] | None) -> str | None:
    if metrics is not None:
        if not metrics:
            raise TraceError("no metric was chosen; leave the choice out to use all that the trace has")
        return trace.select(metrics[:1]).metrics[0]
    for name in (settings.preferred_metric, *_METRIC_PREFERENCE):
        if name in trace.values and np.isfinite(trace.values[name]).any():
            return name
    return trace.metrics[0] if trace.metrics else None


def _cut(trace: Trace, name: str, settings: PaperSettings) -> tuple[FloatArray, FloatArray]:
    """Times and float32-rounded values of the ticks that the settings look at."""
    finite = np.isfinite(trace.values[name])
    time_s, values = trace.time_s[finite], trace.values[name][finite].astype(np.float32)
    if time_s.size:
        microseconds = np.round((time_s - time_s[0]) * 1e6).astype(np.int64)
        first, stop = active_range(Ticks(microseconds, values[None], (name,)))
        time_s, values = time_s[first:stop], values[first:stop]
    if settings.second_half_only:
        time_s, values = time_s[time_s.size // 2 :], values[values.size // 2 :]
    return time_s[: settings.most_points], values[: settings.most_points].astype(np.float64)


def _window(count: int, settings: PaperSettings) -> int:
    """Odd window length, larger than the polynomial's order and no longer than the series."""
    wanted = count * settings.window_share
    if settings.windows:
        wanted = min(settings.windows, key=lambda w: abs(w - wanted))
    largest = count if count % 2 else count - 1
    return int(min(max(int(wanted) | 1, settings.order + 1 + settings.order % 2), largest))


def _to_unit_range(series: FloatArray) -> FloatArray:
    low, high = float(series.min()), float(series.max())
    return (series - low) / (high - low) if high > low else np.zeros_like(series)
