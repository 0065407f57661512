"""Whether a request is like what a model was fitted on, and how far off its answer may be where it is not.

``OutOfDistributionDetector`` tells what of a request (network, cluster, device, environment, resources of its hosts)
was never measured, and which measured networks are most like it. ``Intervals`` has, for each way in which a request can
be new, the quantile of the errors made on groups left out that covers the wanted share of them (conformal, as in
``crossgpu.intervals``). Environments and devices that were left out count alike, whatever their number of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import numpy.typing as npt

from gpusonde.catalog import GpuSpec
from gpusonde.predictor.crossgpu.neighbourhood import (
    Calibration,
    GpuNeighbourhood,
    LeftOut,
    RunNeighbourhood,
    TrainedGpu,
    calibrate,
    root_mean_square_distances,
)
from gpusonde.predictor.workload.engine.features import CLUSTER_COLUMNS, HOST_COLUMNS, FeatureTable, add_up_networks
from gpusonde.predictor.workload.engine.request import Cluster

FloatArray = npt.NDArray[np.float64]
IndexArray = npt.NDArray[np.intp]

# A host may have twice as much free as any that was measured, or half.
_BEYOND = 2.0
_WORDS = {"cores": "cores", "memory_bytes": "memory", "disk_bytes_per_second": "disk throughput", "flops": "FLOPS"}
_COLUMNS = {name: CLUSTER_COLUMNS.index(name) for name in HOST_COLUMNS}


@dataclass(frozen=True)
class HostRange:
    """What one column of hosts held in the measurements that told of it.

    Attributes:
        low: The least; as the column has it, log(1 + amount).
        high: The most.
        always: Whether every measurement told.
    """

    low: float
    high: float
    always: bool

    def unlike(self, name: str, value: float) -> str:
        """Say why a question's value is beyond the measured ones; empty where it is not.

        A column of 0 is unknown. Where it was the same in all measurements it counts for nothing, and may be left out.
        """
        what = _WORDS[name.removeprefix("log_host_")]
        if value <= 0.0:
            counts = self.always and self.high > self.low
            return f"nobody knows what the hosts have free of {what}; of all measurements it is known" if counts else ""
        amount, least, most = map(math.expm1, (value, self.low, self.high))
        if least / _BEYOND <= amount <= most * _BEYOND:
            return ""
        edge, whose = (most, "most") if amount > most else (least, "least")
        times = float(f"{amount / edge:.2g}")
        return f"the hosts have {times:g} times the {whose} {what} that any measured one had free"


def measure_host_ranges(cluster: FloatArray) -> dict[str, HostRange]:
    """Return the ranges of the columns that measurements told of.

    Args:
        cluster: ``FeatureTable.cluster``, shape (n, columns).
    """
    found = {}
    for name, column in _COLUMNS.items():
        values = cluster[:, column]
        known = values[values > 0.0]
        if known.size:
            found[name] = HostRange(float(known.min()), float(known.max()), known.size == values.size)
    return found


def explain_unlike_hosts(ranges: Mapping[str, HostRange], row: FloatArray) -> list[str]:
    """Say why what hosts have free is beyond what was measured.

    Args:
        ranges: By column.
        row: Of ``FeatureTable.cluster``.
    """
    reasons = (known.unlike(name, float(row[_COLUMNS[name]])) for name, known in ranges.items())
    return [reason for reason in reasons if reason]


# A network may have this many times the work of the largest that was measured, or as much less than the smallest; a
# batch too.
_TOTALS = ("floating-point operations", "memory traffic", "weights", "operations")
_NEAREST = 3
# How alike a network is to itself, but for rounding.
_SAME = 1.0 - 1e-6
_DEVICES, _NODES, _BATCH = (CLUSTER_COLUMNS.index(name) for name in ("log_devices", "log_nodes", "log_batch"))


@dataclass(frozen=True)
class OodScore:
    """How a request relates to what was measured.

    Attributes:
        unlike_network: How the network is unlike those that were measured.
        distance: How far the nearest measured network is; 1 is what a new one usually has.
        unlike_cluster: What of the cluster or the batch was never measured, its device and environment aside.
        unknown_device: Its device was never measured, or hardly.
        device_inflation: Factor, at least 1, by which errors on left-out devices are too small for this one.
        unknown_environment: It is to run in no environment that the model knows, or on a device or in a precision that
            was not measured there.
        new_in_environment: What of it was not measured in its environment, though elsewhere.
        measured_there: Its network was measured in its environment, whatever the batch.
        nearest: Measured architectures most like it, and how alike, at most 1.
    """

    unlike_network: tuple[str, ...]
    distance: float
    unlike_cluster: tuple[str, ...]
    unknown_device: bool
    device_inflation: float
    unknown_environment: bool
    new_in_environment: str
    measured_there: bool
    nearest: tuple[tuple[str, float], ...]

    @property
    def out_of_distribution(self) -> bool:
        """Whether regressors of many features would extrapolate."""
        return bool(self.unlike_network or self.unlike_cluster or self.unknown_device)


@dataclass(frozen=True)
class OutOfDistributionDetector:
    """What was measured.

    Attributes:
        networks: The measured networks' counts per sample, as points.
        architectures: Of each point.
        totals: Least and largest of what networks add up to, logarithms, shape (2, totals).
        batches: Least and largest batch size per device.
        devices: Most devices.
        nodes: Most hosts.
        gpus: The devices with enough measurements of their own, or at a place that has.
        precisions: That were used.
        parallelisms: That were used.
        batches_by_environment: The known environments, and the least and largest batch size per device in each.
        networks_by_environment: The architectures that were measured in each, where known.
        settings: Environment, device and precision that were measured together.
        hosts: What the hosts had free, by column, where measurements told of it.
    """

    networks: RunNeighbourhood
    architectures: tuple[str, ...]
    totals: FloatArray
    batches: tuple[float, float]
    devices: float
    nodes: float
    gpus: GpuNeighbourhood
    precisions: tuple[str, ...]
    parallelisms: tuple[str, ...]
    batches_by_environment: Mapping[str, tuple[float, float]]
    settings: frozenset[str]
    networks_by_environment: Mapping[str, frozenset[str]] = field(default_factory=dict)
    hosts: Mapping[str, HostRange] = field(default_factory=dict)

    @property
    def environments(self) -> tuple[str, ...]:
        """The known environments."""
        return tuple(self.batches_by_environment)

    @classmethod
    def fit(
        cls, table: FeatureTable, architectures: Sequence[str], gpus: Sequence[GpuSpec], coverage: float
    ) -> OutOfDistributionDetector:
        """Note what was measured.

        Args:
            table: The measurements.
            architectures: Of each row.
            gpus: The devices in the table.
            coverage: Share of intervals that should hold the truth.
        """
        enough = np.maximum(_count_alike(table.device), _count_alike(table.environment)) >= count_fewest(coverage)
        told = set(table.device[enough].tolist())
        labels = np.asarray(architectures, dtype=np.str_)
        keys = [f"{label}\0{row.tobytes().hex()}" for label, row in zip(labels.tolist(), table.network, strict=True)]
        chosen = np.sort(np.unique(keys, return_index=True)[1])
        # Networks with the same counts are one: the distance between them tells nothing of how unlike networks are.
        first: dict[bytes, str] = {}
        alike = [first.setdefault(table.network[row].tobytes(), str(labels[row])) for row in chosen]
        totals = add_up_networks(table.network[chosen])
        sizes = np.exp(table.cluster)
        return cls(
            networks=RunNeighbourhood.fit(table.network[chosen], alike),
            architectures=tuple(labels[chosen].tolist()),
            totals=np.stack([totals.min(axis=0), totals.max(axis=0)]),
            batches=(float(sizes[:, _BATCH].min()), float(sizes[:, _BATCH].max())),
            devices=float(sizes[:, _DEVICES].max()),
            nodes=float(sizes[:, _NODES].max()),
            gpus=GpuNeighbourhood(tuple(TrainedGpu.from_spec(gpu) for gpu in gpus if gpu.name in told)),
            precisions=tuple(np.unique(table.precision).tolist()),
            parallelisms=tuple(np.unique(table.parallelism).tolist()),
            batches_by_environment={
                environment: (float(of_environment.min()), float(of_environment.max()))
                for environment in np.unique(table.environment).tolist()
                if environment and len(of_environment := sizes[table.environment == environment, _BATCH])
            },
            settings=frozenset(_name_settings(table)),
            networks_by_environment={
                environment: frozenset(labels[table.environment == environment].tolist())
                for environment in np.unique(table.environment).tolist()
                if environment
            },
            hosts=measure_host_ranges(table.cluster),
        )

    def has_measured(self, cluster: Cluster) -> bool:
        """Tell whether a cluster's device and precision were measured together in its environment."""
        return _name_setting(cluster.environment or "", cluster.device, cluster.precision.value) in self.settings

    def score(self, table: FeatureTable, gpus: Sequence[GpuSpec]) -> list[OodScore]:
        """Compare requests with what was measured.

        Args:
            table: The requests.
            gpus: The device of each.
        """
        known: dict[bytes, tuple[tuple[str, ...], float, tuple[tuple[str, float], ...]]] = {}
        seen: dict[str, tuple[bool, float]] = {}
        found = []
        settings = _name_settings(table)
        for row, gpu in enumerate(gpus):
            environment = str(table.environment[row])
            key = table.network[row].tobytes()
            if key not in known:
                known[key] = self._judge_network(table.network[row])
            if gpu.name not in seen:
                unknown = not self.gpus.seen(gpu)
                seen[gpu.name] = (unknown, self.gpus.interval_inflation(gpu) if unknown else 1.0)
            unlike, distance, nearest = known[key]
            there = self.networks_by_environment.get(environment, frozenset())
            found.append(
                OodScore(
                    unlike_network=unlike,
                    distance=distance,
                    unlike_cluster=tuple(self._judge_cluster(table, row)),
                    unknown_device=seen[gpu.name][0],
                    device_inflation=seen[gpu.name][1],
                    unknown_environment=environment not in self.batches_by_environment
                    or settings[row] not in self.settings,
                    new_in_environment=self._judge_environment(table, row, settings[row]),
                    measured_there=any(alike > _SAME and name in there for name, alike in nearest),
                    nearest=nearest,
                )
            )
        return found

    def _judge_network(self, network: FloatArray) -> tuple[tuple[str, ...], float, tuple[tuple[str, float], ...]]:
        points = self.networks
        point = (network - points.center) / points.spread
        distances = root_mean_square_distances(point[None, :], points.points)[0] / points.usual_distance
        nearest: dict[str, float] = {}
        for position in np.argsort(distances, kind="stable").tolist():
            nearest.setdefault(self.architectures[position], math.exp(-float(distances[position])))
            if len(nearest) == _NEAREST:
                break
        reasons = []
        if distances.min() > 1.0:
            first = next(iter(nearest))
            reasons.append(
                f"the network is {distances.min():.1f} times as unlike {first}, the nearest measured one, as a new"
                " network usually is"
            )
        totals = add_up_networks(network[None, :])[0]
        for name, total, least, most in zip(_TOTALS, totals, *self.totals, strict=True):
            if total > most + math.log(_BEYOND):
                reasons.append(f"the network has {math.exp(total - most):.1f} times the {name} of the largest measured")
            elif total < least - math.log(_BEYOND):
                share = 100 * math.exp(total - least)
                reasons.append(f"the network has {share:.2g} % of the {name} of the smallest measured")
        return tuple(reasons), float(distances.min()), tuple(nearest.items())

    def _judge_environment(self, table: FeatureTable, row: int, setting: str) -> str:
        environment = str(table.environment[row])
        if environment not in self.batches_by_environment:
            return ""
        if setting not in self.settings:
            return f"nothing was measured on {table.device[row]} in {table.precision[row]} at {environment}"
        least, most = self.batches_by_environment[environment]
        batch = round(math.exp(table.cluster[row, _BATCH]))
        if least / _BEYOND <= batch <= most * _BEYOND:
            return ""
        return f"batches of {batch} samples per device, but {least:.0f} to {most:.0f} were measured at {environment}"

    def _judge_cluster(self, table: FeatureTable, row: int) -> list[str]:
        reasons = []
        precision, parallelism = str(table.precision[row]), str(table.parallelism[row])
        if precision not in self.precisions:
            reasons.append(f"nothing was measured in {precision}, only in {', '.join(self.precisions)}")
        if parallelism not in self.parallelisms:
            reasons.append(f"nothing was measured with parallelism {parallelism}")
        devices, nodes, batch = np.exp(table.cluster[row, [_DEVICES, _NODES, _BATCH]]).round().astype(int).tolist()
        if devices > round(self.devices):
            reasons.append(f"{devices} devices, but at most {self.devices:.0f} were measured together")
        if nodes > round(self.nodes):
            reasons.append(f"{nodes} hosts, but at most {self.nodes:.0f} were measured together")
        least, most = self.batches
        if not least / _BEYOND <= batch <= most * _BEYOND:
            reasons.append(f"batches of {batch} samples per device, but {least:.0f} to {most:.0f} were measured")
        return reasons + explain_unlike_hosts(self.hosts, table.cluster[row])


def _count_alike(names: npt.NDArray[np.str_]) -> IndexArray:
    """Return how many rows have the name that each has, shape (n,)."""
    _, position, sizes = np.unique(names, return_inverse=True, return_counts=True)
    counts: IndexArray = sizes[position]
    return counts


def _name_settings(table: FeatureTable) -> list[str]:
    columns = (table.environment.tolist(), table.device.tolist(), table.precision.tolist())
    return [_name_setting(*each) for each in zip(*columns, strict=True)]


def _name_setting(environment: str, device: str, precision: str) -> str:
    return f"{environment} | {device} | {precision}"


Mask = npt.NDArray[np.bool_]
Groups = npt.NDArray[np.str_]

_FEWEST_GROUPS = {"FAMILY": 3, "ENVIRONMENT": 2, "DEVICE": 2}
_FEWEST_ERRORS = 10
_ERRORS_OF_GROUP = 40
_ROUNDING = 1e-9
# Where nothing could be left out to learn it from: a factor of 2 for a new kind of network, environment or device.
_UNKNOWN = math.log(2.0)


class Newness(Enum):
    """What can be new in a request beside its architecture; values are the keys of its errors in model files."""

    FAMILY = "FAMILY"
    ENVIRONMENT = "PLACE"
    DEVICE = "DEVICE"


@dataclass(frozen=True)
class Intervals:
    """Half widths of intervals, natural logarithms.

    Attributes:
        coverage: Share of intervals that should hold the truth.
        quantiles: Of the errors that come with each newness; one that no measurement showed is missing.
    """

    coverage: float
    quantiles: Mapping[Newness, Calibration]

    def half_width(self, ood_score: OodScore, architecture: Calibration) -> float:
        """Return the half width of a request's interval.

        What is new adds to the errors on an architecture that is new, which are in those on every group left out.

        Args:
            ood_score: Of the request.
            architecture: Of what answers, where nothing but the architecture is new.
        """
        widths = []
        if ood_score.unlike_network or ood_score.unlike_cluster:
            widths.append((self._quantile(Newness.FAMILY), 1.0))
        elif Newness.FAMILY in self.quantiles:
            # The further a network is from all measured ones, the more it is of a kind of its own.
            widths.append((self._quantile(Newness.FAMILY), min(ood_score.distance, 1.0)))
        if ood_score.unlike_cluster:
            # What no measurement tells of is as uncertain as the most uncertain of what they do.
            widths.append((max(self._quantile(each) for each in (Newness.ENVIRONMENT, Newness.DEVICE)), 1.0))
        # A device that is left out takes its environment with it: its errors hold those of a new one.
        if ood_score.unknown_device:
            widths.append((ood_score.device_inflation * self._quantile(Newness.DEVICE), 1.0))
        elif ood_score.unknown_environment:
            widths.append((self._quantile(Newness.ENVIRONMENT), 1.0))
        own = architecture.quantile
        added = sum(share**2 * max(width**2 - own**2, 0.0) for width, share in widths)
        return math.sqrt(own**2 + added)

    def _quantile(self, newness: Newness) -> float:
        found = self.quantiles.get(newness)
        return _UNKNOWN if found is None else found.quantile


def calibrate_errors(errors: FloatArray, coverage: float) -> Calibration:
    """Return the quantile of errors of the logarithm on architectures that were left out, shape (n,)."""
    return calibrate(LeftOut(errors, np.ones(len(errors))), coverage)


def count_fewest(coverage: float) -> int:
    """Return how many errors it takes for the largest to cover the wanted share: nine for nine tenths."""
    return math.ceil(coverage / (1 - coverage) - _ROUNDING)


def calibrate_environments(errors: FloatArray, environments: Groups, coverage: float) -> Mapping[str, Calibration]:
    """Return the quantile for every known environment with enough errors.

    Some are measured with more noise, or need more extrapolation. One with fewer counts as unknown.

    Args:
        errors: As ``calibrate_errors`` takes them.
        environments: Of each; "" is none that is known.
        coverage: Share of intervals that should hold the truth.
    """
    return {
        environment: calibrate_errors(errors[environments == environment], coverage)
        for environment in np.unique(environments).tolist()
        if environment and (environments == environment).sum() >= count_fewest(coverage)
    }


def calibrate_left_out(
    errors_without: Callable[[Mask], FloatArray],
    groups: Mapping[Newness, Groups],
    coverage: float,
    device_inflation: Callable[[str], float],
) -> Mapping[Newness, Calibration]:
    """Return the quantiles of errors on every family, environment and device left out in turn.

    Args:
        errors_without: Errors of the logarithm, on the rows of a mask, of a model fitted to all others.
        groups: Of each newness, which group each row belongs to; "" if to none.
        coverage: Share of intervals that should hold the truth.
        device_inflation: How much further than usual a device lies from all others; its errors count as so much less.
    """
    found = {}
    for newness, labels in groups.items():
        parts = [
            LeftOut(errors, np.full(len(errors), device_inflation(name) if newness is Newness.DEVICE else 1.0))
            for name, errors in _collect_left_out(errors_without, labels)
        ]
        if len(parts) >= _FEWEST_GROUPS[newness.name]:
            alike = parts if newness is Newness.FAMILY else [_weigh_alike(part) for part in parts]
            found[newness] = calibrate(LeftOut.join(alike), coverage)
    return found


def _weigh_alike(part: LeftOut) -> LeftOut:
    """Return as many errors for every environment or device, however many rows it has."""
    levels = (np.arange(_ERRORS_OF_GROUP) + 0.5) / _ERRORS_OF_GROUP
    return LeftOut(np.quantile(np.abs(part.log_errors), levels), np.full(len(levels), part.scales[0]))


def _collect_left_out(errors_without: Callable[[Mask], FloatArray], groups: Groups) -> Sequence[tuple[str, FloatArray]]:
    found = []
    for group in np.unique(groups).tolist():
        mask = groups == group
        if group and mask.sum() >= _FEWEST_ERRORS and (~mask).sum() >= _FEWEST_ERRORS:
            found.append((group, errors_without(mask)))
    return found
