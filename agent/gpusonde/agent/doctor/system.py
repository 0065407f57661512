"""What the operating system tells of the NVIDIA driver, without any of its libraries."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

_VERSION = re.compile(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s")
_NODES = re.compile(r"nvidia(\d+|ctl)")


@dataclass(frozen=True)
class DeviceNode:
    """One of the driver's device files.

    Attributes:
        path: The file.
        accessible: Whether this user may read and write it.
    """

    path: str
    accessible: bool


@dataclass(frozen=True)
class SystemFacts:
    """The driver and this user's rights to it.

    Attributes:
        driver_version: Of the loaded kernel module; empty when none is loaded.
        profiling_admin_only: Whether the driver reserves profiling for root; None when it does not say.
        is_root: Whether this process runs as root.
        device_nodes: The driver's device files.
    """

    driver_version: str
    profiling_admin_only: bool | None
    is_root: bool
    device_nodes: tuple[DeviceNode, ...]


def read_system(proc: Path = Path("/proc/driver/nvidia"), dev: Path = Path("/dev")) -> SystemFacts:
    """Read the facts; what cannot be read stays empty.

    Args:
        proc: The driver's folder in procfs.
        dev: The folder of device files.
    """
    version = _VERSION.search(_text(proc / "version"))
    restricted = re.search(r"^RmProfilingAdminOnly:\s*(\d+)", _text(proc / "params"), re.MULTILINE)
    try:
        nodes = sorted(entry for entry in dev.iterdir() if _NODES.fullmatch(entry.name))
    except OSError:
        nodes = []
    return SystemFacts(
        driver_version=version.group(1) if version else "",
        profiling_admin_only=bool(int(restricted.group(1))) if restricted else None,
        is_root=os.geteuid() == 0,
        device_nodes=tuple(DeviceNode(str(node), os.access(node, os.R_OK | os.W_OK)) for node in nodes),
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
