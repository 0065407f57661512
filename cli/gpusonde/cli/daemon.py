"""What the two daemons have in common on the command line: a configuration file, and flags that override it."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gpusonde.cli.output import Output
from gpusonde.errors import UsageError
from gpusonde.service import process

if TYPE_CHECKING:
    from gpusonde.service.config import LogConfig


def add_config_options(parser: argparse.ArgumentParser, environment_prefix: str) -> None:
    """Declare the options around the configuration."""
    group = parser.add_argument_group(
        "configuration", f"Precedence: flags, then {environment_prefix}SECTION_NAME in the environment, then the file."
    )
    group.add_argument("--config", type=Path, metavar="FILE.toml", help="configuration file")
    group.add_argument("--check-config", action="store_true", help="check the configuration and exit")
    group.add_argument(
        "--print-config", action="store_true", help="print the configuration in effect as a commented file and exit"
    )
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.NAME=VALUE",
        help="override one setting (repeatable); --print-config lists them all",
    )


def overrides_of(args: argparse.Namespace, flags: Mapping[str, str | None]) -> dict[str, str]:
    """Collect what the command line overrides: ``--set`` first, then the flags that were given.

    Raises:
        UsageError: A ``--set`` without a name or without ``=``.
    """
    chosen: dict[str, str] = {}
    for setting in args.set:
        key, separator, value = setting.partition("=")
        if not separator or not key.strip():
            raise UsageError(f"--set {setting!r}: write SECTION.NAME=VALUE")
        chosen[key.strip()] = value.strip()
    return chosen | {key: value for key, value in flags.items() if value is not None}


@contextlib.contextmanager
def usage_errors_of_settings() -> Iterator[None]:
    """Tell settings that are wrong on the command line from those in a file or in the environment.

    Raises:
        UsageError: A flag or ``--set`` names no option, or its value is of the wrong kind.
    """
    from gpusonde.errors import ConfigError

    try:
        yield
    except ConfigError as error:
        if error.on_command_line:
            raise UsageError(str(error)) from error
        raise


def log_applier(args: argparse.Namespace) -> Callable[[LogConfig], None]:
    """Return what makes the log lines as a configuration says; ``--verbose`` and ``--log-format`` win over it."""

    def apply(config: LogConfig) -> None:
        if not args.verbose:
            process.set_level(config.level)
        if args.log_format is None:
            process.set_format(config.format)

    return apply


def show_config(args: argparse.Namespace, toml: str) -> int:
    """Print a configuration that was found to be good, or just that it is."""
    Output(as_json=args.json).result(
        {"config_file": None if args.config is None else str(args.config), "config_toml": toml},
        lambda screen: screen.line(toml.rstrip() if args.print_config else "the configuration is good"),
    )
    return 0
