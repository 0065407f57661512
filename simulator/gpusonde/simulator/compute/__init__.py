"""How long the forward and backward pass of a batch takes on one GPU."""

from gpusonde.simulator.compute.fitting import (
    ComputeCurve,
    ComputeLatency,
    ComputeProbe,
    CurveKind,
    CurveOrigin,
    fit_compute_curve,
)
from gpusonde.simulator.compute.search import LargestBatch, batches_to_probe, largest_batch
from gpusonde.simulator.compute.sources import (
    EpochLatency,
    LatencyEstimate,
    compute_curve,
)

__all__ = [
    "ComputeCurve",
    "ComputeLatency",
    "ComputeProbe",
    "CurveKind",
    "CurveOrigin",
    "EpochLatency",
    "LargestBatch",
    "LatencyEstimate",
    "batches_to_probe",
    "compute_curve",
    "fit_compute_curve",
    "largest_batch",
]
