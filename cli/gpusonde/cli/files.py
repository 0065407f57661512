"""Files that a command is to write."""

from __future__ import annotations

import os
from pathlib import Path

from gpusonde.errors import CommandError


def check_writable(path: Path) -> None:
    """Refuse a place where no file can be written, before minutes of work whose result would be lost.

    Raises:
        CommandError: Its folder is not there or takes no files, or it is a folder itself.
    """
    folder = path.parent
    if not folder.is_dir():
        raise CommandError(f"{path}: there is no folder {folder}; make it first")
    if path.is_dir():
        raise CommandError(f"{path}: is a folder; name a file")
    if not path.exists() and not os.access(folder, os.W_OK):
        raise CommandError(f"{path}: {folder} takes no files of yours; name another folder")
