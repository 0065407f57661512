"""Gaussian process regression with a Matern 3/2 kernel: fitted by marginal likelihood, predicted in plain numpy.

Rasmussen and Williams, "Gaussian Processes for Machine Learning" (2006), equations 2.25 (mean), 4.17 (kernel) and 5.9
(gradient of the marginal likelihood). Runs that are off by a factor of two for no visible reason are part of every
table; Student-t noise, as the scale mixture of normals that it is, keeps them from bending the rest (Lange, Little and
Taylor, "Robust Statistical Modeling Using the t Distribution", 1989: reweighting by (nu + 1) / (nu + r^2)).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

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
        distances = _squared_distances(points, points)
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
        """Mean, and standard deviation given the nearest training point alone.

        The second is an upper bound of the process' standard deviation (noise included) that costs O(n) instead of
        O(n^2): conditioning on more points can only lower it. It says how far from the data a query lies.

        Args:
            x: Features, shape (queries, features).

        Returns:
            Two arrays of shape (queries,).
        """
        queries = (x - self.center) / self.spread
        distances = _squared_distances(queries, self.points)
        covariance = _matern(distances, self.points.shape[1], self.length, self.amplitude)[0]
        nearest = covariance.max(axis=1) / self.amplitude**2
        deviation = np.sqrt(self.noise**2 + self.amplitude**2 * np.maximum(1.0 - nearest**2, 0.0))
        mean: FloatArray = covariance @ self.weights
        return mean, deviation


def _matern(
    squared_distances: FloatArray, features: int, length: float, amplitude: float
) -> tuple[FloatArray, FloatArray]:
    """Covariances, and their derivative by the logarithm of the length scale."""
    scaled = squared_distances * (3.0 / (features * length**2))
    distance = np.sqrt(scaled)
    decay = amplitude**2 * np.exp(-distance)
    return (1.0 + distance) * decay, scaled * decay


def _squared_distances(a: FloatArray, b: FloatArray) -> FloatArray:
    squares = np.einsum("ij,ij->i", a, a)[:, None] + np.einsum("ij,ij->i", b, b)[None, :] - 2.0 * (a @ b.T)
    result: FloatArray = np.maximum(squares, 0.0)
    return result


def _search(
    distances: FloatArray,
    features: int,
    y: FloatArray,
    precision: FloatArray,
    start: tuple[float, float, float] | None,
) -> tuple[float, float, float]:
    """Length scale, amplitude and noise of the highest marginal likelihood, given each point's relative precision."""
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
