"""Argument parsing shared by all subcommands: usage errors as exceptions, common options, argument types."""

from __future__ import annotations

import argparse
import contextlib
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

from gpusonde.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

# Where the collector listens and the agent sends unless told otherwise.
DEFAULT_COLLECTOR = "127.0.0.1:7433"

Subparsers: TypeAlias = "argparse._SubParsersAction[Parser]"
_PICTURES = (".png", ".svg", ".pdf")

OptionGroup: TypeAlias = "argparse._ArgumentGroup"
_Number = TypeVar("_Number", int, float)


class HelpFormatter(argparse.HelpFormatter):
    """Keeps options whole, so that examples can be copied."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        import textwrap

        return textwrap.fill(" ".join(text.split()), width, break_on_hyphens=False)


class Parser(argparse.ArgumentParser):
    """An argument parser that raises ``UsageError`` instead of leaving the process, and learns its options late."""

    _declare: Callable[[Parser], None] | None = None

    def error(self, message: str) -> NoReturn:
        """Raise ``UsageError``."""
        raise UsageError(message, self.format_usage().strip())

    def declared_by(self, declare: Callable[[Parser], None]) -> None:
        """Have ``declare`` add the options when they are needed, and not before."""
        self._declare = declare

    def options(self) -> list[str]:
        """Return what options and arguments are called in what is parsed, in the order in which they were added."""
        return [action.dest for action in self._actions]

    def complete(self) -> None:
        """Add the options that wait for being needed."""
        declare, self._declare = self._declare, None
        if declare is not None:
            declare(self)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Complete the parser, then parse; leftovers are errors here, where the command's own usage is known."""
        self.complete()
        namespace, left = super().parse_known_args(args, namespace)
        if left:
            known = [option for action in self._actions for option in action.option_strings]
            hint = _guess(left[0].partition("=")[0], known)
            if self._subparsers is not None and left[0].startswith("-"):
                hint = "; options stand behind the command"
            self.error(f"unrecognized arguments: {' '.join(left)}{hint}")
        return namespace, left

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Guess what a misspelt command or choice means, in place of argparse's list of all."""
        choices = [str(choice) for choice in action.choices or ()]
        if choices and str(value) not in choices and (guess := _guess(str(value), choices)):
            raise argparse.ArgumentError(action, f"invalid choice: {str(value)!r}{guess}")
        super()._check_value(action, value)


def _guess(word: str, known: Sequence[str]) -> str:
    """Return a question for the known word that is the nearest, or nothing."""
    import difflib

    begins = [each for each in known if len(word) > len("--") and each.startswith(word)]
    nearest = begins[:1] or difflib.get_close_matches(word[:80], known, n=1, cutoff=0.6)
    return f"; did you mean {nearest[0]}?" if nearest else ""


def add_output_options(parser: Parser, *, tables: bool) -> None:
    """Declare the options that every command takes, and those of commands that print tables."""
    group = parser.add_argument_group("output")
    forms = group.add_mutually_exclusive_group()
    forms.add_argument("--json", action="store_true", help="print one JSON object on stdout (keys: docs/cli.md)")
    parser.set_defaults(csv=False, markdown=False, wide=False)
    if tables:
        forms.add_argument(
            "--csv", action="store_true", help="print tables as CSV, and what stands around them on stderr"
        )
        forms.add_argument("--markdown", action="store_true", help="print tables as Markdown")
        group.add_argument("--wide", action="store_true", help="print all columns of tables on narrow terminals, too")
    group.add_argument("--verbose", action="store_true", help="log debug messages; show tracebacks of errors")


def add_plot_option(parser: Parser | OptionGroup, what: str) -> None:
    """Declare ``--plot``."""
    parser.add_argument("--plot", type=_picture, metavar="PNG", help=f"also draw {what} into this file, or .svg, .pdf")


def _picture(text: str) -> Path:
    """Argument type: a file whose ending says how a picture is written."""
    from pathlib import Path

    path = Path(text)
    if path.suffix.lower() not in _PICTURES:
        raise argparse.ArgumentTypeError(f"{text!r} is no picture: end it with {', '.join(_PICTURES)}")
    return path


def positive_number(text: str) -> float:
    """Argument type: a finite number above zero."""
    value = _number(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not above zero")
    return value


def duration_s(text: str) -> float:
    """Argument type: a time above zero in seconds, from ``100ms``, ``1.5h`` or, in seconds, a number alone."""
    from gpusonde.service.config import parse_duration_s

    try:
        return positive_number(text)
    except argparse.ArgumentTypeError:
        try:
            value = parse_duration_s(text)
        except ConfigError:
            value = 0.0
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no time above zero; write 100ms, 1.5h or a number of seconds")
    return value


def time_since_s(text: str) -> float:
    """Argument type: the same, or 0."""
    with contextlib.suppress(argparse.ArgumentTypeError):
        if _number(text) == 0:
            return 0.0
    return duration_s(text)


def ratio(text: str) -> float:
    """Argument type: a finite number from 0 up."""
    value = _number(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is negative")
    return value


def positive_integer(text: str) -> int:
    """Argument type: a whole number above zero."""
    value = _whole(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not above zero")
    return value


def whole_number(text: str) -> int:
    """Argument type: zero or a positive whole number."""
    value = _whole(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is negative")
    return value


def at_most(kind: Callable[[str], _Number], most: _Number, what: str) -> Callable[[str], _Number]:
    """Argument type: a number of some kind that is not absurd; ``what`` says the largest in words."""

    def parse(text: str) -> _Number:
        value = kind(text)
        if value > most:
            raise argparse.ArgumentTypeError(f"{text[:40]!r} is too much: at most {what}")
        return value

    return parse


def names(text: str) -> list[str]:
    """Argument type: names separated by commas, at least one, none empty."""
    chosen = [part.strip() for part in text.split(",")]
    if not all(chosen):
        raise argparse.ArgumentTypeError(f"{text!r} holds an empty name; write them as A,B,C")
    return chosen


def address(text: str) -> str:
    """Argument type: HOST:PORT, with IPv6 hosts in brackets, or a ``unix:`` path."""
    if text.startswith("unix:"):
        return text
    host, separator, port = text.rpartition(":")
    if "://" in text:
        raise argparse.ArgumentTypeError(f"{text!r} is a URL; write HOST:PORT, for example {DEFAULT_COLLECTOR}")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise argparse.ArgumentTypeError(f"{text!r}: an IPv6 host stands in brackets, for example [::1]:7433")
    if not separator or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, for example {DEFAULT_COLLECTOR}")
    try:
        # As Python does before it asks a name server.
        host.encode("idna")
    except UnicodeError:
        raise argparse.ArgumentTypeError(
            f"{text[:80]!r}: no host has such a name; each part between dots has 1 to 63 characters"
        ) from None
    return text


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    return value


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
