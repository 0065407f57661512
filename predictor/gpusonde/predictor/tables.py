"""Tables of measurements: CSV files whose cells know file, line and column, and say so when they are wrong."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from gpusonde.errors import TableError

_T = TypeVar("_T")
_LONGEST_TEXT = 40
_LARGEST_COUNT = 1e12
_LINE_BREAK = re.compile(r"\r\n|\r|\n")
_TOO_MANY = re.compile(r"Expected (\d+) fields in line (\d+), saw (\d+)")


@dataclass(frozen=True)
class TableLimits:
    """How large a table may be.

    Attributes:
        file_bytes: Size of the file.
        rows: Rows behind the heading.
        line_characters: Length of one line.
    """

    file_bytes: int = 256 << 20
    rows: int = 200_000
    line_characters: int = 1 << 20


@dataclass(frozen=True)
class Row:
    """One row of a table.

    Attributes:
        path: The file.
        line: Line in it on which the row ends, 1 is the heading.
        cells: Column -> text, without blanks around it.
    """

    path: Path
    line: int
    cells: Mapping[str, str]

    def text(self, column: str) -> str:
        """Return a cell; empty where the table has no such column."""
        return self.cells.get(column, "")

    def number(self, column: str, *, above: float = -math.inf, below: float = math.inf) -> float:
        """Return a finite number.

        Args:
            column: The cell's column.
            above: It must be larger than this.
            below: It must be smaller than this.

        Raises:
            TableError: The cell holds none.
        """
        text = self.text(column)
        try:
            value = float(text)
        except ValueError:
            raise self.error(f"{self._quote(text)} is not a number", column) from None
        if not above < value < below:
            wanted = "positive and finite" if above == 0 else f"above {above:g}" if above > -math.inf else "finite"
            raise self.error(f"{self._quote(text)} must be {wanted}", column)
        return value

    def count(self, column: str, default: int | None = None) -> int:
        """Return a whole number of at least 1, or the default for an empty cell.

        Raises:
            TableError: The cell holds none.
        """
        if default is not None and not self.text(column):
            return default
        value = self.number(column, above=0, below=_LARGEST_COUNT)
        if value != int(value):
            raise self.error(f"{self._quote(self.text(column))} must be a whole number of at least 1", column)
        return int(value)

    def choice(self, column: str, known: Mapping[str, _T]) -> _T:
        """Return what a cell's text stands for.

        Raises:
            TableError: It is none of the known ones.
        """
        text = self.text(column)
        if text not in known:
            raise self.error(f"{self._quote(text)} is unknown; use {', '.join(known)}", column)
        return known[text]

    def error(self, problem: str, column: str | None = None) -> TableError:
        """Make the error that names this row; ``problem`` says what is wrong and what to do."""
        return TableError(problem, path=self.path, line=self.line, field=column)

    @staticmethod
    def _quote(text: str) -> str:
        return repr(text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}...")


@dataclass(frozen=True)
class Table:
    """A table that was read.

    Attributes:
        path: The file.
        heading: Names of the columns.
        rows: All rows but empty lines.
    """

    path: Path
    heading: tuple[str, ...]
    rows: tuple[Row, ...]


def read_table(path: str | Path, *, required: Collection[str] = (), limits: TableLimits | None = None) -> Table:
    """Read a CSV file with a heading, in UTF-8.

    Args:
        path: The file; a pipe or a device is read no further than the limits allow.
        required: Columns that must be there.
        limits: How large it may be.

    Raises:
        TableError: It is no such table, is too large, or a row has another number of fields than the heading.
        OSError: It cannot be read.
    """
    path, limits = Path(path), limits or TableLimits()
    every = _parse(path, _read_text(path, limits), limits)
    heading = tuple(cell.strip() for cell in every[0]) if every else ()
    _check_heading(path, heading, required)
    rows: list[Row] = []
    line = 1 + _count_line_breaks(every[0] if every else ())
    for cells in every[1:]:
        line += 1 + _count_line_breaks(cells)
        if not cells:
            continue
        if len(rows) == limits.rows:
            raise TableError(f"more than {limits.rows} rows; split it", path=path, line=line)
        if len(cells) != len(heading):
            raise TableError(_describe_width(len(cells), len(heading)), path=path, line=line)
        named = {name: cell.strip() for name, cell in zip(heading, cells, strict=True)}
        rows.append(Row(path, line, named))
    return Table(path, heading, tuple(rows))


def _parse(path: Path, text: str, limits: TableLimits) -> list[list[str]]:
    """Return the cells of every line, the heading's first; an empty line has none."""
    # A quarter of a second, which only who reads a table pays.
    import pandas as pd  # noqa: PLC0415

    try:
        frame = pd.read_csv(
            io.StringIO(text, newline=""),
            header=None,
            dtype=str,
            # Cells stay as they are written; only those that a line lacks are NaN, which the C engine does not tell.
            na_filter=False,
            engine="python",
            skip_blank_lines=False,
            nrows=limits.rows + 2,
        )
    except pd.errors.EmptyDataError:
        return []
    except pd.errors.ParserError as error:
        found = _TOO_MANY.search(str(error))
        if found:
            wanted, line, width = (int(number) for number in found.groups())
            raise TableError(_describe_width(width, wanted), path=path, line=line) from error
        raise TableError(f"not a CSV text file ({error})", path=path, line=len(text.splitlines())) from error
    return [[cell for cell in row if isinstance(cell, str)] for row in frame.to_numpy()]


def _describe_width(width: int, wanted: int) -> str:
    return f"{width} fields where the heading has {wanted}: a truncated line?"


def _count_line_breaks(cells: Sequence[str]) -> int:
    return sum(len(_LINE_BREAK.findall(cell)) for cell in cells)


def _check_heading(path: Path, heading: Sequence[str], required: Collection[str]) -> None:
    if not any(heading):
        raise TableError("empty file; a heading with the column names is needed", path=path, line=1)
    seen: set[str] = set()
    for name in heading:
        if name in seen:
            raise TableError("the column is there twice; remove one", path=path, line=1, field=name)
        seen.add(name)
    for name in required:
        if name not in seen:
            raise TableError("the column is missing; every row needs it", path=path, line=1, field=name)


def _read_text(path: Path, limits: TableLimits) -> str:
    with path.open("rb") as file:
        data = file.read(limits.file_bytes + 1)
    if len(data) > limits.file_bytes:
        raise TableError(f"larger than {limits.file_bytes} bytes; split it", path=path)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise TableError("not UTF-8, not a CSV text file", path=path, line=line) from error
    for number, line_text in enumerate(io.StringIO(text, newline=""), start=1):
        if len(line_text) > limits.line_characters:
            problem = f"longer than {limits.line_characters} characters: not a table"
            raise TableError(problem, path=path, line=number)
        if "\0" in line_text:
            raise TableError("holds a NUL character: not a CSV text file", path=path, line=number)
    return text
