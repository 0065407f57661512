"""``gpusonde demo``: collector and agent on loopback, and what they find out, on one screen."""

from __future__ import annotations

import argparse
from pathlib import Path

from gpusonde.cli.output import Output
from gpusonde.cli.parsing import Parser, duration_s, positive_number


def add_demo_options(parser: Parser) -> None:
    """Declare ``gpusonde demo``."""
    parser.description = (
        "Run a collector and an agent on loopback and show what they find: the run, its epochs, what an epoch takes "
        "and costs on other GPUs, the best offers. Watches a GPU of this host if there is one, else replays a trace."
    )
    parser.add_argument("--out", type=Path, default=Path("demo-output"), metavar="DIR", help="folder for the picture")
    parser.add_argument("--trace", type=Path, metavar="TRACE", help="replay this trace instead of the bundled one")
    parser.add_argument("--replay", action="store_true", help="replay the bundled trace even if there is a GPU")
    parser.add_argument(
        "--speed", type=positive_number, default=25.0, metavar="N", help="replay N times faster (default: 25)"
    )
    parser.add_argument(
        "--watch-s", type=duration_s, default=45.0, metavar="TIME", help="seconds to watch a live GPU (default: 45)"
    )


def run_demo(args: argparse.Namespace) -> int:
    """Run the demo."""
    from gpusonde.cli.demo.run import DemoOptions, play_demo

    output = Output(as_json=args.json)
    options = DemoOptions(
        out=args.out, trace=args.trace, speed=args.speed, watch_s=args.watch_s, replay_only=args.replay
    )
    report = play_demo(options, output)
    output.result(report.payload(), report.render)
    return 0
