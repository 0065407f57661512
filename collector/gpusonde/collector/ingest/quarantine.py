"""Records that can never be stored must not hold up those behind them.

An agent resends a refused record with every stream. After a few times its bytes are put into a file of the quarantine
directory, the rejection is stored in the record's place and acknowledged, and the agent goes on.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor

from gpusonde.collector.records.errors import RecordError
from gpusonde.collector.records.model import RejectedRecord
from gpusonde.collector.storage.disk.log import EntryKind, LogEntry, rejection_payload
from gpusonde.collector.storage.store import Incoming, Store
from gpusonde.ingest.v1 import ingest_pb2

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
        self, store: Store, executor: Executor, attempts: int, wall_clock_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._store = store
        self._executor = executor
        self._attempts = attempts
        self._wall_clock_ns = wall_clock_ns
        # One entry per agent: it cannot come with another record before this one is settled.
        self._refused: dict[str, tuple[str, int, int]] = {}

    def configure(self, attempts: int) -> None:
        """Change the refusal at which a record is put aside."""
        self._attempts = attempts

    def is_due(self, agent_id: str, spool_id: str, sequence: int) -> bool:
        """Count one more refusal of a record and say whether it was one too many."""
        refused_spool, refused_sequence, count = self._refused.get(agent_id, ("", 0, 0))
        count = count + 1 if (refused_spool, refused_sequence) == (spool_id, sequence) else 1
        self._refused[agent_id] = (spool_id, sequence, count)
        return count >= self._attempts

    async def put(self, agent_id: str, spool_id: str, record: ingest_pb2.Record, error: RecordError) -> Incoming:
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
        return Incoming(entry, rejected)
