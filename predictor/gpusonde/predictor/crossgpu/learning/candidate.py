"""``learn``: fit a candidate to what a fleet has seen, and compare it with the model in service on runs new to both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from gpusonde.predictor.crossgpu.model import LatencyModel
from gpusonde.predictor.crossgpu.runs.pairs import BoolArray, FloatArray, Pairs, decayed_weights, grouped_folds
from gpusonde.predictor.crossgpu.runs.table import IndexArray, RunsTable

_FOLDS = 5
# Below this neither model can be told to be better.
_MINIMUM_NEW_CONFIGURATIONS = 3
# The time of a fit grows with the third power of its pairs; the newest are the ones that count.
_MOST_FLEET_PAIRS = 1500
# Six half-lives; what counts less is left out altogether.
_LEAST_WEIGHT = 1 / 64


@dataclass(frozen=True)
class Comparison:
    """Two models on the same held-out pairs, errors relative to the measured latency.

    Attributes:
        configurations: Configurations held out in turn; neither model had seen any of them when it was asked.
        pairs: Pairs of runs predicted.
        current_mape: Mean absolute relative error of the model in service.
        candidate_mape: The same of candidates fitted without the configuration.
    """

    configurations: int
    pairs: int
    current_mape: float
    candidate_mape: float


@dataclass(frozen=True)
class Lesson:
    """What came of learning.

    Attributes:
        pairs: Pairs of the fleet's runs.
        carried_pairs: Pairs besides: those of the model in service, or of a table.
        comparison: None where there is too little that is new.
        candidate: The candidate fitted to everything, when it is better; None when it is not.
        reason: Why the model in service is replaced, or is not.
    """

    pairs: int
    carried_pairs: int
    comparison: Comparison | None
    candidate: LatencyModel | None
    reason: str


def learn(
    current: LatencyModel,
    fleet: RunsTable,
    *,
    now_unix_s: float,
    half_life_s: float,
    table: RunsTable | None = None,
    progress: Callable[[float], None] = lambda _: None,
) -> Lesson:
    """Fit a candidate and compare it.

    The candidate is fitted to the fleet's pairs and to those that the model in service was fitted to (or to a table's
    in their place), each pair of a fleet weighing half as much with every half-life of its age, and nothing after six.
    It is compared on
    configurations that the model in service was not fitted to, each held out from the candidate in turn.

    Args:
        current: The model in service.
        fleet: Runs of a fleet, with the times when they ended.
        now_unix_s: The present.
        half_life_s: Above zero.
        table: Fit to these runs instead of the pairs that the model in service carries.
        progress: Called with the share done, 0..1.

    Raises:
        TooFewRunsError: Together there are fewer than 30 pairs.
    """
    source, target = _newest_pairs(fleet, now_unix_s, half_life_s)
    own = Pairs.of(fleet, (source, target))
    known = current.state.pairs
    # What the fleet still has is taken from there; what it no longer has is remembered by the model.
    gone = ~np.isin(known.configurations, own.configurations)
    young = decayed_weights(known.time_unix_s, now_unix_s, half_life_s) >= _LEAST_WEIGHT
    carried = known.where(gone[known.configuration] & young) if table is None else Pairs.of(table)
    new = ~np.isin(own.configurations, known.configurations)[own.configuration]
    count = len(np.unique(own.configuration[new]))
    if count < _MINIMUM_NEW_CONFIGURATIONS:
        return Lesson(
            len(own), len(carried), None, None,
            f"{count} jobs that ran on two GPU models are new to the model in service, and fewer than "
            f"{_MINIMUM_NEW_CONFIGURATIONS} cannot tell which model is better",
        )  # fmt: skip

    def fitted(model: LatencyModel, rows: BoolArray) -> LatencyModel:
        pairs = Pairs.join([carried, own.where(rows)])
        return model.fit_pairs(pairs, decayed_weights(pairs.time_unix_s, now_unix_s, half_life_s))

    quick = replace(current.settings, situations=())
    positions = np.flatnonzero(new)
    folds = list(grouped_folds(own.configuration[new], _FOLDS, current.settings.residual.seed))
    of_current, of_candidate = np.zeros(len(own)), np.zeros(len(own))
    for number, (_, part) in enumerate(folds):
        held_out = np.zeros(len(own), dtype=bool)
        held_out[positions[part]] = True
        candidate = fitted(LatencyModel(quick), ~held_out)
        asked = fleet, source[held_out], target[held_out]
        of_current[held_out], of_candidate[held_out] = _errors(current, *asked), _errors(candidate, *asked)
        progress((number + 1) / (len(folds) + 1))
    comparison = Comparison(count, int(new.sum()), float(of_current[new].mean()), float(of_candidate[new].mean()))
    if comparison.candidate_mape >= comparison.current_mape:
        return Lesson(len(own), len(carried), comparison, None, "the candidate is not better on runs new to both")
    whole = fitted(LatencyModel(current.settings), np.ones(len(own), dtype=bool))
    return Lesson(len(own), len(carried), comparison, whole, "the candidate is better on runs new to both")


def _newest_pairs(fleet: RunsTable, now_unix_s: float, half_life_s: float) -> tuple[IndexArray, IndexArray]:
    """The pairs that ended last, without those that are too old to count, in the order of ``Pairs.of``."""
    source, target = fleet.pairs()
    ends = np.array([run.end_unix_s for run in fleet.runs])
    ended = np.maximum(ends[source], ends[target])
    newest = np.argsort(-ended, kind="stable")[:_MOST_FLEET_PAIRS]
    newest = newest[decayed_weights(ended[newest], now_unix_s, half_life_s) >= _LEAST_WEIGHT]
    order = newest[np.argsort(source[newest], kind="stable")]
    return source[order], target[order]


def _errors(model: LatencyModel, fleet: RunsTable, source: IndexArray, target: IndexArray) -> FloatArray:
    """Absolute relative errors; a pair that a model has no answer for counts as being wrong altogether."""
    runs = fleet.runs
    predicted = [
        model.predict(runs[i].measurement(), [runs[j].gpu])[0].epoch_latency_s
        for i, j in zip(source, target, strict=True)
    ]
    measured = np.array([runs[j].epoch_latency_s for j in target])
    errors: FloatArray = np.nan_to_num(np.abs(np.array(predicted) / measured - 1), nan=1.0)
    return errors
