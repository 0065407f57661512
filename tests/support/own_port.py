"""Ports of TCP that a test may free and take again."""

from __future__ import annotations

import random
import socket

# Below those that the kernel gives to connections and to whoever asks for any: one of these would be taken by the
# next connection of another test as soon as the server that had it is killed.
_PORTS = range(20_000, 32_000)
# UDP has ports of its own: one that is bound marks the TCP port of its number as taken, by the tests of this process.
_marks: list[socket.socket] = []


def own_port(host: str = "127.0.0.1") -> int:
    """Return a port on which nothing listens and that no other test is given while this process lives."""
    for port in random.SystemRandom().sample(_PORTS, 1000):
        mark = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            mark.bind((host, port))
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, port))
        except OSError:
            mark.close()
            continue
        _marks.append(mark)
        return port
    raise AssertionError(f"no free port of {_PORTS} among a thousand")
