"""One segment against the catalogue: every page with its checksum, every part with its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gpusonde.collector.storage.check.findings import FindingKind
from gpusonde.collector.storage.check.intervals import Intervals
from gpusonde.collector.storage.disk.encoding import SCHEMA_VERSION, VERSION_KEY
from gpusonde.collector.storage.tables.segment_catalog import PartRow, SegmentFile

_RESTORE = "restore the file from a backup"


class SegmentProblem(Exception):  # noqa: N818 - it is a finding, not a failure
    """What is wrong with a segment.

    Attributes:
        kind: What kind of thing.
        problem: In words.
    """

    def __init__(self, kind: FindingKind, problem: str) -> None:
        """Keep both."""
        self.kind = kind
        self.problem = problem
        super().__init__(problem)


def check_segment(path: Path, segment: SegmentFile, parts: Sequence[PartRow], held: dict[int, Intervals] | None) -> int:
    """Read a segment to its end.

    Args:
        path: The file.
        segment: What the catalogue says of it.
        parts: The parts that are read from it.
        held: Spool -> sequences in the store, which those of the segment are added to.

    Returns:
        Its rows.

    Raises:
        SegmentProblem: It is not what it should be.
    """
    try:
        _check_size(path, segment)
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            return _check_open(file, segment, parts, held)
    except FileNotFoundError:
        _count_as_held(parts, held)
        raise SegmentProblem(FindingKind.MISSING, f"is in the catalogue and not there; {_RESTORE}") from None
    except (OSError, pa.ArrowException) as error:
        _count_as_held(parts, held)
        raise SegmentProblem(FindingKind.DAMAGED, f"cannot be read ({error}); {_RESTORE}") from None
    except SegmentProblem:
        _count_as_held(parts, held)
        raise


def _check_size(path: Path, segment: SegmentFile) -> None:
    size = path.stat().st_size
    if size != segment.size_bytes:
        raise SegmentProblem(FindingKind.DAMAGED, f"has {size} bytes instead of {segment.size_bytes}; {_RESTORE}")


def _check_open(
    file: pq.ParquetFile, segment: SegmentFile, parts: Sequence[PartRow], held: dict[int, Intervals] | None
) -> int:
    metadata: Mapping[bytes, bytes] = file.schema_arrow.metadata or {}
    if metadata.get(VERSION_KEY) != str(SCHEMA_VERSION).encode():
        raise SegmentProblem(FindingKind.MISMATCH, "is not of this version of the schema; was it replaced?")
    if file.metadata.num_rows != segment.row_count:
        raise SegmentProblem(
            FindingKind.MISMATCH, f"has {file.metadata.num_rows} rows instead of {segment.row_count}; {_RESTORE}"
        )
    by_group: dict[int, list[PartRow]] = {}
    for row in parts:
        by_group.setdefault(row.part.row_group, []).append(row)
    for group in range(file.num_row_groups):
        # All columns: the checksum of a page is looked at when it is read.
        table = file.read_row_group(group, use_threads=False)
        for row in by_group.pop(group, []):
            _check_part(table.slice(row.part.first_row, row.part.row_count), row, held)
    if by_group:
        raise SegmentProblem(FindingKind.MISMATCH, f"has no row group {min(by_group)}; {_RESTORE}")
    return segment.row_count


def _check_part(table: pa.Table, row: PartRow, held: dict[int, Intervals] | None) -> None:
    part = row.part
    if table.num_rows != part.row_count:
        raise SegmentProblem(FindingKind.MISMATCH, f"row group {part.row_group} has too few rows; {_RESTORE}")
    time, spool, sequence = (table.column(name).to_numpy() for name in ("time_unix_nano", "spool", "sequence"))
    described = (part.first_sequence, part.last_sequence, part.start_unix_nano, part.end_unix_nano)
    found = (int(sequence.min()), int(sequence.max()), int(time.min()), int(time.max()))
    if table.column("gpu_uuid").unique().to_pylist() != [part.gpu_uuid] or not np.all(spool == part.spool):
        raise SegmentProblem(
            FindingKind.MISMATCH, f"row group {part.row_group} holds rows of others than {part.gpu_uuid}; {_RESTORE}"
        )
    if described != found:
        raise SegmentProblem(
            FindingKind.MISMATCH,
            f"row group {part.row_group}: sequences and times of {part.gpu_uuid} are not those of the catalogue;"
            f" {_RESTORE}",
        )
    if held is not None:
        held.setdefault(part.spool, Intervals()).add_all(sequence)


def _count_as_held(parts: Sequence[PartRow], held: dict[int, Intervals] | None) -> None:
    """Take the catalogue's word for what a damaged file holds: it is found once, not again as a hole."""
    if held is not None:
        for row in parts:
            held.setdefault(row.part.spool, Intervals()).add(row.part.first_sequence, row.part.last_sequence)
