"""What the benchmark asks: jobs, as traces of their GPUs or nodes, and what is true of their cycles.

Nothing is downloaded and nothing is kept: measured sets are read from where their owners' files lie. A set that is not
there is left out.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from mlperf_results import submitted_runs

from gpusonde.epoch_detect import CycleRole
from gpusonde.epoch_detect.evaluation import TrueLevel, Truth, read_truth
from gpusonde.telemetry import Trace, read_traces

sys.path.append(str(Path(__file__).resolve().parents[1] / "epochs"))

import jobs

LEAST_TICKS = 8  # per cycle; a level with fewer is real but need not be told
_LEAST_STEP_TICKS = 5  # logged steps repeat exactly and often
_LEAST_CYCLES = 3
_SAME = 0.05  # levels whose periods differ by less are one


@dataclass(frozen=True)
class Problem:
    """One job.

    Attributes:
        name: Unique in its set.
        traces: One per GPU or node, on one clock.
        truth: What is true of its cycles.
        total: Cycles of the level that is the best guess, in the whole job; None where it is not known.
        begin_s: When the first of them starts.
        end_s: When the last of them ends.
        steps: Optimizer steps of the whole job, where only their number is known; None otherwise.
        epochs: Epochs of the whole job, as a user would tell them; None where they are not known.
    """

    name: str
    traces: tuple[Trace, ...]
    truth: Truth
    total: int | None = None
    begin_s: float = float("nan")
    end_s: float = float("nan")
    steps: int | None = None
    epochs: int | None = None


def mlperf_submission(folder: Path, nodes: int = 1) -> Iterator[Problem]:
    """Read the runs with power below a folder of an MLPerf Training results repository.

    Args:
        folder: A checkout, or any part of it.
        nodes: How many nodes of a job to look at; 0 for all.
    """
    for run in submitted_runs(folder):
        made = _mlperf(run.name, run.network, run.nodes[: nodes or None], run.events)
        if made is not None:
            yield made


def mlperf_table(folder: Path, nodes: int = 1) -> Iterator[Problem]:
    """Read the same runs from ``node_power.parquet`` and ``runs.json``.

    Args:
        folder: That holds both.
        nodes: How many nodes of a job to look at; 0 for all.
    """
    from pyarrow import parquet

    table = parquet.read_table(folder / "node_power.parquet").to_pydict()
    run_ids, node_ids = np.array(table["run_id"]), np.array(table["node"])
    times, watts = np.array(table["time_s"], dtype=float), np.array(table["power_watts"], dtype=float)
    for name, run in json.loads((folder / "runs.json").read_text()).items():
        mine = run_ids == name
        chosen = np.unique(node_ids[mine])[: nodes or None]
        series = [(times[mine & (node_ids == n)], watts[mine & (node_ids == n)]) for n in chosen]
        steps = [row[0] for row in run["train_steps"]]
        events = {
            "epoch_start": run["epoch_start_s"], "eval_start": run["eval_start_s"], "step": steps,
            "run_start": run["run_start_s"], "run_stop": run["run_stop_s"],
        }  # fmt: skip
        made = _mlperf(name, f"{run['network']} ({run['nodes']})", series, events)
        if made is not None:
            yield made


def _mlperf(
    name: str, shape: str, series: Sequence[tuple[np.ndarray, np.ndarray]], events: Mapping[str, Sequence[float]]
) -> Problem | None:
    """A run of MLPerf; None where its power can show no cycle that it logs."""
    traces = tuple(_increasing(t, {"power_watts": watts}, f"node-{i}") for i, (t, watts) in enumerate(series))
    interval = traces[0].interval_s
    stop = max(events.get("run_stop", ()), default=float("inf"))
    found = []
    for key, role in (("step", CycleRole.STEP), ("eval_start", CycleRole.EVALUATION), ("epoch_start", CycleRole.EPOCH)):
        starts = np.array([at for at in events.get(key, ()) if at <= stop])
        if starts.size < _LEAST_CYCLES + 1:
            continue
        period = float(np.median(np.diff(starts)))
        least = _LEAST_STEP_TICKS if role is CycleRole.STEP else LEAST_TICKS
        found.append(TrueLevel((period,), (role,), period >= least * interval, tuple(starts.tolist())))
    levels = _merged(found)
    shown = [level for level in levels if level.visible]
    if not shown:
        return None
    named = {role: level for level in shown for role in level.roles}
    main = named.get(CycleRole.EPOCH) or named.get(CycleRole.EVALUATION) or shown[0]
    # Batches and what the job does not log repeat as well: not all levels are known.
    truth = Truth(main.periods_s, main.starts_s, shape, levels, levels_complete=False)
    epochs = sum(at <= stop for at in events.get("epoch_start", ())) or None
    first, last, total = main.starts_s[0], main.starts_s[-1], len(main.starts_s) - 1
    if CycleRole.EPOCH not in main.roles:  # an evaluation ends its cycle, the first of which begins with the run
        first, total = min(events.get("run_start") or [first]), total + 1
    return Problem(name, traces, truth, total, first, last, epochs=epochs)


def _merged(levels: Sequence[TrueLevel]) -> tuple[TrueLevel, ...]:
    """Levels of nearly one period as one, with all their names."""
    kept: list[TrueLevel] = []
    for level in sorted(levels, key=lambda each: each.periods_s):
        if kept and level.periods_s[0] < (1 + _SAME) * kept[-1].periods_s[0]:
            both = (*level.roles, *kept[-1].roles)
            kept[-1] = TrueLevel(level.periods_s, both, level.visible, level.starts_s)
        else:
            kept.append(level)
    return tuple(kept)


def _increasing(time_s: np.ndarray, values: Mapping[str, np.ndarray], name: str) -> Trace:
    """A trace without the ticks whose stamps step back."""
    keep = np.concatenate([[True], time_s[1:] > np.maximum.accumulate(time_s)[:-1]])
    return Trace(time_s[keep], {metric: column[keep] for metric, column in values.items()}, gpu_uuid=name)


def llm_lora(folder: Path) -> Iterator[Problem]:
    """Read LoRA runs at 10 Hz from ``traces.parquet`` and ``runs.json``: how many steps is known, not when."""
    from pyarrow import parquet

    table = parquet.read_table(folder / "traces.parquet").to_pydict()
    run_ids, gpus, times = np.array(table["run_id"]), np.array(table["gpu"]), np.array(table["time_s"], dtype=float)
    names = ("power_watts", "gpu_utilization", "memory_utilization", "sm_clock_mhz")
    columns = {name: np.array(table[name], dtype=float) for name in names if name in table}
    for name, run in json.loads((folder / "runs.json").read_text()).items():
        traces = []
        for gpu in np.unique(gpus[run_ids == name]):
            mine = (run_ids == name) & (gpus == gpu)
            values = {metric: column[mine] for metric, column in columns.items() if np.isfinite(column[mine]).any()}
            traces.append(_increasing(times[mine], values, str(gpu)))
        yield Problem(name, tuple(traces), Truth((), shape="llm_lora"), steps=int(run["checkpoint_interval"]))


def recorded(folder: Path, *, gpu: bool) -> Iterator[Problem]:
    """Read recorded traces of GPUs, or of a CPU, and their manifest: all GPUs of a file are one job."""
    for file, truth in read_truth(folder / "manifest.json").truth.items():
        if gpu is not file.startswith("cpu_"):
            yield Problem(file, tuple(read_traces(folder / file)), truth)


def generated(folder: Path, name: str) -> Iterator[Problem]:
    """Read a generated set: ``NAME.parquet`` and ``NAME.truth.json``."""
    truth = read_truth(folder / f"{name}.truth.json").truth
    for trace in read_traces(folder / f"{name}.parquet"):
        trace_id = trace.attributes["trace_id"]
        yield Problem(trace_id, (trace,), truth[trace_id])


def simulated(kinds: Iterable[str], per_kind: int, seed: int) -> Iterator[Problem]:
    """Simulate jobs step by step; those whose recording shows nothing of a training are left out."""
    for kind in kinds:
        for number in range(per_kind):
            made = jobs.job(kind, seed, number, blind=True)
            if made.truth is None:
                continue
            starts = made.truth.epoch_starts_s
            whole = made.epochs is not None and len(starts) == made.epochs and made.end_s <= made.traces[0].time_s[-1]
            if whole and made.epochs:
                total = made.epochs, starts[0], made.end_s
                yield Problem(made.name, made.traces, made.truth, *total, epochs=made.epochs)
            else:
                yield Problem(made.name, made.traces, made.truth, epochs=made.epochs)


def every_set(
    shared: Path | None, submissions: Sequence[Path], per_kind: int, seed: int
) -> dict[str, Iterator[Problem]]:
    """Every set that is there, by name.

    Args:
        shared: Folder with ``mlperf_power`` and ``traces``; None to go without.
        submissions: Checkouts of MLPerf Training results repositories, or parts of them.
        per_kind: Simulated jobs of each kind.
        seed: Of them.
    """
    sets: dict[str, Iterator[Problem]] = {
        "jobs, kinds known": simulated(jobs.FIT, per_kind, seed),
        "jobs, kinds set aside": simulated(sorted(jobs.BLIND), per_kind, seed),
    }
    for folder in submissions:
        sets[f"MLPerf {folder.name}"] = mlperf_submission(folder)
    if shared is None:
        return sets
    traces = shared / "traces"
    if (shared / "mlperf_power").is_dir():
        sets["MLPerf, one node"] = mlperf_table(shared / "mlperf_power")
        sets["MLPerf, all nodes"] = mlperf_table(shared / "mlperf_power", nodes=0)
    if (traces / "llm_lora").is_dir():
        sets["LoRA at 10 Hz"] = llm_lora(traces / "llm_lora")
    if (traces / "manifest.json").is_file():
        sets["recorded on GPU"] = recorded(traces, gpu=True)
        sets["recorded on CPU"] = recorded(traces, gpu=False)
    for name in ("synthetic_paper_regime", "synthetic_epochs", "synthetic_negatives"):
        if (traces / f"{name}.parquet").is_file():
            sets[name] = generated(traces, name)
    return sets
