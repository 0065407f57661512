"""The inference engine: seconds per training iteration from a network's graph and the cluster it is to run on.

What other rooms use can be imported from here, each part when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpusonde.predictor.workload.engine.encoders import EncoderEmbedder, EncoderReference
    from gpusonde.predictor.workload.engine.evaluation import (
        Flags,
        Fold,
        WorkloadEvaluation,
        WorkloadProtocol,
        cut_folds,
        evaluate,
    )
    from gpusonde.predictor.workload.engine.features import compute_flops_utilisation
    from gpusonde.predictor.workload.engine.measurements import KnownNetworks, MeasurementTable, read_measurements
    from gpusonde.predictor.workload.engine.memory import Fits, MemoryFit, MemoryNeed, Optimizer, StepMemory
    from gpusonde.predictor.workload.engine.model import WorkloadModel
    from gpusonde.predictor.workload.engine.request import (
        Cluster,
        HostResources,
        Parallelism,
        WorkloadMeasurement,
        WorkloadPrediction,
        WorkloadRequest,
    )

_HOMES = {
    "EncoderEmbedder": "encoders",
    "EncoderReference": "encoders",
    "WorkloadEvaluation": "evaluation",
    "Flags": "evaluation",
    "Fold": "evaluation",
    "WorkloadProtocol": "evaluation",
    "evaluate": "evaluation",
    "cut_folds": "evaluation",
    "compute_flops_utilisation": "features",
    "KnownNetworks": "measurements",
    "MeasurementTable": "measurements",
    "read_measurements": "measurements",
    "Fits": "memory",
    "MemoryFit": "memory",
    "MemoryNeed": "memory",
    "Optimizer": "memory",
    "StepMemory": "memory",
    "WorkloadModel": "model",
    "Cluster": "request",
    "HostResources": "request",
    "Parallelism": "request",
    "WorkloadMeasurement": "request",
    "WorkloadPrediction": "request",
    "WorkloadRequest": "request",
}
__all__ = [
    "Cluster",
    "EncoderEmbedder",
    "EncoderReference",
    "Fits",
    "Flags",
    "Fold",
    "HostResources",
    "KnownNetworks",
    "MeasurementTable",
    "MemoryFit",
    "MemoryNeed",
    "Optimizer",
    "Parallelism",
    "StepMemory",
    "WorkloadEvaluation",
    "WorkloadMeasurement",
    "WorkloadModel",
    "WorkloadPrediction",
    "WorkloadProtocol",
    "WorkloadRequest",
    "compute_flops_utilisation",
    "cut_folds",
    "evaluate",
    "read_measurements",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - see above

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
