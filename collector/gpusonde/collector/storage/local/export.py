"""A data directory from outside: read beside its collector, exported as trace files, compacted while none uses it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpusonde.collector.config import StoreConfig
from gpusonde.collector.storage.local.catalog import SegmentCatalog
from gpusonde.collector.storage.local.database import Database
from gpusonde.collector.storage.local.facts import LocalFacts
from gpusonde.collector.storage.local.reader import LocalReader
from gpusonde.collector.storage.local.results import LocalResults
from gpusonde.collector.storage.local.segments import SegmentFiles, SegmentKind, StoreLayout
from gpusonde.collector.storage.local.store import LocalStore
from gpusonde.collector.storage.memtable import Memtables
from gpusonde.collector.storage.model import RunRow
from gpusonde.collector.storage.store import read_windows
from gpusonde.common.v1 import gpu_pb2
from gpusonde.errors import DirectoryLockedError, StoreError
from gpusonde.telemetry import TraceMetadata, TraceWriter


class StoreSnapshot:
    """What is in the catalogue and in segments; what a collector still has in its log is not seen.

    Attributes:
        facts: What records said besides samples.
        results: Runs and epochs.
        samples: Reads samples; for use while the snapshot is open.

    Args:
        directory: The data directory.
    """

    def __init__(self, directory: Path) -> None:
        self._database = Database(StoreLayout(directory).catalog)
        self._memory = Memtables()
        self.facts = LocalFacts(self._database)
        self.results = LocalResults(self._database)
        self.samples = LocalReader(
            self._memory, self.facts, SegmentCatalog(self._database), StoreLayout(directory), SegmentFiles()
        )

    def __enter__(self) -> StoreSnapshot:
        """Connect.

        Raises:
            StoreError: The directory is no data directory, or one of another version.
        """
        self._database.open_read_only()
        for key, position in self.facts.spools().items():
            self._memory.spools[key] = position.spool
            self._memory.stored[position.spool] = position.sequence
        return self

    def __exit__(self, *_: object) -> None:
        """Disconnect."""
        self._database.close()

    def contains(self, run: RunRow) -> bool:
        """Return whether a run is in segments to its last record."""
        return run.last_sequence <= self._memory.stored.get(run.last_spool, -1)


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
    """Turn the log and all segments into compact files, those of the current hour too, and round nothing.

    Raises:
        DirectoryLockedError: A collector is using the directory.
        StoreError: It is no data directory, or the disk refuses; what was done so far stays.
    """
    with StoreSnapshot(directory):
        pass  # says what is wrong with a directory that is none, before a store would make one of it
    # Whether this store may lose digits stands in a configuration that is not known here.
    store = LocalStore(directory, StoreConfig(reserve_bytes=0, lossless=True))
    store.open()
    try:
        store.flush()
        before = store.usage().tier_bytes["raw"]
        written = store.maintenance.compact_all()
        sizes = store.usage().tier_bytes
        left = len(SegmentCatalog(store.database).files(SegmentKind.MINUTE))
        return CompactReport(written, left, before, sizes["raw"], sizes["second"])
    finally:
        store.close()


# 15 minutes of 27 metrics at 10 Hz are two megabytes.
_WINDOW_NS = 900 * 1_000_000_000


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
        live: Whether a collector was using the directory: what it had in memory only, a minute at most, is missing.
    """

    gpus: Sequence[ExportedGpu]
    live: bool


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
        StoreError: A GPU has no samples in that time, or no GPU has any; it is no data directory; a segment that is
            needed cannot be read.
        gpusonde.telemetry.TraceError: The name ends otherwise.
        OSError: The file cannot be written.
    """
    with _opened(directory) as (store, live):
        facts, source = store.facts, store.samples
        rows = {row.gpu_uuid: row for row in facts.gpus()}
        first_ticks: dict[str, int] = {}
        for gpu_uuid in gpus or rows:
            tick = source.next_tick(gpu_uuid, start_unix_nano) if gpu_uuid in rows else None
            if tick is not None and tick < end_unix_nano:
                first_ticks[gpu_uuid] = tick
            elif gpus:
                raise StoreError(f"{directory} holds no samples of GPU {gpu_uuid!r} in that time")
        if not first_ticks:
            raise StoreError(f"{directory} holds no samples in that time")
        origin = min(first_ticks.values())
        models = {gpu: gpu_pb2.Gpu.FromString(rows[gpu].message).product_name for gpu in first_ticks}
        averaged = {gpu: source.has_rollups(gpu, start_unix_nano, end_unix_nano) for gpu in first_ticks}
        offered = {gpu: tuple(facts.metrics(gpu)) for gpu in first_ticks}
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
                for samples in read_windows(source, gpu, tick, end_unix_nano, metrics, _WINDOW_NS):
                    time_s = (samples.time_unix_nano - origin) / 1e9
                    writer.append(time_s, samples.matrix(metrics), gpu)
                    written[gpu] += len(samples)
                    on_tick(gpu, int(samples.time_unix_nano[-1]))
    exported = [ExportedGpu(gpu, models[gpu], written[gpu], 1.0 if averaged[gpu] else 0.0) for gpu in first_ticks]
    return ExportReport(exported, live)


@contextlib.contextmanager
def _opened(directory: Path) -> Iterator[tuple[LocalStore | StoreSnapshot, bool]]:
    """Open a data directory with its log, or beside the collector that has it."""
    with StoreSnapshot(directory) as snapshot:
        # Says what is wrong with a directory that is none, before a store would make one of it.
        store = LocalStore(StoreLayout(directory).directory, StoreConfig(reserve_bytes=0))
        try:
            store.open()
        except DirectoryLockedError:
            yield snapshot, True
            return
    try:
        yield store, False
    finally:
        store.close()
