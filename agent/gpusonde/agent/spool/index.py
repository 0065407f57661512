"""What is known of a segment file without reading it."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from pathlib import Path

from gpusonde.agent.records.batch import batch_ticks
from gpusonde.ingest.v1 import ingest_pb2


@dataclass
class Segment:
    """What is known of one segment file without reading it.

    Attributes:
        path: The file.
        first_sequence: Sequence of the first record; of the next one to come while there is none.
        context: Serialised Inventory record in force at the first record; empty in a new spool.
        offsets: Offset of each record; record i has sequence ``first_sequence + i``.
        ticks: Ticks in each record.
        loss_reports: LossReports inside, by sequence: they must outlive the segment.
        size: Bytes up to the end of the last record.
    """

    path: Path
    first_sequence: int
    context: bytes = b""
    offsets: array[int] = field(default_factory=lambda: array("Q"))
    ticks: array[int] = field(default_factory=lambda: array("I"))
    loss_reports: dict[int, ingest_pb2.LossReport] = field(default_factory=dict)
    size: int = 0

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record, ``first_sequence - 1`` when there is none."""
        return self.first_sequence + len(self.offsets) - 1

    def index(self, record: ingest_pb2.Record, encoded_bytes: int) -> None:
        """Note a record that was written at :attr:`size`."""
        self.offsets.append(self.size)
        self.ticks.append(record_ticks(record))
        if record.HasField("loss_report"):
            self.loss_reports[record.sequence] = record.loss_report
        self.size += encoded_bytes


def record_ticks(record: ingest_pb2.Record) -> int:
    """Return the ticks of one GPU each inside a record."""
    return batch_ticks(record.batch) if record.HasField("batch") else 0
