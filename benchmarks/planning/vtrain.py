"""Language models timed on two to eight GPUs, never on one: two are known, four and eight asked.

The rows are vTrain's (MIT): pure data parallelism on A100 machines, several micro-batches per iteration.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import pandas as pd
from page import bar, data_file, percent, table

from gpusonde.catalog import load_gpus
from gpusonde.simulator.calibration import TimedIteration, calibrate
from gpusonde.simulator.communication import BandwidthSharing
from gpusonde.simulator.compute import ComputeCurve, CurveOrigin
from gpusonde.simulator.gradients import GradientTrace, assumed_trace
from gpusonde.simulator.iteration import DeviceGroup, IterationSimulator, StepMode
from gpusonde.simulator.links import RatedNetwork, inner_link

_GPU = "A100-SXM4-80GB"
_VOCABULARY = 51_200
_HALF = 2
_PLACEMENT = re.compile(r"tp1_dp(\d+)_pp1")


def section(args: argparse.Namespace) -> list[str]:
    """Return the section's lines."""
    known, asked = read(data_file(args, "scaling.csv"))
    errors: dict[int, list[float]] = defaultdict(list)
    factors = []
    for workload, rows in known.items():
        trace = assumed_trace(parameter_bytes(workload))
        found = calibrate(rows, trace, load_gpus().get(_GPU))
        factors.append(found.exchange_factor)
        passes_s = {probe.batch_size: probe.total_s for probe in found.probes}
        for row in asked[workload]:
            if row.batch_size in passes_s:
                said_s = predict(row, passes_s[row.batch_size], found.exchange_factor, trace)
                errors[row.gpus].append(abs(said_s / row.seconds - 1.0))
    every = [error for each in errors.values() for error in each]
    bar(args, "pure data-parallel rows, two GPUs known", "<= 8 %", percent(float(np.mean(every))),
        met=bool(np.mean(every) <= 0.08))  # fmt: skip
    words = (
        f"vTrain's {len(known)} language models on A100 machines with NVLink, {sum(map(len, known.values()))} "
        f"iterations on two GPUs known, 1 to 16 micro-batches each; none on one. The exchange was "
        f"{min(factors):.2f} to {max(factors):.2f} times what the ratings say; the optimizer's step is in it."
    )
    rows = [[gpus, len(each), percent(float(np.mean(each))), percent(float(np.median(each))), percent(max(each))]
            for gpus, each in sorted(errors.items())]  # fmt: skip
    lines = ["## Jobs never timed on one GPU", "", words, ""]
    return [*lines, *table(["GPUs asked", "iterations", "mean error", "median", "worst"], rows)]


def read(path: Path) -> tuple[dict[str, list[TimedIteration]], dict[str, list[TimedIteration]]]:
    """Return iterations on two GPUs, and on more, by network; medians over rows alike."""
    rows = pd.read_csv(path, low_memory=False)
    rows = rows[rows["source"].str.startswith("VIA-Research/vTrain") & (rows["nodes"] == 1)]
    world = rows["placement"].str.fullmatch(_PLACEMENT.pattern)
    rows = rows[world].assign(gpus=rows["placement"].str.extract(_PLACEMENT, expand=False).astype(float))
    rows = rows.assign(batch=rows["local_bsz"].astype(float))
    found: tuple[dict[str, list[TimedIteration]], ...] = (defaultdict(list), defaultdict(list))
    for key, alike in rows.groupby(["workload", "gpus", "batch", "global_bsz"]):
        workload, gpus, batch, samples = key
        steps = round(samples / gpus / batch)
        row = TimedIteration(batch, float(alike["step_time_s"].median()), int(gpus), accumulation_steps=steps)
        found[gpus > 2][workload].append(row)
    return dict(found[0]), defaultdict(list, found[1])


def parameter_bytes(workload: str) -> float:
    """Return the bytes of the gradients of ``gpt h1024 L24 s1024``: width, layers, and samples of so many tokens."""
    width, layers, tokens = (int(number) for number in re.findall(r"\d+", workload))
    return float(_HALF * (12 * layers * width**2 + (_VOCABULARY + tokens) * width))


def predict(row: TimedIteration, passes_s: float, factor: float, trace: GradientTrace) -> float:
    """Return what the simulator says of an iteration."""
    curve = ComputeCurve(
        np.array([row.batch_size, 2 * row.batch_size]), np.array([passes_s, 2 * passes_s]), np.zeros(2), 1 / 3,
        CurveOrigin.PROBES, row.batch_size, row.batch_size,
    )  # fmt: skip
    link = inner_link(load_gpus().get(_GPU))
    network = RatedNetwork(link, row.gpus, factor=factor)
    mode, one = StepMode(row.accumulation_steps), BandwidthSharing(max_in_flight=1)
    simulator = IterationSimulator(trace, network, one, mode=mode, samples=64)
    return simulator.estimate([DeviceGroup(curve, row.gpus, row.batch_size)]).p50_s
