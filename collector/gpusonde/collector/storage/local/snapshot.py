"""``StoreSnapshot``: reading a data directory from outside, whether or not its collector runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpusonde.collector.records.model import Position
from gpusonde.collector.storage.disk.layout import StoreLayout
from gpusonde.collector.storage.disk.segment_files import SegmentFiles
from gpusonde.collector.storage.local.memory import Memory
from gpusonde.collector.storage.local.reader import Reader
from gpusonde.collector.storage.samples import Samples
from gpusonde.collector.storage.tables.database import Database
from gpusonde.collector.storage.tables.facts import Facts, GpuRow
from gpusonde.collector.storage.tables.results import Results, RunRow
from gpusonde.collector.storage.tables.segment_catalog import SegmentCatalog


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
