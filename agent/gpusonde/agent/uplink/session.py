"""``Session``: one established stream, records out and acks in, until it ends in one of the ways drawn here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import grpc
import grpc.aio

from gpusonde.agent.metrics import SelfCounters
from gpusonde.agent.spool import Spool
from gpusonde.agent.spool.segment import loss_record, record_ticks
from gpusonde.common.v1 import gpu_pb2
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.service.process import end
from gpusonde.service.wire import expand_batch


class SessionEnd(Exception):  # noqa: N818 - an ordinary end, after which another session begins
    """A session ended in good order.

    Attributes:
        reason: ``resend``: say Hello again at once, the spool no longer starts where this session was told;
            ``renewed``: certificate, key, authority, token or the settings have changed, connect with the new ones;
            ``drained``: the collector asked us to go elsewhere;
            ``returning``: the collector that this agent wants most serves again.
        preferred_target: Where to go from a collector that drains; empty for the same address.
    """

    def __init__(
        self, reason: Literal["resend", "renewed", "drained", "returning"], preferred_target: str = ""
    ) -> None:
        """Keep the reason and the address."""
        super().__init__(reason)
        self.reason = reason
        self.preferred_target = preferred_target


class SessionFailed(Exception):  # noqa: N818 - the uplink tries again
    """The stream broke or was refused.

    Attributes:
        code: gRPC status name, for example "UNAVAILABLE".
        details: The collector's or the library's words.
    """

    def __init__(self, code: str, details: str) -> None:
        """Keep status and words."""
        super().__init__(f"{code}: {details}")
        self.code = code
        self.details = details

    @property
    def advice(self) -> str:
        """What a person must do; empty when waiting is enough."""
        return _ADVICE.get(self.code, "")


_ADVICE = {
    grpc.StatusCode.ALREADY_EXISTS.name: (
        "another agent with this agent_id is connected; stop it, or give one of the two its own agent.id and spool"
    ),
    grpc.StatusCode.FAILED_PRECONDITION.name: (
        "the collector does not accept this agent as it is; see its message, then correct agent.id or the spool"
    ),
    grpc.StatusCode.PERMISSION_DENIED.name: "the collector does not allow this agent_id; correct its access list",
    grpc.StatusCode.UNAUTHENTICATED.name: "the collector wants credentials that this agent does not have",
    grpc.StatusCode.INVALID_ARGUMENT.name: "the collector does not understand a record; run one version of both",
    grpc.StatusCode.UNIMPLEMENTED.name: "the address answers but is not a gpusonde collector; correct uplink.collector",
}

log = logging.getLogger(__name__)

SampleCall: TypeAlias = "grpc.aio.StreamStreamCall[bytes, ingest_pb2.StreamSamplesResponse]"

_MAX_BATCH_INTERVAL_S = 60.0
# Nothing is sent meanwhile, and the message could say weeks.
_LONGEST_GRACE_S = 60.0
_MESSAGE_OVERHEAD_BYTES = 64
_LAST_WORDS_S = 1.0
# A request with so much in it takes no further record: collectors count the parts of larger ones than twice this.
_FULL_REQUEST_BYTES = 32 << 10
# Field number and wire type (a length and as many bytes) of ``record`` and ``records`` in the message around them.
_RECORD_KEY = ingest_pb2.StreamSamplesRequest.RECORD_FIELD_NUMBER << 3 | 2
_RECORDS_KEY = ingest_pb2.StreamSamplesRequest.RECORDS_FIELD_NUMBER << 3 | 2


@dataclass(frozen=True)
class AgentFacts:
    """What Hello says about the agent.

    Attributes:
        host: The host, as it describes itself.
        agent_version: Version of the agent.
        start_time_unix_nano: When this process started.
        instance_id: Unique per process.
        read_load: Says what the host is doing, for collectors that ask; None for never.
    """

    host: gpu_pb2.Host
    agent_version: str
    start_time_unix_nano: int
    instance_id: str
    read_load: Callable[[], gpu_pb2.HostLoad] | None = None


@dataclass(frozen=True)
class StreamLimits:
    """Bounds of one stream; nobody has had to change them.

    Attributes:
        max_unacked_records: Most records in flight, a minute of the default pace; the collector may ask for fewer.
        hello_timeout_s: Longest wait for the answer to Hello, connecting included.
        ack_timeout_s: Longest wait for an ack while records are in flight; then the stream is taken for dead.
        keepalive_s: Seconds between pings of an idle connection.
        keepalive_timeout_s: Seconds to wait for a ping's answer.
        renewal_check_s: Seconds between looks at the files of certificate and token.
        connect_timeout_s: Longest wait for a connection while there is another collector to go to.
        return_check_s: Seconds, on average, between looks whether the collector that is wanted most serves again.
    """

    max_unacked_records: int = 64
    hello_timeout_s: float = 20.0
    ack_timeout_s: float = 60.0
    keepalive_s: float = 20.0
    keepalive_timeout_s: float = 10.0
    renewal_check_s: float = 10.0
    connect_timeout_s: float = 5.0
    return_check_s: float = 15.0


@dataclass(frozen=True)
class GreetedStream:
    """A stream past Hello and HelloAck.

    Attributes:
        call: The stream.
        ack: The collector's answer to Hello.
        next_sequence: First sequence to send.
    """

    call: SampleCall
    ack: ingest_pb2.HelloAck
    next_sequence: int


class Session:
    """Sends the records of a spool over one stream and frees the spool as acks arrive.

    Args:
        stream: Where to, and from which record on.
        spool: Where records come from.
        counters: Filled with what is sent.
        wake: Set whenever there may be something to send.
        limits: Our own bounds.
        on_batch_interval: Told when the collector asks for batches less often.
        read_load: Says what the host is doing, where the collector asks for it.
    """

    def __init__(
        self,
        stream: GreetedStream,
        spool: Spool,
        counters: SelfCounters,
        wake: asyncio.Event,
        *,
        limits: StreamLimits,
        on_batch_interval: Callable[[float | None], None],
        read_load: Callable[[], gpu_pb2.HostLoad] | None = None,
    ) -> None:
        ack = stream.ack
        self._call = stream.call
        self._spool = spool
        self._counters = counters
        self._wake = wake
        self._plain_only = ack.encoding == ingest_pb2.ENCODING_FLOAT32_LE
        self._max_record_bytes = ack.max_record_bytes
        self._full_bytes = min(_FULL_REQUEST_BYTES, ack.max_record_bytes or _FULL_REQUEST_BYTES)
        self._most_together = ack.max_records_per_request or 1
        self._record_key = _RECORDS_KEY if ack.max_records_per_request else _RECORD_KEY
        self._next = stream.next_sequence
        self._acked = stream.next_sequence - 1
        self._greeted_window = min(limits.max_unacked_records, ack.max_unacked_records or limits.max_unacked_records)
        self._window = self._greeted_window
        self._ack_timeout_s = limits.ack_timeout_s
        self._progress_s = 0.0
        self._on_batch_interval = on_batch_interval
        self._leaving: tuple[SessionEnd, float] | None = None
        self._read_load = read_load
        self._load_interval_s = ack.host_load_interval_ms / 1e3
        self._load_due_s = 0.0

    def leave(self, outcome: SessionEnd, grace_s: float) -> None:
        """Send nothing more, collect the acks of what is in flight for so long, then end with ``outcome``."""
        if self._leaving is None:
            self._leaving = outcome, grace_s
            self._wake.set()

    async def run(self) -> None:
        """Run until the session ends.

        Raises:
            SessionEnd: It ended in good order, and this says how to go on.
            SessionFailed: It did not.
            grpc.aio.AioRpcError: The stream broke.
        """
        receiving = asyncio.ensure_future(self._receive())
        sending = asyncio.ensure_future(self._send())
        overdue = asyncio.ensure_future(self._watch_acks())
        try:
            await asyncio.wait({receiving, sending, overdue}, return_when=asyncio.FIRST_COMPLETED)
            if not receiving.done() and sending.done() and sending.exception() is not None:
                # The collector has closed the stream under a write; why may still be on its way to the reader.
                await asyncio.wait({receiving}, timeout=_LAST_WORDS_S)
            if self._leaving is not None and not receiving.done():
                await self._take_leave(receiving, *self._leaving)
            # The receiver first: it knows the status when the stream broke under both.
            for task in (receiving, sending, overdue):
                if task.done():
                    task.result()
        except grpc.aio.AioRpcError as error:
            if self._leaving is not None:
                # It was to end anyway: where to go on is known, and what was not acknowledged is sent again there.
                raise self._leaving[0] from error
            raise
        finally:
            await end(receiving, sending, overdue)

    async def _receive(self) -> None:
        while True:
            response = await self._call.read()
            if not isinstance(response, ingest_pb2.StreamSamplesResponse):
                if self._leaving is not None:
                    raise self._leaving[0]
                code = await self._call.code()
                raise SessionFailed(code.name, await self._call.details() or "the collector closed the stream")
            kind = response.WhichOneof("payload")
            if kind == "ack":
                self._take_ack(response.ack.durable_sequence)
            elif kind == "throttle":
                self._take_throttle(response.throttle)
            elif kind == "drain":
                grace_s = min(response.drain.grace_ms / 1e3, _LONGEST_GRACE_S)
                self.leave(SessionEnd("drained", response.drain.preferred_target), grace_s)
            else:
                log.warning("ignoring an unexpected %s from the collector", kind)

    async def _send(self) -> None:
        while self._leaving is None:
            self._wake.clear()
            if (load := self._load()) is not None:
                await self._call.write(ingest_pb2.StreamSamplesRequest(host_load=load).SerializeToString())
            if self._next <= self._spool.committed_sequence and self._next - self._acked <= self._window:
                records = self._next_records()
                request = b"".join(part for record in records for part in (_prefix(self._record_key, record), record))
                if self._next - 1 == self._acked:
                    self._progress_s = asyncio.get_running_loop().time()
                # Counted before the write: the ack can arrive before the write returns.
                self._next += len(records)
                self._counters.sent_records += len(records)
                await self._call.write(request)
                continue
            await self._wake.wait()

    def _load(self) -> gpu_pb2.HostLoad | None:
        """Return what the host is doing, when that is due. It goes along with records: it wakes nobody up."""
        now_s = asyncio.get_running_loop().time()
        if self._read_load is None or not self._load_interval_s or now_s < self._load_due_s:
            return None
        self._load_due_s = now_s + self._load_interval_s
        return self._read_load()

    async def _watch_acks(self) -> None:
        """Fail once records are in flight for too long without an ack."""
        loop = asyncio.get_running_loop()
        while True:
            in_flight = self._next - 1 > self._acked
            left_s = self._progress_s + self._ack_timeout_s - loop.time() if in_flight else self._ack_timeout_s
            if left_s <= 0:
                raise SessionFailed(grpc.StatusCode.DEADLINE_EXCEEDED.name, f"no ack within {self._ack_timeout_s:g} s")
            await asyncio.sleep(left_s)

    def _next_records(self) -> list[bytes]:
        """Return the next serialised records: as many as the window and the collector take in one request."""
        last = min(self._spool.committed_sequence, self._acked + self._window, self._next + self._most_together - 1)
        records: list[bytes] = []
        size = 0
        for sequence in range(self._next, last + 1):
            if size >= self._full_bytes:
                break
            records.append(self._prepare(sequence))
            size += len(records[-1])
        return records

    def _prepare(self, sequence: int) -> bytes:
        """Return the serialised record to send. It lies in the spool like that: to look into it costs more than it."""
        payload = self._spool.read_bytes(sequence)
        if payload is None:
            raise SessionEnd("resend")
        if self._plain_only:
            record = ingest_pb2.Record.FromString(payload)
            if record.HasField("batch"):
                record.batch.CopyFrom(expand_batch(record.batch))
                payload = record.SerializeToString()
        size = len(payload) + _MESSAGE_OVERHEAD_BYTES
        if self._max_record_bytes and size > self._max_record_bytes:
            ticks = record_ticks(ingest_pb2.Record.FromString(payload))
            log.error(
                "record %d has %d bytes and the collector takes %d: its %d ticks are lost; "
                "lower uplink.batch_interval or raise the collector's limit",
                sequence, size, self._max_record_bytes, ticks,
            )  # fmt: skip
            self._counters.count_dropped("too_large", 1, ticks)
            record = loss_record(sequence, sequence, ingest_pb2.LOSS_REASON_UNSPECIFIED, ticks)
            record.sequence = sequence
            payload = record.SerializeToString()
        return payload

    def _take_ack(self, durable_sequence: int) -> None:
        if durable_sequence >= self._next:
            log.warning("ignoring an ack of record %d, which was not sent", durable_sequence)
            return
        if durable_sequence > self._acked:
            self._progress_s = asyncio.get_running_loop().time()
        # Otherwise nothing waits for it: a record a second is sent, and its ack would wake the sender for nothing.
        window_was_full = self._next - self._acked > self._window
        self._acked = max(self._acked, durable_sequence)
        self._spool.acknowledge(self._acked)
        if window_was_full:
            self._wake.set()

    def _take_throttle(self, throttle: ingest_pb2.Throttle) -> None:
        """Take a throttle, which replaces the one before; zeros lift it."""
        self._window = min(self._greeted_window, throttle.max_unacked_records or self._greeted_window)
        interval_s = min(throttle.batch_interval_ms / 1e3, _MAX_BATCH_INTERVAL_S)
        self._on_batch_interval(interval_s or None)
        self._counters.throttled = bool(throttle.max_unacked_records or throttle.batch_interval_ms)
        if self._counters.throttled:
            log.info(
                "the collector asks for at most %d records in flight and batches of at least %g s",
                self._window, interval_s,
            )  # fmt: skip
        else:
            log.info("the collector takes records as usual again")
        self._wake.set()

    async def _take_leave(self, receiving: asyncio.Future[None], outcome: SessionEnd, grace_s: float) -> None:
        await self._call.done_writing()
        deadline = asyncio.get_running_loop().time() + grace_s
        while self._acked < self._next - 1 and not receiving.done():
            left_s = deadline - asyncio.get_running_loop().time()
            if left_s <= 0:
                break
            await asyncio.wait({receiving}, timeout=min(left_s, 0.05))
        if receiving.done():
            receiving.result()
        raise outcome


def _prefix(key: int, record: bytes) -> bytes:
    """Return what stands before a serialised record in a serialised request."""
    prefix, length = bytearray([key]), len(record)
    while length > 0x7F:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    prefix.append(length)
    return bytes(prefix)
