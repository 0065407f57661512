"""Descriptions of a network that the engine's features must beat, each with the same cluster columns and regressor.

The same splits and columns about cluster, batch and image, with another description of the network. PR2: the seed's
second-order polynomial regression on the time itself. SVR: on the logarithm of the time (RBF kernel, C = 100, epsilon
= 0.05), gamma whichever gives the least error on the rows asked for, an advantage that only the controls have.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import descriptions
import numpy as np
import rows as cut
from accuracy import TRAINED_ON, has_trained_encoder
from page import percent, table
from rows import Floats, Rows
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler
from sklearn.svm import SVR

from gpusonde.predictor.workload.embedding import EncoderWeights, Registry
from gpusonde.predictor.workload.engine import Fold, WorkloadProtocol

_UNTRAINED_SEEDS = (0, 1, 2)
_COST = 100.0
_GAMMAS = (0.01, 0.03, 0.1)
_EPSILON = 0.05
_THREADS = 2


def section(args: argparse.Namespace) -> list[str]:
    """Lines of the section."""
    torchvision, profet = cut.torchvision(args), cut.profet(args)
    tables = {"torchvision": [torchvision], "PROFET": [profet]}
    if machines := list(cut.machines(torchvision).values()):
        tables["one machine"] = machines
    found = {heading: _figures(args, heading, rows) for heading, rows in tables.items()}
    rows = [(said, *(percent(some[said][-1]) for some in found.values())) for said in found["PROFET"]]
    said = (
        "SVR on other descriptions, one architecture left out. *One machine*: the mean over those of fp32. "
        f"*Counts*: FLOPs, bytes, parameters, operations. *Untrained GHN*: mean of {len(_UNTRAINED_SEEDS)} seeds. "
        f"The seed's PR2 on 80/20: {'; '.join(_polynomial_range(name, some) for name, some in found.items())}."
    )
    return ["## Controls", "", said, "", *table(("description", *found), rows)]


def _polynomial_range(heading: str, found: dict[str, list[float]]) -> str:
    """Say how far off the seed's regression is, at least and at most."""
    errors = [each[0] for each in found.values()]
    return f"{heading} {percent(min(errors))} to {percent(max(errors))}"


def layers_and_parameters_errors(rows: Rows, *, quick: bool) -> Floats:
    """Relative errors of layers + parameters, by architecture."""
    columns = descriptions.described(rows, descriptions.layers_and_parameters)
    folds = cut.folds(rows, WorkloadProtocol.ARCHITECTURE, quick)
    return svr_errors(np.hstack([columns, descriptions.cluster(rows)]), rows, folds)


def _figures(args: argparse.Namespace, heading: str, tables: Sequence[Rows]) -> dict[str, list[float]]:
    """Description -> errors in the order of the columns; the mean over tables."""
    # Description -> errors of each table (and of each draw), one number for each column.
    found: dict[str, list[tuple[float, ...]]] = {}
    for rows in tables:
        random, unseen = (
            cut.folds(rows, each, args.quick) for each in (WorkloadProtocol.RANDOM, WorkloadProtocol.ARCHITECTURE)
        )
        beside = descriptions.cluster(rows)
        for said, draws in _descriptions(rows, args.quick):
            for each in draws:
                columns = np.hstack([each, beside])
                figures = polynomial_errors(columns, rows, random), svr_errors(columns, rows, unseen)
                found.setdefault(said, []).append(tuple(float(np.mean(one)) for one in figures))
            print(f"{heading}: {said} {found[said][-1]}", file=sys.stderr, flush=True)
    return {said: [float(each) for each in np.mean(figures, axis=0)] for said, figures in found.items()}


def polynomial_errors(columns: Floats, rows: Rows, folds: Sequence[Fold]) -> Floats:
    """The same with the seed's choice: second-order polynomial regression on the time itself."""
    target = cut.seconds(rows)
    found = []
    for fold in folds:
        model = make_pipeline(StandardScaler(), PolynomialFeatures(2), LinearRegression())
        estimates = model.fit(columns[fold.known], target[fold.known]).predict(columns[fold.unknown])
        found.append(cut.errors(estimates, [rows[each] for each in fold.unknown]))
    return np.concatenate(found)


def _descriptions(rows: Rows, quick: bool) -> Iterator[tuple[str, list[Floats]]]:
    """What it is called, and its columns, several times where it is drawn at random."""
    described = descriptions.described
    yield "name", [descriptions.name(rows)]
    yield "layers + parameters", [described(rows, descriptions.layers_and_parameters)]
    yield "bag of operations", [described(rows, descriptions.bag_of_operations)]
    yield "bag of operations + parameters", [described(rows, descriptions.bag_and_parameters)]
    counts = described(rows, descriptions.counts)
    yield "counts", [counts]
    seeds = _UNTRAINED_SEEDS[:1] if quick else _UNTRAINED_SEEDS
    random = [described(rows, descriptions.embedding(EncoderWeights.random(seed))) for seed in seeds]
    yield "untrained GHN", random
    yield "untrained GHN + counts", [np.hstack([each, counts]) for each in random]
    if has_trained_encoder():
        trained = described(rows, descriptions.embedding(Registry().get(TRAINED_ON).weights))
        yield "trained GHN", [trained]
        yield "trained GHN + counts", [np.hstack([trained, counts])]


def svr_errors(columns: Floats, rows: Rows, folds: Sequence[Fold]) -> Floats:
    """Relative errors of the rows asked for in all folds, with the settings under which their mean is least.

    Args:
        columns: A row for each measurement.
        rows: The measurements.
        folds: What to fit on, what to ask for.
    """
    target = np.log(cut.seconds(rows))

    def estimate(gamma: float, fold: Fold) -> Floats:
        # The cache holds the whole kernel matrix.
        model = make_pipeline(StandardScaler(), SVR(C=_COST, gamma=gamma, epsilon=_EPSILON, cache_size=500))
        found: Floats = model.fit(columns[fold.known], target[fold.known]).predict(columns[fold.unknown])
        return found

    measured = [rows[each] for fold in folds for each in fold.unknown]
    # Threads suffice: fitting lets go of the interpreter's lock.
    with ThreadPoolExecutor(_THREADS) as pool:
        waiting = [[pool.submit(estimate, gamma, fold) for fold in folds] for gamma in _GAMMAS]
        found = [cut.errors(np.exp(np.concatenate([each.result() for each in some])), measured) for some in waiting]
    return min(found, key=np.mean)
