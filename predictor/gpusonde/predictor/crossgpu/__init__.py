"""Epoch latency on another GPU from one run's hardware metrics.

The default model predicts log(latency on the target / latency on the source) as a physical prior plus a learned
residual, with conformal intervals for the regime at hand; :class:`PaperStack` is the published stacking regressor.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpusonde.catalog import GpuSpec
from gpusonde.errors import MeasurementError, ModelFileError, TooFewRunsError
from gpusonde.predictor.crossgpu.features import FEATURES, REQUIRED_METRICS
from gpusonde.predictor.crossgpu.measurement import (
    LatencyPrediction,
    MetricDistribution,
    SourceMeasurement,
    summarise_metrics,
)
from gpusonde.predictor.crossgpu.model import LatencyModel
from gpusonde.predictor.crossgpu.paper import PaperStack
from gpusonde.predictor.crossgpu.runs_table import Run, RunConfiguration, RunsTable, read_runs
from gpusonde.predictor.crossgpu.state import ModelSettings

__all__ = [
    "FEATURES",
    "REQUIRED_METRICS",
    "LatencyModel",
    "LatencyPrediction",
    "MeasurementError",
    "MetricDistribution",
    "ModelFileError",
    "ModelSettings",
    "PaperStack",
    "Run",
    "RunConfiguration",
    "RunsTable",
    "SourceMeasurement",
    "TooFewRunsError",
    "predict",
    "read_runs",
    "summarise_metrics",
]


def predict(
    source: SourceMeasurement, targets: Sequence[GpuSpec], model: LatencyModel | None = None
) -> list[LatencyPrediction]:
    """Predict the epoch latency of a run on other GPUs.

    Args:
        source: The run as measured on its source GPU.
        targets: GPUs to predict for, from the catalogue.
        model: A fitted model; the shipped one when left out (loaded anew each time: a server keeps its own).

    Returns:
        One prediction per target, in order.
    """
    return (model or LatencyModel.shipped()).predict(source, targets)
