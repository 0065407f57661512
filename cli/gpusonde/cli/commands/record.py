"""``gpusonde record``: sample this host's GPUs into a trace file, without a collector."""

from __future__ import annotations

import argparse
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

from gpusonde import formatting
from gpusonde.cli.output import JsonKey, Output, Screen
from gpusonde.cli.parsing import Parser, duration_s, positive_number
from gpusonde.errors import UsageError

if TYPE_CHECKING:
    from gpusonde.agent import RecordReport, SelfCounters


class RecordPayload(TypedDict):
    """What ``gpusonde record`` prints."""

    out: str
    gpu_uuids: list[str]
    metrics: Annotated[list[str], JsonKey("columns")]
    duration_s: Annotated[float, JsonKey("first tick to last")]
    ticks: int
    missed_ticks: Annotated[int, JsonKey("deadlines without a reading")]
    dropped_ticks: Annotated[int, JsonKey("ticks whose time did not increase")]
    lateness_max_s: Annotated[float, JsonKey("from deadline to reading")]


def add_record_options(parser: Parser) -> None:
    """Declare ``gpusonde record``."""
    parser.description = (
        "Sample this host's GPUs into a trace file until --duration-s is over, SIGTERM or Ctrl-C; the file is whole "
        "each time. CSV keeps every tick through a crash, Parquet is smaller and needs the collector extra."
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="trace file to write: .csv or .parquet")
    parser.add_argument("--duration-s", type=duration_s, metavar="TIME", help="stop after so many seconds")
    parser.add_argument(
        "--interval-s", type=duration_s, default=0.1, metavar="TIME", help="between ticks (default: 0.1)"
    )
    parser.add_argument("--replay", type=Path, metavar="TRACE", help="record a replayed trace instead of the GPUs")
    parser.add_argument("--speed", type=positive_number, default=1.0, metavar="N", help="replay N times faster")
    parser.add_argument(
        "--attribute", action="append", default=[], metavar="NAME=VALUE", help="a fact to keep in the file (repeatable)"
    )


def run_record(args: argparse.Namespace) -> int:
    """Record."""
    from gpusonde.agent import make_source, record
    from gpusonde.agent.config import SourceConfig

    config = SourceConfig(
        kind="auto" if args.replay is None else "replay",
        trace="" if args.replay is None else str(args.replay),
        speed=args.speed,
        interval_s=args.interval_s,
    )
    output = Output(as_json=args.json)
    stop = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        with output.progress(f"recording into {args.out}", total=args.duration_s) as show:

            def on_progress(counters: SelfCounters) -> None:
                show(counters.deadlines * args.interval_s)

            report = record(
                make_source(config),
                args.out,
                interval_s=args.interval_s,
                duration_s=args.duration_s,
                stop=stop,
                on_progress=on_progress,
                attributes=_attributes(args.attribute),
            )
    finally:
        signal.signal(signal.SIGTERM, before)
    output.result(_payload(report), lambda screen: _render(screen, report))
    return 0 if report.counters.ticks else 1


def _attributes(settings: list[str]) -> dict[str, str]:
    facts = {}
    for setting in settings:
        name, separator, value = setting.partition("=")
        if not separator or not name.strip():
            raise UsageError(f"--attribute {setting!r}: write NAME=VALUE")
        facts[name.strip()] = value.strip()
    return facts


def _payload(report: RecordReport) -> RecordPayload:
    counters = report.counters
    return {
        "out": str(report.path),
        "gpu_uuids": list(report.gpu_uuids),
        "metrics": list(report.metrics),
        "duration_s": report.duration_s,
        "ticks": counters.ticks,
        "missed_ticks": counters.missed_ticks,
        "dropped_ticks": report.dropped_ticks,
        "lateness_max_s": counters.lateness_s_max,
    }


def _render(screen: Screen, report: RecordReport) -> None:
    counters = report.counters
    if not counters.ticks:
        screen.note("nothing was recorded: there was no time for a single tick")
        return
    gpus = formatting.count(len(report.gpu_uuids), "GPU")
    screen.line(
        f"{report.path}: {formatting.count(counters.ticks, 'tick')} of {gpus} in "
        f"{formatting.seconds(report.duration_s)}, {counters.missed_ticks} missed"
    )
    screen.line(f"metrics: {', '.join(report.metrics)}")
