"""Oblivious decision trees in plain numpy: what CatBoost fits, taken out of it.

Predicting needs neither CatBoost (whose import takes a second) nor its binary format: the trees are small arrays that
store without pickle and that a corrupted file can only make wrong, not execute.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


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
        """Predict.

        Args:
            x: Features, shape (queries, features).

        Returns:
            Shape (queries,).
        """
        answers = x.astype(np.float32)[:, self.feature] > self.border
        numbers = answers @ (1 << np.arange(self.feature.shape[1]))
        values = np.take_along_axis(self.leaves[None, :, :], numbers[:, :, None], axis=2)
        summed: FloatArray = values.sum(axis=(1, 2), dtype=np.float64) + self.bias
        return summed

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
            return cls._from_json(json.loads(path.read_text(encoding="utf-8")), depth)

    @classmethod
    def _from_json(cls, model: dict[str, Any], depth: int) -> ObliviousTrees:
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
