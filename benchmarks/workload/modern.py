"""Networks of today: timm's under automatic mixed precision, transformers in FP32, and answers for an unknown place.

Place known: fitted on all rows but those of the families of ``modern_rows.SET_ASIDE``, asked for these with the name of
the place. Place unknown: fitted on all rows but timm's, asked for all of timm's without one. NeuSight: each family of
transformers asked for by a model fitted on all other rows. All fits have the default engine's SVR only, and training
steps and forward passes among their rows; the bars are those of steps.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import replace

import modern_rows
import numpy as np
from page import NotRunError, bar, percent, table
from rows import Rows, profet, torchvision

from gpusonde.predictor.workload.engine import WorkloadEvaluation, WorkloadModel

_COLUMNS = ("rows", "number", "error", "median", "bias", "off by 2x", "inside", "factor either way", "flagged")


def section(args: argparse.Namespace) -> list[str]:
    """Lines of the section, bars noted in ``args``.

    Raises:
        NotRunError: A table is missing.
    """
    folder = args.data.parent
    other = folder.parent / "cross_gpu"
    tables = (folder / "timm_train_rtx3090.csv", other / "neusight_transformers.csv", other / "timm_infer_amp.csv")
    if missing := [each.name for each in tables if not each.is_file()]:
        raise NotRunError(f"needs {', '.join(missing)} beside the table of --data")
    classic = [*torchvision(args), *profet(args)]
    timm = [*modern_rows.timm(tables[0]), *modern_rows.timm_passes(tables[2])]
    return _report(args, classic, timm, modern_rows.neusight(tables[1]))


def _report(args: argparse.Namespace, classic: Rows, timm: Rows, neusight: Rows) -> list[str]:
    step = 10 if args.quick else 1
    steps, passes = [*classic, *modern_rows.published()], modern_rows.published_passes()
    kept = [each for each in (*passes, *timm) if each.family not in modern_rows.SET_ASIDE]
    aside = [each for each in timm if each.family in modern_rows.SET_ASIDE][::step]
    anywhere = [_at_no_place(each) for each in timm][::step]
    known, known_passes = _apart(_answers([*steps, *neusight, *kept], aside))
    unknown, unknown_passes = _apart(_answers([*steps, *passes, *neusight], anywhere))
    transformers = [
        _answers([*steps, *passes, *timm, *(row for row in neusight if row.family != family)], asked)
        for family in sorted({row.family for row in neusight})[: 1 if args.quick else None]
        if (asked := [row for row in neusight if row.family == family])
    ]
    neusights = WorkloadEvaluation(
        [row for each in transformers for row in each.measurements],
        [row for each in transformers for row in each.predictions],
        [name for each in transformers for name in each.folds],
    )
    ratio = known.estimates / known.seconds
    off, middle, mean = _far(ratio), float(np.median(known.errors)), float(known.errors.mean())
    bar(
        args,
        "timm AMP, families set aside, place known",
        "<= 12 %, median <= 8 %, off by 2x <= 2 %",
        f"{percent(mean)}, {percent(middle)}, {percent(off)}",
        met=mean <= 0.12 and middle <= 0.08 and off <= 0.02,
    )
    bias = float(np.median(unknown.estimates / unknown.seconds))
    width = _width(unknown)
    bar(
        args,
        "timm AMP, place unknown",
        "bias within x1.3, inside 85-95 %, factor <= 2.5",
        f"x{bias:.2f}, {percent(unknown.coverage)}, {width:.2f}",
        met=1 / 1.3 <= bias <= 1.3 and 0.85 <= unknown.coverage <= 0.95 and width <= 2.5,
    )
    far = _far(neusights.estimates / neusights.seconds)
    bar(
        args,
        "transformers in FP32 on T4, V100, A100",
        "inside >= 85 %, off by 2x <= 10 %",
        f"{percent(neusights.coverage)}, {percent(far)}",
        met=neusights.coverage >= 0.85 and far <= 0.1,
    )
    rows = [
        _row("timm, families set aside, place known", known),
        _row("timm, all, place unknown", unknown),
        _row("NeuSight, families left out", neusights),
        _row("timm, forward passes of the families set aside, place known", known_passes),
        _row("timm, forward passes, place unknown", unknown_passes),
    ]
    by_family = {name: float(known.errors[rows].mean()) for name, rows in known.by_fold().items()}
    worst = ", ".join(
        f"{name} {percent(by_family[name])}" for name in sorted(by_family, key=by_family.__getitem__)[:-6:-1]
    )
    said = (
        "Rows and families set aside: `benchmarks/workload/modern_rows.py`. Bias: median of estimate over measurement. "
        f"Furthest off of {len(by_family)} families: {worst}."
    )
    return ["## Modern networks", "", said, "", *table(_COLUMNS, rows)]


def _answers(known: Rows, asked: Rows) -> WorkloadEvaluation:
    model = WorkloadModel().fit(known, regressor="svr")
    return WorkloadEvaluation(asked, model.predict([each.request for each in asked]), [each.family for each in asked])


def _apart(found: WorkloadEvaluation) -> tuple[WorkloadEvaluation, WorkloadEvaluation]:
    """Training steps, and forward passes."""
    forward = [each.request.forward_only for each in found.measurements]
    return _some(found, [not each for each in forward]), _some(found, forward)


def _at_no_place(row):  # type: ignore[no-untyped-def]
    return replace(row, request=replace(row.request, cluster=replace(row.request.cluster, environment=None)))


def _some(found: WorkloadEvaluation, chosen: Sequence[bool]) -> WorkloadEvaluation:
    rows = (found.measurements, found.predictions, found.folds)
    return WorkloadEvaluation(*(list(itertools.compress(each, chosen)) for each in rows))


def _row(name: str, found: WorkloadEvaluation) -> Sequence[str]:
    ratio = found.estimates / found.seconds
    return (
        name, str(len(ratio)), percent(float(found.errors.mean())), percent(float(np.median(found.errors))),
        f"x{np.median(ratio):.2f}", percent(_far(ratio)), percent(found.coverage), f"{_width(found):.2f}",
        percent(float(found.flagged.mean())),
    )  # fmt: skip


def _far(ratio) -> float:  # type: ignore[no-untyped-def]
    return float((np.abs(np.log(ratio)) > np.log(2.0)).mean())


def _width(found: WorkloadEvaluation) -> float:
    return float(np.median([each.high_s / each.seconds for each in found.predictions]))
