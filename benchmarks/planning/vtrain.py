"""Jobs timed on several GPUs, never on one.

Language models, vTrain's rows (MIT): pure data parallelism on A100 machines, several micro-batches per iteration; two
GPUs are known, four and eight asked.

Sia's rows: of each network on a cluster so many iterations are drawn, at two batch sizes or more, three times (seeds 0
to 2); asked are at most 150 others whose batch lies within those timed or by a factor of two beyond. Every machine has
as many GPUs. Sizes of gradients and ratings of networks are those of ``estimates``. ``calibrate`` was made on the
clusters ``aws`` and ``rtx`` (``MADE_ON``); the others were held back.
"""

from __future__ import annotations

import argparse
import math
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import sia
from end_to_end import MADE_ON
from estimates import GRADIENT_BYTES, RATED
from page import bar, data_file, percent, table

from gpusonde.catalog import load_gpus, load_offers
from gpusonde.optimizer.documents.problem import parse_problem
from gpusonde.optimizer.problem import Group, Plan
from gpusonde.simulator.calibration import IterationCalibration, TimedIteration, calibrate
from gpusonde.simulator.communication import BandwidthSharing
from gpusonde.simulator.compute import compute_curve
from gpusonde.simulator.gradients import GradientTrace, assumed_trace
from gpusonde.simulator.iteration import DeviceGroup, IterationSimulator, StepMode
from gpusonde.simulator.links import RatedNetwork, inner_link

_GPU = "A100-SXM4-80GB"
_VOCABULARY = 51_200
_HALF = 2
# Cluster of Sia's -> GPU, where its network's rating is known.
_GPUS = {"aws": "T4", "rtx": "RTX 2080 Ti", "dgx": "A100-SXM4-40GB", "quad": "Quadro RTX 6000"}
_TIMED = (2, 4, 8, 16, 64)
_DRAWS = range(3)
_LEAST_ASKED, _MOST_ASKED = 5, 150
_NORMAL_90 = 1.645
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
        timed = {probe.batch_size for probe in found.probes}
        for row in asked[workload]:
            if row.batch_size in timed:
                said_s = predict(row, found, trace)
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
    lines += table(["GPUs asked", "iterations", "mean error", "median", "worst"], rows)
    return [*lines, *_few_timed(sia.read(data_file(args, "scaling.csv")), quick=args.quick)]


def _few_timed(rows: list[sia.StepTime], *, quick: bool) -> list[str]:
    """How far off a plan's iterations are by how many were timed, with everything that a problem file does."""
    curves: dict[tuple[str, str], list[sia.StepTime]] = defaultdict(list)
    for row in rows:
        if row.world_size > 1 and len(set(row.nodes)) == 1 and row.cluster in _GPUS and row.network in GRADIENT_BYTES:
            curves[row.network, row.cluster].append(row)
    cells = []
    for count in _TIMED[:1] if quick else _TIMED:
        found: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
        for (_, cluster), own in sorted(curves.items()):
            for seed in _DRAWS if len(own) > count + _LEAST_ASKED else ():
                found[cluster in MADE_ON] += _errors(own, count, seed)
        for made, name in ((True, "T4, RTX 2080 Ti"), (False, "A100, RTX 6000, held back")):
            off, deviations = np.abs(np.array(found[made]).T)
            shares = float(off.mean()), float(np.median(off)), float((deviations <= _NORMAL_90).mean())
            cells.append([count, name, off.size, *map(percent, shares)])
    words = "Sia's networks, as `gpusonde plan` takes `iterations`: nothing else is known but gradients and ratings."
    columns = ["iterations timed", "GPUs", "asked", "mean error", "median", "within 90 %"]
    return ["### So many timed", "", words, "", *table(columns, cells)]


def _errors(own: list[sia.StepTime], count: int, seed: int) -> Iterator[tuple[float, float]]:
    """Yield relative errors, and how many standard deviations they are."""
    known = [own[place] for place in np.random.default_rng([seed, count]).permutation(len(own))[:count]]
    batches = [row.batch_size for row in known]
    if len(set(batches)) == 1:
        return
    near = [row for row in own if row not in known and min(batches) / 2 <= row.batch_size <= max(batches) * 2]
    rated, device = RATED[own[0].cluster], _GPUS[own[0].cluster]
    iterations = [
        {"batch_size": row.batch_size, "seconds": row.step_s, "gpus": row.world_size, "machines": len(row.nodes)}
        | ({"network_bytes_per_second": rated} if len(row.nodes) > 1 else {})
        for row in known
    ]
    offers = [
        {"name": str(devices), "device": device, "devices": devices, "quota": 64, "usd_per_hour": 1.0,
         "network_bytes_per_second": rated} for devices in sorted({row.nodes[0] for row in own})
    ]  # fmt: skip
    gradients = {"parameter_bytes": GRADIENT_BYTES[own[0].network]}
    job = {"gradients": gradients, "curves": [{"device": device, "iterations": iterations}]}
    document = {"format": "gpusonde.problem/1", "global_batch": 64, "iterations": 1, "job": job, "offers": offers}
    steps = parse_problem(document, load_gpus(), load_offers()).step_times()
    for place in np.random.default_rng(seed).permutation(len(near))[:_MOST_ASKED]:
        row = near[place]
        said = steps.estimate(Plan((Group(str(row.nodes[0]), len(row.nodes), row.batch_size),)))
        off_s = said.mean_s - row.step_s
        yield off_s / row.step_s, off_s / (said.shared_sd_s or said.sd_s)


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


def predict(row: TimedIteration, found: IterationCalibration, trace: GradientTrace) -> float:
    """Return what the simulator says of an iteration, corrected as the optimizer does."""
    curve = compute_curve(found.probes)
    network = RatedNetwork(
        inner_link(load_gpus().get(_GPU)), row.gpus, None, found.exchange_factor, found.factor_spread
    )
    mode, one = StepMode(row.accumulation_steps), BandwidthSharing(max_in_flight=1)
    simulator = IterationSimulator(trace, network, one, mode=mode, samples=64)
    beyond = float(found.correction.predict(row.placement, [row.batch_size])[0][0])
    return math.exp(beyond) * simulator.estimate([DeviceGroup(curve, row.gpus, row.batch_size)]).mean_s
