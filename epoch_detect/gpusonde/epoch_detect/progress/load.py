"""The load of a job: the range it moves in, the level at which it trains, above evaluations, and how it works."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpusonde.epoch_detect.stored import check, read_as

WORKS = 0.6  # of the range
IDLES = 0.14
_WAITS = 0.12  # above what is known of an idle GPU: waiting in a collective takes 0.17, or 0.15 with one of 8 dead
_LEAST_FLOOR = 0.35  # of the high level: what a job idles at, at most, where its start was not seen
_RISE, _LEAST_RISE = 1.5, 1.1  # times the lowest power: work has begun; the same, where the job is known to train
_IN_USE, _MUCH_USED = 0.03, 0.3  # share of use: something runs; work has begun, however little the power tells
_FORGETS_S = 900.0  # of work, in which a high level that is no more is forgotten

_LEVEL_CELLS = 61  # of training: what the dips are dips of
_LEAST_LEVEL_CELLS = 8
_NOISE_CELLS = 181
_RENEWED = 4  # cells, after which level and noise are measured anew
_LEAST_DIP, _FIRST_DIP = 0.05, 0.08  # of the logarithm of the load: less is the scatter of steps
_DIP = 4.0  # times the usual deviation
_DEEPEST = -0.5  # of the logarithm: what lies deeper is a pause
_MEAN_DIP = 0.75  # of the least dip, by which the mean of several seconds lies below that of training
_RECOVERED = 0.5  # of the depth of a dip: it is over
_AT_LEVEL = 0.5  # of the least dip, below which the load has come back to its level
_LONGEST_DIP_S = 600.0  # beyond which a lower level is another level
_QUARTILE = 0.674  # of a normal distribution

_EVEN = 0.2  # mean change from cell to cell of one who does the same all the time, of what it draws beyond idling
_CHANGE_S = 8.0  # over which it is measured
_OF_SOME = 0.2  # of its work, that not all GPUs took part in
_COMPUTED = 0.5  # of its work, in which tensor pipes or memory work: without them nothing is done


class LoadRange:
    """The lowest and the highest level of a job's load, in watts or shares of use, as far as they are known by now.

    Args:
        idle_watts: Of a GPU that idles, where it is known from before the job; infinity where it is not.
    """

    def __init__(self, idle_watts: float = math.inf) -> None:
        self._idle = idle_watts
        self._low = math.inf
        self._high = 0.0
        self._has_risen = math.isfinite(idle_watts)  # then the low level is that of an idle GPU
        self.has_begun = False

    @property
    def high(self) -> float:
        """The level of its work; 0 before that has begun."""
        return self._high

    def add(self, load: float, middle: float, use: float, cell_s: float, *, cyclic: bool, trains: bool) -> None:
        """Take a second.

        Args:
            load: Of this second.
            middle: Median of the last ones, three at least; NaN if there are fewer.
            use: Share of use, NaN where it is not given.
            cell_s: Seconds since the one before.
            cyclic: Whether cycles are known of the job: then it works.
            trains: Whether it is known to train, though not in which cycles: then a smaller rise is work.
        """
        self._low = min(self._low, load)
        if math.isnan(middle):
            return
        if not self.has_begun:
            in_use = math.isnan(use) or use > _IN_USE
            rise = _LEAST_RISE if trains else _RISE
            rises = in_use and middle > max(rise * min(self._low, self._idle), 1e-3)
            if rises or use > _MUCH_USED or cyclic:
                self.has_begun, self._high = True, middle
                self._has_risen |= rises
        elif middle > self._high:
            self._high = middle
        elif self.share(middle) > WORKS:
            self._high += (middle - self._high) * min(1.0, cell_s / _FORGETS_S)

    def share(self, load: float) -> float:
        """Where a load lies between the low (0) and the high (1) level."""
        low = self.floor
        return (load - low) / max(self._high - low, 1e-9)

    @property
    def width(self) -> float:
        """From the low to the high level."""
        return max(self._high - self.floor, 1e-9)

    def is_above_idle(self, load: float) -> bool:
        """Whether a GPU draws more than one that idles."""
        return self.share(load) > _WAITS

    @property
    def floor(self) -> float:
        """The load of a GPU that idles, as far as it is known."""
        low = min(self._low, self._idle)
        return low if self._has_risen else min(low, _LEAST_FLOOR * self._high)

    def lower_to(self, load: float) -> None:
        """Take a level for that of its work."""
        self._high = load

    def fields(self) -> list[Any]:
        """What :meth:`of_fields` makes the same of."""
        return [self._idle, self._low, self._high, self._has_risen, self.has_begun]

    @classmethod
    def of_fields(cls, fields: list[Any]) -> LoadRange:
        """Rebuild one from :meth:`fields`."""
        made = cls()
        read = read_as(tuple[float, float, float, bool, bool], fields)
        made._idle, made._low, made._high, made._has_risen, made.has_begun = read
        return made


class TrainingLevel:
    """The level at which a job trains, and the dips below it."""

    def __init__(self) -> None:
        self._logs: deque[float] = deque(maxlen=_LEVEL_CELLS)
        self._means: deque[float] = deque(maxlen=_LEVEL_CELLS)  # likewise, of several seconds
        self._peaks: deque[float] = deque(maxlen=_LEVEL_CELLS)  # of the highest ticks
        self._deviations: deque[float] = deque(maxlen=_NOISE_CELLS)
        self._level = self._mean_level = self._peak_level = math.nan
        self._least_dip = _FIRST_DIP
        self._bottom = 0.0
        self._at_level_s = math.nan
        self._until_renewed = 0

    @property
    def is_known(self) -> bool:
        """Whether it has trained for long enough."""
        return len(self._logs) >= _LEAST_LEVEL_CELLS

    def depth(
        self,
        time_s: float,
        load: float,
        smooth: float,
        mean: float,
        after: Sequence[float],
        peak: float,
        longest_s: float,
    ) -> float:
        """Take a second of work and say how deep it lies below the level, 0..1; 0 where it is no dip.

        Args:
            time_s: Of the second.
            load: Of the second.
            smooth: Median of it and those around it.
            mean: Of the same and a few more: steps beat with the seconds, and a median of seconds with them.
            after: Loads of the two seconds after it: a dip lasts.
            peak: Its highest tick, or that of those beside it.
            longest_s: Time without a second at the level, beyond which a lower one is another level; 600 s at most.
        """
        log, mean_log, peak_log = (math.log(max(value, 1e-9)) for value in (smooth, mean, peak))
        if not self.is_known:
            self._note_level(log, mean_log, peak_log)
            return 0.0
        self._renew()
        off = log - self._level
        if not off < -_AT_LEVEL * self._least_dip or math.isnan(self._at_level_s):
            self._at_level_s = time_s
        if self._bottom < 0:
            self._bottom = min(self._bottom, off)
            dips = math.log(max(load, 1e-9)) - self._level < _RECOVERED * self._bottom
        else:
            limit = math.exp(self._level - self._least_dip)
            dips = off < -self._least_dip and all(value < limit for value in (load, *after))
            dips &= mean_log - self._mean_level < -_MEAN_DIP * self._least_dip
            dips &= not self.is_of_steps(peak)
        if dips and time_s - self._at_level_s > min(longest_s, _LONGEST_DIP_S):
            self.forget()
            return 0.0
        self._bottom = min(self._bottom, off) if dips else 0.0
        self._deviations.append(max(off, _DEEPEST))
        if dips:
            return 1 - math.exp(off)
        self._note_level(log, mean_log, peak_log)
        return 0.0

    def is_of_steps(self, peak: float) -> bool:
        """Whether steps go on as before: gaps in them lower what seconds draw, not their highest ticks."""
        return math.log(max(peak, 1e-9)) - self._peak_level > -_AT_LEVEL * self._least_dip

    def _note_level(self, log: float, mean_log: float, peak_log: float) -> None:
        self._logs.append(log)
        self._means.append(mean_log)
        self._peaks.append(peak_log)

    def forget(self) -> None:
        """Begin anew, at another level."""
        self._logs.clear()
        self._means.clear()
        self._peaks.clear()
        self._deviations.clear()
        self._bottom, self._at_level_s = 0.0, math.nan
        self._least_dip, self._until_renewed = _FIRST_DIP, 0

    def _renew(self) -> None:
        """Measure level and scatter, which move slowly, every few cells."""
        self._until_renewed -= 1
        if self._until_renewed > 0:
            return
        self._until_renewed = _RENEWED
        self._level = sorted(self._logs)[2 * len(self._logs) // 3]
        self._mean_level = sorted(self._means)[len(self._means) // 2]
        # A state from before they were kept has none.
        self._peak_level = sorted(self._peaks)[len(self._peaks) // 2] if self._peaks else math.nan
        off = sorted(self._deviations)
        if len(off) >= 2 * _LEAST_LEVEL_CELLS:
            # The upper half alone: the lower one holds the dips.
            spread = off[(3 * len(off)) // 4] - off[len(off) // 2]
            self._least_dip = max(_LEAST_DIP, _DIP * spread / _QUARTILE)

    def fields(self) -> dict[str, Any]:
        """What :meth:`of_fields` makes the same of."""
        return {name: list(value) if isinstance(value, deque) else value for name, value in vars(self).items()}

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any]) -> TrainingLevel:
        """Rebuild one from :meth:`fields`."""
        made = cls()
        for name, value in fields.items():
            held = getattr(made, name)
            if isinstance(held, deque):
                held.extend(read_as(list[float], value))
            else:
                setattr(made, name, read_as(type(held), value))
        check(len(made._means) == len(made._logs) >= len(made._peaks), "levels of training")
        return made


@dataclass
class Work:
    """How a job works: since when without a pause, and for how long in all.

    Attributes:
        first_s: When it first did; NaN before that.
        since_s: When the last pause was over.
        last: The load of the last second.
        change: Mean change from second to second since then, of what the job draws beyond idling.
        seconds: Of work in all.
        earlier_s: Of those before the job went on where another one ended.
        even_s: Of those in which it did the same all the time.
        computed_s: Of those in which tensor pipes or memory worked.
        of_some_s: Of those in which some GPUs did nothing.
    """

    first_s: float = math.nan
    since_s: float = math.nan
    last: float = math.nan
    change: float = 0.0
    seconds: float = 0.0
    even_s: float = 0.0
    computed_s: float = 0.0
    of_some_s: float = 0.0
    earlier_s: float = 0.0

    @property
    def own_s(self) -> float:
        """Seconds of work of the job itself."""
        return self.seconds - self.earlier_s

    def begin(self, time_s: float, load: float) -> None:
        """Work begins, or goes on behind a pause."""
        self.first_s = time_s if math.isnan(self.first_s) else self.first_s
        self.since_s, self.last, self.change = time_s, load, 0.0

    def of_next(self) -> Work:
        """What is known of a job that goes on where this one ended."""
        return replace(self, first_s=math.nan, since_s=math.nan, earlier_s=self.seconds)

    def add(self, load: float, floor: float, cell_s: float, *, computes: bool, of_some: bool) -> None:
        """Take a second of it, at a load above the ``floor``, that of a GPU that idles."""
        self.seconds += cell_s
        self.computed_s += cell_s * computes
        self.of_some_s += cell_s * of_some
        change = abs(load - self.last) / max(load - floor, 1e-9)
        self.change += (change - self.change) * min(1.0, cell_s / _CHANGE_S)
        self.last = load
        self.even_s += cell_s * (self.change < _EVEN)

    @property
    def is_of_some(self) -> bool:
        """Whether GPUs of the job rest while others work."""
        return self.of_some_s > _OF_SOME * self.seconds

    @property
    def mostly_computes(self) -> bool:
        """Whether it is of a job whose tensor pipes or memory work: kernels that do without do nothing in it."""
        return self.computed_s > _COMPUTED * self.seconds
