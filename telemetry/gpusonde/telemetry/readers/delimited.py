"""Text files of separated values, read in blocks of lines: decoding, line numbers, caps that keep memory bounded.

``TimestampParser`` reads ISO 8601, nvidia-smi's local time and Unix seconds to nanoseconds; everything becomes whole
nanoseconds since 1970 first, so that differences are exact.
"""

from __future__ import annotations

import codecs
import csv
import datetime
import gzip
import os
import re
import stat
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, cast

import numpy as np
import numpy.typing as npt
import zstandard

from gpusonde.errors import TraceError, TraceFormatError, shown
from gpusonde.telemetry.trace import too_large

DEFAULT_MAX_BYTES = 2 << 30
MAX_LINE_CHARACTERS = 1 << 20
_CHUNK_BYTES = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True)
class LineBlock:
    """Some consecutive lines of a file, without their line ends.

    Attributes:
        first_line: Number of the first line, counted from 1.
        lines: The lines.
        ends_file: Whether these are the last lines of the file.
        terminated: False only in the last block of a file that does not end with a line feed.
    """

    first_line: int
    lines: list[str]
    ends_file: bool = False
    terminated: bool = True


def open_regular(path: str | os.PathLike[str], max_bytes: int) -> tuple[BinaryIO, int]:
    """Open a regular file and return it with its size; gzip and zstd are unpacked into a file without a name.

    Raises:
        OSError: The file cannot be opened.
        TraceFormatError: It is not a regular file (readers look at a file twice), empty, damaged, or larger than
            ``max_bytes``, also when inflated.
    """
    # Non-blocking, so that a FIFO is refused instead of waited for.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    status = os.fstat(descriptor)
    refusal: TraceError | None = None
    if not stat.S_ISREG(status.st_mode):
        refusal = TraceFormatError(path, "not a regular file; write the trace to a file first")
    elif status.st_size == 0:
        refusal = TraceFormatError(path, "the file is empty; a trace needs a header line and at least one tick")
    elif status.st_size > max_bytes:
        refusal = TraceFormatError(path, too_large(status.st_size, max_bytes))
    if refusal is not None:
        os.close(descriptor)
        raise refusal
    file = os.fdopen(descriptor, "rb")
    begins = file.read(len(_ZSTD_MAGIC))
    file.seek(0)
    if begins.startswith(_GZIP_MAGIC) or begins == _ZSTD_MAGIC:
        return _inflate(path, file, max_bytes, "gzip" if begins.startswith(_GZIP_MAGIC) else "zstd")
    return file, status.st_size


def _inflate(path: str | os.PathLike[str], compressed: BinaryIO, max_bytes: int, kind: str) -> tuple[BinaryIO, int]:
    inflated = cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115 - the caller closes it
    size = 0
    refusal = ""
    try:
        with compressed, _unpacker(compressed, kind) as source:
            while size <= max_bytes and (chunk := source.read(_CHUNK_BYTES)):
                size += len(chunk)
                inflated.write(chunk)
        if size > max_bytes:
            refusal = too_large(size, max_bytes, "bytes or more when unpacked")
        elif size == 0:
            refusal = "the file is empty; a trace needs a header line and at least one tick"
    except (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError) as error:
        refusal = f"the {kind} file is damaged or was cut: {error}; copy it again, or unpack what is left"
    except BaseException:
        inflated.close()
        raise
    if refusal:
        inflated.close()
        raise TraceFormatError(path, refusal)
    inflated.seek(0)
    return inflated, size


def _unpacker(compressed: BinaryIO, kind: str) -> BinaryIO:
    if kind == "gzip":
        return cast(BinaryIO, gzip.open(compressed))
    return cast(BinaryIO, zstandard.ZstdDecompressor().stream_reader(compressed, read_across_frames=True))


def blocks(path: str | os.PathLike[str], *, max_bytes: int = DEFAULT_MAX_BYTES) -> Iterator[LineBlock]:
    """Yield the lines of a UTF-8 or (by its byte order mark) UTF-16 text file, about a megabyte at a time.

    Reads up to the size that the file has when it is opened, so a log that still grows ends somewhere.

    Raises:
        OSError: The file cannot be read.
        TraceFormatError: Wrong encoding, NUL characters, a line of more than a million characters, or a file that is
            larger than ``max_bytes``.
    """
    file, left = open_regular(path, max_bytes)
    with file:
        # Windows PowerShell redirects into UTF-16; the "utf-16" codec takes the byte order from the mark and drops it.
        utf16 = file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        file.seek(0)
        encoding = "utf-16" if utf16 else "utf-8-sig"
        decoder = codecs.getincrementaldecoder(encoding)()
        line, rest = 1, ""
        while left > 0:
            chunk = file.read(min(_CHUNK_BYTES, left))
            left = left - len(chunk) if chunk else 0
            try:
                text = rest + decoder.decode(chunk, final=left == 0)
            except UnicodeDecodeError as error:
                before = bytes(error.object[: error.start]).decode(encoding, errors="replace")
                raise TraceFormatError(
                    path,
                    f"not {'UTF-16' if utf16 else 'UTF-8'} text; if this is a trace file, save it as UTF-8",
                    line=line + (rest + before).count("\n"),
                ) from None
            lines = text.split("\n")
            rest = lines.pop() if left else ""
            terminated = bool(left) or not lines[-1]
            if not left and terminated:
                lines.pop()
            if "\0" in text or max(map(len, (*lines, rest)), default=0) > MAX_LINE_CHARACTERS:
                raise _unreadable(path, line, [*lines, rest])
            if "\r" in text:
                lines = [item.rstrip("\r") for item in lines]
            if lines or not left:
                yield LineBlock(line, lines, ends_file=not left, terminated=terminated)
            line += len(lines)


def _unreadable(path: str | os.PathLike[str], first_line: int, lines: list[str]) -> TraceFormatError:
    for number, item in enumerate(lines, start=first_line):
        if "\0" in item:
            what = "NUL characters; the file is binary, or a crash left a hole in it: delete the line"
            return TraceFormatError(path, what, line=number)
        if len(item) > MAX_LINE_CHARACTERS:
            what = f"a line of more than {MAX_LINE_CHARACTERS:,} characters; this is not a trace file"
            return TraceFormatError(path, what, line=number)
    raise AssertionError("called for lines that can be read")


NANOSECONDS = 1_000_000_000

_DATE_TIME = re.compile(
    r"(\d{4})[-/](\d{2})[-/](\d{2})[T ](\d{2}):(\d{2}):(\d{2})(?:[.,](\d{1,9})\d*)?[ ]?(Z|UTC|[+-]\d{2}:?\d{2})?",
    re.ASCII,
)
_NUMBER = re.compile(r"\d{1,19}(?:\.\d*)?", re.ASCII)
_EPOCH_DAY = datetime.date(1970, 1, 1).toordinal()
# 1e11 seconds is the year 5138, 1e11 milliseconds is 1973: each unit owns three decades of digits.
_UNIX_UNITS = ((10**11, NANOSECONDS), (10**14, 1_000_000), (10**17, 1_000), (1 << 63, 1))

TIME_ZONE_NOTE = "not stated in the file; read as UTC"


@dataclass
class TimestampParser:
    """Parses the time stamps of one file.

    Attributes:
        zoned: Whether any time stamp stated its zone or was Unix time. Where none did, clock readings are taken as UTC.
    """

    zoned: bool = False
    _days: dict[str, int] = field(default_factory=dict)

    def nanoseconds(self, text: str) -> int:
        """Return whole nanoseconds since 1970.

        Raises:
            ValueError: The text is neither a date and time nor Unix time.
        """
        match = _DATE_TIME.fullmatch(text)
        if match is None:
            return self._unix(text)
        year, month, day, hour, minute, second, fraction, zone = match.groups()
        date = text[:10]
        days = self._days.get(date)
        if days is None:
            try:
                days = datetime.date(int(year), int(month), int(day)).toordinal() - _EPOCH_DAY
            except ValueError as error:
                raise ValueError(f"{shown(text)} is no date: {error}; correct it") from None
            self._days[date] = days
        # 60 is a leap second.
        if int(hour) > 23 or int(minute) > 59 or int(second) > 60:
            raise ValueError(f"{shown(text)} is no time of day; correct it")
        seconds = days * 86_400 + int(hour) * 3600 + int(minute) * 60 + int(second)
        if zone is not None:
            self.zoned = True
            if zone[0] in "+-":
                offset = int(zone[1:3]) * 3600 + int(zone[-2:]) * 60
                seconds += -offset if zone[0] == "+" else offset
        return _in_range(seconds * NANOSECONDS + (int(fraction.ljust(9, "0")) if fraction else 0), text)

    def parse(
        self,
        cells: Sequence[str],
        path: str | os.PathLike[str],
        lines: Sequence[int],
        field: str,
        place: str = "",
    ) -> npt.NDArray[np.int64]:
        """Return the nanoseconds since 1970 of the cells of one column, whose file, lines and name are given.

        Raises:
            TraceFormatError: One is no time stamp.
        """
        times = np.empty(len(cells), dtype=np.int64)
        for index, cell in enumerate(cells):
            try:
                times[index] = self.nanoseconds(cell)
            except ValueError as error:
                raise TraceFormatError(path, str(error), line=lines[index], field=field, place=place) from None
        return times

    def seconds(self, times: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.float64], float, dict[str, str]]:
        """Return seconds after the first of all times, its Unix time, and what a trace is to say of its time zone."""
        origin = int(times.min())
        attributes = {} if self.zoned else {"time_zone": TIME_ZONE_NOTE}
        # Rounded once.
        return np.asarray((times - origin) / NANOSECONDS, dtype=np.float64), origin / NANOSECONDS, attributes

    def _unix(self, text: str) -> int:
        if _NUMBER.fullmatch(text) is None:
            raise ValueError(
                f"{text[:60]!r} is no time stamp; write ISO 8601 (2025-07-26T23:32:09.703Z) or Unix time (1753572729.7)"
            )
        self.zoned = True
        whole, _, fraction = text.partition(".")
        scale = unix_scale(int(whole))
        digits = len(str(scale)) - 1
        return _in_range(int(whole) * scale + int(fraction[:digits].ljust(digits, "0") or "0"), text)


def _in_range(nanoseconds: int, text: str) -> int:
    if not -(1 << 63) <= nanoseconds < 1 << 63:
        raise ValueError(f"{shown(text)} lies outside of the years 1678 to 2262; correct it")
    return nanoseconds


def unix_scale(value: int) -> int:
    """Return how many nanoseconds one unit of a Unix time of this size stands for (s, ms, us or ns)."""
    return next((scale for limit, scale in _UNIX_UNITS if value < limit), 1)


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
        self._pending: LineBlock | None = None

    def read_header(self, *, headless: bool = False) -> None:
        """Read up to and including the header line; where there is none, columns are named ``1``, ``2`` and so on.

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
                    if headless:
                        self.header = [str(position) for position in range(1, len(self.header) + 1)]
                    below = index + (not headless)
                    self._pending = LineBlock(
                        block.first_line + below,
                        block.lines[below:],
                        ends_file=block.ends_file,
                        terminated=block.terminated,
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

    def _all_blocks(self) -> Iterator[LineBlock]:
        if self._pending is not None:
            yield self._pending
        yield from self._blocks

    def _data_lines(self, block: LineBlock) -> Iterator[tuple[int, str]]:
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
