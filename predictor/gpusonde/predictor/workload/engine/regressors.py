"""The regressors: fitted with scikit-learn, kept as plain arrays that NumPy predicts with.

Columns are standardised first, but those of names; one that is the same in all rows says nothing and is left out. A
regressor that was read from a file needs no scikit-learn, and no bytes of the file are ever run.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpusonde.errors import ModelError

FloatArray = npt.NDArray[np.float64]
Arrays = Mapping[str, npt.NDArray[Any]]

REGRESSORS = ("linear", "polynomial", "svr", "mlp", "boosted_residual")
_SEED = 0
_SAME = 1e-9


@dataclass(frozen=True)
class Standardisation:
    """Means and inverse deviations of columns, and of the target.

    Attributes:
        center: Shape (columns,).
        inverse: Shape (columns,); 0 of a column that was the same in all rows.
        target_center: Mean of the target.
        target_spread: Standard deviation of the target.
    """

    center: FloatArray
    inverse: FloatArray
    target_center: float
    target_spread: float

    @classmethod
    def fit(cls, x: FloatArray, y: FloatArray, *, names: int = 0) -> Standardisation:
        """Take them from columns, shape (n, columns), of which the last ``names`` keep their scale, and target."""
        spread = x.std(axis=0)
        inverse = np.where(spread > _SAME, 1.0 / np.maximum(spread, _SAME), 0.0)
        # By its deviation a rare place would lie further from all others than any two networks do.
        named = inverse[len(inverse) - names :]
        named[named > 0.0] = 1.0
        return cls(x.mean(axis=0), inverse, float(y.mean()), float(max(y.std(), _SAME)))

    def columns(self, x: FloatArray) -> FloatArray:
        """Standardise columns."""
        scaled: FloatArray = (x - self.center) * self.inverse
        return scaled


@dataclass(frozen=True)
class FittedRegressor:
    """A regressor as arrays.

    Attributes:
        name: One of ``REGRESSORS``.
        standardisation: Of its columns and target.
        arrays: What it learned; which ones, and of which shapes, ``check_arrays`` says.
    """

    name: str
    standardisation: Standardisation
    arrays: Arrays

    def predict(self, x: FloatArray) -> FloatArray:
        """Predict, shape (n,), from columns, shape (n, columns)."""
        scale = self.standardisation
        return scale.target_center + scale.target_spread * _PREDICT[self.name](scale.columns(x), self.arrays)


def fit_regressor(
    name: str, options: Mapping[str, Any], x: FloatArray, y: FloatArray, *, names: int = 0
) -> FittedRegressor:
    """Fit one.

    Args:
        name: One of ``REGRESSORS``.
        options: Of the regressor; see ``fitting.py`` for those that are tried.
        x: Columns, shape (n, columns).
        y: Target, shape (n,).
        names: How many columns, the last ones, are 1 for one name of a category: they keep their scale.

    Raises:
        ModelError: There is no such regressor.
    """
    if name not in REGRESSORS:
        raise ModelError(f"no regressor {name!r}; known: {', '.join(REGRESSORS)}")
    scale = Standardisation.fit(x, y, names=names)
    target = (y - scale.target_center) / scale.target_spread
    with warnings.catch_warnings():
        # A few neurons may not settle in the steps they are given: validation judges what came of it.
        warnings.simplefilter("ignore")
        arrays = _FIT[name](scale.columns(x), target, dict(options))
    return FittedRegressor(name, scale, arrays)


def check_arrays(name: str, arrays: Arrays, columns: int) -> None:
    """Check arrays that come from a file.

    Args:
        name: Of the regressor.
        arrays: What it is to predict with.
        columns: How many columns it gets.

    Raises:
        ValueError: It could not predict with them.
    """

    def need(condition: bool) -> None:
        if not condition:
            raise ValueError(f"the arrays of {name} do not fit together")

    shapes = {key: array.shape for key, array in arrays.items()}
    if name in ("linear", "polynomial"):
        wide = columns if name == "linear" else columns + columns * (columns + 1) // 2
        need(shapes == {"coefficients": (wide,), "intercept": (1,)})
    elif name == "svr":
        vectors = len(arrays["dual"])
        need(shapes == {"support": (vectors, columns), "dual": (vectors,), "intercept": (1,), "gamma": (1,)})
    elif name == "mlp":
        neurons = len(arrays["hidden_bias"])
        hidden = {"hidden_weights": (columns, neurons), "hidden_bias": (neurons,)}
        need(shapes == {**hidden, "output_weights": (neurons,), "output_bias": (1,)})
    else:
        feature = arrays["feature"]
        size = dict.fromkeys(("feature", "border", "below", "above", "value"), feature.shape)
        need(shapes == {**size, "bias": (1,)} and feature.ndim == 2 and feature.size > 0)
        need(all(arrays[key].dtype.kind == "i" for key in ("feature", "below", "above")))
        need(bool((feature < columns).all()))
        # A walk ends where every child has a higher number than its parent.
        own = np.arange(feature.shape[1])[None, :]
        for key in ("below", "above"):
            child = arrays[key]
            need(bool(((feature < 0) | ((child > own) & (child < feature.shape[1]))).all()))


def expand_second_order(x: FloatArray) -> FloatArray:
    """Return columns, their squares and their products by two."""
    return np.hstack([x, *(x[:, [column]] * x[:, column:] for column in range(x.shape[1]))])


def _fit_linear(x: FloatArray, y: FloatArray, options: dict[str, Any]) -> Arrays:
    from sklearn.linear_model import Ridge  # noqa: PLC0415

    model = Ridge(alpha=options.get("alpha", 1.0)).fit(x, y)
    return {"coefficients": model.coef_, "intercept": np.array([model.intercept_])}


def _predict_linear(x: FloatArray, arrays: Arrays) -> FloatArray:
    predicted: FloatArray = x @ arrays["coefficients"] + arrays["intercept"][0]
    return predicted


def _fit_polynomial(x: FloatArray, y: FloatArray, options: dict[str, Any]) -> Arrays:
    return _fit_linear(expand_second_order(x), y, options)


def _predict_polynomial(x: FloatArray, arrays: Arrays) -> FloatArray:
    return _predict_linear(expand_second_order(x), arrays)


def _fit_svr(x: FloatArray, y: FloatArray, options: dict[str, Any]) -> Arrays:
    from sklearn.svm import SVR  # noqa: PLC0415

    kernel = options.get("kernel", "rbf")
    model = SVR(
        kernel=kernel, C=options["c"], gamma=options.get("gamma", 1.0), epsilon=options["epsilon"], cache_size=200,
        max_iter=options.get("steps", -1),
    ).fit(x, y)  # fmt: skip
    return {
        "support": x[model.support_],
        "dual": model.dual_coef_.ravel(),
        "intercept": np.array([float(model.intercept_[0])]),
        # 0 is the linear kernel.
        "gamma": np.array([options.get("gamma", 1.0) if kernel == "rbf" else 0.0]),
    }


def _predict_svr(x: FloatArray, arrays: Arrays) -> FloatArray:
    support, gamma = arrays["support"], float(arrays["gamma"][0])
    product = x @ support.T
    if gamma > 0:
        squares = np.einsum("ij,ij->i", x, x)[:, None] + np.einsum("ij,ij->i", support, support)[None, :]
        product = np.exp(-gamma * np.maximum(squares - 2.0 * product, 0.0))
    predicted: FloatArray = product @ arrays["dual"] + arrays["intercept"][0]
    return predicted


def _fit_mlp(x: FloatArray, y: FloatArray, options: dict[str, Any]) -> Arrays:
    from sklearn.neural_network import MLPRegressor  # noqa: PLC0415

    model = MLPRegressor(
        hidden_layer_sizes=(options["neurons"],), activation="tanh", solver="lbfgs", alpha=options.get("alpha", 1.0),
        max_iter=options.get("steps", 300), random_state=_SEED,
    ).fit(x, y)  # fmt: skip
    return {
        "hidden_weights": model.coefs_[0],
        "hidden_bias": model.intercepts_[0],
        "output_weights": model.coefs_[1].ravel(),
        "output_bias": model.intercepts_[1],
    }


def _predict_mlp(x: FloatArray, arrays: Arrays) -> FloatArray:
    hidden = np.tanh(x @ arrays["hidden_weights"] + arrays["hidden_bias"])
    predicted: FloatArray = hidden @ arrays["output_weights"] + arrays["output_bias"][0]
    return predicted


def _fit_boosted(x: FloatArray, y: FloatArray, options: dict[str, Any]) -> Arrays:
    from sklearn.ensemble import GradientBoostingRegressor  # noqa: PLC0415

    model = GradientBoostingRegressor(
        n_estimators=options.get("trees", 120), learning_rate=options.get("learning_rate", 0.12),
        max_depth=options.get("depth", 4), subsample=options.get("subsample", 0.5),
        max_features=options.get("feature_share", 0.4), min_samples_leaf=5, random_state=_SEED,
    ).fit(x.astype(np.float32), y)  # fmt: skip
    trees = [stage[0].tree_ for stage in model.estimators_]
    size = max(tree.node_count for tree in trees)
    feature = np.full((len(trees), size), -1, dtype=np.int32)
    border, value = np.zeros((len(trees), size)), np.zeros((len(trees), size))
    below, above = np.zeros((len(trees), size), dtype=np.int32), np.zeros((len(trees), size), dtype=np.int32)
    for number, tree in enumerate(trees):
        nodes = slice(0, tree.node_count)
        leaf = tree.children_left < 0
        feature[number, nodes] = np.where(leaf, -1, tree.feature)
        border[number, nodes] = tree.threshold
        below[number, nodes] = np.where(leaf, 0, tree.children_left)
        above[number, nodes] = np.where(leaf, 0, tree.children_right)
        value[number, nodes] = model.learning_rate * tree.value[:, 0, 0]
    return {
        "feature": feature,
        "border": border,
        "below": below,
        "above": above,
        "value": value,
        "bias": np.array([float(model.init_.predict(x[:1])[0])]),
    }


def _predict_boosted(x: FloatArray, arrays: Arrays) -> FloatArray:
    # The trees ask about single precision, as they were fitted to it.
    x = x.astype(np.float32)
    feature, border = arrays["feature"], arrays["border"]
    rows, trees = np.arange(len(x))[:, None], np.arange(len(feature))[None, :]
    node = np.zeros((len(x), len(feature)), dtype=np.intp)
    # Children have higher numbers than their parents, so every walk ends.
    while True:
        asked = feature[trees, node]
        inner = asked >= 0
        if not inner.any():
            break
        goes_below = x[rows, np.maximum(asked, 0)] <= border[trees, node]
        following = np.where(goes_below, arrays["below"][trees, node], arrays["above"][trees, node])
        node = np.where(inner, following, node)
    predicted: FloatArray = arrays["value"][trees, node].sum(axis=1) + arrays["bias"][0]
    return predicted


_FIT: Mapping[str, Callable[[FloatArray, FloatArray, dict[str, Any]], Arrays]] = {
    "linear": _fit_linear,
    "polynomial": _fit_polynomial,
    "svr": _fit_svr,
    "mlp": _fit_mlp,
    "boosted_residual": _fit_boosted,
}
_PREDICT: Mapping[str, Callable[[FloatArray, Arrays], FloatArray]] = {
    "linear": _predict_linear,
    "polynomial": _predict_polynomial,
    "svr": _predict_svr,
    "mlp": _predict_mlp,
    "boosted_residual": _predict_boosted,
}
