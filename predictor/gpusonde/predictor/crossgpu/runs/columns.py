"""Columns of a runs table: which are read, which are known and left out on purpose, and what is refused."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpusonde.telemetry import METRICS

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
