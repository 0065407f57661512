"""Reader of the tables that ``nvidia-smi`` prints for people, one after another: ``nvidia-smi -l 1 > log``.

Each begins with its date, in local time and whole seconds; each GPU has two lines that matter::

    Thu Dec  4 01:22:31 2025
    |   0  NVIDIA GeForce GTX TITAN X     Off |   00000000:01:00.0 Off |                  N/A |
    | 22%   61C    P2              72W / 250W |     132MiB /  12288MiB |     57%      Default |
"""

from __future__ import annotations

import os
import re

from gpusonde.errors import TraceFormatError
from gpusonde.telemetry.readers.delimited import DEFAULT_MAX_BYTES, blocks
from gpusonde.telemetry.readers.records import Records

_DATE = re.compile(r"[A-Z][a-z]{2} ([A-Z][a-z]{2}) +(\d{1,2}) (\d{2}:\d{2}:\d{2}) (\d{4})\s*", re.ASCII)
_FRAME = re.compile(r"\+-{20}.*|\| NVIDIA-SMI .*")
_GPU = re.compile(r"\|\s+(?P<index>\d+)\s+(?P<name>\S.*?)\s+(?:On|Off|N/A)\s*\|\s*[0-9A-Fa-f:.]{7,}\s.*")
_VALUES = re.compile(
    r"\|\s*\S+\s+(?P<temperature>\d+|N/A)C?\s+P\d+\s+(?P<power>[\d.]+|N/A)\s*W?\s*/.*?\|"
    r"\s*(?P<memory>[\d.]+|N/A)\s*(?:MiB)?\s*/.*?\|\s*(?P<utilization>\d+|N/A)\s*%?\s.*"
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def is_table(line: str) -> bool:
    """Whether a log that begins with this line is made of such tables."""
    return _DATE.fullmatch(line) is not None or _FRAME.fullmatch(line) is not None


def read_smi_tables(path: str | os.PathLike[str], *, max_bytes: int = DEFAULT_MAX_BYTES) -> Records:
    """Read the tables as records; those of processes below them are passed over.

    Raises:
        OSError: The file cannot be read.
        TraceFormatError: No GPU stands in it, or it is larger than ``max_bytes``.
    """
    records = Records(path, max_bytes=max_bytes)
    stamp = ""
    gpu: re.Match[str] | None = None
    for block in blocks(path, max_bytes=max_bytes):
        for number, line in enumerate(block.lines, start=block.first_line):
            date = _DATE.fullmatch(line)
            if date is not None and date[1] in _MONTHS:
                stamp = f"{date[4]}-{_MONTHS.index(date[1]) + 1:02d}-{int(date[2]):02d}T{date[3]}"
                continue
            values = _VALUES.fullmatch(line) if gpu is not None else None
            if values is not None and gpu is not None:
                told = {
                    "gpu_index": gpu["index"],
                    "gpu_model": gpu["name"],
                    "power_watts": values["power"],
                    "gpu_utilization [%]": values["utilization"],
                    "framebuffer_used_bytes [MiB]": values["memory"],
                    "gpu_temperature_celsius": values["temperature"],
                }
                records.add(number, {**({"timestamp": stamp} if stamp else {}), **told})
                gpu = None
            else:
                gpu = _GPU.fullmatch(line) or None
    if not records.lines:
        raise TraceFormatError(
            path,
            "the table that nvidia-smi prints for people, but no GPU with its values in it; record with "
            "nvidia-smi --query-gpu=timestamp,index,power.draw,utilization.gpu,memory.used --format=csv -lms 100",
            line=1,
        )
    return records
