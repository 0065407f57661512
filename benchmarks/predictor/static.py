"""What is said without any metric, on timings of the same jobs on many GPUs."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from text import percent, table

from gpusonde.catalog import load_gpus
from gpusonde.predictor.crossgpu import LatencyModel
from gpusonde.predictor.crossgpu.evaluation import LatencyEvaluation, evaluate_timings, read_timings


def static_section(path: Path) -> str:
    """Scores by rows, by dataset and by target GPU."""
    timings, model = read_timings(path), LatencyModel.shipped()
    trusted, every = (evaluate_timings(timings, model, only_main=only) for only in (True, False))
    rows = [("`main`", "<= 29 %, median <= 20 %", *_cells(trusted)), ("all", "", *_cells(every))]
    datasets = [
        (name, s.pairs, percent(s.mape), percent(s.median_ape), percent(s.coverage))
        for name, s in trusted.by_workload.items()
    ]
    gpus = sorted(trusted.by_target.items(), key=lambda item: item[1].mape)
    (best, best_s), (worst, worst_s) = gpus[0], gpus[-1]
    uncovered = ", ".join(f"{name} {percent(s.coverage)}" for name, s in gpus if s.coverage < 0.8)
    by_gpu = (
        f"By target GPU the mean error is {percent(best_s.mape)} ({best}) to {percent(worst_s.mape)} ({worst}), "
        f"{percent(float(np.median([s.mape for _, s in gpus])))} in the median; intervals cover under 80 % on "
        f"{uncovered}."
    )
    return (
        f"## Without metrics: static figures alone\n\n`{path.name}` (lambdal/deeplearning-benchmark without a "
        "licence, for evaluation only; ryujaehun/pytorch-gpu-benchmark, ddps-lab/profet, stanford-futuredata/gavel, "
        f"MIT; ml-energy/zeus, Apache-2.0): {len(timings)} timings of jobs on {len({t.gpu.name for t in timings})} "
        "GPUs, each predicted from every other GPU the job ran on. Nothing is fitted to it, but which peak rates count "
        "was chosen with it in view. Rows that are not `main` were set aside by its makers.\n\n"
        + table(
            (
                "rows",
                "aim",
                "predictions",
                "mean error",
                "median",
                "90 % quantile",
                "coverage of 90 %",
                "mean full width",
                "mean error with peak FP32 rates",
            ),
            rows,
        )
        + "\nBy dataset, `main`:\n\n"
        + table(("dataset", "predictions", "mean error", "median", "coverage of 90 %"), datasets)
        + f"\n{by_gpu}\n"
    )


def _cells(found: LatencyEvaluation) -> tuple[object, ...]:
    s = found.overall
    return (
        s.pairs, percent(s.mape), percent(s.median_ape), percent(s.p90_ape), percent(s.coverage), percent(s.width, 0),
        percent(_peak_rates(found)),
    )  # fmt: skip


def _peak_rates(found: LatencyEvaluation) -> float:
    """Mean error of sqrt(FP32 ratio * bandwidth ratio), from the same measurements.

    The sources' times are not among the errors; by the prediction they follow from the ratio that it used.
    """
    specs = {spec.name: spec for spec in load_gpus().specs}
    peak = {name: math.sqrt(s.fp32_tflops * s.memory_bandwidth_bytes_per_second) for name, s in specs.items()}
    errors = found.errors
    predicted = np.array(
        [s * peak[a] / peak[b] for s, a, b in zip(errors.source_s, errors.source_gpu, errors.target_gpu, strict=True)]
    )
    return float(np.abs(predicted / errors.measured_s - 1).mean())
