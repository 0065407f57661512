"""What stands between a client and the collector that it cannot reach.

gRPC tells all of it under one status, UNAVAILABLE, in words of its TLS library. This asks once more with plain sockets,
which tell apart a wrong name, an authority that is not known, a certificate that has expired and a port of another
service. It decides nothing and sends nothing of the user's: gRPC refuses whom it refuses.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gpusonde.service.tls.certificates import locate, read_authorities
from gpusonde.service.tls.client import ClientSecurity, host_and_port, proxy_of

Kind = Literal[
    "proxy",
    "host",
    "silent",
    "nobody",
    "path",
    "http",
    "encrypted",
    "plain",
    "authority",
    "expired",
    "name",
    "stranger",
]
# Codes of OpenSSL's verification (x509_vfy.h).
_NOT_YET_VALID, _EXPIRED = 9, 10
_MOST_NAMES = 8
# What a client of HTTP/2 begins with, and what the server's frame that acknowledges its settings begins with.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
_ACKNOWLEDGED = b"\0\0\0\4\1"
_MOST_HEARD_BYTES = 1 << 16


@dataclass(frozen=True)
class Obstacle:
    """Why no collector answers.

    Attributes:
        kind: ``proxy`` one is in use, ``host`` its name is unknown, ``silent`` nothing came back, ``nobody`` listens,
            ``path`` the network refuses, ``http`` a server of another protocol, ``encrypted`` it wants TLS, ``plain``
            it has no TLS, ``authority`` its certificate comes from somebody else, ``expired`` it is not valid now,
            ``name`` it is for other names, ``stranger`` it wants a certificate of the client's.
        words: A clause about it, without advice.
    """

    kind: Kind
    words: str


def find_obstacle(
    target: str, security: ClientSecurity, timeout_s: float = 3.0, environment: Mapping[str, str] = os.environ
) -> Obstacle | None:
    """Look what is at an address; takes up to about four times ``timeout_s``. None where nothing is wrong with it.

    Args:
        target: ``host:port``.
        security: The files that the client came with.
        timeout_s: For each connection and each answer.
        environment: Where a proxy may be named.
    """
    if target.startswith("unix"):
        return None
    if proxy := proxy_of(target, environment):
        return Obstacle("proxy", f"grpc_proxy names the proxy {proxy}, through which it is asked")
    try:
        if security.encrypts:
            return _with_tls(target, security, timeout_s)
        return _without_tls(target, timeout_s)
    except (socket.gaierror, UnicodeError):
        # A label that is empty or too long is no name at all.
        return Obstacle("host", "the host's name is not known here")
    except ConnectionRefusedError:
        return Obstacle("nobody", "nothing listens there")
    except TimeoutError:
        return Obstacle("silent", f"nothing comes back within {timeout_s:g} s")
    except OSError as error:
        return Obstacle("path", error.strerror or str(error))


def _without_tls(target: str, timeout_s: float) -> Obstacle | None:
    # Most often nothing is wrong any more, and a context of TLS takes an agent some MiB for good.
    with _connected(target, timeout_s) as plain:
        if _speaks_http2(plain):
            return None
    context = _context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with (
        contextlib.suppress(ssl.SSLError, ConnectionError, TimeoutError),
        _connected(target, timeout_s) as plain,
        context.wrap_socket(plain),
    ):
        return Obstacle("encrypted", "it speaks TLS")
    return _other_protocol(target, timeout_s)


def _with_tls(target: str, security: ClientSecurity, timeout_s: float) -> Obstacle | None:
    context = _context()
    # The chain first, so that a wrong name can be told with the right ones.
    context.check_hostname = False
    context.load_verify_locations(cadata=read_authorities(locate(security.ca)).decode("ascii"))
    if security.certificate:
        context.load_cert_chain(locate(security.certificate), locate(security.key), password=lambda: "")
    wanted = security.server_name or host_and_port(target)[0]
    with _connected(target, timeout_s) as plain:
        try:
            with context.wrap_socket(plain, server_hostname=wanted) as encrypted:
                names = _names(encrypted)
                if not any(_is_for(name, wanted) for name in names):
                    told = ", ".join(names[:_MOST_NAMES]) or "nobody"
                    return Obstacle("name", f"its certificate is for {told}, not for {wanted}")
                # TLS 1.3 refuses a client only after the client's own handshake, and the reason may not arrive.
                if not _speaks_http2(encrypted) and not security.certificate:
                    return Obstacle("stranger", "it hangs up on who shows no certificate")
                return None
        except ssl.SSLCertVerificationError as error:
            if error.verify_code in (_EXPIRED, _NOT_YET_VALID):
                when = "has expired" if error.verify_code == _EXPIRED else "is not valid yet"
                return Obstacle("expired", f"its certificate {when} by the clock of this host")
            return Obstacle(
                "authority", f"its certificate is of no authority in {security.ca} ({error.verify_message})"
            )
        except (ssl.SSLError, ConnectionError):
            pass
    with _connected(target, timeout_s) as plain:
        # One that is just ending hangs up, too: only an answer proves it.
        if _speaks_http2(plain):
            return Obstacle("plain", "it does not speak TLS")
    return _other_protocol(target, timeout_s)


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    return context


def _connected(target: str, timeout_s: float) -> socket.socket:
    connection = socket.create_connection(host_and_port(target), timeout_s)
    connection.settimeout(timeout_s)
    return connection


def _speaks_http2(connection: socket.socket) -> bool:
    """Whether settings of HTTP/2 are acknowledged, within the socket's timeout in all."""
    heard = b""
    until_s = time.monotonic() + (connection.gettimeout() or 0.0)
    with contextlib.suppress(ssl.SSLError, ConnectionError, TimeoutError):
        connection.sendall(_PREFACE)
        while _ACKNOWLEDGED not in heard and len(heard) < _MOST_HEARD_BYTES and time.monotonic() < until_s:
            if not (more := connection.recv(1024)):
                break
            heard += more
    return _ACKNOWLEDGED in heard


def _other_protocol(target: str, timeout_s: float) -> Obstacle | None:
    """Ask as a browser would: gRPC answers that with frames of HTTP/2, most other services in words."""
    with _connected(target, timeout_s) as plain, contextlib.suppress(ConnectionError, TimeoutError):
        plain.sendall(b"GET / HTTP/1.0\r\n\r\n")
        if plain.recv(16).startswith(b"HTTP/1"):
            return Obstacle("http", "an HTTP server listens there, and no gRPC")
    return None


def _names(encrypted: ssl.SSLSocket) -> list[str]:
    certificate: Any = encrypted.getpeercert() or {}
    return [name for kind, name in certificate.get("subjectAltName", ()) if kind in ("DNS", "IP Address")]


def _is_for(name: str, wanted: str) -> bool:
    """Whether a name of a certificate covers a host; ``*`` stands for one label (RFC 6125)."""
    if name.startswith("*."):
        return name[1:].lower() == wanted[wanted.find(".") :].lower()
    with contextlib.suppress(OSError):
        # IPv6 addresses have many spellings.
        return socket.inet_pton(socket.AF_INET6, name) == socket.inet_pton(socket.AF_INET6, wanted)
    return name.lower() == wanted.lower()
