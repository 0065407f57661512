"""Stored samples as trace files, straight from a data directory.

``StoreSnapshot``: reading a data directory from outside, whether or not its collector runs.

Compaction of a data directory that no collector is using.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gpusonde.collector.records.model import Position
from gpusonde.collector.storage.errors import StoreError
from gpusonde.collector.storage.local.catalog import Database, SegmentCatalog
from gpusonde.collector.storage.local.facts import Facts, GpuRow
from gpusonde.collector.storage.local.memory import Memory
from gpusonde.collector.storage.local.reader import Reader
from gpusonde.collector.storage.local.results import Results, RunRow
from gpusonde.collector.storage.local.segments import SegmentFiles, SegmentKind, StoreLayout
from gpusonde.collector.storage.local.store import LocalStore, StoreOptions
from gpusonde.collector.storage.samples import Samples
from gpusonde.common.v1 import gpu_pb2
from gpusonde.errors import DirectoryLockedError
from gpusonde.telemetry import TraceMetadata, TraceWriter


class StoreSnapshot:
    """What is in the catalogue and in segments; what a collector still has in its log is not seen.

    Args:
        directory: The data directory.
    """

    def __init__(self, directory: Path) -> None:
        self._layout = StoreLayout(directory)
        self._files = SegmentFiles()
        self._database = Database(self._layout.catalog)
        self._facts = Facts(self._database)
        self.results = Results(self._database)
        self._spools: dict[tuple[str, str], Position] = {}

    def __enter__(self) -> StoreSnapshot:
        """Connect.

        Raises:
            StoreError: The directory is no data directory, or one of another version.
        """
        self._database.open_read_only()
        self._spools = self._facts.spools()
        return self

    def __exit__(self, *_: object) -> None:
        """Disconnect."""
        self._database.close()

    def holds(self, run: RunRow) -> bool:
        """Whether a run is in segments to its last record."""
        return any(run.last_spool == p.spool and run.last_sequence <= p.sequence for p in self._spools.values())

    def gpus(self) -> list[GpuRow]:
        """See ``Store.gpus``."""
        return self._facts.gpus()

    def metrics_of(self, gpu_uuid: str) -> list[str]:
        """See ``Store.metrics_of``."""
        return self._facts.metrics_of(gpu_uuid)

    def read(
        self,
        gpu_uuid: str,
        start_unix_nano: int,
        end_unix_nano: int,
        metrics: Sequence[str] | None = None,
        *,
        first: Position | None = None,
        last: Position | None = None,
    ) -> Samples:
        """See ``Store.read``.

        Raises:
            StoreCorruptError: A segment that is needed cannot be read.
        """
        return self._reader().read(gpu_uuid, start_unix_nano, end_unix_nano, metrics, first=first, last=last)

    def next_tick(self, gpu_uuid: str, start_unix_nano: int) -> int | None:
        """See ``Store.next_tick``."""
        return self._reader().next_tick(gpu_uuid, start_unix_nano)

    def has_averages(self, gpu_uuid: str, start_unix_nano: int, end_unix_nano: int) -> bool:
        """Return whether some of the ticks of a GPU in ``[start, end)`` are kept as averages only."""
        return self._reader().has_averages(gpu_uuid, start_unix_nano, end_unix_nano)

    def _reader(self) -> Reader:
        memory = Memory(spools={key: position.spool for key, position in self._spools.items()})
        return Reader(memory, self._facts, SegmentCatalog(self._database), self._layout, self._files)


@dataclass(frozen=True)
class CompactReport:
    """What compaction did.

    Attributes:
        files_written: New files of ticks.
        segments_left: Segments that could not be read and were left alone.
        size_before_bytes: All ticks, before.
        size_after_bytes: All ticks, now.
        averages_bytes: Averages over seconds, now.
    """

    files_written: int
    segments_left: int
    size_before_bytes: int
    size_after_bytes: int
    averages_bytes: int


def compact_store(directory: Path) -> CompactReport:
    """Turn the log into a segment and all segments into compact files, those of the current hour too.

    Raises:
        DirectoryLockedError: A collector is using the directory.
        StoreError: It is no data directory, or the disk refuses; what was done so far stays.
    """
    with StoreSnapshot(directory):
        pass  # says what is wrong with a directory that is none, before a store would make one of it
    store = LocalStore(directory, StoreOptions(reserve_bytes=0))
    store.open()
    try:
        store.seal()
        before = store.usage().tier_bytes["raw"]
        written = store.maintenance.compact_all()
        sizes = store.usage().tier_bytes
        left = len(SegmentCatalog(store.database).files(SegmentKind.MINUTE))
        return CompactReport(written, left, before, sizes["raw"], sizes["second"])
    finally:
        store.close()


# 15 minutes of 27 metrics at 10 Hz are two megabytes.
_WINDOW_NS = 900 * 1_000_000_000


class UnknownGpuUuidError(StoreError):
    """A GPU of which the store has no samples in the time that was asked for."""


@dataclass(frozen=True)
class ExportedGpu:
    """What was written of one GPU.

    Attributes:
        gpu_uuid: The GPU.
        gpu_model: Its product name.
        ticks: Rows.
        resolution_s: 0 where all are as sampled, 1 where some are averages over a second.
    """

    gpu_uuid: str
    gpu_model: str
    ticks: int
    resolution_s: float


@dataclass(frozen=True)
class ExportReport:
    """What was written.

    Attributes:
        gpus: The GPUs.
        live: Whether a collector was using the directory: what it had not sealed yet, a minute at most, is missing.
    """

    gpus: Sequence[ExportedGpu]
    live: bool


class _Source(Protocol):
    """What is needed of a store or a snapshot of one."""

    def gpus(self) -> list[GpuRow]: ...

    def metrics_of(self, gpu_uuid: str) -> list[str]: ...

    def next_tick(self, gpu_uuid: str, start_unix_nano: int) -> int | None: ...

    def has_averages(self, gpu_uuid: str, start_unix_nano: int, end_unix_nano: int) -> bool: ...

    def read(
        self, gpu_uuid: str, start_unix_nano: int, end_unix_nano: int, metrics: Sequence[str] | None = None
    ) -> Samples: ...


def export_samples(
    directory: Path,
    out: Path,
    gpus: Sequence[str] = (),
    *,
    start_unix_nano: int = 0,
    end_unix_nano: int = 1 << 62,
    on_tick: Callable[[str, int], None] = lambda _gpu, _time: None,
) -> ExportReport:
    """Write the samples of GPUs in ``[start, end)`` into a trace file.

    Args:
        directory: A data directory. If no collector uses it, its log is read too.
        out: Ends with ``.parquet`` or ``.csv``; time 0 is the first tick of all.
        gpus: UUIDs; none means every GPU with samples in that time.
        start_unix_nano: Earliest time.
        end_unix_nano: Time after the latest.
        on_tick: Called with the GPU and the time up to which it has been written.

    Raises:
        UnknownGpuUuidError: A GPU has no samples in that time, or no GPU has any.
        StoreError: It is no data directory; a segment that is needed cannot be read.
        gpusonde.telemetry.TraceError: The name ends otherwise.
        OSError: The file cannot be written.
    """
    with _opened(directory) as (source, live):
        rows = {row.gpu_uuid: row for row in source.gpus()}
        first_ticks: dict[str, int] = {}
        for gpu_uuid in gpus or rows:
            tick = source.next_tick(gpu_uuid, start_unix_nano) if gpu_uuid in rows else None
            if tick is not None and tick < end_unix_nano:
                first_ticks[gpu_uuid] = tick
            elif gpus:
                raise UnknownGpuUuidError(f"{directory} holds no samples of GPU {gpu_uuid!r} in that time")
        if not first_ticks:
            raise UnknownGpuUuidError(f"{directory} holds no samples in that time")
        origin = min(first_ticks.values())
        models = {gpu: gpu_pb2.Gpu.FromString(rows[gpu].message).product_name for gpu in first_ticks}
        averaged = {gpu: source.has_averages(gpu, start_unix_nano, end_unix_nano) for gpu in first_ticks}
        offered = {gpu: tuple(source.metrics_of(gpu)) for gpu in first_ticks}
        metrics = list(dict.fromkeys(name for names in offered.values() for name in names))
        metadata = [
            TraceMetadata(
                gpu_uuid=gpu,
                gpu_model=models[gpu],
                origin_unix_s=origin / 1e9,
                attributes={"resolution_s": "1"} if averaged[gpu] else {},
                metrics=offered[gpu] if len(offered[gpu]) < len(metrics) else None,
            )
            for gpu in first_ticks
        ]
        written = dict.fromkeys(first_ticks, 0)
        with TraceWriter(out, metrics, metadata) as writer:
            for gpu, tick in first_ticks.items():
                for samples in _windows(source, gpu, metrics, tick, end_unix_nano):
                    time_s = (samples.time_unix_nano - origin) / 1e9
                    writer.append(time_s, samples.matrix(metrics), gpu)
                    written[gpu] += len(samples)
                    on_tick(gpu, int(samples.time_unix_nano[-1]))
    exported = [ExportedGpu(gpu, models[gpu], written[gpu], 1.0 if averaged[gpu] else 0.0) for gpu in first_ticks]
    return ExportReport(exported, live)


def _windows(source: _Source, gpu: str, metrics: Sequence[str], tick: int, end: int) -> Iterator[Samples]:
    found: int | None = tick
    while found is not None and found < end:
        until = min(found + _WINDOW_NS, end)
        samples = source.read(gpu, found, until, metrics)
        if len(samples):
            yield samples
        found = source.next_tick(gpu, until)


@contextlib.contextmanager
def _opened(directory: Path) -> Iterator[tuple[_Source, bool]]:
    """Open a data directory with its log, or beside the collector that has it."""
    with StoreSnapshot(directory) as snapshot:
        # Says what is wrong with a directory that is none, before a store would make one of it.
        store = LocalStore(StoreLayout(directory).directory, StoreOptions(reserve_bytes=0))
        try:
            store.open()
        except DirectoryLockedError:
            yield snapshot, True
            return
    try:
        yield store, False
    finally:
        store.close()
