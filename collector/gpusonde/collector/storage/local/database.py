"""``Database``: the SQLite file beside the segments: one connection, one writer at a time, every commit synced."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpusonde.collector.storage.local.segments import StoreLayout, store_errors
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
