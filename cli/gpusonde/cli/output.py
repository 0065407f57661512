"""What a subcommand prints: one JSON object, or text and tables for a reader.

Rich draws the tables where it is installed; a bare agent host gets the same tables as aligned plain text. With
``--csv`` or ``--markdown`` they come as that.
"""

from __future__ import annotations

import contextlib
import csv
import enum
import json
import math
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, ClassVar, NamedTuple, TextIO

from gpusonde.formatting import ABSENT, printable

# Tables that go to a file or pipe are not squeezed, unless COLUMNS says into what; with --wide into a terminal neither.
_WIDE = 10_000
# Between two columns of a Rich table.
_GAP = 3
_SAYS_NOTHING = ("", ABSENT)
# A column of longer cells is wrapped, to no less than this; a shorter one never.
_SHORT_TEXT = 18
# What JSON may hold as it is, but a terminal obeys or no encoding has.
_NOT_IN_JSON = re.compile("[\x7f-\x9f\ud800-\udfff]")


class JsonKey(NamedTuple):
    """What ``docs/cli.md`` says of a key of a JSON object, which is declared once, where the object is made.

    Such an object is a ``TypedDict`` whose keys are ``Annotated`` with this, so that types are checked and the page is
    written (``make docs``) from one place. Keys whose name says all are not.

    Attributes:
        meaning: What the name does not say; Markdown.
        unit: Its unit where the key's name does not tell it and it is no count or ratio: ``per second``.
        holds: Full name of the dataclass whose fields are the keys of the object, or of each in the list, where such a
            class is what the command got; its docstring tells of them.
    """

    meaning: str = ""
    unit: str = ""
    holds: str = ""


class Output:
    """The place that results go to. Logs and progress never come here: they belong to stderr."""

    def __init__(self, *, as_json: bool, stdout: TextIO | None = None, stderr: TextIO | None = None) -> None:
        """Write to the given streams, the process's own by default."""
        self.as_json = as_json
        self._stdout = stdout or sys.stdout
        self._stderr = stderr or sys.stderr

    def result(self, payload: Mapping[str, Any], render: Callable[[Screen], None]) -> None:
        """Print the result: ``payload`` under ``--json``, else whatever ``render`` draws."""
        try:
            if self.as_json:
                self._stdout.write(to_json(payload) + "\n")
            else:
                render(self.screen())
            self._stdout.flush()
        except OSError as error:
            error.filename = error.filename or "standard output"
            raise

    def screen(self) -> Screen:
        """The screen for people; under ``--json`` it is stderr, so that stdout stays one object."""
        return make_screen(self._stderr if self.as_json else self._stdout, self._stderr)

    @contextlib.contextmanager
    def progress(self, label: str, total: float | None = None) -> Iterator[Callable[[float], None]]:
        """Show a progress bar on a terminal's stderr; yields a function that sets how much is done."""
        if not (self._stderr.isatty() and _rich_is_installed()) or self.as_json:
            yield _ignore
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=Console(file=self._stderr), transient=True) as bar:
            task = bar.add_task(printable(label), total=total)
            yield lambda done: bar.update(task, completed=done)


class Screen:
    """Plain text on a stream."""

    def __init__(self, stream: TextIO) -> None:
        """Write to ``stream``."""
        self.stream = stream

    def line(self, text: str = "") -> None:
        """Print one line."""
        self.stream.write(printable(text) + "\n")
        self.stream.flush()

    def heading(self, text: str) -> None:
        """Print a heading."""
        self.line()
        self.line(text)

    def note(self, text: str) -> None:
        """Print a remark that matters: what was assumed, left out or generated."""
        self.line(text)

    def table(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        numeric: Sequence[str] = (),
        optional: Sequence[str] = (),
        naming: int = 1,
    ) -> None:
        """Print a table.

        Args:
            columns: Headings.
            rows: Cells, one per column.
            numeric: Columns to align to the right.
            optional: Columns to leave out first, in this order, while a terminal is too narrow for the table.
            naming: How many columns from the left name the row: they are neither left out nor wrapped.
        """
        rows = _printable(rows)
        widths = _widths(columns, rows)

        def joined(cells: Sequence[str]) -> str:
            aligned = [
                cell.rjust(width) if column in numeric else cell.ljust(width)
                for cell, width, column in zip(cells, widths, columns, strict=True)
            ]
            return "  ".join(aligned).rstrip()

        self.line(joined(columns))
        self.line("  ".join("-" * width for width in widths))
        for row in rows:
            self.line(joined(row))


class RichScreen(Screen):
    """The same through Rich: colours on a terminal, box-drawn tables.

    Attributes:
        wide: Whether tables keep all their columns, however narrow the terminal is.
    """

    wide: ClassVar[bool] = False

    def __init__(self, stream: TextIO) -> None:
        """Write to ``stream``."""
        super().__init__(stream)
        from rich.console import Console

        class PlainConsole(Console):
            """Rich would leave the process by itself when the reader of a pipe is gone."""

            def on_broken_pipe(self) -> None:
                raise BrokenPipeError

        self._console = PlainConsole(
            file=stream,
            width=_WIDE if self.wide or not (stream.isatty() or os.environ.get("COLUMNS", "").isdigit()) else None,
            highlight=False,
            markup=False,
            emoji=False,
        )

    def line(self, text: str = "") -> None:
        """Print one line; on a terminal it ends with a word."""
        self._print(text)

    def heading(self, text: str) -> None:
        """Print a heading."""
        self._console.print()
        self._print(text, "bold")

    def note(self, text: str) -> None:
        """Print a remark that matters."""
        self._print(text, "yellow")

    def _print(self, text: str, style: str | None = None) -> None:
        text = printable(text)
        if self.stream.isatty():
            # What is longer than a line, such as a path, stays whole for whoever copies it.
            indent = " " * (len(text) - len(text.lstrip(" ")))
            text = textwrap.fill(
                text, self._console.width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
            )
        self._console.print(text, style=style, soft_wrap=True)

    def table(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        numeric: Sequence[str] = (),
        optional: Sequence[str] = (),
        naming: int = 1,
    ) -> None:
        """Print a table."""
        from rich import box
        from rich.table import Table

        rows = _printable(rows)
        short = dict(zip(columns, _widths(columns, rows), strict=True))
        for name in columns[naming:]:
            # What is left out is told; in narrow columns it would be hard to read.
            if name not in numeric and name not in optional:
                short[name] = min(short[name], _SHORT_TEXT)
        named = columns[:naming]
        # What says nothing of any row is left out first, what stands next to the names last.
        spare = [
            name for i, name in enumerate(columns) if name not in named and all(row[i] in _SAYS_NOTHING for row in rows)
        ]
        spare += [name for name in optional if name not in (*spare, *named)]
        spare += [name for name in reversed(columns) if name not in (*spare, *named)]
        left_out: list[str] = []
        while len(left_out) < len(spare) and _total(short, left_out) > self._console.width:
            left_out.append(spare[len(left_out)])
        kept = [i for i, column in enumerate(columns) if column not in left_out]
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
        widths = _widths(columns, rows)
        for i in kept:
            table.add_column(
                columns[i],
                justify="right" if columns[i] in numeric else "left",
                no_wrap=widths[i] == short[columns[i]],
                min_width=short[columns[i]],
                overflow="fold",
            )
        for row in rows:
            table.add_row(*(row[i] for i in kept))
        width = self._console.width
        # A terminal narrower than the names wraps them itself; Rich would cut them.
        self._console.width = max(width, _total(short, left_out))
        with self._console.capture() as drawn:
            self._console.print(table)
        self._console.width = width
        for line in drawn.get().splitlines():
            self.stream.write(line.rstrip() + "\n")
        self.stream.flush()
        if left_out:
            told = ", ".join(column for column in columns if column in left_out)
            self.line(f"left out for width: {told}; --wide shows them")


class TableFormat(enum.Enum):
    """What tables are for besides reading them on a screen."""

    CSV = "csv"
    MARKDOWN = "markdown"


class TableScreen(Screen):
    """Tables for other programs: all their columns, one row per line; two tables have an empty line between them.

    Attributes:
        chosen: The format that the command line asks for; None for people.
    """

    chosen: ClassVar[TableFormat | None] = None

    def __init__(self, stream: TextIO, form: TableFormat, remarks: TextIO) -> None:
        """Write tables to ``stream``, what stands around them to ``remarks`` where the format has no place for it."""
        super().__init__(stream)
        self._form = form
        self._remarks = Screen(remarks if form is TableFormat.CSV else stream)
        self._tables = 0

    def line(self, text: str = "") -> None:
        """Print one line."""
        self._remarks.line(text)

    def heading(self, text: str) -> None:
        """Print a heading."""
        self._remarks.heading(text if self._form is TableFormat.CSV else f"**{text}**\n")

    def table(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        numeric: Sequence[str] = (),
        optional: Sequence[str] = (),
        naming: int = 1,
    ) -> None:
        """Print a table."""
        rows = _printable(rows)
        if self._tables or self._form is TableFormat.MARKDOWN:
            self.stream.write("\n")
        self._tables += 1
        if self._form is TableFormat.CSV:
            csv.writer(self.stream, lineterminator="\n").writerows([columns, *rows])
        else:
            marks = ["---:" if column in numeric else "---" for column in columns]
            for cells in (columns, marks, *rows):
                told = " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells)
                self.stream.write(f"| {told} |\n")
            self.stream.write("\n")
        self.stream.flush()


def make_screen(stream: TextIO, remarks: TextIO | None = None) -> Screen:
    """What the command line asks for, else a Rich screen where Rich is installed, else a plain one."""
    if TableScreen.chosen is not None:
        return TableScreen(stream, TableScreen.chosen, remarks or sys.stderr)
    return RichScreen(stream) if _rich_is_installed() else Screen(stream)


def complain(text: str) -> None:
    """Say on stderr what went wrong; on a terminal a line ends with a word."""
    (make_screen if sys.stderr.isatty() else Screen)(sys.stderr).line(text)


def to_json(payload: Mapping[str, Any]) -> str:
    """Serialise a result: NaN and infinities become null, arrays lists, enumerations their values."""
    text = json.dumps(_plain(payload), allow_nan=False, ensure_ascii=False)
    return _NOT_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return _plain(value.value)
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):  # NumPy arrays and scalars, without importing NumPy for those who have none
        return _plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    raise TypeError(f"a {type(value).__name__} has no place in a JSON result")


def _printable(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    return [[printable(cell) for cell in row] for row in rows]


def _widths(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(len(column), *(len(row[i]) for row in rows), 0) for i, column in enumerate(columns)]


def _total(widths: Mapping[str, int], left_out: Sequence[str]) -> int:
    kept = [width for column, width in widths.items() if column not in left_out]
    return sum(kept) + _GAP * (len(kept) - 1)


def _rich_is_installed() -> bool:
    return find_spec("rich") is not None


def _ignore(_done: float) -> None:
    """Progress that nobody watches."""
