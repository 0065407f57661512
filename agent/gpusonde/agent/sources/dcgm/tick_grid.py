"""``TickGrid``: ticks with all columns, made of the values of one GPU.

The engine stamps every value when it was measured and delivers late. The grid has the agent's interval and the engine's
phase, which it follows as the engine's clock drifts, so that each measurement falls into the middle of its own tick.
Profiling values can come from another thread of the engine than the rest: each watch has a phase of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpusonde.telemetry import FloatArray, MissingReason

IndexArray = npt.NDArray[np.intp]

# Share of the deviation of a value from its tick's middle that the phase takes over.
FOLLOW = 0.1
# Watches apart by more than this are numbered anew, in intervals.
_MAX_PHASE = 0.75
# Values of one watch within this share of an interval are one measurement.
TOGETHER = 0.25
# A longer hole is not filled with blank ticks; the GPU counts as lost meanwhile.
_MAX_HOLE_S = 5.0


@dataclass(frozen=True)
class Tick:
    """One finished tick.

    Attributes:
        time_us: Unix microseconds.
        values: Shape (columns,), NaN where there is no value.
        blanks: Column -> why its value is NaN.
        activity: ``gpu_utilization`` and the largest profiling ratio, where they are known already.
    """

    time_us: int
    values: FloatArray
    blanks: dict[int, MissingReason]
    activity: tuple[float, float] | None = None


class _Bin:
    def __init__(self, values: FloatArray, activity: tuple[float, float] | None = None) -> None:
        self.values = values
        # Utilisation and activity of a tick that came whole, without any blank.
        self.activity = activity
        self.counts: dict[int, int] = {}
        self.blanks: dict[int, MissingReason] = {}
        self.watches: set[str] = set()


class TickGrid:
    """Collects the values of one GPU.

    A value goes to a slot: its column, or one of two behind the columns. :attr:`average_power` is used for the power
    where a tick has no instant one, so that no tick mixes the two; :attr:`unused` takes what has no column.

    Args:
        columns: Number of columns of a tick.
        expected: Columns that are measured every tick; a tick is finished when it has them all.
        interval_s: Seconds between ticks.
        settle_s: Seconds after which a tick is finished without them.
        power: The column of the power; None where there is none.
    """

    def __init__(
        self, columns: int, expected: Collection[int], interval_s: float, settle_s: float, power: int | None = None
    ) -> None:
        self.average_power, self.unused = columns, columns + 1
        self._columns = columns
        self._power = power
        self._expects_power = power in expected
        self._expected = np.array(sorted(set(expected) - {power}), dtype=np.intp)
        self._has_instant_power = False
        self._interval_us = interval_s * 1e6
        self._settle_us = settle_s * 1e6
        self._together_us = TOGETHER * self._interval_us
        self._max_hole = max(2, round(_MAX_HOLE_S / interval_s))
        # What every tick begins with: the slow columns.
        self._held = np.full(columns + 2, np.nan)
        self._held_blanks: dict[int, MissingReason] = {}
        self._standing: dict[int, MissingReason] = {}
        self.reset()

    def reset(self) -> None:
        """Forget all times: the clock was set, or the engine is another one."""
        self._bins: dict[int, _Bin] = {}
        self._origins_us: dict[str, float] = {}
        self._base = ""
        self._next = 0
        self._skips: set[int] = set()
        self._last_bin: dict[str, int] = {}

    def hold(self, column: int, value: float | MissingReason) -> None:
        """Set a slow column: its value is repeated in every tick until the next one."""
        if isinstance(value, MissingReason):
            self._held[column] = np.nan
            self._held_blanks[column] = value
        else:
            self._held[column] = value
            self._held_blanks.pop(column, None)

    def stand(self, slot: int, reason: MissingReason) -> None:
        """Say why a slot has no value; stands until there is one."""
        self._standing[slot] = reason

    def skip(self) -> None:
        """Leave the ticks out between what is here and what comes: nobody looked at the engine meanwhile, by choice."""
        self._skips.add(max(self._bins, default=self._next - 1) + 1)

    def add(self, watch: str, slot: int, time_us: int, value: float | MissingReason) -> None:
        """Put a value into its tick. Several in one tick are averaged.

        Args:
            watch: Name of the watch it came with.
            slot: Where it belongs.
            time_us: When it was measured, Unix microseconds.
            value: In the catalogue's unit, or why there is none.
        """
        number = self._number(watch, time_us)
        if number < self._next:
            return
        self._put(self._bin(number), watch, slot, value)

    def add_row(
        self,
        watch: str,
        slots: IndexArray,
        times_us: list[int],
        values: FloatArray,
        reason_of: Callable[[int], MissingReason],
    ) -> None:
        """Put values that were measured together into their tick.

        Args:
            watch: Name of the watch they came with.
            slots: Shape (n,), where they belong.
            times_us: n times.
            values: Shape (n,), NaN where there is none.
            reason_of: Why the value of this place in the row is NaN.
        """
        first_us, last_us = min(times_us), max(times_us)
        number = self._number(watch, first_us)
        together = last_us - first_us < self._interval_us and number == self._nearest(watch, last_us)
        target = self._bins.get(number)
        if not together or (target is not None and watch in target.watches):
            for i, (slot, value) in enumerate(zip(slots.tolist(), values.tolist(), strict=True)):
                self.add(watch, slot, times_us[i], reason_of(i) if math.isnan(value) else value)
            return
        if number < self._next:
            return
        target = target or self._bin(number)
        target.watches.add(watch)
        target.activity = None
        target.values[slots] = values
        if self._standing:
            for slot in slots.tolist():
                self._standing.pop(slot, None)
        blank = np.isnan(values)
        if blank.any():
            for i in np.flatnonzero(blank).tolist():
                slot = int(slots[i])
                target.blanks[slot] = self._standing[slot] = reason_of(i)

    def add_whole(
        self,
        spans_us: Sequence[tuple[str, int, int]],
        slots: IndexArray,
        values: FloatArray,
        activity: tuple[float, float],
    ) -> bool:
        """Put all values of a tick into it at once; return whether they are one: nothing is done where they are not.

        Args:
            spans_us: For each watch its name, and when its first and its last value were measured.
            slots: Shape (n,), where the values belong.
            values: Shape (n,), all of them numbers.
            activity: Utilisation and largest profiling ratio.
        """
        number = None
        for watch, first_us, last_us in spans_us:
            if last_us - first_us > self._together_us:
                return False
            nearest = self._number(watch, first_us)
            if number is not None and nearest != number:
                return False
            number = nearest
        if number is None or number < self._next or number in self._bins:
            return False
        target = self._bins[number] = _Bin(self._held.copy(), activity)
        target.values[slots] = values
        target.watches.update(watch for watch, _, _ in spans_us)
        if self._standing:
            self._standing.clear()
        return True

    def take(self, now_us: int | None) -> list[Tick]:
        """Return the ticks that are finished at a time, oldest first; None for all, as they are.

        A tick without any value, between ticks that have some, is blank.
        """
        finished = []
        while self._bins:
            current = self._bins.get(self._next)
            if current is None:
                following = min(self._bins)
                if following - self._next > self._max_hole or self._next in self._skips:
                    self._skips.discard(self._next)
                    self._next = following
                    continue
            time_us = self._origins_us[self._base] + self._next * self._interval_us
            if now_us is not None and now_us < time_us + self._settle_us and not self._is_complete(current):
                break
            self._bins.pop(self._next, None)
            finished.append(self._tick(round(time_us), current or _Bin(self._held.copy())))
            self._next += 1
        return finished

    @property
    def is_empty(self) -> bool:
        """Whether no tick is open."""
        return not self._bins

    @property
    def next_us(self) -> tuple[str, dict[str, float]]:
        """The watch whose phase is that of the ticks, and when each watch will measure the next one."""
        begun_us = self._next * self._interval_us
        return self._base, {watch: origin_us + begun_us for watch, origin_us in self._origins_us.items()}

    def go_on(self, ticks: int, next_us: Mapping[str, float]) -> None:
        """Go on behind ticks that were made elsewhere, all of them whole; see :attr:`next_us`."""
        self._next += ticks
        for watch, time_us in next_us.items():
            self._origins_us[watch] = time_us - self._next * self._interval_us
        self._standing.clear()

    @property
    def held(self) -> tuple[FloatArray, Mapping[int, MissingReason]]:
        """What every tick begins with, by slot, and why slow columns have no value: copies."""
        return self._held.copy(), dict(self._held_blanks)

    def _bin(self, number: int) -> _Bin:
        target = self._bins.get(number)
        if target is None:
            target = self._bins[number] = _Bin(self._held.copy())
        return target

    def _put(self, target: _Bin, watch: str, slot: int, value: float | MissingReason) -> None:
        target.watches.add(watch)
        target.activity = None
        if isinstance(value, MissingReason):
            self._standing[slot] = value
            target.blanks[slot] = value
            return
        if self._standing:
            self._standing.pop(slot, None)
        before = float(target.values[slot])
        if math.isnan(before):
            target.values[slot] = value
        else:
            count = target.counts[slot] = target.counts.get(slot, 1) + 1
            target.values[slot] = before + (value - before) / count

    def _is_complete(self, source: _Bin | None) -> bool:
        if source is None:
            return False
        if source.activity is not None:
            return True
        if self._expects_power:
            # While instant values come, the average alone does not make a tick.
            slot = self._power if self._has_instant_power else self.average_power
            if math.isnan(source.values[slot]) and slot not in source.blanks:
                return False
        lacking = self._expected[np.isnan(source.values[self._expected])]
        return not lacking.size or all(column in source.blanks for column in lacking.tolist())

    def _tick(self, time_us: int, source: _Bin) -> Tick:
        values = source.values
        if source.activity is not None:
            return Tick(time_us, values[: self._columns], dict(self._held_blanks), source.activity)
        if self._expects_power:
            self._has_instant_power = not math.isnan(values[self._power])
            if not self._has_instant_power:
                values[self._power] = values[self.average_power]
        values = values[: self._columns]
        blanks: dict[int, MissingReason] = {}
        for column in np.flatnonzero(np.isnan(values)).tolist():
            blanks[column] = (
                self._held_blanks.get(column)
                or source.blanks.get(column)
                or self._standing.get(column, MissingReason.NO_DATA)
            )
        return Tick(time_us, values, blanks)

    def _number(self, watch: str, time_us: int) -> int:
        """Return the number of the tick that a time belongs to, and let the watch's phase follow."""
        origin_us = self._origins_us.get(watch)
        if origin_us is None or abs(origin_us - self._origins_us[self._base]) > _MAX_PHASE * self._interval_us:
            origin_us = self._join_phases(watch, time_us)
        number = round((time_us - origin_us) / self._interval_us)
        if number < self._next - self._max_hole:
            # Long before what was delivered: the engine's clock was set back.
            self.reset()
            origin_us, number = self._join_phases(watch, time_us), 0
        if self._last_bin.get(watch) != number:
            self._last_bin[watch] = number
            self._origins_us[watch] = origin_us + FOLLOW * (time_us - origin_us - number * self._interval_us)
        return number

    def _join_phases(self, watch: str, time_us: int) -> float:
        """Give a watch a phase of its own, at most half an interval from that of the first one; return its origin."""
        if not self._origins_us:
            self._base = watch
            self._origins_us[watch] = float(time_us)
        base_us = self._origins_us[self._base]
        origin_us = time_us - round((time_us - base_us) / self._interval_us) * self._interval_us
        self._origins_us[watch] = origin_us
        return origin_us

    def _nearest(self, watch: str, time_us: int) -> int:
        origin_us = self._origins_us.get(watch, self._origins_us[self._base])
        return round((time_us - origin_us) / self._interval_us)
