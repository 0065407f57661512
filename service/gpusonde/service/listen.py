"""Addresses to listen on: ``host:port`` as people write them, IPv6 hosts in brackets."""

from __future__ import annotations

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
