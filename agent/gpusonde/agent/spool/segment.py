"""One segment file: a header that says where it starts, then records that each carry their own checksum.

Layout, all little-endian::

    header   8s magic "GSSPOOL1", u64 first sequence, u32 length of the context, u32 CRC32 of the two before + context
             then the context: the serialised Inventory record in force at the first sequence (empty in a new spool)
    record   4s magic "GSR1", u32 payload length, u64 sequence, u32 ticks, u32 CRC32 of the three before + payload
             then the payload: one serialised ``gpusonde.ingest.v1.Record``

The context makes every segment readable by itself: when older segments are dropped or were acknowledged by another
collector, the inventory can still be sent ahead of the batches that refer to it.

LossReports tell the collector of records that were given up; they take their place.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from dataclasses import dataclass, field
from pathlib import Path

from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.service.wire import count_ticks


@dataclass
class Segment:
    """What is known of one segment file without reading it.

    Attributes:
        path: The file.
        first_sequence: Sequence of the first record; of the next one to come while there is none.
        context: Serialised Inventory record in force at the first record; empty in a new spool.
        offsets: Offset of each record; record i has sequence ``first_sequence + i``.
        ticks: Ticks in each record.
        loss_reports: LossReports inside, by sequence: they must outlive the segment.
        size: Bytes up to the end of the last record.
    """

    path: Path
    first_sequence: int
    context: bytes = b""
    offsets: array[int] = field(default_factory=lambda: array("Q"))
    ticks: array[int] = field(default_factory=lambda: array("I"))
    loss_reports: dict[int, ingest_pb2.LossReport] = field(default_factory=dict)
    size: int = 0

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record, ``first_sequence - 1`` when there is none."""
        return self.first_sequence + len(self.offsets) - 1

    def index(self, record: ingest_pb2.Record, ticks: int, encoded_bytes: int) -> None:
        """Note a record that was written at :attr:`size`, and the ticks in it."""
        self.offsets.append(self.size)
        self.ticks.append(ticks)
        if record.HasField("loss_report"):
            self.loss_reports[record.sequence] = record.loss_report
        self.size += encoded_bytes


def record_ticks(record: ingest_pb2.Record) -> int:
    """Return the ticks of one GPU each inside a record."""
    return count_ticks(record.batch) if record.HasField("batch") else 0


def loss_record(first: int, last: int, reason: ingest_pb2.LossReason, ticks: int) -> ingest_pb2.Record:
    """Return the record that declares a loss; ``first == last == 0`` when the ticks never had a sequence."""
    return ingest_pb2.Record(
        loss_report=ingest_pb2.LossReport(
            first_lost_sequence=first, last_lost_sequence=last, reason=reason, lost_ticks=ticks
        )
    )


def loss_of(segment: Segment, unacked: int) -> ingest_pb2.LossReport:
    """Return what dropping a segment from its record ``unacked`` on loses, and what LossReports among those told."""
    loss = ingest_pb2.LossReport(
        first_lost_sequence=segment.first_sequence + unacked,
        last_lost_sequence=segment.last_sequence,
        reason=ingest_pb2.LOSS_REASON_SPOOL_FULL,
        lost_ticks=sum(segment.ticks[unacked:]),
    )
    for sequence, report in segment.loss_reports.items():
        if sequence >= segment.first_sequence + unacked:
            loss = merge(report, loss)
    return loss


def merge(earlier: ingest_pb2.LossReport, later: ingest_pb2.LossReport) -> ingest_pb2.LossReport:
    """Return one report for two losses; the range is the smallest that holds both, the ticks are their sum."""
    first = min(s for s in (earlier.first_lost_sequence, later.first_lost_sequence) if s)
    return ingest_pb2.LossReport(
        first_lost_sequence=first,
        last_lost_sequence=max(earlier.last_lost_sequence, later.last_lost_sequence),
        reason=ingest_pb2.LOSS_REASON_SPOOL_FULL,
        lost_ticks=earlier.lost_ticks + later.lost_ticks,
    )


SUFFIX = ".seg"
MAGIC = b"GSSPOOL1"
RECORD_MAGIC = b"GSR1"
HEADER = struct.Struct("<8sQII")
RECORD = struct.Struct("<4sIQII")
# Far above any batch; a length beyond it is damage, not a record.
MAX_PAYLOAD_BYTES = 64 << 20


def segment_path(directory: Path, first_sequence: int) -> Path:
    """Return the file of the segment that starts at a sequence; names sort like sequences."""
    return directory / f"{first_sequence:020d}{SUFFIX}"


def encode_header(first_sequence: int, context: bytes) -> bytes:
    """Return the bytes a segment file starts with."""
    crc = zlib.crc32(context, zlib.crc32(struct.pack("<QI", first_sequence, len(context))))
    return HEADER.pack(MAGIC, first_sequence, len(context), crc) + context


def encode_record(sequence: int, ticks: int, payload: bytes) -> bytes:
    """Return the bytes of one record."""
    crc = zlib.crc32(payload, zlib.crc32(struct.pack("<IQI", len(payload), sequence, ticks)))
    return RECORD.pack(RECORD_MAGIC, len(payload), sequence, ticks, crc) + payload


@dataclass(frozen=True)
class ScannedRecord:
    """A record found in a segment's bytes."""

    offset: int
    sequence: int
    ticks: int
    payload: bytes

    @property
    def end(self) -> int:
        """Offset of the first byte after the record."""
        return self.offset + RECORD.size + len(self.payload)


@dataclass
class Scan:
    """Everything that can be read in a segment file.

    Attributes:
        context: The header's context; None when the header is damaged.
        records: Valid records in file order.
        damaged: True when bytes between the header and the last valid record are not valid records.
        end: Offset just after the last valid record (or the header); what follows is a torn tail.
        size: Size of the file.
    """

    context: bytes | None
    records: list[ScannedRecord] = field(default_factory=list)
    damaged: bool = False
    end: int = 0
    size: int = 0


def parse_record(data: bytes, offset: int) -> ScannedRecord | None:
    """Return the record at an offset, or None when there is no valid one."""
    if offset + RECORD.size > len(data):
        return None
    magic, length, sequence, ticks, crc = RECORD.unpack_from(data, offset)
    if magic != RECORD_MAGIC or length > MAX_PAYLOAD_BYTES or offset + RECORD.size + length > len(data):
        return None
    payload = data[offset + RECORD.size : offset + RECORD.size + length]
    if zlib.crc32(payload, zlib.crc32(struct.pack("<IQI", length, sequence, ticks))) != crc:
        return None
    return ScannedRecord(offset, sequence, ticks, payload)


def is_damaged_record(data: bytes, offset: int, sequence: int) -> bool:
    """Whether a record of this sequence stands at an offset in its full length, but not with the bytes it was given."""
    if offset + RECORD.size > len(data):
        return False
    magic, length, found, _, _ = RECORD.unpack_from(data, offset)
    return (
        magic == RECORD_MAGIC
        and found == sequence
        and offset + RECORD.size + length <= len(data)
        and parse_record(data, offset) is None
    )


def scan(data: bytes) -> Scan:
    """Read a segment's bytes as far as they are valid, and past damage to the next valid record."""
    result = Scan(context=None, size=len(data))
    offset = 0
    header = _parse_header(data)
    if header is not None:
        result.context = header
        offset = result.end = HEADER.size + len(header)
    while offset < len(data):
        record = parse_record(data, offset)
        if record is None:
            offset = data.find(RECORD_MAGIC, offset + 1)
            if offset < 0:
                break
            continue
        result.damaged = result.damaged or record.offset != result.end
        result.records.append(record)
        offset = result.end = record.end
    return result


def _parse_header(data: bytes) -> bytes | None:
    if len(data) < HEADER.size:
        return None
    magic, first_sequence, length, crc = HEADER.unpack_from(data)
    context = data[HEADER.size : HEADER.size + length]
    if magic != MAGIC or len(context) != length:
        return None
    if zlib.crc32(context, zlib.crc32(struct.pack("<QI", first_sequence, length))) != crc:
        return None
    return context
