"""Luminol's anomaly scores, vectorised: the bitmap detector and the default detector it silently falls back to.

Derived from luminol (https://github.com/linkedin/luminol), (c) 2015 LinkedIn Corp., Apache License 2.0; changed: the
arithmetic is the same, rewritten from per-point dictionaries to NumPy array operations. The scores are equal bit for
bit to those of ``AnomalyDetector(series).get_all_scores()`` of release 0.4 on integer time stamps.

Quirks that are kept because the published epoch detector rests on them:

* every single sample is quantised into four equal sections between minimum and maximum (no piecewise averages, no
  z-normalisation), so one spike flattens everything else into section 0;
* the scores are squared differences of raw counts, where the paper's text says that the grids are normalised;
* windows are n / 80 samples long and at most 200; below 50 samples together, which is n < 2000, the bitmap detector
  gives up and the default detector runs instead, without telling the caller;
* scores under 0.1 % of the maximum become 0.

``original_luminol_scores`` runs the original package, where it is installed, for comparison with our port.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
from scipy.signal import lfilter

from gpusonde.errors import MissingExtraError

FloatArray = npt.NDArray[np.float64]

_SECTIONS = 4  # luminol.constants.DEFAULT_BITMAP_PRECISION
_WINDOW_SHARE = 0.2 / 16  # DEFAULT_BITMAP_LEADING_WINDOW_SIZE_PCT; written as there: 0.0125 rounds differently
_LEAST_WINDOWS = 50  # DEFAULT_BITMAP_MINIMAL_POINTS_IN_WINDOWS, both windows together
_LARGEST_WINDOW = 200  # DEFAULT_BITMAP_MAXIMAL_POINTS_IN_WINDOWS, each window
_NOISE_SHARE = 0.001  # DEFAULT_NOISE_PCT_THRESHOLD
_SMOOTHING = 0.2  # DEFAULT_EMA_SMOOTHING_FACTOR and DEFAULT_DERI_SMOOTHING_FACTOR
_AVERAGE_WEIGHT = 0.65  # DEFAULT_DETECTOR_EMA_WEIGHT
_AVERAGE_SIGNIFICANT = 0.94  # DEFAULT_DETECTOR_EMA_SIGNIFICANT


def luminol_scores(values: npt.ArrayLike, time: npt.ArrayLike | None = None) -> FloatArray:
    """Return what ``luminol.AnomalyDetector(...).get_all_scores()`` returns.

    Args:
        values: Shape (n,), in sample order.
        time: Shape (n,), integer time stamps; None means 0, 1, 2, ... Only the default detector looks at them.

    Returns:
        Shape (n,): bitmap scores for n >= 2000, the default detector's below.

    Raises:
        ValueError: Fewer than two values.
    """
    series = _series(values)
    if bitmap_window(series.size) is None:
        return default_scores(series, time)
    return bitmap_scores(series)


def bitmap_window(count: int) -> int | None:
    """Length of Luminol's lag and future windows for a series of ``count`` points; None if it would not run."""
    window = int(count * _WINDOW_SHARE)
    return min(window, _LARGEST_WINDOW) if 2 * window >= _LEAST_WINDOWS else None


def bitmap_scores(values: npt.ArrayLike) -> FloatArray:
    """Luminol's bitmap detector with its default parameters.

    The score of sample i is the squared distance between the histograms of pairs of neighbouring symbols in the window
    before i and in the window that starts at i. O(16 n) time, O(n) memory.

    Args:
        values: Shape (n,).

    Returns:
        Shape (n,); 0 where a window does not fit.

    Raises:
        ValueError: n < 2000.
    """
    series = _series(values)
    n = series.size
    window = bitmap_window(n)
    if window is None:
        raise ValueError(f"the bitmap detector needs 2000 points, got {n}; default_scores takes fewer")
    symbols = _symbols(series)
    pairs = symbols[:-1] * _SECTIONS + symbols[1:]
    first, last = window, n - window  # luminol scores n - window, too
    distance = np.zeros(last - first + 1, dtype=np.int64)
    before = np.zeros(n, dtype=np.int64)  # before[i]: pairs of this kind that start before i
    for kind in range(_SECTIONS**2):
        np.cumsum(pairs == kind, out=before[1:])
        # A window of w samples holds w - 1 pairs.
        lag = before[first - 1 : last] - before[: last - first + 1]
        future = before[first + window - 1 :] - before[first : last + 1]
        distance += (future - lag) ** 2
    scores = np.zeros(n)
    scores[first : last + 1] = distance
    return _denoised(scores)


def default_scores(values: npt.ArrayLike, time: npt.ArrayLike | None = None) -> FloatArray:
    """Luminol's default detector: deviation from the moving average, mixed with that of the derivative.

    Args:
        values: Shape (n,).
        time: Shape (n,), integer time stamps; None means 0, 1, 2, ...

    Returns:
        Shape (n,).

    Raises:
        ValueError: Fewer than two values (luminol itself raises an IndexError).
    """
    series = _series(values)
    if series.size < 2:
        raise ValueError(f"Luminol's default detector needs 2 points, got {series.size}")
    average = _average_scores(series)
    derivative = _derivative_scores(series, time)
    scores = np.maximum(average, average * _AVERAGE_WEIGHT + derivative * (1 - _AVERAGE_WEIGHT))
    return _denoised(np.where(average > _AVERAGE_SIGNIFICANT, np.maximum(scores, derivative), scores))


def _series(values: npt.ArrayLike) -> FloatArray:
    series = np.asarray(values, dtype=np.float64)
    if series.ndim != 1:
        raise ValueError(f"expected one series of shape (n,), got shape {series.shape}")
    return series


def _symbols(series: FloatArray) -> npt.NDArray[np.int64]:
    low, high = float(series.min()), float(series.max())
    height = (high - low) / _SECTIONS
    bounds = np.array([low + section * height for section in range(_SECTIONS)])
    # Luminol walks up the bounds and stops at the first that lies above the value; NaN stays in section 0.
    reached = np.cumprod(series[:, None] >= bounds, axis=1).sum(axis=1)
    symbols: npt.NDArray[np.int64] = np.maximum(reached - 1, 0)
    return symbols


def _denoised(scores: FloatArray) -> FloatArray:
    maximum = scores.max()
    return np.where(scores < _NOISE_SHARE * maximum, 0.0, scores) if maximum else scores


def _moving_average(series: FloatArray) -> FloatArray:
    """y[0] = x[0]; y[i] = 0.2 x[i] + 0.8 y[i-1], with the rounding of the plain loop."""
    rest, _ = lfilter([_SMOOTHING], [1.0, _SMOOTHING - 1.0], series[1:], zi=[(1 - _SMOOTHING) * series[0]])
    return np.concatenate([series[:1], rest])


def _average_scores(series: FloatArray) -> FloatArray:
    deviation = series - _moving_average(series)
    spread = np.std(series)
    # Luminol forgets the absolute value when the spread is zero.
    return _denoised(np.abs(deviation / spread) if spread else deviation)


def _derivative_scores(series: FloatArray, time: npt.ArrayLike | None) -> FloatArray:
    steps = np.ones(series.size - 1) if time is None else np.diff(np.asarray(time).astype(np.int64)).astype(np.float64)
    slope = np.abs(np.diff(series) / np.where(steps == 0, 1.0, steps))
    slope = np.concatenate([slope[:1], slope])
    scores = np.abs(slope - _moving_average(slope))
    spread = np.std(scores)
    return _denoised(scores / spread if spread else scores)


def original_luminol_scores(values: npt.ArrayLike, time: npt.ArrayLike | None = None) -> FloatArray:
    """Run ``luminol.AnomalyDetector`` itself; the counterpart of ``published.bitmap.luminol_scores``.

    Args:
        values: Shape (n,).
        time: Shape (n,), integer time stamps, increasing; None means 0, 1, 2, ... Fractions of a second must not be
            passed: luminol cuts them off and merges the points.

    Returns:
        Shape (n,).

    Raises:
        MissingExtraError: The package is not installed.
    """
    try:
        from luminol.anomaly_detector import AnomalyDetector  # noqa: PLC0415 - optional, and slow to import
    except ImportError:
        raise MissingExtraError("luminol", "detect --engine luminol", "paper") from None
    series = np.asarray(values, dtype=np.float64)
    stamps = np.arange(series.size) if time is None else np.asarray(time).astype(np.int64)
    with _asscalar_restored():
        detector = AnomalyDetector(dict(zip(stamps.tolist(), series.tolist(), strict=True)), score_only=True)
    return np.array(detector.get_all_scores().values, dtype=np.float64)


@contextmanager
def _asscalar_restored() -> Iterator[None]:
    """Give luminol 0.4 the ``numpy.asscalar`` that NumPy dropped in 1.23, for the length of one call."""
    if hasattr(np, "asscalar"):
        yield
        return
    np.asscalar = lambda array: array.item()  # type: ignore[attr-defined]
    try:
        yield
    finally:
        del np.asscalar  # type: ignore[attr-defined]
