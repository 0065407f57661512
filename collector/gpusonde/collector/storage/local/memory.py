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
        recent: The latest generation that became a segment: trackers that are a second behind need not read it back.
        stored_before: ``stored`` as it was before that.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    active: Generation = field(default_factory=Generation)
    frozen: list[Frozen] = field(default_factory=list)
    durable: dict[tuple[str, str], int] = field(default_factory=dict)
    spools: dict[tuple[str, str], int] = field(default_factory=dict)
    stored: dict[int, int] = field(default_factory=dict)
    recent: Generation = field(default_factory=Generation)
    stored_before: dict[int, int] = field(default_factory=dict)

    def generations(self) -> list[Generation]:
        """Return everything that is not in segments, in order of arrival."""
        return [*(frozen.generation for frozen in self.frozen), self.active]

    def latest_generations(self) -> list[Generation]:
        """Return what is not in segments, and before it what has become one last."""
        return [self.recent, *self.generations()]

    def only_stored(self, spool: int) -> int:
        """Return the sequence up to which a spool is in segments and not in ``latest_generations``."""
        before = self.stored_before if spool in self.recent.reached else self.stored
        return before.get(spool, 0)

    def seal_done(self, frozen: Frozen) -> None:
        """Note that a generation has become a segment."""
        self.frozen.remove(frozen)
        self.recent = frozen.generation
        self.stored_before = {spool: self.stored.get(spool, 0) for spool in frozen.generation.reached}
        self.stored.update(frozen.generation.reached)
