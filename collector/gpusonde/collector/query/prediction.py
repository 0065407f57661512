"""``PredictEpochLatency``: from a stored run, or from what the caller measured, to every other GPU."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpusonde.catalog import GpuCatalog, GpuSpec, Offer, OfferCatalog, Precision, Resolution, UnknownGpuError
from gpusonde.catalog.gpus import split_count
from gpusonde.collector.metrics import CollectorCounters
from gpusonde.collector.query.job_runs import runs_of_job
from gpusonde.collector.query.runs import duration, find_run, gpu_message, nanoseconds
from gpusonde.collector.storage.model import RunRow
from gpusonde.collector.storage.samples import concatenate
from gpusonde.collector.storage.store import FactStore, SampleReader, Store
from gpusonde.common.v1 import gpu_pb2
from gpusonde.errors import RequestError
from gpusonde.predictor.crossgpu import (
    LatencyModel,
    LatencyPrediction,
    MeasurementError,
    MetricDistribution,
    SourceMeasurement,
    summarise_metrics,
)
from gpusonde.query.v1 import query_pb2
from gpusonde.simulator.parallel import ParallelPredictor, Placement
from gpusonde.telemetry import Trace

# The detector's interval is a 95 % one: so many standard errors from end to end.
_STANDARD_ERRORS_PER_INTERVAL = 2 * 1.96
_LARGEST_RELATIVE_ERROR = 0.99
# Of a run of days, 48 pieces of 15 minutes tell the distributions as well as all of it, in bounded memory.
_PIECES = 48
_PIECE_NS = 900 * 1_000_000_000


def resolve(gpus: GpuCatalog, name: str, memory_bytes: int = 0, with_slices: bool = False) -> Resolution:
    """Look a GPU up by any of its names.

    Args:
        gpus: The catalogue.
        name: What a driver or a user calls it.
        memory_bytes: Its memory, to tell variants apart; 0 when unknown.
        with_slices: Take MIG slices, too.

    Raises:
        RequestError: The catalogue does not hold it (``NOT_FOUND``), or a number is written before it
            (``INVALID_ARGUMENT``): it would count for one.
    """
    if split_count(name)[1] != 1:
        raise RequestError(
            "INVALID_ARGUMENT", f"{name[:80]!r} is a name with a number of GPUs, which has a field of its own"
        )
    try:
        return gpus.resolve(name, memory_bytes=memory_bytes or None, with_slices=with_slices)
    except UnknownGpuError as error:
        raise RequestError("NOT_FOUND", str(error)) from None


def measure_run(run: RunRow, facts: FactStore, samples: SampleReader, gpus: GpuCatalog) -> SourceMeasurement:
    """Measure a stored run: its epoch latency, and its metrics over all of it.

    Args:
        run: The run.
        facts: Where the GPUs are described.
        samples: Where the samples are.
        gpus: Resolves names.

    Raises:
        RequestError: The run has no epochs, or its agent does not name the GPU (``FAILED_PRECONDITION``).
        RequestError: The catalogue does not hold the GPU (``NOT_FOUND``).
        MeasurementError: What was sampled cannot be.
        StoreCorruptError: A segment that is needed cannot be read.
    """
    if run.verdict != "epochs" or not math.isfinite(run.period_s):
        found = run.verdict or "not analysed yet"
        raise RequestError(
            "FAILED_PRECONDITION",
            f"run {run.run_id} has no epochs to predict from ({found}: {run.reason or 'too short so far'});"
            " wait for more of it, or give a measurement",
        )
    gpu, described = gpu_of(run, facts, gpus)
    attributes = {a.name: a.value for a in described.static_attributes if math.isfinite(a.value) and a.value >= 0}
    error = (run.period_high_s - run.period_low_s) / _STANDARD_ERRORS_PER_INTERVAL / run.period_s
    return SourceMeasurement(
        gpu=gpu,
        epoch_latency_s=run.period_s,
        metrics=summarise_metrics(_read_trace(run, facts, samples)),
        epoch_latency_relative_error=min(max(error, 0.0), _LARGEST_RELATIVE_ERROR) if math.isfinite(error) else 0.0,
        static_attributes=attributes,
        epoch_count=run.epoch_count,
    )


def gpu_of(run: RunRow, facts: FactStore, gpus: GpuCatalog) -> tuple[GpuSpec, gpu_pb2.Gpu]:
    """Return the GPU of a stored run, and what its agent told of it.

    Raises:
        RequestError: The agent does not name it (``FAILED_PRECONDITION``), or the catalogue does not hold it
            (``NOT_FOUND``).
    """
    rows = {(gpu.gpu_uuid, gpu.agent_id): gpu for gpu in facts.gpus({run.gpu_uuid})}
    described = gpu_message(rows.get((run.gpu_uuid, run.agent_id)))
    if not described.product_name:
        raise RequestError(
            "FAILED_PRECONDITION",
            f"the agent does not know what model GPU {run.gpu_uuid} is (a replayed trace need not tell); give a"
            " measurement with its gpu_model instead of the run",
        )
    resolution = resolve(gpus, described.product_name, described.framebuffer_bytes, with_slices=True)
    if described.mig_uuid and not resolution.spec.is_slice:
        raise RequestError(
            "FAILED_PRECONDITION",
            f"run {run.run_id} had a MIG slice of a {resolution.spec.name}, and its agent does not tell which profile;"
            f" give a measurement with gpu_model '{resolution.spec.name} MIG PROFILE'",
        )
    return resolution.spec, described


def _read_trace(run: RunRow, facts: FactStore, samples: SampleReader) -> Trace:
    """Return the ticks of a run; of a long one, pieces spread evenly over it."""
    start, end = run.start_unix_nano, run.end_unix_nano + 1
    count = _PIECES if end - start > _PIECES * _PIECE_NS else 1
    length = _PIECE_NS if count > 1 else end - start
    starts = [start + (end - length - start) * i // max(count - 1, 1) for i in range(count)]
    metrics = facts.metrics(run.gpu_uuid)
    ticks = concatenate(
        [samples.read(run.gpu_uuid, s, s + length, metrics, first=run.first, last=run.last) for s in starts],
        metrics,
    )
    time_s = (ticks.time_unix_nano - run.start_unix_nano) / 1e9
    return Trace(time_s, {name: column.astype(float) for name, column in ticks.columns.items()})


_STATUSES = {
    "ok": query_pb2.PREDICTION_STATUS_OK,
    "extrapolated": query_pb2.PREDICTION_STATUS_EXTRAPOLATED,
    "insufficient_epochs": query_pb2.PREDICTION_STATUS_INSUFFICIENT_EPOCHS,
    "unsupported_gpu": query_pb2.PREDICTION_STATUS_UNSUPPORTED_GPU,
}
_FITS = {
    "yes": gpu_pb2.FITS_YES,
    "likely": gpu_pb2.FITS_LIKELY,
    "unknown": gpu_pb2.FITS_UNKNOWN,
    "no": gpu_pb2.FITS_NO,
}
_MOST_TARGETS = 1000
_RESOLVED_NAMES = 1024


@dataclass(frozen=True)
class PredictedRun:
    """What a request asks about, and the answers.

    Attributes:
        run: The stored run; None where the caller measured.
        source: What was measured.
        here: Its GPUs.
        model_version: Version of the model that answered.
        predictions: One for each target.
    """

    run: RunRow | None
    source: SourceMeasurement
    here: Placement
    model_version: str
    predictions: Sequence[LatencyPrediction]


class LatencyPredictor:
    """Answers ``PredictEpochLatency``.

    Args:
        store: Where the runs and their samples are.
        gpus: Resolves names.
        model: Gives the model in service, at every question.
        counters: Filled with statuses and times.
        clock: Monotonic seconds.
        offers: Say how many GPUs machines hold, and what they cost; None where nothing is known of machines.
    """

    def __init__(
        self,
        store: Store,
        gpus: GpuCatalog,
        model: Callable[[], LatencyModel],
        counters: CollectorCounters | None = None,
        clock: Callable[[], float] = time.monotonic,
        offers: OfferCatalog | None = None,
    ) -> None:
        self._counters = counters or CollectorCounters()
        self._clock = clock
        self._store = store
        self._gpus = gpus
        # Names that are refused are not kept.
        self._resolve = functools.lru_cache(maxsize=_RESOLVED_NAMES)(functools.partial(resolve, gpus, with_slices=True))
        self._parallel = ParallelPredictor(offers.all if offers else ())
        self._offers = _cheapest_first(offers.offers() if offers else ())
        self.model = model

    def predict(self, request: query_pb2.PredictEpochLatencyRequest) -> query_pb2.PredictEpochLatencyResponse:
        """Answer a request; errors as of ``predict_run``."""
        found = self.predict_run(request)
        return query_pb2.PredictEpochLatencyResponse(
            predictions=[_message(prediction, self._offers) for prediction in found.predictions],
            model_version=found.model_version,
            source_gpu_model=found.source.gpu.name,
            source_epoch_latency=duration(found.source.epoch_latency_s),
            source_gpu_count=found.here.gpu_count,
            source_host_count=found.here.host_count,
        )

    def predict_run(self, request: query_pb2.PredictEpochLatencyRequest) -> PredictedRun:
        """Return what a request asks for, before it is a message.

        Raises:
            RequestError: No such run, or a GPU that the catalogue does not hold (``NOT_FOUND``).
            RequestError: A measurement that cannot be (``INVALID_ARGUMENT``).
            RequestError: The run has no epochs to predict from (``FAILED_PRECONDITION``).
        """
        began_s = self._clock()
        kind = request.WhichOneof("source")
        run: RunRow | None = None
        members: Sequence[RunRow] = ()
        targets = self._targets(request.target_gpu_models)
        try:
            if kind == "run_id":
                run = stored = find_run(self._store.results, request.run_id)
                source = measure_run(stored, self._store.facts, self._store.samples, self._gpus)
                source = replace(source, precision=_precision("precision", request.precision))
                members = self._together(stored)
            elif kind == "measurement":
                source = self._of_request(request.measurement)
            else:
                raise RequestError("INVALID_ARGUMENT", "field 'source': give a run_id or a measurement")
            here = self._place(request.source_placement, source.gpu, members)
            asked = _spread(request.target_placements, targets, here)
            model = self.model()
            predictions = self._parallel.predict(model, source, here, asked)
        except MeasurementError as error:
            raise RequestError("INVALID_ARGUMENT", f"field '{kind}': {error}") from None
        self._counters.count_predictions((prediction.status for prediction in predictions), self._clock() - began_s)
        return PredictedRun(run, source, here, model.version, predictions)

    def placement_of(self, run: RunRow) -> Placement:
        """Return the GPUs that a stored run's job had with it.

        Raises:
            RequestError: They are of several models, or unknown (``FAILED_PRECONDITION``, ``NOT_FOUND``).
        """
        gpu = gpu_of(run, self._store.facts, self._gpus)[0]
        return self._place(query_pb2.Placement(), gpu, self._together(run))

    def _together(self, run: RunRow) -> list[RunRow]:
        """Return the runs of a run's job at its time: a job that was requeued had other GPUs before."""
        return [
            each
            for each in runs_of_job(self._store.results, run)
            if each.start_unix_nano <= run.end_unix_nano and each.end_unix_nano >= run.start_unix_nano
        ]

    def _place(self, told: query_pb2.Placement, gpu: GpuSpec, members: Sequence[RunRow]) -> Placement:
        """Return what the run has: as its job's runs tell where there are some, else as the caller does."""
        field = "source_placement"
        if not members:
            return _placement(field, told, gpu, Placement(gpu))
        uuids = {run.gpu_uuid for run in members}
        described = [gpu_message(row) for row in self._store.facts.gpus(uuids)]
        models = {_model_name(self._gpus, each) for each in described if each.product_name}
        if len(models) > 1:
            raise RequestError(
                "FAILED_PRECONDITION",
                f"the job of run {members[0].run_id} has GPUs of several models ({', '.join(sorted(models))}), which no"
                " number of one model stands for; give a measurement instead of the run",
            )
        count, hosts = len(uuids), len({run.agent_id for run in members})
        for name, given, known in (("gpu_count", told.gpu_count, count), ("host_count", told.host_count, hosts)):
            if given not in (0, known):
                raise RequestError(
                    "INVALID_ARGUMENT",
                    f"field 'source_placement.{name}': {given}, but the job of run {members[0].run_id} has {known};"
                    " leave it out",
                )
        known_placement = query_pb2.Placement()
        known_placement.CopyFrom(told)
        known_placement.gpu_count, known_placement.host_count = count, hosts
        return _placement(field, known_placement, gpu, Placement(gpu))

    def _targets(self, names: Sequence[str]) -> list[GpuSpec]:
        if len(names) > _MOST_TARGETS:
            raise RequestError(
                "INVALID_ARGUMENT", f"field 'target_gpu_models': at most {_MOST_TARGETS} names are taken"
            )
        return [self._resolve(name).spec for name in names] if names else list(self._gpus.specs)

    def _of_request(self, measurement: query_pb2.SourceMeasurement) -> SourceMeasurement:
        return SourceMeasurement(
            gpu=self._resolve(measurement.gpu_model, measurement.framebuffer_bytes).spec,
            epoch_latency_s=nanoseconds(measurement.epoch_latency, "measurement.epoch_latency") / 1e9,
            metrics=_distributions(measurement.metrics),
            epoch_latency_relative_error=measurement.epoch_latency_relative_error,
            static_attributes=dict(measurement.static_attributes),
            precision=_precision("measurement.precision", measurement.precision),
        )


def _model_name(gpus: GpuCatalog, described: gpu_pb2.Gpu) -> str:
    """Return the model of a GPU, by whatever name its driver has."""
    try:
        memory_bytes = described.framebuffer_bytes or None
        return gpus.resolve(described.product_name, memory_bytes=memory_bytes, with_slices=True).spec.name
    except UnknownGpuError:
        return described.product_name


def _placement(field: str, told: query_pb2.Placement, gpu: GpuSpec, otherwise: Placement) -> Placement:
    count = told.gpu_count or otherwise.gpu_count
    try:
        return Placement(
            gpu,
            count,
            told.host_count or (otherwise.host_count if not told.gpu_count else 1),
            told.link,
            told.network_bytes_per_second,
            told.batch_per_gpu,
        )
    except MeasurementError as error:
        raise RequestError("INVALID_ARGUMENT", f"field '{field}': {error}") from None


def _spread(told: Sequence[query_pb2.Placement], targets: Sequence[GpuSpec], here: Placement) -> list[Placement]:
    if len(told) > 1 and len(told) != len(targets):
        raise RequestError(
            "INVALID_ARGUMENT",
            f"field 'target_placements': {len(told)} for {len(targets)} targets; give one, or one for each",
        )
    each = told if len(told) > 1 else [told[0] if told else query_pb2.Placement()] * len(targets)
    return [
        _placement(f"target_placements[{i}]", one, gpu, here)
        for i, (one, gpu) in enumerate(zip(each, targets, strict=True))
    ]


def _precision(field: str, name: str) -> Precision | None:
    try:
        return Precision(name) if name else None
    except ValueError:
        known = ", ".join(precision.value for precision in Precision)
        raise RequestError("INVALID_ARGUMENT", f"field {field!r}: {name[:40]!r} is unknown; use {known}") from None


def _distributions(messages: Sequence[query_pb2.MetricDistribution]) -> Mapping[str, MetricDistribution]:
    found: dict[str, MetricDistribution] = {}
    for i, message in enumerate(messages):
        if message.metric in found:
            raise RequestError(
                "INVALID_ARGUMENT", f"field 'measurement.metrics[{i}]': {message.metric[:80]!r} appears twice"
            )
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


def _cheapest_first(offers: Sequence[Offer]) -> dict[str, list[tuple[Offer, str]]]:
    """Return offers, with their lines for a reader, by GPU."""
    by_gpu: dict[str, list[tuple[Offer, str]]] = {}
    for offer in sorted(offers, key=lambda each: each.usd_per_hour):
        by_gpu.setdefault(offer.gpu_model, []).append((offer, offer.describe()))
    return by_gpu


def _message(
    prediction: LatencyPrediction, offers: Mapping[str, Sequence[tuple[Offer, str]]]
) -> query_pb2.EpochLatencyPrediction:
    message = query_pb2.EpochLatencyPrediction(
        gpu_model=prediction.target_gpu,
        interval_coverage=prediction.interval_coverage,
        status=_STATUSES[prediction.status],
        extrapolated=prediction.extrapolated,
        method=prediction.method,
        reason=prediction.reason,
        gpu_count=prediction.gpu_count,
        host_count=prediction.host_count,
        communication_ratio=prediction.communication_ratio,
        fits=_FITS[prediction.fits],
        link=prediction.link,
        network_bytes_per_second=prediction.network_bytes_per_second,
    )
    # Set in place: a message that is given to another one is copied, of 70 predictions a millisecond.
    for field, seconds in (
        (message.epoch_latency, prediction.epoch_latency_s),
        (message.epoch_latency_lower, prediction.epoch_latency_low_s),
        (message.epoch_latency_upper, prediction.epoch_latency_high_s),
    ):
        if math.isfinite(seconds):
            field.FromNanoseconds(round(seconds * 1e9))
    most = -(-prediction.gpu_count // prediction.host_count)
    # A machine with more GPUs than the job takes costs its whole price all the same.
    for offer, line in offers.get(prediction.target_gpu, ()):
        if offer.gpu_count >= most:
            message.usd_per_hour = prediction.host_count * offer.usd_per_hour
            message.offer = line
            break
    return message
