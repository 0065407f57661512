"""File operations that fail on demand, and a disk that forgets what was not synced when the power goes."""

from __future__ import annotations

import errno
import os
import random
import shutil
from pathlib import Path

from gpusonde.agent.spool.files import OsFiles


class UnsyncedFiles(OsFiles):
    """Real files that are never synced, for tests that open thousands of spools and pull no plug."""

    def sync(self, descriptor: int) -> None:
        return None

    def sync_directory(self, path: Path) -> None:
        return None


class PowerLost(BaseException):
    """The power went, or the process was killed, in the middle of an operation; nobody can handle that."""


class FaultyFiles(OsFiles):
    """Real files below one directory, with faults.

    ``full`` makes every write and creation fail with ENOSPC after a part of it was written; ``sync_fails`` makes sync
    fail with EIO. ``before(number)`` is called before every operation that changes something, and may raise or set
    faults. ``lose_power`` leaves what the disk would hold: at least everything synced, at most everything written,
    names as of the last directory sync or later.
    """

    def __init__(self, seed: int = 0) -> None:
        self.full = False
        self.sync_fails = False
        self.syncs = 0
        self.operations = 0
        self.before = lambda number: None
        self._random = random.Random(seed)
        self._synced: dict[int, bytes] = {}  # inode -> content
        self._names: dict[Path, int] = {}  # durable name -> inode
        self._kept: dict[int, bytes] = {}  # last content of removed inodes

    def step(self) -> None:
        number, self.operations = self.operations, self.operations + 1
        self.before(number)

    def create(self, path: Path) -> int:
        self.step()
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().create(path)

    def write(self, descriptor: int, data: bytes, offset: int) -> None:
        try:
            self.step()
        except PowerLost:
            super().write(descriptor, data[: self._random.randrange(len(data) + 1)], offset)
            raise
        if self.full:
            part = data[: self._random.randrange(len(data))] if data else b""
            super().write(descriptor, part, offset)
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(descriptor, data, offset)

    def sync(self, descriptor: int) -> None:
        self.step()
        self.syncs += 1
        if self.sync_fails:
            raise OSError(errno.EIO, "Input/output error")
        status = os.fstat(descriptor)
        self._synced[status.st_ino] = self.read(descriptor, status.st_size, 0)

    def truncate(self, descriptor: int, size: int) -> None:
        self.step()
        super().truncate(descriptor, size)

    def replace(self, source: Path, target: Path) -> None:
        self.step()
        super().replace(source, target)

    def unlink(self, path: Path) -> None:
        self.step()
        self._kept[path.stat().st_ino] = path.read_bytes()
        super().unlink(path)

    def sync_directory(self, path: Path) -> None:
        self.step()
        self._names = {p: p.stat().st_ino for p in path.iterdir() if p.is_file()}

    def lose_power(self, directory: Path) -> None:
        """Rewrite ``directory`` to one of the states that a power loss may leave."""
        now = {p: p.stat().st_ino for p in directory.iterdir() if p.is_file()}
        contents = {inode: path.read_bytes() for path, inode in now.items()}
        names = dict(self._names)
        if self._random.random() < 0.5:  # the file system was ahead of the last directory sync
            names = now
        kept = {}
        for path, inode in names.items():
            synced = self._synced.get(inode, b"")
            current = contents.get(inode, self._kept.get(inode, b""))
            if current[: len(synced)] == synced and self._random.random() < 0.7:
                synced = current[: self._random.randrange(len(synced), len(current) + 1)]
            kept[path] = synced
        for path in now:
            path.unlink()
        for path, content in kept.items():
            path.write_bytes(content)
        self._names = {path: path.stat().st_ino for path in kept}
        self._synced = {self._names[path]: content for path, content in kept.items()}
        self._kept.clear()


def copy_directory(source: Path, target: Path) -> Path:
    """Copy a spool as a crash would leave it; returns the copy."""
    shutil.copytree(source, target)
    return target
