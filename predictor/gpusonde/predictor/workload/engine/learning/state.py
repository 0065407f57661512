"""``FittedState``: everything that predicting needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpusonde.predictor.crossgpu.intervals.conformal import Calibration
from gpusonde.predictor.workload.engine.encoders import EncoderReference
from gpusonde.predictor.workload.engine.features.encoding import WITH_EMBEDDING
from gpusonde.predictor.workload.engine.learning.estimator import Estimator
from gpusonde.predictor.workload.engine.regression.calibration import CalibratedRoofline
from gpusonde.predictor.workload.engine.trust.familiarity import Familiarity
from gpusonde.predictor.workload.engine.trust.intervals import Intervals


@dataclass(frozen=True)
class FittedEstimator:
    """An estimator and what validation showed of it.

    Attributes:
        estimator: It.
        score: Of the validation.
        architecture: Of its errors on architectures left out.
        places: The same for places with many measurements.
    """

    estimator: Estimator
    score: float
    architecture: Calibration
    places: Mapping[str, Calibration]

    def calibration(self, place: str) -> Calibration:
        """Of its errors on architectures left out at a place."""
        return self.places.get(place, self.architecture)

    @property
    def widest(self) -> Calibration:
        """The same at the place where errors are largest."""
        return max((self.architecture, *self.places.values()), key=lambda each: each.quantile)


@dataclass(frozen=True)
class EmbeddingTrial:
    """What validation said of an embedding that was offered.

    Attributes:
        kept: Whether its columns stayed.
        error: Of the best regressor with them.
        error_without: Of the best one without; None where all were fitted with them (``kind="paper"``).
    """

    kept: bool
    error: float
    error_without: float | None


@dataclass(frozen=True)
class FittedState:
    """A fitted model.

    Attributes:
        kind: "default" or "paper".
        chosen: The regressor that answers unless another is asked for.
        estimators: By regressor.
        roofline: The regressor of few features.
        roofline_errors: Its errors on architectures left out.
        familiarity: What was measured.
        intervals: Of what is new.
        rows: Measurements that it was fitted on.
        encoder: The one whose embedding estimators have columns of; None where none has, or where it has no name.
        trial: What came of offering it; not kept in files.
    """

    kind: str
    chosen: str
    estimators: Mapping[str, FittedEstimator]
    roofline: CalibratedRoofline
    roofline_errors: Calibration
    familiarity: Familiarity
    intervals: Intervals
    rows: int
    encoder: EncoderReference | None = None
    trial: EmbeddingTrial | None = None

    @property
    def has_embedding(self) -> bool:
        """Whether an estimator has columns of an embedding."""
        return any(each.estimator.candidate.features in WITH_EMBEDDING for each in self.estimators.values())
