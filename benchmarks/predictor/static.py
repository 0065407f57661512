"""What is said without any metric, or with utilisation alone, on timings of the same jobs on many GPUs, or several."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from text import percent, table

from gpusonde.catalog import Precision, load_gpus
from gpusonde.predictor.crossgpu import LatencyModel, LatencyPrediction, MetricDistribution, SourceMeasurement
from gpusonde.predictor.crossgpu.evaluation import LatencyEvaluation, evaluate_timings, read_timings
from gpusonde.simulator.parallel import ParallelPredictor, Placement

# Of the hosts that gavel's jobs were spread over.
_SLOW_NETWORK = 10e9 / 8
_FEW_JOBS = 3


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


def utilisation_section(path: Path) -> str:
    """Scores where utilisation is the only metric, beside those of the same rows without it."""
    frame = pd.read_csv(path, low_memory=False)
    frame = frame[frame["main"].astype(str).eq("True") & frame["util_gpu_mean"].notna()]
    gpus, model = load_gpus(), LatencyModel.shipped()
    specs = {name: gpus.resolve(name).spec for name in frame["gpu"].unique()}
    rows = []
    for _, job in frame.groupby("pair_key"):
        ran = job.groupby("gpu", as_index=False)[["t_rel", "util_gpu_mean"]].median()
        precision = Precision.MIXED if job["precision"].iloc[0] in ("amp", "fp16") else None
        for place, (name, seconds, percent_busy) in enumerate(ran.itertuples(index=False)):
            others = ran.drop(index=place)
            busy = min(percent_busy / 100, 1.0)
            known = SourceMeasurement(specs[name], seconds, precision=precision)
            metrics = {"gpu_utilization": MetricDistribution.from_values([busy])}
            targets = [specs[other] for other in others["gpu"]]
            answers = zip(
                model.predict(known, targets), model.predict(replace(known, metrics=metrics), targets), strict=True
            )
            rows += [
                (busy, *_score(without, true), *_score(with_it, true))
                for (without, with_it), true in zip(answers, others["t_rel"], strict=True)
            ]
    found = np.array(rows)
    groups = (("all", found[:, 0] >= 0), ("60 % or more", found[:, 0] >= 0.6), ("less", found[:, 0] < 0.6))
    return "\nWith utilisation as the only metric, and the same rows without it:\n\n" + table(
        ("utilisation of the source", "predictions", "known", "mean error", "median", "coverage of 90 %"),
        [
            (name, int(rows_of.sum()), known, *_summary(found[rows_of, first : first + 2]))
            for name, rows_of in groups
            for known, first in (("nothing", 1), ("utilisation", 3))
        ],
    )


def _score(answer: LatencyPrediction, true_s: float) -> tuple[float, bool]:
    return abs(answer.epoch_latency_s / true_s - 1), answer.epoch_latency_low_s <= true_s <= answer.epoch_latency_high_s


def _summary(scores: np.ndarray) -> Sequence[str]:
    errors, inside = scores.T
    return percent(float(errors.mean())), percent(float(np.median(errors))), percent(float(inside.mean()))


def several_gpus_section(path: Path) -> str:
    """Scores of jobs on several GPUs, as one GPU would be answered and with the exchange of gradients."""
    frame = pd.read_csv(path, low_memory=False)
    frame = frame[frame["main"].astype(str).eq("True") & (frame["n_gpus"] > 1) & (frame["t_rel"] > 0)]
    gpus, model, several = load_gpus(), LatencyModel.shipped(), ParallelPredictor()
    specs = {name: gpus.resolve(name).spec for name in frame["gpu"].unique()}
    precisions = {"amp": Precision.MIXED, "fp16": Precision.MIXED, "fp64": Precision.FP64}
    rows = []
    for _, job in frame.groupby("pair_key"):
        ran = job.groupby("gpu", as_index=False).agg({"t_rel": _log_median, "batch_per_gpu": "median"})
        if len(ran) < 2:
            continue
        first = job.iloc[0]
        count, between = int(first["n_gpus"]), str(first["interconnect"])
        placed = [
            Placement(
                specs[name], count, count if between.startswith("unconsolidated") else 1,
                "nvlink" if between.startswith("nvlink") and count == 2 else "", _SLOW_NETWORK,
            )
            for name in ran["gpu"]
        ]  # fmt: skip
        # What a GPU cannot have as a batch (half a sample, a million interactions) is not told.
        batches = ran["batch_per_gpu"].where(ran["batch_per_gpu"].between(1, 2**20), 0.0)
        for source, seconds in enumerate(ran["t_rel"]):
            others = [place for place in range(len(ran)) if place != source]
            known = SourceMeasurement(placed[source].gpu, seconds, precision=precisions.get(str(first["precision"])))
            asked = [placed[place] for place in others]
            told = [replace(placed[place], batch_per_gpu=batches[place]) for place in others]
            here = replace(placed[source], batch_per_gpu=batches[source])
            answers = (
                model.predict(known, [each.gpu for each in asked]),
                several.predict(model, known, placed[source], asked),
                several.predict(model, known, here, told),
            )
            for place, *found in zip(others, *answers, strict=True):
                true_s = ran["t_rel"][place]
                rows.append((
                    first["dataset"], count, *(score for each in found for score in _score(each, true_s)),
                    (placed[source].gpu.name, placed[place].gpu.name, first["precision"]),
                    found[-1].epoch_latency_s / true_s,
                ))  # fmt: skip
    found = pd.DataFrame(rows)
    found[9] = found.groupby([0, 1, 8])[9].transform(_errors_by_others)
    cells = []
    for count, dataset in [
        *((each, "all") for each in (2, 3, 4, 8, "2 to 8")),
        *((each, name) for name in ("lambda", "gavel", "ryujaehun") for each in (4, 8)),
    ]:
        of = found[((found[1] == count) | (count == "2 to 8")) & ((found[0] == dataset) | (dataset == "all"))]
        if len(of):
            scores = (_summary(of[[column, column + 1]].to_numpy(dtype=float)) for column in (2, 4, 6))
            cells.append((
                count, dataset, len(of), *(f"{mean} ({inside})" for mean, _, inside in scores),
                percent(float(of[9].mean())),
            ))  # fmt: skip
    return (
        "\nJobs on several GPUs, asked for as many of the target: as one GPU is answered, with the exchange of "
        "gradients (`simulator/parallel.py`), and with the batch per GPU told for both; mean error, in brackets the "
        "coverage of 90 % intervals. The exchange was fitted to gavel and ryujaehun (DataParallel, whose single "
        "process binds it), all of lambda was kept back; how wide intervals are was chosen on all of them. *Pair "
        "timed*: the best that is to be had without a word on the job, the answer times a factor that the other jobs "
        "of the dataset on the same two GPUs give, as many and in the same precision (three or more).\n\n"
        + table(
            ("GPUs", "dataset", "predictions", "as one GPU", "with the exchange", "and the batch told", "pair timed"),
            cells,
        )
    )


def _errors_by_others(ratios: pd.Series) -> pd.Series:
    """Relative errors left by the factor that is best for all others, from predicted / true; NaN for few others."""
    errors = np.full(len(ratios), math.nan)
    values = ratios.to_numpy()
    if len(values) > _FEW_JOBS:
        for place, ratio in enumerate(values):
            others = np.sort(np.delete(values, place))[::-1]
            # Of sum |factor * ratio - 1| the median of 1 / ratio, weighted by the ratios, is the least.
            weights = others.cumsum()
            errors[place] = abs(ratio / others[np.searchsorted(weights, weights[-1] / 2)] - 1)
    return pd.Series(errors, index=ratios.index)


def _log_median(seconds: pd.Series) -> float:
    return math.exp(float(np.median(np.log(seconds))))


def precision_section(path: Path) -> str:
    """Scores of FP32 transformers, TF32 off in matrix products, as they are asked for."""
    timings, model = read_timings(path), LatencyModel.shipped()
    rows = []
    for said in (Precision.FP32, Precision.TF32):
        found = evaluate_timings([replace(each, precision=said) for each in timings], model, only_main=True)
        rows.append((said.value, *_cells(found)[:5]))
    return (
        f"\nTransformers in FP32 with TF32 off (`{path.name}`, sitar-lab/NeuSight, MIT), asked for as what they "
        "are and as what they are not:\n\n"
        + table(("precision", "predictions", "mean error", "median", "90 % quantile", "coverage of 90 %"), rows)
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
