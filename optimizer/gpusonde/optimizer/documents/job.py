"""The ``job`` of a problem: its keys, and what the optimizer makes of them.

``JobKeys`` are compute curves, gradients and allreduces, as measured, predicted or assumed; ``parse_job`` turns them
into a ``Job``.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from gpusonde.catalog import GpuCatalog, UnknownGpuError
from gpusonde.catalog.gpus import split_count
from gpusonde.documents import ListOf, Number, Text, Whole
from gpusonde.errors import DocumentError, ProblemError
from gpusonde.formatting import join_names
from gpusonde.optimizer.problem import BatchSize, JobMemory
from gpusonde.optimizer.simulated_steps import DEFAULT_SHARING
from gpusonde.simulator.allreduce import AllreduceMeasurement, ModelKind
from gpusonde.simulator.calibration import IterationCalibration, TimedIteration, calibrate
from gpusonde.simulator.communication import BandwidthSharing, SharingRule
from gpusonde.simulator.compute import (
    ComputeCurve,
    ComputeProbe,
    CurveKind,
    CurveOrigin,
    EpochLatency,
    LatencyEstimate,
    compute_curve,
)
from gpusonde.simulator.compute.fitting import LONGEST_S
from gpusonde.simulator.compute.sources import Latencies
from gpusonde.simulator.gradients import MOST_LISTED_BUCKETS, Gradients, GradientTrace
from gpusonde.simulator.iteration import MOST_ACCUMULATION_STEPS, Sharding, StepMode

_MOST_CURVES = 512
_MOST_SPARE_STEPS = 64
_FORMS = ("probes", "iterations", "epochs", "gray_box")
_MOST_PROBES = 1_000
_MOST_MEASUREMENTS = 20_000
_NOT_MEASURED = {
    CurveOrigin.CROSS_GPU: "predicted from epoch latencies",
    CurveOrigin.GRAY_BOX: "estimated from the network's graph",
}


@dataclass(frozen=True)
class CurveKeys:
    """The keys of ``job.curves``: how long forward and backward pass take on one device, by batch size.

    Attributes:
        device: GPU, in any spelling of the catalogue, or a name of your own.
        probes: Steps that were timed on one GPU; this or one of the next three.
        iterations: Iterations that were timed on several; they say what the exchange takes as well.
        epochs: Epoch latencies, measured or predicted from another GPU.
        gray_box: Estimates from the network's graph.
        kind: How the curve runs between them.
        largest_batch: Largest batch that fits into the device's memory.
        shape: Device with a curve before this one, whose shape this one has: for ``epochs`` at one batch size only.
        note: What to say of a curve that was not measured.

    Raises:
        DocumentError: Not exactly one of the four lists.
    """

    device: str
    probes: Annotated[tuple[ComputeProbe, ...], ListOf(_MOST_PROBES, least=1)] | None = None
    iterations: Annotated[tuple[TimedIteration, ...], ListOf(_MOST_PROBES, least=1)] | None = None
    epochs: Annotated[tuple[EpochLatency, ...], ListOf(_MOST_PROBES, least=1)] | None = None
    gray_box: Annotated[tuple[LatencyEstimate, ...], ListOf(_MOST_PROBES, least=1)] | None = None
    kind: CurveKind = "default"
    largest_batch: BatchSize | None = None
    shape: str | None = None
    note: Annotated[str, Text(longest=2_000)] = ""

    def __post_init__(self) -> None:
        given = [form for form in _FORMS if getattr(self, form) is not None]
        if len(given) != 1:
            got = f"got {' and '.join(given)}" if given else "got none"
            raise DocumentError("", f"the curve of {self.device}: give exactly one of {', '.join(_FORMS)}; {got}")

    @property
    def form(self) -> str:
        """The key of the list that is there."""
        return next(form for form in _FORMS if getattr(self, form) is not None)


@dataclass(frozen=True)
class LinkKeys:
    """The keys of ``job.link``: how transfers that run at the same time share a machine's link.

    Attributes:
        share: How the capacity is divided: max-min fair, or as the seed says.
        capacity_bytes_per_second: What all transfers of a machine reach together; without it, as much as they ask for.
        max_in_flight: Transfers at a time; without it one, or with a capacity as many as are ready.
    """

    share: SharingRule = SharingRule.MAXMIN
    capacity_bytes_per_second: Annotated[float, Number(most=1e18)] | None = None
    max_in_flight: Annotated[int, Whole(most=MOST_LISTED_BUCKETS)] | None = None

    def sharing(self) -> BandwidthSharing:
        """Return the rules."""
        capacity, in_flight = self.capacity_bytes_per_second, self.max_in_flight
        # Transfers that share a capacity slow down each other; without one, only waiting for each other does.
        if capacity is None and in_flight is None:
            in_flight = DEFAULT_SHARING.max_in_flight
        return BandwidthSharing(self.share, math.inf if capacity is None else capacity, in_flight)


@dataclass(frozen=True)
class JobKeys:
    """The keys of ``job``: what was measured of the job, and of the network.

    Attributes:
        curves: Compute curves, one per device model among the offers.
        gradients: What is exchanged, and when.
        optimizer_s: Seconds of the optimizer's step where it is not in the curves.
        allreduce: Timed allreduces, of all fabrics.
        allreduce_model: How allreduces are predicted from them.
        link: How transfers share a machine's link.
        accumulation_steps: Micro-batches per iteration at most; without it one, or up to 64 where no plan has one.
        sharding: What GPUs may share out among them: nothing, ``zero2`` (gradients and the optimizer's state) or
            ``zero3`` (the weights too); a plan takes one of those listed.
        checkpointing: A plan may compute activations again in the backward pass.
        memory: What the job holds of a GPU's memory; sharding and checkpointing need it.

    Raises:
        DocumentError: Nothing is said of the gradients, or of the memory where it counts.
    """

    curves: Annotated[tuple[CurveKeys, ...], ListOf(_MOST_CURVES, least=1)]
    gradients: Gradients | None = None
    optimizer_s: Annotated[float, Number(least=0.0, most=LONGEST_S)] = 0.0
    allreduce: Annotated[tuple[AllreduceMeasurement, ...], ListOf(_MOST_MEASUREMENTS)] = ()
    allreduce_model: ModelKind = "default"
    link: LinkKeys = field(default_factory=LinkKeys)
    accumulation_steps: Annotated[int, Whole(most=MOST_ACCUMULATION_STEPS)] | None = None
    sharding: Annotated[tuple[Sharding, ...], ListOf(len(Sharding), least=1)] = (Sharding.NONE,)
    checkpointing: bool = False
    memory: JobMemory | None = None

    def __post_init__(self) -> None:
        if self.gradients is None:
            raise DocumentError("gradients", "is missing; give parameter_bytes, the bytes of all gradients, at least")
        if self.memory is None and (self.checkpointing or set(self.sharding) - {Sharding.NONE}):
            words = "sharding and checkpointing change what fits: give weights_bytes, gradients_bytes, optimizer_bytes"
            raise DocumentError("memory", f"is missing; {words}")
        if self.checkpointing and self.memory is not None and self.memory.checkpointed_bytes is None:
            raise DocumentError("memory.checkpointed_bytes", "is missing; give bytes per sample with checkpointing")

    def modes(self, global_batch: int) -> tuple[tuple[StepMode, ...], tuple[StepMode, ...]]:
        """Return how iterations can be run, and how besides where no plan is found; the plainest first."""
        most = self.accumulation_steps or _MOST_SPARE_STEPS
        steps = [number for number in range(1, most + 1) if global_batch % number == 0]
        every = tuple(
            StepMode(number, sharding, checkpointing)
            for number in steps
            for sharding in Sharding
            if sharding in self.sharding
            for checkpointing in ((False, True) if self.checkpointing else (False,))
        )
        if self.accumulation_steps is not None:
            return every, ()
        return tuple(m for m in every if m.accumulation_steps == 1), tuple(m for m in every if m.accumulation_steps > 1)


@dataclass(frozen=True)
class Job:
    """What is known of a job.

    Attributes:
        curves: Device model -> its compute curve.
        gradients: What is exchanged, and when.
        optimizer_s: Seconds of the optimizer's step, 0 when it is in the curves.
        allreduce: Timed allreduces, of all fabrics.
        allreduce_model: ``default`` or ``paper``.
        sharing: How transfers share a link.
        calibrations: Device model -> what iterations timed on several of it say.
        notes: What was assumed, for a reader.
    """

    curves: Mapping[str, ComputeCurve]
    gradients: GradientTrace
    optimizer_s: float
    allreduce: tuple[AllreduceMeasurement, ...]
    allreduce_model: ModelKind
    sharing: BandwidthSharing
    calibrations: Mapping[str, IterationCalibration]
    notes: tuple[str, ...]


def parse_job(keys: JobKeys, gpus: GpuCatalog, path: str = "job") -> Job:
    """Return the job that a document describes.

    Raises:
        DocumentError: Figures from which no curve or no trace of gradients can be made.
    """
    try:
        gradients = (keys.gradients or Gradients()).trace()
    except ProblemError as error:
        raise DocumentError(f"{path}.gradients", str(error)) from None
    curves: dict[str, ComputeCurve] = {}
    calibrations: dict[str, IterationCalibration] = {}
    not_measured: dict[str, list[str]] = {}
    for place, each in enumerate(keys.curves):
        device = device_name(each.device, gpus)
        if device in curves:
            raise DocumentError(f"{path}.curves[{place}].device", f"{device!r} has a curve already; merge their probes")
        at = f"{path}.curves[{place}]"
        probes = getattr(each, each.form)
        if each.iterations is not None:
            calibrations[device] = _calibrated(each.iterations, gradients, device, gpus, keys.optimizer_s, at)
            probes = calibrations[device].probes
        curve = _curve(each, probes, at, gpus, curves)
        curves[device] = curve
        if curve.origin is not CurveOrigin.PROBES:
            remark = f" ({each.note})" if each.note else ""
            at_one = " at one batch size" if curve.known_from == curve.known_to and each.shape is None else ""
            not_measured.setdefault(f"{_NOT_MEASURED[curve.origin]}{at_one}{remark}", []).append(device)
    notes = [_curves_note(devices, words) for words, devices in not_measured.items()]
    for device, calibration in calibrations.items():
        times = f"{calibration.exchange_factor:.2g} times as long as rated"
        notes.append(f"exchanges of {device} are taken {times}, as its iterations have them")
    if gradients.assumed:
        notes.append("when gradients are ready is assumed from their size; 'gpusonde profile' records it")
    return Job(
        curves,
        gradients,
        keys.optimizer_s,
        keys.allreduce,
        keys.allreduce_model,
        keys.link.sharing(),
        calibrations,
        tuple(notes),
    )


def _curves_note(devices: Sequence[str], words: str) -> str:
    if len(devices) == 1:
        return f"the compute curve of {devices[0]} is {words}; 'gpusonde profile' measures it"
    return f"the compute curves of {join_names(devices, 'GPU')} are {words}; 'gpusonde profile' measures them"


def device_name(name: str, gpus: GpuCatalog) -> str:
    """Return the catalogue's name of a device; the name itself for one that it does not hold.

    Raises:
        DocumentError: A number is written before it, which would count for one.
    """
    try:
        return gpus.resolve_one(name).spec.name
    except UnknownGpuError as error:
        if split_count(name.strip())[1] != 1:
            raise DocumentError("device", str(error)) from None
        return name


def _calibrated(
    rows: Sequence[TimedIteration], gradients: GradientTrace, device: str, gpus: GpuCatalog, optimizer_s: float, at: str
) -> IterationCalibration:
    spec = None
    with contextlib.suppress(UnknownGpuError):
        spec = gpus.get(device)
    try:
        return calibrate(rows, gradients, spec, optimizer_s=optimizer_s)
    except ProblemError as error:
        raise DocumentError(f"{at}.iterations", str(error)) from None


def _curve(
    keys: CurveKeys, latencies: Latencies, path: str, gpus: GpuCatalog, known: Mapping[str, ComputeCurve]
) -> ComputeCurve:
    shape = None
    if keys.shape is not None:
        like = device_name(keys.shape, gpus)
        if like not in known:
            raise DocumentError(f"{path}.shape", f"there is no curve of {like!r} before this one")
        shape = known[like]
    try:
        return compute_curve(latencies, keys.kind, shape=shape, largest_batch=keys.largest_batch)
    except ValueError as error:
        raise DocumentError(f"{path}.{keys.form}", str(error)) from None
