"""How alike two cycles of different length are."""

from __future__ import annotations

import numpy as np

from gpusonde.telemetry import FloatArray

_CELLS = 32


def likeness(one: FloatArray, other: FloatArray) -> float:
    """Largest circular correlation of two cycles as returned by :func:`stretched`, -1..1."""
    products = np.fft.rfft(one, axis=1) * np.conj(np.fft.rfft(other, axis=1))
    return float(np.fft.irfft(products.sum(axis=0), _CELLS).max())


def stretched(template: FloatArray) -> FloatArray:
    """A cycle of any length on as many cells as all others, without its mean and of size 1.

    Args:
        template: Shape (metrics, cells).

    Returns:
        Shape (metrics, 32).
    """
    place = np.linspace(0, template.shape[1] - 1, _CELLS)
    shape = np.array([np.interp(place, np.arange(row.size), row) for row in template])
    shape -= shape.mean(axis=1, keepdims=True)
    return np.asarray(shape / (np.linalg.norm(shape) + 1e-12))
