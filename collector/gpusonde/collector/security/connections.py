"""``Connections``: makes room where connections on which nobody calls keep others out.

gRPC's server for Python says nothing of a connection before there is a call on it, and turns away whoever comes last
when there are too many. The operating system knows all: the process looks at its own sockets, and when they become
scarce it ends those without a call, of the addresses that hold most of them first. What gRPC sees is a client that
went away.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import logging
import os
import socket
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from urllib.parse import unquote

_LOG = logging.getLogger(__name__)
_LOG_INTERVAL_S = 10.0
_PAUSE_S = 0.5
_LEAST_PAUSE_S = 0.05
_OPEN_FILES = "/proc/self/fd"
_IPV6_NETWORK_BITS = 64  # what one customer or host is given; within it, addresses cost nothing


@functools.lru_cache(maxsize=1024)
def address_of(peer: str) -> str:
    """Return the address in gRPC's word for a caller, of IPv6 its network; what is no such word, as it is."""
    host = unquote(peer.partition(":")[2]).rpartition(":")[0].strip("[]")
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return peer
    if address.version == 6:
        return str(ipaddress.ip_network((address, _IPV6_NETWORK_BITS), strict=False))
    return str(address)


class Connections:
    """The connections of one server.

    Args:
        refused: Where those that were ended are counted, as ``idle_connections``.
        clock: Monotonic seconds.
    """

    def __init__(self, refused: Counter[str], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._refused = refused
        self._clock = clock
        self._calls: Counter[str] = Counter()
        self._port = 0
        self._most = 0
        self._known: dict[str, int] = {}
        self._looks = 0
        self._logged_s = -_LOG_INTERVAL_S

    def watch(self, port: int, most: int) -> None:
        """Look after the connections to a port, of which there may be so many."""
        self._port, self._most = port, most

    @contextlib.contextmanager
    def call(self, peer: str) -> Iterator[None]:
        """Leave a connection alone for as long as a call goes on."""
        self._calls[peer] += 1
        try:
            yield
        finally:
            self._calls[peer] -= 1
            if not self._calls[peer]:
                del self._calls[peer]

    async def run(self) -> None:
        """Make room when it is needed, until this is cancelled."""
        while True:
            began_s = self._clock()
            has_ended = await asyncio.to_thread(self.make_room)
            # Strangers come back at once; looking after them may take a fifth of a core.
            await asyncio.sleep(max(_LEAST_PAUSE_S, 4 * (self._clock() - began_s)) if has_ended else _PAUSE_S)

    def make_room(self) -> bool:
        """End connections without a call where fewer than an eighth of the room is left; return whether any was ended.

        Runs on any thread.
        """
        allowed = self._most - self._most // 8
        try:
            numbers = os.listdir(_OPEN_FILES)
        except OSError:  # not Linux, or no file can be opened: the limits of time are left
            return False
        if len(numbers) <= allowed:
            return False
        found = {}
        for number in map(int, numbers):
            with _own_socket(number) as channel:
                if channel and (peer := _peer_of(channel, self._port)):
                    found[peer] = number
        surplus = len(found) - allowed
        self._looks += 1
        self._known = {peer: self._known.get(peer, self._looks) for peer in found}
        if surplus <= 0:
            return False
        calling = frozenset(self._calls)
        return self._end(self._spare(set(found) - calling)[:surplus], found)

    def _spare(self, idle: set[str]) -> list[str]:
        """Return idle connections: first those whose addresses have most others that are newer."""
        by_address: dict[str, list[str]] = defaultdict(list)
        for peer in sorted(idle, key=lambda peer: self._known[peer], reverse=True):
            by_address[address_of(peer)].append(peer)
        ranked = [(rank, peer) for peers in by_address.values() for rank, peer in enumerate(peers)]
        return [peer for _, peer in sorted(ranked, reverse=True)]

    def _end(self, peers: list[str], numbers: dict[str, int]) -> bool:
        ended: Counter[str] = Counter()
        for peer in peers:
            with _own_socket(numbers[peer]) as channel:
                # Meanwhile there may be a call on it, or its number is that of another file.
                if channel and _peer_of(channel, self._port) == peer and peer not in self._calls:
                    with contextlib.suppress(OSError):
                        channel.shutdown(socket.SHUT_RDWR)
                    ended[address_of(peer)] += 1
        self._refused["idle_connections"] += ended.total()
        if ended and self._clock() - self._logged_s >= _LOG_INTERVAL_S:
            self._logged_s = self._clock()
            address, count = ended.most_common(1)[0]
            _LOG.warning(
                "%d connections without a call were ended, %d of them of %s: there is room for %d connections"
                " (ingest.max_agents, LimitNOFILE of the unit)", ended.total(), count, address, self._most,
            )  # fmt: skip
        return bool(ended)


@contextlib.contextmanager
def _own_socket(number: int) -> Iterator[socket.socket | None]:
    """Yield a copy of one of this process's sockets by its number; None for any other file, or none."""
    try:
        copy = os.dup(number)
    except OSError:
        yield None
        return
    try:
        channel = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        yield None
        return
    with channel:
        yield channel


def _peer_of(channel: socket.socket, port: int) -> str:
    """Return gRPC's word for the other end of a connection to the port; empty for any other socket."""
    if channel.family not in (socket.AF_INET, socket.AF_INET6):
        return ""
    try:
        name = channel.getpeername() if channel.getsockname()[1] == port else None
    except OSError:  # it listens, or has ended
        name = None
    if name is None:
        return ""
    host = str(name[0]).removeprefix("::ffff:")
    if ":" not in host:
        return f"ipv4:{host}:{name[1]}"
    zone = f"%25{name[3]}" if name[3] else ""
    return f"ipv6:%5B{host}{zone}%5D:{name[1]}"
