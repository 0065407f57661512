"""From what the user names (a trace, a row of a runs table) to the measurement that a prediction starts from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from gpusonde.cli.errors import CommandError
from gpusonde.predictor.crossgpu import Precision, SourceMeasurement, run_distributions
from gpusonde.telemetry import Unit, metric

if TYPE_CHECKING:
    from gpusonde.catalog import GpuCatalog
    from gpusonde.epoch_detect import EpochDetection
    from gpusonde.predictor.crossgpu import RunsTable
    from gpusonde.telemetry import Trace

# The 95 % interval of a normal distribution is so many standard errors wide; a collector computes the same.
_STANDARD_ERRORS_PER_INTERVAL = 2 * 1.96
# A ratio above this is work; the same threshold opens a run at the collector.
_ACTIVE = 0.05


class NoEpochsError(CommandError):
    """A trace without epochs, and no epoch latency from the user."""


@dataclass(frozen=True)
class Source:
    """A measurement and what to say about it.

    Attributes:
        measurement: What a model needs.
        note: What an ambiguous GPU name was taken for; empty otherwise.
        measured_s: Target GPU -> epoch latency measured there, where the user's table knows it.
    """

    measurement: SourceMeasurement
    note: str = ""
    measured_s: Mapping[str, float] = field(default_factory=dict)


def from_trace(
    trace: Trace, gpu_model: str | None, epoch_s: float | None, gpus: GpuCatalog, precision: str = "fp32"
) -> Source:
    """Measure a trace: its metrics over the whole run, and its epoch latency, detected unless given.

    Args:
        trace: The ticks.
        gpu_model: GPU it was recorded on; the trace's own if None.
        epoch_s: Seconds per epoch as the user knows it, or None to detect it.
        gpus: Catalogue to look the GPU up in.
        precision: Of the job's matrix products: ``fp32``, ``mixed`` or ``fp64``.

    Raises:
        CommandError: Nobody says which GPU the trace was recorded on.
        NoEpochsError: No epochs were found.
    """
    from gpusonde.epoch_detect import detect

    name = gpu_model or trace.gpu_model
    if not name:
        raise CommandError("the trace does not say which GPU it was recorded on; name it: --gpu-model NAME")
    resolution = gpus.resolve(name)
    metrics = run_distributions(active_part(trace))
    if epoch_s is not None:
        known = SourceMeasurement(resolution.spec, epoch_s, metrics, precision=Precision(precision))
        return Source(known, resolution.note)
    detection = detect(trace)
    if detection.verdict != "epochs":
        raise NoEpochsError(
            f"no epochs found in the trace ({detection.reason}); give their duration yourself: --epoch-s SECONDS"
        )
    measurement = SourceMeasurement(
        gpu=resolution.spec,
        epoch_latency_s=detection.period_s,
        metrics=metrics,
        epoch_latency_relative_error=relative_error(detection),
        epoch_count=len(detection.epoch_starts_s),
        precision=Precision(precision),
    )
    return Source(measurement, resolution.note)


def from_latency(gpu_model: str, epoch_s: float, gpus: GpuCatalog, precision: str) -> Source:
    """Take the user's word for GPU and epoch latency; nothing dynamic is known.

    Raises:
        UnknownGpuError: The catalogue does not hold the GPU.
    """
    resolution = gpus.resolve(gpu_model)
    return Source(SourceMeasurement(resolution.spec, epoch_s, precision=Precision(precision)), resolution.note)


def from_runs_table(table: RunsTable, row: int) -> Source:
    """Take one row of a runs table; other rows of the same workload say what was measured elsewhere.

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
    return Source(run.measurement(), measured_s={gpu: sum(values) / len(values) for gpu, values in measured.items()})


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
