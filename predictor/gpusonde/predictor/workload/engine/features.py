"""Requests as arrays: the table of their features, roofline times, and the columns that a regressor gets.

A ``FeatureTable`` has a row per request. Its roofline times are what the parts of a training step would take at the
peak rates of a device's data sheet: each operation takes the longer of its arithmetic and its memory traffic; beside
the device's own work stand what the host does for it, as it launches the kernels, and what crosses links: inputs, and
weights or gradients between devices. All figures come from the catalogue; ``calibration`` learns what share of the
peaks is reached. An ``Encoding`` says which columns of a table a regressor gets, and in which order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from gpusonde.catalog import GpuCatalog, GpuSpec, Precision, UnknownGpuError
from gpusonde.errors import ModelError
from gpusonde.predictor.crossgpu.features import log_compute_rate
from gpusonde.predictor.workload.engine.feature_counts import MATRIX_CLASSES, CountsCache, GraphCounts, OperationClass
from gpusonde.predictor.workload.engine.request import Cluster, Parallelism, WorkloadRequest
from gpusonde.predictor.workload.graph import WorkloadGraph

FloatArray = npt.NDArray[np.float64]


class StepPart(IntEnum):
    """Parts of a training step."""

    DENSE = 0  # convolutions of stride 1 with 3 x 3 kernels
    POINTWISE = 1  # convolutions with 1 x 1 kernels
    SPATIAL = 2  # other convolutions
    LINEAR = 3  # products of matrices
    THIN = 4  # those that the memory binds
    UNEVEN = 5  # the same in half precision, of rows that are no multiple of 8 numbers: scores of 197 patches
    ATTENTION = 6  # fused
    GROUPED = 7  # grouped convolutions
    WIDE = 8  # those of more than 32 channels per group, in half precision with channels innermost
    UNTUNED = 9  # depthwise convolutions with large kernels, likewise
    DEPTHWISE = 10  # other depthwise convolutions
    UNALIGNED = 11  # convolutions that copy what they read or write, to fill up its channels
    NORMALISATION = 12  # batch norms
    ROWWISE = 13  # layer norms
    SOFTMAX = 14
    GROUPWISE = 15  # norms of groups of channels
    POOLING = 16  # but for means over whole images
    ACTIVATION = 17
    MEMORY = 18  # everything else that operations do
    KERNELS = 19  # weights of convolutions, of which little else may be left where images are small
    LAYOUT = 20  # bringing activations into the order in which convolutions on tensor cores read them
    UPDATE = 21  # zeroing gradients, updating weights
    LAUNCH = 22  # the host's work to start kernels
    REPLICAS = 23  # the same for further devices of one process
    EXCHANGE = 24  # weights and gradients between devices
    INPUT = 25  # the batch to the devices
    FIXED = 26  # what each step takes, whatever the network


DEVICE_PARTS = tuple(part for part in StepPart if part < StepPart.LAUNCH)
HOST_PARTS = (StepPart.LAUNCH, StepPart.REPLICAS)
OTHER_PARTS = (StepPart.EXCHANGE, StepPart.INPUT, StepPart.FIXED)

# Before measurements correct them: a framework starts a kernel in 10 microseconds, a step has a millisecond to itself,
# and hosts are linked by 10 Gbit/s.
_LAUNCH_SECONDS = 1e-5
# An executor of graphs takes half of what PyTorch does from Python: small batches of ResNeXt and SE-ResNeXt 11 and 15
# ms for 24 and 34 on a V100 (NVIDIA/DeepLearningExamples, TensorFlow and PyTorch). Half is best for 128 such passes.
_GRAPH_LAUNCH_SHARE = 0.5
_FIXED_SECONDS = 1e-3
_NETWORK_BYTES_PER_SECOND = 1.25e9
_LANE_BYTES_PER_SECOND = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.97e9, 5: 3.94e9, 6: 7.56e9}
_UNKNOWN_LINK_BYTES_PER_SECOND = 16e9
_UPDATE_PASSES = 3
# Of what the host does once in each step, loss, backward pass and update are not in a forward pass.
_PASSES = 3
# Depthwise convolutions have a kernel of their own, which computes below the peak.
_DEPTHWISE_SHARE = 0.5
_PRODUCTS_OF_SINGLE = 3
_PARTS = {
    OperationClass.CONVOLUTION: StepPart.SPATIAL,
    OperationClass.LINEAR: StepPart.LINEAR,
    OperationClass.ATTENTION: StepPart.ATTENTION,
    OperationClass.GROUPED: StepPart.GROUPED,
    OperationClass.DEPTHWISE: StepPart.DEPTHWISE,
    OperationClass.NORMALISATION: StepPart.NORMALISATION,
    OperationClass.ROWWISE: StepPart.ROWWISE,
    OperationClass.SOFTMAX: StepPart.SOFTMAX,
    OperationClass.GROUPWISE: StepPart.GROUPWISE,
    OperationClass.POOLING: StepPart.POOLING,
    OperationClass.ACTIVATION: StepPart.ACTIVATION,
}
_PART_OF_CLASS = np.array([_PARTS.get(each, StepPart.MEMORY) for each in OperationClass])
# In half precision with channels innermost groups of more channels, and depthwise kernels of more elements, are
# computed in other ways, each at its own pace.
_WIDEST_GROUP = 32
_LARGEST_KERNEL = 49
# A part that a step does not have still needs a logarithm; to a regressor, a part of a step that is as short as this is
# as good as none.
_NOTHING = 1e-9
_NEGLIGIBLE_SHARE = 1e-4

# Precisions that no measurement tells from another one.
MEASURED_AS = {Precision.TF32: Precision.FP32} | dict.fromkeys((Precision.BF16, Precision.FP8), Precision.MIXED)
_AUTOMATIC = frozenset({Precision.MIXED, Precision.BF16, Precision.FP8})
# Of activations and of the weights that products read.
_BYTES = {Precision.FP64: 8, Precision.FP32: 4, Precision.TF32: 4} | dict.fromkeys(
    (Precision.FP16, Precision.BF16, Precision.MIXED, Precision.FP8), 2
)


@dataclass(frozen=True)
class DeviceRates:
    """Rates of a device at one precision, peaks but for matrix products.

    Attributes:
        matrix_flops: Of matrix products, by the units that the precision uses, at base clock, per second.
        attention_flops: Of fused attention, likewise; in single precision its kernels make three products in TF32 for
            each (CUTLASS, ``OpMultiplyAddFastF32``), where the device has it, per second.
        convolution_flops: Of convolutions, which use TF32 in single precision where the device has it, per second.
        vector_flops: Of everything else, per second.
        memory_bytes: Of its memory, per second.
        link_bytes: To other devices of its host, one direction, per second.
        host_bytes: To its host, one direction, per second.
    """

    matrix_flops: float
    attention_flops: float
    convolution_flops: float
    vector_flops: float
    memory_bytes: float
    link_bytes: float
    host_bytes: float

    @classmethod
    def of(cls, gpu: GpuSpec, precision: Precision) -> DeviceRates:
        """Take the figures from a data sheet."""
        lane = _LANE_BYTES_PER_SECOND.get(gpu.pcie_generation or 0)
        host = lane * gpu.pcie_lanes if lane and gpu.pcie_lanes else _UNKNOWN_LINK_BYTES_PER_SECOND
        # Sockets wire all devices of a host; cards have at best a bridge to one neighbour.
        socket = "SXM" in gpu.name or gpu.name.startswith(("B200", "GH200"))
        nvlink = (gpu.nvlink_bytes_per_second or 0.0) / 2
        vector = log_compute_rate(gpu, Precision.FP64 if precision is Precision.FP64 else Precision.FP32, 0)
        of_convolutions = Precision.TF32 if precision is Precision.FP32 else precision
        # A data sheet's peak is at boost clock. Large products draw more power than a card has for that: it holds the
        # base clock, a third of it on those of 70 W. Convolutions stay far below the peak.
        held = gpu.base_clock_mhz / gpu.boost_clock_mhz if gpu.base_clock_mhz else 1.0
        matrix = held * 1e12 * math.exp(log_compute_rate(gpu, precision, 1.0))
        single = precision in (Precision.FP32, Precision.TF32)
        tensor = held * 1e12 * (gpu.tensor_tf32_tflops or 0.0)
        return cls(
            matrix_flops=matrix,
            attention_flops=tensor / _PRODUCTS_OF_SINGLE if single and tensor else matrix,
            convolution_flops=1e12 * math.exp(log_compute_rate(gpu, of_convolutions, 1.0)),
            vector_flops=1e12 * math.exp(vector),
            memory_bytes=gpu.memory_bandwidth_bytes_per_second,
            link_bytes=max(host, nvlink) if socket else host,
            host_bytes=host,
        )


def compute_roofline_parts(counts: GraphCounts, batch_size: int, cluster: Cluster, rates: DeviceRates) -> FloatArray:
    """Return the seconds of each part of a training step at peak rates.

    Args:
        counts: Of the network.
        batch_size: Samples per device.
        cluster: What it runs on.
        rates: Of its device, at its precision.

    Returns:
        Shape (parts,), all positive.
    """
    width = _BYTES[cluster.precision] / 4
    flops, moved = counts.flops(batch_size), width * counts.bytes(batch_size)
    if cluster.precision in _AUTOMATIC:
        moved = moved * (1 + counts.single)
    rate = np.full(len(OperationClass), rates.vector_flops)
    rate[OperationClass.LINEAR] = rates.matrix_flops
    rate[OperationClass.ATTENTION] = rates.attention_flops
    rate[OperationClass.CONVOLUTION] = rates.convolution_flops
    rate[OperationClass.DEPTHWISE] = _DEPTHWISE_SHARE * rates.vector_flops
    arithmetic, traffic = flops * counts.padding / rate[counts.classes], moved / rates.memory_bytes
    seconds = np.maximum(arithmetic, traffic)
    half = width < 1
    which = _PART_OF_CLASS[counts.classes]
    convolution = counts.classes == OperationClass.CONVOLUTION
    which = np.where(convolution & (counts.kernels == 1), StepPart.POINTWISE, which)
    which = np.where(counts.dense_kernel, StepPart.DENSE, which)
    which = np.where((which == StepPart.LINEAR) & (traffic > arithmetic), StepPart.THIN, which)
    if half:
        which = np.where((which == StepPart.THIN) & (counts.unaligned > 0), StepPart.UNEVEN, which)
    if half and cluster.channels_last:
        wide = (which == StepPart.GROUPED) & (counts.group_channels > _WIDEST_GROUP)
        untuned = (which == StepPart.DEPTHWISE) & (counts.kernels > _LARGEST_KERNEL)
        which = np.select([wide, untuned], [StepPart.WIDE, StepPart.UNTUNED], which)
    parts = np.bincount(which, weights=seconds, minlength=len(StepPart))
    if half and cluster.channels_last:
        copied = counts.unaligned * moved * (counts.classes != OperationClass.LINEAR)
        parts[StepPart.UNALIGNED] = copied.sum() / rates.memory_bytes
    parts[StepPart.KERNELS] = width * counts.fixed_bytes[convolution].sum() / rates.memory_bytes
    if half:
        # PyTorch's norms of groups know no channels innermost: what they read and write is brought into order as well.
        moving = counts.classes == OperationClass.GROUPWISE if cluster.channels_last else convolution
        parts[StepPart.LAYOUT] = moved[moving].sum() / rates.memory_bytes
    weights = width * counts.weight_bytes
    devices, nodes = cluster.device_count, cluster.node_count
    parts[StepPart.UPDATE] = _UPDATE_PASSES * weights / rates.memory_bytes
    launch = _LAUNCH_SECONDS * (_GRAPH_LAUNCH_SHARE if cluster.graph_launch else 1.0)
    parts[StepPart.LAUNCH] = counts.launches * launch
    if cluster.parallelism is Parallelism.DATA_PARALLEL:
        parts[StepPart.REPLICAS] = (devices - 1) * counts.launches * launch
    if devices > 1:
        # Weights out and gradients back, or a ring's two passes: nearly the same traffic on the busiest link.
        link = min(rates.link_bytes, _NETWORK_BYTES_PER_SECOND) if nodes > 1 else rates.link_bytes
        parts[StepPart.EXCHANGE] = 2 * (devices - 1) / devices * weights / link
    # One process feeds all devices over its own links, one after the other.
    feeding = devices if cluster.parallelism is Parallelism.DATA_PARALLEL else 1
    parts[StepPart.INPUT] = feeding * batch_size * width * counts.input_bytes / rates.host_bytes
    parts[StepPart.FIXED] = _FIXED_SECONDS / (_PASSES if counts.forward_only else 1)
    return np.maximum(parts, _NOTHING)


def compute_flops_utilisation(request: WorkloadRequest, seconds: float, gpu: GpuSpec) -> float:
    """Return model FLOPs utilisation: the share of the peak that products of forward and backward pass would use.

    What is computed again counts for nothing (Chowdhery et al., "PaLM", appendix B).

    Args:
        request: What runs.
        seconds: Of a training iteration.
        gpu: Its device.
    """
    counts = GraphCounts.of(request.graph, request.forward_only)
    products = np.isin(counts.classes, MATRIX_CLASSES)
    peak = 1e12 * math.exp(log_compute_rate(gpu, request.cluster.precision, 1.0))
    return float(counts.flops(request.batch_size)[products].sum()) / (seconds * peak)


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
# For how unlike networks are, softmax and norms of groups are norms of rows: a softmax beside fused attention, as that
# of a loss, makes no other kind of network.
_KINDS = np.array(OperationClass)
_KINDS[[OperationClass.SOFTMAX, OperationClass.GROUPWISE]] = OperationClass.ROWWISE
ROOFLINE_COLUMNS = tuple(f"log_seconds_{part.name.lower()}" for part in StepPart)
# What hosts have free, and the unit of each; what nobody knows is 0, and so is a column that no measurement fills.
_HOST_UNITS = {"cores": 1.0, "memory_bytes": 1e9, "disk_bytes_per_second": 1e6, "flops": 1e9}
HOST_COLUMNS = tuple(f"log_host_{name}" for name in _HOST_UNITS)
CLUSTER_COLUMNS = ("log_devices", "log_nodes", "log_batch", *HOST_COLUMNS)


@dataclass(frozen=True)
class FeatureTable:
    """Rows of requests.

    Attributes:
        parts: Roofline seconds of the parts of a step, shape (n, parts).
        network: Counts per sample by class of operation, logarithms, softmax and norms of groups among norms of rows:
            what the network is, whatever its batch and device, shape (n, ``ANALYTIC_COLUMNS``).
        cluster: Shape (n, ``CLUSTER_COLUMNS``).
        device: Canonical name of each row's device.
        environment: Its environment of measurement; "" is none that is known.
        precision: Value of its precision, or of the one that it is measured as.
        parallelism: Value of its parallelism.
        passes: "forward" where only that pass is made, "" of a training step.
        embedding: Of its graph, shape (n, size); size 0 where no encoder is used.
    """

    parts: FloatArray
    network: FloatArray
    cluster: FloatArray
    device: npt.NDArray[np.str_]
    environment: npt.NDArray[np.str_]
    precision: npt.NDArray[np.str_]
    parallelism: npt.NDArray[np.str_]
    passes: npt.NDArray[np.str_]
    embedding: FloatArray

    def __len__(self) -> int:
        return len(self.parts)

    def rows(self, chosen: npt.NDArray[np.bool_] | npt.NDArray[np.intp]) -> FeatureTable:
        """Return some of the rows."""
        return FeatureTable(**{item.name: getattr(self, item.name)[chosen] for item in fields(self)})


class FeatureBuilder:
    """Makes tables from requests.

    Args:
        catalog: The data sheets.
        cache: Counts of graphs that are asked about again.
    """

    def __init__(self, catalog: GpuCatalog, cache: CountsCache[GraphCounts] | None = None) -> None:
        self._catalog = catalog
        self._cache = cache or CountsCache(GraphCounts.of)

    def spec(self, name: str) -> GpuSpec:
        """Return the data sheet of a device.

        Raises:
            ModelError: The catalogue does not hold it.
        """
        try:
            return self._catalog.get(name)
        except UnknownGpuError as error:
            raise ModelError(str(error)) from error

    def table(self, requests: Sequence[WorkloadRequest], embedding: FloatArray | None = None) -> FeatureTable:
        """Return the requests' features.

        Args:
            requests: Any number of them.
            embedding: Of their graphs, shape (n, size).

        Raises:
            ModelError: A device is not in the catalogue, or a graph's shapes cannot be those of a network.
        """
        rates: dict[tuple[str, str], DeviceRates] = {}
        known: dict[tuple[int, bool], FloatArray] = {}
        parts, network = [], []
        for request in requests:
            cluster = request.cluster
            key = (cluster.device, cluster.precision.value)
            if key not in rates:
                rates[key] = DeviceRates.of(self.spec(cluster.device), cluster.precision)
            counts = self._count_graphs(request.graph, forward_only=request.forward_only)
            parts.append(compute_roofline_parts(counts, request.batch_size, cluster, rates[key]))
            if not parts[-1].max() < _LONGEST_STEP_SECONDS:
                raise ModelError(f"{request.graph.name}: its operations are too large for any device")
            own = (id(request.graph), request.forward_only)
            if own not in known:
                known[own] = _make_network_columns(replace(counts, classes=_KINDS[counts.classes]))
            network.append(known[own])
        clusters = [request.cluster for request in requests]
        count = len(requests)
        return FeatureTable(
            parts=np.array(parts).reshape(count, len(StepPart)),
            network=np.array(network).reshape(count, len(ANALYTIC_COLUMNS)),
            cluster=np.array([_make_cluster_columns(each) for each in requests]).reshape(count, len(CLUSTER_COLUMNS)),
            device=np.array([each.device for each in clusters], dtype=np.str_),
            environment=np.array([each.environment or "" for each in clusters], dtype=np.str_),
            precision=np.array(
                [MEASURED_AS.get(each.precision, each.precision).value for each in clusters], dtype=np.str_
            ),
            parallelism=np.array([each.parallelism.value for each in clusters], dtype=np.str_),
            passes=np.array(["forward" if each.forward_only else "" for each in requests], dtype=np.str_),
            embedding=np.zeros((count, 0)) if embedding is None else np.asarray(embedding, dtype=np.float64),
        )

    def _count_graphs(self, graph: WorkloadGraph, *, forward_only: bool) -> GraphCounts:
        try:
            return self._cache.get(graph, forward_only)
        except OverflowError:
            raise ModelError(f"{graph.name}: its operations are too large to be counted") from None


def _make_network_columns(counts: GraphCounts) -> FloatArray:
    flops = counts.by_class(counts.flops(1))[list(MATRIX_CLASSES)]
    moved = counts.by_class(counts.bytes(1))
    number = counts.by_class(np.ones(len(counts.classes)))
    rest = np.array([math.log1p(counts.layers), math.log1p(counts.weight_bytes / _UNIT)])
    return np.concatenate([np.log1p(flops / _UNIT), np.log1p(moved / _UNIT), np.log1p(number), rest])


def _make_cluster_columns(request: WorkloadRequest) -> list[float]:
    cluster = request.cluster
    counts = [math.log(each) for each in (cluster.device_count, cluster.node_count, request.batch_size)]
    if cluster.host is None:
        return counts + [0.0] * len(_HOST_UNITS)
    return counts + [math.log1p((getattr(cluster.host, name) or 0.0) / unit) for name, unit in _HOST_UNITS.items()]


def add_up_networks(network: FloatArray) -> FloatArray:
    """Return what networks add up to per sample, as logarithms: operations on numbers, traffic, weights, operations.

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


ROOFLINE = "roofline"
ANALYTIC = "roofline+analytic"
EMBEDDED = "roofline+analytic+embedding"
EMBEDDING = "embedding"
FEATURE_SETS = (ROOFLINE, ANALYTIC, EMBEDDED, EMBEDDING)
WITH_EMBEDDING = (EMBEDDED, EMBEDDING)
CATEGORIES = ("environment", "device", "precision", "parallelism", "passes")


@dataclass(frozen=True)
class Encoding:
    """Columns for a regressor.

    Attributes:
        features: Which sets of columns, one of ``FEATURE_SETS``.
        categories: Of each of ``CATEGORIES``, the values that have a column. All columns of a value that has none are
            0: an unknown environment is like none.
    """

    features: str
    categories: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, table: FeatureTable, features: str) -> Encoding:
        """Give every value in the table a column."""
        return cls(
            features,
            tuple(tuple(value for value in np.unique(getattr(table, name)).tolist() if value) for name in CATEGORIES),
        )

    @property
    def names(self) -> int:
        """How many columns, the last ones, are 1 for one value of a category and 0 for all others."""
        return sum(map(len, self.categories))

    def columns(self, table: FeatureTable) -> FloatArray:
        """Return the columns, shape (n, columns)."""
        blocks = [table.cluster]
        if self.features != EMBEDDING:
            least = _NEGLIGIBLE_SHARE * table.parts.sum(axis=1, keepdims=True)
            blocks.append(np.log(np.maximum(table.parts, least)))
        if self.features in (ANALYTIC, EMBEDDED):
            blocks.append(table.network)
        if self.features in WITH_EMBEDDING:
            blocks.append(table.embedding)
        for name, values in zip(CATEGORIES, self.categories, strict=True):
            blocks.append(_encode_one_hot(getattr(table, name), values))
        return np.hstack(blocks)


def _encode_one_hot(column: npt.NDArray[np.str_], values: Sequence[str]) -> FloatArray:
    if not values:
        return np.zeros((len(column), 0))
    found: FloatArray = (column[:, None] == np.array(values)[None, :]).astype(np.float64)
    return found
