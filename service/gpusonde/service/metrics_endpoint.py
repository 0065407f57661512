"""``Endpoint``: ``/metrics``, ``/-/healthy`` and ``/-/ready`` over HTTP, in a thread of its own.

It answers while the daemon's event loop is stuck, which is when its answers matter. It is not a web server: GET only,
one request per connection, and bounds on connections, the size of a request and the time that a client may take.

Addresses to listen on: ``host:port`` as people write them, IPv6 hosts in brackets.

``Monitoring``: the self metrics endpoint as a daemon keeps it: optional, movable, never a reason to stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from gpusonde.service.durable_files import write_durably
from gpusonde.service.tls.client import is_loopback

_HIGHEST_PORT = 65_535


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port``; port 0 stands for any free one.

    Raises:
        ValueError: It is no such address; the message is for its writer.
    """
    host, separator, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not separator or not port.isascii() or not port.isdigit() or int(port) > _HIGHEST_PORT:
        raise ValueError(f"{address!r} is no address; write host:port, for example 127.0.0.1:9000")
    if not host.strip("[]") or (":" in host and not bracketed):
        raise ValueError(f"{address!r} is no address; write host:port, an IPv6 host in brackets: [::1]:9000")
    return host.strip("[]"), int(port)


def check_free(address: str) -> None:
    """Listen on every address that ``host:port`` stands for, and stop at once.

    Raises:
        OSError: One is taken or may not be used, or none of them is this host's; the error says which it is.
        ValueError: It is no address.
    """
    host, port = split_address(address)
    ours, elsewhere = 0, None
    for family, kind, protocol, _, target in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        try:
            with socket.socket(family, kind, protocol) as channel:
                # As gRPC does: connections of an earlier process that linger are no hindrance.
                channel.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    channel.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                channel.bind(target)
                channel.listen(1)
                ours += 1
        except OSError as error:
            # "localhost" has an IPv6 address also where IPv6 is off.
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise
            elsewhere = error
    if elsewhere is not None and not ours:
        raise elsewhere


log = logging.getLogger(__name__)

# Returns why not, or None when all is well. Called in the endpoint's thread; it must not block.
Check = Callable[[], "str | None"]

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PLAIN_TYPE = "text/plain; charset=utf-8"
_JOIN_S = 5.0
# Long enough for an answer that is being made; a daemon that changes its address or ends waits so long at most.
_LAST_ANSWERS_S = 0.25
# Until a process that has no file descriptor left may have one.
_ACCEPT_AGAIN_S = 1.0


@dataclass(frozen=True)
class EndpointLimits:
    """What clients may cost.

    Attributes:
        connections: Connections at the same time; further ones get 503.
        request_bytes: Request line and headers.
        request_s: Time from the connection to the end of the request.
        answer_s: Time for taking the answer.
    """

    connections: int = 8
    request_bytes: int = 8192
    request_s: float = 5.0
    answer_s: float = 10.0


@dataclass(frozen=True)
class _Answer:
    status: HTTPStatus
    body: bytes
    content_type: str = _PLAIN_TYPE

    def encode(self) -> bytes:
        head = [
            f"HTTP/1.1 {self.status.value} {self.status.phrase}",
            f"Content-Type: {self.content_type}",
            f"Content-Length: {len(self.body)}",
            "Cache-Control: no-store",
            "X-Content-Type-Options: nosniff",
            "Connection: close",
        ]
        if self.status is HTTPStatus.METHOD_NOT_ALLOWED:
            head.append("Allow: GET")
        return "\r\n".join([*head, "", ""]).encode() + self.body


class Endpoint:
    """Serves one registry and two checks.

    Args:
        registry: What ``/metrics`` shows.
        healthy: Why the daemon should be restarted; None when it should not.
        ready: Why the daemon does not do its work now; None when it does.
        limits: What clients may cost.
    """

    def __init__(
        self, registry: CollectorRegistry, healthy: Check, ready: Check, limits: EndpointLimits | None = None
    ) -> None:
        self._registry = registry
        self._checks = {"/-/healthy": healthy, "/-/ready": ready}
        self._limits = limits or EndpointLimits()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._connections: dict[asyncio.Task[None], socket.socket] = {}
        self._fault: OSError | None = None

    def start(self, listen: str) -> str:
        """Serve on ``host:port`` and return the address with the port it got.

        Raises:
            ValueError: It is no address.
            OSError: The address is taken, or is none of this host.
        """
        host, port = split_address(listen)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        channel = socket.create_server((host, port), family=family, backlog=2 * self._limits.connections)
        port = channel.getsockname()[1]
        started = threading.Event()
        self._fault = None
        self._thread = threading.Thread(
            target=self._serve_until_stopped, args=(channel, started), name="gpusonde-metrics", daemon=True
        )
        self._thread.start()
        started.wait()
        if self._fault is not None:
            raise self._fault
        return f"{listen.rpartition(':')[0]}:{port}"

    def stop(self) -> None:
        """Close the address and return once nothing is served any more."""
        thread, self._thread = self._thread, None
        if thread is None or self._loop is None or self._stopping is None:
            return
        self._loop.call_soon_threadsafe(self._stopping.set)
        thread.join(_JOIN_S)

    def _serve_until_stopped(self, channel: socket.socket, started: threading.Event) -> None:
        work = self._run(channel, started)
        try:
            asyncio.run(work)
        except OSError as error:  # no file descriptor is left for an event loop
            self._fault = error
        finally:
            work.close()
            channel.close()
            started.set()

    async def _run(self, channel: socket.socket, started: threading.Event) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        channel.setblocking(False)
        # Not asyncio's server: a connection that it has accepted and not begun to serve is left open at its end.
        self._loop.add_reader(channel, self._accept, self._loop, channel)
        started.set()
        await self._stopping.wait()
        self._loop.remove_reader(channel)
        await self._end_connections()

    def _accept(self, loop: asyncio.AbstractEventLoop, channel: socket.socket) -> None:
        try:
            connection, _ = channel.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:  # no file descriptor is left: the connection stays in the queue meanwhile
            log.warning("self metrics: a connection cannot be accepted: %s", error.strerror or error)
            loop.remove_reader(channel)
            loop.call_later(_ACCEPT_AGAIN_S, self._accept_again, loop, channel)
            return
        connection.setblocking(False)
        serving = loop.create_task(self._serve(connection, crowded=len(self._connections) >= self._limits.connections))
        self._connections[serving] = connection
        serving.add_done_callback(self._connections.pop)

    def _accept_again(self, loop: asyncio.AbstractEventLoop, channel: socket.socket) -> None:
        if self._stopping is not None and not self._stopping.is_set():
            loop.add_reader(channel, self._accept, loop, channel)

    async def _end_connections(self) -> None:
        """Let the last answers go, then cut what is left: a client left alone would wait for its own time limit."""
        if self._connections:
            await asyncio.wait(list(self._connections), timeout=_LAST_ANSWERS_S)
        for connection in self._connections.values():
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        if self._connections:
            await asyncio.wait(list(self._connections), timeout=_LAST_ANSWERS_S)

    async def _serve(self, connection: socket.socket, *, crowded: bool) -> None:
        try:
            reader, writer = await asyncio.open_connection(sock=connection, limit=self._limits.request_bytes)
        except OSError:
            connection.close()
            return
        # So that drain() returns when the kernel has everything: an answer that nobody takes then ends by the clock.
        writer.transport.set_write_buffer_limits(0)
        try:
            if crowded:
                answer: _Answer | None = _Answer(HTTPStatus.SERVICE_UNAVAILABLE, b"too many connections\n")
            else:
                answer = await self._answer(reader)
            if answer is not None:
                writer.write(answer.encode())
                await asyncio.wait_for(writer.drain(), self._limits.answer_s)
            writer.close()
        except (OSError, asyncio.TimeoutError):
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader) -> _Answer | None:
        try:
            request = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), self._limits.request_s)
        except asyncio.TimeoutError:
            return _Answer(HTTPStatus.REQUEST_TIMEOUT, b"the request took too long\n")
        except asyncio.LimitOverrunError:
            return _Answer(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, b"the request is too large\n")
        except asyncio.IncompleteReadError:
            return None
        words = request.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return _Answer(HTTPStatus.BAD_REQUEST, b"this is no HTTP/1 request\n")
        if words[0] != b"GET":
            return _Answer(HTTPStatus.METHOD_NOT_ALLOWED, b"only GET is answered\n")
        return self._get(words[1].split(b"?", 1)[0].decode("latin-1"))

    def _get(self, path: str) -> _Answer:
        try:
            if path == "/metrics":
                return _Answer(HTTPStatus.OK, generate_latest(self._registry), _METRICS_TYPE)
            if path in self._checks:
                reason = self._checks[path]()
                status = HTTPStatus.OK if reason is None else HTTPStatus.SERVICE_UNAVAILABLE
                return _Answer(status, f"{reason or 'ok'}\n".encode())
        except Exception:  # a fault in one figure must not take the health checks away
            log.exception("%s could not be answered", path)
            return _Answer(HTTPStatus.INTERNAL_SERVER_ERROR, b"a fault in gpusonde; see the daemon's log\n")
        known = ", ".join(["/metrics", *self._checks])
        return _Answer(HTTPStatus.NOT_FOUND, f"known are {known}\n".encode())


ADDRESS_FILE = "metrics_address"


class Monitoring:
    """Keeps an endpoint where the configuration wants it.

    An address that cannot be used is an error in the log and nothing else: samples are worth more than figures about
    them.

    Args:
        endpoint: Not started yet.
        directory: Where the file ``metrics_address`` tells the address while it is served.
    """

    def __init__(self, endpoint: Endpoint, directory: Path) -> None:
        self._endpoint = endpoint
        self._address_file = directory / ADDRESS_FILE
        self._listen: str | None = None

    def serve(self, listen: str) -> bool:
        """Serve on ``host:port``, or not at all for an empty text; return whether it is as wanted.

        Where the new address cannot be used, the old one is no longer served either: two truths would be worse.
        """
        if listen == self._listen:
            return True
        self.stop()
        if not listen:
            return True
        try:
            address = self._endpoint.start(listen)
        except OSError as error:
            log.error(  # noqa: TRY400 - the cause is the address, not this code
                "self metrics cannot be served on %s: %s; choose another metrics.listen",
                listen,
                error.strerror or error,
            )
            return False
        self._listen = listen
        self._announce(address)
        if is_loopback(listen):
            log.info("self metrics on http://%s/metrics", address)
        else:
            log.warning(
                "self metrics on http://%s/metrics can be read by other hosts, without encryption or authentication",
                address,
            )
        return True

    def stop(self) -> None:
        """Serve nothing any more."""
        if self._listen:
            self._endpoint.stop()
        self._listen = ""
        try:
            # One that was killed has left it behind.
            self._address_file.unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s cannot be removed: %s", self._address_file, error.strerror)

    def _announce(self, address: str) -> None:
        try:
            write_durably(self._address_file, f"{address}\n".encode())
        except OSError as error:
            log.warning("%s cannot be written: %s", self._address_file, error.strerror)
