"""``AccessControl``: who may connect, as configured; ``AccessInterceptor``: who calls, may it, and then what it says.

The parts of a message are counted in its bytes, before it is decoded. Two bytes on the wire become a message of a
hundred in memory, and a Python object when somebody looks at it: a request of a few megabytes could hold the event loop
for seconds and take a gigabyte.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import stat
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias, cast

import grpc
import grpc.aio
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from gpusonde.collector.config import CollectorConfig
from gpusonde.collector.details import DETAILS_KEY, status_details
from gpusonde.collector.security.connections import Connections, address_of
from gpusonde.collector.security.guard import Context, Guard, peer_of, required_role
from gpusonde.collector.security.identity import ANONYMOUS, CallerIdentity, Role
from gpusonde.collector.security.rates import CallerBook, CallerLimits
from gpusonde.collector.security.tokens import TokenFile
from gpusonde.errors import RequestError
from gpusonde.service.tls import ExpiryWarning, ServerTls, is_loopback, warn_of_exposed_files

MOST_ELEMENTS = 100_000
"""Messages and texts in one request, at any depth; the largest problem that is answered has some 80,000."""
# Less than this cannot hold enough of them to matter, and records are hardly ever larger.
_SMALL_BYTES = 1 << 16

# Number of a field -> the fields of its messages; None for texts and bytes. Fields of numbers are left out.
_Fields: TypeAlias = "Mapping[int, _Fields | None]"


class TooManyElementsError(DecodeError):
    """A message has more parts than anybody needs."""


def bounded(decode: Callable[[bytes], Any], descriptor: Descriptor) -> Callable[[bytes], Any]:
    """Return what decodes messages of a type, but for those with too many parts.

    Args:
        decode: Decodes them.
        descriptor: Their type.
    """
    fields = _list_fields(descriptor, {})

    def decode_bounded(data: bytes) -> Any:
        if len(data) > _SMALL_BYTES:
            check_elements(data, fields)
        return decode(data)

    return decode_bounded


def check_elements(data: bytes, fields: _Fields, most: int = MOST_ELEMENTS) -> None:
    """Count the messages and texts in a message.

    Args:
        data: The message. What is wrong with it otherwise is left to its decoder.
        fields: Its fields.
        most: The largest number.

    Raises:
        TooManyElementsError: There are more.
        DecodeError: It holds a group, in which the rest of the message could hide.
    """
    left = most
    rest = [(0, len(data), fields)]
    try:
        while rest:
            at, end, known = rest.pop()
            while at < end:
                tag = data[at]
                at += 1
                if tag > 127:
                    tag, at = _varint(data, at - 1)
                kind = tag & 7
                if kind == 2:
                    length = data[at]
                    at += 1
                    if length > 127:
                        length, at = _varint(data, at - 1)
                    number = tag >> 3
                    if number in known:
                        left -= 1
                        if left < 0:
                            raise TooManyElementsError(f"more than {most} messages and texts in one message")
                        if (inner := known[number]) is not None:
                            rest.append((at, min(at + length, end), inner))
                    at += length
                elif kind == 0:
                    while data[at] > 127:
                        at += 1
                    at += 1
                elif kind == 1:
                    at += 8
                elif kind == 5:
                    at += 4
                else:
                    raise DecodeError("a field is of no kind that is used here")
    except IndexError:  # it is cut off
        return


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128 or shift > 63:
            return value, at
        shift += 7


def _list_fields(descriptor: Descriptor, known: dict[str, dict[int, _Fields | None]]) -> _Fields:
    """Return the fields of a type; types that hold themselves are fine."""
    if descriptor.full_name in known:
        return known[descriptor.full_name]
    fields = known[descriptor.full_name] = {}
    for field in descriptor.fields:
        if field.message_type is not None:
            fields[field.number] = _list_fields(field.message_type, known)
        elif field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
            fields[field.number] = None
    return fields


_LOG = logging.getLogger(__name__)

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
_LOG_INTERVAL_S = 1.0
# One request, and answers for as long as the caller stays.
_WATCHES = frozenset({"/gpusonde.query.v1.QueryService/WatchChanges"})
# Names of services: what those may send who need not say who they are.
_LARGEST_OPEN_BYTES = 4096


class AccessInterceptor(grpc.aio.ServerInterceptor):
    """Checks the role of every caller before its request is even decoded.

    Args:
        guard: Knows callers.
        callers: Counts what they have going on.
        connections: Leaves those with calls alone.
        refused: Counts refusals by reason.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        guard: Guard,
        callers: CallerBook,
        connections: Connections,
        refused: Counter[str],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._guard = guard
        self._callers = callers
        self._connections = connections
        self._refused = refused
        self._clock = clock
        self._logged_s = -_LOG_INTERVAL_S

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Wrap the method's handler."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler
        method = handler_call_details.method
        role = required_role(method)
        if handler.unary_unary is not None:
            return self._unary_unary(handler, role, method)
        if handler.unary_stream is not None:
            return self._unary_stream(handler, role, method)
        return self._stream_stream(handler, role, method)

    def admit(self, authorization: str | None, peer: str, method: str) -> str:
        """Return whose questions count together with that of a caller who has not yet said what it is.

        Args:
            authorization: The header; None without one.
            peer: gRPC's word for the caller.
            method: What it will ask.

        Raises:
            RequestError: It may not.
        """
        identity = self._authorize(lambda: self._guard.identify_by_header(authorization), peer, method)
        return _caller_name(identity, peer)

    def _unary_unary(self, handler: Handler, role: Role | None, method: str) -> Handler:
        decode = _decoder(method, role, handler.request_deserializer)

        async def answer(data: bytes, context: Context) -> Any:
            context = _with_details(context)
            with contextlib.ExitStack() as counted:
                if role is not None:
                    await self._count_question(counted, context, method, self._callers.question)
                request = await self._decode(decode, data, context)
                return await cast(Any, handler.unary_unary)(request, context)

        return grpc.unary_unary_rpc_method_handler(answer, None, handler.response_serializer)

    def _unary_stream(self, handler: Handler, role: Role | None, method: str) -> Handler:
        decode = _decoder(method, role, handler.request_deserializer)

        async def answer(data: bytes, context: Context) -> None:
            context = _with_details(context)
            with contextlib.ExitStack() as counted:
                if role is None:
                    await self._count(counted, context, method, self._callers.stranger(address_of(context.peer())))
                else:
                    count = self._callers.watch if method in _WATCHES else self._callers.question
                    await self._count_question(counted, context, method, count)
                request = await self._decode(decode, data, context)
                await _respond(cast(Any, handler.unary_stream)(request, context), context)

        return grpc.unary_stream_rpc_method_handler(cast(Any, answer), None, handler.response_serializer)

    def _stream_stream(self, handler: Handler, role: Role | None, method: str) -> Handler:
        async def answer(requests: AsyncIterator[Any], context: Context) -> None:
            context = _with_details(context)
            if role is None:
                limit = self._callers.stranger(address_of(context.peer()))
            else:
                identity = await self._admit(context, method)
                limit = (
                    self._callers.stream(identity.name, address_of(context.peer()), is_one_agent=identity.is_one_agent)
                    if role is Role.AGENT
                    else self._callers.watch(_caller_name(identity, peer_of(context)))
                )
            with contextlib.ExitStack() as counted:
                await self._count(counted, context, method, limit)
                await _respond(cast(Any, handler.stream_stream)(requests, context), context)

        decode = _decoder(method, role, handler.request_deserializer)
        return grpc.stream_stream_rpc_method_handler(cast(Any, answer), decode, handler.response_serializer)

    async def _count_question(
        self,
        counted: contextlib.ExitStack,
        context: Context,
        method: str,
        count: Callable[[str], contextlib.AbstractContextManager[None]],
    ) -> None:
        identity = await self._admit(context, method)
        await self._count(counted, context, method, count(_caller_name(identity, peer_of(context))))

    async def _count(
        self,
        counted: contextlib.ExitStack,
        context: Context,
        method: str,
        limit: contextlib.AbstractContextManager[None],
    ) -> None:
        """Count a call for as long as ``counted`` is entered, or refuse it."""
        counted.enter_context(self._connections.call(context.peer()))
        try:
            counted.enter_context(limit)
        except RequestError as error:
            await self._refuse(context, error.reason, grpc.StatusCode.RESOURCE_EXHAUSTED, str(error), method)

    async def _admit(self, context: Context, method: str) -> CallerIdentity:
        try:
            return self._authorize(lambda: self._guard.identify(context), peer_of(context), method)
        except RequestError as error:
            await context.abort(grpc.StatusCode[error.status], str(error))
            raise AssertionError from None  # abort raises

    def _authorize(self, identify: Callable[[], CallerIdentity], peer: str, method: str) -> CallerIdentity:
        try:
            identity = identify()
        except RequestError as error:
            self._note_refusal(peer, "unauthenticated", str(error), method)
            raise
        role = required_role(method)
        if role is not None and not identity.may(role):
            text = f"{identity.name} is no {role.value}, which {method} is for"
            self._note_refusal(peer, "not_permitted", text, method)
            raise RequestError("PERMISSION_DENIED", text)
        return identity

    async def _decode(self, decode: Callable[[bytes], Any] | None, data: bytes, context: Context) -> Any:
        if decode is None:
            return data
        try:
            return decode(data)
        except TooManyElementsError as error:
            self._refused["elements"] += 1
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"the request cannot be decoded: {error}")
        except Exception:  # protobuf's own, and the UTF-8 decoder's below it
            self._refused["undecodable"] += 1
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, "the request cannot be decoded; run one version of both sides"
            )

    async def _refuse(self, context: Context, reason: str, code: grpc.StatusCode, text: str, method: str) -> NoReturn:
        self._note_refusal(peer_of(context), reason, text, method)
        await context.abort(code, text)
        raise AssertionError  # abort raises

    def _note_refusal(self, peer: str, reason: str, text: str, method: str) -> None:
        self._refused[reason] += 1
        # Whoever is refused can come again a thousand times a second; the log is not theirs to fill.
        if self._clock() - self._logged_s >= _LOG_INTERVAL_S:
            self._logged_s = self._clock()
            _LOG.warning("%s: %s is refused: %s", peer, method, text)


class _DetailedContext:
    """A call's context whose statuses say for programs what their texts say for people."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Sequence[tuple[str, Any]] = ()
    ) -> NoReturn:
        """End the call."""
        told = (*trailing_metadata, (DETAILS_KEY, status_details(code, details)))
        await self._context.abort(code, details, told)
        raise AssertionError  # abort raises


def _with_details(context: Context) -> Context:
    return cast(Context, _DetailedContext(context))


def _caller_name(identity: CallerIdentity, peer: str) -> str:
    """Return whose questions are counted together: of callers without a name those of an address."""
    return f"anonymous at {address_of(peer)}" if identity is ANONYMOUS else identity.name


async def _respond(responses: AsyncIterator[Any] | Awaitable[None], context: Context) -> None:
    """Write what a service gives, or let it write itself: it may do either."""
    if isinstance(responses, AsyncIterator):
        async for response in responses:
            await context.write(response)
    else:
        await responses


def _decoder(method: str, role: Role | None, decode: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    """Return what decodes a method's requests, within bounds; None where they stay bytes."""
    if decode is None:
        return None
    return _small(decode) if role is None else _bounded(method, decode)


@functools.lru_cache(maxsize=256)  # as many as there are methods, and some
def _bounded(method: str, decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    name = method.strip("/").replace("/", ".")
    return bounded(decode, descriptor_pool.Default().FindMethodByName(name).input_type)


def _small(decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def decode_small(data: bytes) -> Any:
        if len(data) > _LARGEST_OPEN_BYTES:
            raise DecodeError(f"has more than {_LARGEST_OPEN_BYTES} bytes")
        return decode(data)

    return decode_small


_STREAM_CHECK_S = 0.5


class AccessControl:
    """Certificate, tokens, guard and limits of one collector.

    Args:
        config: What the operator chose.
        refused: Where refusals are counted.

    Attributes:
        tls: The server's certificate; None for plain text.
        guard: Knows callers.
        refused: Refused calls and streams by reason.
        connections: Makes room for those who call.
        interceptor: Stands before every call.
    """

    def __init__(self, config: CollectorConfig, refused: Counter[str] | None = None) -> None:
        security = config.security
        self._anonymous = config.allow_anonymous
        self._tokens = TokenFile(security.tokens_file) if security.tokens_file else None
        self.tls = (
            ServerTls(security.tls_certificate, security.tls_key, security.tls_client_ca)
            if security.tls_certificate
            else None
        )
        self.refused: Counter[str] = Counter() if refused is None else refused
        self.guard = Guard(
            self._tokens,
            anonymous=self._anonymous,
            certificate_role=Role(security.certificate_role) if security.certificate_role else None,
        )
        self._secret_files = (
            security.tls_key,
            config.clickhouse.password_file,
            config.clickhouse.tls_key,
            config.otlp.headers_file,
            config.remote_write.headers_file,
        )
        self._tokens_file = security.tokens_file
        self._callers = CallerBook(caller_limits(config))
        self.connections = Connections(self.refused)
        self.interceptor = AccessInterceptor(self.guard, self._callers, self.connections, self.refused)

    def configure(self, config: CollectorConfig) -> None:
        """Set other limits for callers; who may call stays as it is."""
        self._callers.configure(caller_limits(config))

    def open(self) -> grpc.ServerCredentials | None:
        """Read all files and return what to listen with; None for plain text.

        Raises:
            TlsError: One of them cannot be used.
        """
        warn_of_exposed_files(*self._secret_files)
        # Its digests are no secret, but whoever can write there lets himself in.
        warn_of_exposed_files(self._tokens_file, others=stat.S_IWOTH)
        if self._tokens:
            self._tokens.load()
        return self.tls.credentials() if self.tls else None

    def warn_of_openness(self, address: str) -> None:
        """Say at every start what others could do."""
        if is_loopback(address):
            return
        if not self.tls:
            _LOG.warning("%s is reachable from other hosts without encryption (security.plaintext)", address)
        if self._anonymous:
            _LOG.warning("%s takes callers without certificate and token (security.anonymous)", address)

    async def watch_streams(self, *looks: Callable[[], None]) -> None:
        """Have open streams looked after, and say when our certificate is about to expire; runs until cancelled.

        Args:
            looks: Called twice a second.
        """
        warning = ExpiryWarning("the collector's certificate")
        while True:
            if self.tls:
                self.tls.refresh()
                warning.check(self.tls.expiry_unix_s)
            for look in looks:
                look()
            await asyncio.sleep(_STREAM_CHECK_S)


def caller_limits(config: CollectorConfig) -> CallerLimits:
    """Return how much one caller may ask."""
    security = config.security
    return CallerLimits(
        questions=security.max_questions,
        questions_per_s=security.questions_per_second,
        all_questions=16 * security.max_questions,
        all_streams=2 * config.ingest.max_agents + 16,
        watches=2 * config.planning.max_watches + 48,
    )
