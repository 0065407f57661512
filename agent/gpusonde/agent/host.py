"""The host that the agent runs on: its facts, and what it is doing (``HostLoadReader``, the kernel's counters)."""

from __future__ import annotations

import os
import platform
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gpusonde.common.v1 import gpu_pb2

_SECTOR_BYTES = 512
# These are made of others, or of memory.
_NO_DISKS = ("loop", "ram", "zram", "dm-", "md", "sr", "fd")


@dataclass(frozen=True)
class _Counts:
    """Counters at one time, in seconds, sectors and milliseconds as the kernel counts them."""

    at_s: float
    cpu_total: int = 0
    cpu_idle: int = 0
    disk_sectors: int = 0
    disk_busy_ms: dict[str, int] = field(default_factory=dict)


class HostLoadReader:
    """Reads means since the last reading; the first one has none.

    Args:
        files: Where the agent keeps its files.
        proc: The kernel's counters.
        blocks: The kernel's disks.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        files: Path,
        proc: Path = Path("/proc"),
        blocks: Path = Path("/sys/block"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._files = files
        self._proc = proc
        self._blocks = blocks
        self._clock = clock
        self._before: _Counts | None = None

    def read(self) -> gpu_pb2.HostLoad:
        """Return the load; what cannot be read stays unset."""
        load = gpu_pb2.HostLoad()
        available = _available_memory_bytes(self._lines("meminfo"))
        if available is not None:
            load.available_memory_bytes = available
        free = free_disk_bytes(self._files)
        if free is not None:
            load.free_disk_bytes = free
        before, now = self._before, self._counts()
        self._before = now
        if before is not None:
            _means(load, before, now)
        return load

    def _counts(self) -> _Counts:
        total = idle = sectors = 0
        busy: dict[str, int] = {}
        for line in self._lines("stat"):
            if line.startswith("cpu "):
                # user, nice, system, idle, iowait, irq, softirq, steal; the rest is part of the first two.
                ticks = _numbers(line.split()[1:9])
                total, idle = sum(ticks), sum(ticks[3:5])
        for line in self._lines("diskstats"):
            words = line.split()
            if len(words) < 13 or words[2].startswith(_NO_DISKS) or not (self._blocks / words[2]).exists():
                continue
            read, written, busy_ms = _numbers([words[5], words[9], words[12]])
            sectors += read + written
            busy[words[2]] = busy_ms
        return _Counts(self._clock(), total, idle, sectors, busy)

    def _lines(self, name: str) -> list[str]:
        try:
            return (self._proc / name).read_text(encoding="ascii", errors="replace").splitlines()
        except OSError:
            return []


def disk_bytes(files: Path) -> int:
    """Return the size of the file system that a file is on; 0 where nobody knows."""
    try:
        found = os.statvfs(files)
    except OSError:
        return 0
    return found.f_blocks * found.f_frsize


def free_disk_bytes(files: Path) -> int | None:
    """Return the free space of the file system that a file is on."""
    try:
        found = os.statvfs(files)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def _available_memory_bytes(lines: list[str]) -> int | None:
    for line in lines:
        words = line.split()
        if words[:1] == ["MemAvailable:"] and len(words) > 1 and words[1].isdecimal():
            return int(words[1]) * 1024
    return None


def _numbers(words: list[str]) -> list[int]:
    return [int(word) if word.isdecimal() else 0 for word in words]


def _means(load: gpu_pb2.HostLoad, before: _Counts, now: _Counts) -> None:
    ticks = now.cpu_total - before.cpu_total
    if ticks > 0:
        load.cpu_busy_ratio = min(1.0, max(0.0, 1.0 - (now.cpu_idle - before.cpu_idle) / ticks))
    seconds = now.at_s - before.at_s
    disks = [name for name in now.disk_busy_ms if name in before.disk_busy_ms]
    if seconds <= 0 or not disks or len(disks) != len(before.disk_busy_ms):
        return
    load.disk_bytes_per_second = max(0, now.disk_sectors - before.disk_sectors) * _SECTOR_BYTES / seconds
    busiest_ms = max(now.disk_busy_ms[name] - before.disk_busy_ms[name] for name in disks)
    load.disk_busy_ratio = min(1.0, max(0.0, busiest_ms / 1e3 / seconds))


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
    """Count cores, of which some processors show two or more; where that is not told, every processor is one."""
    cores = set()
    package = ""
    for name, value in _pairs(proc / "cpuinfo"):
        if name == "physical id":
            package = value
        elif name == "core id":
            cores.add((package, value))
    return len(cores) or sum(name == "processor" for name, _ in _pairs(proc / "cpuinfo"))


def _hertz(proc: Path, cpus: Path) -> float:
    """Return the highest clock; in virtual machines the one of now."""
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
