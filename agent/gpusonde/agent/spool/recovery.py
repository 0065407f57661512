"""Reading a spool back after any kind of end: clean, killed, power lost, disk full, bits flipped.

Rules:

* A torn tail of the newest segment is cut: those bytes were never committed, so they were never sent.
* A damaged record with valid ones after it is a loss: its sequence number is taken by a LossReport in its place, so
  that the sequence has no hole and the collector learns of it.
* Where two segments claim a sequence, the newer segment is right: it was started because the older one could not be
  synced.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import DecodeError

from gpusonde.agent.spool.errors import SpoolCorruptError
from gpusonde.agent.spool.files import Files, write_file
from gpusonde.agent.spool.index import Segment, record_ticks
from gpusonde.agent.spool.losses import loss_record
from gpusonde.agent.spool.segment import SUFFIX, ScannedRecord, encode_header, encode_record, scan, segment_path
from gpusonde.ingest.v1 import ingest_pb2

log = logging.getLogger(__name__)

# More missing sequences than any disk error explains: files of different spools were mixed.
_MAX_HOLES = 1_000_000
_READ_ALL = 1 << 40


@dataclass(frozen=True)
class Recovery:
    """A spool read back from disk.

    Attributes:
        segments: Oldest first, without holes between them.
        context: Serialised Inventory record in force after the last record.
        lost_records: Records replaced by LossReports.
        torn_bytes: Bytes cut from the tail.
    """

    segments: list[Segment]
    context: bytes
    lost_records: int
    torn_bytes: int


def recover(directory: Path, files: Files) -> Recovery:
    """Read every segment, cut or repair what is damaged, and return what is left.

    Raises:
        SpoolCorruptError: More is missing than losses can describe.
        OSError: The disk failed.
    """
    for leftover in directory.glob("*.tmp"):
        files.unlink(leftover)
    firsts = _first_sequences(directory)
    segments: list[Segment] = []
    context, lost, torn = b"", 0, 0
    for i, first in enumerate(firsts):
        limit = firsts[i + 1] if i + 1 < len(firsts) else None
        recovered = _recover_segment(segment_path(directory, first), first, limit, context, files)
        segments.append(recovered.segment)
        context = recovered.context_after
        lost += recovered.lost
        torn += recovered.torn_bytes
    return Recovery(segments, context, lost, torn)


@dataclass(frozen=True)
class _RecoveredSegment:
    segment: Segment
    context_after: bytes
    lost: int
    torn_bytes: int


def _first_sequences(directory: Path) -> list[int]:
    firsts = []
    for path in directory.glob(f"*{SUFFIX}"):
        if not path.stem.isdecimal() or int(path.stem) < 1:
            raise SpoolCorruptError(f"{path}: not a name the spool gives; move the file away")
        firsts.append(int(path.stem))
    return sorted(firsts)


def _recover_segment(
    path: Path, first: int, limit: int | None, context_before: bytes, files: Files
) -> _RecoveredSegment:
    descriptor = files.open(path)
    try:
        data = files.read(descriptor, _READ_ALL, 0)
    finally:
        files.close(descriptor)
    found = scan(data)
    context = context_before if found.context is None else found.context
    kept = _increasing(found.records, first, limit)
    last = limit - 1 if limit is not None else (kept[-1].sequence if kept else first - 1)
    holes = last - first + 1 - len(kept)
    if holes > _MAX_HOLES:
        raise SpoolCorruptError(
            f"{path}: {holes} records are missing before the next segment; "
            "move the spool directory away and the agent starts a new one"
        )
    rebuilt = bool(holes) or found.damaged or found.context is None
    records = [_parse(record, path) for record in kept]
    segment = Segment(path, first, context)
    if rebuilt:
        records = _fill_holes(records, first, last)
        write_file(files, path, _rebuild(segment, records))
        log.warning("%s: damaged; %d records are lost and will be reported as such", path, holes)
    else:
        segment.size = len(encode_header(first, context))
        for record, scanned in zip(records, kept, strict=True):
            segment.index(record, scanned.end - scanned.offset)
    torn = 0
    if limit is None and not rebuilt and found.size > segment.size:
        torn = found.size - segment.size
        _truncate(path, segment.size, files)
        log.info("%s: cut %d bytes of an unfinished record", path, torn)
    inventories = [record for record in records if record.HasField("inventory")]
    after = inventories[-1].SerializeToString() if inventories else context
    return _RecoveredSegment(segment, after, holes, torn)


def _increasing(records: Iterable[ScannedRecord], first: int, limit: int | None) -> list[ScannedRecord]:
    kept: list[ScannedRecord] = []
    expected = first
    for record in records:
        if record.sequence >= expected and (limit is None or record.sequence < limit):
            kept.append(record)
            expected = record.sequence + 1
    return kept


def _parse(record: ScannedRecord, path: Path) -> ingest_pb2.Record:
    try:
        return ingest_pb2.Record.FromString(record.payload)
    except DecodeError as error:
        raise SpoolCorruptError(
            f"{path}: record {record.sequence} has a right checksum but is no record ({error}); "
            "it was written by another program or version: move the spool directory away"
        ) from error


def _fill_holes(records: list[ingest_pb2.Record], first: int, last: int) -> list[ingest_pb2.Record]:
    by_sequence = {record.sequence: record for record in records}
    filled = []
    for sequence in range(first, last + 1):
        record = by_sequence.get(sequence)
        if record is None:
            record = loss_record(sequence, sequence, ingest_pb2.LOSS_REASON_SPOOL_CORRUPT, 0)
            record.sequence = sequence
        filled.append(record)
    return filled


def _rebuild(segment: Segment, records: list[ingest_pb2.Record]) -> bytes:
    parts = [encode_header(segment.first_sequence, segment.context)]
    segment.size = len(parts[0])
    for record in records:
        encoded = encode_record(record.sequence, record_ticks(record), record.SerializeToString())
        parts.append(encoded)
        segment.index(record, len(encoded))
    return b"".join(parts)


def _truncate(path: Path, size: int, files: Files) -> None:
    descriptor = files.open(path)
    try:
        files.truncate(descriptor, size)
        files.sync(descriptor)
    finally:
        files.close(descriptor)
