"""One collector per data directory."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from gpusonde.collector.storage.errors import StoreLockedError


class DirectoryLock:
    """Holds ``<directory>/lock`` for the life of the process; the kernel lets go of it however the process ends.

    Args:
        directory: The data directory; it exists.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / "lock"
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            StoreLockedError: Another process holds it.
        """
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 32).decode(errors="replace").strip()
            os.close(descriptor)
            raise StoreLockedError(
                f"{self._path.parent} is in use by another collector (process {holder or 'unknown'}); stop that one or"
                " choose another data directory"
            ) from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        self._descriptor = descriptor

    def release(self) -> None:
        """Let go of the lock."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
