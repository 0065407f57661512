"""The ``job`` of a problem: compute curves, gradients and allreduces, as measured, predicted or assumed.

``RatedNetwork``: what to assume of a network that nobody has measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, cast, get_args

import numpy as np

from gpusonde.catalog import GpuCatalog, UnknownGpuError
from gpusonde.optimizer.documents.schema import DocumentError, Table
from gpusonde.optimizer.step_times import DEFAULT_POLICY
from gpusonde.simulator.allreduce.measurements import AllreduceMeasurement, MeasurementError
from gpusonde.simulator.compute import (
    ComputeCurve,
    ComputeProbe,
    CurveKind,
    CurveOrigin,
    EpochLatencies,
    EpochLatency,
    GrayBoxEstimates,
    LatencyEstimate,
    ProbeError,
    TimedSteps,
    compute_curve,
)
from gpusonde.simulator.exchange import LinkPolicy, LinkShare
from gpusonde.simulator.gradients import (
    FloatArray,
    GradientTrace,
    GradientTraceError,
    assumed_trace,
    bytes_from_traffic,
)
from gpusonde.simulator.iteration import BusBandwidth

# What allreduces of large buffers reach of a rated bandwidth over TCP: between a half and nine tenths of it are
# usual, and the spread covers that.
_REACHED_SHARE = 0.65
_LOG_SPREAD = 0.25
# Of one of the 2 (world - 1) steps of a ring.
_STEP_LATENCY_S = 30e-6


@dataclass(frozen=True)
class RatedNetwork:
    """A ring of devices whose machines are connected at a rated bandwidth.

    Attributes:
        bytes_per_second: Rated bandwidth of one machine.
    """

    bytes_per_second: float

    def bus_bandwidth(self, transfer_bytes: FloatArray, world_size: int) -> BusBandwidth:
        """Return what single transfers reach among ``world_size`` devices."""
        sizes = np.asarray(transfer_bytes, dtype=np.float64)
        per_byte = 1.0 / (_REACHED_SHARE * self.bytes_per_second) + world_size * _STEP_LATENCY_S / sizes
        return BusBandwidth(1.0 / per_byte, np.full(sizes.shape, _LOG_SPREAD))


MOST_CURVES = 512
MOST_PROBES = 1_000
MOST_BUCKETS = 10_000
MOST_MEASUREMENTS = 20_000
LARGEST_BATCH = 1 << 24
_LARGEST_WORLD = 1_000_000
# A year. Longer is a mistake in the unit.
_LONGEST_S = 366 * 86_400.0
_MOST_BYTES = 1e15
_LONGEST_NOTE = 2_000
_KINDS = get_args(CurveKind)
_NOT_MEASURED = {
    CurveOrigin.CROSS_GPU: "predicted from epoch latencies",
    CurveOrigin.GRAY_BOX: "estimated from the network's graph",
}
_ALLREDUCE_MODELS = ("default", "paper")
_MEASUREMENT_KEYS = tuple(field.name for field in fields(AllreduceMeasurement))
_FORMS = {"parameter_bytes", "traffic_bytes_per_step", "ready_fractions"}


@dataclass(frozen=True)
class Job:
    """What is known of a job.

    Attributes:
        curves: Device model -> its compute curve.
        gradients: What is exchanged, and when.
        optimizer_s: Seconds of the optimizer's step, 0 when it is in the curves.
        allreduce: Timed allreduces, of all fabrics.
        allreduce_model: ``default`` or ``paper``.
        policy: How transfers share a link.
        notes: What was assumed, for a reader.
    """

    curves: Mapping[str, ComputeCurve]
    gradients: GradientTrace
    optimizer_s: float
    allreduce: tuple[AllreduceMeasurement, ...]
    allreduce_model: str
    policy: LinkPolicy
    notes: tuple[str, ...]


def parse_job(values: Any, gpus: GpuCatalog, path: str = "job") -> Job:
    """Return the job that a document describes.

    Raises:
        DocumentError: A key is missing, unknown or holds something that cannot be.
    """
    table = Table(values, path, ("curves", "gradients", "optimizer_s", "allreduce", "allreduce_model", "link"))
    curves: dict[str, ComputeCurve] = {}
    notes: list[str] = []
    for at, element in table.items("curves", least=1, most=MOST_CURVES):
        device, curve = _curve(element, at, gpus, curves)
        if device in curves:
            raise DocumentError(f"{at}.device", f"{device!r} has a curve already; merge their probes")
        curves[device] = curve
        if curve.origin is not CurveOrigin.PROBES:
            remark = f" ({element['note']})" if element.get("note") else ""
            words = f"{_NOT_MEASURED[curve.origin]}{remark}"
            notes.append(f"the compute curve of {device} is {words}; 'gpusonde profile' measures it")
    gradients = _gradients(table.value("gradients"), table.at("gradients"))
    if gradients.assumed:
        notes.append("when gradients are ready is assumed from their size; 'gpusonde profile' records it")
    allreduce = tuple(_measurement(item, at) for at, item in table.items("allreduce", most=MOST_MEASUREMENTS))
    return Job(
        curves,
        gradients,
        table.number("optimizer_s", 0.0, above=False, most=_LONGEST_S),
        allreduce,
        table.choice("allreduce_model", _ALLREDUCE_MODELS, _ALLREDUCE_MODELS[0]),
        _policy(table.value("link") or {}, table.at("link")),
        tuple(notes),
    )


def device_name(name: str, gpus: GpuCatalog) -> str:
    """Return the catalogue's name of a device; the name itself for one that it does not hold."""
    try:
        return gpus.resolve(name).spec.name
    except UnknownGpuError:
        return name


def _curve(values: Any, path: str, gpus: GpuCatalog, known: Mapping[str, ComputeCurve]) -> tuple[str, ComputeCurve]:
    table = Table(values, path, ("device", "probes", "epochs", "gray_box", "kind", "largest_batch", "shape", "note"))
    table.text("note", "", longest=_LONGEST_NOTE)
    device = device_name(table.text("device"), gpus)
    forms = {"probes": _probe, "epochs": _epoch_probe, "gray_box": _gray_box_probe}
    origins = {"probes": CurveOrigin.PROBES, "epochs": CurveOrigin.CROSS_GPU, "gray_box": CurveOrigin.GRAY_BOX}
    form = table.one_of(list(forms), f"the curve of {device}")
    probes = [forms[form](element, at) for at, element in table.items(form, least=1, most=MOST_PROBES)]
    kind = cast(CurveKind, table.choice("kind", _KINDS, _KINDS[0]))
    largest = table.whole("largest_batch", most=LARGEST_BATCH) if "largest_batch" in table else None
    shape = None
    if "shape" in table:
        like = device_name(table.text("shape"), gpus)
        if like not in known:
            raise DocumentError(table.at("shape"), f"there is no curve of {like!r} before this one")
        shape = known[like]
    try:
        return device, compute_curve(TimedSteps(probes, origins[form]), kind, shape=shape, largest_batch=largest)
    except (ProbeError, ValueError) as error:
        raise DocumentError(f"{path}.{form}", str(error)) from None


def _probe(values: Any, path: str) -> ComputeProbe:
    table = Table(values, path, ("batch_size", "total_s", "forward_s", "spread"))
    return ComputeProbe(
        _batch(table),
        table.number("total_s", most=_LONGEST_S),
        table.optional_number("forward_s", most=_LONGEST_S),
        table.number("spread", above=False, most=10.0) if "spread" in table else None,
    )


def _gray_box_probe(values: Any, path: str) -> ComputeProbe:
    table = Table(values, path, ("batch_size", "total_s", "total_low_s", "total_high_s", "interval_coverage"))
    batch, seconds = _batch(table), table.number("total_s", most=_LONGEST_S)
    low, high = (table.number(name, seconds, most=_LONGEST_S) for name in ("total_low_s", "total_high_s"))
    coverage = table.number("interval_coverage", LatencyEstimate.coverage, most=1.0)
    try:
        return GrayBoxEstimates([LatencyEstimate(batch, seconds, low, high, coverage)]).probes()[0]
    except ProbeError as error:
        raise DocumentError(path, str(error)) from None


def _epoch_probe(values: Any, path: str) -> ComputeProbe:
    known = ("epoch_latency_s", "epoch_latency_low_s", "epoch_latency_high_s", "interval_coverage")
    table = Table(values, path, ("batch_size", "samples_per_epoch", *known))
    batch, samples = _batch(table), table.number("samples_per_epoch", most=1e15)
    latency = table.number(known[0], most=_LONGEST_S)
    low, high = (table.optional_number(name, most=_LONGEST_S) for name in known[1:3])
    coverage = table.number(known[3], EpochLatency.coverage, most=1.0)
    try:
        ends = (latency if low is None else low, latency if high is None else high)
        epoch = EpochLatency(batch, samples, latency, *ends, coverage)
        return EpochLatencies([epoch]).probes()[0]
    except ProbeError as error:
        raise DocumentError(path, str(error)) from None


def _batch(table: Table) -> float:
    return table.number("batch_size", least=0.0, most=LARGEST_BATCH)


def _gradients(values: Any, path: str) -> GradientTrace:
    if values is None:
        raise DocumentError(path, "is missing; give parameter_bytes, the bytes of all gradients, at least")
    own = ("ready_fractions", "bucket_bytes", "assumed")
    table = Table(values, path, (*own, "parameter_bytes", "traffic_bytes_per_step", "traffic_world_size"))
    form = table.one_of(sorted(_FORMS), "gradients")
    try:
        if form == "ready_fractions":
            return GradientTrace.from_json(
                {
                    "ready_fractions": table.numbers("ready_fractions", most=MOST_BUCKETS, above=False),
                    "bucket_bytes": table.numbers("bucket_bytes", most=MOST_BUCKETS),
                    "assumed": table.switch("assumed"),
                }
            )
        if form == "parameter_bytes":
            return assumed_trace(table.number(form, most=_MOST_BYTES))
        world_size = table.whole("traffic_world_size", least=2, most=_LARGEST_WORLD)
        return assumed_trace(bytes_from_traffic(table.number(form, most=_MOST_BYTES), world_size))
    except GradientTraceError as error:
        raise DocumentError(path, str(error)) from None


def _measurement(values: Any, path: str) -> AllreduceMeasurement:
    table = Table(values, path, _MEASUREMENT_KEYS)
    try:
        return AllreduceMeasurement(
            fabric=table.text("fabric", longest=200),
            transfer_bytes=table.number("transfer_bytes", most=_MOST_BYTES),
            world_size=table.whole("world_size", least=2, most=_LARGEST_WORLD),
            seconds=table.number("seconds", most=_LONGEST_S),
            concurrent=table.whole("concurrent", 1, most=1024),
            weight=table.number("weight", 1.0, most=1e6),
            location=table.text("location", "", longest=200),
            device=table.text("device", "", longest=200),
            devices_per_machine=table.whole("devices_per_machine", 0, least=0, most=1024),
            repeats=table.whole("repeats", 1, most=1 << 30),
            log_spread=table.number("log_spread", above=False, most=99.0) if "log_spread" in table else None,
            measured_at_s=table.number("measured_at_s", above=False, most=1e11) if "measured_at_s" in table else None,
        )
    except MeasurementError as error:
        raise DocumentError(path, str(error)) from None


def _policy(values: Any, path: str) -> LinkPolicy:
    table = Table(values, path, ("share", "capacity_bytes_per_second", "max_in_flight"))
    # Transfers that share a capacity slow down each other; without one, only waiting for each other does.
    in_flight = None if "capacity_bytes_per_second" in table else DEFAULT_POLICY.max_in_flight
    return LinkPolicy(
        LinkShare(table.choice("share", [share.value for share in LinkShare], LinkShare.MAXMIN.value)),
        table.number("capacity_bytes_per_second", most=1e18) if "capacity_bytes_per_second" in table else math.inf,
        table.whole("max_in_flight", most=MOST_BUCKETS) if "max_in_flight" in table else in_flight,
    )
