"""Split conformal intervals: quantiles of the errors made on runs that the model had not seen, per situation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


class Situation(Enum):
    """How well a query is covered by what the model was fitted on; each has intervals of its own."""

    SEEN_GPUS = "seen GPUs, unseen workload"
    ONE_UNSEEN_GPU = "one unseen GPU"
    PRIOR_ONLY = "both GPUs unseen, or not all metrics: prior from utilisation"
    STATIC_ONLY = "no dynamic metrics: prior from static figures"


@dataclass(frozen=True)
class Calibration:
    """Half width of the interval in log space: ``quantile * scale`` of the query.

    Attributes:
        quantile: Conformal quantile of ``|log error| / scale``.
        count: Number of errors it comes from.
    """

    quantile: float
    count: int


@dataclass(frozen=True)
class LeftOut:
    """Errors of models on what each of them was not fitted on.

    Attributes:
        log_errors: Predicted minus true log ratio, shape (n,).
        scales: Positive scale of each error, shape (n,): the interval of a query is as wide as its own scale makes it.
    """

    log_errors: FloatArray
    scales: FloatArray

    @classmethod
    def join(cls, parts: Sequence[LeftOut]) -> LeftOut:
        """Pool the errors of several folds."""
        return cls(
            np.concatenate([np.zeros(0), *(part.log_errors for part in parts)]),
            np.concatenate([np.zeros(0), *(part.scales for part in parts)]),
        )


def calibrate(errors: LeftOut, coverage: float) -> Calibration:
    """Conformal quantile of normalised absolute errors.

    Args:
        errors: At least one.
        coverage: Share of intervals that should hold the truth.

    Returns:
        The ceil((n + 1) * coverage)-th smallest score (Vovk et al., "Algorithmic Learning in a Random World"); the
        largest one when there are too few.
    """
    scores = np.sort(np.abs(errors.log_errors) / errors.scales)
    rank = min(len(scores), math.ceil((len(scores) + 1) * coverage))
    return Calibration(float(scores[rank - 1]), len(scores))


def calibrate_worst(parts: Sequence[LeftOut], coverage: float) -> Calibration:
    """The widest of several calibrations.

    For what comes in few kinds: four GPUs left out in turn are four observations of "an unseen GPU", however many pairs
    each gives, so the next unseen GPU is given the quantile of the worst of them, not that of all pairs pooled.
    """
    return max((calibrate(part, coverage) for part in parts), key=lambda calibration: calibration.quantile)
