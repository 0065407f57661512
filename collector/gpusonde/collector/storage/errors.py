"""What can go wrong with the store."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class StoreError(RuntimeError):
    """The store cannot do what was asked."""


class StoreFullError(StoreError):
    """There is no room on the disk; nothing of what was being written counts as stored."""


class StoreCorruptError(StoreError):
    """A file of the store does not hold what was written to it.

    Attributes:
        path: The file.
    """

    def __init__(self, path: Path, problem: str) -> None:
        """Keep the file and what is wrong with it."""
        self.path = path
        super().__init__(
            f"{path}: {problem}; restore the file from a backup, or remove it and accept its samples' loss"
        )


class StateFileError(Exception):
    """A state that cannot be read as what was written."""


@contextmanager
def naming_full_disks(path: Path) -> Iterator[None]:
    """Turn the errors that mean "no space" into ``StoreFullError``, everything else into ``StoreError``.

    Raises:
        StoreFullError: The file system or SQLite is out of space.
        StoreError: Any other I/O error.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise StoreFullError(f"no space left for {path}; free some") from error
        raise StoreError(f"{path}: {error.strerror or error}") from error
    except sqlite3.OperationalError as error:
        if "full" in str(error):
            raise StoreFullError(f"no space left for {path}; free some") from error
        raise StoreError(f"{path}: {error}") from error
