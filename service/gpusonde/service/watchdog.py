"""``Watchdog``: tells systemd that the daemon works, and stops telling when it does not.

A process that runs is not one that works. Systemd kills and restarts a unit with ``WatchdogSec=`` that has been silent
for so long; the daemon speaks twice in that time, and only while every part of it moves.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from typing import Protocol

from gpusonde.service.notify import notify

log = logging.getLogger(__name__)


class Notify(Protocol):
    """See :func:`gpusonde.service.notify.notify`."""

    def __call__(self, *states: str) -> None:
        """Send states in one message."""


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
        trouble: What is wrong, or None.
        status: One line for ``systemctl status``.
        tell: Sends to systemd.
    """

    def __init__(
        self,
        limit_s: float | None,
        trouble: Callable[[], str | None],
        status: Callable[[], str],
        *,
        tell: Notify = notify,
    ) -> None:
        self._limit_s = limit_s
        self._trouble = trouble
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
        trouble = self._trouble()
        if trouble is None:
            self._tell("WATCHDOG=1", f"STATUS={self._status()}")
        else:
            self._tell(f"STATUS={trouble}")
        if trouble and not self._said:
            log.error("%s: systemd is not told that all is well, and will restart the service if it stays so", trouble)
        elif self._said and not trouble:
            log.info("all parts move again")
        self._said = trouble or ""


def own_watchdog_s() -> float | None:
    """Return :func:`watchdog_s` of this process."""
    return watchdog_s(os.environ, os.getpid())
