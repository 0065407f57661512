"""XGBoost, where it is installed."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import numpy as np

from gpusonde.simulator.allreduce.curves.curve import FloatArray


class BoostingMissingError(RuntimeError):
    """XGBoost is not installed."""


def is_installed() -> bool:
    """Return whether XGBoost is there."""
    return importlib.util.find_spec("xgboost") is not None


class BoostedTrees:
    """Gradient-boosted regression trees on one core, the same for the same data.

    Args:
        rounds: Trees.
        depth: Of each.
        rate: Learning rate.
        objective: XGBoost's name of the loss.

    Raises:
        BoostingMissingError: XGBoost is not installed.
    """

    def __init__(self, rounds: int, depth: int, rate: float, objective: str, min_weight: float = 1.0) -> None:
        if not is_installed():
            raise BoostingMissingError("this needs XGBoost: install gpusonde[collector], or xgboost-cpu")
        # Imported only now: it takes a second, and interpolation does without.
        self._xgboost: Any = importlib.import_module("xgboost")
        self._rounds = rounds
        self._parameters = {
            "max_depth": depth,
            "eta": rate,
            "subsample": 0.9,
            "min_child_weight": min_weight,
            "objective": objective,
            "tree_method": "hist",
            "nthread": 1,
            "seed": 0,
            "verbosity": 0,
        }
        self._booster: Any = None

    def fit(self, features: FloatArray, labels: FloatArray, weights: FloatArray) -> BoostedTrees:
        """Fit to features of shape (n, m), labels and weights of shape (n,)."""
        rows = self._xgboost.DMatrix(features, label=labels, weight=weights)
        self._booster = self._xgboost.train(self._parameters, rows, self._rounds)
        return self

    def predict(self, features: FloatArray) -> FloatArray:
        """Return the labels of features of shape (n, m), shape (n,).

        Raises:
            ValueError: Not fitted.
        """
        if self._booster is None:
            raise ValueError("fit the trees first")
        return np.asarray(self._booster.predict(self._xgboost.DMatrix(features)), dtype=np.float64)
