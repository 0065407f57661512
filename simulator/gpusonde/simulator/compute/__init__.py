"""How long the forward and backward pass of a batch takes on one GPU."""

from gpusonde.simulator.compute.fitting import (
    ComputeCurve,
    ComputeLatency,
    ComputeProbe,
    CurveKind,
    CurveOrigin,
    ProbeError,
    fit_compute_curve,
)
from gpusonde.simulator.compute.origins import (
    CurveSource,
    EpochLatencies,
    EpochLatency,
    GrayBoxEstimates,
    LatencyEstimate,
    TimedSteps,
    WorkloadEstimator,
    compute_curve,
)
from gpusonde.simulator.compute.search import LargestBatch, NothingFitsError, batches_to_probe, largest_batch

__all__ = [
    "ComputeCurve",
    "ComputeLatency",
    "ComputeProbe",
    "CurveKind",
    "CurveOrigin",
    "CurveSource",
    "EpochLatencies",
    "EpochLatency",
    "GrayBoxEstimates",
    "LargestBatch",
    "LatencyEstimate",
    "NothingFitsError",
    "ProbeError",
    "TimedSteps",
    "WorkloadEstimator",
    "batches_to_probe",
    "compute_curve",
    "fit_compute_curve",
    "largest_batch",
]
