"""Fit the scorer of the default detector on generated traces: ``python benchmarks/epochs/fit_scorer.py``.

Only the families of ``families.py`` take part. Four fifths of the traces fit the trees, the rest the calibration.
"""

from __future__ import annotations

import argparse
import multiprocessing
from pathlib import Path

import families
import numpy as np
from generator import Example, render
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression

import gpusonde.epoch_detect.scorer as scorer_module
from gpusonde.epoch_detect.detect import wire_times
from gpusonde.epoch_detect.detector import Readings, read_all
from gpusonde.epoch_detect.features import FEATURES
from gpusonde.epoch_detect.history import History
from gpusonde.epoch_detect.ticks import trace_values

RIGHT = 0.06  # a reading within this ratio of the truth is right
_SHARE_OF_POSITIVES = 0.6
# But for how long the GPU idles, a scheduled job looks like a checkpoint cycle; the detector has a rule for it.
_LEFT_OUT = {"timer"}
# The more of it, the likelier the reading is right, all else being equal: what is known is not left to the data.
SPEAKS_FOR = {
    "agreement", "weakest", "explained", "log_cycles", "autocorrelation", "support", "contrast", "score", "coverage",
    "strength", "agreement_of_levels", "explained_of_levels", "weakest_of_levels", "agreement_of_changes",
    "explained_of_changes", "weakest_of_changes",
}  # fmt: skip
SPEAKS_AGAINST = {"scatter", "next_but_one_gain", "next_but_two_gain", "below_best", "jumps"}


def example(seed: int, number: int) -> Example:
    """The trace with this number; the same for the same seed."""
    rng = np.random.default_rng([seed, number])
    group = families.POSITIVE if rng.random() < _SHARE_OF_POSITIVES else families.NEGATIVE
    family = list(group)[rng.integers(len(group))]
    return render(f"{family}-{number}", family, group[family](rng), rng)


def labelled(task: tuple[int, int]) -> tuple[np.ndarray, np.ndarray] | None:
    """Features and labels of the readings of one trace; None if it has no reading."""
    made = example(*task)
    if made.family in _LEFT_OUT:
        return None
    names, values = trace_values(made.trace, None)
    history = History(names)
    history.append(wire_times(made.trace.time_s), values)
    found = read_all(history.ticks())
    if not isinstance(found, Readings):
        return None
    periods = np.array([r.period_s for r in found.readings])
    right = np.zeros(periods.size, dtype=bool)
    if made.period_s is not None:
        # The mean holds pauses that the cycles themselves do not, so the median counts as well.
        for truth in (made.period_s, float(np.median(np.diff(made.epoch_starts_s)))):
            right |= np.abs(periods / truth - 1) < RIGHT
    return found.features.astype(np.float32), right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=300)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--cache", type=Path, help="keep the features here, to fit again without generating")
    parser.add_argument("--out", type=Path, default=Path(scorer_module.__file__).with_name("scorer.npz"))
    arguments = parser.parse_args()
    if arguments.cache and arguments.cache.exists():
        with np.load(arguments.cache) as cache:
            table, right, group = cache["table"], cache["right"], cache["group"]
    else:
        with multiprocessing.Pool(arguments.processes) as pool:
            tasks = [(arguments.seed, number) for number in range(arguments.traces)]
            made = [m for m in pool.imap(labelled, tasks, chunksize=8) if m is not None]
        table, right = np.concatenate([m[0] for m in made]), np.concatenate([m[1] for m in made])
        group = np.repeat(np.arange(len(made)), [len(m[1]) for m in made])
        if arguments.cache:
            np.savez_compressed(arguments.cache, table=table, right=right, group=group)
    calibrating = group % 5 == 4
    model = HistGradientBoostingClassifier(
        max_iter=250, max_leaf_nodes=10, learning_rate=0.06, min_samples_leaf=40, l2_regularization=5, random_state=0,
        monotonic_cst=[(name in SPEAKS_FOR) - (name in SPEAKS_AGAINST) for name in FEATURES],
    )  # fmt: skip
    model.fit(table[~calibrating], right[~calibrating])
    raw, calibrated = calibration(model.predict_proba(table)[:, 1][calibrating], right[calibrating], group[calibrating])
    np.savez_compressed(
        arguments.out, features=np.array(FEATURES), raw=raw, calibrated=calibrated, **tree_arrays(model)
    )
    print(f"{right.sum()} of {right.size} readings right, {group.max() + 1} traces -> {arguments.out}")


def calibration(probability: np.ndarray, right: np.ndarray, group: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How often the likeliest reading of a trace is right, as a curve over its probability."""
    chosen = [int(i) for i in _best_of_each(probability, group)]
    curve = LogisticRegression().fit(_log_odds(probability[chosen])[:, None], right[chosen])
    grid = np.concatenate([[0.0], 1 / (1 + np.exp(-np.linspace(-6, 6, 97))), [1.0]])
    return grid, curve.predict_proba(_log_odds(grid)[:, None])[:, 1]


def _log_odds(probability: np.ndarray) -> np.ndarray:
    bounded = np.clip(probability, 1e-3, 1 - 1e-3)
    return np.asarray(np.log(bounded / (1 - bounded)))


def _best_of_each(probability: np.ndarray, group: np.ndarray) -> list[int]:
    order = np.lexsort((-probability, group))
    first = np.concatenate([[True], np.diff(group[order]) != 0])
    return order[first].tolist()


def tree_arrays(model: HistGradientBoostingClassifier) -> dict[str, np.ndarray]:
    """The fitted trees as arrays in which each node names its successors."""
    trees = [predictors[0].nodes for predictors in model._predictors]
    offsets = np.cumsum([0, *(len(nodes) for nodes in trees[:-1])])
    joined = np.concatenate(trees)
    shift = np.repeat(offsets, [len(nodes) for nodes in trees])
    leaf = joined["is_leaf"].astype(bool)
    return {
        "roots": offsets.astype(np.int32),
        "feature": np.where(leaf, -1, joined["feature_idx"]).astype(np.int16),
        "threshold": np.where(leaf, 0.0, joined["num_threshold"]),
        "missing_left": joined["missing_go_to_left"].astype(bool),
        "left": np.where(leaf, 0, joined["left"] + shift).astype(np.int32),
        "right": np.where(leaf, 0, joined["right"] + shift).astype(np.int32),
        "value": np.where(leaf, joined["value"], 0.0),
        "base": np.array(float(np.ravel(model._baseline_prediction)[0])),
    }


if __name__ == "__main__":
    main()
