"""``gpusonde fleet``: the agents that stream to a collector, and sending them to another one."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gpusonde.cli import wording
from gpusonde.cli.connection import add_collector_options, client_security
from gpusonde.cli.output import Output, Screen
from gpusonde.cli.parsing import Parser, Subparsers, UsageError, add_command, address, names

if TYPE_CHECKING:
    from gpusonde.collector.client.query.admin import FleetClient


def add_fleet_parser(subparsers: Subparsers, common: Parser) -> None:
    """Declare ``gpusonde fleet``."""
    parser = add_command(
        subparsers,
        common,
        "fleet",
        "list the agents that stream to a collector, or send them to another one",
        "List the agents that stream to a collector, or ask them to go to another one. Needs a certificate or token of "
        "the role admin. An agent goes only where its own uplink.allowed_targets lets a collector send it.",
    )
    parser.add_argument("action", choices=["list", "drain"], help="list agents, or end their streams")
    parser.add_argument("--agents", type=names, metavar="A,B", help="drain: these agents")
    parser.add_argument("--all", action="store_true", help="drain: every agent that streams now")
    parser.add_argument("--to", type=address, metavar="HOST:PORT", help="drain: where they should go (default: back)")
    add_collector_options(parser)


def run_fleet(args: argparse.Namespace) -> int:
    """Ask or order, and print."""
    from gpusonde.collector.client.query.admin import FleetClient

    draining = args.action == "drain"
    if draining and bool(args.agents) == args.all:
        raise UsageError("drain needs --agents A,B or --all, not both")
    if not draining and (args.agents or args.all or args.to):
        raise UsageError("--agents, --all and --to belong to drain")
    with FleetClient(args.collector, security=client_security(args)) as client:
        return _drain(args, client) if draining else _list(args, client)


def _list(args: argparse.Namespace, client: FleetClient) -> int:
    agents = client.list_agents()

    def render(screen: Screen) -> None:
        screen.line(f"{wording.count(len(agents), 'agent')} {'streams' if len(agents) == 1 else 'stream'} to it")
        for agent in agents:
            throttled = ", throttled" if agent.throttled else ""
            screen.line(f"{agent.agent_id} on {agent.host_name or 'an unnamed host'} ({agent.identity}{throttled})")

    Output(as_json=args.json).result({"agents": [vars(agent) for agent in agents]}, render)
    return 0


def _drain(args: argparse.Namespace, client: FleetClient) -> int:
    drained, absent = client.drain(None if args.all else args.agents, args.to or "")

    def render(screen: Screen) -> None:
        screen.line(
            f"{wording.count(len(drained), 'agent')} asked to {f'go to {args.to}' if args.to else 'come back later'}"
        )
        if absent:
            screen.note(f"no open stream here: {', '.join(absent)}")

    Output(as_json=args.json).result({"drained": drained, "absent": absent, "target": args.to}, render)
    return 1 if absent else 0
