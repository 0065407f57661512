"""``Supervisor``: keeps a running daemon observable and adjustable: heartbeats, watchdog, self metrics, reload.

Agent and collector have one each. None of it touches a sample or a record; if any of it fails, the daemon goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine, Iterable
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from gpusonde.service.config import DaemonConfiguration
from gpusonde.service.health import TOLERANCE_S, Heartbeat, Watchdog, own_watchdog_s
from gpusonde.service.metrics_endpoint import Endpoint, Monitoring
from gpusonde.service.process import end, sighup_handler
from gpusonde.service.reload import ConfigSource, ReloadCounters, Reloader

log = logging.getLogger(__name__)

_PULSE_S = 5.0

_C = TypeVar("_C", bound=DaemonConfiguration)
_C_contra = TypeVar("_C_contra", bound=DaemonConfiguration, contravariant=True)


class Supervised(Protocol[_C_contra]):
    """What only the daemon itself knows."""

    def status(self) -> str:
        """Return one line for ``systemctl status``."""
        ...

    def error(self) -> str | None:
        """Return why the daemon should be restarted although all of its parts move, or None."""
        ...

    def unready(self) -> str | None:
        """Return why the daemon does not do its work now, or None."""
        ...

    async def apply(self, config: _C_contra, changed: frozenset[str]) -> None:
        """Make the parts as a new configuration says; raise before anything changes, or not at all."""
        ...


class Supervisor(Generic[_C]):
    """Surrounds the parts of one daemon.

    Args:
        config: What the daemon was started with.
        config_source: Where a new configuration comes from; None when SIGHUP means nothing.
        daemon: Asked and adjusted.
        directory: Where the file ``metrics_address`` tells the address of the self metrics.
        live: Keys that a reload changes; None for all that the configuration calls live.

    Attributes:
        config: The configuration in force.
        reloads: What became of reloads.
    """

    def __init__(
        self,
        config: _C,
        config_source: ConfigSource[_C] | None,
        daemon: Supervised[_C],
        directory: Path,
        live: Collection[str] | None = None,
    ) -> None:
        self.config = config
        self.reloads = ReloadCounters()
        self._config_source = config_source
        self._daemon = daemon
        self._directory = directory
        self._live = config.live_keys() if live is None else live
        self._watchdog_s = own_watchdog_s()
        self._heartbeats: list[Heartbeat] = []
        self._loop = self.heartbeat("the event loop")

    def heartbeat(self, part: str) -> Heartbeat:
        """Return the heartbeat of one part of the daemon, which has to beat from :meth:`run` on."""
        made = Heartbeat(part, TOLERANCE_S if self._watchdog_s is None else self._watchdog_s / 2)
        self._heartbeats.append(made)
        return made

    def check(self) -> str | None:
        """Return which part stands still, or None."""
        return next((late for heartbeat in self._heartbeats if (late := heartbeat.check())), None)

    async def run(self, metrics: Iterable[Collector], background: Iterable[Coroutine[Any, Any, None]] = ()) -> None:
        """Serve metrics, ping systemd and reload until cancelled.

        Args:
            metrics: What ``/metrics`` shows.
            background: What the daemon has done beside it.
        """
        registry = CollectorRegistry()
        for collector in metrics:
            registry.register(collector)
        monitoring = Monitoring(Endpoint(registry, self.check, self._unready), self._directory)
        # The start may have taken long.
        for heartbeat in self._heartbeats:
            heartbeat.beat()
        monitoring.serve(self.config.metrics.listen)
        watchdog = Watchdog(self._watchdog_s, self._error, self._daemon.status)
        reloader = self._make_reloader(monitoring)
        tasks = [asyncio.ensure_future(work) for work in (self._pulse(), watchdog.run(), *background)]
        try:
            if reloader is None:
                await asyncio.gather(*tasks)
                return
            tasks.append(asyncio.ensure_future(reloader.run()))
            with sighup_handler(reloader.request):
                await asyncio.gather(*tasks)
        except Exception:  # the watchdog is silent from here on, so systemd acts
            log.exception("watchdog, metrics and reload have ended; the daemon goes on")
        finally:
            await end(*tasks)
            monitoring.stop()

    def _make_reloader(self, monitoring: Monitoring) -> Reloader[_C] | None:
        source = self._config_source
        if source is None:
            return None

        async def apply(config: _C, changed: frozenset[str]) -> None:
            await self._daemon.apply(config, changed)
            if changed & {"log.level", "log.format"}:
                source.apply_log(config.log)
            # Also when it has not changed: an address that was taken before may be free now.
            monitoring.serve(config.metrics.listen)
            self.config = config

        return Reloader(self.config, source.load, self._live, apply, self.reloads)

    async def _pulse(self) -> None:
        while True:
            self._loop.beat(_PULSE_S)
            await asyncio.sleep(_PULSE_S)

    def _error(self) -> str | None:
        return self.check() or self._daemon.error()

    def _unready(self) -> str | None:
        return self._error() or self._daemon.unready()
