"""Reading single records back, with the file of the last one kept open."""

from __future__ import annotations

from gpusonde.agent.spool.files import Files
from gpusonde.agent.spool.index import Segment
from gpusonde.agent.spool.segment import parse_record
from gpusonde.ingest.v1 import ingest_pb2


class SegmentReader:
    """Reads records of segments; a sender goes through them in order, so one open file is enough.

    Args:
        files: The file operations.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._first_sequence = 0
        self._descriptor = -1

    def read(self, segment: Segment, sequence: int) -> ingest_pb2.Record | None:
        """Return a record of the segment, None when its bytes are damaged."""
        if self._descriptor < 0 or self._first_sequence != segment.first_sequence:
            self.close()
            self._descriptor = self._files.open(segment.path)
            self._first_sequence = segment.first_sequence
        i = sequence - segment.first_sequence
        start = segment.offsets[i]
        end = segment.offsets[i + 1] if i + 1 < len(segment.offsets) else segment.size
        found = parse_record(self._files.read(self._descriptor, end - start, start), 0)
        if found is None or found.sequence != sequence:
            return None
        return ingest_pb2.Record.FromString(found.payload)

    def forget(self, segment: Segment) -> None:
        """Close the segment's file before it is removed."""
        if self._first_sequence == segment.first_sequence:
            self.close()

    def close(self) -> None:
        """Close the open file."""
        if self._descriptor >= 0:
            self._files.close(self._descriptor)
            self._descriptor = -1
