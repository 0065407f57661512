"""``gpusonde token``: bearer tokens for agents and readers that have no certificate."""

from __future__ import annotations

import argparse
import re

from gpusonde.cli.output import Output, Screen
from gpusonde.cli.parsing import Parser, Subparsers, UsageError, add_command

_AGENT_ID = re.compile(r"[A-Za-z0-9._:@*-]{1,128}")
_LABEL = re.compile(r"[A-Za-z0-9 ._:@/-]{1,64}")


def add_token_parser(subparsers: Subparsers, common: Parser) -> None:
    """Declare ``gpusonde token``."""
    parser = add_command(
        subparsers,
        common,
        "token",
        "make a bearer token for an agent or a reader without a certificate",
        "Make a bearer token. It is printed once: put it alone into the file that uplink.token_file or --token-file "
        "names, and the [[token]] lines into the collector's security.tokens_file, which holds a digest only.",
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
    from gpusonde.collector.security.tokens import digest_of, new_token, token_entry

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

    payload = {"token": token, "digest": digest_of(token), "role": args.role, "entry_toml": entry}
    Output(as_json=args.json).result(payload, render)
    return 0
