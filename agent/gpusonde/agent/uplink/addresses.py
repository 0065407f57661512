"""``Addresses``: the collectors that an agent may go to, in the order in which it wants them.

Every agent puts the same collectors into an order of its own, by a hash of its id and their addresses (rendezvous
hashing): agents spread evenly without knowing of each other, and when a collector goes, only its agents move.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ipaddress
import logging
import math
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gpusonde.agent.config import is_service
from gpusonde.service.process import within

_LOG = logging.getLogger(__name__)
_LOOKUP_TIMEOUT_S = 5.0
_SCHEMES = ("unix:", "unix-abstract:", "dns:", "ipv4:", "ipv6:")


@dataclass(frozen=True)
class Address:
    """One collector.

    Attributes:
        target: ``host:port``.
        server_name: Name that its certificate must have, where that is not the host of the target.
        priority: Collectors of a higher number are for when those of lower ones are gone.
        weight: Share of the agents, beside others of the same priority.
    """

    target: str
    server_name: str = ""
    priority: int = 0
    weight: int = 1


def look_up(parts: Iterable[str]) -> list[Address]:
    """Return the collectors that parts of ``uplink.collector`` stand for; blocks.

    Raises:
        OSError: A name cannot be looked up.
    """
    found: list[Address] = []
    for part in parts:
        found += look_up_service(part) if is_service(part) else _look_up_host(part)
    return list(dict.fromkeys(found))


def look_up_service(name: str) -> list[Address]:
    """Return the collectors of an SRV record.

    Raises:
        OSError: It cannot be looked up.
    """
    import dns.exception  # noqa: PLC0415 - an extra that only SRV records need
    import dns.resolver  # noqa: PLC0415

    try:
        answer = dns.resolver.resolve(name, "SRV", lifetime=_LOOKUP_TIMEOUT_S)
    except dns.exception.DNSException as error:
        raise OSError(f"SRV record {name}: {error}") from error
    return [
        Address(f"{entry.target.to_text(omit_final_dot=True)}:{entry.port}", "", entry.priority, max(1, entry.weight))
        for entry in answer
    ]


def _look_up_host(part: str) -> list[Address]:
    """Return an address as it is, or each of several hosts that its name stands for."""
    host, _, port = part.rpartition(":")
    if _is_literal(part):
        return [Address(part)]
    found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    # A host of both families is one collector.
    families = [
        sorted({str(entry[4][0]) for entry in found if entry[0] == family})
        for family in (socket.AF_INET, socket.AF_INET6)
    ]
    hosts = max(families, key=len)
    if len(hosts) < 2:
        return [Address(part)]
    return [Address(f"[{one}]:{port}" if ":" in one else f"{one}:{port}", host) for one in hosts]


def _is_literal(part: str) -> bool:
    """Whether there is nothing to look up that gRPC would not look up itself."""
    host, _, port = part.rpartition(":")
    if part.startswith(_SCHEMES) or not port.isdigit() or host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host.strip("[]"))
        return True
    return False


class Addresses:
    """The collectors of one agent, and which of them have failed it since one served it last.

    Args:
        agent_id: Decides on the order.
        collectors: The parts of ``uplink.collector``.
        look_up: Says what the parts stand for; blocks, may raise OSError.
    """

    def __init__(
        self,
        agent_id: str,
        collectors: Sequence[str],
        look_up: Callable[[Sequence[str]], list[Address]] = look_up,
    ) -> None:
        self._agent_id = agent_id
        self._look_up = look_up
        self._problem = ""
        self.configure(collectors)

    def configure(self, collectors: Sequence[str]) -> None:
        """Begin anew with other collectors."""
        self._parts = collectors
        self._known = [Address(part) for part in self._parts if not is_service(part)]
        self._failed: set[Address] = set()

    async def refresh(self) -> None:
        """Look names up again; what was known stays while that fails."""
        if all(not is_service(part) and _is_literal(part) for part in self._parts):
            self._known = self._ranked(self._known)
            return
        try:
            found = await within(asyncio.to_thread(self._look_up, self._parts), _LOOKUP_TIMEOUT_S)
        except (OSError, asyncio.TimeoutError) as error:
            problem = f"{', '.join(self._parts)} cannot be looked up ({error or 'no answer'})"
            if problem != self._problem:
                _LOG.warning("%s: going on with the collectors that are known", problem)
            self._problem = problem
        else:
            self._problem = ""
            self._known = found or self._known
        self._known = self._ranked(self._known)
        self._failed &= set(self._known)

    def _ranked(self, addresses: Iterable[Address]) -> list[Address]:
        return sorted(addresses, key=lambda address: (address.priority, self._distance(address), address.target))

    def _distance(self, address: Address) -> float:
        digest = hashlib.blake2b(f"{self._agent_id}\n{address.target}".encode(), digest_size=8).digest()
        uniform = (int.from_bytes(digest, "little") + 1) / (1 << 64)
        # Exponentially distributed at the rate of the weight: the least of several is each one's in proportion to it.
        return -math.log(uniform) / address.weight

    def allows(self, target: str) -> bool:
        """Whether an address is one of the agent's own collectors."""
        return target in self._parts or any(address.target == target for address in self._known)

    @property
    def several(self) -> bool:
        """Whether there is, or may come to be, more than one collector."""
        return len(self._known) > 1 or any(map(is_service, self._parts))

    @property
    def home(self) -> Address | None:
        """The collector that this agent wants most; None while none is known."""
        return self._known[0] if self._known else None

    def choose(self) -> Address | None:
        """Return the first collector that has not failed; None while none is known."""
        return next((address for address in self._known if address not in self._failed), None)

    def fail(self, address: Address) -> bool:
        """Note that a collector does not serve; return whether there is one left that may."""
        if address not in self._known:
            return False
        self._failed.add(address)
        if len(self._failed) < len(self._known):
            return True
        self._failed.clear()
        return False

    def forgive(self) -> None:
        """Count on all of them again: one serves."""
        self._failed.clear()
