"""``gpusonde advise``: from a trace file to what the job is, where it would run how fast, and what to rent for it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypedDict

from gpusonde import formatting
from gpusonde.cli.commands.detect import (
    DetectPayload,
    add_told_options,
    add_trace_options,
    detect_job,
    detect_payload,
    plot,
    read_job,
    render_verdict,
    shown,
)
from gpusonde.cli.commands.plan import (
    KEEPS_LIMITS,
    add_terms_options,
    parsed,
    pose_source,
    terms_of,
)
from gpusonde.cli.commands.predict import add_gpu_options, predict_here
from gpusonde.cli.errors import check_writable, error_context
from gpusonde.cli.measuring import PredictPayload
from gpusonde.cli.output import JsonKey, Output, Screen
from gpusonde.cli.parsing import Parser, add_plot_option
from gpusonde.cli.plans_view import plan_text, render_solution
from gpusonde.cli.runs_view import render_levels, summarise_trace
from gpusonde.errors import GpusondeError, UsageError


class AdvisePayload(TypedDict):
    """What ``gpusonde advise`` prints."""

    detection: Annotated[DetectPayload, JsonKey("what the job is")]
    predictions: Annotated[PredictPayload | None, JsonKey("where it would run how fast; null with a reason")]
    plan: Annotated[
        dict[str, Any] | None,
        JsonKey("what to rent, with `format` and `notes[]`", holds="gpusonde.optimizer.solution.Solution"),
    ]
    missing: Annotated[str | None, JsonKey("what has to be told for the rest")]


def add_advise_options(parser: Parser) -> None:
    """Declare ``gpusonde advise``."""
    parser.description = (
        "Say what a job is, where it would run how fast and what to rent for it, from a trace file of any kind that "
        "'gpusonde detect' reads: its cycle, an epoch on every GPU that can be rented, and with --epochs the plan. "
        "Several files, or --gpu all, are the GPUs of one job."
    )
    parser.add_argument("trace", type=Path, nargs="+", metavar="TRACE", help="trace file, - for stdin, or prom://...")
    add_terms_options(parser)
    job = parser.add_argument_group("what you know of the job")
    add_gpu_options(job)
    add_told_options(job)
    add_trace_options(parser, every="; all for one job on all")
    parser.add_argument(
        "--model", type=Path, metavar="FILE", help="model of 'gpusonde train' (default: the shipped one)"
    )
    add_plot_option(parser, "the trace with its epochs and the plan")


def run_advise(args: argparse.Namespace) -> int:
    """Detect, predict, plan, print."""
    from gpusonde.catalog import load_gpus
    from gpusonde.cli.measuring import from_traces
    from gpusonde.optimizer.documents.watching import solve_problem
    from gpusonde.simulator.parallel import Placement

    dropped = [f"--{name}" for name in ("deadline", "budget", "objective", "quota") if getattr(args, name) is not None]
    if args.epochs is None and dropped:
        raise UsageError(f"{dropped[0]} is for a plan, which needs --epochs N: how many are to be trained")
    check_writable(args.plot)
    terms, gpus = terms_of(args), load_gpus()
    output = Output(as_json=args.json)
    job = read_job(args)
    detection = detect_job(args, job, output)
    predictions, plan, missing, said = None, None, None, []
    with error_context(Path(shown(args.trace[0]))):
        try:
            source = from_traces(job, args.gpu_model, args.epoch_s, gpus, args.precision, lambda: detection)
        except GpusondeError as error:
            missing = f"where it would run and what to rent: {error}"
        else:
            asked = {*terms.gpus, source.measurement.gpu.name}
            rentable = {offer.gpu_model for offer in terms.offers()} | asked
            chosen = [spec for spec in gpus.specs if spec.name in rentable]
            predictions = predict_here(source, [Placement(spec, counted=False) for spec in chosen], args.model)
            if args.epochs is None:
                missing = "what to rent: --epochs N says how long the job is, --deadline 24h by when it must end"
            else:
                alone = predict_here(source, [Placement(spec) for spec in chosen], args.model)
                try:
                    posed = pose_source(Path(shown(args.trace[0])).stem, alone, source, terms, args.total_epochs)
                    plan = solve_problem(parsed(posed.document))
                except GpusondeError as error:
                    missing = f"what to rent: {error}"
                else:
                    said = posed.notes_on(plan["plan"])
                    plan["notes"] = [*said, *plan["notes"]]
    if args.plot is not None:
        plot(args.plot, job[0], detection, _summary(plan))
    payload: AdvisePayload = {
        "detection": detect_payload(args, job, detection, summarise_trace(job, detection, args.total_epochs)),
        "predictions": None if predictions is None else predictions.payload(),
        "plan": plan,
        "missing": missing,
    }

    def render(screen: Screen) -> None:
        render_verdict(screen, args, job, detection)
        render_levels(screen, detection.cycles, detection.level, detection.period_s)
        if predictions is not None:
            predictions.render(screen)
        if plan is not None:
            # What every plan assumes of machines stays with --json and 'gpusonde plan'.
            render_solution(screen, {**plan, "notes": said})
            screen.line("the problem as a file, to say better: gpusonde plan init, with the same options and --trace")
        if missing is not None:
            screen.line()
            screen.note(missing)
        if args.plot is not None:
            screen.line(f"picture: {args.plot}")

    output.result(payload, render)
    is_whole = predictions is not None and (args.epochs is None or (plan or {}).get("status") in KEEPS_LIMITS)
    return 0 if is_whole else 1


def _summary(plan: Mapping[str, Any] | None) -> str:
    """A plan in one line."""
    if plan is None or plan["plan"] is None:
        return ""
    estimate = plan["estimate"]
    time, cost = formatting.duration(estimate["time_s"]), formatting.dollars(estimate["cost_usd"])
    return f"{plan_text(plan['plan'])}: {time}, {cost}"
