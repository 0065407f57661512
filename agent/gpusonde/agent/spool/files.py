"""The few file operations the spool needs, behind one interface, so that tests can make the disk fail."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

# A read allocates what it asks for, whatever the file holds.
_CHUNK_BYTES = 1 << 20


class Files(Protocol):
    """File operations; every one may raise ``OSError``."""

    def create(self, path: Path) -> int:
        """Create a file that must not exist, open for reading and writing, and return its descriptor."""
        ...

    def open(self, path: Path) -> int:
        """Open an existing file for reading and writing and return its descriptor."""
        ...

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        ...

    def write(self, descriptor: int, data: bytes, offset: int) -> None:
        """Write all of ``data`` at ``offset``; on an error any part of it may have been written."""
        ...

    def read(self, descriptor: int, size: int, offset: int) -> bytes:
        """Return up to ``size`` bytes from ``offset``, fewer only at the end of the file."""
        ...

    def sync(self, descriptor: int) -> None:
        """Return once the file's data would survive a power loss."""
        ...

    def truncate(self, descriptor: int, size: int) -> None:
        """Cut the file to ``size`` bytes."""
        ...

    def replace(self, source: Path, target: Path) -> None:
        """Rename atomically over ``target``."""
        ...

    def unlink(self, path: Path) -> None:
        """Remove a file."""
        ...

    def sync_directory(self, path: Path) -> None:
        """Return once names created in, renamed in or removed from the directory would survive a power loss."""
        ...


class OsFiles:
    """The real operations."""

    def create(self, path: Path) -> int:
        """See :class:`Files`."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)

    def open(self, path: Path) -> int:
        """See :class:`Files`."""
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def close(self, descriptor: int) -> None:
        """See :class:`Files`."""
        os.close(descriptor)

    def write(self, descriptor: int, data: bytes, offset: int) -> None:
        """See :class:`Files`."""
        view = memoryview(data)
        while view:
            written = os.pwrite(descriptor, view, offset)
            view, offset = view[written:], offset + written

    def read(self, descriptor: int, size: int, offset: int) -> bytes:
        """See :class:`Files`."""
        parts = []
        while size > 0:
            part = os.pread(descriptor, min(size, _CHUNK_BYTES), offset)
            if not part:
                break
            parts.append(part)
            size, offset = size - len(part), offset + len(part)
        return b"".join(parts)

    def sync(self, descriptor: int) -> None:
        """See :class:`Files`."""
        os.fdatasync(descriptor)

    def truncate(self, descriptor: int, size: int) -> None:
        """See :class:`Files`."""
        os.ftruncate(descriptor, size)

    def replace(self, source: Path, target: Path) -> None:
        """See :class:`Files`."""
        source.replace(target)

    def unlink(self, path: Path) -> None:
        """See :class:`Files`."""
        path.unlink()

    def sync_directory(self, path: Path) -> None:
        """See :class:`Files`."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_file(files: Files, path: Path, data: bytes) -> None:
    """Write a whole file so that after a crash either the old or the new content is there."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)
    descriptor = files.create(temporary)
    try:
        files.write(descriptor, data, 0)
        files.sync(descriptor)
    finally:
        files.close(descriptor)
    files.replace(temporary, path)
    files.sync_directory(path.parent)
