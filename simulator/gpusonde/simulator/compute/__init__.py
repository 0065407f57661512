"""How long the forward and backward pass of a batch takes on one GPU."""

from gpusonde.simulator.compute.curve import ComputeCurve, ComputeLatency, CurveOrigin
from gpusonde.simulator.compute.fitting import ComputeProbe, CurveKind, ProbeError, fit_compute_curve

__all__ = [
    "ComputeCurve",
    "ComputeLatency",
    "ComputeProbe",
    "CurveKind",
    "CurveOrigin",
    "ProbeError",
    "fit_compute_curve",
]
