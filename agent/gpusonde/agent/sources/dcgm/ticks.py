"""``TickGrid``: values with times of their own -> ticks with all columns.

The engine stamps every value when it was measured and delivers late. The grid has the agent's interval and the engine's
phase, which it follows as the engine's clock drifts, so that each measurement falls into the middle of its own tick.
Profiling values can come from another thread of the engine than the rest: each watch has a phase of its own.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from gpusonde.telemetry import BlankReason, FloatArray

# Share of the deviation of a value from its tick's middle that the phase takes over.
_FOLLOW = 0.1
# Watches apart by more than this are numbered anew, in intervals.
_MAX_PHASE = 0.75
# A longer hole is not filled with blank ticks; the GPU counts as lost meanwhile.
_MAX_HOLE_S = 5.0


@dataclass(frozen=True)
class Tick:
    """One finished tick.

    Attributes:
        time_us: Unix microseconds.
        values: Shape (columns,), NaN where there is no value.
        blanks: Column -> why its value is NaN.
    """

    time_us: int
    values: FloatArray
    blanks: dict[int, BlankReason]


@dataclass
class _Bin:
    means: dict[int, float] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    blanks: dict[int, BlankReason] = field(default_factory=dict)


class TickGrid:
    """Collects the values of one GPU.

    Args:
        columns: Number of columns of a tick.
        expected: Columns that are measured every tick; a tick is finished when it has them all.
        interval_s: Seconds between ticks.
        settle_s: Seconds after which a tick is finished without them.
    """

    def __init__(self, columns: int, expected: Collection[int], interval_s: float, settle_s: float) -> None:
        self._columns = columns
        self._expected = frozenset(expected)
        self._interval_us = interval_s * 1e6
        self._settle_us = settle_s * 1e6
        self._max_hole = max(2, round(_MAX_HOLE_S / interval_s))
        self._held: dict[int, float | BlankReason] = {}
        self._standing: dict[int, BlankReason] = {}
        self.reset()

    def reset(self) -> None:
        """Forget all times: the clock was set, or the engine is another one."""
        self._bins: dict[int, _Bin] = {}
        self._origins_us: dict[str, float] = {}
        self._base = ""
        self._next = 0
        self._last_bin: dict[str, int] = {}

    def hold(self, column: int, value: float | BlankReason) -> None:
        """Set a slow column: its value is repeated in every tick until the next one."""
        self._held[column] = value

    def add(self, watch: str, column: int, time_us: int, value: float | BlankReason) -> None:
        """Put a value of a fast column into its tick. Several in one tick are averaged.

        Args:
            watch: Name of the watch it came with.
            column: Its column.
            time_us: When it was measured, Unix microseconds; 0 for a reason that stands until there is a value.
            value: In the catalogue's unit, or why there is none.
        """
        if isinstance(value, BlankReason):
            self._standing[column] = value
        elif self._standing:
            self._standing.pop(column, None)
        if not time_us:
            return
        number = self._number(watch, time_us)
        if number < self._next:
            return
        target = self._bins.get(number)
        if target is None:
            target = self._bins[number] = _Bin()
        if isinstance(value, BlankReason):
            target.blanks[column] = value
        elif column not in target.means:
            target.means[column] = value
        else:
            count = target.counts[column] = target.counts.get(column, 1) + 1
            target.means[column] += (value - target.means[column]) / count

    def take(self, now_us: int | None) -> list[Tick]:
        """Return the ticks that are finished at a time, oldest first; None for all, as they are.

        A tick without any value, between ticks that have some, is blank.
        """
        finished = []
        while self._bins:
            current = self._bins.get(self._next)
            if current is None and min(self._bins) - self._next > self._max_hole:
                self._next = min(self._bins)
                continue
            time_us = self._origins_us[self._base] + self._next * self._interval_us
            complete = current is not None and self._expected <= (current.means.keys() | current.blanks.keys())
            if not complete and now_us is not None and now_us < time_us + self._settle_us:
                break
            finished.append(self._tick(round(time_us), self._bins.pop(self._next, _Bin())))
            self._next += 1
        return finished

    def _tick(self, time_us: int, source: _Bin) -> Tick:
        values = np.full(self._columns, np.nan)
        blanks: dict[int, BlankReason] = {}
        for column in range(self._columns):
            answer = self._held.get(column)
            if answer is None:
                answer = source.means.get(column)
            if answer is None:
                answer = source.blanks.get(column) or self._standing.get(column, BlankReason.NO_DATA)
            if isinstance(answer, BlankReason):
                blanks[column] = answer
            else:
                values[column] = answer
        return Tick(time_us, values, blanks)

    def _number(self, watch: str, time_us: int) -> int:
        """Return the number of the tick that a time belongs to, and let the watch's phase follow."""
        if not self._origins_us:
            self._base = watch
            self._origins_us[watch] = float(time_us)
        base_us = self._origins_us[self._base]
        origin_us = self._origins_us.get(watch)
        if origin_us is None or abs(origin_us - base_us) > _MAX_PHASE * self._interval_us:
            origin_us = time_us - round((time_us - base_us) / self._interval_us) * self._interval_us
        number = round((time_us - origin_us) / self._interval_us)
        if self._last_bin.get(watch) != number:
            self._last_bin[watch] = number
            origin_us += _FOLLOW * (time_us - origin_us - number * self._interval_us)
        self._origins_us[watch] = origin_us
        return number
