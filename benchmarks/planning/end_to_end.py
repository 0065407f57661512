"""Iteration times on several GPUs: batch sizes and placements that nobody measured.

Rows and probe rule are those of ``compute``.

Unseen batches: curves with four single-GPU batch sizes or more and ten rows on several GPUs. Known are four
single-GPU rows by the probe rule and of every placement (GPUs per machine) the smallest batch size; all others are
asked for, but those more than 1 % above the largest single-GPU one. Buckets are assumed to be ready evenly over the
backward pass.

Unseen placements: every second placement of a curve in alphabetical order is unseen, where five or more are known;
nothing of it is known but its GPUs per machine.

Mostly known: of a curve's placements each is unseen with a probability of 15 % (none where fewer than five were left),
and each row of the others, but that of the smallest batch size, with one of 5 %. All else is known, all single-GPU
rows too. Three draws, seeds 0 to 2. The correction that uses several batch sizes was made on the clusters ``aws`` and
``rtx`` (``MADE_ON``); the others were held back.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import numpy as np
import sia
from compute import single_gpu_curves
from exchange_calibration import CalibrationKind, ExchangeCalibration, MeasuredIteration
from page import bar, data_file, percent, table
from simulator_baselines import full_overlap_s, fully_overlapped_exchange_s

from gpusonde.simulator.compute import ComputeCurve, ComputeProbe, fit_compute_curve

_LEAST_BATCH_SIZES = 4
_LEAST_ROWS = 10
_LEAST_PLACEMENTS = 5
_NORMAL_90 = 1.645
_RANDOM_HALVES = range(10)
_UNSEEN_PLACEMENTS, _UNSEEN_ROWS = 0.15, 0.05
_DRAWS = range(3)
MADE_ON = ("aws", "rtx")

_METHODS_TEXT = (
    "Default (`exchange_calibration.py`): curve and exchange times over placements by Gaussian processes; two, four "
    "and eight buckets averaged; where placements were measured at several batch sizes, the smallest tells the "
    "exchange and a smooth correction over batch size and placement the rest. `paper`: the piecewise linear curve, "
    "eight buckets, each placement's exchange as measured, least squares for others. APM: straight line and full "
    "overlap. No overlap: straight line plus exchange. Four constants of the calibration were chosen on these rows, "
    "on other splits; the splits below and those of the regret were run twice, before and after the third of them."
)

Predict = Callable[[tuple[int, ...], np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Curve:
    """One network on one cluster.

    Attributes:
        key: Network and cluster.
        probes: The four probes of a single GPU.
        all_probes: All batch sizes measured on one.
        rows: Placement -> its rows, by batch size.
    """

    key: tuple[str, str]
    probes: list[ComputeProbe]
    all_probes: list[ComputeProbe]
    rows: dict[tuple[int, ...], list[sia.StepTime]]

    def calibrating(self, placements: list[tuple[int, ...]]) -> list[MeasuredIteration]:
        """The smallest batch size of each of the placements."""
        first = [self.rows[placement][0] for placement in placements]
        return [MeasuredIteration(row.nodes, row.batch_size, row.step_s) for row in first]


def section(args: argparse.Namespace) -> list[str]:
    """Iterations end to end."""
    curves = list(curves_of(sia.read(data_file(args, "scaling.csv"))))
    if args.quick:
        curves = [curve for curve in curves if curve.key[1] == "quad"]
    lines = ["## End to end", "", _METHODS_TEXT, ""]
    for what, unseen, wanted in (("unseen batches", False, 0.08), ("unseen placements", True, 0.095)):
        errors = {name: _errors(curves, method, unseen=unseen) for name, method in METHODS.items()}
        beside = {"all single-GPU rows known instead of four": _errors(curves, _all_probes, unseen=unseen)}
        if unseen:
            beside["the other half of the placements known"] = _errors(curves, METHODS["default"], unseen=True, half=1)
        shown = float(np.mean(np.abs(errors["default"].all))) if errors["default"].by_key else 0.0
        others = min(float(np.mean(np.abs(errors[name].all))) for name in METHODS if name not in ("default", "paper"))
        bar(args, f"end to end, {what}", f"<= {100 * wanted:g} %", percent(shown, 2), met=shown <= wanted)
        bar(args, f"end to end, {what}, against APM and no overlap", "below both",
            f"{percent(shown, 2)}, the better of them {percent(others, 2)}", met=shown < others)  # fmt: skip
        lines += _shown(what, errors, beside)
        if unseen and errors["default"].by_key:
            lines += [_random_halves(curves), ""]
    return [*lines, *_mostly_known(args, curves)]


def _mostly_known(args: argparse.Namespace, curves: list[Curve]) -> list[str]:
    """The second protocol: nearly everything was measured."""
    ways = {
        "default": lambda known: ExchangeCalibration(known.probes, known.measured),
        "smallest batch of a placement only": lambda known: ExchangeCalibration(known.probes, known.smallest()),
        "paper": lambda known: ExchangeCalibration(known.probes, known.measured, kind="paper"),
    }
    errors = {name: mostly_known_errors(curves, calibrated) for name, calibrated in ways.items()}
    rows = []
    for place, (what, wanted) in enumerate((("placements", 0.08), ("batches", 0.065))):
        if not errors["default"][place].by_key:
            continue
        shown = float(np.abs(errors["default"][place].all).mean())
        bar(args, f"end to end, most rows known, unseen {what}", f"<= {100 * wanted:g} %", percent(shown, 2),
            met=shown <= wanted)  # fmt: skip
        for which, clusters in (("all", set(sia.CLUSTERS)), ("held back", set(sia.CLUSTERS) - set(MADE_ON))):
            parts = {name: found[place].of(clusters) for name, found in errors.items()}
            off = np.abs(parts["default"].deviations)
            inside = percent(float((off <= _NORMAL_90).mean()) if off.size else 0.0, 0)
            shares = (percent(np.abs(part.all).mean(), 2) for part in parts.values())
            rows.append((f"unseen {what}, {which}", off.size, *shares, inside))
    text = (
        f"About {percent(_UNSEEN_PLACEMENTS, 0)} of the placements unseen, and {percent(_UNSEEN_ROWS, 0)} of the other "
        f"rows; {len(_DRAWS)} draws. The correction was made on the clusters with T4 and RTX 2080 Ti; the others were "
        "held back. A user's timed iterations get the same one."
    )
    columns = ("rows, clusters", "number", *ways, "default: within 90 %")
    return ["### Most rows known", "", text, "", *table(columns, rows)]


@dataclass(frozen=True)
class MostlyKnown:
    """What is known of one curve in one draw.

    Attributes:
        probes: All batch sizes of a single GPU.
        measured: On several.
        unseen_placements: Rows of placements of which nothing is known.
        unseen_rows: Rows of which other batch sizes are known.
    """

    probes: list[ComputeProbe]
    measured: list[MeasuredIteration]
    unseen_placements: list[sia.StepTime]
    unseen_rows: list[sia.StepTime]

    @classmethod
    def draw(cls, curve: Curve, seed: int) -> MostlyKnown:
        """Draw what stays unseen."""
        random = np.random.default_rng(seed)
        unseen = {nodes for nodes in curve.rows if random.random() < _UNSEEN_PLACEMENTS}
        if len(curve.rows) - len(unseen) < _LEAST_PLACEMENTS:
            unseen = set()
        known, held = [], []
        for nodes, rows in curve.rows.items():
            for place, row in enumerate(rows if nodes not in unseen else ()):
                (held if place and random.random() < _UNSEEN_ROWS else known).append(row)
        measured = [MeasuredIteration(row.nodes, row.batch_size, row.step_s) for row in known]
        return cls(curve.all_probes, measured, [row for nodes in unseen for row in curve.rows[nodes]], held)

    def smallest(self) -> list[MeasuredIteration]:
        """The smallest batch size of each known placement."""
        first: dict[tuple[int, ...], MeasuredIteration] = {}
        for each in self.measured:
            first.setdefault(each.placement, each)
        return list(first.values())


def mostly_known_errors(
    curves: list[Curve], calibrated: Callable[[MostlyKnown], ExchangeCalibration]
) -> tuple[Errors, Errors]:
    """Return the errors of unseen placements and of unseen rows of known ones, all draws together."""
    found: tuple[dict, dict] = (defaultdict(list), defaultdict(list))
    for curve in curves:
        for seed in _DRAWS:
            known = MostlyKnown.draw(curve, seed)
            calibration = calibrated(known)
            for kind, rows in enumerate((known.unseen_placements, known.unseen_rows)):
                for row in rows:
                    predicted = calibration.predict(row.nodes, row.batch_size)
                    off_s = float(predicted.seconds[0]) - row.step_s
                    found[kind][curve.key].append((off_s / row.step_s, off_s / float(predicted.sd_s[0])))
    placements, rows = ({key: np.array(each).T for key, each in by_key.items()} for by_key in found)
    return _errors_and_deviations(placements), _errors_and_deviations(rows)


def _errors_and_deviations(by_key: dict[tuple[str, str], np.ndarray]) -> Errors:
    deviations = [np.zeros(0), *(each[1] for each in by_key.values())]
    return Errors({key: each[0] for key, each in by_key.items()}, np.concatenate(deviations))


def _random_halves(curves: list[Curve]) -> str:
    """How much the unseen placements hang on which half is known."""
    drawn = {
        name: [
            100 * np.abs(_errors(curves, METHODS[name], unseen=True, half=np.random.default_rng(seed)).all).mean()
            for seed in _RANDOM_HALVES
        ]
        for name in ("default", "paper")
    }
    return (
        f"Known placements drawn at random, {len(_RANDOM_HALVES)} times: "
        + "; ".join(
            f"{name} {np.mean(each):.2f} % ({min(each):.2f} to {max(each):.2f} %)" for name, each in drawn.items()
        )
        + "."
    )


@dataclass(frozen=True)
class Errors:
    """Signed relative errors by (network, cluster), and how many standard deviations they are where those are known."""

    by_key: dict[tuple[str, str], np.ndarray]
    deviations: np.ndarray

    @property
    def all(self) -> np.ndarray:
        """All of them, one after another."""
        return np.concatenate(list(self.by_key.values()) or [np.zeros(1)])

    def of(self, clusters: Collection[str]) -> Errors:
        """Those of some clusters."""
        kept = {key: found for key, found in self.by_key.items() if key[1] in clusters}
        places = [key in kept for key, found in self.by_key.items() for _ in found]
        return Errors(kept, self.deviations[places])


def curves_of(measured: list[sia.StepTime]) -> Iterator[Curve]:
    """Yield what the protocol asks about."""
    several: dict[tuple[str, str], dict[tuple[int, ...], list[sia.StepTime]]] = defaultdict(lambda: defaultdict(list))
    single = single_gpu_curves(measured)
    for row in measured:
        key = (row.network, row.cluster)
        if row.world_size > 1 and key in single and row.batch_size <= 1.01 * single[key][0][-1]:
            several[key][row.nodes].append(row)
    for key, (batch, seconds) in sorted(single.items()):
        rows = {nodes: sorted(each, key=lambda row: row.batch_size) for nodes, each in sorted(several[key].items())}
        if batch.size < _LEAST_BATCH_SIZES or sum(map(len, rows.values())) < _LEAST_ROWS:
            continue
        probes = [ComputeProbe(*each) for each in zip(batch, seconds, strict=True)]
        places = sia.probe_places(batch.astype(int).tolist())
        yield Curve(key, [probes[place] for place in places], probes, rows)


def _errors(
    curves: list[Curve],
    method: Callable[[Curve, list], Predict],
    *,
    unseen: bool,
    half: int | np.random.Generator = 0,
) -> Errors:
    by_key, deviations = {}, [np.zeros(0)]
    for curve in curves:
        placements = sorted(curve.rows, key=lambda nodes: "".join(map(str, nodes)))
        known, asked = sia.halves(placements, half) if unseen else (placements, placements)
        if unseen and (len(known) < _LEAST_PLACEMENTS or not asked):
            continue
        predict, found = method(curve, known), []
        for nodes in asked:
            rows = curve.rows[nodes] if unseen else curve.rows[nodes][1:]
            if not rows:
                continue
            true = np.array([row.step_s for row in rows])
            predicted = predict(nodes, np.array([row.batch_size for row in rows], dtype=np.float64))
            if predicted.ndim == 2:
                deviations.append((predicted[0] - true) / predicted[1])
                predicted = predicted[0]
            found.append(predicted / true - 1)
        by_key[curve.key] = np.concatenate(found)
    return Errors(by_key, np.concatenate(deviations))


def _calibrated(probes: list[ComputeProbe], curve: Curve, known: list, kind: CalibrationKind) -> Predict:
    calibration = ExchangeCalibration(probes, curve.calibrating(known), kind=kind)

    def predict(nodes: tuple[int, ...], batch: np.ndarray) -> np.ndarray:
        found = calibration.predict(nodes, batch)
        return np.array([found.seconds, found.sd_s])

    return predict


def _all_probes(curve: Curve, known: list) -> Predict:
    return _calibrated(curve.all_probes, curve, known, "default")


def _overlapping(curve: Curve, known: list, iteration_s: Callable, exchange_s: Callable) -> Predict:
    """A baseline: the straight line of APM, its own way to overlap, and least squares for placements never seen."""
    line = fit_compute_curve(curve.probes, "linear")
    measured = curve.calibrating(known)
    seconds = np.array([exchange_s(line, each.batch_size, each.seconds) for each in measured])
    of_known = dict(zip([each.placement for each in measured], seconds, strict=True))
    features = np.array([_features(each.placement) for each in measured])
    slopes = np.linalg.lstsq(features, seconds, rcond=None)[0]

    def predict(nodes: tuple[int, ...], batch: np.ndarray) -> np.ndarray:
        exchange = of_known.get(nodes, max(0.0, float(_features(nodes) @ slopes)))
        return iteration_s(line, batch, exchange)

    return predict


def _features(nodes: tuple[int, ...]) -> np.ndarray:
    world, several = sum(nodes), float(len(nodes) > 1)
    return np.array([1.0, several, world, (world - 1) / world, max(nodes) * several])


def _apm(curve: Curve, known: list) -> Predict:
    def iteration(line: ComputeCurve, batch: np.ndarray, exchange_s: float) -> np.ndarray:
        return full_overlap_s(line.predict(batch), np.full(batch.shape, exchange_s))

    def exchange(line: ComputeCurve, batch: float, seconds: float) -> float:
        return float(fully_overlapped_exchange_s(line.predict(batch), np.array([seconds]))[0])

    return _overlapping(curve, known, iteration, exchange)


def _no_overlap(curve: Curve, known: list) -> Predict:
    def iteration(line: ComputeCurve, batch: np.ndarray, exchange_s: float) -> np.ndarray:
        return line.predict(batch).total_s + exchange_s

    def exchange(line: ComputeCurve, batch: float, seconds: float) -> float:
        return max(0.0, seconds - float(line.predict(batch).total_s[0]))

    return _overlapping(curve, known, iteration, exchange)


METHODS: dict[str, Callable[[Curve, list], Predict]] = {
    "default": lambda curve, known: _calibrated(curve.probes, curve, known, "default"),
    "paper": lambda curve, known: _calibrated(curve.probes, curve, known, "paper"),
    "APM": _apm,
    "no overlap": _no_overlap,
}


def _join(errors: Errors, axis: int, name: str) -> np.ndarray:
    """Return the errors of one network (axis 0) or cluster (axis 1)."""
    return np.concatenate([found for key, found in errors.by_key.items() if key[axis] == name])


def _shown(what: str, errors: dict[str, Errors], beside: dict[str, Errors]) -> list[str]:
    rows = [("**all**", errors["default"].all.size, *(percent(np.abs(errors[name].all).mean(), 2) for name in METHODS))]
    for network in sorted({key[0] for key in errors["default"].by_key}):
        part = {name: np.abs(_join(errors[name], 0, network)) for name in METHODS}
        if part["default"].mean() > min(part[name].mean() for name in METHODS):
            rows.append((network, part["default"].size, *(percent(part[name].mean()) for name in METHODS)))
    clusters = sorted({key[1] for key in errors["default"].by_key})
    by_gpu = ", ".join(
        f"{sia.CLUSTERS[cluster]} {percent(np.abs(_join(errors['default'], 1, cluster)).mean())}"
        for cluster in clusters
    )
    default = errors["default"]
    inside = np.abs(default.deviations) <= _NORMAL_90
    networks = np.array([key[0] for key, found in default.by_key.items() for _ in found])
    covered = ", ".join(f"{each} {percent(inside[networks == each].mean(), 0)}" for each in np.unique(networks))
    text = (
        f"Median error of the default {percent(np.median(np.abs(default.all)))}, "
        f"{percent(np.mean(default.all < 0), 0)} underestimated; {percent(inside.mean() if inside.size else 0.0, 0)} "
        f"lie within the range that should hold 90 % ({covered}). By GPU: {by_gpu}. Beside it: "
        + "; ".join(f"{name} {percent(np.abs(each.all).mean(), 2)}" for name, each in beside.items())
        + ". Below, all together and the applications in which another one is better."
    )
    return [f"### {what.capitalize()}", "", text, "", *table(("rows", "number", *METHODS), rows)]
