"""Fitting the default model: the residual on all pairs, intervals from runs, workloads and GPUs left out in turn."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from gpusonde.predictor.crossgpu.features import SOURCE_FEATURE_COUNT
from gpusonde.predictor.crossgpu.neighbourhood import (
    Calibration,
    LeftOut,
    Regime,
    calibrate_worst,
    interpolate_rising,
    rate_uncertainty,
)
from gpusonde.predictor.crossgpu.pairs import BoolArray, Pairs, split_by_group
from gpusonde.predictor.crossgpu.regression import ResidualModel, ResidualSettings

FloatArray = npt.NDArray[np.float64]

_CONFIGURATION_FOLDS = 5
_MINIMUM_ERRORS = 30


class Calibrator:
    """Makes the errors that intervals are read from, on pairs that each fitted model has not seen."""

    def __init__(
        self,
        pairs: Pairs,
        settings: ResidualSettings,
        whole: ResidualModel,
        *,
        one_unseen_weight: float,
        coverage: float,
        weights: FloatArray,
    ) -> None:
        """Keep what the folds are made of; ``whole`` gives them its kernel parameters."""
        self._weights = weights
        self._pairs, self._settings, self._whole = pairs, settings, whole
        self._weight, self._coverage = one_unseen_weight, coverage
        self._residual = pairs.log_ratio - pairs.prior

    def calibrate(self, regimes: Collection[Regime]) -> Mapping[Regime, Calibration]:
        """Calibrate the prior and the given regimes; those with too few left-out pairs are left out."""
        prior = calibrate_worst(self._group_by_gpu(self._measure_prior_only()), self._coverage)
        found = {Regime.PRIOR_ONLY: prior}
        if Regime.STATIC_ONLY in regimes:
            found[Regime.STATIC_ONLY] = calibrate_worst(self._group_by_gpu(self._measure_static_only()), self._coverage)
        if Regime.SEEN_GPUS in regimes:
            self._add(found, Regime.SEEN_GPUS, self._measure_seen_gpus())
        if Regime.ONE_UNSEEN_GPU in regimes:
            self._add(found, Regime.ONE_UNSEEN_GPU, self._measure_one_unseen_gpu())
        return found

    def _add(self, found: dict[Regime, Calibration], regime: Regime, parts: Sequence[LeftOut]) -> None:
        enough = [part for part in parts if len(part.log_errors) >= _MINIMUM_ERRORS]
        if enough:
            found[regime] = calibrate_worst(enough, self._coverage)

    def _fit(self, rows: BoolArray) -> ResidualModel:
        return ResidualModel.fit(
            self._pairs.features[rows], self._residual[rows], self._settings,
            like=self._whole, weights=self._weights[rows],
        )  # fmt: skip

    def _measure_seen_gpus(self) -> list[LeftOut]:
        """Return errors on configurations left out, and on whole workloads left out.

        The scale makes the two comparable, so either's quantile would do in theory; the larger one is taken.
        """
        pairs = self._pairs
        by_configuration = split_by_group(pairs.configuration, _CONFIGURATION_FOLDS, self._settings.seed)
        by_workload = split_by_group(pairs.workload, len(pairs), self._settings.seed)
        return [LeftOut.join(self._measure_left_out(folds)) for folds in (by_configuration, by_workload)]

    def _measure_left_out(self, folds: Iterable[tuple[BoolArray, BoolArray]]) -> list[LeftOut]:
        parts = []
        for training, held_out in folds:
            if training.sum() >= _MINIMUM_ERRORS:
                predicted, deviation = self._fit(training).predict(self._pairs.features[held_out])
                parts.append(LeftOut(predicted - self._residual[held_out], deviation))
        return parts

    def _measure_one_unseen_gpu(self) -> list[LeftOut]:
        """Return errors with every GPU left out in turn, with all pairs it is in."""
        pairs = self._pairs
        parts = []
        for gpu in np.unique(np.concatenate([pairs.source_gpu, pairs.target_gpu])):
            held_out = pairs.touches(int(gpu))
            if (~held_out).sum() >= _MINIMUM_ERRORS:
                errors = self._answer_without(int(gpu), held_out) - self._residual[held_out]
                parts.append(LeftOut(errors, np.full(len(errors), rate_uncertainty(pairs.gpus[gpu]))))
        return parts

    def _answer_without(self, gpu: int, held_out: BoolArray) -> FloatArray:
        """Return what a model that has not seen a GPU says of the pairs it is in, over the prior's, as queries do.

        As a target it is answered between the other GPUs that the source run was paired with, as a source by the
        learned part alone.
        """
        pairs = self._pairs
        predicted, _ = self._fit(~held_out).predict(pairs.features)
        _, run = np.unique(pairs.features[:, :SOURCE_FEATURE_COUNT], axis=0, return_inverse=True)
        run = run.ravel()
        answers = pairs.prior + predicted
        found = self._weight * predicted
        for row in np.flatnonzero(held_out & (pairs.target_gpu == gpu)):
            known = np.flatnonzero((run == run[row]) & ~held_out)
            prior, said = (np.concatenate([[0.0], each[known]]) for each in (pairs.prior, answers))
            found[row] = interpolate_rising(prior, said, pairs.prior[[row]])[0] - pairs.prior[row]
        return found[held_out]

    def _group_by_gpu(self, log_errors: FloatArray) -> list[LeftOut]:
        """Return the errors of the prior, which has seen no GPU, by the GPU they come from."""
        pairs = self._pairs
        between = np.array([[rate_uncertainty(a, b) for b in pairs.gpus] for a in pairs.gpus])
        scales = between[pairs.source_gpu, pairs.target_gpu]
        masks = [pairs.touches(gpu) for gpu in range(len(pairs.gpus))]
        parts = [LeftOut(log_errors[mask], scales[mask]) for mask in masks]
        return [part for part in parts if len(part.log_errors)]

    def _measure_prior_only(self) -> FloatArray:
        """Return errors on pairs of two GPUs, the power of the ratio from all pairs that neither of them is in."""
        pairs = self._pairs
        errors = np.zeros(len(pairs))
        ends = np.sort(np.stack([pairs.source_gpu, pairs.target_gpu]), axis=0)
        for one, other in np.unique(ends, axis=1).T.tolist():
            between = (ends[0] == one) & (ends[1] == other)
            others = pairs.where(~(pairs.touches(one) | pairs.touches(other)))
            errors[between] = pairs.where(between).log_prior(others.working_exponent) - pairs.log_ratio[between]
        return errors

    def _measure_static_only(self) -> FloatArray:
        return self._pairs.static - self._pairs.log_ratio
