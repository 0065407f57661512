"""What can be evaluated: the default model, the paper's stack and the prior, asked through one interface."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from gpusonde.predictor.crossgpu.evaluation.protocols import Protocol
from gpusonde.predictor.crossgpu.evaluation.scores import PairErrors
from gpusonde.predictor.crossgpu.intervals.conformal import Situation
from gpusonde.predictor.crossgpu.model import LatencyModel
from gpusonde.predictor.crossgpu.paper_stack import PaperStack
from gpusonde.predictor.crossgpu.prior import MetricLevel, log_latency_ratio, log_peak_ratio, log_static_ratio, roofline
from gpusonde.predictor.crossgpu.runs.table import IndexArray, RunsTable
from gpusonde.predictor.crossgpu.state import ModelSettings


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


def default_predictor(settings: ModelSettings, protocol: Protocol) -> Predictor:
    """The default model; only the intervals that the protocol's queries need are calibrated."""
    needed = {
        Protocol.TARGET: Situation.ONE_UNSEEN_GPU,
        Protocol.BOTH: Situation.PRIOR_ONLY,
        Protocol.STATIC: Situation.STATIC_ONLY,
    }
    situations = (needed.get(protocol, Situation.SEEN_GPUS),)

    def run(task: Task) -> PairErrors:
        seeded = replace(settings, situations=situations, residual=replace(settings.residual, seed=task.seed))
        return predict_pairs(LatencyModel(seeded).fit(task.training, pairs=task.fit_on), task.test, *task.predict)

    return run


def paper_predictor(make: Callable[[int], PaperStack], part: str = "stack") -> Predictor:
    """The paper's stack, or one of its base regressors.

    Args:
        make: Builds an unfitted stack for a seed.
        part: ``stack``, ``random_forest`` or ``catboost``.
    """

    def run(task: Task) -> PairErrors:
        stack = make(task.seed).fit(task.training, pairs=task.fit_on)
        predicted = stack.predict_pairs(task.test, *task.predict)[part]
        return PairErrors.without_intervals(task.test, *task.predict, predicted)

    return run


def prior_predictor(level: MetricLevel | None = None) -> Predictor:
    """A physical prior alone: nothing is fitted.

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
                log_ratio = log_static_ratio(source, target)
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
