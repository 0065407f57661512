"""Which regressor, with which options and columns: by validation on architectures that were left out.

Rows of one architecture are all in the training part or all in the validation part: a split of rows lets whatever
memorises architectures win. ``kind="paper"`` splits rows, as the PredictDDL paper does.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpusonde.predictor.workload.engine.features.columns import FeatureTable
from gpusonde.predictor.workload.engine.features.encoding import ANALYTIC, EMBEDDED, EMBEDDING, ROOFLINE
from gpusonde.predictor.workload.engine.learning.estimator import Candidate, Estimator
from gpusonde.predictor.workload.engine.regression.calibration import CalibratedRoofline

FloatArray = npt.NDArray[np.float64]
Fold = tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]

_FOLDS = 4
_PAPER_TRAINING_SHARE = 0.8
_SEED = 0
_CLEARLY = 3.0

# The PredictDDL paper, section IV-B2: C from 1 to 1000, gamma 0.05 to 0.5, epsilon 0.05 to 0.2, radial and linear.
_PAPER_C = (1.0, 10.0, 100.0, 1000.0)
_PAPER_GAMMA = (0.05, 0.1, 0.2, 0.5)
_PAPER_EPSILON = (0.05, 0.1, 0.2)
_PAPER_NEURONS = (1, 2, 3, 4, 5)
# Columns and targets are standardised, and the target is what the roofline leaves over: the rest of the paper's grid
# follows single rows.
_DEFAULT_SVR = ((10.0, 0.05, 0.05), (10.0, 0.1, 0.05), (1.0, 0.05, 0.1), (1.0, 0.1, 0.1))
# A vector that does not settle is no candidate worth waiting for.
_SVR_STEPS = 200_000


@dataclass(frozen=True)
class Choice:
    """A candidate that was validated.

    Attributes:
        candidate: It.
        score: Mean absolute error of the logarithm in validation; of ``kind="paper"`` the mean relative error.
        errors: Of the logarithm, of rows that it was not fitted on, shape (n,).
    """

    candidate: Candidate
    score: float
    errors: FloatArray


def default_candidates(*, embedding: bool) -> list[Candidate]:
    """What ``kind="default"`` tries, what it prefers first: support vectors, in the lower corner of the paper's grid.

    Args:
        embedding: Whether there are columns of an embedding.
    """
    found = []
    for features in [ANALYTIC, *([EMBEDDED] if embedding else []), ROOFLINE]:
        few = features == ROOFLINE
        found += [
            Candidate("svr", features, {"c": c, "gamma": gamma, "epsilon": epsilon, "steps": _SVR_STEPS})
            for c, gamma, epsilon in (_DEFAULT_SVR[::2] if few else _DEFAULT_SVR)
        ]
        found += [] if few else [Candidate("boosted_residual", features)]
        found += [Candidate("linear", features, {"alpha": alpha}) for alpha in (1.0, 30.0)]
        found.append(Candidate("polynomial", features, {"alpha": 100.0 if few else 1000.0}))
        found += [Candidate("mlp", features, {"neurons": neurons, "alpha": 5.0}) for neurons in (1, 3, 5)]
    return found


def paper_candidates(*, embedding: bool) -> list[Candidate]:
    """What ``kind="paper"`` tries: the four regressors of the paper with the options that it names.

    Args:
        embedding: Whether there are columns of an embedding: then they describe the network, else counts do.
    """
    features = EMBEDDING if embedding else ANALYTIC
    found = [Candidate("polynomial", features, {"alpha": 1e-6}), Candidate("linear", features, {"alpha": 1e-6})]
    for c, epsilon in itertools.product(_PAPER_C, _PAPER_EPSILON):
        options = {"c": c, "epsilon": epsilon, "steps": _SVR_STEPS}
        found += [Candidate("svr", features, {**options, "gamma": gamma}) for gamma in _PAPER_GAMMA]
        found.append(Candidate("svr", features, {**options, "kernel": "linear"}))
    found += [Candidate("mlp", features, {"neurons": neurons, "alpha": 1e-4}) for neurons in _PAPER_NEURONS]
    return found


def validate_grouped(
    candidates: Sequence[Candidate],
    table: FeatureTable,
    log_seconds: FloatArray,
    architectures: npt.NDArray[np.str_],
    whole: CalibratedRoofline,
) -> tuple[list[Choice], FloatArray]:
    """Validate candidates of ``kind="default"`` on architectures left out.

    Args:
        candidates: To compare.
        table: What was measured.
        log_seconds: Natural logarithm of the seconds, shape (n,).
        architectures: Of each row.
        whole: The roofline calibrated on all rows, from which each fold's is found sooner.

    Returns:
        A choice per candidate, and the errors of the calibrated roofline alone, shape (n,).
    """
    errors = np.zeros((len(candidates), len(table)))
    own = np.zeros(len(table))
    for training, held_out in grouped_folds(architectures):
        part, rest = table.rows(training), table.rows(held_out)
        roofline = CalibratedRoofline.fit(part, log_seconds[training], near=whole)
        known, asked = roofline.log_seconds(part), roofline.log_seconds(rest)
        own[held_out] = asked - log_seconds[held_out]
        for number, candidate in enumerate(candidates):
            estimator = Estimator.fit(candidate, part, log_seconds[training], known)
            errors[number, held_out] = estimator.log_seconds(rest, asked) - log_seconds[held_out]
    return [
        Choice(candidate, float(np.abs(each).mean()), each) for candidate, each in zip(candidates, errors, strict=True)
    ], own


def validate_paper(
    candidates: Sequence[Candidate], table: FeatureTable, log_seconds: FloatArray
) -> tuple[list[Choice], npt.NDArray[np.bool_]]:
    """Validate candidates of ``kind="paper"`` on a random fifth of the rows.

    Returns:
        A choice per candidate, with errors of the held-out rows only, and which rows those are.
    """
    order = np.random.default_rng(_SEED).permutation(len(table))
    training = np.zeros(len(table), dtype=bool)
    training[order[: max(1, round(_PAPER_TRAINING_SHARE * len(table)))]] = True
    part, rest = table.rows(training), table.rows(~training)
    choices = []
    for candidate in candidates:
        estimator = Estimator.fit(candidate, part, log_seconds[training], None)
        errors = estimator.log_seconds(rest, np.zeros(len(rest))) - log_seconds[~training]
        choices.append(Choice(candidate, float(np.abs(np.expm1(errors)).mean()), errors))
    return choices, ~training


def first_of_the_best(choices: Sequence[Choice], groups: npt.NDArray[np.str_]) -> Choice:
    """The first choice that the best one does not beat clearly.

    Clearly is by more than three standard errors of the difference, over the groups that were left out: what a few
    architectures happen to favour is no reason to leave the preferred one.

    Args:
        choices: Of the same rows, preferred ones first.
        groups: Of each row, what was left out together.
    """
    best = min(choices, key=lambda choice: choice.score)
    names, inverse, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    for choice in choices:
        worse = np.abs(choice.errors) - np.abs(best.errors)
        by_group = np.bincount(inverse, weights=worse, minlength=len(names)) / sizes
        if by_group.mean() <= _CLEARLY * by_group.std(ddof=1) / np.sqrt(len(names)):
            return choice
    return best


def by_regressor(choices: Sequence[Choice]) -> dict[str, list[Choice]]:
    """The choices of every regressor, in the order in which they were tried."""
    found: dict[str, list[Choice]] = {}
    for choice in choices:
        found.setdefault(choice.candidate.regressor, []).append(choice)
    return found


def grouped_folds(groups: npt.NDArray[np.str_], count: int = _FOLDS) -> list[Fold]:
    """Splits that keep groups whole: large groups first, each into the fold with the fewest rows.

    Args:
        groups: Of each row.
        count: Folds, at most as many as groups.
    """
    names, inverse, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    count = min(count, len(names))
    rows = np.zeros(count)
    fold_of = np.zeros(len(names), dtype=np.intp)
    for position in np.argsort(-sizes, kind="stable").tolist():
        fold_of[position] = int(rows.argmin())
        rows[fold_of[position]] += sizes[position]
    folds = fold_of[inverse]
    return [(folds != fold, folds == fold) for fold in range(count)]
