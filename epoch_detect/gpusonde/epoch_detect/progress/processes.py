"""``Processes``: what the processes of a job do beside its GPUs, as far as somebody has looked lately."""

from __future__ import annotations

import math
from dataclasses import dataclass

_WRITES = 1e6  # bytes per second of a job that saves
_COMPUTES = 0.3  # processors, or of what the job takes while it trains
_RESTS = 0.1  # processors of a job that rests
_MUCH = 0.5  # of what it takes while it trains, and a processor at least
_USUAL_RATE = 0.05  # at which what it takes while it trains is followed
_LOOKS_OLD_S = 45.0  # after which what the processes did is not known any more; agents tell it twice a minute
_WITHOUT_S = 10.0  # of work, that go on without some of the processes: those are not needed


@dataclass
class Processes:
    """The latest look at them; NaN where nobody told.

    Attributes:
        time_s: Of the look, on the time axis of the ticks.
        written_per_s: Bytes that they write per second.
        processors: Seconds of processor time per second.
        usual_processors: The same, while the job works.
        alive: How many hold its GPUs; -1 where nobody knows.
        worked_with: The fewest that the job has worked with: others may come and go.
        enough_s: When there were as many.
    """

    time_s: float = -math.inf
    written_per_s: float = math.nan
    processors: float = math.nan
    usual_processors: float = math.nan
    alive: int = -1
    worked_with: int = 0
    enough_s: float = -math.inf

    def note(self, time_s: float, written_per_s: float, processors: float, alive: int | None, *, works: bool) -> bool:
        """Take a look.

        Args:
            time_s: When, on the time axis of the ticks.
            written_per_s: Bytes per second.
            processors: Seconds of processor time per second.
            alive: How many there are; None where nobody knows.
            works: Whether the job's GPUs worked then.

        Returns:
            Whether none is left of those that there were.
        """
        self.time_s, self.written_per_s, self.processors = time_s, written_per_s, processors
        are_gone = False
        if alive is not None:
            are_gone = not alive and self.alive > 0
            self.alive = alive
            if works and alive:
                self._note_work(time_s)
        if math.isfinite(processors) and works:
            usual = self.usual_processors
            self.usual_processors = processors if math.isnan(usual) else usual + _USUAL_RATE * (processors - usual)
        return are_gone

    def _note_work(self, now_s: float) -> None:
        """Take it that the job works with those that are alive, if it has for a while."""
        if self.alive >= self.worked_with > 0:
            self.enough_s = now_s
        elif not self.worked_with or now_s - self.enough_s > _WITHOUT_S:
            self.worked_with, self.enough_s = self.alive, now_s

    def at(self, now_s: float, since_s: float = -math.inf) -> Processes:
        """What is known now of the time since then: nothing, if nobody has looked, or long ago."""
        is_known = now_s - self.time_s <= _LOOKS_OLD_S and self.time_s >= since_s
        return self if is_known else Processes(usual_processors=self.usual_processors)

    @property
    def write(self) -> bool:
        """Whether they save something."""
        return self.written_per_s > _WRITES

    @property
    def rest(self) -> bool:
        """Whether they take no processor."""
        return self.processors < _RESTS

    @property
    def compute(self) -> bool:
        """Whether they take some, of that of any job."""
        return self.processors > _COMPUTES

    @property
    def compute_as_usual(self) -> bool:
        """Whether they take some, of what theirs take while they train."""
        usual = self.usual_processors if math.isfinite(self.usual_processors) else 1.0
        return self.processors > _COMPUTES * min(1.0, usual)

    @property
    def compute_much(self) -> bool:
        """Whether they take half of what theirs take while they train, and a processor."""
        return self.processors > max(1.0, _MUCH * self.usual_processors)

    @property
    def lost(self) -> int:
        """How many are gone of those that the job has worked with."""
        return self.worked_with - self.alive if 0 < self.alive < self.worked_with else 0
