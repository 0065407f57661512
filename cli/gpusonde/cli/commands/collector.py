"""``gpusonde collector``: the daemon that agents stream to."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from gpusonde.cli.daemon import (
    add_config_options,
    log_applier,
    overrides_of,
    show_config,
    usage_errors_of_settings,
)
from gpusonde.cli.output import Output, Screen
from gpusonde.cli.parsing import DEFAULT_COLLECTOR, Parser, Subparsers, add_command

if TYPE_CHECKING:
    from gpusonde.collector import CollectorReport


def add_collector_parser(subparsers: Subparsers, common: Parser) -> None:
    """Declare ``gpusonde collector``."""
    parser = add_command(
        subparsers,
        common,
        "collector",
        "take the agents' streams, keep them, find runs and epochs, answer questions",
        "Take the agents' streams, keep them, find runs and epochs, answer questions. Runs until SIGTERM or Ctrl-C.",
    )
    add_config_options(parser, "GPUSONDE_COLLECTOR_")
    group = parser.add_argument_group("collector")
    group.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help=f"where to listen (default: {DEFAULT_COLLECTOR}); port 0 takes a free one, written to DIR/address",
    )
    group.add_argument("--store", metavar="DIR", help="data directory; one collector each")
    group.add_argument("--model", metavar="FILE", help="model written by 'gpusonde train' (default: the shipped one)")


def run_collector(args: argparse.Namespace) -> int:
    """Run the collector, or check or print its configuration."""
    from gpusonde.collector import CollectorConfig

    flags = {"server.listen": args.listen, "store.directory": args.store, "prediction.model": args.model}
    overrides = overrides_of(args, flags)

    def load() -> CollectorConfig:
        return CollectorConfig.load(args.config, environment=os.environ, overrides=overrides)

    with usage_errors_of_settings():
        config = load()
    if args.check_config or args.print_config:
        return show_config(args, config.to_toml())
    from gpusonde.collector import run_collector
    from gpusonde.service import process
    from gpusonde.service.reload import ConfigSource

    process.ignore_hangups()
    apply_log = log_applier(args)
    apply_log(config.log)
    report = run_collector(config, config_source=ConfigSource(load, apply_log))
    counts = [{"name": name, "count": count} for name, count in report.counts.items()]
    Output(as_json=args.json).result(
        {"address": report.address, "store": str(config.directory), "counts": counts},
        lambda screen: _render_collector(screen, report),
    )
    return 0


def _render_collector(screen: Screen, report: CollectorReport) -> None:
    counts = ", ".join(f"{count} {name}" for name, count in report.counts.items())
    screen.line(f"collector at {report.address} has stopped; {counts or 'nothing came in'}")
