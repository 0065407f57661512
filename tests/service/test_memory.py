"""What is given back after the start, and what must never be."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpusonde.service.process import release_startup_memory, unchanged_file_mappings

_SMAPS = """\
7f0000000000-7f0000002000 r-xp 00001000 fe:00 123 /usr/lib/libone.so
Rss:                   8 kB
Anonymous:             0 kB
7f0000002000-7f0000003000 r--p 00003000 fe:00 123 /usr/lib/libone.so
Rss:                   4 kB
Anonymous:             4 kB
7f0000003000-7f0000004000 rw-p 00004000 fe:00 123 /usr/lib/libone.so
Anonymous:             0 kB
7f0000004000-7f0000005000 r--p 00000000 00:00 0
Anonymous:             0 kB
7f0000005000-7f0000006000 r--s 00000000 fe:00 124 /usr/lib/cache
Anonymous:             0 kB
7f0000006000-7f0000007000 r--p 00000000 fe:00 125 /usr/lib/with space.so
Anonymous:             0 kB
"""


def test_only_unchanged_read_only_private_mappings_of_files_are_dropped() -> None:
    assert list(unchanged_file_mappings(_SMAPS)) == [
        (0x7F0000000000, 0x7F0000002000),
        (0x7F0000006000, 0x7F0000007000),
    ]


def test_a_process_works_on_with_less_memory() -> None:
    if not Path("/proc/self/smaps").is_file() or not hasattr(ctypes.CDLL(None), "malloc_trim"):
        pytest.skip("needs Linux with glibc")
    script = (
        "import json, ssl, sqlite3, numpy, grpc\n"
        "from gpusonde.service.process import release_startup_memory\n"
        "def file_kib():\n"
        "    return next(int(l.split()[1]) for l in open('/proc/self/status') if l.startswith('RssFile'))\n"
        "before = file_kib()\n"
        "release_startup_memory()\n"
        "after = file_kib()\n"
        "assert numpy.linalg.solve(numpy.eye(50), numpy.ones(50)).sum() == 50\n"
        "grpc.insecure_channel('127.0.0.1:1').close()\n"
        "print(json.dumps([before, after]))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    before, after = json.loads(done.stdout)
    assert after < before / 2


def test_it_may_be_called_again_and_again() -> None:
    release_startup_memory()
    release_startup_memory()
