"""Bayesian optimisation over a finite set of configurations, as Cherrypick and HeterBO do it.

A Gaussian process on the logarithm of what is measured (Matern 5/2, its length scale by marginal likelihood), and next
the configuration from which the largest improvement is expected.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

FloatArray = npt.NDArray[np.float64]

_STARTS = 3  # configurations measured before there is a model (Cherrypick, section 4)
_LENGTH_SCALES = (0.15, 0.3, 0.6, 1.2)  # of features that are scaled to 0..1
_NOISE = 1e-3  # relative to the signal: the oracle measures without noise, this keeps the matrix regular


def explore(features: npt.ArrayLike, measure: Callable[[int], float], tries: int, seed: int = 0) -> list[int]:
    """Return which configurations were measured, in their order.

    Args:
        features: Shape (n, d), describes the configurations; every column is scaled to 0..1.
        measure: Time or cost of a configuration by its place, above zero; infinite when it does not run at all.
        tries: How many may be measured.
        seed: Of the configurations that are measured first.

    Raises:
        ValueError: ``features`` is not of shape (n, d), or ``tries`` is negative.
    """
    points = np.asarray(features, dtype=np.float64)
    if points.ndim != 2:
        raise ValueError(f"features has shape (n, d), not {points.shape}")
    if tries < 0:
        raise ValueError(f"tries must not be negative, not {tries}")
    lowest, width = points.min(axis=0, initial=np.inf), np.ptp(points, axis=0) if len(points) else 1.0
    points = (points - lowest) / np.where(width > 0, width, 1.0)
    tries = min(tries, len(points))
    measured: list[int] = np.random.default_rng(seed).permutation(len(points))[: min(_STARTS, tries)].tolist()
    values = [measure(place) for place in measured]
    while len(measured) < tries:
        left = np.setdiff1d(np.arange(len(points)), measured)
        place = int(left[np.argmax(_expected_improvement(points[measured], np.array(values), points[left]))])
        measured.append(place)
        values.append(measure(place))
    return measured


def _expected_improvement(known: FloatArray, values: FloatArray, asked: FloatArray) -> FloatArray:
    """Expected fall of the logarithm below the least one measured, shape (m,)."""
    runs = np.isfinite(values)
    if not runs.any():
        return np.zeros(len(asked))
    # What does not run at all counts as twice the worst, so that the model stays away from there.
    logarithms = np.log(np.where(runs, values, 2.0 * values[runs].max()))
    centre, scale = logarithms.mean(), max(float(logarithms.std()), 1e-6)
    standard = (logarithms - centre) / scale
    mean, deviation = max((_posterior(known, standard, asked, length) for length in _LENGTH_SCALES), key=_evidence)[:2]
    gap = standard.min() - mean
    level = gap / deviation
    density = np.exp(-0.5 * level**2) / np.sqrt(2.0 * np.pi)
    return np.asarray(gap * ndtr(level) + deviation * density)


def _posterior(
    known: FloatArray, values: FloatArray, asked: FloatArray, length: float
) -> tuple[FloatArray, FloatArray, float]:
    covariance = _matern(known, known, length) + _NOISE * np.eye(len(known))
    factor = np.linalg.cholesky(covariance)
    half = np.linalg.solve(factor, values)
    evidence = -0.5 * float(half @ half) - float(np.log(np.diag(factor)).sum())
    across = np.linalg.solve(factor, _matern(known, asked, length))
    variance = np.maximum(1.0 - (across**2).sum(axis=0), 1e-9)
    return across.T @ half, np.sqrt(variance), evidence


def _evidence(posterior: tuple[FloatArray, FloatArray, float]) -> float:
    return posterior[2]


def _matern(first: FloatArray, second: FloatArray, length: float) -> FloatArray:
    distance = np.sqrt(((first[:, None, :] - second[None, :, :]) ** 2).sum(axis=2)) * np.sqrt(5.0) / length
    return np.asarray((1.0 + distance + distance**2 / 3.0) * np.exp(-distance))
