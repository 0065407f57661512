"""``Spool``: the agent's memory on disk between the sampler and a collector's acknowledgement.

One segment file is written to at a time; single records are read back with the file of the last one kept open.
"""

from __future__ import annotations

import bisect
import contextlib
import errno
import logging
import socket
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

from gpusonde.agent.metrics import SelfCounters
from gpusonde.agent.spool.ledger import Identity, Journal, Ledger, LedgerEntry, load_identity, store_identity
from gpusonde.agent.spool.segment import (
    RECORD,
    Segment,
    encode_header,
    encode_record,
    loss_of,
    loss_record,
    merge,
    record_ticks,
    segment_path,
)
from gpusonde.agent.spool.segment_files import Appender, SegmentReader
from gpusonde.agent.spool.segments import Recovery, lacks_batch, recover
from gpusonde.errors import SpoolError
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.service.durable_files import DirectoryLock, FileLayer, OsFiles, write_durably

log = logging.getLogger(__name__)

_LOSS_RECORD_BYTES = 128
_MAX_HELD_BACK = 1000
_MOST_MARKS = 64


class Spool:
    """A bounded queue of records in segment files.

    One thread appends and commits; another may read and acknowledge at the same time. Sequence numbers are never used
    twice inside a ``spool_id``. A record may be sent only once it is committed: a power loss must not take back what a
    collector has seen.

    When the spool is full, the oldest segment is dropped and a LossReport appended. When the disk refuses a write, the
    ticks of that time are lost and counted, and the next write that succeeds is preceded by a LossReport.

    Args:
        directory: Where the segments, the identity and the lock live; made if absent.
        max_bytes: Bound of all segments together.
        segment_bytes: Size at which a new segment is begun.
        agent_id: Name of the agent; "" keeps the stored one, or makes one of the host name.
        counters: Filled with what is kept and lost.
        files: The file layer.
        new_id: Makes unique names.
    """

    def __init__(
        self,
        directory: Path,
        *,
        max_bytes: int,
        segment_bytes: int = 4 << 20,
        agent_id: str = "",
        counters: SelfCounters | None = None,
        files: FileLayer | None = None,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._segment_bytes = max(1, min(segment_bytes, max_bytes // 8))
        self._wanted_agent_id = agent_id
        self._counters = counters or SelfCounters()
        self._files: FileLayer = files or OsFiles()
        self._new_id = new_id
        self._file_lock = DirectoryLock(directory, "agent")
        self._lock = threading.RLock()
        self._identity = Identity("", "")
        self._segments: list[Segment] = []
        self._context = b""
        self._appender = Appender(directory, self._files)
        self._reader = SegmentReader(self._files)
        self._ledger = Ledger(directory, self._files)
        self._journal = Journal(directory, self._files)
        self._committed = 0
        self._known = 0
        self._inherited = 0
        self._marks: list[ingest_pb2.RecordMark] | None = None
        self._answered = False
        self._acked = 0
        self._refused_ticks = 0
        self._unkept_ticks = 0
        self._held_back: list[ingest_pb2.Record] = []
        self._uncommitted: list[ingest_pb2.Record] = []
        self._disk_refuses = False

    @property
    def agent_id(self) -> str:
        """Name of the agent."""
        return self._identity.agent_id

    @property
    def spool_id(self) -> str:
        """Name of this run of sequence numbers."""
        with self._lock:
            return self._identity.spool_id

    @property
    def directory(self) -> Path:
        """Where the spool lives."""
        return self._directory

    @property
    def first_available_sequence(self) -> int:
        """Lowest sequence that :meth:`read` gives.

        It is the one before the oldest record if an inventory was in force there: that sequence was acknowledged or
        dropped, and now stands for the inventory, so that a collector can decode what follows.
        """
        with self._lock:
            oldest = self._segments[0]
            return max(oldest.first_sequence - (1 if oldest.context else 0), self._identity.first_sequence)

    @property
    def first_sequence(self) -> int:
        """Sequence with which the ``spool_id`` begins."""
        with self._lock:
            return self._identity.first_sequence

    @property
    def known_sequence(self) -> int:
        """Highest sequence of the ``spool_id`` that a collector can know from this spool.

        That is what was handed out to be sent, and until a collector has answered, what was on the disk at the first
        start since one had: a spool that was set back may have had a past of which nobody here knows.
        """
        with self._lock:
            return self._known

    def marks(self, up_to: int | None = None) -> list[ingest_pb2.RecordMark]:
        """Describe records of earlier lives of which no collector has said whether it has them, by sequence.

        They are the first and the last one with ticks of each life: what another spool that began as a copy of this one
        holds is the same up to the end of some life, or a part of the next one (:meth:`marks_between`).

        Args:
            up_to: Highest sequence to consider; None for no bound.
        """
        if self._answered:
            return []
        if up_to is not None:
            return self._find_marks(up_to)
        if self._marks is None:
            self._marks = self._find_marks(self._inherited)
        return [mark for mark in self._marks if mark.sequence > self._known]

    def marks_between(self, same: int, other: int) -> list[ingest_pb2.RecordMark]:
        """Describe some records with ticks between two, at even distances; all of them where they are few."""
        apart = max(1, -(-(other - same - 1) // _MOST_MARKS))
        found = (self._mark_at(sequence) for sequence in range(other - 1, same, -apart))
        return [mark for mark in found if mark is not None][::-1]

    def _find_marks(self, up_to: int) -> list[ingest_pb2.RecordMark]:
        marks: list[ingest_pb2.RecordMark] = []
        first = 0  # of the life that is being gone through, as far as is known
        is_last = True
        for sequence in range(min(up_to, self._inherited), self._known, -1):
            # Each on its own: whoever appends must not wait for all of them.
            with self._lock:
                segment = self._segment_of(sequence)
                if sequence < segment.first_sequence:
                    break
                if segment.ticks[sequence - segment.first_sequence] and not is_last:
                    first = sequence
                    continue
                record = self._reader.read(segment, sequence)
                if record is None:
                    continue
                # Every life begins with one.
                if record.HasField("inventory"):
                    is_last = True
                    marks += self._marks_of_first(first)
                    first = 0
                if is_last and (mark := self._mark_of(record)) is not None:
                    marks.append(mark)
                    is_last = False
        marks += self._marks_of_first(first)
        return marks[:: max(1, -(-len(marks) // _MOST_MARKS))][::-1]

    def _marks_of_first(self, sequence: int) -> list[ingest_pb2.RecordMark]:
        mark = self._mark_at(sequence) if sequence else None
        return [] if mark is None else [mark]

    def _mark_at(self, sequence: int) -> ingest_pb2.RecordMark | None:
        with self._lock:
            segment = self._segment_of(sequence)
            record = None if sequence < segment.first_sequence else self._reader.read(segment, sequence)
            return None if record is None else self._mark_of(record)

    def _mark_of(self, record: ingest_pb2.Record) -> ingest_pb2.RecordMark | None:
        gpus = ingest_pb2.Record.FromString(self._inventory_at(record.sequence)).inventory.gpus
        for block in record.batch.blocks:
            if block.tick_count and block.gpu < len(gpus):
                return ingest_pb2.RecordMark(
                    sequence=record.sequence,
                    gpu_uuid=gpus[block.gpu].gpu_uuid,
                    tick_time_unix_nano=block.start_time_unix_nano,
                )
        return None

    def note_same(self, sequence: int) -> None:
        """Note that a collector holds the same records as this spool up to one of an earlier life."""
        with self._lock:
            self._known = max(self._known, sequence)
            self._write_ledger()

    @property
    def last_sequence(self) -> int:
        """Highest sequence appended."""
        with self._lock:
            return self._segments[-1].last_sequence

    @property
    def committed_sequence(self) -> int:
        """Highest sequence that survives a power loss, and so may be sent."""
        with self._lock:
            return self._committed

    @property
    def size_bytes(self) -> int:
        """Bytes in all segments."""
        with self._lock:
            return sum(segment.size for segment in self._segments)

    @property
    def max_bytes(self) -> int:
        """Bound of all segments together."""
        return self._max_bytes

    def set_max_bytes(self, max_bytes: int) -> None:
        """Change the bound; the next record that is appended keeps to it."""
        with self._lock:
            self._max_bytes = max_bytes
            self._segment_bytes = max(1, min(self._segment_bytes, max_bytes // 8))

    def written(self) -> list[tuple[int, float]]:
        """Return the first sequence of each segment and about when it was written, as Unix time in seconds."""
        with self._lock:
            times = [segment.path.stat().st_mtime for segment in self._segments]
            # A segment begins where the one before ends; of the first one only its own end is known.
            return [
                (segment.first_sequence, begun)
                for segment, begun in zip(self._segments, [*times[:1], *times[:-1]], strict=True)
            ]

    @property
    def accepts_writes(self) -> bool:
        """False from a write that the disk refused until one that it takes."""
        return not self._disk_refuses

    @property
    def fill_ratio(self) -> float:
        """Share of the allowed size in use."""
        return self.size_bytes / self._max_bytes

    def open(self) -> Recovery:
        """Take the directory, read back what it holds and make it appendable.

        Raises:
            DirectoryLockedError: Another agent uses it.
            SpoolError: It cannot be used, or its files are damaged beyond repair.
        """
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SpoolError(f"{self._directory}: {error.strerror}; choose a spool directory the agent owns") from error
        try:
            self._file_lock.acquire()
            return self._open_locked()
        except OSError as error:
            self._ledger.close()
            self._journal.close()
            self._file_lock.release()
            raise SpoolError(
                f"{self._directory}: {error.strerror}; the spool cannot be opened, which the agent must own"
            ) from error
        except BaseException:
            self._ledger.close()
            self._journal.close()
            self._file_lock.release()
            raise

    def append(self, record: ingest_pb2.Record) -> int | None:
        """Append a record, setting its sequence.

        Returns:
            The sequence, or None when the disk refused: a batch is then lost and counted, any other record is kept
            in memory and written ahead of the next one.
        """
        with self._lock:
            try:
                self._write_held_back()
                sequence = self._append(record)
            except OSError as error:
                self._refuse(record, error)
                return None
            self._note_disk_accepts()
            return sequence

    def keep(self, step: ingest_pb2.Record) -> None:
        """Write down ticks of a batch that will be appended later: until then a SIGKILL does not take them."""
        with self._lock:
            try:
                self._journal.add(step, self._segments[-1].last_sequence + 1)
            except OSError:
                # Whether they are lost shows when the batch is appended; if nobody gets so far, they are.
                self._unkept_ticks += record_ticks(step)
                self._write_ledger()

    def commit(self) -> bool:
        """Make everything appended so far survive a power loss; return whether there was something.

        A refusal by the disk is counted, not raised.
        """
        with self._lock:
            # A loss is told as soon as there is room for its report, not only when there is something else to write.
            with contextlib.suppress(OSError):
                self._journal.sync()
                self._write_held_back()
                self._note_disk_accepts()
            last = self._segments[-1].last_sequence
            if not self._appender.is_open or last == self._committed:
                return False
        try:
            # Outside the lock: a slow disk must not hold up the reader.
            self._appender.sync()
        except OSError as error:
            with self._lock:
                self._abandon_uncommitted(error)
            return False
        with self._lock:
            self._committed = last
            self._uncommitted.clear()
            self._write_ledger()
        return True

    def read(self, sequence: int) -> ingest_pb2.Record | None:
        """Return a committed record; None if it was dropped, acknowledged and removed, or is not committed yet."""
        payload = self.read_bytes(sequence)
        return None if payload is None else ingest_pb2.Record.FromString(payload)

    def read_bytes(self, sequence: int) -> bytes | None:
        """Return a committed record as it is serialised; None where :meth:`read` returns None."""
        with self._lock:
            if not self.first_available_sequence <= sequence <= self._committed:
                return None
            self._known = max(self._known, sequence)
            if sequence < self._segments[0].first_sequence or sequence == self._identity.first_sequence > 1:
                record = ingest_pb2.Record.FromString(self._inventory_at(sequence))
                record.sequence = sequence
                return record.SerializeToString()
            segment = self._segment_of(sequence)
            payload = self._reader.read_bytes(segment, sequence)
            if payload is None:
                log.error("%s: record %d was damaged on the disk and is lost", segment.path, sequence)
                ticks = segment.ticks[sequence - segment.first_sequence]
                self._counters.count_dropped("spool_corrupt", 1, ticks)
                report = loss_record(sequence, sequence, ingest_pb2.LOSS_REASON_SPOOL_CORRUPT, ticks)
                report.sequence = sequence
                payload = report.SerializeToString()
            return payload

    def acknowledge(self, sequence: int) -> None:
        """Note that the collector made everything up to ``sequence`` durable, and free what lies below.

        The first answer since the start is written down before anything is sent: from then on, what a collector knows
        is no longer bounded by what was on the disk.
        """
        with self._lock:
            if not self._answered:
                self._answered = True
                self._write_ledger()
            self._acked = max(self._acked, min(sequence, self._committed))
            self._counters.acked_sequence = self._acked
            while len(self._segments) > 1 and self._segments[0].last_sequence <= self._acked:
                if not self._remove_oldest():
                    break
            self._count_size()

    def renew(self) -> None:
        """Continue under a new ``spool_id``, because the collector knows sequences of the old one that we never sent.

        They are of a spool of which this one is a copy, or of a tail that this one has lost. What is known to be the
        same on both sides stays under the old name; all behind it goes on under the new one, which begins with a
        sequence that stands for the inventory in force there.

        Raises:
            OSError: The new identity cannot be stored.
        """
        with self._lock:
            renewed = Identity(self._identity.agent_id, self._new_id(), max(1, self._known))
            store_identity(self._directory, renewed, self._files)
            self._identity = renewed
            self._answered = False
            self._write_ledger()
            self._acked = self.first_available_sequence - 1

    def close(self) -> None:
        """Commit, and give the directory back."""
        with self._lock:
            if self._segments:
                self.commit()
            self._appender.close()
            self._reader.close()
            self._ledger.close()
            self._journal.close()
            self._file_lock.release()

    def _open_locked(self) -> Recovery:
        stored = load_identity(self._directory)
        recovery = recover(self._directory, self._files)
        self._segments, self._context = recovery.segments, recovery.context
        # Without segments the next sequence is unknown, and without an identity so is whose sequences these are.
        keeps_numbers = stored is not None and bool(self._segments)
        spool_id = stored.spool_id if stored and keeps_numbers else self._new_id()
        default_agent_id = stored.agent_id if stored else f"{socket.gethostname()}-{self._new_id()[:8]}"
        first_sequence = stored.first_sequence if stored and keeps_numbers else 1
        self._identity = Identity(self._wanted_agent_id or default_agent_id, spool_id, first_sequence)
        if self._identity != stored:
            store_identity(self._directory, self._identity, self._files)
        if not self._segments:
            self._begin_segment(1)
        self._committed = self._segments[-1].last_sequence
        self._read_ledger()
        self._take_steps()
        self._inherited = self._committed
        if not self._appender.is_open:
            self._appender.resume(self._segments[-1])
        self._acked = self.first_available_sequence - 1
        if recovery.lost_records:
            self._counters.count_dropped("spool_corrupt", recovery.lost_records, 0)
        self._count_size()
        return recovery

    def _read_ledger(self) -> None:
        try:
            entry = self._ledger.load(self._identity.spool_id)
        except OSError as error:
            log.warning("spool %s: its ledger cannot be read (%s)", self._directory, error.strerror)
            entry = LedgerEntry()
        self._known = self._committed if entry.known_sequence is None else min(entry.known_sequence, self._committed)
        reported = sum(
            report.lost_ticks
            for segment in self._segments
            for sequence, report in segment.loss_reports.items()
            if sequence > entry.after_sequence and report.reason == ingest_pb2.LOSS_REASON_DISK_FULL
        )
        self._refused_ticks = max(0, entry.lost_ticks - reported)
        self._write_ledger()

    def _take_steps(self) -> None:
        """Make records of the steps of a batch that the last process did not get to append."""
        try:
            steps = self._journal.load()
            if not steps:
                return
            if lacks_batch(self._segments, steps[0].sequence):
                self._append_steps(steps)
            self._journal.clear()
        except OSError as error:
            log.warning(
                "spool %s: the batch that was being filled cannot be read (%s)", self._directory, error.strerror
            )

    def _append_steps(self, steps: list[ingest_pb2.Record]) -> None:
        """Write them all or none: as a segment of their own."""
        first = self._committed + 1
        parts = [encode_header(first, self._context)]
        for sequence, step in enumerate(steps, first):
            step.sequence = sequence
            parts.append(encode_record(sequence, record_ticks(step), step.SerializeToString()))
        self._appender.close()
        try:
            write_durably(segment_path(self._directory, first), b"".join(parts), files=self._files, mode=0o640)
        except OSError:
            self._refused_ticks += sum(map(record_ticks, steps))
            self._counters.count_dropped("disk_full", 0, sum(map(record_ticks, steps)))
            self._write_ledger()
            return
        self._segments = recover(self._directory, self._files).segments
        if self._known == self._committed:
            # A copy of this spool makes the same records of them, or holds all of them in the batch.
            self._known = self._segments[-1].last_sequence
        self._committed = self._segments[-1].last_sequence
        self._write_ledger()

    def _write_ledger(self) -> None:
        """Write down what must outlive a SIGKILL; a disk that refuses is no reason to stop sampling or sending."""
        unsettled = [*self._uncommitted, *self._held_back]
        told = sum(
            r.loss_report.lost_ticks for r in unsettled if r.loss_report.reason == ingest_pb2.LOSS_REASON_DISK_FULL
        )
        entry = LedgerEntry(
            None if self._answered else self._known, self._refused_ticks + self._unkept_ticks + told, self._committed
        )
        if not entry.lost_ticks:
            entry = LedgerEntry(entry.known_sequence)
        try:
            self._ledger.store(self._identity.spool_id, entry)
        except OSError as error:
            if not self._disk_refuses:
                log.warning("spool %s: its ledger cannot be written (%s)", self._directory, error.strerror)

    def _segment_of(self, sequence: int) -> Segment:
        at = bisect.bisect_right(self._segments, sequence, key=lambda segment: segment.first_sequence) - 1
        return self._segments[max(0, at)]

    def _inventory_at(self, sequence: int) -> bytes:
        """Return the serialised Inventory record in force at a sequence; one of an empty record where there is none."""
        segment = self._segment_of(sequence)
        for earlier in range(sequence, segment.first_sequence - 1, -1):
            found = self._reader.read(segment, earlier)
            if found is not None and found.HasField("inventory"):
                return found.SerializeToString()
        return segment.context

    def _append(self, record: ingest_pb2.Record) -> int:
        # Its size is known once it is made; made a second time only where a report of a loss goes first.
        record.sequence = self._segments[-1].last_sequence + 1
        payload = record.SerializeToString()
        loss = self._make_room(len(payload) + RECORD.size + 16)
        if loss is None:
            return self._store(record, payload)
        for each in (loss, record):
            each.sequence = self._segments[-1].last_sequence + 1
            self._store(each, each.SerializeToString())
        return record.sequence

    def _store(self, record: ingest_pb2.Record, payload: bytes) -> int:
        ticks = record_ticks(record)
        encoded = encode_record(record.sequence, ticks, payload)
        active = self._segments[-1]
        if not self._appender.is_open or (active.offsets and active.size + len(encoded) > self._segment_bytes):
            self._roll()
            active = self._segments[-1]
        self._appender.write(encoded, active.size)
        active.index(record, ticks, len(encoded))
        if record.HasField("inventory"):
            self._context = payload
        if record.HasField("batch"):
            self._end_batch()
        else:
            self._uncommitted.append(record)
        self._counters.records += 1
        self._counters.last_sequence = record.sequence
        self._count_size()
        return record.sequence

    def _roll(self) -> None:
        """Sync the active segment and begin the next one."""
        if self._appender.is_open:
            try:
                self._appender.sync()
            except OSError as error:
                self._abandon_uncommitted(error)
                raise
            self._committed = self._segments[-1].last_sequence
            self._uncommitted.clear()
            self._write_ledger()
            self._appender.close()
        self._begin_segment(self._segments[-1].last_sequence + 1)

    def _begin_segment(self, first_sequence: int) -> None:
        segment = self._appender.begin(first_sequence, self._context)
        if self._segments and not self._segments[-1].offsets:
            # The abandoned segment held nothing that counts; the new one has its name and place.
            self._segments.pop()
        self._segments.append(segment)

    def _make_room(self, size: int) -> ingest_pb2.Record | None:
        """Drop the oldest segments until ``size`` more bytes fit; return the LossReport that says so."""
        loss: ingest_pb2.LossReport | None = None
        while self.size_bytes + size + _LOSS_RECORD_BYTES > self._max_bytes:
            if len(self._segments) == 1:
                if not self._segments[0].offsets:
                    break
                self._roll()
            oldest = self._segments[0]
            unacked = max(0, self._acked - oldest.first_sequence + 1)
            if not self._remove_oldest():
                break
            if unacked < len(oldest.offsets):
                self._counters.count_dropped("spool_full", len(oldest.offsets) - unacked, sum(oldest.ticks[unacked:]))
                dropped = loss_of(oldest, unacked)
                loss = dropped if loss is None else merge(loss, dropped)
        if loss is None:
            return None
        log.error(
            "spool %s is full: dropped records %d to %d (%d ticks); raise spool.max_bytes or bring the collector back",
            self._directory, loss.first_lost_sequence, loss.last_lost_sequence, loss.lost_ticks,
        )  # fmt: skip
        return ingest_pb2.Record(loss_report=loss)

    def _remove_oldest(self) -> bool:
        oldest = self._segments[0]
        self._reader.forget(oldest)
        try:
            self._files.remove(oldest.path)
            # Otherwise a power loss could bring an older segment back while a younger one stays removed: a false gap.
            self._files.sync_directory(self._directory)
        except OSError as error:
            log.warning("%s: cannot be removed: %s", oldest.path, error.strerror)
            return False
        self._segments.pop(0)
        return True

    def _write_held_back(self) -> None:
        if self._refused_ticks:
            self._append(loss_record(0, 0, ingest_pb2.LOSS_REASON_DISK_FULL, self._refused_ticks))
            self._refused_ticks = 0
        while self._held_back:
            self._append(self._held_back[0])
            self._held_back.pop(0)

    def _note_disk_accepts(self) -> None:
        if self._disk_refuses:
            self._disk_refuses = False
            log.warning("spool %s: the disk accepts writes again", self._directory)

    def _refuse(self, record: ingest_pb2.Record, error: OSError) -> None:
        if record.HasField("batch"):
            ticks = record_ticks(record)
            self._refused_ticks += ticks
            self._counters.count_dropped("disk_full", 1, ticks)
            self._end_batch(lost=True)
            self._write_ledger()
        elif len(self._held_back) < _MAX_HELD_BACK:
            self._held_back.append(record)
        if not self._disk_refuses:
            self._disk_refuses = True
            what = (
                "the disk is full"
                if error.errno in (errno.ENOSPC, errno.EDQUOT)
                else f"the disk fails ({error.strerror})"
            )
            log.error(
                "spool %s: %s; samples are lost until it accepts writes, and will be reported as lost. Free some space",
                self._directory,
                what,
            )

    def _abandon_uncommitted(self, error: OSError) -> None:
        """Forget what could not be synced. It was never sent, so its sequences may be used again."""
        active = self._segments[-1]
        keep = max(0, self._committed - active.first_sequence + 1)
        ticks = sum(active.ticks[keep:])
        records = len(active.offsets) - keep
        if keep < len(active.offsets):
            active.size = active.offsets[keep]
        active.offsets, active.ticks = active.offsets[:keep], active.ticks[:keep]
        active.loss_reports = {s: loss for s, loss in active.loss_reports.items() if s <= self._committed}
        # The kernel may have dropped the pages it could not write: the file is not appended to again. The next segment
        # begins at the first abandoned sequence, and wins over this one when the spool is read back.
        self._appender.close()
        self._refused_ticks += ticks
        self._counters.count_dropped("disk_full", records, ticks)
        self._held_back = [*self._uncommitted, *self._held_back][:_MAX_HELD_BACK]
        self._uncommitted = []
        self._disk_refuses = True
        # The batch that is being filled began behind records that are gone.
        unkept = self._unkept_ticks + self._journal.ticks
        self._end_batch(lost=True)
        self._unkept_ticks = unkept
        self._write_ledger()
        log.error("spool %s: cannot be synced (%s); %d records are lost", self._directory, error.strerror, records)

    def _end_batch(self, *, lost: bool = False) -> None:
        unkept, self._unkept_ticks = self._unkept_ticks, 0
        if lost:
            with contextlib.suppress(OSError):
                self._journal.clear()
        else:
            self._journal.begin_batch()
        if unkept:
            self._write_ledger()

    def _count_size(self) -> None:
        self._counters.spool_bytes = self.size_bytes
        self._counters.last_sequence = self._segments[-1].last_sequence
