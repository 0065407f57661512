"""Runs and epochs of a collector, as JSON and as tables."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from gpusonde.cli import wording
from gpusonde.cli.output import Screen

if TYPE_CHECKING:
    from gpusonde.collector.client.query.results import EpochInfo, RunEpochs, RunInfo


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
        "start_time": wording.iso_time(run.start_unix_nano),
        "end_time": wording.iso_time(run.end_unix_nano),
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
            "start_time": wording.iso_time(epoch.start_unix_nano),
            "end_time": wording.iso_time(epoch.end_unix_nano),
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
                run.host_name or wording.ABSENT,
                run.job_id or wording.ABSENT,
                " ".join(filter(None, ("active" if run.active else "ended", "(replayed)" if run.replayed else ""))),
                local_time(run.start_unix_nano),
                wording.number((run.end_unix_nano - run.start_unix_nano) / 1e9),
                str(run.epoch_count) if run.verdict else "not yet",
                wording.number(run.period_s),
                wording.interval(run.period_low_s, run.period_high_s),
            )
            for run in runs
        ],
        numeric=("duration (s)", "epochs", "epoch (s)", "95 % interval (s)"),
        optional=("job", "host", "duration (s)", "95 % interval (s)", "started"),
    )


def headline(run: RunInfo) -> str:
    """What was found in a run, in one line."""
    if run.verdict == "epochs":
        interval = wording.interval(run.period_low_s, run.period_high_s)
        found = wording.count(run.epoch_count, "epoch")
        confidence = wording.probability(run.confidence)
        return f"{found} of {wording.seconds(run.period_s)} (95 % interval {interval} s), confidence {confidence}"
    if run.verdict == "short_cycle":
        return f"a cycle of {wording.seconds(run.period_s)}, too short to tell an epoch from an iteration"
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
                wording.probability(epoch.confidence),
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
