"""Files as tools write them, made from one known trace: 10 cycles of 13 s, at 10 Hz or as fast as the tool goes.

Layouts are facts taken from the tools' public sources and documents; the docstring of each maker names them.
"""

from __future__ import annotations

import csv
import datetime
import gzip
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import zstandard

PERIOD_S = 13.0
CYCLES = 10
_START = datetime.datetime(2025, 12, 4, 1, 22, 31)
_UNIX = _START.replace(tzinfo=datetime.timezone.utc).timestamp()


@dataclass(frozen=True)
class Tick:
    """What one GPU did at one time.

    Attributes:
        time_s: Seconds after the start.
        gpu: Index.
        utilization: Per cent.
        watts: Power.
        mebibytes: Memory in use.
        celsius: Temperature.
        mhz: SM clock.
    """

    time_s: float
    gpu: int
    utilization: int
    watts: float
    mebibytes: int
    celsius: int
    mhz: int

    @property
    def moment(self) -> datetime.datetime:
        """Local time."""
        return _START + datetime.timedelta(seconds=self.time_s)

    @property
    def unix_s(self) -> float:
        """Unix time."""
        return _UNIX + self.time_s


def ticks(interval_s: float = 0.1, gpus: int = 1, *, period_s: float = PERIOD_S) -> list[Tick]:
    """Return the ticks of some GPUs, GPU by GPU at each time: work for 10 of 13 s, then a pause, and noise."""
    random = np.random.default_rng(7)
    made = []
    for at in np.arange(0.0, (CYCLES + 0.4) * period_s, interval_s).tolist():
        for gpu in range(gpus):
            phase = (at % period_s) / period_s
            busy = phase < 0.77
            watts = (210.0 if busy else 75.0) + float(random.normal(0, 6 if busy else 1.5))
            share = max(0, min(100, round((92 if busy else 3) + float(random.normal(0, 3 if busy else 1)))))
            clock = 1350 if busy else 700
            made.append(Tick(round(at, 3), gpu, share, round(watts, 2), 9132, 61 + busy * 6, clock))
    return made


def _text(rows: Iterable[Sequence[object]], *, quote: bool = False, separator: str = ",") -> str:
    stream = io.StringIO()
    writer = csv.writer(
        stream, lineterminator="\n", quoting=csv.QUOTE_ALL if quote else csv.QUOTE_MINIMAL, delimiter=separator
    )
    writer.writerows(rows)
    return stream.getvalue()


def _lines(objects: Iterable[object]) -> str:
    return "".join(json.dumps(each) + "\n" for each in objects)


def _by_time(made: Sequence[Tick]) -> Iterator[list[Tick]]:
    gpus = len({tick.gpu for tick in made})
    for at in range(0, len(made), gpus):
        yield list(made[at : at + gpus])


def query_log(
    made: Sequence[Tick], *, fields: str = "timestamp,index,power.draw,utilization.gpu,memory.used", header: bool = True
) -> str:
    """``nvidia-smi --query-gpu=... --format=csv`` (nvidia-smi's own help)."""
    names = {
        "timestamp": ("timestamp", lambda t: t.moment.strftime("%Y/%m/%d %H:%M:%S.%f")[:-3]),
        "index": ("index", lambda t: t.gpu),
        "power.draw": ("power.draw [W]", lambda t: f"{t.watts:.2f} W"),
        "utilization.gpu": ("utilization.gpu [%]", lambda t: f"{t.utilization} %"),
        "memory.used": ("memory.used [MiB]", lambda t: f"{t.mebibytes} MiB"),
    }
    chosen = [names[field] for field in fields.split(",")]
    rows = [", ".join(str(cell(tick)) for _, cell in chosen) for tick in made]
    return "\n".join([*([", ".join(name for name, _ in chosen)] if header else []), *rows]) + "\n"


def smi_tables(made: Sequence[Tick]) -> str:
    """``nvidia-smi -l 1 > log``: the layout of driver 550."""
    parts = []
    for together in _by_time(made):
        rule = "+" + "-" * 41 + "+" + "-" * 24 + "+" + "-" * 22 + "+"
        lines = [
            together[0].moment.strftime("%a %b %d %H:%M:%S %Y").replace(" 0", "  ", 1) + "       ",
            "+" + "-" * 89 + "+",
            "| NVIDIA-SMI 550.54.15              Driver Version: 550.54.15      CUDA Version: 12.4     |",
            "|" + rule[1:-1] + "|",
            "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |",
            "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |",
            "|                                         |                        |               MIG M. |",
            "|" + rule[1:-1].replace("-", "=") + "|",
        ]
        for tick in together:
            power, memory = f"{tick.watts:.0f}W / 250W", f"{tick.mebibytes}MiB /  12288MiB"
            bus, share = f"00000000:0{tick.gpu + 1}:00.0", f"{tick.utilization:6d}%"
            lines += [
                f"|{tick.gpu:4d}  NVIDIA GeForce GTX TITAN X     Off |   {bus} Off |{'N/A':>21} |",
                f"| 22%   {tick.celsius}C    P2       {power:>17} | {memory:>22} |{share}      Default |",
                "|                                         |                        |                  N/A |",
                rule,
            ]
        parts.append("\n".join(lines) + "\n")
    return "".join(parts)


def dmon(made: Sequence[Tick], *, times: str = "DT", comma: bool = False) -> str:
    """``nvidia-smi dmon -s pum``, with ``-o DT`` and ``--format csv`` (NVIDIA's manual page of nvidia-smi)."""
    names = ["gpu", "pwr", "gtemp", "mtemp", "sm", "mem", "fb"]
    units = ["Idx", "W", "C", "C", "%", "%", "MB"]
    clock = {"D": ("Date", "YYYYMMDD", "%Y%m%d"), "T": ("Time", "HH:MM:SS", "%H:%M:%S")}
    shown = [clock[letter] for letter in times]
    space = ", " if comma else "    "
    lines = []
    for number, together in enumerate(_by_time(made)):
        if number % 20 == 0 and not (comma and number):
            lines.append("#" + space.join([*(name for name, _, _ in shown), *names]))
            lines.append("#" + space.join([*(unit for _, unit, _ in shown), *units]))
        for tick in together:
            cells = [tick.gpu, round(tick.watts), tick.celsius, "-", tick.utilization, 12, tick.mebibytes]
            lines.append(" " + space.join([*(tick.moment.strftime(form) for _, _, form in shown), *map(str, cells)]))
    return "\n".join(lines) + "\n"


def pmon(made: Sequence[Tick]) -> str:
    """``nvidia-smi pmon`` (the same manual page)."""
    lines = [
        "# gpu         pid   type     sm    mem    enc    dec    command",
        "# Idx           #    C/G      %      %      %      %    name",
    ]
    return (
        "\n".join(
            [
                *lines,
                *(f"    {t.gpu}       1234     C     {t.utilization}     12      -      -    python" for t in made),
            ]
        )
        + "\n"
    )


def dcgmi(made: Sequence[Tick]) -> str:
    """``dcgmi dmon -e 203,155`` (DCGM's documentation)."""
    lines = ["#Entity   GPUTL   POWER", "ID"]
    return "\n".join([*lines, *(f"GPU {t.gpu}     {t.utilization}     {t.watts:.3f}" for t in made)]) + "\n"


_DCGM: tuple[tuple[str, Callable[[Tick], object]], ...] = (
    ("DCGM_FI_DEV_GPU_UTIL", lambda t: t.utilization),
    ("DCGM_FI_DEV_POWER_USAGE", lambda t: t.watts),
    ("DCGM_FI_DEV_FB_USED", lambda t: t.mebibytes),
)


def prometheus(made: Sequence[Tick]) -> str:
    """``/api/v1/query_range`` (Prometheus' documentation of its API) of dcgm-exporter's series (its README)."""
    result = [
        {
            "metric": {"__name__": name, "gpu": str(gpu), "UUID": f"GPU-uuid-{gpu}", "modelName": "V100"},
            "values": [[tick.unix_s, str(value(tick))] for tick in made if tick.gpu == gpu],
        }
        for name, value in _DCGM
        for gpu in sorted({tick.gpu for tick in made})
    ]  # fmt: skip
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}})


def victoria(made: Sequence[Tick]) -> str:
    """VictoriaMetrics' ``/api/v1/export``: JSON Lines with times in milliseconds (its documentation)."""
    return _lines(
        {
            "metric": {"__name__": name, "gpu": str(gpu), "UUID": f"GPU-uuid-{gpu}"},
            "values": [value(tick) for tick in made if tick.gpu == gpu],
            "timestamps": [round(1000 * tick.unix_s) for tick in made if tick.gpu == gpu],
        }
        for name, value in _DCGM
        for gpu in sorted({tick.gpu for tick in made})
    )


def grafana(made: Sequence[Tick], unit: str = "") -> str:
    """Grafana's *Download CSV*: a column per legend, in cells the panel's unit (files in public repositories)."""
    gpus = sorted({tick.gpu for tick in made})
    value = {"": lambda t: t.utilization, " W": lambda t: f"{t.watts:.0f} W", "%": lambda t: f"{t.utilization}%"}[unit]
    rows = [[together[0].moment.strftime("%Y-%m-%d %H:%M:%S"), *map(value, together)] for together in _by_time(made)]
    return _text([["Time", *(f"GPU {gpu}" for gpu in gpus)], *rows], quote=True)


def wandb_events(made: Sequence[Tick]) -> str:
    """``run.history(stream="events").to_csv()`` (names that scripts in public repositories read)."""
    head = ["", "_wandb", "_timestamp", "_runtime", "system.cpu"]
    for gpu in sorted({tick.gpu for tick in made}):
        head += [
            f"system.gpu.{gpu}.{name}"
            for name in ("gpu", "memory", "memoryAllocatedBytes", "temp", "powerWatts", "powerPercent")
        ]
    rows = []
    for number, together in enumerate(_by_time(made)):
        row: list[object] = [number, True, together[0].unix_s, together[0].time_s, 12.5]
        for tick in together:
            row += [tick.utilization, 12, tick.mebibytes << 20, tick.celsius, tick.watts, tick.watts / 2.5]
        rows.append(row)
    return _text([head, *rows])


def wandb_jsonl(made: Sequence[Tick]) -> str:
    """``wandb-events.jsonl`` of a run's folder, with the names of ``wandb_events``."""
    return _lines(
        {
            "system.cpu": 12.5,
            **{f"system.gpu.{tick.gpu}.gpu": tick.utilization for tick in together},
            **{f"system.gpu.{tick.gpu}.powerWatts": tick.watts for tick in together},
            "_wandb": True,
            "_timestamp": together[0].unix_s,
            "_runtime": together[0].time_s,
        }
        for together in _by_time(made)
    )


def wandb_chart(made: Sequence[Tick]) -> str:
    """*Export as CSV* of a chart of system metrics with relative time, its minimum and maximum beside it."""
    name = "brisk-sun-7 - system/gpu.0.gpu"
    rows = [[tick.time_s, tick.utilization, tick.utilization, tick.utilization] for tick in made]
    return _text([["Relative Time (Process)", name, f"{name}__MIN", f"{name}__MAX"], *rows], quote=True)


_MLFLOW: tuple[tuple[str, Callable[[Tick], object]], ...] = (
    ("utilization_percentage", lambda t: t.utilization),
    ("power_usage_watts", lambda t: t.watts),
    ("memory_usage_megabytes", lambda t: round(t.mebibytes * 1.048576, 1)),
)


def mlflow_csv(made: Sequence[Tick]) -> str:
    """Long CSV of system metrics (mlflow/system_metrics/metrics/gpu_monitor.py names them; times in milliseconds)."""
    rows = [
        ["f00d", f"system/gpu_{tick.gpu}_{name}", value(tick), round(1000 * tick.unix_s), number]
        for number, together in enumerate(_by_time(made))
        for tick in together
        for name, value in _MLFLOW
    ]
    return _text([["run_id", "key", "value", "timestamp", "step"], *rows])


def mlflow_json(made: Sequence[Tick]) -> str:
    """``metrics/get-history`` (MLflow's REST documentation)."""
    points = [
        {"key": f"system/gpu_{tick.gpu}_utilization_percentage", "value": tick.utilization,
         "timestamp": round(1000 * tick.unix_s), "step": "0"}
        for tick in made
    ]  # fmt: skip
    return json.dumps({"metrics": points})


def nvitop(made: Sequence[Tick]) -> str:
    """``ResourceMetricCollector`` through pandas (docstring of nvitop/api/collector.py)."""
    names = (("gpu_utilization (%)", "utilization"), ("power_usage (W)", "watts"), ("memory_used (MiB)", "mebibytes"))
    gpus = sorted({tick.gpu for tick in made})
    head = ["metrics-daemon/host/cpu_percent (%)/mean"]
    head += [
        f"metrics-daemon/cuda:{g} (gpu:{g})/{name}/{kind}"
        for g in gpus
        for name, _ in names
        for kind in ("mean", "min", "max")
    ]
    rows = [
        [
            8.9,
            *(getattr(tick, each) for tick in together for _, each in names for _ in range(3)),
            1.0,
            together[0].unix_s,
        ]
        for together in _by_time(made)
    ]
    return _text([[*head, "metrics-daemon/duration (s)", "metrics-daemon/timestamp"], *rows])


def nvtop(made: Sequence[Tick]) -> str:
    """``nvtop -s`` in a loop (keys as scripts in public repositories read them; values with units, as text)."""
    return "".join(
        json.dumps(
            [
                {
                    "device_name": "NVIDIA GeForce GTX TITAN X",
                    "gpu_clock": f"{tick.mhz}MHz",
                    "mem_clock": "3505MHz",
                    "temp": f"{tick.celsius}C",
                    "fan_speed": "22%",
                    "power_draw": f"{tick.watts:.0f}W",
                    "gpu_util": f"{tick.utilization}%",
                    "mem_util": "74%",
                }
                for tick in together
            ],
            indent=1,
        )
        + "\n"
        for together in _by_time(made)
    )


def gpustat(made: Sequence[Tick]) -> str:
    """``gpustat --json`` in a loop (keys of gpustat/core.py)."""
    return "".join(
        json.dumps(
            {
                "hostname": "node1",
                "driver_version": "550.54.15",
                "query_time": together[0].moment.isoformat(timespec="microseconds"),
                "gpus": [
                    {
                        "index": tick.gpu,
                        "uuid": f"GPU-uuid-{tick.gpu}",
                        "name": "NVIDIA GeForce GTX TITAN X",
                        "temperature.gpu": tick.celsius,
                        "fan.speed": 22,
                        "utilization.gpu": tick.utilization,
                        "power.draw": round(tick.watts),
                        "enforced.power.limit": 250,
                        "memory.used": tick.mebibytes,
                        "memory.total": 12288,
                        "processes": [{"username": "me", "command": "python", "gpu_memory_usage": 9000, "pid": 1}],
                    }
                    for tick in together
                ],
            },
            indent=4,
        )
        + "\n"
        for together in _by_time(made)
    )


def zeus_samples(made: Sequence[Tick]) -> str:
    """Samples of ``PowerMonitor`` (fields of ``GPUPowerSample`` in zeus/monitor/power.py)."""
    return _text([["timestamp", "gpu_index", "power_mw"], *([t.unix_s, t.gpu, round(1000 * t.watts)] for t in made)])


def zeus_power(made: Sequence[Tick]) -> str:
    """The older monitor's ``Time,Power`` (from memory)."""
    return _text([["Time", "Power"], *([tick.moment.isoformat(), tick.watts] for tick in made)])


def codecarbon(made: Sequence[Tick]) -> str:
    """``emissions.csv`` (its heading stands in public repositories), one row per flush."""
    head = "timestamp,project_name,run_id,duration,emissions,emissions_rate,cpu_power,gpu_power,ram_power,cpu_energy"
    rows = [
        [t.moment.isoformat(timespec="seconds"), "p", "r", t.time_s, 1e-4, 1e-8, 42.5, t.watts, 5.0, 1e-3] for t in made
    ]
    return _text([head.split(","), *rows])


def dynolog(made: Sequence[Tick]) -> str:
    """The JSON logger (dynolog/src/Logger.cpp; names in gpumon/DcgmGroupInfo.cpp), behind glog's prefix."""
    lines = []
    for tick in made:
        data = {
            "device": tick.gpu,
            "gpu_device_utilization": tick.utilization,
            "gpu_power_draw": f"{tick.watts:.3f}",
            "sm_active_ratio": f"{tick.utilization / 130:.3f}",
        }
        stamp = tick.moment.isoformat(timespec="milliseconds")
        prefix = f"I1204 {tick.moment:%H:%M:%S.%f}  4242 Logger.cpp:57]"
        lines += [f"{prefix} Logging : {len(data)} values", f"{prefix} time = {stamp}Z data = {json.dumps(data)}"]
    return "\n".join(lines) + "\n"


def own_lines(made: Sequence[Tick]) -> str:
    """JSON Lines with our own names."""
    return _lines(
        {"time_s": t.time_s, "gpu_uuid": f"GPU-{t.gpu}", "power_watts": t.watts, "gpu_utilization": t.utilization / 100}
        for t in made
    )


def own_csv(
    made: Sequence[Tick],
    *,
    utilization: Callable[[Tick], object] = lambda t: t.utilization / 100,
    stamp: Callable[[Tick], object] = lambda t: t.moment.isoformat(sep=" "),
    names: Sequence[str] = ("timestamp", "gpu_utilization", "power_watts"),
    watts: Callable[[Tick], object] = lambda t: t.watts,
) -> str:
    """A table that pandas wrote."""
    return _text([names, *([stamp(tick), utilization(tick), watts(tick)] for tick in made)])


def write(path: Path, text: str) -> Path:
    """Write a file, compressed where its name says so."""
    data = text.encode()
    if path.suffix == ".gz":
        data = gzip.compress(data)
    if path.suffix == ".zst":
        data = zstandard.ZstdCompressor().compress(data)
    path.write_bytes(data)
    return path
