"""The section on allreduces: sizes and world sizes that nobody measured.

Rows: ``allreduce.csv`` without those of sources eBPF and Aceso, bandwidths above zero; repeats count as their median.
The error is that of the bus bandwidth. Unseen sizes: named fabrics (all but the vTrain tables) and world sizes with
15 sizes or more; every third (every second) size is unseen, in three (two) runs, so that each is unseen once. Unseen
world sizes: the two vTrain tables (one machine with A100, one with V100); one world size at a time is left out. Other
machines: fabrics of one machine (the Aceso rows up to 10 GB included), the inner world sizes left out in turn. gloo:
``gloo_probe.csv`` (own; 1, 2 and 4 transfers at a time); a fifth of the configurations, world size 6, or 2 transfers
at a time unseen. XGBoost alone: two models split at the MTU, on the logarithm of the bandwidth. Paper: the same two
on the bandwidth, as published. Both get the default's rows and features.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from page import bar, data_file, percent, table

from gpusonde.simulator.allreduce import AllreduceMeasurement, AllreduceModel, Link
from gpusonde.simulator.allreduce.boosting import PaperModel
from gpusonde.simulator.allreduce.history import Decay

_SIZES_OF_A_CURVE = 15
# 90 % of a normal distribution lie within so many standard deviations.
_NINETY = 1.645
_SHORT = """\
The default's residual was switched on by {residuals} of {fits} fits. What falls short: between neighbouring
configurations of gloo on a busy machine trees alone do better; rings say what the links of a machine allow, not that
the library finds them; where bridges join GPUs in pairs (RTX 3090) no world size tells of another; intervals on the
vTrain tables are too wide."""


@dataclass
class Score:
    """Errors of several methods on the same rows."""

    errors: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    groups: list[str] = field(default_factory=list)
    inside: list[bool] = field(default_factory=list)
    negative: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    residuals: list[bool] = field(default_factory=list)

    def mape(self, method: str, group: str | None = None) -> float:
        """Mean error of a method, of one group or of all rows."""
        found = np.array(self.errors[method])
        return float(found[[group in {None, name} for name in self.groups]].mean())

    @property
    def rows(self) -> int:
        """How many rows were asked for."""
        return len(self.groups)


METHODS = ("default", "XGBoost alone", "paper")


def section(args: argparse.Namespace) -> list[str]:
    """All of it."""
    rows = pd.read_csv(data_file(args, "allreduce.csv"))
    rows = rows[~rows.source.str.contains("eBPF") & (rows.busbw_gbps > 0) & (rows.time_us > 0)]
    is_aceso = rows.source.str.contains("Aceso")
    aceso, rows = measurements(rows[is_aceso & (rows.bytes <= 1e10)]), rows[~is_aceso]
    is_table = rows.fabric.str.contains("vTrain")
    named, tables = measurements(rows[~is_table]), measurements(rows[is_table])
    devices = dict(zip(rows.fabric, rows.gpu, strict=True))
    if args.quick:
        tables = [one for one in tables if int(one.transfer_bytes) % (1 << 26) == 0]
    sizes, halves, worlds = unseen_sizes(named, 3), unseen_sizes(named, 2), unseen_worlds(tables)
    others = inner_worlds([*aceso, *named])
    gloo = gloo_scores(args)
    _bars(args, sizes, worlds, gloo)
    lines = ["## Allreduce", ""]
    shown = [("unseen sizes, every third", sizes), ("unseen sizes, every second", halves)]
    shown += [("unseen world sizes", worlds), ("unseen world sizes, other machines", others)]
    shown += [(f"gloo, {name}", score) for name, score in gloo.items()]
    columns = ("what is unseen", "rows", *METHODS, "within 90 %", "negative: default / paper")
    lines += table(columns, [_row(name, score) for name, score in shown])
    by_fabric = sorted((sizes.mape("default", name), f"{name}, {devices[name]}") for name in set(sizes.groups))
    said = ", ".join(f"{percent(error)} ({name})" for error, name in (by_fabric[0], by_fabric[-2], by_fabric[-1]))
    lines += [f"Every third size by fabric, best and two worst: {said}.", ""]
    fits = [on for _, score in shown for on in score.residuals]
    return [*lines, *_SHORT.format(residuals=sum(fits), fits=len(fits)).splitlines(), ""]


def _bars(args: argparse.Namespace, sizes: Score, worlds: Score, gloo: dict[str, Score]) -> None:
    for name, score, wanted in (("unseen sizes", sizes, 0.10), ("unseen world sizes of one machine", worlds, 0.20)):
        found, trees = score.mape("default"), score.mape("XGBoost alone")
        bar(args, f"allreduce, {name}", f"<= {100 * wanted:.0f} %", percent(found), met=found <= wanted)
        said = f"{percent(found)} / {percent(trees)}"
        bar(args, f"allreduce, {name}", "below XGBoost alone", said, met=found < trees)
    negative = sum(score.negative["default"] for score in (sizes, worlds, *gloo.values()))
    bar(args, "allreduce, negative predictions", "0", str(negative), met=negative == 0)


def measurements(rows: pd.DataFrame) -> list[AllreduceMeasurement]:
    """Rows as measurements, repeats as their median."""
    medians = rows.groupby(["fabric", "world", "bytes"], as_index=False).time_us.median()
    return [
        AllreduceMeasurement(str(fabric), float(size), int(world), float(time_us) * 1e-6)
        for fabric, world, size, time_us in medians.itertuples(index=False)
    ]


def unseen_sizes(named: Sequence[AllreduceMeasurement], every: int) -> Score:
    """Every so manieth size of every long enough curve is unseen, in as many runs."""
    curves: dict[tuple[str, int], list[AllreduceMeasurement]] = defaultdict(list)
    for one in named:
        curves[one.fabric, one.world_size].append(one)
    long = [
        sorted(found, key=lambda one: one.transfer_bytes)
        for found in curves.values()
        if len(found) >= _SIZES_OF_A_CURVE
    ]
    short = [one for found in curves.values() if len(found) < _SIZES_OF_A_CURVE for one in found]
    score = Score()
    for offset in range(every):
        unseen = [one for curve in long for place, one in enumerate(curve) if place % every == offset]
        seen = [one for curve in long for place, one in enumerate(curve) if place % every != offset]
        ask(score, [*seen, *short], unseen, lambda one: one.fabric)
    return score


def unseen_worlds(tables: Sequence[AllreduceMeasurement]) -> Score:
    """One world size at a time is unseen, on all fabrics."""
    score = Score()
    for world in sorted({one.world_size for one in tables}):
        seen = [one for one in tables if one.world_size != world]
        unseen = [one for one in tables if one.world_size == world]
        ask(score, seen, unseen, lambda one: one.fabric)
    return score


def inner_worlds(rows: Sequence[AllreduceMeasurement]) -> Score:
    """Every inner world size of a fabric with three or more is unseen in turn."""
    score = Score()
    by_fabric: dict[str, list[AllreduceMeasurement]] = defaultdict(list)
    for one in rows:
        by_fabric[one.fabric].append(one)
    for found in by_fabric.values():
        for world in sorted({one.world_size for one in found})[1:-1]:
            unseen = [one for one in found if one.world_size == world]
            seen = [one for one in found if one.world_size != world]
            ask(score, seen, unseen, lambda one: one.fabric)
    return score


def gloo_scores(args: argparse.Namespace) -> dict[str, Score]:
    """The same questions on CPU processes over shaped links."""
    rows = pd.read_csv(data_file(args, "gloo_probe.csv"))
    medians = rows.groupby(["env", "world", "nasync", "bytes"], as_index=False).seconds.median()
    found = [
        AllreduceMeasurement(str(env), float(size), int(world), float(seconds), int(count))
        for env, world, count, size, seconds in medians.itertuples(index=False)
    ]
    chosen = np.random.default_rng(0).permutation(len(found)) < len(found) // 5
    questions: dict[str, Callable[[int, AllreduceMeasurement], bool]] = {
        "a fifth of the configurations": lambda place, _: bool(chosen[place]),
        "world size 6": lambda _, one: one.world_size == 6,
        "2 transfers at a time": lambda _, one: one.concurrent == 2,
    }
    scores = {}
    for name, is_unseen in questions.items():
        unseen = [one for place, one in enumerate(found) if is_unseen(place, one)]
        seen = [one for place, one in enumerate(found) if not is_unseen(place, one)]
        scores[name] = Score()
        ask(scores[name], seen, unseen, lambda one: one.fabric)
    return scores


def ask(
    score: Score,
    seen: Sequence[AllreduceMeasurement],
    unseen: Iterable[AllreduceMeasurement],
    group: Callable[[AllreduceMeasurement], str],
) -> None:
    """Fit every method to the seen measurements and ask it for the unseen ones."""
    default = AllreduceModel.fit(seen)
    score.residuals.append(default.residual is not None)
    decay = Decay(1.0)
    trees, paper = PaperModel(seen, decay, log_target=True), PaperModel(seen, decay)
    together: dict[tuple[str, int, int], list[AllreduceMeasurement]] = defaultdict(list)
    for one in unseen:
        together[one.fabric, one.world_size, one.concurrent].append(one)
    for (fabric, world, concurrent), rows in together.items():
        sizes = np.array([one.transfer_bytes for one in rows])
        truth = np.array([one.bus_bytes_per_second for one in rows])
        told = default.network(fabric).bus_bandwidth(sizes, world, concurrent)
        found = {
            "default": told.bytes_per_second,
            "XGBoost alone": trees.published(Link(fabric), sizes, world, concurrent),
            "paper": paper.published(Link(fabric), sizes, world, concurrent),
        }
        for method, values in found.items():
            score.errors[method].extend(np.abs(values - truth) / truth)
            score.negative[method] += int((values <= 0).sum())
        away = np.abs(np.log(told.bytes_per_second / truth))
        score.inside.extend(away <= _NINETY * told.log_spread)
        score.groups.extend(group(one) for one in rows)


def _row(name: str, score: Score) -> tuple[str, ...]:
    return (
        name,
        f"{score.rows:,}",
        *(percent(score.mape(method)) for method in METHODS),
        percent(float(np.mean(score.inside)), 0),
        f"{score.negative['default']} / {score.negative['paper']}",
    )
