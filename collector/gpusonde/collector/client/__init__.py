"""The collector's clients over gRPC: the one way in for whoever is not the collector.

``Client`` asks about runs, epochs, samples and predictions, ``PlanningClient`` for plans, ``WorkloadClient`` for times
from graphs, ``FleetClient`` about agents. They import the wire contract and nothing of the server.
"""

from gpusonde.collector.client.admin import ConnectedAgent, FleetClient
from gpusonde.collector.client.planning import PlanningClient
from gpusonde.collector.client.query import Client
from gpusonde.collector.client.results import (
    CycleInfo,
    DurationChange,
    DurationTrend,
    EpochInfo,
    GpuDeviation,
    GpuPlacement,
    HostDeviation,
    JobAlert,
    JobInfo,
    JobMember,
    JobProcessesInfo,
    JobSpan,
    MeasuredMetric,
    Measurement,
    Prediction,
    PredictionSet,
    RunEndEstimate,
    RunEpochs,
    RunInfo,
    SampleBounds,
    SlowDevice,
)
from gpusonde.collector.client.workload import WorkloadClient
from gpusonde.errors import CollectorError

__all__ = [
    "Client",
    "CollectorError",
    "ConnectedAgent",
    "CycleInfo",
    "DurationChange",
    "DurationTrend",
    "EpochInfo",
    "FleetClient",
    "GpuDeviation",
    "GpuPlacement",
    "HostDeviation",
    "JobAlert",
    "JobInfo",
    "JobMember",
    "JobProcessesInfo",
    "JobSpan",
    "MeasuredMetric",
    "Measurement",
    "PlanningClient",
    "Prediction",
    "PredictionSet",
    "RunEndEstimate",
    "RunEpochs",
    "RunInfo",
    "SampleBounds",
    "SlowDevice",
    "WorkloadClient",
]
