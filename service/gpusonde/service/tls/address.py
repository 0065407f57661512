"""Which addresses are reachable from this host only."""

from __future__ import annotations

import ipaddress

_SCHEMES = ("dns:///", "ipv4:", "ipv6:")


def is_loopback(address: str) -> bool:
    """Whether ``host:port``, or a gRPC target, means this very host; of what is not understood it says no."""
    if address.startswith(("unix:", "unix-abstract:")):
        return True
    for scheme in _SCHEMES:
        address = address.removeprefix(scheme)
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
