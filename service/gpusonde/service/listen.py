"""Addresses to listen on: ``host:port`` as people write them, IPv6 hosts in brackets."""

from __future__ import annotations

import errno
import socket

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
