"""The options that say how epochs are looked for, as ``detect`` and ``evaluate epochs`` take them."""

from __future__ import annotations

from gpusonde.cli.parsing import OptionGroup, Parser


def add_detection_options(parser: Parser) -> OptionGroup:
    """Add ``--metric`` and ``--mode`` and return their group, for what else belongs there."""
    group = parser.add_argument_group("detection")
    group.add_argument(
        "--metric", action="append", metavar="M", help="use this metric (repeatable; else those that tell most)"
    )
    group.add_argument(
        "--mode",
        choices=("default", "paper", "notebook"),
        default="default",
        help="our detector, the published method, or the one in its authors' notebook (default: default)",
    )
    return group
