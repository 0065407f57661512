"""The SQLite file beside the segments: one connection, one writer at a time, every commit synced.

``SegmentCatalog`` knows which rows of which segment belong to which GPU, ``Deletions`` what retention has deleted: a
row for every file, kept for ever.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from gpusonde.collector.storage.local.segments import (
    SegmentKind,
    SegmentPart,
    SpoolNote,
    StoreLayout,
    store_errors,
)
from gpusonde.collector.storage.model import Position
from gpusonde.errors import StoreCorruptError, StoreError

_LOG = logging.getLogger(__name__)
_VERSION = 6
# Of the same tables but for the trees of cycles: who only reads does without.
_READABLE = (4, 5, 6)

_SCHEMA = """
CREATE TABLE agents (
    agent_id TEXT PRIMARY KEY, spool_id TEXT NOT NULL, instance_id TEXT NOT NULL, start_unix_nano INTEGER NOT NULL,
    host_name TEXT NOT NULL, agent_version TEXT NOT NULL, host BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE spools (
    spool INTEGER PRIMARY KEY AUTOINCREMENT, agent_id TEXT NOT NULL, spool_id TEXT NOT NULL,
    stored_sequence INTEGER NOT NULL DEFAULT 0, UNIQUE (agent_id, spool_id)
);
CREATE TABLE inventories (
    spool INTEGER NOT NULL, sequence INTEGER NOT NULL, message BLOB NOT NULL, PRIMARY KEY (spool, sequence)
) WITHOUT ROWID;
CREATE TABLE gpus (
    gpu_uuid TEXT NOT NULL, agent_id TEXT NOT NULL, message BLOB NOT NULL, metrics TEXT NOT NULL,
    PRIMARY KEY (gpu_uuid, agent_id)
) WITHOUT ROWID;
CREATE TABLE segments (
    segment INTEGER PRIMARY KEY AUTOINCREMENT, file_name TEXT NOT NULL UNIQUE, size_bytes INTEGER NOT NULL,
    row_count INTEGER NOT NULL, created_unix_nano INTEGER NOT NULL, kind TEXT NOT NULL DEFAULT 'minute',
    newest_unix_nano INTEGER NOT NULL DEFAULT 0, raw_segment INTEGER
);
CREATE INDEX segments_by_kind ON segments (kind, created_unix_nano);
CREATE INDEX segments_by_raw ON segments (raw_segment) WHERE raw_segment IS NOT NULL;
CREATE TABLE segment_parts (
    gpu_uuid TEXT NOT NULL, spool INTEGER NOT NULL, segment INTEGER NOT NULL, row_group INTEGER NOT NULL,
    first_row INTEGER NOT NULL, row_count INTEGER NOT NULL, first_sequence INTEGER NOT NULL,
    last_sequence INTEGER NOT NULL, start_unix_nano INTEGER NOT NULL, end_unix_nano INTEGER NOT NULL,
    PRIMARY KEY (gpu_uuid, spool, segment, row_group)
) WITHOUT ROWID;
CREATE INDEX segment_parts_by_segment ON segment_parts (segment);
CREATE INDEX segment_parts_by_time ON segment_parts (gpu_uuid, end_unix_nano, start_unix_nano);
CREATE TABLE deletions (
    deletion INTEGER PRIMARY KEY AUTOINCREMENT, deleted_unix_nano INTEGER NOT NULL, kind TEXT NOT NULL,
    reason TEXT NOT NULL, file_name TEXT NOT NULL, size_bytes INTEGER NOT NULL, row_count INTEGER NOT NULL,
    gpu_count INTEGER NOT NULL, start_unix_nano INTEGER NOT NULL, end_unix_nano INTEGER NOT NULL,
    untracked_gpus INTEGER NOT NULL
);
CREATE TABLE job_bindings (
    spool INTEGER NOT NULL, sequence INTEGER NOT NULL, item INTEGER NOT NULL, gpu_uuid TEXT NOT NULL,
    job_id TEXT NOT NULL, scheduler INTEGER NOT NULL, start_unix_nano INTEGER NOT NULL, end_unix_nano INTEGER NOT NULL,
    labels TEXT NOT NULL, PRIMARY KEY (spool, sequence, item)
) WITHOUT ROWID;
CREATE INDEX job_bindings_by_gpu ON job_bindings (gpu_uuid, spool, sequence);
CREATE INDEX job_bindings_by_job ON job_bindings (job_id, spool, sequence);
CREATE TABLE source_ends (
    spool INTEGER NOT NULL, sequence INTEGER NOT NULL, gpu_uuid TEXT NOT NULL, PRIMARY KEY (spool, sequence, gpu_uuid)
) WITHOUT ROWID;
CREATE TABLE gpu_events (
    spool INTEGER NOT NULL, sequence INTEGER NOT NULL, item INTEGER NOT NULL, gpu_uuid TEXT NOT NULL,
    time_unix_nano INTEGER NOT NULL, kind INTEGER NOT NULL, value INTEGER NOT NULL, PRIMARY KEY (spool, sequence, item)
) WITHOUT ROWID;
CREATE INDEX gpu_events_by_gpu ON gpu_events (gpu_uuid, time_unix_nano);
CREATE TABLE losses (
    spool INTEGER NOT NULL, sequence INTEGER NOT NULL, first_sequence INTEGER NOT NULL, last_sequence INTEGER NOT NULL,
    reason INTEGER NOT NULL, lost_ticks INTEGER NOT NULL, PRIMARY KEY (spool, sequence)
) WITHOUT ROWID;
CREATE TABLE gaps (
    spool INTEGER NOT NULL, first_sequence INTEGER NOT NULL, last_sequence INTEGER NOT NULL,
    PRIMARY KEY (spool, first_sequence)
) WITHOUT ROWID;
CREATE TABLE rejections (
    spool INTEGER NOT NULL, sequence INTEGER NOT NULL, field TEXT NOT NULL, problem TEXT NOT NULL,
    size_bytes INTEGER NOT NULL, file_name TEXT NOT NULL, PRIMARY KEY (spool, sequence)
) WITHOUT ROWID;
CREATE TABLE empty_records (
    spool INTEGER NOT NULL, sequence INTEGER NOT NULL, PRIMARY KEY (spool, sequence)
) WITHOUT ROWID;
CREATE TABLE blank_counts (
    gpu_uuid TEXT NOT NULL, metric TEXT NOT NULL, reason INTEGER NOT NULL, count INTEGER NOT NULL,
    PRIMARY KEY (gpu_uuid, metric, reason)
) WITHOUT ROWID;
CREATE TABLE runs (
    run_id TEXT PRIMARY KEY, agent_id TEXT NOT NULL, gpu_uuid TEXT NOT NULL, job_id TEXT NOT NULL,
    scheduler INTEGER NOT NULL, ended INTEGER NOT NULL, end_reason TEXT NOT NULL, start_unix_nano INTEGER NOT NULL,
    end_unix_nano INTEGER NOT NULL, first_spool INTEGER NOT NULL, first_sequence INTEGER NOT NULL,
    last_spool INTEGER NOT NULL, last_sequence INTEGER NOT NULL, tick_count INTEGER NOT NULL,
    missed_ticks INTEGER NOT NULL, verdict TEXT NOT NULL, reason TEXT NOT NULL, period_s REAL, period_low_s REAL,
    period_high_s REAL, confidence REAL NOT NULL, epoch_count INTEGER NOT NULL, idle_share REAL, stalled_share REAL
) WITHOUT ROWID;
CREATE INDEX runs_by_start ON runs (start_unix_nano, run_id);
CREATE INDEX runs_by_gpu ON runs (gpu_uuid, start_unix_nano, run_id);
CREATE INDEX runs_by_job ON runs (job_id, start_unix_nano, run_id);
CREATE TABLE epochs (
    run_id TEXT NOT NULL, revision INTEGER NOT NULL, epoch_index INTEGER NOT NULL, start_unix_nano INTEGER NOT NULL,
    end_unix_nano INTEGER NOT NULL, confidence REAL NOT NULL, status TEXT NOT NULL, summary TEXT,
    PRIMARY KEY (run_id, epoch_index)
) WITHOUT ROWID;
CREATE INDEX epochs_to_summarise ON epochs (run_id, start_unix_nano) WHERE status = 'confirmed' AND summary IS NULL;
CREATE TABLE trees (run_id TEXT PRIMARY KEY, tree TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE tracker_positions (
    agent_id TEXT NOT NULL, gpu_uuid TEXT NOT NULL, spool INTEGER NOT NULL, sequence INTEGER NOT NULL,
    not_before_unix_nano INTEGER NOT NULL, PRIMARY KEY (agent_id, gpu_uuid)
) WITHOUT ROWID;
"""

# Column of a table below that came later than the table; a collector that does not know it can do without.
_LATER_COLUMN = ("job_alerts", "untold INTEGER NOT NULL DEFAULT 0")
# Made where they are not there: a collector that does not know them can do without.
_ADDITIONS = """
CREATE TABLE IF NOT EXISTS job_activity (
    spool INTEGER NOT NULL, sequence INTEGER NOT NULL, item INTEGER NOT NULL, gpu_uuids TEXT NOT NULL,
    start_unix_nano INTEGER NOT NULL, end_unix_nano INTEGER NOT NULL, message BLOB NOT NULL,
    received_unix_s INTEGER NOT NULL DEFAULT (CAST(strftime('%s', 'now') AS INTEGER)),
    PRIMARY KEY (spool, sequence, item)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS job_activity_by_age ON job_activity (received_unix_s);
CREATE TABLE IF NOT EXISTS job_states (
    run_id TEXT NOT NULL, start_unix_nano INTEGER NOT NULL, state TEXT NOT NULL, reason TEXT NOT NULL,
    confidence REAL NOT NULL, PRIMARY KEY (run_id, start_unix_nano)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS job_alerts (
    scheduler INTEGER NOT NULL, job_id TEXT NOT NULL, rule TEXT NOT NULL, start_unix_nano INTEGER NOT NULL,
    end_unix_nano INTEGER NOT NULL, reason TEXT NOT NULL, agent_id TEXT NOT NULL,
    untold INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (job_id, scheduler, rule, start_unix_nano)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS job_alerts_by_start ON job_alerts (start_unix_nano);
CREATE INDEX IF NOT EXISTS runs_open ON runs (start_unix_nano, run_id) WHERE NOT ended;
CREATE INDEX IF NOT EXISTS job_alerts_open ON job_alerts (start_unix_nano) WHERE end_unix_nano = 0;
CREATE INDEX IF NOT EXISTS job_alerts_untold ON job_alerts (start_unix_nano) WHERE untold;
"""

# What makes a catalogue of each older version one of the next.
_MIGRATIONS = {
    # Shares of a run, and what the ticks of each epoch add up to; the epochs of older runs are summarised afterwards.
    1: """
ALTER TABLE runs ADD COLUMN idle_share REAL;
ALTER TABLE runs ADD COLUMN stalled_share REAL;
ALTER TABLE epochs ADD COLUMN summary TEXT;
CREATE INDEX epochs_to_summarise ON epochs (run_id, start_unix_nano) WHERE status = 'confirmed' AND summary IS NULL;
""",
    # Hourly files, averages over seconds, and what retention has deleted.
    2: """
ALTER TABLE segments ADD COLUMN kind TEXT NOT NULL DEFAULT 'minute';
ALTER TABLE segments ADD COLUMN newest_unix_nano INTEGER NOT NULL DEFAULT 0;
ALTER TABLE segments ADD COLUMN raw_segment INTEGER;
UPDATE segments SET newest_unix_nano = created_unix_nano;
CREATE INDEX segments_by_kind ON segments (kind, created_unix_nano);
CREATE INDEX segments_by_raw ON segments (raw_segment) WHERE raw_segment IS NOT NULL;
CREATE TABLE segment_parts_3 (
    gpu_uuid TEXT NOT NULL, spool INTEGER NOT NULL, segment INTEGER NOT NULL, row_group INTEGER NOT NULL,
    first_row INTEGER NOT NULL, row_count INTEGER NOT NULL, first_sequence INTEGER NOT NULL,
    last_sequence INTEGER NOT NULL, start_unix_nano INTEGER NOT NULL, end_unix_nano INTEGER NOT NULL,
    PRIMARY KEY (gpu_uuid, spool, segment, row_group)
) WITHOUT ROWID;
INSERT INTO segment_parts_3 SELECT gpu_uuid, spool, segment, row_group, first_row, row_count, first_sequence,
    last_sequence, start_unix_nano, end_unix_nano FROM segment_parts;
DROP TABLE segment_parts;
ALTER TABLE segment_parts_3 RENAME TO segment_parts;
CREATE INDEX segment_parts_by_time ON segment_parts (gpu_uuid, end_unix_nano, start_unix_nano);
CREATE INDEX segment_parts_by_segment ON segment_parts (segment);
CREATE TABLE deletions (
    deletion INTEGER PRIMARY KEY AUTOINCREMENT, deleted_unix_nano INTEGER NOT NULL, kind TEXT NOT NULL,
    reason TEXT NOT NULL, file_name TEXT NOT NULL, size_bytes INTEGER NOT NULL, row_count INTEGER NOT NULL,
    gpu_count INTEGER NOT NULL, start_unix_nano INTEGER NOT NULL, end_unix_nano INTEGER NOT NULL,
    untracked_gpus INTEGER NOT NULL
);
""",
    # Records that say nothing, so that their sequences do not look like holes.
    3: """
CREATE TABLE empty_records (
    spool INTEGER NOT NULL, sequence INTEGER NOT NULL, PRIMARY KEY (spool, sequence)
) WITHOUT ROWID;
""",
    # The log's second format: an older collector, which could not read it, does not open the store.
    4: "",
    # The trees of cycles of jobs; those of older runs are not known.
    5: """
CREATE TABLE trees (run_id TEXT PRIMARY KEY, tree TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX job_bindings_by_job ON job_bindings (job_id, spool, sequence);
CREATE INDEX runs_by_job ON runs (job_id, start_unix_nano, run_id);
""",
}


class Database:
    """The catalogue's connection.

    Args:
        path: The SQLite file; made if it is not there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None

    def open(self) -> None:
        """Connect, create the tables where they are missing, and bring those of an older collector up to date.

        Raises:
            StoreCorruptError: The file is not an SQLite database, or is missing beside segments.
            StoreError: It belongs to a newer collector, or cannot be opened.
        """
        with store_errors(self.path):
            _check_present(self.path)
            connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=10.0)
            try:
                self._prepare(connection)
            except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
                connection.close()
                if isinstance(error, sqlite3.OperationalError):
                    raise
                raise StoreCorruptError(self.path, str(error), _remedy(self.path)) from error
            except StoreError:
                connection.close()
                raise
        self._connection = connection

    def open_read_only(self) -> None:
        """Connect beside whoever else uses the file, a running collector included; nothing can be written.

        Raises:
            StoreCorruptError: The file is not an SQLite database, or is missing beside segments.
            StoreError: It is not there, or belongs to another version of the collector.
        """
        _check_present(self.path)
        if not self.path.is_file():
            raise StoreError(
                f"{self.path.parent} is no data directory of a collector: it holds no {self.path.name}; "
                "if it was one, 'gpusonde store fsck --rebuild' makes that anew from the segments"
            )
        with store_errors(self.path):
            connection = sqlite3.connect(
                f"{self.path.absolute().as_uri()}?mode=ro", uri=True, check_same_thread=False, timeout=10.0
            )
            try:
                (version,) = connection.execute("PRAGMA user_version").fetchone()
            except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
                connection.close()
                if isinstance(error, sqlite3.OperationalError):
                    raise
                raise StoreCorruptError(self.path, str(error), _remedy(self.path)) from error
        if version not in _READABLE:
            connection.close()
            raise StoreError(
                f"{self.path} has schema version {version}, not {_VERSION}: start the newer of the two collectors once"
            )
        self._connection = connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA temp_store = MEMORY")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            connection.executescript(
                f"BEGIN IMMEDIATE; {_SCHEMA} {_ADDITIONS} PRAGMA user_version = {_VERSION}; COMMIT;"
            )
            return
        if version > _VERSION:
            raise StoreError(
                f"{self.path} has schema version {version}, this collector knows {_VERSION}; run the newer collector"
            )
        for known in range(version, _VERSION):
            # One transaction each: a crash leaves one version or the next.
            connection.executescript(
                f"BEGIN IMMEDIATE; {_MIGRATIONS[known]} PRAGMA user_version = {known + 1}; COMMIT;"
            )
            _LOG.info("%s now has schema version %d, which older collectors do not read", self.path, known + 1)
        table, column = _LATER_COLUMN
        present = [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")]
        if present and column.split()[0] not in present:
            connection.execute(f"ALTER TABLE {table} ADD COLUMN {column}")
        connection.executescript(_ADDITIONS)

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            if self._connection:
                self._connection.close()
                self._connection = None

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run statements that become durable together, or not at all.

        Raises:
            StoreFullError: There is no room.
            StoreError: SQLite refused.
        """
        with self._lock, store_errors(self.path):
            connection = self._open_connection()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def rows(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a query and return all its rows."""
        with self._lock, store_errors(self.path):
            return self._open_connection().execute(statement, parameters).fetchall()

    def _open_connection(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StoreError(f"{self.path} is closed")
        return self._connection


def _check_present(path: Path) -> None:
    """Refuse to begin anew where there are segments: their samples would be there and in no answer.

    Raises:
        StoreCorruptError: The catalogue is gone, its segments are not.
    """
    layout = StoreLayout(path.parent)
    if path != layout.catalog or (path.is_file() and path.stat().st_size):
        return
    for folder in layout.segment_folders:
        if any(folder.glob("*.parquet")):
            raise StoreCorruptError(path, f"is missing or empty while {folder.name}/ holds segments", _remedy(path))


def _remedy(path: Path) -> str:
    return (
        f"'gpusonde store fsck --rebuild {path.parent}' makes it anew from the segments, or restore the whole"
        " directory from a backup"
    )


_PART = (
    "segment, kind, file_name, gpu_uuid, spool, row_group, first_row, segment_parts.row_count, first_sequence,"
    " last_sequence, start_unix_nano, end_unix_nano"
)
# Averages are read only where the ticks they were made of are gone.
_IN_USE = "(kind != 'second' OR raw_segment IS NULL)"
_FILE = "segment, kind, file_name, size_bytes, row_count, created_unix_nano, newest_unix_nano, raw_segment"


@dataclass(frozen=True)
class PartRow:
    """A segment's part and the file it lies in."""

    segment: int
    kind: SegmentKind
    file_name: str
    part: SegmentPart


@dataclass(frozen=True)
class NewSegment:
    """A segment file that is on disk but not yet part of the store.

    Attributes:
        file_name: Its name.
        size_bytes: Length of the file.
        row_count: Its rows.
        created_unix_nano: When the oldest of its records was flushed, on the collector's clock.
        parts: Where each GPU's rows are.
        kind: What it holds.
        newest_unix_nano: When the newest of its records was flushed; None when that is the same.
    """

    file_name: str
    size_bytes: int
    row_count: int
    created_unix_nano: int
    parts: Sequence[SegmentPart]
    kind: SegmentKind = SegmentKind.MINUTE
    newest_unix_nano: int | None = None


@dataclass(frozen=True)
class SegmentFile:
    """A registered segment.

    Attributes:
        segment: Its number.
        kind: What it holds.
        file_name: Its name.
        size_bytes: Length of the file.
        row_count: Rows of the file, whether or not all of them are still read from it.
        created_unix_nano: When the oldest of its records was flushed, on the collector's clock.
        newest_unix_nano: When the newest of them was.
        raw_segment: Of averages, the segment that holds the ticks; None once that is gone.
    """

    segment: int
    kind: SegmentKind
    file_name: str
    size_bytes: int
    row_count: int
    created_unix_nano: int
    newest_unix_nano: int
    raw_segment: int | None


class SegmentCatalog:
    """Reads and writes the tables of segments.

    Args:
        database: Where they are.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def register(
        self,
        segment: NewSegment | None,
        stored: Sequence[Position],
        blanks: Mapping[tuple[str, str, int], int],
    ) -> None:
        """Make a segment part of the store and advance the stored sequences, both or neither.

        Args:
            segment: The new segment, or None when the log held nothing but facts.
            stored: Spool and the sequence up to which it now needs no log.
            blanks: (GPU, metric, reason) -> NaNs in the segment.
        """
        with self._database.transaction() as connection:
            if segment:
                _insert(connection, segment, None)
            connection.executemany(
                "UPDATE spools SET stored_sequence = ? WHERE spool = ? AND stored_sequence < ?",
                [(sequence, spool, sequence) for spool, sequence in stored],
            )
            connection.executemany(
                "INSERT INTO blank_counts VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET count = count + excluded.count",
                [(*key, count) for key, count in blanks.items()],
            )

    def take_back(self, segment: NewSegment, raw_segment: int | None) -> int:
        """Make a file part of the store that another catalogue knew; return its number.

        Args:
            segment: The file.
            raw_segment: Of averages, the segment that holds the ticks; None where there is none.
        """
        with self._database.transaction() as connection:
            return _insert(connection, segment, raw_segment)

    def replace(
        self, parts: Iterable[PartRow], ticks: NewSegment, seconds: NewSegment | None
    ) -> list[tuple[SegmentKind, str]]:
        """Let a new segment stand for parts of older ones, in one transaction.

        Args:
            parts: What the new segment holds.
            ticks: The new segment.
            seconds: The averages of its ticks.

        Returns:
            Kind and name of the files that nothing is read from any more.
        """
        with self._database.transaction() as connection:
            number = _insert(connection, ticks, None)
            if seconds:
                _insert(connection, seconds, number)
            old = list(parts)
            connection.executemany(
                "DELETE FROM segment_parts WHERE gpu_uuid = ? AND spool = ? AND segment = ? AND row_group = ?",
                [(row.part.gpu_uuid, row.part.spool, row.segment, row.part.row_group) for row in old],
            )
            return _remove_empty(connection, {row.segment for row in old})

    def files(self, *kinds: SegmentKind, arrived_before_unix_nano: int = 1 << 62, limit: int = -1) -> list[SegmentFile]:
        """Return registered segments, those with the oldest records first.

        Args:
            kinds: Of these kinds; none means all.
            arrived_before_unix_nano: Only those whose newest record was flushed before this time.
            limit: At most so many; negative means all.
        """
        wanted = [kind.value for kind in kinds or SegmentKind]
        rows = self._database.rows(
            f"SELECT {_FILE} FROM segments WHERE kind IN ({_placeholders(wanted)}) AND newest_unix_nano < ?"  # noqa: S608
            " ORDER BY created_unix_nano, segment LIMIT ?",
            (*wanted, arrived_before_unix_nano, limit),
        )
        return [_file(row) for row in rows]

    def sizes(self) -> dict[SegmentKind, int]:
        """Return the bytes of all registered segments by kind."""
        sums = dict(self._database.rows("SELECT kind, sum(size_bytes) FROM segments GROUP BY kind"))
        return {kind: int(sums.get(kind.value, 0)) for kind in SegmentKind}

    def is_registered(self, file_name: str) -> bool:
        """Return whether a segment is part of the store."""
        return bool(self._database.rows("SELECT 1 FROM segments WHERE file_name = ?", (file_name,)))

    def spool_notes(self, last_sequences: Mapping[int, int]) -> list[SpoolNote]:
        """Return what a segment's file says of spools, with the inventories that hold for the last of its records.

        Args:
            last_sequences: Spool -> highest sequence in the segment.
        """
        notes = []
        for spool, last in sorted(last_sequences.items()):
            found = self._database.rows(
                "SELECT spools.spool, agent_id, spool_id, COALESCE(sequence, 0), COALESCE(message, x'') FROM spools"
                " LEFT JOIN inventories ON inventories.spool = spools.spool AND sequence <= ?"
                " WHERE spools.spool = ? ORDER BY sequence DESC LIMIT 1",
                (last, spool),
            )
            notes += [SpoolNote(*row) for row in found]
        return notes

    def adopt_spools(self, notes: Iterable[SpoolNote]) -> None:
        """Keep the numbers of spools that another catalogue gave, so that its segments can be taken back later."""
        with self._database.transaction() as connection:
            for note in notes:
                connection.execute(
                    "INSERT OR IGNORE INTO spools (spool, agent_id, spool_id) VALUES (?, ?, ?)",
                    (note.spool, note.agent_id, note.spool_id),
                )

    def identities(self) -> dict[int, tuple[str, str]]:
        """Return the number of every spool and whose it is: agent and spool id."""
        rows = self._database.rows("SELECT spool, agent_id, spool_id FROM spools")
        return {spool: (agent, spool_id) for spool, agent, spool_id in rows}

    def was_deleted(self, file_name: str, size_bytes: int) -> bool:
        """Return whether retention has deleted such a file."""
        statement = "SELECT 1 FROM deletions WHERE file_name = ? AND size_bytes = ? LIMIT 1"
        return bool(self._database.rows(statement, (file_name, size_bytes)))

    def tick_parts_of(self, gpu_uuid: str, spool: int, first_sequence: int, last_sequence: int) -> list[PartRow]:
        """Return the parts with ticks of a GPU and spool that may hold records of this range."""
        return self._parts(
            "gpu_uuid = ? AND spool = ? AND last_sequence >= ? AND first_sequence <= ? AND kind != 'second'",
            (gpu_uuid, spool, first_sequence, last_sequence),
        )

    def gpus_in(self, segments: Collection[int]) -> list[str]:
        """Return the GPUs with rows in these segments."""
        rows = self._database.rows(
            f"SELECT DISTINCT gpu_uuid FROM segment_parts WHERE segment IN ({_placeholders(segments)})"  # noqa: S608
            " ORDER BY gpu_uuid",
            list(segments),
        )
        return [gpu_uuid for (gpu_uuid,) in rows]

    def parts_in(self, segments: Collection[int], gpu_uuid: str | None = None) -> list[PartRow]:
        """Return the parts of these segments, or those of one GPU, by GPU and in order of arrival."""
        condition = f"segment IN ({_placeholders(segments)})"
        if gpu_uuid is None:
            return self._parts(condition, list(segments))
        return self._parts(f"gpu_uuid = ? AND {condition}", [gpu_uuid, *segments])

    def parts_between(self, gpu_uuid: str, start_unix_nano: int, end_unix_nano: int) -> list[PartRow]:
        """Return the parts of a GPU with ticks in ``[start, end)``, or averages where those are gone, by arrival."""
        return self._parts(
            f"gpu_uuid = ? AND end_unix_nano >= ? AND start_unix_nano < ? AND {_IN_USE}",
            (gpu_uuid, start_unix_nano, end_unix_nano),
        )

    def parts_after(self, gpu_uuid: str, spools: Sequence[int], after: Position) -> list[PartRow]:
        """Return the parts of a GPU with ticks of these spools behind a position, in order of arrival."""
        return self._parts(
            f"gpu_uuid = ? AND spool IN ({_placeholders(spools)}) AND (spool, last_sequence) > (?, ?)"
            " AND kind != 'second'",
            (gpu_uuid, *spools, *after),
        )

    def _parts(self, condition: str, parameters: Sequence[object]) -> list[PartRow]:
        rows = self._database.rows(
            f"SELECT {_PART} FROM segment_parts JOIN segments USING (segment) WHERE {condition}"  # noqa: S608 - own text
            " ORDER BY gpu_uuid, spool, first_sequence, segment, row_group",
            parameters,
        )
        return [PartRow(row[0], SegmentKind(row[1]), row[2], SegmentPart(*row[3:])) for row in rows]


def _insert(connection: sqlite3.Connection, segment: NewSegment, raw_segment: int | None) -> int:
    newest = segment.created_unix_nano if segment.newest_unix_nano is None else segment.newest_unix_nano
    number = connection.execute(
        "INSERT INTO segments (kind, file_name, size_bytes, row_count, created_unix_nano, newest_unix_nano,"
        " raw_segment) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            segment.kind.value,
            segment.file_name,
            segment.size_bytes,
            segment.row_count,
            segment.created_unix_nano,
            newest,
            raw_segment,
        ),
    ).lastrowid
    connection.executemany(
        "INSERT INTO segment_parts (segment, gpu_uuid, spool, row_group, first_row, row_count, first_sequence,"
        " last_sequence, start_unix_nano, end_unix_nano) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                number,
                part.gpu_uuid,
                part.spool,
                part.row_group,
                part.first_row,
                part.row_count,
                part.first_sequence,
                part.last_sequence,
                part.start_unix_nano,
                part.end_unix_nano,
            )
            for part in segment.parts
        ],
    )
    return int(number or 0)


def _remove_empty(connection: sqlite3.Connection, segments: Collection[int]) -> list[tuple[SegmentKind, str]]:
    removed: list[tuple[SegmentKind, str]] = []
    for segment in sorted(segments):
        if connection.execute("SELECT 1 FROM segment_parts WHERE segment = ? LIMIT 1", (segment,)).fetchone():
            continue
        row = connection.execute("SELECT kind, file_name FROM segments WHERE segment = ?", (segment,)).fetchone()
        if row:
            connection.execute("DELETE FROM segments WHERE segment = ?", (segment,))
            removed.append((SegmentKind(row[0]), row[1]))
    return removed


def _file(row: tuple[object, ...]) -> SegmentFile:
    return SegmentFile(row[0], SegmentKind(row[1]), *row[2:])  # type: ignore[arg-type]


def _placeholders(values: Collection[object]) -> str:
    return ", ".join("?" * len(values))


@dataclass(frozen=True)
class Deletion:
    """A deleted file.

    Attributes:
        deleted_unix_nano: When, on the collector's clock.
        kind: What it held, see ``SegmentKind``.
        reason: ``age``, ``size`` or ``free space``.
        file_name: Its name.
        size_bytes: Its length.
        row_count: Ticks or seconds of all GPUs that were read from it.
        gpu_count: GPUs in it.
        start_unix_nano: Earliest tick.
        end_unix_nano: Latest tick.
        untracked_gpus: GPUs of whose ticks in it some would be read again if tracking lost its state.
    """

    deleted_unix_nano: int
    kind: str
    reason: str
    file_name: str
    size_bytes: int
    row_count: int
    gpu_count: int
    start_unix_nano: int
    end_unix_nano: int
    untracked_gpus: int


_COLUMNS = (
    "deleted_unix_nano, kind, reason, file_name, size_bytes, row_count, gpu_count, start_unix_nano, end_unix_nano,"
    " untracked_gpus"
)
_UNTRACKED = """
SELECT COUNT(DISTINCT part.gpu_uuid) FROM segment_parts AS part JOIN spools USING (spool)
LEFT JOIN tracker_positions AS reached ON reached.gpu_uuid = part.gpu_uuid AND reached.agent_id = spools.agent_id
WHERE part.segment = ? AND (reached.agent_id IS NULL
    OR (part.spool, part.last_sequence) > (reached.spool, reached.sequence))
"""


class Deletions:
    """Takes segments out of the catalogue and records it.

    Args:
        database: Where both are.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def untracked_gpus(self, segment: int) -> int:
        """Return of how many GPUs a segment holds ticks that tracking has not left behind for good."""
        return int(self._database.rows(_UNTRACKED, (segment,))[0][0])

    def delete_activity(self, before_unix_nano: int) -> None:
        """Forget what processes of jobs did, as far as it arrived before a time."""
        with self._database.transaction() as connection:
            connection.execute("DELETE FROM job_activity WHERE received_unix_s < ?", (before_unix_nano // 10**9,))

    def delete(self, segment: SegmentFile, reason: str, now_unix_nano: int) -> Deletion:
        """Take a segment out of the store and record why, in one transaction; its file is then no part of the store.

        Averages of its ticks are read from now on.
        """
        with self._database.transaction() as connection:
            rows, gpus, start, end = connection.execute(
                "SELECT COALESCE(SUM(row_count), 0), COUNT(DISTINCT gpu_uuid), COALESCE(MIN(start_unix_nano), 0),"
                " COALESCE(MAX(end_unix_nano), 0) FROM segment_parts WHERE segment = ?",
                (segment.segment,),
            ).fetchone()
            (untracked,) = connection.execute(_UNTRACKED, (segment.segment,)).fetchone()
            deletion = Deletion(
                now_unix_nano,
                segment.kind.value,
                reason,
                segment.file_name,
                segment.size_bytes,
                rows,
                gpus,
                start,
                end,
                0 if segment.kind.value == "second" else untracked,
            )
            connection.execute("DELETE FROM segment_parts WHERE segment = ?", (segment.segment,))
            connection.execute("DELETE FROM segments WHERE segment = ?", (segment.segment,))
            connection.execute("UPDATE segments SET raw_segment = NULL WHERE raw_segment = ?", (segment.segment,))
            connection.execute(
                f"INSERT INTO deletions ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 - own text
                astuple(deletion),
            )
        return deletion

    def all(self) -> list[Deletion]:
        """Return every deletion, oldest first."""
        return [Deletion(*row) for row in self._database.rows(f"SELECT {_COLUMNS} FROM deletions ORDER BY deletion")]  # noqa: S608
