"""Who the agent is, and who alone may use its spool."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from gpusonde.agent.spool.files import Files, write_file
from gpusonde.agent.spool.segment import SpoolCorruptError, SpoolDirectoryError, SpoolLockedError

_IDENTITY_FILE = "identity.json"
_LOCK_FILE = "lock"
_LOCK_ATTEMPTS = 5
_LOCK_RETRY_S = 0.02


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
        SpoolCorruptError: The file is there but is not an identity.
    """
    path = directory / _IDENTITY_FILE
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return Identity(str(stored["agent_id"]), str(stored["spool_id"]), int(stored.get("first_sequence", 1)))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise SpoolCorruptError(
            f"{path}: not an identity ({error}); remove the file to continue this spool under new names"
        ) from error


def store_identity(directory: Path, identity: Identity, files: Files) -> None:
    """Write the identity so that a crash leaves the old one or the new one."""
    write_file(files, directory / _IDENTITY_FILE, (json.dumps(asdict(identity)) + "\n").encode())


class DirectoryLock:
    """Holds a spool directory for one process. The kernel releases it when the process dies, however it dies."""

    def __init__(self, directory: Path, sleep: Callable[[float], None] = time.sleep) -> None:
        self._path = directory / _LOCK_FILE
        self._sleep = sleep
        self._descriptor = -1

    def holder(self) -> str | None:
        """Return who holds the directory, as it says itself ("unknown" where it could not), None for nobody.

        Raises:
            SpoolDirectoryError: The lock file cannot be read.
        """
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SpoolDirectoryError(f"{self._path}: {error.strerror}; use the account of the agent") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        else:
            return None
        finally:
            os.close(descriptor)

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            SpoolLockedError: Another process holds it.
            SpoolDirectoryError: The lock file cannot be written.
        """
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise SpoolDirectoryError(f"{self._path}: {error.strerror}; the agent must own its spool") from error
        if not self._lock(descriptor):
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise SpoolLockedError(
                f"{self._path.parent} is in use by another agent (process {holder}); "
                "stop it, or give this one its own spool directory"
            )
        self._descriptor = descriptor
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except OSError:
            # A full disk: the lock holds, only the process id for other agents' messages is missing.
            return

    def _lock(self, descriptor: int) -> bool:
        for attempt in range(_LOCK_ATTEMPTS):
            if attempt:
                # Someone may only have asked who holds it, which takes the lock for a moment.
                self._sleep(_LOCK_RETRY_S)
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
        return False

    def release(self) -> None:
        """Give the lock back."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
