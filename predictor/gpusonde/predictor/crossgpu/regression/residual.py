"""The learned part: what the prior leaves over, as the mean of a Gaussian process and CatBoost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpusonde.predictor.crossgpu.regression.gaussian_process import GaussianProcess
from gpusonde.predictor.crossgpu.regression.trees import ObliviousTrees

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ResidualSettings:
    """How the two regressors are fitted; the process finds its length scale, amplitude and noise itself.

    Attributes:
        process_weight: Share of the process in the mean of the two.
        degrees_of_freedom: Of the process' Student-t noise.
        trees: Number of trees.
        learning_rate: Shrinkage of each tree.
        depth: Levels of each tree.
        feature_share: Share of the features that each split may choose from: smoother where no run was, and faster.
        seed: Random seed.
        threads: Threads for fitting; changes nothing but the time it takes.
    """

    process_weight: float = 0.6
    degrees_of_freedom: float = 4.0
    trees: int = 400
    learning_rate: float = 0.07
    depth: int = 6
    feature_share: float = 0.3
    seed: int = 0
    threads: int = 2


@dataclass(frozen=True)
class ResidualModel:
    """Two regressors of the residual that err differently: one smooth, one stepwise.

    Attributes:
        process: The smooth one.
        trees: The stepwise one.
        process_weight: Share of the process in their mean.
    """

    process: GaussianProcess
    trees: ObliviousTrees
    process_weight: float

    @classmethod
    def fit(
        cls,
        x: FloatArray,
        y: FloatArray,
        settings: ResidualSettings,
        *,
        like: ResidualModel | None = None,
        weights: FloatArray | None = None,
    ) -> ResidualModel:
        """Fit both.

        Args:
            x: Features, shape (n, features).
            y: Log latency ratio minus prior, shape (n,).
            settings: For the trees.
            like: Take the process' length, amplitude and noise from this model.
            weights: Of the rows, shape (n,), in 0..1; all 1 when left out.
        """
        process = GaussianProcess.fit(
            x, y, like=None if like is None else like.process, degrees_of_freedom=settings.degrees_of_freedom,
            weights=weights,
        )  # fmt: skip
        trees = ObliviousTrees.fit(
            x, y, trees=settings.trees, learning_rate=settings.learning_rate, depth=settings.depth,
            feature_share=settings.feature_share, seed=settings.seed, threads=settings.threads, weights=weights,
        )  # fmt: skip
        return cls(process, trees, settings.process_weight)

    def predict(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Residual, and how uncertain the query's place in feature space makes it (standard deviation).

        Args:
            x: Features, shape (queries, features).

        Returns:
            Two arrays of shape (queries,).
        """
        smooth, deviation = self.process.predict(x)
        weight = self.process_weight
        return weight * smooth + (1 - weight) * self.trees.predict(x), deviation
