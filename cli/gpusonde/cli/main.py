"""``gpusonde``: parse the command line, run one subcommand, turn errors into one line and an exit code.

``COMMANDS`` is the table of everything that can be typed. A command's module, and all that it needs, is imported when
that command is named: ``gpusonde --help`` reads this file and nothing else of the product.

Exit codes: 0 done, 1 failed, 2 the command line was wrong, 130 interrupted, 141 the reader of stdout went away.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

from gpusonde.cli.parsing import HelpFormatter, Parser, Subparsers, add_output_options
from gpusonde.errors import UsageError

if TYPE_CHECKING:
    from types import ModuleType

    from gpusonde.cli.errors import ErrorReport


class Command(NamedTuple):
    """What can be typed after ``gpusonde``, or after a family of commands.

    Attributes:
        summary: Its line in ``--help``.
        module: Where it lives, below ``gpusonde.cli``: ``add_NAME_options(parser)`` and ``run_NAME(args)``; empty for
            a family.
        description: What a family's own ``--help`` says beyond the summary; a command's stands in its module.
        actions: The commands of a family.
        example: What its ``--help`` shows behind its name.
        tables: Whether it prints any.
    """

    summary: str
    module: str = ""
    description: str = ""
    actions: Mapping[str, Command] = {}
    example: str = ""
    tables: bool = True


COMMANDS: Mapping[str, Command] = {
    "demo": Command(
        "watch a training job from its GPU's metrics alone, from sampling to the best offer",
        "demo",
        example="--replay --out demo",
    ),
    "advise": Command(
        "say what a trace's job is, where it would run how fast and what to rent",
        "commands.advise",
        example="smi.csv --epochs 90 --deadline 24h",
    ),
    "view": Command(
        "show trace files on the collector's page, without a collector",
        "commands.view",
        example="smi.csv",
        tables=False,
    ),
    "detect": Command(
        "find the training epochs of one trace", "commands.detect", example="smi.csv --gpu 0 --plot epochs.png"
    ),
    "report": Command(
        "write one run into a file, for people or for Perfetto",
        "commands.report",
        example="smi.csv -o run.html",
        tables=False,
    ),
    "predict": Command(
        "predict the epoch latency of a run on other GPUs",
        "commands.predict",
        example="--trace smi.csv --targets A100,H100,T4 --plot gpus.png",
    ),
    "train": Command(
        "fit the epoch latency model on a table of runs or on a collector's store, or roll it back",
        "commands.train",
        example="runs.csv --out mine.gsm",
    ),
    "workload": Command(
        "predict training times from a network's graph, before anything has run",
        description="Predict training times from a network's graph, before anything has run: 'graph' takes the graph "
        "of a network on your side, 'predict' says how long its training steps take (docs/workload.md).",
        actions={
            "graph": Command(
                "write the graph of a network to a file that holds neither weights nor code",
                "workload.graph",
                example="zoo:resnet50 --out resnet50.json",
            ),
            "predict": Command(
                "predict how long training steps of networks take",
                "workload.predict",
                example="zoo:resnet50 --target-gpus A100,T4 --batch-size 32 --samples-per-epoch 1281167",
            ),
            "embed": Command(
                "turn networks into vectors and name the known networks most like them",
                "workload.embed",
                example="zoo:resnet50 --nearest 3",
            ),
            "fit": Command(
                "fit a model of training times on your own measurements",
                "workload.fit",
                example="steps.csv --out mine.gsm",
            ),
            "train": Command(
                "train the encoder that embeds networks of a type of data",
                "workload.train",
                example="--dataset images=runs.csv --out encoders",
                tables=False,
            ),
        },
    ),
    "plan": Command("say what to rent for a training job", "commands.plan", example="pareto job.toml --plot plans.png"),
    "monitor": Command(
        "watch a running job and say when another plan is better",
        "commands.monitor",
        example="job.toml --plan solution.json --progress progress.jsonl",
    ),
    "profile": Command(
        "time the steps of a PyTorch job and record when its gradients are ready",
        "commands.profile",
        example="train.py:job --out a10g.json",
    ),
    "probe": Command(
        "measure what allreduces reach between machines",
        "commands.profile",
        example="allreduce --fabric lab --out lab.json --rank 0 --world-size 2 --master 10.0.0.1:29500",
    ),
    "evaluate": Command(
        "score what gpusonde finds against what is known to be true",
        actions={
            "epochs": Command(
                "the epoch detector, on traces whose epochs are known",
                "evaluations.epochs",
                example="traces truth.json --plot-dir pictures",
            ),
            "predictor": Command(
                "the epoch latency predictor, on runs measured on several GPUs",
                "evaluations.predictor",
                example="runs.csv --protocol random",
            ),
            "workload": Command(
                "training times from networks' graphs, on steps that were measured",
                "evaluations.workload",
                example="steps.csv",
            ),
        },
    ),
    "agent": Command(
        "sample this host's GPUs and stream them to a collector",
        "commands.daemons",
        example="--collector collector.example:7433",
    ),
    "record": Command(
        "sample this host's GPUs into a trace file",
        "commands.record",
        example="trace.csv --duration-s 10m --interval-s 100ms",
        tables=False,
    ),
    "spool": Command(
        "list or check the spool of an agent",
        description="List or check the spool of an agent, beside which it may run.",
        actions={
            "ls": Command(
                "list the segments of a spool with their records, ticks and times",
                "commands.spool",
                example="/var/lib/gpusonde/spool",
            ),
            "fsck": Command(
                "check every byte of a spool; exit code 1 with findings",
                "commands.spool",
                example="/var/lib/gpusonde/spool",
            ),
        },
    ),
    "collector": Command(
        "take the agents' streams, keep them, find runs and epochs, answer questions",
        "commands.daemons",
        example="--config collector.toml",
        tables=False,
    ),
    "store": Command(
        "check, back up, compact, export or query a collector's data directory",
        actions={
            "fsck": Command(
                "read everything and say what is wrong; exit code 1 if anything is",
                "commands.store",
                example="/var/lib/gpusonde/store",
                tables=False,
            ),
            "backup": Command(
                "copy a data directory, also one in use, to go on from",
                "commands.store",
                example="/var/lib/gpusonde/store backup",
                tables=False,
            ),
            "compact": Command(
                "compact all segments now; no collector may be using the directory",
                "commands.store",
                example="/var/lib/gpusonde/store",
            ),
            "export": Command(
                "write samples into a trace file",
                "commands.store",
                example="/var/lib/gpusonde/store trace.parquet",
                tables=False,
            ),
            "sql": Command(
                "answer one SELECT with DuckDB (needs the extra 'sql')",
                "commands.store",
                example="/var/lib/gpusonde/store 'SELECT * FROM runs'",
            ),
        },
    ),
    "token": Command(
        "make a bearer token for an agent or a reader without a certificate",
        "commands.fleet",
        example="new --role reader --label dashboard",
        tables=False,
    ),
    "fleet": Command(
        "list a collector's agents, hosts and trainings of encoders, or send agents to another one",
        "commands.fleet",
        example="list --collector collector.example:7433",
    ),
    "runs": Command("list the runs that a collector has seen, newest first", "commands.epochs", example="--limit 10"),
    "jobs": Command(
        "say what jobs are doing, how far they are and when they will be done",
        "commands.jobs",
        example="4711 --total-epochs 90 --plot 4711.png",
    ),
    "top": Command(
        "watch the fleet and its jobs in a terminal",
        "commands.jobs",
        example="--collector collector.example:7433",
        tables=False,
    ),
    "idle": Command(
        "name the jobs whose GPUs may be taken away, and take them where told to", "commands.idle", example="--for 30m"
    ),
    "tell": Command(
        "write what jobs are doing where their users look: Slurm's comments, pods",
        "commands.tell",
        example="slurm --every 30s",
        tables=False,
    ),
    "epochs": Command(
        "list the epochs of one run that a collector has seen", "commands.epochs", example="--latest --total-epochs 90"
    ),
    "gpus": Command(
        "list the GPUs of the catalogue, or one with the source of every figure", "commands.catalog", example="A100"
    ),
    "offers": Command(
        "list the machines that can be rented, with their prices", "commands.catalog", example="--gpu T4"
    ),
    "prices": Command(
        "refresh the prices of machines from what their clouds publish",
        "commands.prices",
        example="aws --region us-east-1",
    ),
    "metrics": Command(
        "list the metrics that traces, files and options name, with their units", "commands.catalog", example="--csv"
    ),
}
# The daemons' news is worth a line without being asked for.
_DAEMONS = frozenset({"agent", "collector"})

EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 1, 2, 130, 141


def build_parser() -> Parser:
    """Make the parser of every command; a command's options are declared when it is named or completed."""
    parser = Parser(
        prog="gpusonde",
        description="Training progress, epoch latency on any GPU and what to rent, from GPU hardware metrics alone.",
        epilog="'gpusonde COMMAND --help' explains a command; 'gpusonde demo' shows them all at work.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_PrintVersion, nargs=0, help="print the version and exit")
    _add_commands(
        parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser), COMMANDS
    )
    return parser


def build_whole_parser() -> Parser:
    """Make the parser with the options of every command, for completions of shells and a page for man."""
    waiting = [whole := build_parser()]
    while waiting:
        parser = waiting.pop()
        parser.complete()
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                waiting.extend(action.choices.values())
    return whole


def _add_commands(subparsers: Subparsers, commands: Mapping[str, Command]) -> None:
    for name, command in commands.items():
        description = command.description or command.summary[:1].upper() + command.summary[1:] + "."
        parser = subparsers.add_parser(name, help=command.summary, description=description, allow_abbrev=False)
        if command.example:
            parser.epilog = f"example: {parser.prog} {command.example}"
            parser.formatter_class = HelpFormatter
        parser.declared_by(functools.partial(_declare, name, command))


def _declare(name: str, command: Command, parser: Parser) -> None:
    if command.actions:
        # The output options belong to the actions: argparse would overwrite those given before the action's name.
        actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=Parser)
        _add_commands(actions, command.actions)
        return
    module = load_module(command.module)
    add_output_options(parser, tables=command.tables)
    getattr(module, f"add_{name}_options")(parser)
    parser.set_defaults(handler=getattr(module, f"run_{name}"))


def load_module(name: str) -> ModuleType:
    """Import the module below ``gpusonde.cli`` that a command lives in."""
    return importlib.import_module(f"gpusonde.cli.{name}")


class _PrintVersion(argparse.Action):
    """Look the version up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_unused: object) -> None:
        from importlib.metadata import version

        print(f"gpusonde {version('gpusonde')}")
        parser.exit()


def run_command(args: argparse.Namespace) -> int:
    """Run the subcommand that was parsed."""
    return cast(int, args.handler(args))


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``gpusonde`` with the given arguments (the process's own by default) and return the exit code."""
    try:
        return _main(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:
        # Importing a command takes a moment, on a busy machine a long one.
        return _report_interrupt()


def _main(arguments: list[str]) -> int:
    replace_closed_streams()
    try:
        args = build_parser().parse_args(arguments)
    except UsageError as error:
        return _report_usage(error, as_json="--json" in arguments)
    # What its TLS library says of a handshake that failed is told in our own words.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    import logging

    from gpusonde.cli.output import RichScreen, TableFormat, TableScreen
    from gpusonde.service import process

    RichScreen.wide = args.wide
    TableScreen.chosen = TableFormat.CSV if args.csv else TableFormat.MARKDOWN if args.markdown else None

    level = logging.INFO if args.command in _DAEMONS else logging.WARNING
    process.configure("text", verbose=args.verbose, level=level)
    return run(args)


def replace_closed_streams() -> None:
    """Give a process that was started without stdout or stderr (``>&-``) one that nobody reads."""
    # Python has None there, and print then writes what is meant for stderr to stdout.
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


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
        from gpusonde.cli.errors import describe

        if args.verbose:
            import traceback

            traceback.print_exc()
        return _report(describe(error, args.command), as_json=args.json, has_traceback=args.verbose)
    return code


def _report(report: ErrorReport, *, as_json: bool, has_traceback: bool) -> int:
    from gpusonde.cli.output import complain

    complain(f"gpusonde: error: {report.message}")
    if report.is_bug:
        hint = "please report it" if has_traceback else "please report it with the output of the same command --verbose"
        complain(f"gpusonde: this is a fault in gpusonde: {hint}")
    if as_json:
        _print_error_object(report)
    return EXIT_FAILED


def _report_usage(error: UsageError, *, as_json: bool) -> int:
    from gpusonde.cli.errors import ErrorReport, one_line
    from gpusonde.cli.output import complain

    complain(f"gpusonde: error: {one_line(str(error))}")
    if error.usage:
        print(error.usage, file=sys.stderr)
    if as_json:
        _print_error_object(ErrorReport("UsageError", one_line(str(error))))
    return EXIT_USAGE


def _report_interrupt() -> int:
    print("interrupted", file=sys.stderr)
    return EXIT_INTERRUPTED


def _print_error_object(report: ErrorReport) -> None:
    from gpusonde.cli.output import to_json

    try:
        print(to_json(report.payload()), flush=True)
    except OSError:
        # stdout itself is at fault (a full disk, a reader that went away); stderr has the message. What is left in the
        # buffer would fail again at exit.
        _forget_stdout()


def _forget_stdout() -> None:
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
