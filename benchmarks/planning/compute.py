"""Compute curves from four probes, asked for the batch sizes that nobody timed.

Rows are real trainings: the Sia rows of ``scaling.csv`` (tables ``placements-*`` of the sources ``siasosp23``; without
``dgx-ext``, which its authors extrapolated, and ``scalability``, which repeats ``placements``). A curve is one
application on one cluster with one GPU. The median of repeats counts, once.

Curves with six batch sizes or more. Probe rule: the batch sizes nearest, in logarithm, to four geometrically spaced
ones from the smallest to the largest; all others are asked for. Straight line: least squares through the same probes.
"""

from __future__ import annotations

import argparse
from collections import defaultdict

import numpy as np
import sia
from page import bar, data_file, percent, table

from gpusonde.simulator.compute import ComputeProbe, CurveKind, fit_compute_curve

KINDS: dict[CurveKind, str] = {"default": "default", "paper": "`paper`: piecewise linear", "linear": "straight line"}
_LEAST_BATCH_SIZES = 6
_OTHER_PROBES = range(8)


def section(args: argparse.Namespace) -> list[str]:
    """The compute curve."""
    curves = single_gpu_curves(sia.read(data_file(args, "scaling.csv")))
    curves = {key: points for key, points in curves.items() if len(points[0]) >= _LEAST_BATCH_SIZES}
    if args.quick:
        curves = dict(list(curves.items())[:2])
    errors = {
        key: {kind: _errors(*points, sia.probe_places(points[0].astype(int).tolist()), kind) for kind in KINDS}
        for key, points in curves.items()
    }
    means = {kind: _mean(errors, kind) for kind in KINDS}
    t4 = {kind: _mean({key: each for key, each in errors.items() if key[1] == "aws"}, kind) for kind in KINDS}
    behind = {key: float(each["default"].mean() - each["linear"].mean()) for key, each in errors.items()}
    times = {key: float(each["default"].mean() / each["linear"].mean()) for key, each in errors.items()}
    bar(args, "compute curve, 4 probes, unseen batch sizes", "<= 5.5 %", percent(means["default"], 2),
        met=means["default"] <= 0.055)  # fmt: skip
    bar(args, "the same, T4", "<= 3.5 %", percent(t4["default"], 2), met=t4["default"] <= 0.035)
    bar(args, "the same, worst curve against a straight line", "at most 5 points behind",
        f"{100 * max(behind.values()):.1f} points behind", met=max(behind.values()) <= 0.05)  # fmt: skip
    worse = sum(ratio > 1.05 for ratio in times.values())
    bar(args, "compute curve, error over that of a straight line", "at most 1.05 times",
        f"{max(times.values()):.2f} times, above 1.05 on {worse} of {len(times)} curves", met=not worse)  # fmt: skip
    unseen = sum(each["default"].size for each in errors.values())
    rows = [("**all**", unseen, *(percent(means[kind], 2) for kind in KINDS))]
    rows += [
        (f"{network}, {sia.CLUSTERS[cluster]}", each["default"].size, *(percent(each[kind].mean()) for kind in KINDS))
        for (network, cluster), each in errors.items()
        if times[network, cluster] > 1.05
    ]
    other = {kind: np.mean([_with_random_probes(curves, kind, seed) for seed in _OTHER_PROBES]) for kind in KINDS}
    return [
        "## Compute curve",
        "",
        f"{len(curves)} curves, {unseen} unseen batch sizes; below, all together and the curves on which the default "
        "is behind the straight line. With the two inner probes at random places (eight draws) the errors are "
        + ", ".join(f"{percent(float(other[kind]))} ({name})" for kind, name in KINDS.items())
        + f". {percent(_inside(curves), 0)} of the unseen batch sizes lie within the range that should hold 90 %.",
        "",
        *table(("curve", "unseen", *KINDS.values()), rows),
    ]  # fmt: skip


def single_gpu_curves(measured: list[sia.StepTime]) -> dict[tuple[str, str], tuple[np.ndarray, np.ndarray]]:
    """(network, cluster) -> batch sizes, increasing, and seconds on one GPU."""
    points: dict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
    for row in measured:
        if row.world_size == 1:
            points[row.network, row.cluster].append((row.batch_size, row.step_s))
    return {key: tuple(np.array(sorted(each), dtype=np.float64).T) for key, each in points.items()}


def _errors(batch: np.ndarray, seconds: np.ndarray, places: list[int], kind: CurveKind) -> np.ndarray:
    curve = fit_compute_curve([ComputeProbe(batch[place], seconds[place]) for place in places], kind)
    unseen = np.delete(np.arange(batch.size), places)
    return np.abs(curve.predict(batch[unseen]).total_s / seconds[unseen] - 1)


def _inside(curves: dict) -> float:
    """Share of the unseen batch sizes within 1.645 of the curve's own standard deviations."""
    inside = []
    for batch, seconds in curves.values():
        places = sia.probe_places(batch.astype(int).tolist())
        unseen = np.delete(np.arange(batch.size), places)
        found = fit_compute_curve([ComputeProbe(batch[place], seconds[place]) for place in places]).predict(
            batch[unseen]
        )
        inside += list(np.abs(np.log(found.total_s / seconds[unseen])) <= 1.645 * found.uncertainty)
    return float(np.mean(inside))


def _with_random_probes(curves: dict, kind: CurveKind, seed: int) -> float:
    errors = {}
    for key, (batch, seconds) in curves.items():
        inner = np.random.default_rng(seed).choice(np.arange(1, batch.size - 1), 2, replace=False)
        errors[key] = {kind: _errors(batch, seconds, [0, *inner, batch.size - 1], kind)}
    return _mean(errors, kind)


def _mean(errors: dict, kind: CurveKind) -> float:
    return float(np.concatenate([each[kind] for each in errors.values()] or [np.zeros(1)]).mean())
