"""``gpusonde epochs``: the epochs of one run of a collector."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gpusonde.cli.errors import CommandError
from gpusonde.cli.output import Output, Screen
from gpusonde.cli.parsing import Parser, Subparsers, UsageError, add_collector_option, add_command

if TYPE_CHECKING:
    from gpusonde.collector.answers import RunInfo
    from gpusonde.collector.client import Client


class UnknownRunError(CommandError):
    """A run that the collector does not have."""


def add_parser(subparsers: Subparsers, common: Parser) -> None:
    """Declare ``gpusonde epochs``."""
    parser = add_command(subparsers, common, "epochs", "list the epochs of one run that a collector has seen")
    parser.add_argument("run", nargs="?", metavar="RUN", help="run; the beginning of its name is enough")
    parser.add_argument("--latest", action="store_true", help="the newest run")
    parser.add_argument("--withdrawn", action="store_true", help="also epochs that a later revision withdrew")
    add_collector_option(parser)


def run(args: argparse.Namespace) -> int:
    """Ask and print."""
    from gpusonde.cli.runs_view import epochs_payload, headline, render_epochs, run_payload
    from gpusonde.collector.client import Client

    if args.run is None and not args.latest:
        raise UsageError("name a RUN ('gpusonde runs' lists them), or use --latest")
    if args.run is not None and args.latest:
        raise UsageError("give a RUN or --latest, not both")
    with Client(args.collector) as client:
        chosen = find_run(client, args.run)
        found = client.list_epochs(chosen.run_id, include_withdrawn=args.withdrawn)

    def render(screen: Screen) -> None:
        screen.heading(f"run {chosen.run_id} on {chosen.product_name or chosen.gpu_uuid}: {headline(chosen)}")
        screen.line(found.reason)
        if found.epochs:
            screen.line()
            render_epochs(screen, chosen, found.epochs)

    Output(as_json=args.json).result(
        {"run": run_payload(chosen), "reason": found.reason, "epochs": epochs_payload(chosen, found)}, render
    )
    return 0


def find_run(client: Client, name: str | None) -> RunInfo:
    """The run of that name, or the only one whose name begins so; the newest one for None.

    Raises:
        UnknownRunError: There is none, or more than one.
    """
    runs = client.list_runs(limit=1 if name is None else None)
    if name is None:
        if not runs:
            raise UnknownRunError("the collector has seen no run yet; is an agent streaming to it?")
        return runs[0]
    # Every name begins with the empty one.
    begin = [run for run in runs if name and run.run_id.startswith(name)]
    found = [run for run in begin if run.run_id == name] or begin
    if len(found) != 1:
        what = f"{len(found)} runs begin with {name!r}: write more of it" if found else f"no run {name!r}"
        raise UnknownRunError(f"{what}; 'gpusonde runs' lists them")
    return found[0]
