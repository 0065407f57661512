"""Recordings of whole jobs, every device on one clock, with what their logs say of them.

Measured ones are read from where their owners' files lie and never kept: power of MLPerf nodes at 2 s with exact
events, of one submission from its table or of any from the files of its repository, 8 H100 that write checkpoints and
LoRA fine-tuning at 10 Hz. Generated ones are jobs of ``benchmarks/epochs``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gpusonde.telemetry import FloatArray, Trace

sys.path += [str(Path(__file__).resolve().parents[1] / name) for name in ("epochs", "cycles")]

import jobs
from mlperf_results import submitted_runs

NODE_IDLE_WATTS = 2100.0  # of a node of 8 H100
GPU_IDLE_WATTS = 70.0  # of an H100
_NODE_TICK_S, _GPU_TICK_S = 2.0, 0.1
_LONGEST_GAP_S = 20.0  # a meter that was silent for longer says nothing of the run
_BUSY_METER = 0.6  # of the median node's power: one below is stuck at idle
_NO_SPANS = np.empty((0, 2))
_NO_TIMES = np.empty(0)


@dataclass(frozen=True)
class JobLog:
    """What a job says of itself, in the recording's time.

    Attributes:
        start_s: When the run starts.
        stop_s: When it stops.
        evaluations_s: Shape (evaluations, 2), first and last second of each.
        steps_s: Shape (steps, 2), logged steps.
        epochs_s: Shape (epochs, 2).
        cycle_ends_s: Shape (cycles,), ends of the cycle that the job's progress is counted in: evaluations, epochs
            where there are few of them, checkpoints.
        states: (second, state) where the state changes; known of generated jobs only.
    """

    start_s: float
    stop_s: float
    evaluations_s: FloatArray = field(default_factory=_NO_SPANS.copy)
    steps_s: FloatArray = field(default_factory=_NO_SPANS.copy)
    epochs_s: FloatArray = field(default_factory=_NO_SPANS.copy)
    cycle_ends_s: FloatArray = field(default_factory=_NO_TIMES.copy)
    states: tuple[tuple[float, str], ...] = ()


@dataclass(frozen=True)
class JobRecording:
    """All devices of a job.

    Attributes:
        name: Unique.
        kind: What runs of one kind share: network and number of nodes, or the name of the set.
        devices: Names of the nodes or GPUs.
        time_s: Shape (ticks,), increasing.
        values: Metric -> shape (devices, ticks), NaN where there is no value.
        idle_watts: Power of one idle device.
        log: What is true of it.
        dead_meters: Devices left out, whose meters had gaps or stood at idle.
    """

    name: str
    kind: str
    devices: tuple[str, ...]
    time_s: FloatArray
    values: Mapping[str, FloatArray]
    idle_watts: float
    log: JobLog
    dead_meters: int = 0

    @property
    def interval_s(self) -> float:
        """Usual time between ticks."""
        return float(np.median(np.diff(self.time_s)))

    @property
    def power(self) -> FloatArray:
        """Watts, shape (devices, ticks)."""
        return self.values["power_watts"]

    def trace(self) -> Trace:
        """Mean over the devices, as the epochs of a job are detected in."""
        return Trace(self.time_s, {name: np.nanmean(column, axis=0) for name, column in self.values.items()})


def mlperf(shared: Path) -> Iterator[JobRecording]:
    """Read the MLPerf runs below ``mlperf_power``, on the even 2 s grid of their meters."""
    import pandas as pd

    folder = shared / "mlperf_power"
    table = pd.read_parquet(folder / "node_power.parquet")
    logs = json.loads((folder / "runs.json").read_text())
    for name, rows in table.groupby("run_id"):
        nodes = []
        for _, one in rows.groupby("node"):
            good = one[one.power_watts > 0].sort_values("time_s", kind="stable")
            if len(good) > 20:
                nodes.append((good.time_s.to_numpy(), good.power_watts.to_numpy(dtype=float)))
        run = logs[name]
        yield _mlperf_run(str(name), f"{run['network']}/{run['nodes']}", nodes, _mlperf_log(run))


def mlperf_results(folder: Path) -> Iterator[JobRecording]:
    """Read the whole runs of a results repository of MLPerf Training, on the same grid, by the clock of the first node.

    Args:
        folder: A checkout, or any part of it.
    """
    for run in submitted_runs(folder):
        if not run.events.get("run_start") or not run.events.get("run_stop"):
            continue  # it broke off
        nodes = []
        for time_s, watts in run.nodes:
            order = np.argsort(time_s, kind="stable")
            nodes.append((time_s[order], watts[order]))
        nodes = [(time_s + _clock_s(nodes[0], (time_s, watts)), watts) for time_s, watts in nodes]
        # Where all are metered.
        begin_s = float(np.ceil(max(time_s[0] for time_s, _ in nodes)))
        if begin_s + _LONGEST_GAP_S > min(time_s[-1] for time_s, _ in nodes):
            continue  # meters of another day
        keys = [f"{what}_{edge}" for what in ("run", "epoch", "eval") for edge in ("start", "stop")]
        events: dict[str, Any] = {f"{key}_s": run.events.get(key, []) for key in keys}
        stop_s = events["run_stop_s"][0]
        # Some evaluate what they have written after the run is over.
        events["eval_start_s"] = [at for at in events["eval_start_s"] if at < stop_s]
        log = _mlperf_log(events | {"train_steps": []})
        yield _mlperf_run(run.name, f"{run.network}/{len(nodes)}", nodes, log, begin_s)


def _clock_s(first: tuple[np.ndarray, np.ndarray], other: tuple[np.ndarray, np.ndarray], most_s: int = 60) -> float:
    """Whole seconds by which the other meter's clock is behind the first one's, where they are most alike."""
    at = np.arange(first[0][0], first[0][-1])
    wave = np.interp(at, *first)
    alike = {
        ahead_s: float(np.corrcoef(wave, np.interp(at, other[0] + ahead_s, other[1]))[0, 1])
        for ahead_s in sorted(range(-most_s, most_s + 1), key=abs)
    }
    return float(max(alike, key=lambda ahead_s: alike[ahead_s]))


def _mlperf_run(
    name: str, kind: str, nodes: Sequence[tuple[np.ndarray, np.ndarray]], log: JobLog, begin_s: float = 0.0
) -> JobRecording:
    """A run on an even grid, without nodes whose meters were silent or stood at idle."""
    end_s = float(np.median([times[-1] for times, _ in nodes]))
    time_s = np.arange(begin_s, end_s, _NODE_TICK_S)
    power = np.array([np.interp(time_s, times, watts) for times, watts in nodes])
    alive = np.array([np.diff(times).max() < _LONGEST_GAP_S for times, _ in nodes])
    alive &= np.median(power, axis=1) > _BUSY_METER * np.median(power)
    alive |= alive.size == 1
    return JobRecording(
        name, kind, tuple(f"node-{i}" for i in np.flatnonzero(alive)), time_s, {"power_watts": power[alive]},
        NODE_IDLE_WATTS, log, int((~alive).sum()),
    )  # fmt: skip


def _mlperf_log(run: Mapping[str, Any]) -> JobLog:
    evaluations = np.array(list(zip(run["eval_start_s"], run["eval_stop_s"], strict=False))).reshape(-1, 2)
    epochs = np.array(list(zip(run["epoch_start_s"], run["epoch_stop_s"], strict=False))).reshape(-1, 2)
    steps = np.array([(end - seconds, end) for end, seconds in run["train_steps"]]).reshape(-1, 2)
    ends = evaluations[:, 1] if len(evaluations) >= 4 else epochs[:, 1]
    return JobLog(run["run_start_s"][0], run["run_stop_s"][0], evaluations, steps, epochs, ends)


def h100_checkpoints(shared: Path) -> Iterator[JobRecording]:
    """Read the runs on 8 H100 that write checkpoints: power and utilisation of all, memory of the first GPU."""
    import pandas as pd

    folder = shared / "traces"
    known = {entry["file"]: entry for entry in json.loads((folder / "manifest.json").read_text())}
    for path in sorted(folder.glob("h100_ckpt*.csv")):
        recording = _gpus(path.stem, "h100 checkpoints", pd.read_csv(path), "gpu_uuid")
        entry = known[path.name]
        first, last = entry["regular_window"] or (np.inf, -np.inf)
        starts = np.array(entry["epoch_or_cycle_starts_s"] or ())
        regular = starts[(starts >= first) & (starts <= last)]
        log = JobLog(float(starts[0]), float(recording.time_s[-1]), cycle_ends_s=regular)
        yield _with_log(recording, log)


def llm_lora(shared: Path) -> Iterator[JobRecording]:
    """Read the LoRA runs on 4 GPUs; when they start and stop is not logged, so the whole recording is taken."""
    import pandas as pd

    folder = shared / "traces" / "llm_lora"
    for name, rows in pd.read_parquet(folder / "traces.parquet").groupby("run_id"):
        recording = _gpus(str(name), "llm lora", rows.drop(columns="run_id"), "gpu")
        yield _with_log(recording, JobLog(0.0, float(recording.time_s[-1])))


def _gpus(name: str, kind: str, table: Any, key: str) -> JobRecording:
    """GPUs of a long table on an even 10 Hz grid: power between its readings, other metrics as last read."""
    time_s = np.arange(0.0, float(table.time_s.max()), _GPU_TICK_S)
    devices = sorted(table[key].unique())
    values = {}
    for metric in table.columns.difference(["time_s", key]):
        rows = []
        for device in devices:
            one = table[(table[key] == device) & table[metric].notna()]
            times, column = one.time_s.to_numpy(), one[metric].to_numpy(dtype=float)
            if not times.size:
                rows.append(np.full(time_s.size, np.nan))
            elif metric == "power_watts":
                rows.append(np.interp(time_s, times, column))
            else:
                rows.append(column[np.maximum(np.searchsorted(times, time_s, side="right") - 1, 0)])
        values[str(metric)] = np.array(rows)
    log = JobLog(0.0, float(time_s[-1]))
    names = tuple(str(device) for device in devices)
    return JobRecording(name, kind, names, time_s, values, GPU_IDLE_WATTS, log)


def _with_log(recording: JobRecording, log: JobLog) -> JobRecording:
    return JobRecording(
        recording.name, recording.kind, recording.devices, recording.time_s, recording.values, recording.idle_watts, log
    )


def generated(job: jobs.Job) -> JobRecording:
    """Take a job of ``benchmarks/epochs/jobs.py`` for a recording."""
    shared = [metric for metric in job.traces[0].values if all(metric in trace.values for trace in job.traces)]
    values = {metric: np.array([trace.values[metric] for trace in job.traces]) for metric in shared}
    power = values.get("power_watts")
    idle = float(np.nanmin(power)) if power is not None else GPU_IDLE_WATTS
    busy = [at for at, state in job.states if state != "starting"]
    ends = next((level.starts_s for level in reversed(job.levels) if level.visible), _NO_TIMES)
    time_s = job.traces[0].time_s
    log = JobLog(
        min(busy, default=0.0), min(job.end_s, float(time_s[-1])),
        cycle_ends_s=np.asarray(ends, dtype=float), states=job.states,
    )  # fmt: skip
    names = tuple(trace.gpu_uuid for trace in job.traces)
    return JobRecording(job.name, f"generated {job.kind}", names, time_s, values, idle, log)
