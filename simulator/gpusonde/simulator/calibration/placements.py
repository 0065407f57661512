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
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve

from gpusonde.simulator.gradients import FloatArray

Placement = tuple[int, ...]

# All relative to the median exchange time of the measured placements.
_LINEAR_FREEDOM = 2.0
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


@dataclass(frozen=True)
class _Hypothesis:
    """One setting of the process, fitted."""

    amplitude: float
    length: float
    own: float
    factor: tuple[FloatArray, bool]
    weights: FloatArray
    log_evidence: float


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
        self._expected = _expected(placements)
        self._trust = np.ones(len(placements))
        measured, variance = seconds / scale_s, (sd_s / scale_s) ** 2
        for _ in range(_ROUNDS):
            self._hypotheses = self._fitted(measured, variance)
            self._shares = _shares([each.log_evidence for each in self._hypotheses])
            smooth = self._expected + self._mean(self._features, self._logarithms, None)
            own = float(self._shares @ [each.own**2 for each in self._hypotheses])
            off = np.abs(measured - smooth) / np.sqrt(own + variance)
            self._trust = 1.0 / np.maximum(1.0, off / _FAR_OFF)

    def predict(self, placements: Sequence[Placement]) -> ExchangeTimes:
        """Return exchange times; a measured placement keeps what is its own."""
        features, logarithms = self._standardised(placements), np.array([_logarithms(each) for each in placements])
        beyond = self._mean(features, logarithms, placements)
        mean = _expected(placements) + beyond
        variance = np.zeros(len(placements))
        for share, hypothesis in zip(self._shares, self._hypotheses, strict=True):
            across = self._across(features, logarithms, placements, hypothesis)
            before = hypothesis.amplitude**2 + _LINEAR_FREEDOM**2 * (features**2).sum(axis=1)
            before += hypothesis.own**2 / self._trust_of(placements)
            explained = np.einsum("ij,ji->i", across, cho_solve(hypothesis.factor, across.T))
            apart = across @ hypothesis.weights - beyond
            variance += share * (np.maximum(before - explained, 0.0) + apart**2)
        return ExchangeTimes(np.maximum(mean, 0.0) * self._scale_s, np.sqrt(variance) * self._scale_s)

    def _fitted(self, measured: FloatArray, variance: FloatArray) -> list[_Hypothesis]:
        linear = _LINEAR_FREEDOM**2 * self._features @ self._features.T
        far = _squares(self._logarithms, self._logarithms)
        found = []
        for length, amplitude, own in itertools.product(_LENGTH_SCALES, _AMPLITUDES, _OWN):
            covariance = amplitude**2 * np.exp(-0.5 * far / length**2) + linear
            covariance[np.diag_indices_from(covariance)] += (own**2 + variance) / self._trust + 1e-9
            factor = cho_factor(covariance, lower=True)
            beyond = measured - self._expected
            weights = cho_solve(factor, beyond)
            log_evidence = -0.5 * float(beyond @ weights) - float(np.log(np.diag(factor[0])).sum())
            found.append(_Hypothesis(amplitude, length, own, factor, weights, log_evidence))
        return found

    def _mean(self, features: FloatArray, logarithms: FloatArray, placements: Sequence[Placement] | None) -> FloatArray:
        """Exchange times over the scale, less the expected, shape (m,); without ``placements``, without their own."""
        return np.asarray(
            sum(
                share * (self._across(features, logarithms, placements, hypothesis) @ hypothesis.weights)
                for share, hypothesis in zip(self._shares, self._hypotheses, strict=True)
            )
        )

    def _across(
        self,
        features: FloatArray,
        logarithms: FloatArray,
        placements: Sequence[Placement] | None,
        hypothesis: _Hypothesis,
    ) -> FloatArray:
        """Covariance of the asked placements with the measured ones, shape (m, n)."""
        far = _squares(logarithms, self._logarithms)
        across = hypothesis.amplitude**2 * np.exp(-0.5 * far / hypothesis.length**2)
        across += _LINEAR_FREEDOM**2 * features @ self._features.T
        for row, placement in enumerate(placements or ()):
            if placement in self._index:
                column = self._index[placement]
                across[row, column] += hypothesis.own**2 / self._trust[column]
        return np.asarray(across)

    def _trust_of(self, placements: Sequence[Placement]) -> FloatArray:
        places = [self._index.get(placement) for placement in placements]
        return np.array([1.0 if place is None else self._trust[place] for place in places])

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


def _squares(one: FloatArray, other: FloatArray) -> FloatArray:
    return np.asarray(((one[:, None, :] - other[None, :, :]) ** 2).sum(axis=-1))


def _shares(log_evidence: Sequence[float]) -> npt.NDArray[np.float64]:
    weights = np.exp(np.array(log_evidence) - max(log_evidence))
    return np.asarray(weights / weights.sum())
