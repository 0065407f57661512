"""``Reloader``: a new configuration at SIGHUP, without a break in what the daemon does.

The new one is read and checked as a whole before anything changes. What cannot change while the daemon runs is named
in the log and waits for a restart. Signals that come during a reload lead to one more after it, however many they are.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from prometheus_client.metrics_core import Metric

from gpusonde.service import metrics
from gpusonde.service.config import Configuration, LogConfig, take_over
from gpusonde.service.health import notify

log = logging.getLogger(__name__)

_C = TypeVar("_C", bound=Configuration)


@dataclass(frozen=True)
class ConfigSource(Generic[_C]):
    """Where a daemon's configuration comes from, again and again.

    Attributes:
        load: Reads it anew: file, environment and flags.
        apply_log: Makes the process's log lines what the configuration says.
    """

    load: Callable[[], _C]
    apply_log: Callable[[LogConfig], None] = lambda _: None


@dataclass
class ReloadCounters:
    """What became of the reloads."""

    succeeded: int = 0
    failed: int = 0
    last_successful: bool = True

    def families(self, prefix: str) -> Iterable[Metric]:
        """Return the metrics of a daemon whose names begin with ``prefix``."""
        yield metrics.counters(
            f"{prefix}_config_reloads",
            "Configurations read anew at SIGHUP.",
            "result",
            {"success": self.succeeded, "failure": self.failed},
        )
        yield metrics.gauge(
            f"{prefix}_config_last_reload_successful",
            "Whether the latest configuration could be used; the one before stays in force if not.",
            float(self.last_successful),
        )


class Reloader(Generic[_C]):
    """Keeps a daemon's configuration in force.

    Args:
        running: The configuration that the daemon was started with.
        load: Reads the configuration anew.
        live: Options that can change while the daemon runs, as ``section.name``.
        apply: Called on the event loop with the configuration that is to hold and the options that change. It must
            raise before it changes anything, or not at all.
        counters: Filled with what became of it.
        tell: Sends to systemd.
        clock_ns: The monotonic clock, which systemd compares.
    """

    def __init__(
        self,
        running: _C,
        load: Callable[[], _C],
        live: Collection[str],
        apply: Callable[[_C, frozenset[str]], Awaitable[None]],
        counters: ReloadCounters,
        *,
        tell: Callable[..., None] = notify,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.config = running
        self._load = load
        self._live = live
        self._apply = apply
        self._counters = counters
        self._tell = tell
        self._clock_ns = clock_ns
        self._wanted = asyncio.Event()

    def request(self) -> None:
        """Ask for a reload; call it on the event loop."""
        self._wanted.set()

    async def run(self) -> None:
        """Reload whenever asked to, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            await self._reload()

    async def _reload(self) -> None:
        self._tell("RELOADING=1", f"MONOTONIC_USEC={self._clock_ns() // 1000}")
        try:
            # In a thread: the file may lie on a file system that does not answer.
            wanted = await asyncio.get_running_loop().run_in_executor(None, self._load)
            takeover = take_over(self.config, wanted, self._live)
            await self._apply(takeover.config, takeover.taken)
        except Exception as error:  # whatever is wrong with the new one, the old one works
            self._counters.failed += 1
            self._counters.last_successful = False
            log.error("SIGHUP: the configuration stays as it was: %s", error)  # noqa: TRY400 - the file is at fault
            self._tell("READY=1", "STATUS=the new configuration is not used: see the log")
            return
        self.config = takeover.config
        self._counters.succeeded += 1
        self._counters.last_successful = True
        log.info("SIGHUP: %s", f"changed: {', '.join(sorted(takeover.taken))}" if takeover.taken else "nothing changes")
        if takeover.waiting:
            log.warning("a restart is needed for: %s", ", ".join(takeover.waiting))
        self._tell("READY=1")
