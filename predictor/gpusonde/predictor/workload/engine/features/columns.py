"""``FeatureTable``: requests as arrays, one row each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from gpusonde.catalog import GpuCatalog, GpuSpec, UnknownGpuError
from gpusonde.predictor.workload.engine.errors import RequestError
from gpusonde.predictor.workload.engine.features.counts import (
    MATRIX_CLASSES,
    CountsCache,
    GraphCounts,
    OperationClass,
)
from gpusonde.predictor.workload.engine.features.roofline import DeviceRates, Part, roofline_parts
from gpusonde.predictor.workload.engine.request import WorkloadRequest
from gpusonde.predictor.workload.graph import WorkloadGraph

FloatArray = npt.NDArray[np.float64]

# Logarithms of 1 + count: what a network lacks is 0, and a small part of a small network is still more than nothing.
_UNIT = 1e5
# Longer than any machine runs: shapes that lead to it are nobody's.
_LONGEST_STEP_SECONDS = 1e12

ANALYTIC_COLUMNS = (
    *(f"log_flops_{kind.name.lower()}" for kind in MATRIX_CLASSES),
    *(f"log_bytes_{kind.name.lower()}" for kind in OperationClass),
    *(f"log_count_{kind.name.lower()}" for kind in OperationClass),
    "log_layers",
    "log_weight_bytes",
)
ROOFLINE_COLUMNS = tuple(f"log_seconds_{part.name.lower()}" for part in Part)
# What hosts have free, and the unit of each; what nobody knows is 0, and so is a column that no measurement fills.
_HOST_UNITS = {"cores": 1.0, "memory_bytes": 1e9, "disk_bytes_per_second": 1e6, "flops": 1e9}
HOST_COLUMNS = tuple(f"log_host_{name}" for name in _HOST_UNITS)
CLUSTER_COLUMNS = ("log_devices", "log_nodes", "log_batch", *HOST_COLUMNS)


@dataclass(frozen=True)
class FeatureTable:
    """Rows of requests.

    Attributes:
        parts: Roofline seconds of the parts of a step, shape (n, parts).
        analytic: Counts of a step by class of operation, logarithms, shape (n, ``ANALYTIC_COLUMNS``).
        network: The same per sample: what the network is, whatever its batch and device, same shape.
        cluster: Shape (n, ``CLUSTER_COLUMNS``).
        device: Canonical name of each row's device.
        environment: Its place of measurement; "" is none that is known.
        precision: Value of its precision.
        parallelism: Value of its parallelism.
        embedding: Of its graph, shape (n, size); size 0 where no encoder is used.
    """

    parts: FloatArray
    analytic: FloatArray
    network: FloatArray
    cluster: FloatArray
    device: npt.NDArray[np.str_]
    environment: npt.NDArray[np.str_]
    precision: npt.NDArray[np.str_]
    parallelism: npt.NDArray[np.str_]
    embedding: FloatArray

    def __len__(self) -> int:
        return len(self.parts)

    def rows(self, chosen: npt.NDArray[np.bool_] | npt.NDArray[np.intp]) -> FeatureTable:
        """Some of the rows."""
        return FeatureTable(**{item.name: getattr(self, item.name)[chosen] for item in fields(self)})


class FeatureBuilder:
    """Makes tables from requests.

    Args:
        catalog: The data sheets.
        cache: Counts of graphs that are asked about again.
    """

    def __init__(self, catalog: GpuCatalog, cache: CountsCache | None = None) -> None:
        self._catalog = catalog
        self._cache = cache or CountsCache()

    def spec(self, name: str) -> GpuSpec:
        """Data sheet of a device.

        Raises:
            RequestError: The catalogue does not hold it.
        """
        try:
            return self._catalog.get(name)
        except UnknownGpuError as error:
            raise RequestError(str(error)) from error

    def table(self, requests: Sequence[WorkloadRequest], embedding: FloatArray | None = None) -> FeatureTable:
        """The requests' features.

        Args:
            requests: Any number of them.
            embedding: Of their graphs, shape (n, size).

        Raises:
            RequestError: A device is not in the catalogue, or a graph's shapes cannot be those of a network.
        """
        rates: dict[tuple[str, str], DeviceRates] = {}
        known: dict[tuple[int, int], tuple[FloatArray, FloatArray]] = {}
        parts, analytic, network = [], [], []
        for request in requests:
            cluster = request.cluster
            key = (cluster.device, cluster.precision.value)
            if key not in rates:
                rates[key] = DeviceRates.of(self.spec(cluster.device), cluster.precision)
            counts = self._counts(request.graph)
            parts.append(roofline_parts(counts, request.batch_size, cluster, rates[key]))
            if not parts[-1].max() < _LONGEST_STEP_SECONDS:
                raise RequestError(f"{request.graph.name}: its operations are too large for any device")
            own = (id(request.graph), request.batch_size)
            if own not in known:
                known[own] = (_analytic(counts, request.batch_size), _analytic(counts, 1))
            analytic.append(known[own][0])
            network.append(known[own][1])
        clusters = [request.cluster for request in requests]
        count = len(requests)
        return FeatureTable(
            parts=np.array(parts).reshape(count, len(Part)),
            analytic=np.array(analytic).reshape(count, len(ANALYTIC_COLUMNS)),
            network=np.array(network).reshape(count, len(ANALYTIC_COLUMNS)),
            cluster=np.array([_cluster(each) for each in requests]).reshape(count, len(CLUSTER_COLUMNS)),
            device=np.array([each.device for each in clusters], dtype=np.str_),
            environment=np.array([each.environment or "" for each in clusters], dtype=np.str_),
            precision=np.array([each.precision.value for each in clusters], dtype=np.str_),
            parallelism=np.array([each.parallelism.value for each in clusters], dtype=np.str_),
            embedding=np.zeros((count, 0)) if embedding is None else np.asarray(embedding, dtype=np.float64),
        )

    def _counts(self, graph: WorkloadGraph) -> GraphCounts:
        try:
            return self._cache.get(graph)
        except OverflowError:
            raise RequestError(f"{graph.name}: its operations are too large to be counted") from None


def _analytic(counts: GraphCounts, batch_size: int) -> FloatArray:
    flops = counts.by_class(counts.flops(batch_size))[list(MATRIX_CLASSES)]
    moved = counts.by_class(counts.bytes(batch_size))
    number = counts.by_class(np.ones(len(counts.classes)))
    rest = np.array([math.log1p(counts.layers), math.log1p(counts.weight_bytes / _UNIT)])
    return np.concatenate([np.log1p(flops / _UNIT), np.log1p(moved / _UNIT), np.log1p(number), rest])


def _cluster(request: WorkloadRequest) -> list[float]:
    cluster = request.cluster
    counts = [math.log(each) for each in (cluster.device_count, cluster.node_count, request.batch_size)]
    if cluster.host is None:
        return counts + [0.0] * len(_HOST_UNITS)
    return counts + [math.log1p((getattr(cluster.host, name) or 0.0) / unit) for name, unit in _HOST_UNITS.items()]


def network_totals(network: FloatArray) -> FloatArray:
    """What networks add up to per sample, as logarithms: operations on numbers, traffic, weights, operations.

    Args:
        network: ``FeatureTable.network``, shape (n, columns).

    Returns:
        Shape (n, 4).
    """
    blocks = [
        [position for position, name in enumerate(ANALYTIC_COLUMNS) if name.startswith(start)]
        for start in ("log_flops_", "log_bytes_", "log_weight_bytes", "log_count_")
    ]
    return np.stack([np.log1p(np.expm1(network[:, block]).sum(axis=1)) for block in blocks], axis=1)
