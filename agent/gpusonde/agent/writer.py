"""``SpoolWriter``: readings -> batches -> spool, in a thread of its own.

Between the sampler and the disk stands a bounded queue, so that a disk that stalls for a second costs no tick.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Sequence

from gpusonde.agent.batch import Batcher, events_record, increasing_parts, inventory_record, source_ended_record
from gpusonde.agent.config import SpoolConfig, UplinkConfig
from gpusonde.agent.metrics import SelfCounters
from gpusonde.agent.sources.base import AlignedTicks, GpuTicks, RawTicks, Reading, SourceInventory
from gpusonde.agent.spool import Spool
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.service.health import Heartbeat

# A minute of 10 Hz readings: longer than any disk should stall, and a few megabytes at most.
_MAX_QUEUED_READINGS = 600
# A source that can wait is read while no more wait here, and while less than this share of the spool is in use.
_QUEUED_WITH_ROOM = 4
_FILL_RATIO_WITH_ROOM = 0.5
# Batches that a collector is sent at once: what a record costs on its way is mostly to wake up for it.
_SENT_TOGETHER = 4
# Where several ticks come at once, a batch ends with the last of them, a little sooner or later than it is due.
_SOONER_S, _LATER_S = 0.6, 0.5
# Well under every collector's limit for one record, whatever the batch interval.
_MAX_BATCH_BYTES = 512 << 10


class SpoolWriter:
    """Takes readings from the sampler and puts them into the spool.

    Args:
        spool: An open spool.
        inventory: Columns and GPUs of the readings.
        counters: Filled with batches, blanks and events.
        spool_config: Says how often records are committed.
        uplink_config: Says how long batches are.
        on_commit: Told that there is something to send: after each commit, but of batches of a live source alone only
            after every fourth or when no other comes.
        monotonic: Seconds, never set back.
        heartbeat: Beaten before every wait; not while the disk is written to.
    """

    def __init__(
        self,
        spool: Spool,
        inventory: SourceInventory,
        counters: SelfCounters,
        spool_config: SpoolConfig,
        uplink_config: UplinkConfig,
        *,
        on_commit: Callable[[], None] = lambda: None,
        monotonic: Callable[[], float] = time.monotonic,
        heartbeat: Heartbeat | None = None,
    ) -> None:
        self._spool = spool
        self._counters = counters
        self._follow(inventory)
        self._requested_s: float | None = None
        self.configure(spool_config, uplink_config)
        self._on_commit = on_commit
        self._monotonic = monotonic
        self._heartbeat = heartbeat or Heartbeat("the spool's writer")
        self._batcher = Batcher(inventory.metrics)
        # While batches are longer than configured, their ticks are written down at the configured pace all the same.
        self._steps = Batcher(inventory.metrics)
        self._keeps_steps = False
        # A reading of a live source waits for the batch: waking up for each would cost more than to take it in.
        self._queue: collections.deque[Reading | ingest_pb2.Record | None] = collections.deque()
        self._raw: list[RawTicks] = []
        # Held while nobody wants the writer: less to do per second than an Event has.
        self._wake = threading.Lock()
        self._wake.acquire()
        self._uncommitted = True
        # Several ticks came at once; they are all there with the next reading.
        self._has_several = self._is_whole = False
        # Looks of all readings that were queued, and taken, by now: each is counted by one thread.
        self._put_looks = self._taken_looks = 0
        self._held_commits = 0
        self._is_urgent = True
        self._tell_inventory: Callable[[SourceInventory], None] = lambda inventory: None

    def has_room(self) -> bool:
        """Whether a source that can wait should be read now."""
        return (
            len(self._queue) < _QUEUED_WITH_ROOM
            and self._spool.fill_ratio < _FILL_RATIO_WITH_ROOM
            and self._spool.accepts_writes
        )

    def put(self, reading: Reading) -> bool:
        """Queue a reading; False when its ticks were dropped because the disk has stalled for a minute."""
        queue = self._queue
        told = reading.events or reading.inventory is not None
        if self._put_looks - self._taken_looks < _MAX_QUEUED_READINGS:
            queue.append(reading)
            self._put_looks += len(reading.looks) or 1
            if reading.looks:
                self._has_several = True
            elif self._has_several:
                self._has_several, self._is_whole = False, True
                self._awaken()
            if told or len(queue) >= self._readings_in_batch:
                self._awaken()
            return True
        if told:
            queue.append(dataclasses.replace(reading, ticks=(), missed_ticks=0))
            self._put_looks += len(reading.looks) or 1
        return False

    def on_inventory(self, tell: Callable[[SourceInventory], None]) -> None:
        """Have each new inventory told, after it is in the spool; to be called before :meth:`run`."""
        self._tell_inventory = tell

    def put_record(self, record: ingest_pb2.Record) -> None:
        """Queue a record from beside the samples (job bindings); it follows the ticks queued before it."""
        self._queue.append(record)
        self._awaken()

    def configure(self, spool_config: SpoolConfig, uplink_config: UplinkConfig) -> None:
        """Keep to other sections from the next commit and batch on; callable from any thread."""
        self._commit_interval_s = spool_config.commit_interval_s
        self._configured_s = uplink_config.batch_interval_s

    def request_batch_interval(self, interval_s: float | None) -> None:
        """Make batches at least so long, or (None) as configured, from the next on; callable from any thread.

        What a SIGKILL can take does not grow with them.
        """
        self._requested_s = interval_s

    @property
    def step_interval_s(self) -> float:
        """Seconds after which readings are written down, in batches that may be longer."""
        return self._configured_s

    @property
    def batch_interval_s(self) -> float:
        """Seconds of readings in the next batch."""
        return max(self._configured_s, self._requested_s or 0.0)

    def finish(self) -> None:
        """Make :meth:`run` write what is queued and return; callable from any thread."""
        self._queue.append(None)
        self._awaken()

    def run(self) -> None:
        """Write until :meth:`finish`; everything queued before it is then committed."""
        now_s = self._monotonic()
        batch_due_s, step_due_s, commit_due_s = now_s + self.batch_interval_s, now_s + self._configured_s, now_s
        self._keeps_steps = self.batch_interval_s > self._configured_s
        finished = comes_whole = False
        while not finished:
            due_s = min(batch_due_s, step_due_s) if self._keeps_steps else batch_due_s
            due_s = min(due_s, commit_due_s) if self._uncommitted else due_s
            wait_s = max(0.0, due_s - self._monotonic())
            self._heartbeat.beat(wait_s)
            self._wake.acquire(timeout=wait_s)
            # Looked at first: what is whole is in the queue by then.
            is_whole, self._is_whole = self._is_whole, False
            comes_whole |= is_whole
            finished = self._take_queued()
            now_s = self._monotonic()
            if finished or now_s >= batch_due_s - (_SOONER_S if is_whole else 0.0):
                self._flush()
                batch_due_s = now_s + self.batch_interval_s + (_LATER_S if comes_whole else 0.0)
                comes_whole = False
                self._keeps_steps = self.batch_interval_s > self._configured_s
                step_due_s = now_s + self._configured_s
            elif self._keeps_steps and now_s >= step_due_s:
                self._keep_step()
                step_due_s = now_s + self._configured_s
            if self._uncommitted and (finished or now_s >= commit_due_s):
                self._tell(self._spool.commit(), finished)
                # What the disk refused is tried again.
                self._uncommitted = not self._spool.accepts_writes
                commit_due_s = self._monotonic() + self._commit_interval_s

    def _awaken(self) -> None:
        with contextlib.suppress(RuntimeError):
            # Not held: it is to wake up already.
            self._wake.release()

    def _tell(self, committed: bool, finished: bool) -> None:
        """Tell of a commit, or of none, if that is due."""
        self._held_commits += committed
        if not self._held_commits:
            return
        holds = committed and not finished and not self._is_urgent and not self._inventory.can_wait
        # Longer batches are late enough by themselves.
        if holds and self._held_commits < _SENT_TOGETHER and self.batch_interval_s <= self._configured_s:
            return
        self._held_commits, self._is_urgent = 0, False
        self._on_commit()

    def _take_queued(self) -> bool:
        """Take what is queued; return whether it ended with :meth:`finish`."""
        while self._queue:
            taken = self._queue.popleft()
            if taken is None:
                self._join_raw()
                return True
            if isinstance(taken, Reading):
                self._taken_looks += len(taken.looks) or 1
                self._take(taken)
            else:
                self._join_raw()
                self._flush()
                self._spool.append(taken)
                self._uncommitted = self._is_urgent = True
        self._join_raw()
        return False

    def end_source(self) -> None:
        """Declare the source's end; call after :meth:`run` has returned."""
        self._spool.append(source_ended_record(range(len(self._inventory.gpus))))
        self._spool.commit()
        self._on_commit()

    def _follow(self, inventory: SourceInventory) -> None:
        self._inventory = inventory
        self._counters.gpus = len(inventory.gpus)
        # A live source gives a tick of each GPU at a time; one that can wait gives as much as is taken.
        live = _MAX_BATCH_BYTES // max(1, 4 * len(inventory.metrics) * len(inventory.gpus))
        self._readings_in_batch = 0 if inventory.can_wait else live

    def _take(self, reading: Reading) -> None:
        raw = reading.ticks if isinstance(reading.ticks, RawTicks) else None
        if reading.inventory is not None or reading.events or raw is None:
            self._join_raw()
        if reading.inventory is not None:
            # Ticks before it are of the old columns.
            self._flush()
            self._follow(reading.inventory)
            self._batcher.change_columns(reading.inventory.metrics)
            self._steps.change_columns(reading.inventory.metrics)
            self._spool.append(inventory_record(reading.inventory))
            self._is_urgent = True
            self._tell_inventory(reading.inventory)
        if reading.events:
            # Ticks before the events first: a clock step or a lost GPU lies between the two.
            self._flush()
            self._spool.append(events_record(reading.events))
            self._is_urgent = True
            self._counters.count_events(event.kind.value for event in reading.events)
        if raw is not None:
            self._raw.append(raw)
        else:
            self._add(reading.ticks)
        if missed := reading.missed_ticks:
            for gpu in range(len(self._inventory.gpus)):
                self._batcher.add_missed(gpu, missed)
                if self._keeps_steps:
                    self._steps.add_missed(gpu, missed)

    def _keep_step(self) -> None:
        step = ingest_pb2.Record()
        if self._steps.flush(step.batch) is not None:
            self._spool.keep(step)
            self._uncommitted = True

    def _join_raw(self) -> None:
        """Turn what was read into numbers, all at once."""
        if self._raw:
            first, *following = self._raw
            self._raw = []
            self._add(first.join(following))

    def _add(self, ticks: Sequence[GpuTicks]) -> None:
        if isinstance(ticks, AlignedTicks) and not self._keeps_steps and self._batcher.add_aligned(ticks):
            ticks = ()
        for gpu_ticks in ticks:
            for part in increasing_parts(gpu_ticks):
                if not self._batcher.continues(part):
                    # A clock that was set back and has not been noticed yet: a batch goes forward only.
                    self._flush()
                self._batcher.add(part)
                if self._keeps_steps:
                    self._steps.add(part)
        if self._batcher.pending_bytes >= _MAX_BATCH_BYTES:
            self._flush()

    def _flush(self) -> None:
        self._uncommitted = True
        self._steps.drop()
        record = ingest_pb2.Record()
        if self._batcher.flush(record.batch) is None:
            return
        self._counters.count_blanks(self._batcher.take_blanks())
        if self._spool.append(record) is not None:
            self._counters.batches += 1
