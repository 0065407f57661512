"""One stream of one agent: what it has sent, what of it is durable, why it has to end.

Whether the collector takes records at all.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

import grpc

from gpusonde.collector.ingest.loads import KnownLoad
from gpusonde.collector.ingest.pacing import AgentPace
from gpusonde.collector.security.identity import Identity
from gpusonde.collector.storage.errors import StoreError, StoreFullError
from gpusonde.collector.storage.store import SampleStore
from gpusonde.ingest.v1 import ingest_pb2


@dataclass(frozen=True)
class Stop:
    """Why a stream ends before the agent ends it.

    Attributes:
        code: Status for the agent; OK when it is only asked to reconnect.
        text: What happened and what to do.
        preferred_target: Where it is asked to go; empty for "come back".
    """

    code: grpc.StatusCode
    text: str
    preferred_target: str = ""


class Session:
    """The state of one stream.

    Args:
        agent_id: The agent.
        spool_id: The spool whose records the stream carries.
        durable_sequence: Highest sequence of the spool that is durable.
        first_available_sequence: Lowest sequence that the agent still holds.
        pace: How fast the agent may send; outlives the stream.
    """

    def __init__(
        self, agent_id: str, spool_id: str, durable_sequence: int, first_available_sequence: int, pace: AgentPace
    ) -> None:
        self.pace = pace
        self.agent_id = agent_id
        self.spool_id = spool_id
        self.durable_sequence = durable_sequence
        self.last_sequence = durable_sequence
        self.pending = 0
        self.newest_tick_unix_nano = 0
        self.stop: Stop | None = None
        self.closed = False
        self.identity: Identity | None = None
        self.peer = ""
        self.host_name = ""
        self.load: KnownLoad | None = None
        self._first_available = first_available_sequence
        self._changed = asyncio.Event()
        # Bounded: an agent that does not wait for delayed acknowledgements ignores its throttle.
        self._delayed: deque[tuple[int, float]] = deque()
        self._wishes: dict[str, ingest_pb2.Throttle] = {}
        self._told = ingest_pb2.Throttle()
        self._written_sequence = max(durable_sequence, first_available_sequence - 1)
        self._grace_sequence = 0
        self._waiters: list[asyncio.Future[None]] = []

    def is_repetition(self, sequence: int) -> bool:
        """Whether the record has arrived already."""
        return sequence <= self.last_sequence

    def may_follow(self, sequence: int) -> bool:
        """Whether the record is the next one, or the first one that the agent declared to hold still."""
        return sequence == self.last_sequence + 1 or sequence == self._first_available > self.last_sequence

    def taken(self, sequence: int) -> None:
        """Note that a record went to the committer."""
        self.last_sequence = sequence
        self.pending += 1

    def committed(self, sequence: int) -> None:
        """See ``Submitter.committed``."""
        self.durable_sequence = max(self.durable_sequence, sequence)
        self._settle()
        self._changed.set()

    def failed(self, error: StoreError) -> None:
        """See ``Submitter.failed``."""
        self._settle()
        self.end_unstored(error)

    def end_unstored(self, error: StoreError) -> None:
        """Ask for the end of the stream because the store does not take its records."""
        code = grpc.StatusCode.RESOURCE_EXHAUSTED if isinstance(error, StoreFullError) else grpc.StatusCode.UNAVAILABLE
        self.end(Stop(code, f"not stored: {error}"))

    def end(self, stop: Stop) -> None:
        """Ask for the end of the stream; nothing is taken from it any more. The first reason stays."""
        self.stop = self.stop or stop
        self._changed.set()

    def delay_ack(self, sequence: int, seconds: float) -> None:
        """Acknowledge a record, and those after it, so much later than now even if it is durable before."""
        self._delayed.append((sequence, asyncio.get_running_loop().time() + seconds))

    def next_ack_s(self) -> float | None:
        """Return the seconds until the next delayed acknowledgement is due; None when none is delayed."""
        return max(0.0, self._delayed[0][1] - asyncio.get_running_loop().time()) if self._delayed else None

    def ackable_sequence(self) -> int:
        """Return the highest sequence that is durable and whose acknowledgement is not delayed any more."""
        now_s = asyncio.get_running_loop().time()
        # What is due but not durable yet needs no entry: its acknowledgement waits for the disk.
        while self._delayed and self._delayed[0][1] <= now_s:
            self._delayed.popleft()
        return min(self.durable_sequence, self._delayed[0][0] - 1) if self._delayed else self.durable_sequence

    def ask(self, reason: str, wish: ingest_pb2.Throttle | None) -> None:
        """Ask the agent for less, or (None) no longer; of several wishes the strictest of each kind counts."""
        if self._wishes.get(reason) != wish:
            if wish is None:
                del self._wishes[reason]
            else:
                self._wishes[reason] = wish
            self._changed.set()

    def ack_written(self, sequence: int) -> None:
        """Note what the agent is about to know to be durable."""
        self._written_sequence = max(self._written_sequence, sequence)

    def next_throttle(self, usual_window: int) -> ingest_pb2.Throttle | None:
        """Return what the agent has to be told now, if anything. An empty one lifts what was said before.

        Args:
            usual_window: Records in flight that the agent was allowed in HelloAck.
        """
        wishes = self._wishes.values()
        wanted = ingest_pb2.Throttle(
            max_unacked_records=min((w.max_unacked_records for w in wishes if w.max_unacked_records), default=0),
            batch_interval_ms=max((w.batch_interval_ms for w in wishes), default=0),
        )
        if wanted == self._told:
            return None
        # What is in flight already was sent under the wider window.
        self._grace_sequence = max(self._grace_sequence, self._written_sequence + usual_window)
        self._told = wanted
        return wanted

    @property
    def is_throttled(self) -> bool:
        """Whether the agent was asked for less."""
        return self._told != ingest_pb2.Throttle()

    def ignores_throttle(self, sequence: int) -> bool:
        """Whether an agent that sends this record does not keep to the window it was told."""
        window = self._told.max_unacked_records
        return window > 0 and sequence > max(self._grace_sequence, self._written_sequence + window)

    async def settled(self, at_most: int = 0) -> None:
        """Wait until no more than ``at_most`` of the records handed over are neither durable nor failed."""
        while self.pending > at_most:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def _settle(self) -> None:
        self.pending -= 1
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    async def changed(self) -> None:
        """Wait until more is durable or the stream has to end."""
        await self._changed.wait()
        self._changed.clear()


_LOG = logging.getLogger(__name__)
# A disk can stay full for days, and the log may lie on it.
_REMINDER_INTERVAL_S = 300.0


class Gate:
    """Closed while the store cannot be written and while the collector shuts down.

    Args:
        store: Probed until it can be written again.
        executor: Runs the store's blocking calls.
        probe_interval_s: Time between probes.
        on_change: Called with True when the gate opens and False when it closes.
    """

    def __init__(
        self, store: SampleStore, executor: Executor, probe_interval_s: float, on_change: Callable[[bool], None]
    ) -> None:
        self._store = store
        self._executor = executor
        self._probe_interval_s = probe_interval_s
        self._on_change = on_change
        self._stop: Stop | None = None
        self._failed = asyncio.Event()
        self._draining = False

    @property
    def closed(self) -> Stop | None:
        """Why new streams are refused, or None when they are welcome."""
        return self._stop

    def configure(self, probe_interval_s: float) -> None:
        """Change the time between probes."""
        self._probe_interval_s = probe_interval_s

    def store_failed(self, error: StoreError) -> None:
        """Close until the store can be written again."""
        if self._stop:
            return
        _LOG.error("no records are taken: %s; the collector goes on by itself when it can store again", error)
        full = isinstance(error, StoreFullError)
        code = grpc.StatusCode.RESOURCE_EXHAUSTED if full else grpc.StatusCode.UNAVAILABLE
        self._stop = Stop(code, f"the collector cannot store records: {error}")
        self._failed.set()
        self._on_change(False)

    def drain(self) -> None:
        """Close for good: the collector shuts down."""
        self._draining = True
        self._stop = Stop(grpc.StatusCode.UNAVAILABLE, "the collector is shutting down; reconnect in a moment")
        self._on_change(False)

    async def run(self) -> None:
        """Probe a store that failed until it can be written; runs until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._failed.wait()
            reminder_s = loop.time() + _REMINDER_INTERVAL_S
            while (error := await self._probe()) is not None:
                if loop.time() >= reminder_s:
                    _LOG.warning("still no records are taken: %s", error)
                    reminder_s = loop.time() + _REMINDER_INTERVAL_S
            self._failed.clear()
            if not self._draining:
                self._stop = None
                _LOG.info("records are taken again")
                self._on_change(True)

    async def _probe(self) -> StoreError | None:
        """Wait, then try to write; returns why that fails."""
        await asyncio.sleep(self._probe_interval_s)
        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._store.check_writable)
        except StoreError as error:
            return error
        return None
