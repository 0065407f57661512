"""Looking at a spool from outside: what it holds, and whether its files are as they should be.

Both work beside a running agent, because they only read: what is being written at that moment is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpusonde.agent.spool.ledger import Identity, Journal, load_identity
from gpusonde.agent.spool.segment import SUFFIX, Segment, record_ticks
from gpusonde.agent.spool.segment_files import SegmentReader
from gpusonde.agent.spool.segments import Finding, FindingKind, Recovery, examine, lacks_batch, recover
from gpusonde.errors import SpoolError
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.service.durable_files import DirectoryLock, FileLayer, OsFiles


@dataclass(frozen=True)
class SegmentSummary:
    """One segment file.

    Attributes:
        path: The file.
        first_sequence: Sequence of its first record; of the next one to come while it has none.
        records: Its records.
        ticks: Ticks of one GPU each inside them.
        size_bytes: Up to the end of its last record.
        first_tick_unix_nano: Time of its earliest tick, None without any, and where damage hides them.
        last_tick_unix_nano: Time of its latest tick.
        loss_reports: Records that report a loss.
    """

    path: Path
    first_sequence: int
    records: int
    ticks: int
    size_bytes: int
    first_tick_unix_nano: int | None
    last_tick_unix_nano: int | None
    loss_reports: int

    @property
    def last_sequence(self) -> int:
        """Sequence of its last record, ``first_sequence - 1`` without any."""
        return self.first_sequence + self.records - 1


@dataclass(frozen=True)
class JournalSummary:
    """The steps of a batch that is longer than usual and not appended yet; a killed agent's next start appends them.

    Attributes:
        path: The file.
        steps: How many there are.
        ticks: Ticks of one GPU each inside them.
        first_tick_unix_nano: Time of the earliest tick, None without any.
        last_tick_unix_nano: Time of the latest tick.
    """

    path: Path
    steps: int
    ticks: int
    first_tick_unix_nano: int | None
    last_tick_unix_nano: int | None


@dataclass(frozen=True)
class SpoolReport:
    """What is in a spool directory.

    Attributes:
        directory: The directory.
        identity: Whose it is; None when that is not stored, or not readable.
        held_by: Process that has it, None for nobody.
        segments: Oldest first.
        journal: What waits for the end of a batch, None without any.
        findings: What is not as it should be.
        repaired: The findings were repaired.
    """

    directory: Path
    identity: Identity | None
    held_by: str | None
    segments: tuple[SegmentSummary, ...]
    journal: JournalSummary | None
    findings: tuple[Finding, ...]
    repaired: bool = False

    @property
    def acked_sequence(self) -> int:
        """Highest sequence that is known from the files to be acknowledged (or dropped with a report).

        A collector may have acknowledged more: a segment leaves the disk only as a whole.
        """
        first = self.segments[0].first_sequence if self.segments else 1
        return max(first, self.identity.first_sequence if self.identity else 1) - 1

    @property
    def last_sequence(self) -> int:
        """Highest sequence on the disk, 0 without segments."""
        return self.segments[-1].last_sequence if self.segments else 0


def inspect_spool(directory: Path, *, repair: bool = False, files: FileLayer | None = None) -> SpoolReport:
    """Read a whole spool; with ``repair`` do to it what the next start of its agent would do.

    Raises:
        SpoolError: There is no spool, or it cannot be read.
        DirectoryLockedError: It is to be repaired, and an agent runs.
    """
    used = files or OsFiles()
    if not directory.is_dir():
        raise SpoolError(f"{directory}: no such directory; name the spool.directory of an agent")
    lock = DirectoryLock(directory, "agent")
    try:
        if not _looks_like_a_spool(directory):
            raise SpoolError(f"{directory}: not a spool; name the spool.directory of an agent")
        if not repair:
            return _report(directory, lock.holder(), used, repair=False)
        lock.acquire()
        try:
            return _report(directory, None, used, repair=True)
        finally:
            lock.release()
    except OSError as error:
        raise SpoolError(
            f"{error.filename or directory}: {error.strerror}; the spool cannot be read; use the account of its agent"
        ) from error


def _looks_like_a_spool(directory: Path) -> bool:
    names = {entry.name for entry in directory.iterdir()}
    # A collector's directory has a lock too; one of an agent that ended at its very first start has nothing else.
    return "identity.json" in names or names == {"lock"} or any(name.endswith(SUFFIX) for name in names)


def _report(directory: Path, held_by: str | None, files: FileLayer, *, repair: bool) -> SpoolReport:
    findings: list[Finding] = []
    identity: Identity | None = None
    try:
        identity = load_identity(directory)
    except SpoolError as error:
        findings.append(Finding(directory / "identity.json", FindingKind.UNUSABLE, str(error)))
    try:
        recovery = recover(directory, files) if repair else examine(directory, files, in_use=held_by is not None)
    except SpoolError as error:
        findings.append(Finding(directory, FindingKind.UNUSABLE, str(error)))
        recovery = Recovery([], b"")
    findings += recovery.findings
    return SpoolReport(
        directory=directory,
        identity=identity,
        held_by=held_by,
        segments=_summaries(recovery.segments, files),
        journal=_journal(directory, recovery.segments, files),
        findings=tuple(findings),
        repaired=repair and all(finding.kind is not FindingKind.UNUSABLE for finding in findings),
    )


def _summaries(segments: Sequence[Segment], files: FileLayer) -> tuple[SegmentSummary, ...]:
    reader = SegmentReader(files)
    try:
        return tuple(summary for segment in segments if (summary := _summary(segment, reader)) is not None)
    finally:
        reader.close()


def _journal(directory: Path, segments: Sequence[Segment], files: FileLayer) -> JournalSummary | None:
    journal = Journal(directory, files)
    try:
        steps = journal.load()
    finally:
        journal.close()
    if not steps or not segments or not lacks_batch(segments, steps[0].sequence):
        return None
    times = [time for step in steps for time in _tick_times(step)]
    return JournalSummary(
        path=journal.path,
        steps=len(steps),
        ticks=sum(map(record_ticks, steps)),
        first_tick_unix_nano=min(times, default=None),
        last_tick_unix_nano=max(times, default=None),
    )


def _summary(segment: Segment, reader: SegmentReader) -> SegmentSummary | None:
    batches = [i for i, ticks in enumerate(segment.ticks) if ticks]
    try:
        # Times increase from record to record but where a clock was set: the ends tell what a person wants to know.
        edges = [reader.read(segment, segment.first_sequence + i) for i in sorted({*batches[:1], *batches[-1:]})]
    except FileNotFoundError:
        return None  # acknowledged meanwhile
    # Behind damage, records do not lie where a repair would put them: better no times than those of one end for both.
    readable = [record for record in edges if record is not None]
    times = [time for record in readable for time in _tick_times(record)] if len(readable) == len(edges) else []
    return SegmentSummary(
        path=segment.path,
        first_sequence=segment.first_sequence,
        records=len(segment.offsets),
        ticks=sum(segment.ticks),
        size_bytes=segment.size,
        first_tick_unix_nano=min(times, default=None),
        last_tick_unix_nano=max(times, default=None),
        loss_reports=len(segment.loss_reports),
    )


def _tick_times(record: ingest_pb2.Record) -> list[int]:
    """Return the times of the first and the last tick of every block."""
    times = []
    for block in record.batch.blocks:
        offsets_us = np.frombuffer(block.tick_offsets_us, dtype="<i4")
        times.append(block.start_time_unix_nano)
        times.append(block.start_time_unix_nano + (int(offsets_us[-1]) * 1000 if offsets_us.size else 0))
    return times
