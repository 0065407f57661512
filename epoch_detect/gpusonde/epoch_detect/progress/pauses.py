"""``PauseMemory``: the pauses that a job came back from, and how long another one may last before it is none.

An evaluation, a checkpoint, a loader that starts anew: for a while the GPUs do little, and that is as it should be.
How long it should be is learned from the job itself: the longest pause so far, by how much pauses grow (a checkpoint
that holds ever more takes ever longer), how far they lie apart, and whether they are of the kind that a program makes
at all. Somebody who thinks between two commands makes pauses of seconds and of minutes in any order.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gpusonde.epoch_detect.progress.processes import Processes
from gpusonde.epoch_detect.progress.seconds import JobSecond
from gpusonde.epoch_detect.stored import check, read_as

_KEPT = 24  # pauses
_MARGIN = 1.5  # times the longest pause that is expected
_FEW = 3  # pauses: with fewer, the first patience holds
_FIRST_S = 48.0  # so that a hang is told within a minute, its ticks read and averaged
_LEAST_S = 20.0
_OF_CYCLE = 0.15  # of a known cycle: what an evaluation at its end may take
_CYCLES = 2.7  # of the way from pause to pause, so that a hang is told within three
_LONG = 0.4  # of the longest pause: what counts as one of its kind
_SAME_LOAD = 0.05  # of the range of the load, which pauses at one load lie apart by at most
_MOST_LOADS = 8
_FALLS_CELLS = 3  # at the beginning of a pause
_ROUGH_CELLS = 24  # before it is known
_ROUGH = 0.03  # median change from cell to cell, relative, of one who does not only wait
_SWINGS = 1.08  # times the lowest load: more than the noise of half a minute of one who waits
_SWINGS_WITHIN = 0.2  # of the mean, within a second: more than the noise of ten ticks
_SHORT = 2 / 3  # of the cells by which it is known: cycles of which each third of them shows something
_UNEVEN = 1.0  # standard deviation of the logarithm from which on pauses are nobody's program's
_UNEVEN_FEWEST = 4
_ALIKE, _ALIKE_FEWEST = 0.25, 12  # the same, up to which so many are a program's: then 1.5 times the longest is rare
_OWN_S = 4.0  # of a pause: shorter ones are the program's own, and alike
_REST_S = 8.0  # of a pause from which somebody came back, not a program
_UNEVEN_MARGIN = 4.0
_OF_STEPS, _STEP_S = 6, 15.0  # pauses of which one comes so often: they belong to its steps
_UNEVEN_FIRST_S = 600.0


@dataclass
class Pause:
    """A pause that goes on.

    Attributes:
        begin_s: When the load fell.
        sign_s: When something last said that the job works on beside its GPUs, or on them; the begin if nothing did.
        longest_quiet_s: The longest time in it between two such signs.
        cells: Seconds in it.
        total: Sum of the load in them.
        latest: The load in the latest ones.
        moving: Share of the latest ones within which it went up and down.
        last: Load of the last one.
        middle: Median of the last three.
        low: Lowest median since ``sign_s``, but for the fall into the pause and the latest one.
        high: Highest one.
        longest_s: The longest that the job has rested at its load before.
        usual_s: When it last was at a load at which one of the longest was.
        spinning: GPUs that were in use all the time in the last one.
        wrote: Whether anything was written in it.
        copied: Whether anything went over PCIe.
        looks: At the processes of the job in it.
        rested: Those by which they rested, too.
        alarm: What it was called, once it lasted too long.
        trained: How surely the run was taken for a training, at most, from its begin to the last sign of work: a look
            that sees a hang sees less of one.
    """

    begin_s: float
    sign_s: float
    longest_quiet_s: float = 0.0
    cells: int = 0
    total: float = 0.0
    latest: list[float] = field(default_factory=list)
    moving: float = 0.0
    last: float = math.nan
    middle: float = math.nan
    low: float = math.inf
    high: float = -math.inf
    longest_s: float = 0.0
    usual_s: float = -math.inf
    spinning: int = -1
    wrote: bool = False
    copied: bool = False
    looks: int = 0
    rested: int = 0
    alarm: str = ""
    trained: float = 0.0

    def add(self, time_s: float, load: float, middle: float, within: float, *, works_on: bool) -> None:
        """Take a second of it, with the median of three and how far its load goes up and down in it."""
        self.longest_quiet_s = max(self.longest_quiet_s, time_s - self.sign_s)
        if works_on:
            self.sign_s, self.low, self.high = time_s, math.inf, -math.inf
        elif self.cells > _FALLS_CELLS:
            # One late: the latest one may be of the rise to work.
            self.low, self.high = min(self.low, self.middle), max(self.high, self.middle)
        self.last, self.middle = load, middle
        if self.cells >= _FALLS_CELLS:
            self.latest = [*self.latest[-_ROUGH_CELLS:], load]
            self.moving += ((within > _SWINGS_WITHIN) - self.moving) / len(self.latest)
        self.cells += 1
        self.total += load

    @property
    def mean(self) -> float:
        """Mean load."""
        return self.total / max(self.cells, 1)

    @property
    def latest_mean(self) -> float:
        """Mean load in the latest ones, of the last one while there are none."""
        return sum(self.latest) / len(self.latest) if self.latest else self.last

    def shows_cycles(self, cells: float) -> bool:
        """Whether the load moves as in cycles of so many seconds, and not only by noise, or down a stair before that.

        Of short ones something is to be seen in each third of the latest seconds, or within most of them.
        """
        if cells > _SHORT * _ROUGH_CELLS:
            return bool(self.latest) and _swings(self.latest)
        third = _ROUGH_CELLS // 3
        thirds = [self.latest[-_ROUGH_CELLS:][at : at + third] for at in range(0, _ROUGH_CELLS, third)]
        return len(self.latest) > _ROUGH_CELLS and (self.moving > 0.5 or all(map(_swings, thirds)))

    @property
    def is_rough(self) -> bool:
        """Whether the load mostly changes from second to second, as that of one who only waits does not.

        In either half of the latest ones: a job that falls from an evaluation into a hang makes a few large changes.
        """
        if len(self.latest) <= _ROUGH_CELLS:
            return False
        changes = [abs(b - a) for a, b in itertools.pairwise(self.latest)]
        half = len(changes) // 2
        return min(map(statistics.median, (changes[:half], changes[half:]))) > _ROUGH * self.mean

    def signs_of_hang(self, second: JobSecond, known: Processes, *, waits: bool) -> str:
        """What tells a hang from a checkpoint of one rank, in words; empty if nothing does.

        Args:
            second: The latest one of it.
            known: Of the job's processes, in it.
            waits: Whether GPUs are in a kernel, or draw as much.
        """
        if known.lost:
            return f"{known.lost} of {known.worked_with} processes are gone"
        said = []
        if math.isfinite(known.written_per_s) and not self.wrote:
            said.append(f"nothing written for {second.time_s - self.begin_s:.0f} s")
        if math.isfinite(second.bus) and not self.copied:
            said.append("no traffic over PCIe")
        if math.isfinite(known.processors) and not waits:
            usual = known.usual_processors
            said.append(f"its processes take {known.processors:.2f} processors ({usual:.2f} while it trains)")
        if second.spinning and second.spinning == second.gpus:
            how = "and none computes" if second.waits else "at low power"
            said.append(f"utilisation is 100 % on all {second.gpus} GPUs {how}")
        elif second.spinning and said:
            said.append(f"{second.spinning} of {second.gpus} GPUs wait in a kernel, {second.unused} do nothing")
        elif not waits and len(said) < 2:
            return ""  # GPUs at rest with one witness: a loader, a checkpoint that waits for its turn
        return ", ".join(said)


def _swings(loads: Sequence[float]) -> bool:
    return max(loads) > _SWINGS * min(loads)


class PauseMemory:
    """What is known of a job's pauses; a few numbers, however long the job."""

    def __init__(self) -> None:
        self.count = 0
        self.longest_s = 0.0
        self._rests = 0
        self._lengths_s: deque[float] = deque(maxlen=_KEPT)
        self._begins_s: deque[float] = deque(maxlen=_KEPT)
        self._loads: list[tuple[float, float, float]] = []  # lowest and highest of long ones, and the longest of those
        self._scatter = 0.0  # standard deviation of the logarithm of the lengths

    def add(self, begin_s: float, length_s: float, *, rested: bool) -> None:
        """Note a pause that is over.

        Args:
            begin_s: When it began.
            length_s: For how long nothing said that the job worked on.
            rested: Whether its processes rested, too: a program that trains does not pause so.
        """
        self._rests += rested and length_s > _REST_S
        self.count += 1
        self.longest_s = max(self.longest_s, length_s)
        self._lengths_s.append(length_s)
        self._begins_s.append(begin_s)
        self._measure()

    def note_load(self, pause: Pause, now_s: float, width: float) -> None:
        """Note the load at which a pause has rested since its last sign, if it has for long.

        Args:
            pause: It goes on, or is over.
            now_s: Of its next sign, or its end.
            width: Of the range of the load.
        """
        length_s, low, high = now_s - pause.sign_s, pause.low, pause.high
        if low > high or _MARGIN * length_s < _LEAST_S:
            return
        others, apart = [], _SAME_LOAD * width
        for each in self._loads:
            if each[0] - apart <= high and low <= each[1] + apart:
                low, high, length_s = min(low, each[0]), max(high, each[1]), max(length_s, each[2])
            else:
                others.append(each)
        self._loads = sorted([*others, (low, high, length_s)], key=lambda each: each[2])[-_MOST_LOADS:]

    def longest_at(self, load: float, width: float) -> float:
        """Seconds of the longest that rested at such a load; 0 if none has for long.

        Args:
            load: Of now.
            width: Of its range.
        """
        apart = _SAME_LOAD * width
        return max((long_s for low, high, long_s in self._loads if low - apart <= load <= high + apart), default=0.0)

    def are_long(self, length_s: float) -> bool:
        """Whether those of such a length are of the kind of the longest."""
        return length_s >= _LONG * self.longest_s

    def _measure(self) -> None:
        """Asked for with every second of a pause, it changes with a new one only."""
        if len(self._lengths_s) >= _UNEVEN_FEWEST:
            logs = [math.log(max(length, _OWN_S)) for length in self._lengths_s]
            mean = sum(logs) / len(logs)
            self._scatter = math.sqrt(sum((log - mean) ** 2 for log in logs) / (len(logs) - 1))

    @property
    def cycle_s(self) -> float:
        """Seconds from pause to pause, in the median; infinity while fewer than three are known."""
        if self.count < _FEW:
            return math.inf
        return statistics.median(b - a for a, b in itertools.pairwise(self._begins_s))

    def are_of_steps(self, now_s: float) -> bool:
        """Whether one follows upon the other up to now, as where each step waits for its data."""
        if len(self._begins_s) < _OF_STEPS:
            return False
        return now_s - self._begins_s[-_OF_STEPS] < _OF_STEPS * _STEP_S and now_s - self._begins_s[-1] < 2 * _STEP_S

    @property
    def expected_s(self) -> float:
        """The longest pause to come: the longest so far, or the next of a row that grows."""
        long = [length for length in self._lengths_s if self.are_long(length)]
        growth = [b - a for a, b in itertools.pairwise(long[-4:])]
        steady = len(growth) >= 2 and min(growth[-2:]) > 0
        return max(self.longest_s, long[-1] + max(growth)) if steady else self.longest_s

    @property
    def is_uneven(self) -> bool:
        """Whether they are of all lengths, as if somebody sat there and thought."""
        return self._scatter > _UNEVEN or (self._rests > 0 and not self.are_alike)

    @property
    def are_alike(self) -> bool:
        """Whether there are many, and of one length: nobody thinks so, whatever the job does and its processes do."""
        return len(self._lengths_s) >= _ALIKE_FEWEST and self._scatter < _ALIKE

    @property
    def are_even(self) -> bool:
        """Whether there are some, and of lengths that a program makes."""
        return self.count >= _FEW and not self.is_uneven

    def patience_s(
        self, *, period_s: float, may_think: bool, trains: bool = False, longest_s: float = math.nan
    ) -> float:
        """How long a pause may last.

        Args:
            period_s: Of the job's cycles; NaN where it is not known to work in any. In a job that does, pauses of many
                lengths are checkpoints among evaluations, not somebody's thoughts.
            may_think: Whether it looks as if somebody sat there, for all that is known of the pause.
            trains: Whether it is known to train, though not in which cycles.
            longest_s: Of those that count; NaN for all of them.
        """
        cyclic = not math.isnan(period_s)
        if (self.is_uneven or may_think) and not (cyclic or trains):
            return max(_UNEVEN_FIRST_S, _UNEVEN_MARGIN * self.longest_s)
        first = _FIRST_S if self.count < _FEW else max(_LEAST_S, min(_FIRST_S, _CYCLES * self.cycle_s))
        if cyclic:
            first = max(first, _OF_CYCLE * period_s)
        return max(first, _MARGIN * (self.expected_s if math.isnan(longest_s) else longest_s))

    def fields(self) -> list[Any]:
        """What :meth:`of_fields` makes the same of."""
        return [self.count, self.longest_s, self._rests, list(self._lengths_s), list(self._begins_s), self._loads]

    @classmethod
    def of_fields(cls, fields: list[Any]) -> PauseMemory:
        """Rebuild one from :meth:`fields`."""
        made = cls()
        made.count, made.longest_s, made._rests = read_as(tuple[int, float, int], fields[:3])
        made._lengths_s.extend(read_as(list[float], fields[3]))
        made._begins_s.extend(read_as(list[float], fields[4]))
        known = len(made._begins_s)
        check(len(made._lengths_s) == known and min(made.count, _FEW) <= known, "lengths of pauses")
        # Of a state from before they were kept any load is one.
        loads = [*fields, [[0.0, math.inf, made.longest_s]]][5]
        made._loads = read_as(list[tuple[float, float, float]], loads)
        made._measure()
        return made
