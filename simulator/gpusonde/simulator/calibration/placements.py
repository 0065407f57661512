"""Exchange times over placements: what measured ones say about each other, and about those that nobody measured.

A placement is the number of devices on each machine. Its exchange time is taken as a linear function of the world
size, the share that a ring moves and the devices that share a machine's link, plus a smooth correction (a Gaussian
process over the logarithms of devices, machines and devices per machine), plus what is this placement's own and nobody
can explain. How much each counts is averaged over amplitudes and lengths by how well they explain the measurements; a
measurement far off counts less (iteratively reweighted, as in Huber's estimator).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpusonde.simulator.gradients import FloatArray

Placement = tuple[int, ...]

# All relative to the median exchange time of the measured placements.
_LINEAR_FREEDOM = 0.5  # by how much a feature that lies one standard deviation off may change it
# What to expect before anything is measured: links inside a machine carry several times what its network does.
_WITHIN_ONE_MACHINE = 0.25
_AMPLITUDES = (0.1, 0.2, 0.4)
_LENGTH_SCALES = (0.5, 1.0, 2.0)  # in natural logarithms of counts
_OWN = (0.03, 0.06, 0.12, 0.24)
_ROUNDS = 6
_FAR_OFF = 1.5  # in standard deviations
_RIDGE = 1e-2


@dataclass(frozen=True)
class ExchangeTimes:
    """Exchange times of placements.

    Attributes:
        seconds: Shape (n,).
        sd_s: Shape (n,), their standard deviation.
    """

    seconds: FloatArray
    sd_s: FloatArray


class SmoothPlacements:
    """The default model.

    Args:
        placements: Measured placements, each once, at least one.
        seconds: Shape (n,), exchange time of each.
        sd_s: Shape (n,), standard deviation of the measurement.
        scale_s: What the amplitudes are relative to, above zero.
    """

    def __init__(self, placements: Sequence[Placement], seconds: FloatArray, sd_s: FloatArray, scale_s: float) -> None:
        self._index = {placement: index for index, placement in enumerate(placements)}
        self._scale_s = scale_s
        features = np.array([_linear(placement) for placement in placements])
        self._middle, spread = features.mean(axis=0), features.std(axis=0)
        # The constant stays one, and a feature in which nothing differs says nothing.
        self._middle[0] = 0.0
        self._spread = np.where(spread > 0, spread, 1.0)
        self._features = self._standardised(placements)
        self._logarithms = np.array([_logarithms(placement) for placement in placements])
        # Every setting of the process at once, shape (settings,).
        settings = itertools.product(_LENGTH_SCALES, _AMPLITUDES, _OWN)
        self._lengths, self._amplitudes, self._own = np.array(list(settings)).T
        beyond, variance = seconds / scale_s - _expected(placements), (sd_s / scale_s) ** 2
        smooth = self._smooth(self._features, self._logarithms)
        diagonal = np.arange(len(placements))
        self._trust = np.ones(len(placements))
        for _ in range(_ROUNDS):
            covariance = smooth.copy()
            covariance[:, diagonal, diagonal] += (self._own[:, None] ** 2 + variance) / self._trust + 1e-9
            self._precision = np.linalg.inv(covariance)
            self._weights = self._precision @ beyond
            log_evidence = -0.5 * (self._weights @ beyond + np.linalg.slogdet(covariance)[1])
            self._shares = _shares(log_evidence)
            own = float(self._shares @ self._own**2)
            off = np.abs(beyond - self._shares @ _each(smooth, self._weights)) / np.sqrt(own + variance)
            self._trust = 1.0 / np.maximum(1.0, off / _FAR_OFF)

    def predict(self, placements: Sequence[Placement]) -> ExchangeTimes:
        """Return exchange times; a measured placement keeps what is its own."""
        features, logarithms = self._standardised(placements), np.array([_logarithms(each) for each in placements])
        across = self._smooth(features, logarithms)
        trust = np.ones(len(placements))
        for row, placement in enumerate(placements):
            if placement in self._index:
                column = self._index[placement]
                trust[row] = self._trust[column]
                across[:, row, column] += self._own**2 / trust[row]
        beyond = _each(across, self._weights)
        mean = self._shares @ beyond
        before = self._amplitudes[:, None] ** 2 + _LINEAR_FREEDOM**2 * (features**2).sum(axis=1)
        before += self._own[:, None] ** 2 / trust
        explained = ((across @ self._precision) * across).sum(axis=-1)
        variance = self._shares @ (np.maximum(before - explained, 0.0) + (beyond - mean) ** 2)
        return ExchangeTimes(
            np.maximum(_expected(placements) + mean, 0.0) * self._scale_s, np.sqrt(variance) * self._scale_s
        )

    def _smooth(self, features: FloatArray, logarithms: FloatArray) -> FloatArray:
        """Covariance of placements with the measured ones, less what is their own, shape (settings, m, n)."""
        far = ((logarithms[:, None, :] - self._logarithms[None, :, :]) ** 2).sum(axis=-1)
        near = np.exp(-0.5 * far / self._lengths[:, None, None] ** 2)
        linear = _LINEAR_FREEDOM**2 * features @ self._features.T
        return np.asarray(self._amplitudes[:, None, None] ** 2 * near + linear)

    def _standardised(self, placements: Sequence[Placement]) -> FloatArray:
        features = np.array([_linear(placement) for placement in placements])
        return np.asarray((features - self._middle) / self._spread)


class LinearPlacements:
    """Each measured placement as measured, others by least squares: for the figures of the published recipe.

    Args:
        placements: Measured placements, each once, at least one.
        seconds: Shape (n,), exchange time of each.
        sd_s: Shape (n,), standard deviation of the measurement.
    """

    def __init__(self, placements: Sequence[Placement], seconds: FloatArray, sd_s: FloatArray) -> None:
        self._measured = dict(zip(placements, zip(seconds, sd_s, strict=True), strict=True))
        features = np.array([_linear(placement) for placement in placements])
        count = features.shape[1]
        self._slopes = np.linalg.lstsq(
            np.vstack([features, _RIDGE * np.eye(count)]), np.concatenate([seconds, np.zeros(count)]), rcond=None
        )[0]
        self._sd_s = float(np.std(seconds - features @ self._slopes))

    def predict(self, placements: Sequence[Placement]) -> ExchangeTimes:
        """Return exchange times."""
        found = [
            self._measured.get(each, (max(0.0, float(_linear(each) @ self._slopes)), self._sd_s)) for each in placements
        ]
        return ExchangeTimes(*np.array(found).T)


def _linear(placement: Placement) -> FloatArray:
    """Features whose weights are times."""
    world, several = float(sum(placement)), float(len(placement) > 1)
    return np.array([1.0, several, world, (world - 1.0) / world, max(placement) * several])


def _expected(placements: Sequence[Placement]) -> FloatArray:
    """Exchange times over the scale before anything was measured, shape (n,)."""
    return np.array([1.0 if len(placement) > 1 else _WITHIN_ONE_MACHINE for placement in placements])


def _logarithms(placement: Placement) -> FloatArray:
    return np.log([sum(placement), len(placement), max(placement), min(placement)])


def _each(across: FloatArray, weights: FloatArray) -> FloatArray:
    """What each setting says, shape (settings, m)."""
    return np.asarray((across @ weights[:, :, None])[:, :, 0])


def _shares(log_evidence: FloatArray) -> FloatArray:
    weights = np.exp(log_evidence - log_evidence.max())
    return np.asarray(weights / weights.sum())
