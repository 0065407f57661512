"""The inference engine: seconds per training iteration from a network's graph and the cluster it is to run on."""

from gpusonde.predictor.workload.engine.encoders import EncoderEmbedder, EncoderReference
from gpusonde.predictor.workload.engine.model import WorkloadModel
from gpusonde.predictor.workload.engine.request import (
    Cluster,
    HostResources,
    Parallelism,
    WorkloadMeasurement,
    WorkloadPrediction,
    WorkloadRequest,
)

__all__ = [
    "Cluster",
    "EncoderEmbedder",
    "EncoderReference",
    "HostResources",
    "Parallelism",
    "WorkloadMeasurement",
    "WorkloadModel",
    "WorkloadPrediction",
    "WorkloadRequest",
]
