"""What a spool knows beside its segments and must know after a SIGKILL on a full disk too: ``Ledger``.

It is a small file that is overwritten in place, which needs no room. Two slots are written in turn, so that a torn
write leaves the entry before it. All little-endian::

    slot     4s magic "GSL1", u64 number of the entry, 16s digest of the spool_id, u64 known sequence (all bits set:
             not bounded), u64 lost ticks, u64 sequence after which reports of them count, u32 CRC32 of all before
"""

from __future__ import annotations

import contextlib
import hashlib
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

from gpusonde.service.durable_files import File, FileLayer

_FILE = "ledger"
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
