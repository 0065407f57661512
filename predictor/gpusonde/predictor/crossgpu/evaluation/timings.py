"""Timings: tables of how long jobs took on many GPUs, without any metric. What the static level is scored on."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gpusonde.catalog import GpuCatalog, GpuSpec, UnknownGpuError, load_gpus
from gpusonde.predictor.crossgpu.evaluation.scores import Evaluation, PairErrors, UnsuitableTableError
from gpusonde.predictor.crossgpu.measurement import Precision, SourceMeasurement
from gpusonde.predictor.crossgpu.model import LatencyModel
from gpusonde.predictor.crossgpu.runs_table import RunsTableError, lines_of

COLUMNS = ("pair_key", "dataset", "gpu", "precision", "t_rel", "main")

_MAXIMUM_BYTES = 256 << 20
_MAXIMUM_ROWS = 200_000
# What the sources call their precisions; a question mark is theirs.
_PRECISIONS = {
    "fp32": Precision.FP32,
    "fp32?": Precision.FP32,
    "tf32": Precision.FP32,
    "amp": Precision.MIXED,
    "mixed": Precision.MIXED,
    "fp16": Precision.MIXED,
    "bf16": Precision.MIXED,
    "fp64": Precision.FP64,
}


@dataclass(frozen=True)
class Timing:
    """One job on one GPU.

    Attributes:
        job: Timings with the same one differ only in the GPU.
        dataset: Where it was published.
        gpu: The GPU.
        precision: Of its matrix products.
        seconds: Time of a fixed amount of work, in any unit that is the same for the whole job.
        main: Whether the table's makers trust it.
    """

    job: str
    dataset: str
    gpu: GpuSpec
    precision: Precision
    seconds: float
    main: bool


def is_timings_table(path: str | Path) -> bool:
    """Whether a file's heading is that of a table of timings.

    Raises:
        OSError: The file cannot be read.
    """
    with Path(path).open(encoding="utf-8-sig", errors="replace") as file:
        heading = file.readline(1 << 16).strip().split(",")
    return set(COLUMNS) <= set(heading)


def read_timings(path: str | Path, *, gpus: GpuCatalog | None = None) -> tuple[Timing, ...]:
    """Read a table of timings from CSV; columns other than ``COLUMNS`` are not looked at.

    Args:
        path: The file.
        gpus: Catalogue to look the GPUs up in; the one that is shipped when left out.

    Raises:
        RunsTableError: The file is no such table; says which line and field, and what to do.
        OSError: The file cannot be read.
    """
    path, gpus = Path(path), gpus or load_gpus()
    known: dict[str, GpuSpec] = {}
    timings = []
    try:
        reader = csv.DictReader(lines_of(path, _MAXIMUM_BYTES))
        for name in COLUMNS:
            if name not in (reader.fieldnames or ()):
                raise RunsTableError(path, 1, name, "the column is missing; every timing needs it")
        for line, row in enumerate(reader, start=2):
            if line > _MAXIMUM_ROWS:
                raise RunsTableError(path, 0, "", f"more than {_MAXIMUM_ROWS} rows; split it")
            if row["t_rel"] != "":
                timings.append(_timing(path, line, row, gpus, known))
    except (UnicodeDecodeError, csv.Error) as error:
        raise RunsTableError(path, 0, "", f"not a CSV text file ({error})") from error
    if not timings:
        raise RunsTableError(path, 0, "", "the table has a heading but no timings")
    return tuple(timings)


def _timing(
    path: Path, line: int, row: Mapping[str, str | None], gpus: GpuCatalog, known: dict[str, GpuSpec]
) -> Timing:
    text = {name: (row[name] or "").strip() for name in COLUMNS}
    try:
        seconds = float(text["t_rel"])
    except ValueError:
        raise RunsTableError(path, line, "t_rel", f"{text['t_rel']!r} is not a number") from None
    if not (math.isfinite(seconds) and seconds > 0):
        raise RunsTableError(path, line, "t_rel", f"{text['t_rel']!r} is no duration; it must be above zero")
    if text["precision"] not in _PRECISIONS:
        raise RunsTableError(path, line, "precision", f"{text['precision']!r} is unknown; use {', '.join(_PRECISIONS)}")
    if text["main"] not in ("True", "False"):
        raise RunsTableError(path, line, "main", f"{text['main']!r} is neither True nor False")
    if text["gpu"] not in known:
        try:
            known[text["gpu"]] = gpus.resolve(text["gpu"]).spec
        except UnknownGpuError as error:
            raise RunsTableError(path, line, "gpu", str(error)) from error
    return Timing(
        job=text["pair_key"],
        dataset=text["dataset"],
        gpu=known[text["gpu"]],
        precision=_PRECISIONS[text["precision"]],
        seconds=seconds,
        main=text["main"] == "True",
    )


def evaluate_timings(timings: Sequence[Timing], model: LatencyModel, *, only_main: bool) -> Evaluation:
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
        UnsuitableTableError: No job ran on two GPUs.
    """
    jobs: dict[str, dict[str, list[Timing]]] = defaultdict(lambda: defaultdict(list))
    for timing in timings:
        if timing.main or not only_main:
            jobs[timing.job][timing.gpu.name].append(timing)
    parts = []
    for by_gpu in jobs.values():
        ran = [_median(repeats) for repeats in by_gpu.values()]
        for source in ran if len(ran) > 1 else ():
            parts.append(_errors(model, source, [other for other in ran if other is not source]))
    if not parts:
        raise UnsuitableTableError("no job of the table ran on two GPUs, so nothing can be predicted")
    return Evaluation.of([(0, PairErrors.join(parts))])


def _median(repeats: Sequence[Timing]) -> Timing:
    # In the logarithm, like the errors.
    return replace(repeats[0], seconds=math.exp(float(np.median([math.log(one.seconds) for one in repeats]))))


def _errors(model: LatencyModel, source: Timing, others: Sequence[Timing]) -> PairErrors:
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
