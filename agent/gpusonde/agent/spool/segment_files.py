"""The files of a spool's segments: ``Appender`` writes the newest one, ``SegmentReader`` reads records of any."""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path

from gpusonde.agent.spool.segment import Segment, encode_header, parse_record, segment_path
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.service.durable_files import File, FileLayer


class Appender:
    """Holds the newest segment open.

    Args:
        directory: Where segments are made.
        files: The file layer; what it raises passes through.
    """

    def __init__(self, directory: Path, files: FileLayer) -> None:
        self._directory = directory
        self._files = files
        self._file: File | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is a file to write to."""
        return self._file is not None

    def resume(self, segment: Segment) -> None:
        """Go on with a segment that was read back, after making sure that all of it is on the disk."""
        self._file = self._files.open(segment.path)
        self._file.sync()

    def begin(self, first_sequence: int, context: bytes) -> Segment:
        """Make a new segment whose name and header survive a power loss."""
        path = segment_path(self._directory, first_sequence)
        header = encode_header(first_sequence, context)
        # A file of this name can only be what an earlier, failed attempt left.
        path.unlink(missing_ok=True)
        file = self._files.create(path)
        try:
            file.write(header, 0)
            file.sync()
            self._files.sync_directory(self._directory)
        except OSError:
            file.close()
            with contextlib.suppress(OSError):
                self._files.remove(path)
            raise
        self._file = file
        return Segment(path, first_sequence, context, size=len(header))

    def write(self, data: bytes, offset: int) -> None:
        """Write at an offset, the end of the file.

        What a failed write leaves behind it is cut: under the beginning of another record it would look like damage.
        """
        file = self._opened()
        try:
            file.write(data, offset)
        except OSError:
            with contextlib.suppress(OSError):
                file.truncate(offset)
            raise

    def sync(self) -> None:
        """Return once everything written survives a power loss."""
        self._opened().sync()

    def close(self) -> None:
        """Close the file; safe when there is none."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _opened(self) -> File:
        if self._file is None:
            raise OSError(errno.EBADF, "no segment is open", str(self._directory))
        return self._file


class SegmentReader:
    """Reads records of segments; a sender goes through them in order, so one open file is enough.

    Args:
        files: The file layer.
    """

    def __init__(self, files: FileLayer) -> None:
        self._files = files
        self._first_sequence = 0
        self._file: File | None = None

    def read(self, segment: Segment, sequence: int) -> ingest_pb2.Record | None:
        """Return a record of the segment, None when its bytes are damaged."""
        payload = self.read_bytes(segment, sequence)
        return None if payload is None else ingest_pb2.Record.FromString(payload)

    def read_bytes(self, segment: Segment, sequence: int) -> bytes | None:
        """Return a serialised record of the segment, None when its bytes are damaged."""
        if self._file is None or self._first_sequence != segment.first_sequence:
            self.close()
            self._file = self._files.open(segment.path)
            self._first_sequence = segment.first_sequence
        i = sequence - segment.first_sequence
        start = segment.offsets[i]
        end = segment.offsets[i + 1] if i + 1 < len(segment.offsets) else segment.size
        found = parse_record(self._file.read(end - start, start), 0)
        if found is None or found.sequence != sequence:
            return None
        return found.payload

    def forget(self, segment: Segment) -> None:
        """Close the segment's file before it is removed."""
        if self._first_sequence == segment.first_sequence:
            self.close()

    def close(self) -> None:
        """Close the open file."""
        if self._file is not None:
            self._file.close()
            self._file = None
