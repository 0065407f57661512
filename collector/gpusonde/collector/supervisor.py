"""``Supervision``: what keeps a running collector observable and adjustable: watchdog, self metrics, reload.

None of it touches a record. If any of it fails, the collector goes on.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from gpusonde.collector.config import CollectorConfig
from gpusonde.collector.ingest.admission import AdmissionControl
from gpusonde.collector.ingest.agents import Agents
from gpusonde.collector.metrics import CollectorCounters, CollectorFigures, CollectorMetrics, StoreFigures
from gpusonde.collector.security.authentication import Access
from gpusonde.collector.storage.errors import StoreError
from gpusonde.collector.storage.store import Store
from gpusonde.collector.tracking.pipeline import EpochPipeline
from gpusonde.service.health import TOLERANCE_S, Heartbeat, Watchdog, own_watchdog_s
from gpusonde.service.metrics_endpoint import Endpoint, Monitoring
from gpusonde.service.process import sighup_handler
from gpusonde.service.reload import ConfigSource, ReloadCounters, Reloader

_LOG = logging.getLogger(__name__)
_PULSE_S = 1.0
_LOOK_UP_S = 15.0


@dataclass(frozen=True)
class Watched:
    """The parts that figures are read from."""

    store: Store
    admission: AdmissionControl
    agents: Agents
    pipeline: EpochPipeline
    access: Access


class Supervision:
    """Surrounds the parts of one collector.

    Args:
        config: What the collector was started with.
        config_source: Where a new configuration comes from; None when SIGHUP means nothing.
        watched: The parts.
        counters: Of all parts.
        executors: The collector's threads by name.
        adjust: Makes the parts as a new configuration says; raises before it changes anything.
        wall_clock_ns: Unix time in nanoseconds.
    """

    def __init__(
        self,
        config: CollectorConfig,
        config_source: ConfigSource[CollectorConfig] | None,
        watched: Watched,
        counters: CollectorCounters,
        executors: Mapping[str, Executor],
        adjust: Callable[[CollectorConfig, frozenset[str]], Awaitable[None]],
        wall_clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._config = config
        self._config_source = config_source
        self._watched = watched
        self._counters = counters
        self._executors = executors
        self._adjust = adjust
        self._wall_clock_ns = wall_clock_ns
        limit_s = own_watchdog_s()
        tolerance_s = TOLERANCE_S if limit_s is None else limit_s / 2
        self._loop = Heartbeat("the event loop", tolerance_s)
        self._committing = Heartbeat("the thread that writes records", tolerance_s)
        self._watchdog = Watchdog(limit_s, self._check, self.status)
        self._reloads = ReloadCounters()
        self._held = StoreFigures()
        store_counters = watched.store.counters
        store_counters.on_log_sync = counters.log_sync.observe
        store_counters.on_segment = counters.segment_write.observe
        store_counters.on_compaction = counters.compaction.observe
        registry = CollectorRegistry()
        registry.register(
            CollectorMetrics(
                CollectorFigures(
                    counters=counters,
                    store=store_counters,
                    held=self._held,
                    reloads=self._reloads,
                    version=importlib.metadata.version("gpusonde"),
                    engine=config.store.engine,
                    streams=lambda: len(watched.agents.sessions()),
                    ingest_lag_s=self._ingest_lag_s,
                    taking_records=lambda: watched.admission.rejection is None,
                    tracking_backlog=lambda: watched.pipeline.backlog,
                    certificate_expiry_unix_s=lambda: watched.access.tls.expiry_unix_s if watched.access.tls else None,
                )
            )
        )
        self._monitoring = Monitoring(Endpoint(registry, self._check, self.unready), config.directory)

    @property
    def config(self) -> CollectorConfig:
        """The configuration in force."""
        return self._config

    def status(self) -> str:
        """One line for ``systemctl status``."""
        rejection = self._watched.admission.rejection
        return f"{len(self._watched.agents.sessions())} agents stream; " + (
            f"no records are taken: {rejection.text}"
            if rejection
            else f"{self._counters.ingest['records']} records taken"
        )

    def _check(self) -> str | None:
        return self._loop.check() or self._committing.check()

    def unready(self) -> str | None:
        """Why no records are taken now, or None."""
        rejection = self._watched.admission.rejection
        return self._check() or (rejection.text if rejection else None)

    async def run(self) -> None:
        """Serve metrics, ping systemd and reload until cancelled."""
        # The start may have taken long.
        self._loop.beat()
        self._committing.beat()
        self._monitoring.serve(self._config.metrics.listen)
        works = [self._pulse(), self._pulse_of_commits(), self._watchdog.run(), self._look_up()]
        source = self._config_source
        try:
            if source is None:
                await asyncio.gather(*works)
                return
            reloader = self._make_reloader(source)
            with sighup_handler(reloader.request):
                await asyncio.gather(*works, reloader.run())
        except Exception:  # the watchdog is silent from here on, so systemd acts
            _LOG.exception("watchdog, metrics and reload have ended; the collector goes on")
        finally:
            self._monitoring.stop()

    def _make_reloader(self, source: ConfigSource[CollectorConfig]) -> Reloader[CollectorConfig]:
        async def apply(config: CollectorConfig, changed: frozenset[str]) -> None:
            await self._adjust(config, changed)
            if changed & {"log.level", "log.format"}:
                source.apply_log(config.log)
            # Also when it has not changed: an address that was taken before may be free now.
            self._monitoring.serve(config.metrics.listen)
            self._config = config

        return Reloader(self._config, source.load, self._config.live_keys(), apply, self._reloads)

    async def _pulse(self) -> None:
        while True:
            self._loop.beat(_PULSE_S)
            await asyncio.sleep(_PULSE_S)

    async def _pulse_of_commits(self) -> None:
        """Have the thread that commits do nothing now and then: a full disk does not stop it, a hanging one does."""
        loop = asyncio.get_running_loop()
        while True:
            await loop.run_in_executor(self._executors["commit"], _nothing)
            self._committing.beat(_PULSE_S)
            await asyncio.sleep(_PULSE_S)

    async def _look_up(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                await loop.run_in_executor(self._executors["control"], self._look_up_once)
            except StoreError as error:
                _LOG.warning("sizes of the store cannot be looked up now: %s", error)
            await asyncio.sleep(_LOOK_UP_S)

    def _look_up_once(self) -> None:
        store, held = self._watched.store, self._held
        held.agents, held.gpus = len(store.facts.agents()), len(store.facts.gpus())
        usage = store.usage()
        held.tier_bytes, held.free_bytes = usage.tier_bytes, usage.free_bytes

    def _ingest_lag_s(self) -> float | None:
        newest = [s.newest_tick_unix_nano for s in self._watched.agents.sessions() if s.newest_tick_unix_nano]
        return max(0.0, (self._wall_clock_ns() - min(newest)) / 1e9) if newest else None


def _nothing() -> None:
    """Nothing; that it was done is the news."""
