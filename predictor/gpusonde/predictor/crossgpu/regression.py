"""``ResidualModel``: what the prior leaves over, as the mean of a Gaussian process and CatBoost, in plain numpy.

The process has a Matern 3/2 kernel and is fitted by marginal likelihood: Rasmussen and Williams, "Gaussian Processes
for Machine Learning" (2006), equations 2.25 (mean), 4.17 (kernel) and 5.9 (gradient of the marginal likelihood). Runs
that are off by a factor of two for no visible reason are part of every table; Student-t noise, as the scale mixture of
normals that it is, keeps them from bending the rest (Lange, Little and Taylor, "Robust Statistical Modeling Using the
t Distribution", 1989: reweighting by (nu + 1) / (nu + r^2)).

CatBoost's oblivious trees are taken out of it: predicting needs neither its import, which takes a second, nor its
binary format. The trees are small arrays that a corrupted file can only make wrong, not execute.
"""

from __future__ import annotations

import json
import math
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

_ROOT_3 = math.sqrt(3.0)
_JITTER = 1e-8
_BOUNDS = ((math.log(0.05), math.log(150.0)), (math.log(0.005), math.log(5.0)), (math.log(0.005), math.log(1.0)))
_MAXIMUM_ITERATIONS = 30
_REWEIGHTINGS = 3


@dataclass(frozen=True)
class GaussianProcess:
    """A fitted process; build it with :meth:`fit`, or from its stored fields.

    Attributes:
        center: Feature means, shape (features,).
        spread: Feature standard deviations, shape (features,), > 0.
        points: Standardised training features, rounded to float32, shape (n, features).
        weights: Inverse covariance times the training targets, shape (n,).
        length: Length scale, in root mean square standard deviations per feature.
        amplitude: Standard deviation of the process.
        noise: Standard deviation of the noise.
    """

    center: FloatArray
    spread: FloatArray
    points: FloatArray
    weights: FloatArray
    length: float
    amplitude: float
    noise: float

    @classmethod
    def fit(
        cls,
        x: FloatArray,
        y: FloatArray,
        *,
        like: GaussianProcess | None = None,
        degrees_of_freedom: float | None = None,
        weights: FloatArray | None = None,
    ) -> GaussianProcess:
        """Fit to data.

        Args:
            x: Features, shape (n, features).
            y: Targets, shape (n,), expected around 0: far from the data the process returns to 0.
            like: Take length, amplitude and noise from this process instead of searching for them (folds of a cross
                validation, which differ little from the whole).
            degrees_of_freedom: Of Student-t noise; normal noise when left out.
            weights: Shape (n,), in 0..1: a point of weight 1/2 has twice the noise's variance. All 1 when left out.
        """
        center = np.asarray(x.mean(axis=0), dtype=np.float64)
        spread = x.std(axis=0)
        # A constant feature carries nothing; leaving its scale at 1 keeps a later, different value from exploding.
        scale = np.where(spread > 1e-9, spread, 1.0).astype(np.float64)
        # Rounded, so that a stored and loaded process gives exactly the same answers.
        points = ((x - center) / scale).astype(np.float32).astype(np.float64)
        distances = square_distances(points, points)
        features = points.shape[1]
        given = np.ones(len(y)) if weights is None else weights
        precision = given.copy()
        parameters = None if like is None else (like.length, like.amplitude, like.noise)
        for _ in range(1 if degrees_of_freedom is None else _REWEIGHTINGS):
            if like is None or parameters is None:
                parameters = _search(distances, features, y, precision, parameters)
            length, amplitude, noise = parameters
            kernel = _matern(distances, features, length, amplitude)[0]
            kernel[np.diag_indices_from(kernel)] += noise**2 / precision + _JITTER
            solution = np.asarray(np.linalg.solve(kernel, y), dtype=np.float64)
            if degrees_of_freedom is not None:
                residual = noise / precision * solution
                precision = (degrees_of_freedom + 1) / (degrees_of_freedom + residual**2)
                precision *= given / precision.mean()
        return cls(center, scale, points, solution, length, amplitude, noise)

    def predict(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Predict the mean, and the standard deviation given the nearest training point alone.

        The second is an upper bound of the process' standard deviation (noise included) that costs O(n) instead of
        O(n^2): conditioning on more points can only lower it. It says how far from the data a query lies.

        Args:
            x: Features, shape (queries, features).

        Returns:
            Two arrays of shape (queries,).
        """
        queries = (x - self.center) / self.spread
        distances = square_distances(queries, self.points, self._norms)
        covariance = _matern(distances, self.points.shape[1], self.length, self.amplitude)[0]
        nearest = covariance.max(axis=1) / self.amplitude**2
        deviation = np.sqrt(self.noise**2 + self.amplitude**2 * np.maximum(1.0 - nearest**2, 0.0))
        mean: FloatArray = covariance @ self.weights
        return mean, deviation

    @cached_property
    def _norms(self) -> FloatArray:
        return square_norms(self.points)


def _matern(
    squared_distances: FloatArray, features: int, length: float, amplitude: float
) -> tuple[FloatArray, FloatArray]:
    """Return covariances, and their derivative by the logarithm of the length scale."""
    scaled = squared_distances * (3.0 / (features * length**2))
    distance = np.sqrt(scaled)
    decay = amplitude**2 * np.exp(-distance)
    return (1.0 + distance) * decay, scaled * decay


def square_norms(points: FloatArray) -> FloatArray:
    """Return the squared lengths of points, shape (n,), from shape (n, features)."""
    norms: FloatArray = np.einsum("ij,ij->i", points, points)
    return norms


def square_distances(a: FloatArray, b: FloatArray, b_norms: FloatArray | None = None) -> FloatArray:
    """Return the squared distances of all points, shape (len(a), len(b)).

    Args:
        a: Shape (n, features).
        b: Shape (m, features).
        b_norms: ``square_norms(b)`` where they are known: of a few thousand points they take longer than the rest.
    """
    norms = square_norms(b) if b_norms is None else b_norms
    result: FloatArray = np.maximum(square_norms(a)[:, None] + norms[None, :] - 2.0 * (a @ b.T), 0.0)
    return result


def _search(
    distances: FloatArray,
    features: int,
    y: FloatArray,
    precision: FloatArray,
    start: tuple[float, float, float] | None,
) -> tuple[float, float, float]:
    """Find length scale, amplitude and noise of the highest marginal likelihood, given points' relative precision."""
    # SciPy's import takes a tenth of a second that prediction, which is plain numpy, should not pay.
    from scipy.linalg import cho_factor, cho_solve  # noqa: PLC0415
    from scipy.optimize import minimize  # noqa: PLC0415

    identity = np.eye(len(y))

    def negative_log_likelihood(parameters: FloatArray) -> tuple[float, FloatArray]:
        length, amplitude, noise = np.exp(parameters)
        kernel, by_length = _matern(distances, features, length, amplitude)
        variance = noise**2 / precision
        factor = cho_factor(kernel + np.diag(variance + _JITTER), lower=True)
        weights = cho_solve(factor, y)
        inner = np.outer(weights, weights) - cho_solve(factor, identity)
        value = 0.5 * float(y @ weights) + float(np.log(np.diag(factor[0])).sum())
        gradient = -0.5 * np.array(
            [np.sum(inner * by_length), 2.0 * np.sum(inner * kernel), 2.0 * np.sum(np.diag(inner) * variance)]
        )
        return value, gradient

    first = start or (2.0, max(float(np.std(y)), 0.01), 0.06)
    found = minimize(
        negative_log_likelihood, np.log(first), jac=True, method="L-BFGS-B", bounds=_BOUNDS,
        options={"maxiter": _MAXIMUM_ITERATIONS},
    )  # fmt: skip
    length, amplitude, noise = np.exp(found.x).tolist()
    return length, amplitude, noise


@dataclass(frozen=True)
class ObliviousTrees:
    """A fitted ensemble: every level of a tree asks one question, the answers' bits are the leaf's number.

    Attributes:
        feature: Feature asked at each level, shape (trees, depth), int16.
        border: The question is ``feature > border``, in float32 as CatBoost asks it, shape (trees, depth).
        leaves: Leaf values, shape (trees, 2 ** depth), float32.
        bias: Added to the sum of the leaves.
    """

    feature: npt.NDArray[np.int16]
    border: npt.NDArray[np.float32]
    leaves: npt.NDArray[np.float32]
    bias: float

    def predict(self, x: FloatArray) -> FloatArray:
        """Predict with the trees.

        Args:
            x: Features, shape (queries, features).

        Returns:
            Shape (queries,).
        """
        answers = x.astype(np.float32)[:, self.feature] > self.border
        # As floats, which BLAS multiplies; a number of a leaf is far below what they hold exactly.
        numbers = (answers.astype(np.float32) @ self._bits).astype(np.intp)
        values = self.leaves.ravel()[self._first_leaves + numbers]
        summed: FloatArray = values.sum(axis=1, dtype=np.float64) + self.bias
        return summed

    @cached_property
    def _bits(self) -> npt.NDArray[np.float32]:
        return (1 << np.arange(self.feature.shape[1])).astype(np.float32)

    @cached_property
    def _first_leaves(self) -> npt.NDArray[np.intp]:
        first: npt.NDArray[np.intp] = self.leaves.shape[1] * np.arange(self.leaves.shape[0])
        return first

    @classmethod
    def fit(
        cls,
        x: FloatArray,
        y: FloatArray,
        *,
        trees: int,
        learning_rate: float,
        depth: int,
        seed: int,
        threads: int,
        feature_share: float = 1.0,
        weights: FloatArray | None = None,
    ) -> ObliviousTrees:
        """Fit with CatBoost, root mean square error.

        Args:
            x: Features, shape (n, features).
            y: Targets, shape (n,).
            trees: Number of trees.
            learning_rate: Shrinkage of each.
            depth: Levels of each.
            seed: Random seed.
            threads: Threads to use; they change nothing but the time it takes.
            feature_share: Share of the features that each split may choose from.
            weights: Of the rows, shape (n,); all 1 when left out.
        """
        from catboost import CatBoostRegressor  # noqa: PLC0415

        model = CatBoostRegressor(
            iterations=trees, learning_rate=learning_rate, depth=depth, random_seed=seed, thread_count=threads,
            rsm=feature_share, allow_writing_files=False, verbose=False,
        )  # fmt: skip
        model.fit(x.astype(np.float32), y, sample_weight=weights)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.json"
            model.save_model(str(path), format="json")
            return cls._read_json(json.loads(path.read_text(encoding="utf-8")), depth)

    @classmethod
    def _read_json(cls, model: dict[str, Any], depth: int) -> ObliviousTrees:
        trees = model["oblivious_trees"]
        # CatBoost numbers the features it used; "flat" is the column of x.
        column = {
            info["feature_index"]: info["flat_feature_index"] for info in model["features_info"]["float_features"]
        }
        feature = np.zeros((len(trees), depth), dtype=np.int16)
        # A tree may end early: nothing exceeds an infinite border, so the missing levels answer no.
        border = np.full((len(trees), depth), np.inf, dtype=np.float32)
        leaves = np.zeros((len(trees), 1 << depth), dtype=np.float32)
        for number, tree in enumerate(trees):
            for level, split in enumerate(tree.get("splits") or ()):
                feature[number, level] = column[split["float_feature_index"]]
                border[number, level] = split["border"]
            values = tree["leaf_values"]
            leaves[number, : len(values)] = values
        scale, bias = model["scale_and_bias"]
        return cls(feature, border, leaves * np.float32(scale), float(bias[0]))


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
        """Predict the residual, and how uncertain the query's place in feature space makes it (standard deviation).

        Args:
            x: Features, shape (queries, features).

        Returns:
            Two arrays of shape (queries,).
        """
        smooth, deviation = self.process.predict(x)
        weight = self.process_weight
        return weight * smooth + (1 - weight) * self.trees.predict(x), deviation
