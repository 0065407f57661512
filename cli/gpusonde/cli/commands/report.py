"""``gpusonde report``: one run in a file, for people or for Perfetto."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

from gpusonde import formatting
from gpusonde.cli.commands.detect import ALL_GPUS, add_trace_options, read_gpus
from gpusonde.cli.commands.epochs import find_run
from gpusonde.cli.connection import add_collector_options, connect
from gpusonde.cli.errors import check_writable, error_context
from gpusonde.cli.output import JsonKey, Output, Screen
from gpusonde.cli.parsing import Parser
from gpusonde.errors import UsageError

if TYPE_CHECKING:
    from gpusonde.cli.report.story import RunStory

_PERFETTO = (".pftrace", ".perfetto-trace")
_PAGE = (".html", ".htm")


class ReportPayload(TypedDict):
    """What ``gpusonde report`` prints."""

    out: str
    gpus: int
    levels: Annotated[int, JsonKey("of the tree of cycles")]
    epochs: int
    states: Annotated[int, JsonKey("stretches of one state each")]
    events: int
    size_bytes: int
    notes: list[str]


def add_report_options(parser: Parser) -> None:
    """Declare ``gpusonde report``."""
    parser.description = (
        "Write one run into a file: as a page for people (.html), which holds all it needs, or its cycles, states,"
        " metrics and events as a trace that https://ui.perfetto.dev opens (.pftrace). The run is one that a collector"
        " has seen, with all GPUs of its job, or trace files, as of 'gpusonde detect': the GPUs of one job."
    )
    parser.add_argument(
        "run", nargs="+", metavar="RUN|TRACE", help="run of a collector, or trace files ('-' for stdin, or prom://...)"
    )
    parser.add_argument(
        "-o", "--out", type=Path, required=True, metavar="FILE", help="file to write: .html, or .pftrace for Perfetto"
    )
    add_trace_options(parser, every="; all by default")
    parser.set_defaults(gpu=ALL_GPUS)
    add_collector_options(parser)


def run_report(args: argparse.Namespace) -> int:
    """Read or ask, and write."""
    suffix = args.out.suffix.lower()
    if suffix not in (*_PAGE, *_PERFETTO):
        raise UsageError(f"{args.out}: the file ends with .html, or with .pftrace for Perfetto")
    check_writable(args.out)
    output = Output(as_json=args.json)
    with output.progress("looking for cycles"):
        story = _tell(args, with_predictions=suffix in _PAGE)
    notes = list(story.notes)
    if suffix in _PAGE:
        from gpusonde.cli.report.page import write_page

        write_page(story, args.out, _command(args))
    else:
        from gpusonde.cli.report.perfetto import write_perfetto

        notes += write_perfetto(story, args.out)
    size_bytes = args.out.stat().st_size
    payload: ReportPayload = {
        "out": str(args.out),
        "gpus": len(story.gpus),
        "levels": len(story.detection.cycles),
        "epochs": len(story.detection.epoch_starts_s),
        "states": len(story.states),
        "events": len(story.events),
        "size_bytes": size_bytes,
        "notes": notes,
    }

    def render(screen: Screen) -> None:
        for note in notes:
            screen.note(f"note: {note}")
        screen.line(
            f"{args.out}: {formatting.count(len(story.gpus), 'GPU')}, "
            f"{formatting.count(len(story.detection.cycles), 'level')} of cycles, "
            f"{formatting.count(len(story.states), 'state')}, {formatting.count(len(story.events), 'event')}; "
            f"{size_bytes / 1e6:,.1f} MB"
        )

    output.result(payload, render)
    return 0


def _command(args: argparse.Namespace) -> str:
    """What was typed, as far as the answer rests on it, without passwords."""
    from gpusonde.telemetry.readers.prometheus import without_password

    words = ["gpusonde", "report", *(without_password(Path(name)) for name in args.run), "-o", str(args.out)]
    given = {"--gpu": args.gpu if args.gpu != ALL_GPUS else None, "--gpus": args.gpus, "--interval-s": args.interval_s}
    given["--collector"] = args.collector
    for option, value in given.items():
        words += [] if value is None else [option, str(value)]
    for column in args.column or ():
        words += ["--column", column]
    return shlex.join(words)


def _tell(args: argparse.Namespace, *, with_predictions: bool) -> RunStory:
    from gpusonde.cli.report.story import story_of_run, story_of_traces
    from gpusonde.telemetry.readers.prometheus import is_address, without_password

    paths = [Path(name) for name in args.run]
    if not any(name == "-" or is_address(name) or Path(name).exists() for name in args.run):
        if len(args.run) > 1 or any(mark in args.run[0] for mark in "/."):
            raise UsageError(f"{args.run[0]}: no such file, and no run has such a name")
        with connect(args) as client:
            return story_of_run(client, find_run(client, args.run[0]), with_predictions=with_predictions)
    traces = [trace for path in paths for trace in read_gpus(args, path)]
    title = ", ".join("stdin" if str(path) == "-" else Path(without_password(path)).name for path in paths)
    with error_context(paths[0]):
        return story_of_traces(title, traces, with_predictions=with_predictions)
