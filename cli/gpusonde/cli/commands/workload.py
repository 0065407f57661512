"""``gpusonde workload``: training time from a network's graph, before anything has run."""

from __future__ import annotations

import argparse
import importlib
from typing import cast

from gpusonde.cli.main import CommandModule, Parser, Subparsers

# Modules of gpusonde.cli.workload, which are made like those of the commands.
_ACTIONS = ("graph", "predict", "embed", "fit", "train", "trainings", "hosts")


def add_workload_parser(subparsers: Subparsers, common: Parser) -> None:
    """Declare ``gpusonde workload`` and what can be done."""
    # The common options belong to the actions: argparse would overwrite those given before the action's name.
    parser = subparsers.add_parser(
        "workload",
        help="predict training times from a network's graph, before anything has run",
        description="Predict training times from a network's graph, before anything has run: 'graph' takes the graph "
        "of a network on your side, 'predict' says how long its training steps take (docs/workload.md).",
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=Parser)
    for name in _ACTIONS:
        _module(name).add_parser(actions, common)


def run_workload(args: argparse.Namespace) -> int:
    """Do what was named."""
    return _module(args.action).run(args)


def _module(action: str) -> CommandModule:
    return cast(CommandModule, importlib.import_module(f"gpusonde.cli.workload.{action}"))
