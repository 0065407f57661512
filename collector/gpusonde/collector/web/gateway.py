"""``Gateway``: requests of HTTP as calls of the collector's own services, and their answers as JSON.

The calls go through gRPC, over a socket that only this user can reach, with the caller's token: who may ask what, how
often and how much is decided where it is decided for everybody.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from gpusonde.collector.messages import is_repeated
from gpusonde.collector.security.guard import WEB_PEER
from gpusonde.collector.web.problems import ProblemError
from gpusonde.collector.web.routes import ApiRoute

_LARGEST_BODY_BYTES = 8 << 20
# Commas, brackets and braces: each part of a document takes a hundred bytes when it is read.
_MOST_PARTS = 400_000
_DEEPEST = 32
_LONGEST_QUERY_BYTES = 8192
_BODY_S = 30.0
# Longer than any answer may take; a question of planning or workload has its own limit (workers.time_limit).
_ANSWER_S = 120.0
# Questions at the same time; others wait so long for their turn. Fewer than one caller may ask over gRPC.
_MOST_QUESTIONS = 8
_TURN_S = 30.0
_MOST_VIEWERS = 32
_WAITING_S = 5.0
_FIELD = re.compile(r"Failed to parse ([\w.\[\]]+) field: (.*)", re.DOTALL)
_NO_FIELD = re.compile(r'has no field named "(\w{1,100})"')

_Answer = TypeVar("_Answer")


class Gateway:
    """Answers what ``ROUTES`` offers.

    Args:
        channel: To the collector's services.
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self._questions = asyncio.Semaphore(_MOST_QUESTIONS)
        self._viewers = asyncio.Semaphore(_MOST_VIEWERS)

    async def answer(self, route: ApiRoute, request: Request) -> Response:
        """Answer one request.

        Raises:
            ProblemError: It is not answered.
        """
        message = await (_from_body(route, request) if route.verb == "POST" else _from_query(route, request))
        metadata = _metadata(request)
        if route.answers == "json":
            ask = self._channel.unary_unary(
                route.full_name,
                request_serializer=route.request_class.SerializeToString,
                response_deserializer=route.response_class.FromString,
            )
            async with self._turn():
                answer = await _checked(ask(message, timeout=_ANSWER_S, metadata=metadata))
            return Response(await asyncio.to_thread(to_json, answer), media_type="application/json")
        stream = self._channel.unary_stream(
            route.full_name,
            request_serializer=route.request_class.SerializeToString,
            response_deserializer=route.response_class.FromString,
        )
        if route.answers == "events":
            if self._viewers.locked():
                return _events(self._wait_for_changes(lambda: stream(message, metadata=metadata)))
            changes = stream(message, metadata=metadata)
            # Whoever may not watch is told so by the status.
            first = await _checked(changes.read())
            return _events(self._changes(changes, first))
        pieces = stream(message, timeout=_ANSWER_S, metadata=metadata)
        first = await _checked(pieces.read())
        return StreamingResponse(_bytes_of(pieces, first), media_type="application/vnd.apache.arrow.stream")

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        try:
            await asyncio.wait_for(self._questions.acquire(), _TURN_S)
        except asyncio.TimeoutError:
            raise ProblemError(
                503, "too many questions wait; ask again", code="UNAVAILABLE", headers={"Retry-After": "5"}
            ) from None
        try:
            yield
        finally:
            self._questions.release()

    async def _wait_for_changes(self, begin: Callable[[], Any]) -> AsyncIterator[bytes]:
        """Wait for the turn of one viewer more than there may be, then go on as with the others."""
        while self._viewers.locked():
            yield b"event: waiting\ndata: {}\n\n"
            await asyncio.sleep(_WAITING_S)
        changes = begin()
        try:
            first = await _checked(changes.read())
        except ProblemError as error:
            yield _event("problem", json.dumps(error.document()).encode())
            return
        async for piece in self._changes(changes, first):
            yield piece

    async def _changes(self, changes: Any, first: Any) -> AsyncIterator[bytes]:
        coming: asyncio.Future[Any] | None = None
        try:
            async with self._viewers:
                change: Any = first
                while change is not grpc.aio.EOF:
                    yield _event("change", await asyncio.to_thread(to_json, change))
                    coming = asyncio.ensure_future(_checked(changes.read()))
                    # A line now and then: a viewer who has gone is found when there is something to send.
                    while not (await asyncio.wait({coming}, timeout=_WAITING_S))[0]:
                        yield b": still here\n\n"
                    change = coming.result()
        except ProblemError as error:
            yield _event("problem", json.dumps(error.document()).encode())
        finally:
            if coming is not None:
                coming.cancel()
            changes.cancel()


def to_json(message: Any) -> bytes:
    """Return a message in protobuf's JSON mapping, with the fields' own names and those that are unset or zero."""
    document = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return json.dumps(document, separators=(",", ":")).encode()


def _events(pieces: AsyncIterator[bytes]) -> Response:
    return StreamingResponse(pieces, media_type="text/event-stream")


def _event(name: str, data: bytes) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data)


async def _bytes_of(pieces: Any, first: Any) -> AsyncIterator[bytes]:
    piece = first
    try:
        while piece is not grpc.aio.EOF:
            yield piece.arrow_ipc
            piece = await _checked(pieces.read())
    finally:
        pieces.cancel()


async def _checked(answer: Awaitable[_Answer]) -> _Answer:
    try:
        return await answer
    except grpc.aio.AioRpcError as error:
        raise ProblemError.of_rpc(error) from None


def _metadata(request: Request) -> list[tuple[str, str]]:
    host, port = request.client or ("", 0)
    family = "ipv6" if ":" in host else "ipv4"
    metadata = [(WEB_PEER, f"{family}:[{host}]:{port}" if family == "ipv6" else f"{family}:{host}:{port}")]
    if (token := request.headers.get("authorization")) is not None:
        if not token.isascii() or not token.isprintable():
            raise ProblemError(400, "the authorization header is no bearer token")
        metadata.append(("authorization", token))
    return metadata


async def _from_query(route: ApiRoute, request: Request) -> Any:
    if len(request.url.query) > _LONGEST_QUERY_BYTES:
        raise ProblemError(414, f"the query has more than {_LONGEST_QUERY_BYTES} bytes")
    fields = route.request_class.DESCRIPTOR.fields_by_name
    document: dict[str, Any] = {}
    for name, text in [*request.query_params.multi_items(), *request.path_params.items()]:
        field = fields.get(name)
        if field is None:
            known = ", ".join(sorted(set(fields) - set(route.path_fields)))
            raise ProblemError(400, f"there is no field {name[:80]!r}; there are: {known}", field=name[:80])
        value: Any = text
        if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
            if text not in ("true", "false"):
                raise ProblemError(400, f"{text[:80]!r} is not true or false", field=name)
            value = text == "true"
        if is_repeated(field):
            document.setdefault(name, []).append(value)
        elif name in document:
            raise ProblemError(400, f"{name} is given more than once", field=name)
        else:
            document[name] = value
    return _parsed(route, document)


async def _from_body(route: ApiRoute, request: Request) -> Any:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ProblemError(415, "the body is to be JSON: send 'Content-Type: application/json'")
    try:
        body = await asyncio.wait_for(_read(request), _BODY_S)
    except asyncio.TimeoutError:
        raise ProblemError(
            408, f"the body did not come within {_BODY_S:g} s", headers={"Connection": "close"}
        ) from None
    except ClientDisconnect:
        raise ProblemError(400, "the body was cut off") from None
    if sum(map(body.count, (b",", b"[", b"{"))) > _MOST_PARTS:
        raise ProblemError(413, f"the body has more than {_MOST_PARTS} parts", code="RESOURCE_EXHAUSTED")

    def parse() -> Any:
        try:
            document = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise ProblemError(400, f"the body is no JSON: {str(error)[:200]}") from None
        if not isinstance(document, dict):
            raise ProblemError(400, "the body is no JSON object")
        return _parsed(route, document)

    return await asyncio.to_thread(parse)


async def _read(request: Request) -> bytes:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > _LARGEST_BODY_BYTES:
            raise ProblemError(
                413,
                f"the body has more than {_LARGEST_BODY_BYTES} bytes",
                code="RESOURCE_EXHAUSTED",
                headers={"Connection": "close"},
            )
    return bytes(body)


def _parsed(route: ApiRoute, document: dict[str, Any]) -> Any:
    try:
        return json_format.ParseDict(document, route.request_class(), max_recursion_depth=_DEEPEST)
    except (json_format.ParseError, ValueError, TypeError, RecursionError) as error:
        text = str(error)
        field = _FIELD.search(text) or _NO_FIELD.search(text)
        reason = field[2] if field and field.re is _FIELD else text
        raise ProblemError(400, reason[:400], field=field[1] if field else "") from None
