"""``Intake``: the records of a stream, from the wire to the committer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable

import grpc
from google.protobuf.message import DecodeError

from gpusonde.collector.config import IngestConfig
from gpusonde.collector.ingest.admission import Stop, make_throttle
from gpusonde.collector.ingest.committer import Committer, Quarantine
from gpusonde.collector.ingest.session import AgentSession, take_load
from gpusonde.collector.metrics import CollectorCounters, loss_reason
from gpusonde.collector.storage.model import EntryKind, LogEntry, PendingRecord
from gpusonde.errors import StoreError, WireError
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.service.wire import BatchRecord, InventoryRecord, LossRecord, check_records, decode_record

_LOG = logging.getLogger(__name__)

# Less than an agent waits for an acknowledgement before it takes the connection for dead.
_LONGEST_ACK_DELAY_S = 20.0
_LONGEST_LOAD_PAUSE_S = 1.0
UNREADABLE = "the message is no StreamSamplesRequest; run one version of agent and collector"

Requests = AsyncIterator[ingest_pb2.StreamSamplesRequest]


class Intake:
    """Decodes records, refuses those that cannot be, and submits the rest.

    Args:
        committer: Makes records durable.
        quarantine: Takes records that can never be stored.
        config: Caps on records, how many may be in flight and how many bytes may wait.
        counters: What happened, for whoever wants to show it.
        wall_clock_ns: Unix time in nanoseconds.
    """

    def __init__(
        self,
        committer: Committer,
        quarantine: Quarantine,
        config: IngestConfig,
        *,
        counters: CollectorCounters,
        wall_clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._committer = committer
        self._quarantine = quarantine
        self.configure(config)
        self._counters = counters
        self._counts = counters.ingest
        self._refused = counters.refused
        self._wall_clock_ns = wall_clock_ns

    def configure(self, config: IngestConfig) -> None:
        """Set other limits, for new streams and the records that come from now on."""
        self._config = config
        self.limits = config.record_limits

    async def take_records(self, requests: Requests, session: AgentSession) -> None:
        """Hand the records of a stream to the committer until the agent half-closes it or one is refused.

        Args:
            requests: The messages behind Hello.
            session: The stream.
        """
        config = self._config
        while True:
            # While nothing is read here, HTTP/2 keeps the agent from sending more.
            await self._committer.room(config.max_waiting_bytes)
            try:
                request = await requests.__anext__()
            except StopAsyncIteration:
                return
            except DecodeError:
                session.end(Stop(grpc.StatusCode.INVALID_ARGUMENT, UNREADABLE))
                return
            if session.stop:
                return
            if request.HasField("host_load") and not request.records:
                session.load = take_load(request.host_load, self._wall_clock_ns() / 1e9)
                # Nothing acknowledges it, so that only reading more slowly bounds its rate.
                await asyncio.sleep(min(session.pace.take(request.ByteSize()), _LONGEST_LOAD_PAUSE_S))
                continue
            try:
                records = check_records(request, self.limits)
            except WireError as error:
                session.end(Stop(grpc.StatusCode[error.status], str(error)))
                return
            for record in records:
                if session.stop:
                    return
                incoming = await self._take(record, session)
                # Between here and the committer nothing may be awaited: the session could be fenced meanwhile.
                if incoming is not None and not session.stop:
                    if isinstance(incoming.decoded, InventoryRecord):
                        session.inventory = incoming.decoded
                    self._count(session, incoming)
                    session.note_taken(incoming.entry.sequence)
                    self._committer.submit(session, incoming)
                    await session.settled(2 * config.max_unacked_records - 1)
                size = record.ByteSize() if incoming is None else len(incoming.entry.payload)
                if (owed_s := session.pace.take(size)) > 0:
                    session.request_throttle("rate", make_throttle(config))
                    # Acknowledgements are what an agent waits for. Reading more slowly would hide whether it does.
                    session.delay_ack(record.sequence, min(owed_s, _LONGEST_ACK_DELAY_S))

    async def _take(self, record: ingest_pb2.Record, session: AgentSession) -> PendingRecord | None:
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
        if not session.is_next_sequence(sequence):
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
            decoded = decode_record(record, session.inventory, self.limits)
        except WireError as error:
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

    def _count(self, session: AgentSession, incoming: PendingRecord) -> None:
        self._counts["records"] += 1
        self._counts["declared_gaps"] += incoming.entry.sequence > session.last_sequence + 1
        decoded = incoming.decoded
        if isinstance(decoded, BatchRecord):
            newest = max((int(block.time_unix_nano[-1]) for block in decoded.blocks), default=0)
            session.newest_tick_unix_nano = max(session.newest_tick_unix_nano, newest)
        elif isinstance(decoded, LossRecord):
            self._counters.lost_ticks[loss_reason(decoded.reason)] += decoded.lost_ticks

    async def _refuse(self, record: ingest_pb2.Record, session: AgentSession, error: WireError) -> PendingRecord | None:
        """End the stream, or, when the agent has come with the same record too often, put it aside for good."""
        if self._quarantine.is_due(session.agent_id, session.spool_id, record.sequence):
            try:
                incoming = await self._quarantine.put(session.agent_id, session.spool_id, record, error)
            except StoreError as full:
                session.end_unstored(full)
                return None
            self._counts["quarantined"] += 1
            return incoming
        _LOG.warning("agent %s: record %d is refused: %s", session.agent_id, record.sequence, error)
        session.end(Stop(grpc.StatusCode[error.status], f"record {record.sequence} is refused: {error}"))
        return None
