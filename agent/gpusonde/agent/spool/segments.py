"""Reading a spool back after any kind of end: clean, killed, power lost, disk full, bits flipped.

Rules:

* A torn tail of the newest segment is cut: those bytes were never committed, so they were never sent. A last record
  that has its full length but other bytes is damaged, not torn.
* A damaged record with valid ones after it is a loss: its sequence number is taken by a LossReport in its place, so
  that the sequence has no hole and the collector learns of it.
* Where two segments claim a sequence, the newer segment is right: it was started because the older one could not be
  synced.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from google.protobuf.message import DecodeError

from gpusonde.agent.spool.segment import (
    SUFFIX,
    ScannedRecord,
    Segment,
    encode_header,
    encode_record,
    is_damaged_record,
    loss_record,
    record_ticks,
    scan,
    segment_path,
)
from gpusonde.errors import SpoolError
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.service.durable_files import FileLayer, write_durably

log = logging.getLogger(__name__)

# More missing sequences than any disk error explains: files of different spools were mixed.
_MAX_HOLES = 1_000_000
_READ_ALL = 1 << 40


class FindingKind(Enum):
    """What is wrong with a file of a spool."""

    TORN_TAIL = "torn_tail"  # bytes of a record that was being written; nothing committed is lost
    LOST_RECORDS = "lost_records"  # sequences that are missing or damaged; each becomes a LossReport
    DAMAGED_BYTES = "damaged_bytes"  # a header, or bytes that belong to no record; nothing is lost
    LEFTOVER = "leftover"  # a file that was being replaced; nothing is lost
    UNUSABLE = "unusable"  # nothing that can be repaired by itself; the text says what to do


@dataclass(frozen=True)
class Finding:
    """Something wrong with one file.

    Attributes:
        path: The file.
        kind: What.
        detail: What about it.
        lost_records: Records that are gone.
        torn_bytes: Bytes to cut.
    """

    path: Path
    kind: FindingKind
    detail: str
    lost_records: int = 0
    torn_bytes: int = 0


@dataclass(frozen=True)
class Recovery:
    """A spool read back from disk.

    Attributes:
        segments: Oldest first, without holes between them.
        context: Serialised Inventory record in force after the last record.
        findings: Everything that was not as it should be.
    """

    segments: list[Segment]
    context: bytes
    findings: tuple[Finding, ...] = ()

    @property
    def lost_records(self) -> int:
        """Records replaced by LossReports."""
        return sum(finding.lost_records for finding in self.findings)

    @property
    def torn_bytes(self) -> int:
        """Bytes cut from the tail."""
        return sum(finding.torn_bytes for finding in self.findings)


def recover(directory: Path, files: FileLayer) -> Recovery:
    """Read every segment, cut or repair what is damaged, and return what is left.

    Raises:
        SpoolError: More is missing than losses can describe.
        OSError: The disk failed.
    """
    findings = [_leftover(path) for path in sorted(directory.glob("*.tmp"))]
    for leftover in findings:
        files.remove(leftover.path)
    recovery = _read(directory, files, repair=True, in_use=False)
    return replace(recovery, findings=(*findings, *recovery.findings))


def examine(directory: Path, files: FileLayer, *, in_use: bool) -> Recovery:
    """Return what :func:`recover` would find and leave, without changing anything.

    Args:
        directory: The spool.
        files: The file operations; nothing but reading is asked of them.
        in_use: An agent may be writing: segments may go meanwhile, and the newest may end unfinished.

    Raises:
        SpoolError: As for :func:`recover`.
        OSError: The disk failed.
    """
    findings = [] if in_use else [_leftover(path) for path in sorted(directory.glob("*.tmp"))]
    recovery = _read(directory, files, repair=False, in_use=in_use)
    return replace(recovery, findings=(*findings, *recovery.findings))


def lacks_batch(segments: Sequence[Segment], sequence: int) -> bool:
    """Return whether the batch that began when a sequence was next is missing, and all before it is there."""
    since = (
        ticks
        for segment in segments
        for ticks in segment.ticks[max(0, sequence - segment.first_sequence) :]
        if segment.last_sequence >= sequence
    )
    return segments[0].first_sequence <= sequence <= segments[-1].last_sequence + 1 and not any(since)


def _leftover(path: Path) -> Finding:
    return Finding(path, FindingKind.LEFTOVER, "a file that was being replaced when its writer ended")


def _read(directory: Path, files: FileLayer, *, repair: bool, in_use: bool) -> Recovery:
    firsts = _first_sequences(directory)
    recovered: list[_RecoveredSegment] = []
    context = b""
    for i, first in enumerate(firsts):
        limit = firsts[i + 1] if i + 1 < len(firsts) else None
        path = segment_path(directory, first)
        try:
            data = _content(path, files)
        except FileNotFoundError:
            if in_use and not recovered:
                continue  # acknowledged since the directory was read
            raise
        segment = _recover_segment(path, data, first, limit, context)
        if repair:
            _repair(segment, files)
        recovered.append(segment)
        context = segment.context_after
    found = [finding for segment in recovered for finding in segment.findings]
    if in_use:
        found = [finding for finding in found if finding.kind is not FindingKind.TORN_TAIL]
    return Recovery([segment.segment for segment in recovered], context, tuple(found))


@dataclass(frozen=True)
class _RecoveredSegment:
    segment: Segment
    context_after: bytes
    findings: list[Finding]
    rebuilt: bytes | None = None  # the whole new content


def _repair(recovered: _RecoveredSegment, files: FileLayer) -> None:
    path = recovered.segment.path
    for finding in recovered.findings:
        if finding.kind is FindingKind.TORN_TAIL:
            log.info("%s: %s", path, finding.detail)
        else:
            log.warning("%s: %s", path, finding.detail)
    if recovered.rebuilt is not None:
        write_durably(path, recovered.rebuilt, files=files, mode=0o640)
    elif recovered.findings:
        _truncate(path, recovered.segment.size, files)


def _content(path: Path, files: FileLayer) -> bytes:
    file = files.open(path)
    try:
        return file.read(_READ_ALL, 0)
    finally:
        file.close()


def _first_sequences(directory: Path) -> list[int]:
    firsts = []
    for path in directory.glob(f"*{SUFFIX}"):
        if not path.stem.isdecimal() or int(path.stem) < 1:
            raise SpoolError(f"{path}: not a name the spool gives; move the file away")
        firsts.append(int(path.stem))
    return sorted(firsts)


def _recover_segment(
    path: Path, data: bytes, first: int, limit: int | None, context_before: bytes
) -> _RecoveredSegment:
    found = scan(data)
    context = context_before if found.context is None else found.context
    kept = _increasing(found.records, first, limit)
    last = limit - 1 if limit is not None else (kept[-1].sequence if kept else first - 1)
    if limit is None and found.context is not None and is_damaged_record(data, found.end, last + 1):
        last += 1
    holes = last - first + 1 - len(kept)
    if holes > _MAX_HOLES:
        raise SpoolError(
            f"{path}: {holes} records are missing before the next segment; "
            "move the spool directory away and the agent starts a new one"
        )
    records = [_parse(record, path) for record in kept]
    segment = Segment(path, first, context)
    findings, rebuilt = [], None
    # Records that repeat a sequence, as joined files have them, are no part of it: those behind would not lie where
    # they are looked for.
    apart = any(after.offset != before.end for before, after in itertools.pairwise(kept))
    if holes or found.damaged or found.context is None or apart or (kept and kept[0].offset != found.records[0].offset):
        rebuilt = _rebuild(segment, _fill_holes(records, first, last))
        findings.append(_damage(path, holes, header=found.context is None))
    else:
        segment.size = len(encode_header(first, context))
        for record, scanned in zip(records, kept, strict=True):
            segment.index(record, record_ticks(record), scanned.end - scanned.offset)
        torn = found.size - segment.size
        if limit is None and torn > 0:
            findings.append(Finding(path, FindingKind.TORN_TAIL, f"{torn} bytes of an unfinished record", 0, torn))
    inventories = [record for record in records if record.HasField("inventory")]
    after = inventories[-1].SerializeToString() if inventories else context
    return _RecoveredSegment(segment, after, findings, rebuilt)


def _damage(path: Path, lost: int, *, header: bool) -> Finding:
    if lost:
        what = "1 record is lost, and a report that says so takes its place"
        if lost > 1:
            what = f"{lost} records are lost, and reports that say so take their places"
        detail = f"damaged; {what}"
        return Finding(path, FindingKind.LOST_RECORDS, detail, lost)
    what = "its header is damaged" if header else "bytes between its records are damaged"
    return Finding(path, FindingKind.DAMAGED_BYTES, f"{what}; no record is lost")


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
        raise SpoolError(
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
        ticks = record_ticks(record)
        encoded = encode_record(record.sequence, ticks, record.SerializeToString())
        parts.append(encoded)
        segment.index(record, ticks, len(encoded))
    return b"".join(parts)


def _truncate(path: Path, size: int, files: FileLayer) -> None:
    file = files.open(path)
    try:
        file.truncate(size)
        file.sync()
    finally:
        file.close()
