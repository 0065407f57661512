"""The part of the local store that is in memory, and the lock around it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from gpusonde.collector.storage.tail import Generation


@dataclass
class Frozen:
    """A generation on its way into a segment, and the last log part that holds it until then."""

    generation: Generation
    last_part: int


@dataclass
class Memory:
    """What is not in segments yet, and how far everything is.

    Attributes:
        lock: Held while any of it is changed, and while a consistent view of it and the segment catalogue is taken.
        active: What has arrived since the last seal.
        frozen: What waits to become segments, oldest first.
        durable: (agent, spool id) -> durable sequence.
        spools: (agent, spool id) -> number of the spool.
        stored: Number of a spool -> sequence up to which it is in segments.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    active: Generation = field(default_factory=Generation)
    frozen: list[Frozen] = field(default_factory=list)
    durable: dict[tuple[str, str], int] = field(default_factory=dict)
    spools: dict[tuple[str, str], int] = field(default_factory=dict)
    stored: dict[int, int] = field(default_factory=dict)

    def generations(self) -> list[Generation]:
        """Return everything that is not in segments, in order of arrival."""
        return [*(frozen.generation for frozen in self.frozen), self.active]
