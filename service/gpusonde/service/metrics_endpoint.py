"""``Endpoint`` and ``Monitoring``: ``/metrics``, ``/-/healthy`` and ``/-/ready`` of a daemon over HTTP.

They answer from threads of their own while the daemon's event loop is stuck, which is when their answers matter. It is
not a web server: GET only, one request per connection, and bounds on connections, the size of a request and the time
that a client may take. Who asks slowly, or nothing, makes room for whoever comes later: a health check that strangers
could keep from its answer would have the daemon restarted. ``Monitoring`` keeps it where the configuration wants it; it
is never a reason to stop.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from gpusonde.service.config import option
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


def listen_option(
    default: str, served: str = "/metrics, /-/healthy and /-/ready over HTTP", *, live: bool = True
) -> Any:
    """Declare the key ``metrics.listen`` of a daemon, or another; see ``gpusonde.service.config.option``."""
    return option("text", default, f"host:port of {served}; empty: not served", check=_check_listen, live=live)


def _check_listen(text: str) -> None:
    if text:
        split_address(text)


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

# Returns why not, or None when all is well. Called in a thread of the endpoint; it must not block.
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
        connections: Connections at the same time. For one more, that whose request is awaited longest gets 503, or
            the new one where all are being answered.
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


def _make_thread(work: Callable[[socket.socket], None], channel: socket.socket) -> threading.Thread:
    return threading.Thread(target=work, args=(channel,), name="gpusonde-metrics", daemon=True)


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
        self._listener: socket.socket | None = None
        self._accepting: threading.Thread | None = None
        self._stopping = threading.Event()
        self._serving: dict[socket.socket, threading.Thread] = {}
        # Those whose request has not come in whole yet, the oldest first.
        self._asking: dict[socket.socket, None] = {}

    def start(self, listen: str) -> str:
        """Serve on ``host:port`` and return the address with the port it got.

        Raises:
            ValueError: It is no address.
            OSError: The address is taken, or is none of this host.
        """
        host, port = split_address(listen)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=2 * self._limits.connections)
        self._stopping.clear()
        self._accepting = _make_thread(self._accept_until_stopped, self._listener)
        self._accepting.start()
        return f"{listen.rpartition(':')[0]}:{self._listener.getsockname()[1]}"

    def stop(self) -> None:
        """Close the address and return once nothing is served any more."""
        listener, self._listener = self._listener, None
        if listener is None or self._accepting is None:
            return
        self._stopping.set()
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # its thread returns from accept()
        self._accepting.join(_JOIN_S)
        listener.close()
        # Let the last answers go, then cut what is left: a client left alone would wait for its own time limit.
        self._join_connections()
        for connection in tuple(self._serving):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._join_connections()

    def _join_connections(self) -> None:
        until_s = time.monotonic() + _LAST_ANSWERS_S
        for thread in tuple(self._serving.values()):
            thread.join(max(0.0, until_s - time.monotonic()))

    def _accept_until_stopped(self, listener: socket.socket) -> None:
        while not self._stopping.is_set():
            try:
                connection, _ = listener.accept()
            except ConnectionAbortedError:
                continue
            except OSError as error:
                if not self._stopping.is_set():  # no file descriptor is left: connections stay in the queue meanwhile
                    log.warning("self metrics: a connection cannot be accepted: %s", error.strerror or error)
                    self._stopping.wait(_ACCEPT_AGAIN_S)
                continue
            if len(self._serving) >= self._limits.connections and not self._make_room():
                with contextlib.closing(connection), contextlib.suppress(OSError):
                    connection.setblocking(False)
                    connection.send(self._too_many().encode())
                continue
            self._asking[connection] = None
            thread = self._serving[connection] = _make_thread(self._serve, connection)
            thread.start()

    def _make_room(self) -> bool:
        """Have the connection whose request is awaited longest end; return whether there was one."""
        if len(self._serving) >= 2 * self._limits.connections:
            return False  # those that were told to end have not done so yet
        for connection in tuple(self._asking):
            try:
                del self._asking[connection]
            except KeyError:  # its request is there
                continue
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RD)  # its thread answers
            return True
        return False

    def _too_many(self) -> _Answer:
        text = f"more than {self._limits.connections} connections are open, and this one has asked nothing yet\n"
        return _Answer(HTTPStatus.SERVICE_UNAVAILABLE, text.encode())

    def _serve(self, connection: socket.socket) -> None:
        try:
            answer = self._read_and_answer(connection)
            if answer is not None:
                connection.settimeout(self._limits.answer_s)  # for all of it
                connection.sendall(answer.encode())
        except OSError as error:  # whoever asked has gone, or takes too long
            log.debug("self metrics: a connection has ended: %s", error)
        finally:
            self._asking.pop(connection, None)
            del self._serving[connection]
            connection.close()

    def _read_and_answer(self, connection: socket.socket) -> _Answer | None:
        """Read one request and return its answer; None when the client has gone."""
        until_s = time.monotonic() + self._limits.request_s
        request = b""
        while b"\r\n\r\n" not in request:
            if len(request) >= self._limits.request_bytes:
                return _Answer(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, b"the request is too large\n")
            connection.settimeout(max(1e-3, until_s - time.monotonic()))
            try:
                part = connection.recv(self._limits.request_bytes - len(request))
            except TimeoutError:
                return _Answer(HTTPStatus.REQUEST_TIMEOUT, b"the request took too long\n")
            if not part:
                return None if connection in self._asking else self._too_many()
            request += part
        self._asking.pop(connection, None)
        return self.answer(request)

    def answer(self, request: bytes) -> _Answer:
        """Return the answer to a request that has come in whole."""
        words = request.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return _Answer(HTTPStatus.BAD_REQUEST, b"this is no HTTP/1 request\n")
        if words[0] != b"GET":
            return _Answer(HTTPStatus.METHOD_NOT_ALLOWED, b"only GET is answered\n")
        path = words[1].split(b"?", 1)[0].decode("latin-1")
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
        return _Answer(HTTPStatus.NOT_FOUND, f"known are {', '.join(['/metrics', *self._checks])}\n".encode())


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
