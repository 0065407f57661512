"""``Uplink``: one stream to one collector at a time, for ever.

The spool is the truth; a session only moves it. Each begins with Hello and the collector's durable sequence, sends
from the next one with a bounded number of records unacknowledged, and frees the spool as acks arrive. However a session
ends, the next one begins the same way, so that nothing is sent twice to a collector that has it, and nothing is left
out. Between attempts it waits exponentially with full jitter (a uniform draw from zero to the bound), which spreads a
fleet that lost its collector at one moment better than jitter around the bound does.
"""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import grpc
import grpc.aio

from gpusonde.agent.config import UplinkConfig
from gpusonde.agent.metrics import SelfCounters
from gpusonde.agent.spool import Spool
from gpusonde.agent.uplink.addresses import Address, Addresses
from gpusonde.agent.uplink.session import (
    AgentFacts,
    GreetedStream,
    SampleCall,
    Session,
    SessionEnd,
    SessionFailed,
    StreamLimits,
)
from gpusonde.errors import CollectorError, TlsError
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.service.process import end, late_timers, within
from gpusonde.service.tls import Access, ClientSecurity, ExpiryWarning, find_obstacle, is_loopback


class Backoff:
    """Seconds to wait before the next attempt.

    Args:
        initial_s: Bound of the first wait.
        maximum_s: Bound that later waits double up to.
        uniform: Draws from an interval.
    """

    def __init__(
        self,
        initial_s: float = 0.5,
        maximum_s: float = 30.0,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._initial_s = initial_s
        self._maximum_s = maximum_s
        self._uniform = uniform
        self._attempt = 0

    def reset(self) -> None:
        """Begin again: a collector answered."""
        self._attempt = 0

    def next_s(self) -> float:
        """Return the wait after one more failure that may pass."""
        bound_s = min(self._maximum_s, self._initial_s * 2.0 ** min(self._attempt, 16))
        self._attempt += 1
        return self._uniform(0.0, bound_s)

    def first_s(self) -> float:
        """Return the wait before another collector is tried instead of the one that failed."""
        return self._uniform(0.0, self._initial_s)

    def slow_s(self) -> float:
        """Return the wait after a refusal that only a person can lift."""
        return self._uniform(0.5 * self._maximum_s, self._maximum_s)


_STATUS_TIMEOUT_S = 5.0
# gRPC's idle threads look for work at growing distances after every request, from 15 ms to 3 s; what there is to do
# wakes them up without that.
_IDLE_THREADS_SLACK_S = 0.4


def open_channel(target: str, access: Access, limits: StreamLimits) -> grpc.aio.Channel:
    """Return a channel that notices a dead connection by itself."""
    options = [
        *access.options,
        # Otherwise a new channel inherits the back-off of the connection that has just failed.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.keepalive_time_ms", round(limits.keepalive_s * 1e3)),
        ("grpc.keepalive_timeout_ms", round(limits.keepalive_timeout_s * 1e3)),
        # gRPC 1.85 applies the line above to a ping of its own only; with another one under way a dead connection would
        # be noticed after a minute.
        ("grpc.http2.ping_timeout_ms", round(limits.keepalive_timeout_s * 1e3)),
        ("grpc.keepalive_permit_without_calls", 0),
        ("grpc.http2.max_pings_without_data", 0),
        # Answers are a few bytes: to measure the bandwidth for them would wake up the host with every one.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.max_receive_message_length", 1 << 20),
        ("grpc.max_send_message_length", 16 << 20),
        ("grpc.enable_retries", 0),
    ]
    # The first channel begins gRPC's threads.
    with late_timers(_IDLE_THREADS_SLACK_S):
        if access.credentials is None:
            return grpc.aio.insecure_channel(target, options=options)
        return grpc.aio.secure_channel(target, access.credentials, options=options)


async def call_status(
    call: SampleCall,
    error: BaseException | None,
) -> tuple[str, str]:
    """Return the status a call ended with, as far as it can be known."""
    if isinstance(error, grpc.aio.AioRpcError):
        return error.code().name, error.details() or ""
    try:
        code: grpc.StatusCode = await within(call.code(), _STATUS_TIMEOUT_S)
        details: str = await within(call.details(), _STATUS_TIMEOUT_S) or ""
    except asyncio.TimeoutError:
        return grpc.StatusCode.UNKNOWN.name, f"the stream broke: {error}"
    return code.name, details or "the collector closed the stream"


log = logging.getLogger(__name__)

_LASTING_SESSION_S = 10.0
# Looks in a row that must find a collector serving before its agents come back to it.
_HEALTHY_LOOKS = 3
_INGEST_SERVICE = b"gpusonde.ingest.v1.IngestService"
# HealthCheckRequest and HealthCheckResponse of grpc.health.v1, of one field each: not worth the package.
_HEALTH_REQUEST = b"\x0a" + bytes([len(_INGEST_SERVICE)]) + _INGEST_SERVICE
_SERVING = b"\x08\x01"
_RENEWAL_GRACE_S = 5.0
_LOOK_TIMEOUT_S = 2.0
# What to do about obstacles that do not pass by themselves.
_ADVICE = {
    "proxy": "unset grpc_proxy, or make the proxy pass connections on to it",
    "http": "give the port of the collector's server.listen, not that of its metrics",
    "encrypted": "set uplink.tls_ca, and tls_certificate with tls_key or token_file",
    "plain": "correct the port, or leave uplink.tls_ca empty if it is meant to have no TLS",
    "authority": "set uplink.tls_ca to the authority that its certificate comes from",
    "expired": "have its certificate renewed, or this host's clock set",
    "name": "use one of these names in uplink.collector, or set uplink.server_name to one",
    "stranger": "set uplink.tls_certificate and tls_key to a certificate from the collector's client authority",
}


class Uplink:
    """Moves committed records from a spool to a collector.

    Args:
        spool: An open spool.
        config: How to reach the collector; its files of certificates and token are read anew for every connection.
        facts: What Hello says.
        counters: Filled with sessions, failures and acks.
        on_batch_interval: Told when the collector asks for batches less often, and None when it no longer does.
        backoff: Waits between attempts.
        limits: How much may be in flight, and how long an answer may take.
    """

    def __init__(
        self,
        spool: Spool,
        config: UplinkConfig,
        facts: AgentFacts,
        counters: SelfCounters,
        *,
        on_batch_interval: Callable[[float | None], None] = lambda _: None,
        backoff: Backoff | None = None,
        limits: StreamLimits | None = None,
    ) -> None:
        self._spool = spool
        self._config = config
        self._limits = limits or StreamLimits()
        self._facts = facts
        self._counters = counters
        self._on_batch_interval = on_batch_interval
        self._backoff = backoff or Backoff()
        self._expiry = ExpiryWarning("the agent's certificate")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()
        self._addresses = Addresses(spool.agent_id, config.collectors)
        # Where a collector has sent us; None for the configured ones.
        self._sent_to: Address | None = None
        self._said = ""
        self._warned_of_plain_text = False
        self._until_refused = False
        self._retried_at_once = False
        # The collector that was greeted last; of it the two below are known, and of no other one.
        self._greeted = ""
        # Highest sequence worth asking it about, once it has said what it has.
        self._marked_up_to: int | None = None
        # A record that it has, one of the same life that it may lack, and marks of those between.
        self._between: tuple[int, int, list[ingest_pb2.RecordMark]] | None = None
        self._changed = asyncio.Event()
        self._open_session: Session | None = None

    def configure(self, config: UplinkConfig) -> None:
        """Keep to another section from now on; call it on the event loop.

        If the way to the collector is another one, a session under way ends in good order, an attempt or a wait at
        once. What was sent and not acknowledged is settled by the next Hello, so nothing is lost or stored twice.
        """
        before, self._config = self._config, config
        if (config.collector, config.target_patterns, config.security) == (
            before.collector,
            before.target_patterns,
            before.security,
        ):
            return
        self._addresses.configure(config.collectors)
        self._sent_to = None
        self._changed.set()
        if self._open_session is not None:
            self._open_session.leave(SessionEnd("renewed"), _RENEWAL_GRACE_S)

    def notify(self) -> None:
        """Tell the uplink that records were committed; callable from any thread, before and after :meth:`run` too."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._wake.set)

    async def run(self, *, until_refused: bool = False) -> None:
        """Keep a session open until cancelled.

        Args:
            until_refused: End where only a person can help, instead of asking again now and then.

        Raises:
            CollectorError: A collector refuses this agent, or cannot be reached as the configuration says.
        """
        self._until_refused = until_refused
        self._loop = asyncio.get_running_loop()
        while True:
            delay_s = await self._attempt()
            if delay_s > 0:
                await self._pause(delay_s)

    async def _pause(self, delay_s: float) -> None:
        """Wait, but no longer than until certificate or token are other ones: they may be what was wrong."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + delay_s
        before = self._fingerprint()
        while (left_s := until_s - loop.time()) > 0:
            with contextlib.suppress(asyncio.TimeoutError):
                await within(
                    self._changed.wait(), left_s if before == "" else min(left_s, self._limits.renewal_check_s)
                )
                return
            if before != "" and (now := self._fingerprint()) is not None and now != before:
                return

    def _fingerprint(self) -> str | None:
        """Return what tells one set of files from another: empty for no files, None while they cannot be used."""
        try:
            return self._load_access(self._sent_to or self._addresses.choose() or Address("")).fingerprint
        except TlsError:
            return None

    def _security_for(self, address: Address) -> ClientSecurity:
        security = self._config.security
        if address.server_name and security.encrypts and not security.server_name:
            return replace(security, server_name=address.server_name)
        return security

    def _load_access(self, address: Address) -> Access:
        return self._security_for(address).load(address.target)

    async def wait_drained(self) -> None:
        """Return once the collector has acknowledged everything that is committed."""
        while self._counters.acked_sequence < self._spool.last_sequence:
            await asyncio.sleep(0.02)

    async def _attempt(self) -> float:
        """Run one session; return the seconds to wait before the next."""
        self._changed.clear()
        # A target that a collector named is tried once; ours are the ones to come back to.
        sent_to, self._sent_to = self._sent_to, None
        if sent_to is None:
            await self._addresses.refresh()
        address = sent_to or self._addresses.choose()
        if address is None:
            self._counters.count_failure("NAME")
            return self._backoff.next_s()
        target = address.target
        try:
            access = self._load_access(address)
        except TlsError as error:
            self._counters.count_failure("CREDENTIALS")
            self._say("credentials", logging.ERROR, f"no connection to collector {target}: {error}; trying again")
            return self._backoff.next_s()
        self._note_access(access, target)
        channel = open_channel(target, access, self._limits)
        loop = asyncio.get_running_loop()
        acked_before, began_s = self._counters.acked_sequence, loop.time()
        try:
            try:
                await self._session(channel, address, access, may_return=sent_to is None)
            finally:
                # Hello alone is no success: a collector that answers it and then fails is not asked in a tight loop.
                if self._counters.acked_sequence > acked_before or loop.time() - began_s > _LASTING_SESSION_S:
                    self._backoff.reset()
                    self._addresses.forgive()
                    self._retried_at_once = False
        except SessionEnd as left:
            return self._go_on(left, address)
        except SessionFailed as failure:
            self._counters.count_failure(failure.code)
            return await self._report_failure(address, failure)
        except OSError as error:
            # Sampling goes on: the disk may recover, and what it refuses is counted by the spool.
            self._counters.count_failure("SPOOL")
            self._say(
                "spool",
                logging.ERROR,
                f"the spool {self._spool.directory} cannot be read ({error.strerror}): check its disk; trying again",
            )
        finally:
            self._on_batch_interval(None)
            self._counters.throttled = False
            await channel.close()
        return self._backoff.next_s()

    async def _session(self, channel: grpc.aio.Channel, address: Address, access: Access, *, may_return: bool) -> None:
        call: SampleCall = channel.stream_stream(
            "/gpusonde.ingest.v1.IngestService/StreamSamples",
            response_deserializer=ingest_pb2.StreamSamplesResponse.FromString,
        )(metadata=access.metadata)
        try:
            first_available = self._spool.first_available_sequence
            if address.target != self._greeted:
                self._greeted, self._between, self._marked_up_to = address.target, None, None
            marks = self._between[2] if self._between else self._spool.marks(self._marked_up_to)
            ack = await self._answer_to_hello(channel, call, first_available, marks)
            self._resume(ack, first_available, address.target, marks)
            session = Session(
                GreetedStream(call, ack, max(ack.durable_sequence + 1, first_available)),
                self._spool,
                self._counters,
                self._wake,
                limits=self._limits,
                on_batch_interval=self._on_batch_interval,
                read_load=self._facts.read_load,
            )
            if self._changed.is_set():
                raise SessionEnd("renewed")
            self._open_session = session
            watching = [asyncio.ensure_future(self._watch_files(session, address, access))]
            if may_return and self._addresses.several:
                watching.append(asyncio.ensure_future(self._watch_home(session, address)))
            try:
                await session.run()
            finally:
                self._open_session = None
                await end(*watching)
        except (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError) as error:
            # A write after the end of the call raises InvalidStateError and hides the status.
            raise SessionFailed(*await call_status(call, error)) from error
        finally:
            call.cancel()

    def _note_access(self, access: Access, target: str) -> None:
        self._counters.certificate_expiry_unix_s = access.expiry_unix_s
        self._expiry.check(access.expiry_unix_s)
        if access.credentials is None and not is_loopback(target) and not self._warned_of_plain_text:
            self._warned_of_plain_text = True
            log.warning(
                "samples go to %s in plain text, and whoever answers there is believed: set uplink.tls_ca", target
            )

    async def _watch_home(self, session: Session, address: Address) -> None:
        """Leave the session in good order once the collector that is wanted most has served for a while."""
        healthy = 0
        while healthy < _HEALTHY_LOOKS:
            # Agents that lost a collector together do not come back to it together.
            await asyncio.sleep(random.uniform(0.5, 1.5) * self._limits.return_check_s)  # noqa: S311
            await self._addresses.refresh()
            home = self._addresses.home
            returns = home is not None and home != address and await self._serves(home)
            healthy = healthy + 1 if returns else 0
        session.leave(SessionEnd("returning"), _RENEWAL_GRACE_S)

    async def _serves(self, address: Address) -> bool:
        """Ask a collector whether it takes records (``grpc.health.v1``)."""
        try:
            access = self._load_access(address)
        except TlsError:
            return False
        channel = open_channel(address.target, access, self._limits)
        try:
            check = channel.unary_unary(
                "/grpc.health.v1.Health/Check", request_serializer=bytes, response_deserializer=bytes
            )
            answer = await check(_HEALTH_REQUEST, timeout=self._limits.connect_timeout_s, metadata=access.metadata)
        except grpc.aio.AioRpcError:
            return False
        finally:
            await channel.close()
        return answer == _SERVING

    async def _watch_files(self, session: Session, address: Address, access: Access) -> None:
        """Leave the session in good order once its files have changed, and only for files that can be used."""
        while access.fingerprint:
            await asyncio.sleep(self._limits.renewal_check_s)
            self._expiry.check(access.expiry_unix_s)
            try:
                fresh = self._load_access(address)
            except TlsError as error:
                self._say("stale", logging.ERROR, f"the connection goes on with what it began with: {error}")
                continue
            if fresh.fingerprint != access.fingerprint:
                session.leave(SessionEnd("renewed"), _RENEWAL_GRACE_S)
                return

    async def _answer_to_hello(
        self,
        channel: grpc.aio.Channel,
        call: SampleCall,
        first_available: int,
        marks: Sequence[ingest_pb2.RecordMark],
    ) -> ingest_pb2.HelloAck:
        """Wait for it, but not for an address that is no longer the right one."""
        greeting = asyncio.ensure_future(self._greet(call, first_available, marks))
        changed = asyncio.ensure_future(self._changed.wait())
        limit_s = self._limits.hello_timeout_s
        try:
            if self._addresses.several:
                connect_s = self._limits.connect_timeout_s
                await asyncio.wait({greeting, changed}, timeout=connect_s, return_when=asyncio.FIRST_COMPLETED)
                if channel.get_state() is not grpc.ChannelConnectivity.READY and not greeting.done():
                    limit_s = 0.0
            await asyncio.wait({greeting, changed}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if greeting.done():
                return greeting.result()
            if changed.done():
                raise SessionEnd("renewed")
            raise SessionFailed(
                grpc.StatusCode.DEADLINE_EXCEEDED.name,
                f"no answer to Hello within {limit_s:g} s" if limit_s else f"no connection within {connect_s:g} s",
            )
        finally:
            await end(greeting, changed)

    async def _greet(
        self,
        call: SampleCall,
        first_available: int,
        marks: Sequence[ingest_pb2.RecordMark],
    ) -> ingest_pb2.HelloAck:
        hello = ingest_pb2.Hello(
            agent_id=self._spool.agent_id,
            spool_id=self._spool.spool_id,
            first_available_sequence=first_available,
            host=self._facts.host,
            agent_version=self._facts.agent_version,
            encodings=[ingest_pb2.ENCODING_FLOAT32_LE_ZSTD, ingest_pb2.ENCODING_FLOAT32_LE],
            agent_start_time_unix_nano=self._facts.start_time_unix_nano,
            instance_id=self._facts.instance_id,
            first_sequence=self._spool.first_sequence,
            marks=marks,
        )
        await call.write(ingest_pb2.StreamSamplesRequest(hello=hello).SerializeToString())
        # Only read(), never "async for" on the same call: grpc.aio allows one of the two.
        response = await call.read()
        if not isinstance(response, ingest_pb2.StreamSamplesResponse):
            raise SessionFailed(*await call_status(call, None))
        if not response.HasField("hello_ack"):
            raise SessionFailed(
                grpc.StatusCode.UNIMPLEMENTED.name, f"answered Hello with {response.WhichOneof('payload')}"
            )
        return response.hello_ack

    def _resume(
        self, ack: ingest_pb2.HelloAck, first_available: int, target: str, marks: Sequence[ingest_pb2.RecordMark]
    ) -> None:
        self._counters.sessions += 1
        same = ack.same_sequence if ack.same_sequence in [mark.sequence for mark in marks] else 0
        held, lacked, _ = self._between or (0, 0, [])
        self._between = None
        if same:
            self._spool.note_same(same)
            held = same
        if held:
            # It may have a part of the next life, sent by one that was like this spool then.
            lacked = next((mark.sequence for mark in marks if mark.sequence > held), lacked)
            if between := self._spool.marks_between(held, lacked):
                self._between = held, lacked, between
                raise SessionEnd("resend")
        known = self._spool.known_sequence
        if any(known < ack.durable_sequence < mark.sequence for mark in marks):
            # Of that life the collector has a part, which may be from here, too.
            self._marked_up_to = ack.durable_sequence
            raise SessionEnd("resend")
        self._marked_up_to = None
        if ack.durable_sequence > known:
            # Our spool lost its end or was restored from a copy: what is new would be taken for resends and dropped.
            self._spool.renew()
            log.warning(
                "collector %s holds records up to %d of this spool, of which at most %d are from here: it lost its end,"
                " or it or another one is a copy. Records %d to %d go under a new spool id; those that the copy held"
                " already and had not sent may be there twice",
                target, ack.durable_sequence, known, known + 1, self._spool.last_sequence,
            )  # fmt: skip
            raise SessionEnd("resend")
        if held > ack.durable_sequence:
            # What lies between would be sent again under the old id.
            self._spool.renew()
            log.warning(
                "collector %s holds records up to %d of this spool under another id: one of which it is a copy has gone"
                " on under that. Records %d to %d go under a new spool id",
                target, held, held + 1, self._spool.last_sequence,
            )  # fmt: skip
            raise SessionEnd("resend")
        self._spool.acknowledge(ack.durable_sequence)
        waiting = self._spool.committed_sequence - ack.durable_sequence
        self._say(
            f"connected {target}", logging.INFO,
            f"connected to collector {ack.collector_id or target} at {target}; {waiting} records are waiting",
        )  # fmt: skip
        # Older collectors do not know that a renewed spool id begins above 1.
        first_missing = max(ack.durable_sequence + 1, self._spool.first_sequence)
        if first_available > first_missing:
            log.warning(
                "records %d to %d never reached collector %s and are no longer in the spool",
                first_missing, first_available - 1, target,
            )  # fmt: skip

    def _go_on(self, left: SessionEnd, address: Address) -> float:
        """Say where the next session goes after one that ended in good order; return the seconds to wait before it."""
        if left.reason == "drained":
            successor = self._allowed(left.preferred_target, address.target)
            elsewhere = not successor and self._addresses.fail(address)
            where = successor or ("another one" if elsewhere else "it later")
            self._say(f"draining {successor}", logging.INFO, f"collector {address.target} asks to go to {where}")
            if successor:
                self._sent_to = Address(successor)
                return self._at_once()
            return self._backoff.first_s() if elsewhere else self._backoff.next_s()
        if left.reason == "renewed":
            self._say(f"renewed {self._config.collector}", logging.INFO,
                      f"access has changed; connecting to {self._config.collector} anew")  # fmt: skip
        if left.reason == "returning":
            self._addresses.forgive()
            self._say("returning", logging.INFO, f"leaving {address.target}: the collector of this agent serves again")
        return self._at_once()

    def _allowed(self, preferred: str, target: str) -> str:
        """Return the address that a collector sends the agent to, if the configuration allows it; else empty."""
        if not preferred or self._addresses.allows(preferred):
            return preferred
        if any(fnmatch.fnmatchcase(preferred, pattern) for pattern in self._config.target_patterns):
            return preferred
        log.warning(
            "collector %s names %s to go to, which uplink.allowed_targets does not allow: staying with %s",
            target, preferred[:256], self._config.collector,
        )  # fmt: skip
        return ""

    def _at_once(self) -> float:
        """Go on without a wait, but not twice running without progress."""
        if self._retried_at_once:
            return self._backoff.next_s()
        self._retried_at_once = True
        return 0.0

    async def _report_failure(self, address: Address, failure: SessionFailed) -> float:
        target = address.target
        # What only a person can change is the same everywhere, but for an address that is no collector.
        lasting = failure.advice and failure.code != grpc.StatusCode.UNIMPLEMENTED.name
        if not lasting and self._addresses.fail(address):
            following = self._addresses.choose()
            self._say(
                f"elsewhere {following}", logging.WARNING,
                f"collector {target} does not serve ({failure}); going to {following.target if following else 'none'}",
            )  # fmt: skip
            return self._backoff.first_s()
        if failure.advice:
            # Another agent of this name may be this one's last life, which ends.
            if self._until_refused and failure.code != grpc.StatusCode.ALREADY_EXISTS.name:
                raise CollectorError(failure.code, f"collector {target} refuses this agent: {failure}", failure.advice)
            self._say(
                f"refused {failure.code}", logging.ERROR,
                f"collector {target} refuses this agent ({failure}): {failure.advice}. "
                f"Samples are kept in {self._spool.directory} meanwhile",
            )  # fmt: skip
            return self._backoff.slow_s()
        if failure.code == grpc.StatusCode.RESOURCE_EXHAUSTED.name:
            self._say_kept("full", f"collector {target} takes no records now ({failure})")
        else:
            obstacle = await asyncio.to_thread(find_obstacle, target, self._security_for(address), _LOOK_TIMEOUT_S)
            if obstacle and (advice := _ADVICE.get(obstacle.kind)):
                # One that is just ending may hang up as one does that wants a certificate.
                if self._until_refused and obstacle.kind != "stranger":
                    raise CollectorError(failure.code, f"no way to collector {target}: {obstacle.words}", advice)
                self._say_kept(f"no way {obstacle.kind}", f"no way to collector {target}: {obstacle.words}; {advice}")
            else:
                self._say_kept("away", f"collector {target} is not there ({obstacle.words if obstacle else failure})")
        return self._backoff.next_s()

    def _say_kept(self, state: str, what: str) -> None:
        self._say(state, logging.WARNING, f"{what}; keeping samples in {self._spool.directory} and trying again")

    def _say(self, state: str, level: int, message: str) -> None:
        """Log a change of state once, however often the state is entered again."""
        if state != self._said:
            self._said = state
            log.log(level, "%s", message)
