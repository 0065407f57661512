"""Predictions beside measurements, and the errors by which they are judged."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpusonde.predictor.crossgpu.runs.table import IndexArray, Run, RunsTable

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class PairErrors:
    """Predictions beside measurements; every array has shape (n,).

    Attributes:
        source_gpu: Names of the source GPUs.
        target_gpu: Names of the target GPUs.
        workload: Names of the workloads.
        source_s: Seconds per epoch on the source, as the query had them.
        measured_s: Measured seconds per epoch on the target.
        predicted_s: Predicted seconds.
        low_s: Lower end of the interval, NaN where the model gives none.
        high_s: Upper end.
        extrapolated: Whether the model said so.
    """

    source_gpu: npt.NDArray[np.str_]
    target_gpu: npt.NDArray[np.str_]
    workload: npt.NDArray[np.str_]
    source_s: FloatArray
    measured_s: FloatArray
    predicted_s: FloatArray
    low_s: FloatArray
    high_s: FloatArray
    extrapolated: BoolArray

    @classmethod
    def join(cls, parts: Sequence[PairErrors]) -> PairErrors:
        """Put several together."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__dataclass_fields__))

    @classmethod
    def without_intervals(
        cls, table: RunsTable, source: IndexArray, target: IndexArray, predicted_s: FloatArray
    ) -> PairErrors:
        """Predictions of a model that gives seconds alone, for pairs of a table."""

        def names(of: Callable[[Run], str], indices: IndexArray) -> npt.NDArray[np.str_]:
            return np.array([of(table.runs[index]) for index in indices])

        nothing = np.full(len(source), np.nan)
        return cls(
            source_gpu=names(lambda run: run.gpu.name, source),
            target_gpu=names(lambda run: run.gpu.name, target),
            workload=names(lambda run: run.configuration.model, source),
            source_s=np.array([table.runs[index].detected_epoch_latency_s for index in source]),
            measured_s=np.array([table.runs[index].epoch_latency_s for index in target]),
            predicted_s=predicted_s,
            low_s=nothing,
            high_s=nothing,
            extrapolated=np.zeros(len(source), dtype=bool),
        )

    def where(self, mask: BoolArray) -> PairErrors:
        """The pairs for which ``mask``, shape (n,), is True."""
        return PairErrors(*(getattr(self, name)[mask] for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class Scores:
    """Errors of one set of predictions. Shares and errors are ratios (0.05 is 5 %).

    Attributes:
        pairs: Number of predictions.
        mape: Mean absolute error relative to the measured latency.
        median_ape: Median of the same.
        p90_ape: 90 % quantile of the same.
        r2: Coefficient of determination, of seconds.
        rmse_s: Root mean square error in seconds.
        coverage: Share of intervals that hold the measured latency; NaN without intervals.
        width: Mean full width of the intervals, relative to the prediction; NaN without intervals.
        extrapolated: Share of predictions flagged as extrapolated.
    """

    pairs: int
    mape: float
    median_ape: float
    p90_ape: float
    r2: float
    rmse_s: float
    coverage: float
    width: float
    extrapolated: float

    @classmethod
    def of(cls, errors: PairErrors) -> Scores:
        """Score predictions."""
        measured, predicted = errors.measured_s, errors.predicted_s
        relative = np.abs(predicted / measured - 1)
        spread = float(np.sum((measured - measured.mean()) ** 2))
        squared = float(np.sum((measured - predicted) ** 2))
        with_interval = np.isfinite(errors.low_s)
        inside = (errors.low_s <= measured) & (measured <= errors.high_s)
        width = (errors.high_s - errors.low_s) / predicted
        return cls(
            pairs=int(measured.size),
            mape=float(relative.mean()),
            median_ape=float(np.median(relative)),
            p90_ape=float(np.quantile(relative, 0.9)),
            r2=1 - squared / spread if spread > 0 else math.nan,
            rmse_s=math.sqrt(squared / measured.size),
            coverage=float(inside[with_interval].mean()) if with_interval.any() else math.nan,
            width=float(width[with_interval].mean()) if with_interval.any() else math.nan,
            extrapolated=float(errors.extrapolated.mean()),
        )


@dataclass(frozen=True)
class Evaluation:
    """Result of :func:`evaluate`: the scores of all predictions, by GPU, and the predictions themselves."""

    overall: Scores
    by_seed: tuple[Scores, ...]
    by_source: dict[str, Scores]
    by_target: dict[str, Scores]
    by_workload: dict[str, Scores]
    errors: PairErrors

    @classmethod
    def of(cls, parts: Sequence[tuple[int, PairErrors]]) -> Evaluation:
        """Score the predictions of several splits, each given with its seed."""
        errors = PairErrors.join([part for _, part in parts])
        seeds = sorted({seed for seed, _ in parts})

        def by(labels: npt.NDArray[np.str_]) -> dict[str, Scores]:
            return {str(name): Scores.of(errors.where(labels == name)) for name in np.unique(labels)}

        return cls(
            overall=Scores.of(errors),
            by_seed=tuple(Scores.of(PairErrors.join([p for s, p in parts if s == seed])) for seed in seeds),
            by_source=by(errors.source_gpu),
            by_target=by(errors.target_gpu),
            by_workload=by(errors.workload),
            errors=errors,
        )
