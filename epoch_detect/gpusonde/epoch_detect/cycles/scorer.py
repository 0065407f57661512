"""Probabilities from features: boosted trees, fitted on generated traces.

One scorer says how likely each hypothesis of a trace is the epoch, others how likely a level of the tree of cycles is
real and what its role is. The trees are fitted by ``benchmarks/epochs/fit_scorer.py`` and ``fit_levels.py`` and stored
as plain arrays, so that evaluating them needs NumPy only and loading them runs no code.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import IO

import numpy as np
import numpy.typing as npt

from gpusonde.epoch_detect.cycles.features import FEATURES
from gpusonde.errors import ModelError
from gpusonde.telemetry import FloatArray

_ARRAYS = ("roots", "feature", "threshold", "missing_left", "left", "right", "value", "base", "raw", "calibrated")


@dataclass(frozen=True)
class Scorer:
    """Boosted regression trees with a calibration curve.

    Attributes:
        roots: Shape (trees,), first node of each tree.
        feature: Shape (nodes,), the feature a node looks at, -1 for a leaf.
        threshold: Shape (nodes,); up to and including it a sample goes left.
        missing_left: Shape (nodes,), whether a sample without the feature goes left.
        left: Shape (nodes,), node that follows.
        right: Shape (nodes,).
        value: Shape (nodes,), a leaf's contribution to the log odds.
        base: Log odds before any tree.
        raw: Shape (knots,), increasing probabilities as the trees give them.
        calibrated: Shape (knots,), the share that was right where the trees gave ``raw``.
    """

    roots: npt.NDArray[np.int64]
    feature: npt.NDArray[np.int64]
    threshold: FloatArray
    missing_left: npt.NDArray[np.bool_]
    left: npt.NDArray[np.int64]
    right: npt.NDArray[np.int64]
    value: FloatArray
    base: float
    raw: FloatArray
    calibrated: FloatArray

    @classmethod
    def load(cls, file: IO[bytes], features: Sequence[str] = FEATURES) -> Scorer:
        """Read a scorer.

        Args:
            file: The arrays.
            features: What it must have been fitted to.

        Raises:
            ModelError: The file is something else, or was fitted to other features.
        """
        try:
            with np.load(file, allow_pickle=False) as archive:
                names = tuple(str(name) for name in archive["features"])
                arrays = [archive[name] for name in _ARRAYS]
        except (OSError, ValueError, KeyError) as error:
            raise ModelError(
                f"not a scorer of epochs ({error}); fit one with the scripts in benchmarks/epochs"
            ) from error
        if names != tuple(features):
            message = "the scorer was fitted to other features; fit it anew with the scripts in benchmarks/epochs"
            raise ModelError(message)
        roots, feature, threshold, missing_left, left, right, value, base, raw, calibrated = arrays
        return cls(
            roots.astype(np.int64), feature.astype(np.int64), threshold.astype(np.float64), missing_left.astype(bool),
            left.astype(np.int64), right.astype(np.int64), value.astype(np.float64), float(base),
            raw.astype(np.float64), calibrated.astype(np.float64),
        )  # fmt: skip

    @classmethod
    def shipped(cls, name: str = "scorer", features: tuple[str, ...] = FEATURES) -> Scorer:
        """Return a scorer that is part of the package: that of hypotheses, or the one with a name."""
        return _shipped(name, features)

    def probability(self, features: FloatArray) -> FloatArray:
        """Probability that a hypothesis is right.

        Args:
            features: Shape (hypotheses, features).

        Returns:
            Shape (hypotheses,), in 0..1, calibrated.
        """
        return np.interp(1 / (1 + np.exp(-self.log_odds(features))), self.raw, self.calibrated)

    def log_odds(self, features: FloatArray) -> FloatArray:
        """Sum of the trees, shape (hypotheses,)."""
        node = np.broadcast_to(self.roots, (features.shape[0], self.roots.size))
        row = np.arange(features.shape[0])[:, None]
        while (inner := self.feature[node] >= 0).any():
            seen = features[row, np.maximum(self.feature[node], 0)]
            goes_left = np.where(np.isnan(seen), self.missing_left[node], seen <= self.threshold[node])
            node = np.where(inner, np.where(goes_left, self.left[node], self.right[node]), node)
        total: FloatArray = self.base + self.value[node].sum(axis=1)
        return total


@functools.cache
def _shipped(name: str, features: tuple[str, ...]) -> Scorer:
    with resources.files("gpusonde.epoch_detect.cycles").joinpath(f"{name}.npz").open("rb") as file:
        return Scorer.load(file, features)
