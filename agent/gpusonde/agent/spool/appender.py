"""The one segment file that is written to."""

from __future__ import annotations

import contextlib
from pathlib import Path

from gpusonde.agent.spool.files import Files
from gpusonde.agent.spool.index import Segment
from gpusonde.agent.spool.segment import encode_header, segment_path


class Appender:
    """Holds the newest segment open.

    Args:
        directory: Where segments are made.
        files: The file operations; what they raise passes through.
    """

    def __init__(self, directory: Path, files: Files) -> None:
        self._directory = directory
        self._files = files
        self._descriptor = -1

    @property
    def is_open(self) -> bool:
        """Whether there is a file to write to."""
        return self._descriptor >= 0

    def resume(self, segment: Segment) -> None:
        """Go on with a segment that was read back, after making sure that all of it is on the disk."""
        self._descriptor = self._files.open(segment.path)
        self._files.sync(self._descriptor)

    def begin(self, first_sequence: int, context: bytes) -> Segment:
        """Make a new segment whose name and header survive a power loss."""
        path = segment_path(self._directory, first_sequence)
        header = encode_header(first_sequence, context)
        # A file of this name can only be what an earlier, failed attempt left.
        path.unlink(missing_ok=True)
        descriptor = self._files.create(path)
        try:
            self._files.write(descriptor, header, 0)
            self._files.sync(descriptor)
            self._files.sync_directory(self._directory)
        except OSError:
            self._files.close(descriptor)
            with contextlib.suppress(OSError):
                self._files.unlink(path)
            raise
        self._descriptor = descriptor
        return Segment(path, first_sequence, context, size=len(header))

    def write(self, data: bytes, offset: int) -> None:
        """Write at an offset; what a failed write leaves behind it is overwritten by the next or cut at recovery."""
        self._files.write(self._descriptor, data, offset)

    def sync(self) -> None:
        """Return once everything written survives a power loss."""
        self._files.sync(self._descriptor)

    def close(self) -> None:
        """Close the file; safe when there is none."""
        if self._descriptor >= 0:
            self._files.close(self._descriptor)
            self._descriptor = -1
