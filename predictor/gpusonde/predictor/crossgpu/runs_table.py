"""``read_runs``: tables of training runs, one row per run, with metric aggregates and the measured epoch latency.

``AGGREGATES`` and ``_STATIC`` are the columns that are read, ``_LEFT_OUT`` those that are known and left out on
purpose; any other one is refused.
"""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from gpusonde.catalog import GpuCatalog, GpuSpec, load_gpus
from gpusonde.errors import MeasurementError, TableError, UnknownGpuError
from gpusonde.predictor.crossgpu.measurement import MetricDistribution, SourceMeasurement
from gpusonde.predictor.tables import Row, read_table
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


@dataclass(frozen=True)
class Columns:
    """A heading understood.

    Attributes:
        gpu: The column that names the GPU.
        aggregates: Stems of ``AGGREGATES`` that are there with all seven statistics, one per metric.
        static: Static columns that are there -> (attribute, factor).
    """

    gpu: str
    aggregates: tuple[str, ...]
    static: Mapping[str, tuple[str, float]]


def classify_columns(path: Path, heading: Sequence[str]) -> Columns:
    """Understand a heading, or refuse it.

    Raises:
        TableError: A column is unknown, in another unit, incomplete or missing.
    """
    stems: dict[str, set[str]] = {}
    for name in heading:
        stem, _, statistic = name.rpartition("_")
        if statistic in STATISTICS and stem in AGGREGATES:
            stems.setdefault(stem, set()).add(statistic)
        elif not _is_known(name, stem, statistic):
            raise TableError(_advise(name, stem, statistic), path=path, line=1, field=name)
    for name in (*CONFIGURATION_COLUMNS, LATENCY_COLUMN):
        if name not in heading:
            raise TableError("the column is missing; every run needs it", path=path, line=1, field=name)
    gpu = next((name for name in GPU_COLUMNS if name in heading), None)
    if gpu is None:
        problem = "neither 'name' nor 'Instances' is there to say which GPU a run used"
        raise TableError(problem, path=path, line=1, field="name")
    _refuse_incomplete(path, stems)
    static = {column: target for column, target in _STATIC.items() if column in heading}
    return Columns(gpu, tuple(stems), static)


def compute_memory_bandwidth(memory_clock_mhz: float, memory_bus_bits: float) -> float:
    """Return the peak bytes per second of a double data rate bus: clock x 2 x width / 8; 0 when either is not known.

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


def _refuse_incomplete(path: Path, stems: Mapping[str, set[str]]) -> None:
    def refuse(column: str, problem: str) -> NoReturn:
        raise TableError(problem, path=path, line=1, field=column)

    by_metric: dict[str, str] = {}
    for stem, statistics in stems.items():
        for statistic in STATISTICS:
            if statistic not in statistics:
                refuse(f"{stem}_{statistic}", "the column is missing while others of the metric are there")
        metric = AGGREGATES[stem][0]
        if metric in by_metric:
            refuse(f"{stem}_mean", f"the same metric as {by_metric[metric]}_mean; keep one of them")
        by_metric[metric] = stem
    for metric in REQUIRED_AGGREGATES:
        if metric not in by_metric:
            stem = next(stem for stem, (name, _) in AGGREGATES.items() if name == metric)
            refuse(f"{stem}_mean", f"the aggregates of {metric} are missing ({stem}_mean ... _max)")


def _advise(name: str, stem: str, statistic: str) -> str:
    if statistic in STATISTICS:
        nearest = difflib.get_close_matches(stem, AGGREGATES, n=1, cutoff=0.6)
        if nearest:
            return f"unknown metric or unit; expected {nearest[0]}_{statistic}: convert the column or correct its name"
        return "unknown metric; remove its columns, or name them as the metric catalogue does ('gpusonde metrics')"
    known = [*CONFIGURATION_COLUMNS, LATENCY_COLUMN, *GPU_COLUMNS, *_STATIC, *_LEFT_OUT]
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"unknown column{f'; did you mean {nearest[0]!r}?' if nearest else ''}; rename or remove it"


IndexArray = npt.NDArray[np.intp]


class RunConfiguration(NamedTuple):
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
    configuration: RunConfiguration
    epoch_latency_s: float
    metrics: Mapping[str, MetricDistribution]
    static_attributes: Mapping[str, float]
    detected_epoch_latency_s: float
    epoch_latency_relative_error: float = 0.0
    end_unix_s: float = 0.0

    def measurement(self) -> SourceMeasurement:
        """Return the run as the source of a prediction."""
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
        """Return the run of data row ``row`` (0 is the first).

        Raises:
            IndexError: There is no such row; the message gives the range.
        """
        if not 0 <= row < len(self.runs):
            raise IndexError(f"row {row} does not exist: the table has rows 0..{len(self.runs) - 1}")
        return self.runs[row]

    def counterparts(self, row: int) -> list[Run]:
        """Return the same configuration's runs on other GPUs: what predictions from ``row`` can be checked against."""
        chosen = self.run(row)
        return [
            run for run in self.runs if run.configuration == chosen.configuration and run.gpu.name != chosen.gpu.name
        ]

    def pairs(self) -> tuple[IndexArray, IndexArray]:
        """Return every ordered pair of runs of one configuration on two different GPUs.

        Returns:
            Indices of the source runs and of the target runs, each of shape (pairs,).
        """
        groups: dict[RunConfiguration, list[int]] = defaultdict(list)
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
        TableError: The file is no such table; says which line and field, and what to do.
        OSError: The file cannot be read.
    """
    table = read_table(path)
    reader = _RowReader(classify_columns(table.path, table.heading), gpus or load_gpus())
    runs = tuple(reader.read(number, row) for number, row in enumerate(table.rows))
    if not runs:
        raise TableError("the table has a heading but no runs", path=table.path)
    # Ratios in percent columns would be read 100 times too small without any single value being wrong.
    for stem, name in (("utilization_gpu", "gpu_utilization"), ("utilization_memory", "memory_utilization")):
        if stem in reader.columns.aggregates and max(run.metrics[name].maximum for run in runs) <= 0.01:
            problem = f"never above 1: ratios where percent are expected; name the columns {name}_* for ratios"
            raise TableError(problem, path=table.path, field=f"{stem}_max")
    return RunsTable(runs)


class _RowReader:
    """Reads the rows of one table whose heading is known."""

    def __init__(self, columns: Columns, gpus: GpuCatalog) -> None:
        self.columns = columns
        self._gpus = gpus
        self._resolved: dict[tuple[str, float], GpuSpec] = {}

    def read(self, number: int, row: Row) -> Run:
        latency = row.number(LATENCY_COLUMN, above=0)
        static = self._read_static(row)
        run = Run(
            row=number,
            line=row.line,
            instance=row.text("Instances"),
            gpu=self._resolve_gpu(row, static.get("memory_bytes", 0.0)),
            configuration=RunConfiguration(*(row.text(name) for name in CONFIGURATION_COLUMNS)),
            epoch_latency_s=latency,
            metrics=MappingProxyType(self._read_metrics(row)),
            static_attributes=MappingProxyType(static),
            detected_epoch_latency_s=latency,
        )
        try:
            run.measurement()
        except MeasurementError as error:
            raise row.error(str(error)) from error
        return run

    def _read_metrics(self, row: Row) -> dict[str, MetricDistribution]:
        found: dict[str, MetricDistribution] = {}
        for stem in self.columns.aggregates:
            name, scale = AGGREGATES[stem]
            distribution = MetricDistribution(*(row.number(f"{stem}_{each}") * scale for each in STATISTICS))
            if problem := distribution.fault(METRIC_BY_NAME[name].maximum):
                raise row.error(problem, stem)
            found[name] = distribution
        return found

    def _read_static(self, row: Row) -> dict[str, float]:
        found = {attribute: row.number(column) * scale for column, (attribute, scale) in self.columns.static.items()}
        bandwidth = compute_memory_bandwidth(found.pop("memory_clock_mhz", 0.0), found.get("memory_bus_bits", 0.0))
        if bandwidth:
            found["memory_bandwidth_bytes_per_second"] = bandwidth
        return {attribute: value for attribute, value in found.items() if value > 0}

    def _resolve_gpu(self, row: Row, memory_bytes: float) -> GpuSpec:
        name = row.text(self.columns.gpu)
        key = (name, memory_bytes)
        if key not in self._resolved:
            try:
                self._resolved[key] = self._gpus.resolve(name, memory_bytes=int(memory_bytes) or None).spec
            except UnknownGpuError as error:
                raise row.error(str(error), self.columns.gpu) from error
        return self._resolved[key]
