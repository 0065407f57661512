"""Tables of measured training times: CSV rows to ``WorkloadMeasurement``.

A row says which network ran on which GPUs and how long an iteration took::

    model,batch_per_gpu,image_size,precision,gpu,n_gpus,n_nodes,parallelism,sec_per_iter,framework,source,file,licence

``model``, ``gpu``, ``batch_per_gpu`` and ``sec_per_iter`` must be there. The place of measurement is the column
``environment``, or framework and host as ``source`` and ``file`` tell them: the same GPU in two hosts, or with two
versions of a framework, does not take the same time. What each host had free stands in ``host_cores``,
``host_memory_bytes``, ``host_disk_bytes_per_second`` and ``host_flops``, where it is known.

``KnownNetworks``: the graphs of networks that a table of measurements only names.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TypeVar

from gpusonde.catalog import GpuCatalog, UnknownGpuError
from gpusonde.predictor.workload import zoo
from gpusonde.predictor.workload.engine.request import (
    Cluster,
    EngineError,
    HostResources,
    Parallelism,
    Precision,
    RequestError,
    WorkloadMeasurement,
    WorkloadRequest,
)
from gpusonde.predictor.workload.graph import WorkloadGraph

_KERAS = "keras/"
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


class UnknownNetworkError(LookupError):
    """No graph is known for a network's name, or not at its image size; the message says which."""


class KnownNetworks:
    """Finds graphs by the names in tables of measurements: torchvision's, ``keras/...``, and the user's own.

    Args:
        own: Further networks by name; they go before the others. Their image size is taken to be the table's.
    """

    def __init__(self, own: Mapping[str, Network] | None = None) -> None:
        self._own = dict(own or {})
        self._found: dict[tuple[str, int | None, str], Network | UnknownNetworkError] = {}

    def find(self, name: str, image_size: int | None, description: str = "") -> Network:
        """The network of a row.

        Args:
            name: As in the table: "resnet50", "keras/VGG16".
            image_size: Height and width of its images, pixels, where the table says it.
            description: What the table says of the input, such as "3x64x64, 100 classes".

        Raises:
            UnknownNetworkError: Its graph is not known.
        """
        key = (name, image_size, description)
        if key not in self._found:
            try:
                self._found[key] = self._find(*key)
            except UnknownNetworkError as error:
                self._found[key] = error
        found = self._found[key]
        if isinstance(found, UnknownNetworkError):
            raise found
        return found

    def _find(self, name: str, image_size: int | None, description: str) -> Network:
        if name in self._own:
            return self._own[name]
        search: Callable[[str, int | None, str], Network] = (
            _find_keras if name.startswith(_KERAS) else _find_torchvision
        )
        return search(name, image_size, description)


def _find_keras(name: str, image_size: int | None, description: str) -> Network:
    plain = name.removeprefix(_KERAS)
    sizes = zoo.keras_sizes().get(plain)
    if sizes is None:
        raise UnknownNetworkError(f"{name}: no graph of this network")
    if image_size is None:
        raise UnknownNetworkError(f"{name}: no graph of this network without an image size")
    if image_size not in sizes:
        raise UnknownNetworkError(f"{name}: its graph is for images of {_listed(sizes)} pixels, not {image_size}")
    graph = zoo.load_keras(plain, image_size)
    channels, classes = graph.operations[0].output[1], graph.operations[-1].output[-1]
    for what, pattern, count in (("channels", _INPUT, channels), ("classes", _CLASSES, classes)):
        told = pattern.search(description)
        if told and int(told.group(1)) != count:
            raise UnknownNetworkError(
                f"{name}: its graph for {image_size} pixels has {count} {what}, not {told.group(1)}"
            )
    return Network(graph, plain.lower(), zoo.keras_family(plain))


def _listed(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, sizes))


def _find_torchvision(name: str, image_size: int | None, _description: str) -> Network:
    # A network that is not the same at two image sizes stands in the zoo under two names.
    known = [each for each in (name, f"{name}_{image_size}") if each in zoo.names()]
    if not known:
        raise UnknownNetworkError(f"{name}: no graph of this network")
    sizes = []
    for each in known:
        graph = zoo.load(each)
        sizes.append(graph.operations[0].output[-1])
        if image_size in (None, sizes[-1]):
            return Network(graph, name.lower(), zoo.family(each))
    raise UnknownNetworkError(f"{name}: its graph is for images of {sizes[0]} pixels, not {image_size}")


REQUIRED = ("model", "gpu", "batch_per_gpu", "sec_per_iter")
_Named = TypeVar("_Named", Precision, Parallelism)
_PRECISIONS = {
    **dict.fromkeys(("", "fp32", "float", "float32", "single", "tf32"), Precision.FP32),
    **dict.fromkeys(("fp16", "half", "float16", "amp", "mixed", "bf16", "bfloat16"), Precision.FP16),
    **dict.fromkeys(("fp64", "double", "float64"), Precision.FP64),
}
_PARALLELISMS = {
    **dict.fromkeys(("none",), Parallelism.NONE),
    **dict.fromkeys(("dataparallel", "data_parallel", "dp"), Parallelism.DATA_PARALLEL),
    **dict.fromkeys(("ddp", "distributed", "distributeddataparallel", "horovod"), Parallelism.DISTRIBUTED),
}
# No count and no duration in seconds is larger.
_LARGEST = 1e12
# Nor is any host's memory in bytes or rate.
_LARGEST_OF_HOSTS = 1e18
_HOST = re.compile(r"(?:^|/)results/([^/]+)/([^/]+)$")
_RUN = re.compile(r"_(?:single|half|double|float)_.*?(\(\d+\))?\.csv$")


@dataclass(frozen=True)
class TableLimits:
    """How large a table may be.

    Attributes:
        file_bytes: Size of the file.
        rows: Rows behind the header.
        line_characters: Length of one line.
    """

    file_bytes: int = 64 << 20
    rows: int = 1_000_000
    line_characters: int = 16_384


class MeasurementFileError(EngineError):
    """A table that cannot be one; the message names the line.

    Attributes:
        line: The line, 1 is the header; None where the file as a whole is wrong.
    """

    def __init__(self, path: str, line: int | None, problem: str) -> None:
        """Keep the line."""
        self.line = line
        where = path if line is None else f"{path}, line {line}"
        super().__init__(f"{where}: {problem}")


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


class _LeftOutError(Exception):
    """A sound row that nothing can be learned from."""


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
        MeasurementFileError: It cannot be read, is too large, lacks a column, or a row holds what cannot be.
    """
    limits = limits or TableLimits()
    networks = networks or KnownNetworks()
    measurements: list[WorkloadMeasurement] = []
    left_out: Counter[str] = Counter()
    for line, row in _rows(Path(path), limits):
        try:
            measurements.append(_measurement(row, catalog, networks, licences))
        except _LeftOutError as reason:
            left_out[str(reason)] += 1
        except RequestError as error:
            raise MeasurementFileError(str(path), line, str(error)) from error
    return MeasurementTable(tuple(measurements), dict(left_out))


def _rows(path: Path, limits: TableLimits) -> Iterator[tuple[int, dict[str, str]]]:
    """Line and cells by column of every row."""
    where = str(path)
    lines = _text(path, limits).splitlines()
    for number, text in enumerate(lines, start=1):
        if len(text) > limits.line_characters:
            raise MeasurementFileError(where, number, f"longer than {limits.line_characters} characters")
        if "\0" in text:
            raise MeasurementFileError(where, number, "holds a NUL character; this is no text")
    reader = csv.reader(lines, strict=True)
    try:
        header = [cell.strip() for cell in next(reader, [])]
        if missing := [column for column in REQUIRED if column not in header]:
            raise MeasurementFileError(where, 1, f"no column {', '.join(missing)}")
        if len(set(header)) < len(header):
            raise MeasurementFileError(where, 1, "two columns have the same name")
        count = 0
        for cells in reader:
            if not cells:
                continue
            count += 1
            if count > limits.rows:
                raise MeasurementFileError(where, reader.line_num, f"more than {limits.rows} rows")
            if len(cells) != len(header):
                raise MeasurementFileError(
                    where, reader.line_num, f"{len(cells)} cells where the header has {len(header)}"
                )
            yield reader.line_num, {name: cell.strip() for name, cell in zip(header, cells, strict=True)}
    except csv.Error as error:
        raise MeasurementFileError(where, reader.line_num, str(error)) from error


def _text(path: Path, limits: TableLimits) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(limits.file_bytes + 1)
    except OSError as error:
        raise MeasurementFileError(str(path), None, error.strerror or str(error)) from error
    if len(data) > limits.file_bytes:
        raise MeasurementFileError(str(path), None, f"larger than {limits.file_bytes} bytes")
    try:
        return io.TextIOWrapper(io.BytesIO(data), "utf-8-sig", newline="").read()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise MeasurementFileError(str(path), line, "not UTF-8") from error


def _measurement(
    row: Mapping[str, str], catalog: GpuCatalog, networks: KnownNetworks, licences: Collection[str] | None
) -> WorkloadMeasurement:
    name = row["model"]
    if not name:
        raise RequestError("no name of a network")
    seconds = _number(row, "sec_per_iter")
    batch_size = _count(row, "batch_per_gpu")
    device_count = _count(row, "n_gpus", 1)
    node_count = _count(row, "n_nodes", 1)
    image_size = _count(row, "image_size") if row.get("image_size") else None
    if licences is not None and row.get("licence", "") not in licences:
        raise _LeftOutError(f"licence {row.get('licence') or 'not named'}")
    try:
        network = networks.find(name, image_size, row.get("input_desc", ""))
        device = catalog.resolve(row["gpu"]).spec.name
    except (UnknownNetworkError, UnknownGpuError) as error:
        raise _LeftOutError(str(error)) from error
    cluster = Cluster(
        device=device,
        device_count=device_count,
        node_count=node_count,
        precision=_named(_PRECISIONS, "precision", row.get("precision", "")),
        parallelism=_parallelism(row.get("parallelism", ""), device_count),
        environment=_environment(row),
        host=_host(row),
    )
    request = WorkloadRequest(network.graph, batch_size, cluster)
    return WorkloadMeasurement(request, seconds, network.architecture, network.family, row.get("source", ""))


def _host(row: Mapping[str, str]) -> HostResources | None:
    columns = {each.name: f"host_{each.name}" for each in fields(HostResources)}
    known = {name: _number(row, column, _LARGEST_OF_HOSTS) for name, column in columns.items() if row.get(column)}
    return HostResources(**known) if known else None


def _parallelism(text: str, device_count: int) -> Parallelism:
    if device_count == 1:
        return Parallelism.NONE
    if text.lower() in ("", "none"):
        raise RequestError(f"{device_count} GPUs, but not how they share the job (parallelism)")
    return _named(_PARALLELISMS, "parallelism", text)


def _named(known: Mapping[str, _Named], what: str, text: str) -> _Named:
    try:
        return known[text.lower()]
    except KeyError:
        raise _LeftOutError(f"{what} {text!r}") from None


def _environment(row: Mapping[str, str]) -> str | None:
    """Framework and host, and the run where one host was measured several times."""
    if given := row.get("environment"):
        return given
    source = row.get("source", "").split("@")[0].strip()
    place = source.rsplit("/", 1)[-1]
    if found := _HOST.search(row.get("file", "")):
        place, file = found.groups()
        # Later files name the number of GPUs; earlier ones were another run, with other versions.
        if "_gpus_" not in file and (run := _RUN.search(file)):
            place += f" earlier{run.group(1) or ''}"
    return "/".join(part for part in (row.get("framework", ""), place) if part) or None


def _count(row: Mapping[str, str], column: str, default: int | None = None) -> int:
    if default is not None and not row.get(column):
        return default
    number = _number(row, column)
    if number != int(number) or number < 1:
        raise RequestError(f"{column} is {row[column]}; it must be a whole number of at least 1")
    return int(number)


def _number(row: Mapping[str, str], column: str, largest: float = _LARGEST) -> float:
    text = row[column]
    try:
        number = float(text)
    except ValueError:
        raise RequestError(f"{column} is {text[:40]!r}; it must be a number") from None
    if not 0 < number < largest:
        raise RequestError(f"{column} is {text[:40]}; it must be positive and finite")
    return number
