"""What retention has deleted: a row for every file, kept for ever."""

from __future__ import annotations

from dataclasses import astuple, dataclass

from gpusonde.collector.storage.tables.database import Database
from gpusonde.collector.storage.tables.segment_catalog import SegmentFile


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
