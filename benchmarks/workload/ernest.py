"""Ernest in both variants, beside the engine that has never seen the network.

Non-negative least squares on 1, samples per machine, log(machines), machines; a machine is a GPU. Pooled: one curve
for all networks, as the seed compares itself with. Per workload: a curve for each network, GPU, machine and
precision. Of the networks with runs on 1 to 4 GPUs, those on 2 (then 3) are asked for, the others known; or those on
4.
"""

from __future__ import annotations

import argparse
import math

import accuracy
import numpy as np
import profet_rows
import rows as cut
import torchvision_rows
from ernest_model import PerWorkloadErnest, PooledErnest, workload_of
from page import bar, percent, table

from gpusonde.predictor.workload.engine import Fold, WorkloadProtocol


def section(args: argparse.Namespace) -> list[str]:
    """Lines of the section, bars noted in ``args``."""
    gpus, batches = cut.torchvision(args), cut.profet(args)
    lines = []
    best: dict[str, tuple[float, float]] = {}
    for said, rows, name, folds in (
        ("1 to 4 GPUs, 2 or 3 asked for", gpus, torchvision_rows.NAME, _counts(gpus, (2, 3))),
        ("1 to 4 GPUs, 4 asked for", gpus, torchvision_rows.NAME, _counts(gpus, (4,))),
        ("batches, one of the middle asked for", batches, profet_rows.NAME, _batches(batches, inner=True)),
        ("batches, the largest asked for", batches, profet_rows.NAME, _batches(batches, inner=False)),
    ):
        asked = np.concatenate([fold.unknown for fold in folds])
        ours = _ours(args, name, rows)[asked]
        theirs = _errors(rows, folds, PerWorkloadErnest)
        # What Ernest cannot answer, for want of runs, is not held against it, nor counted for us.
        both = ~np.isnan(theirs) & ~np.isnan(ours)
        same = accuracy.computed(rows, folds, jobs=args.jobs).errors[both]
        best[said] = (float(ours[both].mean()), float(theirs[both].mean()))
        lines.append((f"{name}: {said}", int(both.sum()), *map(_shown, (theirs[both], ours[both], same))))
    torchvision = [pair for said, pair in best.items() if "GPUs" in said]
    met = all(pair[0] < pair[1] for pair in torchvision)
    measured = ", ".join(f"{percent(mine)} against {percent(its)}" for mine, its in torchvision)
    bar(args, "Ernest per workload (interpolation, extrapolation to 4 GPUs)", "beaten", measured, met=met)
    said = (
        "Means, medians in brackets. *Unseen*: leave one architecture out. *Same runs*: fitted on the same "
        "runs of all networks as Ernest."
    )
    columns = ("rows", "asked for", "Ernest per workload", "ours, unseen", "ours, same runs")
    return [
        "## Ernest",
        "",
        said,
        "",
        *table(columns, lines),
        *_random(args, gpus),
    ]


def _random(args: argparse.Namespace, rows: cut.Rows) -> list[str]:
    """The seed's own comparison."""
    folds = cut.folds(rows, WorkloadProtocol.RANDOM, args.quick)
    pooled = _errors(rows, folds, PooledErnest)
    relative = _errors(rows, folds, lambda: PooledErnest(relative=True))
    said = (
        f"In the seed's comparison (random 80/20, all torchvision rows) pooled Ernest is off by "
        f"{percent(pooled.mean())}, with relative weights by {percent(relative.mean())}: what the seed beats is a "
        "curve that is not told which network it is asked for."
    )
    return [said, ""]


def _ours(args: argparse.Namespace, name: str, rows: cut.Rows) -> cut.Floats:
    """Errors of leave one architecture out, in the order of the rows; NaN where a quick run did not ask."""
    answers = accuracy.asked(args, name, rows, WorkloadProtocol.ARCHITECTURE)
    by_row = {id(row): error for row, error in zip(answers.measurements, answers.errors, strict=True)}
    return np.array([by_row.get(id(row), math.nan) for row in rows])


def _counts(rows: cut.Rows, asked: tuple[int, ...]) -> list[Fold]:
    """For each number of GPUs: the other rows of the workloads that were run on 1, 2, 3 and 4, and those with it."""
    ran: dict[object, set[int]] = {}
    for each in rows:
        ran.setdefault(workload_of(each.request), set()).add(each.request.cluster.device_count)
    whole = np.array([ran[workload_of(each.request)] >= {1, 2, 3, 4} for each in rows])
    counts = np.array([each.request.cluster.device_count for each in rows])
    return [
        Fold(f"{one} GPUs", np.flatnonzero(whole & (counts != one)), np.flatnonzero(whole & (counts == one)))
        for one in asked
    ]


def _batches(rows: cut.Rows, *, inner: bool) -> list[Fold]:
    """For each batch size that is asked for: the other rows of the workloads with four sizes or more, and those."""
    ran: dict[object, set[int]] = {}
    for each in rows:
        ran.setdefault(workload_of(each.request), set()).add(each.request.batch_size)
    folds = []
    for size in sorted({each.request.batch_size for each in rows}):
        asked, known = [], []
        for position, each in enumerate(rows):
            sizes = ran[workload_of(each.request)]
            if len(sizes) < 4:
                continue
            here = size in sizes and (min(sizes) < size < max(sizes) if inner else size == max(sizes))
            if here:
                (asked if each.request.batch_size == size else known).append(position)
        if asked:
            folds.append(Fold(f"batches of {size}", np.array(known), np.array(asked)))
    return folds


def _errors(rows: cut.Rows, folds: list[Fold], make) -> cut.Floats:  # type: ignore[no-untyped-def]
    found = []
    for fold in folds:
        asked = [rows[each] for each in fold.unknown]
        model = make().fit([rows[each] for each in fold.known])
        found.append(cut.errors(model.predict([each.request for each in asked]), asked))
    return np.concatenate(found)


def _shown(found: cut.Floats) -> str:
    return f"{percent(float(found.mean()))} ({percent(float(np.median(found)))})"
