"""``gpusonde fleet``: a collector's agents, their hosts, its trainings; and sending agents to another collector.

``gpusonde token``: bearer tokens for agents and readers that have no certificate.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from gpusonde.cli import formatting
from gpusonde.cli.connection import add_collector_options, client_security
from gpusonde.cli.output import JsonKey, Output, Screen
from gpusonde.cli.parsing import Parser, address, names
from gpusonde.errors import UsageError

if TYPE_CHECKING:
    from gpusonde.collector.client import FleetClient

_AGENT_ID = re.compile(r"[A-Za-z0-9._:@*-]{1,128}")
_LABEL = re.compile(r"[A-Za-z0-9 ._:@/-]{1,64}")


class TokenPayload(TypedDict):
    """What ``gpusonde token new`` prints."""

    token: Annotated[str, JsonKey("stored nowhere")]
    digest: Annotated[str, JsonKey("SHA-256, hexadecimal")]
    role: str
    entry_toml: Annotated[str, JsonKey("lines for the collector's file")]


class FleetListPayload(TypedDict):
    """What ``gpusonde fleet list`` prints."""

    agents: Annotated[list[dict[str, Any]], JsonKey(holds="gpusonde.collector.client.ConnectedAgent")]


class FleetDrainPayload(TypedDict):
    """What ``gpusonde fleet drain`` prints."""

    drained: Annotated[list[str], JsonKey("agents that were asked")]
    absent: Annotated[list[str], JsonKey("agents of `--agents` without an open stream")]
    target: Annotated[str | None, JsonKey("null for back")]


def add_token_options(parser: Parser) -> None:
    """Declare ``gpusonde token``."""
    parser.description = (
        "Make a bearer token. It is printed once: put it alone into the file that uplink.token_file or --token-file "
        "names, and the [[token]] lines into the collector's security.tokens_file, which holds a digest only."
    )
    parser.add_argument("action", choices=["new"], help="make one")
    parser.add_argument("--role", choices=["agent", "reader", "admin"], required=True, help="what it is for")
    parser.add_argument(
        "--agent-id", default="", metavar="ID", help="agent that it is for; * stands for any characters (default: all)"
    )
    parser.add_argument("--label", default="", metavar="TEXT", help="how logs call it (default: part of its digest)")


def run_token(args: argparse.Namespace) -> int:
    """Make and print one."""
    from gpusonde.collector.security.identity import Role
    from gpusonde.collector.security.tokens import digest_token, new_token, token_entry

    if args.agent_id and args.role != "agent":
        raise UsageError("--agent-id is for --role agent")
    if args.agent_id and not _AGENT_ID.fullmatch(args.agent_id):
        raise UsageError("--agent-id takes letters, digits and . _ : @ - and *, 128 at most")
    if args.label and not _LABEL.fullmatch(args.label):
        raise UsageError("--label takes letters, digits, spaces and . _ : @ / -, 64 at most")
    token = new_token()
    entry = token_entry(token, Role(args.role), args.agent_id, args.label)

    def render(screen: Screen) -> None:
        screen.line("token, for the client's file (it is not shown again):")
        screen.line(token)
        screen.line("")
        screen.line("lines for the collector's security.tokens_file:")
        screen.line(entry)

    payload: TokenPayload = {"token": token, "digest": digest_token(token), "role": args.role, "entry_toml": entry}
    Output(as_json=args.json).result(payload, render)
    return 0


def add_fleet_options(parser: Parser) -> None:
    """Declare ``gpusonde fleet``."""
    parser.description = (
        "List the agents that stream to a collector, the hosts that they run on with what is free of them, or the "
        "trainings of encoders that it has queued; or ask agents to go to another collector. An agent goes only where "
        "its own uplink.allowed_targets lets a collector send it. 'list', 'drain' and --train need a certificate or "
        "token of the role admin."
    )
    parser.add_argument(
        "action",
        choices=["list", "hosts", "trainings", "drain"],
        help="list agents, their hosts or trainings of encoders, or end streams",
    )
    parser.add_argument("--agents", type=names, metavar="A,B", help="hosts, drain: of these agents")
    parser.add_argument(
        "--train", metavar="NAME", help="trainings: queue the one for this type of data first, again if it has ended"
    )
    parser.add_argument("--all", action="store_true", help="drain: every agent that streams now")
    parser.add_argument("--to", type=address, metavar="HOST:PORT", help="drain: where they should go (default: back)")
    add_collector_options(parser)


def run_fleet(args: argparse.Namespace) -> int:
    """Ask or order, and print."""
    from gpusonde.collector.client import FleetClient

    if args.train is not None and args.action != "trainings":
        raise UsageError("--train belongs to trainings")
    if (args.agents and args.action not in ("hosts", "drain")) or ((args.all or args.to) and args.action != "drain"):
        raise UsageError("--agents belongs to hosts and drain, --all and --to to drain")
    if args.action in ("hosts", "trainings"):
        from gpusonde.cli.workload.listings import list_hosts, list_trainings

        return list_hosts(args) if args.action == "hosts" else list_trainings(args)
    draining = args.action == "drain"
    if draining and bool(args.agents) == args.all:
        raise UsageError("drain needs --agents A,B or --all, not both")
    with FleetClient(args.collector, security=client_security(args)) as client:
        return _drain(args, client) if draining else _list(args, client)


def _list(args: argparse.Namespace, client: FleetClient) -> int:
    agents = client.list_agents()

    def render(screen: Screen) -> None:
        screen.line(f"{formatting.count(len(agents), 'agent')} {'streams' if len(agents) == 1 else 'stream'} to it")
        for agent in agents:
            throttled = ", throttled" if agent.throttled else ""
            screen.line(f"{agent.agent_id} on {agent.host_name or 'an unnamed host'} ({agent.identity}{throttled})")

    payload: FleetListPayload = {"agents": [dataclasses.asdict(agent) for agent in agents]}
    Output(as_json=args.json).result(payload, render)
    return 0


def _drain(args: argparse.Namespace, client: FleetClient) -> int:
    drained, absent = client.drain(None if args.all else args.agents, args.to or "")

    def render(screen: Screen) -> None:
        screen.line(
            f"{formatting.count(len(drained), 'agent')} asked to {f'go to {args.to}' if args.to else 'come back later'}"
        )
        if absent:
            screen.note(f"no open stream here: {', '.join(absent)}")

    payload: FleetDrainPayload = {"drained": list(drained), "absent": list(absent), "target": args.to}
    Output(as_json=args.json).result(payload, render)
    return 1 if absent else 0
