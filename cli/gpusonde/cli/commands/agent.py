"""``gpusonde agent``: the daemon on a GPU host."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpusonde.cli import agent_doctor, wording
from gpusonde.cli.daemon import (
    add_config_options,
    log_applier,
    overrides_of,
    show_config,
    usage_errors_of_settings,
)
from gpusonde.cli.output import Output, Screen
from gpusonde.cli.parsing import Parser, Subparsers, add_command, address, positive_number

if TYPE_CHECKING:
    from gpusonde.agent import AgentReport, SelfCounters


def add_agent_parser(subparsers: Subparsers, common: Parser) -> None:
    """Declare ``gpusonde agent``."""
    parser = add_command(
        subparsers,
        common,
        "agent",
        "sample this host's GPUs and stream them to a collector",
        "Sample this host's GPUs (or replay a trace) into a spool on disk and stream it to a collector. Runs until "
        "SIGTERM or Ctrl-C; a replay ends by itself once the collector has everything. 'gpusonde agent doctor' says "
        "what can be sampled here.",
    )
    add_config_options(parser, "GPUSONDE_AGENT_")
    group = parser.add_argument_group("agent")
    group.add_argument("--collector", type=address, metavar="HOST:PORT", help="address of the collector")
    group.add_argument("--spool", metavar="DIR", help="directory of the spool; one agent each")
    group.add_argument("--id", metavar="NAME", help="name of this agent at the collector")
    group.add_argument("--replay", metavar="TRACE", help="play this trace file instead of sampling GPUs")
    group.add_argument("--speed", type=positive_number, metavar="N", help="replay N times faster than recorded")
    group.add_argument("--keep-time", action="store_true", help="replay with the recorded wall-clock times")
    _add_doctor(parser)


def _add_doctor(agent: Parser) -> None:
    # Options are repeated, so that they may follow the word; left out there, they keep what was given before it.
    actions = agent.add_subparsers(dest="action", metavar="[doctor]", required=False, parser_class=Parser)
    doctor = actions.add_parser(
        "doctor",
        help="say what can be sampled on this host, what cannot and why",
        description="Try every source of this host for two seconds and say what can be sampled, what cannot, why, and "
        "what to do. Exit code 0 when something can be sampled, else 1.",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    group = doctor.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="print one JSON object on stdout (keys: docs/cli.md)")
    group.add_argument("--verbose", action="store_true", help="log debug messages; show tracebacks of errors")
    group.add_argument("--log-format", choices=("text", "json"), help="form of the log lines on stderr")
    group = doctor.add_argument_group("configuration", "The host is examined as an agent with it would sample.")
    group.add_argument("--config", type=Path, metavar="FILE.toml", help="configuration file")
    group.add_argument("--set", action="append", metavar="SECTION.NAME=VALUE", help="override one setting (repeatable)")


def run_agent(args: argparse.Namespace) -> int:
    """Run the agent, or check or print its configuration, or examine the host."""
    if args.action == "doctor":
        return agent_doctor.run(args)
    from gpusonde.agent import AgentConfig, run_agent
    from gpusonde.service import process
    from gpusonde.service.reload import ConfigSource

    flags = {
        "uplink.collector": args.collector,
        "spool.directory": args.spool,
        "agent.id": args.id,
        "source.trace": args.replay,
        "source.kind": None if args.replay is None else "replay",
        "source.speed": None if args.speed is None else repr(args.speed),
        "source.keep_time": "true" if args.keep_time else None,
    }
    overrides = overrides_of(args, flags)

    def load() -> AgentConfig:
        return AgentConfig.load(args.config, environment=os.environ, overrides=overrides)

    with usage_errors_of_settings():
        config = load()
    if args.check_config or args.print_config:
        return show_config(args, config.to_toml())
    process.ignore_hangups()
    apply_log = log_applier(args)
    apply_log(config.log)
    output = Output(as_json=args.json)
    is_replay = config.source.kind == "replay"
    with output.progress("replaying", total=1.0) if is_replay else output.progress("sampling") as show:

        def on_progress(counters: SelfCounters) -> None:
            if counters.source_progress is not None:
                show(counters.source_progress)

        report = run_agent(
            config,
            exit_when_acked=is_replay,
            # A live source has no end to progress to, and a daemon nothing to wake up for.
            on_progress=on_progress if is_replay else None,
            config_source=ConfigSource(load, apply_log),
        )
    output.result(report_payload(report), lambda screen: _render_agent(screen, report))
    return 0 if report.drained or not is_replay else 1


def report_payload(report: AgentReport) -> dict[str, Any]:
    """The report as it appears in JSON: tallies by reason become lists, so that no key is data."""
    return {key: tally(value) if isinstance(value, dict) else value for key, value in report.as_json().items()}


def tally(counts: dict[str, int]) -> list[dict[str, Any]]:
    """Counts by reason as a list of objects."""
    return [{"reason": reason, "count": count} for reason, count in counts.items()]


def _render_agent(screen: Screen, report: AgentReport) -> None:
    counters = report.counters
    screen.line(
        f"agent {report.agent_id}: {wording.count(counters.ticks, 'tick')} sampled, {counters.missed_ticks} missed, "
        f"{wording.count(counters.records, 'record')} spooled, {counters.unacked_records} of them not yet acknowledged"
    )
    if not report.drained:
        screen.note("the collector does not have everything yet; the rest is sent when the agent starts again")
