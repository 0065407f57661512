"""``gpusonde evaluate``: what gpusonde finds against what is known to be true."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from gpusonde.cli.parsing import Parser, Subparsers, command_part

# Modules of gpusonde.cli.evaluations, which are made like those of the commands.
_SUBJECTS = ("epochs", "predictor", "workload")


def add_evaluate_parser(subparsers: Subparsers, common: Parser) -> None:
    """Declare ``gpusonde evaluate`` and what can be evaluated."""
    # The common options belong to the subjects: argparse would overwrite those given before the subject's name.
    parser = subparsers.add_parser(
        "evaluate",
        help="score what gpusonde finds against what is known to be true",
        description="Score what gpusonde finds against what is known to be true.",
        allow_abbrev=False,
    )
    subjects = parser.add_subparsers(dest="subject", metavar="SUBJECT", required=True, parser_class=Parser)
    for name in _SUBJECTS:
        command_part(f"evaluations.{name}", f"add_{name}_parser")(subjects, common)


def run_evaluate(args: argparse.Namespace) -> int:
    """Evaluate the subject that was named."""
    run: Callable[[argparse.Namespace], int] = command_part(f"evaluations.{args.subject}", f"run_{args.subject}")
    return run(args)
