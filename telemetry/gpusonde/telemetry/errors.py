"""What can go wrong with a trace file: one exception per cause, each saying where and what to do next."""

from __future__ import annotations

import os

from gpusonde.telemetry.trace import TraceError

_SHOWN_CHARACTERS = 60


def shown(text: str) -> str:
    """Quote a piece of a file for a message: control characters escaped, long text cut."""
    return repr(text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}...")


class TraceFormatError(TraceError):
    """A file that is not a trace, or a place in it that cannot be read.

    Attributes:
        path: The file.
        line: Line in a text file, or row in a Parquet file, counted from 1; None when the whole file is meant.
        field: Name of the column, or None.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        what: str,
        *,
        line: int | None = None,
        field: str | None = None,
        place: str = "",
    ) -> None:
        """Keep the place; ``place`` is the word before the number, such as ``"row "`` (nothing for a line)."""
        self.path = os.fspath(path)
        self.line = line
        self.field = field
        position = "" if line is None else f":{place}{line}"
        column = "" if field is None else f"field {shown(field)}: "
        super().__init__(f"{self.path}{position}: {column}{what}")


class TraceTooLargeError(TraceError):
    """A trace file over the size limit of the reader."""

    def __init__(self, path: str | os.PathLike[str], size: int, limit: int, unit: str = "bytes") -> None:
        """Say both figures."""
        self.path = os.fspath(path)
        super().__init__(
            f"{self.path}: {size:,} {unit}, more than the limit of {limit:,}; cut the file into parts, "
            "or raise max_bytes of read_traces if the memory is there"
        )


class GpuChoiceError(TraceError):
    """A file with several GPUs of which none, or one that is not there, was chosen."""


class ParquetSupportError(TraceError):
    """A Parquet file was named, but pyarrow is not installed."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Name the extra that brings pyarrow."""
        self.path = os.fspath(path)
        super().__init__(
            f"{self.path}: Parquet files need pyarrow; install it with: pip install 'gpusonde[collector]', "
            "or use a .csv file"
        )
