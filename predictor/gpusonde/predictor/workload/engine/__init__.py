"""The inference engine: seconds per training iteration from a network's graph and the cluster it is to run on."""

from gpusonde.predictor.workload.engine.errors import (
    EngineError,
    ModelFileError,
    RequestError,
    TooFewMeasurementsError,
)
from gpusonde.predictor.workload.engine.model import NotFittedError, WorkloadModel
from gpusonde.predictor.workload.engine.request import (
    Cluster,
    HostResources,
    Parallelism,
    Precision,
    WorkloadMeasurement,
    WorkloadPrediction,
    WorkloadRequest,
)

__all__ = [
    "Cluster",
    "EngineError",
    "HostResources",
    "ModelFileError",
    "NotFittedError",
    "Parallelism",
    "Precision",
    "RequestError",
    "TooFewMeasurementsError",
    "WorkloadMeasurement",
    "WorkloadModel",
    "WorkloadPrediction",
    "WorkloadRequest",
]
