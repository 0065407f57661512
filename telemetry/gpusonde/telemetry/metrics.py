"""The metric catalogue: every metric's name, unit, kind, sampling class and vendor ids.

The names here are used everywhere: on the wire, in files, as columns and in code. Ratios lie in 0..1; every other
quantity carries its unit in its name.

Sources of the ids: NVIDIA DCGM ``dcgm_fields.h`` (field ids), NVML ``nvml.h`` (GPM metric ids; the mapping from DCGM to
GPM follows ``DcgmFieldIdToNvmlGpmMetricId`` of DCGM 4.4), the hardware-metrics paper, section III-A (codes).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from gpusonde.errors import UnknownMetricError


class Unit(Enum):
    """Unit of a metric's values; the members' values are the suffixes used in metric names."""

    RATIO = "ratio"
    BYTES = "bytes"
    BYTES_PER_SECOND = "bytes_per_second"
    WATTS = "watts"
    JOULES = "joules"
    CELSIUS = "celsius"
    MEGAHERTZ = "mhz"
    COUNT = "count"
    BITS = "bits"


class MetricKind(Enum):
    """Whether a metric is a level (gauge) or only ever grows until its source restarts (counter)."""

    GAUGE = "gauge"
    COUNTER = "counter"


class SamplingClass(Enum):
    """How often a metric is worth reading."""

    FAST = "fast"  # every tick, 0.1 s by default
    SLOW = "slow"  # every 10 s by default: it changes slowly, or reading it is expensive


class MissingReason(Enum):
    """Why a value is NaN. Kept and counted, so that "not supported" is never mistaken for "idle"."""

    NOT_SUPPORTED = "not_supported"
    NO_PERMISSION = "no_permission"
    NOT_FOUND = "not_found"
    NO_DATA = "no_data"  # the source answered, but holds no value yet (first GPM sample, stale field)
    READ_ERROR = "read_error"
    GPU_LOST = "gpu_lost"
    OUT_OF_RANGE = "out_of_range"  # a sentinel or an impossible value


@dataclass(frozen=True)
class Metric:
    """One entry of the catalogue.

    Attributes:
        name: The metric's name, with its unit unless it is a ratio.
        unit: Unit of the stored values.
        kind: Gauge or counter.
        sampling_class: Fast or slow.
        description: One line for a reader who does not know the metric.
        dcgm_field_id: DCGM field id, or None.
        dcgm_scale: Factor from DCGM's unit to ours.
        gpm_metric_id: NVML GPM metric id, or None.
        gpm_scale: Factor from GPM's unit to ours.
        codes: Short codes of the metric in ``dcgmi dmon`` headings and in the paper.
        maximum: Largest plausible value; anything above is a sentinel or a fault. None means unbounded.
    """

    name: str
    unit: Unit
    kind: MetricKind
    sampling_class: SamplingClass
    description: str
    dcgm_field_id: int | None = None
    dcgm_scale: float = 1.0
    gpm_metric_id: int | None = None
    gpm_scale: float = 1.0
    codes: tuple[str, ...] = ()
    maximum: float | None = None


_PERCENT = 0.01
_MEBIBYTE = float(1 << 20)
# Activity ratios above 1 were seen under MIG (NVIDIA/DCGM#152); a little head room keeps them, sentinels go.
_RATIO_MAXIMUM = 8.0
_BYTES_MAXIMUM = float(1 << 50)


def _activity(name: str, field: int, gpm: int, code: str, description: str) -> Metric:
    return Metric(
        name, Unit.RATIO, MetricKind.GAUGE, SamplingClass.FAST, description,
        dcgm_field_id=field, gpm_metric_id=gpm, gpm_scale=_PERCENT, codes=(code,), maximum=_RATIO_MAXIMUM,
    )  # fmt: skip


def _rate(name: str, field: int, gpm: int, code: str, description: str) -> Metric:
    return Metric(
        name, Unit.BYTES_PER_SECOND, MetricKind.GAUGE, SamplingClass.FAST, description,
        dcgm_field_id=field, gpm_metric_id=gpm, gpm_scale=_MEBIBYTE, codes=(code,), maximum=_BYTES_MAXIMUM,
    )  # fmt: skip


def _gauge(
    name: str,
    unit: Unit,
    sampling_class: SamplingClass,
    field: int,
    codes: tuple[str, ...],
    description: str,
    *,
    scale: float = 1.0,
    maximum: float,
) -> Metric:
    return Metric(
        name, unit, MetricKind.GAUGE, sampling_class, description,
        dcgm_field_id=field, dcgm_scale=scale, codes=codes, maximum=maximum,
    )  # fmt: skip


_FAST, _SLOW = SamplingClass.FAST, SamplingClass.SLOW

METRICS: tuple[Metric, ...] = (
    _activity("graphics_active", 1001, 1, "GRACT", "share of time in which the graphics or compute engines worked"),
    _activity("sm_active", 1002, 2, "SMACT", "share of cycles in which an SM had at least one warp, averaged over SMs"),
    _activity("sm_occupancy", 1003, 3, "SMOCC", "resident warps as a share of the most that the SMs can hold"),
    _activity("tensor_active", 1004, 5, "TENSO", "share of cycles in which a tensor pipe was active"),
    _activity("dram_active", 1005, 10, "DRAMA", "share of cycles in which device memory sent or received data"),
    _activity("fp64_active", 1006, 11, "FP64A", "share of cycles in which the FP64 pipe was active"),
    _activity("fp32_active", 1007, 12, "FP32A", "share of cycles in which the FP32 pipe was active"),
    _activity("fp16_active", 1008, 13, "FP16A", "share of cycles in which the FP16 pipe (not tensor) was active"),
    _rate("pcie_tx_bytes_per_second", 1009, 20, "PCITX", "bytes sent over PCIe, headers included"),
    _rate("pcie_rx_bytes_per_second", 1010, 21, "PCIRX", "bytes received over PCIe, headers included"),
    _rate("nvlink_tx_bytes_per_second", 1011, 61, "NVLTX", "bytes sent over NVLink, all links"),
    _rate("nvlink_rx_bytes_per_second", 1012, 60, "NVLRX", "bytes received over NVLink, all links"),
    _gauge("gpu_utilization", Unit.RATIO, _FAST, 203, ("GPUTL", "GPCTL"),
           "share of the driver's sample period in which a kernel ran", scale=_PERCENT, maximum=1.0),
    _gauge("memory_utilization", Unit.RATIO, _FAST, 204, ("MCUTL",),
           "share of the driver's sample period in which device memory was busy", scale=_PERCENT, maximum=1.0),
    _gauge("encoder_utilization", Unit.RATIO, _SLOW, 206, ("ENCUT", "ENCUTL"), "video encoder utilisation",
           scale=_PERCENT, maximum=1.0),
    _gauge("decoder_utilization", Unit.RATIO, _SLOW, 207, ("DECUT", "DECUTL"), "video decoder utilisation",
           scale=_PERCENT, maximum=1.0),
    _gauge("power_watts", Unit.WATTS, _FAST, 155, ("POWER",),
           "board power; instantaneous where the driver offers it, else its one-second average", maximum=20_000.0),
    Metric("energy_joules", Unit.JOULES, MetricKind.COUNTER, _SLOW, "energy drawn since the driver was loaded",
           dcgm_field_id=156, dcgm_scale=1e-3, codes=("TOTEC",), maximum=1e15),
    _gauge("gpu_temperature_celsius", Unit.CELSIUS, _SLOW, 150, ("TMPTR",), "temperature of the GPU", maximum=250.0),
    _gauge("memory_temperature_celsius", Unit.CELSIUS, _SLOW, 140, ("MMTMP",), "temperature of device memory",
           maximum=250.0),
    _gauge("sm_clock_mhz", Unit.MEGAHERTZ, _FAST, 100, ("SMCLK",), "clock of the SMs", maximum=10_000.0),
    _gauge("memory_clock_mhz", Unit.MEGAHERTZ, _SLOW, 101, ("MMCLK",), "clock of device memory", maximum=50_000.0),
    _gauge("framebuffer_used_bytes", Unit.BYTES, _FAST, 252, ("FBUSD",), "device memory in use",
           scale=_MEBIBYTE, maximum=_BYTES_MAXIMUM),
    _gauge("framebuffer_free_bytes", Unit.BYTES, _SLOW, 251, ("FBFRE",), "device memory not in use",
           scale=_MEBIBYTE, maximum=_BYTES_MAXIMUM),
    _gauge("bar1_free_bytes", Unit.BYTES, _SLOW, 93, ("BIFRE", "B1FRE"), "free part of BAR1", scale=_MEBIBYTE,
           maximum=_BYTES_MAXIMUM),
    Metric("pcie_replay_count", Unit.COUNT, MetricKind.COUNTER, _SLOW, "PCIe replays since the driver was loaded",
           dcgm_field_id=202, codes=("PCIRE", "PCIRP"), maximum=2.0**53),
    _gauge("clock_event_reason_bits", Unit.BITS, _SLOW, 112, (),
           "why clocks are below the highest: nvmlClocksEventReasons, added up", maximum=2.0**16),
    # No code: what dcgmi dmon prints as XIDER (field 230) is the number of the last error, not a count.
    Metric("xid_count", Unit.COUNT, MetricKind.COUNTER, _SLOW, "XID errors seen since the agent started",
           maximum=2.0**53),
)  # fmt: skip

METRIC_BY_NAME: Mapping[str, Metric] = MappingProxyType({m.name: m for m in METRICS})
METRIC_BY_CODE: Mapping[str, Metric] = MappingProxyType({code: m for m in METRICS for code in m.codes})
METRIC_BY_DCGM_FIELD_ID: Mapping[int, Metric] = MappingProxyType(
    {m.dcgm_field_id: m for m in METRICS if m.dcgm_field_id is not None}
)


def metric(name: str) -> Metric:
    """Look a metric up by its name.

    Raises:
        UnknownMetricError: The catalogue has no such metric; the error names the nearest ones.
    """
    try:
        return METRIC_BY_NAME[name]
    except KeyError:
        nearest = difflib.get_close_matches(name[:80], METRIC_BY_NAME, n=3, cutoff=0.5)
        raise UnknownMetricError(name, tuple(nearest)) from None
