"""``IngestService``: takes the record streams of agents."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from gpusonde.collector.ingest.agents import AdmissionError, Agents
from gpusonde.collector.ingest.committer import Committer, Quarantine
from gpusonde.collector.ingest.loads import take_load
from gpusonde.collector.ingest.pacing import PaceOptions, Pressure
from gpusonde.collector.ingest.session import Gate, Session, Stop
from gpusonde.collector.metrics import CollectorCounters, loss_reason
from gpusonde.collector.records.decode import check_hello, decode_record
from gpusonde.collector.records.fields import MissingInventoryError, RecordError, RecordTooLargeError
from gpusonde.collector.records.model import BatchRecord, InventoryRecord, Limits, LossRecord
from gpusonde.collector.security.guard import Guard
from gpusonde.collector.security.identity import AuthenticationError, Identity
from gpusonde.collector.storage.errors import StoreError
from gpusonde.collector.storage.model import EntryKind, LogEntry, PendingRecord
from gpusonde.collector.storage.store import FactStore
from gpusonde.ingest.v1 import ingest_pb2, ingest_pb2_grpc

_LOG = logging.getLogger(__name__)

# Less than an agent waits for an acknowledgement before it takes the connection for dead.
_LONGEST_ACK_DELAY_S = 20.0
# An agent that owes more than this is not let in again yet: coming back must not be a way around its limits.
_LONGEST_DEBT_S = 30.0
_LONGEST_LOAD_PAUSE_S = 1.0
_UNREADABLE = "the message is no StreamSamplesRequest; run one version of agent and collector"

Context = grpc.aio.ServicerContext[Any, Any]
Requests = AsyncIterator[ingest_pb2.StreamSamplesRequest]


@dataclass(frozen=True)
class StreamOptions:
    """What HelloAck and Drain tell the agent.

    Attributes:
        collector_id: Name of this collector.
        pace: Records in flight (twice as many are taken before the stream is no longer read), and what throttles ask.
        drain_grace_ms: For how long the collector goes on after Drain.
        hello_timeout_s: How long a new stream may stay silent.
        host_load_interval_ms: How often the agent may say what its host is doing; 0 for never.
    """

    collector_id: str
    pace: PaceOptions
    drain_grace_ms: int = 5000
    hello_timeout_s: float = 30.0
    host_load_interval_ms: int = 0


class IngestService(ingest_pb2_grpc.IngestServiceServicer):
    """Implements ``gpusonde.ingest.v1.IngestService``.

    Args:
        facts: Where inventories are.
        agents: Admits streams.
        committer: Makes records durable.
        quarantine: Takes records that can never be stored.
        gate: Says whether records are taken at all.
        executor: Runs the store's blocking reads.
        guard: Knows callers.
        pressure: Knows whether the collector falls behind.
        limits: Caps on records.
        options: What agents are told.
        counters: What happened, for whoever wants to show it.
        wall_clock_ns: Unix time in nanoseconds.
    """

    def __init__(
        self,
        facts: FactStore,
        agents: Agents,
        committer: Committer,
        quarantine: Quarantine,
        gate: Gate,
        executor: Executor,
        guard: Guard,
        pressure: Pressure,
        limits: Limits,
        options: StreamOptions,
        *,
        counters: CollectorCounters,
        wall_clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._facts = facts
        self._agents = agents
        self._committer = committer
        self._quarantine = quarantine
        self._gate = gate
        self._executor = executor
        self._guard = guard
        self._pressure = pressure
        self._said_pressure = ""
        self._limits = limits
        self._options = options
        self._counters = counters
        self._counts = counters.ingest
        self._refused = counters.refused
        self._wall_clock_ns = wall_clock_ns

    def configure(self, limits: Limits, options: StreamOptions) -> None:
        """Set other limits; streams that are open learn of another window with their next Throttle or Hello."""
        self._limits, self._options = limits, options

    def drain(self) -> None:
        """Ask every agent to reconnect elsewhere and end its stream."""
        self._gate.drain()
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

    def balance(self) -> None:
        """Ask agents for less while the collector falls behind or they send too much, and lift that when it is over."""
        reason = self._pressure.look()
        if reason != self._said_pressure:
            self._said_pressure = reason
            if reason:
                _LOG.warning("all agents are asked for less: %s", reason)
            else:
                _LOG.info("agents may send as usual again")
        wish = self._options.pace.throttle if reason else None
        for session in self._agents.sessions():
            session.ask("pressure", wish)
            if session.pace.is_calm:
                session.ask("rate", None)

    async def StreamSamples(self, request_iterator: Requests, context: Context) -> None:  # noqa: N802 - gRPC's name
        """Take one stream: Hello, then records; answer HelloAck, then acknowledgements of what is durable."""
        hello = await self._hello(request_iterator, context)
        identity = await self._identify(hello, context)
        if refusal := self._gate.closed:
            self._refused["not_taking"] += 1
            await context.abort(refusal.code, refusal.text)
        try:
            session = await self._agents.admit(hello)
        except AdmissionError as error:
            self._refused["second_agent" if error.code is grpc.StatusCode.ALREADY_EXISTS else "too_many_agents"] += 1
            _LOG.warning("%s: %s", context.peer(), error)
            await context.abort(error.code, str(error))
        except StoreError as error:
            self._gate.store_failed(error)
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

    async def _identify(self, hello: ingest_pb2.Hello, context: Context) -> Identity:
        """Return who calls; the name in Hello is only believed when it is theirs."""
        try:
            identity = self._guard.identify(context)
        except AuthenticationError as error:
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
            request = await asyncio.wait_for(requests.__anext__(), self._options.hello_timeout_s)
        except (asyncio.TimeoutError, StopAsyncIteration):
            self._refused["no_hello"] += 1
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first message of a stream carries Hello")
        except DecodeError:
            _LOG.warning("%s: sent what is no StreamSamplesRequest", context.peer())
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, _UNREADABLE)
        if request.WhichOneof("payload") != "hello":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first message of a stream carries Hello")
        try:
            check_hello(request.hello, self._limits)
        except RecordError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return request.hello

    async def _exchange(
        self, hello: ingest_pb2.Hello, session: Session, requests: Requests, context: Context
    ) -> Stop | None:
        """Read records and write acknowledgements until either side has had enough; return why, if it was this one."""
        await context.write(ingest_pb2.StreamSamplesResponse(hello_ack=self._hello_ack(hello, session)))
        reader = asyncio.ensure_future(self._take_records(requests, session))
        try:
            acknowledged = session.durable_sequence
            while True:
                changed = asyncio.ensure_future(session.changed())
                await asyncio.wait({reader, changed}, timeout=session.next_ack_s(), return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
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
                if throttle := session.next_throttle(self._options.pace.max_unacked_records):
                    self._counts["throttles"] += session.is_throttled
                    await context.write(ingest_pb2.StreamSamplesResponse(throttle=throttle))
        finally:
            reader.cancel()
        if session.stop is None:
            await reader  # for the exception, if it ended with one
            return None
        if session.stop.code is grpc.StatusCode.OK:
            drain = ingest_pb2.Drain(
                grace_ms=self._options.drain_grace_ms, preferred_target=session.stop.preferred_target
            )
            await context.write(ingest_pb2.StreamSamplesResponse(drain=drain))
        return session.stop

    def _hello_ack(self, hello: ingest_pb2.Hello, session: Session) -> ingest_pb2.HelloAck:
        packed = ingest_pb2.ENCODING_FLOAT32_LE_ZSTD in hello.encodings
        return ingest_pb2.HelloAck(
            durable_sequence=session.durable_sequence,
            encoding=ingest_pb2.ENCODING_FLOAT32_LE_ZSTD if packed else ingest_pb2.ENCODING_FLOAT32_LE,
            max_record_bytes=self._limits.record_bytes,
            max_unacked_records=self._options.pace.max_unacked_records,
            collector_id=self._options.collector_id,
            host_load_interval_ms=self._options.host_load_interval_ms,
        )

    async def _take_records(self, requests: Requests, session: Session) -> None:
        """Hand the records of a stream to the committer until the agent half-closes it or one is refused."""
        inventory = await asyncio.get_running_loop().run_in_executor(
            self._executor, self._facts.inventory, session.agent_id, session.spool_id
        )
        while True:
            # While nothing is read here, HTTP/2 keeps the agent from sending more.
            await self._committer.room(self._options.pace.waiting_bytes)
            try:
                request = await requests.__anext__()
            except StopAsyncIteration:
                return
            except DecodeError:
                session.end(Stop(grpc.StatusCode.INVALID_ARGUMENT, _UNREADABLE))
                return
            if session.stop:
                return
            kind = request.WhichOneof("payload")
            if kind == "host_load":
                session.load = take_load(request.host_load, self._wall_clock_ns() / 1e9)
                # Nothing acknowledges it, so that only reading more slowly bounds its rate.
                await asyncio.sleep(min(session.pace.take(request.ByteSize()), _LONGEST_LOAD_PAUSE_S))
                continue
            if kind != "record":
                session.end(Stop(grpc.StatusCode.INVALID_ARGUMENT, "Hello comes once; later messages carry a Record"))
                return
            incoming = await self._take(request.record, session, inventory)
            # Between here and the committer nothing may be awaited: the session could be fenced meanwhile.
            if incoming is not None and not session.stop:
                if isinstance(incoming.decoded, InventoryRecord):
                    inventory = incoming.decoded
                self._count(session, incoming)
                session.taken(incoming.entry.sequence)
                self._committer.submit(session, incoming)
                await session.settled(2 * self._options.pace.max_unacked_records - 1)
            size = request.record.ByteSize() if incoming is None else len(incoming.entry.payload)
            if (owed_s := session.pace.take(size)) > 0:
                session.ask("rate", self._options.pace.throttle)
                # Acknowledgements are what an agent waits for. Reading more slowly would hide whether it does.
                session.delay_ack(request.record.sequence, min(owed_s, _LONGEST_ACK_DELAY_S))

    async def _take(
        self, record: ingest_pb2.Record, session: Session, inventory: InventoryRecord | None
    ) -> PendingRecord | None:
        """Decode one record; None when there is nothing to store, and the session ends if the record is refused."""
        sequence = record.sequence
        if session.ignores_throttle(sequence):
            self._refused["throttle_ignored"] += 1
            _LOG.warning("agent %s does not keep to the throttle: the stream ends", session.agent_id)
            session.end(
                Stop(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    f"record {sequence} exceeds the window that Throttle allows; wait for acknowledgements",
                )
            )
            return None
        if session.is_repetition(sequence):
            self._counts["repetitions"] += 1
            return None
        if not session.may_follow(sequence):
            self._counts["gaps"] += 1
            session.end(
                Stop(
                    grpc.StatusCode.OUT_OF_RANGE,
                    f"record {sequence} leaves a gap: {session.last_sequence + 1} is next; reconnect, and say in"
                    " Hello.first_available_sequence if earlier ones are lost",
                )
            )
            return None
        try:
            decoded = decode_record(record, inventory, self._limits)
        except RecordError as error:
            self._counts["refusals"] += 1
            return await self._refuse(record, session, error)
        return PendingRecord(
            LogEntry(
                session.agent_id,
                session.spool_id,
                sequence,
                self._wall_clock_ns(),
                EntryKind.RECORD,
                record.SerializeToString(),
            ),
            decoded,
        )

    def _count(self, session: Session, incoming: PendingRecord) -> None:
        self._counts["records"] += 1
        self._counts["declared_gaps"] += incoming.entry.sequence > session.last_sequence + 1
        decoded = incoming.decoded
        if isinstance(decoded, BatchRecord):
            newest = max((int(block.time_unix_nano[-1]) for block in decoded.blocks), default=0)
            session.newest_tick_unix_nano = max(session.newest_tick_unix_nano, newest)
        elif isinstance(decoded, LossRecord):
            self._counters.lost_ticks[loss_reason(decoded.reason)] += decoded.lost_ticks

    async def _refuse(self, record: ingest_pb2.Record, session: Session, error: RecordError) -> PendingRecord | None:
        """End the stream, or, when the agent has come with the same record too often, put it aside for good."""
        if self._quarantine.is_due(session.agent_id, session.spool_id, record.sequence):
            try:
                incoming = await self._quarantine.put(session.agent_id, session.spool_id, record, error)
            except StoreError as full:
                session.end_unstored(full)
                return None
            self._counts["quarantined"] += 1
            return incoming
        if isinstance(error, RecordTooLargeError):
            code = grpc.StatusCode.RESOURCE_EXHAUSTED
        elif isinstance(error, MissingInventoryError):
            code = grpc.StatusCode.FAILED_PRECONDITION
        else:
            code = grpc.StatusCode.INVALID_ARGUMENT
        _LOG.warning("agent %s: record %d is refused: %s", session.agent_id, record.sequence, error)
        session.end(Stop(code, f"record {record.sequence} is refused: {error}"))
        return None
