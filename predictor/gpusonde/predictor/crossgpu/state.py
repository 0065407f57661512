"""What a model is made of: the settings that are chosen, the state that fitting finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpusonde.predictor.crossgpu.neighbourhood import Calibration, GpuNeighbourhood, Regime, RunNeighbourhood
from gpusonde.predictor.crossgpu.pairs import Pairs
from gpusonde.predictor.crossgpu.regression import ResidualModel, ResidualSettings


@dataclass(frozen=True)
class ModelSettings:
    """Everything about a model that is chosen and not fitted.

    Attributes:
        residual: How the learned part is fitted.
        coverage: Nominal coverage of the intervals.
        one_unseen_weight: Weight of the learned residual when the model was not fitted on one of the two GPUs. It is 1
            when both are known, and 0 when neither is: there the prior alone is more exact.
        regimes: Regimes to calibrate intervals for besides that of the prior; an evaluation that needs one of
            them saves the others' fits.
    """

    residual: ResidualSettings = field(default_factory=ResidualSettings)
    coverage: float = 0.9
    one_unseen_weight: float = 0.8
    regimes: tuple[Regime, ...] = tuple(Regime)


@dataclass(frozen=True)
class LatencyModelState:
    """What fitting finds.

    Attributes:
        residual: The learned part.
        calibrations: Regime -> interval; that of the prior is always there.
        runs: Neighbourhood of the runs' source features.
        gpus: The GPUs that were seen.
        pairs: What all this was fitted on.
    """

    residual: ResidualModel
    calibrations: Mapping[Regime, Calibration]
    runs: RunNeighbourhood
    gpus: GpuNeighbourhood
    pairs: Pairs
