"""Who may stream: one process per agent id, one stream per process.

Fencing: a new stream of an agent invalidates the older one and is answered only when everything the older one handed
over is durable. Without it, records buffered on the old stream would be appended after the new one was told where to go
on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass, field

import grpc

from gpusonde.collector.config import IngestConfig
from gpusonde.collector.ingest.admission import AgentPace, Stop
from gpusonde.collector.ingest.session import AgentSession
from gpusonde.collector.storage.model import AgentRow, SpoolStanding
from gpusonde.collector.storage.store import SampleStore
from gpusonde.errors import RequestError, StoreCorruptError
from gpusonde.ingest.v1 import ingest_pb2

_LOG = logging.getLogger(__name__)

# Agents remembered per stream that may be open: hosts come and go.
_KNOWN_PER_OPEN = 10
_MOST_TOGETHER = 1000
# Each costs a look into the store; agents ask for as many.
_MOST_MARKS = 64


@dataclass
class _Agent:
    """The process that currently owns an agent id."""

    instance_id: str
    spool_id: str
    start_unix_nano: int
    seen_at_s: float
    pace: AgentPace
    session: AgentSession | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def live_session(self) -> AgentSession | None:
        return self.session if self.session and not self.session.closed else None


class _Registration:
    """Registers agents that come while the store is at work on others together: a crowd costs it little more than one.

    Args:
        store: Keeps them.
        executor: Runs its blocking calls.
    """

    def __init__(self, store: SampleStore, executor: Executor) -> None:
        self._store = store
        self._executor = executor
        self._waiting: list[tuple[AgentRow, asyncio.Future[SpoolStanding]]] = []
        self._working: asyncio.Task[None] | None = None

    async def register(self, agent: AgentRow) -> SpoolStanding:
        """Store what an agent said of itself and return where its spool stands."""
        loop = asyncio.get_running_loop()
        standing: asyncio.Future[SpoolStanding] = loop.create_future()
        self._waiting.append((agent, standing))
        if self._working is None:
            self._working = loop.create_task(self._work())
        return await standing

    async def same_sequence(self, hello: ingest_pb2.Hello) -> int:
        """Return the highest sequence of the marks of a registered agent whose record is here, 0 without any.

        In whatever spool: that of which the agent's is a copy may have gone on under another id since.
        """
        loop = asyncio.get_running_loop()
        for mark in reversed(hello.marks[-_MOST_MARKS:]):
            what = (hello.agent_id, mark.sequence, mark.gpu_uuid, mark.tick_time_unix_nano)
            try:
                if await loop.run_in_executor(self._executor, self._store.holds_tick, *what):
                    return mark.sequence
            except StoreCorruptError as error:
                _LOG.error("which records agent %s and this store share is not known: %s", hello.agent_id, error)
        return 0

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                together, self._waiting = self._waiting[:_MOST_TOGETHER], self._waiting[_MOST_TOGETHER:]
                rows = [row for row, _ in together]
                try:
                    reached = await loop.run_in_executor(self._executor, self._store.register_agents, rows)
                except Exception as error:
                    for _, standing in together:
                        if not standing.done():
                            standing.set_exception(error)
                else:
                    for (_, standing), result in zip(together, reached, strict=True):
                        if not standing.done():
                            standing.set_result(result)
        finally:
            self._working = None


class Agents:
    """Admits streams.

    Args:
        store: Keeps identities over restarts of the collector.
        executor: Runs the store's blocking calls.
        config: How many may stream, and how fast.
        clock: Monotonic seconds.
        hold_s: For how long after its last stream a process keeps its agent id against one with an older start time:
            longer than a stream needs to be taken for dead, and a host whose clock was set back gets its agent back
            after that.
    """

    def __init__(
        self,
        store: SampleStore,
        executor: Executor,
        config: IngestConfig,
        clock: Callable[[], float],
        hold_s: float = 60.0,
    ) -> None:
        self._registration = _Registration(store, executor)
        self._config = config
        self._largest_count = config.max_agents
        self._hold_s = hold_s
        self._clock = clock
        self._agents: dict[str, _Agent] = {}

    def configure(self, config: IngestConfig) -> None:
        """Change how fast every agent may send; what they owe is forgiven."""
        if config != self._config:
            for agent in self._agents.values():
                agent.pace.configure(config)
        self._config = config

    def restore(self, rows: Iterable[AgentRow]) -> None:
        """Remember the agents of an earlier collector process."""
        now = self._clock()
        for row in rows:
            self._agents[row.agent_id] = _Agent(
                row.instance_id, row.spool_id, row.start_unix_nano, now, AgentPace(self._config, self._clock)
            )

    def sessions(self) -> list[AgentSession]:
        """Return the sessions of the open streams."""
        return [session for agent in self._agents.values() if (session := agent.live_session)]

    async def admit(self, hello: ingest_pb2.Hello) -> AgentSession:
        """Fence older streams of the agent and return the session of the new one.

        Raises:
            RequestError: Another process owns the agent id, or there are too many agents.
        """
        agent = self._agents.get(hello.agent_id)
        if agent is None:
            self._forget_long_gone()
            agent = _Agent(
                hello.instance_id,
                hello.spool_id,
                hello.agent_start_time_unix_nano,
                self._clock(),
                AgentPace(self._config, self._clock),
            )
            self._agents[hello.agent_id] = agent
        async with agent.lock:
            self._check_owner(agent, hello)
            if agent.live_session is None and len(self.sessions()) >= self._largest_count:
                raise RequestError(
                    "RESOURCE_EXHAUSTED",
                    f"{self._largest_count} agents are connected, which is this collector's limit; use another"
                    " collector or raise limits.agents",
                )
            if agent.live_session:
                agent.live_session.end(
                    Stop(grpc.StatusCode.ABORTED, "a newer stream of this agent has taken over; this one is closed")
                )
            if agent.session:
                await agent.session.settled()
            standing = await self._registration.register(_agent_row(hello))
            agent.instance_id = hello.instance_id
            agent.spool_id = hello.spool_id
            agent.start_unix_nano = hello.agent_start_time_unix_nano
            agent.session = AgentSession(
                hello.agent_id, hello.spool_id, standing, hello.first_available_sequence, agent.pace
            )
            agent.session.same_sequence = await self._registration.same_sequence(hello)
            return agent.session

    def close(self, session: AgentSession) -> None:
        """Note the end of a stream."""
        session.closed = True
        agent = self._agents.get(session.agent_id)
        if agent is not None and agent.session is session:
            agent.seen_at_s = self._clock()

    def _forget_long_gone(self) -> None:
        """Keep the book of agents from growing with every name that ever came; the store remembers them all."""
        if len(self._agents) < _KNOWN_PER_OPEN * self._largest_count:
            return
        now = self._clock()
        gone = [
            (agent.seen_at_s, agent_id)
            for agent_id, agent in self._agents.items()
            if agent.live_session is None and not agent.lock.locked() and now - agent.seen_at_s > self._hold_s
        ]
        for _, agent_id in sorted(gone)[: max(1, len(gone) // 10)]:
            del self._agents[agent_id]
        if not gone:
            raise RequestError("RESOURCE_EXHAUSTED", "too many agents of different names came in a short time")

    def _check_owner(self, agent: _Agent, hello: ingest_pb2.Hello) -> None:
        if hello.instance_id == agent.instance_id:
            return
        second = f"a second agent with the same id: {hello.agent_id!r}"
        if agent.live_session and hello.spool_id != agent.spool_id:
            raise RequestError(
                "ALREADY_EXISTS",
                f"{second} is streaming from another spool; give each agent its own id, or stop the other one",
            )
        held = agent.live_session or self._clock() - agent.seen_at_s < self._hold_s
        if held and hello.agent_start_time_unix_nano <= agent.start_unix_nano:
            raise RequestError(
                "ALREADY_EXISTS",
                f"{second} was started later and owns the id now; give each agent its own id, or stop the other one"
                f" and wait {self._hold_s:.0f} s",
            )


def _agent_row(hello: ingest_pb2.Hello) -> AgentRow:
    return AgentRow(
        hello.agent_id,
        hello.spool_id,
        hello.instance_id,
        hello.agent_start_time_unix_nano,
        hello.host.host_name,
        hello.agent_version,
        hello.host.SerializeToString(),
        max(1, hello.first_sequence),
    )
