"""``LocalStore``: the store on one machine's disk."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from gpusonde.collector.config import StoreConfig
from gpusonde.collector.storage.local.catalog import Deletions, SegmentCatalog
from gpusonde.collector.storage.local.compaction import CompactionSizes, Compactor
from gpusonde.collector.storage.local.database import Database
from gpusonde.collector.storage.local.facts import LocalFacts
from gpusonde.collector.storage.local.results import LocalResults
from gpusonde.collector.storage.local.retention import Maintenance, Retention, maintain
from gpusonde.collector.storage.local.samples import LocalSamples
from gpusonde.collector.storage.local.segments import SegmentKind, StoreLayout, store_errors
from gpusonde.collector.storage.local.states import StateFiles
from gpusonde.collector.storage.model import StoreUsage
from gpusonde.collector.storage.store import OwnersListener, StoreCounters
from gpusonde.errors import StoreError
from gpusonde.service.durable_files import DirectoryLock, FileLayer, OsFiles

_LOG = logging.getLogger(__name__)
_MOST_FLUSH_CHECK_S = 1.0


class LocalStore:
    """Log, memtable, Parquet segments and SQLite catalogue in one directory, which it locks.

    Args:
        directory: The data directory; made if it is not there.
        config: Sizes and intervals, how segments are compacted and how long they are kept.
        hold_untracked: Whether ticks that tracking would have to read again are kept for twice the time.
        compaction: How much is compacted at once.
        files: The file layer.
        wall_clock_ns: Unix time in nanoseconds.
        monotonic_clock: Seconds, for the age of what is in memory.
    """

    def __init__(
        self,
        directory: Path,
        config: StoreConfig | None = None,
        *,
        hold_untracked: bool = True,
        compaction: CompactionSizes | None = None,
        files: FileLayer | None = None,
        wall_clock_ns: Callable[[], int] = time.time_ns,
        monotonic_clock: Callable[[], float] = time.monotonic,
    ) -> None:
        config, files = config or StoreConfig(), files or OsFiles()
        self.layout = StoreLayout(directory)
        self.place = str(directory)
        self.counters = StoreCounters()
        self.database = Database(self.layout.catalog)
        self.facts = LocalFacts(self.database)
        self.results = LocalResults(self.database)
        self._files = files
        self._config = config
        self._segments = SegmentCatalog(self.database)
        self._directory_lock = DirectoryLock(directory, "collector")
        self.samples = LocalSamples(
            self.layout,
            files,
            self.facts,
            self._segments,
            config,
            self.counters,
            wall_clock_ns=wall_clock_ns,
            monotonic_clock=monotonic_clock,
        )
        self.states = StateFiles(directory / "tracking", files, self.samples.check_space)
        compactor = Compactor(
            self._segments,
            self.layout,
            files,
            config,
            self.samples.check_space,
            self.counters,
            wall_clock_ns,
            compaction,
        )
        retention = Retention(
            self._segments,
            Deletions(self.database),
            self.layout,
            files,
            config,
            self.counters,
            wall_clock_ns,
            hold_untracked=hold_untracked,
        )
        self.maintenance = Maintenance(compactor, retention, config)

    def open(self) -> None:
        """Take the directory, replay the log, remove what a crash left half-made.

        Raises:
            DirectoryLockedError: Another collector has it.
            StoreCorruptError: The catalogue is not readable.
            StoreError: The directory cannot be used.
        """
        layout = self.layout
        with store_errors(layout.directory):
            # Whatever the umask is: what jobs do is not for every user of the host.
            layout.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            for folder in (*layout.segment_folders, layout.log, layout.quarantine):
                folder.mkdir(parents=True, exist_ok=True)
            self._directory_lock.acquire()
            try:
                self.database.open()
                self.samples.recover()
                self._files.remove(layout.backup_mark)
            except Exception:
                self._release()
                raise

    def close(self) -> None:
        """Close the files; everything appended is durable already."""
        self.samples.close(self._release)

    def _release(self) -> None:
        self.database.close()
        self._directory_lock.release()

    def configure(self, config: StoreConfig) -> None:
        """Take over another configuration; the size of the cache stays. What is under way goes on as it began."""
        self._config = config
        self.samples.configure(config)
        self.maintenance.configure(config)

    def flush(self) -> None:
        """Turn what is in memory into segments; the next start would have to read it from the log.

        Raises:
            StoreFullError: No room; nothing changes, and the next call tries again.
            StoreError: Any other failure, likewise.
        """
        self.samples.flush()

    def memory_share(self) -> float:
        """Return the share of the memory for samples that is in use; at 1 nothing is taken any more."""
        return self.samples.memory_share()

    def usage(self) -> StoreUsage:
        """Return how much is kept, and how much more could be.

        Raises:
            StoreError: It cannot be found out.
        """
        segments = self._segments.sizes()
        directory = self.layout.directory
        with store_errors(directory):
            return StoreUsage(
                {
                    "raw": segments[SegmentKind.MINUTE] + segments[SegmentKind.HOUR],
                    "second": segments[SegmentKind.SECOND],
                    "log": _size(self.layout.log.glob("*.log")),
                    "lost_found": _size(self.layout.lost_found.glob("*/*")),
                    "catalog": _size(directory.glob(f"{self.layout.catalog.name}*")),
                },
                self._files.free_bytes(directory),
            )

    def run_in_background(self, executors: Mapping[str, Executor]) -> Sequence[Coroutine[Any, Any, None]]:
        """Return the work of flushing, and that of compacting and deleting what is too old."""
        return [self._flush_for_ever(executors["flush"]), maintain(self.maintenance, executors["maintain"])]

    async def _flush_for_ever(self, executor: Executor) -> None:
        while True:
            await asyncio.sleep(min(self._config.segment_interval_s / 4, _MOST_FLUSH_CHECK_S))
            try:
                await asyncio.shield(asyncio.get_running_loop().run_in_executor(executor, self.samples.flush_if_due))
            except StoreError as error:
                # Samples stay in the log and in memory; ingest stops by itself when that gets too much.
                _LOG.error("no segment could be written: %s", error)

    def followed(self) -> list[tuple[str, str]]:
        """Return all (agent, GPU) pairs: the directory is locked, no other collector follows any."""
        return [(gpu.agent_id, gpu.gpu_uuid) for gpu in self.facts.gpus()]

    def subscribe_to_owners(self, listener: OwnersListener) -> None:
        """Do nothing: no other collector has any agents of this directory."""


def _size(paths: Iterable[Path]) -> int:
    """Add up files, which may go away meanwhile."""
    total = 0
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total
