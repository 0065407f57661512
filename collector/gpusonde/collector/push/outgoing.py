"""What leaves the collector over HTTP, and the headers that go with it."""

from __future__ import annotations

import contextlib
import functools
import http.client
import queue
import re
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from gpusonde.errors import TlsError
from gpusonde.service.tls.certificates import locate, read_secret

_HEADER = re.compile(r"([A-Za-z0-9!#$%&'*+.^_`|~-]+)[ \t]*:[ \t]*([\x20-\x7e]*)")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Keeps what is told from going where the configuration did not send it."""

    def redirect_request(self, *_: Any) -> None:
        return None


class _EndableConnection(http.client.HTTPConnection):
    """Ends when another thread says so: a socket's timeout is one of silence, which a byte now and then prolongs."""

    _line: socket.socket | None = None
    _is_ended = False

    def connect(self) -> None:
        super().connect()
        # A second name: the handshake of TLS takes the first one away.
        self._line = self.sock.dup()
        if self._is_ended:
            raise TimeoutError("connected too late")

    def close(self) -> None:
        super().close()
        if self._line is not None:
            self._line.close()

    def end(self) -> None:
        """Have what goes on fail."""
        self._is_ended = True
        line = self._line or self.sock
        if line is not None:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)


class _EndableTlsConnection(http.client.HTTPSConnection, _EndableConnection):
    """The same with TLS."""


class _Connecting(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Keeps the connection of its request."""

    def __init__(self) -> None:
        super().__init__()
        self.connection: _EndableConnection | None = None

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(functools.partial(self._made, _EndableConnection), req)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(functools.partial(self._made, _EndableTlsConnection), req)

    def _made(self, kind: type[_EndableConnection], host: str, *, timeout: float) -> _EndableConnection:
        self.connection = kind(host, timeout=timeout)
        return self.connection


def post(address: str, body: bytes, headers: Mapping[str, str], timeout_s: float) -> None:
    """Send one body within a time, whoever answers how slowly; redirections are not followed.

    Raises:
        OSError: It was not taken.
    """
    connecting = _Connecting()
    failed: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()

    def send() -> None:
        error: Exception | None = None
        try:
            request = urllib.request.Request(address, body, dict(headers))  # noqa: S310 - the configuration checks it
            with urllib.request.build_opener(_NoRedirect, connecting).open(request, timeout=timeout_s):
                pass
        except urllib.error.HTTPError as refused:
            refused.close()
            error = refused
        except Exception as other:
            error = other
        finally:
            if connecting.connection is not None:
                connecting.connection.close()
            failed.put(error)

    # Names are looked up without a limit: not even that holds the caller, or the end of the process.
    threading.Thread(target=send, daemon=True).start()
    try:
        error = failed.get(timeout=timeout_s)
    except queue.Empty:
        if connecting.connection is not None:
            connecting.connection.end()
        raise TimeoutError(f"it took longer than {timeout_s:g} s") from None
    if isinstance(error, OSError):
        raise error
    if error is not None:  # what came was no HTTP, or the address is none
        raise OSError(f"{type(error).__name__}: {error}") from error


def read_headers(path: str) -> dict[str, str]:
    """Return the headers of a file of ``Name: value`` lines, and none where there is no file to read.

    Raises:
        OSError: It cannot be read, or a line is no header.
    """
    if not path:
        return {}
    try:
        lines = read_secret(locate(path)).decode("latin-1").splitlines()
    except TlsError as error:
        raise OSError(str(error)) from error
    found = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        header = _HEADER.fullmatch(line.strip())
        if header is None:
            # Without showing it: it may be a secret.
            raise OSError(f"{path}: line {number} is no header; write Name: value")
        found[header[1]] = header[2]
    return found
