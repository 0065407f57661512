"""``PaperModel``: Srifty's allreduce model as published, two XGBoost models of the bus bandwidth split at the MTU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gpusonde.simulator.allreduce.boosted.boosting import BoostedTrees
from gpusonde.simulator.allreduce.curves.curve import FloatArray
from gpusonde.simulator.allreduce.history import Decay
from gpusonde.simulator.allreduce.measurements import AllreduceMeasurement, Link

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
        BoostingMissingError: XGBoost is not installed.
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
                self._features(Link.of(one), np.array([one.transfer_bytes]), one.world_size, one.concurrent)
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
