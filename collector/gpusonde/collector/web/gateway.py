"""``Gateway``: requests of HTTP as calls of the collector's own services, and their answers as JSON.

The calls go through gRPC, over a socket that only this user can reach, with the caller's token: who may ask what, how
often and how much is decided where it is decided for everybody. Errors are problem details of RFC 9457, with the status
that gRPC has for them and the field at fault.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, TypeAlias, TypeVar

import grpc
import grpc.aio
from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from gpusonde.collector.details import field_of
from gpusonde.collector.messages import is_repeated
from gpusonde.collector.security.guard import WEB_PEER
from gpusonde.collector.web.routes import ApiRoute
from gpusonde.errors import RequestError

_STATUSES = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.OUT_OF_RANGE: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.ABORTED: 409,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}


class HttpProblemError(Exception):
    """A request that is not answered.

    Attributes:
        status: Its HTTP status.
        code: Name of its gRPC status.
        field: The field at fault; empty where it is none.
        headers: What the answer's head says beside.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        code: str = "INVALID_ARGUMENT",
        field: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Keep the parts."""
        self.status = status
        self.code = code
        self.field = field
        self.headers = headers or {}
        super().__init__(detail)

    @classmethod
    def of_rpc(cls, error: grpc.aio.AioRpcError) -> HttpProblemError:
        """Return what a service has refused."""
        return cls.of_status(error.code(), error.details() or error.code().name)

    @classmethod
    def of_status(cls, code: grpc.StatusCode, text: str) -> HttpProblemError:
        """Return a refusal by its status and its text."""
        headers = {}
        if code is grpc.StatusCode.UNAUTHENTICATED:
            headers["WWW-Authenticate"] = "Bearer"
        elif code in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE):
            headers["Retry-After"] = "5"
        return cls(_STATUSES.get(code, 500), text, code=code.name, field=field_of(text), headers=headers)

    def document(self) -> dict[str, object]:
        """Return the problem's details."""
        document: dict[str, object] = {
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": str(self),
            "code": self.code,
        }
        if self.field:
            document["errors"] = [{"field": self.field, "detail": str(self).removeprefix(f"field '{self.field}': ")}]
        return document

    def response(self) -> Response:
        """Return it as an answer."""
        return Response(
            json.dumps(self.document()),
            self.status,
            dict(self.headers),
            media_type="application/problem+json",
        )


_LARGEST_BODY_BYTES = 8 << 20
# Of all bodies together, until their questions are answered; and of those of one caller.
_MOST_BODY_BYTES = 64 << 20
_MOST_BODY_BYTES_OF_ONE = 2 * _LARGEST_BODY_BYTES
# Commas, brackets and braces: each part of a document takes a hundred bytes when it is read.
_MOST_PARTS = 400_000
_DEEPEST = 32
_LONGEST_QUERY_BYTES = 8192
_BODY_S = 30.0
# Longer than any answer may take; a question of planning or workload has its own limit (workers.time_limit).
_ANSWER_S = 120.0
# Questions at the same time, of one caller and in all; others wait so long for their turn. One caller has fewer than
# over gRPC. In all, with the viewers, they are fewer than the calls that one connection to the services may have.
_MOST_QUESTIONS_OF_ONE = 8
_MOST_QUESTIONS = 24
_TURN_S = 30.0
_MOST_VIEWERS = 32
# Kept, for those whom the same is told.
_MOST_EVENTS = 4
# Each keeps a connection from those who ask.
_MOST_WAITING = 32
_WAITING_S = 5.0
_FIELD = re.compile(r"Failed to parse ([\w.\[\]]+) field: (.*)", re.DOTALL)
_NO_FIELD = re.compile(r'has no field named "(\w{1,100})"')

_Answer = TypeVar("_Answer")
Admit: TypeAlias = Callable[["str | None", str, str], str]
"""``AccessInterceptor.admit``."""


class Gateway:
    """Answers what ``ROUTES`` offers.

    Args:
        channel: To the collector's services.
        streams: A second one, on a connection of its own: streams that stay open take no question's place.
        admit: Tells who may ask, before anything of a question is read; the services ask again.
    """

    def __init__(self, channel: grpc.aio.Channel, streams: grpc.aio.Channel, admit: Admit) -> None:
        self._channel = channel
        self._streams = streams
        self._admit = admit
        self._turns = Turns()
        self._viewers = 0
        self._waiting: set[contextlib.AsyncExitStack] = set()
        self._events: dict[bytes, asyncio.Future[bytes]] = {}
        self._body_bytes: Counter[str] = Counter()

    async def answer(self, route: ApiRoute, request: Request) -> Response:
        """Answer one request.

        Raises:
            HttpProblemError: It is not answered.
        """
        peer, authorization = _peer(request), request.headers.get("authorization")
        try:
            caller = self._admit(authorization, peer, route.full_name)
        except RequestError as error:
            raise HttpProblemError.of_status(grpc.StatusCode[error.status], str(error)) from None
        with contextlib.ExitStack() as held:
            message = await (
                self._from_body(route, request, caller, held) if route.verb == "POST" else _from_query(route, request)
            )
            metadata = [(WEB_PEER, peer), *([("authorization", authorization)] if authorization is not None else [])]
            if route.answers == "json":
                ask = self._channel.unary_unary(
                    route.full_name,
                    request_serializer=route.request_class.SerializeToString,
                    response_deserializer=route.response_class.FromString,
                )
                async with self._turns.take(caller):
                    answer = await _checked(ask(message, timeout=_ANSWER_S, metadata=metadata))
                return Response(await asyncio.to_thread(to_json, answer), media_type="application/json")
            is_watch = route.answers == "events"
            stream = self._streams.unary_stream(
                route.full_name,
                request_serializer=route.request_class.SerializeToString,
                # What viewers are told is read once for all of them.
                response_deserializer=None if is_watch else route.response_class.FromString,
            )
            if is_watch:
                return await self._watch(route, lambda: stream(message, metadata=metadata))
        async with contextlib.AsyncExitStack() as turn:
            await turn.enter_async_context(self._turns.take(caller))
            pieces = stream(message, timeout=_ANSWER_S, metadata=metadata)
            turn.callback(pieces.cancel)
            first = await _checked(pieces.read())
            return _HoldingResponse(_bytes_of(pieces, first), "application/vnd.apache.arrow.stream", turn.pop_all())

    async def _watch(self, route: ApiRoute, begin: Callable[[], Any]) -> Response:
        async with contextlib.AsyncExitStack() as held:
            if self._viewers >= _MOST_VIEWERS:
                if len(self._waiting) >= _MOST_WAITING:
                    raise HttpProblemError(
                        503, "too many watch, or wait to", code="UNAVAILABLE", headers={"Retry-After": "5"}
                    )
                later = contextlib.AsyncExitStack()
                self._waiting.add(later)
                later.callback(self._waiting.discard, later)
                return _HoldingResponse(self._wait_for_changes(route, begin, later), "text/event-stream", later)
            changes = self._open(begin, held)
            # Whoever may not watch is told so by the status.
            first = await _checked(changes.read())
            return _HoldingResponse(self._changes(route, changes, first), "text/event-stream", held.pop_all())

    def _open(self, begin: Callable[[], Any], held: contextlib.AsyncExitStack) -> Any:
        """Take a viewer's place, which must be free, and only then begin."""
        self._viewers += 1
        held.callback(self._leave)
        changes = begin()
        held.callback(changes.cancel)
        return changes

    def _leave(self) -> None:
        self._viewers -= 1

    async def _wait_for_changes(
        self, route: ApiRoute, begin: Callable[[], Any], held: contextlib.AsyncExitStack
    ) -> AsyncIterator[bytes]:
        """Wait for the turn of one viewer more than there may be, then go on as with the others."""
        while self._viewers >= _MOST_VIEWERS:
            yield b"event: waiting\ndata: {}\n\n"
            await asyncio.sleep(_WAITING_S)
        self._waiting.discard(held)
        changes = self._open(begin, held)
        try:
            first = await _checked(changes.read())
        except HttpProblemError as error:
            yield _event("problem", json.dumps(error.document()).encode())
            return
        async for piece in self._changes(route, changes, first):
            yield piece

    async def _changes(self, route: ApiRoute, changes: Any, first: bytes) -> AsyncIterator[bytes]:
        coming: asyncio.Future[Any] | None = None
        try:
            change: Any = first
            while change is not grpc.aio.EOF:
                yield await self._told(route, change)
                coming = asyncio.ensure_future(_checked(changes.read()))
                # A line now and then: a viewer who has gone is found when there is something to send.
                while not (await asyncio.wait({coming}, timeout=_WAITING_S))[0]:
                    yield b": still here\n\n"
                change = coming.result()
        except HttpProblemError as error:
            yield _event("problem", json.dumps(error.document()).encode())
        finally:
            if coming is not None:
                coming.cancel()

    async def _told(self, route: ApiRoute, change: bytes) -> bytes:
        """Return a message of a stream as an event, made once for all viewers whom the same is told."""
        if change not in self._events:

            def make() -> bytes:
                return _event("change", to_json(route.response_class.FromString(change)))

            self._events[change] = asyncio.ensure_future(asyncio.to_thread(make))
            if len(self._events) > _MOST_EVENTS:
                del self._events[next(iter(self._events))]
        return await asyncio.shield(self._events[change])

    async def _from_body(self, route: ApiRoute, request: Request, caller: str, held: contextlib.ExitStack) -> Any:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise HttpProblemError(415, "the body is to be JSON: send 'Content-Type: application/json'")
        try:
            body = await asyncio.wait_for(self._read(request, caller, held), _BODY_S)
        except asyncio.TimeoutError:
            raise HttpProblemError(
                408,
                f"the body did not come within {_BODY_S:g} s",
                code="DEADLINE_EXCEEDED",
                headers={"Connection": "close"},
            ) from None
        except ClientDisconnect:
            raise HttpProblemError(400, "the body was cut off") from None
        if sum(map(body.count, (b",", b"[", b"{"))) > _MOST_PARTS:
            raise HttpProblemError(413, f"the body has more than {_MOST_PARTS} parts", code="RESOURCE_EXHAUSTED")

        def parse() -> Any:
            try:
                document = json.loads(body)
            except (ValueError, RecursionError) as error:
                raise HttpProblemError(400, f"the body is no JSON: {str(error)[:200]}") from None
            if not isinstance(document, dict):
                raise HttpProblemError(400, "the body is no JSON object")
            return _parsed(route, document)

        return await asyncio.to_thread(parse)

    async def _read(self, request: Request, caller: str, held: contextlib.ExitStack) -> bytearray:
        body = bytearray()

        def give_back() -> None:
            self._body_bytes[caller] -= len(body)
            # None stays whose bodies are gone.
            self._body_bytes += Counter()

        held.callback(give_back)
        async for piece in request.stream():
            body += piece
            self._body_bytes[caller] += len(piece)
            if len(body) > _LARGEST_BODY_BYTES:
                raise HttpProblemError(
                    413,
                    f"the body has more than {_LARGEST_BODY_BYTES} bytes",
                    code="RESOURCE_EXHAUSTED",
                    headers={"Connection": "close"},
                )
            if self._body_bytes[caller] > _MOST_BODY_BYTES_OF_ONE or sum(self._body_bytes.values()) > _MOST_BODY_BYTES:
                raise HttpProblemError(
                    503,
                    "too many large bodies come at once; send this one again",
                    code="UNAVAILABLE",
                    headers={"Retry-After": "5", "Connection": "close"},
                )
        return body


class Turns:
    """Questions that are answered at the same time, so many of one caller and so many in all."""

    def __init__(self) -> None:
        self._all = asyncio.Semaphore(_MOST_QUESTIONS)
        self._callers: dict[str, asyncio.Semaphore] = {}
        self._asking: Counter[str] = Counter()

    @contextlib.asynccontextmanager
    async def take(self, caller: str) -> AsyncIterator[None]:
        """Wait for a turn, and have it.

        Args:
            caller: Whose questions count together.

        Raises:
            HttpProblemError: It did not come in time.
        """
        self._asking[caller] += 1
        own = self._callers.setdefault(caller, asyncio.Semaphore(_MOST_QUESTIONS_OF_ONE))
        try:
            async with contextlib.AsyncExitStack() as taken:
                try:
                    # Whoever waits for questions of their own takes no place from the others.
                    await asyncio.wait_for(_take_both(own, self._all, taken), _TURN_S)
                except asyncio.TimeoutError:
                    raise HttpProblemError(
                        503, "too many questions wait; ask again", code="UNAVAILABLE", headers={"Retry-After": "5"}
                    ) from None
                yield
        finally:
            self._asking[caller] -= 1
            if not self._asking[caller]:
                del self._asking[caller], self._callers[caller]


async def _take_both(own: asyncio.Semaphore, of_all: asyncio.Semaphore, taken: contextlib.AsyncExitStack) -> None:
    await taken.enter_async_context(own)
    await taken.enter_async_context(of_all)


class _HoldingResponse(StreamingResponse):
    """An answer in pieces that gives back what it holds, also where its client has gone before the first of them."""

    def __init__(self, pieces: AsyncIterator[bytes], kind: str, held: contextlib.AsyncExitStack) -> None:
        super().__init__(pieces, media_type=kind)
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._held:
            await super().__call__(scope, receive, send)


def to_json(message: Any) -> bytes:
    """Return a message in protobuf's JSON mapping, with the fields' own names and those that are unset or zero."""
    document = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return json.dumps(document, separators=(",", ":")).encode()


def _event(name: str, data: bytes) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data)


async def _bytes_of(pieces: Any, first: Any) -> AsyncIterator[bytes]:
    piece = first
    while piece is not grpc.aio.EOF:
        yield piece.arrow_ipc
        piece = await _checked(pieces.read())


async def _checked(answer: Awaitable[_Answer]) -> _Answer:
    try:
        return await answer
    except grpc.aio.AioRpcError as error:
        raise HttpProblemError.of_rpc(error) from None


def _peer(request: Request) -> str:
    host, port = request.client or ("", 0)
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"


async def _from_query(route: ApiRoute, request: Request) -> Any:
    if len(request.url.query) > _LONGEST_QUERY_BYTES:
        raise HttpProblemError(414, f"the query has more than {_LONGEST_QUERY_BYTES} bytes")
    fields = route.request_class.DESCRIPTOR.fields_by_name
    document: dict[str, Any] = {}
    for name, text in [*request.query_params.multi_items(), *request.path_params.items()]:
        field = fields.get(name)
        if field is None:
            known = ", ".join(sorted(set(fields) - set(route.path_fields)))
            raise HttpProblemError(400, f"there is no field {name[:80]!r}; there are: {known}", field=name[:80])
        value: Any = text
        if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
            if text not in ("true", "false"):
                raise HttpProblemError(400, f"{text[:80]!r} is not true or false", field=name)
            value = text == "true"
        if is_repeated(field):
            document.setdefault(name, []).append(value)
        elif name in document:
            raise HttpProblemError(400, f"{name} is given more than once", field=name)
        else:
            document[name] = value
    return _parsed(route, document)


def _parsed(route: ApiRoute, document: dict[str, Any]) -> Any:
    try:
        return json_format.ParseDict(document, route.request_class(), max_recursion_depth=_DEEPEST)
    except (json_format.ParseError, ValueError, TypeError, RecursionError) as error:
        text = str(error)
        field = _FIELD.search(text) or _NO_FIELD.search(text)
        reason = field[2] if field and field.re is _FIELD else text
        raise HttpProblemError(400, reason[:400], field=field[1] if field else "") from None
