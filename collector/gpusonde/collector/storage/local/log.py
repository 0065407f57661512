"""The append-only log: what an acknowledgement rests on until the samples are in a segment.

A log is a row of parts, ``00000001.log`` and so on. A part is the magic ``GSLOG001`` followed by entries; an entry is
a little-endian head (body length, CRC-32 of the body) and the body (agent and spool by name, sequence, time of receipt,
kind, payload). A part is written by one process only: after every start the log goes on in a new part, so nothing is
ever written behind a torn tail.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from gpusonde.collector.storage.model import EntryKind, LogEntry, RejectedRecord
from gpusonde.service.durable_files import File, FileLayer

_MAGIC = b"GSLOG001"
_HEAD = struct.Struct("<II")
_BODY = struct.Struct("<BBBQq")
# A length beyond this is garbage, not an entry; records are capped far below.
_LARGEST_BODY_BYTES = 1 << 28


@dataclass
class PartEnd:
    """Where the readable prefix of a part ends.

    Attributes:
        good_bytes: Length of the prefix.
        torn_bytes: Bytes after it that are no entries.
    """

    good_bytes: int = 0
    torn_bytes: int = 0


def encode_entry(entry: LogEntry) -> bytes:
    """Return the bytes of an entry."""
    agent, spool = entry.agent_id.encode(), entry.spool_id.encode()
    body = b"".join(
        (
            _BODY.pack(entry.kind, len(agent), len(spool), entry.sequence, entry.received_unix_nano),
            agent,
            spool,
            entry.payload,
        )
    )
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def read_part(path: Path, end: PartEnd) -> Iterator[LogEntry]:
    """Yield the entries of a part up to its end or the first bytes that are not an entry; ``end`` then says where."""
    size = path.stat().st_size
    with path.open("rb") as part:
        end.torn_bytes = size
        if part.read(len(_MAGIC)) != _MAGIC:
            return
        end.good_bytes, end.torn_bytes = len(_MAGIC), size - len(_MAGIC)
        while len(head := part.read(_HEAD.size)) == _HEAD.size:
            length, checksum = _HEAD.unpack(head)
            if not _BODY.size <= length <= min(_LARGEST_BODY_BYTES, end.torn_bytes):
                return
            body = part.read(length)
            if len(body) != length or zlib.crc32(body) != checksum:
                return
            end.good_bytes += _HEAD.size + length
            end.torn_bytes -= _HEAD.size + length
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
        data = b"".join(encode_entry(entry) for entry in entries)
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
        if path.exists() and path.stat().st_size <= len(_MAGIC):
            self._files.remove(path)  # a part whose first bytes met a full disk
        part = self._files.create(path)
        try:
            part.write(_MAGIC, 0)
            part.sync()
            self._files.sync_directory(self._directory)
        except OSError:
            part.close()
            raise
        self._next_part += 1
        self._part, self._size = part, len(_MAGIC)
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
