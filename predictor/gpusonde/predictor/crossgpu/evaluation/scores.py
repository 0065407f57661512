"""Evaluation of predictors: fit, predict and score by a protocol that says what is held out.

A query is then as new to the model as it will be to a user's. ``make_default_predictor``, ``make_paper_predictor`` and
``make_prior_predictor`` are asked through one interface; ``PairErrors`` are predictions beside measurements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
import numpy.typing as npt

from gpusonde.errors import TooFewRunsError
from gpusonde.predictor.crossgpu.model import LatencyModel
from gpusonde.predictor.crossgpu.neighbourhood import Regime
from gpusonde.predictor.crossgpu.paper import PaperStack
from gpusonde.predictor.crossgpu.prior import (
    MetricLevel,
    log_cautious_ratio,
    log_latency_ratio,
    log_peak_ratio,
    roofline,
)
from gpusonde.predictor.crossgpu.runs_table import IndexArray, Run, RunsTable
from gpusonde.predictor.crossgpu.state import ModelSettings

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
        """Take the predictions of a model that gives seconds alone, for pairs of a table."""

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
        """Return the pairs for which ``mask``, shape (n,), is True."""
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
    def from_errors(cls, errors: PairErrors) -> Scores:
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
class LatencyEvaluation:
    """Result of :func:`evaluate`: the scores of all predictions, by GPU, and the predictions themselves."""

    overall: Scores
    by_seed: tuple[Scores, ...]
    by_source: dict[str, Scores]
    by_target: dict[str, Scores]
    by_workload: dict[str, Scores]
    errors: PairErrors

    @classmethod
    def from_parts(cls, parts: Sequence[tuple[int, PairErrors]]) -> LatencyEvaluation:
        """Score the predictions of several splits, each given with its seed."""
        errors = PairErrors.join([part for _, part in parts])
        seeds = sorted({seed for seed, _ in parts})

        def by(labels: npt.NDArray[np.str_]) -> dict[str, Scores]:
            return {str(name): Scores.from_errors(errors.where(labels == name)) for name in np.unique(labels)}

        return cls(
            overall=Scores.from_errors(errors),
            by_seed=tuple(Scores.from_errors(PairErrors.join([p for s, p in parts if s == seed])) for seed in seeds),
            by_source=by(errors.source_gpu),
            by_target=by(errors.target_gpu),
            by_workload=by(errors.workload),
            errors=errors,
        )


_TEST_SHARE = 0.2


class LatencyProtocol(Enum):
    """What the pairs tested on have that the pairs fitted on have not."""

    RANDOM = "random"  # nothing: the paper's split, which leaks; for parity only
    CONFIG = "config"  # a configuration (workload, batch, image size, samples)
    CNN = "cnn"  # a workload
    TARGET = "target"  # the target GPU, which was in no pair fitted on
    BOTH = "both"  # both GPUs
    STATIC = "static"  # the target GPU, and every dynamic metric of the source


@dataclass(frozen=True)
class Split:
    """One division of the pairs.

    Attributes:
        training: Which pairs to fit on, shape (pairs,).
        test: Which pairs to predict, shape (pairs,).
        seed: Of the division and of the models fitted on it.
    """

    training: BoolArray
    test: BoolArray
    seed: int


def splits(
    table: RunsTable, source: IndexArray, target: IndexArray, protocol: LatencyProtocol, seed: int, own: int | None
) -> Iterator[Split]:
    """Divide the pairs of a table by a protocol.

    Args:
        table: The runs.
        source: Positions of the source runs of all pairs, shape (pairs,).
        target: Positions of their target runs.
        protocol: What to hold out.
        seed: Of the random divisions.
        own: Runs from this position on are a test table's: they are never fitted on, and nothing else is tested.
    """
    runs = table.runs
    gpus = np.array([run.gpu.name for run in runs])
    from_gpu, to_gpu = gpus[source], gpus[target]
    fittable = np.ones(len(source), dtype=bool) if own is None else (source < own) & (target < own)
    testable = np.ones(len(source), dtype=bool) if own is None else (source >= own) & (target >= own)
    if protocol in (LatencyProtocol.TARGET, LatencyProtocol.BOTH, LatencyProtocol.STATIC):
        for held_out in sorted(set(to_gpu[testable])):
            test = testable & (to_gpu == held_out)
            training = fittable & (from_gpu != held_out) & (to_gpu != held_out)
            if protocol is not LatencyProtocol.BOTH:
                yield Split(training, test, seed)
                continue
            for other in sorted(set(from_gpu[test])):
                without = training & (from_gpu != other) & (to_gpu != other)
                yield Split(without, test & (from_gpu == other), seed)
        return
    labels = {
        LatencyProtocol.RANDOM: [str(number) for number in range(len(source))],
        LatencyProtocol.CONFIG: ["|".join(runs[index].configuration) for index in source],
        LatencyProtocol.CNN: [runs[index].configuration.model for index in source],
    }[protocol]
    groups = np.array(labels)
    if own is not None:
        # One fit serves the whole test table: nothing that it shares by the protocol is fitted on.
        shared = np.zeros_like(fittable) if protocol is LatencyProtocol.RANDOM else np.isin(groups, groups[testable])
        yield Split(fittable & ~shared, testable, seed)
        return
    names = np.unique(groups)
    if protocol is LatencyProtocol.CNN:
        for name in names:
            yield Split(groups != name, groups == name, seed)
        return
    np.random.default_rng(seed).shuffle(names)
    test = np.isin(groups, names[: max(1, round(_TEST_SHARE * len(names)))])
    yield Split(~test, test, seed)


@dataclass(frozen=True)
class Task:
    """What a predictor is asked: fit on pairs of one table, predict other pairs of (a noisier copy of) it.

    Attributes:
        training: Runs to fit on.
        fit_on: Positions of the source runs and of the target runs to fit on, each of shape (n,).
        test: The same runs as the sources of queries.
        predict: Pairs to predict.
        seed: Of the split; for the model to use.
    """

    training: RunsTable
    fit_on: tuple[IndexArray, IndexArray]
    test: RunsTable
    predict: tuple[IndexArray, IndexArray]
    seed: int


Predictor = Callable[[Task], PairErrors]


def make_default_predictor(settings: ModelSettings, protocol: LatencyProtocol) -> Predictor:
    """Return what asks the default model; only the intervals that the protocol's queries need are calibrated."""
    needed = {
        LatencyProtocol.TARGET: Regime.ONE_UNSEEN_GPU,
        LatencyProtocol.BOTH: Regime.PRIOR_ONLY,
        LatencyProtocol.STATIC: Regime.STATIC_ONLY,
    }
    regimes = (needed.get(protocol, Regime.SEEN_GPUS),)

    def run(task: Task) -> PairErrors:
        seeded = replace(settings, regimes=regimes, residual=replace(settings.residual, seed=task.seed))
        return predict_pairs(LatencyModel(seeded).fit(task.training, pairs=task.fit_on), task.test, *task.predict)

    return run


def make_paper_predictor(make: Callable[[int], PaperStack], part: str = "stack") -> Predictor:
    """Return what asks the paper's stack, or one of its base regressors.

    Args:
        make: Builds an unfitted stack for a seed.
        part: ``stack``, ``random_forest`` or ``catboost``.
    """

    def run(task: Task) -> PairErrors:
        stack = make(task.seed).fit(task.training, pairs=task.fit_on)
        predicted = stack.predict_pairs(task.test, *task.predict)[part]
        return PairErrors.without_intervals(task.test, *task.predict, predicted)

    return run


def make_prior_predictor(level: MetricLevel | None = None) -> Predictor:
    """Return what asks a physical prior alone: nothing is fitted.

    Args:
        level: Metrics that our prior may use; the simplest prior, of utilisation and peak rates, when left out.
    """

    def run(task: Task) -> PairErrors:
        predicted = []
        for i, j in zip(*task.predict, strict=True):
            source = task.test.runs[i].measurement()
            target = task.test.runs[j].gpu
            if level is None:
                log_ratio = log_peak_ratio(source, target)
            elif level is MetricLevel.STATIC:
                log_ratio = log_cautious_ratio(source, target)
            else:
                log_ratio = log_latency_ratio(source, target, roofline(source, level))
            predicted.append(source.epoch_latency_s * math.exp(log_ratio))
        return PairErrors.without_intervals(task.test, *task.predict, np.array(predicted))

    return run


def predict_pairs(model: LatencyModel, table: RunsTable, source: IndexArray, target: IndexArray) -> PairErrors:
    """Predict the pairs of a table by a fitted model, through the same call as every other query."""
    predictions = [
        model.predict(table.runs[i].measurement(), [table.runs[j].gpu])[0] for i, j in zip(source, target, strict=True)
    ]
    errors = PairErrors.without_intervals(table, source, target, np.array([p.epoch_latency_s for p in predictions]))
    return replace(
        errors,
        low_s=np.array([p.epoch_latency_low_s for p in predictions]),
        high_s=np.array([p.epoch_latency_high_s for p in predictions]),
        extrapolated=np.array([p.extrapolated for p in predictions]),
    )


def evaluate(
    runs: RunsTable,
    predictor: Predictor,
    protocol: LatencyProtocol,
    *,
    seeds: Sequence[int] = (0,),
    noise: float = 0.0,
    noise_in_training: bool = True,
    test: RunsTable | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> LatencyEvaluation:
    """Evaluate a predictor by a protocol.

    Args:
        runs: Runs to fit on, and to test on unless ``test`` is given.
        predictor: :func:`make_default_predictor`, :func:`make_paper_predictor` or :func:`make_prior_predictor`.
        protocol: What is held out.
        seeds: Random splits (``RANDOM``, ``CONFIG``) are drawn once per seed; other protocols are run once per seed
            only when there is noise.
        noise: Mean absolute relative error to give the sources' epoch latency; one draw per run, shared by its pairs.
        noise_in_training: Fit on the noisy latencies too, as the paper does; otherwise only queries are noisy, and they
            say so (``epoch_latency_relative_error``), as a detector does.
        test: Test on these runs only; pairs fitted on are those of ``runs`` that the protocol allows.
        progress: Called after each split with the number of splits done and of all.

    Raises:
        TooFewRunsError: The table holds too little for the protocol.
    """
    if noise == 0 and protocol not in (LatencyProtocol.RANDOM, LatencyProtocol.CONFIG):
        seeds = seeds[:1]
    own = len(runs)
    table = runs if test is None else RunsTable(runs.runs + test.runs)
    source, target = table.pairs()
    usable = [
        split
        for seed in seeds
        for split in splits(table, source, target, protocol, seed, None if test is None else own)
        if split.training.any() and split.test.any()
    ]
    if not usable:
        held_out = "the test table" if test is not None else "the table"
        raise TooFewRunsError(
            f"{held_out} has no pairs to hold out by protocol {protocol.value!r}: it needs runs of one configuration "
            "on several GPUs, and enough others to fit on"
        )
    parts = []
    for done, split in enumerate(usable, start=1):
        noisy = add_noise(table, noise, split.seed, declared=not noise_in_training)
        asked = remove_metrics(noisy) if protocol is LatencyProtocol.STATIC else noisy
        fit_on = source[split.training], target[split.training]
        predict = source[split.test], target[split.test]
        training = noisy if noise_in_training else table
        parts.append((split.seed, predictor(Task(training, fit_on, asked, predict, split.seed))))
        if progress is not None:
            progress(done, len(usable))
    return LatencyEvaluation.from_parts(parts)


def remove_metrics(runs: RunsTable) -> RunsTable:
    """Return the runs as if nobody had sampled a metric while they ran."""
    return RunsTable(tuple(replace(run, metrics={}) for run in runs.runs))


def add_noise(runs: RunsTable, noise: float, seed: int, *, declared: bool = False) -> RunsTable:
    """Give every run a detected epoch latency that is off by ``noise`` on average (log-normal), one draw per run.

    Args:
        runs: The runs.
        noise: Mean absolute relative error.
        seed: Random seed.
        declared: Let the runs state their standard error.
    """
    if noise == 0:
        return runs
    # The mean absolute value of a normal variable is sqrt(2 / pi) of its standard deviation.
    deviation = noise * math.sqrt(math.pi / 2)
    factors = np.exp(np.random.default_rng(10_000 + seed).normal(0.0, deviation, len(runs))).tolist()
    return RunsTable(
        tuple(
            replace(
                run,
                detected_epoch_latency_s=run.epoch_latency_s * factor,
                epoch_latency_relative_error=deviation if declared else 0.0,
            )
            for run, factor in zip(runs.runs, factors, strict=True)
        )
    )
