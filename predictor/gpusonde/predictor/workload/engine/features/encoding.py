"""``Encoding``: which columns of a feature table a regressor gets, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpusonde.predictor.workload.engine.features.columns import FeatureTable

FloatArray = npt.NDArray[np.float64]

ROOFLINE = "roofline"
ANALYTIC = "roofline+analytic"
EMBEDDED = "roofline+analytic+embedding"
EMBEDDING = "embedding"
FEATURE_SETS = (ROOFLINE, ANALYTIC, EMBEDDED, EMBEDDING)
WITH_EMBEDDING = (EMBEDDED, EMBEDDING)
CATEGORIES = ("environment", "device", "precision", "parallelism")


@dataclass(frozen=True)
class Encoding:
    """Columns for a regressor.

    Attributes:
        features: Which sets of columns, one of ``FEATURE_SETS``.
        categories: Of environment, device, precision and parallelism, the values that have a column. All columns of a
            value that has none are 0: an unknown place is like no place.
    """

    features: str
    categories: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, table: FeatureTable, features: str) -> Encoding:
        """Give every value in the table a column."""
        return cls(
            features,
            tuple(tuple(value for value in np.unique(getattr(table, name)).tolist() if value) for name in CATEGORIES),
        )

    def columns(self, table: FeatureTable) -> FloatArray:
        """The columns, shape (n, columns)."""
        blocks = [table.cluster]
        if self.features != EMBEDDING:
            blocks.append(np.log(table.parts))
        if self.features in (ANALYTIC, EMBEDDED):
            blocks.append(table.analytic)
        if self.features in WITH_EMBEDDING:
            blocks.append(table.embedding)
        for name, values in zip(CATEGORIES, self.categories, strict=True):
            blocks.append(_one_hot(getattr(table, name), values))
        return np.hstack(blocks)


def _one_hot(column: npt.NDArray[np.str_], values: Sequence[str]) -> FloatArray:
    if not values:
        return np.zeros((len(column), 0))
    found: FloatArray = (column[:, None] == np.array(values)[None, :]).astype(np.float64)
    return found
