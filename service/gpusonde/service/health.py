"""Whether a daemon works, and who is told: heartbeats of its parts, systemd's watchdog and notifications.

A process that runs is not one that works. Systemd kills and restarts a unit with ``WatchdogSec=`` that has been silent
for so long; the daemon speaks twice in that time, and only while every part of it moves.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import socket
import time
from collections.abc import Callable, Mapping

log = logging.getLogger(__name__)

_PATIENCE_S = 1.0


def notify(*states: str, environment: Mapping[str, str] = os.environ) -> None:
    """Send states of ``sd_notify(3)`` in one message, for example ``READY=1``; does nothing outside of systemd."""
    address = environment.get("NOTIFY_SOCKET", "")
    if not address:
        return
    # A leading "@" stands for the abstract namespace.
    path = "\0" + address[1:] if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            # The event loop calls this: a manager that does not read must not stop it for long.
            channel.settimeout(_PATIENCE_S)
            channel.sendto("\n".join(states).encode(), path)
    except OSError as error:
        log.warning("systemd cannot be told %s: %s", " ".join(states), error.strerror or error)


# Half of WatchdogSec in our units.
TOLERANCE_S = 15.0


class Heartbeat:
    """Tells whether one part of a daemon moves. Beaten by that part, checked from any thread.

    Args:
        part: What it is, for people: "the sampler".
        tolerance_s: How late it may be.
        clock: Monotonic seconds.
    """

    def __init__(
        self, part: str, tolerance_s: float = TOLERANCE_S, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._part = part
        self._tolerance_s = tolerance_s
        self._clock = clock
        self._due_s = clock()

    def beat(self, pause_s: float = 0.0) -> None:
        """Note that the part is alive and will beat again after at most ``pause_s`` and some work."""
        self._due_s = self._clock() + pause_s

    def disarm(self) -> None:
        """Expect no further beat: the part has ended as it should."""
        self._due_s = math.inf

    def check(self) -> str | None:
        """Return what is wrong, or None."""
        late_s = self._clock() - self._due_s
        return f"{self._part} has not moved for {late_s:.0f} s" if late_s > self._tolerance_s else None


def watchdog_s(environment: Mapping[str, str], process_id: int) -> float | None:
    """Return the time after which systemd takes this process for dead, or None when it does not watch.

    Args:
        environment: Holds ``WATCHDOG_USEC``, and ``WATCHDOG_PID`` to tell the daemon from its children.
        process_id: This process.
    """
    microseconds, owner = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not microseconds.isdigit() or int(microseconds) == 0 or (owner and owner != str(process_id)):
        return None
    return int(microseconds) / 1e6


class Watchdog:
    """Runs on the daemon's event loop: when that is stuck, systemd hears nothing either.

    Args:
        limit_s: After so much silence systemd acts; None when nobody watches.
        check: Returns what is wrong, or None.
        status: One line for ``systemctl status``.
        tell: Sends to systemd.
    """

    def __init__(
        self,
        limit_s: float | None,
        check: Callable[[], str | None],
        status: Callable[[], str],
        *,
        tell: Callable[..., None] = notify,
    ) -> None:
        self._limit_s = limit_s
        self._check = check
        self._status = status
        self._tell = tell
        self._said = ""

    async def run(self) -> None:
        """Ping twice per limit until cancelled; ends at once when nobody watches."""
        while self._limit_s is not None:
            self.ping()
            await asyncio.sleep(self._limit_s / 2)

    def ping(self) -> None:
        """Tell systemd that all is well, or, without a ping, what is not."""
        problem = self._check()
        if problem is None:
            self._tell("WATCHDOG=1", f"STATUS={self._status()}")
        else:
            self._tell(f"STATUS={problem}")
        if problem and not self._said:
            log.error("%s: systemd is not told that all is well, and will restart the service if it stays so", problem)
        elif self._said and not problem:
            log.info("all parts move again")
        self._said = problem or ""


def own_watchdog_s() -> float | None:
    """Return :func:`watchdog_s` of this process."""
    return watchdog_s(os.environ, os.getpid())
