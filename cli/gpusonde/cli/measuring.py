"""Predictions across GPUs as commands ask for and show them.

``SourceRun`` is what a prediction starts from, made of what the user names: a trace, an epoch latency, a row of a runs
table. ``Predictions`` is what comes of it, in one shape whether a local model or a collector answered.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, TypedDict

import numpy as np

from gpusonde import formatting
from gpusonde.catalog import Precision
from gpusonde.cli.exchange_rates import ExchangeRates, ExchangeRatesPayload
from gpusonde.cli.output import JsonKey, Screen
from gpusonde.cli.runs_view import noun_of
from gpusonde.errors import CommandError, UnknownGpuError
from gpusonde.predictor.crossgpu import LatencyPrediction, SourceMeasurement, summarise_metrics
from gpusonde.simulator.parallel import Placement
from gpusonde.telemetry import Unit, metric

if TYPE_CHECKING:
    from gpusonde.catalog import GpuCatalog, GpuSpec
    from gpusonde.collector.client import PredictionSet
    from gpusonde.epoch_detect import EpochDetection
    from gpusonde.predictor.crossgpu import RunsTable
    from gpusonde.telemetry import Trace


# Words of methods.
_METHODS = {
    "prior": "from the figures of both GPUs' data sheets",
    "residual": "corrected by what runs measured on several GPUs have taught",
    "static": "without any metric of the run",
}
# Remarks below a table of predictions, and names in one.
_MOST_NOTES = 6
_MOST_NAMES = 3


class PredictionPayload(TypedDict):
    """The epoch latency on one GPU."""

    gpu_model: str
    gpu_count: Annotated[int, JsonKey("GPUs of the job there")]
    host_count: Annotated[int, JsonKey("hosts that they are spread over")]
    epoch_latency_s: Annotated[float, JsonKey("null when it cannot be predicted")]
    epoch_latency_low_s: Annotated[float, JsonKey("interval")]
    epoch_latency_high_s: Annotated[float, JsonKey("interval")]
    interval_coverage: Annotated[float, JsonKey("share of such intervals that should hold the truth")]
    status: Annotated[str, JsonKey("`ok`, `extrapolated`, `insufficient_epochs` or `unsupported_gpu`")]
    extrapolated: Annotated[bool, JsonKey("outside of what the model was fitted on")]
    method: Annotated[str, JsonKey("how the number came about")]
    reason: Annotated[str | None, JsonKey("why the status is not `ok`")]
    communication_ratio: Annotated[float, JsonKey("share of the epoch spent waiting for gradients")]
    fits: Annotated[str, JsonKey("into this GPU's memory: `yes`, `likely`, `unknown` or `no`")]
    link: Annotated[str | None, JsonKey("of a host's GPUs: `nvlink` or `pcie`")]
    network_bytes_per_second: Annotated[float | None, JsonKey("of a host, told or assumed")]
    measured_epoch_latency_s: Annotated[float | None, JsonKey("in the runs table, for the same workload")]
    relative_error: Annotated[float | None, JsonKey("predicted / measured - 1")]


class PredictPayload(TypedDict):
    """What ``gpusonde predict`` prints."""

    source_gpu_model: str
    source_gpu_count: Annotated[int, JsonKey("GPUs of the job")]
    source_host_count: Annotated[int, JsonKey("hosts that they are spread over")]
    source_epoch_latency_s: float
    model_version: str
    notes: Annotated[list[str], JsonKey("also what was left out of the trace, and models that could not be used")]
    predictions: list[PredictionPayload]
    exchange_rates: Annotated[ExchangeRatesPayload | None, JsonKey("null without `--matrix`")]


@dataclass(frozen=True)
class Predictions:
    """What a run would take on other GPUs.

    Attributes:
        source_gpu: Canonical name of the GPU the run was measured on.
        epoch_latency_s: Seconds per epoch there.
        rows: One prediction per target.
        model_version: Version of the model that answered.
        notes: What ambiguous names were taken for.
        measured_s: Target GPU -> epoch latency measured there, where somebody knows it.
        source_gpu_count: GPUs of the job.
        source_host_count: Hosts that they are spread over.
        noun: What takes ``epoch_latency_s``, as far as that is known.
    """

    source_gpu: str
    epoch_latency_s: float
    rows: Sequence[LatencyPrediction]
    model_version: str
    notes: Sequence[str] = ()
    measured_s: Mapping[str, float] = field(default_factory=dict)
    source_gpu_count: int = 1
    source_host_count: int = 1
    noun: str = "epoch"

    def payload(self) -> PredictPayload:
        """The predictions as they appear in JSON."""
        return {
            "source_gpu_model": self.source_gpu,
            "source_gpu_count": self.source_gpu_count,
            "source_host_count": self.source_host_count,
            "source_epoch_latency_s": self.epoch_latency_s,
            "model_version": self.model_version,
            "notes": list(self.notes),
            "predictions": [self._row(row) for row in self.rows],
            "exchange_rates": None,
        }

    def exchange_rates(self) -> ExchangeRates:
        """What the GPUs are worth to the run."""
        return ExchangeRates.from_predictions(self.source_gpu, self.epoch_latency_s, self.source_gpu_count, self.rows)

    def _row(self, row: LatencyPrediction) -> PredictionPayload:
        measured = self._measured(row)
        return {
            "gpu_model": row.target_gpu,
            "gpu_count": row.gpu_count,
            "host_count": row.host_count,
            "epoch_latency_s": row.epoch_latency_s,
            "epoch_latency_low_s": row.epoch_latency_low_s,
            "epoch_latency_high_s": row.epoch_latency_high_s,
            "interval_coverage": row.interval_coverage,
            "status": row.status,
            "extrapolated": row.extrapolated,
            "method": row.method,
            "reason": row.reason or None,
            "communication_ratio": row.communication_ratio,
            "fits": row.fits,
            "link": row.link or None,
            "network_bytes_per_second": row.network_bytes_per_second or None,
            "measured_epoch_latency_s": measured,
            "relative_error": None if measured is None else row.epoch_latency_s / measured - 1.0,
        }

    def render(self, screen: Screen) -> None:
        """Print the predictions, fastest first."""
        for note in self.notes:
            screen.note(f"note: {note}")
        here = _name_gpus(self.source_gpu, self.source_gpu_count, self.source_host_count)
        screen.heading(f"one {self.noun} takes {formatting.seconds(self.epoch_latency_s)} on {here}")
        coverage = self.rows[0].interval_coverage if self.rows else math.nan
        measured = ("measured (s)", "error") if self.measured_s else ()
        latency = (f"{self.noun} (s)", f"{formatting.percent(coverage)} interval (s)")
        screen.table(
            ("GPU", *latency, *measured, "extrapolated", "method"),
            [
                (
                    _name_row(row),
                    formatting.number(row.epoch_latency_s),
                    formatting.interval(row.epoch_latency_low_s, row.epoch_latency_high_s),
                    *(self._measured_cells(row) if measured else ()),
                    formatting.yes_no(row.extrapolated),
                    row.method,
                )
                for row in fastest_first(self.rows)
            ],
            numeric=(*latency, *measured),
            optional=("method", "extrapolated"),
        )
        self._explain(screen)
        words = [word for word in _METHODS if any(word in row.method for row in self.rows)]
        if words:
            screen.line(f"method: {'; '.join(f'{word}, {_METHODS[word]}' for word in words)}")
        screen.line(f"model {self.model_version}")

    def draw(self, path: Path) -> None:
        """Write the predictions as a picture, fastest first."""
        from gpusonde.cli.picture import LatencyMark, draw_latencies

        rows = [row for row in fastest_first(self.rows) if math.isfinite(row.epoch_latency_s)]
        marks = [
            LatencyMark(
                _name_row(row),
                row.epoch_latency_s,
                row.epoch_latency_low_s,
                row.epoch_latency_high_s,
                "measured" if row.method == "measured" else "extrapolated" if row.extrapolated else "predicted",
            )
            for row in rows
        ]
        here = _name_gpus(self.source_gpu, self.source_gpu_count, self.source_host_count)
        coverage = formatting.percent(rows[0].interval_coverage if rows else math.nan)
        draw_latencies(
            path,
            marks,
            f"one {self.noun} takes {formatting.seconds(self.epoch_latency_s)} on {here}",
            f"{coverage} intervals · model {self.model_version}",
            f"seconds per {self.noun}",
        )

    def _explain(self, screen: Screen) -> None:
        """Print why answers are what they are: all of why there is none, then what holds for most."""
        told: dict[str, list[str]] = {}
        for row in fastest_first(self.rows):
            name = _name_row(row)
            if math.isnan(row.epoch_latency_s):
                screen.line(f"{name}: {row.reason}")
                continue
            for reason in filter(None, row.reason.split("; ")):
                of_this = reason == f"the model was not fitted on {row.target_gpu}"
                told.setdefault("the model was not fitted on this GPU" if of_this else reason, []).append(name)
        ranked = sorted(told.items(), key=lambda item: -len(item[1]))
        for reason, gpus in ranked[:_MOST_NOTES]:
            which = f"{len(gpus)} of {len(self.rows)} answers" if len(gpus) > _MOST_NAMES else ", ".join(gpus)
            screen.line(f"{which}: {reason}" if len(gpus) < len(self.rows) else reason)
        if ranked[_MOST_NOTES:]:
            screen.line(f"{len(ranked) - _MOST_NOTES} more of this kind: ask for fewer GPUs (--targets) or --json")

    def _measured(self, row: LatencyPrediction) -> float | None:
        """Seconds that somebody measured on as many GPUs, None where nobody did."""
        alike = (row.gpu_count, row.host_count) == (self.source_gpu_count, self.source_host_count)
        return self.measured_s.get(row.target_gpu) if alike else None

    def _measured_cells(self, row: LatencyPrediction) -> tuple[str, str]:
        measured = self._measured(row)
        if measured is None:
            return formatting.ABSENT, formatting.ABSENT
        return formatting.number(measured), formatting.percent(row.epoch_latency_s / measured - 1, sign="+")


def _name_row(row: LatencyPrediction) -> str:
    """Name a target as ``--targets`` takes it, with the links that the answer is for."""
    link = f"@{row.link}" if row.link else ""
    network = f"@{8 * row.network_bytes_per_second / 1e9:.4g}gbit" if row.network_bytes_per_second else ""
    return _name_gpus(row.target_gpu, row.gpu_count, row.host_count) + link + network


def _name_gpus(gpu: str, count: int, hosts: int) -> str:
    if count == 1:
        return gpu
    if count % hosts:
        return f"{count}x{gpu} on {hosts} hosts"
    return f"{hosts}x{count // hosts}x{gpu}" if hosts > 1 else f"{count}x{gpu}"


def from_answer(
    answer: PredictionSet,
    notes: Sequence[str] = (),
    measured_s: Mapping[str, float] = MappingProxyType({}),
    noun: str = "cycle",
) -> Predictions:
    """What a collector answered, in the same shape."""
    rows = [
        LatencyPrediction(
            target_gpu=row.gpu_model,
            epoch_latency_s=row.epoch_latency_s,
            epoch_latency_low_s=row.epoch_latency_low_s,
            epoch_latency_high_s=row.epoch_latency_high_s,
            interval_coverage=row.interval_coverage,
            status=row.status,
            extrapolated=row.extrapolated,
            method=row.method,
            reason=row.reason,
            model_version=answer.model_version,
            gpu_count=row.gpu_count,
            host_count=row.host_count,
            communication_ratio=row.communication_ratio,
            fits=row.fits,
            link=row.link,
            network_bytes_per_second=row.network_bytes_per_second,
        )
        for row in answer.predictions
    ]
    return Predictions(
        source_gpu=answer.source_gpu_model,
        epoch_latency_s=answer.source_epoch_latency_s,
        rows=rows,
        model_version=answer.model_version,
        notes=notes,
        measured_s=measured_s,
        source_gpu_count=answer.source_gpu_count,
        source_host_count=answer.source_host_count,
        noun=noun,
    )


def fastest_first(rows: Sequence[LatencyPrediction]) -> list[LatencyPrediction]:
    """Sort by latency; those that could not be predicted last."""
    return sorted(rows, key=lambda row: (math.isnan(row.epoch_latency_s), row.epoch_latency_s, row.target_gpu))


# The 95 % interval of a normal distribution is so many standard errors wide; a collector computes the same.
_STANDARD_ERRORS_PER_INTERVAL = 2 * 1.96
# A ratio above this is work; the same threshold opens a run at the collector.
_ACTIVE = 0.05


@dataclass(frozen=True)
class SourceRun:
    """A measurement and what to say about it.

    Attributes:
        measurement: What a model needs.
        notes: What an ambiguous GPU name was taken for, and what was left out of the traces.
        measured_s: Target GPU -> epoch latency measured there, where the user's table knows it.
        here: GPUs that the job had, where the user says so.
        detection: How its epochs were found; None where the user says how long they take.
    """

    measurement: SourceMeasurement
    notes: Sequence[str] = ()
    measured_s: Mapping[str, float] = field(default_factory=dict)
    here: Placement | None = None
    detection: EpochDetection | None = None

    @property
    def noun(self) -> str:
        """What takes the epoch latency, as far as that is known."""
        return "epoch" if self.detection is None else noun_of(self.detection.role)


def from_traces(
    job: Sequence[Trace],
    gpu_model: str | None,
    epoch_s: float | None,
    gpus: GpuCatalog,
    precision: str | None = None,
    detect: Callable[[], EpochDetection] | None = None,
) -> SourceRun:
    """Measure a job: the metrics of one of its GPUs over the whole run, and its epoch latency, detected unless given.

    Args:
        job: The ticks of each GPU.
        gpu_model: GPU it was recorded on, with the job's number of them (``8xV100``); the trace's own if None.
        epoch_s: Seconds per epoch as the user knows it, or None to detect it.
        gpus: Catalogue to look the GPU up in.
        precision: Of the job's products, a value of ``Precision``; None where the user does not say.
        detect: Finds the epochs; with the shipped detector if None.

    Raises:
        CommandError: Nobody says which GPU the trace was recorded on.
        CommandError: No epochs were found.
    """
    from gpusonde.epoch_detect import detect as detect_epochs

    name = gpu_model or job[0].gpu_model
    if not name:
        raise CommandError("the trace does not say which GPU it was recorded on; name it: --gpu-model NAME")
    here, note = Placement.parse(name, gpus)
    notes = [*([note] if note else []), *_contradicted(job[0].gpu_model, here.gpu, gpus)]
    if not here.counted:
        here = replace(here, gpu_count=len(job))
    metrics = summarise_metrics(active_part(job[0]))
    if epoch_s is not None:
        known = SourceMeasurement(here.gpu, epoch_s, metrics, precision=_precision(precision))
        return SourceRun(known, notes, here=here)
    detection = detect_epochs(list(job)) if detect is None else detect()
    if detection.verdict != "epochs":
        raise CommandError(
            f"no epochs found in the trace ({detection.reason}); give their duration yourself: --epoch-s SECONDS"
        )
    measurement = SourceMeasurement(
        gpu=here.gpu,
        epoch_latency_s=detection.period_s,
        metrics=metrics,
        epoch_latency_relative_error=relative_error(detection),
        epoch_count=len(detection.epoch_starts_s),
        precision=_precision(precision),
    )
    return SourceRun(measurement, notes, here=here, detection=detection)


def _contradicted(recorded: str, told: GpuSpec, gpus: GpuCatalog) -> list[str]:
    """Say that a trace names another GPU than the user; what the catalogue does not know contradicts nobody."""
    with contextlib.suppress(UnknownGpuError):
        if recorded and told.name not in gpus.resolve(recorded, with_slices=True).candidates:
            name = formatting.printable(recorded)
            return [f"the trace says that it was recorded on {name}; {told.name} is taken, as told"]
    return []


def from_latency(gpu_model: str, epoch_s: float, gpus: GpuCatalog, precision: str | None) -> SourceRun:
    """Take the user's word for GPU and epoch latency; nothing dynamic is known.

    Raises:
        UnknownGpuError: The catalogue does not hold the GPU.
    """
    here, note = Placement.parse(gpu_model, gpus)
    measurement = SourceMeasurement(here.gpu, epoch_s, precision=_precision(precision))
    return SourceRun(measurement, [note] if note else [], here=here)


def _precision(name: str | None) -> Precision | None:
    return None if name is None else Precision(name)


def from_runs_table(table: RunsTable, row: int, precision: str | None = None) -> SourceRun:
    """Take one row of a runs table; other rows of the same workload say what was measured elsewhere.

    Args:
        table: The table, which has no precisions.
        row: From 0.
        precision: As of ``from_traces``.

    Raises:
        CommandError: There is no such row.
    """
    try:
        run = table.run(row)
    except IndexError as error:
        raise CommandError(f"--row: {error}") from error
    measured: dict[str, list[float]] = {}
    for other in table.counterparts(row):
        measured.setdefault(other.gpu.name, []).append(other.epoch_latency_s)
    return SourceRun(
        replace(run.measurement(), precision=_precision(precision)),
        measured_s={gpu: sum(values) / len(values) for gpu, values in measured.items()},
    )


def active_part(trace: Trace) -> Trace:
    """The trace from the first to the last tick on which the GPU worked: what a collector would call the run.

    A trace without any activity ratio is taken whole.
    """
    ratios = [v for name, v in trace.values.items() if metric(name).unit is Unit.RATIO]
    if not ratios:
        return trace
    active = np.flatnonzero((np.nan_to_num(np.array(ratios)) > _ACTIVE).any(axis=0))
    if not active.size:
        return trace
    first, last = trace.time_s[active[0]], trace.time_s[active[-1]]
    return trace.window(float(first), float(np.nextafter(last, np.inf)))


def relative_error(detection: EpochDetection) -> float:
    """Standard error of the detected period as a ratio of it, from the width of its 95 % interval."""
    width = detection.period_high_s - detection.period_low_s
    error = width / _STANDARD_ERRORS_PER_INTERVAL / detection.period_s
    return error if math.isfinite(error) else 0.0
