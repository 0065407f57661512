"""``gpusonde``: parse the command line, run one subcommand, turn errors into one line and an exit code.

Exit codes: 0 done, 1 failed, 2 the command line was wrong, 130 interrupted, 141 the reader of stdout went away.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import logging
import os
import sys
import traceback
from collections.abc import MutableMapping, Sequence
from typing import cast

from gpusonde.cli.errors import Report, describe, one_line
from gpusonde.cli.output import to_json
from gpusonde.cli.parsing import CommandModule, Parser, UsageError, common_options
from gpusonde.service import process

COMMANDS = (
    "demo",
    "detect",
    "predict",
    "train",
    "workload",
    "plan",
    "monitor",
    "profile",
    "probe",
    "evaluate",
    "agent",
    "record",
    "spool",
    "collector",
    "store",
    "token",
    "fleet",
    "runs",
    "epochs",
    "gpus",
    "offers",
    "metrics",
)
# The daemons' news is worth a line without being asked for.
_DAEMONS = frozenset({"agent", "collector"})

EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 1, 2, 130, 141


def build_parser() -> Parser:
    """The parser with every subcommand. Importing the command modules does not import the components."""
    parser = Parser(
        prog="gpusonde",
        description="Training progress, epoch latency on any GPU and what to rent, from GPU hardware metrics alone.",
        epilog="'gpusonde COMMAND --help' explains a command; 'gpusonde demo' shows them all at work.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_PrintVersion, nargs=0, help="print the version and exit")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    common = common_options()
    for name in COMMANDS:
        command_module(name).add_parser(subparsers, common)
    return parser


class _PrintVersion(argparse.Action):
    """Look the version up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_unused: object) -> None:
        from importlib.metadata import version

        print(f"gpusonde {version('gpusonde')}")
        parser.exit()


def command_module(name: str) -> CommandModule:
    """Import the module of one subcommand."""
    return cast(CommandModule, importlib.import_module(f"gpusonde.cli.commands.{name}"))


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``gpusonde`` with the given arguments (the process's own by default) and return the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    replace_closed_streams()
    try:
        args = build_parser().parse_args(arguments)
    except UsageError as error:
        return _report_usage(error, as_json="--json" in arguments)
    except KeyboardInterrupt:
        # Importing the commands takes a moment, on a busy machine a long one.
        return _report_interrupt()
    spare_loopback_from_proxies(os.environ)
    level = logging.INFO if args.command in _DAEMONS else logging.WARNING
    process.configure(args.log_format or "text", verbose=args.verbose, level=level)
    return run(args)


def replace_closed_streams() -> None:
    """Give a process that was started without stdout or stderr (``>&-``) one that nobody reads."""
    # Python has None there, and print then writes what is meant for stderr to stdout.
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def spare_loopback_from_proxies(environment: MutableMapping[str, str]) -> None:
    """Keep gRPC from asking an HTTP proxy for a collector on this very host, which it does by itself."""
    if any(environment.get(name) for name in ("grpc_proxy", "https_proxy", "http_proxy")):
        # The first of the two that is set hides the other one.
        exempt = environment.get("no_grpc_proxy") or environment.get("no_proxy") or ""
        environment["no_grpc_proxy"] = ",".join(filter(None, (exempt, "localhost", "127.0.0.1", "::1")))


def run(args: argparse.Namespace) -> int:
    """Run the parsed subcommand inside the one error boundary of the command."""
    try:
        code = command_module(args.command).run(args)
        sys.stdout.flush()
    except UsageError as error:
        return _report_usage(error, as_json=args.json)
    except KeyboardInterrupt:
        return _report_interrupt()
    except BrokenPipeError:
        # The reader of our output has seen enough ("| head"). Flushing at exit would complain again.
        _forget_stdout()
        return EXIT_BROKEN_PIPE
    except Exception as error:
        if args.verbose:
            traceback.print_exc()
        return _report(describe(error, args.command), as_json=args.json, has_traceback=args.verbose)
    return code


def _report(report: Report, *, as_json: bool, has_traceback: bool) -> int:
    print(f"gpusonde: error: {report.message}", file=sys.stderr)
    if report.is_bug:
        hint = "please report it" if has_traceback else "please report it with the output of the same command --verbose"
        print(f"gpusonde: this is a fault in gpusonde: {hint}", file=sys.stderr)
    if as_json:
        _print_error_object(report)
    return EXIT_FAILED


def _report_usage(error: UsageError, *, as_json: bool) -> int:
    if error.usage:
        print(error.usage, file=sys.stderr)
    print(f"gpusonde: error: {one_line(str(error))}", file=sys.stderr)
    if as_json:
        _print_error_object(Report("UsageError", one_line(str(error))))
    return EXIT_USAGE


def _report_interrupt() -> int:
    print("interrupted", file=sys.stderr)
    return EXIT_INTERRUPTED


def _print_error_object(report: Report) -> None:
    try:
        print(to_json(report.payload()), flush=True)
    except OSError:
        # stdout itself is at fault (a full disk, a reader that went away); stderr has the message. What is left in the
        # buffer would fail again at exit.
        _forget_stdout()


def _forget_stdout() -> None:
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
