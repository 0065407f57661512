"""From iterations measured on some placements to other batch sizes and to placements that nobody measured."""

from gpusonde.simulator.calibration.calibrate import (
    CalibrationKind,
    ExchangeCalibration,
    IterationPrediction,
    MeasuredIteration,
    Overlap,
    even_trace,
)

__all__ = [
    "CalibrationKind",
    "ExchangeCalibration",
    "IterationPrediction",
    "MeasuredIteration",
    "Overlap",
    "even_trace",
]
