"""Fitting a model: calibration, choice of regressors, intervals, in this order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from gpusonde.catalog import GpuSpec
from gpusonde.predictor.crossgpu.intervals.conformal import Calibration
from gpusonde.predictor.crossgpu.intervals.novelty import GpuNeighbourhood, KnownGpu
from gpusonde.predictor.workload.engine.encoders import EncoderReference
from gpusonde.predictor.workload.engine.errors import EngineError, TooFewMeasurementsError
from gpusonde.predictor.workload.engine.features.columns import FeatureTable
from gpusonde.predictor.workload.engine.features.encoding import WITH_EMBEDDING
from gpusonde.predictor.workload.engine.learning.estimator import Estimator
from gpusonde.predictor.workload.engine.learning.selection import (
    Choice,
    by_regressor,
    default_candidates,
    first_of_the_best,
    paper_candidates,
    validate_grouped,
    validate_paper,
)
from gpusonde.predictor.workload.engine.learning.state import EmbeddingTrial, FittedEstimator, FittedState
from gpusonde.predictor.workload.engine.regression.calibration import CalibratedRoofline
from gpusonde.predictor.workload.engine.regression.regressors import REGRESSORS
from gpusonde.predictor.workload.engine.request import WorkloadMeasurement
from gpusonde.predictor.workload.engine.trust.familiarity import Familiarity
from gpusonde.predictor.workload.engine.trust.intervals import (
    Intervals,
    Newness,
    left_out_quantiles,
    place_quantiles,
    quantile_of,
)

FloatArray = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

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
) -> FittedState:
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
        EngineError: No such kind or regressor.
        TooFewMeasurementsError: Fewer than 10 measurements, or of fewer than 3 architectures.
    """
    architectures = np.array([each.architecture for each in measurements], dtype=np.str_)
    _check(kind, regressor, architectures)
    log_seconds = np.log([each.seconds for each in measurements])
    roofline = CalibratedRoofline.fit(table, log_seconds)
    embedding = table.embedding.shape[1] > 0
    candidates = (default_candidates if kind == "default" else paper_candidates)(embedding=embedding)
    wanted = [each for each in candidates if regressor in (None, each.regressor)]
    if kind == "default":
        choices, roofline_errors = validate_grouped(wanted, table, log_seconds, architectures, roofline)
    else:
        choices, held_out = validate_paper(wanted, table, log_seconds)
        roofline_errors = (roofline.log_seconds(table) - log_seconds)[held_out]
    own = roofline.log_seconds(table) if kind == "default" else None
    groups = architectures if kind == "default" else None
    trial = None
    if embedding:
        choices, trial = _with_embedding_or_without(choices, groups)
    best = {name: _best(each, groups) for name, each in by_regressor(choices).items()}
    estimators = {name: _fitted(choice, table, log_seconds, own, coverage) for name, choice in best.items()}
    return FittedState(
        kind=kind,
        chosen=_best(list(best.values()), groups).candidate.regressor,
        estimators=estimators,
        roofline=roofline,
        roofline_errors=quantile_of(roofline_errors, coverage),
        familiarity=Familiarity.fit(table, architectures.tolist(), gpus),
        intervals=Intervals(coverage, _new_quantiles(table, log_seconds, measurements, roofline, gpus, coverage)),
        rows=len(measurements),
        encoder=encoder if trial is not None and trial.kept else None,
        trial=trial,
    )


def _check(kind: str, regressor: str | None, architectures: npt.NDArray[np.str_]) -> None:
    if kind not in KINDS:
        raise EngineError(f"no kind of model {kind!r}; known: {', '.join(KINDS)}")
    known = REGRESSORS if kind == "default" else REGRESSORS[:4]
    if regressor is not None and regressor not in known:
        raise EngineError(f"no regressor {regressor!r} of kind {kind!r}; known: {', '.join(known)}")
    count = len(np.unique(architectures))
    if len(architectures) < _FEWEST_ROWS or count < _FEWEST_ARCHITECTURES:
        raise TooFewMeasurementsError(
            f"{len(architectures)} measurements of {count} architectures: a model needs {_FEWEST_ROWS} of"
            f" {_FEWEST_ARCHITECTURES} at least"
        )


def _best(choices: Sequence[Choice], groups: npt.NDArray[np.str_] | None) -> Choice:
    """With groups, the preferred one of the best; without, the one with the least error, as the paper has it."""
    return min(choices, key=lambda choice: choice.score) if groups is None else first_of_the_best(choices, groups)


def _answering(choices: Sequence[Choice], groups: npt.NDArray[np.str_] | None) -> Choice:
    """The one that answers: the best of the best of every regressor."""
    return _best([_best(each, groups) for each in by_regressor(choices).values()], groups)


def _with_embedding_or_without(
    choices: list[Choice], groups: npt.NDArray[np.str_] | None
) -> tuple[list[Choice], EmbeddingTrial]:
    """Keep columns of an embedding where the one that answers has them; for the others alone they are not worth it."""
    having = [each for each in choices if each.candidate.features in WITH_EMBEDDING]
    lacking = [each for each in choices if each.candidate.features not in WITH_EMBEDDING]
    kept = _answering(choices, groups).candidate.features in WITH_EMBEDDING
    without = _answering(lacking, groups).score if lacking else None
    return choices if kept else lacking, EmbeddingTrial(kept, _answering(having, groups).score, without)


def _fitted(
    choice: Choice, table: FeatureTable, log_seconds: FloatArray, roofline: FloatArray | None, coverage: float
) -> FittedEstimator:
    estimator = Estimator.fit(choice.candidate, table, log_seconds, roofline)
    # Of the paper's kind, only some of the rows have errors.
    places = {} if roofline is None else place_quantiles(choice.errors, table.environment, coverage)
    return FittedEstimator(estimator, choice.score, quantile_of(choice.errors, coverage), places)


def _new_quantiles(
    table: FeatureTable,
    log_seconds: FloatArray,
    measurements: Sequence[WorkloadMeasurement],
    roofline: CalibratedRoofline,
    gpus: Sequence[GpuSpec],
    coverage: float,
) -> Mapping[Newness, Calibration]:
    """Errors of the calibrated roofline, which answers wherever something is new."""

    def errors_without(mask: Mask) -> FloatArray:
        fitted = CalibratedRoofline.fit(table.rows(~mask), log_seconds[~mask], near=roofline)
        errors: FloatArray = fitted.log_seconds(table.rows(mask)) - log_seconds[mask]
        return errors

    families = np.array([each.family for each in measurements], dtype=np.str_)

    def device_widening(name: str) -> float:
        others = GpuNeighbourhood(tuple(KnownGpu.of(gpu) for gpu in gpus if gpu.name != name))
        return others.widening(next(gpu for gpu in gpus if gpu.name == name))

    groups = {Newness.FAMILY: families, Newness.PLACE: table.environment, Newness.DEVICE: table.device}
    return left_out_quantiles(errors_without, groups, coverage, device_widening)
