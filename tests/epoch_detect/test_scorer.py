"""The shipped scorer loads without pickle, and refuses what it was not fitted to."""

import io
import random
from dataclasses import asdict

import numpy as np
import pytest

from gpusonde.epoch_detect.cycles.features import FEATURES, Features, to_table
from gpusonde.epoch_detect.cycles.scorer import Scorer
from gpusonde.errors import ModelError


def test_shipped_scorer_gives_probabilities_also_for_missing_features() -> None:
    rng = np.random.default_rng(1)
    table = rng.normal(size=(200, len(FEATURES)))
    table[rng.random(table.shape) < 0.2] = np.nan
    probability = Scorer.shipped().probability(table)
    assert probability.shape == (200,)
    assert ((probability >= 0) & (probability <= 1)).all()


def test_trees_are_walked_as_they_were_grown() -> None:
    scorer = Scorer(
        roots=np.array([0, 3]),
        feature=np.array([0, -1, -1, 1, -1, -1]),
        threshold=np.array([0.5, 0, 0, 2.0, 0, 0]),
        missing_left=np.array([True, False, False, False, False, False]),
        left=np.array([1, 0, 0, 4, 0, 0]),
        right=np.array([2, 0, 0, 5, 0, 0]),
        value=np.array([0, -1.0, 1.0, 0, 10.0, 20.0]),
        base=0.25,
        raw=np.array([0.0, 1.0]),
        calibrated=np.array([0.0, 1.0]),
    )
    table = np.array([[0.5, 2.0], [0.6, 2.1], [np.nan, np.nan]])
    np.testing.assert_allclose(scorer.log_odds(table), [0.25 - 1 + 10, 0.25 + 1 + 20, 0.25 - 1 + 20])


def test_a_file_that_is_no_scorer_is_refused_with_the_way_to_make_one() -> None:
    with pytest.raises(ModelError, match="benchmarks/epochs"):
        Scorer.load(io.BytesIO(b"nonsense"))
    other = io.BytesIO()
    np.savez(other, features=np.array(["height"]))
    other.seek(0)
    with pytest.raises(ModelError, match="benchmarks/epochs"):
        Scorer.load(other)


def test_a_scorer_of_the_same_features_in_another_order_is_refused() -> None:
    arrays = {name: getattr(Scorer.shipped(), name) for name in Scorer.__dataclass_fields__}
    for names in (FEATURES, random.Random(1).sample(FEATURES, len(FEATURES))):
        file = io.BytesIO()
        np.savez(file, features=np.array(names), **arrays)
        file.seek(0)
        if names == FEATURES:
            Scorer.load(file)
        else:
            with pytest.raises(ModelError, match="other features"):
                Scorer.load(file)


def test_a_column_holds_the_feature_of_its_name_in_whatever_order_they_are_given() -> None:
    values = {name: float(place) for place, name in enumerate(FEATURES)}
    shuffled = dict(random.Random(2).sample(sorted(values.items()), len(values)))
    table = to_table([Features(**shuffled)])
    assert table.shape == (1, len(FEATURES))
    assert asdict(Features(**shuffled)) == values
    np.testing.assert_array_equal(table[0], np.arange(len(FEATURES)))
