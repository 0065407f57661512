"""Timings: tables of how long jobs took on many GPUs, without any metric. What the static level is scored on."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gpusonde.catalog import GpuCatalog, GpuSpec, Precision, load_gpus
from gpusonde.errors import TableError, TooFewRunsError, UnknownGpuError
from gpusonde.predictor.crossgpu.evaluation.scores import LatencyEvaluation, PairErrors
from gpusonde.predictor.crossgpu.measurement import SourceMeasurement
from gpusonde.predictor.crossgpu.model import LatencyModel
from gpusonde.predictor.tables import Row, read_table

COLUMNS = ("pair_key", "dataset", "gpu", "precision", "t_rel", "main")

# What the sources call their precisions; a question mark is theirs. Where they say FP32, their framework may have used
# TF32 or not: nobody says.
_PRECISIONS: dict[str, Precision | None] = {
    "fp32": None,
    "fp32?": None,
    "amp": Precision.MIXED,
    **{precision.value: precision for precision in Precision if precision is not Precision.FP32},
}


@dataclass(frozen=True)
class Timing:
    """One job on one GPU.

    Attributes:
        job: Timings with the same one differ only in the GPU.
        dataset: Where it was published.
        gpu: The GPU.
        precision: Of its matrix products; None where nobody says whether FP32 was TF32.
        seconds: Time of a fixed amount of work, in any unit that is the same for the whole job.
        main: Whether the table's makers trust it.
    """

    job: str
    dataset: str
    gpu: GpuSpec
    precision: Precision | None
    seconds: float
    main: bool


def is_timings_table(path: str | Path) -> bool:
    """Tell whether a file's heading is that of a table of timings.

    Raises:
        OSError: The file cannot be read.
    """
    with Path(path).open(encoding="utf-8-sig", errors="replace") as file:
        heading = file.readline(1 << 16).strip().split(",")
    return set(COLUMNS) <= set(heading)


def read_timings(path: str | Path, *, gpus: GpuCatalog | None = None) -> tuple[Timing, ...]:
    """Read a table of timings from CSV; columns other than ``COLUMNS`` are not looked at.

    Rows without a time, and rows that do not say of which job, are passed over: nothing can be compared with them.

    Args:
        path: The file.
        gpus: Catalogue to look the GPUs up in; the one that is shipped when left out.

    Raises:
        TableError: The file is no such table; says which line and field, and what to do.
        OSError: The file cannot be read.
    """
    gpus = gpus or load_gpus()
    known: dict[str, GpuSpec] = {}
    table = read_table(path, required=COLUMNS)
    timings = tuple(_read_timing(row, gpus, known) for row in table.rows if row.text("t_rel") and row.text("pair_key"))
    if not timings:
        raise TableError("the table has a heading but no timings", path=table.path)
    return timings


def _read_timing(row: Row, gpus: GpuCatalog, known: dict[str, GpuSpec]) -> Timing:
    name = row.text("gpu")
    if name not in known:
        try:
            known[name] = gpus.resolve(name).spec
        except UnknownGpuError as error:
            raise row.error(str(error), "gpu") from error
    return Timing(
        job=row.text("pair_key"),
        dataset=row.text("dataset"),
        gpu=known[name],
        precision=row.choice("precision", _PRECISIONS),
        seconds=row.number("t_rel", above=0),
        main=row.choice("main", {"True": True, "False": False}),
    )


def evaluate_timings(timings: Sequence[Timing], model: LatencyModel, *, only_main: bool) -> LatencyEvaluation:
    """Score a model's static level: every job's time on every GPU, predicted from its time on every other.

    Nothing is fitted to the timings, so every GPU is one left out. Repeated timings of a job on a GPU count as their
    median.

    Args:
        timings: The timings.
        model: A fitted model, asked like by anybody.
        only_main: Leave out what the table's makers do not trust.

    Returns:
        The scores; the workloads in it are the datasets.

    Raises:
        TooFewRunsError: No job ran on two GPUs.
    """
    jobs: dict[str, dict[str, list[Timing]]] = defaultdict(lambda: defaultdict(list))
    for timing in timings:
        if timing.main or not only_main:
            jobs[timing.job][timing.gpu.name].append(timing)
    parts = []
    for by_gpu in jobs.values():
        ran = [_make_median(repeats) for repeats in by_gpu.values()]
        for source in ran if len(ran) > 1 else ():
            parts.append(_measure_errors(model, source, [other for other in ran if other is not source]))
    if not parts:
        raise TooFewRunsError("no job of the table ran on two GPUs, so nothing can be predicted")
    return LatencyEvaluation.from_parts([(0, PairErrors.join(parts))])


def _make_median(repeats: Sequence[Timing]) -> Timing:
    # In the logarithm, like the errors.
    return replace(repeats[0], seconds=math.exp(float(np.median([math.log(one.seconds) for one in repeats]))))


def _measure_errors(model: LatencyModel, source: Timing, others: Sequence[Timing]) -> PairErrors:
    measurement = SourceMeasurement(source.gpu, source.seconds, precision=source.precision)
    predictions = model.predict(measurement, [other.gpu for other in others])
    return PairErrors(
        source_gpu=np.array([source.gpu.name] * len(others)),
        target_gpu=np.array([other.gpu.name for other in others]),
        workload=np.array([source.dataset] * len(others)),
        source_s=np.full(len(others), source.seconds),
        measured_s=np.array([other.seconds for other in others]),
        predicted_s=np.array([p.epoch_latency_s for p in predictions]),
        low_s=np.array([p.epoch_latency_low_s for p in predictions]),
        high_s=np.array([p.epoch_latency_high_s for p in predictions]),
        extrapolated=np.array([p.extrapolated for p in predictions]),
    )
