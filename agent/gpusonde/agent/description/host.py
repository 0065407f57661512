"""Facts of the machine that the agent runs on."""

from __future__ import annotations

import os
import platform
import socket
from pathlib import Path

from gpusonde.agent.description.load import disk_bytes
from gpusonde.common.v1 import gpu_pb2

# Single-precision operations per cycle and core: lanes, times two units, times two for a fused multiply-add.
_OPERATIONS_PER_CYCLE = (
    ("avx512f", 64),
    ("fma", 32),
    ("avx", 16),
    ("asimd", 16),
    ("sse", 8),
)


def describe_host(
    proc: Path = Path("/proc"), cpus: Path = Path("/sys/devices/system/cpu"), files: Path = Path("/")
) -> gpu_pb2.Host:
    """Return the host's name and resources; what cannot be read stays empty.

    Args:
        proc: The kernel's facts.
        cpus: Its facts on processors.
        files: Where the agent keeps its files.
    """
    cores = _core_count(proc)
    return gpu_pb2.Host(
        host_name=socket.gethostname(),
        cpu_count=os.cpu_count() or 0,
        memory_bytes=_kibibytes(_value(proc / "meminfo", "MemTotal")) * 1024,
        kernel_release=platform.release(),
        cpu_model=_value(proc / "cpuinfo", "model name"),
        cpu_core_count=cores,
        cpu_flops=cores * _hertz(proc, cpus) * _operations_per_cycle(proc),
        disk_bytes=disk_bytes(files),
    )


def _core_count(proc: Path) -> int:
    """Cores, of which some processors show two or more; where that is not told, every processor is one."""
    cores = set()
    package = ""
    for name, value in _pairs(proc / "cpuinfo"):
        if name == "physical id":
            package = value
        elif name == "core id":
            cores.add((package, value))
    return len(cores) or sum(name == "processor" for name, _ in _pairs(proc / "cpuinfo"))


def _hertz(proc: Path, cpus: Path) -> float:
    """Highest clock; in virtual machines the one of now."""
    try:
        return float((cpus / "cpu0" / "cpufreq" / "cpuinfo_max_freq").read_text(encoding="ascii")) * 1e3
    except (OSError, ValueError):
        pass
    try:
        return float(_value(proc / "cpuinfo", "cpu MHz") or 0.0) * 1e6
    except ValueError:
        return 0.0


def _operations_per_cycle(proc: Path) -> int:
    known = set((_value(proc / "cpuinfo", "flags") or _value(proc / "cpuinfo", "Features")).split())
    return next((count for flag, count in _OPERATIONS_PER_CYCLE if flag in known), 0)


def _value(path: Path, key: str) -> str:
    return next((value for name, value in _pairs(path) if name == key), "")


def _pairs(path: Path) -> list[tuple[str, str]]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    parts = (line.partition(":") for line in text.splitlines())
    return [(name.strip(), value.strip()) for name, colon, value in parts if colon]


def _kibibytes(text: str) -> int:
    number = text.split(" ", 1)[0]
    return int(number) if number.isdecimal() else 0
