"""What a spool keeps beside its segments: a SIGKILL takes neither what it knows nor a batch that is being filled.

``Ledger`` is a small file that is overwritten in place, which needs no room. Two slots are written in turn, so that a
torn write leaves the entry before it. All little-endian::

    slot     4s magic "GSL1", u64 number of the entry, 16s digest of the spool_id, u64 known sequence (all bits set:
             not bounded), u64 lost ticks, u64 sequence after which reports of them count, u32 CRC32 of all before

``Journal`` holds the steps of a batch that is longer than usual, because a collector asked for fewer records: each a
record of a segment file, under the sequence that was next when the batch began.

``Identity`` are the names under which a collector knows the spool.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import struct
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path

from gpusonde.agent.spool.segment import encode_record, parse_record, record_ticks
from gpusonde.errors import SpoolError
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.service.durable_files import File, FileLayer, write_durably

_IDENTITY_FILE = "identity.json"


@dataclass(frozen=True)
class Identity:
    """The names under which a collector knows this spool.

    Attributes:
        agent_id: Stable across restarts.
        spool_id: New whenever sequence numbers may have restarted.
        first_sequence: Records before it belong to an earlier ``spool_id``, whose collector has them.
    """

    agent_id: str
    spool_id: str
    first_sequence: int = 1


def load_identity(directory: Path) -> Identity | None:
    """Return the identity stored in a spool directory, None in a new one.

    Raises:
        SpoolError: The file is there but is not an identity.
    """
    path = directory / _IDENTITY_FILE
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return Identity(str(stored["agent_id"]), str(stored["spool_id"]), int(stored.get("first_sequence", 1)))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise SpoolError(
            f"{path}: not an identity ({error}); remove the file to continue this spool under new names"
        ) from error


def store_identity(directory: Path, identity: Identity, files: FileLayer) -> None:
    """Write the identity so that a crash leaves the old one or the new one."""
    content = (json.dumps(asdict(identity)) + "\n").encode()
    write_durably(directory / _IDENTITY_FILE, content, files=files, mode=0o640)


_FILE = "ledger"
_JOURNAL_FILE = "journal"
_MAGIC = b"GSL1"
_SLOT = struct.Struct("<4sQ16sQQQ")
_CHECKSUM = struct.Struct("<I")
# A slot has a sector of its own.
_SLOT_BYTES = 512
_UNBOUNDED = (1 << 64) - 1


@dataclass(frozen=True)
class LedgerEntry:
    """What is remembered.

    Attributes:
        known_sequence: Highest sequence of this spool that a collector can know; None once one has answered, as what is
            sent from then on is not written down here.
        lost_ticks: Ticks that the disk refused and that no committed LossReport tells.
        after_sequence: LossReports behind it tell of some of these ticks.
    """

    known_sequence: int | None = None
    lost_ticks: int = 0
    after_sequence: int = 0


class Ledger:
    """The file of the entry.

    Args:
        directory: The spool.
        files: The file layer; what it raises passes through.
    """

    def __init__(self, directory: Path, files: FileLayer) -> None:
        self._path = directory / _FILE
        self._files = files
        self._file: File | None = None
        self._number = 0
        self._stored: tuple[str, LedgerEntry] | None = None

    def load(self, spool_id: str) -> LedgerEntry:
        """Return the latest entry; of another ``spool_id`` only the lost ticks hold. Without any, an empty one."""
        try:
            self._file = self._files.open(self._path)
        except FileNotFoundError:
            return LedgerEntry()
        found = [
            slot for at in range(2) if (slot := _parse(self._file.read(_SLOT_BYTES, at * _SLOT_BYTES))) is not None
        ]
        if not found:
            return LedgerEntry()
        self._number, digest, entry = max(found, key=lambda slot: slot[0])
        if digest != _digest(spool_id):
            return LedgerEntry(lost_ticks=entry.lost_ticks)
        self._stored = spool_id, entry
        return entry

    def store(self, spool_id: str, entry: LedgerEntry) -> None:
        """Make an entry survive a power loss, if it is another one than before.

        Raises:
            OSError: The disk failed, or there has never been room for the file.
        """
        if self._stored == (spool_id, entry):
            return
        if self._file is None:
            self._file = self._create()
        self._number += 1
        known = _UNBOUNDED if entry.known_sequence is None else entry.known_sequence
        slot = _SLOT.pack(_MAGIC, self._number, _digest(spool_id), known, entry.lost_ticks, entry.after_sequence)
        slot += _CHECKSUM.pack(zlib.crc32(slot))
        self._stored = None
        self._file.write(slot, self._number % 2 * _SLOT_BYTES)
        self._file.sync()
        self._stored = spool_id, entry

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _create(self) -> File:
        file = self._files.create(self._path)
        try:
            # Whatever is written later has its blocks already.
            file.write(bytes(2 * _SLOT_BYTES), 0)
            file.sync()
            self._files.sync_directory(self._path.parent)
        except OSError:
            file.close()
            with contextlib.suppress(OSError):
                self._files.remove(self._path)
            raise
        return file


class Journal:
    """The file of the steps of a batch to come. It is written over from its beginning for every batch.

    Args:
        directory: The spool.
        files: The file layer; what it raises passes through.

    Attributes:
        path: The file.
        ticks: Ticks in the steps of the batch to come.
    """

    def __init__(self, directory: Path, files: FileLayer) -> None:
        self.path = directory / _JOURNAL_FILE
        self._files = files
        self._file: File | None = None
        self._sequence = 0
        self._end = 0
        self._is_synced = True
        self.ticks = 0

    def load(self) -> list[ingest_pb2.Record]:
        """Return the steps of the last batch that had any; their sequence is the one that was next when it began."""
        try:
            self._file = self._files.open(self.path)
        except FileNotFoundError:
            return []
        steps: list[ingest_pb2.Record] = []
        data = self._file.read(self.path.stat().st_size, 0)
        offset = 0
        while (found := parse_record(data, offset)) is not None:
            step = ingest_pb2.Record.FromString(found.payload)
            if steps and step.sequence != steps[0].sequence:
                break
            steps.append(step)
            offset = found.end
        return steps

    def add(self, step: ingest_pb2.Record, next_sequence: int) -> None:
        """Write the next step of a batch, or the first one of another."""
        if self._file is None:
            self._file = self._files.create(self.path)
        self._sequence = self._sequence or next_sequence
        step.sequence = self._sequence
        encoded = encode_record(step.sequence, record_ticks(step), step.SerializeToString())
        self._file.write(encoded, self._end)
        self._end += len(encoded)
        self.ticks += record_ticks(step)
        self._is_synced = False

    def sync(self) -> None:
        """Make the steps survive a power loss."""
        if self._file is not None and not self._is_synced:
            self._file.sync()
            self._is_synced = True

    def begin_batch(self) -> None:
        """Forget the steps: their batch has been written, and so they no longer count."""
        self._sequence = self._end = self.ticks = 0

    def clear(self) -> None:
        """Remove the steps: their ticks are counted as lost, or stand elsewhere."""
        if self._file is not None:
            self._file.truncate(0)
        self.begin_batch()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _digest(spool_id: str) -> bytes:
    return hashlib.blake2b(spool_id.encode(), digest_size=16).digest()


def _parse(data: bytes) -> tuple[int, bytes, LedgerEntry] | None:
    if len(data) < _SLOT.size + _CHECKSUM.size:
        return None
    magic, number, digest, known, lost_ticks, after = _SLOT.unpack_from(data)
    (checksum,) = _CHECKSUM.unpack_from(data, _SLOT.size)
    if magic != _MAGIC or checksum != zlib.crc32(data[: _SLOT.size]):
        return None
    return number, digest, LedgerEntry(None if known == _UNBOUNDED else known, lost_ticks, after)
