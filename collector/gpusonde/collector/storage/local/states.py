"""``StateFiles``: small files that may be lost, but never be half there.

A file is the magic ``GSSTATE1``, a little-endian head (version of the content, its length, its CRC-32) and the content.
It is written under a temporary name and renamed. It is not synced: what it holds can be worked out again from the
store, so after a power loss it may be the old one, the new one, or one that its checksum betrays. Nor is it compressed:
samples are noise, zlib takes 20 to 35 ms to save half of a state, writing all of it takes 2 ms.
"""

from __future__ import annotations

import hashlib
import re
import struct
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

from gpusonde.collector.storage.local.segments import store_errors
from gpusonde.collector.storage.store import UnusableStateError
from gpusonde.service.durable_files import FileLayer

_MAGIC = b"GSSTATE1"
_HEAD = struct.Struct("<III")
_LARGEST_BYTES = 1 << 26
_SUFFIX = ".state"
_OWN_NAME = re.compile(r"[0-9a-f]{32}\.(state|tmp)")


class StateFiles:
    """One file per key in one directory.

    Args:
        directory: Where they are; it is made when the first one is written.
        files: The file operations.
        check_room: Raises ``StoreFullError`` while the disk has no room for what can be done without.
    """

    def __init__(self, directory: Path, files: FileLayer, check_room: Callable[[], None]) -> None:
        self._directory = directory
        self._files = files
        self._check_room = check_room

    def write(self, key: tuple[str, ...], version: int, content: bytes) -> None:
        """Replace the file of a key.

        Raises:
            ValueError: The content is larger than 64 MiB, more than would be read.
            StoreFullError: There is no room.
            StoreError: Any other failure; the old file stays.
        """
        if len(content) > _LARGEST_BYTES:
            raise ValueError(f"a state of {len(content)} bytes is larger than the {_LARGEST_BYTES} that are read again")
        path = self.path(key)
        temporary = path.with_suffix(".tmp")
        with store_errors(path):
            self._check_room()
            self._directory.mkdir(exist_ok=True)
            self._files.remove(temporary)
            file = self._files.create(temporary)
            try:
                file.write(_MAGIC + _HEAD.pack(version, len(content), zlib.crc32(content)) + content, 0)
            except OSError:
                file.close()
                self._files.remove(temporary)
                raise
            file.close()
            self._files.rename(temporary, path)

    def read(self, key: tuple[str, ...], version: int) -> bytes | None:
        """Return what was written for a key, or None when there is no file.

        Raises:
            UnusableStateError: It is damaged, or of another version.
        """
        path = self.path(key)
        try:
            with path.open("rb") as file:
                data = file.read(len(_MAGIC) + _HEAD.size + _LARGEST_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UnusableStateError(f"{path} cannot be read ({error.strerror or error})") from error
        content = data[len(_MAGIC) + _HEAD.size :]
        if data[: len(_MAGIC)] != _MAGIC or len(data) < len(_MAGIC) + _HEAD.size:
            raise UnusableStateError(f"{path} is no state file")
        found, length, checksum = _HEAD.unpack_from(data, len(_MAGIC))
        if found != version:
            raise UnusableStateError(f"{path} is of version {found}, this collector reads {version}")
        if len(content) != length or zlib.crc32(content) != checksum:
            raise UnusableStateError(f"{path} is damaged")
        return content

    def remove(self, key: tuple[str, ...]) -> None:
        """Remove the file of a key; one that is not there is no error.

        Raises:
            StoreError: It cannot be removed.
        """
        path = self.path(key)
        with store_errors(path):
            self._files.remove(path)

    def keep_only(self, keys: Iterable[tuple[str, ...]]) -> None:
        """Remove the files of all other keys, and what a crash left half written.

        Raises:
            StoreError: A file cannot be removed.
        """
        wanted = {self.path(key) for key in keys}
        with store_errors(self._directory):
            if self._directory.is_dir():
                for path in self._directory.iterdir():
                    if _OWN_NAME.fullmatch(path.name) and path not in wanted:
                        self._files.remove(path)

    def path(self, key: tuple[str, ...]) -> Path:
        """Return where the file of a key is: names of agents and GPUs are not ours to use as file names."""
        return self._directory / (hashlib.sha256("\n".join(key).encode()).hexdigest()[:32] + _SUFFIX)
