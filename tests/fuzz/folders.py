"""Folders for decoders that read files."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path


@functools.cache
def _folder() -> Path:
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="gpusonde-fuzz-", dir=memory if memory.is_dir() else None))


def clean(name: str) -> Path:
    """Return an empty folder of this name, in memory where that can be."""
    folder = _folder() / name
    folder.mkdir(exist_ok=True)
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()
    return folder
