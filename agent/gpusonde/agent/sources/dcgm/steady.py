"""``Steady``: ticks of GPUs of which all is well, without a look at single values. ``LookPhase``: when to look best."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gpusonde.agent.sources.base import ZeroGuard
from gpusonde.agent.sources.dcgm.gpu import PLAIN, PROFILING, DcgmGpu
from gpusonde.agent.sources.dcgm.raw_ticks import HeldValues, SteadyRows, SteadyTick, SteadyTicks
from gpusonde.agent.sources.dcgm.tick_grid import FOLLOW, TOGETHER, IndexArray
from gpusonde.agent.sources.dcgm.watch import LatestValues

# A value that comes farther from its time than this share of an interval may belong to another tick.
_CERTAIN = 0.4
# The look is moved when it is farther than this from the middle between two measurements, in intervals.
_MIDDLE = 0.125
# So many times the engine gave nothing new, or two at once, although the look was in the middle: it delivers late.
_MISSES = 3
_NEXT_PLACE = 0.25


class Steady:
    """Takes answers of which each value is a number and was measured one interval after the one before.

    Those are ticks as they are: when each value came is compared with when it was to come, and the numbers are left to
    whoever wants them. Everything else is for the :class:`TickGrid` of each GPU, which goes on behind the ticks here.
    What a single reading cannot tell (slow values, zeros of a GPU that works) is to be looked at now and then.

    Args:
        latest: The reader of all GPUs; what it read last has just become a tick of each of them.
        gpus: The GPUs of its rows.
        slots: For each of them where its values belong.
        columns: Number of columns.
        power: Column of the power; None for none.
        interval_s: Seconds between ticks.
        taken_s: When that was, monotonic clock.

    Attributes:
        latest: The reader.
        taken_s: When the newest tick was taken.
        slow_due_s: When the slow values are to be looked at, whether there are new ones or not; monotonic clock.
    """

    def __init__(
        self,
        latest: LatestValues,
        gpus: Sequence[DcgmGpu],
        slots: Sequence[IndexArray],
        columns: int,
        power: int | None,
        interval_s: float,
        taken_s: float,
    ) -> None:
        self.taken_s = taken_s
        self.slow_due_s = taken_s
        self.latest = latest
        self._gpus = tuple(gpus)
        self._fast = latest.fast.stop
        self._parts = {PLAIN: latest.plain, PROFILING: latest.profiling}
        self._rows = SteadyRows(
            [gpu.index for gpu in gpus],
            latest.layout,
            latest.numbers_of,
            latest.reason_of,
            np.array([one[: self._fast] for one in slots], dtype=np.intp),
            columns,
            power,
        )
        offsets = {name: member[1] for name, member in (latest.layout.fields or {}).items()}
        self._time_at, self._status_at = offsets["time_us"] // 8, offsets["status"] // 4
        self._word_at = offsets["integer"] // 8
        self._kinds = latest.raw[:, : self._fast, : self._status_at // 2].tobytes()
        self._low, self._high = latest.word_limits()
        self._interval_us = interval_s * 1e6
        self._certain_us, self._together_us = _CERTAIN * self._interval_us, TOGETHER * self._interval_us
        self._uncounted = None if latest.counts.all() else ~latest.counts
        if self._uncounted is not None:
            self._low[self._uncounted], self._high[self._uncounted] = np.iinfo(np.int64).min, np.iinfo(np.int64).max
        self._usual = latest.statuses[:, : self._fast].tobytes()
        self._seen_us = latest.times_us[:, : self._fast]
        self._times_us = self._seen_us
        # When each value is to come, by when its watch is to measure first.
        self._expected_us = np.full(self._seen_us.shape, np.inf)
        self._all_rows = np.arange(len(gpus))
        self._first = np.zeros(len(gpus), dtype=np.intp)
        for row, gpu in enumerate(gpus):
            base, next_us = gpu.next_us
            for watch, part in self._parts.items():
                places = np.flatnonzero(latest.counts[row, part]) + part.start
                if places.size:
                    times_us = self._seen_us[row, places]
                    self._expected_us[row, places] = next_us[watch] + (times_us - times_us.min())
                    if watch == base:
                        self._first[row] = places[times_us.argmin()]
        self._deviation_us = np.zeros(self._seen_us.shape)
        self._flat = self._deviation_us.reshape(-1)
        self._ticks = 0
        self.keep_up()

    def keep_up(self) -> None:
        """Take the slow values as the GPUs hold them now."""
        held = [gpu.held for gpu in self._gpus]
        self._held = HeldValues(np.array([values for values, _ in held]), [blanks for _, blanks in held])

    def fits(self) -> bool:
        """Whether what was just read is the next tick of every GPU."""
        raw, fast = self.latest.raw, self._fast
        self._times_us = raw[:, :fast, self._time_at]
        np.subtract(self._times_us, self._expected_us, out=self._deviation_us)
        if self._uncounted is not None:
            self._deviation_us[self._uncounted] = 0.0
        earliest, latest = float(np.minimum.reduce(self._flat)), float(np.maximum.reduce(self._flat))
        return (
            latest < self._certain_us
            and earliest > -self._certain_us
            and latest - earliest < self._together_us
            and raw.view(np.int32)[:, :fast, self._status_at].tobytes() == self._usual
        )

    def is_as_before(self) -> bool:
        """Whether in what was just read, and fits, fast values are numbers, all GPUs work and no slow value is new."""
        raw, fast = self.latest.raw, self._fast
        words = raw[:, :fast, self._word_at]
        slow_us = raw[:, fast:, self._time_at]
        ratios = self.latest.ratio_places
        return bool(
            ((words >= self._low) & (words <= self._high)).all()
            and ((slow_us == self.latest.seen_us[:, fast:]) | (slow_us == 0)).all()
            and raw[:, :fast, : self._status_at // 2].tobytes() == self._kinds
            and (not ratios.size or words[:, ratios].any(axis=1).all())
        )

    @property
    def read_us(self) -> npt.NDArray[np.int64]:
        """When what was just read was measured, by GPU and fast field; 0 for never."""
        return self._times_us

    def take(self, now_s: float) -> SteadyTick:
        """Return what was just read, and fits, as a tick of all GPUs."""
        self.taken_s = now_s
        self._deviation_us *= FOLLOW
        self._expected_us += self._deviation_us
        times_us = self._expected_us[self._all_rows, self._first]
        self._expected_us += self._interval_us
        self._seen_us = self._times_us
        self._ticks += 1
        return SteadyTick(self.latest.raw, times_us, self._held)

    def ticks(self, ticks: Sequence[SteadyTick]) -> SteadyTicks:
        """Return what :meth:`take` gave, as a reading has it."""
        return SteadyTicks(self._rows, ticks)

    def tell(self) -> None:
        """Tell the reader what was seen; to be called before it decodes."""
        self.latest.seen_us[:, : self._fast] = self._seen_us

    def leave(self) -> None:
        """Let reader and GPUs go on behind the ticks that were taken."""
        self.tell()
        for row, gpu in enumerate(self._gpus):
            next_us = {watch: self._expected_us[row, part].min(initial=np.inf) for watch, part in self._parts.items()}
            known_us = {watch: float(at_us) for watch, at_us in next_us.items() if np.isfinite(at_us)}
            gpu.go_on(self._ticks, known_us, self.taken_s)


def is_in_order(whole: Sequence[bool], activity: Sequence[tuple[float, float]]) -> bool:
    """Whether a reading gave every GPU a whole tick, and none says zero although kernels run."""
    return all(whole) and not any(busiest == 0.0 and use >= ZeroGuard.BUSY for use, busiest in activity)


class LookPhase:
    """Finds the middle between two measurements of the engine.

    There a look may come early or late, and the engine measure so, without that one look finds nothing new and the next
    one two values, of which the first must be fetched. The engine's stamps tell when it measures. Where it delivers
    later by a part of an interval, the look there finds too little and too much again, and other places are tried.

    Args:
        interval_s: Seconds between measurements.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_us = interval_s * 1e6
        self._delay = 0.0
        self._misses = 0
        self._is_there = False

    def note_miss(self) -> None:
        """Note a look, a whole interval after the one before, that found nothing new or something missed."""
        self._misses += self._is_there

    def shift_s(self, times_us: npt.NDArray[np.int64], now_us: int) -> float:
        """Return by how much later looks are to come.

        Args:
            times_us: When what is newest was measured, 0 for never.
            now_us: When it was looked, by the same clock.
        """
        times_us = times_us[times_us > 0]
        if not times_us.size:
            return 0.0
        if self._misses >= _MISSES:
            self._delay = (self._delay + _NEXT_PLACE) % 1.0
            self._misses = 0
        phases = np.sort((now_us - times_us) % self._interval_us)
        gaps = np.diff(phases, append=phases[0] + self._interval_us)
        widest = int(gaps.argmax())
        # How long ago a look would have been best; looks before and after are an interval away.
        early_us = phases[widest] + gaps[widest] / 2 - self._delay * self._interval_us
        wrong_us = (early_us + self._interval_us / 2) % self._interval_us - self._interval_us / 2
        self._is_there = bool(abs(wrong_us) <= _MIDDLE * self._interval_us)
        return 0.0 if self._is_there else float(-wrong_us / 1e6)
