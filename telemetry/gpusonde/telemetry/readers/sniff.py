"""Which kind of trace file is this? Told by content."""

from __future__ import annotations

import csv
import os
import re
from enum import Enum

from gpusonde.telemetry.errors import TraceFormatError, shown
from gpusonde.telemetry.readers import dcgmi, nvidia_smi
from gpusonde.telemetry.readers.columns import TIME_S, TIMESTAMP
from gpusonde.telemetry.readers.delimited import guess_delimiter, split_row
from gpusonde.telemetry.readers.text import blocks, open_regular

_PARQUET_MAGIC = b"PAR1"
_NVIDIA_SMI_ROW = re.compile(r"\d{4}/\d{2}/\d{2} \d{2}:\d{2}:\d{2}(\.\d+)?\s*,")
_NVIDIA_SMI_DMON = re.compile(r"#\s*gpu\b")
_DCGMI_HEADER = re.compile(r"#\s*Entity")
_NUMBERS = re.compile(r"[-+0-9.eE,;\s]+")


class Format(Enum):
    """Kinds of trace files."""

    PARQUET = "Parquet file"
    OWN_CSV = "CSV file"
    NVIDIA_SMI = "nvidia-smi log"
    DCGMI_DMON = "dcgmi dmon log"


def sniff(path: str | os.PathLike[str], max_bytes: int) -> Format:
    """Return the format of a file.

    Raises:
        OSError: The file cannot be read.
        TraceFormatError: It is none of ours; the error quotes the line that shows it.
        TraceTooLargeError: The file is larger than ``max_bytes``.
    """
    file, _ = open_regular(path, max_bytes)
    with file:
        if file.read(len(_PARQUET_MAGIC)) == _PARQUET_MAGIC:
            return Format.PARQUET
    for block in blocks(path, max_bytes=max_bytes):
        for number, line in enumerate(block.lines, start=block.first_line):
            if not line.strip():
                continue
            if dcgmi.is_header(line):
                return Format.DCGMI_DMON
            if _NVIDIA_SMI_DMON.match(line):
                raise TraceFormatError(
                    path,
                    "this is a log of nvidia-smi dmon, which is not read; record with "
                    "nvidia-smi --query-gpu=timestamp,index,... --format=csv -lms 100, or with dcgmi dmon",
                    line=number,
                )
            if not line.startswith("#"):
                return _by_header(path, line, number)
    raise TraceFormatError(path, "no header line, only blank or comment lines; the first line must name the columns")


def _by_header(path: str | os.PathLike[str], line: str, number: int) -> Format:
    try:
        cells = split_row(line, guess_delimiter(line))
    except csv.Error as error:
        raise TraceFormatError(path, f"the header cannot be read: {error}", line=number) from None
    if TIME_S in cells:
        return Format.OWN_CSV
    if nvidia_smi.is_header(cells):
        return Format.NVIDIA_SMI
    if TIMESTAMP in cells:
        return Format.OWN_CSV
    if _NVIDIA_SMI_ROW.match(line):
        what = "an nvidia-smi log without a header; record it again without 'noheader' in --format=csv,noheader"
    elif dcgmi.is_row(line):
        what = "rows of dcgmi dmon without their header; keep the lines that begin with #Entity"
    elif _DCGMI_HEADER.search(line):
        what = (
            "a dcgmi dmon log with time stamps in an unknown form; record it again with "
            "dcgmi dmon ... | ts '%Y-%m-%dT%H:%M:%.S'"
        )
    elif _NUMBERS.fullmatch(line):
        what = "numbers in place of the names of the columns; put a header line above them, such as time_s,power_watts"
    else:
        what = (
            f"not a trace: {shown(line)} is no header with time_s or timestamp, nor one of nvidia-smi or dcgmi dmon "
            "(docs/trace_files.md shows the formats)"
        )
    raise TraceFormatError(path, what, line=number)
