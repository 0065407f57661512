"""Rows of separated values with their line numbers: what our own CSV and nvidia-smi's logs have in common."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gpusonde.telemetry.errors import TraceFormatError, shown
from gpusonde.telemetry.readers.text import DEFAULT_MAX_BYTES, Block, blocks


@dataclass(frozen=True)
class RowBlock:
    """Some rows of a file.

    Attributes:
        lines: Line number of each row, counted from 1.
        columns: One sequence of cells per column of the header.
        doubtful: True for the one row that may have been cut: the last, without a line end.
    """

    lines: list[int]
    columns: Sequence[Sequence[str]]
    doubtful: bool = False


class DelimitedFile:
    """A text file of one header line and rows below it. Comments (``#``), blank lines and repeated headers are skipped.

    Attributes:
        comments: Comment lines above the header, with their line numbers.
        header: Names of the columns, once ``read_header`` has run.
        header_line: Line of the header.
        delimiter: Separator of the cells.
        repeated_headers: Lines on which the header stands again, as far as the file was read.
        warnings: What was left out, as far as the file was read.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        is_message: Callable[[str], bool] = lambda _line: False,
    ) -> None:
        """Take the file; ``is_message`` tells lines that are a tool's messages instead of rows."""
        self.path = path
        self.comments: list[tuple[int, str]] = []
        self.header: list[str] = []
        self.header_line = 0
        self.delimiter = ","
        self.repeated_headers: list[int] = []
        self.warnings: list[str] = []
        self._is_message = is_message
        self._messages: list[int] = []
        self._blocks = blocks(path, max_bytes=max_bytes)
        self._pending: Block | None = None

    def read_header(self) -> None:
        """Read up to and including the header line.

        Raises:
            OSError: The file cannot be read.
            TraceFormatError: There is none, or a line cannot be read.
        """
        for block in self._blocks:
            for index, line in enumerate(block.lines):
                number = block.first_line + index
                if line.startswith("#"):
                    self.comments.append((number, line))
                elif line.strip() and not self._is_message(line):
                    self._take_header(line, number)
                    self._pending = Block(
                        number + 1, block.lines[index + 1 :], ends_file=block.ends_file, terminated=block.terminated
                    )
                    return
        raise TraceFormatError(self.path, "no header line; the first line must name the columns")

    def _take_header(self, line: str, number: int) -> None:
        self.delimiter = guess_delimiter(line)
        try:
            self.header = split_row(line, self.delimiter)
        except csv.Error as error:
            raise TraceFormatError(self.path, f"the header cannot be read: {error}", line=number) from None
        self.header_line = number

    def rows(self) -> Iterator[RowBlock]:
        """Yield the rows below the header.

        A last row with too few cells is left out with a warning: the file was cut there.

        Raises:
            OSError: The file cannot be read.
            TraceFormatError: A row that is not the last has another number of cells than the header, a quote is not
                closed, or there is no row at all.
        """
        any_rows = False
        held: tuple[int, list[str] | str] | None = None  # a bad row, forgiven if nothing comes after it
        doubtful: tuple[int, list[str]] | None = None
        for block in self._all_blocks():
            lines: list[int] = []
            rows: list[list[str]] = []
            for number, line in self._data_lines(block):
                if held is not None:
                    raise self._bad_row(*held)
                cells = self._split(line)
                if not isinstance(cells, list) or len(cells) != len(self.header):
                    held = (number, cells)
                elif block.ends_file and not block.terminated and number == block.first_line + len(block.lines) - 1:
                    doubtful = (number, cells)
                else:
                    lines.append(number)
                    rows.append(cells)
            if rows:
                any_rows = True
                yield RowBlock(lines, list(zip(*rows, strict=True)))
        if held is not None:
            if isinstance(held[1], list) and len(held[1]) > len(self.header):
                raise self._bad_row(*held)
            self.warnings.append(f"line {held[0]}: the last row is incomplete and was left out; the file was cut there")
        if doubtful is not None:
            any_rows = True
            yield RowBlock([doubtful[0]], [[cell] for cell in doubtful[1]], doubtful=True)
        if self._messages:
            self.warnings.append(
                f"{len(self._messages)} lines are messages of the tool, the first is line {self._messages[0]}; left out"
            )
        if not any_rows:
            raise TraceFormatError(
                self.path,
                "only a header, no complete row below it; a trace needs at least one tick",
                line=self.header_line,
            )

    def _all_blocks(self) -> Iterator[Block]:
        if self._pending is not None:
            yield self._pending
        yield from self._blocks

    def _data_lines(self, block: Block) -> Iterator[tuple[int, str]]:
        for number, line in enumerate(block.lines, start=block.first_line):
            if not line or line.isspace() or line.startswith("#"):
                continue
            if line.startswith(self.header[0]) and self._split(line) == self.header:
                self.repeated_headers.append(number)
            elif self._is_message(line):
                self._messages.append(number)
            else:
                yield number, line

    def _split(self, line: str) -> list[str] | str:
        try:
            return split_row(line, self.delimiter)
        except csv.Error as error:
            return str(error)

    def _bad_row(self, number: int, cells: list[str] | str) -> TraceFormatError:
        if isinstance(cells, str):
            return TraceFormatError(self.path, f"the row cannot be read: {cells}; correct its quotes", line=number)
        return TraceFormatError(
            self.path,
            f"{len(cells)} cells, but the header names {len(self.header)} columns (the row begins with "
            f"{shown(cells[0])}); complete or delete the row",
            line=number,
        )


def split_row(line: str, delimiter: str) -> list[str]:
    """Split one line into cells, honouring double quotes; white space around cells goes.

    Raises:
        csv.Error: A quote is not closed, or text follows a closing quote.
    """
    if '"' in line:
        reader = csv.reader([line], delimiter=delimiter, strict=True, skipinitialspace=True)
        return [cell.strip() for cell in next(reader)]
    return [cell.strip() for cell in line.split(delimiter)]


def guess_delimiter(header: str) -> str:
    """Return the separator of a header line: the most frequent of comma, semicolon and tab."""
    return max(",;\t", key=header.count)
