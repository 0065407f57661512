"""The learned part: what the prior leaves over, as the mean of a Gaussian process and CatBoost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpusonde.predictor.crossgpu.gaussian_process import GaussianProcess
from gpusonde.predictor.crossgpu.trees import ObliviousTrees

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ResidualSettings:
    """How the trees are fitted; the Gaussian process finds its own parameters.

    Attributes:
        trees: Number of trees.
        learning_rate: Shrinkage of each tree.
        depth: Levels of each tree.
        seed: Random seed.
        threads: Threads for fitting; changes nothing but the time it takes.
    """

    trees: int = 350
    learning_rate: float = 0.07
    depth: int = 6
    seed: int = 0
    threads: int = 2


@dataclass(frozen=True)
class ResidualModel:
    """Two regressors of the residual that err differently: one smooth, one stepwise."""

    process: GaussianProcess
    trees: ObliviousTrees

    @classmethod
    def fit(
        cls, x: FloatArray, y: FloatArray, settings: ResidualSettings, *, like: ResidualModel | None = None
    ) -> ResidualModel:
        """Fit both.

        Args:
            x: Features, shape (n, features).
            y: Log latency ratio minus prior, shape (n,).
            settings: For the trees.
            like: Take the process' length, amplitude and noise from this model.
        """
        process = GaussianProcess.fit(x, y, like=None if like is None else like.process)
        trees = ObliviousTrees.fit(
            x, y, trees=settings.trees, learning_rate=settings.learning_rate, depth=settings.depth,
            seed=settings.seed, threads=settings.threads,
        )  # fmt: skip
        return cls(process, trees)

    def predict(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Residual, and how uncertain the query's place in feature space makes it (standard deviation).

        Args:
            x: Features, shape (queries, features).

        Returns:
            Two arrays of shape (queries,).
        """
        smooth, deviation = self.process.predict(x)
        return 0.5 * (smooth + self.trees.predict(x)), deviation
