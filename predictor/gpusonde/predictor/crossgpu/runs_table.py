"""``read_runs``: tables of training runs, one row per run, with metric aggregates and the measured epoch latency.

Columns of a runs table: which are read, which are known and left out on purpose, and what is refused.
"""

from __future__ import annotations

import csv
import difflib
import io
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gpusonde.catalog import GpuCatalog, GpuSpec, UnknownGpuError, load_gpus
from gpusonde.predictor.crossgpu.measurement import MeasurementError, MetricDistribution, SourceMeasurement
from gpusonde.telemetry import METRIC_BY_NAME, METRICS

STATISTICS = ("mean", "std", "min", "25", "50", "75", "max")
LATENCY_COLUMN = "one_epoch_average_second"
CONFIGURATION_COLUMNS = ("model", "batchsize", "datasize", "totaldata")
# nvidia-smi's product name tells variants apart; the instance type is the fallback.
GPU_COLUMNS = ("name", "Instances")

_PERCENT = 0.01
_MEBIBYTE = float(1 << 20)

# Column stem -> (metric of the catalogue, factor to its unit).
AGGREGATES: Mapping[str, tuple[str, float]] = {
    "utilization_gpu": ("gpu_utilization", _PERCENT),
    "utilization_memory": ("memory_utilization", _PERCENT),
    "power_drawW": ("power_watts", 1.0),
    "clocks_current_smMHz": ("sm_clock_mhz", 1.0),
    "temperature_gpu": ("gpu_temperature_celsius", 1.0),
    "memory_usedMiB": ("framebuffer_used_bytes", _MEBIBYTE),
    "memory_freeMiB": ("framebuffer_free_bytes", _MEBIBYTE),
    **{metric.name: (metric.name, 1.0) for metric in METRICS},
}

# Column -> (attribute of GpuSpec, factor to its unit). memory_clock_mhz only serves to recompute the bandwidth.
_STATIC: Mapping[str, tuple[str, float]] = {
    "Multiprocessors": ("sm_count", 1.0),
    "CUDA Cores/MP": ("cores_per_sm", 1.0),
    "CUDA Cores": ("cuda_cores", 1.0),
    "GPU Max Clock rate(MHz)": ("boost_clock_mhz", 1.0),
    "Memory Clock rate": ("memory_clock_mhz", 1.0),
    "Memory Bus Width": ("memory_bus_bits", 1.0),
    "L2 Cache Size": ("l2_cache_bytes", 1.0),
    "Total shared memory per multiprocessor": ("shared_memory_bytes_per_sm", 1.0),
    "Maximum number of threads per multiprocessor": ("max_threads_per_sm", 1.0),
    "Total amount of global memory(MBytes)": ("memory_bytes", _MEBIBYTE),
    "power_limitW": ("power_limit_watts", 1.0),
    "pcie_link_gen_max": ("pcie_generation", 1.0),
}

# Known and never read. Throttle counts are sample counts: their sum gives the run's length away (r = 0.99), so do
# time stamps; serial numbers and bus ids name the machine; "Memory Bandwidth" holds the V100's value for the P100; the
# rest is constant, duplicates a column above, or says nothing about speed.
_LEFT_OUT = frozenset(
    {
        "total_latency_second", "accounting_buffer_size", "accounting_mode", "clocks_applications_graphicsMHz",
        "clocks_applications_memoryMHz", "clocks_current_memoryMHz", "clocks_default_applications_graphicsMHz",
        "clocks_default_applications_memoryMHz", "clocks_max_graphicsMHz", "clocks_max_memoryMHz",
        "clocks_max_smMHz", "compute_mode", "display_active", "display_mode", "driver_model_current",
        "driver_model_pending", "driver_version", "fan_speed", "gom_current", "gom_pending", "index",
        "inforom_ecc", "inforom_img", "inforom_oem", "inforom_pwr", "memory_totalMiB", "new_timestamp_gpu",
        "pci_bus", "pci_bus_id", "pci_device", "pci_device_id", "pci_domain", "pci_sub_device_id",
        "pcie_link_gen_current", "pcie_link_width_current", "pcie_link_width_max", "persistence_mode",
        "power_default_limitW", "power_management", "power_max_limitW", "power_min_limitW", "pstate", "serial",
        "uuid", "vbios_version", "Concurrent copy and kernel execution copy engines", "Memory Bandwidth",
    }
)  # fmt: skip
_LEFT_OUT_PREFIX = "clocks_throttle_reasons_"
_LEFT_OUT_STEMS = frozenset({"clocks_current_graphicsMHz", "memory_totalMiB"})

REQUIRED_AGGREGATES = ("gpu_utilization", "memory_utilization", "power_watts", "sm_clock_mhz")


class UnknownColumnError(ValueError):
    """A heading that is no runs table's: ``column`` is at fault, ``problem`` says how and what to do."""

    def __init__(self, column: str, problem: str) -> None:
        """Keep the column and what is wrong with it."""
        self.column, self.problem = column, problem
        super().__init__(f"{column!r}: {problem}")


@dataclass(frozen=True)
class Columns:
    """A heading understood.

    Attributes:
        position: Column name -> index, for all columns.
        aggregates: Stems of ``AGGREGATES`` that are there with all seven statistics, one per metric.
        static: Static columns that are there -> (attribute, factor).
    """

    position: Mapping[str, int]
    aggregates: tuple[str, ...]
    static: Mapping[str, tuple[str, float]]


def classify_columns(heading: Sequence[str]) -> Columns:
    """Understand a heading, or refuse it.

    Raises:
        UnknownColumnError: A column is unknown, in another unit, given twice, incomplete or missing.
    """
    position: dict[str, int] = {}
    stems: dict[str, set[str]] = {}
    for index, raw in enumerate(heading):
        name = raw.strip()
        if name in position:
            raise UnknownColumnError(name, "the column is there twice; remove one")
        position[name] = index
        stem, _, statistic = name.rpartition("_")
        if statistic in STATISTICS and stem in AGGREGATES:
            stems.setdefault(stem, set()).add(statistic)
        elif not _is_known(name, stem, statistic):
            raise UnknownColumnError(name, _advice(name, stem, statistic))
    for name in (*CONFIGURATION_COLUMNS, LATENCY_COLUMN):
        if name not in position:
            raise UnknownColumnError(name, "the column is missing; every run needs it")
    if not any(name in position for name in GPU_COLUMNS):
        raise UnknownColumnError("name", "neither 'name' nor 'Instances' is there to say which GPU a run used")
    _refuse_incomplete(stems)
    static = {column: target for column, target in _STATIC.items() if column in position}
    return Columns(position, tuple(stems), static)


def recomputed_memory_bandwidth(memory_clock_mhz: float, memory_bus_bits: float) -> float:
    """Peak bytes per second of a double data rate bus: clock x 2 x width / 8; 0 when either is not known.

    The reported memory clock of GDDR6 is half of its data clock, so the factor 2 holds there too (checked against the
    data sheets of P100, V100, T4 and A10G).
    """
    return memory_clock_mhz * 1e6 * 2.0 * memory_bus_bits / 8.0


def _is_known(name: str, stem: str, statistic: str) -> bool:
    return (
        name in (*CONFIGURATION_COLUMNS, LATENCY_COLUMN, *GPU_COLUMNS)
        or name in _STATIC
        or name in _LEFT_OUT
        or name.startswith(_LEFT_OUT_PREFIX)
        or (statistic in STATISTICS and stem in _LEFT_OUT_STEMS)
    )


def _refuse_incomplete(stems: Mapping[str, set[str]]) -> None:
    by_metric: dict[str, str] = {}
    for stem, statistics in stems.items():
        for statistic in STATISTICS:
            if statistic not in statistics:
                raise UnknownColumnError(
                    f"{stem}_{statistic}", "the column is missing while others of the metric are there"
                )
        metric = AGGREGATES[stem][0]
        if metric in by_metric:
            raise UnknownColumnError(f"{stem}_mean", f"the same metric as {by_metric[metric]}_mean; keep one of them")
        by_metric[metric] = stem
    for metric in REQUIRED_AGGREGATES:
        if metric not in by_metric:
            stem = next(stem for stem, (name, _) in AGGREGATES.items() if name == metric)
            raise UnknownColumnError(f"{stem}_mean", f"the aggregates of {metric} are missing ({stem}_mean ... _max)")


def _advice(name: str, stem: str, statistic: str) -> str:
    if statistic in STATISTICS:
        nearest = difflib.get_close_matches(stem, AGGREGATES, n=1, cutoff=0.6)
        if nearest:
            return f"unknown metric or unit; expected {nearest[0]}_{statistic}: convert the column or correct its name"
        return "unknown metric; remove its columns, or name them as the metric catalogue does ('gpusonde metrics')"
    known = [*CONFIGURATION_COLUMNS, LATENCY_COLUMN, *GPU_COLUMNS, *_STATIC, *_LEFT_OUT]
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"unknown column{f'; did you mean {nearest[0]!r}?' if nearest else ''}; rename or remove it"


IndexArray = npt.NDArray[np.intp]

_MAXIMUM_BYTES = 256 << 20
_MAXIMUM_ROWS = 200_000
_LONGEST_LINE = 1 << 20
_LONGEST_FIELD = 100
_LONGEST_PROBLEM = 1000


class RunsTableError(ValueError):
    """A table that cannot be read as runs.

    Attributes:
        path: The file.
        line: Line in it, 1 is the heading; 0 when the whole file is meant.
        field: Column, empty when none is meant.
    """

    def __init__(self, path: str | Path, line: int, field: str, problem: str) -> None:
        """Keep where the problem is; ``problem`` says what it is and what to do."""
        self.path, self.line, self.field = str(path), line, field
        # A cell of what is no table may be megabytes of anything.
        shown = field if len(field) <= _LONGEST_FIELD else f"{field[:_LONGEST_FIELD]}..."
        if len(problem) > _LONGEST_PROBLEM:
            problem = f"{problem[:_LONGEST_PROBLEM]}..."
        where = f"{self.path}:{line}: " if line else f"{self.path}: "
        super().__init__(f"{where}{f'field {shown!r}: ' if field else ''}{problem}")


class Configuration(NamedTuple):
    """Identity of a workload: runs with the same one differ only in where they ran. Never a feature of a model."""

    model: str
    batch_size: str
    image_size: str
    sample_count: str


@dataclass(frozen=True)
class Run:
    """One row of a runs table.

    Attributes:
        row: Number of the data row, 0 is the first.
        line: Line in the file.
        instance: Instance type or host label of the row.
        gpu: GPU it ran on.
        configuration: Which workload it was.
        epoch_latency_s: Measured mean seconds per epoch.
        metrics: Metric name -> distribution, in the catalogue's units.
        static_attributes: Figures of the device as the row gives them, named as ``GpuSpec``'s.
        detected_epoch_latency_s: What the run says of itself as a source: the measured latency, or a detector's.
        epoch_latency_relative_error: Standard error of the latter as a ratio.
        end_unix_s: When it ended; 0 where nobody knows, as in tables.
    """

    row: int
    line: int
    instance: str
    gpu: GpuSpec
    configuration: Configuration
    epoch_latency_s: float
    metrics: Mapping[str, MetricDistribution]
    static_attributes: Mapping[str, float]
    detected_epoch_latency_s: float
    epoch_latency_relative_error: float = 0.0
    end_unix_s: float = 0.0

    def measurement(self) -> SourceMeasurement:
        """The run as the source of a prediction."""
        return SourceMeasurement(
            gpu=self.gpu,
            epoch_latency_s=self.detected_epoch_latency_s,
            metrics=self.metrics,
            epoch_latency_relative_error=self.epoch_latency_relative_error,
            static_attributes=self.static_attributes,
        )


@dataclass(frozen=True)
class RunsTable:
    """Runs of workloads on GPUs, the material models are fitted on."""

    runs: tuple[Run, ...]

    def __len__(self) -> int:
        return len(self.runs)

    @property
    def gpu_names(self) -> tuple[str, ...]:
        """Canonical names of the GPUs that occur, sorted."""
        return tuple(sorted({run.gpu.name for run in self.runs}))

    def run(self, row: int) -> Run:
        """The run of data row ``row`` (0 is the first).

        Raises:
            IndexError: There is no such row; the message gives the range.
        """
        if not 0 <= row < len(self.runs):
            raise IndexError(f"row {row} does not exist: the table has rows 0..{len(self.runs) - 1}")
        return self.runs[row]

    def counterparts(self, row: int) -> list[Run]:
        """Other runs of the same configuration on other GPUs: what predictions from ``row`` can be checked against."""
        chosen = self.run(row)
        return [
            run for run in self.runs if run.configuration == chosen.configuration and run.gpu.name != chosen.gpu.name
        ]

    def pairs(self) -> tuple[IndexArray, IndexArray]:
        """Every ordered pair of runs of one configuration on two different GPUs.

        Returns:
            Indices of the source runs and of the target runs, each of shape (pairs,).
        """
        groups: dict[Configuration, list[int]] = defaultdict(list)
        for index, run in enumerate(self.runs):
            groups[run.configuration].append(index)
        pairs = [
            (i, j)
            for group in groups.values()
            for i in group
            for j in group
            if self.runs[i].gpu.name != self.runs[j].gpu.name
        ]
        table = np.array(pairs, dtype=np.intp).reshape(-1, 2)
        return table[:, 0], table[:, 1]

    def subset(self, indices: Iterable[int]) -> RunsTable:
        """The runs at the given positions."""
        return RunsTable(tuple(self.runs[index] for index in indices))


def read_runs(path: str | Path, *, gpus: GpuCatalog | None = None) -> RunsTable:
    """Read a runs table from CSV.

    Columns are those of the hardware-metrics authors' table (nvidia-smi aggregates ``NAME_mean``, ``_std``, ``_min``,
    ``_25``, ``_50``, ``_75``, ``_max``; deviceQuery figures) or the same aggregates of our own metric names, in our
    units (``dram_active_mean``). Percent become ratios and MiB bytes; memory bandwidth is recomputed from clock and bus
    width, because the table's own column is wrong for the P100.

    Args:
        path: CSV file with a heading.
        gpus: Catalogue to look the GPUs up in; the one that is shipped when left out.

    Raises:
        RunsTableError: The file is no such table; says which line and field, and what to do.
        OSError: The file cannot be read.
    """
    path = Path(path)
    rows: list[list[str]] = []
    try:
        for row in csv.reader(lines_of(path, _MAXIMUM_BYTES)):
            rows.append(row)
            if len(rows) - 1 > _MAXIMUM_ROWS:
                raise RunsTableError(path, 0, "", f"more than {_MAXIMUM_ROWS} rows; split it")
    except (UnicodeDecodeError, csv.Error) as error:
        raise RunsTableError(path, 0, "", f"not a CSV text file ({error})") from error
    if not rows or not any(rows[0]):
        raise RunsTableError(path, 1, "", "empty file; a heading with the column names is needed")
    return _Reader(path, rows[0], gpus or load_gpus()).read(rows[1:])


def lines_of(path: Path, most_bytes: int) -> Iterator[str]:
    """Yield the lines of a table.

    Raises:
        RunsTableError: It is too large, or one of its lines is; a pipe or a device has no size before it is read.
        UnicodeDecodeError: It is no text.
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise RunsTableError(path, 0, "", f"larger than {most_bytes >> 20} MiB; split it")
    for number, line in enumerate(io.TextIOWrapper(io.BytesIO(data), "utf-8-sig", newline=""), start=1):
        if len(line) > _LONGEST_LINE:
            raise RunsTableError(path, number, "", f"longer than {_LONGEST_LINE} characters: not a table of runs")
        yield line


class _Reader:
    """Reads the rows of one file whose heading is known."""

    def __init__(self, path: Path, heading: Sequence[str], gpus: GpuCatalog) -> None:
        self._path, self._gpus = path, gpus
        try:
            self._columns = classify_columns(heading)
        except UnknownColumnError as error:
            raise RunsTableError(path, 1, error.column, error.problem) from error
        self._width = len(heading)
        self._resolved: dict[tuple[str, float], GpuSpec] = {}

    def read(self, rows: Sequence[Sequence[str]]) -> RunsTable:
        runs: list[Run] = []
        for offset, row in enumerate(rows):
            line = offset + 2
            if not row:
                continue
            if len(row) != self._width:
                raise RunsTableError(
                    self._path, line, "", f"{len(row)} fields where the heading has {self._width}: a truncated line?"
                )
            runs.append(self._run(len(runs), line, row))
        if not runs:
            raise RunsTableError(self._path, 0, "", "the table has a heading but no runs")
        self._refuse_ratios_for_percent(runs)
        return RunsTable(tuple(runs))

    def _run(self, number: int, line: int, row: Sequence[str]) -> Run:
        columns = self._columns
        latency = self._number(line, row, LATENCY_COLUMN)
        if latency <= 0:
            raise RunsTableError(
                self._path,
                line,
                LATENCY_COLUMN,
                f"{latency:g} s is no epoch latency; remove the row or measure it again",
            )
        static = self._static(line, row)
        identity = [row[columns.position[name]].strip() for name in CONFIGURATION_COLUMNS]
        run = Run(
            row=number,
            line=line,
            instance=row[columns.position["Instances"]].strip() if "Instances" in columns.position else "",
            gpu=self._gpu(line, row, static.get("memory_bytes", 0.0)),
            configuration=Configuration(*identity),
            epoch_latency_s=latency,
            metrics=MappingProxyType(self._metrics(line, row)),
            static_attributes=MappingProxyType(static),
            detected_epoch_latency_s=latency,
        )
        try:
            run.measurement()
        except MeasurementError as error:
            raise RunsTableError(self._path, line, "", str(error)) from error
        return run

    def _number(self, line: int, row: Sequence[str], column: str) -> float:
        text = row[self._columns.position[column]].strip()
        try:
            value = float(text)
        except ValueError:
            raise RunsTableError(self._path, line, column, f"{text!r} is not a number") from None
        if not math.isfinite(value):
            raise RunsTableError(self._path, line, column, f"{text!r} is not a finite number")
        return value

    def _metrics(self, line: int, row: Sequence[str]) -> dict[str, MetricDistribution]:
        found: dict[str, MetricDistribution] = {}
        for stem in self._columns.aggregates:
            name, scale = AGGREGATES[stem]
            values = [self._number(line, row, f"{stem}_{statistic}") * scale for statistic in STATISTICS]
            distribution = MetricDistribution(*values)
            if problem := distribution.fault(METRIC_BY_NAME[name].maximum):
                raise RunsTableError(self._path, line, stem, problem)
            found[name] = distribution
        return found

    def _static(self, line: int, row: Sequence[str]) -> dict[str, float]:
        found = {
            attribute: self._number(line, row, column) * scale
            for column, (attribute, scale) in self._columns.static.items()
        }
        bandwidth = recomputed_memory_bandwidth(found.pop("memory_clock_mhz", 0.0), found.get("memory_bus_bits", 0.0))
        if bandwidth:
            found["memory_bandwidth_bytes_per_second"] = bandwidth
        return {attribute: value for attribute, value in found.items() if value > 0}

    def _gpu(self, line: int, row: Sequence[str], memory_bytes: float) -> GpuSpec:
        column = next(name for name in GPU_COLUMNS if name in self._columns.position)
        name = row[self._columns.position[column]].strip()
        key = (name, memory_bytes)
        if key not in self._resolved:
            try:
                resolution = self._gpus.resolve(name, memory_bytes=int(memory_bytes) or None)
            except UnknownGpuError as error:
                raise RunsTableError(self._path, line, column, str(error)) from error
            self._resolved[key] = resolution.spec
        return self._resolved[key]

    def _refuse_ratios_for_percent(self, runs: Sequence[Run]) -> None:
        """Ratios in percent columns would be read 100 times too small without any single value being wrong."""
        for stem, name in (("utilization_gpu", "gpu_utilization"), ("utilization_memory", "memory_utilization")):
            if stem in self._columns.aggregates and max(run.metrics[name].maximum for run in runs) <= 0.01:
                raise RunsTableError(
                    self._path, 0, f"{stem}_max",
                    f"never above 1: ratios where percent are expected; name the columns {name}_* for ratios",
                )  # fmt: skip
