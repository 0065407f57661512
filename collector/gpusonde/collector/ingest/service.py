"""``IngestService``: the record streams of agents, from Hello to their end; ``AdminService``: which there are."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from gpusonde.admin.v1 import admin_pb2, admin_pb2_grpc
from gpusonde.collector.config import CollectorConfig
from gpusonde.collector.ingest.admission import AdmissionControl, Backpressure, Stop, make_throttle
from gpusonde.collector.ingest.agents import Agents
from gpusonde.collector.ingest.intake import UNREADABLE, Intake, Requests
from gpusonde.collector.ingest.session import AgentSession
from gpusonde.collector.metrics import CollectorCounters
from gpusonde.collector.security.guard import Guard
from gpusonde.collector.security.identity import CallerIdentity
from gpusonde.errors import RequestError, StoreError, WireError
from gpusonde.ingest.v1 import ingest_pb2, ingest_pb2_grpc
from gpusonde.service.process import end
from gpusonde.service.wire import check_hello, check_identity

_LOG = logging.getLogger(__name__)

# An agent that owes more than this is not let in again yet: coming back must not be a way around its limits.
_LONGEST_DEBT_S = 30.0

Context = grpc.aio.ServicerContext[Any, Any]


class IngestService(ingest_pb2_grpc.IngestServiceServicer):
    """Implements ``gpusonde.ingest.v1.IngestService``.

    Args:
        agents: Admits streams.
        intake: Takes their records.
        admission: Says whether records are taken at all.
        backpressure: Knows whether the collector falls behind.
        guard: Knows callers.
        config: What agents are told.
        counters: What happened, for whoever wants to show it.
    """

    def __init__(
        self,
        agents: Agents,
        intake: Intake,
        admission: AdmissionControl,
        backpressure: Backpressure,
        guard: Guard,
        config: CollectorConfig,
        *,
        counters: CollectorCounters,
    ) -> None:
        self._agents = agents
        self._intake = intake
        self._admission = admission
        self._backpressure = backpressure
        self._guard = guard
        self._config = config
        self._told_reason = ""
        self._counts = counters.ingest
        self._refused = counters.refused

    def configure(self, config: CollectorConfig) -> None:
        """Set other limits; streams that are open learn of another window with their next Throttle or Hello."""
        self._intake.configure(config.ingest)
        self._config = config

    def drain(self) -> None:
        """Ask every agent to reconnect elsewhere and end its stream."""
        self._admission.drain()
        for session in self._agents.sessions():
            session.end(Stop(grpc.StatusCode.OK, "the collector is shutting down"))

    def end_revoked(self) -> None:
        """End the streams of those whose certificate or token is no longer good."""
        for session in self._agents.sessions():
            if session.identity and (problem := self._guard.revoked(session.identity)):
                self._refused["revoked"] += 1
                _LOG.warning("agent %s: the stream ends: %s", session.agent_id, problem)
                session.end(Stop(grpc.StatusCode.UNAUTHENTICATED, problem))

    def end_moved(self, agents: Collection[str]) -> None:
        """End the streams of agents that have greeted another collector since."""
        for session in self._agents.sessions():
            if session.agent_id in agents:
                _LOG.warning("agent %s has greeted another collector: its stream here ends", session.agent_id)
                session.end(
                    Stop(grpc.StatusCode.ABORTED, "the agent has greeted another collector; this stream is closed")
                )

    def rebalance(self) -> None:
        """Ask agents for less while the collector falls behind or they send too much, and lift that when it is over."""
        reason = self._backpressure.evaluate()
        if reason != self._told_reason:
            self._told_reason = reason
            if reason:
                _LOG.warning("all agents are asked for less: %s", reason)
            else:
                _LOG.info("agents may send as usual again")
        throttle = make_throttle(self._config.ingest) if reason else None
        for session in self._agents.sessions():
            session.request_throttle("pressure", throttle)
            if session.pace.is_calm:
                session.request_throttle("rate", None)

    async def StreamSamples(self, request_iterator: Requests, context: Context) -> None:  # noqa: N802 - gRPC's name
        """Take one stream: Hello, then records; answer HelloAck, then acknowledgements of what is durable."""
        hello = await self._hello(request_iterator, context)
        identity = await self._identify(hello, context)
        if rejection := self._admission.rejection:
            self._refused["not_taking"] += 1
            await context.abort(rejection.code, rejection.text)
        try:
            session = await self._agents.admit(hello)
        except RequestError as error:
            self._refused["second_agent" if error.status == "ALREADY_EXISTS" else "too_many_agents"] += 1
            _LOG.warning("%s: %s", context.peer(), error)
            await context.abort(grpc.StatusCode[error.status], str(error))
        except StoreError as error:
            self._admission.store_failed(error)
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        session.identity, session.peer, session.host_name = identity, context.peer(), hello.host.host_name
        if session.pace.owed_s > _LONGEST_DEBT_S:
            self._refused["rate"] += 1
            self._agents.close(session)
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"too much was sent; come back in {session.pace.owed_s:.0f} s"
            )
        _LOG.info(
            "agent %s (%s) streams from spool %s after record %d",
            hello.agent_id, context.peer(), hello.spool_id, session.durable_sequence,
        )  # fmt: skip
        if hello.first_available_sequence > session.durable_sequence + 1:
            _LOG.warning(
                "agent %s has lost records %d to %d of spool %s",
                hello.agent_id, session.durable_sequence + 1, hello.first_available_sequence - 1, hello.spool_id,
            )  # fmt: skip
        try:
            stop = await self._exchange(hello, session, request_iterator, context)
        finally:
            self._agents.close(session)
        if stop and stop.code is not grpc.StatusCode.OK:
            await context.abort(stop.code, stop.text)

    async def _identify(self, hello: ingest_pb2.Hello, context: Context) -> CallerIdentity:
        """Return who calls; the name in Hello is only believed when it is theirs."""
        try:
            identity = self._guard.identify(context)
        except RequestError as error:
            self._refused["unauthenticated"] += 1
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))
        if not identity.may_stream_as(hello.agent_id):
            self._refused["identity"] += 1
            text = f"{identity.name} may not stream as agent {hello.agent_id}"
            _LOG.warning("%s: %s", context.peer(), text)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, text)
        return identity

    async def _hello(self, requests: Requests, context: Context) -> ingest_pb2.Hello:
        try:
            request = await asyncio.wait_for(requests.__anext__(), self._config.ingest.hello_timeout_s)
        except (asyncio.TimeoutError, StopAsyncIteration):
            self._refused["no_hello"] += 1
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first message of a stream carries Hello")
        except DecodeError:
            _LOG.warning("%s: sent what is no StreamSamplesRequest", context.peer())
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, UNREADABLE)
        if request.WhichOneof("payload") != "hello" or request.records:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first message of a stream carries Hello")
        try:
            check_hello(request.hello, self._intake.limits)
        except WireError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return request.hello

    async def _exchange(
        self, hello: ingest_pb2.Hello, session: AgentSession, requests: Requests, context: Context
    ) -> Stop | None:
        """Read records and write acknowledgements until either side has had enough; return why, if it was this one."""
        await context.write(ingest_pb2.StreamSamplesResponse(hello_ack=self._hello_ack(hello, session)))
        reader = asyncio.ensure_future(self._intake.take_records(requests, session))
        changed = asyncio.ensure_future(session.changed())
        try:
            acknowledged = session.durable_sequence
            while True:
                await asyncio.wait({reader, changed}, timeout=session.next_ack_s(), return_when=asyncio.FIRST_COMPLETED)
                if changed.done():
                    changed = asyncio.ensure_future(session.changed())
                ending = reader.done() or session.stop
                if ending:
                    reader.cancel()
                    await session.settled()
                ackable = session.durable_sequence if ending else session.ackable_sequence()
                if ackable > acknowledged:
                    acknowledged = ackable
                    session.ack_written(acknowledged)
                    await context.write(
                        ingest_pb2.StreamSamplesResponse(ack=ingest_pb2.Ack(durable_sequence=acknowledged))
                    )
                if ending:
                    break
                if throttle := session.next_throttle(self._config.ingest.max_unacked_records):
                    self._counts["throttles"] += session.is_throttled
                    await context.write(ingest_pb2.StreamSamplesResponse(throttle=throttle))
        finally:
            await end(reader, changed)  # also when the agent has gone, and gRPC cancels all this
        if session.stop is None:
            await reader  # for the exception, if it ended with one
            return None
        if session.stop.code is grpc.StatusCode.OK:
            grace_ms = round(self._config.server.drain_grace_s * 1e3)
            drain = ingest_pb2.Drain(grace_ms=grace_ms, preferred_target=session.stop.preferred_target)
            await context.write(ingest_pb2.StreamSamplesResponse(drain=drain))
        return session.stop

    def _hello_ack(self, hello: ingest_pb2.Hello, session: AgentSession) -> ingest_pb2.HelloAck:
        packed = ingest_pb2.ENCODING_FLOAT32_LE_ZSTD in hello.encodings
        return ingest_pb2.HelloAck(
            durable_sequence=session.durable_sequence,
            encoding=ingest_pb2.ENCODING_FLOAT32_LE_ZSTD if packed else ingest_pb2.ENCODING_FLOAT32_LE,
            max_record_bytes=self._intake.limits.record_bytes,
            max_unacked_records=self._config.ingest.max_unacked_records,
            collector_id=self._config.collector_id,
            host_load_interval_ms=round(self._config.workload.host_load_interval_s * 1e3),
            same_sequence=session.same_sequence,
            max_records_per_request=self._intake.limits.records,
        )


_PAGE_SIZE = 1000
_MOST_IDS = 10_000
_LONGEST_TARGET = 256


class AdminService(admin_pb2_grpc.AdminServiceServicer):
    """Implements ``gpusonde.admin.v1.AdminService``.

    Args:
        agents: Knows the open streams.
    """

    def __init__(self, agents: Agents) -> None:
        self._agents = agents

    async def ListAgents(  # noqa: N802 - gRPC's name, as below
        self, request: admin_pb2.ListAgentsRequest, context: Context
    ) -> admin_pb2.ListAgentsResponse:
        """Return the agents whose stream is open."""
        size = min(request.page_size or _PAGE_SIZE, _PAGE_SIZE)
        # A token is the id that the page before ended with: agents that come or go meanwhile shift nothing.
        rest = [session for agent_id, session in sorted(self._open().items()) if agent_id > request.page_token]
        page = rest[:size]
        return admin_pb2.ListAgentsResponse(
            agents=[_connected(session) for session in page],
            next_page_token=page[-1].agent_id if len(rest) > size else "",
        )

    async def DrainAgents(  # noqa: N802
        self, request: admin_pb2.DrainAgentsRequest, context: Context
    ) -> admin_pb2.DrainAgentsResponse:
        """End streams and say where their agents should go."""
        target = request.preferred_target
        try:
            for index, agent_id in enumerate(request.agent_ids):
                check_identity(agent_id, f"agent_ids[{index}]")
        except WireError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        if len(target) > _LONGEST_TARGET or not target.isprintable() or " " in target:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "preferred_target is no address; write host:port")
        if bool(request.agent_ids) == request.all_agents or len(request.agent_ids) > _MOST_IDS:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"name up to {_MOST_IDS} agent_ids, or set all_agents, but not both"
            )
        sessions = self._open()
        wanted = list(sessions) if request.all_agents else list(dict.fromkeys(request.agent_ids))
        drained = [agent_id for agent_id in wanted if agent_id in sessions]
        for agent_id in drained:
            sessions[agent_id].end(Stop(grpc.StatusCode.OK, "an administrator drains this agent", target))
        if drained:
            _LOG.info("%d agents are asked to go to %s", len(drained), target or "nowhere else; they come back")
        return admin_pb2.DrainAgentsResponse(
            drained_agent_ids=drained, absent_agent_ids=[agent_id for agent_id in wanted if agent_id not in sessions]
        )

    def _open(self) -> dict[str, AgentSession]:
        return {session.agent_id: session for session in self._agents.sessions()}


def _connected(session: AgentSession) -> admin_pb2.ConnectedAgent:
    return admin_pb2.ConnectedAgent(
        agent_id=session.agent_id,
        host_name=session.host_name,
        identity=session.identity.name if session.identity else "",
        peer=session.peer,
        spool_id=session.spool_id,
        durable_sequence=session.durable_sequence,
        throttled=session.is_throttled,
    )
