"""Facts of the machine that the agent runs on."""

from __future__ import annotations

import os
import platform
import socket
from pathlib import Path

from gpusonde.common.v1 import gpu_pb2


def describe_host(proc: Path = Path("/proc")) -> gpu_pb2.Host:
    """Return the host's name and resources; what cannot be read stays empty."""
    return gpu_pb2.Host(
        host_name=socket.gethostname(),
        cpu_count=os.cpu_count() or 0,
        memory_bytes=_kibibytes(_value(proc / "meminfo", "MemTotal")) * 1024,
        kernel_release=platform.release(),
        cpu_model=_value(proc / "cpuinfo", "model name"),
    )


def _value(path: Path, key: str) -> str:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon and name.strip() == key:
            return value.strip()
    return ""


def _kibibytes(text: str) -> int:
    number = text.split(" ", 1)[0]
    return int(number) if number.isdecimal() else 0
