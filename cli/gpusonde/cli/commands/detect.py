"""``gpusonde detect``: the cycles and the epochs of one job, from the traces of its GPUs."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from gpusonde import formatting
from gpusonde.cli.errors import check_writable, error_context
from gpusonde.cli.output import JsonKey, Output, Screen
from gpusonde.cli.parsing import Parser, add_plot_option, duration_s, positive_integer
from gpusonde.cli.runs_view import (
    EstimatePayload,
    LevelPayload,
    Progress,
    TotalsPayload,
    TraceEpochPayload,
    add_detection_options,
    doubt,
    level_payload,
    noun_of,
    render_levels,
    render_progress,
    summarise_trace,
    table_payload,
    totals_payload,
)
from gpusonde.errors import UsageError

if TYPE_CHECKING:
    from gpusonde.epoch_detect import Cycle, CycleRole, EpochDetection, Told
    from gpusonde.telemetry import Trace


ALL_GPUS = "all"


def add_trace_options(parser: argparse.ArgumentParser, every: str = "") -> None:
    """Options that say how a trace file is to be read; ``every`` says what all its GPUs are good for."""
    group = parser.add_argument_group("reading the trace")
    group.add_argument("--gpu", metavar="GPU", help=f"which GPU of the file: index from 0, UUID or trace_id{every}")
    group.add_argument(
        "--gpus",
        type=positive_integer,
        metavar="N",
        help="GPUs interleaved in an nvidia-smi log (else found)",
    )
    group.add_argument(
        "--interval-s",
        "--interval",
        type=_tick_interval_s,
        metavar="TIME",
        help="seconds between ticks, for files that do not say, such as 100ms",
    )
    group.add_argument(
        "--column",
        action="append",
        metavar="THEIRS=OURS",
        help="what a column of another name is, with its unit, such as util=gpu_utilization:percent, t=timestamp or "
        "'GPU *=power_watts' (repeatable; without a header, the column's number)",
    )


_LONGEST_BARE_INTERVAL_S = 30.0


def _tick_interval_s(text: str) -> float:
    """Argument type: a time between ticks; a large one without a unit is most likely what dcgmi and nvidia-smi take."""
    interval_s = duration_s(text)
    if interval_s > _LONGEST_BARE_INTERVAL_S and text[-1:].isdigit():
        raise argparse.ArgumentTypeError(
            f"{text!r} would be {interval_s:g} seconds between ticks; write {text}ms, or {text}s if it is so"
        )
    return interval_s


def read_chosen_trace(args: argparse.Namespace, path: Path) -> Trace:
    """Read the one trace that the options of ``add_trace_options`` name.

    Raises:
        UsageError: An option is out of its range.
    """
    from gpusonde.telemetry import TraceError, read_trace

    try:
        with error_context(path):
            return read_trace(path, gpu=args.gpu, gpus=args.gpus, interval_s=args.interval_s, columns=args.column or ())
    except TraceError:
        raise
    except ValueError as error:
        raise UsageError(str(error)) from error


def read_gpus(args: argparse.Namespace, path: Path) -> list[Trace]:
    """Read the traces of a file: of the GPU that ``--gpu`` names, or of all of them.

    Raises:
        UsageError: An option is out of its range.
    """
    from gpusonde.telemetry import TraceError, read_traces

    if args.gpu != ALL_GPUS:
        return [read_chosen_trace(args, path)]
    try:
        with error_context(path):
            return read_traces(path, gpus=args.gpus, interval_s=args.interval_s, columns=args.column or ())
    except TraceError:
        raise
    except ValueError as error:
        raise UsageError(str(error)) from error


class CyclePayload(LevelPayload):
    """A level of the tree of cycles."""

    confirmed: Annotated[bool, JsonKey("held for six of its own cycles or two of its parent's")]
    starts_s: Annotated[list[float], JsonKey("on the trace's own time axis")]


class DetectPayload(TotalsPayload):
    """What ``gpusonde detect`` prints."""

    trace: str
    gpu_uuid: str | None
    gpu_model: str | None
    generated: Annotated[str | None, JsonKey("how the trace was")]
    ticks: int
    duration_s: Annotated[float, JsonKey("first tick to last")]
    interval_s: Annotated[float, JsonKey("median")]
    mode: str
    metrics: list[str]
    verdict: Annotated[str, JsonKey("`epochs`, `short_cycle` or `none`")]
    reason: str
    period_s: Annotated[float, JsonKey("of an epoch")]
    period_low_s: Annotated[float, JsonKey("its 95 % interval")]
    period_high_s: Annotated[float, JsonKey("its 95 % interval")]
    confidence: Annotated[float, JsonKey("probability that `period_s` is within 10 % of the truth")]
    epochs: int
    epoch_starts_s: Annotated[list[float], JsonKey("on the trace's own time axis")]
    end_s: Annotated[float, JsonKey("end of the last epoch")]
    run_state: Annotated[
        str | None,
        JsonKey(
            "`training`, `serving`, `idle` or `other`; null where too little is seen, and from the published detectors"
        ),
    ]
    run_state_confidence: Annotated[float, JsonKey("probability that `run_state` is right")]
    level: Annotated[int | None, JsonKey("index in `cycles` of the level that the period and the epochs tell")]
    role: Annotated[str, JsonKey("of that level, from a confidence of 0.7, else `unknown`")]
    cycles: Annotated[list[CyclePayload], JsonKey("levels of the tree of cycles, shortest first, at most five")]
    hypotheses: Annotated[
        list[dict[str, Any]],
        JsonKey(
            "what template matching alone considered, the chosen one first",
            holds="gpusonde.epoch_detect.result.Hypothesis",
        ),
    ]
    deviations: Annotated[
        list[dict[str, Any]],
        JsonKey("GPUs of the job that do otherwise", holds="gpusonde.epoch_detect.result.Deviation"),
    ]
    warnings: list[str]
    plot: str | None
    epoch_table: Annotated[list[TraceEpochPayload], JsonKey("the epochs")]
    estimate: Annotated[EstimatePayload | None, JsonKey("null without `--total-epochs`")]
    estimate_reason: Annotated[str | None, JsonKey("why there is no estimate although the total was given")]


def add_detect_options(parser: Parser) -> None:
    """Declare ``gpusonde detect``."""
    parser.description = (
        "Find the cycles of one job and its training epochs: in gpusonde's CSV or Parquet, in what nvidia-smi, dcgmi, "
        "Prometheus, trackers and monitors write (docs/trace_files.md), or in any table with --column. Several files, "
        "or --gpu all, are the GPUs of one job."
    )
    parser.add_argument(
        "trace",
        type=Path,
        nargs="+",
        metavar="TRACE",
        help="trace file, - for stdin, or prom://HOST:PORT/?query=DCGM_FI_DEV_GPU_UTIL&last=2h",
    )
    add_trace_options(parser, every="; all for one answer of all")
    group = add_detection_options(parser)
    add_told_options(group)
    group.add_argument(
        "--running",
        action="store_true",
        help="the job goes on: a cycle that the end of the trace cuts off is not counted",
    )
    add_plot_option(group, "the trace with its epochs")


def add_told_options(group: argparse._ActionsContainer) -> None:
    """Declare what a user knows of the job's cycles, which ``told_of`` makes of the arguments."""
    group.add_argument(
        "--total-epochs",
        type=positive_integer,
        metavar="N",
        help="epochs the job is to run for; refutes other cycles, and says when it will be done",
    )
    group.add_argument(
        "--steps-per-epoch",
        type=positive_integer,
        metavar="N",
        help="optimizer steps in an epoch; refutes other cycles",
    )
    group.add_argument(
        "--role",
        type=_told_role,
        action="append",
        default=[],
        metavar="S=ROLE",
        help="what a cycle is, such as 36s=evaluation (repeatable; step, evaluation, checkpoint, epoch, trial)",
    )


def told_of(args: argparse.Namespace) -> Told:
    """Return what the options of ``add_told_options`` tell."""
    from gpusonde.epoch_detect import Told

    return Told(args.total_epochs, args.steps_per_epoch, tuple(args.role))


def run_detect(args: argparse.Namespace) -> int:
    """Detect, print, and draw where asked."""
    check_writable(args.plot)
    output = Output(as_json=args.json)
    job = read_job(args)
    trace = job[0]
    detection = detect_job(args, job, output, running=args.running, mode=args.mode, metrics=args.metric)
    progress = summarise_trace(job, detection, args.total_epochs)
    if args.plot is not None:
        plot(args.plot, trace, detection)
    output.result(
        detect_payload(args, job, detection, progress),
        lambda screen: _render(screen, args, job, detection, progress),
    )
    return 0


def read_job(args: argparse.Namespace) -> list[Trace]:
    """Read the traces of one job's GPUs: of the files, or patterns of files, that ``args.trace`` holds."""
    args.trace = [path for pattern in args.trace for path in _matching(pattern)]
    return [trace for path in args.trace for trace in read_gpus(args, path)]


def detect_job(args: argparse.Namespace, job: Sequence[Trace], output: Output, **how: Any) -> EpochDetection:
    """Detect in the traces of ``read_job``, with what the user told; ``how`` as ``gpusonde.epoch_detect.detect``."""
    from gpusonde.epoch_detect import detect

    with output.progress(f"looking for epochs in {Path(shown(args.trace[0])).name}"), error_context(args.trace[0]):
        return detect(list(job), told=told_of(args), **how)


def shown(trace: Path) -> str:
    """Return the name of a trace for people."""
    from gpusonde.telemetry.readers.prometheus import without_password

    return without_password(trace)


def _matching(pattern: Path) -> list[Path]:
    """Return the files of a pattern that no shell has taken apart; of any other path, itself."""
    import glob

    from gpusonde.telemetry.readers.prometheus import is_address

    if is_address(pattern) or not glob.has_magic(str(pattern)) or pattern.exists():
        return [pattern]
    return [Path(name) for name in sorted(glob.glob(str(pattern)))] or [pattern]


def _told_role(text: str) -> tuple[float, CycleRole]:
    """Argument type: the period of a cycle and its role."""
    from gpusonde.epoch_detect import CycleRole

    period, _, name = text.partition("=")
    roles = [str(role) for role in CycleRole if role is not CycleRole.UNKNOWN]
    if name not in roles:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form 36s=evaluation, with one of {', '.join(roles)}")
    return duration_s(period), CycleRole(name)


def plot(path: Path, trace: Trace, detection: EpochDetection, advice: str = "") -> None:
    """Draw a trace with what was found in it, and what follows from it in a few words."""
    from gpusonde.cli.picture import EpochMarks, LevelMarks, draw

    name = formatting.printable(trace.gpu_model or trace.gpu_uuid)
    facts = (
        [f"confidence {formatting.probability(detection.confidence)}"]
        if detection.verdict == "epochs"
        else [detection.reason]
    )
    facts += [advice or f"{detection.mode} mode"]
    if "generated" in trace.attributes:
        facts.insert(0, "generated trace")
    marks = EpochMarks(
        starts_s=detection.epoch_starts_s,
        ends_s=detection.epoch_ends_s,
        headline=f"{name}: {headline(detection)}" if name else headline(detection),
        detail=" · ".join(facts),
        noun=told_as(detection),
        levels=tuple(
            LevelMarks(_level_label(cycle), cycle.starts_s, told=index == detection.level)
            for index, cycle in enumerate(detection.cycles)
        ),
    )
    draw(path, trace, marks)


def _level_label(cycle: Cycle) -> str:
    name = "cycle" if cycle.role == "unknown" else str(cycle.role)
    return f"{name}, {formatting.seconds(cycle.period_s)}"


def told_as(detection: EpochDetection) -> str:
    """Return what a cycle is by its role; the published detectors call every one an epoch."""
    return noun_of(detection.role if detection.mode == "default" else "epoch")


def may_be(role: str, period_s: float, total: str = "") -> str:
    """Say what a cycle can be that the metrics do not tell apart, and what does; ``total`` is that of ``unsettled``."""
    period = formatting.seconds(period_s).replace(" ", "").replace(",", "")
    return f"{doubt(role)}{total or '; --total-epochs N or'} --role {period}=epoch says what it is"


def unsettled(detection: EpochDetection, total_epochs: int | None) -> str:
    """Say why a total that was told does not tell what a cycle is; nothing where none was."""
    if total_epochs is None:
        return ""
    seen = f"{len(detection.epoch_starts_s):,} of these were seen"
    return f", nor does the total: {formatting.count(total_epochs, 'epoch')}, and {seen};"


def headline(detection: EpochDetection) -> str:
    """The verdict in one line."""
    range_ = formatting.interval(detection.period_low_s, detection.period_high_s)
    if detection.verdict == "epochs":
        found = formatting.count(len(detection.epoch_starts_s), told_as(detection))
        return f"{found} of {formatting.seconds(detection.period_s)} (95 % interval {range_} s)"
    if detection.verdict == "short_cycle":
        return f"a cycle of {formatting.seconds(detection.period_s)}, too short to tell an epoch from an iteration"
    return "no epochs"


_ENOUGH_TICKS = 60
_POWER_CHANGES = 1.3


def _still(trace: Trace) -> list[str]:
    """Say which metrics never change where they should: of a resting GPU, of another one, or not measured at all."""
    import numpy as np

    if len(trace) < _ENOUGH_TICKS:
        return []
    ranges = {name: (np.nanmin(v), np.nanmax(v)) for name, v in trace.values.items() if np.isfinite(v).any()}
    if ranges and all(low == high for low, high in ranges.values()):
        return [f"no value changes in the whole trace ({', '.join(ranges)}): the GPU rested, or --gpu is another one"]
    low, high = ranges.get("power_watts", (0.0, 0.0))
    if high <= _POWER_CHANGES * low:
        return []
    activity = ("gpu_utilization", "sm_active", "graphics_active")
    idle = [name for name in activity if name in ranges and ranges[name][1] == 0]
    return [f"{name} is 0 throughout although the power changes: it is not measured here" for name in idle]


def warnings_of(job: Sequence[Trace], detection: EpochDetection | None) -> list[str]:
    """Return what was left out or repaired in the traces of ``read_job``, and what detection could not use."""
    read = [warning for trace in job for warning in trace.warnings]
    return list(dict.fromkeys([*read, *_still(job[0]), *(detection.warnings if detection is not None else ())]))


def detect_payload(
    args: argparse.Namespace, job: Sequence[Trace], detection: EpochDetection, progress: Progress
) -> DetectPayload:
    """What was found, as it appears in JSON."""
    trace = job[0]
    return {
        "trace": shown(args.trace[0]),
        "gpu_uuid": trace.gpu_uuid or None,
        "gpu_model": trace.gpu_model or None,
        "generated": trace.attributes.get("generated"),
        "ticks": len(trace),
        "duration_s": trace.duration_s,
        "interval_s": trace.interval_s,
        "mode": detection.mode,
        "metrics": list(detection.metrics),
        "verdict": detection.verdict,
        "reason": detection.reason,
        "period_s": detection.period_s,
        "period_low_s": detection.period_low_s,
        "period_high_s": detection.period_high_s,
        "confidence": detection.confidence,
        "epochs": len(detection.epoch_starts_s),
        "epoch_starts_s": detection.epoch_starts_s.tolist(),
        "end_s": detection.end_s,
        "run_state": None if detection.run_state is None else str(detection.run_state),
        "run_state_confidence": detection.run_state_confidence,
        "level": detection.level,
        "role": str(detection.role),
        "cycles": [_cycle_payload(cycle) for cycle in detection.cycles],
        "hypotheses": [dataclasses.asdict(hypothesis) for hypothesis in detection.hypotheses],
        "deviations": [dataclasses.asdict(deviation) for deviation in detection.deviations],
        "warnings": warnings_of(job, detection),
        "plot": None if args.plot is None else str(args.plot),
        "epoch_table": table_payload(progress),
        **totals_payload(progress),
        "estimate": progress.estimate,
        "estimate_reason": progress.estimate_reason,
    }


def _cycle_payload(cycle: Cycle) -> CyclePayload:
    return {**level_payload(cycle), "confirmed": cycle.confirmed, "starts_s": cycle.starts_s.tolist()}


def _render(
    screen: Screen, args: argparse.Namespace, job: Sequence[Trace], detection: EpochDetection, progress: Progress
) -> None:
    render_verdict(screen, args, job, detection)
    render_progress(screen, progress, told_as(detection))
    if progress.estimate_reason:
        screen.note(f"no estimate of the end: {progress.estimate_reason}")
    render_levels(screen, detection.cycles, detection.level, detection.period_s)
    for deviation in detection.deviations:
        screen.line(f"GPU {deviation.gpu} deviates: {deviation.kind} ({deviation.amount:.3g})")
    if args.plot is not None:
        screen.line(f"picture: {args.plot}")


def render_verdict(screen: Screen, args: argparse.Namespace, job: Sequence[Trace], detection: EpochDetection) -> None:
    """Print what the job is: its cycle, what that may be, and what the GPU does."""
    trace = job[0]
    for warning in warnings_of(job, detection):
        screen.note(f"note: {warning}")
    if "generated" in trace.attributes:
        screen.note(f"note: this trace is generated {trace.attributes['generated']}")
    gpu = " ".join(filter(None, (trace.gpu_model, trace.gpu_uuid)))
    ticks = f"{formatting.count(len(trace), 'tick')} in {formatting.seconds(trace.duration_s)}"
    screen.heading(headline(detection))
    names = ", ".join(map(shown, args.trace))
    screen.line(f"{names}{f' ({gpu})' if gpu else ''}: {ticks}, {detection.mode} mode")
    screen.line(
        f"metrics: {', '.join(detection.metrics) or 'none'}; confidence {formatting.probability(detection.confidence)}"
    )
    if detection.reason:
        screen.line(detection.reason)
    if detection.verdict == "epochs" and told_as(detection) == "cycle":
        screen.line(may_be(detection.role, detection.period_s, unsettled(detection, args.total_epochs)))
    if detection.run_state is not None:
        screen.line(
            f"the GPU: {detection.run_state}, confidence {formatting.probability(detection.run_state_confidence)}"
        )
