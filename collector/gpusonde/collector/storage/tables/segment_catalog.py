"""Which rows of which segment belong to which GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpusonde.collector.records.model import Position
from gpusonde.collector.storage.disk.segments import SegmentPart
from gpusonde.collector.storage.tables.database import Database

_PART = (
    "file_name, gpu_uuid, spool, row_group, first_row, segment_parts.row_count, first_sequence, last_sequence,"
    " start_unix_nano, end_unix_nano"
)


@dataclass(frozen=True)
class PartRow:
    """A segment's part and the file it lies in."""

    file_name: str
    part: SegmentPart


@dataclass(frozen=True)
class NewSegment:
    """A segment file that is on disk but not yet part of the store."""

    file_name: str
    size_bytes: int
    row_count: int
    created_unix_nano: int
    parts: Sequence[SegmentPart]


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
                number = connection.execute(
                    "INSERT INTO segments (file_name, size_bytes, row_count, created_unix_nano) VALUES (?, ?, ?, ?)",
                    (segment.file_name, segment.size_bytes, segment.row_count, segment.created_unix_nano),
                ).lastrowid
                connection.executemany(
                    "INSERT INTO segment_parts (segment, gpu_uuid, spool, row_group, first_row, row_count,"
                    " first_sequence, last_sequence, start_unix_nano, end_unix_nano)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
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
            connection.executemany(
                "UPDATE spools SET stored_sequence = ? WHERE spool = ? AND stored_sequence < ?",
                [(sequence, spool, sequence) for spool, sequence in stored],
            )
            connection.executemany(
                "INSERT INTO blank_counts VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET count = count + excluded.count",
                [(*key, count) for key, count in blanks.items()],
            )

    def files(self) -> dict[str, int]:
        """Return the name and size of every registered segment file."""
        return dict(self._database.rows("SELECT file_name, size_bytes FROM segments"))

    def parts_between(self, gpu_uuid: str, start_unix_nano: int, end_unix_nano: int) -> list[PartRow]:
        """Return the parts of a GPU with ticks in ``[start, end)``, in order of arrival."""
        return self._parts(
            "gpu_uuid = ? AND end_unix_nano >= ? AND start_unix_nano < ?", (gpu_uuid, start_unix_nano, end_unix_nano)
        )

    def parts_after(self, gpu_uuid: str, spools: Sequence[int], after: Position) -> list[PartRow]:
        """Return the parts of a GPU with records of these spools behind a position, in order of arrival."""
        marks = ", ".join("?" * len(spools))
        return self._parts(
            f"gpu_uuid = ? AND spool IN ({marks}) AND (spool, last_sequence) > (?, ?)", (gpu_uuid, *spools, *after)
        )

    def _parts(self, condition: str, parameters: Sequence[object]) -> list[PartRow]:
        rows = self._database.rows(
            f"SELECT {_PART} FROM segment_parts JOIN segments USING (segment) WHERE {condition}"  # noqa: S608 - own text
            " ORDER BY spool, segment",
            parameters,
        )
        return [PartRow(row[0], SegmentPart(*row[1:])) for row in rows]
