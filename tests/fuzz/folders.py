"""Folders for decoders that read files."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path


@functools.cache
def folder() -> Path:
    """Return the folder of this process, in memory where that can be."""
    memory = Path("/dev/shm")
    made = Path(tempfile.mkdtemp(prefix="gpusonde-fuzz-", dir=memory if memory.is_dir() else None))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def clean(name: str) -> Path:
    """Return an empty folder of this name inside of it."""
    made = folder() / name
    made.mkdir(exist_ok=True)
    for path in sorted(made.rglob("*"), reverse=True):
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()
    return made


def file(name: str, data: bytes) -> Path:
    """Write a file of this name into it."""
    path = folder() / name
    path.write_bytes(data)
    return path
