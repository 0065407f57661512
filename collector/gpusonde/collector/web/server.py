"""``WebServer``: HTTP on the collector's event loop, with bounds on what strangers can cost.

Everything that takes long happens elsewhere: services answer on their own threads, JSON is made on others.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ipaddress
import json
import logging
import mimetypes
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import grpc.aio
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from gpusonde.collector.web.gateway import Admit, Gateway, HttpProblemError
from gpusonde.collector.web.routes import ROUTES, ApiRoute, openapi
from gpusonde.errors import GpusondeError
from gpusonde.service.metrics_endpoint import split_address
from gpusonde.service.tls import is_loopback

_LOG = logging.getLogger(__name__)
_PAGES = Path(__file__).parent / "pages"
_MOST_CONNECTIONS = 128
_LARGEST_HEAD_BYTES = 16 << 10
# For a request's head; for taking what waits to be sent.
_HEAD_S = 10.0
_SLOW_READER_S = 20.0
_LAST_ANSWERS_S = 5
_LOOK_AT_CERTIFICATE_S = 5.0
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9.-]+))(?::[0-9]{1,5})?")
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class WebServer:
    """Serves the API and the page.

    Args:
        listen: Where, ``host:port``.
        target: Private socket of the collector's own gRPC server, as gRPC writes it.
        admit: Tells who may ask.
        certificate: PEM file with the certificate and its chain; empty for plain text.
        key: PEM file with its key.
    """

    def __init__(self, listen: str, target: str, admit: Admit, certificate: str = "", key: str = "") -> None:
        self._listen = listen
        self._target = target
        self._admit = admit
        self._files = (certificate, key) if certificate else ()

    def bind(self) -> tuple[socket.socket, str]:
        """Take the address, and return it with the port it got.

        Raises:
            GpusondeError: It is taken, or is none of this host.
        """
        host, port = split_address(self._listen)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            listener = socket.create_server((host, port), family=family, backlog=_MOST_CONNECTIONS)
        except OSError as error:
            raise GpusondeError(
                f"no pages and no HTTP on {self._listen}: {error.strerror or error}; choose another web.listen"
            ) from error
        return listener, f"{self._listen.rpartition(':')[0]}:{listener.getsockname()[1]}"

    async def run(self, listener: socket.socket) -> None:
        """Serve until cancelled.

        Args:
            listener: Of ``bind``.
        """
        # Else channels to the same address share a connection, and the calls that it may have.
        options = [("grpc.max_receive_message_length", 64 << 20), ("grpc.use_local_subchannel_pool", 1)]
        async with (
            grpc.aio.insecure_channel(self._target, options=options) as channel,
            grpc.aio.insecure_channel(self._target, options=options) as streams,
        ):
            config = uvicorn.Config(
                _Frame(make_app(Gateway(channel, streams, self._admit)), only_loopback=is_loopback(self._listen)),
                http=BoundedProtocol,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="critical",  # strangers would fill the log
                access_log=False,
                proxy_headers=False,
                server_header=False,
                limit_concurrency=_MOST_CONNECTIONS + 1,  # the first that is refused
                timeout_graceful_shutdown=_LAST_ANSWERS_S,
                h11_max_incomplete_event_size=_LARGEST_HEAD_BYTES,
            )
            watching = None
            if self._files:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.minimum_version = ssl.TLSVersion.TLSv1_2
                context.load_cert_chain(*self._files)
                config.ssl_context_factory = lambda _config, _make: context
                watching = asyncio.ensure_future(self._follow_certificate(context))
            server = _QuietServer(config)
            serving = asyncio.ensure_future(server.serve(sockets=[listener]))
            try:
                await asyncio.shield(serving)
            finally:
                if watching is not None:
                    watching.cancel()
                server.should_exit = True
                # However often this is cancelled: the last answers have their time, and no more.
                while not serving.done():
                    with contextlib.suppress(asyncio.CancelledError):
                        await asyncio.wait({serving})

    async def _follow_certificate(self, context: ssl.SSLContext) -> None:
        """Have new connections use a renewed certificate; a bad one is logged and the one in use stays."""
        known = [Path(name).stat().st_mtime_ns for name in self._files]
        while True:
            await asyncio.sleep(_LOOK_AT_CERTIFICATE_S)
            try:
                found = [Path(name).stat().st_mtime_ns for name in self._files]
                if found != known:
                    context.load_cert_chain(*self._files)
                    known = found
            except OSError as error:  # ssl.SSLError is one
                _LOG.error("the certificate of %s stays as it is: %s", self._listen, error)


class _QuietServer(uvicorn.Server):
    """A server that leaves signals to the collector."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing."""
        yield


class BoundedProtocol(H11Protocol):
    """One connection, cut when its client is too slow: with the head of a request, or with taking the answer."""

    _cutting: asyncio.TimerHandle | None = None
    _pausing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, unless there are far too many: those beyond the limit get an answer, and floods do not."""
        super().connection_made(transport)
        if len(self.connections) > 2 * _MOST_CONNECTIONS:
            transport.abort()
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        for timer in (self._cutting, self._pausing):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take a piece of a request."""
        super().data_received(data)
        self._watch_head()

    def pause_writing(self) -> None:
        """Have the client take what waits, or go."""
        super().pause_writing()
        self._pausing = self.loop.call_later(_SLOW_READER_S, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on: it has."""
        if self._pausing is not None:
            self._pausing.cancel()
            self._pausing = None
        super().resume_writing()

    def _watch_head(self) -> None:
        is_asking = self.cycle is None or self.cycle.response_complete
        if is_asking and self._cutting is None:
            self._cutting = self.loop.call_later(_HEAD_S, self.transport.abort)
        elif not is_asking and self._cutting is not None:
            self._cutting.cancel()
            self._cutting = None


class _Frame:
    """Stands before the application: names that may be asked for, other sites' pages kept out, headers of all answers.

    On loopback the name matters: a page of any site may have its own name lead to this host, and the browser would
    take this collector for a part of that site.
    """

    def __init__(self, app: Starlette, *, only_loopback: bool) -> None:
        self._app = app
        self._only_loopback = only_loopback

    async def __call__(
        self,
        scope: dict[str, Any],
        receive: Callable[[], Awaitable[Any]],
        send: Callable[[Any], Awaitable[None]],
    ) -> None:
        """Answer one request."""

        async def send_framed(event: Any) -> None:
            if event["type"] == "http.response.start":
                given = {name.lower() for name, _ in event["headers"]}
                more = _HEADERS if b"cache-control" in given else _HEADERS | {"Cache-Control": "no-store"}
                event["headers"] = [*event["headers"], *((k.lower().encode(), v.encode()) for k, v in more.items())]
            await send(event)

        problem = self._problem(Request(scope))
        await (problem.response() if problem else self._app)(scope, receive, send_framed)

    def _problem(self, request: Request) -> HttpProblemError | None:
        host = request.headers.get("host", "")
        if self._only_loopback and not _means_this_host(host):
            return HttpProblemError(421, f"{host[:100]!r} is not this collector; ask for localhost or 127.0.0.1")
        origin = request.headers.get("origin")
        if request.headers.get("sec-fetch-site") in ("cross-site", "same-site") or (
            origin is not None and origin.partition("://")[2] != host
        ):
            is_page = request.headers.get("sec-fetch-mode") == "navigate" and request.method == "GET"
            if not is_page or request.url.path.startswith("/v1/"):
                return HttpProblemError(403, "pages of other sites may not ask here", code="PERMISSION_DENIED")
        return None


def _means_this_host(host: str) -> bool:
    """Whether the head of a request asks for ``localhost`` or a loopback address; a target of gRPC is no such name."""
    parts = _HOST.fullmatch(host)
    if parts is None:
        return False
    name = parts[1] or parts[2]
    try:
        return name.lower() == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def make_app(gateway: Gateway) -> Starlette:
    """Return the application.

    Args:
        gateway: Answers what ``ROUTES`` offers.
    """
    description = json.dumps(openapi()).encode()

    async def describe(_request: Request) -> Response:
        return Response(description, media_type="application/json")

    routes = [Route("/v1/openapi.json", describe, methods=["GET"])]
    routes += [Route(route.path, _endpoint(gateway, route), methods=[route.verb]) for route in ROUTES]
    routes += [Route(path, _page(file), methods=["GET"]) for path, file in _pages()]

    async def refuse(_request: Request, error: Any) -> Response:
        code = "UNIMPLEMENTED" if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED else "NOT_FOUND"
        return HttpProblemError(error.status_code, error.detail, code=code, headers=error.headers).response()

    async def tell(_request: Request, error: Any) -> Response:
        response: Response = error.response()
        return response

    async def fail(_request: Request, error: Exception) -> Response:
        _LOG.error("a request failed", exc_info=error)
        return HttpProblemError(500, f"{type(error).__name__}; see the collector's log", code="INTERNAL").response()

    return Starlette(routes=routes, exception_handlers={HTTPException: refuse, HttpProblemError: tell, Exception: fail})


def _endpoint(gateway: Gateway, route: ApiRoute) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        return await gateway.answer(route, request)

    return answer


def _pages() -> Iterator[tuple[str, Path]]:
    for file in sorted(_PAGES.rglob("*")):
        if file.is_file():
            name = file.relative_to(_PAGES).as_posix()
            yield ("/" if name == "index.html" else f"/{name}"), file


def _page(file: Path) -> Callable[[Request], Awaitable[Response]]:
    content = file.read_bytes()
    kind = "text/javascript" if file.suffix == ".js" else mimetypes.guess_type(file.name)[0] or "text/plain"
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}

    async def answer(request: Request) -> Response:
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=kind)

    return answer
