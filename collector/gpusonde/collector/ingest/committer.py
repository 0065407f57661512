"""Group commit: what arrives within a tenth of a second shares one fsync.

``Quarantine`` takes records that can never be stored, so that they do not hold up those behind them. An agent resends a
refused record with every stream. After a few times its bytes are put into a file of the quarantine directory, the
rejection is stored in the record's place and acknowledged, and the agent goes on.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor

from gpusonde.collector.ingest.session import AgentSession
from gpusonde.collector.storage.local.log import rejection_payload
from gpusonde.collector.storage.model import EntryKind, LogEntry, PendingRecord, RejectedRecord
from gpusonde.collector.storage.store import SampleStore
from gpusonde.errors import StoreError, WireError
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.service.metrics import Distribution

_LOG = logging.getLogger(__name__)


class Quarantine:
    """Counts refusals and puts hopeless records aside.

    Args:
        store: Keeps the bytes.
        executor: Runs the store's blocking calls.
        attempts: The refusal at which a record is put aside; 1 is the first.
        wall_clock_ns: Unix time in nanoseconds.
    """

    def __init__(
        self, store: SampleStore, executor: Executor, attempts: int = 3, wall_clock_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._store = store
        self._executor = executor
        self._attempts = attempts
        self._wall_clock_ns = wall_clock_ns
        # One entry per agent: it cannot come with another record before this one is settled.
        self._refused: dict[str, tuple[str, int, int]] = {}

    def is_due(self, agent_id: str, spool_id: str, sequence: int) -> bool:
        """Count one more refusal of a record and say whether it was one too many."""
        refused_spool, refused_sequence, count = self._refused.get(agent_id, ("", 0, 0))
        count = count + 1 if (refused_spool, refused_sequence) == (spool_id, sequence) else 1
        self._refused[agent_id] = (spool_id, sequence, count)
        return count >= self._attempts

    async def put(self, agent_id: str, spool_id: str, record: ingest_pb2.Record, error: WireError) -> PendingRecord:
        """Keep the record's bytes and return the rejection to be stored in its place.

        Raises:
            StoreError: The bytes cannot be kept, so the record must not be acknowledged.
        """
        data = record.SerializeToString()
        # Identities come from outside: only their digest goes into a file name.
        owner = hashlib.sha256(f"{agent_id}\n{spool_id}".encode()).hexdigest()[:16]
        name = f"{owner}-{record.sequence:020d}.record"
        await asyncio.get_running_loop().run_in_executor(self._executor, self._store.quarantine, name, data)
        self._refused.pop(agent_id, None)
        _LOG.error(
            "agent %s: record %d was refused %d times (%s); its bytes are in %s and the agent goes on without it",
            agent_id, record.sequence, self._attempts, error, name,
        )  # fmt: skip
        rejected = RejectedRecord(error.field, error.problem, len(data), name)
        entry = LogEntry(
            agent_id,
            spool_id,
            record.sequence,
            self._wall_clock_ns(),
            EntryKind.REJECTION,
            rejection_payload(rejected),
        )
        return PendingRecord(entry, rejected)


class Committer:
    """Hands records to the store in groups, in their order.

    After a failure everything that waits is failed too: a later record must not be stored over the gap of an earlier
    one. The agents send all of it again.

    Args:
        store: Where to.
        executor: A single thread; the store blocks.
        interval_s: How long the first record of a group waits for others.
        on_failure: Called on the event loop with the error of a failed group.
        clock: Monotonic seconds.
        wall_clock_ns: Unix time in nanoseconds.
        latency: Filled with the seconds from each record's arrival to its durability.

    Attributes:
        waiting_bytes: Bytes of the records that are neither durable nor failed.
    """

    def __init__(
        self,
        store: SampleStore,
        executor: Executor,
        interval_s: float,
        on_failure: Callable[[StoreError], None],
        clock: Callable[[], float] = time.monotonic,
        wall_clock_ns: Callable[[], int] = time.time_ns,
        latency: Distribution | None = None,
    ) -> None:
        self._wall_clock_ns = wall_clock_ns
        self._latency = latency or Distribution()
        self._clock = clock
        self._store = store
        self._executor = executor
        self._interval_s = interval_s
        self._on_failure = on_failure
        self._waiting: list[tuple[AgentSession, PendingRecord]] = []
        self._wake = asyncio.Event()
        self._closing = asyncio.Event()
        self._since_s: float | None = None
        self._committing_since_s: float | None = None
        self._shrunk = asyncio.Event()
        self.waiting_bytes = 0

    def configure(self, interval_s: float) -> None:
        """Change how long the first record of the next group waits for others."""
        self._interval_s = interval_s

    def submit(self, submitter: AgentSession, incoming: PendingRecord) -> None:
        """Queue one record."""
        if not self._waiting:
            self._since_s = self._clock()
        self._waiting.append((submitter, incoming))
        self.waiting_bytes += len(incoming.entry.payload)
        self._wake.set()

    @property
    def lag_s(self) -> float:
        """Age in seconds of the oldest record that is neither durable nor failed; 0 without one."""
        since_s = self._committing_since_s if self._committing_since_s is not None else self._since_s
        return 0.0 if since_s is None else self._clock() - since_s

    async def room(self, most_bytes: int) -> None:
        """Wait until less than so many bytes wait to be durable. Every caller that then adds a record may exceed it."""
        while self.waiting_bytes >= most_bytes:
            self._shrunk.clear()
            await self._shrunk.wait()

    async def run(self) -> None:
        """Commit until ``close`` is called and nothing waits any more."""
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            while True:
                wake = asyncio.ensure_future(self._wake.wait())
                await asyncio.wait({wake, closing}, return_when=asyncio.FIRST_COMPLETED)
                wake.cancel()
                if not self._waiting:
                    if self._closing.is_set():
                        return
                    continue
                await asyncio.wait({closing}, timeout=self._interval_s)
                await self._commit()
        finally:
            closing.cancel()

    def close(self) -> None:
        """Let ``run`` return once everything submitted so far has been committed."""
        self._closing.set()

    async def _commit(self) -> None:
        group, self._waiting = self._waiting, []
        self._wake.clear()
        records = [incoming for _, incoming in group]
        self._committing_since_s, self._since_s = self._since_s, None
        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._store.append, records)
        except StoreError as error:
            group += self._waiting
            self._waiting, self._since_s = [], None
            self._forget(group)
            for submitter, _ in group:
                submitter.failed(error)
            self._on_failure(error)
        else:
            self._forget(group)
            now_ns = self._wall_clock_ns()
            for submitter, incoming in group:
                self._latency.observe(max(0.0, (now_ns - incoming.entry.received_unix_nano) / 1e9))
                submitter.committed(incoming.entry.sequence)

    def _forget(self, group: list[tuple[AgentSession, PendingRecord]]) -> None:
        self._committing_since_s = None
        self.waiting_bytes -= sum(len(incoming.entry.payload) for _, incoming in group)
        self._shrunk.set()
