"""``SegmentCatalog`` knows which rows of which segment belong to which GPU, ``Deletions`` what retention has deleted.

Of what was deleted there is a row for every file, kept for ever.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass

from gpusonde.collector.storage.local.database import Database
from gpusonde.collector.storage.local.segments import SegmentKind, SegmentPart, SpoolNote
from gpusonde.collector.storage.model import Position

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
