"""Fitting a model: calibration, choice of regressors, intervals; ``WorkloadModelState`` is what comes of it.

Regressors, their options and their columns are chosen by validation on architectures that were left out. Rows of one
architecture are all in the training part or all in the validation part: a split of rows lets whatever memorises
architectures win. ``kind="paper"`` splits rows, as the PredictDDL paper does.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpusonde.catalog import GpuSpec
from gpusonde.errors import ModelError, TooFewRunsError
from gpusonde.predictor.crossgpu.neighbourhood import Calibration, GpuNeighbourhood, TrainedGpu
from gpusonde.predictor.workload.engine.calibration import CalibratedRoofline
from gpusonde.predictor.workload.engine.encoders import EncoderReference
from gpusonde.predictor.workload.engine.estimator import Candidate, Estimator
from gpusonde.predictor.workload.engine.features import (
    ANALYTIC,
    EMBEDDED,
    EMBEDDING,
    ROOFLINE,
    WITH_EMBEDDING,
    FeatureTable,
)
from gpusonde.predictor.workload.engine.out_of_distribution import (
    Intervals,
    Newness,
    OutOfDistributionDetector,
    calibrate_environments,
    calibrate_errors,
    calibrate_left_out,
)
from gpusonde.predictor.workload.engine.regressors import REGRESSORS
from gpusonde.predictor.workload.engine.request import WorkloadMeasurement

FloatArray = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Fold = tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]

_FOLDS = 4
_MOST_LEFT_OUT = 8
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
class ValidatedCandidate:
    """A candidate that was validated.

    Attributes:
        candidate: It.
        score: Mean absolute error of the logarithm in validation; of ``kind="paper"`` the mean relative error.
        errors: Of the logarithm, of rows that it was not fitted on, shape (n,).
    """

    candidate: Candidate
    score: float
    errors: FloatArray


def list_default_candidates(*, embedding: bool) -> list[Candidate]:
    """Return what ``kind="default"`` tries, preferred ones first: support vectors, low in the paper's grid.

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


def list_paper_candidates(*, embedding: bool) -> list[Candidate]:
    """Return what ``kind="paper"`` tries: the four regressors of the paper with the options that it names.

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


def validate_folds(
    candidates: Sequence[Candidate],
    table: FeatureTable,
    log_seconds: FloatArray,
    folds: Sequence[Fold],
    whole: CalibratedRoofline,
) -> tuple[FloatArray, FloatArray]:
    """Return errors of candidates of ``kind="default"`` and of the roofline on rows that they were not fitted on.

    Args:
        candidates: One or more.
        table: What was measured.
        log_seconds: Natural logarithm of the seconds, shape (n,).
        folds: What is fitted on and what is left out; each row is left out once.
        whole: The roofline calibrated on all rows, from which each fold's is found sooner.

    Returns:
        Errors of the logarithm, shapes (candidates, n) and (n,).
    """
    errors = np.zeros((len(candidates), len(table)))
    own = np.zeros(len(table))
    for training, held_out in folds:
        part, rest = table.rows(training), table.rows(held_out)
        roofline = CalibratedRoofline.fit(part, log_seconds[training], near=whole)
        known, asked = roofline.log_seconds(part), roofline.log_seconds(rest)
        own[held_out] = asked - log_seconds[held_out]
        for number, candidate in enumerate(candidates):
            estimator = Estimator.fit(candidate, part, log_seconds[training], known)
            errors[number, held_out] = estimator.log_seconds(rest, asked) - log_seconds[held_out]
    return errors, own


def validate_paper(
    candidates: Sequence[Candidate], table: FeatureTable, log_seconds: FloatArray
) -> tuple[list[ValidatedCandidate], npt.NDArray[np.bool_]]:
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
        choices.append(ValidatedCandidate(candidate, float(np.abs(np.expm1(errors)).mean()), errors))
    return choices, ~training


def choose_first_of_best(choices: Sequence[ValidatedCandidate], groups: npt.NDArray[np.str_]) -> ValidatedCandidate:
    """Return the first choice that the best one does not beat clearly.

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


def group_by_regressor(choices: Sequence[ValidatedCandidate]) -> dict[str, list[ValidatedCandidate]]:
    """Return the choices of every regressor, in the order in which they were tried."""
    found: dict[str, list[ValidatedCandidate]] = {}
    for choice in choices:
        found.setdefault(choice.candidate.regressor, []).append(choice)
    return found


def split_by_group(groups: npt.NDArray[np.str_], count: int = _FOLDS) -> list[Fold]:
    """Return splits that keep groups whole: large groups first, each into the fold with the fewest rows.

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


def split_rows(rows: int) -> list[Fold]:
    """Return as many splits that leave out rows at random."""
    fold_of = np.random.default_rng(_SEED).permutation(rows) % _FOLDS
    return [(fold_of != fold, fold_of == fold) for fold in range(_FOLDS)]


@dataclass(frozen=True)
class FittedEstimator:
    """An estimator and what validation showed of it.

    Attributes:
        estimator: It.
        score: Of the validation.
        architecture: Of its errors on architectures left out.
        by_environment: The same for environments with many measurements.
        measured_there: Of its errors on rows left out whose network was measured in their environment in other rows.
    """

    estimator: Estimator
    score: float
    architecture: Calibration
    by_environment: Mapping[str, Calibration]
    measured_there: Mapping[str, Calibration]

    def calibration(self, environment: str, *, measured_there: bool) -> Calibration:
        """Return that of its errors in an environment, on architectures left out or on one that was measured there."""
        own = self.by_environment.get(environment, self.architecture)
        return self.measured_there.get(environment, own) if measured_there else own

    @property
    def widest(self) -> Calibration:
        """The same in the environment where errors are largest."""
        return max((self.architecture, *self.by_environment.values()), key=lambda each: each.quantile)


@dataclass(frozen=True)
class EmbeddingTrial:
    """What validation said of an embedding that was offered.

    Attributes:
        kept: Whether its columns stayed.
        error: Of the best regressor with them.
        error_without: Of the best one without; None where all were fitted with them (``kind="paper"``).
    """

    kept: bool
    error: float
    error_without: float | None


@dataclass(frozen=True)
class WorkloadModelState:
    """A fitted model.

    Attributes:
        kind: "default" or "paper".
        chosen: The regressor that answers unless another is asked for.
        estimators: By regressor.
        roofline: The regressor of few features.
        roofline_errors: Its errors on architectures left out.
        ood_detector: What was measured.
        intervals: Of what is new.
        rows: Measurements that it was fitted on.
        encoder: The one whose embedding estimators have columns of; None where none has, or where it has no name.
        trial: What came of offering it; not kept in files.
    """

    kind: str
    chosen: str
    estimators: Mapping[str, FittedEstimator]
    roofline: CalibratedRoofline
    roofline_errors: Calibration
    ood_detector: OutOfDistributionDetector
    intervals: Intervals
    rows: int
    encoder: EncoderReference | None = None
    trial: EmbeddingTrial | None = None

    @property
    def has_embedding(self) -> bool:
        """Whether an estimator has columns of an embedding."""
        return any(each.estimator.candidate.features in WITH_EMBEDDING for each in self.estimators.values())


KINDS = ("default", "paper")
_FEWEST_ROWS = 10
_FEWEST_ARCHITECTURES = 3


def fit_state(
    table: FeatureTable,
    measurements: Sequence[WorkloadMeasurement],
    gpus: Sequence[GpuSpec],
    *,
    kind: str,
    regressor: str | None,
    coverage: float,
    encoder: EncoderReference | None = None,
) -> WorkloadModelState:
    """Fit to measurements.

    Args:
        table: Their features.
        measurements: They.
        gpus: The devices among them.
        kind: One of ``KINDS``.
        regressor: The one to fit; None fits all and chooses.
        coverage: Share of intervals that should hold the truth.
        encoder: What the embedding in the table was made with, where that has a name.

    Raises:
        ModelError: No such kind or regressor.
        TooFewRunsError: Fewer than 10 measurements, or of fewer than 3 architectures.
    """
    architectures = np.array([each.architecture for each in measurements], dtype=np.str_)
    _check(kind, regressor, architectures)
    log_seconds = np.log([each.seconds for each in measurements])
    roofline = CalibratedRoofline.fit(table, log_seconds)
    embedding = table.embedding.shape[1] > 0
    candidates = (list_default_candidates if kind == "default" else list_paper_candidates)(embedding=embedding)
    wanted = [each for each in candidates if regressor in (None, each.regressor)]
    if kind == "default":
        errors, roofline_errors = validate_folds(wanted, table, log_seconds, split_by_group(architectures), roofline)
        choices = [
            ValidatedCandidate(candidate, float(np.abs(each).mean()), each)
            for candidate, each in zip(wanted, errors, strict=True)
        ]
    else:
        choices, held_out = validate_paper(wanted, table, log_seconds)
        roofline_errors = (roofline.log_seconds(table) - log_seconds)[held_out]
    own = roofline.log_seconds(table) if kind == "default" else None
    groups = architectures if kind == "default" else None
    trial = None
    if embedding:
        choices, trial = _choose_embedding(choices, groups)
    best = {name: _choose_best(each, groups) for name, each in group_by_regressor(choices).items()}
    measured_there: list[Mapping[str, Calibration]] = [{}] * len(best)
    if kind == "default":
        folds = split_rows(len(table))
        errors, _ = validate_folds([each.candidate for each in best.values()], table, log_seconds, folds, roofline)
        pairs = np.char.add(np.char.add(table.environment, "\0"), architectures)
        rows = np.zeros(len(table), dtype=bool)
        for training, held_out in folds:
            rows[held_out] = np.isin(pairs[held_out], pairs[training])
        measured_there = [calibrate_environments(each[rows], table.environment[rows], coverage) for each in errors]
    estimators = {
        name: _fit_estimator(choice, table, log_seconds, own, coverage, there)
        for (name, choice), there in zip(best.items(), measured_there, strict=True)
    }
    return WorkloadModelState(
        kind=kind,
        chosen=_choose_best(list(best.values()), groups).candidate.regressor,
        estimators=estimators,
        roofline=roofline,
        roofline_errors=calibrate_errors(roofline_errors, coverage),
        ood_detector=OutOfDistributionDetector.fit(table, architectures.tolist(), gpus, coverage),
        intervals=Intervals(coverage, _calibrate_new(table, log_seconds, measurements, roofline, gpus, coverage)),
        rows=len(measurements),
        encoder=encoder if trial is not None and trial.kept else None,
        trial=trial,
    )


def _check(kind: str, regressor: str | None, architectures: npt.NDArray[np.str_]) -> None:
    if kind not in KINDS:
        raise ModelError(f"no kind of model {kind!r}; known: {', '.join(KINDS)}")
    known = REGRESSORS if kind == "default" else REGRESSORS[:4]
    if regressor is not None and regressor not in known:
        raise ModelError(f"no regressor {regressor!r} of kind {kind!r}; known: {', '.join(known)}")
    count = len(np.unique(architectures))
    if len(architectures) < _FEWEST_ROWS or count < _FEWEST_ARCHITECTURES:
        raise TooFewRunsError(
            f"{len(architectures)} measurements of {count} architectures: a model needs {_FEWEST_ROWS} of"
            f" {_FEWEST_ARCHITECTURES} at least"
        )


def _choose_best(choices: Sequence[ValidatedCandidate], groups: npt.NDArray[np.str_] | None) -> ValidatedCandidate:
    """Return the preferred one of the best with groups; without, the one with the least error, as the paper does."""
    return min(choices, key=lambda choice: choice.score) if groups is None else choose_first_of_best(choices, groups)


def _choose_answering(choices: Sequence[ValidatedCandidate], groups: npt.NDArray[np.str_] | None) -> ValidatedCandidate:
    """Return the one that answers: the best of the best of every regressor."""
    return _choose_best([_choose_best(each, groups) for each in group_by_regressor(choices).values()], groups)


def _choose_embedding(
    choices: list[ValidatedCandidate], groups: npt.NDArray[np.str_] | None
) -> tuple[list[ValidatedCandidate], EmbeddingTrial]:
    """Keep columns of an embedding where the one that answers has them; for the others alone they are not worth it."""
    having = [each for each in choices if each.candidate.features in WITH_EMBEDDING]
    lacking = [each for each in choices if each.candidate.features not in WITH_EMBEDDING]
    kept = _choose_answering(choices, groups).candidate.features in WITH_EMBEDDING
    without = _choose_answering(lacking, groups).score if lacking else None
    return choices if kept else lacking, EmbeddingTrial(kept, _choose_answering(having, groups).score, without)


def _fit_estimator(
    choice: ValidatedCandidate,
    table: FeatureTable,
    log_seconds: FloatArray,
    roofline: FloatArray | None,
    coverage: float,
    measured_there: Mapping[str, Calibration],
) -> FittedEstimator:
    estimator = Estimator.fit(choice.candidate, table, log_seconds, roofline)
    # Of the paper's kind, only some of the rows have errors.
    by_environment = {} if roofline is None else calibrate_environments(choice.errors, table.environment, coverage)
    architecture = calibrate_errors(choice.errors, coverage)
    return FittedEstimator(estimator, choice.score, architecture, by_environment, measured_there)


def _merge_groups(groups: npt.NDArray[np.str_]) -> npt.NDArray[np.str_]:
    """Leave several of many groups out together: as new to a model as one alone, and far fewer fits."""
    named = groups != ""
    if len(np.unique(groups[named])) <= _MOST_LEFT_OUT:
        return groups
    merged = groups.copy()
    folds = split_by_group(groups[named], _MOST_LEFT_OUT)
    merged[named] = np.argmax([held_out for _, held_out in folds], axis=0).astype(str)
    return merged


def _calibrate_new(
    table: FeatureTable,
    log_seconds: FloatArray,
    measurements: Sequence[WorkloadMeasurement],
    roofline: CalibratedRoofline,
    gpus: Sequence[GpuSpec],
    coverage: float,
) -> Mapping[Newness, Calibration]:
    """Calibrate by errors of the calibrated roofline, which answers wherever something is new."""

    def errors_without(mask: Mask) -> FloatArray:
        fitted = CalibratedRoofline.fit(table.rows(~mask), log_seconds[~mask], near=roofline)
        errors: FloatArray = fitted.log_seconds(table.rows(mask)) - log_seconds[mask]
        return errors

    families = _merge_groups(np.array([each.family for each in measurements], dtype=np.str_))

    def device_inflation(name: str) -> float:
        others = GpuNeighbourhood(tuple(TrainedGpu.from_spec(gpu) for gpu in gpus if gpu.name != name))
        return others.interval_inflation(next(gpu for gpu in gpus if gpu.name == name))

    groups = {Newness.FAMILY: families, Newness.ENVIRONMENT: table.environment, Newness.DEVICE: table.device}
    return calibrate_left_out(errors_without, groups, coverage, device_inflation)
