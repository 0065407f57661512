"""Fits the engine on every fold of a protocol and keeps its answers, for all sections that ask for them."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from joblib import Parallel, delayed
from page import percent
from rows import Floats, Rows, folds

from gpusonde.predictor.workload.embedding import Encoder, EncoderWeights, Registry
from gpusonde.predictor.workload.engine import (
    Fold,
    WorkloadEvaluation,
    WorkloadModel,
    WorkloadPrediction,
    WorkloadProtocol,
    evaluate,
)
from gpusonde.predictor.workload.graph import WorkloadGraph

Fit = Callable[[Rows], WorkloadModel]
COLUMNS = ("", "random 80/20", "median", "leave one architecture out", "median")
TRAINED_ON = "digits"


def default(known: Rows) -> WorkloadModel:
    """The engine as shipped, fitted on the known rows."""
    return WorkloadModel().fit(known)


def paper(known: Rows) -> WorkloadModel:
    """The seed's: GHN embedding and cluster, second-order polynomial regression, the time itself."""
    return WorkloadModel(embed=_trained()).fit(known, kind="paper", regressor="polynomial")


def paper_untrained(known: Rows) -> WorkloadModel:
    """The same with an untrained GHN."""
    return WorkloadModel(embed=_untrained()).fit(known, kind="paper", regressor="polynomial")


def svr(known: Rows) -> WorkloadModel:
    """The default engine with one regressor, without a GHN."""
    return WorkloadModel().fit(known, regressor="svr")


def svr_with_ghn(known: Rows) -> WorkloadModel:
    """The same, which may choose columns of the trained GHN's embedding."""
    return WorkloadModel(embed=_trained()).fit(known, regressor="svr")


def svr_with_untrained_ghn(known: Rows) -> WorkloadModel:
    """The same with an untrained GHN."""
    return WorkloadModel(embed=_untrained()).fit(known, regressor="svr")


def asked(
    args: argparse.Namespace, key: str, rows: Rows, protocol: WorkloadProtocol, fit: Fit = default
) -> WorkloadEvaluation:
    """The answers of a model, computed by whichever section asks first."""
    kept = vars(args).setdefault("answers", {})
    name = f"{key}, {protocol.value}, {fit.__name__}"
    if name not in kept:
        kept[name] = computed(rows, folds(rows, protocol, args.quick), fit, jobs=args.jobs)
        print(f"{name}: {percent(float(kept[name].errors.mean()))}", file=sys.stderr, flush=True)
    found: WorkloadEvaluation = kept[name]
    return found


def computed(rows: Rows, cut: Sequence[Fold], fit: Fit = default, *, jobs: int = 1) -> WorkloadEvaluation:
    """The answers of a model for folds of one's own, several folds at once."""
    parts = Parallel(n_jobs=jobs)(delayed(_predictions)(rows, fold, fit) for fold in cut)
    return WorkloadEvaluation(
        [rows[position] for fold in cut for position in fold.unknown],
        [each for part in parts for each in part],
        [fold.name for fold in cut for _ in fold.unknown],
    )


def has_trained_encoder() -> bool:
    """Whether the GHN that was trained on digits is here; without it, its rows are missing from the tables."""
    return TRAINED_ON in Registry().dataset_types()


def table_rows(args: argparse.Namespace, key: str, rows: Rows) -> list[tuple[str, ...]]:
    """Errors of the engine in both modes."""
    lines = []
    for said, fit in (
        ("**default engine**", default),
        ("mode `paper`, trained GHN", paper),
        ("mode `paper`, untrained GHN", paper_untrained),
    ):
        if fit is paper and not has_trained_encoder():
            continue
        found = [
            asked(args, key, rows, each, fit).errors
            for each in (WorkloadProtocol.RANDOM, WorkloadProtocol.ARCHITECTURE)
        ]
        lines.append((said, *(percent(float(of(each))) for each in found for of in (np.mean, np.median))))
    return lines


def said_of(found: WorkloadEvaluation) -> list[str]:
    """Lines on the default engine's answers: what was chosen, what its intervals held, where it was furthest off."""
    by_fold = dict(zip(found.folds, found.predictions, strict=True))
    counted = Counter(f"{each.regressor} on {each.features}" for each in by_fold.values())
    by_name = {name: float(found.errors[some].mean()) for name, some in found.by_fold().items()}
    hardest = sorted(by_name, key=by_name.__getitem__)[::-1][:5]
    return [
        "Leave one architecture out, default engine. Chosen: "
        + ", ".join(f"{name} ({count} of {len(by_fold)})" for name, count in counted.most_common())
        + f". Intervals of {percent(found.predictions[0].coverage, 0)} held {percent(found.coverage)} of the rows. "
        f"Flagged as out of distribution: {percent(float(found.flagged.mean()))}. Furthest off: "
        + ", ".join(f"{name} {percent(by_name[name])}" for name in hardest)
        + ".",
        "",
    ]


def _predictions(rows: Rows, fold: Fold, fit: Fit) -> Sequence[WorkloadPrediction]:
    return evaluate(rows, [fold], fit).predictions


@cache
def _trained() -> Callable[[Sequence[WorkloadGraph]], Floats]:
    return _once_each(Encoder(Registry().get(TRAINED_ON).weights))


@cache
def _untrained() -> Callable[[Sequence[WorkloadGraph]], Floats]:
    return _once_each(Encoder(EncoderWeights.random(0)))


def _once_each(encoder: Encoder) -> Callable[[Sequence[WorkloadGraph]], Floats]:
    """Embeddings of graphs, which many folds ask for, computed once."""
    known: dict[tuple[str, tuple[int, ...]], Floats] = {}

    def embed(graphs: Sequence[WorkloadGraph]) -> Floats:
        keys = [(each.name, each.operations[0].output) for each in graphs]
        new = {key: graph for key, graph in zip(keys, graphs, strict=True) if key not in known}
        known.update(zip(new, encoder.embed(new.values()), strict=True))
        return np.array([known[key] for key in keys])

    return embed
