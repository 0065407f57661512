"""``gpusonde evaluate``: how well the detector does on traces whose epochs are known."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpusonde.cli import wording
from gpusonde.cli.errors import naming
from gpusonde.cli.output import Output, Screen
from gpusonde.cli.parsing import Parser, Subparsers, add_command

if TYPE_CHECKING:
    from gpusonde.epoch_detect.evaluation import EpochEvaluation, Summary
    from gpusonde.telemetry import Trace

_COLUMNS = ("", "traces", "MAPE", "median APE", "within 10 %", "declared", "MAPE of declared", "false positives")


def add_parser(subparsers: Subparsers, common: Parser) -> None:
    """Declare ``gpusonde evaluate`` and what can be evaluated."""
    parser = add_command(
        subparsers,
        common,
        "evaluate",
        "score the epoch detector on traces whose epochs are known",
        "Score what gpusonde finds against what is known to be true.",
    )
    subjects = parser.add_subparsers(dest="subject", metavar="SUBJECT", required=True, parser_class=Parser)
    epochs = add_command(
        subjects,
        common,
        "epochs",
        "the epoch detector",
        "Score the epoch detector on many traces; how is written in docs/epoch_detection.md.",
    )
    epochs.add_argument("traces", type=Path, metavar="TRACES", help="trace file with a trace_id or gpu_uuid per trace")
    epochs.add_argument("truth", type=Path, metavar="TRUTH.json", help="per trace_id its period_s, null for no epochs")
    epochs.add_argument(
        "--mode",
        choices=("default", "paper", "notebook"),
        default="default",
        help="our detector, the published method, or the one in its authors' notebook (default: default)",
    )
    epochs.add_argument("--metric", action="append", metavar="M", help="use this metric (repeatable; else all)")


def run(args: argparse.Namespace) -> int:
    """Detect, score, print."""
    from gpusonde.epoch_detect import detect
    from gpusonde.epoch_detect.evaluation import TruthError, evaluate, read_truth, reliability
    from gpusonde.telemetry import read_traces

    output = Output(as_json=args.json)
    truth = read_truth(args.truth)
    with naming(args.traces):
        traces = read_traces(args.traces)
    named = [(trace.attributes.get("trace_id") or trace.gpu_uuid or str(i), trace) for i, trace in enumerate(traces)]
    unseen = sorted(set(truth) - {name for name, _ in named})
    if len(unseen) == len(truth):
        raise TruthError(f"{args.truth}: none of its traces is in {args.traces}; they belong to different sets")
    begin = time.process_time()
    with output.progress(f"looking for epochs in {len(named)} traces", len(named)) as done, naming(args.traces):
        detector = functools.partial(detect, mode=args.mode, metrics=args.metric)
        found = evaluate(_counted(named, done), truth, detector)
    cpu_s = time.process_time() - begin
    hours = sum(trace.duration_s for trace in traces) / 3600
    payload = {
        "traces_file": str(args.traces),
        "truth_file": str(args.truth),
        "mode": args.mode,
        **dataclasses.asdict(found.overall),
        "cpu_seconds_per_trace_hour": cpu_s / hours if hours else None,
        "reliability": [dataclasses.asdict(b) for b in reliability(found.scores)],
        "per_shape": [{"shape": shape, **dataclasses.asdict(s)} for shape, s in found.by_shape.items()],
        "per_trace": [_trace_row(score) for score in found.scores],
        "truth_without_trace": unseen,
    }
    output.result(payload, lambda screen: _render(screen, args, found, payload))
    return 0


def _counted(named: list[tuple[str, Trace]], done: Callable[[float], None]) -> Iterator[tuple[str, Trace]]:
    for count, item in enumerate(named):
        done(count)
        yield item


def _trace_row(score: Any) -> dict[str, Any]:
    fields = dataclasses.asdict(score)
    return {**fields, "boundary_errors_s": list(score.boundary_errors_s)}


def _render(screen: Screen, args: argparse.Namespace, found: EpochEvaluation, payload: dict[str, Any]) -> None:
    if payload["truth_without_trace"]:
        missing = payload["truth_without_trace"]
        screen.note(f"note: {wording.count(len(missing), 'truth')} without a trace: {', '.join(missing[:5])}")
    screen.heading(f"{args.traces}: {wording.count(found.overall.traces, 'trace')}, {args.mode} mode")
    rows = [_row("all", found.overall)]
    if len(found.by_shape) > 1:
        rows += [_row(shape, summary) for shape, summary in found.by_shape.items()]
    screen.table(_COLUMNS, rows, numeric=_COLUMNS[1:])
    overall = found.overall
    if overall.boundary_error_median_s is not None:
        recall = _percent(overall.boundary_recall)
        screen.line(f"boundaries: median error {overall.boundary_error_median_s:.3f} s, {recall} of them found")
    if payload["cpu_seconds_per_trace_hour"] is not None:
        screen.line(f"cost: {payload['cpu_seconds_per_trace_hour']:.2f} CPU seconds per trace-hour")
    if payload["reliability"]:
        screen.line()
        columns = ("confidence", "answers", "mean confidence", "right")
        screen.table(columns, [_bin(b) for b in payload["reliability"]], numeric=columns[1:])


def _bin(row: dict[str, Any]) -> tuple[str, ...]:
    range_ = f"{row['low']:.2f} to {row['high']:.2f}"
    return (range_, str(row["answers"]), f"{row['mean_confidence']:.3f}", _percent(row["right"]))


def _row(name: str, summary: Summary) -> tuple[str, ...]:
    s = summary
    shares = (s.mape, s.median_ape, s.within_10pct, s.declared, s.mape_declared, s.false_positive_rate)
    return (name or "-", str(s.traces), *(_percent(share) for share in shares))


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
