"""What other tools call their columns: one table of names and units, and the columns that a user names.

A ``Dialect`` says, for one tool, which column holds the time, which the GPU and which the metrics, with their units.
Names are patterns; a group ``gpu`` in one is the GPU that the column belongs to.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from gpusonde.errors import shown
from gpusonde.telemetry.metrics import METRIC_BY_NAME, METRICS
from gpusonde.telemetry.readers.nvidia_smi import FIELDS
from gpusonde.telemetry.readers.table import GPU_UUID, TIME_S, TIMESTAMP, TRACE_ID, conversion, units_of

GPU_INDEX = "gpu_index"
GPU_MODEL = "gpu_model"
# What a column of another name can be called besides the metrics.
_OTHER_NAMES = (TIME_S, TIMESTAMP, GPU_UUID, GPU_INDEX, GPU_MODEL, TRACE_ID)
_LISTED = "; 'gpusonde metrics' lists them"
# Seconds that one unit of a time column stands for.
_TIME_UNITS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class ColumnRule:
    """What a column of this name is.

    Attributes:
        name: Pattern of the whole name, with or without a group ``gpu``.
        meaning: A metric, or ``time_s``, ``timestamp``, ``gpu_uuid``, ``gpu_index``, ``gpu_model`` or ``trace_id``.
        unit: Unit of its values as ``conversion`` takes it (of ``time_s``: ``s``, ``ms`` ...); empty for our own.
    """

    name: str
    meaning: str
    unit: str = ""

    def match(self, column: str) -> re.Match[str] | None:
        """Return how a column's whole name fits, or None."""
        # Compiled only here: to compile all of them took a tenth of the start of every process that reads traces.
        return re.fullmatch(self.name, column, re.ASCII)

    def scale(self) -> tuple[float, float]:
        """Return (factor, divisor) from this unit to ours."""
        if self.meaning == TIME_S:
            return _TIME_UNITS[self.unit], 1.0
        return (conversion(METRIC_BY_NAME[self.meaning].unit, self.unit) if self.unit else None) or (1.0, 1.0)


@dataclass(frozen=True)
class Dialect:
    """The columns of one tool.

    Attributes:
        name: The tool's file, for messages and for the table of formats.
        written_by: How people come by such a file; Markdown.
        times: Where its times are, for the table of formats.
        gpus: Where its GPUs are named, for the table of formats.
        sign: Pattern of the name of a column, or of a set of names joined by spaces, that gives the tool away.
        rules: Its columns. Where several give one metric, the first in this order is taken.
        note: What is to be said of every such file.
    """

    name: str
    written_by: str
    times: str
    gpus: str
    sign: str
    rules: tuple[ColumnRule, ...]
    note: str = ""


def _rules(*rules: tuple[str, str] | tuple[str, str, str]) -> tuple[ColumnRule, ...]:
    return tuple(ColumnRule(name, *meaning) for name, *meaning in rules)


_OWN = _rules(
    *((re.escape(name), name) for name in _OTHER_NAMES),
    *((re.escape(m.name), m.name) for m in METRICS),
    *(
        (
            rf"{m.name}(?: ?[\[(]\s*{re.escape(unit)}\s*[\])]|{'_(?:percent|pct)' if unit == '%' else '(?!)'})",
            m.name,
            unit,
        )
        for m in METRICS
        for unit in units_of(m.unit)
    ),
)

# dcgm-exporter's names of fields (dcgm_fields.h), and nvidia_gpu_exporter's of nvidia-smi's fields in base units.
_PROMETHEUS = _rules(
    ("gpu|gpu_id|index", GPU_INDEX),
    ("UUID|uuid", GPU_UUID),
    ("modelName|name", GPU_MODEL),
    ("DCGM_FI_DEV_GPU_UTIL", "gpu_utilization", "%"),
    ("DCGM_FI_DEV_MEM_COPY_UTIL", "memory_utilization", "%"),
    ("DCGM_FI_DEV_ENC_UTIL", "encoder_utilization", "%"),
    ("DCGM_FI_DEV_DEC_UTIL", "decoder_utilization", "%"),
    ("DCGM_FI_DEV_POWER_USAGE(?:_INSTANT)?", "power_watts"),
    ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "energy_joules", "mJ"),
    ("DCGM_FI_DEV_GPU_TEMP", "gpu_temperature_celsius"),
    ("DCGM_FI_DEV_MEMORY_TEMP", "memory_temperature_celsius"),
    ("DCGM_FI_DEV_SM_CLOCK", "sm_clock_mhz"),
    ("DCGM_FI_DEV_MEM_CLOCK", "memory_clock_mhz"),
    ("DCGM_FI_DEV_FB_USED", "framebuffer_used_bytes", "MiB"),
    ("DCGM_FI_DEV_FB_FREE", "framebuffer_free_bytes", "MiB"),
    ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "pcie_replay_count"),
    ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "graphics_active"),
    ("DCGM_FI_PROF_SM_ACTIVE", "sm_active"),
    ("DCGM_FI_PROF_SM_OCCUPANCY", "sm_occupancy"),
    ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "tensor_active"),
    ("DCGM_FI_PROF_DRAM_ACTIVE", "dram_active"),
    ("DCGM_FI_PROF_PIPE_FP64_ACTIVE", "fp64_active"),
    ("DCGM_FI_PROF_PIPE_FP32_ACTIVE", "fp32_active"),
    ("DCGM_FI_PROF_PIPE_FP16_ACTIVE", "fp16_active"),
    ("DCGM_FI_PROF_PCIE_TX_BYTES", "pcie_tx_bytes_per_second"),
    ("DCGM_FI_PROF_PCIE_RX_BYTES", "pcie_rx_bytes_per_second"),
    ("DCGM_FI_PROF_NVLINK_TX_BYTES", "nvlink_tx_bytes_per_second"),
    ("DCGM_FI_PROF_NVLINK_RX_BYTES", "nvlink_rx_bytes_per_second"),
    ("nvidia_smi_utilization_gpu_ratio", "gpu_utilization"),
    ("nvidia_smi_utilization_memory_ratio", "memory_utilization"),
    ("nvidia_smi_power_draw_instant_watts", "power_watts"),
    ("nvidia_smi_power_draw_watts", "power_watts"),
    ("nvidia_smi_temperature_gpu", "gpu_temperature_celsius"),
    ("nvidia_smi_temperature_memory", "memory_temperature_celsius"),
    ("nvidia_smi_memory_used_bytes", "framebuffer_used_bytes"),
    ("nvidia_smi_memory_free_bytes", "framebuffer_free_bytes"),
    ("nvidia_smi_clocks_current_sm_clock_hz", "sm_clock_mhz", "Hz"),
    ("nvidia_smi_clocks_current_memory_clock_hz", "memory_clock_mhz", "Hz"),
)

_WANDB = r"(?:.* - )?(?:system[./])?gpu\.(?P<gpu>\d+)\."
_NVITOP = r"(?:.*/)?(?:cuda:\d+ \(gpu:|gpu:)(?P<gpu>[\d:]+)\)?/"
_MLFLOW = r"(?:.*[:/ ])?system/gpu_(?P<gpu>\d+)_"

DIALECTS = (
    Dialect(
        "Prometheus",
        "`/api/v1/query_range` or `query` (JSON), VictoriaMetrics' `/api/v1/export`; live: `prom://HOST:PORT/?query=...`",
        "in the file",
        "labels `UUID`, `gpu`",
        r"(?:DCGM_FI|nvidia_smi)_\w+",
        _PROMETHEUS,
    ),
    Dialect(
        "Weights & Biases",
        '`run.history(stream="events")` as CSV or JSON Lines, CSV of a chart with relative time',
        "`_timestamp`, `_runtime`, relative time",
        "in the names of columns",
        _WANDB + r"\w+",
        _rules(
            ("_timestamp|timestamp|Wall [Tt]ime", TIMESTAMP),
            (r"_runtime|(?:Relative )?[Tt]ime \((?:Process|Wall|s|seconds)\)", TIME_S),
            (_WANDB + "gpu", "gpu_utilization", "%"),
            (_WANDB + "memory", "memory_utilization", "%"),
            (_WANDB + "powerWatts", "power_watts"),
            (_WANDB + "memoryAllocatedBytes", "framebuffer_used_bytes"),
            (_WANDB + "temp", "gpu_temperature_celsius"),
            (_WANDB + "smClock", "sm_clock_mhz"),
            (_WANDB + "memoryClock", "memory_clock_mhz"),
            (_WANDB + "smActive", "sm_active", "%"),
            (_WANDB + "smOccupancy", "sm_occupancy", "%"),
            (_WANDB + "pipeTensorActive", "tensor_active", "%"),
            (_WANDB + "dramActive", "dram_active", "%"),
        ),
    ),
    Dialect(
        "MLflow",
        "system metrics: CSV of `key, value, timestamp`, `metrics/get-history` (JSON)",
        "`timestamp`",
        "in the names of metrics",
        _MLFLOW + r"\w+|(?=.*\bkey\b)(?=.*\bvalue\b)(?=.*\btimestamp\b).*",
        _rules(
            ("timestamp", TIMESTAMP),
            ("run_id", TRACE_ID),
            (_MLFLOW + "utilization_percentage", "gpu_utilization", "%"),
            (_MLFLOW + "power_usage_watts", "power_watts"),
            (_MLFLOW + "memory_usage_megabytes", "framebuffer_used_bytes", "10^6 B"),
        ),
    ),
    Dialect(
        "nvitop",
        "`ResourceMetricCollector` written as CSV or JSON Lines; its means are read",
        "`timestamp`",
        "in the names of columns",
        _NVITOP + r".*",
        _rules(
            (r"(?:.*/)?timestamp", TIMESTAMP),
            (_NVITOP + r"gpu_utilization \(%\)(?:/mean)?", "gpu_utilization", "%"),
            (_NVITOP + r"memory_utilization \(%\)(?:/mean)?", "memory_utilization", "%"),
            (_NVITOP + r"power_usage \(W\)(?:/mean)?", "power_watts"),
            (_NVITOP + r"memory_used \(MiB\)(?:/mean)?", "framebuffer_used_bytes", "MiB"),
            (_NVITOP + r"memory_free \(MiB\)(?:/mean)?", "framebuffer_free_bytes", "MiB"),
            (_NVITOP + r"temperature \(C\)(?:/mean)?", "gpu_temperature_celsius"),
        ),
    ),
    Dialect(
        "nvtop",
        "`nvtop -s` in a loop (JSON)",
        "you say the interval",
        "their turns",
        r"device_name gpu_clock .*gpu_util.*",
        _rules(
            ("device_name", GPU_MODEL),
            ("gpu_util", "gpu_utilization", "%"),
            ("power_draw", "power_watts"),
            ("temp", "gpu_temperature_celsius"),
            ("gpu_clock", "sm_clock_mhz"),
            ("mem_clock", "memory_clock_mhz"),
            ("mem_used", "framebuffer_used_bytes"),
            ("mem_free", "framebuffer_free_bytes"),
        ),
    ),
    Dialect(
        "gpustat",
        "`gpustat --json` in a loop",
        "`query_time`",
        "`uuid`, `index`",
        r"(?=.*\bquery_time\b)(?=.*\butilization\.gpu\b).*",
        _rules(
            ("query_time", TIMESTAMP),
            ("index", GPU_INDEX),
            ("uuid", GPU_UUID),
            ("name", GPU_MODEL),
            (r"utilization\.gpu", "gpu_utilization", "%"),
            (r"utilization\.enc", "encoder_utilization", "%"),
            (r"utilization\.dec", "decoder_utilization", "%"),
            (r"power\.draw", "power_watts"),
            (r"temperature\.gpu", "gpu_temperature_celsius"),
            (r"memory\.used", "framebuffer_used_bytes", "MiB"),
        ),
    ),
    Dialect(
        "zeus",
        "samples of its `PowerMonitor` as CSV",
        "`timestamp`, `time`, `Time`",
        "`gpu_index`, or in the names of columns",
        r"(?:[Tt]ime|timestamp) (?:Power|(?:power|gpu)_?\d+(?:_power)?(?: .*)?|gpu_(?:index|id) power_m?w)",
        _rules(
            ("[Tt]ime|timestamp", TIMESTAMP),
            ("gpu_index|gpu_id", GPU_INDEX),
            ("Power|power_w", "power_watts"),
            ("power_mw", "power_watts", "mW"),
            (r"(?:power|gpu)_?(?P<gpu>\d+)(?:_power)?", "power_watts"),
        ),
    ),
    Dialect(
        "codecarbon",
        "`emissions.csv` of a run that was flushed often",
        "`timestamp`",
        "one: all GPUs together",
        r"(?=.*\bemissions_rate\b)(?=.*\bgpu_power\b).*",
        _rules(("timestamp", TIMESTAMP), ("run_id", TRACE_ID), ("gpu_power", "power_watts")),
        note="codecarbon gives the power of all GPUs together, and a mean of each of its intervals",
    ),
    Dialect(
        "dynolog",
        "its log with the JSON logger",
        "in the log",
        "`device`",
        r"(?=.*\bdevice\b)(?=.*\b(?:gpu_device_utilization|gpu_power_draw|sm_active_ratio)\b).*",
        _rules(
            ("time|timestamp", TIMESTAMP),
            ("device", GPU_INDEX),
            ("gpu_uuid", GPU_UUID),
            ("gpu_name", GPU_MODEL),
            ("gpu_device_utilization", "gpu_utilization", "%"),
            ("gpu_memory_utilization", "memory_utilization", "%"),
            ("gpu_power_draw", "power_watts"),
            ("gpu_frequency_mhz", "sm_clock_mhz"),
            ("graphics_engine_active_ratio", "graphics_active"),
            ("sm_active_ratio", "sm_active"),
            ("sm_occupancy", "sm_occupancy"),
            ("tensorcore_active", "tensor_active"),
            ("hbm_mem_bw_util", "dram_active"),
            ("fp64_active", "fp64_active"),
            ("fp32_active", "fp32_active"),
            ("fp16_active", "fp16_active"),
            ("pcie_tx_bytes", "pcie_tx_bytes_per_second"),
            ("pcie_rx_bytes", "pcie_rx_bytes_per_second"),
            ("nvlink_tx_bytes", "nvlink_tx_bytes_per_second"),
            ("nvlink_rx_bytes", "nvlink_rx_bytes_per_second"),
        ),
    ),
    Dialect(
        "Grafana",
        "*Inspect, Data, Download CSV* of a panel whose cells carry their unit; else with `--column`",
        "`Time`",
        "in the legends",
        r"Time .*",
        _rules(("Time", TIMESTAMP)),
    ),
)
# Our own names, which any table and JSON Lines may have, and which the columns that a user names are added to.
OWN_NAMES = Dialect(
    "JSON Lines",
    "your own scripts: one object per tick with the names of a CSV file of ours",
    "in the file",
    "`gpu_uuid`, `gpu_index` or `trace_id`, or just one",
    r"(?=.*\b(?:time_s|timestamp)\b).*",
    _OWN,
)

# Logs of nvidia-smi --query-gpu that its own reader does not take: without times, or with columns that a user names.
NVIDIA_SMI = Dialect(
    "nvidia-smi log",
    "",
    "",
    "",
    rf"(?:{'|'.join(map(re.escape, FIELDS))})(?: \[\S+\])?",
    (
        *_rules(
            ("timestamp", TIMESTAMP), ("uuid|gpu_uuid", GPU_UUID), ("index", GPU_INDEX), ("name|gpu_name", GPU_MODEL)
        ),
        *_rules(*((rf"{re.escape(name)}(?: \[\S+\])?", *meaning) for name, meaning in FIELDS.items())),
    ),
)


def find_dialect(names: Sequence[str]) -> Dialect | None:
    """Return the dialect of a tool by the names of its columns, or None."""
    joined = " ".join(names)
    for dialect in (*DIALECTS[:-1], NVIDIA_SMI, DIALECTS[-1]):
        if any(re.fullmatch(dialect.sign, name) for name in (*names, joined)):
            return dialect
    return None


def read_rule(text: str) -> ColumnRule:
    """Return the rule of ``THEIRS=OURS`` or ``THEIRS=OURS:UNIT``; ``*`` in THEIRS stands for the GPU's name or number.

    Raises:
        ValueError: It has no such form, OURS is no name of ours, or the unit is none of it.
    """
    theirs, equals, ours = text.rpartition("=")
    meaning, _, unit = ours.strip().partition(":")
    meaning = {"gpu": GPU_UUID, "time": TIMESTAMP}.get(meaning, meaning)
    unit = {"percent": "%", "per cent": "%"}.get(unit, unit)
    if not equals or not theirs.strip() or not meaning:
        raise ValueError(
            f"{shown(text)} is not of the form THEIRS=OURS or THEIRS=OURS:UNIT, such as util=gpu_utilization:percent"
        )
    known = (*_OTHER_NAMES, *METRIC_BY_NAME)
    if meaning not in known:
        nearest = difflib.get_close_matches(meaning[:80], known, n=1, cutoff=0.5)
        guess = f"; did you mean {nearest[0]}?" if nearest else ""
        raise ValueError(
            f"{shown(meaning)} in {shown(text)} is neither {', '.join(_OTHER_NAMES)} nor a metric{guess or _LISTED}"
        )
    units: Sequence[str] = units_of(METRIC_BY_NAME[meaning].unit) if meaning in METRIC_BY_NAME else ()
    if meaning == TIME_S:
        units = tuple(filter(None, _TIME_UNITS))
    if unit and unit not in units:
        takes = f"one of {', '.join(units).replace('%', 'percent')}" if units else "no unit"
        raise ValueError(f"{shown(unit)} in {shown(text)} is no unit of {meaning}, which takes {takes}")
    pattern = "(?P<gpu>.+?)".join(re.escape(part) for part in theirs.strip().split("*", 1))
    return ColumnRule(pattern, meaning, unit)


# Words in the names of other tools' columns, and what such a column most often is.
_LIKELY = (
    (re.compile("time|date", re.IGNORECASE), TIMESTAMP),
    (re.compile("uuid", re.IGNORECASE), GPU_UUID),
    (re.compile("value"), "gpu_utilization:percent"),
    (re.compile("mem.*util", re.IGNORECASE), "memory_utilization:percent"),
    (re.compile("util|gpu_?(?:load|usage|busy)", re.IGNORECASE), "gpu_utilization:percent"),
    (re.compile("power|watt", re.IGNORECASE), "power_watts"),
    (re.compile("mem|vram", re.IGNORECASE), "framebuffer_used_bytes:MiB"),
    (re.compile("temp", re.IGNORECASE), "gpu_temperature_celsius"),
    (re.compile("gpu(?:[ _-]?(?:id|index|no|num))?|device|index", re.IGNORECASE), GPU_INDEX),
)


def advise_columns(names: Sequence[str]) -> str:
    """Say how columns of these names are told, with what they seem to be."""
    found = {}
    for pattern, meaning in _LIKELY:
        name = next((name for name in names if pattern.search(name) and name not in found), None)
        if name is not None and name != meaning:
            found[name] = meaning
    metrics = [name for name, meaning in found.items() if meaning.partition(":")[0] in METRIC_BY_NAME]
    if not metrics:
        return "name the columns with --column THEIRS=OURS[:UNIT], such as --column util=gpu_utilization:percent"
    options = " ".join(f"--column {shlex.quote(f'{name[:60]}={meaning}')}" for name, meaning in found.items())
    return f"say what the columns are, perhaps {options}"
