"""Epoch latency on another number of GPUs: ``Placement`` is GPUs on hosts, ``ParallelPredictor`` answers for them.

A data-parallel step on ``n`` GPUs computes and exchanges gradients; the one scales as on a single GPU, the other with
the links. An epoch is split on the source into the two, both are scaled, and the step is put together again by the
simulator, with the exchange behind the backward pass as far as it fits there::

    step = forward + max(backward, end of the exchange)        forward : backward = 1 : 2

How much is exchanged follows from NVLink or PCIe rates where the run has them. Else it is assumed, as a distribution
over jobs that was fitted to a table of timings (docs/results/predictor.md), and its spread is part of the interval.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gpusonde.catalog import GpuCatalog, GpuSpec, Offer, Precision, load_offers
from gpusonde.catalog.gpus import split_count
from gpusonde.errors import MeasurementError
from gpusonde.predictor.crossgpu import LatencyPrediction, SourceMeasurement
from gpusonde.predictor.crossgpu.features import log_compute_rate
from gpusonde.simulator.communication import simulate_communications
from gpusonde.simulator.compute.fitting import BATCH_POWER
from gpusonde.simulator.gradients import DEFAULT_BUCKET_BYTES
from gpusonde.simulator.links import SWITCHED_NVLINK, joins_all, pcie_bytes_per_second

FloatArray = npt.NDArray[np.float64]

LINKS = ("nvlink", "pcie")
_MOST_GPUS = 100_000
# GPUs in a host; more where an offer of the catalogue has them.
_USUAL_MACHINE = 8
_BITS = 8.0
# What a host's network (bytes per second) and a GPU's share of a step (samples) can be.
_NETWORKS, _BATCHES = (1e6, 1e13), (1.0, 2.0**20)
# Between hosts where nobody says.
_ASSUMED_NETWORK = 100e9 / _BITS
# Of one direction's peak and of a network. These and the seconds per step of a ring belong to the fit of the exchange
# below; of links as they were measured, see ``links``.
_SWITCHED_SHARE, _CUBE_MESH_SHARE, _BRIDGE_SHARE, _PCIE_SHARE, _NETWORK_SHARE = 0.75, 0.35, 0.75, 0.3, 0.65
_RING_STEP_S = 30e-6
_LINK_SPREAD = 0.25
# Logarithm of (exchange / computation) for a GPU of 1 (TFLOP/s TB/s)^(1/2) on a bus of 1 GB/s: mean and standard
# deviation over jobs, fitted to gavel's and ryujaehun's timings on 2 to 8 GPUs (MIT); lambda's were kept back.
_LOG_EXCHANGE, _LOG_EXCHANGE_SPREAD = -1.5, 0.5
# Where nothing dynamic is known either, the answer is less by this share of its logarithm: as _STATIC_VARIANCE of the
# prior, for what several GPUs add; then it goes with this power, as hosts keep several GPUs waiting more than one. Both
# fitted to the same timings.
_CAUTION, _HOST_BOUND = 0.2, 0.9
# What is left over, beside the interval of one GPU: chosen for a coverage of nine tenths over all of those timings.
JOB_LOG_SPREAD = 0.25
# Spread of an exchange that was seen as a rate; PCI Express carries input data too.
_SEEN_SPREAD = {"nvlink": 0.3, "pcie": 0.7}
_BUCKETS = 10
_FORWARD = 1 / 3
# Nodes and weights of seven equally likely exchanges.
_NODES = np.array([-1.465, -0.792, -0.366, 0.0, 0.366, 0.792, 1.465])
NORMAL_90 = 1.645
# Of a rate that fills the link, the exchange is as long as this many computations, no longer.
_LOG_RATIO_GRID = np.linspace(-9.0, 4.0, 261)
# What is still known of the memory with a smaller (False) and with a larger (True) batch than the run's.
_STILL_FITS = {False: ("yes", "likely"), True: ("no",)}
_SYNTAX = re.compile(
    r"(?:(?:(?P<hosts>\d{1,18})\s*[x×]\s*)?(?P<gpus>-?\d{1,18})\s*[x×]\s*)?(?P<name>[^@]+)(?P<rest>(?:@[^@]*)*)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Placement:
    """GPUs of one model that a job runs on.

    Attributes:
        gpu: Their model.
        gpu_count: All of them.
        host_count: Over so many hosts, as evenly as can be; the fullest one counts.
        link: ``nvlink`` or ``pcie`` inside of a host; empty: the better one that the GPU has to all others.
        network_bytes_per_second: Of one host; 0 where nobody says.
        batch_per_gpu: Samples per GPU and step; 0 where nobody says, which is taken for the other side's.
        counted: False where nobody says how many: then as many as the run has are meant (:meth:`as_many_as`).

    Raises:
        MeasurementError: No such placement can be.
    """

    gpu: GpuSpec
    gpu_count: int = 1
    host_count: int = 1
    link: str = ""
    network_bytes_per_second: float = 0.0
    batch_per_gpu: float = 0.0
    counted: bool = field(default=True, compare=False)

    def __post_init__(self) -> None:
        if not 1 <= self.gpu_count <= _MOST_GPUS:
            raise MeasurementError(f"{self._what}: a job runs on 1 to {_MOST_GPUS} GPUs")
        if not 1 <= self.host_count <= self.gpu_count:
            raise MeasurementError(f"{self._what} cannot be on {self.host_count} hosts")
        if self.link not in ("", *LINKS):
            raise MeasurementError(f"{self._what}: the link is {' or '.join(LINKS)}, not {self.link[:20]!r}")
        if self.link == "nvlink" and not self.gpu.nvlink_bytes_per_second:
            raise MeasurementError(f"{self.gpu.name} has no NVLink")
        if self.link == "nvlink" and self.gpus_per_host > 2 and not joins_all(self.gpu):
            raise MeasurementError(
                f"{self._what}: bridges join 2 of them, not {self.gpus_per_host} in a host; leave @nvlink out"
            )
        for value, name, (low, high) in (
            (self.network_bytes_per_second, "network in bytes per second", _NETWORKS),
            (self.batch_per_gpu, "batch per GPU", _BATCHES),
        ):
            if value != 0 and not low <= value <= high:
                raise MeasurementError(
                    f"{self._what}: the {name} is {value:g}; it must be from {low:.7g} to {high:.7g}"
                )

    @property
    def _what(self) -> str:
        return f"{self.gpu_count} x {self.gpu.name}"

    @classmethod
    def parse(cls, text: str, gpus: GpuCatalog) -> tuple[Placement, str]:
        """Read ``[[HOSTSx]GPUSx]NAME[@nvlink|@pcie][@GBITgbit][@batchN]``: ``8xV100``, ``2x8xH100@400gbit``.

        Returns:
            The placement, and what to know of how the name was taken.

        Raises:
            MeasurementError: It is none.
            UnknownGpuError: The catalogue does not hold the GPU.
        """
        found = _SYNTAX.fullmatch(text.strip())
        if found is None or split_count(found["name"])[1] != 1:
            raise MeasurementError(f"{text[:60]!r} names no GPUs; write 8xV100, 2x8xH100@400gbit or 4xA40@pcie@batch32")
        hosts = int(found["hosts"] or 1)
        resolution = gpus.resolve(found["name"], with_slices=True)
        told: dict[str, Any] = {}
        for part in filter(None, map(str.strip, found["rest"].split("@"))):
            number = re.fullmatch(r"(?:(?P<gbit>[\d.]+)gbit|batch(?P<batch>[\d.]+))", part)
            name = "link" if number is None else "network_bytes_per_second" if number["gbit"] else "batch_per_gpu"
            if name in told:
                raise MeasurementError(f"{part[:20]!r} in {text[:60]!r}: that is told twice")
            try:
                told[name] = part if number is None else float(number["gbit"] or number["batch"])
            except ValueError:
                raise MeasurementError(f"{part[:20]!r} in {text[:60]!r} is no number") from None
            if told[name] == 0:
                raise MeasurementError(f"{part[:20]!r} in {text[:60]!r} must be above zero")
        counted = found["gpus"] is not None
        if "network_bytes_per_second" in told:
            if counted and hosts == 1:
                two = f"2x{found['gpus'] or 1}x{found['name'][:40]}{found['rest'][:40]}"
                raise MeasurementError(f"{text[:60]!r} is one host, which needs no network; write {two} for two")
            told["network_bytes_per_second"] *= 1e9 / _BITS
        count = hosts * int(found["gpus"] or 1)
        note = resolution.note
        if resolution.is_machine and not counted:
            held = max((each.gpu_count for each in load_offers().all if each.instance_type == found["name"]), default=1)
            note = f"a machine of {held} GPUs; {held}x{resolution.spec.name} takes all" if held > 1 else note
        return cls(resolution.spec, count, hosts, counted=counted, **told), note

    def as_many_as(self, run: Placement) -> Placement:
        """Return the placement with the run's number of GPUs and hosts, and their network, where its own was not said.

        The link inside of a host is the run's where the GPU is.
        """
        if self.counted:
            return self
        return replace(
            self,
            gpu_count=run.gpu_count,
            host_count=run.host_count,
            link=self.link or run.link * (self.gpu == run.gpu),
            network_bytes_per_second=self.network_bytes_per_second or run.network_bytes_per_second,
            counted=True,
        )

    @property
    def gpus_per_host(self) -> int:
        """GPUs in each host; in the fullest where they are unlike."""
        return -(-self.gpu_count // self.host_count)

    def __str__(self) -> str:
        """``4 x T4``, ``2 hosts of 8 x V100-SXM2-16GB``."""
        at = f"@{self.link}" if self.link else ""
        if self.gpu_count % self.host_count:
            return f"{self.gpu_count} x {self.gpu.name}{at} on {self.host_count} hosts"
        hosts = f"{self.host_count} hosts of " if self.host_count > 1 else ""
        return f"{hosts}{self.gpus_per_host} x {self.gpu.name}{at}"

    @property
    def inner_link(self) -> str:
        """The link that allreduces inside of a host use."""
        return self.link or ("nvlink" if joins_all(self.gpu) else "pcie")

    @property
    def host_network(self) -> float:
        """Bytes per second of a host's network, the assumed one where nobody says; 0 on one host."""
        return (self.network_bytes_per_second or _ASSUMED_NETWORK) if self.host_count > 1 else 0.0

    @cached_property
    def bus_bytes_per_second(self) -> float:
        """Bus bandwidth of large allreduces among all its GPUs; infinite for one."""
        if self.gpu_count == 1:
            return math.inf
        links = []
        if self.gpus_per_host > 1:
            links.append(self._inside())
        if self.host_count > 1:
            links.append(_NETWORK_SHARE * self.host_network)
        return 1.0 / (1.0 / min(links) + self.gpu_count * _RING_STEP_S / DEFAULT_BUCKET_BYTES)

    def _inside(self) -> float:
        gpu = self.gpu
        if self.inner_link == "nvlink":
            both_ways = gpu.nvlink_bytes_per_second or 0.0
            if not joins_all(gpu):
                return both_ways / 2 * _BRIDGE_SHARE
            return both_ways / 2 * (_SWITCHED_SHARE if both_ways >= SWITCHED_NVLINK else _CUBE_MESH_SHARE)
        return pcie_bytes_per_second(gpu) * _PCIE_SHARE

    @property
    def traffic_share(self) -> float:
        """Bytes that each GPU sends in a ring, as a multiple of the gradients."""
        return 2.0 * (self.gpu_count - 1) / self.gpu_count


class SingleGpuModel(Protocol):
    """Predicts from one GPU to one GPU; ``LatencyModel`` is one."""

    def predict(self, source: SourceMeasurement, targets: Sequence[GpuSpec]) -> list[LatencyPrediction]:
        """Return one prediction per target, in order."""
        ...


@dataclass(frozen=True)
class _Exchange:
    """Exchange / computation on the source: shape (nodes,), and what it rests on."""

    ratio: FloatArray
    basis: str


class ParallelPredictor:
    """Predicts the epochs of jobs on several GPUs.

    Args:
        offers: Of the catalogue; they say how many GPUs machines hold.
    """

    def __init__(self, offers: Iterable[Offer] = ()) -> None:
        self._offers = tuple(offers)

    def predict(
        self, model: SingleGpuModel, source: SourceMeasurement, here: Placement, targets: Sequence[Placement]
    ) -> list[LatencyPrediction]:
        """Predict the seconds of one epoch of the same data.

        Args:
            model: Says how computation scales.
            source: The run as measured on one of its GPUs; its epoch latency is that of the job.
            here: What the run had.
            targets: What is asked about, each ``as_many_as`` the run has where it is not counted. The batch per GPU
                stays unless both sides tell theirs.

        Returns:
            One prediction per target, in order.

        Raises:
            MeasurementError: The run had another GPU than the measurement's. A target with more GPUs in a host than a
                machine holds, and than the run had, has status ``unsupported_gpu``.
        """
        if here.gpu.name != source.gpu.name:
            raise MeasurementError(f"the run was measured on {source.gpu.name}, not on {here.gpu.name}")
        if here.gpu.is_slice and here.gpu_count > 1:
            raise MeasurementError(f"{here}: a process sees one MIG slice; give one")
        targets = [target.as_many_as(here) for target in targets]
        singles = model.predict(source, [target.gpu for target in targets])
        exchange = _measure_exchange(source, here) if here.gpu_count > 1 else None
        return [
            _refuse(single, target, problem)
            if (problem := self._find_too_many(target, here))
            else single
            if here.gpu_count == 1 and target.gpu_count == 1 and not _batch_ratio(here, target)
            else self._scale(source, here, target, single, exchange)
            for single, target in zip(singles, targets, strict=True)
        ]

    def _find_too_many(self, placement: Placement, here: Placement) -> str:
        if placement.gpu.is_slice and placement.gpu_count > 1:
            return "a process sees one MIG slice, and slices have no links: ask for one"
        return find_too_many(placement, self._offers, here.gpus_per_host)

    def _scale(
        self,
        source: SourceMeasurement,
        here: Placement,
        target: Placement,
        single: LatencyPrediction,
        exchange: _Exchange | None,
    ) -> LatencyPrediction:
        placed = _place(single, target)
        if math.isnan(single.epoch_latency_s):
            return placed
        batch = math.exp(_batch_ratio(here, target))
        compute = math.log(single.epoch_latency_s / source.epoch_latency_s) - BATCH_POWER * math.log(batch)
        own = exchange or _assume_exchange(source, here=target, gpu=here.gpu)
        # As a multiple of the source's computation per step; a larger batch computes more for the same gradients.
        moved = own.ratio * math.exp(-compute) / batch
        if exchange is None:
            own_step, step = np.ones_like(own.ratio), measure_step(moved)
        else:
            own_step = measure_step(own.ratio)
            if target.gpu_count == 1:
                step = np.ones_like(own.ratio)
            else:
                traffic = target.traffic_share / here.traffic_share
                step = measure_step(moved * traffic * here.bus_bytes_per_second / target.bus_bytes_per_second)
        logs = compute + np.log(step / own_step)
        if own.basis == "assumed" and "prior only, " in single.method:
            logs = _HOST_BOUND * (logs - _CAUTION * abs(float(logs.mean())))
        logs = logs + math.log(here.gpu_count / target.gpu_count)
        half_width = math.log(single.epoch_latency_high_s / single.epoch_latency_low_s) / 2
        link_spread = _LINK_SPREAD * float(np.mean(1 - 1 / step)) if _links_differ(here, target) else 0.0
        is_same = here == replace(target, batch_per_gpu=here.batch_per_gpu) and batch == 1.0
        left_over = JOB_LOG_SPREAD if own.basis in ("assumed", "none") and not is_same else 0.0
        half_width = math.hypot(half_width, NORMAL_90 * math.hypot(float(logs.std()), link_spread, left_over))
        latency = source.epoch_latency_s * math.exp(float(logs.mean()))
        reasons = [single.reason, *_remarks(here, target, own, batch)]
        return replace(
            placed,
            epoch_latency_s=latency,
            epoch_latency_low_s=latency * math.exp(-half_width),
            epoch_latency_high_s=latency * math.exp(half_width),
            status=single.status if is_same or single.status != "ok" else "extrapolated",
            extrapolated=single.extrapolated or not is_same,
            method=single.method if is_same else f"{single.method}; communication {own.basis}",
            reason=single.reason if is_same else "; ".join(filter(None, reasons)),
            communication_ratio=float(np.mean(1 - 1 / step)),
            fits=single.fits if batch == 1.0 or single.fits in _STILL_FITS[batch > 1.0] else "unknown",
        )


def find_too_many(placement: Placement, offers: Iterable[Offer], known: int = 0) -> str:
    """Say that no machine holds what a placement has in a host; empty where an offer does, or ``known`` are seen."""
    if placement.gpus_per_host <= max(_USUAL_MACHINE, known):
        return ""
    held = (offer.gpu_count for offer in offers if offer.gpu_model == placement.gpu.name)
    most = max(_USUAL_MACHINE, known, *held)
    if placement.gpus_per_host <= most:
        return ""
    gpu, spread = placement.gpu.name, math.ceil(placement.gpu_count / most)
    return (
        f"{placement.gpus_per_host} x {gpu} in one host: no machine of the catalogue holds more than {most}; spread "
        f"them over hosts, for example {spread}x{most}x{gpu}"
    )


def _refuse(single: LatencyPrediction, target: Placement, problem: str) -> LatencyPrediction:
    return replace(
        single,
        epoch_latency_s=math.nan,
        epoch_latency_low_s=math.nan,
        epoch_latency_high_s=math.nan,
        status="unsupported_gpu",
        extrapolated=True,
        method="none",
        reason=problem,
        gpu_count=target.gpu_count,
        host_count=target.host_count,
    )


def _place(single: LatencyPrediction, target: Placement) -> LatencyPrediction:
    return replace(
        single,
        gpu_count=target.gpu_count,
        host_count=target.host_count,
        link=target.inner_link if target.gpus_per_host > 1 else "",
        network_bytes_per_second=target.host_network,
    )


def _batch_ratio(here: Placement, target: Placement) -> float:
    """Logarithm of the target's batch per GPU / the source's; 0 unless both are told."""
    return math.log(target.batch_per_gpu / here.batch_per_gpu) if here.batch_per_gpu and target.batch_per_gpu else 0.0


def _links_differ(here: Placement, target: Placement) -> bool:
    return here.bus_bytes_per_second != target.bus_bytes_per_second


def _remarks(here: Placement, target: Placement, exchange: _Exchange, batch: float) -> list[str]:
    told = [f"{here} to {target}: communication {exchange.basis}"]
    if batch != 1.0:
        told.append(f"{batch:.3g} times the batch per GPU: its gain assumed, as that of most jobs")
    if here.gpus_per_host > _USUAL_MACHINE:
        told.append(f"{here}: taken to have {here.gpus_per_host} in one host")
    for placement in (here, target):
        if placement.gpu_count % placement.host_count:
            told.append(f"{placement}: as if {placement.gpus_per_host} were in each")
        if placement.host_count > 1 and not placement.network_bytes_per_second:
            told.append(f"network of {placement} assumed: {_ASSUMED_NETWORK * _BITS / 1e9:.0f} Gbit/s per host")
    if here.gpu_count != target.gpu_count and batch == 1.0:
        told.append("the batch per GPU is taken to stay")
    return told


def measure_step(ratio: FloatArray) -> FloatArray:
    """Return the length of steps whose computation lasts 1 and whose exchange lasts ``ratio``, shape (n,).

    Buckets of one size become ready evenly in the backward pass, and are exchanged one at a time.
    """
    ready = (1 - _FORWARD) * np.arange(1, _BUCKETS + 1) / _BUCKETS
    ready = np.broadcast_to(ready, (ratio.size, _BUCKETS))
    traffic = np.broadcast_to(ratio[:, None] / _BUCKETS, ready.shape)
    finish = simulate_communications(ready, traffic, np.ones(ready.shape), max_in_flight=1)
    return np.asarray(_FORWARD + np.maximum(1 - _FORWARD, finish.max(axis=1)))


def _assume_exchange(source: SourceMeasurement, here: Placement, gpu: GpuSpec) -> _Exchange:
    """Return what jobs of a placement exchange, as a multiple of what they compute on one GPU of a model."""
    if here.gpu_count == 1:
        return _Exchange(np.zeros_like(_NODES), "none")
    usual = _usual_gradients(gpu, source.precision) * here.traffic_share / here.bus_bytes_per_second
    return _Exchange(usual * np.exp(_LOG_EXCHANGE_SPREAD * _NODES), "assumed")


def _usual_gradients(gpu: GpuSpec, precision: Precision | None) -> float:
    """Return the bytes of gradients of most jobs for each second that a GPU computes."""
    rate = log_compute_rate(gpu, precision or Precision.TF32, 0.5)
    rate += math.log(gpu.memory_bandwidth_bytes_per_second / 1e12)
    return 1e9 * math.exp(_LOG_EXCHANGE + rate / 2)


def gradients_per_second(source: SourceMeasurement, here: Placement) -> tuple[float, str]:
    """Return the bytes of a run's gradients for each second that one of its GPUs computes, and where they are from.

    That is the rates of the links where they tell it, ``assumed`` else.
    """
    if here.gpu_count == 1:
        return _usual_gradients(here.gpu, source.precision), "assumed"
    exchange = _measure_exchange(source, here)
    return float(np.median(exchange.ratio)) * here.bus_bytes_per_second / here.traffic_share, exchange.basis


def _measure_exchange(source: SourceMeasurement, here: Placement) -> _Exchange:
    """Split the source's epoch by what its links carried, where it tells; else assume."""
    link = here.inner_link
    rates = [
        source.metrics[name].mean
        for name in (f"{link}_tx_bytes_per_second", f"{link}_rx_bytes_per_second")
        if name in source.metrics
    ]
    # Across hosts the links inside carry a part of it only.
    if not rates or here.host_count > 1:
        return _assume_exchange(source, here, here.gpu)
    share = sum(rates) / len(rates) / here.bus_bytes_per_second
    grid = np.exp(_LOG_RATIO_GRID)
    seen = np.interp(share, grid / measure_step(grid), _LOG_RATIO_GRID)
    spread = math.hypot(_SEEN_SPREAD[link], _LINK_SPREAD)
    return _Exchange(np.exp(seen + spread * _NODES), f"from {'NVLink' if link == 'nvlink' else 'PCIe'} rates")
