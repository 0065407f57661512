"""One stream of one agent: what it has sent, what of it is durable, why it has to end."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import grpc

from gpusonde.collector.security.identity import Identity
from gpusonde.collector.storage.errors import StoreError, StoreFullError


@dataclass(frozen=True)
class Stop:
    """Why a stream ends before the agent ends it.

    Attributes:
        code: Status for the agent; OK when it is only asked to reconnect.
        text: What happened and what to do.
    """

    code: grpc.StatusCode
    text: str


class Session:
    """The state of one stream.

    Args:
        agent_id: The agent.
        spool_id: The spool whose records the stream carries.
        durable_sequence: Highest sequence of the spool that is durable.
        first_available_sequence: Lowest sequence that the agent still holds.
    """

    def __init__(self, agent_id: str, spool_id: str, durable_sequence: int, first_available_sequence: int) -> None:
        self.agent_id = agent_id
        self.spool_id = spool_id
        self.durable_sequence = durable_sequence
        self.last_sequence = durable_sequence
        self.pending = 0
        self.stop: Stop | None = None
        self.closed = False
        self.identity: Identity | None = None
        self._first_available = first_available_sequence
        self._changed = asyncio.Event()
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
