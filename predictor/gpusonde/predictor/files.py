"""Files that are replaced as a whole."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Write a file so that whoever reads it finds the old content or the new, whatever happens meanwhile.

    Raises:
        OSError: It cannot be written; the old file stays.
    """
    # Whoever may write to /dev would replace a device by a file.
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, "is no regular file", str(path))
    try:
        _replace(path, content)
    except OSError as error:
        # A failed write names no file, and the temporary one is our own affair.
        error.filename = str(path)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _replace(path: Path, content: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp's files are private; what is written here is for whoever may read the folder.
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
