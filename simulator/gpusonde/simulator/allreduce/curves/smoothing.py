"""Smoothing of curves whose measurements scatter more than an interpolation through all of them can follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np
from scipy.interpolate import PchipInterpolator
from scipy.optimize import least_squares

from gpusonde.simulator.allreduce.curves.curve import FloatArray, SizeCurve

_Key = TypeVar("_Key")

# A Gaussian process around latency plus link: how far a duration strays from that, over which factor of e of size.
_AMPLITUDE, _LENGTH = 0.5, 2.0
_NOISES = (0.1, 0.2, 0.4)
# The same process through all measurements: what is gained over it is due to scatter, and not to a better shape.
_NO_NOISE = 0.02
# Measured durations are believed unless smoothing predicts left-out ones better by this.
_BETTER = 0.95
# A curve alone has too few sizes to tell scatter from a library that changes its algorithm.
_LEAST_CURVES = 3
_LEAST_KNOTS, _MOST_KNOTS = 6, 128
# So many curves of a link decide for all of them.
_MOST_TRIED = 48


def smoothed(curves: Mapping[_Key, SizeCurve]) -> dict[_Key, SizeCurve]:
    """Return the curves of one link, all of them smoothed if that predicts left-out sizes better than interpolation."""
    able = {key: curve for key, curve in curves.items() if _LEAST_KNOTS <= curve.log_bytes.size <= _MOST_KNOTS}
    if len(able) < _LEAST_CURVES:
        return dict(curves)
    tried = list(able.values())[:: -(-len(able) // _MOST_TRIED)]
    raw = float(np.abs(np.concatenate([_left_out(curve) for curve in tried])).mean())
    found = {
        noise: float(np.abs(np.concatenate([_process(curve, noise)[1][1:-1] for curve in tried])).mean())
        for noise in (_NO_NOISE, *_NOISES)
    }
    noise = min(_NOISES, key=lambda each: found[each])
    if found[noise] > _BETTER * min(raw, found[_NO_NOISE]):
        return dict(curves)
    # What interpolation misses between the knots is found anew, from smooth ones: the scatter is what they hide.
    rough = float(np.mean([curve.gap_spread for curve in tried]))
    smooth = {
        key: replace(curve, log_seconds=_process(curve, noise)[0], scatter=float(np.hypot(curve.scatter, rough)))
        for key, curve in able.items()
    }
    return {**curves, **smooth}


def _left_out(curve: SizeCurve) -> FloatArray:
    """How far interpolation misses every inner knot that is left out."""
    knots, values = curve.log_bytes, curve.log_seconds
    missed = np.empty(knots.size - 2)
    for place in range(1, knots.size - 1):
        rest = np.arange(knots.size) != place
        missed[place - 1] = PchipInterpolator(knots[rest], values[rest])(knots[place]) - values[place]
    return missed


def _process(curve: SizeCurve, noise: float) -> tuple[FloatArray, FloatArray]:
    """The process at the knots, and how far it misses each when that one is left out."""
    knots, values = curve.log_bytes, curve.log_seconds
    start = np.array([values.min(), values[-1] - knots[-1]])

    def missed(both: FloatArray) -> FloatArray:
        return np.asarray(np.logaddexp(both[0], both[1] + knots) - values)

    found = least_squares(missed, start, loss="soft_l1")
    middle = np.logaddexp(found.x[0], found.x[1] + knots)
    alike = _AMPLITUDE**2 * np.exp(-0.5 * ((knots[:, None] - knots[None, :]) / _LENGTH) ** 2)
    inverse = np.linalg.inv(alike + noise**2 * np.eye(knots.size))
    weights = inverse @ (values - middle)
    return np.asarray(middle + alike @ weights), np.asarray(weights / np.diag(inverse))
