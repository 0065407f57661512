"""``gpusonde workload``: training time from a network's graph, before anything has run."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from gpusonde.cli.parsing import Parser, Subparsers, command_part

# Modules of gpusonde.cli.workload, which are made like those of the commands.
_HOMES = {
    "graph": "graph",
    "predict": "predict",
    "embed": "embed",
    "fit": "train",
    "train": "train",
    "trainings": "train",
    "hosts": "remote",
}


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
    for name, module in _HOMES.items():
        command_part(f"workload.{module}", f"add_{name}_parser")(actions, common)


def run_workload(args: argparse.Namespace) -> int:
    """Do what was named."""
    run: Callable[[argparse.Namespace], int] = command_part(f"workload.{_HOMES[args.action]}", f"run_{args.action}")
    return run(args)
