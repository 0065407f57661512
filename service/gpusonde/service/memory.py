"""Giving back memory that only the start of a process needed."""

from __future__ import annotations

import ctypes
import ctypes.util
import logging
import re
from collections.abc import Iterator
from pathlib import Path

_LOG = logging.getLogger(__name__)

_SMAPS = Path("/proc/self/smaps")
# madvise(2): pages are dropped now and read from their file again should they be needed.
_MADV_DONTNEED = 4
_HEAD = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (r-[x-]p) \S+ \S+ ([0-9]+)\s+(/.*)?$")
_MOST_SMAPS_CHARACTERS = 16 << 20


def release_startup_memory() -> None:
    """Give back free heap, and the pages of libraries that imports have touched and nothing uses any more.

    A library's pages lie in its file: those that are used come back by themselves, one short fault each. What stays is
    what the process works with, some 20 MiB less for an agent. Does nothing where the system is not Linux with glibc.
    """
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        with _SMAPS.open() as file:
            text = file.read(_MOST_SMAPS_CHARACTERS)
        for start, end in unchanged_file_mappings(text):
            libc.madvise(start, end - start, _MADV_DONTNEED)
        if hasattr(libc, "malloc_trim"):
            libc.malloc_trim(0)
    except (OSError, AttributeError) as error:
        _LOG.debug("memory of the start is kept: %s", error)


def unchanged_file_mappings(smaps: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of the private, read-only mappings of files whose pages are all as in the file.

    Mappings that the loader has written to (relocations) are read-only as well, and must not be dropped: they show
    anonymous pages.

    Args:
        smaps: The text of ``/proc/PID/smaps``.
    """
    mapping: tuple[int, int] | None = None
    for line in smaps.splitlines():
        if line.startswith("Anonymous:"):
            if mapping and line.split()[1] == "0":
                yield mapping
            mapping = None
        elif "-" in line.partition(" ")[0]:
            head = _HEAD.match(line)
            mapping = (int(head[1], 16), int(head[2], 16)) if head and head[4] != "0" and head[5] else None
