"""Runs and epochs, as JSON and as tables, whether a trace or a collector tells them.

``Progress`` is what epochs tell together: their table, the trend of their duration, idle and stalled time, the end of
the job. A run of a collector and its epochs have a table and an object of their own besides.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypedDict

from gpusonde import formatting
from gpusonde.cli.output import JsonKey, Screen
from gpusonde.cli.parsing import OptionGroup, Parser
from gpusonde.errors import TotalEpochsError

if TYPE_CHECKING:
    from gpusonde.collector.client import CycleInfo, DurationTrend, EpochInfo, JobInfo, RunEpochs, RunInfo
    from gpusonde.epoch_detect import Cycle, EpochDetection
    from gpusonde.epoch_detect.progress import Trend
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
_SHOWN_LONG = 3
_LEAST_DRIFT = 0.04  # in all: less is of no use to anybody


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


class ChangePayload(TypedDict):
    """A lasting change of the duration of epochs."""

    epoch: Annotated[int, JsonKey("its first epoch, from 1, withdrawn ones not counted")]
    before_s: Annotated[float, JsonKey("median duration")]
    after_s: Annotated[float, JsonKey("median duration")]
    change: Annotated[float, JsonKey("0.25 for a quarter longer")]


class TrendPayload(TypedDict):
    """How the duration of epochs develops."""

    recent_s: Annotated[float, JsonKey("median duration since the last change, without the first epoch")]
    change_per_epoch: Annotated[float, JsonKey("ratio by which each epoch since then takes longer than the one before")]
    change_per_epoch_low: Annotated[float, JsonKey("its 95 % interval")]
    change_per_epoch_high: Annotated[float, JsonKey("its 95 % interval")]
    change_points: Annotated[list[ChangePayload], JsonKey("lasting changes")]


class EstimatePayload(TypedDict):
    """When a job ends."""

    epochs_done: int
    epochs_left: Annotated[int, JsonKey("the one under way included")]
    end_s: Annotated[float, JsonKey("of the last epoch")]
    end_low_s: Annotated[float, JsonKey("its 90 % interval")]
    end_high_s: Annotated[float, JsonKey("its 90 % interval")]
    basis: Annotated[str, JsonKey("what it rests on")]


class TotalsPayload(TypedDict):
    """What epochs tell together."""

    trend: Annotated[TrendPayload | None, JsonKey("of the durations")]
    idle_share: Annotated[float, JsonKey("share of the run without work")]
    stalled_share: Annotated[float, JsonKey("share lost to unusual idleness, or between epochs")]


class MeanPayload(TypedDict):
    """The mean of a metric over an epoch."""

    metric: str
    mean: Annotated[float, JsonKey("in the metric's unit")]


class FiguresPayload(TypedDict):
    """What one epoch used; null at a collector until the epoch is confirmed and gone through."""

    seen_share: Annotated[float, JsonKey("share that ticks speak for; the rest lies in holes")]
    energy_joules: Annotated[float, JsonKey("null where neither counter nor power tells")]
    metrics: list[MeanPayload]


class LevelPayload(TypedDict):
    """A level of the tree of cycles of a job."""

    period_s: Annotated[float, JsonKey("from start to start")]
    period_low_s: Annotated[float, JsonKey("its 95 % interval")]
    period_high_s: Annotated[float, JsonKey("its 95 % interval")]
    count: Annotated[int, JsonKey("whole cycles seen")]
    confidence: Annotated[float, JsonKey("probability that a level is within 10 % of `period_s`")]
    role: Annotated[str, JsonKey("`step`, `evaluation`, `checkpoint`, `epoch`, `trial`, or `unknown`")]
    role_confidence: Annotated[float, JsonKey("probability that `role` is right; 0 for `unknown`")]
    parent: Annotated[int | None, JsonKey("index in `cycles` of the level around it")]


class TraceEpochPayload(FiguresPayload):
    """One epoch of a trace."""

    start_s: Annotated[float, JsonKey("on the trace's own time axis")]
    end_s: Annotated[float, JsonKey("on the trace's own time axis")]
    duration_s: float


class EpochPayload(TypedDict):
    """One epoch of a run."""

    index: Annotated[int, JsonKey("identifies it within its run")]
    start_time: str
    end_time: str
    start_s: Annotated[float, JsonKey("from the start of the run")]
    end_s: Annotated[float, JsonKey("from the start of the run")]
    duration_s: float
    confidence: Annotated[float, JsonKey("how sure the tracker is of it")]
    status: Annotated[
        str, JsonKey("`provisional`, `confirmed`, `other_level` (of another level than the one told) or `withdrawn`")
    ]
    revision: Annotated[int, JsonKey("grows whenever the tracker changes its mind about the run")]


class RunPayload(TypedDict):
    """One run: one job's stay on one GPU."""

    run_id: str
    agent_id: str
    host_name: str | None
    gpu_uuid: str
    gpu_model: str | None
    framebuffer_bytes: int | None
    job_id: str | None
    scheduler: Annotated[str | None, JsonKey("`slurm`, `kubernetes`, `static`, `container`, `systemd` or `user`")]
    active: bool
    replayed: Annotated[bool, JsonKey("from a replayed trace")]
    start_time: Annotated[str, JsonKey("first activity")]
    end_time: Annotated[str, JsonKey("last activity; the latest tick while it is active")]
    duration_s: float
    ticks: int
    missed_ticks: int
    verdict: Annotated[str | None, JsonKey("`epochs`, `short_cycle` or `none`")]
    epochs: int
    period_s: Annotated[float, JsonKey("of an epoch")]
    period_low_s: Annotated[float, JsonKey("its 95 % interval")]
    period_high_s: Annotated[float, JsonKey("its 95 % interval")]
    confidence: Annotated[float, JsonKey("probability that `period_s` is within 10 % of the truth")]


@dataclass(frozen=True)
class Progress:
    """Everything that epochs tell; ``trend`` and ``estimate`` are None where there is nothing to say."""

    table: Sequence[EpochFigures]
    trend: TrendPayload | None
    idle_share: float
    stalled_share: float
    estimate: EstimatePayload | None
    estimate_reason: str | None = None


def summarise_trace(gpus: Sequence[Trace], detection: EpochDetection, total_epochs: int | None) -> Progress:
    """Work out what the epochs of the traces of a job tell; where the total does not fit, why there is no estimate."""
    from gpusonde.cli.trace_states import training_spans
    from gpusonde.epoch_detect.progress import duration_trend, epoch_table, estimate_end, time_shares

    trace = gpus[0]
    starts, ends = detection.epoch_starts_s, detection.epoch_ends_s
    estimate = reason = None
    if total_epochs is not None:
        try:
            training_s = training_spans(gpus, detection) if starts.size else None
            end = estimate_end(starts, ends, total_epochs, float(trace.time_s[-1]), training_s=training_s)
            basis = end.basis + _taken_for_epochs(detection.role if detection.mode == "default" else "epoch")
            estimate = _estimate(end.epochs_done, end.epochs_left, end.end_s, end.end_low_s, end.end_high_s, basis)
        except TotalEpochsError as error:
            reason = str(error)
    durations = (ends - starts)[1:]  # the first one compiles, fills caches, allocates
    trend = None
    if durations.size:
        found = duration_trend(durations)
        changes = [(p.epoch + 2, p.before_s, p.after_s, p.change) for p in found.change_points]
        trend = _trend(found, changes)
    shares = time_shares(trace.time_s, trace.values, starts, ends)
    table = [
        EpochFigures(e.start_s, e.end_s, e.seen_share, e.energy_joules, e.mean_metrics)
        for e in epoch_table(trace.time_s, trace.values, starts, ends)
    ]
    return Progress(table, trend, shares.idle, shares.stalled, estimate, reason)


def summarise_run(run: RunInfo, found: RunEpochs) -> Progress:
    """Put what a collector answered into the same form; times count from the start of the run."""

    def since(unix_nano: int) -> float:
        return (unix_nano - run.start_unix_nano) / 1e9

    estimate = None
    if (end := found.estimate) is not None:
        end_s, low_s, high_s = map(since, (end.end_unix_nano, end.end_low_unix_nano, end.end_high_unix_nano))
        basis = end.basis + _taken_for_epochs(found.role)
        estimate = _estimate(end.epochs_done, end.epochs_left, end_s, low_s, high_s, basis)
    trend = None
    if (asked := found.trend) is not None:
        trend = _trend(asked, [(c.epoch, c.before_s, c.after_s, c.change) for c in asked.changes])
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


def _taken_for_epochs(role: str) -> str:
    """Say of cycles that were counted as the epochs of a total, and may be none, that they were."""
    return "" if role == "epoch" else f"; every {noun_of(role)} is taken for an epoch, which the metrics do not tell"


def _estimate(done: int, left: int, end_s: float, low_s: float, high_s: float, basis: str) -> EstimatePayload:
    return {
        "epochs_done": done,
        "epochs_left": left,
        "end_s": end_s,
        "end_low_s": low_s,
        "end_high_s": high_s,
        "basis": basis,
    }


def _trend(found: Trend | DurationTrend, changes: Sequence[tuple[int, float, float, float]]) -> TrendPayload:
    return {
        "recent_s": found.recent_s,
        "change_per_epoch": found.change_per_epoch,
        "change_per_epoch_low": found.change_per_epoch_low,
        "change_per_epoch_high": found.change_per_epoch_high,
        "change_points": [
            {"epoch": epoch, "before_s": before_s, "after_s": after_s, "change": change}
            for epoch, before_s, after_s, change in changes
        ],
    }


def figures_payload(epoch: EpochFigures) -> FiguresPayload:
    """Keys of one epoch's figures for ``--json``."""
    return {
        "seen_share": epoch.seen_share,
        "energy_joules": epoch.energy_joules,
        "metrics": [{"metric": name, "mean": mean} for name, mean in epoch.mean_metrics.items()],
    }


def table_payload(progress: Progress) -> list[TraceEpochPayload]:
    """The table for ``--json``."""
    return [
        {"start_s": e.start_s, "end_s": e.end_s, "duration_s": e.end_s - e.start_s, **figures_payload(e)}
        for e in progress.table
    ]


def totals_payload(progress: Progress) -> TotalsPayload:
    """What the epochs tell together, for ``--json``."""
    return {
        "trend": progress.trend,
        "idle_share": progress.idle_share,
        "stalled_share": progress.stalled_share,
    }


def render_progress(screen: Screen, progress: Progress, noun: str) -> None:
    """Print the table and what follows from it; ``noun`` is what a row of it is."""
    if not progress.table:
        return
    names = _shown_metrics(progress.table)
    means = [f"mean {name}" for name in names]
    tracked = any(epoch.status for epoch in progress.table)
    columns = (noun, "start (s)", "end (s)", "duration (s)", *(["confidence"] if tracked else []), "energy (kJ)")
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
        optional=(*reversed(means), "confidence", "energy (kJ)"),
    )
    _render_statuses(screen, {epoch.status for epoch in progress.table})
    if progress.trend is not None:
        _render_trend(screen, progress.trend, noun, progress.table)
    idle, stalled = progress.idle_share, progress.stalled_share
    screen.line(f"idle {formatting.percent(idle, 1)} of the time; lost in stalls {formatting.percent(stalled, 1)}")
    if (estimate := progress.estimate) is not None:
        range_ = formatting.interval(estimate["end_low_s"], estimate["end_high_s"])
        screen.line(
            f"{formatting.count(estimate['epochs_done'], noun)} done, {estimate['epochs_left']} left: the job ends at "
            f"{formatting.seconds(estimate['end_s'])} (90 % interval {range_} s), by {estimate['basis']}"
        )


_STATUSES = {
    "confirmed": "its level of cycles has held for long enough",
    "provisional": "may be withdrawn: its level of cycles has not held for long enough",
    "other_level": "a cycle of the run still, but of another level than the one told now",
    "withdrawn": "was told before, and is none",
}


def _render_statuses(screen: Screen, shown: set[str]) -> None:
    """Say what the words of a table's status mean."""
    for status, meaning in _STATUSES.items():
        if status in shown:
            screen.line(f"{status}: {meaning}")


def _shown_metrics(table: Sequence[EpochFigures]) -> list[str]:
    """The first few metrics that have a mean, in the catalogue's order, whatever the order in a file or a store."""
    from gpusonde.telemetry import METRICS

    known = next((epoch for epoch in table if epoch.mean_metrics), table[0])
    means = (known.mean_metrics.get(metric.name) for metric in METRICS)
    names = [
        metric.name for metric, mean in zip(METRICS, means, strict=True) if mean is not None and math.isfinite(mean)
    ]
    return names[:_SHOWN_METRICS]


def _render_trend(screen: Screen, trend: TrendPayload, noun: str, table: Sequence[EpochFigures]) -> None:
    from gpusonde.epoch_detect.progress import long_epochs

    # Withdrawn ones and those of another level are no epochs of this trend.
    durations_s = [e.end_s - e.start_s for e in table if e.status in ("", "confirmed", "provisional")]
    for point in trend["change_points"]:
        kind = "slower" if point["change"] > 0 else "faster"
        screen.line(
            f"from {noun} {point['epoch']} on {formatting.percent(abs(point['change']))} {kind}: "
            f"{formatting.seconds(point['before_s'])} -> {formatting.seconds(point['after_s'])}"
        )
    low, high = sorted((trend["change_per_epoch_low"], trend["change_per_epoch_high"]))
    since = trend["change_points"][-1]["epoch"] if trend["change_points"] else 2
    surely = low if low > 0 else min(high, 0.0)
    if abs((1 + surely) ** (len(durations_s) - since) - 1) >= _LEAST_DRIFT:
        least, most = sorted((abs(low), abs(high)))
        screen.line(
            f"since {noun} {since} each takes {formatting.percent(abs(trend['change_per_epoch']), 2)} "
            f"{'longer' if surely > 0 else 'less'} than the one before "
            f"(95 % interval {formatting.percent(least, 2)} to {formatting.percent(most, 2)}); "
            f"median {formatting.seconds(trend['recent_s'])}"
        )
    elif not trend["change_points"]:
        screen.line(f"no lasting change of the duration; median {formatting.seconds(trend['recent_s'])}")
    for at, times in long_epochs(durations_s[1:])[:_SHOWN_LONG]:
        took = formatting.seconds(durations_s[at + 1])
        screen.line(f"{noun} {at + 2} alone took {took}, {times:.2g} times the usual")


def level_payload(cycle: Cycle | CycleInfo) -> LevelPayload:
    """Keys of one level of the tree of cycles for ``--json``."""
    return {
        "period_s": cycle.period_s,
        "period_low_s": cycle.period_low_s,
        "period_high_s": cycle.period_high_s,
        "count": cycle.count,
        "confidence": cycle.confidence,
        "role": str(cycle.role),
        "role_confidence": cycle.role_confidence,
        "parent": cycle.parent,
    }


def render_levels(screen: Screen, cycles: Sequence[Cycle | CycleInfo], level: int | None, period_s: float) -> None:
    """Print the levels of the tree of cycles, a line each; the one that is told with the period that is told."""
    if not math.isfinite(period_s):
        level = None  # of a run without a verdict nothing is told above
    periods_s = [period_s if index == level else cycle.period_s for index, cycle in enumerate(cycles)]
    for index, cycle in enumerate(cycles):
        role = str(cycle.role) if cycle.role_confidence == 0 else f"{cycle.role} {cycle.role_confidence:.2f}"
        inside = "" if cycle.parent is None else f", within {formatting.seconds(periods_s[cycle.parent])}"
        told = ", told above" if index == level else ""
        screen.line(
            f"cycle of {formatting.seconds(periods_s[index])} x {cycle.count:,}: confidence "
            f"{formatting.probability(cycle.confidence)}, role {role}{inside}{told}"
        )


def run_payload(run: RunInfo) -> RunPayload:
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


def epochs_payload(run: RunInfo, found: RunEpochs) -> list[EpochPayload]:
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


def noun_of(role: str) -> str:
    """What a cycle is called by its role; an epoch only where it is known to be one."""
    if role == "epoch":
        return role
    # A job that evaluates in every epoch has no other level of it.
    return "cycle" if role in ("unknown", "evaluation", "") else f"{role} cycle"


def noun_of_level(level: CycleInfo) -> str:
    """What the cycles of a level are called: by its role where that is sure enough."""
    from gpusonde.epoch_detect import told_role

    return noun_of(told_role([level], 0))


def doubt(role: str) -> str:
    """What a cycle of a role may be that the metrics do not tell apart."""
    kinds = {
        "unknown": "an epoch, or an evaluation or a checkpoint",
        "evaluation": "an epoch with its evaluation, or a part of one",
    }.get(role, f"a {role}, or an epoch after all")
    return f"{kinds}: the metrics do not tell"


def render_runs(screen: Screen, runs: Sequence[RunInfo]) -> None:
    """Print runs as a table."""
    screen.table(
        ("run", "GPU", "host", "job", "state", "started", "duration (s)", "cycles", "cycle (s)", "95 % interval (s)"),
        [
            (
                run.run_id,
                run.product_name or run.gpu_uuid,
                run.host_name or formatting.ABSENT,
                run.job_id or formatting.ABSENT,
                " ".join(filter(None, ("active" if run.active else "ended", "(replayed)" if run.replayed else ""))),
                formatting.local_time(run.start_unix_nano),
                formatting.number((run.end_unix_nano - run.start_unix_nano) / 1e9),
                str(run.epoch_count) if run.verdict else "not yet",
                formatting.number(run.period_s),
                formatting.interval(run.period_low_s, run.period_high_s),
            )
            for run in runs
        ],
        numeric=("duration (s)", "cycles", "cycle (s)", "95 % interval (s)"),
        optional=("job", "host", "duration (s)", "95 % interval (s)", "started", "state", "GPU"),
    )


def headline(run: RunInfo, role: str) -> str:
    """What was found in a run, in one line; ``role`` is that of the cycles which are told."""
    if run.verdict == "epochs":
        interval = formatting.interval(run.period_low_s, run.period_high_s)
        found = formatting.count(run.epoch_count, noun_of(role))
        confidence = formatting.probability(run.confidence)
        return f"{found} of {formatting.seconds(run.period_s)} (95 % interval {interval} s), confidence {confidence}"
    if run.verdict == "short_cycle":
        return f"a cycle of {formatting.seconds(run.period_s)}, too short to tell an epoch from an iteration"
    return "no epochs" if run.verdict else "not analysed yet"


def render_epochs(screen: Screen, run: RunInfo, epochs: Sequence[EpochInfo], noun: str) -> None:
    """Print epochs, or what is called otherwise, as a table; times count from the start of the run."""
    columns = (noun, "start (s)", "end (s)", "duration (s)", "confidence")
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
    _render_statuses(screen, {epoch.status for epoch in epochs})


def _since(run: RunInfo, unix_nano: int) -> float:
    return (unix_nano - run.start_unix_nano) / 1e9


def level_text(job: JobInfo) -> str:
    """Name the level of cycles that tells the progress, and how many were seen; a dash for none."""
    if job.level is None:
        return formatting.ABSENT
    return f"{noun_of_level(job.level)} {formatting.seconds(job.level.period_s)} x {job.level.count}"


def job_facts(job: JobInfo) -> Iterator[str]:
    """Say of one job when it ends, which of its machines do otherwise, and what was alerted, a line each."""
    if (estimate := job.estimate) is not None:
        end, low, high = map(
            formatting.local_time, (estimate.end_unix_nano, estimate.end_low_unix_nano, estimate.end_high_unix_nano)
        )
        cycles = f"{estimate.epochs_done} cycles done, {estimate.epochs_left} left: " if estimate.epochs_left else ""
        yield f"{cycles}ends at {end} (90 % interval {low} to {high}), by {estimate.basis}"
    elif job.estimate_reason:
        yield f"no estimate of the end: {job.estimate_reason}"
    for deviation in job.deviations:
        yield f"GPU {deviation.gpu_uuid} deviates: {deviation.kind} ({deviation.amount:.3g})"
    for device in job.slow_devices:
        place = "/".join(filter(None, [device.host_name or device.agent_id, device.gpu_uuid]))
        yield f"may drag: {place}, p {formatting.probability(device.probability)}: {device.evidence}"
    for alert in job.alerts:
        over = f"over at {formatting.local_time(alert.end_unix_nano)}" if alert.end_unix_nano else "not over"
        yield f"{formatting.local_time(alert.start_unix_nano)}  alert: {alert.state}, {over}: {alert.reason}"
