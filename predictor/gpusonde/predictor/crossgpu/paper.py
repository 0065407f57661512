"""Paper mode: the stacking regressor of the hardware-metrics paper, section III-C, as published.

Features (Fig. 7): the source's metric distributions, the ratio source / target of every static attribute, and the
epoch latency on the source. Target: the epoch latency on the target GPU in seconds. Model (Fig. 8): random forest and
CatBoost, stacked under HistGradientBoosting, library defaults. Kept as the baseline that the default model is measured
against.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from gpusonde.catalog import GpuSpec
from gpusonde.errors import MeasurementError
from gpusonde.predictor.crossgpu.features import REQUIRED_METRICS
from gpusonde.predictor.crossgpu.measurement import MetricDistribution, SourceMeasurement
from gpusonde.predictor.crossgpu.runs_table import IndexArray, RunsTable

FloatArray = npt.NDArray[np.float64]

#: Metrics whose distributions are features. The framebuffer ones are left out: their means give the run length away.
DYNAMIC_METRICS = (*REQUIRED_METRICS, "gpu_temperature_celsius")
#: Static attributes whose ratio source / target is a feature.
STATIC_ATTRIBUTES = (
    "sm_count",
    "cores_per_sm",
    "cuda_cores",
    "boost_clock_mhz",
    "memory_bytes",
    "memory_bus_bits",
    "memory_bandwidth_bytes_per_second",
    "l2_cache_bytes",
    "shared_memory_bytes_per_sm",
    "max_threads_per_sm",
    "power_limit_watts",
    "pcie_generation",
)
_STATISTICS = tuple(item.name for item in fields(MetricDistribution))


@dataclass(frozen=True)
class FeatureGroups:
    """Which of the paper's inputs are used; all of them, except for the ablation of Table V."""

    dynamic: bool = True
    static: bool = True
    latency: bool = True

    def names(self) -> tuple[str, ...]:
        """Return the names of the features, in order."""
        dynamic = [f"{metric}_{statistic}" for metric in DYNAMIC_METRICS for statistic in _STATISTICS]
        static = [f"ratio_{attribute}" for attribute in STATIC_ATTRIBUTES]
        return (
            *(dynamic if self.dynamic else ()),
            *(static if self.static else ()),
            *(("epoch_latency_s",) if self.latency else ()),
        )


def paper_features(source: SourceMeasurement, targets: Sequence[GpuSpec], groups: FeatureGroups) -> FloatArray:
    """Return the paper's features of one measurement against several targets.

    Returns:
        Shape (targets, features); NaN where an attribute is not known, which all three regressors accept.

    Raises:
        MeasurementError: A metric is missing.
    """
    missing = [name for name in DYNAMIC_METRICS if name not in source.metrics]
    if missing and groups.dynamic:
        raise MeasurementError(f"the measurement lacks {', '.join(missing)}, which paper mode needs")
    dynamic = [getattr(source.metrics[m], s) for m in DYNAMIC_METRICS for s in _STATISTICS] if groups.dynamic else []
    rows = []
    for target in targets:
        static = [_divide(source.figure(name), getattr(target, name)) for name in STATIC_ATTRIBUTES]
        rows.append(
            [*dynamic, *(static if groups.static else ()), *([source.epoch_latency_s] if groups.latency else ())]
        )
    return np.array(rows, dtype=np.float64)


class PaperStack:
    """Random forest and CatBoost under HistGradientBoosting, predicting seconds."""

    def __init__(
        self,
        *,
        seed: int = 0,
        grouped_folds: bool = False,
        groups: FeatureGroups | None = None,
        forest_trees: int = 100,
        catboost_trees: int = 1000,
        threads: int = 2,
    ) -> None:
        """Choose how the stack is fitted.

        Args:
            seed: Random seed of the three regressors.
            grouped_folds: Keep a configuration's pairs in one inner fold; the paper does not, and so fits its
                meta-regressor on base predictions that have seen the answer.
            groups: Inputs to use.
            forest_trees: Trees of the random forest; scikit-learn's default.
            catboost_trees: Trees of CatBoost; its default.
            threads: Threads for fitting.
        """
        self.seed, self.grouped_folds, self.groups = seed, grouped_folds, groups or FeatureGroups()
        self.forest_trees, self.catboost_trees, self.threads = forest_trees, catboost_trees, threads
        self._base: list[Any] = []
        self._meta: Any = None

    def fit(self, runs: RunsTable, *, pairs: tuple[IndexArray, IndexArray] | None = None) -> PaperStack:
        """Fit to the pairs of a runs table.

        Args:
            runs: The runs.
            pairs: Fit to these pairs only: positions of the source runs and of the target runs, each of shape (n,).

        Returns:
            The stack itself.
        """
        from sklearn.ensemble import HistGradientBoostingRegressor  # noqa: PLC0415

        source, target = runs.pairs() if pairs is None else pairs
        x = self.features(runs, source, target)
        y = np.array([runs.runs[index].epoch_latency_s for index in target])
        configurations = [runs.runs[index].configuration for index in source]
        out_of_fold = np.zeros((len(y), 2))
        for training, held_out in self._cut_folds(len(y), configurations):
            for column, regressor in enumerate(self._make_regressors()):
                out_of_fold[held_out, column] = regressor.fit(x[training], y[training]).predict(x[held_out])
        self._base = [regressor.fit(x, y) for regressor in self._make_regressors()]
        self._meta = HistGradientBoostingRegressor(random_state=self.seed).fit(out_of_fold, y)
        return self

    def predict(self, source: SourceMeasurement, targets: Sequence[GpuSpec]) -> FloatArray:
        """Predict seconds per epoch on each target, shape (targets,).

        Raises:
            MeasurementError: A metric is missing.
        """
        return self.predict_features(paper_features(source, targets, self.groups))["stack"]

    def predict_pairs(self, runs: RunsTable, source: IndexArray, target: IndexArray) -> dict[str, FloatArray]:
        """Predict seconds per epoch for pairs of runs, by the stack and each of its regressors, of shape (n,) each."""
        return self.predict_features(self.features(runs, source, target))

    def predict_features(self, x: FloatArray) -> dict[str, FloatArray]:
        """Predict seconds per epoch for feature rows, by ``random_forest``, ``catboost`` and the ``stack`` of both."""
        base = [np.asarray(regressor.predict(x), dtype=np.float64) for regressor in self._base]
        stacked = np.asarray(self._meta.predict(np.column_stack(base)), dtype=np.float64)
        return {"random_forest": base[0], "catboost": base[1], "stack": stacked}

    def features(self, runs: RunsTable, source: IndexArray, target: IndexArray) -> FloatArray:
        """Return the stack's inputs for pairs of runs, shape (pairs, features)."""
        rows = [
            paper_features(runs.runs[i].measurement(), [runs.runs[j].gpu], self.groups)
            for i, j in zip(source, target, strict=True)
        ]
        return np.concatenate(rows)

    def _make_regressors(self) -> list[Any]:
        from catboost import CatBoostRegressor  # noqa: PLC0415
        from sklearn.ensemble import RandomForestRegressor  # noqa: PLC0415

        return [
            RandomForestRegressor(self.forest_trees, random_state=self.seed, n_jobs=self.threads),
            CatBoostRegressor(
                iterations=self.catboost_trees, random_seed=self.seed, thread_count=self.threads,
                allow_writing_files=False, verbose=False,
            ),
        ]  # fmt: skip

    def _cut_folds(self, rows: int, configurations: Sequence[object]) -> Iterator[tuple[IndexArray, IndexArray]]:
        """Split as scikit-learn's StackingRegressor with cv=5 does: contiguous fifths of the shuffled pairs."""
        from sklearn.model_selection import GroupKFold, KFold  # noqa: PLC0415

        if self.grouped_folds:
            yield from GroupKFold(5).split(np.zeros(rows), groups=[str(name) for name in configurations])
        else:
            yield from KFold(5, shuffle=True, random_state=self.seed).split(np.zeros(rows))


def _divide(numerator: float | None, denominator: float | None) -> float:
    return numerator / float(denominator) if numerator and denominator else float("nan")
