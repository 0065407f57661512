"""From the configuration to a source; ``AutoSource`` is the best one that this host has."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from gpusonde.agent.config import SourceConfig
from gpusonde.agent.sources.base import (
    GpuEventKind,
    GpuSource,
    ProcessReader,
    Reading,
    SourceEvent,
    SourceInventory,
    SourceStatistics,
)
from gpusonde.agent.sources.nvml.gpu import NvmlProcesses
from gpusonde.agent.sources.nvml.source import NvmlSource
from gpusonde.agent.sources.replay import ReplaySource
from gpusonde.errors import SourceError, SourceUnavailableError

if TYPE_CHECKING:
    from gpusonde.agent.sources.dcgm.source import DcgmSource

log = logging.getLogger(__name__)

# Any of them tells that a source profiles; utilisation and power come from every source.
_PROFILING = frozenset({"graphics_active", "sm_active", "dram_active"})


def profiles(inventory: SourceInventory) -> bool:
    """Whether a source gives profiling metrics on this host."""
    return bool(_PROFILING & {m.name for m in inventory.metrics})


class AutoSource:
    """Opens its candidates in their order and keeps the first that gives profiling metrics.

    If none does, the first that opened at all is kept. Every refusal is logged with its reason. When the one that is
    kept fails as a whole, the others are opened in its place.

    Args:
        candidates: Sources, not yet open, the preferred one first.
    """

    def __init__(self, candidates: Sequence[GpuSource]) -> None:
        self._candidates = tuple(candidates)
        self._chosen: GpuSource | None = None
        self._fallback: GpuSource | None = None
        self._before_open = SourceStatistics()
        self._inventory: SourceInventory | None = None
        # Index in the chosen source's inventory -> index in ours, where they differ.
        self._index: list[int] | None = None
        self._lost: set[int] = set()

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
            self._inventory = self._open(self._candidates)
        except BaseException:
            self.close()
            raise
        return self._inventory

    def read(self, deadline_s: float) -> Reading | None:
        """Read the chosen source; where it is gone as a whole, go on with another one."""
        if self._chosen is None:
            raise SourceError("the source is not open: call open() first")
        try:
            reading = self._chosen.read(deadline_s)
        except SourceError as error:
            return self._go_on(error)
        if reading is None:
            return None
        if reading.inventory is not None:
            self._inventory = self._extend(reading.inventory)
        if self._index is not None:
            index = self._index
            reading = dataclasses.replace(
                reading,
                ticks=tuple(dataclasses.replace(ticks, gpu=index[ticks.gpu]) for ticks in reading.ticks),
                events=tuple(dataclasses.replace(event, gpu=index[event.gpu]) for event in reading.events),
            )
        if reading.inventory is not None:
            reading = dataclasses.replace(reading, inventory=self._inventory)
        self._follow(reading.events)
        return reading

    def _follow(self, events: Iterable[SourceEvent]) -> None:
        for event in events:
            if event.kind is GpuEventKind.LOST:
                self._lost.add(event.gpu)
            elif event.kind is GpuEventKind.RECOVERED:
                self._lost.discard(event.gpu)

    def _go_on(self, error: SourceError) -> Reading:
        """Open another source in the place of one that failed; GPUs keep their index.

        Raises:
            SourceError: No other one can be opened.
        """
        failed = self._chosen
        log.error("source %s: %s; looking for another one", self.name, error)
        self.close()
        try:
            inventory = self._open([source for source in self._candidates if source is not failed])
        except SourceError as refusal:
            raise SourceError(f"{error}; {refusal}") from error
        extended = self._extend(inventory)
        now_ns = time.time_ns()
        index = range(len(inventory.gpus)) if self._index is None else self._index
        found = sorted(self._lost.intersection(index))
        events = tuple(SourceEvent(gpu, now_ns, GpuEventKind.RECOVERED) for gpu in found)
        self._follow(events)
        return Reading(events=events, inventory=extended)

    def _extend(self, inventory: SourceInventory) -> SourceInventory:
        """Put the GPUs of another source where they were in the inventory; new ones come behind."""
        gpus = {gpu.key: gpu for gpu in (self._inventory.gpus if self._inventory is not None else ())}
        gpus |= {gpu.key: gpu for gpu in inventory.gpus}
        place = {key: number for number, key in enumerate(gpus)}
        index = [place[gpu.key] for gpu in inventory.gpus]
        self._index = None if index == list(range(len(index))) else index
        self._inventory = dataclasses.replace(inventory, gpus=tuple(gpus.values()))
        return self._inventory

    def progress(self) -> float | None:
        """Return what the chosen source says; None for hardware."""
        return self._chosen.progress() if self._chosen is not None else None

    def close(self) -> None:
        """Close the chosen source; safe to call twice and before :meth:`open`."""
        opened, self._chosen, self._fallback = self._chosen or self._fallback, None, None
        if opened is not None:
            opened.close()

    def _open(self, candidates: Sequence[GpuSource]) -> SourceInventory:
        refusals: list[str] = []
        fallback: SourceInventory | None = None
        for source in candidates:
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


# With another source to go on with, an engine is not waited for longer. Losing it takes some seconds more.
_AUTO_PATIENCE_S = 45.0


def make_source(config: SourceConfig) -> GpuSource:
    """Return the configured source, not yet open.

    ``auto`` means NVML where it gives profiling metrics (GPM, from Hopper on), and DCGM elsewhere: on GPUs with GPM
    both give the same, and NVML needs no host engine.

    Raises:
        gpusonde.telemetry.TraceError: The trace to replay cannot be read.
    """
    if config.kind == "replay":
        from gpusonde.telemetry import read_traces  # noqa: PLC0415 - memory of agents without files

        return ReplaySource(read_traces(config.trace), speed=config.speed, keep_time=config.keep_time)
    if config.kind == "nvml":
        return make_nvml(config)
    if config.kind == "dcgm":
        return make_dcgm(config)
    return AutoSource([make_nvml(config), make_dcgm(config, patience_s=_AUTO_PATIENCE_S)])


def make_dcgm(config: SourceConfig, patience_s: float = math.inf) -> DcgmSource:
    """Return the DCGM source, not yet open.

    Args:
        config: How to reach the engine.
        patience_s: Seconds without an engine after which the source fails.
    """
    from gpusonde.agent.sources.dcgm.source import DcgmSource  # noqa: PLC0415 - memory of agents without it

    return DcgmSource(config, patience_s=patience_s)


def make_nvml(config: SourceConfig) -> NvmlSource:
    """Return the NVML source, not yet open."""
    return NvmlSource(slow_interval_s=config.slow_interval_s, interval_s=config.interval_s)


def make_process_reader(config: SourceConfig) -> ProcessReader | None:
    """Return what tells the processes of the sampled GPUs; None for a replay, whose GPUs are not here."""
    return None if config.kind == "replay" else NvmlProcesses()
