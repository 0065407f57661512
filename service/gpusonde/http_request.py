"""One HTTP request within a time and a size, whoever answers how slowly; redirections are not followed."""

from __future__ import annotations

import contextlib
import functools
import http.client
import io
import queue
import socket
import ssl
import threading
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_CHUNK_BYTES = 1 << 16
_LONGEST_REFUSAL_BYTES = 4096


def send(
    request: urllib.request.Request,
    timeout_s: float,
    *,
    silence_s: float | None = None,
    most_bytes: int = 0,
    tls: ssl.SSLContext | None = None,
) -> bytes:
    """Return the body of the answer, of a longer one ``most_bytes`` and one more.

    Args:
        request: To http or https. A proxy of the site has no business with this very host, as for gRPC.
        timeout_s: For all of it.
        silence_s: For every wait within it; ``timeout_s`` if None.
        most_bytes: Of the body; what goes beyond is not read.
        tls: Of a server that the system's authorities do not know.

    Raises:
        TimeoutError: ``timeout_s`` are over.
        urllib.error.HTTPError: It was refused, or leads elsewhere; holds the beginning of what was said.
        OSError: There is no answer.
    """
    connecting = _Connecting(tls)
    came: queue.SimpleQueue[bytes | OSError] = queue.SimpleQueue()

    def exchange() -> None:
        direct = [urllib.request.ProxyHandler({})] if urlsplit(request.full_url).hostname in _LOOPBACK else []
        opener = urllib.request.build_opener(_NoRedirect, connecting, *direct)
        try:
            with opener.open(request, timeout=silence_s or timeout_s) as answer:
                came.put(_body(answer, most_bytes))
        except urllib.error.HTTPError as refused:
            came.put(_read(refused))
        except TimeoutError:
            came.put(urllib.error.URLError(f"nothing came for {silence_s or timeout_s:g} s"))
        except OSError as error:
            came.put(error)
        except Exception as error:  # what came was no HTTP, or the address is none
            came.put(urllib.error.URLError(f"{type(error).__name__}: {error}"))
        finally:
            if connecting.connection is not None:
                connecting.connection.close()

    # Names are looked up without a limit: not even that holds the caller, or the end of the process.
    threading.Thread(target=exchange, daemon=True).start()
    try:
        body = came.get(timeout=timeout_s)
    except queue.Empty:
        if connecting.connection is not None:
            connecting.connection.end()
        raise TimeoutError(f"it took longer than {timeout_s:g} s") from None
    if isinstance(body, OSError):
        raise body
    return body


def _body(answer: http.client.HTTPResponse, most_bytes: int) -> bytes:
    body = bytearray()
    while len(body) <= most_bytes:
        chunk = answer.read1(min(_CHUNK_BYTES, most_bytes + 1 - len(body)))
        if not chunk:
            # read1 takes the end of the connection for that of the answer.
            if answer.length:
                raise http.client.IncompleteRead(bytes(body), answer.length)
            break
        body += chunk
    return bytes(body)


def _read(refused: urllib.error.HTTPError) -> urllib.error.HTTPError:
    said = b""
    with refused, contextlib.suppress(OSError, ValueError, http.client.HTTPException):
        said = refused.read(_LONGEST_REFUSAL_BYTES)
    return urllib.error.HTTPError(refused.url, refused.code, refused.reason, refused.headers, io.BytesIO(said))


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Keeps what is told, and the secret that goes with it, from going where nobody sent it."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none: the answer becomes an ``HTTPError``."""


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

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        super().__init__()
        self._tls = tls
        self.connection: _EndableConnection | None = None

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(functools.partial(self._made, _EndableConnection), req)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(functools.partial(self._made, _EndableTlsConnection), req, context=self._tls)

    def _made(self, kind: type[_EndableConnection], host: str, **how: Any) -> _EndableConnection:
        self.connection = kind(host, **how)
        return self.connection
