"""``gpusonde evaluate``: what gpusonde finds against what is known to be true."""

from __future__ import annotations

import argparse
import importlib
from typing import cast

from gpusonde.cli.main import CommandModule, Parser, Subparsers

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
        _module(name).add_parser(subjects, common)


def run_evaluate(args: argparse.Namespace) -> int:
    """Evaluate the subject that was named."""
    return _module(args.subject).run(args)


def _module(subject: str) -> CommandModule:
    return cast(CommandModule, importlib.import_module(f"gpusonde.cli.evaluations.{subject}"))
