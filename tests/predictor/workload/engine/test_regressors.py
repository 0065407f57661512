"""Regressors: kept arrays answer as scikit-learn's own objects, and validation keeps architectures whole."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.linear_model import Ridge
from sklearn.neural_network import MLPRegressor
from sklearn.preprocessing import PolynomialFeatures
from sklearn.svm import SVR

from gpusonde.errors import ModelError
from gpusonde.predictor.workload.engine.estimator import Candidate
from gpusonde.predictor.workload.engine.fitting import (
    ValidatedCandidate,
    choose_first_of_best,
    list_default_candidates,
    list_paper_candidates,
    split_by_group,
)
from gpusonde.predictor.workload.engine.regressors import Standardisation, fit_regressor

DRAWN = np.random.default_rng(3)
X = DRAWN.normal(size=(150, 6)) * [1, 10, 0.1, 1, 1, 0] + 5
Y = np.sin(X[:, 0]) + 0.1 * X[:, 1] + 0.1 * DRAWN.normal(size=150)
NEW = X[:20] + 0.3


def theirs(make, expand=None):
    scale = Standardisation.fit(X, Y)
    x, new = scale.columns(X), scale.columns(NEW)
    if expand is not None:
        x, new = expand(x), expand(new)
    fitted = make().fit(x, (Y - scale.target_center) / scale.target_spread)
    return scale.target_center + scale.target_spread * fitted.predict(new)


@pytest.mark.parametrize(
    ("name", "options", "make"),
    [
        ("linear", {"alpha": 2.0}, lambda: Ridge(2.0)),
        ("svr", {"c": 10.0, "gamma": 0.1, "epsilon": 0.05}, lambda: SVR(C=10, gamma=0.1, epsilon=0.05)),
        ("svr", {"c": 1.0, "epsilon": 0.1, "kernel": "linear"}, lambda: SVR(kernel="linear", C=1, epsilon=0.1)),
        (
            "mlp",
            {"neurons": 3, "alpha": 1.0},
            lambda: MLPRegressor(
                hidden_layer_sizes=(3,), activation="tanh", solver="lbfgs", alpha=1.0, max_iter=300, random_state=0
            ),
        ),
    ],
)  # fmt: skip
def test_kept_arrays_answer_as_the_library(name, options, make):
    np.testing.assert_allclose(fit_regressor(name, options, X, Y).predict(NEW), theirs(make), rtol=1e-6, atol=1e-8)


def test_names_keep_their_scale_so_that_a_rare_place_lies_no_further_away_than_a_common_one():
    rare, common, constant = (np.arange(150) < count for count in (3, 75, 150))
    x = np.column_stack([X, rare, common, constant])
    scale = fit_regressor("svr", {"c": 1.0, "epsilon": 0.1}, x, Y, names=3).standardisation
    assert scale.inverse[-3:].tolist() == [1.0, 1.0, 0.0]
    np.testing.assert_array_equal(scale.inverse[:-3], Standardisation.fit(X, Y).inverse)


def test_the_polynomial_is_of_second_order():
    expand = PolynomialFeatures(2, include_bias=False).fit_transform
    expected = theirs(lambda: Ridge(5.0), expand)
    np.testing.assert_allclose(fit_regressor("polynomial", {"alpha": 5.0}, X, Y).predict(NEW), expected, rtol=1e-6)


def test_kept_trees_answer_as_the_library():
    expected = theirs(
        lambda: GradientBoostingRegressor(
            n_estimators=120, learning_rate=0.12, max_depth=4, subsample=0.5, max_features=0.4, min_samples_leaf=5,
            random_state=0,
        ),
        lambda x: x.astype(np.float32),
    )  # fmt: skip
    np.testing.assert_allclose(fit_regressor("boosted_residual", {}, X, Y).predict(NEW), expected, rtol=1e-6)


def test_a_column_that_never_changed_says_nothing():
    fitted = fit_regressor("svr", {"c": 10.0, "gamma": 0.1, "epsilon": 0.05}, X, Y)
    changed = NEW.copy()
    changed[:, 5] = 1e6
    np.testing.assert_array_equal(fitted.predict(changed), fitted.predict(NEW))


def test_an_unknown_regressor_is_refused():
    with pytest.raises(ModelError, match="forest"):
        fit_regressor("forest", {}, X, Y)


def test_folds_keep_groups_whole_and_are_of_like_size():
    groups = np.array(list("aaaaaabbbbccccddeef"))
    folds = split_by_group(groups, 3)
    assert len(folds) == 3
    for training, held_out in folds:
        assert not set(groups[training]) & set(groups[held_out])
        assert 5 <= held_out.sum() <= 8
    assert np.sum([held_out for _, held_out in folds], axis=0).tolist() == [1] * len(groups)


def test_the_preferred_choice_stays_unless_another_is_clearly_better():
    groups = np.repeat([f"g{number}" for number in range(8)], 5)
    noise = np.abs(DRAWN.normal(0.10, 0.03, size=40))
    first = ValidatedCandidate(Candidate("svr", "roofline"), float(noise.mean()), noise)
    slightly = noise - 0.02 * np.repeat([1, 1, 1, 1, -0.5, -0.5, -0.5, -0.5], 5)
    clearly = noise * 0.5
    assert (
        choose_first_of_best(
            [first, ValidatedCandidate(Candidate("mlp", "roofline"), float(slightly.mean()), slightly)], groups
        )
        is first
    )
    better = ValidatedCandidate(Candidate("mlp", "roofline"), float(clearly.mean()), clearly)
    assert choose_first_of_best([first, better], groups) is better


def test_the_papers_grid_is_tried_whole():
    candidates = list_paper_candidates(embedding=True)
    vectors = [each.options for each in candidates if each.regressor == "svr"]
    assert {each["c"] for each in vectors} == {1, 10, 100, 1000}
    assert {each.get("gamma") for each in vectors} == {None, 0.05, 0.1, 0.2, 0.5}
    assert {each["epsilon"] for each in vectors} == {0.05, 0.1, 0.2}
    assert {each.options["neurons"] for each in candidates if each.regressor == "mlp"} == {1, 2, 3, 4, 5}
    assert {each.features for each in candidates} == {"embedding"}


def test_support_vectors_on_counts_are_preferred_and_an_embedding_is_only_tried_where_there_is_one():
    assert list_default_candidates(embedding=False)[0].regressor == "svr"
    assert list_default_candidates(embedding=False)[0].features == "roofline+analytic"
    assert not any("embedding" in each.features for each in list_default_candidates(embedding=False))
    assert any("embedding" in each.features for each in list_default_candidates(embedding=True))
