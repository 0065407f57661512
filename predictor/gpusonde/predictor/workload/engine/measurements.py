"""Tables of measured training times: CSV rows to ``WorkloadMeasurement``.

A row says which network ran on which GPUs and how long an iteration took::

    model,batch_per_gpu,image_size,precision,gpu,n_gpus,n_nodes,parallelism,sec_per_iter,framework,source,file,licence

``model``, ``gpu``, ``batch_per_gpu`` and ``sec_per_iter`` must be there. The environment is the column
``environment``, or framework and host as ``source`` and ``file`` tell them: the same GPU in two hosts, or with two
versions of a framework, does not take the same time. What each host had free stands in ``host_cores``,
``host_memory_bytes``, ``host_disk_bytes_per_second`` and ``host_flops``, where it is known; ``layout`` is nhwc where
channels are innermost.

A row names its network only: ``KnownNetworks`` finds the graph, among those that are shipped or in a folder of files.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from gpusonde.catalog import GpuCatalog, Precision
from gpusonde.errors import GraphError, ModelError, UnknownGpuError
from gpusonde.predictor.tables import Row, TableLimits, read_table
from gpusonde.predictor.workload import zoo
from gpusonde.predictor.workload.engine.request import (
    Cluster,
    HostResources,
    Parallelism,
    WorkloadMeasurement,
    WorkloadRequest,
)
from gpusonde.predictor.workload.graph import WorkloadGraph
from gpusonde.predictor.workload.graph.reading import read_graph

_KERAS = "keras/"
_SUFFIXES = frozenset({".json", ".onnx", ".pt2"})
_INPUT = re.compile(r"(\d{1,5})x(\d{1,5})x(\d{1,5})\b")
_CLASSES = re.compile(r"\b(\d{1,7}) classes\b")


@dataclass(frozen=True)
class Network:
    """A network that was found by its name.

    Attributes:
        graph: Its operations.
        architecture: Its name, the same for both frameworks, as that is what is held out together.
        family: Networks of one design.
    """

    graph: WorkloadGraph
    architecture: str
    family: str


class KnownNetworks:
    """Finds graphs by the names in tables of measurements: torchvision's, ``keras/...``, graph files, the user's own.

    Args:
        own: Further networks by name; they go before the others. Their image size is taken to be the table's.
        folder: Where graph files that a table names (.json, .onnx, .pt2) lie; None where names are no files.
    """

    def __init__(self, own: Mapping[str, Network] | None = None, folder: Path | None = None) -> None:
        self._own = dict(own or {})
        self._folder = folder
        self._found: dict[tuple[str, int | None, str], Network | GraphError] = {}

    def find(self, name: str, image_size: int | None, description: str = "") -> Network:
        """Return the network of a row.

        Args:
            name: As in the table: "resnet50", "keras/VGG16".
            image_size: Height and width of its images, pixels, where the table says it.
            description: What the table says of the input, such as "3x64x64, 100 classes".

        Raises:
            GraphError: Its graph is not known.
        """
        key = (name, None, "") if self._is_file(name) else (name, image_size, description)
        if key not in self._found:
            try:
                self._found[key] = self._find(*key)
            except GraphError as error:
                self._found[key] = error
        found = self._found[key]
        if isinstance(found, GraphError):
            raise found
        return found

    def _find(self, name: str, image_size: int | None, description: str) -> Network:
        if name in self._own:
            return self._own[name]
        if self._folder is not None and self._is_file(name):
            return _read_file(self._folder, name)
        search: Callable[[str, int | None, str], Network] = (
            _find_keras if name.startswith(_KERAS) else _find_torchvision
        )
        return search(name, image_size, description)

    def _is_file(self, name: str) -> bool:
        return self._folder is not None and name not in self._own and Path(name).suffix in _SUFFIXES


def _read_file(folder: Path, name: str) -> Network:
    try:
        graph = read_graph(folder / name)
    except (GraphError, OSError) as error:
        raise GraphError(f"{name}: {getattr(error, 'strerror', None) or error}") from error
    # Networks of one name in several files are one architecture at several sizes.
    return Network(graph, graph.name, graph.name)


def _find_keras(name: str, image_size: int | None, description: str) -> Network:
    plain = name.removeprefix(_KERAS)
    sizes = zoo.keras_sizes().get(plain)
    if sizes is None:
        raise GraphError(f"{name}: no graph of this network")
    if image_size is None:
        raise GraphError(f"{name}: no graph of this network without an image size")
    if image_size not in sizes:
        raise GraphError(f"{name}: its graph is for images of {_list_sizes(sizes)} pixels, not {image_size}")
    graph = zoo.load_keras(plain, image_size)
    channels, classes = graph.operations[0].output[1], graph.operations[-1].output[-1]
    for what, pattern, count in (("channels", _INPUT, channels), ("classes", _CLASSES, classes)):
        told = pattern.search(description)
        if told and int(told.group(1)) != count:
            raise GraphError(f"{name}: its graph for {image_size} pixels has {count} {what}, not {told.group(1)}")
    return Network(graph, plain.lower(), zoo.keras_family(plain))


def _list_sizes(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, sizes))


def _find_torchvision(name: str, image_size: int | None, _description: str) -> Network:
    # A network that is not the same at two image sizes stands in the zoo under two names.
    known = [each for each in (name, f"{name}_{image_size}") if each in zoo.names()]
    if not known:
        raise GraphError(f"{name}: no graph of this network")
    sizes = []
    for each in known:
        graph = zoo.load(each)
        sizes.append(graph.operations[0].output[-1])
        if image_size in (None, sizes[-1]):
            return Network(graph, name.lower(), zoo.family(each))
    raise GraphError(f"{name}: its graph is for images of {sizes[0]} pixels, not {image_size}")


REQUIRED = ("model", "gpu", "batch_per_gpu", "sec_per_iter")
_PRECISIONS = {
    **{precision.value: precision for precision in Precision},
    **dict.fromkeys(("", "float", "float32", "single"), Precision.FP32),
    **dict.fromkeys(("half", "float16"), Precision.FP16),
    **dict.fromkeys(("double", "float64"), Precision.FP64),
    "amp": Precision.MIXED,
    "bfloat16": Precision.BF16,
}
_PARALLELISMS = {
    **dict.fromkeys(("none",), Parallelism.NONE),
    **dict.fromkeys(("dataparallel", "data_parallel", "dp"), Parallelism.DATA_PARALLEL),
    **dict.fromkeys(("ddp", "distributed", "distributeddataparallel", "horovod"), Parallelism.DISTRIBUTED),
}
_LAYOUTS = {"": False, "nchw": False, "nhwc": True}
_LAUNCHES = {"": False, "eager": False, "graph": True}
# No count and no duration in seconds is larger.
_LARGEST = 1e12
_LIMITS = TableLimits(file_bytes=64 << 20, rows=1_000_000, line_characters=16_384)
# Nor is any host's memory in bytes or rate.
_LARGEST_OF_HOSTS = 1e18
_HOST = re.compile(r"(?:^|/)results/([^/]+)/([^/]+)$")
_RUN = re.compile(r"_(?:single|half|double|float)_.*?(\(\d+\))?\.csv$")


@dataclass(frozen=True)
class MeasurementTable:
    """What a table holds.

    Attributes:
        measurements: Of the rows that can be used, in their order.
        left_out: Why rows cannot be used -> how many.
    """

    measurements: tuple[WorkloadMeasurement, ...]
    left_out: Mapping[str, int]

    @property
    def row_count(self) -> int:
        """Rows in the table."""
        return len(self.measurements) + sum(self.left_out.values())


def read_measurements(
    path: Path | str,
    catalog: GpuCatalog,
    networks: KnownNetworks | None = None,
    *,
    licences: Collection[str] | None = None,
    limits: TableLimits | None = None,
) -> MeasurementTable:
    """Read a table.

    Args:
        path: A CSV file with a header, UTF-8.
        catalog: What GPU names mean.
        networks: What network names mean; those of the zoo when left out.
        licences: Take only rows whose column ``licence`` is one of these; all when left out.
        limits: How large it may be.

    Raises:
        TableError: It is too large, lacks a column, or a row holds what cannot be.
        OSError: It cannot be read.
    """
    networks = networks or KnownNetworks()
    measurements: list[WorkloadMeasurement] = []
    left_out: Counter[str] = Counter()
    for row in read_table(path, required=REQUIRED, limits=limits or _LIMITS).rows:
        try:
            measurement = _read_row(row, catalog, networks, licences)
        except ModelError as error:
            raise row.error(str(error)) from error
        if isinstance(measurement, str):
            left_out[measurement] += 1
        else:
            measurements.append(measurement)
    return MeasurementTable(tuple(measurements), dict(left_out))


def _read_row(
    row: Row, catalog: GpuCatalog, networks: KnownNetworks, licences: Collection[str] | None
) -> WorkloadMeasurement | str:
    """Read a measurement; the text of a sound row that nothing can be learned from says why."""
    name = row.text("model")
    if not name:
        raise ModelError("no name of a network")
    seconds = row.number("sec_per_iter", above=0, below=_LARGEST)
    batch_size = row.count("batch_per_gpu")
    device_count = row.count("n_gpus", 1)
    node_count = row.count("n_nodes", 1)
    image_size = row.count("image_size") if row.text("image_size") else None
    if licences is not None and row.text("licence") not in licences:
        return f"licence {row.text('licence') or 'not named'}"
    try:
        network = networks.find(name, image_size, row.text("input_desc"))
        device = catalog.resolve(row.text("gpu")).spec.name
    except (GraphError, UnknownGpuError) as error:
        return str(error)
    precision = _PRECISIONS.get(row.text("precision").lower())
    if precision is None:
        return f"precision {row.text('precision')!r}"
    parallelism = _read_parallelism(row.text("parallelism"), device_count)
    if parallelism is None:
        return f"parallelism {row.text('parallelism')!r}"
    cluster = Cluster(
        device=device,
        device_count=device_count,
        node_count=node_count,
        precision=precision,
        parallelism=parallelism,
        environment=_read_environment(row),
        host=_read_host(row),
        channels_last=row.choice("layout", _LAYOUTS),
        graph_launch=row.choice("launch", _LAUNCHES),
    )
    request = WorkloadRequest(network.graph, batch_size, cluster)
    return WorkloadMeasurement(request, seconds, network.architecture, network.family, row.text("source"))


def _read_host(row: Row) -> HostResources | None:
    columns = {each.name: f"host_{each.name}" for each in fields(HostResources)}
    known = {
        name: row.number(column, above=0, below=_LARGEST_OF_HOSTS)
        for name, column in columns.items()
        if row.text(column)
    }
    return HostResources(**known) if known else None


def _read_parallelism(text: str, device_count: int) -> Parallelism | None:
    """Return how devices share the job, None where the text is not understood."""
    if device_count == 1:
        return Parallelism.NONE
    if text.lower() in ("", "none"):
        raise ModelError(f"{device_count} GPUs, but not how they share the job (parallelism)")
    return _PARALLELISMS.get(text.lower())


def _read_environment(row: Row) -> str | None:
    """Return framework and host, and the run where one host was measured several times."""
    if given := row.text("environment"):
        return given
    source = row.text("source").split("@")[0].strip()
    host = source.rsplit("/", 1)[-1]
    if found := _HOST.search(row.text("file")):
        host, file = found.groups()
        # Later files name the number of GPUs; earlier ones were another run, with other versions.
        if "_gpus_" not in file and (run := _RUN.search(file)):
            host += f" earlier{run.group(1) or ''}"
    return "/".join(part for part in (row.text("framework"), host) if part) or None
