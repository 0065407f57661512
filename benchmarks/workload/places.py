"""Intervals at a place of which few rows are known: each keeps some of its rows, in turn, beside all other places."""

from __future__ import annotations

import argparse

import numpy as np
from page import bar, table
from rows import Rows, errors, read, seconds

from gpusonde.catalog import load_gpus
from gpusonde.predictor.workload.engine import WorkloadModel

_KEPT = (5, 10, 20, 40, 80)
_LEAST, _MOST = 0.86, 0.94
# Places have hundreds of rows of the same networks: every few tell as much, sooner.
_EVERY, _EVERY_QUICK = 4, 12
_SAID = (
    "Of a place, framework and host, all rows but 5 to 80 drawn ones are asked for by a model fitted on these and on "
    "every {every}th row of all others; {places} places in turn, one draw each. *Width*: upper end over answer."
)


def section(args: argparse.Namespace) -> list[str]:
    """Lines of the section, bars noted in ``args``."""
    every = _EVERY_QUICK if args.quick else _EVERY
    rows = read(args).measurements
    names = sorted({each.request.cluster.environment or "" for each in rows})
    names = [name for name in names if name and len(_of(rows, name)) > 2 * max(_KEPT)][:: 3 if args.quick else 1]
    lines, shares = [], []
    for kept in _KEPT:
        found = [_ask(rows, name, kept, every) for name in names]
        inside, width, error = (np.array(column) for column in zip(*found, strict=True))
        shares.append(float(inside.mean()))
        cells = (f"{inside.mean():.0%}", f"{inside.min():.0%}", f"x{np.median(width):.2f}", f"{np.median(error):.0%}")
        lines.append((str(kept), *cells))
        print(*lines[-1], flush=True)
    met = all(_LEAST <= share <= _MOST for share in shares)
    measured = ", ".join(f"{share:.1%}" for share in shares)
    bar(
        args,
        f"coverage at a place with {', '.join(map(str, _KEPT))} rows",
        f"{_LEAST:.0%} to {_MOST:.0%}",
        measured,
        met=met,
    )
    columns = ("rows of the place", "inside", "worst place", "width", "median error")
    return ["## Places", "", _SAID.format(every=every, places=len(names)), "", *table(columns, lines)]


def _of(rows: Rows, name: str) -> Rows:
    return [each for each in rows if each.request.cluster.environment == name]


def _ask(rows: Rows, name: str, kept: int, every: int) -> tuple[float, float, float]:
    """Return the share inside of intervals, the median width and the median error at one place."""
    own = _of(rows, name)
    order = np.random.default_rng(0).permutation(len(own))
    others = [each for each in rows if each.request.cluster.environment != name][::every]
    fitted = WorkloadModel(load_gpus()).fit([*others, *(own[i] for i in order[:kept])], regressor="svr")
    rest = [own[i] for i in order[kept:]]
    answers = fitted.predict([each.request for each in rest])
    truth, estimates = seconds(rest), np.array([each.seconds for each in answers])
    low, high = (np.array([getattr(each, end) for each in answers]) for end in ("low_s", "high_s"))
    inside = float(((low <= truth) & (truth <= high)).mean())
    return inside, float(np.median(high / estimates)), float(np.median(errors(estimates, rest)))
