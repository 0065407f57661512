"""Fit the scorer of the default detector on generated traces: ``python benchmarks/epochs/fit_scorer.py``.

Only the families of ``families.py`` take part. Four fifths of the traces fit the trees, the rest the calibration.
"""

from __future__ import annotations

import argparse
import multiprocessing
from dataclasses import replace
from pathlib import Path

import families
import numpy as np
from generator import Example, render
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression

import gpusonde.epoch_detect.cycles.scorer as scorer_module
from gpusonde.epoch_detect.cycles.detector import CycleHypotheses, choose, find_activity, find_hypotheses, mean_period
from gpusonde.epoch_detect.cycles.features import FEATURES
from gpusonde.epoch_detect.cycles.scorer import Scorer
from gpusonde.epoch_detect.detect import round_to_wire_times
from gpusonde.epoch_detect.history import History
from gpusonde.epoch_detect.ticks import select_values

RIGHT = 0.06  # a hypothesis within this ratio of the truth is right
RIGHT_ANSWER = 0.10  # so is an answer
_SHARE_OF_POSITIVES = 0.65
_SHARE_OF_CUT = 0.3
# But for how long the GPU idles, a scheduled job looks like a checkpoint cycle; the detector has a rule for it.
_LEFT_OUT = {"timer"}
# The more of it, the likelier the hypothesis is right, all else being equal: what is known is not left to the data.
SPEAKS_FOR = {
    "agreement", "weakest_agreement", "explained_variance", "log_cycles", "autocorrelation", "support", "contrast",
    "score", "coverage", "strength", "level_agreement", "level_explained_variance", "level_weakest_agreement",
    "difference_agreement", "difference_explained_variance", "difference_weakest_agreement",
}  # fmt: skip
SPEAKS_AGAINST = {"scatter", "next_but_one_gain", "next_but_two_gain", "below_best", "jumps"}
assert set(FEATURES) >= SPEAKS_FOR | SPEAKS_AGAINST


def example(seed: int, number: int) -> Example:
    """The trace with this number; the same for the same seed."""
    rng = np.random.default_rng([seed, number])
    group = families.POSITIVE if rng.random() < _SHARE_OF_POSITIVES else families.NEGATIVE
    family = list(group)[rng.integers(len(group))]
    made = render(f"{family}-{number}", family, group[family](rng), rng)
    if rng.random() < _SHARE_OF_CUT:  # recorded from the middle of a run, or while it goes on
        span = made.trace.duration_s
        begin = rng.uniform(0, 0.4) * span if rng.random() < 0.3 else 0.0
        made = replace(made, trace=made.trace.window(begin, max(begin + 10.0, rng.uniform(0.2, 1.0) * span)))
    return made


def truths(made: Example) -> tuple[float, ...]:
    """Periods that count as right."""
    return made.regimes or (() if made.period_s is None else (made.period_s,))


def hypotheses(made: Example, number: int) -> CycleHypotheses | None:
    """What the detector sees in a trace, every third as if its run went on; None if there is nothing to judge."""
    names, values = select_values(made.trace, None)
    history = History(names)
    history.append(round_to_wire_times(made.trace.time_s), values)
    activity = find_activity(history.ticks())
    found = activity if isinstance(activity, str) else find_hypotheses(activity, ended=number % 3 > 0)
    return found if isinstance(found, CycleHypotheses) else None


def labelled(task: tuple[int, int]) -> tuple[np.ndarray, np.ndarray] | None:
    """Features and labels of the hypotheses of one trace; None if it has no hypothesis."""
    made = example(*task)
    found = None if made.family in _LEFT_OUT else hypotheses(made, task[1])
    if found is None:
        return None
    periods = np.array([r.usual_s for r in found.hypotheses])
    right = np.zeros(periods.size, dtype=bool)
    # The mean holds pauses that the cycles themselves do not, so the median counts as well.
    medians = (float(np.median(np.diff(made.epoch_starts_s))),) if truths(made) else ()
    for truth in (*truths(made), *medians):
        right |= np.abs(periods / truth - 1) < RIGHT
    return found.features.astype(np.float32), right


def outcome(task: tuple[int, int, Scorer]) -> tuple[float, bool] | None:
    """Probability that the trees give the answer of a trace, and whether it is right within 10 %."""
    seed, number, scorer = task
    made = example(seed, number)
    found = None if made.family in _LEFT_OUT else hypotheses(made, number)
    if found is None:
        return None
    choice = choose(found, scorer.probability(found.features), ended=True)
    if choice.epochs.regular.sum() < 2:
        return None
    period = mean_period(choice.epochs, choice.hypothesis.preprocessed.signal.step_s)[0]
    return choice.probability, any(abs(period / truth - 1) <= RIGHT_ANSWER for truth in truths(made))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=int, default=32_000)
    parser.add_argument("--seed", type=int, default=700)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--cache", type=Path, help="keep the features here, to fit again without generating")
    parser.add_argument("--out", type=Path, default=Path(scorer_module.__file__).with_name("scorer.npz"))
    arguments = parser.parse_args()
    with multiprocessing.Pool(arguments.processes) as pool:
        if arguments.cache and arguments.cache.exists():
            with np.load(arguments.cache) as cache:
                table, right, group = cache["table"], cache["right"], cache["group"]
        else:
            tasks = [(arguments.seed, number) for number in range(arguments.traces)]
            made = list(pool.imap(labelled, tasks, chunksize=8))
            table = np.concatenate([m[0] for m in made if m])
            right = np.concatenate([m[1] for m in made if m])
            group = np.concatenate([np.full(len(m[1]), number) for number, m in enumerate(made) if m])
            if arguments.cache:
                np.savez_compressed(arguments.cache, table=table, right=right, group=group)
        fitting = group % 5 != 4
        model = HistGradientBoostingClassifier(
            max_iter=800, max_leaf_nodes=24, learning_rate=0.05, min_samples_leaf=40, l2_regularization=5,
            random_state=0, monotonic_cst=[(name in SPEAKS_FOR) - (name in SPEAKS_AGAINST) for name in FEATURES],
        )  # fmt: skip
        model.fit(table[fitting], right[fitting])
        trees = {"features": np.array(FEATURES), **tree_arrays(model)}
        _save(arguments.out, trees, np.array([0.0, 1.0]), np.array([0.0, 1.0]))
        with arguments.out.open("rb") as file:
            scorer = Scorer.load(file)
        calibrating = [(arguments.seed, int(number), scorer) for number in np.unique(group[~fitting])]
        outcomes = [o for o in pool.imap(outcome, calibrating, chunksize=8) if o]
    raw, calibrated = calibration(*(np.array(column) for column in zip(*outcomes, strict=True)))
    _save(arguments.out, trees, raw, calibrated)
    print(f"{right.sum()} of {right.size} hypotheses right, {np.unique(group).size} traces -> {arguments.out}")


def _save(path: Path, trees: dict[str, np.ndarray], raw: np.ndarray, calibrated: np.ndarray) -> None:
    np.savez_compressed(path, raw=raw, calibrated=calibrated, **trees)  # type: ignore[arg-type]


def calibration(probability: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How often the answer of a trace is right, as a curve over the probability that the trees give its hypothesis."""
    curve = LogisticRegression().fit(_log_odds(probability)[:, None], right)
    grid = np.concatenate([[0.0], 1 / (1 + np.exp(-np.linspace(-6, 6, 97))), [1.0]])
    return grid, curve.predict_proba(_log_odds(grid)[:, None])[:, 1]


def _log_odds(probability: np.ndarray) -> np.ndarray:
    bounded = np.clip(probability, 1e-3, 1 - 1e-3)
    return np.asarray(np.log(bounded / (1 - bounded)))


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
