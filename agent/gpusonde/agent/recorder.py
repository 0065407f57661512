"""``record``: sample locally into a trace file, without spool or collector."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gpusonde.agent.metrics import SelfCounters
from gpusonde.agent.sampler import Sampler
from gpusonde.agent.sources.base import (
    Clocks,
    GpuDescription,
    GpuEventKind,
    GpuSource,
    GpuTicks,
    Reading,
    SourceInventory,
)
from gpusonde.telemetry import TraceMetadata

if TYPE_CHECKING:
    from gpusonde.telemetry import TraceWriter

log = logging.getLogger(__name__)

_POLL_S = 0.1
# Held while the disk stalls; a source that can wait is held back long before.
_MAX_QUEUED_READINGS = 6000
_QUEUED_WITH_ROOM = 8


@dataclass(frozen=True)
class RecordReport:
    """What was recorded.

    Attributes:
        path: The trace file; it does not exist when there were no ticks.
        gpu_uuids: The recorded GPUs.
        metrics: Names of the columns.
        duration_s: Seconds from the first tick to the last.
        dropped_ticks: Ticks left out because their times did not increase.
        counters: Ticks, misses and lateness.
    """

    path: Path
    gpu_uuids: tuple[str, ...]
    metrics: tuple[str, ...]
    duration_s: float
    dropped_ticks: int
    counters: SelfCounters


def record(
    source: GpuSource,
    path: Path | str,
    *,
    interval_s: float = 0.1,
    duration_s: float | None = None,
    stop: threading.Event | None = None,
    on_progress: Callable[[SelfCounters], None] | None = None,
    attributes: dict[str, str] | None = None,
    clocks: Clocks | None = None,
) -> RecordReport:
    """Record a source until it ends, ``duration_s`` is over, ``stop`` is set or Ctrl-C; the file is finished each time.

    A step of the wall clock does not bend the recording: times go on as if the clock had not been set.

    Args:
        source: The source, not yet open.
        path: ``.csv`` or ``.parquet``.
        interval_s: Seconds between ticks.
        duration_s: How long to record; None for no limit.
        stop: Ends the recording.
        on_progress: Called ten times a second with the counters.
        attributes: Facts to keep in the file, for example what was running.
        clocks: What time it is.

    Raises:
        gpusonde.agent.sources.base.SourceError: The source cannot be used.
        gpusonde.telemetry.TraceError: The file's name or metrics are unusable.
        OSError: The file cannot be written.
    """
    clocks = clocks or Clocks()
    inventory = source.open()
    try:
        recorder = _Recorder(inventory, Path(path), interval_s, clocks.wall_ns() // 10**9 * 10**9, attributes or {})
        return recorder.run(
            source, duration_s, stop or threading.Event(), on_progress or (lambda _: None), clocks.monotonic
        )
    finally:
        source.close()


@dataclass
class _Recorder:
    inventory: SourceInventory
    path: Path
    interval_s: float
    origin_ns: int
    attributes: dict[str, str]
    counters: SelfCounters = field(default_factory=SelfCounters)
    queue: queue.SimpleQueue[Reading] = field(default_factory=queue.SimpleQueue)
    shift_ns: int = 0
    columns: list[int] | None = None
    last_ns: dict[int, int] = field(default_factory=dict)
    first_ns: int | None = None
    dropped: int = 0

    def has_room(self) -> bool:
        return self.queue.qsize() < _QUEUED_WITH_ROOM

    def put(self, reading: Reading) -> bool:
        if self.queue.qsize() >= _MAX_QUEUED_READINGS:
            return False
        self.queue.put(reading)
        return True

    def run(
        self,
        source: GpuSource,
        duration_s: float | None,
        stop: threading.Event,
        on_progress: Callable[[SelfCounters], None],
        monotonic: Callable[[], float],
    ) -> RecordReport:
        sampler = Sampler(source, self.inventory, self.interval_s, self, self.counters)
        failures: list[BaseException] = []

        def sample() -> None:
            try:
                sampler.run()
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=sample, name="gpusonde-sampler", daemon=True)
        end_s = None if duration_s is None else monotonic() + duration_s
        metadata = [self._metadata(gpu) for gpu in self.inventory.gpus]
        from gpusonde.telemetry import TraceWriter  # noqa: PLC0415 - the agent itself writes no files of traces

        with TraceWriter(self.path, [m.name for m in self.inventory.metrics], metadata) as writer:
            thread.start()
            try:
                while thread.is_alive() and not stop.is_set() and (end_s is None or monotonic() < end_s):
                    wait_s = _POLL_S if end_s is None else max(0.0, min(_POLL_S, end_s - monotonic()))
                    self._write_next(writer, wait_s)
                    on_progress(self.counters)
            except KeyboardInterrupt:
                stop.set()
            sampler.stop()
            thread.join(timeout=5.0)
            while self._write_next(writer, 0.0):
                continue
        on_progress(self.counters)
        if failures:
            raise failures[0]
        return RecordReport(
            path=self.path,
            gpu_uuids=tuple(gpu.key for gpu in self.inventory.gpus),
            metrics=tuple(m.name for m in self.inventory.metrics),
            duration_s=(max(self.last_ns.values()) - self.first_ns) / 1e9 if self.first_ns is not None else 0.0,
            dropped_ticks=self.dropped,
            counters=self.counters,
        )

    def _metadata(self, gpu: GpuDescription) -> TraceMetadata:
        facts = {a.name: repr(a.value) for a in gpu.static_attributes}
        if gpu.framebuffer_bytes:
            facts["memory_bytes"] = str(gpu.framebuffer_bytes)
        if gpu.driver_version:
            facts["driver_version"] = gpu.driver_version
        return TraceMetadata(
            gpu_uuid=gpu.key,
            gpu_model=gpu.product_name,
            origin_unix_s=self.origin_ns / 1e9,
            attributes={"source": self.inventory.source, **facts, **self.attributes},
        )

    def _write_next(self, writer: TraceWriter, wait_s: float) -> bool:
        try:
            reading = self.queue.get(timeout=wait_s) if wait_s > 0 else self.queue.get_nowait()
        except queue.Empty:
            return False
        steps = [event.value for event in reading.events if event.kind is GpuEventKind.CLOCK_STEP and event.gpu == 0]
        self.shift_ns += sum(steps) * 1000
        if reading.inventory is not None:
            self._follow(reading.inventory)
        for ticks in reading.ticks:
            if ticks.gpu < len(self.inventory.gpus):
                self._write(writer, ticks)
        return True

    def _follow(self, inventory: SourceInventory) -> None:
        """Go on after the source's GPUs or columns changed: a file keeps those that it was begun with."""
        late = [gpu.key for gpu in inventory.gpus[len(self.inventory.gpus) :]]
        if late or len(inventory.metrics) > len(self.inventory.metrics):
            log.warning("the GPUs have changed; a new recording would hold %s too", ", ".join(late) or "other metrics")
        position = {m.name: i for i, m in enumerate(inventory.metrics)}
        self.columns = [position[m.name] for m in self.inventory.metrics]

    def _write(self, writer: TraceWriter, ticks: GpuTicks) -> None:
        times_ns = ticks.time_unix_nano - self.shift_ns
        highest = np.maximum.accumulate(np.concatenate([[self.last_ns.get(ticks.gpu, -(2**62))], times_ns]))
        increasing = times_ns > highest[:-1]
        self.dropped += int((~increasing).sum())
        if not increasing.any():
            return
        kept = times_ns[increasing]
        values = ticks.values if self.columns is None else ticks.values[self.columns]
        writer.append((kept - self.origin_ns) / 1e9, values[:, increasing], self.inventory.gpus[ticks.gpu].key)
        self.last_ns[ticks.gpu] = int(kept[-1])
        self.first_ns = int(kept[0]) if self.first_ns is None else min(self.first_ns, int(kept[0]))
