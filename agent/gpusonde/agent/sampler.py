"""``Sampler``: asks a source for readings at absolute deadlines.

Deadlines are ``start + k * interval`` on the monotonic clock, so that a slow reading does not shift the later ones. A
deadline that has passed is counted as missed and never made up for: a burst of readings would cost the watched job more
than the hole is worth.

Time stamps follow the wall clock, whatever it does. When it jumps against the monotonic clock (NTP step, ``date -s``, a
resumed machine), one CLOCK_STEP event per GPU with the size of the jump precedes the ticks that carry the new time.

The interval may change from tick to tick (see ``pace``); the deadlines then go on from the last one.

A source may offer to look at the device by itself at the deadlines that follow (``Reading.look_ahead``): where nobody
wants to see its readings before, the sampler sleeps until the one after those, and what was seen then comes at once.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Protocol

from gpusonde.agent.metrics import SelfCounters
from gpusonde.agent.pace import FixedPace, Pace
from gpusonde.agent.sources.base import (
    CLOCK_READ_S,
    Clocks,
    GpuEventKind,
    GpuSource,
    Reading,
    SourceEvent,
    SourceInventory,
)
from gpusonde.service.health import Heartbeat

# Slewing moves the clock by at most 0.5 ms per second; anything this large between two ticks is a step.
_CLOCK_STEP_S = 0.05
# What a reading cost is told for as many deadlines at once as come in so long.
_SETTLED_S = 1.0
# A deadline missed by more than half an interval is left to the next one: two GPM samples closer than that say nothing.
_TOLERATED_LATENESS = 0.5
_ROOM_POLL_S = 0.02
_SHORT_PAUSE_S = 0.25


class SampleSink(Protocol):
    """Takes what the sampler reads. Called in the sampler's thread, so it must not block on disk or network."""

    def has_room(self) -> bool:
        """Whether a source that can wait should be read now."""
        ...

    def put(self, reading: Reading) -> bool:
        """Take a reading; False when it had to be dropped (its ticks then count as missed)."""
        ...


class Sampler:
    """Reads one open source until it ends or is told to stop.

    Args:
        source: An open source.
        inventory: What :meth:`GpuSource.open` returned.
        pace: Seconds between deadlines, fixed or as the readings require. A source that can wait is read at the pace of
            the start: its ticks are not taken now.
        sink: Where readings go.
        counters: Filled with ticks, misses and lateness.
        clocks: What time it is.
        wait: Sleeps for the given seconds or until the sampler is stopped, and returns whether it was.
        heartbeat: Beaten about every second and before longer waits; not while the source is read.
        ahead_s: For how long a source that can may look at the device by itself before it is read again.
    """

    def __init__(
        self,
        source: GpuSource,
        inventory: SourceInventory,
        pace: Pace | float,
        sink: SampleSink,
        counters: SelfCounters,
        *,
        clocks: Clocks | None = None,
        wait: Callable[[float], bool] | None = None,
        heartbeat: Heartbeat | None = None,
        ahead_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._source = source
        self._inventory = inventory
        self._pace: Pace = FixedPace(pace) if isinstance(pace, (int, float)) else pace
        self._sink = sink
        self._counters = counters
        self._clocks = clocks or Clocks()
        self._stopping = threading.Event()
        self._stopped = False
        self._wait = wait or self._pause
        self._heartbeat = heartbeat or Heartbeat("the sampler")
        self._missed = 0
        self._shift_s = 0.0
        # Offered by the last reading, for how long, and how many deadlines were left to the source since.
        self._look_ahead: Callable[[float, float, float], int] | None = None
        self._ahead_s = ahead_s
        self._ahead = 0
        self._source_ended = False
        self._spent_s = 0.0
        self._monotonic, self._wall_ns = self._clocks.monotonic, self._clocks.wall_ns
        self._uncounted: list[tuple[float, float]] = []
        self._unsettled = 0
        self._settle_due_s = -math.inf
        self._wall_minus_monotonic_s = math.nan
        self._follow_pace()

    def stop(self) -> None:
        """Make :meth:`run` return after the reading in progress; callable from any thread."""
        self._stopped = True
        self._stopping.set()

    def run(self) -> bool:
        """Sample until the source has ended (returns True) or :meth:`stop` is called (returns False).

        Raises:
            SourceError: The source is gone as a whole.
        """
        monotonic = self._monotonic
        start_s, interval_s = monotonic(), self._interval_s
        now_s = start_s
        self._spent_s = self._processor_spent()
        tick, beat_due_s = 0, -math.inf
        try:
            while not self._stopped:
                deadline_s = start_s + tick * interval_s
                delay_s = deadline_s - now_s
                if deadline_s > beat_due_s - interval_s:
                    # Not for every tick: the next beat comes within the time that is promised here.
                    beat_due_s = deadline_s + _SETTLED_S
                    self._heartbeat.beat(max(0.0, delay_s) + _SETTLED_S + interval_s)
                if delay_s > 0 and self._wait(delay_s):
                    break
                if not self._read_due(deadline_s):
                    break
                start_s, self._shift_s = start_s + self._shift_s, 0.0
                if (wanted_s := self._interval_s) != interval_s:
                    start_s, tick, interval_s = deadline_s, 0, wanted_s
                tick += 1
                if self._look_ahead is not None:
                    # The pace sees no reading before it wants to.
                    until_s = min(deadline_s + self._ahead_s(), self._look_due_s)
                    self._ahead = self._look_ahead(start_s + tick * interval_s, interval_s, until_s)
                    tick += self._ahead
                now_s = monotonic()
                behind_s = now_s - (start_s + tick * interval_s)
                if behind_s > interval_s * _TOLERATED_LATENESS:
                    tick += self._skip(behind_s, interval_s)
            if self._ahead:
                # What the source has seen until now.
                self._read_due(monotonic())
        finally:
            self._count_readings()
        return self._source_ended

    def _read_due(self, deadline_s: float) -> bool:
        """Read once, and again while the source has more that is due; False when stopped meanwhile or at its end."""
        brought, more, looked = False, True, 0
        ahead, self._ahead, self._look_ahead = self._ahead, 0, None
        while more and (ahead or not self._stopped):
            is_live = not self._inventory.can_wait
            if not is_live and not self._wait_for_room():
                return False
            begin_s = self._monotonic()
            reading = self._source.read(deadline_s)
            if reading is None:
                self._source_ended = True
                return False
            end_s = self._monotonic()
            if looks := reading.looks:
                looked += len(looks)
                self._uncounted += [(look.began_s - look.deadline_s, look.ended_s - look.began_s) for look in looks]
            else:
                self._uncounted.append((begin_s - deadline_s, end_s - begin_s))
            ticks = reading.count_ticks()
            brought |= ticks > 0
            self._shift_s += reading.shift_s
            if is_live and (begin_s + self._interval_s / 2 >= self._look_due_s or reading.inventory is not None):
                self._pace.see(reading, begin_s)
                self._follow_pace()
            if reading.inventory is not None:
                self._inventory = reading.inventory
            if looks:
                self._note_clock(reading, looks[-1].ended_s, looks[-1].wall_ns)
            elif is_live:
                self._note_clock(reading, end_s)
            else:
                self._counters.source_progress = self._source.progress()
            reading.missed_ticks = self._missed
            if self._sink.put(reading):
                self._missed = 0
                if ticks:
                    self._counters.ticks += ticks
                    self._counters.last_tick_s = end_s
            else:
                self._missed += 1
                self._counters.missed_ticks += 1
            if more := reading.more:
                self._heartbeat.beat()
            else:
                self._look_ahead = reading.look_ahead
        if ahead > looked and not self._stopped:
            self._missed += ahead - looked
            self._counters.missed_ticks += ahead - looked
        # All that this thread does is for readings, so one look at its time per second is enough. A source that looks
        # for its engine reads nothing: what that costs says nothing of readings.
        self._unsettled += brought + looked
        if begin_s >= self._settle_due_s or not brought:
            self._settle(begin_s, brought)
        return not self._stopped

    def _wait_for_room(self) -> bool:
        """Wait until what was read of a source that can wait has a place; False when stopped meanwhile."""
        # A replay at full speed may stay in here for hours.
        self._heartbeat.beat()
        while not self._sink.has_room():
            self._heartbeat.beat(_ROOM_POLL_S)
            if self._wait(_ROOM_POLL_S):
                return False
        return True

    def _settle(self, now_s: float, brought: bool) -> None:
        """Tell what the readings since the last time cost, unless the last of them were none."""
        self._settle_due_s = now_s + _SETTLED_S
        elapsed_s = self._count_readings()
        if not self._inventory.can_wait:
            spent_s, self._spent_s = self._spent_s, self._processor_spent()
            if brought:
                count = self._unsettled
                self._pace.spend(now_s, (self._spent_s - spent_s) / count, elapsed_s / count, count)
            self._follow_pace()
        self._unsettled = 0

    def _follow_pace(self) -> None:
        """Take over what the pace wants; it changes with what it is told, or from outside."""
        self._interval_s, self._look_due_s = self._pace.interval_s, self._pace.look_due_s

    def _count_readings(self) -> float:
        """Count the readings that are not counted yet; return the seconds that they took."""
        readings, self._uncounted = self._uncounted, []
        for late_s, read_s in readings:
            self._counters.count_reading(late_s, read_s)
        return sum(read_s for _, read_s in readings)

    def _pause(self, seconds: float) -> bool:
        """Wait, and return whether to stop. A stop may come a moment late: waiting for it costs more than a tick."""
        if seconds > _SHORT_PAUSE_S:
            return self._stopping.wait(seconds)
        time.sleep(seconds)
        return self._stopped

    def _processor_spent(self) -> float:
        return self._clocks.processor() + self._source.statistics.helper_processor_s

    def _note_clock(self, reading: Reading, now_s: float, then_ns: int | None = None) -> None:
        """Compare the two clocks, and put a step of the wall clock before the ticks that carry the new time.

        Args:
            reading: That which brought the ticks.
            now_s: The monotonic clock.
            then_ns: The wall clock at the same moment; None where that is now.
        """
        now_ns = self._wall_ns() if then_ns is None else then_ns
        difference_s = now_ns * 1e-9 - now_s
        if -_CLOCK_STEP_S < difference_s - self._wall_minus_monotonic_s < _CLOCK_STEP_S:
            self._wall_minus_monotonic_s = difference_s
        elif then_ns is None and self._clocks.monotonic() - now_s > CLOCK_READ_S:
            # The two clocks cannot be read at once; the scheduler came between them: the next tick tells.
            return
        elif step := self._clock_step(now_ns, difference_s):
            reading.events = (*step, *reading.events)

    def _skip(self, behind_s: float, interval_s: float) -> int:
        """Count the deadlines that have passed without a reading, and return how many."""
        skipped = math.ceil(behind_s / interval_s - _TOLERATED_LATENESS)
        if not self._inventory.can_wait:
            self._missed += skipped
            self._counters.missed_ticks += skipped
        return skipped

    def _clock_step(self, now_ns: int, difference_s: float) -> tuple[SourceEvent, ...]:
        """Return the events of a clock that was set, and nothing for the first look at it."""
        previous_s, self._wall_minus_monotonic_s = self._wall_minus_monotonic_s, difference_s
        if math.isnan(previous_s):
            return ()
        step_us = round((difference_s - previous_s) * 1e6)
        return tuple(
            SourceEvent(gpu, now_ns, GpuEventKind.CLOCK_STEP, step_us) for gpu in range(len(self._inventory.gpus))
        )
