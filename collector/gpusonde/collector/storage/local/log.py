"""The append-only log: what an acknowledgement rests on until the samples are in a segment.

A log is a row of parts, ``00000001.log`` and so on. A part is the magic ``GSLOG002``, a marker of eight random bytes,
and entries; an entry is the marker, a little-endian head (offset at which its group begins, body length, CRC-32 of
these and the body) and the body (agent and spool by name, sequence, time of receipt, kind, payload). A group is what
one ``append`` writes and syncs, so bytes before the beginning of a group were synced. A damaged byte costs its entry:
reading goes on at the next marker, which no agent can have put into a payload. Parts of an older collector
(``GSLOG001``: entries without marker and group) are read up to the first damage. A part is written by one process
only: after every start the log goes on in a new part, so nothing is ever written behind a torn tail.
"""

from __future__ import annotations

import json
import secrets
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from gpusonde.collector.storage.model import EntryKind, LogEntry, RejectedRecord
from gpusonde.errors import StoreError
from gpusonde.service.durable_files import File, FileLayer

_MAGIC = b"GSLOG002"
_FIRST_MAGIC = b"GSLOG001"
_MARKER_BYTES = 8
_ENTRIES_START = len(_MAGIC) + _MARKER_BYTES
_GROUP = struct.Struct("<QI")
_HEAD = struct.Struct("<QII")
_FIRST_HEAD = struct.Struct("<II")
_BODY = struct.Struct("<BBBQq")
# A length beyond this is garbage, not an entry; records are capped far below.
_LARGEST_BODY_BYTES = 1 << 28
_WINDOW_BYTES = 1 << 20


@dataclass
class PartReport:
    """What a part holds besides readable entries.

    Attributes:
        good_bytes: Readable entries and what stands before them.
        damaged_bytes: Bytes between readable entries that are none.
        torn_bytes: Bytes behind the last readable entry.
        is_unsure: Whether the entry that was read last follows damage that a power loss may have left in its own
            group: what is missing before it may never have been acknowledged.
    """

    good_bytes: int = 0
    damaged_bytes: int = 0
    torn_bytes: int = 0
    is_unsure: bool = False


@dataclass(frozen=True)
class _FoundEntry:
    """An entry with a good checksum: where it ends, where its group begins, and its body."""

    end: int
    group: int
    body: bytes


def encode_entry(entry: LogEntry, marker: bytes, group: int) -> bytes:
    """Return the bytes of an entry, for a part with this marker and a group that begins at this offset."""
    agent, spool = entry.agent_id.encode(), entry.spool_id.encode()
    body = b"".join(
        (
            _BODY.pack(entry.kind, len(agent), len(spool), entry.sequence, entry.received_unix_nano),
            agent,
            spool,
            entry.payload,
        )
    )
    return marker + _HEAD.pack(group, len(body), _checksum(group, body)) + body


def _checksum(group: int, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(_GROUP.pack(group, len(body))))


def read_part(path: Path, report: PartReport) -> Iterator[LogEntry]:
    """Yield the readable entries of a part; ``report`` then says what else there is.

    Raises:
        StoreError: A newer collector has written it.
    """
    size = path.stat().st_size
    with path.open("rb") as part:
        start = part.read(_ENTRIES_START + _MARKER_BYTES)
        magic, markers = start[: len(_MAGIC)], (start[len(_MAGIC) : _ENTRIES_START], start[_ENTRIES_START:])
        if magic == _FIRST_MAGIC:
            yield from _read_first_format(part, size, report)
            return
        # The first entry repeats the marker, should the part's own be damaged.
        marker = next((each for each in markers if _find(part, each, _ENTRIES_START, size)), b"")
        if magic != _MAGIC and magic[:5] == _MAGIC[:5] and magic[5:].isdigit() and markers[0] != markers[1]:
            raise StoreError(f"{path} was written by a newer collector; start that one")
        report.torn_bytes = max(0, size - _ENTRIES_START)
        if magic == _MAGIC and marker in (markers[0], b""):
            report.good_bytes = size - report.torn_bytes
        elif marker:
            report.damaged_bytes = size - report.torn_bytes
        else:
            report.torn_bytes = size
        offset = _ENTRIES_START
        while marker and (found := _entry_at(part, marker, offset, size)):
            report.good_bytes += found.end - offset
            report.torn_bytes -= found.end - offset
            offset = found.end
            yield _decode_body(found.body)
        if marker and offset < size:
            yield from _read_behind_damage(part, marker, offset, size, report)


def _read_behind_damage(
    part: BinaryIO, marker: bytes, offset: int, size: int, report: PartReport
) -> Iterator[LogEntry]:
    last_group, behind = 0, offset
    while found := _find(part, marker, behind, size):
        last_group, behind = max(last_group, found[1].group), found[1].end
    while found := _find(part, marker, offset, size):
        begin, entry = found
        if begin > offset:
            report.damaged_bytes += begin - offset
            # A later group was begun, so this one had been synced.
            report.is_unsure = report.is_unsure or last_group < begin
        report.good_bytes += entry.end - begin
        report.torn_bytes = size - entry.end
        offset = entry.end
        yield _decode_body(entry.body)


def _find(part: BinaryIO, marker: bytes, offset: int, size: int) -> tuple[int, _FoundEntry] | None:
    """Return the first entry that begins at or behind an offset, and where it begins."""
    while len(marker) == _MARKER_BYTES and offset < size:
        part.seek(offset)
        window = part.read(_WINDOW_BYTES)
        place = window.find(marker)
        if place < 0:
            offset += max(1, len(window) - _MARKER_BYTES + 1)
        elif found := _entry_at(part, marker, offset + place, size):
            return offset + place, found
        else:
            offset += place + 1
    return None


def _entry_at(part: BinaryIO, marker: bytes, offset: int, size: int) -> _FoundEntry | None:
    part.seek(offset)
    head = part.read(_MARKER_BYTES + _HEAD.size)
    if len(head) < _MARKER_BYTES + _HEAD.size or head[:_MARKER_BYTES] != marker:
        return None
    group, length, checksum = _HEAD.unpack_from(head, _MARKER_BYTES)
    end = offset + len(head) + length
    if not _BODY.size <= length <= _LARGEST_BODY_BYTES or end > size:
        return None
    body = part.read(length)
    if len(body) != length or _checksum(group, body) != checksum:
        return None
    return _FoundEntry(end, group, body)


def _read_first_format(part: BinaryIO, size: int, report: PartReport) -> Iterator[LogEntry]:
    part.seek(len(_FIRST_MAGIC))
    report.good_bytes, report.torn_bytes = len(_FIRST_MAGIC), size - len(_FIRST_MAGIC)
    while len(head := part.read(_FIRST_HEAD.size)) == _FIRST_HEAD.size:
        length, checksum = _FIRST_HEAD.unpack(head)
        if not _BODY.size <= length <= min(_LARGEST_BODY_BYTES, report.torn_bytes):
            return
        body = part.read(length)
        if len(body) != length or zlib.crc32(body) != checksum:
            return
        report.good_bytes += _FIRST_HEAD.size + length
        report.torn_bytes -= _FIRST_HEAD.size + length
        yield _decode_body(body)


def _decode_body(body: bytes) -> LogEntry:
    kind, agent_length, spool_length, sequence, received = _BODY.unpack_from(body)
    agent_end = _BODY.size + agent_length
    payload_start = agent_end + spool_length
    return LogEntry(
        body[_BODY.size : agent_end].decode(),
        body[agent_end:payload_start].decode(),
        sequence,
        received,
        EntryKind(kind),
        body[payload_start:],
    )


class Log:
    """Writes the log.

    Args:
        directory: Where the parts lie; it exists.
        files: The file layer.
        next_part: Number of the first part to be made.
    """

    def __init__(self, directory: Path, files: FileLayer, next_part: int) -> None:
        self._directory = directory
        self._files = files
        self._next_part = next_part
        self._part: File | None = None
        self._size = 0
        self._marker = b""

    @property
    def size_bytes(self) -> int:
        """Length of the part being written."""
        return self._size if self._part else 0

    def append(self, entries: Sequence[LogEntry]) -> None:
        """Write entries and return once they survive a power loss.

        Raises:
            OSError: Nothing of it counts as written. What reached the disk all the same is cut off again, or lies at
                the end of a part that is not written to any more, where recovery drops repetitions.
        """
        part = self._part or self._open()
        data = b"".join(encode_entry(entry, self._marker, self._size) for entry in entries)
        try:
            part.write(data, self._size)
        except OSError:
            self._take_back(part)
            raise
        try:
            part.sync()
        except OSError:
            # After a failed sync the kernel may have dropped the pages: nothing more may be built on this part.
            self.rotate()
            raise
        self._size += len(data)

    def rotate(self) -> int:
        """Close the part being written and return the number of the last part so far."""
        if self._part:
            part, self._part = self._part, None
            part.close()
        return self._next_part - 1

    def remove_through(self, last_part: int) -> None:
        """Remove every part up to and including ``last_part``."""
        for number, path in log_parts(self._directory):
            if number <= last_part:
                self._files.remove(path)

    def _open(self) -> File:
        path = self._directory / f"{self._next_part:08d}.log"
        if path.exists() and path.stat().st_size <= _ENTRIES_START:
            self._files.remove(path)  # a part whose first bytes met a full disk
        part = self._files.create(path)
        self._marker = secrets.token_bytes(_MARKER_BYTES)
        try:
            part.write(_MAGIC + self._marker, 0)
            part.sync()
            self._files.sync_directory(self._directory)
        except OSError:
            part.close()
            raise
        self._next_part += 1
        self._part, self._size = part, _ENTRIES_START
        return part

    def _take_back(self, part: File) -> None:
        try:
            part.truncate(self._size)
        except OSError:
            self.rotate()


def rejection_payload(record: RejectedRecord) -> bytes:
    """Return the payload of a rejection's log entry."""
    return json.dumps(asdict(record)).encode()


def log_parts(directory: Path) -> list[tuple[int, Path]]:
    """Return the parts of a log directory in order."""
    return sorted((int(path.stem), path) for path in directory.glob("*.log") if path.stem.isdigit())
