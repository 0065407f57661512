"""``Upkeep``: what keeps a running agent observable and adjustable: watchdog, self metrics, reload.

None of it touches a sample. If any of it fails, sampling goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import logging
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry

from gpusonde.agent.config import AgentConfig
from gpusonde.agent.metrics import AgentFigures, AgentMetrics, SelfCounters
from gpusonde.agent.pace import AdaptivePace, PaceSettings
from gpusonde.agent.records.record_ages import RecordAges
from gpusonde.agent.sources.base import GpuSource, SourceInventory
from gpusonde.agent.spool import Spool
from gpusonde.agent.uplink import Uplink, UplinkSettings
from gpusonde.agent.writer import BatchPace, SpoolWriter
from gpusonde.service.config import format_duration
from gpusonde.service.health import TOLERANCE_S, Heartbeat, Vitals, Watchdog, own_watchdog_s
from gpusonde.service.metrics_endpoint import Endpoint, Monitoring
from gpusonde.service.process import end, hangups
from gpusonde.service.reload import ConfigSource, ReloadCounters, Reloader

log = logging.getLogger(__name__)

_PULSE_S = 1.0

# Sources that are simply asked at every tick; others prepare for one interval when they are opened.
_ASKED_AT_EVERY_TICK = ("nvml", "gpm")


@dataclass(frozen=True)
class Adjustable:
    """The parts that a reload changes."""

    writer: SpoolWriter
    batch_pace: BatchPace
    pace: AdaptivePace
    uplink: Uplink


def uplink_settings(config: AgentConfig) -> UplinkSettings:
    """How to reach the collector."""
    return UplinkSettings(
        config.uplink.collector,
        max_unacked_records=config.uplink.max_unacked_records,
        allowed_targets=config.uplink.target_patterns,
    )


def pace_settings(config: AgentConfig) -> PaceSettings:
    """How far sampling may slow down."""
    source = config.source
    return PaceSettings(source.interval_s, source.idle_interval_s, source.idle_after_s, source.read_budget)


class Upkeep:
    """Surrounds the parts of one agent.

    Args:
        config: What the agent was started with.
        config_source: Where a new configuration comes from; None when SIGHUP means nothing.
        spool: An open spool.
        source: An open source.
        inventory: What it gives.
        counters: Of all parts.
    """

    def __init__(
        self,
        config: AgentConfig,
        config_source: ConfigSource[AgentConfig] | None,
        spool: Spool,
        source: GpuSource,
        inventory: SourceInventory,
        counters: SelfCounters,
    ) -> None:
        self._config_source = config_source
        self._spool = spool
        self._counters = counters
        self._source_name = inventory.source
        limit_s = own_watchdog_s()
        tolerance_s = TOLERANCE_S if limit_s is None else limit_s / 2
        self.sampler = Heartbeat("the sampler", tolerance_s)
        self.writer = Heartbeat("the spool's writer", tolerance_s)
        self._loop = Heartbeat("the event loop", tolerance_s)
        self._healthy = Vitals(self.sampler.trouble, self.writer.trouble, self._loop.trouble)
        self._works = Vitals(self._healthy.trouble, self._spool_trouble)
        self._watchdog = Watchdog(limit_s, self._works.trouble, self.status)
        self._config = config
        self._reloads = ReloadCounters()
        self.ages = RecordAges()
        registry = CollectorRegistry()
        registry.register(
            AgentMetrics(
                AgentFigures(
                    counters=counters,
                    source=source.statistics,
                    ages=self.ages,
                    reloads=self._reloads,
                    version=importlib.metadata.version("gpusonde"),
                    source_name=inventory.source,
                    spool_max_bytes=lambda: spool.max_bytes,
                )
            )
        )
        self._monitoring = Monitoring(Endpoint(registry, self._healthy.trouble, self.unready), spool.directory)

    @property
    def config(self) -> AgentConfig:
        """The configuration in force."""
        return self._config

    def status(self) -> str:
        """One line for ``systemctl status``."""
        return (
            f"sampling {self._counters.gpus} GPUs every {format_duration(self._counters.sampling_interval_s)}; "
            f"{self._counters.unacked_records} records wait for {self.config.uplink.collector}"
        )

    def unready(self) -> str | None:
        """Why samples are not taken and kept now, or None."""
        return self._works.trouble() or (None if self._counters.deadlines else "nothing was sampled yet")

    def expect_ends(self, sampling: asyncio.Future[Any], writing: asyncio.Future[Any]) -> None:
        """Expect no sign of life of a part that has ended as it should."""
        sampling.add_done_callback(lambda _: self.sampler.rest())
        writing.add_done_callback(lambda _: self.writer.rest())

    async def run(self, adjustable: Adjustable) -> None:
        """Serve metrics, ping systemd and reload until cancelled."""
        self._loop.beat()
        with contextlib.suppress(OSError):
            self.ages.restore(self._spool.written())
        self._monitoring.serve(self.config.metrics.listen)
        reloader = self._make_reloader(adjustable)
        parts = [asyncio.ensure_future(self._pulse()), asyncio.ensure_future(self._watchdog.run())]
        try:
            if reloader is None:
                await asyncio.gather(*parts)
                return
            parts.append(asyncio.ensure_future(reloader.run()))
            with hangups(reloader.request):
                await asyncio.gather(*parts)
        except Exception:
            log.exception("watchdog, metrics and reload have ended; sampling goes on")
        finally:
            await end(*parts)
            self._monitoring.stop()

    def _make_reloader(self, adjustable: Adjustable) -> Reloader[AgentConfig] | None:
        source = self._config_source
        if source is None:
            return None

        async def apply(config: AgentConfig, changed: frozenset[str]) -> None:
            if changed & {"log.level", "log.format"}:
                source.apply_log(config.log)
            self._adjust(config, adjustable)
            self._config = config

        live = self._config.live_keys() - (set() if self._source_name in _ASKED_AT_EVERY_TICK else {"source.interval"})
        return Reloader(self._config, source.load, live, apply, self._reloads)

    def _adjust(self, config: AgentConfig, parts: Adjustable) -> None:
        self._spool.set_max_bytes(config.spool.max_bytes)
        parts.writer.configure(
            commit_interval_s=config.spool.commit_interval_s, compress=config.uplink.compression == "zstd"
        )
        parts.batch_pace.configure(config.uplink.batch_interval_s)
        parts.pace.configure(pace_settings(config))
        parts.uplink.configure(uplink_settings(config), config.uplink.security)
        # Also when it has not changed: an address that was taken before may be free now.
        self._monitoring.serve(config.metrics.listen)

    async def _pulse(self) -> None:
        while True:
            self._loop.beat(_PULSE_S)
            await asyncio.sleep(_PULSE_S)

    def _spool_trouble(self) -> str | None:
        return None if self._spool.accepts_writes else f"the spool {self._spool.directory} cannot be written"
