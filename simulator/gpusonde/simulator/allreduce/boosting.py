"""Boosted trees (XGBoost, where it is installed) that learn allreduces.

``Residual`` learns what interpolation misses where nothing was measured, as far as trees can. ``PaperModel`` is
Srifty's model as published: two XGBoost models of the bus bandwidth, split at the MTU.
"""

from __future__ import annotations

import importlib
import importlib.util
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpusonde.errors import CommandError
from gpusonde.simulator.allreduce.curves import FloatArray, LinkCurves, SizeCurve, log_bus
from gpusonde.simulator.allreduce.history import Decay
from gpusonde.simulator.allreduce.measurements import AllreduceMeasurement, Link


def is_installed() -> bool:
    """Return whether XGBoost is there."""
    return importlib.util.find_spec("xgboost") is not None


class BoostedTrees:
    """Gradient-boosted regression trees on one core, the same for the same data.

    Args:
        rounds: Trees.
        depth: Of each.
        rate: Learning rate.
        objective: XGBoost's name of the loss.

    Raises:
        CommandError: XGBoost is not installed.
    """

    def __init__(self, rounds: int, depth: int, rate: float, objective: str, min_weight: float = 1.0) -> None:
        if not is_installed():
            raise CommandError("this needs XGBoost: install gpusonde[collector], or xgboost-cpu")
        # Imported only now: it takes a second, and interpolation does without.
        self._xgboost: Any = importlib.import_module("xgboost")
        self._rounds = rounds
        self._parameters = {
            "max_depth": depth,
            "eta": rate,
            "subsample": 0.9,
            "min_child_weight": min_weight,
            "objective": objective,
            "tree_method": "hist",
            "nthread": 1,
            "seed": 0,
            "verbosity": 0,
        }
        self._booster: Any = None

    def fit(self, features: FloatArray, labels: FloatArray, weights: FloatArray) -> BoostedTrees:
        """Fit to features of shape (n, m), labels and weights of shape (n,)."""
        rows = self._xgboost.DMatrix(features, label=labels, weight=weights)
        self._booster = self._xgboost.train(self._parameters, rows, self._rounds)
        return self

    def predict(self, features: FloatArray) -> FloatArray:
        """Return the labels of features of shape (n, m), shape (n,).

        Raises:
            ValueError: Not fitted.
        """
        if self._booster is None:
            raise ValueError("fit the trees first")
        return np.asarray(self._booster.predict(self._xgboost.DMatrix(features)), dtype=np.float64)


# "9K bytes on EC2" (section 4.2).
MTU_BYTES = 9000
# The paper's hyperparameters came from a search that it does not print; these are the reference's.
_PAPER_ROUNDS, _PAPER_DEPTH, _PAPER_RATE = 300, 6, 0.08


class PaperModel:
    """Bus bandwidth of single transfers as the paper predicts it: without spread, and negative at times.

    Args:
        measurements: What it is fitted to.
        decay: "decaying the weights of stale samples" (section 4.2).
        log_target: Fit the logarithm instead, which is not the paper's but keeps the prediction above zero.
        models: 2 as published, 1 is the one model whose faults made the paper split it.

    Raises:
        CommandError: XGBoost is not installed.
    """

    def __init__(
        self, measurements: Sequence[AllreduceMeasurement], decay: Decay, *, log_target: bool = False, models: int = 2
    ) -> None:
        self._log_target = log_target
        self._limit_bytes = float(MTU_BYTES) if models == 2 else np.inf
        self._names = [
            sorted({getattr(one, name) for one in measurements}) for name in ("fabric", "location", "device")
        ]
        sizes = np.array([one.transfer_bytes for one in measurements])
        features = np.vstack(
            [
                self._features(
                    Link.from_measurement(one), np.array([one.transfer_bytes]), one.world_size, one.concurrent
                )
                for one in measurements
            ]
        )
        bandwidths = np.array([one.bus_bytes_per_second for one in measurements])
        weights = decay.weights(measurements)
        self._models: list[BoostedTrees | None] = []
        for part in (sizes <= self._limit_bytes, sizes > self._limit_bytes):
            trees = None
            if part.any():
                labels = np.log(bandwidths[part]) if log_target else bandwidths[part] / _unit(bandwidths)
                objective = "reg:absoluteerror" if log_target else "reg:squarederror"
                trees = BoostedTrees(_PAPER_ROUNDS, _PAPER_DEPTH, _PAPER_RATE, objective).fit(
                    features[part], labels, weights[part]
                )
            self._models.append(trees)
        self._unit = _unit(bandwidths)
        self._lowest = float(bandwidths.min())

    def published(self, link: Link, transfer_bytes: FloatArray, world_size: int, concurrent: int = 1) -> FloatArray:
        """Return the bus bandwidth in bytes per second exactly as the models give it, negative values included."""
        sizes = np.asarray(transfer_bytes, dtype=np.float64)
        features = self._features(link, sizes, world_size, concurrent)
        found = np.empty(sizes.shape)
        small, large = self._models
        for part, trees in ((sizes <= self._limit_bytes, small or large), (sizes > self._limit_bytes, large or small)):
            if part.any() and trees is not None:
                found[part] = trees.predict(features[part])
        return np.exp(found) if self._log_target else found * self._unit

    def bytes_per_second(
        self, link: Link, transfer_bytes: FloatArray, world_size: int, concurrent: int = 1
    ) -> FloatArray:
        """Return the same, but never below the smallest bandwidth measured: a simulator cannot use a negative one."""
        return np.maximum(self.published(link, transfer_bytes, world_size, concurrent), self._lowest)

    def _features(self, link: Link, sizes: FloatArray, world_size: int, concurrent: int) -> FloatArray:
        same = np.ones(sizes.shape)
        hot: list[npt.NDArray[np.float64]] = [
            same * (value == name)
            for value, names in zip((link.fabric, link.location, link.device), self._names, strict=True)
            for name in names
        ]
        return np.column_stack([np.log(sizes), same * world_size, same * concurrent, *hot])


def _unit(bandwidths: FloatArray) -> float:
    """Labels around 1: the trees' own defaults (starting value, regularisation) fit such labels."""
    return float(np.median(bandwidths))


_LEAST_ROWS = 300
_SIZES_PER_CURVE = 48
_MOST_CURVES = 256
_MOST_NAMES = 64
_FOLDS = 5
# Switched on only when it takes away this share of the mean absolute error on curves it has not seen.
_LEAST_GAIN = 0.05
# A correction never exceeds this factor of e.
_MOST = 0.5
_ROUNDS, _DEPTH, _RATE, _MIN_WEIGHT = 120, 4, 0.06, 8.0


@dataclass(frozen=True)
class Residual:
    """Correction of the log bandwidth away from what was measured.

    Attributes:
        trees: What it was learnt with.
        links: The links, in the order of their features.
        strength: What is applied of it, above 0 up to 1.
        gain: Share of the mean absolute error that it took away in cross-validation.
    """

    trees: BoostedTrees
    links: tuple[Link, ...]
    strength: float
    gain: float

    def correction(
        self, link: Link, curves: LinkCurves, log_bytes: FloatArray, world_size: int, concurrent: int
    ) -> FloatArray:
        """Return what to add to the logarithm of the bandwidth, shape (n,); 0 at what was measured."""
        if (world_size, concurrent) in curves.curves:
            share = _novelty(curves.curves[world_size, concurrent], log_bytes)
            unseen_world = 0.0
        else:
            share, unseen_world = np.ones_like(log_bytes), 1.0
        baseline = curves.predict(log_bytes, world_size, concurrent, check=False).mean
        features = _features(self.links, link, curves, log_bytes, world_size, concurrent, baseline, unseen_world)
        return share * self.strength * np.clip(self.trees.predict(features), -_MOST, _MOST)


def learn_residual(links: Mapping[Link, LinkCurves]) -> Residual | None:
    """Return the residual of these links, or None where there is too little data, no XGBoost, or no gain.

    The labels come from leaving measured sizes and world sizes out and interpolating them; whether trees help is tried
    on curves that they have not seen.
    """
    if not is_installed():
        return None
    tried = sorted((link, world, concurrent) for link in links for world, concurrent in links[link].curves)
    # Some hundred curves say what all of them would; of thousands, leaving out takes minutes.
    tried = tried[:: -(-len(tried) // _MOST_CURVES)]
    names = tuple(sorted({link for link, _, _ in tried}))[:_MOST_NAMES]
    features, labels, groups = [], [], []
    for link, world, concurrent in tried:
        curve = links[link].curves[world, concurrent]
        for rest, sizes, unseen in _left_out(links[link], world, concurrent, curve):
            baseline = rest.predict(sizes, world, concurrent, check=False).mean
            truth = log_bus(sizes, curve.seconds(sizes), world)
            features.append(_features(names, link, rest, sizes, world, concurrent, baseline, unseen))
            labels.append(truth - baseline)
            # All of a world size at once: its numbers of transfers tell about each other.
            groups.append(np.full(sizes.shape, link_number(link, world) % _FOLDS))
    if sum(map(len, labels)) < _LEAST_ROWS:
        return None
    rows, missed, folds = np.vstack(features), np.clip(np.concatenate(labels), -2.0, 2.0), np.concatenate(groups)
    found = np.zeros_like(missed)
    for fold in np.unique(folds):
        inside = folds != fold
        if inside.any():
            found[~inside] = np.clip(_fitted(rows[inside], missed[inside]).predict(rows[~inside]), -_MOST, _MOST)
    best, gain = 0.0, 0.0
    for strength in (0.5, 1.0):
        gained = 1.0 - float(np.abs(missed - strength * found).mean() / max(np.abs(missed).mean(), 1e-12))
        if gained > gain:
            best, gain = strength, gained
    if gain < _LEAST_GAIN:
        return None
    return Residual(_fitted(rows, missed), names, best, gain)


def link_number(link: Link, world: int) -> int:
    """A number that is the same in every process."""
    return zlib.crc32(f"{link.fabric}|{link.device}|{link.location}|{world}".encode())


def _left_out(
    curves: LinkCurves, world: int, concurrent: int, curve: SizeCurve
) -> list[tuple[LinkCurves, FloatArray, float]]:
    """What remains without some sizes, or without the world size; what was left out; whether it was the world size."""
    found = []
    knots = np.arange(curve.log_bytes.size)
    if knots.size >= 6:
        for offset in range(3):
            out = (knots % 3 == offset) & (knots > 0) & (knots < knots.size - 1)
            kept = SizeCurve(curve.log_bytes[~out], curve.log_seconds[~out], curve.scatter, curve.weight)
            rest = LinkCurves({**curves.curves, (world, concurrent): kept}, curves.topology, curves.devices_per_machine)
            found.append((rest, _thinned(curve.log_bytes[out]), 0.0))
    others = {key: one for key, one in curves.curves.items() if key != (world, concurrent)}
    if any(count == concurrent for _, count in others):
        rest = LinkCurves(others, curves.topology, curves.devices_per_machine)
        found.append((rest, _thinned(curve.log_bytes), 1.0))
    return found


def _thinned(sizes: FloatArray) -> FloatArray:
    return sizes[:: max(1, sizes.size // _SIZES_PER_CURVE)]


def _novelty(curve: SizeCurve, log_bytes: FloatArray) -> FloatArray:
    """0 at a measured size, 1 in the middle between two; 0 outside, where nothing was learnt."""
    knots = curve.log_bytes
    place = np.clip(np.searchsorted(knots, log_bytes), 1, max(1, knots.size - 1))
    if knots.size < 2:
        return np.zeros_like(log_bytes)
    share = (log_bytes - knots[place - 1]) / (knots[place] - knots[place - 1])
    return np.asarray(np.clip(4.0 * share * (1.0 - share), 0.0, 1.0))


def _features(
    names: tuple[Link, ...],
    link: Link,
    curves: LinkCurves,
    log_bytes: FloatArray,
    world_size: int,
    concurrent: int,
    baseline: FloatArray,
    unseen_world: float,
) -> FloatArray:
    same = np.ones_like(log_bytes)
    columns = [
        log_bytes,
        same * world_size,
        same * (world_size % 2),
        same * curves.rings(world_size),
        same * concurrent,
        baseline,
        same * unseen_world,
    ]
    return np.column_stack([*columns, *(same * (link == name) for name in names)])


def _fitted(rows: FloatArray, labels: FloatArray) -> BoostedTrees:
    trees = BoostedTrees(_ROUNDS, _DEPTH, _RATE, "reg:absoluteerror", _MIN_WEIGHT)
    return trees.fit(rows, labels, np.ones_like(labels))
