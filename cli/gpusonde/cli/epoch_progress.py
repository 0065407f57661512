"""What the epochs of a trace tell, as JSON and as text: table, trend, idle and stalls, end of the job."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpusonde.cli import wording
from gpusonde.cli.output import Screen

if TYPE_CHECKING:
    from gpusonde.epoch_detect import EpochDetection
    from gpusonde.epoch_detect.progress import EndEstimate, EpochSummary, Shares, Trend
    from gpusonde.telemetry import Trace

_SHOWN_METRICS = 4


@dataclass(frozen=True)
class Progress:
    """Everything about the epochs of one trace; ``trend`` and ``estimate`` are None where there is nothing to say."""

    table: tuple[EpochSummary, ...]
    trend: Trend | None
    shares: Shares
    estimate: EndEstimate | None


def progress_of(trace: Trace, detection: EpochDetection, total_epochs: int | None) -> Progress:
    """Work out what the epochs tell.

    Raises:
        gpusonde.epoch_detect.progress.TotalEpochsError: ``total_epochs`` does not fit what was found.
    """
    from gpusonde.epoch_detect.progress import duration_trend, epoch_table, estimate_end, time_shares

    starts, ends = detection.epoch_starts_s, detection.epoch_ends_s
    estimate = None
    if total_epochs is not None:
        estimate = estimate_end(starts, ends, total_epochs, float(trace.time_s[-1]))
    durations = (ends - starts)[1:]  # the first one compiles, fills caches, allocates
    return Progress(
        epoch_table(trace.time_s, trace.values, starts, ends),
        duration_trend(durations) if durations.size else None,
        time_shares(trace.time_s, trace.values, starts, ends),
        estimate,
    )


def progress_payload(progress: Progress) -> dict[str, Any]:
    """Keys for ``--json``."""
    trend = progress.trend
    return {
        "epoch_table": [
            {
                "start_s": epoch.start_s,
                "end_s": epoch.end_s,
                "duration_s": epoch.duration_s,
                "seen_share": epoch.seen_share,
                "energy_joules": epoch.energy_joules,
                "metrics": [{"metric": name, "mean": mean} for name, mean in epoch.mean_metrics.items()],
            }
            for epoch in progress.table
        ],
        "trend": None
        if trend is None
        else {
            "recent_s": trend.recent_s,
            "change_per_epoch": trend.change_per_epoch,
            "change_per_epoch_low": trend.change_per_epoch_low,
            "change_per_epoch_high": trend.change_per_epoch_high,
            # Counted from 1 and with the first epoch, which the trend leaves out, as in the table on the screen.
            "change_points": [
                {"epoch": p.epoch + 2, "before_s": p.before_s, "after_s": p.after_s, "change": p.change}
                for p in trend.change_points
            ],
        },
        "idle_share": progress.shares.idle,
        "stalled_share": progress.shares.stalled,
        "estimate": None if progress.estimate is None else dataclasses.asdict(progress.estimate),
    }


def render_progress(screen: Screen, progress: Progress) -> None:
    """Print the table and what follows from it."""
    if not progress.table:
        return
    names = [n for n, mean in progress.table[0].mean_metrics.items() if math.isfinite(mean)][:_SHOWN_METRICS]
    columns = ("epoch", "start (s)", "end (s)", "duration (s)", "energy (kJ)", *(f"mean {name}" for name in names))
    screen.line()
    screen.table(
        columns,
        [
            (
                str(i + 1),
                f"{epoch.start_s:.2f}",
                f"{epoch.end_s:.2f}",
                f"{epoch.duration_s:.2f}",
                "-" if math.isnan(epoch.energy_joules) else f"{epoch.energy_joules / 1000:.3g}",
                *(wording.number(epoch.mean_metrics[name]) for name in names),
            )
            for i, epoch in enumerate(progress.table)
        ],
        numeric=columns,
    )
    if progress.trend is not None:
        _render_trend(screen, progress.trend)
    idle, stalled = progress.shares.idle, progress.shares.stalled
    screen.line(f"idle {wording.percent(idle, 1)} of the time; lost in stalls {wording.percent(stalled, 1)}")
    if (estimate := progress.estimate) is not None:
        range_ = wording.interval(estimate.end_low_s, estimate.end_high_s)
        screen.line(
            f"{estimate.epochs_done} epochs done, {estimate.epochs_left} left: the job ends at "
            f"{wording.seconds(estimate.end_s)} (90 % interval {range_} s)"
        )


def _render_trend(screen: Screen, trend: Trend) -> None:
    for point in trend.change_points:
        kind = "slower" if point.change > 0 else "faster"
        screen.line(
            f"from epoch {point.epoch + 2} on {wording.percent(abs(point.change))} {kind}: "
            f"{wording.seconds(point.before_s)} -> {wording.seconds(point.after_s)}"
        )
    if not trend.change_points:
        screen.line(f"no lasting change of the duration; median {wording.seconds(trend.recent_s)}")
