"""The few file operations that durability rests on, behind an interface that tests can make fail."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol


class OutputFile(Protocol):
    """A file being written from its beginning."""

    def write(self, data: bytes) -> None:
        """Write all of ``data`` at the end.

        Raises:
            OSError: It did not succeed; some of the data may be in the file.
        """

    def sync(self) -> None:
        """Return once everything written survives a power loss."""

    def truncate(self, size: int) -> None:
        """Cut the file to ``size`` bytes and continue from there."""

    def close(self) -> None:
        """Close the file without syncing it."""


class FileLayer(Protocol):
    """Creates, renames and removes files."""

    def create(self, path: Path) -> OutputFile:
        """Create a file that does not exist yet."""

    def rename(self, source: Path, target: Path) -> None:
        """Give a file its final name, atomically."""

    def remove(self, path: Path) -> None:
        """Remove a file; one that is gone already is no error."""

    def sync_directory(self, path: Path) -> None:
        """Return once the names in the directory survive a power loss."""

    def free_bytes(self, path: Path) -> int:
        """Bytes an unprivileged process may still write to the file system of ``path``."""


class _OsFile:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)
        os.lseek(self._descriptor, size, os.SEEK_SET)

    def close(self) -> None:
        os.close(self._descriptor)


class OsFiles:
    """The operating system's files."""

    def create(self, path: Path) -> OutputFile:
        """Create a file that does not exist yet."""
        return _OsFile(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640))

    def rename(self, source: Path, target: Path) -> None:
        """Give a file its final name, atomically."""
        source.rename(target)

    def remove(self, path: Path) -> None:
        """Remove a file; one that is gone already is no error."""
        path.unlink(missing_ok=True)

    def sync_directory(self, path: Path) -> None:
        """Return once the names in the directory survive a power loss."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def free_bytes(self, path: Path) -> int:
        """Bytes an unprivileged process may still write to the file system of ``path``."""
        state = os.statvfs(path)
        return state.f_bavail * state.f_frsize


def write_durably(files: FileLayer, path: Path, data: bytes) -> None:
    """Write a file so that after a crash it is there whole or not at all.

    Raises:
        OSError: It did not succeed; no file of that name was made.
    """
    temporary = path.with_name(path.name + ".tmp")
    files.remove(temporary)
    output = files.create(temporary)
    try:
        output.write(data)
        output.sync()
    except OSError:
        output.close()
        files.remove(temporary)
        raise
    output.close()
    files.rename(temporary, path)
    files.sync_directory(path.parent)
