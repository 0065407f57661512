"""Network namespaces on one bridge, each with a link of limited rate: machines with a slow network, on one host.

Needs root. The host's own interfaces are not touched: bridge and links are made inside of the namespaces, and vanish
with them.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

_PREFIX = "gpusonde-bench-"
_NAMES = Path("/run/netns")
_ADDRESS = "10.77.0.{}"
# What a link may send at once; small, so that small transfers are shaped too. Larger than one segment.
_BURST = "32kb"


class ShapedNetworkError(RuntimeError):
    """The namespaces cannot be made here; the message says why."""


class ShapedNetwork:
    """Namespaces while entered; the rate is that of what each sends.

    Args:
        machines: How many.

    Raises:
        ShapedNetworkError: On entering: no root, no iproute2, or a kernel that lacks something.
    """

    def __init__(self, machines: int) -> None:
        self._names = [f"{_PREFIX}{os.getpid()}-{place}" for place in range(machines)]
        self._bridge = f"{_PREFIX}{os.getpid()}-bridge"
        self._handler: Any = None

    def __enter__(self) -> ShapedNetwork:
        if os.geteuid() != 0:
            raise ShapedNetworkError("network namespaces need root")
        _remove_orphans()
        # Ended politely, Python would leave them behind.
        self._handler = signal.signal(signal.SIGTERM, _leave)
        try:
            self._make()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()
        signal.signal(signal.SIGTERM, self._handler)

    def shape(self, megabits_per_second: float) -> None:
        """Limit what every machine sends."""
        for name in self._names:
            _ip("netns", "exec", name, "tc", "qdisc", "replace", "dev", "eth0", "root", "tbf",
                "rate", f"{megabits_per_second}mbit", "burst", _BURST, "latency", "100ms")  # fmt: skip

    def inside(self, machine: int) -> list[str]:
        """Return what to put before a command that shall run on a machine."""
        return ["ip", "netns", "exec", self._names[machine]]

    @staticmethod
    def address(machine: int) -> str:
        """Return a machine's address; its interface is eth0."""
        return _ADDRESS.format(machine + 1)

    def _make(self) -> None:
        _ip("netns", "add", self._bridge)
        _ip("-n", self._bridge, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self._bridge, "link", "set", "bridge", "up")
        for place, name in enumerate(self._names):
            port = f"port{place}"
            _ip("netns", "add", name)
            _ip("-n", self._bridge, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("-n", self._bridge, "link", "set", port, "master", "bridge", "up")
            _ip("-n", name, "address", "add", f"{self.address(place)}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "link", "set", "lo", "up")
            # What hosts usually run; BBR would pause now and then to measure the link.
            _ip("-n", name, "route", "replace", _ADDRESS.format("0/24"), "dev", "eth0", "congctl", "cubic")

    def _remove(self) -> None:
        for name in (*self._names, self._bridge):
            if (_NAMES / name).exists():
                _ip("netns", "delete", name)


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _remove_orphans() -> None:
    """Delete what a run left behind that was killed."""
    for path in _NAMES.glob(f"{_PREFIX}*"):
        found = re.match(rf"{_PREFIX}(\d+)-", path.name)
        if found and not Path(f"/proc/{found.group(1)}").exists():
            _ip("netns", "delete", path.name)


def _ip(*arguments: str) -> None:
    try:
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise ShapedNetworkError("needs the command ip (iproute2)") from None
    if done.returncode:
        raise ShapedNetworkError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
