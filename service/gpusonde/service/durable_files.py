"""Files that survive a loss of power: the file layer, ``write_durably``, ``DirectoryLock``.

Spool, store and model files all rest on the few operations of :class:`FileLayer`, which tests replace by a disk that
fills up, fails, or forgets what was not synced. What :func:`write_durably` writes is there whole or not at all.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from gpusonde.errors import DirectoryLockedError

# A read allocates what it asks for, whatever the file holds.
_CHUNK_BYTES = 1 << 20
_LOCK_FILE = "lock"
_LOCK_ATTEMPTS = 5
_LOCK_RETRY_S = 0.02


class File(Protocol):
    """An open file; every operation may raise ``OSError``."""

    def write(self, data: bytes, offset: int) -> None:
        """Write all of ``data`` at ``offset``; on an error any part of it may have been written."""

    def read(self, size: int, offset: int) -> bytes:
        """Return up to ``size`` bytes from ``offset``, fewer only at the end of the file."""

    def sync(self) -> None:
        """Return once everything written survives a power loss."""

    def truncate(self, size: int) -> None:
        """Cut the file to ``size`` bytes."""

    def close(self) -> None:
        """Close the file without syncing it; what is closed already stays so."""


class FileLayer(Protocol):
    """Makes, renames and removes files; every operation may raise ``OSError``."""

    def create(self, path: Path, mode: int = 0o640) -> File:
        """Create a file that does not exist yet, with these permissions as far as the umask allows."""

    def open(self, path: Path) -> File:
        """Open an existing file for reading and writing."""

    def rename(self, source: Path, target: Path) -> None:
        """Rename atomically over ``target``."""

    def remove(self, path: Path) -> None:
        """Remove a file; one that is gone already is no error."""

    def sync_directory(self, path: Path) -> None:
        """Return once names created in, renamed in or removed from the directory survive a power loss."""

    def free_bytes(self, path: Path) -> int:
        """Return how many bytes an unprivileged process may still write to the file system of ``path``."""


class _OsFile:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, data: bytes, offset: int) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self._descriptor, view, offset)
            view, offset = view[written:], offset + written

    def read(self, size: int, offset: int) -> bytes:
        parts = []
        while size > 0:
            part = os.pread(self._descriptor, min(size, _CHUNK_BYTES), offset)
            if not part:
                break
            parts.append(part)
            size, offset = size - len(part), offset + len(part)
        return b"".join(parts)

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class OsFiles:
    """The operating system's files; see :class:`FileLayer`."""

    def create(self, path: Path, mode: int = 0o640) -> File:
        """Create a file that does not exist yet."""
        return _OsFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode))

    def open(self, path: Path) -> File:
        """Open an existing file for reading and writing."""
        return _OsFile(os.open(path, os.O_RDWR | os.O_CLOEXEC))

    def rename(self, source: Path, target: Path) -> None:
        """Rename atomically over ``target``."""
        source.replace(target)

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
        """Return how many bytes an unprivileged process may still write to the file system of ``path``."""
        state = os.statvfs(path)
        return state.f_bavail * state.f_frsize


def write_durably(path: Path, data: bytes, *, files: FileLayer | None = None, mode: int = 0o666) -> None:
    """Replace a file so that after whatever happens meanwhile the old content is there or the new, and return then.

    Several may write the same file: the last one wins. A crash may leave a hidden file beside it that ends in ``.tmp``.

    Args:
        path: The file.
        data: Its new content.
        files: The file layer, the operating system's by default.
        mode: Permissions of a file that is made, as far as the umask allows.

    Raises:
        OSError: It cannot be written, or ``path`` is a device or a pipe; its name is ``path``.
    """
    # Whoever may write to /dev would replace a device by a file.
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, "is no regular file", str(path))
    used = files or OsFiles()
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        file = used.create(temporary, mode)
        try:
            try:
                file.write(data, 0)
                file.sync()
            finally:
                file.close()
            used.rename(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                used.remove(temporary)
            raise
        used.sync_directory(path.parent)
    except OSError as error:
        # A failed write names no file, and the temporary one is our own affair.
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a JSON document for people and programs; the file is there as a whole or not at all.

    Raises:
        OSError: It cannot be written.
    """
    text = json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    write_durably(path, text.encode())


class DirectoryLock:
    """Holds ``<directory>/lock`` for one process; the kernel releases it however the process ends.

    Args:
        directory: The directory; it exists.
        holders: What holds such directories, as the message says it: "collector", "training".
        sleep: Waits between attempts.
    """

    def __init__(
        self, directory: Path, holders: str = "process", *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._path = directory / _LOCK_FILE
        self._holders = holders
        self._sleep = sleep
        self._descriptor = -1

    def __enter__(self) -> DirectoryLock:
        """Take the lock."""
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Release the lock."""
        self.release()

    def holder(self) -> str | None:
        """Return the id of the process that holds the directory, "unknown" where it could not say, None for nobody.

        Raises:
            OSError: The lock file cannot be read.
        """
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _process_id(descriptor)
        else:
            return None
        finally:
            os.close(descriptor)

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            DirectoryLockedError: Another process holds it.
            OSError: The lock file cannot be written, or everybody may write to the directory and so replace what is in
                it.
        """
        directory = self._path.parent
        if directory.stat().st_mode & stat.S_IWOTH:
            problem = "every user may write to it and replace what is in it; take that away (chmod o-w)"
            raise PermissionError(errno.EPERM, problem, str(directory))
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(self._path, flags, 0o640)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise OSError(
                errno.ELOOP, "is a symbolic link and would be written through; remove it", str(self._path)
            ) from error
        if not self._lock(descriptor):
            holder = _process_id(descriptor)
            os.close(descriptor)
            raise DirectoryLockedError(
                f"{self._path.parent} is in use by another {self._holders} (process {holder}); stop that one, wait for"
                " its end or use another directory",
                self._path.parent,
            )
        self._descriptor = descriptor
        # On a full disk the lock holds, only the process id for the message to others is missing.
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Give the lock back; safe when it is not held."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _lock(self, descriptor: int) -> bool:
        for attempt in range(_LOCK_ATTEMPTS):
            if attempt:
                # Somebody may only have asked who holds it, which takes the lock for a moment.
                self._sleep(_LOCK_RETRY_S)
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
        return False


def _process_id(descriptor: int) -> str:
    return os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
