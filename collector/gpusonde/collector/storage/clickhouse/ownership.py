"""Which collector speaks for an agent: the one that it greeted last.

ClickHouse has no transactions, so nobody can be kept from writing. Instead every row that may change carries a version
that begins with the agent's term, the number of times it has changed collectors: what an earlier collector still writes
about an agent, late, loses against what the present one has written.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpusonde.collector.storage.engine import OwnersListener

_NS_PER_MS = 1_000_000
# Milliseconds since 1970 fit until the year 2109; 2^21 changes of collector are one every half minute for two years.
_TERM_SHIFT = 42


@dataclass(frozen=True)
class Owner:
    """The collector that an agent greeted last, and how many times that has changed."""

    collector: str
    term: int


class Ownership:
    """The terms of the agents of this collector.

    Args:
        collector: Its name; no two collectors have the same.
        wall_clock_ns: Unix time in nanoseconds.
    """

    def __init__(self, collector: str, wall_clock_ns: Callable[[], int] = time.time_ns) -> None:
        self.collector = collector
        self._wall_clock_ns = wall_clock_ns
        self._terms: dict[str, int] = {}
        self._listeners: list[OwnersListener] = []
        self._last_ms = 0
        self._lock = threading.Lock()

    def subscribe(self, listener: OwnersListener) -> None:
        """Have ``listener`` called with agents that come from another collector or have gone to one."""
        self._listeners.append(listener)

    def restore(self, owners: Mapping[str, Owner]) -> None:
        """Go on with the agents that greeted this collector last, before it was started anew."""
        with self._lock:
            self._terms = {agent: owner.term for agent, owner in owners.items() if owner.collector == self.collector}

    def take(self, agent_id: str, before: Owner | None) -> Owner:
        """Own an agent that has greeted this collector."""
        same = before is not None and before.collector == self.collector
        term = 1 if before is None else before.term if same else before.term + 1
        with self._lock:
            self._terms[agent_id] = term
        if not same:
            self._tell(frozenset([agent_id]), came=True)
        return Owner(self.collector, term)

    def lose(self, owners: Mapping[str, Owner]) -> frozenset[str]:
        """Compare with what the database says and return the agents that now belong to another collector."""
        with self._lock:
            lost = frozenset(
                agent
                for agent, term in self._terms.items()
                if (owner := owners.get(agent)) and owner.collector != self.collector and owner.term >= term
            )
            for agent in lost:
                del self._terms[agent]
        if lost:
            self._tell(lost, came=False)
        return lost

    def _tell(self, agents: frozenset[str], *, came: bool) -> None:
        for listener in self._listeners:
            listener(agents, came)

    def owns(self, agent_id: str) -> bool:
        """Return whether an agent has greeted this collector last, as far as is known."""
        with self._lock:
            return agent_id in self._terms

    def term(self, agent_id: str) -> int:
        """Return the term of an agent, 0 of one that has not greeted this collector."""
        with self._lock:
            return self._terms.get(agent_id, 0)

    def version(self, agent_id: str) -> int:
        """Return a version above all that this collector has given to rows about an agent."""
        with self._lock:
            self._last_ms = max(self._last_ms + 1, self._wall_clock_ns() // _NS_PER_MS)
            return self._terms.get(agent_id, 0) << _TERM_SHIFT | self._last_ms
