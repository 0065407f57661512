"""Where the parts of a data directory lie."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path


class SegmentKind(Enum):
    """What a segment file holds; the members' values are kept in the catalogue."""

    MINUTE = "minute"  # ticks as sealed: all GPUs, a minute or so
    HOUR = "hour"  # ticks after compaction: an hour of arrivals, row groups of one GPU each
    SECOND = "second"  # averages over seconds of the ticks of one hour file


@dataclass(frozen=True)
class StoreLayout:
    """The folders of a data directory.

    Attributes:
        directory: The data directory.
    """

    directory: Path

    @property
    def catalog(self) -> Path:
        """The SQLite catalogue."""
        return self.directory / "catalog.sqlite"

    @property
    def log(self) -> Path:
        """Log parts."""
        return self.directory / "log"

    @property
    def quarantine(self) -> Path:
        """Bytes of refused records."""
        return self.directory / "quarantine"

    @property
    def segment_folders(self) -> tuple[Path, ...]:
        """The folders of all kinds of segments."""
        return tuple(self.folder(kind) for kind in SegmentKind)

    def folder(self, kind: SegmentKind) -> Path:
        """Return the folder of one kind of segments."""
        return self.directory / _FOLDERS[kind]

    def path(self, kind: SegmentKind, file_name: str) -> Path:
        """Return where a segment lies."""
        return self.folder(kind) / file_name

    def unused_segment(self, now_unix_nano: int, part: int) -> Path:
        """Return where to put a new segment: a clock that was set back must not lead to a name that is in use."""
        while (path := self.path(SegmentKind.MINUTE, f"{now_unix_nano:020d}-{part:08d}.parquet")).exists():
            now_unix_nano += 1
        return path


_FOLDERS = {SegmentKind.MINUTE: "segments", SegmentKind.HOUR: "hours", SegmentKind.SECOND: "seconds"}
