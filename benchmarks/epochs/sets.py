"""The sets that the benchmark runs on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import disturbed
import numpy as np
import set_aside
from generator import Family, render

from gpusonde.epoch_detect.evaluation import Truth, read_truth
from gpusonde.telemetry import Trace, read_trace, read_traces

Set = Iterable[tuple[str, Trace, Truth]]

_SEED = 31_415  # of the set-aside traces; the scorer is fitted with another


def synthetic(folder: Path, name: str) -> Set:
    """One of the generated sets beside the repository."""
    truth = read_truth(folder / f"{name}.truth.json")
    for trace in read_traces(folder / f"{name}.parquet"):
        trace_id = trace.attributes["trace_id"]
        yield trace_id, trace, truth[trace_id]


def real(folder: Path, wanted: Callable[[dict[str, str]], bool]) -> Set:
    """Measured traces, untrimmed, all metrics."""
    for entry in json.loads((folder / "manifest.json").read_text()):
        if not wanted(entry):
            continue
        trace = read_trace(folder / entry["file"], gpu=0)
        starts = [float(s) for s in entry.get("epoch_or_cycle_starts_s") or ()]
        window = entry.get("regular_window")
        if window:
            starts = [s for s in starts if window[0] <= s <= window[1]]
        periods = [float(entry["period_s"])]
        if entry["file"] == "h100_ckpt100.csv":  # 40 s in its first half, then 80 s; both are right
            periods.append(float(np.median(np.diff(entry["epoch_or_cycle_starts_s"][-4:]))))
        yield entry["file"], trace, Truth(tuple(periods), tuple(starts), entry["file"].split("_")[0])


def is_real_gpu(entry: dict[str, str]) -> bool:
    """Checkpoint cycles on H100 and Titan X whose truth is trusted."""
    return entry["file"].startswith(("h100_", "titanx_")) and entry["trust"].startswith(("high", "medium"))


def is_keras_on_cpu(entry: dict[str, str]) -> bool:
    """Keras on a shared CPU: very irregular."""
    return entry["file"].startswith("cpu_")


def disturbed_traces(per_family: int) -> Set:
    """Traces of families whose kinds of disturbance the scorer knows."""
    return _generated((disturbed.POSITIVE, disturbed.NEGATIVE), per_family, _SEED)


def set_aside_traces(per_family: int) -> Set:
    """Traces of the families that nothing was fitted to."""
    return _generated((set_aside.POSITIVE, set_aside.NEGATIVE), per_family, _SEED + 1)


def _generated(groups: Iterable[dict[str, Family]], per_family: int, seed: int) -> Set:
    for group in groups:
        for index, (family, plan) in enumerate(group.items()):
            for number in range(per_family):
                rng = np.random.default_rng([seed, index, number, len(group)])
                made = render(f"{family}-{number}", family, plan(rng), rng)
                periods = made.regimes or (() if made.period_s is None else (made.period_s,))
                yield made.name, made.trace, Truth(periods, made.epoch_starts_s, family)
