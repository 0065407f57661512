"""``gpusonde``: parse the command line, run one subcommand, turn errors into one line and an exit code.

Exit codes: 0 done, 1 failed, 2 the command line was wrong, 130 interrupted, 141 the reader of stdout went away.

Turning exceptions into one clear line, at the edge of the command.

Every exception class of gpusonde's own packages says what happened and what to do next: it is printed as it is. So are
the operating system's and gRPC's, translated into words. Anything else is a fault of ours and says so.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import traceback
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from gpusonde.cli.output import to_json
from gpusonde.cli.parsing import Parser, command_part, common_options
from gpusonde.errors import CommandError, UsageError
from gpusonde.service import process

# Distributions that only the "collector" extra brings; a bare agent host has none of them.
_COLLECTOR_EXTRA = frozenset(
    {"scipy", "pandas", "sklearn", "catboost", "pyarrow", "matplotlib", "rich", "grpc_health", "grpc_reflection"}
)
_EXTRAS = {**dict.fromkeys(_COLLECTOR_EXTRA, "collector"), "torch": "torch"}


class MissingExtraError(CommandError):
    """A subcommand needs a distribution that is not installed."""

    def __init__(self, module: str, command: str, extra: str = "collector") -> None:
        """Name the extra that brings ``module``."""
        super().__init__(
            f"'gpusonde {command}' needs {module}, which is not installed: run pip install 'gpusonde[{extra}]'"
        )


@dataclass(frozen=True)
class Report:
    """One error as the user sees it.

    Attributes:
        type: Name of the exception's class.
        message: What happened and what to do next; one line.
        file: The file at fault, or None.
        line: Its line, counted from 1, or None.
        field: The column, key or field at fault, or None.
        is_bug: Whether gpusonde did not expect this.
    """

    type: str
    message: str
    file: str | None = None
    line: int | None = None
    field: str | None = None
    is_bug: bool = False

    def payload(self) -> dict[str, Any]:
        """The object printed under ``--json``."""
        return {
            "error": {
                "type": self.type,
                "message": self.message,
                "file": self.file,
                "line": self.line,
                "field": self.field,
            }
        }


def describe(error: BaseException, command: str) -> Report:
    """Say what an exception means to the user of ``gpusonde COMMAND``."""
    name = type(error).__name__
    if isinstance(error, ModuleNotFoundError):
        root = (error.name or "").partition(".")[0]
        extra = _EXTRAS.get(root)
        if extra is not None:
            return Report("MissingExtraError", str(MissingExtraError(root, command, extra)))
    if _is_ours(error):
        file, line, field = (getattr(error, key, None) for key in ("path", "line", "field"))
        return Report(
            name,
            one_line(str(error)),
            file=None if file is None else str(file),
            line=line if isinstance(line, int) and line > 0 else None,
            field=field if isinstance(field, str) and field else None,
        )
    if isinstance(error, OSError):
        return Report(name, _describe_os_error(error), file=None if error.filename is None else str(error.filename))
    grpc = sys.modules.get("grpc")
    if grpc is not None and isinstance(error, grpc.RpcError):
        return Report(name, _describe_rpc_error(error))
    if isinstance(error, MemoryError):
        return Report(name, "out of memory")
    return Report(name, one_line(f"{name}: {error}"), is_bug=True)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file in errors about its content, which are raised by parts that do not know where it came from."""
    try:
        yield
    except (CommandError, ValueError) as error:
        if _is_ours(error) and getattr(error, "path", None) is None:
            vars(error)["path"] = str(path)
            if str(path) not in str(error):
                error.args = (f"{path}: {error}",)
        raise


def one_line(text: str) -> str:
    """Fold a message into one line."""
    return " ".join(text.split())


def _is_ours(error: BaseException) -> bool:
    return any(base.__module__.startswith("gpusonde.") for base in type(error).__mro__)


def _describe_os_error(error: OSError) -> str:
    reason = error.strerror or str(error) or type(error).__name__
    return f"{error.filename}: {reason}" if error.filename else one_line(reason)


def _describe_rpc_error(error: Any) -> str:
    code = getattr(error, "code", None)
    status = code().name if callable(code) and code() is not None else "UNKNOWN"
    details = getattr(error, "details", None)
    text = one_line((details() if callable(details) else None) or str(error))
    if status == "UNAVAILABLE":
        return f"the collector cannot be reached ({text}); is it running, and is --collector its address?"
    if status == "DEADLINE_EXCEEDED":
        return f"the collector did not answer in time ({text}); try again, or look at its log"
    return f"the collector refused ({status}): {text}"


# Where each command lives, below gpusonde.cli: ``add_NAME_parser`` and ``run_NAME``.
COMMANDS = {
    "demo": "demo.run",
    "detect": "commands.detect",
    "predict": "commands.predict",
    "train": "commands.train",
    "workload": "commands.workload",
    "plan": "commands.plan",
    "monitor": "commands.plan",
    "profile": "commands.profile",
    "probe": "commands.profile",
    "evaluate": "commands.evaluate",
    "agent": "commands.daemons",
    "record": "commands.record",
    "spool": "commands.spool",
    "collector": "commands.daemons",
    "store": "commands.store",
    "token": "commands.fleet",
    "fleet": "commands.fleet",
    "runs": "commands.epochs",
    "epochs": "commands.epochs",
    "gpus": "commands.catalog",
    "offers": "commands.catalog",
    "metrics": "commands.catalog",
}
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
    for name, module in COMMANDS.items():
        command_part(module, f"add_{name}_parser")(subparsers, common)
    return parser


class _PrintVersion(argparse.Action):
    """Look the version up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_unused: object) -> None:
        from importlib.metadata import version

        print(f"gpusonde {version('gpusonde')}")
        parser.exit()


def run_command(args: argparse.Namespace) -> int:
    """Run the subcommand that was parsed."""
    return cast(int, command_part(COMMANDS[args.command], f"run_{args.command}")(args))


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
        code = run_command(args)
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
