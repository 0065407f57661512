"""Which metrics tell that a GPU is working."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpusonde.collector.storage.samples import Samples
from gpusonde.telemetry import METRICS, FloatArray, Unit

# Ratios that move when a kernel runs. Video engines do not train networks.
_ACTIVITY = tuple(
    m.name for m in METRICS if m.unit is Unit.RATIO and m.name not in ("encoder_utilization", "decoder_utilization")
)


def has_activity(metrics: Sequence[str]) -> bool:
    """Whether any of the metrics tells that a GPU is working."""
    return any(name in _ACTIVITY for name in metrics)


def activity_of(samples: Samples) -> FloatArray:
    """Return the largest activity ratio of every tick, NaN where none is known."""
    matrix = samples.matrix([name for name in _ACTIVITY if name in samples.columns])
    if not matrix.size:
        return np.full(len(samples), np.nan)
    known = np.isfinite(matrix)
    largest = np.where(known, matrix, -np.inf).max(axis=0)
    return np.where(known.any(axis=0), largest, np.nan)
