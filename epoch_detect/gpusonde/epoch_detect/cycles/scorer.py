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
        walk = self._walk
        seen = np.stack([features, -features], axis=2).reshape(features.shape[0], -1)
        row = (np.arange(seen.shape[0]) * seen.shape[1])[:, None]
        node = np.broadcast_to(self.roots, (seen.shape[0], self.roots.size))
        for _ in range(walk.depth):
            node = walk.children[2 * node + (seen.take(row + walk.column[node]) > walk.bound[node])]
        total: FloatArray = self.base + self.value[node].sum(axis=1)
        return total

    @functools.cached_property
    def _walk(self) -> _Walk:
        """The trees, laid out for walking all of them for all hypotheses at once."""
        leaf, nodes = self.feature < 0, np.arange(self.feature.size)
        # NaN is never larger. Where a sample without the feature goes left, what is larger goes right; where it goes
        # right, the negative of the feature is compared, and what is larger goes left.
        bound = np.where(self.missing_left, self.threshold, -np.nextafter(self.threshold, np.inf))
        column = 2 * self.feature + ~self.missing_left
        children = np.where(self.missing_left, [self.left, self.right], [self.right, self.left])
        depth, reached = 0, self.roots
        while (reached := reached[~leaf[reached]]).size:
            depth, reached = depth + 1, np.concatenate([self.left[reached], self.right[reached]])
        return _Walk(
            np.where(leaf, 0, column),
            np.where(leaf, np.inf, bound),
            np.where(leaf, nodes, children).T.reshape(-1),
            depth,
        )


@dataclass(frozen=True)
class _Walk:
    """Boosted trees as one comparison per node.

    Attributes:
        column: Shape (nodes,), twice the feature, and one more for its negative; any for a leaf.
        bound: Shape (nodes,), infinite for a leaf.
        children: Shape (2 * nodes,), for each node the one that follows where the value is not larger than the bound,
            and where it is; a leaf itself.
        depth: Steps to the farthest leaf.
    """

    column: npt.NDArray[np.int64]
    bound: FloatArray
    children: npt.NDArray[np.int64]
    depth: int


@functools.cache
def _shipped(name: str, features: tuple[str, ...]) -> Scorer:
    with resources.files("gpusonde.epoch_detect.cycles").joinpath(f"{name}.npz").open("rb") as file:
        return Scorer.load(file, features)
