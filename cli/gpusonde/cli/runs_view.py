"""Runs and epochs of a collector, as JSON and as tables.

The options that say how epochs are looked for, as ``detect`` and ``evaluate epochs`` take them.

What the epochs of a trace or of a run tell, as JSON and as text: table, trend, idle and stalls, end of the job.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from gpusonde.cli import formatting
from gpusonde.cli.output import Screen
from gpusonde.cli.parsing import OptionGroup, Parser

if TYPE_CHECKING:
    from gpusonde.collector.client import EpochInfo, RunEpochs, RunInfo
    from gpusonde.epoch_detect import EpochDetection
    from gpusonde.telemetry import Trace


def add_detection_options(parser: Parser) -> OptionGroup:
    """Add ``--metric`` and ``--mode`` and return their group, for what else belongs there."""
    group = parser.add_argument_group("detection")
    group.add_argument(
        "--metric", action="append", metavar="M", help="use this metric (repeatable; else those that tell most)"
    )
    group.add_argument(
        "--mode",
        choices=("default", "paper", "notebook"),
        default="default",
        help="our detector, the published method, or the one in its authors' notebook (default: default)",
    )
    return group


_SHOWN_METRICS = 4


@dataclass(frozen=True)
class EpochFigures:
    """One epoch; see ``gpusonde.epoch_detect.progress.EpochSummary``. Runs of a collector tell the last two as well."""

    start_s: float
    end_s: float
    seen_share: float
    energy_joules: float
    mean_metrics: Mapping[str, float]
    confidence: float = math.nan
    status: str = ""


@dataclass(frozen=True)
class Change:
    """A lasting change of the duration; ``epoch`` is the first after it, counted from 1 and with the first epoch."""

    epoch: int
    before_s: float
    after_s: float
    change: float


@dataclass(frozen=True)
class TrendFigures:
    """See ``gpusonde.epoch_detect.progress.Trend``."""

    changes: Sequence[Change]
    recent_s: float
    change_per_epoch: float
    change_per_epoch_low: float
    change_per_epoch_high: float


@dataclass(frozen=True)
class EstimateFigures:
    """See ``gpusonde.epoch_detect.progress.EndEstimate``."""

    epochs_done: int
    epochs_left: int
    end_s: float
    end_low_s: float
    end_high_s: float


@dataclass(frozen=True)
class Progress:
    """Everything that epochs tell; ``trend`` and ``estimate`` are None where there is nothing to say."""

    table: Sequence[EpochFigures]
    trend: TrendFigures | None
    idle_share: float
    stalled_share: float
    estimate: EstimateFigures | None


def progress_of(trace: Trace, detection: EpochDetection, total_epochs: int | None) -> Progress:
    """Work out what the epochs of a trace tell.

    Raises:
        gpusonde.epoch_detect.progress.TotalEpochsError: ``total_epochs`` does not fit what was found.
    """
    from gpusonde.epoch_detect.progress import duration_trend, epoch_table, estimate_end, time_shares

    starts, ends = detection.epoch_starts_s, detection.epoch_ends_s
    estimate = None
    if total_epochs is not None:
        end = estimate_end(starts, ends, total_epochs, float(trace.time_s[-1]))
        estimate = EstimateFigures(end.epochs_done, end.epochs_left, end.end_s, end.end_low_s, end.end_high_s)
    durations = (ends - starts)[1:]  # the first one compiles, fills caches, allocates
    trend = None
    if durations.size:
        found = duration_trend(durations)
        trend = TrendFigures(
            [Change(p.epoch + 2, p.before_s, p.after_s, p.change) for p in found.change_points],
            found.recent_s,
            found.change_per_epoch,
            found.change_per_epoch_low,
            found.change_per_epoch_high,
        )
    shares = time_shares(trace.time_s, trace.values, starts, ends)
    table = [
        EpochFigures(e.start_s, e.end_s, e.seen_share, e.energy_joules, e.mean_metrics)
        for e in epoch_table(trace.time_s, trace.values, starts, ends)
    ]
    return Progress(table, trend, shares.idle, shares.stalled, estimate)


def progress_of_run(run: RunInfo, found: RunEpochs) -> Progress:
    """Put what a collector answered into the same form; times count from the start of the run."""

    def since(unix_nano: int) -> float:
        return (unix_nano - run.start_unix_nano) / 1e9

    estimate = None
    if (end := found.estimate) is not None:
        times = (end.end_unix_nano, end.end_low_unix_nano, end.end_high_unix_nano)
        estimate = EstimateFigures(end.epochs_done, end.epochs_left, *map(since, times))
    trend = None
    if (asked := found.trend) is not None:
        trend = TrendFigures(
            [Change(c.epoch, c.before_s, c.after_s, c.change) for c in asked.changes],
            asked.recent_s,
            asked.change_per_epoch,
            asked.change_per_epoch_low,
            asked.change_per_epoch_high,
        )
    table = [
        EpochFigures(
            since(e.start_unix_nano),
            since(e.end_unix_nano),
            e.seen_share,
            e.energy_joules,
            e.mean_metrics,
            e.confidence,
            e.status,
        )
        for e in found.epochs
    ]
    return Progress(table, trend, found.idle_share, found.stalled_share, estimate)


def figures_payload(epoch: EpochFigures) -> dict[str, Any]:
    """Keys of one epoch's figures for ``--json``."""
    return {
        "seen_share": epoch.seen_share,
        "energy_joules": epoch.energy_joules,
        "metrics": [{"metric": name, "mean": mean} for name, mean in epoch.mean_metrics.items()],
    }


def table_payload(progress: Progress) -> list[dict[str, Any]]:
    """The table for ``--json``."""
    return [
        {"start_s": e.start_s, "end_s": e.end_s, "duration_s": e.end_s - e.start_s, **figures_payload(e)}
        for e in progress.table
    ]


def totals_payload(progress: Progress) -> dict[str, Any]:
    """What the epochs tell together, for ``--json``."""
    trend = progress.trend
    return {
        "trend": None
        if trend is None
        else {
            "recent_s": trend.recent_s,
            "change_per_epoch": trend.change_per_epoch,
            "change_per_epoch_low": trend.change_per_epoch_low,
            "change_per_epoch_high": trend.change_per_epoch_high,
            "change_points": [vars(change) for change in trend.changes],
        },
        "idle_share": progress.idle_share,
        "stalled_share": progress.stalled_share,
        "estimate": None if progress.estimate is None else vars(progress.estimate),
    }


def render_progress(screen: Screen, progress: Progress) -> None:
    """Print the table and what follows from it."""
    if not progress.table:
        return
    names = _shown_metrics(progress.table)
    means = [f"mean {name}" for name in names]
    tracked = any(epoch.status for epoch in progress.table)
    columns = ("epoch", "start (s)", "end (s)", "duration (s)", *(["confidence"] if tracked else []), "energy (kJ)")
    columns = (*columns, *means)
    screen.line()
    screen.table(
        (*columns, *(["status"] if tracked else [])),
        [
            (
                str(i + 1),
                f"{epoch.start_s:.2f}",
                f"{epoch.end_s:.2f}",
                f"{epoch.end_s - epoch.start_s:.2f}",
                *([formatting.probability(epoch.confidence)] if tracked else []),
                formatting.number(epoch.energy_joules / 1000),
                *(formatting.number(epoch.mean_metrics.get(name)) for name in names),
                *([epoch.status] if tracked else []),
            )
            for i, epoch in enumerate(progress.table)
        ],
        numeric=columns,
        optional=(*reversed(means), "confidence"),
    )
    if progress.trend is not None:
        _render_trend(screen, progress.trend)
    idle, stalled = progress.idle_share, progress.stalled_share
    screen.line(f"idle {formatting.percent(idle, 1)} of the time; lost in stalls {formatting.percent(stalled, 1)}")
    if (estimate := progress.estimate) is not None:
        range_ = formatting.interval(estimate.end_low_s, estimate.end_high_s)
        screen.line(
            f"{estimate.epochs_done} epochs done, {estimate.epochs_left} left: the job ends at "
            f"{formatting.seconds(estimate.end_s)} (90 % interval {range_} s)"
        )


def _shown_metrics(table: Sequence[EpochFigures]) -> list[str]:
    """The first few metrics that have a mean, in the catalogue's order, whatever the order in a file or a store."""
    from gpusonde.telemetry import METRICS

    known = next((epoch for epoch in table if epoch.mean_metrics), table[0])
    means = (known.mean_metrics.get(metric.name) for metric in METRICS)
    names = [
        metric.name for metric, mean in zip(METRICS, means, strict=True) if mean is not None and math.isfinite(mean)
    ]
    return names[:_SHOWN_METRICS]


def _render_trend(screen: Screen, trend: TrendFigures) -> None:
    for point in trend.changes:
        kind = "slower" if point.change > 0 else "faster"
        screen.line(
            f"from epoch {point.epoch} on {formatting.percent(abs(point.change))} {kind}: "
            f"{formatting.seconds(point.before_s)} -> {formatting.seconds(point.after_s)}"
        )
    if not trend.changes:
        screen.line(f"no lasting change of the duration; median {formatting.seconds(trend.recent_s)}")


def run_payload(run: RunInfo) -> dict[str, Any]:
    """A run as it appears in JSON."""
    return {
        "run_id": run.run_id,
        "agent_id": run.agent_id,
        "host_name": run.host_name or None,
        "gpu_uuid": run.gpu_uuid,
        "gpu_model": run.product_name or None,
        "framebuffer_bytes": run.framebuffer_bytes or None,
        "job_id": run.job_id or None,
        "scheduler": run.scheduler or None,
        "active": run.active,
        "replayed": run.replayed,
        "start_time": formatting.iso_time(run.start_unix_nano),
        "end_time": formatting.iso_time(run.end_unix_nano),
        "duration_s": (run.end_unix_nano - run.start_unix_nano) / 1e9,
        "ticks": run.tick_count,
        "missed_ticks": run.missed_ticks,
        "verdict": run.verdict or None,
        "epochs": run.epoch_count,
        "period_s": run.period_s,
        "period_low_s": run.period_low_s,
        "period_high_s": run.period_high_s,
        "confidence": run.confidence,
    }


def epochs_payload(run: RunInfo, found: RunEpochs) -> list[dict[str, Any]]:
    """The epochs of a run as they appear in JSON; ``start_s`` and ``end_s`` count from the start of the run."""
    return [
        {
            "index": epoch.index,
            "start_time": formatting.iso_time(epoch.start_unix_nano),
            "end_time": formatting.iso_time(epoch.end_unix_nano),
            "start_s": _since(run, epoch.start_unix_nano),
            "end_s": _since(run, epoch.end_unix_nano),
            "duration_s": epoch.duration_s,
            "confidence": epoch.confidence,
            "status": epoch.status,
            "revision": epoch.revision,
        }
        for epoch in found.epochs
    ]


def render_runs(screen: Screen, runs: Sequence[RunInfo]) -> None:
    """Print runs as a table."""
    screen.table(
        ("run", "GPU", "host", "job", "state", "started", "duration (s)", "epochs", "epoch (s)", "95 % interval (s)"),
        [
            (
                run.run_id,
                run.product_name or run.gpu_uuid,
                run.host_name or formatting.ABSENT,
                run.job_id or formatting.ABSENT,
                " ".join(filter(None, ("active" if run.active else "ended", "(replayed)" if run.replayed else ""))),
                local_time(run.start_unix_nano),
                formatting.number((run.end_unix_nano - run.start_unix_nano) / 1e9),
                str(run.epoch_count) if run.verdict else "not yet",
                formatting.number(run.period_s),
                formatting.interval(run.period_low_s, run.period_high_s),
            )
            for run in runs
        ],
        numeric=("duration (s)", "epochs", "epoch (s)", "95 % interval (s)"),
        optional=("job", "host", "duration (s)", "95 % interval (s)", "started"),
    )


def headline(run: RunInfo) -> str:
    """What was found in a run, in one line."""
    if run.verdict == "epochs":
        interval = formatting.interval(run.period_low_s, run.period_high_s)
        found = formatting.count(run.epoch_count, "epoch")
        confidence = formatting.probability(run.confidence)
        return f"{found} of {formatting.seconds(run.period_s)} (95 % interval {interval} s), confidence {confidence}"
    if run.verdict == "short_cycle":
        return f"a cycle of {formatting.seconds(run.period_s)}, too short to tell an epoch from an iteration"
    return "no epochs" if run.verdict else "not analysed yet"


def render_epochs(screen: Screen, run: RunInfo, epochs: Sequence[EpochInfo]) -> None:
    """Print epochs as a table; times count from the start of the run."""
    columns = ("epoch", "start (s)", "end (s)", "duration (s)", "confidence")
    screen.table(
        (*columns, "status"),
        [
            (
                str(i + 1),
                f"{_since(run, epoch.start_unix_nano):.2f}",
                f"{_since(run, epoch.end_unix_nano):.2f}",
                f"{epoch.duration_s:.2f}",
                formatting.probability(epoch.confidence),
                epoch.status,
            )
            for i, epoch in enumerate(epochs)
        ],
        numeric=columns,
    )


def local_time(unix_nano: int) -> str:
    """A time as a clock on the wall shows it."""
    return datetime.fromtimestamp(unix_nano / 1e9).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _since(run: RunInfo, unix_nano: int) -> float:
    return (unix_nano - run.start_unix_nano) / 1e9
