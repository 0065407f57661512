"""``AgentSession``: the state of one stream."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from dataclasses import dataclass

import grpc

from gpusonde.collector.ingest.admission import AgentPace, Stop
from gpusonde.collector.security.identity import CallerIdentity
from gpusonde.collector.storage.model import SpoolStanding
from gpusonde.common.v1 import gpu_pb2
from gpusonde.errors import StoreError, StoreFullError
from gpusonde.ingest.v1 import ingest_pb2


@dataclass(frozen=True)
class KnownLoad:
    """What an agent says its host is doing: the latest counts, and it is not stored.

    Attributes:
        load: What it said.
        unix_s: When that came.
    """

    load: gpu_pb2.HostLoad
    unix_s: float


def take_load(message: gpu_pb2.HostLoad, unix_s: float) -> KnownLoad:
    """Keep what can be of a message: finite figures of at least 0, and nothing that we do not know."""
    load = gpu_pb2.HostLoad()
    for field, value in message.ListFields():
        if math.isfinite(value) and value >= 0:
            setattr(load, field.name, value)
    return KnownLoad(load, unix_s)


class AgentSession:
    """One stream of one agent: what it has sent, what of it is durable, why it has to end.

    Args:
        agent_id: The agent.
        spool_id: The spool whose records the stream carries.
        standing: How far the spool is durable, and its inventory.
        first_available_sequence: Lowest sequence that the agent still holds.
        pace: How fast the agent may send; outlives the stream.

    Attributes:
        inventory: The latest that was taken, None before the first.
        same_sequence: Highest sequence marked in Hello whose record is durable here.
    """

    def __init__(
        self, agent_id: str, spool_id: str, standing: SpoolStanding, first_available_sequence: int, pace: AgentPace
    ) -> None:
        self.pace = pace
        self.agent_id = agent_id
        self.spool_id = spool_id
        self.inventory = standing.inventory
        self.durable_sequence = self.last_sequence = standing.durable_sequence
        self.pending = 0
        self.newest_tick_unix_nano = 0
        self.stop: Stop | None = None
        self.closed = False
        self.identity: CallerIdentity | None = None
        self.peer = ""
        self.host_name = ""
        self.load: KnownLoad | None = None
        self.same_sequence = 0
        self._first_available = first_available_sequence
        self._changed = asyncio.Event()
        # Bounded: an agent that does not wait for delayed acknowledgements ignores its throttle.
        self._delayed: deque[tuple[int, float]] = deque()
        self._throttles: dict[str, ingest_pb2.Throttle] = {}
        self._told = ingest_pb2.Throttle()
        self._written_sequence = max(self.durable_sequence, first_available_sequence - 1)
        self._grace_sequence = 0
        self._waiters: list[asyncio.Future[None]] = []

    def is_repetition(self, sequence: int) -> bool:
        """Return whether the record has arrived already."""
        return sequence <= self.last_sequence

    def is_next_sequence(self, sequence: int) -> bool:
        """Return whether the record is the next one, or the first one that the agent declared to hold still."""
        return sequence == self.last_sequence + 1 or sequence == self._first_available > self.last_sequence

    def note_taken(self, sequence: int) -> None:
        """Note that a record went to the committer."""
        self.last_sequence = sequence
        self.pending += 1

    def committed(self, sequence: int) -> None:
        """Note that a record is durable, and so are all before it."""
        self.durable_sequence = max(self.durable_sequence, sequence)
        self._settle()
        self._changed.set()

    def failed(self, error: StoreError) -> None:
        """Note that a record is not stored."""
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

    def request_throttle(self, reason: str, throttle: ingest_pb2.Throttle | None) -> None:
        """Ask the agent for less for a reason, or (None) no longer; of several the strictest of each kind counts."""
        if self._throttles.get(reason) != throttle:
            if throttle is None:
                del self._throttles[reason]
            else:
                self._throttles[reason] = throttle
            self._changed.set()

    def ack_written(self, sequence: int) -> None:
        """Note what the agent is about to know to be durable."""
        self._written_sequence = max(self._written_sequence, sequence)

    def next_throttle(self, usual_window: int) -> ingest_pb2.Throttle | None:
        """Return what the agent has to be told now, if anything. An empty one lifts what was said before.

        Args:
            usual_window: Records in flight that the agent was allowed in HelloAck.
        """
        throttles = self._throttles.values()
        wanted = ingest_pb2.Throttle(
            max_unacked_records=min((t.max_unacked_records for t in throttles if t.max_unacked_records), default=0),
            batch_interval_ms=max((t.batch_interval_ms for t in throttles), default=0),
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
        """Return whether an agent that sends this record does not keep to the window it was told."""
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
