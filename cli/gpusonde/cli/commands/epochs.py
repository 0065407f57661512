"""``gpusonde runs`` and ``epochs``: the runs that a collector has seen, and the epochs of one of them."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from gpusonde import formatting
from gpusonde.cli.connection import add_collector_options, connect
from gpusonde.cli.output import JsonKey, Output, Screen
from gpusonde.cli.parsing import Parser, positive_integer
from gpusonde.cli.runs_view import (
    EpochPayload,
    EstimatePayload,
    FiguresPayload,
    LevelPayload,
    RunPayload,
    TotalsPayload,
    doubt,
    epochs_payload,
    figures_payload,
    headline,
    level_payload,
    noun_of,
    render_levels,
    render_progress,
    render_runs,
    run_payload,
    summarise_run,
    totals_payload,
)
from gpusonde.errors import CommandError, UsageError

if TYPE_CHECKING:
    from gpusonde.collector.client import Client, RunEpochs, RunInfo


class RunsPayload(TypedDict):
    """What ``gpusonde runs`` prints."""

    runs: Annotated[list[RunPayload], JsonKey("the newest first")]


def add_runs_options(parser: Parser) -> None:
    """Declare ``gpusonde runs``."""
    add_collector_options(parser)
    parser.add_argument("--gpu-uuid", default="", metavar="UUID", help="only runs on this GPU")
    parser.add_argument("--job", default="", metavar="ID", help="only runs of this job of the scheduler")
    parser.add_argument("--limit", type=positive_integer, default=50, metavar="N", help="at most N (default: 50)")


def run_runs(args: argparse.Namespace) -> int:
    """Ask and print."""
    with connect(args) as client:
        runs = client.list_runs(gpu_uuid=args.gpu_uuid, job_id=args.job, limit=args.limit)

    def render(screen: Screen) -> None:
        if runs:
            render_runs(screen, runs)
        else:
            screen.line(f"the collector at {args.collector} has seen no such run")

    payload: RunsPayload = {"runs": [run_payload(run) for run in runs]}
    Output(as_json=args.json).result(payload, render)
    return 0


# What the request holds.
_MOST_EPOCHS = 2**32 - 1


class UsedEpochPayload(EpochPayload, FiguresPayload):
    """One epoch of a run, with what it used."""


class RunEstimatePayload(EstimatePayload):
    """When a job that a collector watches ends."""

    end_time: Annotated[str, JsonKey("of the last epoch, with its 90 % interval")]
    end_low_time: Annotated[str, JsonKey("of the last epoch, with its 90 % interval")]
    end_high_time: Annotated[str, JsonKey("of the last epoch, with its 90 % interval")]


class RunCyclePayload(LevelPayload):
    """A level of the tree of cycles of a run's job."""

    starts_s: Annotated[list[float], JsonKey("the latest 64, from the start of the run")]
    provisional: Annotated[bool, JsonKey("the tracker is not sure of it yet")]


class EpochsPayload(TotalsPayload):
    """What ``gpusonde epochs`` prints."""

    run: RunPayload
    reason: str
    epochs: list[UsedEpochPayload]
    estimate: Annotated[RunEstimatePayload | None, JsonKey("null without `--total-epochs` and for under three epochs")]
    estimate_reason: Annotated[str | None, JsonKey("why there is no estimate yet")]
    pending_summaries: Annotated[int, JsonKey("confirmed epochs still without metrics and energy")]
    provisional_epochs: Annotated[int, JsonKey("not sure yet, listed with `--provisional`")]
    level: Annotated[int | None, JsonKey("index in `cycles` of the level that the period and the epochs tell")]
    role: Annotated[str, JsonKey("of that level, from a confidence of 0.7, else `unknown`")]
    cycles: Annotated[list[RunCyclePayload], JsonKey("levels of the tree of cycles, shortest first, at most five")]
    deviations: Annotated[
        list[dict[str, Any]],
        JsonKey("GPUs of the job that do otherwise", holds="gpusonde.collector.client.results.GpuDeviation"),
    ]
    run_state: Annotated[str | None, JsonKey("what the job does: `training`, `serving`, `idle` or `other`")]
    run_state_confidence: Annotated[float, JsonKey("probability that `run_state` is right")]
    provisional_cycles: Annotated[int, JsonKey("not sure yet, listed with `--provisional`")]
    tree_agent_id: Annotated[str, JsonKey("whose `cycles` are told of a job on several hosts")]
    disagreeing_agents: Annotated[list[str], JsonKey("that found another period for the job")]
    host_deviations: Annotated[
        list[dict[str, Any]],
        JsonKey("hosts of the job that do otherwise", holds="gpusonde.collector.client.results.HostDeviation"),
    ]


def add_epochs_options(parser: Parser) -> None:
    """Declare ``gpusonde epochs``."""
    parser.add_argument("run", nargs="?", metavar="RUN", help="run; the beginning of its name is enough")
    parser.add_argument("--latest", action="store_true", help="the newest run")
    parser.add_argument(
        "--total-epochs",
        type=positive_integer,
        metavar="N",
        help="epochs the job is to run for; says when it will be done",
    )
    parser.add_argument("--provisional", action="store_true", help="also what the tracker is not sure of yet")
    add_collector_options(parser)


def run_epochs(args: argparse.Namespace) -> int:
    """Ask and print."""
    if args.run is None and not args.latest:
        raise UsageError("name a RUN ('gpusonde runs' lists them), or use --latest")
    if args.run is not None and args.latest:
        raise UsageError("give a RUN or --latest, not both")
    if (args.total_epochs or 0) > _MOST_EPOCHS:
        raise UsageError(f"--total-epochs is at most {_MOST_EPOCHS}")
    with connect(args) as client:
        chosen = find_run(client, args.run)
        found = client.list_epochs(chosen.run_id, include_provisional=args.provisional, total_epochs=args.total_epochs)
    progress = summarise_run(chosen, found)
    estimate: RunEstimatePayload | None = None
    if found.estimate is not None and progress.estimate is not None:
        estimate = {
            **progress.estimate,
            "end_time": formatting.iso_time(found.estimate.end_unix_nano),
            "end_low_time": formatting.iso_time(found.estimate.end_low_unix_nano),
            "end_high_time": formatting.iso_time(found.estimate.end_high_unix_nano),
        }
    rows = zip(epochs_payload(chosen, found), progress.table, strict=True)

    def render(screen: Screen) -> None:
        gpu = chosen.product_name or chosen.gpu_uuid
        screen.heading(f"run {chosen.run_id} on {gpu}: {headline(chosen, found.role)}")
        screen.line(found.reason)
        if chosen.verdict == "epochs" and noun_of(found.role) == "cycle":
            screen.line(doubt(found.role))
        render_progress(screen, progress, noun_of(found.role))
        if found.run_state:
            confidence = formatting.probability(found.run_state_confidence)
            screen.line(f"the job: {found.run_state}, confidence {confidence}")
        render_levels(screen, found.cycles, found.level, chosen.period_s)
        for deviation in found.deviations:
            screen.line(f"GPU {deviation.gpu_uuid} deviates: {deviation.kind} ({deviation.amount:.3g})")
        for other in found.host_deviations:
            screen.line(f"host of {other.agent_id} deviates: {other.kind} ({formatting.seconds(other.amount)})")
        _render_remarks(screen, chosen, found)

    payload: EpochsPayload = {
        "run": run_payload(chosen),
        "reason": found.reason,
        "epochs": [{**row, **figures_payload(figures)} for row, figures in rows],
        **totals_payload(progress),
        "estimate": estimate,
        "estimate_reason": found.estimate_reason or None,
        "pending_summaries": found.pending_summaries,
        "provisional_epochs": found.provisional_epochs,
        "level": found.level,
        "role": found.role,
        "cycles": [
            {
                **level_payload(cycle),
                "starts_s": [(start - chosen.start_unix_nano) / 1e9 for start in cycle.latest_starts_unix_nano],
                "provisional": cycle.provisional,
            }
            for cycle in found.cycles
        ],
        "deviations": [dataclasses.asdict(deviation) for deviation in found.deviations],
        "run_state": found.run_state or None,
        "run_state_confidence": found.run_state_confidence,
        "provisional_cycles": found.provisional_cycles,
        "tree_agent_id": found.tree_agent_id,
        "disagreeing_agents": list(found.disagreeing_agents),
        "host_deviations": [dataclasses.asdict(deviation) for deviation in found.host_deviations],
    }
    Output(as_json=args.json).result(payload, render)
    return 0


def _render_remarks(screen: Screen, run: RunInfo, found: RunEpochs) -> None:
    if found.estimate is not None and found.estimate.epochs_left and not run.active:
        screen.note("the run is over before the job was: that is when it would have been done")
    if found.estimate_reason:
        screen.note(f"no estimate of the end yet: {found.estimate_reason}")
    if found.provisional_epochs and not any(epoch.status == "provisional" for epoch in found.epochs):
        left_out = formatting.count(found.provisional_epochs, noun_of(found.role))
        screen.note(f"{left_out} that the tracker is not sure of yet left out; --provisional lists them")
    if found.provisional_cycles and not any(cycle.provisional for cycle in found.cycles):
        left_out = formatting.count(found.provisional_cycles, "level")
        screen.note(f"{left_out} that the tracker is not sure of yet left out; --provisional lists them")
    if found.pending_summaries:
        pending = formatting.count(found.pending_summaries, noun_of(found.role))
        screen.note(
            f"mean metrics and energy of {pending} are still being worked out; if they do not come, the collector's "
            "log says why"
        )


def find_run(client: Client, name: str | None) -> RunInfo:
    """The run of that name, or the only one whose name begins so; the newest one for None.

    Raises:
        CommandError: There is none, or more than one.
    """
    runs = client.list_runs(limit=1 if name is None else None)
    if name is None:
        if not runs:
            raise CommandError("the collector has seen no run yet; is an agent streaming to it?")
        return runs[0]
    # Every name begins with the empty one.
    begin = [run for run in runs if name and run.run_id.startswith(name)]
    found = [run for run in begin if run.run_id == name] or begin
    if len(found) != 1:
        what = f"{len(found)} runs begin with {name!r}: write more of it" if found else f"no run {name!r}"
        raise CommandError(f"{what}; 'gpusonde runs' lists them")
    return found[0]
