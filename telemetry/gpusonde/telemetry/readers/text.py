"""Reading text files in blocks of lines: decoding, line numbers and the caps that keep memory bounded."""

from __future__ import annotations

import codecs
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from gpusonde.telemetry.errors import TraceFormatError, TraceTooLargeError
from gpusonde.telemetry.trace import TraceError

DEFAULT_MAX_BYTES = 2 << 30
MAX_LINE_CHARACTERS = 1 << 20
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Block:
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
    """Open a regular file and return it with its size.

    Raises:
        OSError: The file cannot be opened.
        TraceFormatError: It is not a regular file (readers look at a file twice), or it is empty.
        TraceTooLargeError: It is larger than ``max_bytes``.
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
        refusal = TraceTooLargeError(path, status.st_size, max_bytes)
    if refusal is not None:
        os.close(descriptor)
        raise refusal
    return os.fdopen(descriptor, "rb"), status.st_size


def blocks(path: str | os.PathLike[str], *, max_bytes: int = DEFAULT_MAX_BYTES) -> Iterator[Block]:
    """Yield the lines of a UTF-8 or (by its byte order mark) UTF-16 text file, about a megabyte at a time.

    Reads up to the size that the file has when it is opened, so a log that still grows ends somewhere.

    Raises:
        OSError: The file cannot be read.
        TraceFormatError: Wrong encoding, NUL characters, or a line of more than a million characters.
        TraceTooLargeError: The file is larger than ``max_bytes``.
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
                yield Block(line, lines, ends_file=not left, terminated=terminated)
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
