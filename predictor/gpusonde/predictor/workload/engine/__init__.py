"""The inference engine: seconds per training iteration from a network's graph and the cluster it is to run on."""

from gpusonde.predictor.workload.engine.encoders import EncoderEmbedder, EncoderReference
from gpusonde.predictor.workload.engine.model import NotFittedError, WorkloadModel
from gpusonde.predictor.workload.engine.request import (
    Cluster,
    EngineError,
    HostResources,
    MissingEncoderError,
    ModelFileError,
    Parallelism,
    RequestError,
    TooFewMeasurementsError,
    WorkloadMeasurement,
    WorkloadPrediction,
    WorkloadRequest,
)

__all__ = [
    "Cluster",
    "EncoderEmbedder",
    "EncoderReference",
    "EngineError",
    "HostResources",
    "MissingEncoderError",
    "ModelFileError",
    "NotFittedError",
    "Parallelism",
    "RequestError",
    "TooFewMeasurementsError",
    "WorkloadMeasurement",
    "WorkloadModel",
    "WorkloadPrediction",
    "WorkloadRequest",
]
