"""``PredictEpochLatency``: from a stored run, or from what the caller measured, to every other GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from gpusonde.catalog import GpuCatalog, GpuSpec
from gpusonde.collector.counters import CollectorCounters
from gpusonde.collector.query.errors import InvalidQuestionError
from gpusonde.collector.query.measurement import RunMeasurer, resolve
from gpusonde.collector.query.runs import duration, find_run, nanoseconds
from gpusonde.collector.storage.engine import ResultStore
from gpusonde.collector.storage.store import Store
from gpusonde.predictor.crossgpu import (
    LatencyModel,
    LatencyPrediction,
    MeasurementError,
    MetricDistribution,
    Precision,
    SourceMeasurement,
)
from gpusonde.query.v1 import query_pb2

_STATUSES = {
    "ok": query_pb2.PREDICTION_STATUS_OK,
    "extrapolated": query_pb2.PREDICTION_STATUS_EXTRAPOLATED,
    "insufficient_epochs": query_pb2.PREDICTION_STATUS_INSUFFICIENT_EPOCHS,
    "unsupported_gpu": query_pb2.PREDICTION_STATUS_UNSUPPORTED_GPU,
}
_MOST_TARGETS = 1000


class Predictor:
    """Answers ``PredictEpochLatency``.

    Args:
        store: Where the samples are.
        results: Where the runs are.
        gpus: Resolves names.
        model: Gives the model in service, at every question.
        counters: Filled with statuses and times.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        store: Store,
        results: ResultStore,
        gpus: GpuCatalog,
        model: Callable[[], LatencyModel],
        counters: CollectorCounters | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._counters = counters or CollectorCounters()
        self._clock = clock
        self._measurer = RunMeasurer(store, gpus)
        self._results = results
        self._gpus = gpus
        self.model = model

    def predict(self, request: query_pb2.PredictEpochLatencyRequest) -> query_pb2.PredictEpochLatencyResponse:
        """Answer a request.

        Raises:
            NotFoundError: No such run, or a GPU that the catalogue does not hold.
            InvalidQuestionError: A measurement that cannot be.
            NotYetError: The run has no epochs to predict from.
        """
        began_s = self._clock()
        kind = request.WhichOneof("source")
        targets = self._targets(request.target_gpu_models)
        try:
            if kind == "run_id":
                source = self._measurer.measure(find_run(self._results, request.run_id))
            elif kind == "measurement":
                source = self._of_request(request.measurement)
            else:
                raise InvalidQuestionError("field 'source': give a run_id or a measurement")
            model = self.model()
            predictions = model.predict(source, targets)
        except MeasurementError as error:
            raise InvalidQuestionError(f"field '{kind}': {error}") from None
        self._counters.count_predictions((prediction.status for prediction in predictions), self._clock() - began_s)
        return query_pb2.PredictEpochLatencyResponse(
            predictions=[_message(prediction) for prediction in predictions],
            model_version=model.version,
            source_gpu_model=source.gpu.name,
            source_epoch_latency=duration(source.epoch_latency_s),
        )

    def _targets(self, names: Sequence[str]) -> list[GpuSpec]:
        if len(names) > _MOST_TARGETS:
            raise InvalidQuestionError(f"field 'target_gpu_models': at most {_MOST_TARGETS} names are taken")
        return [resolve(self._gpus, name).spec for name in names] if names else list(self._gpus.specs)

    def _of_request(self, measurement: query_pb2.SourceMeasurement) -> SourceMeasurement:
        resolution = resolve(self._gpus, measurement.gpu_model, measurement.framebuffer_bytes)
        return SourceMeasurement(
            gpu=resolution.spec,
            epoch_latency_s=nanoseconds(measurement.epoch_latency, "measurement.epoch_latency") / 1e9,
            metrics=_distributions(measurement.metrics),
            epoch_latency_relative_error=measurement.epoch_latency_relative_error,
            static_attributes=dict(measurement.static_attributes),
            precision=_precision(measurement.precision),
        )


def _precision(name: str) -> Precision:
    try:
        return Precision(name or Precision.FP32.value)
    except ValueError:
        known = ", ".join(precision.value for precision in Precision)
        raise InvalidQuestionError(f"field 'measurement.precision': {name[:40]!r} is unknown; use {known}") from None


def _distributions(messages: Sequence[query_pb2.MetricDistribution]) -> Mapping[str, MetricDistribution]:
    found: dict[str, MetricDistribution] = {}
    for i, message in enumerate(messages):
        if message.metric in found:
            raise InvalidQuestionError(f"field 'measurement.metrics[{i}]': {message.metric[:80]!r} appears twice")
        found[message.metric] = MetricDistribution(
            message.mean,
            message.standard_deviation,
            message.minimum,
            message.quartile_1,
            message.median,
            message.quartile_3,
            message.maximum,
        )
    return found


def _message(prediction: LatencyPrediction) -> query_pb2.EpochLatencyPrediction:
    return query_pb2.EpochLatencyPrediction(
        gpu_model=prediction.target_gpu,
        epoch_latency=duration(prediction.epoch_latency_s),
        epoch_latency_lower=duration(prediction.epoch_latency_low_s),
        epoch_latency_upper=duration(prediction.epoch_latency_high_s),
        interval_coverage=prediction.interval_coverage,
        status=_STATUSES[prediction.status],
        extrapolated=prediction.extrapolated,
        method=prediction.method,
        reason=prediction.reason,
    )
