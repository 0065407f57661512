"""From the configuration to a source; ``AutoSource`` is the best one that this host has."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from gpusonde.agent.config import SourceConfig
from gpusonde.agent.sources.base import GpuSource, ProcessReader, Reading, SourceInventory, SourceStatistics
from gpusonde.agent.sources.dcgm.source import DcgmSource
from gpusonde.agent.sources.nvml.processes import NvmlProcesses
from gpusonde.agent.sources.nvml.source import NvmlSource
from gpusonde.agent.sources.replay import ReplaySource
from gpusonde.errors import SourceError, SourceUnavailableError
from gpusonde.telemetry import read_traces

log = logging.getLogger(__name__)

# Any of them tells that a source profiles; utilisation and power come from every source.
_PROFILING = frozenset({"graphics_active", "sm_active", "dram_active"})


def profiles(inventory: SourceInventory) -> bool:
    """Whether a source gives profiling metrics on this host."""
    return bool(_PROFILING & {m.name for m in inventory.metrics})


class AutoSource:
    """Opens its candidates in their order and keeps the first that gives profiling metrics.

    If none does, the first that opened at all is kept. Every refusal is logged with its reason.

    Args:
        candidates: Sources, not yet open, the preferred one first.
    """

    def __init__(self, candidates: Sequence[GpuSource]) -> None:
        self._candidates = tuple(candidates)
        self._chosen: GpuSource | None = None
        self._fallback: GpuSource | None = None
        self._before_open = SourceStatistics()

    @property
    def statistics(self) -> SourceStatistics:
        """Those of the chosen source; see :attr:`~gpusonde.agent.sources.base.GpuSource.statistics`."""
        return self._chosen.statistics if self._chosen is not None else self._before_open

    @property
    def name(self) -> str:
        """Name of the chosen source; "auto" before :meth:`open`."""
        return self._chosen.name if self._chosen is not None else "auto"

    def open(self) -> SourceInventory:
        """Choose a source.

        Raises:
            SourceUnavailableError: None can be opened; the message says what each of them lacks.
        """
        try:
            return self._open()
        except BaseException:
            self.close()
            raise

    def read(self, deadline_s: float) -> Reading | None:
        """Read the chosen source; see :meth:`~gpusonde.agent.sources.base.GpuSource.read`."""
        if self._chosen is None:
            raise SourceError("the source is not open: call open() first")
        return self._chosen.read(deadline_s)

    def progress(self) -> float | None:
        """Return what the chosen source says; None for hardware."""
        return self._chosen.progress() if self._chosen is not None else None

    def close(self) -> None:
        """Close the chosen source; safe to call twice and before :meth:`open`."""
        opened, self._chosen, self._fallback = self._chosen or self._fallback, None, None
        if opened is not None:
            opened.close()

    def _open(self) -> SourceInventory:
        refusals: list[str] = []
        fallback: SourceInventory | None = None
        for source in self._candidates:
            try:
                inventory = source.open()
            except SourceError as error:
                refusals.append(f"{source.name}: {error}")
                log.info("source %s is not used: %s", source.name, error)
                continue
            if profiles(inventory):
                if self._fallback is not None:
                    self._fallback.close()
                return self._choose(source, inventory)
            log.info("source %s gives no profiling metrics on this host; looking for one that does", source.name)
            if fallback is None:
                self._fallback, fallback = source, inventory
            else:
                source.close()
        if self._fallback is None or fallback is None:
            raise SourceUnavailableError("no source can be used on this host. " + "; ".join(refusals))
        return self._choose(self._fallback, fallback)

    def _choose(self, source: GpuSource, inventory: SourceInventory) -> SourceInventory:
        self._chosen, self._fallback = source, None
        log.info("source %s is used (%d GPUs, %d metrics)", source.name, len(inventory.gpus), len(inventory.metrics))
        return inventory


# With another source to fall back to at the next start, an engine is not waited for longer.
_AUTO_PATIENCE_S = 60.0


def make_source(config: SourceConfig) -> GpuSource:
    """Return the configured source, not yet open.

    ``auto`` means DCGM, then NVML, which uses GPM metrics where the GPU has them.

    Raises:
        gpusonde.telemetry.TraceError: The trace to replay cannot be read.
    """
    if config.kind == "replay":
        return ReplaySource(read_traces(config.trace), speed=config.speed, keep_time=config.keep_time)
    if config.kind == "nvml":
        return make_nvml(config)
    if config.kind == "dcgm":
        return make_dcgm(config)
    return AutoSource([make_dcgm(config, patience_s=_AUTO_PATIENCE_S), make_nvml(config)])


def make_dcgm(config: SourceConfig, patience_s: float = math.inf) -> DcgmSource:
    """Return the DCGM source, not yet open.

    Args:
        config: How to reach the engine.
        patience_s: Seconds without an engine after which the source fails.
    """
    return DcgmSource(config, patience_s=patience_s)


def make_nvml(config: SourceConfig) -> NvmlSource:
    """Return the NVML source, not yet open."""
    return NvmlSource(slow_interval_s=config.slow_interval_s, interval_s=config.interval_s)


def make_process_reader(config: SourceConfig) -> ProcessReader | None:
    """Return what tells the processes of the sampled GPUs; None for a replay, whose GPUs are not here."""
    return None if config.kind == "replay" else NvmlProcesses()
