"""What Linux counts of a process (procfs) and of a cgroup: the difference from look to look."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
from dataclasses import dataclass
from pathlib import Path

READ_BYTES = 4096  # of a file of procfs, at most
_MOST_CGROUPS = 256


@dataclass(frozen=True)
class ProcessStat:
    """What ``/proc/PID/stat`` says."""

    parent: int
    group: int
    ticks: int  # of the processor
    start: int

    @classmethod
    def parse(cls, text: bytes) -> ProcessStat | None:
        """Parse it; the name in its parentheses may hold anything. None where it is cut short."""
        fields = text[text.rfind(b")") + 1 :].split(None, 20)
        try:
            return cls(int(fields[1]), int(fields[2]), int(fields[11]) + int(fields[12]), int(fields[19]))
        except (IndexError, ValueError):
            return None


def _parse_io(text: bytes) -> tuple[int, int] | None:
    """Return the bytes that a process has read and written, from ``/proc/PID/io``."""
    fields = text.split()
    try:
        return (int(fields[1]), int(fields[3])) if fields[0] == b"rchar:" and fields[2] == b"wchar:" else None
    except (IndexError, ValueError):
        return None


def _parse_io_stat(text: bytes) -> tuple[int, int]:
    """Return the bytes read and written on all devices, from ``io.stat`` of a cgroup."""
    read = written = 0
    for word in text.split():
        key, _, value = word.partition(b"=")
        if value.isdigit():
            read += int(value) if key == b"rbytes" else 0
            written += int(value) if key == b"wbytes" else 0
    return read, written


class WatchedProcess:
    """One process: what it has done since it was read before.

    Args:
        pid: Its id.
        folder: Its folder in procfs.
        stat: What is known of it.
        is_new: Whether it was born since the look before, so that all it has done is new.
        is_kept_open: Whether its files stay open: for those that are read at every look.
    """

    def __init__(self, pid: int, folder: str, stat: ProcessStat, *, is_new: bool, is_kept_open: bool) -> None:
        self.pid = pid
        self.stat = stat
        self.start = stat.start
        self.is_alive = True
        self.reads_io = True
        self._folder = folder
        self._is_kept_open = is_kept_open
        self._files: dict[str, int] = {}
        self._ticks = 0 if is_new else stat.ticks
        self._bytes: tuple[int, int] | None = (0, 0) if is_new else None

    def read_bytes(self) -> tuple[int, int]:
        """Return the bytes read and written since the last time."""
        now = _parse_io(text) if (text := self._read("io")) else None
        before, self._bytes = self._bytes, now or self._bytes
        if now is None or before is None:
            return 0, 0
        return max(0, now[0] - before[0]), max(0, now[1] - before[1])

    def read_ticks(self) -> int:
        """Return the ticks of a processor that it has used since the last time."""
        now = ProcessStat.parse(text) if (text := self._read("stat")) else None
        if now is None:
            return 0
        if now.start != self.start:  # another one has its id
            self.is_alive = False
            return 0
        before, self._ticks = self._ticks, now.ticks
        return max(0, now.ticks - before)

    def close(self) -> None:
        """Close its files."""
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()

    def _read(self, name: str) -> bytes:
        if name == "io" and not self.reads_io:
            return b""
        try:
            descriptor = self._files.get(name, -1)
            if descriptor < 0:
                descriptor = os.open(f"{self._folder}/{name}", os.O_RDONLY | os.O_CLOEXEC)
                self._files[name] = descriptor
            try:
                return os.pread(descriptor, READ_BYTES, 0)
            finally:
                if not self._is_kept_open:
                    self.close()
        except OSError as error:
            # A kernel may be built without the files ``io``.
            if error.errno == errno.ESRCH or (error.errno == errno.ENOENT and not os.path.exists(self._folder)):
                self.is_alive = False
            elif name == "io":
                self.reads_io = False
            return b""


class WatchedCgroup:
    """What a cgroup of version 2 counts.

    Args:
        path: Its folder.
        is_job: Whether all of its processes are those of the job.

    Attributes:
        counts_time: Whether it says how long the job's processes have run; not any more once that cannot be read.
        counts_bytes: Whether it says what was read and written, likewise.
    """

    def __init__(self, path: Path, *, is_job: bool) -> None:
        self._path = path
        self.counts_time = is_job
        self.counts_bytes = True
        self._time_ms = 0.0
        self._bytes = 0, 0
        self.read_time_ms()
        self.read_bytes()

    def read_time_ms(self) -> float:
        """Return the processor time used since the last time, in milliseconds."""
        fields = self._text("cpu.stat").split() if self.counts_time else []
        if fields[:1] != [b"usage_usec"]:
            self.counts_time = False
            return 0.0
        before, self._time_ms = self._time_ms, int(fields[1]) / 1e3
        return max(0.0, self._time_ms - before)

    def read_bytes(self) -> tuple[int, int]:
        """Return the bytes read and written since the last time."""
        self.counts_bytes = self.counts_bytes and (self._path / "io.stat").exists()
        if not self.counts_bytes:
            return 0, 0
        before, self._bytes = self._bytes, _parse_io_stat(self._text("io.stat"))
        return max(0, self._bytes[0] - before[0]), max(0, self._bytes[1] - before[1])

    def process_ids(self) -> list[int]:
        """Return the processes in it, ascending: of a job with very many cgroups some of them."""
        files = itertools.islice(self._path.rglob("cgroup.procs"), _MOST_CGROUPS)
        found = b" ".join(self._text(str(file.relative_to(self._path))) for file in files)
        return sorted({int(word) for word in found.split() if word.isdigit()})

    def _text(self, name: str) -> bytes:
        with contextlib.suppress(OSError), (self._path / name).open("rb", buffering=0) as file:
            return file.read(1 << 16)
        return b""
