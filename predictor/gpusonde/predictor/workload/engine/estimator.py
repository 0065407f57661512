"""``Estimator``: one fitted way from features to seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from gpusonde.errors import ModelError
from gpusonde.predictor.workload.engine.features import CLUSTER_COLUMNS, HOST_COLUMNS, Encoding, FeatureTable
from gpusonde.predictor.workload.engine.regressors import FittedRegressor, fit_regressor

FloatArray = npt.NDArray[np.float64]

# What is learned of the measurements' deviation from the roofline holds for what deviates like them.
_BEYOND_MEASURED = 1.5
# Columns of the cluster come first, those of its hosts last among them.
_OF_HOSTS = slice(len(CLUSTER_COLUMNS) - len(HOST_COLUMNS), len(CLUSTER_COLUMNS))


@dataclass(frozen=True)
class Candidate:
    """A way that may be fitted.

    Attributes:
        regressor: One of ``REGRESSORS``.
        features: One of ``FEATURE_SETS``.
        options: Of the regressor.
    """

    regressor: str
    features: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Estimator:
    """A regressor with its columns and its target.

    Attributes:
        candidate: What was fitted.
        encoding: Its columns.
        fitted: The regressor; of log(time / roofline time), or of seconds in ``kind="paper"``.
        logarithmic: Whether it is the former.
        bounds: Least and largest target that it answers.
    """

    candidate: Candidate
    encoding: Encoding
    fitted: FittedRegressor
    logarithmic: bool
    bounds: tuple[float, float]

    @classmethod
    def fit(
        cls, candidate: Candidate, table: FeatureTable, log_seconds: FloatArray, roofline: FloatArray | None
    ) -> Estimator:
        """Fit one.

        Args:
            candidate: What to fit.
            table: What was measured.
            log_seconds: Natural logarithm of the seconds, shape (n,).
            roofline: The same by the calibrated roofline; None to fit to the seconds themselves.
        """
        encoding = Encoding.of(table, candidate.features)
        if roofline is None:
            target = np.exp(log_seconds)
            # A line through seconds may leave the positive ones.
            bounds = (float(target.min()) / 10, float(target.max()) * 10)
        else:
            target = log_seconds - roofline
            most = _BEYOND_MEASURED * float(np.abs(target).max())
            bounds = (-most, most)
        names = 0 if roofline is None else encoding.names
        fitted = fit_regressor(candidate.regressor, candidate.options, encoding.columns(table), target, names=names)
        return cls(candidate, encoding, fitted, roofline is not None, bounds)

    @property
    def counts_hosts(self) -> bool:
        """Whether it counts what hosts have free: whether measurements told of it, and not all the same."""
        return bool(self.fitted.standardisation.inverse[_OF_HOSTS].any())

    def log_seconds(self, table: FeatureTable, roofline: FloatArray) -> FloatArray:
        """Return the natural logarithm of the seconds of each row, shape (n,).

        Args:
            table: The requests.
            roofline: The same by the calibrated roofline.

        Raises:
            ModelError: The embedding is not as long as the one that it was fitted with.
        """
        columns = self.encoding.columns(table)
        surplus = columns.shape[1] - len(self.fitted.standardisation.center)
        if surplus:
            size = table.embedding.shape[1]
            raise ModelError(f"an embedding of {size} numbers; this model was fitted with one of {size - surplus}")
        target = np.clip(self.fitted.predict(columns), *self.bounds)
        result: FloatArray = roofline + target if self.logarithmic else np.log(target)
        return result
